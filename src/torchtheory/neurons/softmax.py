r"""Softmax: its Jacobian, its invariance, and the gauge that removes it.

The function itself is `torch.softmax`. Source: Foundations of Deep Learning, section 2.4.4;
Deep Learning (notes), section 2.2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchtheory.core.errors import ShapeMismatch


def softmax_jacobian(z: Tensor) -> Tensor:
    r"""$\partial p_i/\partial z_j=p_i(\delta_{ij}-p_j)$, i.e.
    $\mathrm{diag}(p)-pp^\top$, for `z[..., k]`; gives `[..., k, k]`.

    >>> softmax_jacobian(torch.zeros(2))
    tensor([[ 0.2500, -0.2500],
            [-0.2500,  0.2500]])
    """
    p = torch.softmax(z, dim=-1)
    return torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)


def fix_gauge(weights: Tensor) -> Tensor:
    r"""Subtract the last class from all: $\theta_i\leftarrow\theta_i-\theta_k$.

    Adding one vector to every $\theta_i$ changes no probability, so the parameters of a
    softmax are determined only after such a choice; here the last row becomes 0.

    Args:
        weights: one row per class, `[k, n]`, or biases `[k]`.

    >>> fix_gauge(torch.tensor([[1.0, 2.0], [3.0, 5.0]]))
    tensor([[-2., -3.],
            [ 0.,  0.]])
    """
    if weights.ndim not in (1, 2) or len(weights) == 0:
        raise ShapeMismatch(f"weights must be [classes, features], not {list(weights.shape)}")
    return weights - weights[-1:]


def two_class_logit(weights: Tensor, x: Tensor) -> Tensor:
    r"""$x^\top(\theta_1-\theta_2)$, whose sigmoid is the first class's probability.

    Args:
        weights: `[2, n]`; x: `[s, n]`.

    >>> w, x = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[3.0, 1.0]])
    >>> torch.sigmoid(two_class_logit(w, x)), torch.softmax(x @ w.T, 1)[:, 0]
    (tensor([0.7311]), tensor([0.7311]))
    """
    if weights.ndim != 2 or len(weights) != 2:
        raise ShapeMismatch(f"two classes have weights [2, features], not {list(weights.shape)}")
    return x @ (weights[0] - weights[1])
