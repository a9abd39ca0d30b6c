r"""Where a piecewise linear network bends: one rule for each operation.

A network of affine maps, ReLUs, maxima and the like is affine wherever every ReLU keeps its sign
and every maximum its winner. `BendingNetwork` carries points through the operations of any
`nn.Module` or `.pt2` archive and tells a visitor, in the order in which they happen, of

* a kink, as the affine forms $z-\theta$ whose zeros are the bends (ReLU: $\theta=0$),
* a choice, as the affine functions whose maximum is taken.

A choice by a comparison, as in `torch.where(z > 0, a, b)`, is a kink at $z=0$ that is continuous
where $a=b$ there: the difference $a-b$ goes with the kink, and who finds the zero looks at it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchtheory.core.checks import described, first_entry
from torchtheory.core.errors import (
    InvalidInput,
    InvalidType,
    ModelRaised,
    ShapeMismatch,
    UnsupportedModel,
)
from torchtheory.core.foreign_code import said
from torchtheory.expressivity.bend_rules import RULES, Noted, Signal, Told, Visitor, without_jumps
from torchtheory.models.model import PureFunction, global_randomness_kept
from torchtheory.tracing.interpret import Call, in_terms_of, interpret
from torchtheory.tracing.network import BatchSize, Network, mapped
from torchtheory.tracing.recorder import record

#: A module, or one as a function with the output that is meant.
Model = nn.Module | PureFunction


class _Nobody:
    def kink(self, forms: Tensor, gap: Tensor | None = None) -> None: ...

    def choice(self, values: Tensor) -> None: ...


class BendingNetwork:
    """A network in double precision whose bends can be watched.

    Args:
        model: any module, or one as a function with the output that is meant; it stays as it is.
        x: two points or more, `[points, ...]`. A point of a network whose rows are not independent,
            as the nodes of a graph are not, is the whole table that it takes.

    >>> class Print:
    ...     def kink(self, forms, gap=None):
    ...         print("kink", forms.tolist())
    ...     def choice(self, values):
    ...         print("choice", values.tolist())
    >>> x = torch.tensor([[-1.0, 2.0], [3.0, 2.0]])
    >>> BendingNetwork(nn.Sequential(nn.ReLU(), nn.MaxPool1d(2)), x).watch(x[:1], Print())
    kink [[-1.0, 2.0]]
    choice [[[0.0, 2.0]]]
    tensor([[2.]], dtype=torch.float64)
    """

    def __init__(self, model: Model, x: Tensor) -> None:
        self.function = exact_function(model)
        self.network = in_terms_of(self._recorded(x.double()), RULES)
        #: Whether points stand side by side along the first dimension of every value.
        self.abreast = self.network.rows is None and all(
            value.shape[:1] == (BatchSize(1),)
            and not any(isinstance(size, BatchSize) for size in value.shape[1:])
            for op in self.network
            for value in op.outputs
            if value.follows and value in self.network.needed
        )
        self.watch(x[:2], _Nobody())  # refuses what has no rule before anything is computed
        if self.network.rows is None:
            _refuse_mixing(self.function, x.double())

    def _recorded(self, x: Tensor) -> Network:
        if len(x) == 1:
            x = x.expand(2, *x.shape[1:])
        try:
            network = record(self.function, x)
        except ModelRaised as error:
            return self._recorded_on_a_table(x[0], error)
        if network.rows is not None:
            raise UnsupportedModel(
                f"{network.title} does not run on any number of points: {network.fixed_because}"
            )
        return network

    def _recorded_on_a_table(self, x: Tensor, error: ModelRaised) -> Network:
        """Of a network that takes one table and no batch of them."""
        try:
            network = record(self.function, x) if x.ndim > 1 else None
        except ModelRaised:
            network = None
        if network is not None and network.rows is not None:
            return network
        if not isinstance(error.raised, RuntimeError | IndexError):
            raise error
        raise ShapeMismatch(
            f"the model does not run on points of shape {list(x.shape)}: {said(error.raised)}"
        ) from error.raised

    def __call__(self, x: Tensor) -> Tensor:
        """The network at points `[points, ...]`, differentiable."""
        if self.abreast:
            return self.function(self.function.parameters, x)
        made: Tensor = torch.vmap(lambda one: self._out(self._alone(one)))(x)
        return made

    def watch(self, x: Tensor, visitor: Visitor) -> Tensor:
        """Run it on `x[points, ...]`, telling the visitor of every operation that bends."""
        x = x.detach().double()
        with torch.no_grad():
            made = self._abreast(x, visitor) if self.abreast else self._one_by_one(x, visitor)
        if made.ndim == 0 or made.shape[0] != x.shape[0]:
            raise UnsupportedModel(
                f"the model makes {list(made.shape)} of {x.shape[0]} points; its output must have "
                "one row for each"
            )
        return made.detach()

    def _abreast(self, x: Tensor, visitor: Visitor) -> Tensor:
        made = interpret(self.network, RULES, [Signal(x, Told(visitor))], len(x))
        return self.function.chosen(mapped(made, without_jumps))

    def _one_by_one(self, x: Tensor, visitor: Visitor) -> Tensor:
        """Every point in a lane of its own; the visitor hears of the bends of all at the end."""
        heard: list[tuple[Call, bool]] = []

        def lane(one: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
            notes = Noted()
            made = interpret(self.network, RULES, [Signal(self._alone(one)[0], notes)], self._rows)
            heard[:] = [(call, kink) for call, kink, _, _ in notes.all]
            forms = [form for _, _, form, _ in notes.all]
            gaps = [one.new_zeros(()) if gap is None else gap for *_, gap in notes.all]
            gapless[:] = [gap is None for *_, gap in notes.all]
            return self._row(self.function.chosen(mapped(made, without_jumps))), forms, gaps

        gapless: list[bool] = []
        made, forms, gaps = torch.vmap(lane)(x)
        told = Told(visitor)
        for (call, kink), form, gap, none in zip(heard, forms, gaps, gapless, strict=True):
            if kink:
                told.tell(call, form, None if none else gap)
            else:
                visitor.choice(form)
        return made

    @property
    def _rows(self) -> int:
        return self.network.rows or 1

    def _alone(self, one: Tensor) -> tuple[Tensor]:
        return (one if self.network.rows is not None else one.unsqueeze(0),)

    def _row(self, made: Tensor) -> Tensor:
        return made if self.network.rows is not None else made.squeeze(0)

    def _out(self, x: tuple[Tensor]) -> Tensor:
        return self._row(self.function.chosen(self.network.replay(*x)))


def _refuse_mixing(function: PureFunction, x: Tensor) -> None:
    """A point must give the same alone as beside others."""
    x = x[[0, -1]]
    with torch.no_grad(), global_randomness_kept():
        both = function(function.parameters, x)
        for row in range(len(x)):
            twice = function(function.parameters, x[[row] * len(x)])
            if both.shape[:1] != x.shape[:1] or twice.shape != both.shape:
                return  # who uses the output says what is wrong with its shape
            apart = float((both[row] - twice[row]).abs().max()) if both[row].numel() else 0.0
            if apart > 1e3 * torch.finfo(both.dtype).eps * float(both.abs().max()):
                raise UnsupportedModel(
                    "the model mixes the points of a batch: the output at one depends on the "
                    "others, so it has no pieces of its own"
                )


def exact_function(model: Model) -> PureFunction:
    """The network in double precision, its numbers finite; the module itself stays as it is."""
    function = model if isinstance(model, PureFunction) else PureFunction(model)
    function = function.in_precision(torch.float64)
    function.refuse_non_finite_parameters()
    return function


def sample_shape(function: PureFunction, *samples: Tensor | float) -> list[Tensor]:
    """Samples in double precision on the model's device; a number is a sample of one feature."""
    device = function.reference().device
    # a number keeps all its digits: as a tensor of its own it would be rounded to single precision
    try:
        made = [
            torch.as_tensor(s, dtype=None if isinstance(s, Tensor) else torch.float64).detach()
            for s in samples
        ]
    except (TypeError, ValueError, RuntimeError):
        given = ", ".join(map(described, samples))
        raise InvalidType(
            f"a point is a tensor, or a number for a model of one feature, not {given}"
        ) from None
    made = [s.to(device=device, dtype=torch.float64) for s in made]
    made = [s.reshape(1) if s.ndim == 0 else s for s in made]
    for s in made:
        if s.shape != made[0].shape:
            raise InvalidInput(
                f"the points must have one shape, not {list(made[0].shape)} and {list(s.shape)}"
            )
        if not bool(torch.isfinite(s).all()):
            raise InvalidInput(
                "the points must be finite, and one holds NaN or infinity: "
                f"{first_entry(s, 'the value', ~torch.isfinite(s))}"
            )
    return made
