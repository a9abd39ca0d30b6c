r"""Three ways through every point: benign, tempered and catastrophic overfitting on a line.

Each interpolator is linear in the targets, $f(x)=\sum_iL_i(x)y_i$, with weights that sum to
1. Noise of variance $\sigma^2$ on the targets costs $\sigma^2\sum_iL_i(x)^2$ at
$x$, exactly. Source: Foundations of Deep Learning, section 13.3 (after Mallinar et al. 2022).
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchtheory.core.checks import all_finite, described, positive_number
from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType, ShapeMismatch


def singular_kernel_weights(x: Tensor, nodes: Tensor, exponent: float = 1.0) -> Tensor:
    r"""Nadaraya and Watson's average with a kernel that is infinite at 0.

    $L_i(x)=|x-x_i|^{-a}/\sum_j|x-x_j|^{-a}$, and 1 at $x_i$ itself. With
    $a=1$, the dimension, the noise dies out, as $1/\ln n$ (Devroye, Györfi and Krzyżak
    1998): benign.

    Args:
        x: points `[t]`.
        nodes: training points `[n]`, all different.
        exponent: $a>0$.

    Returns:
        `[t, n]`.

    >>> singular_kernel_weights(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 3.0]))
    tensor([[0.7500, 0.2500],
            [1.0000, 0.0000]])
    """
    _on_a_line(x, nodes)
    positive_number(exponent, "the exponent")
    distance = (x[:, None] - nodes).abs()
    # relative to the nearest node, so that no power overflows
    nearest = distance.min(1, keepdim=True).values
    weights = torch.where(nearest > 0, (nearest / distance) ** exponent, (distance == 0).to(x))
    return weights / weights.sum(1, keepdim=True)


def piecewise_linear_weights(x: Tensor, nodes: Tensor) -> Tensor:
    r"""The broken line through the points; constant beyond the first and the last.

    Between two nodes the weights are $1-t$ and $t$, whose squares have the mean
    $\frac23$: tempered. Shapes as for `singular_kernel_weights`.

    >>> piecewise_linear_weights(torch.tensor([0.25, 2.0]), torch.tensor([0.0, 1.0]))
    tensor([[0.7500, 0.2500],
            [0.0000, 1.0000]])
    """
    _on_a_line(x, nodes)
    if len(nodes) == 1:
        return torch.ones_like(x)[:, None]
    ordered, order = nodes.sort()
    right = torch.searchsorted(ordered, x.contiguous()).clamp(1, len(nodes) - 1)
    left = right - 1
    t = ((x - ordered[left]) / (ordered[right] - ordered[left])).clamp(0, 1)
    weights = x.new_zeros(len(x), len(nodes))
    weights.scatter_(1, order[left][:, None], (1 - t)[:, None])
    weights.scatter_(1, order[right][:, None], t[:, None])
    return weights


def polynomial_weights(x: Tensor, nodes: Tensor) -> Tensor:
    r"""Lagrange's polynomials $L_i(x)=\prod_{j\ne i}\frac{x-x_j}{x_i-x_j}$ of degree
    $n-1$.

    Between nodes that are spread evenly they grow exponentially with $n$: catastrophic. By
    sums of logarithms, so that nothing overflows before the result does. Shapes as for
    `singular_kernel_weights`; cost $O(tn^2)$.

    >>> polynomial_weights(torch.tensor([3.0]), torch.tensor([0.0, 1.0, 2.0])).round(decimals=3)
    tensor([[ 1., -3.,  3.]])
    """
    _on_a_line(x, nodes)
    own = torch.eye(len(nodes), dtype=torch.bool, device=x.device)
    top = x[:, None] - nodes  # [t, n]
    bottom = (nodes[:, None] - nodes).masked_fill(own, 1.0)
    above = top[:, None, :].masked_fill(own, 1.0)  # without the factor of the node itself
    size = (above.abs().log().sum(2) - bottom.abs().log().sum(1)).exp()
    return size * above.sign().prod(2) * bottom.sign().prod(1)


def noise_amplification(weights: Tensor) -> Tensor:
    r"""The mean of $\sum_iL_i(x)^2$ over the points: what unit noise adds to the risk.

    1 where the prediction at each point is one target, $1/n$ where it is the mean of all.

    >>> noise_amplification(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
    tensor(0.7500)
    """
    if weights.ndim != 2 or weights.numel() == 0:
        raise ShapeMismatch(f"weights must be [points, nodes], not {list(weights.shape)}")
    return weights.square().sum(1).mean()


def _on_a_line(x: Tensor, nodes: Tensor) -> None:
    for name, values in (("x", x), ("nodes", nodes)):
        if not isinstance(values, Tensor) or not values.is_floating_point():
            raise InvalidType(f"{name} must be a tensor of floating-point numbers")
        if values.ndim != 1:
            raise ShapeMismatch(f"{name} must be points on a line, [n], not {list(values.shape)}")
        if values.numel() == 0:
            raise EmptyData(f"{name} is empty")
        all_finite(values, name)
    if bool((nodes.sort().values.diff() == 0).any()):
        raise InvalidInput(
            "the nodes must be different points: two targets at one cannot be met (given: "
            f"{described(nodes.tolist())})"
        )
