r"""The hard-margin support vector machine, and the conditions of Karush, Kuhn and Tucker.

$\hat w=\arg\min\|w\|^2$ subject to $y_iw^\top x_i\ge1$ is the direction in which
gradient descent on a classification loss goes to infinity.
Source: Foundations of Deep Learning, section 11.1.2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.core.checks import labeled_samples
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.neurons.separability import max_margin

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class HardMargin:
    r"""The solution $\hat w=\sum_i\alpha_iy_ix_i$ of the hard-margin problem.

    Attributes:
        weight: $\hat w$, `[d]`; its smallest $y_i\hat w^\top x_i$ is 1.
        multipliers: $\alpha_i\ge0$, `[s]`; 0 off the support vectors. They add up to
            $\|\hat w\|^2$. Where the support vectors depend on each other they are one
            choice of several.
        support: `[s]` of bool, $y_i\hat w^\top x_i=1$.
        margin: $1/\|\hat w\|$, the distance of the nearest point to the hyperplane.
    """

    weight: Tensor
    multipliers: Tensor
    support: Tensor
    margin: float

    def second_margin(self, x: Tensor, y: Tensor) -> float:
        r"""$\theta=\min_{i\notin S}y_i\hat w^\top x_i>1$; infinite if all are support."""
        heights = y.to(x) * (x @ self.weight)
        return float(heights[~self.support].min()) if not self.support.all() else float("inf")


def hard_margin_svm(x: Tensor, y: Tensor) -> HardMargin:
    r"""Solve $\min\|w\|^2$ subject to $y_iw^\top x_i\ge1$, without a bias.

    Through `torchtheory.neurons.separability.max_margin` (append a constant feature for a
    hyperplane off the origin; it is then penalized like the others). A point counts as support
    vector if its constraint is tight up to a relative $10^{-9}$
    ($10^{-4}$ in single precision).

    Raises:
        NotSeparable: if no hyperplane through the origin separates the sample.

    >>> found = hard_margin_svm(torch.tensor([[1.0, 1.0], [1.0, -2.0]]), torch.tensor([1, 1]))
    >>> found.weight.round(decimals=4), found.multipliers, round(found.margin, 4)
    (tensor([1., 0.]), tensor([0.6667, 0.3333]), 1.0)
    """
    x, y = labeled_samples(x, y)
    best = max_margin(x, y, bias=False)
    weight = best.weight / best.margin
    tight = 1e-9 if x.dtype == torch.float64 else 1e-4
    support = y * (x @ weight) <= 1 + tight
    return HardMargin(weight, best.combination / best.margin**2, support, best.margin)


@dataclass(frozen=True, slots=True)
class KKTResiduals:
    r"""How far a point is from each of the five conditions; all 0 at a KKT point.

    Attributes:
        stationarity: $\|\nabla f+\sum_i\lambda_i\nabla g_i+\sum_j\mu_j\nabla h_j\|$.
        infeasibility: $\max_i(g_i)_+$.
        negativity: $\max_i(-\lambda_i)_+$.
        slackness: $\max_i|\lambda_ig_i|$.
        equality: $\max_j|h_j|$.
    """

    stationarity: float
    infeasibility: float
    negativity: float
    slackness: float
    equality: float

    @property
    def largest(self) -> float:
        """The worst of the five."""
        return max(
            self.stationarity, self.infeasibility, self.negativity, self.slackness, self.equality
        )


def kkt_residuals(
    objective: Function,
    point: Tensor,
    *,
    inequalities: Function | None = None,
    multipliers: Tensor | None = None,
    equalities: Function | None = None,
    equality_multipliers: Tensor | None = None,
) -> KKTResiduals:
    r"""Check the KKT conditions of $\min f$ subject to $g\le0$ and $h=0$.

    For convex problems with a constraint qualification they hold exactly at the minimizers;
    without convexity they are only necessary.

    Args:
        objective: $f$, of a vector `[p]`; one number.
        point: `[p]`.
        inequalities, multipliers: $g$ with values `[m]`, and $\lambda$ `[m]`.
        equalities, equality_multipliers: $h$ with values `[k]`, and $\mu$ `[k]`.

    >>> found = kkt_residuals(lambda w: w @ w / 2, torch.tensor([1.0]),
    ...                       inequalities=lambda w: 1 - w, multipliers=torch.tensor([1.0]))
    >>> found.largest
    0.0
    """
    if point.ndim != 1:
        raise ShapeMismatch(f"the point must be a vector, not of shape {list(point.shape)}")
    slope = torch.func.grad(objective)(point)
    bound, pull_bound = _constraints(inequalities, multipliers, point, "inequalities")
    tied, pull_tied = _constraints(equalities, equality_multipliers, point, "equalities")
    factors = point.new_zeros(0) if multipliers is None else multipliers
    return KKTResiduals(
        stationarity=float((slope + pull_bound + pull_tied).norm()),
        infeasibility=_largest(bound.clamp(min=0)),
        negativity=_largest((-factors).clamp(min=0)),
        slackness=_largest((factors * bound).abs()),
        equality=_largest(tied.abs()),
    )


def _constraints(
    functions: Function | None, factors: Tensor | None, point: Tensor, name: str
) -> tuple[Tensor, Tensor]:
    """The values of the constraints, and their gradients weighted by the multipliers."""
    if (functions is None) != (factors is None):
        raise InvalidInput(f"the {name} and their multipliers go together: give both or neither")
    if functions is None or factors is None:
        return point.new_zeros(0), torch.zeros_like(point)
    values: Tensor
    values, pull_back, *_ = torch.func.vjp(functions, point)
    if values.shape != factors.shape or values.ndim != 1:
        raise ShapeMismatch(
            f"the {name} have values {list(values.shape)} and multipliers {list(factors.shape)}: "
            "they must be two vectors of one length"
        )
    return values, pull_back(factors)[0]


def _largest(values: Tensor) -> float:
    return float(values.max()) if values.numel() else 0.0
