r"""The best of all functions, its risk, and what every other function loses against it.

For the quadratic loss the optimum is the regression function $\mathbb E[Y\mid X=x]$, for
the 0-1 loss with labels $\pm1$ its sign. Source: Mathematical Aspects of Deep Learning,
Definition 1.12 and Lemma 1.13.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.core.checks import first_entry
from torchtheory.core.errors import LabelOutOfRange, ShapeMismatch
from torchtheory.generalization.learning.finite_distributions import FiniteDistribution


@dataclass(frozen=True, slots=True)
class BayesOptimum:
    """A function that no other beats, and its risk.

    Attributes:
        values: `[k]`, at the points of the distribution.
        risk: the Bayes risk.
    """

    values: Tensor
    risk: float


def bayes_regression(law: FiniteDistribution) -> BayesOptimum:
    r"""$f^*(x)=\mathbb E[Y\mid X=x]$ and $R^*=\mathbb E\,\mathrm{Var}(Y\mid X)$.

    >>> law = FiniteDistribution.of([0.0, 0.0, 1.0], [0.0, 2.0, 5.0], [0.25, 0.25, 0.5])
    >>> best = bayes_regression(law)
    >>> best.values.tolist(), best.risk
    ([1.0, 5.0], 0.5)
    """
    mean = law.conditional_mean
    return BayesOptimum(mean, float(law.mass @ (law.labels - mean[law.where]).square()))


def regression_excess(law: FiniteDistribution, values: Tensor) -> Tensor:
    r"""$R(f)-R^*=\mathbb E\,(f(X)-f^*(X))^2$ of functions `values[..., k]`.

    >>> law = FiniteDistribution.of([0.0, 0.0, 1.0], [0.0, 2.0, 5.0], [0.25, 0.25, 0.5])
    >>> regression_excess(law, torch.tensor([[1.0, 5.0], [0.0, 4.0]]))
    tensor([0., 1.], dtype=torch.float64)
    """
    _on_points(law, values)
    return (values - law.conditional_mean).square() @ law.marginal


def bayes_classifier(law: FiniteDistribution) -> BayesOptimum:
    r"""$f^*=\operatorname{sgn}\eta$ and $R^*=\mathbb E\,\frac{1-|\eta(X)|}2$.

    Here $\eta(x)=\mathbb E[Y\mid X=x]=2\Pr(Y=1\mid X=x)-1$, and
    $\operatorname{sgn}0=1$.

    >>> law = FiniteDistribution.of([0.0, 0.0, 1.0], [-1.0, 1.0, 1.0], [0.375, 0.125, 0.5])
    >>> best = bayes_classifier(law)
    >>> best.values.tolist(), best.risk
    ([-1.0, 1.0], 0.125)
    """
    _signs(law)
    eta = law.conditional_mean
    values = torch.where(eta < 0, -1.0, 1.0).to(eta)
    return BayesOptimum(values, float(law.marginal @ (1 - eta.abs())) / 2)


def classification_excess(law: FiniteDistribution, values: Tensor) -> Tensor:
    r"""$R(f)-R^*=\mathbb E\,|\eta(X)|\,1_{(-\infty,0)}(\eta(X)f(X))$ of `values[..., k]`.

    An error where $\eta=2\Pr(Y=1\mid X)-1$ is small costs little. The functions are
    decisions $\pm1$; an output of 0 would be right for either label, and the formula wrong.

    >>> law = FiniteDistribution.of([0.0, 0.0, 1.0], [-1.0, 1.0, 1.0], [0.375, 0.125, 0.5])
    >>> classification_excess(law, torch.tensor([[-1.0, 1.0], [1.0, 1.0], [1.0, -1.0]]))
    tensor([0.0000, 0.2500, 0.7500], dtype=torch.float64)
    """
    _signs(law)
    _on_points(law, values)
    eta = law.conditional_mean
    return torch.where(eta * values < 0, eta.abs(), torch.zeros_like(eta)) @ law.marginal


def _signs(law: FiniteDistribution) -> None:
    if not bool((law.labels.abs() == 1).all()):
        raise LabelOutOfRange(
            "the labels of a classification task are -1 and 1: "
            f"{first_entry(law.labels, 'the value', ~(law.labels.abs() == 1))}"
        )


def _on_points(law: FiniteDistribution, values: Tensor) -> None:
    if values.ndim == 0 or values.shape[-1] != len(law.points):
        raise ShapeMismatch(
            f"a function on {len(law.points)} points has as many values, "
            f"and these are {list(values.shape)}"
        )
