r"""Cross-entropy of a softmax and of a sigmoid, with the derivatives written out.

The values are torch's own `F.cross_entropy` and `F.binary_cross_entropy_with_logits`; what is
here are their derivatives, link by link. Source: Foundations of Deep Learning, sections 2.4.4
(softmax and cross-entropy) and 2.7.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.core.checks import first_entry
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.training.losses.classification import one_hot_rows


def softmax_regression_loss(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    r"""The mean of $-\sum_iy_i\,x^\top\theta_i+\ln\sum_i\exp(x^\top\theta_i)$.

    The form with the normalizer separated; it equals $-\sum_iy_i\ln\sigma_i(x)$, which
    `F.cross_entropy(x @ theta.T, y)` computes.

    Args:
        theta: one row per class, `[k, n]`.
        x: samples `[s, n]`.
        y: labels `[s]`, or rows of probabilities `[s, k]`.

    >>> x, y = torch.tensor([[1.0, 2.0]]), torch.tensor([1])
    >>> softmax_regression_loss(torch.zeros(3, 2), x, y)                    # log 3
    tensor(1.0986)
    """
    scores = _scores(theta, x)
    rows = one_hot_rows(scores, y)
    return (torch.logsumexp(scores, dim=1) - (rows * scores).sum(1)).mean()


def softmax_regression_gradient(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    r"""The gradient `[k, n]` of the mean: row $i$ is the mean of
    $(\sigma_i-y_i)\,x$. Its rows sum to 0.

    >>> x, y = torch.tensor([[1.0, 2.0]]), torch.tensor([1])
    >>> softmax_regression_gradient(torch.zeros(2, 2), x, y)
    tensor([[ 0.5000,  1.0000],
            [-0.5000, -1.0000]])
    """
    scores = _scores(theta, x)
    return (torch.softmax(scores, dim=1) - one_hot_rows(scores, y)).T @ x / len(x)


def binary_cross_entropy(z: Tensor, y: Tensor) -> Tensor:
    r"""$-[y\log\hat y+(1-y)\log(1-\hat y)]$ with $\hat y=\sigma(z)$, entry by entry.

    >>> binary_cross_entropy(torch.tensor([0.0, -800.0]), torch.tensor([1.0, 1.0])).tolist()
    [0.693147..., 800.0]
    """
    _check_binary(z, y)
    return F.binary_cross_entropy_with_logits(z, y.to(z), reduction="none")


def binary_cross_entropy_slope(z: Tensor, y: Tensor) -> Tensor:
    r"""$dL/dz=\hat y-y$: the product of the two links below.

    >>> binary_cross_entropy_slope(torch.zeros(1), torch.ones(1))
    tensor([-0.5000])
    """
    _check_binary(z, y)
    return torch.sigmoid(z) - y.to(z)


def slope_in_probability(probability: Tensor, y: Tensor) -> Tensor:
    r"""$\partial L/\partial\hat y=-\bigl[\frac y{\hat y}-\frac{1-y}{1-\hat y}\bigr]$.

    >>> slope_in_probability(torch.tensor([0.25]), torch.tensor([1.0]))
    tensor([-4.])
    """
    _check_binary(probability, y)
    if not bool(((probability > 0) & (probability < 1)).all()):
        found = first_entry(probability, "probability", ~((probability > 0) & (probability < 1)))
        raise InvalidInput(f"probabilities must lie strictly between 0 and 1: {found}")
    y = y.to(probability)
    return -(y / probability - (1 - y) / (1 - probability))


def _check_binary(z: Tensor, y: Tensor) -> None:
    if z.shape != y.shape:
        raise ShapeMismatch(
            f"outputs are {list(z.shape)} and targets {list(y.shape)}: one target an output"
        )
    if not bool(((y >= 0) & (y <= 1)).all()):
        raise InvalidInput(
            "binary targets are 0, 1 or a probability between; map -1, 1 first ("
            f"{first_entry(y, 'y', ~((y >= 0) & (y <= 1)))})"
        )


def _scores(theta: Tensor, x: Tensor) -> Tensor:
    if theta.ndim != 2 or x.ndim != 2 or theta.shape[1] != x.shape[1]:
        raise ShapeMismatch(
            f"theta [classes, features] and x [samples, features] are needed, not "
            f"{list(theta.shape)} and {list(x.shape)}"
        )
    return x @ theta.T
