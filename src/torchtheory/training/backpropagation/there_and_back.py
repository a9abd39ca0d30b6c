r"""The two passes of backpropagation over the operations of any network.

On the way there every value is kept; on the way back every operation hands the error at what it
made to what it took, by its rule (`torchtheory.training.backpropagation.adjoints`). Where a value
is taken twice, its errors add up; where two values meet, each gets its own. Weights that a network
computes from parameters are values like all others, so that errors reach the parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.budget import check_time
from torchtheory.core.errors import ShapeMismatch
from torchtheory.models.model import PureFunction
from torchtheory.tracing.interpret import no_rule
from torchtheory.tracing.network import Network, Operation, Value, called, leaves, pair_up
from torchtheory.tracing.passes import evaluated
from torchtheory.tracing.recorder import input_tensors, record
from torchtheory.training.backpropagation.adjoints import ADJOINTS, errors_of
from torchtheory.training.backpropagation.evaluated import Evaluated
from torchtheory.training.backpropagation.slopes import FLAT

#: From what a network returns to the errors there, in the same structure.
Start = Callable[[Any], Any]


@dataclass(eq=False)
class ThereAndBack:
    """A pass there and back.

    Attributes:
        network: whose operations all have rules.
        values: the tensor of every value.
        deltas: the error at every value that has one.
        calls: the operations that an error came to, in forward order, with what it made of it:
            the errors at its values.
    """

    network: Network
    values: dict[Value, Any]
    deltas: dict[Value, Tensor] = field(default_factory=dict)
    calls: list[tuple[Evaluated, dict[Value, Tensor]]] = field(default_factory=list)

    @property
    def gradients(self) -> dict[str, Tensor]:
        """Of the parameters that the network uses, by name."""
        named = self.network.parameters
        return {k: self.deltas[v] for k, v in named.items() if v in self.deltas}


def there_and_back(model: nn.Module | Network, x: Tensor, start: Start) -> ThereAndBack:
    """Run a network forwards, and an error backwards.

    Args:
        model: any module, run in evaluation mode and left as it was; or what
            `torchtheory.tracing.record` made of one.
        x: inputs `[n, ...]`.
        start: gives the errors at what the network returns.

    Raises:
        UnsupportedModel: where an operation has no rule and cannot be written out in such as have
            one; with its name and its place.
    """
    declined: set[str] = set()
    if isinstance(model, Network):
        function, network = None, model
    else:
        function = PureFunction(model)
        network = _recorded(function, x)
    while True:
        network = _in_rules(network, declined)
        with torch.no_grad():
            found = _there(function, network, x, start)
            unknown = _back(found)
        if unknown is None:
            return found
        declined.add(unknown.name)  # and is written out in others, or refused


def _recorded(function: PureFunction, x: Tensor) -> Network:
    """A network that asks what is in its input goes the way of this one."""
    network = record(function, x)
    return record(function, x, whole=True) if network.decisions else network


def active_values(network: Network) -> set[Value]:
    """The values that a derivative passes: made of inputs and parameters by more than steps.

    >>> from torch import nn
    >>> network = record(nn.Sequential(nn.Linear(2, 3), nn.ReLU()), torch.ones(1, 2))
    >>> len(active_values(network))                # the input, weights and biases, two results
    5
    """
    found = {v for v in [*network.inputs, *network.parameters.values()] if _is_continuous(v)}
    for op in network:
        drawn = op.kind == "random" and op.draws and op.name not in _DROPPING
        if op.kind == "constant" or op.name in FLAT or drawn:
            continue
        if not found.isdisjoint(op.inputs):
            found.update(v for v in op.outputs if _is_continuous(v))
    return found


def _is_continuous(value: Value) -> bool:
    return value.dtype.is_floating_point or value.dtype.is_complex


_DROPPING = frozenset(
    """
    dropout dropout1d dropout2d dropout3d alpha_dropout feature_dropout feature_alpha_dropout
    native_dropout
    """.split()
)


def _in_rules(network: Network, declined: set[str]) -> Network:
    """The network in operations that have rules."""
    for opened in (False, True):
        active = active_values(network)
        lacking = [
            op
            for op in network
            if not network.needed.isdisjoint(op.outputs)
            and not active.isdisjoint(op.outputs)
            and (op.draws or op.name in declined or not ADJOINTS.knows(op.name))
        ]
        if not lacking:
            return network
        if opened or network.opened is None:
            raise no_rule(ADJOINTS, lacking[0])
        network = network.opened(lambda name: ADJOINTS.knows(name) and name not in declined)
    return network


def _there(
    function: PureFunction | None, network: Network, x: Tensor, start: Start
) -> ThereAndBack:
    active = active_values(network)
    values: dict[Value, Any] = dict(network.tensors)
    calls: list[Evaluated] = []

    def step(op: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        check_time()
        made = called(op, args, kwargs)
        pair_up(op.result, made, values)
        if not active.isdisjoint(op.outputs):
            calls.append(Evaluated(op, args, kwargs, len(x), made, active=active.__contains__))
        return made

    if function is None:
        values[network.inputs[0]] = x.detach()
        outputs = network.evaluate([x.detach()], len(x), step)
    else:
        values.update(_inputs(function, network, x))
        outputs = evaluated(function, network, x.detach(), step)
    found = ThereAndBack(network, values, calls=[(call, {}) for call in calls])
    errors = start(outputs)
    for value, made, delta in zip(
        leaves(network.output), leaves(outputs), leaves(errors), strict=True
    ):
        if isinstance(value, Value) and value in active and delta is not None:
            if delta.shape != made.shape:
                raise ShapeMismatch(
                    f"the error at an output {list(made.shape)} has its shape, not "
                    f"{list(delta.shape)}"
                )
            _add(found.deltas, value, delta, made)
    return found


def _inputs(function: PureFunction, network: Network, x: Tensor) -> dict[Value, Tensor]:
    return dict(zip(network.inputs, input_tensors(function, x.detach()), strict=True))


def _back(found: ThereAndBack) -> Operation | None:
    """Fill in the errors; an operation is returned whose rule does not know its form."""
    active = active_values(found.network)
    for call, at in reversed(found.calls):
        op = call.operation
        if not any(v in found.deltas for v in op.outputs):
            continue
        check_time()
        call.delta = _like(op.result, call.made, found.deltas)
        errors = errors_of(call)
        if errors is NotImplemented:
            return op
        for name, error in errors.items():
            raw, held = op.arguments.get(name), call.get(name)
            parts = leaves(error) if isinstance(error, list | tuple) else [error]
            for value, tensor, part in zip(leaves(raw), leaves(held), parts, strict=True):
                if isinstance(value, Value) and value in active and part is not None:
                    own = part() if callable(part) else part
                    _add(at, value, own, tensor)
        for value, error in at.items():
            _add(found.deltas, value, error, error)
    found.calls = [(call, at) for call, at in found.calls if at]
    return None


def _like(result: Any, made: Any, deltas: dict[Value, Tensor]) -> Any:
    """The errors at what an operation made, in its structure."""
    if isinstance(result, Value):
        return deltas.get(result)
    if isinstance(result, tuple | list):
        return [_like(part, own, deltas) for part, own in zip(result, made, strict=True)]
    if isinstance(result, dict):
        return {k: _like(part, made[k], deltas) for k, part in result.items()}
    return None


def _add(errors: dict[Value, Tensor], value: Value, part: Tensor, like: Tensor) -> None:
    """Add an error to those at a value; what was broadcast is summed."""
    extra = part.ndim - like.ndim
    if extra > 0:
        part = part.sum(list(range(extra)))
    spread = [d for d, (n, m) in enumerate(zip(part.shape, like.shape, strict=True)) if n != m]
    if spread:
        part = part.sum(spread, keepdim=True)
    part = part.to(like.dtype)
    errors[value] = errors[value] + part if value in errors else part
