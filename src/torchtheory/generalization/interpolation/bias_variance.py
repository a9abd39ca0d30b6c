r"""The excess risk of a linear model, and how it splits into bias and variance.

Data follow the planted model $y=w_*^\top\phi(x)+\varepsilon$ with noise of mean 0 and
variance $\sigma^2$, independent of $x$. The risk
$R(w)=\mathbb E(w^\top\phi(x)-y)^2$ is least at $w_*$, where it is
$\sigma^2$, and beyond it is a norm of the error:
$R(w)-\sigma^2=\|w-w_*\|_\Sigma^2$ with $\Sigma=\mathbb E\,\phi\phi^\top$. Source:
Foundations of Deep Learning, section 13.2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.core.checks import all_finite, described, nonnegative_number
from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType, ShapeMismatch


def excess_risk(weight: Tensor, planted: Tensor, covariance: Tensor) -> Tensor:
    r"""How much worse than the planted weights others are: $(w-w_*)^\top\Sigma(w-w_*)$.

    Args:
        weight: $w$, `[..., p]`.
        planted: $w_*$, `[p]`.
        covariance: $\Sigma=\mathbb E\,\phi\phi^\top$, `[p, p]`, not centered.

    Returns:
        one number a weight vector, `[...]`. Cost: $O(p^2)$ each.

    >>> excess_risk(torch.tensor([[1.0, 3.0], [0.0, 1.0]]), torch.tensor([0.0, 1.0]),
    ...             torch.diag(torch.tensor([2.0, 5.0])))
    tensor([22.,  0.])
    """
    checked_model(planted, covariance)
    if not isinstance(weight, Tensor) or weight.ndim < 1 or weight.shape[-1:] != planted.shape:
        raise ShapeMismatch(f"the weights must be [..., {len(planted)}]")
    error = weight - planted
    return ((error @ covariance) * error).sum(-1)


@dataclass(frozen=True, slots=True)
class BiasVariance:
    r"""Two parts of a squared error.

    Attributes:
        bias: what the mean prediction misses, squared.
        variance: the mean squared distance of the predictions from their mean.
    """

    bias: Tensor
    variance: Tensor

    @property
    def total(self) -> Tensor:
        """Their sum: the mean excess risk."""
        return self.bias + self.variance


def decompose_estimates(weights: Tensor, planted: Tensor, covariance: Tensor) -> BiasVariance:
    r"""Bias $\|\mathbb E\bar w-w_*\|_\Sigma^2$ and variance
    $\mathbb E\|\bar w-\mathbb E\bar w\|_\Sigma^2$ of an estimator.

    Their sum is the mean `excess_risk` (Theorem 80, second part), for any estimator.

    Args:
        weights: the estimates on `r` independent samples, `[r, p]`; the expectations are their
            means, so the sum is exact and `bias` exceeds that of the estimator itself by about
            `variance / r`.
        planted: $w_*$, `[p]`.
        covariance: $\Sigma$, `[p, p]`.

    >>> parts = decompose_estimates(torch.tensor([[0.0], [2.0]]), torch.zeros(1), torch.eye(1))
    >>> parts.bias, parts.variance, parts.total
    (tensor(1.), tensor(1.), tensor(2.))
    """
    if not isinstance(weights, Tensor) or weights.ndim != 2 or len(weights) == 0:
        raise ShapeMismatch(
            "the estimates must be [samples drawn, p], at least one of them, not "
            f"{described(weights)}"
        )
    mean = weights.mean(0)
    return BiasVariance(
        excess_risk(mean, planted, covariance),
        excess_risk(weights, mean, covariance).mean(),
    )


def decompose_predictions(predictions: Tensor, target: Tensor) -> BiasVariance:
    r"""The same for any predictor, networks included, from its values at test points.

    For outputs $f_S(x)$ trained on independent samples $S$, with mean
    $\bar f$: the bias $\mathbb E_x\|\bar f(x)-f_*(x)\|^2$ and the variance
    $\mathbb E_x\mathbb E_S\|f_S(x)-\bar f(x)\|^2$. With several outputs (scores against
    one-hot targets) both are sums over the outputs.

    Args:
        predictions: `[r, n]` or `[r, n, outputs]`, `r` trainings.
        target: the regression function, `[n]` or `[n, outputs]`. With noisy labels in its
            place the bias contains the noise.

    >>> parts = decompose_predictions(torch.tensor([[1.0, 3.0], [3.0, 3.0]]), torch.ones(2))
    >>> parts.bias, parts.variance
    (tensor(2.5000), tensor(0.5000))
    """
    if not isinstance(predictions, Tensor) or not isinstance(target, Tensor):
        raise InvalidType(
            f"predictions and target must be torch tensors (predictions is {described(predictions)}"
            f", target is {described(target)})"
        )
    if predictions.ndim not in (2, 3) or predictions.shape[1:] != target.shape:
        raise ShapeMismatch(
            f"predictions must be [r, n] or [r, n, outputs] and the target one of them, not "
            f"{list(predictions.shape)} and {list(target.shape)}"
        )
    if predictions.numel() == 0:
        raise EmptyData(f"there are no predictions (the shape is {list(predictions.shape)})")
    n = len(target)
    mean = predictions.mean(0)
    return BiasVariance(
        (mean - target).square().sum() / n,
        (predictions - mean).square().sum() / (n * len(predictions)),
    )


def gaussian_bias_variance(
    samples: int, features: int, kept: float, dropped: float, noise_variance: float
) -> BiasVariance:
    r"""Exact bias and variance of minimum-norm regression on `p` of `d` Gaussian features.

    The features are independent standard normal, $y=\beta^\top x+\varepsilon$, and the fit
    sees the first $p$ of them. With $a=\|\beta_{\le p}\|^2$,
    $b=\|\beta_{>p}\|^2$ and $n$ samples the mean weights are
    $\min(1,n/p)\,\beta_{\le p}$, hence

    - $p\le n-2$: bias $b$, variance $(b+\sigma^2)\frac p{n-p-1}$,
    - $p\ge n+2$: bias $b+a(1-\frac np)^2$, variance
      $a\frac np(1-\frac np)+(b+\sigma^2)\frac n{p-n-1}$,
    - in between the variance is infinite (unless there is nothing to fit to but the truth).

    With all features kept, and $p\le n-2$, the variance is
    $\frac{\sigma^2}n\mathbb E\operatorname{tr}(\Sigma\bar\Sigma^{-1})$ whatever the
    covariance (Theorem 81 and the mean of an inverse Wishart matrix). The risk is that of
    Belkin, Hsu and Xu (2020); the expectations here are over the design as well as the noise.

    Args:
        samples: $n\ge1$.
        features: $p\ge1$.
        kept: $a$.
        dropped: $b$.
        noise_variance: $\sigma^2$.

    >>> round(float(gaussian_bias_variance(100, 50, 1.0, 0.0, 1.0).variance), 9)       # 50 / 49
    1.020408163
    >>> gaussian_bias_variance(10, 10, 1.0, 0.0, 1.0).variance
    tensor(inf, dtype=torch.float64)
    """
    if samples < 1 or features < 1:
        raise InvalidInput(f"samples and features must be at least 1, not {samples} and {features}")
    for name, value in (("kept", kept), ("dropped", dropped), ("noise_variance", noise_variance)):
        nonnegative_number(value, name)
    n, p = samples, features
    seen = min(1.0, n / p)
    bias = dropped + kept * (1 - seen) ** 2
    spread = kept * seen * (1 - seen)
    noise = dropped + noise_variance
    if noise:
        spread += noise * gaussian_variance_factor(n, p)
    return BiasVariance(
        torch.tensor(bias, dtype=torch.float64), torch.tensor(spread, dtype=torch.float64)
    )


def gaussian_variance_factor(samples: int, features: int) -> float:
    r"""The mean of $\operatorname{tr}((X^\top X)^+)$ for a standard normal `X [n, p]`.

    $p/(n-p-1)$ for $p\le n-2$, $n/(p-n-1)$ for $p\ge n+2$, and infinite in
    between.

    >>> gaussian_variance_factor(100, 50), gaussian_variance_factor(50, 101)
    (1.0204081632653061, 1.0)
    """
    if samples < 1 or features < 1:
        raise InvalidInput(f"samples and features must be at least 1, not {samples} and {features}")
    gap = abs(samples - features) - 1
    return min(samples, features) / gap if gap > 0 else math.inf


def checked_model(planted: Tensor, covariance: Tensor) -> None:
    """Refuse what is no vector `[p]` with a symmetric matrix `[p, p]`."""
    if not isinstance(planted, Tensor) or not isinstance(covariance, Tensor):
        raise InvalidType(
            "the planted weights and the covariance must be torch tensors (planted is "
            f"{described(planted)}, covariance is {described(covariance)})"
        )
    if planted.ndim != 1 or planted.numel() == 0:
        raise ShapeMismatch(f"the planted weights must be a vector, not {list(planted.shape)}")
    p = len(planted)
    if covariance.shape != (p, p):
        raise ShapeMismatch(f"the covariance must be [{p}, {p}], not {list(covariance.shape)}")
    all_finite(covariance, "covariance")
    all_finite(planted, "planted")
    scale = float(covariance.abs().max())
    if float((covariance - covariance.T).abs().max()) > 1e-6 * scale:
        raise InvalidInput(
            "the covariance must be symmetric, and it differs from its transpose by "
            f"{float((covariance - covariance.T).abs().max()):.3g}"
        )
