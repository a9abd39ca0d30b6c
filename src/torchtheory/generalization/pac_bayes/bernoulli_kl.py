r"""The divergence of two biased coins, and its inverses.

$$
\mathrm{kl}(q\,\|\,p) = q\ln\frac qp + (1-q)\ln\frac{1-q}{1-p}
$$

It is convex in $p$, zero at $p=q$ and grows to either side, so that a bound
$\mathrm{kl}(q\,\|\,p)\le c$ on an unknown $p$ is an interval. Source: Foundations of
Deep Learning, Eq. (9.1) for two outcomes.
"""

from __future__ import annotations

import math
from typing import Any, overload

import torch
from torch import Tensor

from torchtheory.core.checks import closed_fraction
from torchtheory.core.errors import InvalidInput

MOST_STEPS = 200


@overload
def binary_kl(q: float, p: float) -> float: ...
@overload
def binary_kl(q: Tensor, p: Tensor | float) -> Tensor: ...
@overload
def binary_kl(q: Tensor | float, p: Tensor) -> Tensor: ...
def binary_kl(q: Tensor | float, p: Tensor | float) -> Tensor | float:
    r"""$\mathrm{kl}(q\,\|\,p)$ of Bernoulli laws, entry by entry; infinite unless dominated.

    Args:
        q, p: probabilities; tensors broadcast, two numbers give a number.

    >>> round(binary_kl(0.1, 0.5), 4), round(binary_kl(0.5, 0.1), 4)
    (0.3681, 0.5108)
    >>> binary_kl(0.0, 1.0), binary_kl(0.0, 0.0)
    (inf, 0.0)
    """
    first, second, plain = _pair(q, p)
    _refuse_outside(first, "q", 1.0)
    _refuse_outside(second, "p", 1.0)
    value = _kl(first, second)
    return float(value) if plain else value


@overload
def upper_kl_inverse(q: float, c: float) -> float: ...
@overload
def upper_kl_inverse(q: Tensor, c: Tensor | float) -> Tensor: ...
@overload
def upper_kl_inverse(q: Tensor | float, c: Tensor) -> Tensor: ...
def upper_kl_inverse(q: Tensor | float, c: Tensor | float) -> Tensor | float:
    r"""The largest $p\ge q$ with $\mathrm{kl}(q\,\|\,p)\le c$, entry by entry.

    Newton's method in $u=-\ln(1-p)$, where the divergence is convex: from a start to the
    right of the solution (Pinsker's $q+\sqrt{c/2}$ or
    $1-e^{-(c+h(q))/(1-q)}$, $h$ the entropy) every iterate stays to the right of it,
    so what comes out is never too small but for rounding. Differentiable in both arguments:

    $$
    \frac{\partial p}{\partial c}=\frac{p(1-p)}{p-q},\qquad
    \frac{\partial p}{\partial q}=\frac{p(1-p)}{p-q}\,\ln\frac{p\,(1-q)}{q\,(1-p)}.
    $$

    Args:
        q: probabilities.
        c: numbers at least 0; infinity gives 1.

    >>> round(upper_kl_inverse(0.0, 0.5), 6)        # 1 - exp(-c)
    0.393469
    >>> p = upper_kl_inverse(torch.tensor([0.1, 0.3]).double(), 0.05)
    >>> binary_kl(torch.tensor([0.1, 0.3]).double(), p)
    tensor([0.0500, 0.0500], dtype=torch.float64)
    """
    if not isinstance(q, Tensor) and not isinstance(c, Tensor):
        return upper_kl_slopes(q, c)[0]
    first, second, _ = _pair(q, c)
    _refuse_outside(first, "q", 1.0)
    _refuse_outside(second, "c", math.inf)
    value: Tensor = _UpperInverse.apply(first, second)  # type: ignore[no-untyped-call]
    return value


def upper_kl_slopes(q: float, c: float) -> tuple[float, float, float]:
    r"""The upper inverse of two numbers with its derivatives in $q$ and $c$.

    The same as `upper_kl_inverse` without tensors, some hundred times faster for one number.

    >>> p, by_q, by_c = upper_kl_slopes(0.1, 0.05)
    >>> round(p, 4), round(by_q, 3), round(by_c, 3)
    (0.2201, 1.332, 1.429)
    """
    closed_fraction(q, "q")
    if not c >= 0:
        raise InvalidInput(f"c must be at least 0, not {c}")
    if q == 1 or c == math.inf:
        return 1.0, 0.0, 0.0
    if c == 0:
        return float(q), 1.0, math.inf if q > 0 else 1.0
    if q == 0:
        p = -math.expm1(-c)
        return p, math.inf, 1 - p
    entropy = -(q * math.log(q) + (1 - q) * math.log1p(-q))
    u = (c + entropy) / (1 - q)
    pinsker = q + math.sqrt(c / 2)
    if pinsker < 1:
        u = min(u, -math.log1p(-pinsker))
    for _ in range(MOST_STEPS):
        p = -math.expm1(-u)
        if p <= q:
            break
        if u > 10:
            value = (1 - q) * u - q * math.log(p) - entropy
        else:
            near = p - q < q / 2
            ones = -q * math.log1p((p - q) / q) if near else q * (math.log(q) - math.log(p))
            value = ones - (1 - q) * math.log1p((q - p) / (1 - q))
        step = max(0.0, (value - c) * p / (p - q))
        u -= step
        if step <= 4e-16 * u:
            break
    p = max(-math.expm1(-u), q)
    if p == q:
        return p, 1.0, math.inf
    slope = p * math.exp(-u) / (p - q)
    return p, slope * (math.log(p) - math.log(q) + math.log1p(-q) + u), slope


@overload
def lower_kl_inverse(q: float, c: float) -> float: ...
@overload
def lower_kl_inverse(q: Tensor, c: Tensor | float) -> Tensor: ...
@overload
def lower_kl_inverse(q: Tensor | float, c: Tensor) -> Tensor: ...
def lower_kl_inverse(q: Tensor | float, c: Tensor | float) -> Tensor | float:
    r"""The least $p\le q$ with $\mathrm{kl}(q\,\|\,p)\le c$: the mirror image.

    >>> round(lower_kl_inverse(1.0, 0.5), 6)        # exp(-c)
    0.606531
    """
    return 1 - upper_kl_inverse(1 - q, c)


class _UpperInverse(torch.autograd.Function):
    """The upper inverse with its derivatives."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, c: Tensor) -> Tensor:
        # in double precision: a certificate must not lose its last digits to a float32 model
        p = _newton(q.double(), c.double()).to(q.dtype)
        ctx.save_for_backward(q, p)
        return p

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        q, p = (t.double() for t in ctx.saved_tensors)
        slope = p * (1 - p) / (p - q)
        ratio = torch.log(p * (1 - q) / (q * (1 - p)))
        # at the ends (p = q = 1, or c = 0) p does not move with c
        slope, ratio = torch.nan_to_num(slope, nan=0.0), torch.nan_to_num(ratio, nan=0.0)
        by_q, by_c = (slope * ratio).to(q.dtype), slope
        (g,) = gradients
        return (g * by_q).to(g.dtype), (g * by_c).to(g.dtype)


def _newton(q: Tensor, c: Tensor) -> Tensor:
    entropy = -(torch.special.xlogy(q, q) + torch.special.xlogy(1 - q, 1 - q))
    pinsker = -torch.log1p(-(q + (c / 2).sqrt()).clamp(max=1.0))
    u = torch.minimum(pinsker, (c + entropy) / (1 - q))
    inside = (q > 0) & (q < 1) & (c > 0) & torch.isfinite(u)
    for _ in range(MOST_STEPS):
        p = -torch.expm1(-u)
        # where p rounds to 1 its distance to 1 is still known through u
        beyond = (1 - q) * u - torch.special.xlogy(q, p) - entropy
        step = (torch.where(u > 10, beyond, _kl(q, p)) - c) * p / (p - q)
        step = torch.where(inside & (p > q), step, 0.0).clamp(min=0.0)
        u = u - step
        if bool((step <= 4e-16 * u.abs()).all()):
            break
    p = torch.maximum(-torch.expm1(-u), q)
    p = torch.where(q == 0, -torch.expm1(-c), p)
    p = torch.where(c == 0, q, p)
    return torch.where(torch.isinf(c) | (q == 1), 1.0, p)


def _kl(q: Tensor, p: Tensor) -> Tensor:
    # log1p of the relative difference: q near p would cancel in q ln q - q ln p
    apart = torch.special.xlogy(q, q) - torch.special.xlogy(q, p)
    ones = torch.where((p - q).abs() < q / 2, -q * torch.log1p((p - q) / q), apart)
    zeros = torch.where(q < 1, -(1 - q) * torch.log1p((q - p) / (1 - q)), 0.0)
    return (ones + zeros).clamp(min=0.0)


def _pair(q: Tensor | float, other: Tensor | float) -> tuple[Tensor, Tensor, bool]:
    plain = not isinstance(q, Tensor) and not isinstance(other, Tensor)
    like = q if isinstance(q, Tensor) else other if isinstance(other, Tensor) else None
    if like is not None and not like.is_floating_point():
        like = like.double()
    dtype = torch.float64 if like is None else like.dtype
    device = None if like is None else like.device
    first, second = (torch.as_tensor(v, dtype=dtype, device=device) for v in (q, other))
    like = first + second
    return first.expand_as(like), second.expand_as(like), plain


def _refuse_outside(values: Tensor, name: str, most: float) -> None:
    if not bool(((values >= 0) & (values <= most)).all()):
        wanted = "probabilities between 0 and 1" if most == 1 else "at least 0"
        raise InvalidInput(f"{name} must be {wanted}, and the least is {float(values.min()):g}")
