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
_EPS = 2.0**-52
#: below it numbers lose digits; both inverses are monotone, so a larger number is on the safe side
_LEAST = 1e-290


@overload
def binary_kl(q: float, p: float) -> float: ...
@overload
def binary_kl(q: Tensor, p: Tensor | float) -> Tensor: ...
@overload
def binary_kl(q: Tensor | float, p: Tensor) -> Tensor: ...
def binary_kl(q: Tensor | float, p: Tensor | float) -> Tensor | float:
    r"""$\mathrm{kl}(q\,\|\,p)$ of Bernoulli laws, entry by entry; infinite unless dominated.

    Differentiable in both arguments. The derivative in $q$ is $-\infty$ at $q=0$ and $\infty$ at
    $q=1$.

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
    value: Tensor = _Divergence.apply(first, second)  # type: ignore[no-untyped-call]
    return float(value) if plain else value


@overload
def upper_kl_inverse(q: float, c: float) -> float: ...
@overload
def upper_kl_inverse(q: Tensor, c: Tensor | float) -> Tensor: ...
@overload
def upper_kl_inverse(q: Tensor | float, c: Tensor) -> Tensor: ...
def upper_kl_inverse(q: Tensor | float, c: Tensor | float) -> Tensor | float:
    r"""The largest $p\ge q$ with $\mathrm{kl}(q\,\|\,p)\le c$, entry by entry.

    Never below it: Newton's method in $u=-\ln(1-p)$, where the divergence is convex, starts to
    the right of the solution (Pinsker's $q+\sqrt{c/2}$ or
    $1-e^{-(c+h(q))/(1-q)}$, $h$ the entropy) and stays to the right of it, and a bound on what
    rounding may have done is added at the end, a few units in the last place. Differentiable in
    both arguments:

    $$
    \frac{\partial p}{\partial c}=\frac{p(1-p)}{p-q},\qquad
    \frac{\partial p}{\partial q}=\frac{p(1-p)}{p-q}\,\ln\frac{p\,(1-q)}{q\,(1-p)}.
    $$

    As that of a square root at 0, the derivative in $q$ is infinite at $q=0$, and so is that in
    $c$ at $c=0$ unless $q$ is 0 or 1: keep away from both before a gradient step.

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
    value: Tensor = _Inverse.apply(first, second, False)  # type: ignore[no-untyped-call]
    return value


def upper_kl_slopes(q: float, c: float) -> tuple[float, float, float]:
    r"""The upper inverse of two numbers with its derivatives in $q$ and $c$.

    The same as `upper_kl_inverse` without tensors, some hundred times faster for one number.

    >>> p, by_q, by_c = upper_kl_slopes(0.1, 0.05)
    >>> round(p, 4), round(by_q, 3), round(by_c, 3)
    (0.2201, 1.332, 1.429)
    """
    _refuse_numbers(q, c)
    if c == 0:
        return float(q), 1.0, math.inf if 0 < q < 1 else 1.0 - q
    if q == 1 or c == math.inf:
        return 1.0, 0.0, 0.0
    u = _tail(max(q, _LEAST) if q else q, 1 - q, max(c, _LEAST) if q else c)
    p = _outward(-math.expm1(-u), 1.0)
    if q == 0:
        return p, math.inf, 1 - p
    p = max(p, math.nextafter(q, 1.0))
    slope = p * math.exp(-u) / (p - q)
    return p, slope * (math.log(p) - math.log(q) + math.log1p(-q) + u), slope


def _refuse_numbers(q: float, c: float) -> None:
    closed_fraction(q, "q")
    if not c >= 0:
        raise InvalidInput(f"c must be at least 0, not {c}")


def _tail(q: float, rest: float, c: float) -> float:
    r"""An upper bound, tight to rounding, of $u=-\ln(1-p)$ for the upper inverse $p$.

    Args:
        q, rest: $q<1$ and $1-q$, both to their full precision.
        c: finite and above 0.
    """
    if q == 0:
        return c * (1 + 2 * _EPS)
    # the smaller of q and 1 - q is the one that is known well
    log_q = math.log(q) if q <= rest else math.log1p(-rest)
    log_rest = math.log(rest) if rest <= q else math.log1p(-q)
    entropy = -(q * log_q + rest * log_rest)
    u = (c + entropy) / rest
    pinsker = math.sqrt(c / 2)
    if pinsker < rest:
        u = min(u, -math.log1p(-(q + pinsker)) if q <= rest else -math.log(rest - pinsker))
    if u == math.inf:
        return u
    slope = doubt = 0.0
    for _ in range(MOST_STEPS):
        p, left = -math.expm1(-u), math.exp(-u)
        apart = p - q if q <= rest else rest - left  # the difference of the smaller numbers
        if apart <= 0:
            # c is below rounding: q + sqrt(c/2) is q
            return -log_rest * (1 + 8 * _EPS) + 8 * _EPS * min(1.0, q / rest)
        slope = apart / p
        # each logarithm is known to a few units, and so is each argument
        doubt = 8 * _EPS * apart
        if apart > q:
            ones = q * (math.log(p) - log_q)
            doubt += 8 * _EPS * q * (abs(math.log(p)) + abs(log_q))
        else:
            ones = q * math.log1p(apart / q)
        if apart > rest / 2:
            zeros = rest * (log_rest + u)
            doubt += 8 * _EPS * rest * (abs(log_rest) + u)
        else:
            zeros = -rest * math.log1p(-apart / rest)
        doubt += 8 * _EPS * (ones + zeros)
        step = max(0.0, (zeros - ones - c) / slope)
        u -= step
        if step <= 4 * _EPS * u:
            break
    return u * (1 + 16 * _EPS) + 2 * doubt / slope


def _outward(p: float, end: float) -> float:
    """Two units in the last place towards an end: what exponentials may be off by."""
    return math.nextafter(math.nextafter(p, end), end)


@overload
def lower_kl_inverse(q: float, c: float) -> float: ...
@overload
def lower_kl_inverse(q: Tensor, c: Tensor | float) -> Tensor: ...
@overload
def lower_kl_inverse(q: Tensor | float, c: Tensor) -> Tensor: ...
def lower_kl_inverse(q: Tensor | float, c: Tensor | float) -> Tensor | float:
    r"""The least $p\le q$ with $\mathrm{kl}(q\,\|\,p)\le c$: the mirror image, never above it.

    >>> round(lower_kl_inverse(1.0, 0.5), 6)        # exp(-c)
    0.606531
    """
    if not isinstance(q, Tensor) and not isinstance(c, Tensor):
        _refuse_numbers(q, c)
        if c == 0:
            return float(q)
        if q < _LEAST or c == math.inf:
            return 0.0
        p = _outward(math.exp(-_tail(1 - q, q, max(c, _LEAST))), 0.0)
        return min(p, math.nextafter(q, 0.0))
    first, second, _ = _pair(q, c)
    _refuse_outside(first, "q", 1.0)
    _refuse_outside(second, "c", math.inf)
    value: Tensor = _Inverse.apply(first, second, True)  # type: ignore[no-untyped-call]
    return value


class _Divergence(torch.autograd.Function):
    """The divergence with derivatives that are right at the ends of the unit interval as well."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, p: Tensor) -> Tensor:
        ctx.save_for_backward(q, p)
        return _kl(q, p)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        q, p = ctx.saved_tensors
        by_q = torch.log(q) - torch.log(p) + torch.log1p(-p) - torch.log1p(-q)
        by_q = torch.where(q == p, 0.0, by_q)
        # at an end only one of the two logarithms depends on p
        by_p = torch.where(q == 0, 1 / (1 - p), (p - q) / (p * (1 - p)))
        by_p = torch.where(q == 1, -1 / p, by_p)
        return _times(gradients[0], by_q), _times(gradients[0], by_p)


class _Inverse(torch.autograd.Function):
    """Either inverse with its derivatives, which have the same formulas."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, c: Tensor, lower: bool) -> Tensor:
        # in double precision: a certificate must not lose its last digits to a float32 model
        wide = q.double(), c.double()
        exact = _lower(*wide) if lower else _upper(*wide)
        p = exact.to(q.dtype)
        end = torch.zeros_like(p) if lower else torch.ones_like(p)
        inward = p.double() > exact if lower else p.double() < exact
        p = torch.where(inward, torch.nextafter(p, end), p)
        ctx.save_for_backward(*wide, exact)  # p - q of rounded numbers has no digits for small c
        ctx.lower = lower
        return p

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        q, c, p = ctx.saved_tensors
        slope = p * (1 - p) / (p - q)
        ratio = torch.log(p) - torch.log(q) + torch.log1p(-q) - torch.log1p(-p)
        # p stays at its end where it is one (q = 1 above, q = 0 below, infinite c)
        by_q = torch.nan_to_num(slope * ratio, nan=0.0, posinf=math.inf)
        by_c = torch.nan_to_num(slope, nan=0.0, posinf=math.inf, neginf=-math.inf)
        away = -1.0 if ctx.lower else 1.0
        far, near = (0.0, 1.0) if ctx.lower else (1.0, 0.0)
        start = torch.where(q == far, 0.0, torch.where(q == near, away, away * math.inf))
        by_q, by_c = torch.where(c == 0, 1.0, by_q), torch.where(c == 0, start, by_c)
        return _times(gradients[0], by_q), _times(gradients[0], by_c), None


def _times(gradient: Tensor, slope: Tensor) -> Tensor:
    """Their product; 0 where nothing depends on it, also if the slope is infinite."""
    return torch.where(gradient == 0, 0.0, gradient * slope).to(gradient.dtype)


def _upper(q: Tensor, c: Tensor) -> Tensor:
    positive = q > 0
    least_q, least_c = (torch.where(positive, t.clamp(min=_LEAST), t) for t in (q, c))
    p = -torch.expm1(-_tails(least_q, 1 - q, least_c))
    one = torch.ones_like(p)
    p = torch.nextafter(torch.nextafter(p, one), one).maximum(torch.nextafter(q, one))
    p = torch.where(c == 0, q, p)
    return torch.where(torch.isinf(c) | (q == 1), one, p)


def _lower(q: Tensor, c: Tensor) -> Tensor:
    p = torch.exp(-_tails(1 - q, q, c.clamp(min=_LEAST)))
    zero = torch.zeros_like(p)
    p = torch.nextafter(torch.nextafter(p, zero), zero).minimum(torch.nextafter(q, zero))
    p = torch.where(torch.isinf(c) | (q < _LEAST), zero, p)
    return torch.where(c == 0, q, p)


def _tails(q: Tensor, rest: Tensor, c: Tensor) -> Tensor:
    """`_tail` entry by entry; what it does not cover (q = 1, c = 0 or infinite) is left as is."""
    log_q = torch.where(q <= rest, torch.log(q), torch.log1p(-rest))
    logs = torch.where(rest <= q, torch.log(rest), torch.log1p(-q))
    entropy = -(torch.where(q > 0, q * log_q, 0.0) + torch.where(rest > 0, rest * logs, 0.0))
    pinsker = (c / 2).sqrt()
    pinsker = torch.where(
        q <= rest,
        -torch.log1p(-(q + pinsker).clamp(max=1.0)),
        -torch.log((rest - pinsker).clamp(min=0.0)),
    )
    u = torch.minimum(pinsker, (c + entropy) / rest)
    inside = (q > 0) & (rest > 0) & (c > 0) & torch.isfinite(u)
    slope, doubt = torch.ones_like(u), torch.zeros_like(u)
    for _ in range(MOST_STEPS):
        p, left = -torch.expm1(-u), torch.exp(-u)
        apart = torch.where(q <= rest, p - q, rest - left)
        wide, far = apart > q, apart > rest / 2
        log_p = torch.log(p)
        ones = q * torch.where(wide, log_p - log_q, torch.log1p(apart / q))
        zeros = rest * torch.where(far, logs + u, -torch.log1p(-apart / rest))
        moving = inside & (apart > 0)
        slope = torch.where(moving, apart / p, 1.0)
        parts = torch.where(wide, q * (log_p.abs() + log_q.abs()), 0.0)
        parts = parts + torch.where(far, rest * (logs.abs() + u), 0.0)
        doubt = 8 * _EPS * (parts + ones + zeros + apart)
        step = torch.where(moving, (zeros - ones - c) / slope, 0.0).clamp(min=0.0)
        u = u - step
        if bool((step <= 4 * _EPS * u.abs()).all()):
            break
    found = u * (1 + 16 * _EPS) + 2 * doubt / slope
    # c is below rounding: q + sqrt(c/2) is q
    found = torch.where(
        apart > 0, found, -logs * (1 + 8 * _EPS) + 8 * _EPS * (q / rest).clamp(max=1.0)
    )
    return torch.where(q == 0, c * (1 + 2 * _EPS), found)


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
