r"""Directions with noise, and what noise does to descent on a quadratic."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchtheory.core.checks import nonnegative_number, positive_number
from torchtheory.core.errors import InvalidInput, NonFinite
from torchtheory.core.random import RandomSource, as_generator, gaussian
from torchtheory.optimization.descent.iterates import Direction


def with_gaussian_noise(
    direction: Direction, scale: float, generator: RandomSource = None
) -> Direction:
    r"""$D=\nabla h+s\,\xi$ with fresh standard normal $\xi$ in every call.

    >>> still = lambda theta, k: torch.zeros_like(theta)
    >>> with_gaussian_noise(still, 1.0, 0)(torch.zeros(5, 2), 0).shape
    torch.Size([5, 2])
    """
    nonnegative_number(scale, "the scale of the noise")
    random = as_generator(generator)

    def noisy(theta: Tensor, k: int) -> Tensor:
        xi = gaussian(*theta.shape, generator=random, dtype=theta.dtype, device=theta.device)
        return direction(theta, k) + scale * xi

    return noisy


def with_unit_noise(direction: Direction, generator: RandomSource = None) -> Direction:
    r"""A random unit vector $D$ with mean $g$, for gradients of norm at most 1.

    $D=g+\sqrt{1-\|g\|^2}\,v$ with a uniformly random unit vector $v\perp g$: then
    $\mathbb E[D\mid g]=g$ and $\|D\|=1$. It is the noisiest oracle that the theorem on
    averaged descent (`averaged_descent_bound`) allows.
    In one dimension $D=\pm1$ with $P(D=1)=(1+g)/2$.

    >>> half = lambda theta, k: torch.full_like(theta, 0.5)
    >>> draws = with_unit_noise(half, 0)(torch.zeros(1000, 2, dtype=torch.float64), 0)
    >>> bool((draws.norm(dim=1) - 1).abs().max() < 1e-12)
    True
    """
    random = as_generator(generator)

    def noisy(theta: Tensor, k: int) -> Tensor:
        g = direction(theta, k)
        size = g.norm(dim=-1, keepdim=True)
        if bool((size > 1 + 1e-9).any()):
            raise InvalidInput(
                f"the gradient has norm {float(size.max()):.3g}; a unit vector has a mean of norm "
                "at most 1"
            )
        if theta.shape[-1] == 1:
            coins = torch.rand(
                theta.shape, generator=random, dtype=theta.dtype, device=random.device
            )
            return 2 * (coins.to(g.device) < (1 + g) / 2).to(theta.dtype) - 1
        xi = gaussian(*theta.shape, generator=random, dtype=theta.dtype, device=theta.device)
        along = g / size.clamp_min(torch.finfo(g.dtype).tiny)
        across = xi - (xi * along).sum(-1, keepdim=True) * along
        across = across / across.norm(dim=-1, keepdim=True)
        made: Tensor = g + (1 - size.square()).clamp_min(0).sqrt() * across
        return made

    return noisy


def accumulated_variance(
    curvature: float, step: float, noise: float, steps: float = math.inf
) -> float:
    r"""Variance of $\theta_T$ under
    $\theta\leftarrow\theta-\eta(\lambda\theta+s\,\xi)$, from a fixed start.

    $$
    \eta^2s^2\sum_{k<T}a^{2k},\qquad a=1-\eta\lambda .
    $$

    In a minimum ($|a|<1$) it settles at $\eta^2s^2/(1-a^2)$, which for
    $\lambda=1$ is $\frac{\eta}{2-\eta}s^2$; on a saddle's unstable direction
    ($\lambda<0$) it grows like $a^{2T}$, which is how noise leaves the saddle.

    >>> round(accumulated_variance(1.0, 0.5, 1.0), 9), accumulated_variance(-1.0, 1.0, 1.0, 2)
    (0.333333333, 5.0)
    """
    positive_number(step, "the step")
    if not (math.isfinite(curvature) and math.isfinite(noise)):
        raise NonFinite(
            "the curvature and the scale of the noise must be finite numbers (curvature = "
            f"{curvature!r}, noise = {noise!r})"
        )
    if not steps >= 0:
        raise InvalidInput(f"the number of iterations must be at least 0, not {steps!r}")
    if noise == 0 or steps == 0:
        return 0.0
    ratio = (1 - step * curvature) ** 2
    if math.isinf(steps):
        return math.inf if ratio >= 1 else (step * noise) ** 2 / (1 - ratio)
    try:
        total = steps if ratio == 1 else (ratio**steps - 1) / (ratio - 1)
    except OverflowError:
        return math.inf
    return (step * noise) ** 2 * total
