r"""Smoothness and strong convexity of penalized regressions, in closed form.

$$
\mu I\preceq\nabla^2f\preceq LI
$$

Source: Foundations of Deep Learning, section 5.5, Definitions 19 and 20.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchtheory.core.checks import as_points, nonnegative_number
from torchtheory.neurons.regression import logistic_smoothness


def ridge_constants(x: Tensor, penalty: float = 0.0) -> tuple[float, float]:
    r"""$\mu$ and $L$ of $\frac1{2n}\|Xw-y\|^2+\frac\alpha2\|w\|^2$.

    The ends of the spectrum of $\frac1nX^\top X$, plus $\alpha$; both are attained
    everywhere, the function being quadratic. Without a penalty and with fewer independent rows
    than columns $\mu$ is 0. Time $O(nd\min(n,d))$.

    Args:
        x: `[n, d]`.
        penalty: $\alpha\ge0$.

    >>> ridge_constants(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), penalty=0.5)
    (1.0, 2.5)
    """
    x = _checked(x, penalty)
    # singular values of X, not eigenvalues of its square: a small one keeps twice the digits
    values = torch.linalg.svdvals(x)
    largest, least = float(values[0]), float(values[-1])
    if x.shape[0] < x.shape[1] or least <= max(x.shape) * torch.finfo(x.dtype).eps * largest:
        least = 0.0
    return least**2 / len(x) + penalty, largest**2 / len(x) + penalty


def logistic_ridge_constants(x: Tensor, penalty: float = 0.0) -> tuple[float, float]:
    r"""$\mu$ and $L$ of $\frac1n\sum_i\log(1+e^{-y_i\langle w,x_i\rangle}) +\frac\alpha2\|w\|^2$.

    $L=\frac1{4n}\lambda_{\max}(X^\top X)+\alpha$, attained at $w=0$;
    $\mu=\alpha$, approached far away, where the loss is nearly straight. The labels do not
    matter.

    >>> logistic_ridge_constants(torch.eye(2), penalty=0.5)
    (0.5, 0.625)
    """
    x = _checked(x, penalty)
    return penalty, logistic_smoothness(x) + penalty


def _checked(x: Tensor, penalty: float) -> Tensor:
    nonnegative_number(penalty, "the penalty")
    return as_points(x)
