r"""What a constructive proof hands over: the network, its size, its error bound and where it holds.

A proof of approximation writes weights down. Here it returns an `Approximant`: an ordinary
module in double precision together with what its theorem promises, so that the promise can be
held against a measurement by `measured_error`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from torchtheory.approximation.targets import Function, values_of
from torchtheory.core.checks import (
    module_with_values,
    nonnegative_number,
    positive_number,
    whole_number,
)
from torchtheory.core.errors import InvalidInput, ShapeMismatch, UnsupportedModel
from torchtheory.core.intervals import Interval, mean_interval
from torchtheory.core.memory import refuse_too_large
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.expressivity.pieces import Pieces, affine_pieces
from torchtheory.robustness.lipschitz.layers import layer_norms

Box = tuple[tuple[float, float], ...]

#: Points looked at together; a wide network of a fine grid would not fit into memory at once.
_CHUNK = 1 << 14


@dataclass(frozen=True, slots=True)
class Size:
    """How large a network of dense layers is.

    Attributes:
        depth: number of affine layers, the last one included.
        width: units of the widest hidden layer; 0 without hidden layers.
        units: hidden units altogether.
        parameters: weights and biases that are not zero.
        largest: the largest of them in absolute value.
    """

    depth: int
    width: int
    units: int
    parameters: int
    largest: float


def network_size(network: nn.Module) -> Size:
    """The size of a network whose affine layers are `nn.Linear` modules, in their order.

    A module that counts itself, as a sum of shifted networks does, has it in its `size`.

    >>> network_size(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))).depth
    2
    """
    module_with_values(network)
    counted = getattr(network, "size", None)
    if isinstance(counted, Size):
        return counted
    layers = [m for m in network.modules() if isinstance(m, nn.Linear)]
    if not layers:
        raise UnsupportedModel("the size is that of nn.Linear layers, and the network has none")
    hidden = [layer.out_features for layer in layers[:-1]]
    values = torch.cat([p.detach().flatten() for layer in layers for p in layer.parameters()])
    return Size(
        depth=len(layers),
        width=max(hidden, default=0),
        units=sum(hidden),
        parameters=int(values.count_nonzero()),
        largest=float(values.abs().max()),
    )


@dataclass(frozen=True, slots=True)
class Approximant:
    r"""A network written down by a proof, with what the proof promises about it.

    Attributes:
        network: from `[n, d]` to `[n, 1]`, in double precision.
        bound: the promised error $\|f-g\|$ in the norm below.
        domain: `((a_1, b_1), ..., (a_d, b_d))`, the box where the promise holds.
        theorem: the catalogue's id of the statement.
        norm: `"sup"`, or `"mean"` for $\int|f-g|$ over the box divided by its volume.

    Calling it evaluates the network at points `[n, d]` (`[n]` when `d = 1`): `[n]`, in the
    network's own precision whatever that of the points.
    """

    network: nn.Module
    bound: float
    domain: Box
    theorem: str
    norm: Literal["sup", "mean"] = "sup"

    @property
    def size(self) -> Size:
        """The network's size; see `network_size`."""
        return network_size(self.network)

    def __call__(self, x: Tensor) -> Tensor:
        points = x.unsqueeze(-1) if x.ndim == 1 else x
        if points.ndim != 2 or points.shape[1] != len(self.domain):
            raise ShapeMismatch(
                f"points of a box of {len(self.domain)} dimensions are [n, {len(self.domain)}], "
                f"not {list(x.shape)}"
            )
        own = itertools.chain(self.network.parameters(), self.network.buffers())
        precision = next((t.dtype for t in own if t.is_floating_point()), torch.float64)
        points = points.to(precision)
        with torch.no_grad():
            return torch.cat([self.network(part)[:, 0] for part in _parts(points)])


@dataclass(frozen=True, slots=True)
class SupError:
    r"""What is known of $\sup|f-g|$ over a box.

    Points alone bound it from below: between them nothing is seen. `upper` rests on a Lipschitz
    constant, a bound of a derivative or the pieces of piecewise linear functions. Both are up to
    the rounding of the functions' values.

    Attributes:
        lower: the largest $|f(x)-g(x)|$ found; the supremum is at least that.
        upper: the supremum is at most that; infinite where nothing is known between the points.
        where: `[d]`, a point that attains `lower`.
        points: how many were looked at.
        resolution: distance of neighboring points of the last grid; 0 without one.
    """

    lower: float
    upper: float
    where: Tensor
    points: int
    resolution: float = 0.0


def sup_distance(
    f: Function,
    g: Function,
    domain: Box | tuple[float, float],
    *,
    lipschitz: float | None = None,
    extra: Tensor | None = None,
    tolerance: float = 1e-6,
    most_points: int = 1 << 17,
) -> SupError:
    r"""$\sup_x|f(x)-g(x)|$ over a box, from below and, with a Lipschitz constant, from above.

    Grids are halved until that changes the result little; each comes with a point inside every
    cell, never at the same place of two cells, since a grid may meet every knot or zero of a
    function. No point is further from a grid than half the diagonal of a cell, which with a
    Lipschitz constant $L$ gives $\max_{\text{grid}}|f-g|+\tfrac L2\|h\|_2$ as an upper bound.

    Args:
        f, g: from `[n, d]` to `[n]` or `[n, 1]`; see `torchtheory.approximation.targets`.
        domain: `(a, b)`, or one such pair per dimension.
        lipschitz: $L$ of $f-g$, in the Euclidean norm; without it the upper bound is infinite.
        extra: further points `[m, d]` to look at, as the two sides of a jump.
        tolerance: relative gain by another grid that ends the search. It says nothing about the
            supremum.
        most_points: no grid with more points than that.

    Time: `O(points)` evaluations; the grids before the last add no more than that again.

    >>> found = sup_distance(lambda x: x, lambda x: x**2, (0.0, 1.0), lipschitz=1.0)
    >>> found.lower, found.where.item(), found.upper < 0.2501
    (0.25, 0.5, True)
    """
    box = as_box(domain)
    positive_number(tolerance, "tolerance")
    if lipschitz is not None:
        nonnegative_number(lipschitz, "lipschitz")
    d = len(box)
    cells = max(2, min(256, int(most_points ** (1 / d)) // 4))
    lower, where, seen = -1.0, torch.zeros(d, dtype=torch.float64), 0
    if extra is not None:
        lower, where = _largest(f, g, extra.reshape(-1, d))
        seen = len(extra)
    while True:
        previous = lower
        grid = box_grid(box, cells + 1)
        on_grid, at = _largest(f, g, grid)
        inside, near = _largest(f, g, _inside_cells(box, cells))
        seen += len(grid) + cells**d
        lower, where = max((lower, where), (on_grid, at), (inside, near), key=lambda met: met[0])
        sides = [(high - low) / cells for low, high in box]
        upper = math.inf if lipschitz is None else on_grid + lipschitz * math.hypot(*sides) / 2
        wanted = previous if lipschitz is None else lower
        reached = lower if lipschitz is None else upper
        if reached <= wanted * (1 + tolerance) or (2 * cells + 1) ** d > most_points:
            return SupError(lower, max(lower, upper), where, seen, max(sides))
        cells *= 2


def measured_error(
    function: Function | nn.Module,
    approximant: Approximant,
    *,
    lipschitz: float | None = None,
    curvature: float | None = None,
    most_points: int = 1 << 17,
) -> SupError:
    r"""The sup-norm error of an approximant on its domain, from below and from above.

    From below by points, in one dimension also on both sides of every kink or jump of the first
    layer. From above by what is known:

    - Where `function` is itself a piecewise linear `nn.Module` of one input, and the network is
      one as well, the supremum is attained at a bend or an end: both bounds are exact.
    - For a piecewise linear network of one input and a function with $|f''|\le M$, the error on
      an interval of length $h$ without a bend is at most the larger one of its ends plus
      $Mh^2/8$; with $|f'|\le L$ and slope $s$ of the network, half the sum of both ends and
      $(L+|s|)h$.
    - For any other chain of layers $f-g$ has the Lipschitz constant of $f$ plus the product of
      those of the layers.

    Args:
        function: $f$, from `[n, d]` to `[n]` or `[n, 1]`.
        lipschitz: of $f$ in the Euclidean norm.
        curvature: $M$, for a piecewise linear network of one input.
        most_points: no grid with more points than that.

    >>> zero = Approximant(nn.Sequential(nn.Linear(1, 1).double()), 1.0, ((0.0, 1.0),), "L-071")
    >>> _ = [nn.init.zeros_(p) for p in zero.network.parameters()]
    >>> measured_error(torch.sqrt, zero).lower
    1.0
    >>> measured_error(torch.sin, zero, curvature=1.0).upper < math.sin(1.0) + 1e-9
    True
    """
    if isinstance(function, nn.Module):
        return _exact_error(function, approximant)
    steep, pieces = None, None
    if lipschitz is not None or curvature is not None:
        try:
            pieces = _pieces(approximant.network, approximant.domain)
        except UnsupportedModel:
            if lipschitz is None:
                raise
            steep = nonnegative_number(lipschitz, "lipschitz") + _chain_lipschitz(approximant)
    found = sup_distance(
        function,
        approximant,
        approximant.domain,
        lipschitz=steep,
        extra=_both_sides(approximant),
        most_points=most_points,
    )
    if pieces is None:
        return found
    ((low, high),) = approximant.domain
    upper = _upper_by_pieces(function, pieces, (low, high), lipschitz, curvature, most_points)
    return replace(found, upper=max(found.lower, upper))


def mean_error(
    function: Function,
    approximant: Approximant,
    samples: int = 10_000,
    *,
    generator: RandomSource = None,
    confidence: float = 0.99,
) -> Interval:
    r"""$\frac1{|B|}\int_B|f-g|$ by Monte Carlo over the domain, with Student's interval.

    >>> half = Approximant(nn.Sequential(nn.Linear(1, 1).double()), 1.0, ((0.0, 2.0),), "L-075")
    >>> _ = [nn.init.zeros_(p) for p in half.network.parameters()]
    >>> found = mean_error(lambda x: x, half, 1000, generator=0)
    >>> found.low < 1.0 < found.high
    True
    """
    whole_number(samples, "samples", least=2)
    low, high = torch.tensor(approximant.domain, dtype=torch.float64).unbind(1)
    draws = torch.rand(samples, len(low), dtype=torch.float64, generator=as_generator(generator))
    x = low + (high - low) * draws
    return mean_interval(_gap(function, approximant, x), confidence)


def as_box(domain: Sequence[tuple[float, float]] | tuple[float, float]) -> Box:
    """One pair of ends per dimension; a single pair is an interval.

    >>> as_box((0, 1))
    ((0.0, 1.0),)
    """
    try:
        ends = torch.as_tensor(domain, dtype=torch.float64).reshape(-1, 2)
    except (TypeError, ValueError, RuntimeError):
        raise InvalidInput(
            f"a box is (a, b), or one such pair per dimension, not {domain}"
        ) from None
    if len(ends) == 0 or not bool((ends.isfinite().all(1) & (ends[:, 0] < ends[:, 1])).all()):
        raise InvalidInput(f"an interval has two finite ends, the first smaller, not {domain}")
    return tuple((float(low), float(high)) for low, high in ends)


def box_grid(box: Box, points: int) -> Tensor:
    """The regular grid of a box, ends included: `[points ** d, d]`.

    >>> box_grid(((0.0, 1.0), (0.0, 1.0)), 2).tolist()
    [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]
    """
    refuse_too_large(8 * len(box) * points ** len(box), f"a grid of {points}^{len(box)} points")
    axes = [torch.linspace(low, high, points, dtype=torch.float64) for low, high in box]
    return torch.cartesian_prod(*axes).reshape(-1, len(box))


def _inside_cells(box: Box, cells: int) -> Tensor:
    r"""A point inside each cell of the regular grid, at places that fill the unit cube evenly.

    Place $k$ is $k(r^{-1},\dots,r^{-d})$ modulo 1 with $r^{d+1}=r+1$, the golden ratio for
    $d=1$: at one place for all cells, every point could meet the same phase of a function whose
    period divides the cells.
    """
    d = len(box)
    refuse_too_large(32 * d * cells**d, f"a grid of {cells}^{d} cells")
    ratio = 1.5
    for _ in range(64):
        ratio = (1 + ratio) ** (1 / (d + 1))
    low, high = torch.tensor(box, dtype=torch.float64).unbind(1)
    corners = torch.cartesian_prod(*[torch.arange(cells, dtype=torch.float64)] * d).reshape(-1, d)
    turns = ratio ** -torch.arange(1, d + 1, dtype=torch.float64)
    places = (torch.arange(1, len(corners) + 1, dtype=torch.float64)[:, None] * turns) % 1
    return low + (high - low) * (corners + places) / cells


def _parts(x: Tensor) -> list[Tensor]:
    return [x[i : i + _CHUNK] for i in range(0, len(x), _CHUNK)]


def _gap(f: Function, g: Function, x: Tensor) -> Tensor:
    return (values_of(f, x) - values_of(g, x)).abs()


def _largest(f: Function, g: Function, x: Tensor) -> tuple[float, Tensor]:
    gap = torch.cat([_gap(f, g, part) for part in _parts(x)])
    at = int(gap.argmax())
    return float(gap[at]), x[at]


def _both_sides(approximant: Approximant) -> Tensor | None:
    """The kinks of the first layer in one dimension and their neighbors among the floats."""
    first = next((m for m in approximant.network.modules() if isinstance(m, nn.Linear)), None)
    if len(approximant.domain) > 1 or first is None or first.bias is None:
        return None
    ((low, high),) = approximant.domain
    weight, bias = first.weight.detach()[:, 0], first.bias.detach()
    kinks = (-bias / weight)[weight != 0]
    kinks = kinks[(kinks >= low) & (kinks <= high)]
    outward = kinks.new_tensor(math.inf)
    sides = [torch.nextafter(kinks, -outward), kinks, torch.nextafter(kinks, outward)]
    made = torch.cat(sides).clamp(low, high)
    return made.unsqueeze(1) if len(made) else None


def _pieces(network: nn.Module, domain: Box) -> Pieces:
    if len(domain) > 1:
        raise UnsupportedModel("the pieces of a network are followed in one dimension")
    ((low, high),) = domain
    return affine_pieces(network, torch.tensor(low).double(), torch.tensor(high).double())


def _chain_lipschitz(approximant: Approximant) -> float:
    norms = layer_norms(approximant.network, (len(approximant.domain),))
    return math.prod(norm.lipschitz for norm in norms)


def _upper_by_pieces(
    function: Function,
    pieces: Pieces,
    interval: tuple[float, float],
    lipschitz: float | None,
    curvature: float | None,
    points: int,
) -> float:
    """An upper bound of the error between neighbors of a grid and of the pieces' ends."""
    low, high = interval
    grid = torch.linspace(0, 1, points, dtype=torch.float64)
    t = torch.cat([grid, pieces.breakpoints]).sort().values
    x = low + (high - low) * t
    line = pieces(t).reshape(len(t))
    ends = (values_of(function, x.unsqueeze(1)) - line).abs()
    left, right, step = ends[:-1], ends[1:], x.diff()
    bounds = []
    if curvature is not None:
        bend = nonnegative_number(curvature, "curvature")
        bounds.append(torch.maximum(left, right) + bend / 8 * step.square())
    if lipschitz is not None:
        steep = nonnegative_number(lipschitz, "lipschitz")
        bounds.append((left + right + steep * step + line.diff().abs()) / 2)
    return float(torch.stack(bounds).amin(0).max())


def _exact_error(function: nn.Module, approximant: Approximant) -> SupError:
    both = [_pieces(m, approximant.domain) for m in (function, approximant.network)]
    ((low, high),) = approximant.domain
    t = torch.cat([b.breakpoints for b in both]).sort().values
    gap = (both[0](t) - both[1](t)).abs().reshape(len(t), -1)
    if gap.shape[1] != 1:
        raise ShapeMismatch(f"a function with one output is needed, not {gap.shape[1]}")
    at = int(gap.argmax())
    where = (low + (high - low) * t[at]).reshape(1)
    return SupError(float(gap[at, 0]), float(gap[at, 0]), where, len(t))
