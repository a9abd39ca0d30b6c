r"""One pass through a recorded network that leaves behind how relevance comes back.

Tensors are carried through the network's operations. One that needs a gradient is a *signal*,
everything else is a constant. Each operation on signals (`operations`) becomes a node of torch's
own graph whose "derivative" is the rule of that operation, so that relevance of a signal that is
used twice adds up, and one backward pass does everything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.errors import UnsupportedModel
from torchtheory.explanation.composites import Composite, Place
from torchtheory.explanation.ledger import Entry
from torchtheory.explanation.propagation.linear_maps import Kept, LinearMap, redistributed
from torchtheory.explanation.propagation.marks import (
    Mark,
    SamplesMixed,
    mark_of,
    noted,
    together,
    totals,
    weighted_totals,
)
from torchtheory.explanation.rules import Rule
from torchtheory.models.model import tensors_in
from torchtheory.tracing.arguments import bind
from torchtheory.tracing.interpret import Call, Rules, no_rule
from torchtheory.tracing.names import plain_name
from torchtheory.tracing.network import Network, Operation, Value, leaves, mapped, pair_up

#: Relevance of an operation's output -> relevance of its inputs.
Back = Callable[[Tensor], Sequence[Tensor | None]]

#: What a step makes of its signals.
Handler = Callable[["Step"], Any]

#: What a signal cannot go through: what comes out of these is not torch's any more.
_LEAVE_TORCH = ("numpy", "__array__")


class _Handed(torch.autograd.Function):
    """A node of the graph whose derivative is a rule."""

    @staticmethod
    def forward(ctx: Any, value: list[Tensor], back: Back, *signals: Tensor) -> Tensor:
        ctx.back, ctx.count = back, len(signals)
        ctx.set_materialize_grads(False)
        return value[0]

    @staticmethod
    def backward(ctx: Any, *relevance: Any) -> Any:
        (own,) = relevance
        if own is None:  # nothing arrives here
            return (None,) * (2 + ctx.count)
        return (None, None, *ctx.back(own))


def node(value: Tensor, back: Back, signals: Sequence[Tensor]) -> Tensor:
    """A value of the pass, with what becomes of its relevance; `value` must be new."""
    # another tensor of the same numbers: `back` may hold the value, and would hold itself
    made: Tensor = _Handed.apply([value.detach()], back, *signals)  # type: ignore[no-untyped-call]
    return made


class Propagation(Rules):
    """Rules that hand relevance back, with the books of one pass.

    Args:
        table: what to do with an operation; a rule gets a `Step`.
        network: what was recorded of these very samples, whose decisions are therefore taken.
        model: its modules have the types that rules are chosen by.
        count: number of samples in the pass.
        rules: for which operation which.
        kept: weights that rules made, from earlier passes.

    Attributes:
        entries: the books, in the order in which relevance met the operations.
        met: operations with weights, their rules, and whether inputs were negative that the rule
            does not expect, in the same order.
        embedded: what stands for the results of some operations.
        watched: signals of values whose relevance is wanted, once they were met.
        outputs: the same by the modules that give them back.
    """

    def __init__(
        self,
        table: Rules,
        network: Network,
        model: nn.Module,
        count: int,
        rules: Composite,
        kept: Kept,
    ) -> None:
        super().__init__(table.subject, table.by_name, table.by_kind, table.added)
        self.count, self.rules, self.kept = count, rules, kept
        self.entries: list[Entry] = []
        self.met: list[tuple[Place, Rule, bool]] = []
        self.depth_of_output = 0
        self.embedded: Mapping[Operation, Tensor] = {}
        self.watched: dict[Value, Tensor | None] = {}
        self.outputs: dict[str, list[Tensor]] = {}
        self._needed = network.needed
        self._modules = dict(model.named_modules())

    def find(self, name: str) -> Callable[[Call], Any]:
        """One rule for all, which keeps the books: what no signal enters is computed as it is."""
        return self._handed

    def close(self) -> None:
        """Let go of tensors of the pass, whose graph holds this object."""
        self.watched, self.embedded, self.outputs = {}, {}, {}

    def _handed(self, call: Call) -> Any:
        if call.kind == "decision" and self._needed.isdisjoint(call.operation.outputs):
            if call.name in _LEAVE_TORCH:
                raise call.refusal("the network leaves torch, where no relevance can follow")
            return [None] * len(call.operation.outputs)
        made = self.embedded.get(call.operation)
        if made is None:
            made = self.hand(Step(call.operation, call.args, call.kwargs, call.samples, self))
        if self.watched:
            found: dict[Value, Any] = {}
            pair_up(call.operation.result, made, found)
            self.watch(found)
        return made

    def watch(self, made: Mapping[Value, Any]) -> None:
        """Keep what is asked for among values."""
        for value in self.watched.keys() & made.keys():
            self.watched[value] = made[value]

    def hand(self, step: Step) -> Any:
        """What an operation makes of signals and constants."""
        if not step.signals:
            return step.function(*step.args, **step.kwargs)
        if step.operation.draws:
            raise no_rule(self, step.operation)
        rule = super().find(step.name)
        if rule is not None:
            try:
                made = rule(step)
            except SamplesMixed:
                raise step.refusal(
                    "samples of a batch are mixed, so that none has an explanation of its own, by "
                    + step.name
                ) from None
            if made is not NotImplemented:
                return made
        before = next(filter(None, (mark_of(t).refused for t in step.signals)), "")
        made = step.function(*step.args, **step.kwargs)
        return _without_rule(before or str(no_rule(self, step.operation)), made)

    def type_of_layer(self, op: Operation) -> type[nn.Module]:
        """The class of the module that an operation is part of, of an archive by its name."""
        own = self._modules.get(op.layer)
        if own is not None and type(own).__name__ == op.layer_kind:
            return type(own)
        named = getattr(nn, op.layer_kind, nn.Module)
        return named if isinstance(named, type) and issubclass(named, nn.Module) else nn.Module

    def book(
        self,
        here: Place,
        rule: str,
        received: Tensor,
        samples: Tensor | None,
        passed: Sequence[tuple[Tensor | None, Tensor | None]],
        to_biases: Tensor | Sequence[tuple[Tensor, Tensor]] | None = None,
        to_epsilon: Tensor | None = None,
        leaked: Tensor | None = None,
    ) -> None:
        """One line of the books; all but what is passed has the shape of what was received.

        What goes to biases may be given as pairs of factors, of which the second is broadcast.
        """

        def sum_of(values: Tensor | None) -> Tensor:
            if values is None:
                return received.new_zeros(self.count)
            return totals(values, samples, self.count)

        if to_biases is None or isinstance(to_biases, Tensor):
            biases = sum_of(to_biases)
        else:
            biases = received.new_zeros(self.count)
            for per_unit, bias in to_biases:
                biases += weighted_totals(per_unit, bias, samples, self.count)
        handed = received.new_zeros(self.count)
        for values, owners in passed:
            if values is not None:
                handed += totals(values, owners, self.count)
        self.entries.append(
            Entry(
                here.layer,
                here.operation,
                rule,
                sum_of(received),
                handed,
                biases,
                sum_of(to_epsilon),
                sum_of(leaked),
            )
        )


def _without_rule(refused: str, made: Any) -> Any:
    """Nothing is wrong with it as long as no relevance arrives."""

    def wrapped(t: Any) -> Any:
        if not (isinstance(t, Tensor) and t.requires_grad):
            return t

        def back(relevance: Tensor) -> Sequence[Tensor | None]:
            # made here: an error that the graph holds would hold the graph by its traceback
            raise UnsupportedModel(refused)

        return noted(node(t.detach(), back, [t]), Mark(None, gate=True, refused=refused))

    if isinstance(made, tuple | list):
        parts = [wrapped(t) for t in made]
        return type(made)(parts)  # also of named results, such as those of `cummax`
    return wrapped(made)


@dataclass(eq=False)
class Step(Call):
    """One operation of a pass, some of whose arguments are signals.

    Attributes:
        trace: the pass.
    """

    trace: Propagation

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """By name; a step may stand for another operation than the recorded one."""
        return bind(self.function, self.args, self.kwargs)

    @cached_property
    def signals(self) -> list[Tensor]:
        """The tensors among the arguments that relevance may come to."""
        return [t for t in tensors_in(leaves((self.args, self.kwargs))) if t.requires_grad]

    def first_two(self) -> tuple[Any, Any]:
        """The two arguments of an operation such as a sum."""
        given = self.args if len(self.args) > 1 else tuple(self.arguments.values())
        return given[0], given[1]

    def of(self, *exchanged: tuple[Any, Any]) -> Any:
        """The operation with some of its arguments exchanged for others."""

        def other(leaf: Any) -> Any:
            return next((new for old, new in exchanged if leaf is old), leaf)

        return self.function(*mapped(self.args, other), **mapped(self.kwargs, other))

    def apply(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Another operation in the place of this one, by its own rule."""
        op = replace(self.operation, name=plain_name(function)[0], function=function)
        return self.trace.hand(Step(op, args, kwargs, self.samples, self.trace))

    def place(self, depth: int, *, weighted: bool = False) -> Callable[[], Place]:
        """Where it is; asked for on the way back, when the whole depth is known."""
        trace, op = self.trace, self.operation
        kind, name = trace.type_of_layer(op), _BOOKED.get(op.name, op.name)
        return lambda: Place(op.layer, kind, name, depth, trace.depth_of_output, weighted)

    def linear(
        self,
        signals: Sequence[Tensor],
        linear: LinearMap,
        samples: Tensor | None,
        *,
        weighted: bool = False,
        gate: bool = False,
    ) -> Tensor:
        """A linear operation: its rule decides."""
        depth = max(mark_of(s).depth for s in signals)
        place, trace = self.place(depth, weighted=weighted), self.trace
        owners = [mark_of(s).samples for s in signals]

        def back(relevance: Tensor) -> Sequence[Tensor | None]:
            here = place()
            rule = trace.rules.rule(here)
            if weighted:
                trace.met.append((here, rule, _has_negative(rule, linear)))
            shares = redistributed(rule, linear, relevance, samples)
            trace.book(
                here, rule.name, relevance, samples, list(zip(shares.inputs, owners, strict=True)),
                shares.to_biases, shares.to_epsilon, shares.leaked,
            )  # fmt: skip
            return shares.inputs

        made = node(linear.output, back, signals)
        return noted(made, Mark(samples, gate, depth + weighted))

    def entrywise(self, signals: Sequence[Tensor], ndim: int, **known: Any) -> Mark:
        """What is known of the result of an operation that acts entry by entry."""
        marks = [mark_of(s) for s in signals]
        samples = together([m.samples for m in marks], ndim)
        known.setdefault("gate", all(m.gate for m in marks))
        return Mark(samples, depth=max(m.depth for m in marks), **known)


#: Operations that the books call otherwise.
_BOOKED = {"setitem": "assignment", "put": "assignment", "rsub": "sub", "rdiv": "div"}


def _has_negative(rule: Rule, linear: LinearMap) -> bool:
    """Whether a rule for inputs that are not negative met others."""
    return rule.wants_positive_inputs and any(map(linear.has_negative, range(len(linear.inputs))))


def outputs_of(network: Network, layer: str) -> list[Value]:
    """What a module gives back, at each of its calls; of an archive, what its last operation makes.

    Where it gives back several tensors, the first one that follows the input.
    """
    calls = [values for name, values in network.returned if name == layer]
    if layer and not calls:
        inside = [op for op in network if f"{op.layer}.".startswith(f"{layer}.")]
        ends = [a for a, b in zip_longest(inside, inside[1:]) if not b or b.number > a.number + 1]
        calls = [op.outputs for op in ends]
    found = [next((v for v in values if v.follows), None) for values in calls]
    return [_before_dropout(network, v) for v in found if v is not None]


def _before_dropout(network: Network, value: Value) -> Value:
    """Dropout in evaluation mode gives back what it is given."""
    op = network.makers.get(value)
    dropped = op is not None and op.kind == "random" and not op.draws
    return _before_dropout(network, op.inputs[0]) if op is not None and dropped else value
