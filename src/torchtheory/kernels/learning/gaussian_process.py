r"""Gaussian processes: random functions given by a mean and a kernel.

$f\sim\mathcal{GP}(\mu,K)$ if $(f(t_1),\dots,f(t_n))\sim N(\mu,\Sigma)$ with
$\mu_i=\mu(t_i)$ and $\Sigma_{ij}=K(t_i,t_j)$ for all finitely many points. Observing
some values leaves a Gaussian process, whose mean is kernel regression.
Source: Foundations of Deep Learning, Definition 26.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from torchtheory.core.checks import nonnegative_number, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.core.random import RandomSource, as_generator, gaussian
from torchtheory.kernels.learning.functions import Kernel, kernel_operator
from torchtheory.kernels.learning.regression import checked_targets, regularized_cholesky
from torchtheory.linalg.operators import column_blocks
from torchtheory.primer.gaussians import Gaussian

MeanFunction = Callable[[Tensor], Tensor]


def sample_paths(
    kernel: Kernel,
    x: Tensor,
    draws: int,
    *,
    mean: MeanFunction | None = None,
    method: Literal["cholesky", "eigenvalues"] = "cholesky",
    jitter: float = 1e-10,
    generator: RandomSource = None,
) -> Tensor:
    r"""Independent functions drawn from $\mathcal{GP}(\mu,K)$, at the points `x`.

    Args:
        kernel: $K$.
        x: points `[n, ...]`, or `[n]` on the line.
        draws: how many functions.
        mean: $\mu$, from points to `[n]`; 0 unless given.
        method: `"cholesky"` draws from $N(\mu,\Sigma+\epsilon I)$, where $\epsilon$
            is `jitter` times the largest variance: the covariance of many points that are close
            to each other is singular to within rounding. `"eigenvalues"` draws from
            $N(\mu,\Sigma)$ itself, singular or not, and takes some twenty times longer.
        jitter: see `method`.
        generator: a generator or a seed.

    Returns:
        `[draws, n]`.

    Cost: $O(n^3)$ once and $O(n^2)$ a draw.

    >>> from torchtheory.kernels.learning.functions import gaussian, linear
    >>> f = sample_paths(gaussian(), torch.tensor([0.0, 0.01, 5.0]).double(), 3, generator=0)
    >>> f.shape, bool((f[:, 0] - f[:, 1]).abs().max() < 0.05)
    (torch.Size([3, 3]), True)
    >>> t = torch.tensor([1.0, 2.0]).double()
    >>> f = sample_paths(linear(), t, 5, method="eigenvalues")          # random lines through 0
    >>> bool((f[:, 1] - 2 * f[:, 0]).abs().max() < 1e-7)
    True
    """
    whole_number(draws, "draws", least=1)
    nonnegative_number(jitter, "the jitter")
    shift = _mean_at(mean, x)
    if method == "eigenvalues":
        law = Gaussian(x.new_zeros(len(x)) if shift is None else shift, kernel(x))
        return law.sample(draws, generator=generator)
    if method != "cholesky":
        raise InvalidInput(f"the method must be cholesky or eigenvalues, not {method!r}")
    scale = float(kernel.diagonal(x).max())
    factor = regularized_cholesky(kernel, x, jitter * scale)
    noise = gaussian(
        draws, len(x), generator=as_generator(generator), dtype=factor.dtype, device=factor.device
    )
    paths = noise @ factor.T
    return paths if shift is None else paths + shift


@dataclass(frozen=True, slots=True)
class Posterior:
    r"""A Gaussian process after some of its values have been observed: again one.

    Attributes:
        mean: the mean function, from points `[m, ...]` to `[m]` (`[m, outputs]` for targets
            with several columns), in blocks of rows.
        kernel: the covariance function. `kernel(x)` is the covariance `[m, m]`,
            `kernel.diagonal(x)` the variances `[m]` alone, and `sample_paths` draws.
        log_marginal_likelihood: $\log p(y)$, a number, or `[outputs]`. It carries the
            gradient of whatever the kernel depends on.
    """

    mean: MeanFunction
    kernel: Kernel
    log_marginal_likelihood: Tensor

    def standard_deviation(self, x: Tensor) -> Tensor:
        """How uncertain the value at each point is, `[m]`."""
        return self.kernel.diagonal(x).sqrt()


def posterior(
    kernel: Kernel,
    x: Tensor,
    y: Tensor,
    *,
    noise: float = 0.0,
    mean: MeanFunction | None = None,
) -> Posterior:
    r"""The law of $f\sim\mathcal{GP}(\mu,K)$ given $y_i=f(x_i)+\varepsilon_i$,
    $\varepsilon_i\sim N(0,\sigma^2)$.

    With $G=(K(X,X)+\sigma^2I)^{-1}$ it is the Gaussian process with mean
    $\mu(x)+K(x,X)G(y-\mu(X))$ and covariance
    $K(x,x')-K(x,X)G\,K(X,x')$, and
    $\log p(y)=-\frac12(y-\mu)^\top G(y-\mu)+\frac12\log\det G-\frac n2\log2\pi$.
    The mean is the fit of `kernel_least_squares` with
    ridge $\sigma^2$.

    Args:
        kernel: $K$.
        x: points `[n, ...]`, or `[n]` on the line.
        y: values `[n]`, or `[n, outputs]` for independent processes with one kernel.
        noise: the variance $\sigma^2\ge0$ of the observations.
        mean: $\mu$, from points to `[n]`; 0 unless given.

    Raises:
        SingularKernelMatrix: if $K(X,X)+\sigma^2I$ has no inverse; add noise.

    Cost: $O(n^3)$; then $O(n)$ a mean and $O(n^2)$ a variance.

    >>> from torchtheory.kernels.learning.functions import gaussian
    >>> after = posterior(gaussian(), torch.tensor([0.0]), torch.tensor([2.0]))
    >>> t = torch.tensor([0.0, 1.0, 3.0])
    >>> after.mean(t), after.standard_deviation(t)
    (tensor([2.0000, 1.2131, 0.0222]), tensor([0.0000, 0.7951, 0.9999]))
    """
    if not (math.isfinite(noise) and noise >= 0):
        raise InvalidInput(f"the noise is a variance, a number >= 0, not {noise!r}")
    y = checked_targets(x, y)
    factor = regularized_cholesky(kernel, x, noise)
    shift = _mean_at(mean, x)
    centered = y if shift is None else y - shift.reshape(-1, *[1] * (y.ndim - 1))
    columns = centered.reshape(len(y), -1)
    alpha = torch.cholesky_solve(columns, factor).reshape(y.shape)

    def after_mean(new: Tensor) -> Tensor:
        values = kernel_operator(kernel, new, x) @ alpha
        prior = _mean_at(mean, new)
        return values if prior is None else values + prior.reshape(-1, *[1] * (y.ndim - 1))

    def whitened(new: Tensor) -> Tensor:
        half: Tensor = torch.linalg.solve_triangular(factor, kernel(x, new), upper=False)
        return half

    def covariance(a: Tensor, b: Tensor) -> Tensor:
        left = whitened(a)
        right = left if b is a else whitened(b)
        return kernel.matrix(a, b) - left.T @ right

    def variance(a: Tensor) -> Tensor:
        blocks = column_blocks(len(x), len(a), 2**22)
        explained = torch.cat([whitened(a[r.start : r.stop]).square().sum(0) for r in blocks])
        # rounding may leave less than nothing where everything is known
        return (kernel.on_diagonal(a) - explained).clamp_min(0)

    fit = -0.5 * (centered * alpha).sum(0)
    volume = factor.diagonal().log().sum() + 0.5 * len(y) * math.log(2 * math.pi)
    return Posterior(
        after_mean, Kernel(covariance, variance, f"posterior of {kernel.name}"), fit - volume
    )


def _mean_at(mean: MeanFunction | None, x: Tensor) -> Tensor | None:
    if mean is None:
        return None
    values = mean(x)
    if values.shape != (len(x),):
        raise ShapeMismatch(
            f"a mean function takes {len(x)} points to [{len(x)}], this one gave "
            f"{list(values.shape)}"
        )
    return values
