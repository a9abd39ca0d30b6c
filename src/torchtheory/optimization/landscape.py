r"""The loss of any problem on lines and planes through a point of its parameter space.

A slice through :math:`\theta` along directions :math:`d_1,d_2` is the function
:math:`(a,b)\mapsto L(\theta+ad_1+bd_2)`. Directions may be random, random with the filters scaled
as the network's own, or eigenvectors of the Hessian. A picture of a plane is not the landscape: a
minimum of the slice need not be one of the loss, while a slice that is not convex proves that the
loss is not. Source: Mathematical Aspects of Deep Learning, section 1.1.3, Example 1.22 and
Figure 1.5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from torch import Tensor

from torchtheory.core.eigenvalues import Which, top_eigenpairs
from torchtheory.core.errors import InvalidInput, NotConverged, ShapeMismatch, UnknownName
from torchtheory.core.linear_operators import check_count
from torchtheory.core.model import flatten, global_randomness_kept, unflatten
from torchtheory.core.problem import Problem
from torchtheory.core.random import RandomSource, as_generator, gaussian
from torchtheory.core.samples import Samples
from torchtheory.optimization.curvature import hessian_operator
from torchtheory.primer.arrays import matrix, vector

Scaling = Literal["filters", "unit"]


def losses_at(
    problem: Problem, points: Tensor, samples: Samples | None = None, *, together: int = 64
) -> Tensor:
    """The mean loss at many parameter vectors, ``[m]``.

    Args:
        problem: model, loss and data; the model is not changed.
        points: ``[m, p]``, in the order of ``flatten(problem.parameters)``.
        samples: the training data unless given.
        together: how many points are evaluated at once, by ``torch.func.vmap``; 1 for models that
            it does not understand.

    Costs ``m`` forward passes over the samples; memory is that of ``together`` passes over a chunk
    and as many parameter vectors.

    >>> from torch import nn
    >>> x = torch.tensor([[1.0], [2.0]])
    >>> p = Problem(nn.Linear(1, 1, bias=False), (x, 3 * x), task="regression")
    >>> losses_at(p, torch.tensor([[3.0], [2.0], [1.0]])).tolist()
    [0.0, 2.5, 10.0]
    """
    points = matrix(points, "the points")
    like = problem.parameters
    size = sum(p.numel() for p in like.values())
    if points.shape[1] != size:
        raise ShapeMismatch(f"the model has {size} parameters, the points {points.shape[1]}")
    check_count(together, 10**9, "points at once")
    samples = problem.train if samples is None else samples

    def part(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return problem.loss(problem.function(unflatten(theta, like), x), y).reshape(())

    total = points.new_zeros(len(points))
    with torch.no_grad(), global_randomness_kept():
        for x, y in samples.chunks(problem.chunk):
            share = len(x) / len(samples)
            for start in range(0, len(points), together):
                block = points[start : start + together]
                if together == 1:
                    found = part(block[0], x, y)[None]
                else:
                    found = torch.func.vmap(part, (0, None, None))(block, x, y)
                total[start : start + together] += share * found
    return total


@dataclass(frozen=True, slots=True)
class LossSlice:
    """The loss on a line or plane through a point.

    Attributes:
        positions: the coordinates along every direction, ``[n]``.
        values: ``[n]`` on a line; ``[n, n]`` on a plane, the first direction down the rows.
        centre: the point, ``[p]``.
        directions: ``[1, p]`` or ``[2, p]``.
    """

    positions: Tensor
    values: Tensor
    centre: Tensor
    directions: Tensor

    @property
    def minima(self) -> int:
        """How many interior grid points lie below all their neighbours.

        A narrow valley that runs obliquely has several on its way down, even that of a convex
        function: :func:`slice_valleys` follows them to where they end.
        """
        return int(grid_minima(self.values).sum())


def loss_slice(
    problem: Problem,
    directions: Tensor,
    positions: Tensor,
    *,
    centre: Tensor | None = None,
    samples: Samples | None = None,
    together: int = 64,
) -> LossSlice:
    r""":math:`L(\theta+ad_1)` or :math:`L(\theta+ad_1+bd_2)` on a grid.

    Args:
        problem: model, loss and data.
        directions: one or two of them, ``[k, p]``; see :func:`random_directions` and
            :func:`eigen_directions`.
        positions: the grid along every direction, ``[n]``, increasing.
        centre: :math:`\theta`, ``[p]``; the model's own parameters unless given.
        samples: the training data unless given.
        together: see :func:`losses_at`.

    Costs ``n`` or ``n**2`` forward passes; points are made a block at a time.

    >>> from torch import nn
    >>> x = torch.tensor([[1.0], [2.0]])
    >>> p = Problem(nn.Linear(1, 1, bias=False), (x, 3 * x), task="regression")
    >>> grid, three = torch.tensor([-1.0, 0.0, 1.0]), torch.tensor([3.0])
    >>> line = loss_slice(p, torch.ones(1, 1), grid, centre=three)
    >>> line.values.tolist(), line.minima
    ([2.5, 0.0, 2.5], 1)
    """
    theta = flatten(problem.parameters) if centre is None else vector(centre, "the centre")
    ways = matrix(directions, "the directions").to(theta)
    grid = vector(positions, "the positions").to(theta)
    if len(ways) not in (1, 2):
        raise InvalidInput(f"a slice has one or two directions, not {len(ways)}")
    if ways.shape[1] != len(theta):
        raise ShapeMismatch(f"the centre has {len(theta)} entries, the directions {ways.shape[1]}")
    if bool((grid.diff() <= 0).any()):
        raise InvalidInput("the positions must increase")
    steps = torch.cartesian_prod(*[grid] * len(ways)).reshape(-1, len(ways))
    values = torch.cat(
        [
            losses_at(problem, theta + block @ ways, samples, together=together)
            for block in torch.split(steps, together)
        ]
    )
    return LossSlice(grid, values.reshape([len(grid)] * len(ways)), theta, ways)


def random_directions(
    problem: Problem, count: int = 2, *, scaling: Scaling = "filters", random: RandomSource = None
) -> Tensor:
    r"""Gaussian directions in parameter space, ``[count, p]``.

    With ``scaling="filters"`` each filter (each row of a weight, that is all that leads to one
    unit) has the norm of the network's own, and a bias or other vector as a whole: what matters to
    a network that may be rescaled is the relative change. With ``"unit"`` the directions have norm
    1.

    >>> from torch import nn
    >>> p = Problem(nn.Linear(3, 2, bias=False), (torch.ones(4, 3), torch.ones(4, 2)))
    >>> d = random_directions(p, 1).reshape(2, 3)
    >>> bool(torch.allclose(d.norm(dim=1), p.parameters["weight"].norm(dim=1)))
    True
    """
    check_count(count, 10**6, "directions")
    if scaling not in ("filters", "unit"):
        raise UnknownName("scaling", str(scaling), ["filters", "unit"])
    generator = as_generator(random)
    found = []
    for _ in range(count):
        pieces = []
        for p in problem.parameters.values():
            draw = gaussian(*p.shape, generator=generator, dtype=p.dtype, device=p.device)
            if scaling == "filters":
                rows, own = (
                    t.reshape(len(t), -1) if t.ndim > 1 else t.reshape(1, -1) for t in (draw, p)
                )
                draw = F.normalize(rows, dim=1) * own.norm(dim=1, keepdim=True)
            pieces.append(draw.reshape(-1))
        direction = torch.cat(pieces)
        found.append(direction if scaling == "filters" else direction / direction.norm())
    return torch.stack(found)


def eigen_directions(
    problem: Problem,
    count: int = 2,
    *,
    which: Which = "largest",
    samples: Samples | None = None,
    random: RandomSource = None,
) -> tuple[Tensor, Tensor]:
    r"""Eigenvalues ``[count]`` and unit eigenvectors ``[count, p]`` of the Hessian.

    Along such a direction the loss is :math:`L(\theta)+a\langle\nabla L,v\rangle+\frac\lambda2a^2`
    to second order.

    >>> from torch import nn
    >>> x = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    >>> p = Problem(nn.Linear(2, 1, bias=False), (x, x[:, :1]), task="regression")
    >>> values, vectors = eigen_directions(p, 1)
    >>> round(float(values), 5), [round(abs(float(v)), 5) for v in vectors[0]]
    (4.0, [1.0, 0.0])
    """
    found = top_eigenpairs(hessian_operator(problem, samples), count, which=which, generator=random)
    if not found.converged:
        raise NotConverged("the eigenvectors of the Hessian did not converge; ask for fewer")
    return found.values, found.vectors.T


def grid_minima(values: Tensor) -> Tensor:
    """Which interior points of a grid ``[n]`` or ``[n, m]`` lie strictly below all neighbours.

    Two neighbours on a line, eight on a plane; of the shape of ``values``, False on the rim.

    >>> grid_minima(torch.tensor([3.0, 1.0, 2.0, 0.0, 5.0])).tolist()
    [False, True, False, True, False]
    """
    if values.ndim not in (1, 2) or min(values.shape) < 3:
        raise ShapeMismatch(f"a grid has at least 3 points a side, not {list(values.shape)}")
    grid = values if values.ndim == 2 else values[None]
    rows = (-1, 0, 1) if values.ndim == 2 else (0,)
    lowest = torch.ones_like(grid, dtype=torch.bool)
    for i in rows:
        for j in (-1, 0, 1):
            if i or j:
                lowest &= grid < grid.roll((i, j), (0, 1))
    lowest[:, [0, -1]] = False
    if values.ndim == 2:
        lowest[[0, -1]] = False
    return lowest.reshape(values.shape)


def slice_valleys(
    problem: Problem, found: LossSlice, samples: Samples | None = None, *, most: int = 400
) -> Tensor:
    r"""The different local minima of a slice that its grid minima lead to, ``[m, k]``.

    Each grid minimum is followed downhill within the line or plane by Nelder and Mead's simplex
    method; ends that leave the grid are dropped, and ends closer than half a cell count as one.

    Args:
        problem: of which the slice was made.
        found: the slice.
        samples: those of the slice; the training data unless given.
        most: evaluations a grid minimum may take.

    Returns:
        Coordinates along the directions, lowest first.

    >>> from torch import nn
    >>> net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)).double()
    >>> one = torch.ones(1, 1).double()
    >>> p = Problem(net, (one, one), task="regression")                  # (1 - ab)²
    >>> way, grid = torch.ones(1, 2).double(), torch.linspace(-2, 2, 8).double()
    >>> line = loss_slice(p, way, grid, centre=torch.zeros(2).double())
    >>> [round(v, 4) for v in sorted(slice_valleys(p, line).flatten().tolist())]
    [-1.0, 1.0]
    """
    starts = found.positions[grid_minima(found.values).nonzero()]
    cell = float((found.positions[1:] - found.positions[:-1]).max())

    def loss(steps: Any) -> float:
        moved = torch.as_tensor(steps).to(found.centre) @ found.directions
        return float(losses_at(problem, (found.centre + moved)[None], samples, together=1))

    ends: list[tuple[float, Tensor]] = []
    for start in starts:
        x = start.double().cpu().numpy()
        simplex = np.concatenate([x[None], x + cell / 2 * np.eye(len(x))])
        done = minimize(
            loss,
            x,
            method="Nelder-Mead",
            options={"initial_simplex": simplex, "maxfev": most, "xatol": 1e-6 * cell, "fatol": 0},
        )
        ends.append((float(done.fun), torch.as_tensor(done.x).to(found.positions)))
    kept: list[Tensor] = []
    low, high = float(found.positions[0]), float(found.positions[-1])
    for _, end in sorted(ends, key=lambda pair: pair[0]):
        inside = bool(((end > low) & (end < high)).all())
        if inside and all(float((end - other).norm()) > cell / 2 for other in kept):
            kept.append(end)
    return torch.stack(kept) if kept else starts.new_empty(0, found.values.ndim)


@dataclass(frozen=True, slots=True)
class SegmentProbe:
    r"""The loss on the segment between two points.

    Attributes:
        positions: :math:`\lambda\in[0,1]`, ``[n]``.
        losses: :math:`L((1-\lambda)\theta+\lambda\theta')`, ``[n]``.
        excess: the most by which the loss exceeds the chord
            :math:`(1-\lambda)L(\theta)+\lambda L(\theta')`. Positive: the loss is not convex, and
            the three points prove it.
        at: the :math:`\lambda` where that is.
        barrier: the most by which the loss exceeds the larger of the two ends, at least 0.
    """

    positions: Tensor
    losses: Tensor
    excess: float
    at: float
    barrier: float


def probe_segment(
    problem: Problem,
    start: Tensor,
    end: Tensor,
    *,
    count: int = 41,
    samples: Samples | None = None,
    together: int = 64,
) -> SegmentProbe:
    r"""Is the loss convex between two parameter vectors, and how high is the barrier?

    Args:
        problem: model, loss and data.
        start, end: :math:`\theta,\theta'`, ``[p]``.
        count: points on the segment, both ends included.
        samples: the training data unless given.

    >>> from torch import nn
    >>> net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    >>> p = Problem(net, (torch.ones(2, 1), torch.full((2, 1), 0.5)), task="regression")
    >>> found = probe_segment(p, torch.tensor([1.0, 0.5]), torch.tensor([-1.0, -0.5]), count=3)
    >>> found.losses.tolist(), found.excess, found.at
    ([0.0, 0.25, 0.0], 0.25, 0.5)
    """
    a, b = vector(start, "the start"), vector(end, "the end")
    if a.shape != b.shape:
        raise ShapeMismatch(f"the ends have {len(a)} and {len(b)} entries")
    check_count(count, 10**9, "points on the segment")
    if count < 3:
        raise InvalidInput("a segment needs a point between its ends: count must be at least 3")
    positions = torch.linspace(0, 1, count, dtype=a.dtype, device=a.device)
    points = a + positions[:, None] * (b - a)
    points[-1] = b
    losses = losses_at(problem, points, samples, together=together)
    above = losses - torch.lerp(losses[0], losses[-1], positions)
    worst = int(above.argmax())
    barrier = float(losses.max() - torch.maximum(losses[0], losses[-1]))
    return SegmentProbe(positions, losses, float(above[worst]), float(positions[worst]), barrier)
