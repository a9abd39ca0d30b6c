r"""Normalization: what batch, layer and weight normalization compute, and what they leave free.

The layers themselves are torch's (`nn.BatchNorm1d`, `nn.LayerNorm`,
`nn.utils.parametrizations.weight_norm`). Here are the identities around them: batch
normalization after a linear layer is another parametrization of that layer, gradients under it are
orthogonal to the weights, and in evaluation mode it folds away. Sources: Deep Learning (notes),
sections 8.5 and 8.6; Foundations of Deep Learning, section 10.3.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.tracing.folding import fold_batch_norm as fold_batch_norm


def standardize(x: Tensor, dim: int, *, eps: float = 0.0, unbiased: bool = False) -> Tensor:
    r"""Mean 0 and, up to $\delta$, variance 1 along one dimension.

    $\tilde z=(z-\mu)/\sqrt{\delta+s^2}$, whose variance is $s^2/(s^2+\delta)$. Along
    the samples it is batch normalization, along the features of a sample layer normalization.

    Args:
        x: any tensor.
        dim: which dimension.
        eps: $\delta\ge0$.
        unbiased: divide the squares by $n-1$ instead of $n$.

    >>> standardize(torch.tensor([1.0, 2.0, 3.0, 4.0]), 0)
    tensor([-1.3416, -0.4472,  0.4472,  1.3416])
    """
    if eps < 0:
        raise InvalidInput(f"eps must be >= 0, not {eps}")
    if x.shape[dim] < (2 if unbiased else 1):
        raise ShapeMismatch(f"there are {x.shape[dim]} values along dimension {dim}: too few")
    variance = x.var(dim, correction=1 if unbiased else 0, keepdim=True)
    return (x - x.mean(dim, keepdim=True)) / (variance + eps).sqrt()


@dataclass(frozen=True, slots=True)
class NormalizedUnit:
    r"""A linear layer with batch normalization, written as one affine map.

    Attributes:
        weight: `[m, n]`, $\gamma w/\|w\|_\Sigma$.
        bias: `[m]`, $\mu-\gamma\,w^\top\mathbb Ex/\|w\|_\Sigma$.
        norm_ratio: `[m]`, $\|w\|_2/\|w\|_\Sigma$; where it is 1, batch normalization is
            weight normalization.
    """

    weight: Tensor
    bias: Tensor
    norm_ratio: Tensor


def reparametrize(
    weight: Tensor,
    x: Tensor,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    *,
    eps: float = 0.0,
) -> NormalizedUnit:
    r"""Batch normalization of $w^\top x$ over a batch, as a normalized weight.

    $$
    \mu+\gamma\frac{w^\top x-\mathbb E[w^\top x]}{\sqrt{\operatorname{Var}[w^\top x]}}
    =\mu+\gamma\frac{w^\top(x-\mathbb Ex)}{\|w\|_\Sigma},\qquad
    \Sigma=\operatorname{Cov}(x),\quad\|w\|_\Sigma=\sqrt{w^\top\Sigma w}.
    $$

    The covariance, not $\mathbb E[xx^\top]$: the two agree only for centered inputs.
    $\Sigma$ is not formed; time $O(smn)$.

    Args:
        weight: `[m, n]`; a bias would cancel.
        x: `[s, n]`, the batch.
        scale, shift: $\gamma$ and $\mu$, `[m]`; 1 and 0 unless given.
        eps: added to the variance; torch's layers have $10^{-5}$.

    >>> x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 2.0], [0.0, -2.0]])
    >>> reparametrize(torch.tensor([[3.0, 0.0]]), x).weight
    tensor([[1.4142, 0.0000]])
    """
    if weight.ndim != 2 or x.ndim != 2 or weight.shape[1] != x.shape[1] or len(x) == 0:
        raise ShapeMismatch(
            f"a weight [m, n] and a batch [s, n] are needed, not {list(weight.shape)} and "
            f"{list(x.shape)}"
        )
    mean = x.mean(0)
    variance = ((x - mean) @ weight.T).square().mean(0)
    if not bool((variance + eps > 0).all()):
        still = int((~(variance + eps > 0)).nonzero()[0])
        raise InvalidInput(f"unit {still} is constant on the batch, so it cannot be normalized")
    gamma = torch.ones_like(variance) if scale is None else scale
    beta = torch.zeros_like(variance) if shift is None else shift
    root = (variance + eps).sqrt()
    direction = (gamma / root)[:, None] * weight
    return NormalizedUnit(direction, beta - direction @ mean, weight.norm(dim=1) / root)


def weight_norm_gradient(gradient: Tensor, v: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    r"""Gradients in $\gamma$ and $v$ of a loss in $w=\gamma v/\|v\|$.

    $$
    \frac{\partial\ell}{\partial\gamma}=\frac{\partial\ell}{\partial w}\frac v{\|v\|},
    \qquad\frac{\partial\ell}{\partial v}
    =\frac\gamma{\|v\|}\frac{\partial\ell}{\partial w}
    \Bigl(I-\frac{vv^\top}{\|v\|^2}\Bigr).
    $$

    The second is orthogonal to $v$, so that gradient descent only ever lengthens it:
    $\|v_{t+1}\|^2=\|v_t\|^2+\eta^2\|\partial\ell/\partial v\|^2$.

    Args:
        gradient: `[..., n]`, $\partial\ell/\partial w$ of each unit.
        v: `[..., n]`, not zero.
        scale: `[...]`, $\gamma$.

    >>> weight_norm_gradient(torch.tensor([1.0, 1.0]), torch.tensor([2.0, 0.0]), torch.tensor(4.0))
    (tensor(1.), tensor([0., 2.]))
    """
    if gradient.shape != v.shape or scale.shape != v.shape[:-1]:
        raise ShapeMismatch(
            f"gradient and v must be [..., n] and scale [...], not {list(gradient.shape)}, "
            f"{list(v.shape)} and {list(scale.shape)}"
        )
    norm = v.norm(dim=-1, keepdim=True)
    if not bool((norm > 0).all()):
        raise InvalidInput("v must not be zero: it has no direction")
    direction = v / norm
    along = (gradient * direction).sum(-1)
    across = gradient - along[..., None] * direction
    return along, scale[..., None] / norm * across


def chain_step_coefficients(weights: Tensor, gradients: Tensor) -> Tensor:
    r"""Coefficients of $\prod_l(w_l-\eta g_l)$ in powers of $\eta$, constant first.

    A gradient step on the scalar chain $y=w_L\cdots w_1x$ changes all the weights at once,
    and the new output is a polynomial of degree $L$ in the step size: the coupling of the
    layers that batch normalization is meant to loosen. Time $O(L^2)$.

    Args:
        weights, gradients: `[L]`.

    >>> chain_step_coefficients(torch.tensor([2.0, 3.0]), torch.tensor([1.0, 1.0]))
    tensor([ 6., -5.,  1.])
    """
    if weights.shape != gradients.shape or weights.ndim != 1 or len(weights) == 0:
        raise ShapeMismatch(
            f"L weights and L gradients are needed, not {list(weights.shape)} and "
            f"{list(gradients.shape)}"
        )
    coefficients = torch.ones(1, dtype=weights.dtype, device=weights.device)
    for w, g in zip(weights, gradients, strict=True):
        longer = nn.functional.pad(coefficients, (0, 1))
        coefficients = w * longer - g * longer.roll(1)
    return coefficients
