r"""Minimum-norm regression on a given design: the exact bias and variance.

For $y=\Phi\theta^*+\nu$ with rows $\phi(x_i)$ in $\Phi$ `[m, d]`, the estimate
$\hat\theta=\Phi^+y=(\Phi^\top\Phi)^+\Phi^\top y$ misses
$P\theta^*$ with $P=I-\Phi^+\Phi$, what no sample shows, and carries the noise
$\Phi^+\nu$. Sources: Mathematical Aspects of Deep Learning, section 1.2.4; Foundations of
Deep Learning, Eq. (13.2) and Theorem 81.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchtheory.core.checks import all_finite, described, nonnegative_number, whole_number
from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch
from torchtheory.generalization.interpolation.bias_variance import BiasVariance, checked_model


def design_bias_variance(
    features: Tensor, planted: Tensor, covariance: Tensor, noise_variance: float
) -> BiasVariance:
    r"""Bias and variance of the minimum-norm fit, given the design.

    With $S=\Phi^\top\Phi$ and $P=I-S^+S$,

    $$
    \mathbb E[R(\hat\theta)\mid\Phi]-R^*
    =\theta^{*\top}P\,\Sigma\,P\theta^*+\sigma^2\operatorname{tr}(S^+\Sigma).
    $$

    The bias is 0 where $S$ is invertible, and the variance then is
    $\frac{\sigma^2}m\operatorname{tr}(\Sigma\bar\Sigma^{-1})$ with
    $\bar\Sigma=S/m$.

    Args:
        features: $\Phi$, `[..., m, d]`, rows are samples.
        planted: $\theta^*$, `[d]`.
        covariance: $\Sigma=\mathbb E\,\phi\phi^\top$ at a new point, `[d, d]`.
        noise_variance: $\sigma^2$.

    Returns:
        bias and variance `[...]`. Cost: a pseudo-inverse a design, $O(md\min(m,d)+d^2m)$.

    >>> phi = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    >>> parts = design_bias_variance(phi, torch.ones(3), torch.eye(3), 1.0)
    >>> parts.bias, parts.variance                     # the third weight is 0; 1/4 + 1
    (tensor(1.), tensor(1.2500))
    """
    _design(features)
    checked_model(planted, covariance)
    if len(planted) != features.shape[-1]:
        raise ShapeMismatch(
            f"the design has {features.shape[-1]} features and the planted weights {len(planted)}"
        )
    nonnegative_number(noise_variance, "noise_variance")
    inverse = torch.linalg.pinv(features)
    missed = planted - (inverse @ (features @ planted).unsqueeze(-1)).squeeze(-1)
    bias = ((missed @ covariance) * missed).sum(-1)
    # tr(S^+ Sigma) = tr(Phi^+T Sigma Phi^+)
    variance = noise_variance * (inverse * (covariance @ inverse)).sum((-2, -1))
    return BiasVariance(bias, variance)


def minimum_norm_weights(features: Tensor, y: Tensor) -> Tensor:
    r"""The fits $\Phi^+y$ of a batch of designs at once.

    For one design, `torchtheory.neurons.regression.least_squares` also says whether the fit is
    unique.

    Args:
        features: `[..., m, d]`.
        y: `[..., m]`.

    Returns:
        `[..., d]`.

    >>> minimum_norm_weights(torch.tensor([[1.0, 1.0]]), torch.tensor([2.0])).round(decimals=4)
    tensor([1., 1.])
    """
    _design(features)
    if not isinstance(y, Tensor) or y.shape != features.shape[:-1]:
        raise ShapeMismatch(f"the targets must be {list(features.shape[:-1])}")
    weights: Tensor = (torch.linalg.pinv(features) @ y.unsqueeze(-1)).squeeze(-1)
    return weights


def ridge_bias_variance(
    features: Tensor, planted: Tensor, noise_variance: float, penalty: float
) -> BiasVariance:
    r"""Bias and variance of ridge regression at the points of the design.

    With $\hat\Sigma=\Phi^\top\Phi/m$ and
    $\hat\theta=(\hat\Sigma+\lambda I)^{-1}\Phi^\top y/m$, the mean of
    $\|\hat\theta-\theta^*\|_{\hat\Sigma}^2$ is

    $$
    \lambda^2\,\theta^{*\top}(\hat\Sigma+\lambda I)^{-2}\hat\Sigma\,\theta^*
    +\frac{\sigma^2}m\operatorname{tr}\bigl[\hat\Sigma^2(\hat\Sigma+\lambda I)^{-2}\bigr].
    $$

    Without a penalty the variance is $\sigma^2\operatorname{rank}(\Phi)/m$. With the features of a
    kernel it is kernel ridge regression. Source: Foundations of Deep Learning, 13.2.

    Args:
        features: $\Phi$, `[m, d]`, rows are samples.
        planted: $\theta^*$, `[d]`.
        noise_variance: $\sigma^2$.
        penalty: $\lambda\ge0$, where the objective is the mean squared error plus
            $\lambda\|\theta\|^2$.

    Returns:
        bias and variance. Cost: the singular values of the design.

    >>> phi = torch.eye(2).double() * 2**0.5                    # both eigenvalues are 1
    >>> parts = ridge_bias_variance(phi, torch.tensor([2.0, 0.0]).double(), 1.0, penalty=1.0)
    >>> round(float(parts.bias), 6), round(float(parts.variance), 6)         # 4/4 and 2/2/4
    (1.0, 0.25)
    """
    _design(features)
    nonnegative_number(noise_variance, "noise_variance")
    nonnegative_number(penalty, "penalty")
    if planted.shape != features.shape[-1:]:
        raise ShapeMismatch(
            f"the design has {features.shape[-1]} features and the planted weights "
            f"{list(planted.shape)}"
        )
    _, singular, directions = torch.linalg.svd(features, full_matrices=False)
    eigenvalues = singular.square() / len(features)
    # directions that no sample shows count for nothing at the points of the design
    seen = eigenvalues > torch.finfo(features.dtype).eps * max(features.shape) * eigenvalues.max()
    kept, along = eigenvalues[seen], (directions @ planted)[seen]
    bias = (penalty / (kept + penalty) * along).square() @ kept
    variance = noise_variance / len(features) * (kept / (kept + penalty)).square().sum()
    return BiasVariance(bias, variance)


def one_sample_variance(second_moment: Tensor) -> Tensor:
    r"""The mean of $\operatorname{tr}(S^+\,\mathbb E[XX^\top])$ for a single sample of signs.

    For $X\in\{-1,1\}^d$ the pseudo-inverse of $S=XX^\top$ is $XX^\top/d^2$, and
    the mean is $\|\mathbb E[XX^\top]\|_F^2/d^2$: $1/d$ for independent features, and 1
    where all are copies of one (Mathematical Aspects of Deep Learning, Eq. 1.29).

    Args:
        second_moment: $\mathbb E[XX^\top]$ `[d, d]`, with ones on its diagonal.

    >>> one_sample_variance(torch.eye(4)), one_sample_variance(torch.ones(4, 4))
    (tensor(0.2500), tensor(1.))
    """
    if not isinstance(second_moment, Tensor) or second_moment.ndim != 2:
        raise ShapeMismatch(
            f"the second moment must be a square matrix, not {described(second_moment)}"
        )
    d = len(second_moment)
    if d == 0 or second_moment.shape != (d, d):
        raise ShapeMismatch(
            f"the second moment must be a square matrix, not {list(second_moment.shape)}"
        )
    if not torch.allclose(second_moment.diagonal(), second_moment.new_ones(())):
        raise InvalidInput(
            "features of ±1 have ones on the diagonal of their second moment, not "
            f"{described(second_moment.diagonal().tolist())}"
        )
    return second_moment.square().sum() / d**2


def copied_signs_moment(dimension: int, copies: range | set[int] | tuple[int, ...]) -> Tensor:
    r"""$\mathbb E[XX^\top]$ of fair signs of which some repeat the first.

    $X_i=X_1$ for $i$ in `copies` (counted from 1), the others independent.

    >>> copied_signs_moment(3, (3,))
    tensor([[1., 0., 1.],
            [0., 1., 0.],
            [1., 0., 1.]], dtype=torch.float64)
    """
    whole_number(dimension, "dimension", least=1)
    same = torch.zeros(dimension, dtype=torch.float64)
    same[0] = 1.0
    for i in copies:
        if i < 2:
            raise InvalidInput(f"a copy of the first feature is one of 2, 3, ..., not {i}")
        if i <= dimension:
            same[i - 1] = 1.0
    return torch.outer(same, same) + torch.diag(1 - same)


def _design(features: Tensor) -> None:
    if not isinstance(features, Tensor) or not features.is_floating_point():
        raise InvalidType(
            f"the design must be a tensor of floating-point numbers, not {described(features)}"
        )
    if features.ndim < 2 or features.numel() == 0:
        raise ShapeMismatch(
            f"the design must be [..., samples, features], not {list(features.shape)}"
        )
    all_finite(features, "the design")
