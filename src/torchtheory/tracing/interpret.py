r"""An analysis of networks as a table of rules, and how something is carried through by them.

What is carried may be anything: a bound, a region, a relevance, a variance. A rule says what an
operation makes of it; it is found by the operation's name, else by its kind. An operation without
a rule is written out in simpler ones, and only where there are none it is refused, with its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from torchtheory.core.budget import check_time
from torchtheory.core.errors import UnsupportedModel
from torchtheory.core.naming import operation_words
from torchtheory.tracing.kinds import KIND_OF, Kind
from torchtheory.tracing.network import BatchSize, Network, Operation, Value, mapped
from torchtheory.tracing.own_functions import OwnFunction, own_function

#: What an operation makes of what is carried; NotImplemented if it does not know this form of it.
Rule = Callable[["Call"], Any]


@dataclass(eq=False)
class Call:
    """One operation, with what is carried in the place of its values.

    Values that do not follow the input are tensors, as they are.

    Attributes:
        operation: what is called.
        args, kwargs: with what, as the network's author wrote it.
        samples: how many there are.
    """

    operation: Operation
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    samples: int

    @property
    def name(self) -> str:
        return self.operation.name

    @property
    def kind(self) -> Kind | None:
        return self.operation.kind

    @property
    def function(self) -> Callable[..., Any]:
        return self.operation.function

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """By name, with defaults: `call.arguments["weight"]`."""
        held: dict[Any, Any] = {}
        _paired((self.operation.args, self.operation.kwargs), (self.args, self.kwargs), held)
        named: dict[str, Any] = mapped(
            self.operation.arguments,
            lambda leaf: held[leaf] if isinstance(leaf, Value | BatchSize) else leaf,
        )
        return named

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def get(self, name: str, default: Any = None) -> Any:
        """An argument, or a default where the function has none of this name."""
        return self.arguments.get(name, default)

    def refusal(self, why: str) -> UnsupportedModel:
        """An error with the place."""
        return UnsupportedModel(f"{why} (in {self.operation.place})")


def _paired(raw: Any, given: Any, held: dict[Any, Any]) -> None:
    """Note what stands for every value and size; what is carried may be a tuple itself."""
    if isinstance(raw, Value | BatchSize):
        held[raw] = given
    elif isinstance(raw, tuple | list):
        for one, other in zip(raw, given, strict=True):
            _paired(one, other, held)
    elif isinstance(raw, dict):
        for key, one in raw.items():
            _paired(one, given[key], held)
    elif isinstance(raw, slice):
        for end in ("start", "stop", "step"):
            _paired(getattr(raw, end), getattr(given, end), held)


@dataclass(eq=False)
class Rules:
    """A table of rules.

    Args:
        subject: what cannot be said where a rule is missing, as "no bound".
        by_name: rules for operations, by their plain names.
        by_kind: rules for all others of a kind.

    >>> signs = Rules("no sign", {"relu": lambda call: "+", "neg": lambda call: "-"})
    >>> signs.knows("relu"), signs.knows("exp")
    (True, False)
    """

    subject: str
    by_name: Mapping[str, Rule]
    by_kind: Mapping[Kind, Rule] = field(default_factory=dict)
    added: dict[str, Rule] = field(default_factory=dict)

    def find(self, name: str) -> Rule | None:
        """The rule for an operation."""
        found = self.added.get(name) or self.by_name.get(name)
        kind = KIND_OF.get(name)
        return found if found is not None or kind is None else self.by_kind.get(kind)

    def knows(self, name: str) -> bool:
        """Whether there is a rule for an operation."""
        return self.find(name) is not None or KIND_OF.get(name) == "random"


def rule(rules: Rules, operation: str | OwnFunction) -> Callable[[Rule], Rule]:
    """Teach an analysis an operation of your own, or another rule for one that it knows.

    A decorator.

    Args:
        rules: the table of the analysis.
        operation: the plain name of an operation, or a subclass of `torch.autograd.Function`, which
            is one operation where there is a rule for it.

    >>> class Cube(torch.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         return x**3
    >>> class Net(torch.nn.Module):
    ...     def forward(self, x):
    ...         return Cube.apply(x)
    >>> from torchtheory.tracing.recorder import record
    >>> intervals = Rules("no interval", {})
    >>> @rule(intervals, Cube)
    ... def cube(call):
    ...     lower, upper = call.args[0]
    ...     return lower**3, upper**3
    >>> interpret(record(Net(), torch.ones(1, 2)), intervals, [(-1, 2)], samples=1)
    (-1, 8)
    """
    name = operation if isinstance(operation, str) else own_function(operation)

    def taught(function: Rule) -> Rule:
        rules.added[name] = function
        return function

    return taught


def interpret(
    network: Network,
    rules: Rules,
    start: Sequence[Any],
    samples: int,
    tensors: Mapping[Value, Tensor] | None = None,
) -> Any:
    """Carry something through a network.

    Args:
        network: what `record` made.
        rules: what operations make of what is carried.
        start: what stands for each of the inputs.
        samples: the number of samples, for sizes that follow it.
        tensors: what stands for parameters, buffers and constants, if not they themselves.

    Returns:
        What stands for the output, in the structure in which the network returns it.

    Raises:
        UnsupportedModel: where an operation has no rule and cannot be written out in such as have
            one; with its name and its place.

    >>> from torch import nn
    >>> from torchtheory.tracing.recorder import record
    >>> signs = Rules("no sign", {"relu": lambda call: "+", "neg": lambda call: "-"})
    >>> interpret(record(nn.ReLU(), torch.ones(1, 2)), signs, ["?"], samples=1)
    '+'
    """
    declined: set[str] = set()
    network = in_terms_of(network, rules, declined)
    while True:
        try:
            return _carried(network, rules, start, samples, tensors)
        except _Declined as form:
            name = form.call.name
            if name in declined:
                raise no_rule(rules, form.call.operation) from None
            declined.add(name)
            network = in_terms_of(network, rules, declined)


def in_terms_of(
    network: Network, rules: Rules, declined: set[str] | frozenset[str] = frozenset()
) -> Network:
    """The network in operations that have rules, as far as it can be written in such."""
    lacking = [
        op
        for op in network
        if _wants_rule(network, op) and (op.name in declined or not rules.knows(op.name))
    ]
    if not lacking or network.opened is None:
        return network
    return network.opened(lambda name: rules.knows(name) and name not in declined)


class _Declined(Exception):
    """A rule does not know this form of its operation."""

    def __init__(self, call: Call) -> None:
        super().__init__(call.name)
        self.call = call


def _carried(
    network: Network,
    rules: Rules,
    start: Sequence[Any],
    samples: int,
    tensors: Mapping[Value, Tensor] | None,
) -> Any:
    def step(op: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not op.follows:
            with torch.no_grad() if tensors is None else torch.enable_grad():
                return op.function(*args, **kwargs)
        if not _wants_rule(network, op):
            return _nothing(op)
        call = Call(op, args, kwargs, samples)
        if op.kind == "random" and not op.draws:
            return call["input"]
        check_time()
        rule = rules.find(op.name)
        if rule is None:
            raise no_rule(rules, op)
        made = rule(call)
        if made is NotImplemented:
            raise _Declined(call)
        return made

    return network.evaluate(start, samples, step, tensors)


def _wants_rule(network: Network, op: Operation) -> bool:
    """Whether what it makes is carried on, or decides about the way."""
    return op.follows and (op.kind == "decision" or not network.needed.isdisjoint(op.outputs))


def _nothing(op: Operation) -> Any:
    """In the place of what nobody looks at."""
    if isinstance(op.result, tuple | list):
        return [None] * len(op.result)
    return dict.fromkeys(op.result) if isinstance(op.result, dict) else None


def no_rule(rules: Rules, op: Operation) -> UnsupportedModel:
    """Why there is nothing to say about a network."""
    words = operation_words(op.name)
    if op.kind == "decision":
        why = (
            f"the network asks what is in its input ({words.strip('_')}), and another input may "
            "take another way"
        )
    elif op.draws:
        why = f"the network draws random numbers ({words})"
    else:
        why = f"there is no rule for {words}"
    return UnsupportedModel(f"{rules.subject}: {why} (in {op.place})")
