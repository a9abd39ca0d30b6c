r"""Two lines around an activation on an interval.

On $[l,u]$ an activation $\varrho$ is enclosed by $s_lx+t_l\le\varrho(x)\le s_ux+t_u$. The lower
line supports the convex envelope of $\varrho$ at the midpoint of the interval, the upper one the
concave envelope, so that the area between each line and the graph is as small as it can be: for
$\max(x,0)$ with $l<0<u$ the slopes are $s_l=1$ if $u>-l$ and 0 otherwise, and $s_u=u/(u-l)$
(Zhang et al. 2018, CROWN).

| activation | lines |
|---|---|
| one kink at 0 (ReLU, leaky, absolute value) | exact |
| clamp, hard tanh | exact |
| softplus | tangent at the midpoint, chord |
| tanh, sigmoid | tangents through the ends, by bisection and Newton's method |
| any with $\lvert\varrho''\rvert\le M$ (GELU, SiLU, ...) | from 33 samples, moved by $Mh^2/8$ for what lies between them |

The offset of a line is in each case the exact extreme of $\varrho(x)-sx$ (or a bound of it), so a
slope that is off by rounding costs a little area and no soundness.

Other lines do as well: of a kink those through it with any slope between its two, of other
activations those that support the envelopes at other points than the midpoint. A mixture of two
lines below the graph is below it, so a few of them (`family`) span a range of lines in which the
best one for a network can be searched for.
"""  # noqa: E501

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

#: Points of an interval at which an activation without a closed form is sampled.
_SAMPLES = 33

#: Where lines of a family support the envelopes of an activation, as shares of the interval.
_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


class Box(NamedTuple):
    """Entrywise bounds `[b, ...]`."""

    lower: Tensor
    upper: Tensor


class Lines(NamedTuple):
    """Slopes and offsets of a line below and one above, `[b, ...]` each."""

    lower_slope: Tensor
    lower_offset: Tensor
    upper_slope: Tensor
    upper_offset: Tensor

    @property
    def largest_slope(self) -> Tensor:
        return torch.maximum(self.lower_slope.abs(), self.upper_slope.abs())


def largest_entries(box: Box) -> Tensor:
    """The largest absolute value within bounds, entry by entry."""
    return torch.maximum(box.lower.detach().abs(), box.upper.detach().abs())


class Activation(Protocol):
    """A function of each entry."""

    @property
    def exact(self) -> bool:
        """Whether its values are computed without rounding."""
        ...

    def __call__(self, x: Tensor) -> Tensor: ...

    def image(self, box: Box) -> Box:
        """The values it takes on intervals."""
        ...

    def lines(self, box: Box) -> Lines:
        """Lines around it."""
        ...

    def family(self, box: Box) -> tuple[list[Lines], Tensor]:
        """Lines of which neighbors may be mixed, and the number of the usual ones among them."""
        ...

    def terms(self, box: Box) -> float | Tensor:
        """Size of what is added up inside of it: the rounding of its values is a share of this."""
        ...


def chord(function: Callable[[Tensor], Tensor], box: Box) -> Tensor:
    """Slope between the ends of an interval; 0 where they coincide."""
    width = box.upper - box.lower
    safe = torch.where(width > 0, width, 1.0)
    return (function(box.upper) - function(box.lower)) / safe


class Kinked:
    r"""$\max(x,0)\,a+\min(x,0)\,c$: ReLU, leaky ReLU, PReLU, the absolute value.

    Args:
        left, right: the slopes $c$ and $a$, numbers or tensors that broadcast.
    """

    def __init__(self, left: float | Tensor, right: float | Tensor) -> None:
        self.left, self.right = left, right

    def __call__(self, x: Tensor) -> Tensor:
        if _is(self.left, 0.0) and _is(self.right, 1.0):
            return x.clamp_min(0.0)
        return x.clamp_min(0.0) * self.right + x.clamp_max(0.0) * self.left

    def image(self, box: Box) -> Box:
        if _is(self.left, 0.0) and _is(self.right, 1.0):
            return Box(box.lower.clamp_min(0.0), box.upper.clamp_min(0.0))
        a, b = self(box.lower), self(box.upper)
        inside = (box.lower < 0) & (box.upper > 0)
        zero = torch.where(inside, 0.0, a)
        return Box(
            torch.minimum(torch.minimum(a, b), zero), torch.maximum(torch.maximum(a, b), zero)
        )

    def terms(self, box: Box) -> float:
        return 0.0

    @property
    def exact(self) -> bool:
        return all(
            not isinstance(v, Tensor) and v in (-1.0, 0.0, 1.0) for v in (self.left, self.right)
        )

    def family(self, box: Box) -> tuple[list[Lines], Tensor]:
        """The free slope may be that of either side."""
        members = [self.lines(box, self.left), self.lines(box, self.right)]
        return members, (box.lower + box.upper > 0).to(box.lower)

    def lines(self, box: Box, slope: float | Tensor | None = None) -> Lines:
        """The lines; `slope` is that of the free one, unless it is to enclose the least area."""
        lower, upper = box
        left = torch.as_tensor(self.left, dtype=lower.dtype, device=lower.device)
        right = torch.as_tensor(self.right, dtype=lower.dtype, device=lower.device)
        width = upper - lower
        safe = torch.where(width > 0, width, 1.0)
        bent = (lower < 0) & (upper > 0)
        piece = torch.where(lower + upper > 0, right, left)  # the one at the midpoint
        free = torch.where(bent, piece if slope is None else slope, piece)
        across = torch.where(bent, (right * upper - left * lower) / safe, piece)
        offset = torch.where(bent, (left - right) * lower * upper / safe, 0.0)
        zero = torch.zeros_like(offset)
        if not isinstance(self.left, Tensor) and not isinstance(self.right, Tensor):
            if self.left <= self.right:
                return Lines(free, zero, across, offset)
            return Lines(across, offset, free, zero)
        convex = left <= right
        return Lines(
            torch.where(convex, free, across),
            torch.where(convex, zero, offset),
            torch.where(convex, across, free),
            torch.where(convex, offset, zero),
        )


def _is(value: float | Tensor, number: float) -> bool:
    return not isinstance(value, Tensor) and value == number


class Clamped:
    r"""$\min(\max(x,a),c)$, with both limits finite."""

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = low, high

    def __call__(self, x: Tensor) -> Tensor:
        return x.clamp(self.low, self.high)

    exact = False  # torch rounds the limits

    def image(self, box: Box) -> Box:
        return Box(self(box.lower), self(box.upper))

    def lines(self, box: Box, share: float = 0.5) -> Lines:
        slope, offset = _below_clamp(box, self.low, self.high, share)
        # what lies above is what lies below the function turned about the origin
        turned = Box(-box.upper, -box.lower)
        above, over = _below_clamp(turned, -self.high, -self.low, 1 - share)
        return Lines(slope, offset, above, -over)

    def family(self, box: Box) -> tuple[list[Lines], Tensor]:
        return _family(self.lines, box)

    def terms(self, box: Box) -> float:
        return 0.0


def _family(lines: Callable[[Box, float], Lines], box: Box) -> tuple[list[Lines], Tensor]:
    """Lines at several shares of an interval, with those at its midpoint in the middle."""
    members = [lines(box, share) for share in _SHARES]
    return members, torch.full_like(box.lower, len(_SHARES) // 2)


def _place(box: Box, share: float) -> Tensor:
    if share in (0.0, 1.0):
        return box.upper if share else box.lower
    return (1 - share) * box.lower + share * box.upper


def _below_clamp(box: Box, low: float, high: float, share: float) -> tuple[Tensor, Tensor]:
    lower, upper = box
    middle = _place(box, share)
    top = upper.clamp(low, high)
    start = torch.clamp_min(lower, low)  # where the envelope leaves the level `low`
    width = upper - start
    rising = torch.where(width > 0, (top - start.clamp_max(high)) / width.clamp_min(1e-300), 0.0)
    flat = middle <= low
    slope = torch.where(flat, 0.0, rising)
    return slope, torch.where(flat, low, top - rising * upper)


class Softplus:
    r"""$\log(1+e^{\beta x})/\beta$, or its logarithm-of-sigmoid form with signs turned."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        self.beta, self.threshold = beta, threshold

    def __call__(self, x: Tensor) -> Tensor:
        return F.softplus(x, self.beta, self.threshold)

    def image(self, box: Box) -> Box:
        # beyond the threshold torch returns x itself: the function falls there
        a, b = self(box.lower), self(box.upper)
        place = self.threshold / self.beta
        falls = (box.lower <= place) & (box.upper > place)
        top = math.log1p(math.exp(self.threshold)) / self.beta
        return Box(
            torch.where(falls, a.clamp_max(place), a), torch.where(falls, b.clamp_min(top), b)
        )

    exact = False

    def terms(self, box: Box) -> float:
        return 1 / self.beta

    def family(self, box: Box) -> tuple[list[Lines], Tensor]:
        return _family(self.lines, box)

    def lines(self, box: Box, share: float = 0.5) -> Lines:
        middle = _place(box, share)
        slope = torch.sigmoid(self.beta * middle)
        # beyond the threshold torch returns x itself, below the function by this at most
        jump = math.log1p(math.exp(-self.threshold)) / self.beta
        offset = self(middle) - slope * middle - jump
        across = chord(self, box)
        return Lines(slope, offset, across, self(box.upper) - across * box.upper + jump)


class Sigmoidal:
    r"""$a+c\tanh(kx)$ with $c,k>0$: tanh and the logistic sigmoid."""

    def __init__(self, shift: float = 0.0, scale: float = 1.0, rate: float = 1.0) -> None:
        self.shift, self.scale, self.rate = shift, scale, rate

    def __call__(self, x: Tensor) -> Tensor:
        return self.shift + self.scale * torch.tanh(self.rate * x)

    def image(self, box: Box) -> Box:
        return Box(self(box.lower), self(box.upper))

    exact = False

    def terms(self, box: Box) -> float:
        return abs(self.shift) + self.scale

    def family(self, box: Box) -> tuple[list[Lines], Tensor]:
        return _family(self.lines, box)

    def lines(self, box: Box, share: float = 0.5) -> Lines:
        lower, upper = self.rate * box.lower, self.rate * box.upper
        slope, offset = _below_tanh(lower, upper, share)
        above, over = _below_tanh(-upper, -lower, 1 - share)
        k = self.scale * self.rate
        return Lines(
            k * slope,
            self.shift + self.scale * offset,
            k * above,
            self.shift - self.scale * over,
        )


def _below_tanh(lower: Tensor, upper: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """The line below tanh that supports its convex envelope at a share of the interval."""
    middle = _place(Box(lower, upper), share)
    top = torch.tanh(upper)
    # on the convex side, where does a tangent meet the upper end? It lies above the graph there
    # to the right of that point, and below it to the left
    low, high = lower.clamp_max(0.0), torch.minimum(upper, torch.zeros_like(upper))
    low = torch.minimum(low, high)
    point = (low + high) / 2
    for k in range(18):
        value = torch.tanh(point)
        rate = 1 - value.square()
        excess = value + rate * (upper - point) - top
        low, high = torch.where(excess < 0, point, low), torch.where(excess < 0, high, point)
        newton = point - excess / (-2 * value * rate * (upper - point)).clamp_min(1e-30)
        inside = (newton > low) & (newton < high)
        point = torch.where(inside & (k >= 6), newton, (low + high) / 2)
    touching = 1 - torch.tanh(point).square()
    width = upper - lower
    across = (top - torch.tanh(lower)) / torch.where(width > 0, width, 1.0)
    at_middle = 1 - torch.tanh(middle).square()
    # the envelope is the chord if a tangent at the lower end is steeper than it
    steep = (1 - torch.tanh(lower).square()) >= across
    mixed = torch.where(middle <= point, at_middle, touching)
    slope = torch.where(upper <= 0, at_middle, torch.where((lower >= 0) | steep, across, mixed))
    root = torch.sqrt((1 - slope).clamp(0.0, 1.0))
    # of tanh(x) - s x: its only minimum inside is on the convex side
    inside = -torch.atanh(root.clamp_max(1 - 1e-7 if root.dtype == torch.float32 else 1 - 1e-16))
    inside = torch.minimum(torch.maximum(inside, lower), upper)
    offset = torch.minimum(torch.tanh(inside) - slope * inside, top - slope * upper)
    return slope, torch.minimum(offset, torch.tanh(lower) - slope * lower)


class Smooth:
    r"""A function with $\lvert\varrho''\rvert\le M$, from samples of the interval.

    Between two points at distance $h$ the function differs from its chord by at most $Mh^2/8$.

    Args:
        function: the function.
        curvature: $M$.
        lowest: where its only minimum is, if it falls and then rises.
        increasing: whether it never falls.
    """

    def __init__(
        self,
        function: Callable[[Tensor], Tensor],
        curvature: float,
        *,
        lowest: float | None = None,
        increasing: bool = False,
    ) -> None:
        self.function, self.curvature = function, curvature
        self.lowest, self.increasing = lowest, increasing

    def __call__(self, x: Tensor) -> Tensor:
        return self.function(x)

    def image(self, box: Box) -> Box:
        a, b = self(box.lower), self(box.upper)
        if self.increasing:
            return Box(a, b)
        if self.lowest is not None:
            # its place is known to some digits, and the function is flat there
            at = torch.clamp(torch.full_like(a, self.lowest), box.lower, box.upper)
            return Box(self(at) - 1e-12 * self.curvature, torch.maximum(a, b))
        _, values, slack = self._sampled(box)
        return Box(values.amin(-1) - slack, values.amax(-1) + slack)

    exact = False

    def terms(self, box: Box) -> Tensor:
        # such as x times one plus an error function, in which all digits may be lost
        return largest_entries(box)

    def family(self, box: Box) -> tuple[list[Lines], Tensor]:
        return _family(self.lines, box)

    def lines(self, box: Box, share: float = 0.5) -> Lines:
        points, values, slack = self._sampled(box)
        middle = _place(box, share)
        slope = _supporting(points, values, middle, share < 0.5)
        above = -_supporting(points, -values, middle, share < 0.5)
        rest = (values - slope[..., None] * points).amin(-1)
        over = (values - above[..., None] * points).amax(-1)
        return Lines(slope, rest - slack, above, over + slack)

    def _sampled(self, box: Box) -> tuple[Tensor, Tensor, Tensor]:
        share = torch.linspace(0, 1, _SAMPLES, dtype=box.lower.dtype, device=box.lower.device)
        width = box.upper - box.lower
        points = box.lower[..., None] + width[..., None] * share
        points[..., -1] = box.upper  # and not what rounding leaves of it
        apart = width / (_SAMPLES - 1) + 4 * torch.finfo(width.dtype).eps * largest_entries(box)
        return points, self.function(points), self.curvature * apart.square() / 8


def _supporting(points: Tensor, values: Tensor, middle: Tensor, steepest: bool) -> Tensor:
    """Slope of the line below sampled values that is highest at a point, by bisection.

    Args:
        steepest: which one where there are several, as at an end of the interval.
    """
    steps = points.diff(dim=-1)
    slopes = values.diff(dim=-1) / torch.where(steps > 0, steps, 1.0)
    low, high = slopes.amin(-1), slopes.amax(-1)
    for _ in range(30):
        slope = (low + high) / 2
        lowest = (values - slope[..., None] * points).argmin(-1, keepdim=True)
        touching = points.gather(-1, lowest)[..., 0]
        left = touching <= middle if steepest else touching < middle
        low, high = torch.where(left, slope, low), torch.where(left, high, slope)
    return (low + high) / 2
