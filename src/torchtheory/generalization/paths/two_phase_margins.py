r"""The 0-1 risk of networks with frozen gates, bounded by margins.

The margin of a decision among classes is $t=f_y(x)-\max_{j\ne y}f_j(x)$. With gates that do
not depend on the $m_\sigma$ fresh samples a network is linear in its path weights, so the
Rademacher complexity of all networks with $\max_k\|\bar w_k\|_2\le C_w$ is at most
$C_wC_\sigma\sqrt{m_\sigma}$, where
$C_\sigma^2=\mathbb E\|\bar x\circ \bar\sigma(x,w_\sigma)\|_2^2$, and the ramp loss of the margins
bounds the risk:

$$
R \le R^{(\rho)}_{S\setminus S_{\alpha m}}
+ \frac{2d_y^2C_\sigma C_w}{\rho\sqrt{m_\sigma}}
+ \sqrt{\frac{\ln(1/\delta)}{2m_\sigma}} .
$$

Source: Mathematical Aspects of Deep Learning, section 2.5.4, Theorem 2.10, Appendix C5. The printed
bound has another factor $(1-\alpha)^{-1/2}$ in the middle, which the proof does not need.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torchtheory.core.checks import all_finite, described, nonnegative_number
from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    LabelOutOfRange,
    ShapeMismatch,
)
from torchtheory.generalization.complexity.margin_bounds import margin_bound, ramp_loss
from torchtheory.generalization.complexity.rademacher import sequence_deviations
from torchtheory.kernels.paths.path_kernel import deep_path_kernel
from torchtheory.kernels.paths.rules import checked_inputs


def feature_radius(gates: nn.Module, x: Tensor) -> float:
    r"""$C_\sigma=\sqrt{\mathbb E\|\bar x\circ\bar\sigma(x,w_\sigma)\|_2^2}$ over the points `x`.

    >>> net = nn.Sequential(nn.Linear(2, 1, bias=False))
    >>> feature_radius(net, torch.tensor([[3.0, 4.0], [0.0, 5.0]]))
    5.0
    """
    x = checked_inputs(gates, x, "x")
    squares = torch.cat([deep_path_kernel(gates, part).diagonal() for part in torch.split(x, 32)])
    return math.sqrt(float(squares.mean()))


def class_margins(outputs: Tensor, labels: Tensor) -> Tensor:
    r"""$f_y(x)-\max_{j\ne y}f_j(x)$, `[n]`; the decision is right where it is positive.

    >>> class_margins(torch.tensor([[3.0, 1.0, 2.0], [0.0, 5.0, 5.0]]), torch.tensor([0, 1]))
    tensor([1., 0.])
    """
    if not isinstance(outputs, Tensor) or outputs.ndim != 2 or outputs.shape[1] < 2:
        raise ShapeMismatch(
            "outputs must be a tensor [n, classes] with two classes or more, not "
            f"{described(outputs)}"
        )
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.is_complex():
        raise InvalidType(f"labels must be a tensor of whole numbers, not {described(labels)}")
    if labels.shape != outputs.shape[:1]:
        raise ShapeMismatch(
            f"{len(outputs)} rows of outputs need as many labels, not {list(labels.shape)}"
        )
    if len(labels) == 0:
        raise EmptyData(f"there are no outputs (the shape is {list(labels.shape)})")
    if bool((labels < 0).any()) or bool((labels >= outputs.shape[1]).any()):
        raise LabelOutOfRange(f"labels must lie in 0..{outputs.shape[1] - 1}")
    all_finite(outputs, "the outputs")
    place = labels.long()[:, None]
    own = outputs.gather(1, place).squeeze(1)
    return own - outputs.scatter(1, place, float("-inf")).amax(1)


def margin_loss(outputs: Tensor, labels: Tensor, rho: float) -> Tensor:
    r"""The ramp of the margin, `[n]`: 1 where the decision is wrong or tied, 0 from ρ on.

    >>> outputs = torch.tensor([[3.0, 1.0, 2.0], [0.0, 5.0, 5.0]])
    >>> margin_loss(outputs, torch.tensor([0, 1]), 4.0)
    tensor([0.7500, 1.0000])
    """
    return ramp_loss(class_margins(outputs, labels), rho)


def two_phase_margin_bound(
    outputs: Tensor,
    labels: Tensor,
    rho: float,
    *,
    feature_radius: float,
    weight_radius: float,
    delta: float,
) -> float:
    r"""Theorem 2.10: with probability $1-\delta$, a bound on the risk of the 0-1 loss.

    $R\le R^{(\rho)}_{S\setminus S_{\alpha m}}+\frac{2d_y^2C_\sigma C_w}{\rho\sqrt{m_\sigma}}
    +\sqrt{\ln(1/\delta)/(2m_\sigma)}$ for all networks with $\max_k\|\bar w_k\|_2\le C_w$.
    $\rho$ and $C_w$ are fixed before the fresh samples are seen;
    `best_two_phase_margin_bound` pays for choosing them.

    Args:
        outputs, labels: `[m_sigma, classes]` and `[m_sigma]` of the fresh samples.
        rho: the margin that is asked for.
        feature_radius: $C_\sigma$; see `feature_radius`.
        weight_radius: $C_w$.
        delta: probability of failure.

    >>> outputs = torch.eye(2).repeat(5000, 1)
    >>> labels = torch.arange(10000) % 2
    >>> round(two_phase_margin_bound(outputs, labels, 1.0, feature_radius=1.0, weight_radius=1.0,
    ...                              delta=0.05), 6)
    0.092239
    """
    margins = class_margins(outputs, labels)
    complexity = _margin_complexity(outputs, feature_radius, weight_radius)
    return margin_bound(margins, complexity, rho, delta, ramp=True)


def best_two_phase_margin_bound(
    outputs: Tensor,
    labels: Tensor,
    rhos: Sequence[float],
    weight_radii: Sequence[float],
    *,
    feature_radius: float,
    weight_norm: float,
    delta: float,
) -> tuple[float, float, float]:
    r"""The least bound over grids of $\rho$ and $C_w$, with the pair that has it.

    The grids are fixed beforehand and $\delta$ is divided equally among their pairs, so the
    choice may follow the data.

    Args:
        weight_norm: $\max_k\|\bar w_k\|_2$ of the network that was found; radii below it do
            not speak about it.

    Returns:
        bound, $\rho$, $C_w$.

    >>> outputs = 3 * torch.eye(2).repeat(5000, 1)
    >>> found = best_two_phase_margin_bound(outputs, torch.arange(10000) % 2, [1.0, 2.0, 4.0],
    ...     [1.0, 4.0], feature_radius=1.0, weight_norm=3.0, delta=0.05)
    >>> round(found[0], 4), found[1:]
    (0.1755, (2.0, 4.0))
    """
    if not rhos or not weight_radii:
        raise EmptyData("the grids of margins and of radii need at least one value each")
    nonnegative_number(weight_norm, "weight_norm")
    margins = class_margins(outputs, labels)
    pairs = [(rho, radius) for rho in rhos for radius in weight_radii]
    losses = [float(ramp_loss(margins, rho).mean()) for rho, _ in pairs]
    deviations = sequence_deviations(
        [_margin_complexity(outputs, feature_radius, c) / rho for rho, c in pairs],
        len(margins),
        delta,
        weights=[1 / len(pairs)] * len(pairs),
        empirical=False,
    )
    speaking = [
        (loss + deviation, rho, radius)
        for loss, deviation, (rho, radius) in zip(losses, deviations, pairs, strict=True)
        if radius >= weight_norm
    ]
    if not speaking:
        raise InvalidInput(
            f"the network has path norm {weight_norm:.6g}, beyond every radius of the grid (at "
            f"most {max(weight_radii):.6g}); fix a wider grid"
        )
    return min(speaking)


def ball_complexity(kernel: Tensor, radius: float, signs: Tensor) -> Tensor:
    r"""$\sup_{\|\bar w\|\le C_w}\sum_i\xi_i\tilde z_i^\top\bar w$ for given signs.

    It is $C_w\|\sum_i\xi_i\tilde z_i\|_2$, and its mean over signs and samples at most
    $C_wC_\sigma\sqrt{m_\sigma}$.

    Args:
        kernel: path kernel of the sample, `[m, m]`.
        radius: $C_w$.
        signs: $\xi$, `[s, m]`.

    Returns:
        One supremum a row of signs, `[s]`.

    >>> ball_complexity(torch.eye(4), 3.0, torch.ones(1, 4))
    tensor([6.])
    """
    if kernel.ndim != 2 or kernel.shape[0] != kernel.shape[1]:
        raise ShapeMismatch(f"the kernel must be square, not {list(kernel.shape)}")
    if signs.ndim != 2 or signs.shape[1] != len(kernel):
        raise ShapeMismatch(f"signs must be [s, {len(kernel)}], not {list(signs.shape)}")
    _radius(radius, "radius")
    signs = signs.to(kernel)
    return radius * ((signs @ kernel) * signs).sum(1).clamp_min(0).sqrt()


def _margin_complexity(outputs: Tensor, feature_radius: float, weight_radius: float) -> float:
    r"""$d_y^2C_\sigma C_w/\sqrt{m_\sigma}$."""
    _radius(feature_radius, "feature_radius")
    _radius(weight_radius, "weight_radius")
    return outputs.shape[1] ** 2 * feature_radius * weight_radius / math.sqrt(len(outputs))


def _radius(value: float, name: str) -> None:
    nonnegative_number(value, name)
