r"""How near a trained network is to a KKT point of its own maximum-margin problem.

For a classifier homogeneous of degree $L$ the problem is

$$
\min_\theta\tfrac12\|\theta\|^2\quad\text{subject to}\quad q_i(\theta)\ge1,
$$

and gradient flow converges in direction to one of its KKT points. Trained parameters are brought to
the boundary, $\hat\theta=\theta/q_{\min}^{1/L}$; they are an
$(\varepsilon,\delta)$-KKT point if some $\lambda\ge0$ has
$\|\hat\theta-\sum_i\lambda_i\nabla q_i(\hat\theta)\|\le\varepsilon$ and
$\lambda_i(q_i(\hat\theta)-1)\le\delta$.
Source: Foundations of Deep Learning, section 11.1.2, Theorem 73.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from torchtheory.core.checks import first_entry, positive_number, whole_number
from torchtheory.core.errors import InvalidInput, NonFinite, ShapeMismatch, UnsupportedModel
from torchtheory.core.mapping import Mapped
from torchtheory.generalization.implicit_bias.hard_margin import hard_margin_svm, kkt_residuals
from torchtheory.nets.homogeneity import (
    Margins,
    network_margins,
    require_homogeneous,
)

Multipliers = Literal["best", "exponential", "logistic"]


@dataclass(frozen=True, slots=True)
class MarginKKT:
    r"""Parameters as an approximate KKT point of the maximum-margin problem.

    Attributes:
        degree: $L$.
        normalized_margin: $\min_iq_i/\|\theta\|^L=\|\hat\theta\|^{-L}$.
        multipliers: $\lambda\ge0$, of the shape of the margins.
        epsilon: $\|\hat\theta-\sum_i\lambda_i\nabla q_i(\hat\theta)\|$.
        delta: $\max_i\lambda_i(q_i(\hat\theta)-1)$.
        cosine: between $\hat\theta$ and $\sum_i\lambda_i\nabla q_i$.
        gap: $\frac12\varepsilon^2+\sum_i\lambda_i(q_i(\hat\theta)-1)$, 0 at KKT points only.
            For a linear classifier it is the duality gap: $\frac12\|\hat\theta\|^2$ is at
            most that much above the minimum.
    """

    degree: float
    normalized_margin: float
    multipliers: Tensor
    epsilon: float
    delta: float
    cosine: float
    gap: float

    @property
    def size(self) -> float:
        r"""$\|\hat\theta\|$."""
        return math.pow(self.normalized_margin, -1 / self.degree)

    @property
    def relative_epsilon(self) -> float:
        r"""$\varepsilon/\|\hat\theta\|$: 0 if stationary, 1 for multipliers all 0."""
        return self.epsilon / self.size

    @property
    def relative_delta(self) -> float:
        r"""$L\delta/\|\hat\theta\|^2$; KKT points have $L\sum\lambda=\|\theta\|^2$."""
        return self.degree * self.delta / self.size**2

    @property
    def relative_gap(self) -> float:
        r"""The gap over $\frac12\|\hat\theta\|^2$.

        With the best multipliers it is between 0 and 1: the share of $\|\hat\theta\|^2$ that
        the problem linearized at $\hat\theta$ would save.
        """
        return 2 * self.gap / self.size**2


def margin_kkt(
    margins: Margins, theta: Tensor, degree: float, *, multipliers: Multipliers | Tensor = "best"
) -> MarginKKT:
    r"""Audit parameters against the KKT conditions of the maximum-margin problem.

    A KKT point need not be a minimizer: the problem is not convex in the weights of a network.

    Where a margin has a kink (a ReLU at exactly 0 on some sample) the theorem asks for *some*
    element of Clarke's subdifferential. Here $\nabla q_i$ is what automatic differentiation
    returns, with the derivative of ReLU at 0 taken as 0: one choice, which need not be the best
    element, nor for deep networks one at all. A KKT point at a kink may thus be given a positive
    $\varepsilon$. Euler's identity, which `best` rests on, holds for this choice as well,
    and margins and $\delta$ for given multipliers do not depend on it.

    Args:
        margins: $\theta\mapsto(q_i)_i$, `[p]` to `[n]` (or `[n, k]` for several
            constraints a sample), homogeneous, all positive at `theta`.
        theta: `[p]`.
        degree: $L\ge1$.
        multipliers: `best` minimizes the gap; these are the multipliers of the hard-margin
            machine on the features $\nabla q_i$, the network linearized at
            $\hat\theta$, and cost one gradient a constraint and memory for all of them.
            `exponential` and `logistic` are those of the theorem's proof, the weights
            $-\ell'(q_i)$ of the loss' gradient, scaled to the least $\varepsilon$, at
            the price of one gradient; a tensor is taken as it is.

    >>> found = margin_kkt(lambda w: torch.stack([w[0], 2 * w[0]]), torch.tensor([40.0]), 1)
    >>> found.epsilon, found.delta, found.multipliers
    (0.0, 0.0, tensor([1., 0.]))
    """
    positive_number(degree, "the degree")
    if degree < 1:
        raise InvalidInput(f"the degree must be at least 1, not {degree!r}")
    if theta.ndim != 1 or not theta.is_floating_point():
        raise ShapeMismatch(f"theta must be a vector of real numbers, not {list(theta.shape)}")
    theta = theta.detach()
    values = margins(theta).detach()
    if not bool(torch.isfinite(values).all()):
        raise NonFinite(
            "a margin is NaN or infinite: "
            f"{first_entry(values, 'the value', ~torch.isfinite(values))}"
        )
    least = float(values.min())
    if not least > 0:
        wrong = int((values.reshape(len(values), -1).amin(1) <= 0).sum())
        raise InvalidInput(
            f"{wrong} of {len(values)} samples are misclassified (least margin {least:.3g}): the "
            "conditions are for parameters that separate the sample"
        )
    scale = least ** (-1 / degree)
    point = scale * theta
    heights = scale**degree * values.reshape(-1)

    def flat(vector: Tensor) -> Tensor:
        return margins(vector).reshape(-1)

    if isinstance(multipliers, Tensor):
        factors = _given(multipliers, values)
    elif multipliers == "best":
        factors = _best(flat, point, heights, degree)
    else:
        factors = _from_loss(flat, point, values, multipliers)
    residuals = kkt_residuals(
        lambda v: v @ v / 2, point, inequalities=lambda v: 1 - flat(v), multipliers=factors
    )
    pull = torch.func.vjp(flat, point)[1](factors)[0]
    cosine = float(point @ pull / (point.norm() * pull.norm())) if bool(pull.any()) else 0.0
    return MarginKKT(
        float(degree),
        least / float(theta.norm()) ** degree,
        factors.reshape(values.shape),
        residuals.stationarity,
        residuals.slackness,
        cosine,
        residuals.stationarity**2 / 2 + float(factors @ (heights - 1)),
    )


def network_kkt(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    multipliers: Multipliers = "best",
    most: int = 200,
) -> MarginKKT:
    r"""Audit a trained classifier of your own; see `margin_kkt`.

    Its degree is measured, and a network that is not homogeneous is refused with the reason. One
    output and labels $\pm1$, or $C$ outputs and labels $0,\dots,C-1$, where every
    other class is a constraint, $f_{y_i}-f_j\ge1$. In the precision of the network.

    Args:
        model: a homogeneous network that classifies all of `x[n, ...]` as `y[n]`; its trained
            parameters (`requires_grad`) are $\theta$. It is not changed.
        multipliers: as for `margin_kkt`.
        most: for the best multipliers only the samples of smallest margin are given one. Time and
            memory: the gradients of `most` samples (times the other classes).

    Returns:
        The audit; its multipliers are `[n]`, or `[n, C - 1]` in the order of the other classes.

    >>> net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU(), nn.Linear(1, 1, bias=False))
    >>> _ = [nn.init.constant_(p, 3.0) for p in net.parameters()]        # balanced: a KKT point
    >>> found = network_kkt(net, torch.tensor([[1.0], [2.0]]), torch.tensor([1, 1]))
    >>> round(found.relative_epsilon, 5), round(found.normalized_margin, 5)
    (0.0, 0.5)
    """
    whole_number(most, "most", least=1)
    degree = require_homogeneous(model, x)
    if degree < 1:
        raise UnsupportedModel(f"the network must be homogeneous of degree 1 or more, not {degree}")
    margins, theta = network_margins(model, x, y)
    if multipliers != "best" or len(x) <= most:
        return margin_kkt(margins, theta, degree, multipliers=multipliers)
    with torch.no_grad():
        values = margins(theta)
    lowest = values.reshape(len(x), -1).amin(1).sort().indices[:most].sort().values
    few, _ = network_margins(model, x[lowest], y[lowest])
    found = margin_kkt(few, theta, degree, multipliers="best")
    factors = torch.zeros_like(values)
    factors[lowest] = found.multipliers
    return MarginKKT(
        degree,
        found.normalized_margin,
        factors,
        found.epsilon,
        found.delta,
        found.cosine,
        found.gap,
    )


def _given(multipliers: Tensor, values: Tensor) -> Tensor:
    if multipliers.shape != values.shape:
        raise ShapeMismatch(
            f"the multipliers are {list(multipliers.shape)} and the margins {list(values.shape)}"
        )
    if not bool((multipliers >= 0).all()):
        raise InvalidInput(
            "the multipliers must be numbers >= 0: "
            f"{first_entry(multipliers, 'multipliers', ~(multipliers >= 0))}"
        )
    return multipliers.detach().to(values).reshape(-1)


def _best(margins: Margins, point: Tensor, heights: Tensor, degree: float) -> Tensor:
    r"""The multipliers of $\min\frac12\|v\|^2$ subject to $q+G(v-\hat\theta)\ge1$.

    By Euler's identity $G\hat\theta=Lq$, so the constraints are $Gv\ge(L-1)q+1$.
    """
    pull_back = torch.func.vjp(margins, point)[1]
    rows = torch.eye(len(heights), dtype=point.dtype, device=point.device)
    pulled = Mapped(pull_back)
    slopes = torch.cat([pulled(piece)[0] for piece in torch.split(rows, 64)])
    needed = (degree - 1) * heights + 1
    found = hard_margin_svm(slopes / needed[:, None], torch.ones_like(heights))
    return found.multipliers / needed


def _from_loss(margins: Margins, point: Tensor, values: Tensor, loss: str) -> Tensor:
    """The weights of the loss' gradient, scaled so that the stationarity residual is least."""
    if loss == "exponential":
        weights = torch.exp(values.min() - values).reshape(-1)
    elif loss == "logistic":
        # e^{-q_j} / (1 + sum_k e^{-q_k}) of each sample, divided by the largest of all
        several = values.reshape(len(values), -1)
        logs = -several - torch.logaddexp(
            several.new_zeros(()), torch.logsumexp(-several, 1, keepdim=True)
        )
        weights = torch.exp(logs - logs.max()).reshape(-1)
    else:
        raise InvalidInput(
            f"multipliers must be 'best', 'exponential', 'logistic' or a tensor, not {loss!r}"
        )
    pull = torch.func.vjp(margins, point)[1](weights)[0]
    square = float(pull @ pull)
    factor = float(point @ pull) / square if square > 0 else 0.0
    if not math.isfinite(factor) or factor < 0:
        raise NonFinite(f"the gradients of the margins have no finite size (factor = {factor!r})")
    return factor * weights
