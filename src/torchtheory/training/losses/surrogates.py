r"""Regression and binary classification: the loss that counts and the one that is minimized.

For labels $y\in\{\pm1\}$ the 0-1 loss $1_{(-\infty,0)}(y f(x))$ is what a classifier
is judged by, and the logistic loss $\log(1+e^{-yf(x)})$ a differentiable surrogate for it.
Source: Mathematical Aspects of Deep Learning, Definition 1.2 and Remark 1.9.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.core.checks import first_entry
from torchtheory.core.errors import InvalidInput, LabelOutOfRange, ShapeMismatch


def quadratic_loss(outputs: Tensor, y: Tensor) -> Tensor:
    r"""$(f(x)-y)^2$, entry by entry.

    >>> quadratic_loss(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 2.0]))
    tensor([4., 0.])
    """
    _same_shape(outputs, y)
    return (outputs - y).square()


def zero_one_loss(outputs: Tensor, y: Tensor) -> Tensor:
    r"""$1_{(-\infty,0)}(y f(x))$, entry by entry.

    For $f(x)\in\{\pm1\}$ it is $(1-yf(x))/2=1[f(x)\ne y]$. A real-valued output of
    exactly 0 counts as right for *either* label, so that the zero function has no error: compose
    with the sign (`torchtheory.nets.feedforward.decide`) first.

    >>> zero_one_loss(torch.tensor([-2.0, 0.0, 3.0]), torch.tensor([1, 1, 1]))
    tensor([1., 0., 0.])
    """
    return (outputs * _signs(outputs, y) < 0).to(outputs)


def logistic_surrogate(outputs: Tensor, y: Tensor) -> Tensor:
    r"""$\log(1+e^{-yf(x)})$, entry by entry.

    The cross-entropy of the label $(y+1)/2$ and the probability
    $\varrho_\sigma(f(x))$. Divided by $\log2$ it is an upper bound of the 0-1 loss.

    >>> logistic_surrogate(torch.zeros(1), torch.tensor([-1]))
    tensor([0.6931])
    """
    # not F.softplus, which is rounded to a line beyond 20
    return -F.logsigmoid(outputs * _signs(outputs, y))


def logistic_surrogate_slope(outputs: Tensor, y: Tensor) -> Tensor:
    r"""The derivative $-y\,\varrho_\sigma(-yf(x))$ in the output.

    >>> logistic_surrogate_slope(torch.zeros(1), torch.tensor([-1]))
    tensor([0.5000])
    """
    signs = _signs(outputs, y)
    return -signs * torch.sigmoid(-outputs * signs)


def logistic_calibration(excess: Tensor) -> Tensor:
    r"""$\psi(\theta)=\frac{1+\theta}2\log(1+\theta)+\frac{1-\theta}2\log(1-\theta)$.

    What a small excess of logistic risk says of the 0-1 risk (Bartlett, Jordan and McAuliffe,
    2006): for every measurable $f$, decided by its sign,
    $\psi\bigl(R^{01}(f)-R^{01}_*\bigr)\le R^{\log}(f)-R^{\log}_*$, both risks compared with
    the least over *all* functions. Over a smaller class there is no such bound.

    >>> logistic_calibration(torch.tensor([0.0, 1.0]))                       # 0 and log 2
    tensor([0.0000, 0.6931])
    """
    if not bool(((excess >= 0) & (excess <= 1)).all()):
        raise InvalidInput(
            "an excess of 0-1 risk lies in [0, 1]: "
            f"{first_entry(excess, 'excess', ~((excess >= 0) & (excess <= 1)))}"
        )
    up, down = 1 + excess, 1 - excess
    return (torch.xlogy(up, up) + torch.xlogy(down, down)) / 2


def _signs(outputs: Tensor, y: Tensor) -> Tensor:
    _same_shape(outputs, y)
    if not bool(((y == 1) | (y == -1)).all()):
        raise LabelOutOfRange(
            "labels must be -1 or 1; map 0, 1 to them by 2 * y - 1 ("
            f"{first_entry(y, 'y', ~((y == 1) | (y == -1)))})"
        )
    return y.to(outputs)


def _same_shape(outputs: Tensor, y: Tensor) -> None:
    # no broadcasting: [n, 1] against [n] would pair every output with every label
    if outputs.shape != y.shape:
        raise ShapeMismatch(
            f"outputs are {list(outputs.shape)} and targets {list(y.shape)}: they must agree"
        )
