r"""Taylor decomposition of a score at a reference point, and the search for points where it is 0.

$$
f(x)=f(\tilde x)+\sum_i\underbrace{(x_i-\tilde x_i)\,\partial_if(\tilde x)}_{R_i}+\varepsilon,
\qquad\varepsilon=O(\|x-\tilde x\|^2)
$$

for a score that is twice differentiable. At a root, $f(\tilde x)=0$, the relevance accounts for all
of the score but $\varepsilon$. Source: Mathematical Aspects of Deep Learning, Eqs. (5.5)–(5.7).
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from torchtheory.core.checks import described, one_of, positive_number
from torchtheory.core.errors import InvalidInput
from torchtheory.core.random import as_generator, gaussian
from torchtheory.explanation.explanation import Explanation, Relevance, explained
from torchtheory.explanation.removal import Baseline, references
from torchtheory.explanation.score import Inputs, Score, Target, open_score

RootMethod = Literal["gradient", "segment", "nearest"]
ROOT_METHODS: tuple[RootMethod, ...] = ("gradient", "segment", "nearest")

#: `zero`, `root` (along the gradient), the input times a number, or inputs.
Reference = Literal["zero", "root"] | tuple[Literal["scale"], float] | Tensor | tuple[Tensor, ...]

#: Places on a ray where a change of sign is looked for.
_PLACES = 64
#: How far along the gradient: two to this power, in lengths of Newton's step.
_FARTHEST = 8
#: How many places there are where a root is known at the end of the ray.
_NEARBY = 16
#: Turns of the direction towards the nearest root.
_TURNS = 40
#: Rays in random directions, of which the one with the nearest root is turned as well.
_RANDOM_RAYS = 16
#: How often a root that is no local minimum is left for a nearer one.
_ESCAPES = 4
#: Products with the Hessian to find out how the surface of roots bends.
_PRODUCTS = 20
#: By how much the direction may deviate from upright, and the curvature from the allowed one.
_UPRIGHT = 1e-2


@dataclass(frozen=True, slots=True)
class Roots:
    """Points where a score is 0, near some inputs.

    Attributes:
        points: in the shape of the inputs; of words, None, since no words belong to such points.
        entries: `[n, d]`, the same as points of the score, words as embeddings.
        found: `[n]`, whether the score there is 0 up to rounding; where it is not, no change of
            sign was met and the point is the one of all that were tried where it is nearest to 0.
        scores: `[n]`, of these points.
        distances: `[n]`, of these points from the inputs, Euclidean.
        method: how they were looked for.
        locally_nearest: `[n]`, of `nearest`, whether the root passes the test of a local minimum
            of the distance (see `find_root`); None of other methods.
    """

    points: Relevance | None
    entries: Tensor
    found: Tensor
    scores: Tensor
    distances: Tensor
    method: RootMethod
    locally_nearest: Tensor | None = None

    def __repr__(self) -> str:
        return (
            f"Roots(found for {int(self.found.sum())} of {len(self.found)} inputs by "
            f"{self.method!r}, median distance {float(self.distances.median()):.3g})"
        )


def taylor(
    model: nn.Module,
    x: Inputs,
    target: Target = None,
    reference: Reference = "zero",
    *,
    output: int | str | None = None,
) -> Explanation:
    r"""$R_i=(x_i-\tilde x_i)\,\partial_if(\tilde x)$ at a reference point $\tilde x$.

    `reference` of the explanation is the zero-order term $f(\tilde x)$, and its `gap` is the
    residual $\varepsilon$, which holds all that is not linear. For $f(x,y)=xy$ and $\tilde x=0$
    that is everything. For a network of ReLUs without biases and $\tilde x=\delta x$ it is 0, and
    the zero-order term $\delta f(x)$ vanishes with $\delta$.

    Args:
        model, x, target, output: see `open_score`.
        reference: `zero`; `root`, the root of `find_root` along the gradient (where there is none,
            the zero-order term is not 0); `("scale", δ)` for the point δx; or inputs of one sample
            or of each.

    Time: two passes forward and one backward, and the search for the root.

    >>> net = nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False))
    >>> found = taylor(net, torch.randn(5, 4), reference=("scale", 0.1))
    >>> torch.allclose(found.reference, 0.1 * found.score, atol=1e-6)
    True
    >>> bool(found.gap.abs().max() < 1e-5)
    True
    """
    started = time.perf_counter()
    with open_score(model, x, target, output=output) as score:
        start = _reference_points(score, reference)
        values, gradient = score.gradients_in_chunks(start)
        relevance = (score.points - start) * gradient
        return explained(
            score, relevance, "Taylor decomposition", started=started, reference=values
        )


def find_root(
    model: nn.Module,
    x: Inputs,
    target: Target = None,
    *,
    method: RootMethod = "gradient",
    baseline: Baseline = 0.0,
    output: int | str | None = None,
) -> Roots:
    r"""Points near the inputs where the score is 0.

    Along a ray the first change of sign is looked for at 64 places, and then closed in on by
    bisection and secants, for all samples together; it always ends. A pair of roots between two
    neighboring places is overlooked.

    Args:
        model, x, target, output: see `open_score`.
        method: `gradient` goes from the input along the gradient, down for a positive score and up
            for a negative one, to at most 256 times Newton's step; `segment` goes straight to the
            baseline; `nearest` begins with the roots of both and the nearest one on 16 rays in
            random directions, turns each ray until it stands upright on the roots, by descent on
            its length, and takes the shortest.
        baseline: where the segment ends: a number, or inputs of one sample or of each.

    The distance of `nearest` is an upper bound of the least. Whether it is a local minimum is
    tested: at a root $\tilde x=x+tu$ with $\|u\|=1$, gradient $g$ and Hessian $H$ the distance of
    roots beside it is $t+\frac1{2t}\big(\|s\|^2-t\,s^\top Hs/(u\cdot g)\big)+\dots$ for $s$
    across $u$, so that $g$ must be parallel to $u$ and no eigenvalue of $tH/(u\cdot g)$ across $u$
    above 1. From a root with a larger one the search goes on in both directions of its
    eigenvector. `locally_nearest` says which roots pass in the end, both conditions up to 1/100;
    where a network of ReLUs has a kink there may be none that does.

    Time: 64 passes forward and about 10 more to close in; `nearest` takes up to 40 turns from each
    of three roots, of up to 30 passes forward and a gradient each, then 40 gradients for the
    Hessian, and as much again for each root that is left. Memory: that of a chunk.

    >>> net = nn.Linear(2, 1).double()
    >>> x = torch.randn(4, 2).double()
    >>> roots = find_root(net, x)
    >>> bool(roots.found.all()), bool(net(roots.points).abs().max() < 1e-9)
    (True, True)
    """
    one_of(method, "method", ROOT_METHODS)
    with open_score(model, x, target, output=output) as score:
        if method == "nearest":
            entries, values, locally = _nearest(score, baseline)
        else:
            (entries, values), locally = _on_one_ray(score, method, baseline), None
        real = all(t.is_floating_point() for t in score.x)
        return Roots(
            score.shaped(entries) if real else None,
            entries,
            _is_root(score, values),
            values,
            (entries - score.points).norm(dim=1),
            method,
            locally,
        )


def _reference_points(score: Score, reference: Reference) -> Tensor:
    """The points `[n, d]` that a word, a number or inputs stand for."""
    if isinstance(reference, str):
        if one_of(reference, "reference", ("zero", "root")) == "zero":
            return torch.zeros_like(score.points)
        return _along_gradient(score)[0]
    if isinstance(reference, tuple) and len(reference) == 2 and reference[0] == "scale":
        return positive_number(reference[1], "the scale of the reference") * score.points
    if not isinstance(reference, Tensor | tuple | list):
        raise InvalidInput(
            "reference is 'zero', 'root', ('scale', 0.1), or inputs, not " + described(reference)
        )
    return references(score, reference, None)[0].expand_as(score.points)  # type: ignore[arg-type]


def _on_one_ray(score: Score, method: RootMethod, baseline: Baseline) -> tuple[Tensor, Tensor]:
    """Points `[n, d]` and their scores, of a method that looks in one direction."""
    return _to_baseline(score, baseline) if method == "segment" else _along_gradient(score)


def _along_gradient(score: Score) -> tuple[Tensor, Tensor]:
    values, gradient = score.gradients_in_chunks(score.points)
    square = gradient.square().sum(1, keepdim=True)
    # Newton's step, to where a linear score would be 0
    step = -values[:, None] * gradient / torch.where(square > 0, square, 1.0)
    places = torch.logspace(-4, _FARTHEST, _PLACES, base=2).to(score.points)
    return _on_ray(score, step, places)


def _to_baseline(score: Score, baseline: Baseline) -> tuple[Tensor, Tensor]:
    end = references(score, baseline, None)[0]
    places = torch.arange(1, _PLACES + 1).to(score.points) / _PLACES
    return _on_ray(score, end - score.points, places)


def _nearest(score: Score, baseline: Baseline) -> tuple[Tensor, Tensor, Tensor]:
    """Points, their scores, and whether they pass the test of a local minimum."""
    source, near = as_generator(0), _nearby(score)
    starts = [_along_gradient(score), _to_baseline(score, baseline)]
    starts.append(_in_random_directions(score, _nearer(score, *starts), source))
    best, *others = [_turned(score, start) for start in starts]
    for other in others:
        best = _nearer(score, best, other)
    passes, sideways = _local_minima(score, best, source)
    for _ in range(_ESCAPES):
        rows = (_is_root(score, best[1]) & ~passes & sideways.any(1)).nonzero()[:, 0]
        if not len(rows):
            break
        # around the eigenvector, a little first: the surface may end not far from here
        away = best[0][rows] - score.points[rows]
        length = away.norm(dim=1, keepdim=True)
        for angle in (0.02, 0.1, 0.3, 0.8, -0.02, -0.1, -0.3, -0.8):
            direction = _unit(away + math.tan(angle) * length * sideways[rows])
            best = _with_rows(score, best, _on_ray(score, length * direction, near, rows), rows)
        best = _turned(score, best)
        passes, sideways = _local_minima(score, best, source)
    return *best, passes


def _in_random_directions(
    score: Score, best: tuple[Tensor, Tensor], source: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The nearest root on rays in random directions, as long as the best so far is away.

    Rays are 256 times as long as the input where there is no root yet.
    """
    sizes = score.points.norm(dim=1)
    far = 2**_FARTHEST * torch.where(sizes > 0, sizes, 1.0)
    length = torch.where(_is_root(score, best[1]), (best[0] - score.points).norm(dim=1), far)
    rows = (length > 0).nonzero()[:, 0]
    places = torch.logspace(-_FARTHEST, 0, _PLACES // 2, base=2).to(score.points)
    for _ in range(_RANDOM_RAYS if len(rows) else 0):
        u = _unit(_gaussian_like(score.points, source))
        tried = _on_ray(score, (length[:, None] * u)[rows], places, rows)
        best = _with_rows(score, best, tried, rows)
    return best


def _nearby(score: Score) -> Tensor:
    """Places on a ray that is as long as the best root is away."""
    return torch.arange(1, _NEARBY + 1).to(score.points) / _NEARBY


def _gaussian_like(points: Tensor, source: torch.Generator) -> Tensor:
    return gaussian(*points.shape, generator=source, dtype=torch.float64).to(points)


def _unit(vectors: Tensor) -> Tensor:
    """Vectors `[n, d]` of length 1; 0 stays 0."""
    sizes = vectors.norm(dim=1, keepdim=True)
    return vectors / torch.where(sizes > 0, sizes, 1.0)


def _with_rows(
    score: Score, best: tuple[Tensor, Tensor], tried: tuple[Tensor, Tensor], rows: Tensor
) -> tuple[Tensor, Tensor]:
    """The nearer of two roots, of samples for which another one was tried."""
    points, values = (t.clone() for t in best)
    points[rows], values[rows] = tried
    return _nearer(score, best, (points, values))


def _local_minima(
    score: Score, best: tuple[Tensor, Tensor], source: torch.Generator
) -> tuple[Tensor, Tensor]:
    r"""Which roots pass the test of a local minimum; for others, where nearer ones lie.

    Returns:
        `[n]`, and unit vectors `[n, d]` across the rays, 0 for a root that bends nowhere too much.
    """
    points, values = best
    away = points - score.points
    length = away.norm(dim=1, keepdim=True)
    u = _unit(away)
    gradient = score.gradients_in_chunks(points)[1]
    along = (gradient * u).sum(1, keepdim=True)
    slope = u - gradient / torch.where(along == 0, 1.0, along)
    step = torch.finfo(points.dtype).eps ** (1 / 3) * length

    def bent(v: Tensor) -> Tensor:
        r"""$tHv/(u\cdot g)$ across u, by central differences."""
        difference = sum(
            sign * score.gradients_in_chunks(points + sign * step * v)[1] for sign in (1, -1)
        )
        product = length * difference / torch.where(along == 0, 1.0, 2 * step * along)
        across: Tensor = product - (product * u).sum(1, keepdim=True) * u
        return across

    v = _gaussian_like(points, source)
    shift = torch.zeros_like(length)
    for _ in range(_PRODUCTS):
        v = _unit(v - (v * u).sum(1, keepdim=True) * u)
        product = bent(v)
        eigenvalue = (v * product).sum(1)
        # shifted, so that the largest eigenvalue is also the one of largest size
        shift = torch.maximum(shift, product.norm(dim=1, keepdim=True))
        v = product + shift * v
    v = _unit(v)
    root = _is_root(score, values)
    upright = (slope.norm(dim=1) <= _UPRIGHT) | (length[:, 0] == 0)
    bends = eigenvalue > 1 + _UPRIGHT
    return root & upright & ~bends, torch.where(bends[:, None], v, 0.0)


def _turned(score: Score, best: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    r"""Turn rays as long as that brings their roots nearer.

    The length $t$ of the ray along the unit vector $u$ to its root $\tilde x$ has, across $u$, the
    slope $\nabla\log t=-(\nabla f-(u\cdot\nabla f)u)/(u\cdot\nabla f)$ with $\nabla f$ at
    $\tilde x$. It is descended with the step sizes of Barzilai and Borwein, halved where the root
    comes no nearer.
    """
    points, values = (t.clone() for t in best)
    found = _is_root(score, values)
    places = _nearby(score)
    size = torch.ones_like(score.values)
    moved = torch.zeros_like(found)  # since the slope was taken
    before, slope_before = torch.zeros_like(points), torch.zeros_like(points)
    for _ in range(_TURNS):
        away = points - score.points
        distance = away.norm(dim=1)
        rows = (found & (distance > 0) & (size > 2**-20)).nonzero()[:, 0]
        if not len(rows):
            break
        u = away[rows] / distance[rows, None]
        gradient = score.gradients_in_chunks(points[rows], rows)[1]
        along = (gradient * u).sum(1, keepdim=True)
        slope = u - gradient / torch.where(along == 0, 1.0, along)
        turn, bend = u - before[rows], slope - slope_before[rows]
        newton = turn.square().sum(1) / (turn * bend).sum(1).abs()
        fresh = moved[rows] & torch.isfinite(newton)
        size[rows] = torch.where(fresh, newton.clamp(2**-10, 2**10), size[rows])
        before[rows], slope_before[rows] = u, slope
        turned = u - size[rows, None] * slope
        turned = turned * (distance[rows] / turned.norm(dim=1))[:, None]
        tried, there = _on_ray(score, turned, places, rows)
        shorter = (tried - score.points[rows]).norm(dim=1) < (1 - 1e-12) * distance[rows]
        good = shorter & _is_root(score, there, rows)
        points[rows[good]], values[rows[good]] = tried[good], there[good]
        moved[rows] = good
        size[rows[~good]] /= 4
    return points, values


def _on_ray(
    score: Score, direction: Tensor, places: Tensor, rows: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The first root on rays from the samples, and its score; without one, the smallest score.

    Args:
        score: that is asked.
        direction: `[k, d]`.
        places: `[m]`, multiples of the direction where a change of sign is looked for.
        rows: the samples that are meant, `[k]`.
    """
    device = score.points.device
    rows = torch.arange(len(score), device=device) if rows is None else rows
    start, k, m = score.points[rows], len(rows), len(places)
    at_start = score.values[rows]
    scores = torch.empty(k * m, dtype=at_start.dtype, device=device)
    for begin in range(0, k * m, score.at_once):
        place = torch.arange(begin, min(begin + score.at_once, k * m), device=device)
        ray = place // m
        points = start[ray] + places[place % m, None] * direction[ray]
        with torch.no_grad():
            scores[place] = score(points, rows[ray])
    table = torch.cat([at_start[:, None], scores.reshape(k, m)], 1)
    t = torch.cat([places.new_zeros(1), places])
    defined = (~table.isnan()).cumprod(1).bool()  # a ray ends where the score does
    other = defined & (table.sign() != table[:, :1].sign())
    crossed = other.any(1)
    smallest = torch.where(defined, table.abs(), torch.inf).argmin(1)
    first = torch.where(crossed, other.long().argmax(1), smallest)
    before = (first - 1).clamp(min=0)
    low, high = t[torch.where(crossed, before, first)], t[first]
    here = torch.arange(k, device=device)
    low_score, high_score = table[here, torch.where(crossed, before, first)], table[here, first]
    tolerance = _tolerance(score, rows) * 1e-3
    digits = 2 - round(math.log2(torch.finfo(t.dtype).eps))
    halving = False
    for _ in range(2 * digits):  # every second time a halving, until the ends are neighbors
        best = torch.minimum(low_score.abs(), high_score.abs())
        going = (crossed & (best > tolerance) & (low < high)).nonzero()[:, 0]
        if not len(going):
            break
        a, b = low[going], high[going]
        fa, fb = low_score[going], high_score[going]
        middle = (a + b) / 2 if halving else a + (b - a) * (fa / (fa - fb)).clamp(0, 1)
        halving = not halving
        points = start[going] + middle[:, None] * direction[going]
        value = score.in_chunks(points, rows[going])
        same = value.sign() == fa.sign()
        low[going], high[going] = torch.where(same, middle, a), torch.where(same, b, middle)
        low_score[going] = torch.where(same, value, fa)
        high_score[going] = torch.where(same, fb, value)
    left = (low_score.abs() <= high_score.abs()) | high_score.isnan()
    at = torch.where(left, low, high)
    return start + at[:, None] * direction, torch.where(left, low_score, high_score)


def _nearer(
    score: Score, one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Of two candidates per sample the root that is nearer; of one that is none, the other."""
    lengths = []
    for points, values in (one, other):
        length = (points - score.points).norm(dim=1)
        lengths.append(torch.where(_is_root(score, values), length, torch.inf))
    first = lengths[0] <= lengths[1]
    return torch.where(first[:, None], one[0], other[0]), torch.where(first, one[1], other[1])


def _is_root(score: Score, values: Tensor, rows: Tensor | None = None) -> Tensor:
    return values.abs() <= _tolerance(score, rows)


def _tolerance(score: Score, rows: Tensor | None = None) -> Tensor:
    """Below what size, `[k]`, a score counts as 0: half of the digits below that of the input."""
    values = score.values if rows is None else score.values[rows]
    half: float = torch.finfo(values.dtype).eps ** 0.5
    return half * values.abs()
