r"""Balls $\{\|\delta\|_p\le\varepsilon\}$, $p\in\{1,2,\infty\}$, and what of them lies in a box.

A perturbation $\delta$ of $x$ may have to stay in a box as well, $\ell\le x+\delta\le u$, as the
pixels of an image do. Everything here is exact for the ball and the box *together*: the projection
onto both, the farthest point along a gradient, and the nearest point of a hyperplane. Each is one
sort of the coordinates, or a few passes over them.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from torchtheory.core.checks import one_of
from torchtheory.core.random import gaussian, rademacher

Norm = Literal["inf", "2", "1"]

#: Every norm, with the exponent of its dual: the size of a gradient is measured in that one.
DUAL_EXPONENTS: dict[Norm, float] = {"inf": 1.0, "2": 2.0, "1": math.inf}

#: Entries that a step in L1 looks at before it sorts all of them.
_FIRST_PLACES = 32


def as_norm(norm: str | float) -> Norm:
    """The norm that a name or a number stands for.

    >>> as_norm("inf"), as_norm(2), as_norm(math.inf)
    ('inf', '2', 'inf')
    """
    if isinstance(norm, int | float) and not isinstance(norm, bool):
        norm = f"{norm:g}"
    one_of(norm, "norm", DUAL_EXPONENTS)
    return norm  # type: ignore[return-value]  # one_of has looked


def lengths(delta: Tensor, norm: Norm) -> Tensor:
    """Norms `[n]` of perturbations `[n, ...]`.

    >>> lengths(torch.tensor([[3.0, -4.0]]), "1")
    tensor([7.])
    """
    size: Tensor = torch.linalg.vector_norm(delta.flatten(1), float(norm), dim=1)
    return size


def dual_lengths(gradient: Tensor, norm: Norm) -> Tensor:
    r"""$\max_{\|\delta\|\le1}\langle g,\delta\rangle$, `[n]`: the dual norms of gradients.

    >>> dual_lengths(torch.tensor([[3.0, -4.0]]), "1")
    tensor([4.])
    """
    size: Tensor = torch.linalg.vector_norm(gradient.flatten(1), DUAL_EXPONENTS[norm], dim=1)
    return size


def project(
    delta: Tensor, radius: float, norm: Norm, low: Tensor | None = None, high: Tensor | None = None
) -> Tensor:
    r"""The point of $\{\|\delta\|\le\varepsilon\}\cap\{\ell\le\delta\le u\}$ nearest in $L^2$.

    With $c_i$ the room towards the sign of $\delta_i$, the magnitudes are $\min(s|\delta_i|,c_i)$
    for $L^2$ and $\min(\max(|\delta_i|-\lambda,0),c_i)$ for $L^1$, where $s$ or $\lambda$ makes the
    norm $\varepsilon$. They are found exactly among the sorted places where a coordinate changes
    its regime.

    Args:
        delta: `[n, ...]`.
        radius: $\varepsilon$.
        norm: of the ball.
        low, high: $\ell\le0\le u$, both or none, of the shape of `delta`.

    >>> project(torch.tensor([[3.0, 4.0]]), 1.0, "2")
    tensor([[0.6000, 0.8000]])
    >>> project(torch.tensor([[3.0, 1.0]]), 1.0, "1")                 # onto a simplex
    tensor([[1., 0.]])
    >>> top = torch.tensor([[0.6, 9.0]])
    >>> project(torch.tensor([[3.0, 3.0]]), 1.0, "2", -top, top)      # 0.6² + 0.8² = 1
    tensor([[0.6000, 0.8000]])
    """
    if norm == "inf":
        inside = delta.clamp(-radius, radius)
        return inside if low is None else inside.clamp(low, high)
    if norm == "2":
        size = _sizes(delta).clamp_min_(torch.finfo(delta.dtype).tiny)
        factor = size.reciprocal_().mul_(radius).clamp_max_(1.0)
        if low is None or high is None:
            return delta * factor
        given = delta.double() if delta.dtype in (torch.float16, torch.bfloat16) else delta
        return _scaled(given, low, high, radius, factor).to(delta.dtype)
    flat = delta.flatten(1).double()
    size = flat.abs()
    room = None if low is None or high is None else _room(flat, low, high)
    if room is None or bool((size <= room).all()):  # no entry comes to an end of the box
        shrunk = (size - _simplex_threshold(size, radius)).clamp_min_(0.0)
    else:
        inside = torch.minimum(size, room)
        threshold = _threshold(size, room, radius)[:, None]
        shrunk = torch.minimum((size - threshold).clamp_min_(0.0), room)
        shrunk = torch.where(inside.sum(1, keepdim=True) > radius, shrunk, inside)
    return shrunk.copysign_(flat).to(delta.dtype).reshape(delta.shape)


def steepest_step(
    gradient: Tensor,
    length: float | Tensor,
    norm: Norm,
    low: Tensor | None = None,
    high: Tensor | None = None,
) -> Tensor:
    r"""$\arg\max\langle g,\delta\rangle$ over $\|\delta\|\le$ `length`; in $L^1$ also in the box.

    $\eta\,\mathrm{sign}(g)$ for $L^\infty$ and $\eta\,g/\|g\|$ for $L^2$. For $L^1$ all of the
    length goes to the largest $|g_i|$, or, in a box, to the largest ones in turn as far as there
    is room. A gradient of 0 gives no step.

    Args:
        gradient: `[n, ...]`.
        length: $\eta$, one number or one per sample `[n]`.
        norm: in which the step has that length.
        low, high: $\ell\le0\le u$, both or none.

    >>> g = torch.tensor([[3.0, -4.0, 0.0]])
    >>> steepest_step(g, 0.5, "inf"), steepest_step(g, 0.5, "1")
    (tensor([[ 0.5000, -0.5000,  0.0000]]), tensor([[ 0.0000, -0.5000,  0.0000]]))
    """
    longest = _column(length, gradient) if isinstance(length, Tensor) else length
    if norm == "inf":
        return gradient.sign() * longest
    if norm == "2":
        factor = _sizes(gradient).reciprocal_().nan_to_num_(0.0, 0.0, 0.0)  # 0 for a gradient of 0
        return gradient * factor.mul_(longest)
    flat = gradient.flatten(1)
    limit = length[:, None] if isinstance(length, Tensor) else length
    if low is None or high is None:
        order = flat.abs().argmax(1, keepdim=True)
        taken = flat.gather(1, order).sign_().mul_(limit)
    else:
        order, taken = _in_turn(flat.abs(), _room(flat, low, high), limit)
        taken = flat.gather(1, order).sign_().mul_(taken)
    return torch.zeros_like(flat).scatter_(1, order, taken).reshape(gradient.shape)


def nearest_on_plane(
    normal: Tensor,
    height: Tensor,
    norm: Norm,
    low: Tensor | None = None,
    high: Tensor | None = None,
) -> Tensor:
    r"""The shortest $\delta$ in the box with $\langle w,\delta\rangle=h$; as far as it reaches.

    Without a box its length is $|h|/\|w\|_q$ with the dual exponent $q$.

    Args:
        normal: $w$ `[n, ...]`; 0 gives no step.
        height: $h$ `[n]`.
        norm: that is made small.
        low, high: $\ell\le0\le u$, both or none.

    >>> w, h = torch.tensor([[3.0, -4.0]]), torch.tensor([14.0])
    >>> nearest_on_plane(w, h, "inf"), nearest_on_plane(w, h, "1")
    (tensor([[ 2., -2.]]), tensor([[ 0.0000, -3.5000]]))
    """
    if normal.dtype in (torch.float16, torch.bfloat16):
        given = (normal.float(), height.float(), norm, low, high)
        return nearest_on_plane(*given).to(normal.dtype)
    flat = normal.flatten(1) * height.sign()[:, None]
    size, needed = flat.abs(), height.abs()
    if low is None and norm != "1":
        total = size.sum(1) if norm == "inf" else size.square().sum(1)
        t = torch.where(total > 0, needed / total, 0.0)[:, None]
        magnitudes = t.expand_as(size) if norm == "inf" else t * size
    else:
        room = _room(flat, low, high)
        if norm == "1":
            # coordinate by coordinate, the most effective first
            order = size.argsort(1, descending=True)
            each, most = size.gather(1, order), room.gather(1, order)
            gain = torch.where(each > 0, each * most, 0.0)
            wanted = (needed[:, None] - _before(gain)).clamp_min(0.0)
            taken = torch.where(each > 0, torch.minimum(wanted / each, most), 0.0)
            magnitudes = torch.zeros_like(size).scatter(1, order, taken)
        else:
            rate = torch.ones_like(size) if norm == "inf" else size
            t = _level(size, rate, room, needed)[:, None]
            magnitudes = torch.minimum(torch.where(rate > 0, t * rate, 0.0), room)
    moved = torch.where(size > 0, magnitudes * flat.sign(), 0.0)
    return moved.reshape(normal.shape)


def random_perturbation(
    like: Tensor, radius: float, norm: Norm, generator: torch.Generator
) -> Tensor:
    r"""Perturbations of the shape of `like` that are uniform in the ball.

    $L^2$: a direction times $\varepsilon U^{1/d}$. $L^1$: independent exponentials over the sum of
    one more of them, with random signs.

    >>> g = torch.Generator().manual_seed(0)
    >>> bool(lengths(random_perturbation(torch.zeros(50, 3), 0.1, "1", g), "1").max() <= 0.1)
    True
    """
    n, d = like.flatten(1).shape
    place = generator.device

    def uniform(count: int) -> Tensor:
        return torch.rand(n, count, dtype=like.dtype, generator=generator, device=place)

    found: Tensor
    if norm == "inf":
        found = (2 * uniform(d) - 1) * radius
    elif norm == "2":
        normal = gaussian(n, d, generator=generator, dtype=like.dtype, device=place)
        found = normal / normal.norm(dim=1, keepdim=True) * (radius * uniform(1) ** (1 / d))
    else:
        exponential = -torch.log1p(-uniform(d + 1))
        signs = rademacher(n, d, generator=generator, dtype=like.dtype, device=place)
        found = radius * signs * exponential[:, :d] / exponential.sum(1, keepdim=True)
    return found.to(like.device).reshape(like.shape)


# ------------------------------------------------------------------- where a coordinate gives out


def _column(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(-1, *[1] * (like.ndim - 1))


def _sizes(values: Tensor) -> Tensor:
    """Lengths in $L^2$ `[n, 1, ...]`, in memory of their own."""
    axes = tuple(range(1, values.ndim))
    size: Tensor = torch.linalg.vector_norm(values, 2.0, dim=axes, keepdim=True)
    return size


def _in_turn(size: Tensor, room: Tensor, limit: float | Tensor) -> tuple[Tensor, Tensor]:
    """Places `[n, k]` of the largest entries, and what each takes of the limit in its turn.

    Few are enough where there is room, and all are sorted only where they are not.
    """
    most = size.shape[1]
    for k in (min(most, _FIRST_PLACES), most):
        order = size.topk(k, dim=1).indices
        each = room.gather(1, order)
        used = each.cumsum(1)
        if k == most or bool((used[:, -1:] >= limit).all()):
            break
    return order, torch.minimum(each, (limit - used.sub_(each)).clamp_min_(0.0))


def _before(values: Tensor) -> Tensor:
    """Sums of the entries before each one; entries may be infinite."""
    return torch.cat([torch.zeros_like(values[:, :1]), values[:, :-1].cumsum(1)], 1)


def _room(flat: Tensor, low: Tensor | None, high: Tensor | None) -> Tensor:
    """How far each coordinate may go in the direction of its sign."""
    if low is None or high is None:
        return torch.full_like(flat, math.inf)
    towards = torch.where(flat >= 0, high.flatten(1).to(flat), -low.flatten(1).to(flat))
    return towards.clamp_min(0.0)


def _scaled(z: Tensor, low: Tensor, high: Tensor, radius: float, start: Tensor) -> Tensor:
    r"""$\mathrm{clip}(sz,\ell,u)$ of length $\varepsilon$, or with $s=1$ where that is shorter.

    Entries that $s$ takes to their ends stay there while $s$ grows to make up for them; it ends
    when no further one does.

    Args:
        start: $s$ for entries without ends, which is too small, `[n, 1, ...]`.
    """
    tiny = torch.finfo(z.dtype).tiny
    s, before = start, z.numel()
    while True:
        moved = z * s
        found = moved.clamp(low, high)
        free = found == moved
        count = int(torch.count_nonzero(free))
        if count == before:
            return found
        before = count
        # what is missing is for the free entries to make up
        missing = (radius**2 - _sizes(found).square_()).clamp_min_(0.0)
        left = _sizes(z * free).square_().clamp_min_(tiny)
        s = missing.div_(left).addcmul_(s, s).sqrt_().clamp_max_(1.0)


def _simplex_threshold(size: Tensor, radius: float) -> Tensor:
    r"""$\lambda$ with $\sum_i\max(|z_i|-\lambda,0)=\varepsilon$, `[n, 1]`; 0 inside of the ball.

    With the entries in descending order, the largest of $(s_1+\dots+s_k-\varepsilon)/k$.
    """
    ordered = size.sort(1, descending=True).values.cumsum(1)
    counts = torch.arange(1, size.shape[1] + 1, dtype=size.dtype, device=size.device)
    return ordered.sub_(radius).div_(counts).amax(1, keepdim=True).clamp_min_(0.0)


def _threshold(size: Tensor, room: Tensor, radius: float) -> Tensor:
    r"""$\lambda\ge0$ with $\sum_i\min(\max(|z_i|-\lambda,0),c_i)=\varepsilon$, `[n]`."""
    starts, ends = size, (size - room).clamp_min(0.0)  # λ below which one grows, and stays
    place, order = torch.cat([starts, ends], 1).sort(1, descending=True)
    change = torch.cat([torch.ones_like(size), -torch.ones_like(size)], 1).gather(1, order)
    growing = change.cumsum(1)
    total = torch.zeros_like(place)
    total[:, 1:] = (growing[:, :-1] * (place[:, :-1] - place[:, 1:])).cumsum(1)
    enough = total >= radius
    first = torch.where(enough.any(1), enough.int().argmax(1), place.shape[1] - 1)[:, None]
    rate = growing.gather(1, (first - 1).clamp_min(0)).clamp_min(1.0)
    return (place.gather(1, first) + (total.gather(1, first) - radius) / rate).squeeze(1)


def _level(size: Tensor, rate: Tensor, room: Tensor, needed: Tensor) -> Tensor:
    r"""$t$ with $\sum_i|w_i|\min(t r_i,c_i)=h$, `[n]`; infinite where the box does not reach.

    The sum is concave in $t$, so Newton's method from 0 goes up and ends exactly, when no further
    coordinate has come to its end.
    """
    speed, most = size * rate, torch.where(size > 0, size * room, 0.0)
    t = torch.zeros_like(needed)
    bounded = bool(most.isfinite().all())
    for _ in range(size.shape[1] + 1):
        free = t[:, None] * rate < room
        left = (speed * free).sum(1)
        ended = (most * ~free if bounded else torch.where(free, 0.0, most)).sum(1)
        reach = (needed - ended).clamp_min(0.0) / left
        higher = torch.where(left > 0, torch.maximum(reach, t), math.inf)
        if bool((higher <= t).all()):
            break
        t = higher
    return t
