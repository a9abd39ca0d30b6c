"""Passes of a model over samples, operation by operation: the one way to look at what it computes.

The model's operations are recorded once and kept with it; a step then sees every operation with its
tensors, and nothing is held longer than the network needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from torchtheory.core.budget import check_time
from torchtheory.core.errors import ModelRaised, UnsupportedModel
from torchtheory.core.foreign_code import ForeignCode
from torchtheory.core.naming import operation_words
from torchtheory.models.model import Parameters, PureFunction, global_randomness_kept
from torchtheory.models.noise import noise_fixed
from torchtheory.tracing.kinds import KIND_OF
from torchtheory.tracing.network import Network, Operation, Value, called
from torchtheory.tracing.recorder import input_tensors, record

#: What an operation makes of tensors.
Step = Callable[[Operation, tuple[Any, ...], dict[str, Any]], Any]


def without_composites(name: str) -> bool:
    """Says which operations stay as they are where gates and softmaxes of layers are to be seen."""
    return KIND_OF.get(name) != "composite" and name != "glu"


def network_of(
    function: PureFunction, x: Tensor, known: Callable[[str], bool] | None = None
) -> Network:
    """The operations of a model, recorded once and kept with it.

    Args:
        function: the model with its parameters.
        x: inputs; see `torchtheory.tracing.recorder.record`.
        known: which operations stay as they are; one function of a module, by which it is kept.

    >>> from torch import nn
    >>> f = PureFunction(nn.Linear(2, 3))
    >>> network_of(f, torch.ones(5, 2)) is network_of(f, torch.ones(8, 2))
    True
    """
    # copies of the function have other parameters, and the network has numbers made of them
    kept = function.recorded.get(known)
    if kept and kept[0] is function.parameters and kept[1] is function.buffers:
        network: Network = kept[2]
        if network.rows in (None, len(x)):
            return network
    made = record(function, x, known=known)
    entry = (function.parameters, function.buffers, made)
    function.recorded = {**function.recorded, known: entry}
    return made


def run(
    function: PureFunction,
    network: Network,
    x: Tensor,
    step: Step = called,
    tensors: Mapping[Value, Tensor] | None = None,
) -> Tensor:
    """The output of a model, with every operation done by a step.

    Args:
        function: the model.
        network: its operations.
        x: inputs `[n, ...]`.
        step: called with every operation and its tensors; it returns what the operation makes.
        tensors: what stands for parameters, if not they themselves.

    Raises:
        UnsupportedModel: if the model asks what is in its input and these go another way.
    """
    made = function.chosen(evaluated(function, network, x, step, tensors))
    if network.decisions and not _agrees(function, network, x, made, tensors):
        op = network.decisions[0]
        raise UnsupportedModel(
            "the model does not apply the same layers to every batch: it asks what is in its input "
            f"({operation_words(op.name).strip('_')} in {op.place})"
        )
    return made


def evaluated(
    function: PureFunction,
    network: Network,
    x: Tensor,
    step: Step = called,
    tensors: Mapping[Value, Tensor] | None = None,
) -> Any:
    """What a model returns, with every operation done by a step, which may change what it makes."""
    check_time()
    with ExitStack() as stack:
        if network.random:
            stack.enter_context(global_randomness_kept())
        if function.noise is not None:
            stack.enter_context(noise_fixed(function.noise, len(x)))
        stack.enter_context(ForeignCode("the model", ModelRaised))
        return network.evaluate(input_tensors(function, x), len(x), step, tensors)


def _agrees(
    function: PureFunction,
    network: Network,
    x: Tensor,
    made: Tensor,
    tensors: Mapping[Value, Tensor] | None,
) -> bool:
    """Whether the model itself gives the same, up to rounding."""
    given: Parameters = {v.name: t.detach() for v, t in (tensors or {}).items()}
    with torch.no_grad(), global_randomness_kept():
        outputs = function(given, x)
    room = 1e3 * torch.finfo(outputs.dtype).eps * float(outputs.abs().max())
    return torch.allclose(made.detach(), outputs, rtol=0.0, atol=room, equal_nan=True)


def values_of(
    function: PureFunction, network: Network, x: Tensor, *values: Value
) -> tuple[Tensor, ...]:
    """Some of the values that a network holds on its way, without what comes after them.

    >>> from torch import nn
    >>> f = PureFunction(nn.Sequential(nn.ReLU(), nn.Linear(1, 1)))
    >>> x = torch.tensor([[-1.0], [2.0]])
    >>> network = network_of(f, x)
    >>> values_of(f, network, x, *network.operations[0].outputs)
    (tensor([[0.],
            [2.]]),)
    """
    with torch.no_grad():
        if network.decisions:
            run(function, network, x)
        found: tuple[Tensor, ...] = evaluated(function, network.until(*values), x)
    return found


def layers_of_weights(network: Network) -> dict[Value, str]:
    """Of every value that is made of parameters alone, the layer of the first of them.

    A layer goes by the name that its weight has among the parameters; a weight that a
    parametrization computes belongs to the layer that it is the weight of.
    """
    found = {v: _layer(v.name) for v in network.parameters.values()}
    for op in network:
        layer = next((found[v] for v in op.inputs if v in found), None)
        if not op.follows and layer is not None:
            found.update(dict.fromkeys(op.outputs, layer))
    return found


def _layer(name: str) -> str:
    return (name.rpartition(".")[0] or name).partition(".parametrizations.")[0]
