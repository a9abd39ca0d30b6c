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
| softplus, exponential, logarithm, roots, powers | tangent at the midpoint, chord |
| tanh, sigmoid | tangents through the ends, by bisection and Newton's method |
| any with $\lvert\varrho''\rvert\le M$ between kinks and jumps (GELU, SiLU, Hardswish, ...) | from 33 samples and both sides of each kink, moved by $Mh^2/8$ for what lies between them |

The offset of a line is in each case the exact extreme of $\varrho(x)-sx$ (or a bound of it), so a
slope that is off by rounding costs a little area and no soundness.

Other lines do as well: of a kink those through it with any slope between its two, of other
activations those that support the envelopes at other points than the midpoint. A mixture of two
lines below the graph is below it, so a few of them (`family`) span a range of lines in which the
best one for a network can be searched for.
"""  # noqa: E501

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

#: Points of an interval at which an activation without a closed form is sampled.
_SAMPLES = 33

#: Where lines of a family support the envelopes of an activation, as shares of the interval.
_SHARES = tuple(k / 16 for k in range(17))

#: Sampled functions of which all chords are looked at together.
_TOGETHER = 4096


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
    lower, upper = (end.detach() if end.requires_grad else end for end in box)
    return torch.maximum(-lower, upper)


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
    r"""$\min(\max(x,a),c)$, with both limits finite: numbers, or tensors that broadcast."""

    def __init__(self, low: float | Tensor, high: float | Tensor) -> None:
        self.low, self.high = low, high

    def __call__(self, x: Tensor) -> Tensor:
        return _clamped(x, self.low, self.high)

    exact = False  # torch rounds the limits

    def image(self, box: Box) -> Box:
        return Box(self(box.lower), self(box.upper))

    def lines(self, box: Box, shares: tuple[float, float] = (0.5, 0.5)) -> Lines:
        slope, offset = _below_clamp(box, self.low, self.high, shares[0])
        # what lies above is what lies below the function turned about the origin
        turned = Box(-box.upper, -box.lower)
        above, over = _below_clamp(turned, -self.high, -self.low, shares[1])
        return Lines(slope, offset, above, -over)

    def family(self, box: Box) -> tuple[list[Lines], Tensor]:
        """Level lines and rising ones."""
        members = [self.lines(box, (0.0, 0.0)), self.lines(box, (1.0, 1.0))]
        return members, torch.full_like(box.lower, 0.5)

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


def _clamped(x: Tensor, low: Any, high: Any) -> Tensor:
    made: Tensor = torch.clamp(x, low, high)
    return made


def _below_clamp(box: Box, low: Any, high: Any, share: float) -> tuple[Tensor, Tensor]:
    lower, upper = box
    middle = _place(box, share)
    top = _clamped(upper, low, high)
    start = torch.clamp_min(lower, low)  # where the envelope leaves the level `low`
    width = upper - start
    level = torch.clamp_max(start, high)
    rising = torch.where(width > 0, (top - level) / width.clamp_min(1e-300), 0.0)
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
        return self._lines(box, _SHARES), torch.full_like(box.lower, len(_SHARES) // 2)

    def lines(self, box: Box) -> Lines:
        return self._lines(box, (0.5,))[0]

    def _lines(self, box: Box, shares: Sequence[float]) -> list[Lines]:
        lower, upper = self.rate * box.lower, self.rate * box.upper
        below = _below_tanh(lower, upper, shares)
        above = _below_tanh(-upper, -lower, [1 - share for share in shares])
        k = self.scale * self.rate
        return [
            Lines(
                k * slope, self.shift + self.scale * offset,
                k * turned, self.shift - self.scale * over,
            )
            for (slope, offset), (turned, over) in zip(below, above, strict=True)
        ]  # fmt: skip


def _below_tanh(
    lower: Tensor, upper: Tensor, shares: Sequence[float]
) -> list[tuple[Tensor, Tensor]]:
    """Lines below tanh that support its convex envelope at shares of the interval."""
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
    bottom = torch.tanh(lower)
    across = (top - bottom) / torch.where(width > 0, width, 1.0)
    # the envelope is the chord if a tangent at the lower end is steeper than it
    steep = (1 - bottom.square()) >= across
    largest = 1 - 1e-7 if lower.dtype == torch.float32 else 1 - 1e-16
    found = []
    for share in shares:
        middle = _place(Box(lower, upper), share)
        at_middle = 1 - torch.tanh(middle).square()
        mixed = torch.where(middle <= point, at_middle, touching)
        slope = torch.where(upper <= 0, at_middle, torch.where((lower >= 0) | steep, across, mixed))
        root = torch.sqrt((1 - slope).clamp(0.0, 1.0))
        # of tanh(x) - s x: its only minimum inside is on the convex side
        inside = -torch.atanh(root.clamp_max(largest))
        inside = torch.minimum(torch.maximum(inside, lower), upper)
        offset = torch.minimum(torch.tanh(inside) - slope * inside, top - slope * upper)
        found.append((slope, torch.minimum(offset, bottom - slope * lower)))
    return found


class Curved:
    r"""A convex or a concave function: a tangent on one side, the chord on the other.

    Args:
        function, slope: the function and its derivative.
        convex: whether it is convex, and not concave.
        rises: whether it increases; None if its minimum is at 0.
        start: where the numbers begin that it is defined for.
        reaches: whether it has a value there.
    """

    exact = False

    def __init__(
        self,
        function: Callable[[Tensor], Tensor],
        slope: Callable[[Tensor], Tensor],
        *,
        convex: bool,
        rises: bool | None = True,
        start: float = -math.inf,
        reaches: bool = True,
    ) -> None:
        self.function, self.slope, self.convex, self.rises = function, slope, convex, rises
        self.start, self.reaches = start, reaches

    def __call__(self, x: Tensor) -> Tensor:
        return self.function(x)

    def _inside(self, box: Box) -> tuple[Box, Tensor]:
        """The part of an interval on which there are values, and where there is none."""
        if self.start == -math.inf:
            return box, torch.zeros_like(box.lower, dtype=torch.bool)
        outside = box.lower < self.start if self.reaches else box.lower <= self.start
        # a number that is not smaller by itself may have become so by rounding
        gone = box.upper < self.start if self.reaches else outside
        return Box(*(v.clamp_min(self.start) for v in box)), gone

    def image(self, box: Box) -> Box:
        box, gone = self._inside(box)
        a, b = self(box.lower), self(box.upper)
        if self.rises is None:
            inside = (box.lower < 0) & (box.upper > 0)
            low = torch.where(inside, self(torch.zeros_like(a)), torch.minimum(a, b))
            made = Box(low, torch.maximum(a, b))
        else:
            made = Box(a, b) if self.rises else Box(b, a)
        return Box(
            torch.where(gone, -math.inf, made.lower), torch.where(gone, math.inf, made.upper)
        )

    def terms(self, box: Box) -> Tensor:
        return largest_entries(self.image(box))

    def family(self, box: Box) -> tuple[list[Lines], Tensor]:
        return _family(self.lines, box)

    def lines(self, box: Box, share: float = 0.5) -> Lines:
        box, gone = self._inside(box)
        # at its ends a root is as steep as can be
        point = _place(box, min(max(share, 0.02), 0.98))
        point = torch.minimum(torch.maximum(point, box.lower), box.upper)
        slope = torch.where(gone, math.nan, self.slope(point))
        at = self(point) - slope * point
        across = chord(self, box)
        ends = [self(end) - across * end for end in box]
        if self.convex:
            return Lines(slope, at, across, torch.maximum(*ends))
        return Lines(across, torch.minimum(*ends), slope, at)


class Reciprocal:
    r"""$1/x$ on either side of 0; nothing is known where an interval holds 0."""

    exact = False

    def __init__(self) -> None:
        self.right = Curved(
            torch.reciprocal, lambda x: -x.square().reciprocal(),
            convex=True, rises=False, start=0.0, reaches=False,
        )  # fmt: skip

    def __call__(self, x: Tensor) -> Tensor:
        return torch.reciprocal(x)

    def _turned(self, box: Box) -> tuple[Tensor, Box]:
        left = box.upper < 0
        return left, Box(
            torch.where(left, -box.upper, box.lower), torch.where(left, -box.lower, box.upper)
        )

    def image(self, box: Box) -> Box:
        left, turned = self._turned(box)
        low, high = self.right.image(turned)
        return Box(torch.where(left, -high, low), torch.where(left, -low, high))

    def terms(self, box: Box) -> Tensor:
        return largest_entries(self.image(box))

    def family(self, box: Box) -> tuple[list[Lines], Tensor]:
        return _family(self.lines, box)

    def lines(self, box: Box, share: float = 0.5) -> Lines:
        left, turned = self._turned(box)
        below, under, above, over = self.right.lines(turned, share)
        return Lines(
            torch.where(left, above, below),
            torch.where(left, -over, under),
            torch.where(left, below, above),
            torch.where(left, -under, over),
        )


class Smooth:
    r"""A function with $\lvert\varrho''\rvert\le M$ between kinks, from samples of the interval.

    Between two points at distance $h$ the function differs from its chord by at most $Mh^2/8$.

    Args:
        function: the function.
        curvature: $M$, a number or a function of the interval.
        lowest: where its only minimum is, if it falls and then rises.
        increasing: whether it never falls.
        kinks: places where its derivative jumps, numbers or tensors that broadcast.
        jumps: places where it jumps itself, with its values to the left and to the right.
    """

    def __init__(
        self,
        function: Callable[[Tensor], Tensor],
        curvature: float | Callable[[Box], Tensor],
        *,
        lowest: float | None = None,
        increasing: bool = False,
        kinks: Sequence[float | Tensor] = (),
        jumps: Sequence[tuple[Any, Any, Any]] = (),
    ) -> None:
        self.function, self.curvature = function, curvature
        self.lowest, self.increasing = lowest, increasing
        self.kinks, self.jumps = tuple(kinks), tuple(jumps)

    def __call__(self, x: Tensor) -> Tensor:
        return self.function(x)

    def image(self, box: Box) -> Box:
        a, b = self(box.lower), self(box.upper)
        if self.increasing:
            return Box(a, b)
        if self.lowest is not None:
            # its place is known to some digits, and the function is flat there
            at = torch.clamp(torch.full_like(a, self.lowest), box.lower, box.upper)
            return Box(self(at) - 1e-12, torch.maximum(a, b))
        _, values, slack = self._sampled(box)
        return Box(values.amin(-1) - slack, values.amax(-1) + slack)

    exact = False

    def terms(self, box: Box) -> Tensor:
        # such as x times one plus an error function, in which all digits may be lost
        return largest_entries(box)

    def family(self, box: Box) -> tuple[list[Lines], Tensor]:
        return self._lines(box, _SHARES), torch.full_like(box.lower, len(_SHARES) // 2)

    def lines(self, box: Box) -> Lines:
        if self.kinks or self.jumps:
            return self._lines(box, (0.5,))[0]
        points, values, slack = self._sampled(box)
        half = _SAMPLES // 2  # the gap before the midpoint
        run = points[..., None, half:] - points[..., :half, None]
        chords = (values[..., None, half:] - values[..., :half, None]) / torch.where(
            run > 0, run, 1.0
        )
        below, above = chords.amin(-1).amax(-1), chords.amax(-1).amin(-1)
        rest = (values - below[..., None] * points).amin(-1)
        over = (values - above[..., None] * points).amax(-1)
        return Lines(below, rest - slack, above, over + slack)

    def _lines(self, box: Box, shares: Sequence[float]) -> list[Lines]:
        points, values, slack = self._sampled(box)
        below, above = minorant_slopes(points, values), -minorant_slopes(points, -values)
        step = (box.upper - box.lower) / (_SAMPLES - 1)
        found = []
        for share in shares:
            # beside a sample, so that rounding does not say on which side of it
            middle = _place(box, share) + (0.25 if share < 0.5 else -0.25) * step
            gap = (points <= middle[..., None]).sum(-1, keepdim=True) - 1
            gap = gap.clamp(0, below.shape[-1] - 1)
            low, high = (slopes.gather(-1, gap) for slopes in (below, above))
            rest = (values - low * points).amin(-1)
            over = (values - high * points).amax(-1)
            found.append(Lines(low[..., 0], rest - slack, high[..., 0], over + slack))
        return found

    def _sampled(self, box: Box) -> tuple[Tensor, Tensor, Tensor]:
        share = torch.linspace(0, 1, _SAMPLES, dtype=box.lower.dtype, device=box.lower.device)
        width = box.upper - box.lower
        points = box.lower[..., None] + width[..., None] * share
        points[..., -1] = box.upper  # and not what rounding leaves of it
        apart = width / (_SAMPLES - 1) + 4 * torch.finfo(width.dtype).eps * largest_entries(box)
        bend = self.curvature(box) if callable(self.curvature) else self.curvature
        values = self.function(points)
        if self.kinks or self.jumps:
            points, values = self._with_sides(box, points, values)
        return points, values, bend * apart.square() / 8

    def _with_sides(self, box: Box, points: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Samples with the places where it is not smooth, in order; those outside are ends."""
        more, made = [points], [values]
        sides = [(p, None) for p in self.kinks] + [(p, v) for p, *both in self.jumps for v in both]
        for place, value in sides:
            given = torch.as_tensor(place, dtype=points.dtype, device=points.device)
            at = torch.minimum(torch.maximum(given, box.lower), box.upper)
            own = self.function(at)
            if value is not None:
                side = torch.as_tensor(value, dtype=points.dtype, device=points.device)
                own = torch.where((box.lower <= given) & (given <= box.upper), side, own)
            more.append(at[..., None])
            made.append(own[..., None])
        ordered, order = torch.cat(more, -1).sort(dim=-1, stable=True)
        return ordered, torch.cat(made, -1).gather(-1, order)


def minorant_slopes(points: Tensor, values: Tensor) -> Tensor:
    r"""Slopes of the largest convex function below sampled values, between neighbors.

    Between the samples $j$ and $j+1$ it is $\max_{i\le j}\min_{k>j}\frac{v_k-v_i}{x_k-x_i}$.

    >>> x = torch.tensor([0.0, 1.0, 2.0, 3.0])
    >>> minorant_slopes(x, torch.tensor([0.0, 5.0, 2.0, 9.0]))
    tensor([1., 1., 7.])
    """
    m = points.shape[-1]
    later = torch.ones(m, m, dtype=torch.bool, device=points.device).triu(1)
    found = []
    both = (torch.split(given.reshape(-1, m), _TOGETHER) for given in (points, values))
    for x, v in zip(*both, strict=True):
        run = x[:, None, :] - x[:, :, None]
        chords = (v[:, None, :] - v[:, :, None]) / torch.where(run > 0, run, 1.0)
        chords = torch.where(run > 0, chords, 0.0)
        least = torch.where(later, chords, math.inf).flip(-1).cummin(-1)[0].flip(-1)[..., 1:]
        earlier = later.mT.logical_not()[:, :-1]
        found.append(torch.where(earlier, least, -math.inf).amax(-2))
    return torch.cat(found).reshape(*points.shape[:-1], m - 1)
