r"""Intervals forwards, linear bounds backwards.

*Interval bounds* follow a box of values through the network, one operation after another.

*CROWN* (Zhang et al. 2018) starts from a linear function of some value, $\langle c,z\rangle$, and
goes back to the input: an affine operation multiplies the coefficients by its transpose, an
activation by the slope of the line below it where the coefficient is positive and of the line
above it where it is negative. What arrives is a linear function of the input below
$\langle c,z\rangle$ on the whole ball, whose minimum there is known. The lines need bounds of what
enters the activation; these are found in the same way, layer by layer, and met with the interval
bounds, for neither of the two is always the better one.

*Optimized slopes* (Xu et al. 2021, alpha-CROWN): the line below a ReLU that bends may have any
slope in $[0,1]$, and around other activations there is a range of lines as well (`relaxations`).
Each linear function of each sample has its own lines, moved by Adam towards a larger bound; the
best bound met is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from torchtheory.core.budget import check_time
from torchtheory.robustness.bounds.balls import Ball
from torchtheory.robustness.bounds.graph import (
    Affine,
    Bend,
    Chosen,
    Graph,
    Largest,
    Operation,
    Picks,
    Product,
)
from torchtheory.robustness.bounds.relaxations import Box, Kinked
from torchtheory.robustness.bounds.rounding import entries, gamma, products, smallest

#: Bytes of coefficients that are held at once.
PIECE = 2**25

#: How many times its coefficients an optimized bound holds.
KEPT = 6

#: How far Adam's first step moves from one line of a family to another, and how steps shrink. Of
#: families of many lines it is this share of a quarter of them.
_RATE, _DECAY, _BETAS = 0.25, 0.97, (0.8, 0.95)


@dataclass
class Propagation:
    """What is known of the values of a network on balls of inputs.

    Attributes:
        graph, ball: the network and the inputs.
        boxes: bounds of each value, by place.
        relaxed: what stands for each operation that bends, by place.
        iterations: steps of optimizing slopes for bounds inside the network.
        errors: what rounding may do to each value, by place; see `graph`.
        tightened: places of the values that were bounded by going back, all of their entries.
        families: what may stand for operations that bend, by place.
    """

    graph: Graph
    ball: Ball
    boxes: dict[int, Box] = field(default_factory=dict)
    relaxed: dict[int, Any] = field(default_factory=dict)
    iterations: int = 0
    errors: dict[int, Tensor | None] = field(default_factory=dict)
    tightened: set[int] = field(default_factory=set)
    families: dict[int, tuple[list[Any], Tensor]] = field(default_factory=dict)

    def intervals(self) -> Box:
        """Interval bounds of all values; those of the output."""
        self.boxes[0] = self.ball.entries
        for vertex in self.graph.vertices[1 : self.graph.output + 1]:
            assert vertex.operation is not None
            made = vertex.operation.interval(*(self.boxes[k] for k in vertex.operands))
            if self._tighter_in_a_ball(vertex.place):
                made = meet(made, self.backwards(vertex.place))
            self.boxes[vertex.place] = made
        return self.boxes[self.graph.output]

    def relax(self, *, intermediate: bool = True, iterations: int = 0) -> None:
        """Bounds of all values and lines around what bends.

        Args:
            intermediate: whether bounds of what enters an activation are found by going back to
                the input, and not by intervals only (CROWN-IBP).
            iterations: steps of optimizing the slopes for each of these bounds.
        """
        self.iterations = iterations
        self.boxes[0] = self.ball.entries
        for vertex in self.graph.vertices[1 : self.graph.output + 1]:
            check_time()
            operation = vertex.operation
            assert operation is not None
            if operation.relaxes:
                if intermediate and vertex.place in self.graph.useful:
                    for below in vertex.operands[: operation.relaxes]:
                        self._tighten(below, operation)
                assert isinstance(operation, Bend | Largest | Product | Chosen)
                self.relaxed[vertex.place] = operation.relaxed(*self._beneath(vertex.place))
            made = operation.interval(*(self.boxes[k] for k in vertex.operands))
            if self._tighter_in_a_ball(vertex.place):
                made = meet(made, self.backwards(vertex.place))
            self.boxes[vertex.place] = made

    def _beneath(self, place: int) -> tuple[Any, ...]:
        """What an operation that bends must know of what enters it.

        Bounds, and of an activation also how often it is used and what its errors are.
        """
        vertex = self.graph.vertices[place]
        boxes = tuple(self.boxes[k] for k in vertex.operands)
        if not isinstance(vertex.operation, Bend):
            return boxes
        (below,) = vertex.operands
        counted = self.graph.only_bent[below]
        return boxes[0], self.graph.uses[below], self.error(below) if counted else None

    def error(self, place: int) -> Tensor | None:
        """What rounding may do to the entries of a value, `[b, ...]`; None for nothing."""
        if place not in self.errors:
            vertex = self.graph.vertices[place]
            operation = vertex.operation
            if operation is None or isinstance(
                operation, Bend
            ):  # counted in the ball, and in lines
                found = None
            else:
                operands = [self.boxes[k] for k in vertex.operands]
                made = self.boxes.get(place)
                made = operation.interval(*operands) if made is None else made
                uses = max(self.graph.uses[k] for k in vertex.operands)
                found = operation.error(made, uses, *operands)
            self.errors[place] = found
        return self.errors[place]

    def _first_map(self, place: int) -> bool:
        """Whether a value is an affine map of the input, and no later one is without another."""
        vertices = self.graph.vertices
        if not isinstance(vertices[place].operation, Affine):
            return False
        return all(
            k in (0, place) or isinstance(vertices[k].operation, Picks)
            for k in self.graph.ancestors(place)
        )

    def _tighter_in_a_ball(self, place: int) -> bool:
        """Whether sums of entries of the input are bounded better by its norm than by a box."""
        if self.ball.norm == "inf" or not self._first_map(place):
            return False
        operation = self.graph.vertices[place].operation
        return isinstance(operation, Affine) and operation.fan_in > 1

    def _tighten(self, place: int, operation: Operation) -> None:
        """Bounds of a value by going back, as far as an operation that follows needs them."""
        vertex = self.graph.vertices[place]
        # of one affine map of a box intervals say all there is to say
        if not place or place in self.tightened or self._first_map(place):
            return
        box = self.boxes[place]
        if isinstance(vertex.operation, Bend) and not isinstance(operation, Bend):
            return  # of the image of an interval neither
        if isinstance(vertex.operation, Picks) and not isinstance(operation, Bend | Largest):
            for below in vertex.operands:
                self._tighten(below, operation)
            moved = vertex.operation.interval(*(self.boxes[k] for k in vertex.operands))
            self.boxes[place] = meet(box, moved)
        elif isinstance(operation, Bend) and isinstance(operation.activation, Kinked):
            # of what does not bend nothing more need be known
            bent = (box.lower < 0) & (box.upper > 0)
            if bool(bent.any()):
                found = meet(box, self.backwards(place, bent.reshape(len(bent), -1).any(0)))
                # what is known of a sample does not depend on those beside it
                self.boxes[place] = Box(
                    *(torch.where(bent, new, old) for new, old in zip(found, box, strict=True))
                )
        else:
            self.boxes[place] = meet(box, self.backwards(place))
            self.tightened.add(place)

    def backwards(self, place: int, which: Tensor | None = None) -> Box:
        """Bounds of the entries of a value by going back to the input.

        Args:
            which: the entries that are asked for, `[entries]`; all of them unless given. The
                others are left unbounded.
        """
        vertex = self.graph.vertices[place]
        n, b = vertex.entries, len(self.ball)
        like = self.ball.center
        lower = like.new_full((b, n), -math.inf)
        upper = like.new_full((b, n), math.inf)
        wanted = torch.arange(n, device=like.device) if which is None else which.nonzero()[:, 0]
        for part in self.pieces(wanted, place, 2 * (KEPT if self.iterations else 1)):
            rows = like.new_zeros(1, len(part), n)
            rows[0, torch.arange(len(part), device=like.device), part] = 1.0
            both = torch.cat([rows, -rows], 1).reshape(1, -1, *vertex.shape)
            if self.iterations:
                found = self.optimized(both, place, self.iterations)
            else:
                found = self.least(both, place)
            lower[:, part] = found[:, : len(part)]
            upper[:, part] = -found[:, len(part) :]
        return Box(lower.reshape(b, *vertex.shape), upper.reshape(b, *vertex.shape))

    def pieces(self, rows: Tensor, place: int, copies: int) -> Iterator[Tensor]:
        """Rows in pieces whose coefficients take `PIECE` bytes."""
        widest = max(self.graph.vertices[k].entries for k in self.graph.ancestors(place))
        each = copies * len(self.ball) * widest * self.ball.center.element_size()
        return iter(torch.split(rows, max(1, PIECE // max(each, 1))))

    def least(self, rows: Tensor, place: int, chosen: Mapping[int, Any] | None = None) -> Tensor:
        """Lower bounds `[b, s]` of linear functions `[b or 1, s, ...]` of a value on the balls.

        Args:
            chosen: lines around activations, in the place of those of the least area.
        """
        coefficients = {place: rows}
        total: Tensor | float = 0.0
        terms: Tensor | float = 0.0
        above = self.graph.ancestors(place)
        for k in reversed(above):
            a = coefficients.pop(k, None)
            if a is None:  # it serves intervals alone
                continue
            vertex = self.graph.vertices[k]
            operation = vertex.operation
            if operation is None:
                least, size = self.ball.least(a)
                total, terms = total + least, terms + size.detach()
                continue
            if k == place or not self.graph.only_bent[k]:
                error = self.error(k)
                if error is not None:
                    moved = products(entries(a.abs()), error.reshape(len(error), -1))
                    total, terms = total - moved, terms + moved.detach()
            lines: Any = None
            if operation.relaxes:
                lines = self.relaxed[k] if chosen is None or k not in chosen else chosen[k]
            parts, shift = operation.pull_back(a, lines)
            if shift is not None:
                total, terms = total + shift, terms + shift.detach().abs()
            for operand, part in zip(vertex.operands, parts, strict=True):
                if part is not None:
                    known = coefficients.get(operand)
                    coefficients[operand] = part if known is None else known + part
        assert isinstance(total, Tensor)
        dtype = total.dtype
        return total - gamma(2 * len(above) + 8, dtype) * terms - smallest(dtype)

    def optimized(self, rows: Tensor, place: int, iterations: int) -> Tensor:
        """The bounds of `least` with lines of its own for each function of each sample."""
        families: dict[int, list[Any]] = {}
        numbers: dict[int, Tensor] = {}
        wanted = (len(self.ball), rows.shape[1])
        for k in self.graph.ancestors(place):
            vertex = self.graph.vertices[k]
            operation = vertex.operation
            if not isinstance(operation, Bend | Product) or k not in self.graph.useful:
                continue
            beneath = self._beneath(k)
            if isinstance(operation, Bend) and isinstance(operation.activation, Kinked):
                below = beneath[0]
                if not bool(((below.lower < 0) & (below.upper > 0)).any()):
                    continue
            if k not in self.families:
                self.families[k] = operation.family(*beneath)
            families[k], start = self.families[k]
            numbers[k] = start[:, None].expand(*wanted, *vertex.shape).clone()
        best = self.least(rows, place)
        if not numbers:
            return best
        adam = {k: _Adam(n, max(1.0, (len(families[k]) - 1) / 4)) for k, n in numbers.items()}

        def found() -> Tensor:
            chosen = {k: mixed(families[k], n) for k, n in numbers.items()}
            return self.least(rows, place, chosen)

        for step in range(iterations):
            check_time()
            with torch.enable_grad():
                for number in numbers.values():
                    number.requires_grad_(True)
                value = found()
                gradients = torch.autograd.grad(
                    value.sum(), list(numbers.values()), allow_unused=True, materialize_grads=True
                )
            best = larger(best, value.detach())
            for (k, number), gradient in zip(numbers.items(), gradients, strict=True):
                moved = number.detach() + adam[k].step(gradient, step)
                numbers[k] = moved.clamp_(0.0, len(families[k]) - 1.0)
        return larger(best, found())


def mixed(family: Sequence[Any], number: Tensor) -> Any:
    """Lines or planes between neighbors of a family: of number 1.5 half of 1 and half of 2.

    Args:
        family: lines `[b, ...]` each.
        number: `[b, s, ...]`.
    """
    if len(family) == 2:
        share = number
        pairs = list(zip(family[0], family[1], strict=True))
    else:
        first = number.detach().floor().clamp_max_(len(family) - 2.0)
        share = number - first
        places = first.long()
        pairs = []
        for same in zip(*family, strict=True):
            every = torch.stack(same)  # [members, b, ...]
            index = places.transpose(0, 1)  # [s, b, ...]
            pairs.append(
                tuple(_picked(every, index + k).transpose(0, 1) for k in (0, 1))  # type: ignore[arg-type]
            )
    return type(family[0])(*(_between(a, b, share) for a, b in pairs))


def _picked(members: Tensor, index: Tensor) -> Tensor:
    """`[members, b, ...]` and `[s, b, ...]` to `[s, b, ...]`."""
    return members.gather(0, index)


def _between(a: Tensor, b: Tensor, share: Tensor) -> Tensor:
    if a.ndim < share.ndim:
        a, b = a[:, None], b[:, None]
    return a + share * (b - a)


def larger(a: Tensor, b: Tensor) -> Tensor:
    """The larger bound, and the one that is a number where the other is not."""
    return torch.fmax(a, b)


class _Adam:
    """Adam's steps for one tensor, upwards; torch's own takes seconds to import."""

    def __init__(self, like: Tensor, rate: float) -> None:
        self.rate = rate * _RATE
        self.mean, self.square = torch.zeros_like(like), torch.zeros_like(like)

    def step(self, gradient: Tensor, k: int) -> Tensor:
        first, second = _BETAS
        self.mean.mul_(first).add_(gradient, alpha=1 - first)
        self.square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        mean = self.mean / (1 - first ** (k + 1))
        size = (self.square / (1 - second ** (k + 1))).sqrt_().add_(1e-12)
        return self.rate * _DECAY**k * mean / size


def meet(a: Box, b: Box) -> Box:
    """What both say."""
    return Box(torch.fmax(a.lower, b.lower), torch.fmin(a.upper, b.upper))
