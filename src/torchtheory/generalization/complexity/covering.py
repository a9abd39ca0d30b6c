r"""Covering numbers of a class on a sample, Dudley's integral, and Haussler's bound.

A class on a sample is a set of points `values[h, m]`, at the distances
$d_S(f,g)=\bigl(\frac1m\sum_i(f(z_i)-g(z_i))^2\bigr)^{1/2}$. The covering number
$N_\alpha$ is the least number of its points within $\alpha$ of all of them, the packing
number $M_\alpha$ the largest number of points more than $\alpha$ apart, and
$M_{2\alpha}\le N_\alpha\le M_\alpha$. Source: Mathematical Aspects of Deep Learning,
Equations (1.17) to (1.19).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy import integrate, optimize, sparse
from torch import Tensor

from torchtheory.core.checks import all_finite
from torchtheory.core.errors import EmptyData, InvalidInput, NotConverged, ShapeMismatch
from torchtheory.core.intervals import Interval, fit_slope
from torchtheory.primer.norms import pairwise_distances

#: The most functions whose covering number is found exactly.
MOST_EXACT = 400

#: Balls from which on the slope of a covering number is taken.
_FEWEST_BALLS = 10


def sample_distances(values: Tensor) -> Tensor:
    r"""$d_S$ between all rows of `values[h, m]`, as `[h, h]`.

    >>> sample_distances(torch.tensor([[1.0, 1.0], [-1.0, 1.0]]))
    tensor([[0.0000, 1.4142],
            [1.4142, 0.0000]])
    """
    _points(values)
    return pairwise_distances(values, values) / math.sqrt(values.shape[1])


def separation_radii(values: Tensor) -> Tensor:
    r"""How far each next point of a farthest-first traversal is from those before it, `[h]`.

    The first entry is infinite and the others do not increase. The points with entries above
    $\alpha$ are more than $\alpha$ apart and within $\alpha$ of every point, so
    their number is at most $M_\alpha$ and at least $N_\alpha$: one traversal bounds the
    covering numbers at all scales.

    Cost: $O(h^2m)$ time, $O(hm)$ memory.

    >>> separation_radii(torch.tensor([[0.0], [1.0], [4.0]]))
    tensor([inf, 4., 1.])
    """
    _points(values)
    scale = math.sqrt(values.shape[1])
    nearest = torch.full((len(values),), math.inf, dtype=values.dtype, device=values.device)
    radii, place = [], 0
    for _ in range(len(values)):
        radii.append(nearest[place].clone())
        nearest = torch.minimum(nearest, (values - values[place]).norm(dim=1) / scale)
        place = int(nearest.argmax())
    return torch.stack(radii)


def covering_bounds(values: Tensor, alpha: float) -> tuple[int, int]:
    r"""A lower and an upper bound of $N_\alpha$, from points $2\alpha$ and
    $\alpha$ apart.

    >>> covering_bounds(torch.arange(10.0)[:, None], 1.0)
    (3, 5)
    """
    _scale(alpha)
    radii = separation_radii(values)
    return int((radii > 2 * alpha).sum()), int((radii > alpha).sum())


def covering_number(values: Tensor, alpha: float) -> int:
    r"""$N_\alpha$ exactly, by integer programming; for at most 400 functions.

    The balls are closed and their centers belong to the class.

    >>> covering_number(torch.arange(10.0)[:, None], 1.0)
    4
    """
    _scale(alpha)
    near = _near(values, alpha)
    constraint = optimize.LinearConstraint(near, lb=1)
    return round(_solve(np.ones(near.shape[0]), constraint))


def packing_number(values: Tensor, alpha: float) -> int:
    r"""$M_\alpha$ exactly: the most points of which any two are more than $\alpha$
    apart.

    >>> packing_number(torch.arange(10.0)[:, None], 1.0)
    5
    """
    _scale(alpha)
    pairs = sparse.triu(_near(values, alpha), k=1).tocoo()
    if pairs.nnz == 0:
        return len(values)
    row = np.arange(pairs.nnz)
    edges = sparse.coo_matrix(
        (np.ones(2 * pairs.nnz), (np.tile(row, 2), np.concatenate([pairs.row, pairs.col]))),
        shape=(pairs.nnz, len(values)),
    )
    return round(-_solve(-np.ones(len(values)), optimize.LinearConstraint(edges, ub=1)))


def dudley_bound(values: Tensor) -> float:
    r"""Dudley's bound on $\hat R_S(\mathcal F)$ from the traversal's covers.

    $$
    \hat R_S(\mathcal F)\le\inf_{\epsilon\ge0}\Bigl(4\epsilon+\frac{12}{\sqrt m}
    \int_\epsilon^{r/2}\sqrt{\ln N_\alpha}\,d\alpha\Bigr)
    $$

    with any $r$ at which one ball is enough. For the complexity without absolute values; with
    them, $\sup_f\|f\|_S/\sqrt m$ is to be added, as a class of one function shows.

    >>> dudley_bound(torch.tensor([[1.0, 1.0]]))
    0.0
    """
    radii = separation_radii(values)[1:].double()
    if len(radii) == 0:
        return 0.0
    m = values.shape[1]
    # N_α ≤ k for α in [radii[k-1], radii[k-2]): the integrand is a staircase
    steps = torch.cat([radii, radii.new_zeros(1)])
    ends = steps.clamp(max=float(radii[0]) / 2)
    counts = torch.arange(1, len(steps) + 1, dtype=torch.float64, device=values.device)
    pieces = (ends[:-1] - ends[1:]) * counts[1:].log().sqrt()
    integral = torch.cat([pieces.new_zeros(1), pieces.cumsum(0)])
    return float((4 * ends + 12 / math.sqrt(m) * integral).min())


def haussler_bound(dimension: int, alpha: float) -> float:
    r"""Haussler's bound $e(V+1)(8e/\alpha^2)^V$ on $N_\alpha$ and $M_\alpha$.

    For $\pm1$-valued classes of VC dimension $V$, in the distance $d_S$, whose
    square is four times the share of points on which two functions differ. From $\alpha=2$
    on one function covers all.

    >>> round(haussler_bound(1, 1.0), 2)
    118.22
    """
    _dimension(dimension)
    _scale(alpha)
    if alpha == 0:
        return math.inf
    return math.e * (dimension + 1) * (8 * math.e / alpha**2) ** dimension


def vc_rademacher_bound(dimension: int, samples: int) -> float:
    r"""Complexity of the 0-1 losses of a class of VC dimension $V$, by Dudley and Haussler.

    The losses $(1-yf)/2$ have $N_\alpha(\mathcal G)=N_{2\alpha}(\mathcal F)$, so
    $\frac{12}{\sqrt m}\int_0^{1/2}\sqrt{\ln e(V+1)(2e/\alpha^2)^V}\,d\alpha$, which is of
    order $\sqrt{V/m}$.

    >>> round(vc_rademacher_bound(1, 10_000), 4)
    0.1547
    """
    _dimension(dimension)
    if samples < 1:
        raise EmptyData(f"a sample needs at least one point, not {samples!r}")

    def root(alpha: float) -> float:
        return math.sqrt(
            1 + math.log(dimension + 1) + dimension * (math.log(2 * math.e) - 2 * math.log(alpha))
        )

    value, _ = integrate.quad(root, 0, 0.5)
    return float(12 * value / math.sqrt(samples))


def covering_dimension(points: Tensor, *, largest: int = 200, confidence: float = 0.99) -> Interval:
    r"""Slope of $\log N_\alpha$ against $\log(1/\alpha)$: the dimension of a set.

    Between 10 and `largest` balls of a farthest-first traversal of `points[n, D]`;
    the set must be sampled much finer than that.

    >>> angle = torch.linspace(0, 6.28, 4000, dtype=torch.float64)
    >>> circle = torch.stack([angle.cos(), angle.sin()], 1)
    >>> round(covering_dimension(circle).estimate, 1)
    1.0
    """
    if not _FEWEST_BALLS < largest < len(points):
        raise InvalidInput(
            f"the slope is taken between {_FEWEST_BALLS} and {largest} balls: `largest` must be "
            f"more than {_FEWEST_BALLS} and fewer than the {len(points)} points"
        )
    _points(points)
    radii = separation_radii(points)
    counts = torch.logspace(math.log10(_FEWEST_BALLS), math.log10(largest), 12).round().long()
    return fit_slope(1 / radii[counts], counts.double(), confidence)


def _near(values: Tensor, alpha: float) -> sparse.csr_matrix:
    _points(values)
    if len(values) > MOST_EXACT:
        raise InvalidInput(
            f"{len(values)} functions are too many for integer programming; take at most "
            f"{MOST_EXACT}, or covering_bounds"
        )
    return sparse.csr_matrix((sample_distances(values) <= alpha).cpu().numpy().astype(np.float64))


def _solve(cost: np.ndarray[tuple[int], np.dtype[np.float64]], constraint: object) -> float:
    result = optimize.milp(
        cost, integrality=np.ones(len(cost)), bounds=optimize.Bounds(0, 1), constraints=constraint
    )
    if result.status != 0:
        raise NotConverged(f"the integer program was not solved: {result.message}")
    return float(result.fun)


def _points(values: Tensor) -> None:
    if values.ndim != 2:
        raise ShapeMismatch(f"a class on a sample is a matrix [h, m], not {list(values.shape)}")
    if values.numel() == 0:
        raise EmptyData(f"there is no function or no sample: {list(values.shape)}")
    all_finite(values, "the values")


def _scale(alpha: float) -> None:
    if not (math.isfinite(alpha) and alpha >= 0):
        raise InvalidInput(f"alpha is a distance, a number >= 0, not {alpha!r}")


def _dimension(dimension: int) -> None:
    if dimension < 1:
        raise InvalidInput(f"a VC dimension is a whole number >= 1 here, not {dimension}")
