r"""One pass through a network that leaves behind how relevance comes back.

The network runs on points that need gradients, inside a mode that sees every function of torch: a
tensor that needs a gradient is a *signal*, everything else is a constant. Each operation on signals
(`operations`) becomes a node of torch's own graph whose "derivative" is the rule of that operation,
so that relevance of a signal that is used twice adds up, and one backward pass does everything.
Nothing is written in place while it runs: what the network writes to gets a stand-in.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import resolve_name

from torchtheory.core.errors import UnsupportedModel
from torchtheory.core.mapping import differentiating
from torchtheory.explanation.composites import Composite, Place
from torchtheory.explanation.ledger import Entry
from torchtheory.explanation.propagation.linear_maps import Kept, LinearMap, redistributed
from torchtheory.explanation.propagation.marks import (
    Mark,
    SamplesMixed,
    mark_of,
    noted,
    numbered,
    together,
    totals,
    weighted_totals,
)
from torchtheory.explanation.propagation.names import parameters, plain_name
from torchtheory.explanation.rules import Rule
from torchtheory.models.model import tensors_in
from torchtheory.sequences.attention.tracing import NamedCalls
from torchtheory.tracing.bodies import body, has_body
from torchtheory.tracing.recurrent_steps import IN_STEPS

#: Relevance of an operation's output -> relevance of its inputs.
Back = Callable[[Tensor], Sequence[Tensor | None]]
Handler = Callable[..., Any]


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


class Propagation(NamedCalls):
    """The mode; see the module.

    Args:
        model: the network, whose modules give their names to the books.
        count: number of samples in the pass.
        rules: for which operation which.
        handlers: what to do with an operation, by its plain name.
        kept: weights that rules made, from earlier passes.
        watched: names of modules whose outputs' relevance is wanted.

    Attributes:
        entries: the books, in the order in which relevance met the operations.
        met: operations with weights, their rules, and whether inputs were negative that the rule
            does not expect, in the same order.
        outputs: of the watched modules, in the order of their calls.
        running: whether the network has not returned yet.
    """

    def __init__(
        self,
        model: nn.Module,
        count: int,
        rules: Composite,
        handlers: dict[str, Handler],
        kept: Kept,
        watched: Sequence[str] = (),
    ) -> None:
        super().__init__(model)
        self.count, self.rules, self.kept = count, rules, kept
        self.entries: list[Entry] = []
        self.met: list[tuple[Place, Rule, bool]] = []
        self.outputs: dict[str, list[Tensor]] = {name: [] for name in watched}
        self.depth_of_output = 0
        self.in_steps = 0
        self.running = False
        self._handlers = handlers
        self._modules = dict(model.named_modules())
        self._stand_ins: dict[int, tuple[Tensor, Tensor]] = {}
        self._written: dict[int, Tensor] = {}

    # -- where it is -------------------------------------------------------------------------------

    def begin(self, points: Tensor) -> None:
        """The points of which each row is a sample."""
        self.running = True
        noted(points, Mark(numbered(points)))

    def located(self, sentence: str) -> str:
        """A sentence with the place where the pass is."""
        name, kind = self.path[-1]
        where = f"layer {name!r} ({kind})" if name else f"forward of {kind}"
        return f"{sentence} in {where}"

    def refusal(self, sentence: str) -> UnsupportedModel:
        """An error with the place where it happened."""
        return UnsupportedModel(self.located(sentence))

    def place(self, operation: str, depth: int, weighted: bool) -> Callable[[], Place]:
        """Where an operation is; asked for on the way back, when the whole depth is known."""
        name = self.path[-1][0]
        kind = type(self._modules.get(name, self.model))
        return lambda: Place(name, kind, operation, depth, self.depth_of_output, weighted)

    def leaves(self, name: str, result: Any) -> None:
        if name in self.outputs:
            for t in tensors_in([result]):
                t = self.current(t)
                if t.requires_grad:
                    self.outputs[name].append(t)
                    break

    # -- the mode ----------------------------------------------------------------------------------

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named = kwargs or {}
        if self._stand_ins:
            args, named = self._replaced(func, args, named)
        if not torch.is_grad_enabled() or not any(
            t.requires_grad for t in tensors_in([*args, *named.values()])
        ):
            return self._untouched(func, args, named)
        if func in IN_STEPS:
            self.in_steps += 1
            try:
                with self:
                    return IN_STEPS[func](*args, **named)
            finally:
                self.in_steps -= 1
        try:
            return self._of_signals(func, args, named)
        except SamplesMixed:
            raise self.refusal(
                "samples of a batch are mixed, so that none has an explanation of its own, by "
                f"{plain_name(func)[0]}"
            ) from None

    def _untouched(self, func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """A function of constants; what it writes to is no signal."""
        return func(*args, **named)

    def _of_signals(self, func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if differentiating():
            raise self._own_gradient("a transform of torch.func such as grad, vjp or jvp")
        name, writes = plain_name(func)
        if named.get("out") is not None:
            raise self.refusal(f"{name} writes to a tensor given as out=, which has no rule here,")
        if has_body(func) and "inplace" in parameters(func):
            bound = inspect.signature(func).bind(*args, **named)
            writes |= bound.arguments.pop("inplace", False) is True
            args, named = bound.args, bound.kwargs
            if "inplace" in bound.kwargs:
                named = {k: v for k, v in named.items() if k != "inplace"}
        handler = self._handlers.get(name)
        if handler is not None:
            made = handler(self, name, *args, **named)
            if made is not NotImplemented:
                return self.write(args[0], made) if writes and isinstance(made, Tensor) else made
        if has_body(func):
            with self:
                return body(func)(*args, **named)
        before = [mark_of(t).refused for t in tensors_in([*args, *named.values()])]
        return self._without_rule(
            next(filter(None, before), "")
            or self.located(f"no rule for {resolve_name(func) or name}"),
            func(*args, **named),
        )

    def _own_gradient(self, means: str) -> UnsupportedModel:
        return self.refusal(
            f"the network takes derivatives by {means} before it returns, which rules of relevance "
            "would falsify (explain it by integrated gradients, occlusion or shapley),"
        )

    def _without_rule(self, refused: str, made: Any) -> Any:
        """Nothing is wrong with it as long as no relevance arrives."""

        def wrapped(t: Any) -> Any:
            if not (isinstance(t, Tensor) and t.requires_grad):
                return t

            def back(relevance: Tensor) -> Sequence[Tensor | None]:
                # made here: an error that the graph holds would hold the graph by its traceback
                raise UnsupportedModel(refused)

            made = self.node(t.detach(), back, [t])
            return noted(made, Mark(None, gate=True, refused=refused))

        if isinstance(made, tuple | list):
            parts = [wrapped(t) for t in made]
            return type(made)(parts)  # also of named results, such as those of `cummax`
        return wrapped(made)

    # -- what is written to ------------------------------------------------------------------------

    def current(self, tensor: Tensor) -> Tensor:
        """The tensor, or what stands for it since the network wrote to it."""
        found = self._stand_ins.get(id(tensor))
        while found is not None:
            tensor = found[1]
            found = self._stand_ins.get(id(tensor))
        return tensor

    def write(self, old: Tensor, new: Tensor) -> Tensor:
        """From now on `new` is what `old` was; nothing is overwritten."""
        if new is not old:
            self._stand_ins[id(old)] = (old, new)
            if old.numel():
                self._written[old.untyped_storage().data_ptr()] = old
        return new

    def close(self) -> None:
        """Let go of tensors of the pass, whose graph holds this object."""
        self.running = False
        self._stand_ins.clear()
        self._written.clear()
        self.outputs.clear()

    def unwritten(self, whole: Tensor, part: Any) -> None:
        """A part that was written to was put back where it came from, as `x[0] += 1` does."""
        for old, new in list(self._stand_ins.values()):
            if (
                new is part
                and old.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
            ):
                self._written.pop(old.untyped_storage().data_ptr(), None)

    def _replaced(self, func: Any, args: Any, named: Any) -> tuple[Any, dict[str, Any]]:
        assigns = getattr(func, "__name__", "") == "__setitem__"
        swapped = tuple(self._swapped(a, assigns) for a in args)
        return swapped, {k: self._swapped(v, assigns) for k, v in named.items()}

    def _swapped(self, value: Any, assigns: bool) -> Any:
        """An argument with what stands for tensors that were written to."""
        if isinstance(value, Tensor):
            made = self.current(value)
            asked = made is value and value.numel() and value.is_floating_point() and not assigns
            if asked and value.untyped_storage().data_ptr() in self._written:
                raise self.refusal(
                    "the network writes to a tensor and goes on to use another view of it"
                )
            return made
        if isinstance(value, list | tuple) and any(True for _ in tensors_in(value)):
            parts = [self._swapped(v, assigns) for v in value]
            return parts if isinstance(value, list) else tuple(parts)
        return value

    # -- nodes -------------------------------------------------------------------------------------

    def node(self, value: Tensor, back: Back, signals: Sequence[Tensor]) -> Tensor:
        """A value of the pass, with what becomes of its relevance; `value` must be new."""

        def once_returned(relevance: Tensor) -> Sequence[Tensor | None]:
            if self.running:
                raise self._own_gradient("torch.autograd.grad or backward")
            return back(relevance)

        # another tensor of the same numbers: `back` may hold the value, and would hold itself
        made: Tensor = _Handed.apply([value.detach()], once_returned, *signals)  # type: ignore[no-untyped-call]
        return made

    def linear(
        self,
        operation: str,
        signals: Sequence[Tensor],
        linear: LinearMap,
        samples: Tensor | None,
        *,
        weighted: bool = False,
        gate: bool = False,
    ) -> Tensor:
        """A linear operation: its rule decides."""
        depth = max(mark_of(s).depth for s in signals)
        place = self.place(operation, depth, weighted)
        owners = [mark_of(s).samples for s in signals]

        def back(relevance: Tensor) -> Sequence[Tensor | None]:
            here = place()
            rule = self.rules.rule(here)
            if weighted:
                self.met.append((here, rule, self._has_negative(rule, linear)))
            shares = redistributed(rule, linear, relevance)
            self.book(
                here, rule.name, relevance, samples, list(zip(shares.inputs, owners, strict=True)),
                shares.to_biases, shares.to_epsilon, shares.leaked,
            )  # fmt: skip
            return shares.inputs

        made = self.node(linear.output, back, signals)
        return noted(made, Mark(samples, gate, depth + weighted))

    @staticmethod
    def _has_negative(rule: Rule, linear: LinearMap) -> bool:
        """Whether a rule for inputs that are not negative met others."""
        return rule.wants_positive_inputs and any(
            map(linear.has_negative, range(len(linear.inputs)))
        )

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

    def entrywise(self, signals: Sequence[Tensor], ndim: int, **known: Any) -> Mark:
        """What is known of the result of an operation that acts entry by entry."""
        marks = [mark_of(s) for s in signals]
        samples = together([m.samples for m in marks], ndim)
        known.setdefault("gate", all(m.gate for m in marks))
        return Mark(samples, depth=max(m.depth for m in marks), **known)
