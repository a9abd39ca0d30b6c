r"""What is promised of gradient descent and its relatives, from values and gradient norms alone.

The functions take what a run has recorded (of any model, by any means), shape `[T + 1, ...]`
with time first, so they check a training as well as a formula. Sources: notes "Deep Learning",
section 3.2; The Modern Mathematics of Deep Learning, Theorem 1.15.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchtheory.core.checks import nonnegative_number, positive_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch


def sufficient_decrease(
    values: Tensor, gradient_norms: Tensor, step: float, smoothness: float
) -> Tensor:
    r"""How much more than promised each gradient step decreased the function, `[T, ...]`.

    For an $L$-smooth $h$,
    $h(\theta-\eta\nabla h(\theta))\le h(\theta)-\eta(1-\frac{L\eta}2)\|\nabla h(\theta)\|^2$.
    The slack is right minus left: at least 0 at every step, and 0 for
    $h=\frac L2\|\theta\|^2$. A negative entry shows that $L$ is too small.

    >>> h = torch.tensor([0.5, 0.0])                      # x squared over 2, from 1, with step 1
    >>> sufficient_decrease(h, torch.tensor([1.0, 0.0]), step=1.0, smoothness=1.0)
    tensor([0.])
    """
    _check_run(values, gradient_norms, 2)
    positive_number(step, "the step")
    positive_number(smoothness, "the smoothness constant")
    promised = step * (1 - smoothness * step / 2) * gradient_norms[:-1].square()
    return values[:-1] - promised - values[1:]


def iterations_to_critical_point(smoothness: float, gap: float, tolerance: float) -> int:
    r"""Gradient steps after which some iterate is $\epsilon$-critical:
    $\lceil 2L(h(\theta^0)-\inf h)/\epsilon^2\rceil$.

    With $\eta=1/L$ one of $\theta^0,\dots,\theta^{T-1}$ has
    $\|\nabla h\|\le\epsilon$, since the decreases add up:
    $\min_{t<T}\|\nabla h(\theta^t)\|^2\le\frac{2L}T(h(\theta^0)-\inf h)$. It is the best
    iterate, not the last.

    >>> iterations_to_critical_point(smoothness=1.0, gap=2.0, tolerance=0.1)
    400
    """
    positive_number(smoothness, "the smoothness constant")
    positive_number(tolerance, "the tolerance")
    nonnegative_number(gap, "the gap to the infimum")
    exact = 2 * smoothness * gap / tolerance**2
    # rounding must not add a step where the quotient is whole
    return max(1, math.ceil(exact * (1 - 1e-12)))


def first_critical(gradient_norms: Tensor, tolerance: float) -> Tensor:
    r"""First time with $\|\nabla h\|\le\epsilon$ in each run `[...]`; $T+1$: never.

    >>> first_critical(torch.tensor([[3.0, 3.0], [1.0, 2.0], [0.1, 2.0]]), 1.0)
    tensor([1, 3])
    """
    positive_number(tolerance, "the tolerance")
    if gradient_norms.ndim < 1 or not len(gradient_norms):
        raise ShapeMismatch(
            "gradient norms are needed with time first, [T + 1, ...], not "
            f"{list(gradient_norms.shape)}"
        )
    reached = gradient_norms <= tolerance
    return torch.where(reached.any(0), reached.int().argmax(0), len(gradient_norms))


def polyak_lojasiewicz_constant(values: Tensor, gradient_norms: Tensor, infimum: float) -> float:
    r"""The largest $\mu$ the given points allow in
    $\tfrac12\|\nabla h\|^2\ge\mu(h-\inf h)$.

    It is an upper estimate of the constant of $h$: more points can only lower it. For a
    quadratic with matrix $A\succeq0$ the constant is the smallest *non-zero* eigenvalue, and
    always $\mu\le L$. Points at the infimum say nothing and are left out.

    Args:
        values: `[...]`.
        gradient_norms: of the same shape.
        infimum: $\inf h$; a value below it is refused.

    >>> x = torch.tensor([1.0, 2.0])
    >>> polyak_lojasiewicz_constant(3 * x**2 / 2, 3 * x, infimum=0.0)
    3.0
    """
    _check_run(values, gradient_norms, 1)
    gaps = values - infimum
    if bool((gaps < 0).any()):
        raise InvalidInput(
            f"a value is {float(gaps.min()):.3g} below the infimum: the infimum is smaller"
        )
    outside = gaps > 0
    if not bool(outside.any()):
        raise InvalidInput("every point is at the infimum: any constant fits")
    return float((gradient_norms[outside].square() / (2 * gaps[outside])).min())


def geometric_bound(gap: float | Tensor, constant: float, smoothness: float, steps: int) -> Tensor:
    r"""$(1-\mu/L)^T(h(\theta^0)-\inf h)$ for $T=0,\dots$ `steps`.

    Gradient descent with $\eta=1/L$ stays below it on an $L$-smooth function with the
    Polyak-Łojasiewicz constant $\mu$, convex or not.

    Args:
        gap: $h(\theta^0)-\inf h$, one number or `[...]`.
        constant: $\mu$, at most $L$.
        smoothness: $L$.
        steps: the last $T$.

    Returns:
        `[steps + 1, ...]`, in the precision of `gap` (double for a number).

    >>> geometric_bound(8.0, 1.0, 2.0, 3).tolist()
    [8.0, 4.0, 2.0, 1.0]
    """
    positive_number(constant, "the Polyak-Łojasiewicz constant")
    positive_number(smoothness, "the smoothness constant")
    if constant > smoothness:
        raise InvalidInput(
            f"a Polyak-Łojasiewicz constant of {constant} above the smoothness {smoothness} is "
            "impossible: one of them is wrong"
        )
    start = gap if isinstance(gap, Tensor) else torch.tensor(gap, dtype=torch.float64)
    times = torch.arange(steps + 1, dtype=start.dtype, device=start.device)
    factors = (1 - constant / smoothness) ** times
    return factors.reshape(-1, *[1] * start.ndim) * start


def accelerated_bound(distance: float, smoothness: float, steps: int) -> Tensor:
    r"""Nesterov's $2L\|\theta^0-\theta^\star\|^2/(T+1)^2$ for $T=1,\dots$ `steps`.

    It bounds $h(\theta^T)-\min h$ for convex $L$-smooth $h$, step $1/L$ and
    $\beta_t=(t-1)/(t+2)$; `[steps]` in double precision.

    >>> accelerated_bound(1.0, 2.0, 3).tolist()
    [1.0, 0.4444444444444444, 0.25]
    """
    positive_number(smoothness, "the smoothness constant")
    if not distance >= 0:
        raise InvalidInput(f"the distance to the minimizer must be at least 0, not {distance!r}")
    times = torch.arange(1, steps + 1, dtype=torch.float64)
    return 2 * smoothness * distance**2 / (times + 1).square()


def averaged_descent_bound(steps: int, radius: float = 1.0, lipschitz: float = 1.0) -> float:
    r"""$RG/\sqrt K$: the expected gap of the averaged iterate of stochastic descent.

    For convex $r$, $\Theta^{(0)}=0$, $\|D^{(k)}\|\le G$ and
    $\eta=R/(G\sqrt K)$, the average $\frac1K\sum_{k=0}^{K-1}\Theta^{(k)}$ of the points
    where the directions were taken has an expected value of at most this above the best point of
    the ball of radius $R$. Projecting onto that ball keeps the bound.

    >>> averaged_descent_bound(100)
    0.1
    """
    if steps < 1:
        raise InvalidInput(f"an average needs at least one iteration, not {steps}")
    positive_number(radius, "the radius")
    positive_number(lipschitz, "the bound on the directions")
    return radius * lipschitz / math.sqrt(steps)


def _check_run(values: Tensor, gradient_norms: Tensor, least: int) -> None:
    if values.shape != gradient_norms.shape:
        raise ShapeMismatch(
            f"values {list(values.shape)} and gradient norms {list(gradient_norms.shape)} differ "
            "in shape"
        )
    if values.ndim < 1 or len(values) < least:
        raise ShapeMismatch(f"at least {least} recorded points are needed, with time first")
