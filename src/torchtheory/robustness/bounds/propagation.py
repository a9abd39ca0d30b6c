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
slope in $[0,1]$. Each linear function of each sample has its own slopes, moved by Adam towards a
larger bound; the best one met is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from torchtheory.core.budget import check_time
from torchtheory.robustness.bounds.balls import Ball
from torchtheory.robustness.bounds.graph import (
    ROUNDING,
    Affine,
    Bend,
    Graph,
    Largest,
    Picks,
    Sum,
    pull_back_lines,
)
from torchtheory.robustness.bounds.relaxations import Box, Kinked

#: Bytes of coefficients that are held at once.
PIECE = 2**25

#: How many times its coefficients an optimized bound holds.
KEPT = 6

#: Share of the way to the other end of their range that Adam's first step moves slopes.
_RATE, _DECAY, _BETAS = 0.25, 0.97, (0.8, 0.95)


@dataclass
class Propagation:
    """What is known of the values of a network on balls of inputs.

    Attributes:
        graph, ball: the network and the inputs.
        boxes: bounds of each value, by place.
        relaxed: what stands for each operation that bends, by place.
        iterations: steps of optimizing slopes for bounds inside the network.
    """

    graph: Graph
    ball: Ball
    boxes: dict[int, Box] = field(default_factory=dict)
    relaxed: dict[int, Any] = field(default_factory=dict)
    iterations: int = 0

    def intervals(self) -> Box:
        """Interval bounds of all values; those of the output."""
        self.boxes[0] = self.ball.entries
        for vertex in self.graph.vertices[1 : self.graph.output + 1]:
            assert vertex.operation is not None
            made = vertex.operation.interval(*(self.boxes[k] for k in vertex.operands))
            if self.ball.norm != "inf" and self._first_map(vertex.place):
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
            if isinstance(operation, Bend | Largest):
                (below,) = vertex.operands
                # of one affine map of a box intervals say all there is to say
                if intermediate and below and not self._first_map(below):
                    self.boxes[below] = self._tightened(below, operation)
                self.relaxed[vertex.place] = operation.relaxed(self.boxes[below])
            made = operation.interval(*(self.boxes[k] for k in vertex.operands))
            if self.ball.norm != "inf" and self._first_map(vertex.place):
                made = meet(made, self.backwards(vertex.place))
            self.boxes[vertex.place] = made

    def _first_map(self, place: int) -> bool:
        """Whether a value is an affine map of the input, and no later one is without another."""
        vertices = self.graph.vertices
        if not isinstance(vertices[place].operation, Affine):
            return False
        return all(
            k in (0, place) or isinstance(vertices[k].operation, Picks)
            for k in self.graph.ancestors(place)
        )

    def _tightened(self, place: int, operation: Bend | Largest) -> Box:
        box = self.boxes[place]
        if not (isinstance(operation, Bend) and isinstance(operation.activation, Kinked)):
            return meet(box, self.backwards(place))
        # of what does not bend nothing more need be known
        bent = (box.lower < 0) & (box.upper > 0)
        if not bool(bent.any()):
            return box
        found = meet(box, self.backwards(place, bent.flatten(1).any(0)))
        # what is known of a sample does not depend on those beside it
        return Box(*(torch.where(bent, new, old) for new, old in zip(found, box, strict=True)))

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

    def least(self, rows: Tensor, place: int, slopes: dict[int, Tensor] | None = None) -> Tensor:
        r"""Lower bounds `[b, s]` of linear functions `[b or 1, s, ...]` of a value on the balls."""
        coefficients = {place: rows}
        total: Tensor | float = 0.0
        terms: Tensor | float = 0.0
        roundings = 0.0
        for k in reversed(self.graph.ancestors(place)):
            a = coefficients.pop(k)
            vertex = self.graph.vertices[k]
            operation = vertex.operation
            shift: Tensor | None = None
            if operation is None:
                least, size = self.ball.least(a)
                total, terms = total + least, terms + size.detach()
                roundings += math.sqrt(math.prod(vertex.shape) + 1)
                continue
            if isinstance(operation, Affine):
                made, shift = operation.pull_back(a)
                parts = [made]
            elif isinstance(operation, Picks | Sum):
                parts, shift = operation.pull_back(a)
            elif isinstance(operation, Bend):
                lines = self.relaxed[k]
                if slopes is not None and k in slopes:
                    (below,) = vertex.operands
                    lines = _with_slopes(operation, self.boxes[below], slopes[k])
                made, shift = pull_back_lines(a, lines)
                parts = [made]
            else:
                assert isinstance(operation, Largest)
                made, shift = operation.pull_back(a, self.relaxed[k])
                parts = [made]
            if shift is not None:
                total, terms = total + shift, terms + shift.detach().abs()
            roundings += math.sqrt(operation.terms())
            for operand, part in zip(vertex.operands, parts, strict=True):
                known = coefficients.get(operand)
                coefficients[operand] = part if known is None else known + part
        assert isinstance(total, Tensor)
        unit = ROUNDING * torch.finfo(total.dtype).eps
        return total - unit * roundings * terms

    def optimized(self, rows: Tensor, place: int, iterations: int) -> Tensor:
        """The bounds of `least` with slopes of its own for each function of each sample."""
        free: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        slopes: dict[int, Tensor] = {}
        wanted = (len(self.ball), rows.shape[1])
        for k in self.graph.ancestors(place):
            vertex = self.graph.vertices[k]
            if not isinstance(vertex.operation, Bend):
                continue
            activation = vertex.operation.activation
            if not isinstance(activation, Kinked):
                continue
            box = self.boxes[vertex.operands[0]]
            bent, low, high = activation.free(box)
            if not bool(bent.any()):
                continue
            lines = self.relaxed[k]
            start = torch.where((low <= lines.lower_slope) & bent, lines.lower_slope, low)
            slopes[k] = start[:, None].expand(*wanted, *vertex.shape).clone()
            free[k] = (bent, low, high)
        best = self.least(rows, place)
        if not slopes:
            return best
        adam = {k: _Adam(s, _RATE * (free[k][2] - free[k][1])) for k, s in slopes.items()}
        for step in range(iterations):
            check_time()
            with torch.enable_grad():
                for slope in slopes.values():
                    slope.requires_grad_(True)
                found = self.least(rows, place, slopes)
                gradients = torch.autograd.grad(found.sum(), list(slopes.values()))
            best = torch.maximum(best, found.detach())
            for (k, slope), gradient in zip(slopes.items(), gradients, strict=True):
                moved = slope.detach() + adam[k].step(gradient, step)
                slopes[k] = torch.minimum(torch.maximum(moved, free[k][1]), free[k][2])
        return torch.maximum(best, self.least(rows, place, slopes))


class _Adam:
    """Adam's steps for one tensor, upwards; torch's own takes seconds to import."""

    def __init__(self, like: Tensor, rate: Tensor) -> None:
        self.rate = rate
        self.mean, self.square = torch.zeros_like(like), torch.zeros_like(like)

    def step(self, gradient: Tensor, k: int) -> Tensor:
        first, second = _BETAS
        self.mean.mul_(first).add_(gradient, alpha=1 - first)
        self.square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        mean = self.mean / (1 - first ** (k + 1))
        size = (self.square / (1 - second ** (k + 1))).sqrt_().add_(1e-12)
        return self.rate * _DECAY**k * mean / size


def _with_slopes(operation: Bend, box: Box, slopes: Tensor) -> Any:
    activation = operation.activation
    assert isinstance(activation, Kinked)
    return activation.lines(Box(box.lower[:, None], box.upper[:, None]), slopes)


def meet(a: Box, b: Box) -> Box:
    """What both say."""
    return Box(torch.maximum(a.lower, b.lower), torch.minimum(a.upper, b.upper))
