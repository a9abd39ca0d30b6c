r"""Properties of an activation function, measured on its values alone.

Nothing is looked up and nothing is differentiated symbolically: the function is a black box
$\mathbb R\to\mathbb R$, sampled on a fine grid of $[-R,R]$ and at a few points far
out. Smoothness comes from how fast differences shrink with their step: where $\varrho$ has
a jump in its $k$-th derivative, the difference $\Delta_h^5\varrho$ is of order
$h^k$, and elsewhere of order $h^5$. What such a test cannot see is said where it
matters. Source: Mathematical Aspects of Deep Learning, sections 1.1.2 and 1.2 (the properties
its theorems ask for).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.polynomial import Chebyshev
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput, InvalidType, NonFinite, ShapeMismatch

Function = Callable[[Tensor], Tensor]
Array = np.ndarray[Any, np.dtype[Any]]

#: Derivatives that are looked for; a smoothness of this much means this much or more.
MOST_DERIVATIVES = 4

#: Degrees of polynomials that are looked for.
MOST_DEGREE = 8

_RADIUS = 10.0  # where a point of nonzero derivative is looked for
_FARTHEST = 1e3  # where a solution is still looked for
_SAME = 1e-4  # numbers of two activations that differ by no more, relatively, agree
_SPACING = 2.0**-11
_STEPS = (64, 16)  # the two steps of the smoothness test, in grid points
_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, slots=True)
class ActivationProperties:
    r"""What the theorems ask of an activation $\varrho:\mathbb R\to\mathbb R$.

    Attributes:
        lowest, highest: infimum and supremum over $\mathbb R$.
        left_limit, right_limit: limits at $\mp\infty$; NaN where there is none.
        smoothness: $k$ if $\varrho\in C^k$ but not $C^{k+1}$; -1 with a jump,
            `MOST_DERIVATIVES` for that many or more.
        lipschitz: the Lipschitz constant, possibly infinite.
        increasing, decreasing: monotone, not necessarily strictly.
        strictly_monotone: strictly, hence with an inverse on its range.
        convex, concave: both for an affine function.
        odd, even: symmetric about the origin, at every point.
        homogeneity: $k$ with $\varrho(\lambda x)=\lambda^k\varrho(x)$ for
            $\lambda>0$, or None.
        euler: whether $\varrho(x)=x\varrho'(x)$ almost everywhere.
        polynomial_degree: degree if $\varrho$ is almost everywhere a polynomial, or None.
        pieces, piece_degree: number and largest degree of the polynomials it is made of, or None.
    """

    lowest: float
    highest: float
    left_limit: float
    right_limit: float
    smoothness: int
    lipschitz: float
    increasing: bool
    decreasing: bool
    strictly_monotone: bool
    convex: bool
    concave: bool
    odd: bool
    even: bool
    homogeneity: int | None
    euler: bool
    polynomial_degree: int | None
    pieces: int | None
    piece_degree: int | None

    @property
    def continuous(self) -> bool:
        return self.smoothness >= 0

    @property
    def differentiable(self) -> bool:
        """Everywhere, with a continuous derivative."""
        return self.smoothness >= 1

    @property
    def bounded(self) -> bool:
        return math.isfinite(self.lowest) and math.isfinite(self.highest)

    @property
    def invertible(self) -> bool:
        """Continuous and strictly monotone."""
        return self.continuous and self.strictly_monotone

    @property
    def positively_homogeneous(self) -> bool:
        return self.homogeneity == 1

    @property
    def sigmoidal(self) -> bool:
        r"""Continuous, with limits 0 at $-\infty$ and 1 at $+\infty$."""
        return self.continuous and abs(self.left_limit) < 1e-6 and abs(self.right_limit - 1) < 1e-6

    @property
    def universal(self) -> bool:
        r"""Whether two-layer networks with it are dense in $C(K)$: no polynomial (Leshno).

        For continuous functions that is to be discriminatory, by Hahn-Banach and Riesz.
        """
        return self.polynomial_degree is None

    def differences(self, other: ActivationProperties) -> list[str]:
        """Names of the properties in which two functions differ.

        >>> inspect_activation(torch.relu).differences(inspect_activation(nn.LeakyReLU(0.5)))
        ['lowest', 'left_limit', 'strictly_monotone']
        """
        different = []
        for field in fields(self):
            a, b = getattr(self, field.name), getattr(other, field.name)
            if not _agree(a, b):
                different.append(field.name)
        return different


def inspect_activation(function: Function, *, radius: float = 10.0) -> ActivationProperties:
    r"""Measure the properties of an activation function.

    Args:
        function: maps a float64 tensor to one of the same shape, entry by entry. A module is
            copied, put in evaluation mode and run in double precision.
        radius: the grid covers $[-R,R]$; kinks, bends and wiggles outside go unseen, and so
            do jumps smaller than $10^{-12}$ of the values around them.

    Cost: a dozen evaluations on at most $2^{12}R$ points.

    >>> found = inspect_activation(torch.relu)
    >>> found.smoothness, found.lipschitz, found.homogeneity, found.pieces, found.convex
    (0, 1.0, 1, 2, True)
    >>> round(inspect_activation(torch.sigmoid).lipschitz, 6)
    0.25
    """
    if not (math.isfinite(radius) and radius >= 1):
        raise InvalidInput(f"radius must be a number >= 1, not {radius!r}")
    f = _as_function(function)
    half = round(radius / _SPACING)
    x: Array = np.arange(-half, half + 1) * _SPACING
    v = _values(f, x)
    if not np.isfinite(v).all():
        where = float(x[~np.isfinite(v)][0])
        raise NonFinite(f"the activation is NaN or infinite at {where:g}; give a smaller radius")
    far = radius * 10.0 ** np.arange(13)
    left, right = _values(f, -far), _values(f, far)
    limits = _limit(left), _limit(right)
    ends = np.concatenate([v, left[~np.isnan(left)], right[~np.isnan(right)]])
    exponents = _local_exponents(v)
    least = min(float(exponents.min()), MOST_DERIVATIVES + 1)
    breaks = _breaks(x, exponents)
    pieces, piece_degree = _pieces(x, v, breaks)
    whole = _degree(x, v)
    rounding = 8 * _EPS * (np.abs(v[1:]) + np.abs(v[:-1]))
    change = np.diff(v)
    bend = v[128:] - 2 * v[64:-64] + v[:-128]
    bending = 16 * _EPS * (np.abs(v[128:]) + 2 * np.abs(v[64:-64]) + np.abs(v[:-128]))
    tiny = 64 * _EPS * (1 + np.abs(v) + np.abs(v[::-1]))
    return ActivationProperties(
        lowest=_extreme(ends, limits, np.minimum),
        highest=_extreme(ends, limits, np.maximum),
        left_limit=limits[0],
        right_limit=limits[1],
        # a Hölder exponent between k and k + 1 belongs to C^k
        smoothness=math.ceil(least - 0.25) - 1,
        lipschitz=_lipschitz(f, x, v, least, far, left, right),
        increasing=bool((change >= -rounding).all()),
        decreasing=bool((change <= rounding).all()),
        strictly_monotone=bool((change > 0).all() or (change < 0).all()),
        convex=least > 0.75 and bool((bend >= -bending).all()),
        concave=least > 0.75 and bool((bend <= bending).all()),
        odd=bool((np.abs(v + v[::-1]) <= tiny).all()),
        even=bool((np.abs(v - v[::-1]) <= tiny).all()),
        homogeneity=_homogeneity(f, x[::16], v[::16]),
        euler=_euler(x, v, breaks),
        polynomial_degree=whole,
        pieces=pieces,
        piece_degree=piece_degree,
    )


def point_of_nonzero_derivative(function: Function, order: int) -> float | None:
    r"""A point $\lambda\in[-10,10]$ away from the kinks with $\varrho^{(p)}(\lambda)\ne0$.

    At such a point the monomial $x^p$ is a limit of difference quotients of $\varrho$.
    The point with the largest derivative of that order is given; None where every difference of
    that order is at rounding level away from the kinks.

    >>> point_of_nonzero_derivative(torch.relu, 2) is None
    True
    >>> point_of_nonzero_derivative(lambda x: torch.exp(-x**2 / 2), 2)
    0.0
    """
    if isinstance(order, bool) or not isinstance(order, int) or not 1 <= order <= 6:
        raise InvalidInput(f"order must be a whole number from 1 to 6, not {order!r}")
    f = _as_function(function)
    step = 128
    half = round(_RADIUS / _SPACING)
    x: Array = np.arange(-half, half + 1) * _SPACING
    v = _values(f, x)
    difference = np.abs(_difference(v, order, step))
    start = order * step // 2
    centers = x[start : start + len(difference)]
    size = np.abs(v).max()
    difference[difference <= 2**order * 1e3 * _EPS * size] = 0.0
    for broken in _breaks(x, _local_exponents(v)):
        difference[np.abs(centers - broken) <= (order + 2) * step * _SPACING] = 0.0
    best = int(difference.argmax())
    return float(centers[best]) if difference[best] > 0 else None


def invert(function: Function, target: Tensor) -> Tensor:
    r"""Solve $\varrho(x)=t$ by bisection, for a continuous strictly monotone function.

    Args:
        function: the activation.
        target: values $t$, any shape; solutions are looked for in $[-1000,1000]$.

    Raises:
        InvalidInput: where $t$ is not between $\varrho(-1000)$ and $\varrho(1000)$.

    >>> invert(torch.sigmoid, torch.tensor([0.25, 0.75], dtype=torch.float64))
    tensor([-1.0986,  1.0986], dtype=torch.float64)
    """
    if not target.is_floating_point():
        raise InvalidType(f"the target must be floating point, not {target.dtype}")
    f = _as_function(function, target.dtype)
    with torch.no_grad():
        low, high = torch.full_like(target, -_FARTHEST), torch.full_like(target, _FARTHEST)
        ends = f(low), f(high)
        if not bool(((ends[0] - target) * (ends[1] - target) <= 0).all()):
            raise InvalidInput(
                f"some target is not between the values at -{_FARTHEST:g} and {_FARTHEST:g}"
            )
        rising = ends[1] > ends[0]
        while True:
            middle = (low + high) / 2
            if bool(((middle <= low) | (middle >= high)).all()):
                return middle
            above = (f(middle) >= target) == rising
            low, high = torch.where(above, low, middle), torch.where(above, middle, high)


@dataclass(frozen=True, slots=True)
class Applicability:
    """Whether a result of the theory covers networks with an activation, and why.

    Attributes:
        id: the catalogue's id of the result.
        result: what it says, in a few words.
        applies: whether its hypothesis on the activation is met.
        because: the hypothesis.
    """

    id: str
    result: str
    applies: bool
    because: str


def applicable_theorems(function: Function) -> list[Applicability]:
    """Which results of the theory ask for a property this activation has.

    >>> [row.id for row in applicable_theorems(nn.Identity()) if row.applies]
    ['A-63', 'A-76', 'A-37', 'L-046']
    """
    p = inspect_activation(function)
    square = point_of_nonzero_derivative(function, 2) is not None
    rows = [
        ("A-27", "two-layer networks are universal", p.universal, "not a polynomial"),
        ("A-28", "steps are limits of its units", p.sigmoidal, "continuous, limits 0 and 1"),
        (
            "A-32",
            "the square is a limit of difference quotients",
            square,
            "a second derivative that does not vanish at some point",
        ),
        (
            "A-63",
            "units can be rescaled; norms bound the Rademacher complexity",
            p.positively_homogeneous,
            "positively homogeneous",
        ),
        ("A-76", "gradient flow conserves balancedness", p.euler, "equal to x times its slope"),
        ("A-37", "the VC dimension is bounded", p.pieces is not None, "piecewise polynomial"),
        ("L-046", "depth adds nothing", p.polynomial_degree in (0, 1), "affine"),
    ]
    return [Applicability(*row) for row in rows]


def _as_function(function: Function, dtype: torch.dtype = torch.float64) -> Function:
    if isinstance(function, nn.Module):
        return copy.deepcopy(function).to(dtype).eval()
    if not callable(function):
        raise InvalidType(f"an activation is a function, not a {type(function).__name__}")
    return function


def _values(f: Function, x: Array) -> Array:
    with torch.no_grad():
        y = f(torch.from_numpy(x))
    if not isinstance(y, Tensor) or y.shape != x.shape:
        got = list(y.shape) if isinstance(y, Tensor) else type(y).__name__
        raise ShapeMismatch(f"an activation gives a tensor of its input's shape, not {got}")
    return np.asarray(y.double().numpy())


def _limit(values: Array) -> float:
    """The limit of a function along points ten times further out each, or NaN."""
    finite = values[np.isfinite(values)]
    if len(finite) < 2:
        return float(values[0]) if len(values) and np.isinf(values[0]) else math.nan
    steps = np.diff(finite)
    if abs(steps[-1]) <= 1e-9 * max(1.0, abs(finite[-1])):
        return float(finite[-1])
    last = steps[-4:]
    # even a logarithm gains as much in every step
    if ((last > 0).all() or (last < 0).all()) and abs(last[-1]) >= 0.9 * abs(last[0]):
        return math.copysign(math.inf, last[-1])
    return math.nan


def _extreme(values: Array, limits: tuple[float, float], pick: np.ufunc) -> float:
    values = np.append(values, [end for end in limits if not math.isnan(end)])
    return float(pick.reduce(values))


def _difference(v: Array, order: int, step: int) -> Array:
    for _ in range(order):
        v = v[step:] - v[:-step]
    return v


def _local_exponents(v: Array) -> Array:
    r"""For each cell of the grid the $s$ with $|\Delta_h^5\varrho|\sim h^s$."""
    order = MOST_DERIVATIVES + 1
    coarse, fine = _STEPS
    cell = 2 * order * coarse
    peaks = []
    for step in _STEPS:
        d = np.abs(_difference(v, order, step))
        # center the difference, so that both steps speak of the same place
        offset = order * step // 2
        full = np.zeros_like(v)
        full[offset : offset + len(d)] = d
        peaks.append(_cell_maxima(full, cell))
    size = np.maximum(_cell_maxima(np.abs(v), cell), np.abs(v).mean())
    heard = peaks[1] > 100 * 2**order * _EPS * size
    ratio = np.where(heard, peaks[0], 1.0) / np.where(heard, peaks[1], 1.0)
    return np.where(heard, np.log(ratio) / math.log(coarse / fine), math.inf)


def _cell_maxima(v: Array, cell: int) -> Array:
    """Maxima over windows of two cells that overlap by one, so that no kink falls on an edge."""
    count = -(-len(v) // cell)
    padded = np.zeros(count * cell)
    padded[: len(v)] = v
    single: Array = padded.reshape(count, cell).max(1)
    return np.maximum(single[:-1], single[1:])


def _breaks(x: Array, exponents: Array) -> list[float]:
    """Where a derivative of order up to four jumps, to the width of a cell."""
    cell = 2 * (MOST_DERIVATIVES + 1) * _STEPS[0]
    found: list[float] = []
    run: list[int] = []
    rough = [*(exponents < MOST_DERIVATIVES + 0.75), False]
    for i, is_rough in enumerate(rough):
        if is_rough:
            run.append(i)
        elif run:
            # neighboring windows share a cell: the break is in the one they share
            found.append(float(x[min(len(x) - 1, round((run[0] + run[-1] + 2) / 2 * cell))]))
            run = []
    return found


def _pieces(x: Array, v: Array, breaks: list[float]) -> tuple[int | None, int | None]:
    width = 2 * (MOST_DERIVATIVES + 1) * _STEPS[0] * _SPACING
    edges = [-math.inf, *breaks, math.inf]
    degrees = []
    for low, high in pairwise(edges):
        inside = (x > low + width) & (x < high - width)
        if inside.sum() < 64:
            return None, None
        degree = _degree(x[inside], v[inside])
        if degree is None:
            return None, None
        degrees.append(degree)
    return len(degrees), max(degrees)


def _degree(x: Array, v: Array) -> int | None:
    """Smallest degree of a polynomial equal to the values, up to rounding and a null set."""
    thin = slice(None, None, max(1, len(x) // 2000))
    x, v = x[thin], v[thin]
    scale = float(np.abs(v).max())
    if scale == 0.0:
        return 0
    fit = Chebyshev.fit(x, v, MOST_DEGREE)
    residual = np.abs(fit(x) - v)
    # a value at a single point changes nothing almost everywhere
    if np.sort(residual)[-3] > 1e-11 * scale:
        return None
    large = np.flatnonzero(np.abs(fit.coef) > 1e-10 * scale)
    return int(large[-1]) if len(large) else 0


def _lipschitz(
    f: Function, x: Array, v: Array, exponent: float, far: Array, left: Array, right: Array
) -> float:
    if exponent <= 0.75:
        return math.inf
    steepest = x[int(np.abs(np.diff(v)).argmax())]
    # next to a kink a quotient is off by O(h): look closer
    closer = 2.0**-22
    zoom: Array = steepest + np.arange(-8192, 8193) * closer
    near = float(np.abs(np.diff(_values(f, zoom))).max()) / closer
    for values in (left, right):
        finite = np.isfinite(values)
        quotients = np.abs(np.diff(values[finite])) / np.diff(far[finite])
        if len(quotients) and quotients[-1] > 2 * near:
            return math.inf
        near = max(near, *quotients.tolist()) if len(quotients) else near
    return near


def _homogeneity(f: Function, x: Array, v: Array) -> int | None:
    if not v.any():
        return 1
    doubled = _values(f, 2 * x)
    probe = int(np.abs(v).argmax())
    if doubled[probe] / v[probe] <= 0:
        return None
    degree = round(math.log2(doubled[probe] / v[probe]))
    for factor in (0.5, 2.0, 3.0):
        scaled = _values(f, factor * x)
        wanted = factor**degree * v
        if not (np.abs(scaled - wanted) <= 64 * _EPS * np.abs(wanted)).all():
            return None
    return degree


def _euler(x: Array, v: Array, breaks: list[float]) -> bool:
    step = 4
    slope = (v[2 * step :] - v[: -2 * step]) / (2 * step * _SPACING)
    center, value = x[step:-step], v[step:-step]
    away = np.ones(len(center), dtype=bool)
    for broken in breaks:
        away &= np.abs(center - broken) > 1.0
    scale = float(np.abs(v).max())
    return bool((np.abs(center * slope - value)[away] <= 1e-9 * max(scale, 1e-300)).all())


def _agree(a: float | bool | None, b: float | bool | None) -> bool:
    if a is None or b is None or isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    if math.isinf(a) or math.isinf(b):
        return a == b
    return abs(a - b) <= _SAME * max(1.0, abs(a), abs(b))
