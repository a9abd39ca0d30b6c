r"""Networks with one hidden layer of which the first is trained, and their kernel in closed form.

$$
f(W,x)=\frac1{\sqrt m}\sum_{r=1}^ma_r\,\sigma(w_r^\top x)
$$

The tangent kernel on data $x_1,\dots,x_n$ (rows of `x[n, d]`) is the Gram matrix
$H_{ij}=\frac1m\sum_ra_r^2\,x_i^\top x_j\,\sigma'(w_r^\top x_i)\sigma'(w_r^\top x_j)$; its
mean over standard normal weights is what it becomes as the width grows. Source: Foundations of
Deep Learning, exercises 7.4 and of chapter 8.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from torchtheory.core.checks import all_finite, as_points, whole_number
from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch
from torchtheory.core.random import RandomSource, as_generator, gaussian, rademacher
from torchtheory.kernels.learning.functions import arc_cosine
from torchtheory.nets.activations.moments import Function, slope_of
from torchtheory.nets.activations.table import as_layer
from torchtheory.primer.gaussian_pairs import gaussian_pair_mean


class TwoLayerNetwork(nn.Module):
    r"""$f(W,x)=m^{-1/2}\sum_ra_r\sigma(w_r^\top x)$; the weights $W$ are trained, the
    outputs $a$ are not.

    With $a_r=1$ for all units and ReLU, the mean of $f$ at random weights grows like
    $\sqrt{m/2\pi}\,\|x\|$; with random signs it is 0, and the Gram matrix is the same.

    Args:
        weight: $W$, `[m, d]`.
        outputs: $a$, `[m]`; all ones unless given.
        activation: $\sigma$.

    The forward pass maps `[n, d]` to `[n, 1]`.

    >>> net = TwoLayerNetwork(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    >>> net(torch.tensor([[4.0, -1.0]])).detach()             # (4 + 0) / sqrt(2)
    tensor([[2.8284]])
    """

    outputs: Tensor

    def __init__(
        self, weight: Tensor, outputs: Tensor | None = None, activation: Function = "relu"
    ) -> None:
        super().__init__()
        weight = as_points(weight, "weight")
        if outputs is None:
            outputs = weight.new_ones(len(weight))
        if outputs.shape != weight.shape[:1]:
            raise ShapeMismatch(
                f"{len(weight)} units have {len(weight)} output weights, not {list(outputs.shape)}"
            )
        all_finite(outputs, "the output weights")
        self.weight = nn.Parameter(weight.clone())
        self.register_buffer("outputs", outputs.detach().to(weight).clone())
        self.activation = as_layer(activation)

    @classmethod
    def random(
        cls,
        width: int,
        dimension: int,
        *,
        outputs: Literal["signs", "ones"] = "signs",
        activation: Function = "relu",
        generator: RandomSource = None,
        dtype: torch.dtype = torch.float64,
    ) -> TwoLayerNetwork:
        r"""Weights $w_r\sim\mathcal N(0,I)$, and random signs or ones as outputs.

        >>> TwoLayerNetwork.random(5, 3).weight.shape
        torch.Size([5, 3])
        """
        whole_number(width, "width", least=1)
        whole_number(dimension, "dimension", least=1)
        if outputs not in ("signs", "ones"):
            raise InvalidInput(f"outputs must be 'signs' or 'ones', not {outputs!r}")
        generator = as_generator(generator)
        weight = gaussian(width, dimension, generator=generator, dtype=dtype)
        signs = rademacher(width, generator=generator, dtype=dtype) if outputs == "signs" else None
        return cls(weight, signs, activation)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.activation(nn.functional.linear(x, self.weight))
        return (hidden @ self.outputs / math.sqrt(len(self.weight)))[..., None]


def sampled_gram(x: Tensor, weight: Tensor, activation: Function = "relu") -> Tensor:
    r"""$\hat G_{ij}=\frac1m\sum_kx_i^\top x_j\,\sigma'(w_k^\top x_i)\sigma'(w_k^\top x_j)$,
    `[n, n]`.

    It is the tangent kernel of `TwoLayerNetwork` when $|a_k|=1$; for other outputs
    each term has the factor $a_k^2$. For ReLU it counts the units on which both points are
    active. Costs $O(n(n+d)m)$.

    Args:
        x: `[n, d]`.
        weight: `[m, d]`.
        activation: $\sigma$.

    >>> x = torch.eye(2).double()
    >>> sampled_gram(x, torch.tensor([[1.0, 1.0], [1.0, -1.0]]).double())
    tensor([[1.0000, 0.0000],
            [0.0000, 0.5000]], dtype=torch.float64)
    """
    x, weight = as_points(x), _weights(x, weight)
    slopes = slope_of(activation)(x @ weight.T)
    return (x @ x.T) * (slopes @ slopes.T) / len(weight)


def expected_gram(x: Tensor, activation: Function = "relu") -> Tensor:
    r"""$G_{ij}=\mathbb E_{w\sim\mathcal N(0,I)}\,x_i^\top x_j\,\sigma'(w^\top x_i)
    \sigma'(w^\top x_j)$, `[n, n]`: the Gram matrix at infinite width, by quadrature.

    As accurate as `gaussian_pair_mean`: rounding for
    points of length up to 3 and every $\sigma$ that is smooth on either side of 0. For ReLU
    `relu_gram_limit` has it in closed form. About 90 000 values of $\sigma'$ a pair,
    about a minute for 200 points.

    >>> x = torch.tensor([[1.0, 0.0], [0.6, 0.8]]).double()
    >>> bool(torch.allclose(expected_gram(x), relu_gram_limit(x), atol=1e-12))
    True
    """
    x = as_points(x)
    slope = slope_of(activation)
    inner = x @ x.T
    i, j = torch.triu_indices(len(x), len(x), device=x.device)
    squares = inner.diagonal()
    upper = gaussian_pair_mean(slope, slope, squares[i], squares[j], inner[i, j])
    means = torch.empty_like(inner)
    means[i, j] = means[j, i] = upper
    return inner * means


def relu_gram_limit(x: Tensor) -> Tensor:
    r"""$H^\infty_{ij}=x_i^\top x_j\,\frac{\pi-\angle(x_i,x_j)}{2\pi}$, `[n, n]`.

    The tangent kernel of the first layer of an infinitely wide ReLU network, for points of any
    length; for unit vectors the angle is $\arccos(x_i^\top x_j)$ (Eq. 7.14). Its trace is
    $\frac12\sum_i\|x_i\|^2$. Costs $O(n^2d)$.

    >>> relu_gram_limit(torch.tensor([[1.0, 0.0], [0.5, 0.75**0.5], [-1.0, 0.0]]).double())[0]
    tensor([0.5000, 0.1667, -0.0000], dtype=torch.float64)
    """
    x = as_points(x)
    # a zero vector has any angle
    directions = torch.where(x.any(1, keepdim=True), x, 1.0)
    return (x @ x.T) * arc_cosine(0)(directions)


def relu_gram_coefficients(terms: int, dtype: torch.dtype = torch.float64) -> Tensor:
    r"""The coefficients $\frac{(2l)!}{2^{2l}(l!)^2(2l+1)}$ of $z^{2l+2}/2\pi$ in
    $H^\infty$, for $l<$ `terms`. They are those of $\arcsin$, all positive.

    >>> relu_gram_coefficients(3) * torch.tensor([1.0, 6.0, 40.0])
    tensor([1., 1., 3.], dtype=torch.float64)
    """
    whole_number(terms, "terms", least=1)
    order = torch.arange(1, terms, dtype=dtype)
    binomials = torch.cat([order.new_ones(1), ((2 * order - 1) / (2 * order)).cumprod(0)])
    return binomials / (2 * torch.arange(terms, dtype=dtype) + 1)


def relu_gram_series(x: Tensor, terms: int) -> Tensor:
    r"""$H^\infty$ of unit vectors by its power series, `[n, n]`: with
    $z=x_i^\top x_j$,

    $$
    H^\infty_{ij}=\frac z4+\frac1{2\pi}\sum_{l\ge0}
    \frac{(2l)!}{2^{2l}(l!)^2}\frac{z^{2l+2}}{2l+1}.
    $$

    All coefficients are positive, so that by Schur's product theorem
    $H^\infty\succeq\frac14 XX^\top$. For $|z|<1$ the error falls like $z^{2l}$; on the diagonal
    only like $l^{-1/2}$.

    >>> x = torch.tensor([[1.0, 0.0], [0.5, 0.75**0.5]], dtype=torch.float64)
    >>> round(float(relu_gram_series(x, 40)[0, 1]), 12)          # a sixth
    0.166666666667
    """
    x = as_points(x)
    if float((x.norm(dim=1) - 1).abs().max()) > 1e4 * torch.finfo(x.dtype).eps:
        raise InvalidInput("the series is in the cosine: normalize the rows of x first")
    z = x @ x.T
    total = torch.zeros_like(z)
    for c in relu_gram_coefficients(terms, x.dtype).flip(0).tolist():  # Horner
        total = total * z.square() + c
    return z / 4 + z.square() * total / (2 * math.pi)


def _weights(x: Tensor, weight: Tensor) -> Tensor:
    if not isinstance(weight, Tensor):
        raise InvalidType(f"the weights must be a torch tensor, not {type(weight).__name__}")
    if weight.ndim != 2 or weight.shape[1] != x.shape[1] or not len(weight):
        raise ShapeMismatch(
            f"x has {x.shape[1]} features: the weights must be [width, {x.shape[1]}], not "
            f"{list(weight.shape)}"
        )
    all_finite(weight, "the weights")
    return weight.detach().to(x)
