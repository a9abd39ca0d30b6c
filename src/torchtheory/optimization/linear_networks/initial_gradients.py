r"""How large the gradients of a deep linear network are before training.

The network is $\hat y=W^L\cdots W^1x$ with
$W^\ell\in\mathbb R^{d_\ell\times d_{\ell-1}}$; the loss is
$\frac12\|\hat y-y\|^2$, or the cross-entropy of
$\operatorname{softmax}(\hat y)$. Source: Foundations of Deep Learning, sections 6.2 and 6.3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from torchtheory.core.checks import positive_number
from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    ShapeMismatch,
    UnknownName,
)
from torchtheory.optimization.linear_networks.matrix_moments import (
    PerLayer,
    forward_norms,
    fourth_moments,
    gram_moments,
    per_layer,
    sized_vector,
)

LinearLoss = Literal["square", "cross-entropy"]


def sample_gradients(
    layers: Sequence[Tensor], x: Tensor, y: Tensor, loss: LinearLoss = "square"
) -> list[Tensor]:
    r"""The gradient in every weight matrix, of one sample; many networks at once.

    $$
    \frac{\partial\ell}{\partial W^k}=\delta^k(a^{k-1})^\top,\qquad
    a^k=W^ka^{k-1},\ a^0=x,\qquad \delta^k=(W^{k+1})^\top\delta^{k+1},
    $$

    with $\delta^L=\hat y-y$ for the squared loss and
    $\operatorname{softmax}(\hat y)-y$ for the cross-entropy: an outer product, of rank one.

    Args:
        layers: $W^1,\dots,W^L$, each `[..., d_l, d_{l-1}]`.
        x: `[..., d_0]`.
        y: `[..., d_L]`; probabilities for the cross-entropy.
        loss: which of the two.

    Returns:
        One tensor of the shape of each weight. For the mean over a sample see
        `deep_linear_gradients`. Time
        $O(\sum_\ell d_\ell d_{\ell-1})$ for each of the batch.

    >>> w = [torch.full((1, 1), 2.0), torch.full((1, 1), 3.0)]
    >>> [g.item() for g in sample_gradients(w, torch.ones(1), torch.zeros(1))]   # ½(w₂w₁)²
    [18.0, 12.0]
    """
    if not layers:
        raise EmptyData("a network has at least one layer")
    if loss not in ("square", "cross-entropy"):
        raise UnknownName("loss", loss, ["square", "cross-entropy"])
    kinds = {t.dtype for t in (*layers, x, y)}
    if len(kinds) > 1 or not x.is_floating_point():
        raise InvalidType(
            "weights, x and y must have one floating-point dtype, not "
            f"{', '.join(sorted(map(str, kinds)))}"
        )
    signals = [x]
    for k, w in enumerate(layers, 1):
        if w.ndim < 2 or w.shape[-1] != signals[-1].shape[-1]:
            raise ShapeMismatch(
                f"layer {k} has a weight {list(w.shape)} and gets {signals[-1].shape[-1]} numbers"
            )
        signals.append((w @ signals[-1].unsqueeze(-1)).squeeze(-1))
    out = signals[-1]
    if y.shape[-1:] != out.shape[-1:]:
        raise ShapeMismatch(f"the network gives {out.shape[-1]} numbers, y has {list(y.shape)}")
    delta = (out if loss == "square" else torch.softmax(out, -1)) - y
    found = []
    for w, before in zip(reversed(layers), reversed(signals[:-1]), strict=True):
        found.append(delta.unsqueeze(-1) * before.unsqueeze(-2))
        delta = (w.mT @ delta.unsqueeze(-1)).squeeze(-1)
    return found[::-1]


def gradient_second_moments(
    x: Tensor,
    y: Tensor,
    widths: Sequence[int],
    deviations: PerLayer,
    kurtosis: PerLayer = 3.0,
) -> list[float]:
    r"""$\mathbb E\|\partial\ell/\partial W^k\|_F^2$ over random weights, for every layer.

    For the squared loss and independent entries of mean 0,

    $$
    \mathbb E\Bigl\|\frac{\partial\ell}{\partial W^k}\Bigr\|_F^2=\sigma_k^2\,
    \mathbb E\|W^{k-1:1}x\|^4\;\mathbb E\|(W^{L:k+1})^\top W^{L:k+1}\|_F^2
    +\|x\|^2\|y\|^2\prod_{j<k}d_j\sigma_j^2\prod_{j>k}d_{j-1}\sigma_j^2 .
    $$

    It is an equality: what is linear in $W^k$ has mean 0. Every factor comes from
    `matrix_moments`, for any widths and any kurtosis. Time
    $O(L)$.

    Args:
        x: `[d_0]`.
        y: `[d_L]`.
        widths: $d_0,\dots,d_L$.
        deviations: $\sigma_\ell$.
        kurtosis: of the entries.

    >>> x, y = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 2.0])
    >>> found = gradient_second_moments(x, y, [2, 2, 2], 0.5**0.5)
    >>> [round(v, 9) for v in found]                                # 2.5 + 4 and 2 + 4
    [6.5, 6.0]
    """
    depth = _depth(widths)
    sigmas = per_layer(deviations, depth, "deviations")
    kappas = per_layer(kurtosis, depth, "kurtoses")
    size = float(sized_vector(y, widths[-1], "y").square().sum())
    size *= float(sized_vector(x, widths[0], "x").square().sum())
    ahead = forward_norms(widths, sigmas)
    fourth = fourth_moments(x, widths, sigmas, kappas)
    # the transposed network, whose first layers are the last ones
    back = forward_norms(widths[::-1], sigmas[::-1])
    behind = gram_moments(widths[::-1], sigmas[::-1], kappas[::-1])
    return [
        sigmas[k] ** 2 * fourth[k].euclidean * behind[depth - k - 1].norm
        + ahead[k] * back[depth - k - 1] * size
        for k in range(depth)
    ]


def gaussian_gradient_moment(
    layer: int, depth: int, width: int, deviation: float, rho: float, gamma: float
) -> float:
    r"""The same in closed form, for normal weights and equal widths.

    $$
    \frac{\rho\,\sigma^{4L-2}}3\,a^{k-1}\bigl(a^{L-k+1}-b^{L-k+1}\bigr)
    +\gamma(\sigma^2d)^{L-1},\qquad a=d(d+2),\ b=d(d-1),
    $$

    where $\rho=\|x\|^4$ and $\gamma=\|x\|^2\|y\|^2$. For $\sigma^2=1/d$ and
    $d\to\infty$ it tends to $\rho(L-k+1)+\gamma$; at a given width the first term grows
    like $(1+2/d)^L$.

    >>> round(gaussian_gradient_moment(1, 2, 2, 0.5**0.5, 1.0, 0.0), 9)
    2.5
    """
    _check_square(depth, width, deviation)
    if not 1 <= layer <= depth:
        raise InvalidInput(f"the layer must lie in 1..{depth}, not {layer}")
    m = depth - layer + 1
    # both powers divided by a^m, which may be beyond what a float holds
    rest = -math.expm1(m * math.log((width - 1) / (width + 2))) if width > 1 else 1.0
    own, target = _two_terms(depth, width, deviation, rho, gamma)
    return own * rest + target


def gaussian_gradient_bound(
    depth: int, width: int, deviation: float, rho: float, gamma: float
) -> float:
    r"""$\frac{2\rho}{3\sigma^2}(\sigma^4d(d+2))^L+2\gamma(\sigma^2d)^{L-1}$, the bound of
    Theorem 52 for every layer.

    It is more than twice `gaussian_gradient_moment`.

    >>> round(gaussian_gradient_bound(2, 2, 0.5**0.5, 1.0, 0.0), 6)
    5.333333
    """
    _check_square(depth, width, deviation)
    own, target = _two_terms(depth, width, deviation, rho, gamma)
    return 2 * own + 2 * target


def softmax_gradient_bound(x: Tensor, widths: Sequence[int], deviations: PerLayer) -> list[float]:
    r"""A bound of $\mathbb E\|\partial\ell/\partial W^k\|_F^2$ for the cross-entropy.

    Whatever the weights, $\|p-y\|^2\le2$, so that
    $\|(W^{L:k+1})^\top(p-y)\|^2\le2\,\|W^{L:k+1}\|_F^2$ although $p$ depends on them,
    and

    $$
    \mathbb E\Bigl\|\frac{\partial\ell}{\partial W^k}\Bigr\|_F^2\le
    2\,\|x\|^2\prod_{j=1}^Ld_j\prod_{j\ne k}\sigma_j^2 .
    $$

    For equal widths and deviations it is $2d(d\sigma^2)^{L-1}\|x\|^2$, the same for every
    layer, and stable in depth at $\sigma=1/\sqrt d$.

    >>> softmax_gradient_bound(torch.ones(4), [4, 4, 4], 0.5)
    [32.0, 32.0]
    """
    depth = _depth(widths)
    sigmas = per_layer(deviations, depth, "deviations")
    size = 2 * float(sized_vector(x, widths[0], "x").square().sum()) * widths[-1]
    ahead, back = forward_norms(widths, sigmas), forward_norms(widths[::-1], sigmas[::-1])
    return [size * ahead[k] * back[depth - k - 1] for k in range(depth)]


def _two_terms(
    depth: int, width: int, deviation: float, rho: float, gamma: float
) -> tuple[float, float]:
    r"""$\frac{\rho}{3\sigma^2}(\sigma^4d(d+2))^L$ and $\gamma(\sigma^2d)^{L-1}$."""
    if not (rho >= 0 and gamma >= 0):
        raise InvalidInput(f"rho and gamma are at least 0, not {rho} and {gamma}")
    area = width * (width + 2)
    # nothing is infinite that has the factor 0
    own = rho and rho / 3 * deviation**2 * area * _power(deviation**4 * area, depth - 1)
    target = gamma and gamma * _power(deviation**2 * width, depth - 1)
    return own, target


def _power(base: float, exponent: int) -> float:
    try:
        return float(base**exponent)
    except OverflowError:
        return math.inf


def _depth(widths: Sequence[int]) -> int:
    if len(widths) < 2:
        raise EmptyData(
            f"a network has at least one layer, which takes two widths, not {list(widths)}"
        )
    return len(widths) - 1


def _check_square(depth: int, width: int, deviation: float) -> None:
    if depth < 1 or width < 1:
        raise InvalidInput(f"depth and width are at least 1, not {depth} and {width}")
    positive_number(deviation, "the deviation")
