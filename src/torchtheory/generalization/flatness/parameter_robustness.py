r"""How far the parameters of a linear classifier may move before it errs, and its margin.

For $x\mapsto\langle\theta,x\rangle$, labels $\pm1$ and the loss
$1_{(-\infty,0)}(y\langle\theta,x\rangle)$, let $r$ be the empirical risk and
$\gamma(\theta)=\min_iy_i\langle\theta,x_i\rangle$. If $r(\theta+v)=0$ for all
$\|v\|\le\delta$, then $v=-\delta y_ix_i/\|x_i\|$ gives

$$
\gamma(\theta)\ge\delta\,\min_i\|x_i\|_2 .
$$

Source: Mathematical Aspects of Deep Learning, section 1.2.3, where the inequality is printed as
strict; at the largest robust $\delta$ it can be an equality.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from torchtheory.core.checks import all_finite, first_entry, labeled_samples
from torchtheory.core.errors import InvalidInput, ShapeMismatch


@dataclass(frozen=True, slots=True)
class ParameterRobustness:
    r"""The two sides of the inequality at the largest robust radius.

    Attributes:
        radius: the largest $\delta$ with $r(\theta+v)=0$ for all
            $\|v\|\le\delta$, which is $\min_iy_i\langle\theta,x_i\rangle/\|x_i\|$.
        margin: $\gamma(\theta)$.
        promised_margin: $\delta\min_i\|x_i\|\le\gamma(\theta)$.
        worst: a perturbation of length $\delta$ that puts a sample on the boundary, `[d]`.
    """

    radius: float
    margin: float
    promised_margin: float
    worst: Tensor


def robust_parameter_ball(weight: Tensor, x: Tensor, y: Tensor) -> ParameterRobustness:
    r"""The largest ball around $\theta$ in which a linear classifier makes no error.

    Args:
        weight: $\theta$, `[d]`.
        x: `[n, d]`, no row zero.
        y: `[n]`, labels -1 and +1.

    Raises:
        InvalidInput: if the margin is not positive. (With this loss $\theta=0$ has no error
            on any data, so no error does not mean that the data is separated.)

    Cost: $O(nd)$.

    >>> import torch
    >>> x, y = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([1.0, -1.0])
    >>> found = robust_parameter_ball(torch.tensor([1.0, -3.0]), x, y)
    >>> found.radius, found.margin, found.promised_margin
    (1.0, 2.0, 1.0)
    """
    x, y = labeled_samples(x, y)
    if weight.shape != (x.shape[1],):
        raise ShapeMismatch(f"theta must be [{x.shape[1]}], not {list(weight.shape)}")
    theta = weight.detach().to(x)
    all_finite(theta, "theta")
    lengths = x.norm(dim=1)
    if not bool((lengths > 0).all()):
        raise InvalidInput(
            "a sample at the origin has margin 0 for every theta; leave it out ("
            f"{first_entry(lengths, 'the value', ~(lengths > 0))})"
        )
    margins = y * (x @ theta)
    if not bool((margins > 0).all()):
        raise InvalidInput(
            f"theta does not separate the data: its margin is {float(margins.min()):.3g}, and a "
            "positive one is needed"
        )
    radii = margins / lengths
    first = int(radii.argmin())
    radius = float(radii[first])
    worst = -radius * y[first] * x[first] / lengths[first]
    return ParameterRobustness(radius, float(margins.min()), radius * float(lengths.min()), worst)
