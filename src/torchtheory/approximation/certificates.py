r"""What a constructive proof hands over: the network, its size, its error bound and where it holds.

A proof of approximation writes weights down. Here it returns an `Approximant`: an ordinary
module in double precision together with what its theorem promises, so that the promise can be
held against a measurement by `measured_error`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from torchtheory.approximation.targets import Function, values_of
from torchtheory.core.checks import positive_number, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch, UnsupportedModel
from torchtheory.core.intervals import Interval, mean_interval
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.expressivity.pieces import affine_pieces

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
    r"""The largest difference found of two functions, and how finely it was looked for.

    Attributes:
        value: the largest $|f(x)-g(x)|$ over the points; a lower bound of the supremum,
            or the supremum itself where `exact`.
        resolution: distance of neighboring grid points; 0 where exact.
        points: how many were looked at.
        where: `[d]`, a point that attains the value.
        settled: whether halving the last resolution changed less than the tolerance.
        exact: whether both functions were piecewise linear and compared at every bend.
    """

    value: float
    resolution: float
    points: int
    where: Tensor
    settled: bool
    exact: bool = False

    def upper(self, lipschitz: float) -> float:
        r"""An upper bound of the supremum where $f-g$ is Lipschitz: no point is further
        from the grid than $\tfrac h2\sqrt d$.

        Args:
            lipschitz: of $f-g$, in the Euclidean norm.
        """
        positive_number(lipschitz, "lipschitz")
        return self.value + lipschitz * self.resolution / 2 * math.sqrt(len(self.where))


def sup_distance(
    f: Function,
    g: Function,
    domain: Box | tuple[float, float],
    *,
    extra: Tensor | None = None,
    tolerance: float = 1e-6,
    most_points: int = 1 << 17,
) -> SupError:
    r"""$\sup_x|f(x)-g(x)|$ over a box, on a grid halved until the value stops changing.

    Args:
        f, g: from `[n, d]` to `[n]` or `[n, 1]`; see `torchtheory.approximation.targets`.
        domain: `(a, b)`, or one such pair a dimension.
        extra: further points `[m, d]` to look at, as the two sides of a jump.
        tolerance: relative change between two grids that counts as none.
        most_points: no grid with more points than that.

    Time: `O(points)` evaluations; the grids before the last add no more than that again.

    >>> found = sup_distance(lambda x: x, lambda x: x**2, (0.0, 1.0))
    >>> found.value, found.where.item()
    (0.25, 0.5)
    """
    box = as_box(domain)
    positive_number(tolerance, "tolerance")
    d = len(box)
    cells = max(2, min(256, int(most_points ** (1 / d)) // 4))
    best, where, seen, settled = -1.0, torch.zeros(d, dtype=torch.float64), 0, False
    if extra is not None:
        best, where = _largest(f, g, extra.reshape(-1, d))
        seen = len(extra)
    # a grid that meets every knot of a broken line sees none of its error: off the grid first
    shifted, at = _largest(f, g, _inside_cells(box, cells))
    seen += cells**d
    if shifted > best:
        best, where = shifted, at
    previous = -math.inf
    while True:
        grid = box_grid(box, cells + 1)
        value, at = _largest(f, g, grid)
        seen += len(grid)
        if value > best:
            best, where = value, at
        settled = best <= previous * (1 + tolerance)
        if settled or (2 * cells + 1) ** d > most_points:
            break
        previous = best
        cells *= 2
    spacing = max((high - low) / cells for low, high in box)
    return SupError(best, spacing, seen, where, settled)


def measured_error(
    function: Function | nn.Module,
    approximant: Approximant,
    *,
    most_points: int = 1 << 17,
) -> SupError:
    r"""The sup-norm error of an approximant on its domain.

    In one dimension both sides of every kink or jump of the first layer are looked at besides the
    grid. Where `function` is itself a piecewise linear `nn.Module` of one input, and the
    network is one as well, the supremum is exact: it is attained at a bend or an end.

    >>> zero = Approximant(nn.Sequential(nn.Linear(1, 1).double()), 1.0, ((0.0, 1.0),), "L-071")
    >>> _ = [nn.init.zeros_(p) for p in zero.network.parameters()]
    >>> measured_error(torch.sqrt, zero).value
    1.0
    """
    if isinstance(function, nn.Module):
        return _exact_error(function, approximant)
    return sup_distance(
        function,
        approximant,
        approximant.domain,
        extra=_both_sides(approximant),
        most_points=most_points,
    )


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
    """One pair of ends a dimension; a single pair is an interval.

    >>> as_box((0, 1))
    ((0.0, 1.0),)
    """
    try:
        ends = torch.as_tensor(domain, dtype=torch.float64).reshape(-1, 2)
    except (TypeError, ValueError, RuntimeError):
        raise InvalidInput(f"a box is (a, b), or one such pair a dimension, not {domain}") from None
    if len(ends) == 0 or not bool((ends.isfinite().all(1) & (ends[:, 0] < ends[:, 1])).all()):
        raise InvalidInput(f"an interval has two finite ends, the first smaller, not {domain}")
    return tuple((float(low), float(high)) for low, high in ends)


def box_grid(box: Box, points: int) -> Tensor:
    """The regular grid of a box, ends included: `[points ** d, d]`.

    >>> box_grid(((0.0, 1.0), (0.0, 1.0)), 2).tolist()
    [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]
    """
    axes = [torch.linspace(low, high, points, dtype=torch.float64) for low, high in box]
    return torch.cartesian_prod(*axes).reshape(-1, len(box))


def _inside_cells(box: Box, cells: int) -> Tensor:
    """A point inside each cell of the regular grid, at the golden section of every side."""
    low, high = torch.tensor(box, dtype=torch.float64).unbind(1)
    steps = (torch.arange(cells, dtype=torch.float64) + (math.sqrt(5) - 1) / 2) / cells
    grid = torch.cartesian_prod(*[steps] * len(box)).reshape(-1, len(box))
    return low + (high - low) * grid


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


def _exact_error(function: nn.Module, approximant: Approximant) -> SupError:
    if len(approximant.domain) > 1:
        raise UnsupportedModel("piecewise linear functions are compared exactly in one dimension")
    ((low, high),) = approximant.domain
    ends = torch.tensor(low).double(), torch.tensor(high).double()
    both = [affine_pieces(m, *ends) for m in (function, approximant.network)]
    t = torch.cat([b.breakpoints for b in both]).sort().values
    gap = (both[0](t) - both[1](t)).abs().reshape(len(t), -1)
    if gap.shape[1] != 1:
        raise ShapeMismatch(f"a function with one output is needed, not {gap.shape[1]}")
    at = int(gap.argmax())
    where = (low + (high - low) * t[at]).reshape(1)
    return SupError(float(gap[at, 0]), 0.0, len(t), where, settled=True, exact=True)
