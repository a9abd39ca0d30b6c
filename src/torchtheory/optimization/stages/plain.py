"""Stages without parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from torchtheory.core.workspace import Workspace as Memory
from torchtheory.optimization.stages.convolutions import channels_last
from torchtheory.optimization.stages.stage import (
    CurvedStage,
    Kept,
    Move,
    Several,
    Stage,
    of_all,
    places_first,
    samples_first,
)

#: What an operation makes of values.
Applied = Callable[..., Tensor]


class Rectified(CurvedStage):
    """A ReLU, whose slopes are read off its output."""

    def values(self, *x: Tensor) -> tuple[Tensor, Kept]:
        y = torch.relu(x[0])
        return y, Kept(slopes=y)

    def pulled_many(self, kept: Kept, outer: Tensor, space: Memory) -> Sequence[Tensor]:
        assert kept.slopes is not None
        return (_times(self, outer, (kept.slopes > 0).to(outer.dtype), space),)

    def slopes(self, kept: Kept, outer: Tensor) -> Several:
        return (_gated(outer.clone(), kept),)

    def pushed(self, kept: Kept, moving: Several, move: Move) -> tuple[Tensor, Several]:
        (ingoing,) = moving
        assert ingoing is not None
        return _gated(ingoing, kept), ()

    def pulled(self, kept: Kept, trail: Several, outer: Tensor, move: Move) -> Several:
        return (_gated(outer, kept),)


def _gated(moving: Tensor, kept: Kept) -> Tensor:
    """What moves where the output is positive, in place."""
    assert kept.slopes is not None
    passed: Tensor = torch.ops.aten.threshold_backward.grad_input(
        moving, kept.slopes, 0, grad_input=moving
    )
    return passed


def _times(stage: Stage, outer: Tensor, slopes: Tensor, space: Memory) -> Tensor:
    """Derivatives of many outputs times those of an activation."""
    shape = tuple(of_all(outer, len(slopes)).shape)
    return torch.mul(outer, places_first(slopes[:, None]), out=space.room(stage, "inner", shape))


class Pointwise(CurvedStage):
    """Any activation that acts on every entry by itself.

    Args:
        activation: the operation.
        bends: whether it has a second derivative that torch knows.
    """

    def __init__(self, activation: Applied, *, bends: bool = True) -> None:
        self.activation, self.bends = activation, bends

    def values(self, *x: Tensor) -> tuple[Tensor, Kept]:
        with torch.enable_grad():
            free = x[0].detach().requires_grad_()
            y = self.activation(free)
            (slope,) = torch.autograd.grad(y.sum(), free, create_graph=self.bends)
            bend = None
            if slope.requires_grad:
                (bend,) = torch.autograd.grad(slope.sum(), free, allow_unused=True)
        return y.detach(), Kept(slopes=slope.detach(), outer=bend)

    def pulled_many(self, kept: Kept, outer: Tensor, space: Memory) -> Sequence[Tensor]:
        assert kept.slopes is not None
        return (_times(self, outer, kept.slopes, space),)

    def slopes(self, kept: Kept, outer: Tensor) -> Several:
        assert kept.slopes is not None
        if kept.outer is not None:
            kept.outer = kept.outer * outer
        return (kept.slopes * outer,)

    def pushed(self, kept: Kept, moving: Several, move: Move) -> tuple[Tensor, Several]:
        (ingoing,) = moving
        assert kept.slopes is not None
        assert ingoing is not None
        return kept.slopes * ingoing, moving

    def pulled(self, kept: Kept, trail: Several, outer: Tensor, move: Move) -> Several:
        (moving,) = trail
        assert kept.slopes is not None
        inner = outer.mul_(kept.slopes)
        if kept.outer is not None and moving is not None:
            inner.addcmul_(kept.outer, moving)
        return (inner,)


class Linear(CurvedStage):
    """An operation that is linear, such as the average over windows or over all places.

    Args:
        operation: what it does.
    """

    def __init__(self, operation: Applied) -> None:
        self.operation = operation

    def applied(self, x: Tensor) -> Tensor:
        """The operation, channels last."""
        return channels_last(self.operation(x))

    def adjoint(self, outer: Tensor, shape: Sequence[int]) -> Tensor:
        """Its adjoint, for inputs of this shape."""
        with torch.enable_grad():
            free = outer.new_zeros(()).expand(shape).clone(memory_format=torch.contiguous_format)
            free.requires_grad_()
            (inner,) = torch.autograd.grad(self.operation(free), free, outer)
        return channels_last(inner)

    def values(self, *x: Tensor) -> tuple[Tensor, Kept]:
        # of its input only the shape counts
        return self.applied(x[0]), Kept((x[0].new_zeros(()).expand(x[0].shape),))

    def pulled_many(self, kept: Kept, outer: Tensor, space: Memory) -> Sequence[Tensor]:
        first = samples_first(outer)
        shape = first.shape[0] * first.shape[1], *kept.x[0].shape[1:]
        inner = self.adjoint(first.reshape(-1, *first.shape[2:]), shape)
        return (places_first(inner.reshape(*first.shape[:2], *shape[1:])),)

    def slopes(self, kept: Kept, outer: Tensor) -> Several:
        return (self.adjoint(outer, kept.x[0].shape),)

    def pushed(self, kept: Kept, moving: Several, move: Move) -> tuple[Tensor, Several]:
        (ingoing,) = moving
        assert ingoing is not None
        return self.applied(ingoing), ()

    def pulled(self, kept: Kept, trail: Several, outer: Tensor, move: Move) -> Several:
        return self.slopes(kept, outer)


class Shifted(Linear):
    """An operation that is linear but for something that is added."""

    def pushed(self, kept: Kept, moving: Several, move: Move) -> tuple[Tensor, Several]:
        y, _ = super().pushed(kept, moving, move)
        return y - self.applied(torch.zeros_like(kept.x[0])), ()


class Reshaping(Linear):
    """An operation that passes on what it is given, in another shape."""

    same_for_all = True

    def applied(self, x: Tensor) -> Tensor:
        """Images with their channels last before and behind it, but not inside."""
        return channels_last(self.operation(x.contiguous()))

    def adjoint(self, outer: Tensor, shape: Sequence[int]) -> Tensor:
        return channels_last(outer.reshape(*shape))

    def values(self, *x: Tensor) -> tuple[Tensor, Kept]:
        self.shape = x[0].shape[1:]  # that of one sample, which is the same for all
        return super().values(*x)

    def pulled_many(self, kept: Kept, outer: Tensor, space: Memory) -> Sequence[Tensor]:
        first = samples_first(outer)
        return (places_first(first.reshape(*first.shape[:2], *self.shape)),)


class Largest(CurvedStage):
    """A pooling of images that passes on the largest entry of a window.

    Args:
        operation: gives the largest entries, and their places.
    """

    def __init__(self, operation: Callable[[Tensor], tuple[Tensor, Tensor]]) -> None:
        self.operation = operation

    def values(self, *x: Tensor) -> tuple[Tensor, Kept]:
        y, places = self.operation(x[0])
        shape = (x[0].new_zeros(()).expand(x[0].shape),)
        return channels_last(y), Kept(shape, slopes=places.permute(0, 2, 3, 1).contiguous())

    def pulled_many(self, kept: Kept, outer: Tensor, space: Memory) -> Sequence[Tensor]:
        assert kept.slopes is not None
        n, channels, high, wide = kept.x[0].shape
        outer = of_all(outer, n)
        inner = space.room(self, "inner", (high * wide, n, outer.shape[3], channels)).zero_()
        places = kept.slopes.permute(1, 2, 0, 3)[:, :, :, None]
        inner.scatter_add_(0, places.expand(outer.shape).flatten(0, 1), outer.flatten(0, 1))
        return (inner.view(high, wide, *inner.shape[1:]),)

    def slopes(self, kept: Kept, outer: Tensor) -> Several:
        assert kept.slopes is not None
        n, channels, high, wide = kept.x[0].shape
        inner = outer.new_zeros(n, high * wide, channels)
        rows = outer.permute(0, 2, 3, 1).flatten(1, 2)
        inner.scatter_add_(1, kept.slopes.flatten(1, 2), rows)
        return (inner.view(n, high, wide, channels).permute(0, 3, 1, 2),)

    def pushed(self, kept: Kept, moving: Several, move: Move) -> tuple[Tensor, Several]:
        (ingoing,) = moving
        assert kept.slopes is not None
        assert ingoing is not None
        rows = ingoing.permute(0, 2, 3, 1).flatten(1, 2)
        passed = rows.gather(1, kept.slopes.flatten(1, 2))
        return passed.view(kept.slopes.shape).permute(0, 3, 1, 2), ()

    def pulled(self, kept: Kept, trail: Several, outer: Tensor, move: Move) -> Several:
        return self.slopes(kept, outer)


class Sum(CurvedStage):
    """The sum of two values, the second times a number; one may be broadcast.

    Args:
        factor: the number.
    """

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor

    def values(self, *x: Tensor) -> tuple[Tensor, Kept]:
        shapes = tuple(v.new_zeros(()).expand(v.shape) for v in x)
        return channels_last(torch.add(x[0], x[1], alpha=self.factor)), Kept(shapes)

    def pulled_many(self, kept: Kept, outer: Tensor, space: Memory) -> Sequence[Tensor]:
        parts = (outer, outer if self.factor == 1.0 else outer * self.factor)
        return [_many_summed_to(part, v) for part, v in zip(parts, kept.x, strict=True)]

    def slopes(self, kept: Kept, outer: Tensor) -> Several:
        parts = (outer, outer if self.factor == 1.0 else outer * self.factor)
        return tuple(part.sum_to_size(v.shape) for part, v in zip(parts, kept.x, strict=True))

    def pushed(self, kept: Kept, moving: Several, move: Move) -> tuple[Tensor, Several]:
        one, two = moving
        shape = torch.broadcast_shapes(*(v.shape for v in kept.x))  # type: ignore[no-untyped-call]
        if one is None:
            assert two is not None
            one, two = (two if self.factor == 1.0 else two * self.factor), None
        made = one if two is None else torch.add(one, two, alpha=self.factor)
        return made if made.shape == shape else channels_last(made.expand(shape)).clone(), ()

    def pulled(self, kept: Kept, trail: Several, outer: Tensor, move: Move) -> Several:
        return self.slopes(kept, outer)


def _many_summed_to(outer: Tensor, x: Tensor) -> Tensor:
    """Derivatives of many outputs, summed over what was broadcast from values `[n, ...]`."""
    shape = list(places_first(x[:, None]).shape)
    at = 2 if outer.ndim == 5 else 0
    shape[at], shape[at + 1] = outer.shape[at], outer.shape[at + 1]
    return outer.sum_to_size(shape)


class Product(CurvedStage):
    """The product of two values, entry by entry; one may be broadcast."""

    def values(self, *x: Tensor) -> tuple[Tensor, Kept]:
        return channels_last(x[0] * x[1]), Kept(x)

    def pulled_many(self, kept: Kept, outer: Tensor, space: Memory) -> Sequence[Tensor]:
        outer = of_all(outer, len(kept.x[0]))
        return [
            _many_summed_to(outer * places_first(other[:, None]), own)
            for own, other in (kept.x, kept.x[::-1])
        ]

    def slopes(self, kept: Kept, outer: Tensor) -> Several:
        kept.outer = outer
        return tuple(
            (outer * other).sum_to_size(own.shape) for own, other in (kept.x, kept.x[::-1])
        )

    def pushed(self, kept: Kept, moving: Several, move: Move) -> tuple[Tensor, Several]:
        (a, b), (one, two) = kept.x, moving
        terms = [m * v for m, v in ((one, b), (two, a)) if m is not None]
        return (terms[0] if len(terms) == 1 else terms[0].add_(terms[1])), moving

    def pulled(self, kept: Kept, trail: Several, outer: Tensor, move: Move) -> Several:
        found = []
        for (own, other), moving in zip((kept.x, kept.x[::-1]), trail[::-1], strict=True):
            inner = outer * other
            if kept.outer is not None and moving is not None:
                inner += kept.outer * moving
            found.append(inner.sum_to_size(own.shape))
        return tuple(found)


class Concatenation(CurvedStage):
    """Values side by side.

    Args:
        dim: along which dimension, behind that of the samples.
    """

    def __init__(self, dim: int) -> None:
        self.dim = dim

    def values(self, *x: Tensor) -> tuple[Tensor, Kept]:
        shapes = tuple(v.new_zeros(()).expand(v.shape) for v in x)
        return channels_last(torch.cat(x, self.dim)), Kept(shapes)

    def pulled_many(self, kept: Kept, outer: Tensor, space: Memory) -> Sequence[Tensor]:
        at = {1: 4, 2: 0, 3: 1}[self.dim] if outer.ndim == 5 else self.dim + 1
        return torch.split_with_sizes(outer, [x.shape[self.dim] for x in kept.x], at)

    def slopes(self, kept: Kept, outer: Tensor) -> Several:
        parts = torch.split_with_sizes(outer, [x.shape[self.dim] for x in kept.x], self.dim)
        return tuple(channels_last(part) for part in parts)  # disjoint parts of one memory

    def pushed(self, kept: Kept, moving: Several, move: Move) -> tuple[Tensor, Several]:
        like = next(m for m in moving if m is not None)
        parts = [
            like.new_zeros(()).expand(v.shape) if m is None else m
            for m, v in zip(moving, kept.x, strict=True)
        ]
        return channels_last(torch.cat(parts, self.dim)), ()

    def pulled(self, kept: Kept, trail: Several, outer: Tensor, move: Move) -> Several:
        return self.slopes(kept, outer)


class Other(Stage):
    """Any other operation of one value that maps samples one by one, by autograd.

    Args:
        operation: what it does.
    """

    def __init__(self, operation: Applied) -> None:
        self.operation = operation

    def values(self, *x: Tensor) -> tuple[Tensor, Kept]:
        return channels_last(self.operation(x[0])), Kept(x)

    def pulled_many(self, kept: Kept, outer: Tensor, space: Memory) -> Sequence[Tensor]:
        x = kept.x[0]
        first = samples_first(of_all(outer, len(x)))
        with torch.enable_grad():
            free = x.detach().repeat_interleave(first.shape[1], 0).requires_grad_()
            y = self.operation(free)
            (inner,) = torch.autograd.grad(y, free, first.reshape(y.shape))
        return (places_first(inner.reshape(*first.shape[:2], *x.shape[1:])),)
