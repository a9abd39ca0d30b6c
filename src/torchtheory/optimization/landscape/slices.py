r"""The loss of any problem on lines and planes through a point of its parameter space.

A slice through $\theta$ along directions $d_1,d_2$ is the function
$(a,b)\mapsto L(\theta+ad_1+bd_2)$. Directions may be random, random with the filters scaled
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

from torchtheory.core.checks import as_matrix, as_vector, described, whole_number
from torchtheory.core.errors import InvalidInput, NotConverged, ShapeMismatch, UnknownName
from torchtheory.core.progress import hidden, track
from torchtheory.core.random import RandomSource, as_generator, gaussian
from torchtheory.linalg.eigenvalues import Which, top_eigenpairs
from torchtheory.models.model import flatten
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.optimization.curvature.operators import hessian_operator
from torchtheory.optimization.landscape.parameter_space import (
    Point,
    Statistics,
    losses_at,
    point_vector,
    points_at_once,
    segment_losses,
)

Scaling = Literal["filters", "unit"]


#: Evaluations of the loss that following a grid minimum may take.
EVALUATIONS = 400


@dataclass(frozen=True, slots=True)
class LossSlice:
    """The loss on a line or plane through a point.

    Attributes:
        positions: the coordinates along every direction, `[n]`.
        values: `[n]` on a line; `[n, n]` on a plane, the first direction down the rows.
        center: the point, `[p]`.
        directions: `[1, p]` or `[2, p]`.
    """

    positions: Tensor
    values: Tensor
    center: Tensor
    directions: Tensor

    @property
    def minima(self) -> int:
        """How many interior grid points lie below all their neighbors.

        A narrow valley that runs obliquely has several on its way down, even that of a convex
        function: `slice_valleys` follows them to where they end.
        """
        return int(grid_minima(self.values).sum())


def loss_slice(
    problem: Problem,
    directions: Tensor,
    positions: Tensor,
    *,
    center: Point | None = None,
    samples: Samples | None = None,
    statistics: Statistics = "kept",
    together: int | None = None,
) -> LossSlice:
    r"""$L(\theta+ad_1)$ or $L(\theta+ad_1+bd_2)$ on a grid.

    Args:
        problem: model, loss and data.
        directions: one or two of them, `[k, p]`; see `random_directions` and
            `eigen_directions`.
        positions: the grid along every direction, `[n]`, increasing.
        center: $\theta$; the model's own trainable parameters unless given.
        samples: the training data unless given.
        statistics: of batch normalization, see `losses_at`.
        together: see `losses_at`.

    Costs `n` or `n**2` forward passes; points are made a block at a time.

    >>> from torch import nn
    >>> x = torch.tensor([[1.0], [2.0]])
    >>> p = Problem(nn.Linear(1, 1, bias=False), (x, 3 * x), task="regression")
    >>> grid, three = torch.tensor([-1.0, 0.0, 1.0]), torch.tensor([3.0])
    >>> line = loss_slice(p, torch.ones(1, 1), grid, center=three)
    >>> line.values.tolist(), line.minima
    ([2.5, 0.0, 2.5], 1)
    """
    theta = flatten(problem.trainable)
    if center is not None:
        theta = point_vector(problem, center, "the center")
    ways = as_matrix(directions, "the directions").to(theta)
    grid = as_vector(positions, "the positions").to(theta)
    if len(ways) not in (1, 2):
        raise InvalidInput(f"a slice has one or two directions, not {len(ways)}")
    if ways.shape[1] != len(theta):
        raise ShapeMismatch(f"the center has {len(theta)} entries, the directions {ways.shape[1]}")
    if bool((grid.diff() <= 0).any()):
        raise InvalidInput(f"the positions must increase, not {described(grid.tolist())}")
    steps = torch.cartesian_prod(*[grid] * len(ways)).reshape(-1, len(ways))
    values = torch.cat(
        [
            losses_at(
                problem, theta + block @ ways, samples, statistics=statistics, together=together
            )
            for block in track(torch.split(steps, points_at_once(len(theta))), "slice")
        ]
    )
    return LossSlice(grid, values.reshape([len(grid)] * len(ways)), theta, ways)


def random_directions(
    problem: Problem,
    count: int = 2,
    *,
    scaling: Scaling = "filters",
    generator: RandomSource = None,
) -> Tensor:
    r"""Gaussian directions in parameter space, `[count, p]`.

    With `scaling="filters"` each filter (each row of a weight, that is all that leads to one
    unit) has the norm of the network's own, and a bias, a vector of batch normalization or another
    vector as a whole: what matters to a network that may be rescaled is the relative change.
    Parameters that are 0 stay 0, and frozen ones do not belong to the space. With `"unit"` the
    directions have norm 1.

    >>> from torch import nn
    >>> p = Problem(nn.Linear(3, 2, bias=False), (torch.ones(4, 3), torch.ones(4, 2)))
    >>> d = random_directions(p, 1).reshape(2, 3)
    >>> bool(torch.allclose(d.norm(dim=1), p.parameters["weight"].norm(dim=1)))
    True
    """
    whole_number(count, "count", least=1, most=10**6)
    if scaling not in ("filters", "unit"):
        raise UnknownName("scaling", str(scaling), ["filters", "unit"])
    generator = as_generator(generator)
    found = []
    for _ in range(count):
        pieces = []
        for p in problem.trainable.values():
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
    tolerance: float = 1e-6,
    generator: RandomSource = None,
) -> tuple[Tensor, Tensor]:
    r"""Eigenvalues `[count]` and unit eigenvectors `[count, p]` of the Hessian.

    Along such a direction the loss is $L(\theta)+a\langle\nabla L,v\rangle+\frac\lambda2a^2$
    to second order.

    Args:
        problem: model, loss and data.
        count: how many.
        which: `largest`, `smallest`, `magnitude` or `both` ends of the spectrum.
        samples: the training data unless given.
        tolerance: residual of an eigenvector relative to the largest eigenvalue; 1e-3 does for a
            picture and takes far fewer products.
        generator: seed or generator of the start vectors.

    >>> from torch import nn
    >>> x = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    >>> p = Problem(nn.Linear(2, 1, bias=False), (x, x[:, :1]), task="regression")
    >>> values, vectors = eigen_directions(p, 1)
    >>> round(float(values), 5), [round(abs(float(v)), 5) for v in vectors[0]]
    (4.0, [1.0, 0.0])
    """
    found = top_eigenpairs(
        hessian_operator(problem, samples),
        count,
        which=which,
        tolerance=tolerance,
        generator=generator,
    )
    if not found.converged:
        raise NotConverged(
            "the eigenvectors of the Hessian did not converge; ask for fewer of them or for a "
            "larger tolerance"
        )
    return found.values, found.vectors.T


def grid_minima(values: Tensor) -> Tensor:
    """Which interior points of a grid `[n]` or `[n, m]` lie strictly below all neighbors.

    Two neighbors on a line, eight on a plane; of the shape of `values`, False on the rim.

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
    problem: Problem,
    found: LossSlice,
    samples: Samples | None = None,
    *,
    statistics: Statistics = "kept",
) -> Tensor:
    r"""The different local minima of a slice that its grid minima lead to, `[m, k]`.

    Each grid minimum is followed downhill within the line or plane by Nelder and Mead's simplex
    method, in at most `EVALUATIONS` forward passes; ends that leave the grid are dropped, and ends
    closer than half a cell count as one.

    Args:
        problem: of which the slice was made.
        found: the slice.
        samples: those of the slice; the training data unless given.
        statistics: those of the slice.

    Returns:
        Coordinates along the directions, lowest first.

    >>> from torch import nn
    >>> net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)).double()
    >>> one = torch.ones(1, 1).double()
    >>> p = Problem(net, (one, one), task="regression")                  # (1 - ab)²
    >>> way, grid = torch.ones(1, 2).double(), torch.linspace(-2, 2, 8).double()
    >>> line = loss_slice(p, way, grid, center=torch.zeros(2).double())
    >>> [round(v, 4) for v in sorted(slice_valleys(p, line).flatten().tolist())]
    [-1.0, 1.0]
    """
    starts = found.positions[grid_minima(found.values).nonzero()]
    cell = float((found.positions[1:] - found.positions[:-1]).max())

    def loss(steps: Any) -> float:
        moved = torch.as_tensor(steps).to(found.center) @ found.directions
        point = (found.center + moved)[None]
        with hidden():  # no bar for a single point
            return float(losses_at(problem, point, samples, statistics=statistics))

    ends: list[tuple[float, Tensor]] = []
    for start in track(starts, "valleys"):
        x = start.double().cpu().numpy()
        simplex = np.concatenate([x[None], x + cell / 2 * np.eye(len(x))])
        done = minimize(
            loss,
            x,
            method="Nelder-Mead",
            # where it ends matters, to a fraction of a cell, not the last digits of the loss
            options={
                "initial_simplex": simplex,
                "maxfev": EVALUATIONS,
                "xatol": 1e-5 * cell,
                "fatol": np.inf,
            },
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
        positions: $\lambda\in[0,1]$, `[n]`.
        losses: $L((1-\lambda)\theta+\lambda\theta')$, `[n]`.
        excess: the most by which the loss exceeds the chord
            $(1-\lambda)L(\theta)+\lambda L(\theta')$. Positive: the loss is not convex, and
            the three points prove it.
        at: the $\lambda$ where that is.
        barrier: the most by which the loss exceeds the larger of the two ends, at least 0.
    """

    positions: Tensor
    losses: Tensor
    excess: float
    at: float
    barrier: float


def probe_segment(
    problem: Problem,
    start: Point,
    end: Point,
    *,
    count: int = 41,
    samples: Samples | None = None,
    statistics: Statistics = "renewed",
    together: int | None = None,
) -> SegmentProbe:
    r"""Is the loss convex between two points, and how high is the barrier?

    Args:
        problem: model, loss and data.
        start, end: $\theta,\theta'$: vectors `[p]`, networks of the same shape, or their
            state dicts.
        count: points on the segment, both ends included.
        samples: the training data unless given.
        statistics: of batch normalization. Those of the model do not belong to the other points
            of the segment, so that they are renewed unless told otherwise.
        together: see `losses_at`.

    >>> from torch import nn
    >>> net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    >>> p = Problem(net, (torch.ones(2, 1), torch.full((2, 1), 0.5)), task="regression")
    >>> found = probe_segment(p, torch.tensor([1.0, 0.5]), torch.tensor([-1.0, -0.5]), count=3)
    >>> found.losses.tolist(), found.excess, found.at
    ([0.0, 0.25, 0.0], 0.25, 0.5)
    """
    a, b = point_vector(problem, start, "the start"), point_vector(problem, end, "the end")
    whole_number(count, "count", least=1)
    if count < 3:
        raise InvalidInput(
            f"a segment needs a point between its ends: count must be at least 3 (count = {count!r}"
            ")"
        )
    positions = torch.linspace(0, 1, count, dtype=a.dtype, device=a.device)
    losses = segment_losses(
        problem, a, b, count, samples=samples, statistics=statistics, together=together
    )
    above = losses - torch.lerp(losses[0], losses[-1], positions)
    worst = int(above.argmax())
    barrier = float(losses.max() - torch.maximum(losses[0], losses[-1]))
    return SegmentProbe(positions, losses, float(above[worst]), float(positions[worst]), barrier)
