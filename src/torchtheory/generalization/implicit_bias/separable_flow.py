r"""Gradient flow of a classification loss on separable data, followed for any time.

With $z_i=y_ix_i$ the flow of $L(w)=\sum_i\ell(w^\top z_i)$ is
$\dot w=-\sum_i\ell'(w^\top z_i)z_i$. Nothing ends it: $w(t)=\hat w\log t+\rho(t)$ with
the hard-margin vector $\hat w$. In the time $\tau=\log(1+t)$ it is
$\frac{dw}{d\tau}=\sum_ie^{\tau+\log(-\ell'(w^\top z_i))}z_i$, whose right-hand side stays of
order 1, so that $t=10^{7}$, or $10^{100}$, costs a few hundred evaluations.
Source: Foundations of Deep Learning, section 11.1.2; Mathematical Aspects of Deep Learning, 1.2.3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from scipy.integrate import solve_ivp
from torch import Tensor

from torchtheory.core.checks import described, labeled_samples
from torchtheory.core.errors import InvalidInput, NotConverged, ShapeMismatch
from torchtheory.generalization.implicit_bias.hard_margin import hard_margin_svm


@dataclass(frozen=True, slots=True)
class MarginLoss:
    r"""A loss of the margin $u=yf(x)$.

    Attributes:
        value: $\ell(u)$, entry by entry.
        log_slope: $\log(-\ell'(u))$, entry by entry, accurate where $\ell'$ underflows.
    """

    name: str
    value: Callable[[Tensor], Tensor]
    log_slope: Callable[[Tensor], Tensor]


#: $e^{-u}$.
EXPONENTIAL = MarginLoss("exponential", lambda u: torch.exp(-u), lambda u: -u)
#: $\log(1+e^{-u})$.
LOGISTIC = MarginLoss("logistic", lambda u: -F.logsigmoid(u), lambda u: F.logsigmoid(-u))
#: $1/(1+u)$ for $u\ge0$ and $1-u$ below: smooth, but without exponential tail.
POLYNOMIAL = MarginLoss(
    "polynomial",
    lambda u: torch.where(u > 0, 1 / (1 + u.clamp(min=0)), 1 - u),
    lambda u: -2 * torch.log1p(u.clamp(min=0)),
)


@dataclass(frozen=True, slots=True)
class LossAssumptions:
    r"""What a loss satisfies of the assumptions of the theorem.

    Attributes:
        positive, decreasing: $\ell>0$ and $\ell'<0$ on the grid.
        vanishing: both tend to 0 at $+\infty$.
        steep: $\ell'$ does not tend to 0 at $-\infty$.
        smoothness: the least $\beta$ for which $\ell'$ is $\beta$-Lipschitz, as
            seen on the grid; infinite if it grows with the range or with the resolution.
    """

    positive: bool
    decreasing: bool
    vanishing: bool
    steep: bool
    smoothness: float

    @property
    def satisfied(self) -> bool:
        """All of them."""
        return (
            self.positive
            and self.decreasing
            and self.vanishing
            and self.steep
            and math.isfinite(self.smoothness)
        )


def check_loss(loss: Callable[[Tensor], Tensor]) -> LossAssumptions:
    r"""Test a loss against Assumption 3, numerically on $[-32,32]$.

    >>> found = check_loss(LOGISTIC.value)
    >>> found.satisfied, round(found.smoothness, 4)
    (True, 0.25)
    >>> check_loss(lambda u: (1 - u).clamp(min=0)).decreasing          # the hinge is flat
    False
    """
    wide, fine = _slopes(loss, 32, 2**-6), _slopes(loss, 16, 2**-7)
    narrow = _slopes(loss, 16, 2**-6)
    u, slope = wide
    estimates = [float((s.diff() / v.diff()).abs().max()) for v, s in (narrow, wide, fine)]
    grows = max(estimates) > 1.5 * estimates[0]
    value = loss(u)
    return LossAssumptions(
        positive=bool((value > 0).all()),
        decreasing=bool((slope < 0).all()),
        vanishing=float(value[-1]) < 1e-3 * float(value[len(u) // 2]) + 1e-12
        or bool(_falls_to_zero(loss)),
        steep=abs(float(slope[0])) > 1e-3,
        smoothness=math.inf if grows else max(estimates),
    )


@dataclass(frozen=True, slots=True)
class ExponentialTail:
    r"""$-\ell'(u)\approx c\,e^{-au}$.

    Attributes:
        rate: $a$.
        constant: $c$.
        tight: whether $|{-\ell'(u)}e^{au}/c-1|\le e^{-u/2}$ on $[4,32]$ up to
            rounding: the two-sided condition of Definition 30 with $\mu_\pm=\frac12$.
    """

    rate: float
    constant: float
    tight: bool


def exponential_tail(loss: Callable[[Tensor], Tensor]) -> ExponentialTail:
    r"""Fit $-\ell'(u)=c\,e^{-au}(1+O(e^{-\mu u}))$ between $u=24$ and 32.

    >>> tail = exponential_tail(LOGISTIC.value)
    >>> round(tail.rate, 6), round(tail.constant, 6), tail.tight
    (1.0, 1.0, True)
    >>> exponential_tail(POLYNOMIAL.value).tight
    False
    """
    u = torch.linspace(4, 32, 225, dtype=torch.float64)
    slope = -_derivative(loss, u)
    if not bool((slope > 0).all()):
        return ExponentialTail(math.nan, math.nan, False)
    log = slope.log()
    rate = -float((log[-1] - log[160]) / (u[-1] - u[160]))
    constant = math.exp(float(log[-1]) + rate * 32)
    relative = (log + rate * u - math.log(constant)).expm1().abs()
    return ExponentialTail(rate, constant, bool((relative <= torch.exp(-u / 2) + 1e-10).all()))


@dataclass(frozen=True, slots=True)
class SeparableFlow:
    r"""The flow at some times.

    Attributes:
        times: $t$, `[T]`.
        weights: $w(t)$, `[T, d]`.
        margins: $w(t)^\top z_i$, `[T, s]`.
        losses: $L(w(t))$, the sum over the sample, `[T]`.
        shares: $\ell'(w^\top z_i)/\sum_k\ell'(w^\top z_k)$, `[T, s]`: what each point
            contributes to the gradient.
        evaluations: of the right-hand side.
    """

    times: Tensor
    weights: Tensor
    margins: Tensor
    losses: Tensor
    shares: Tensor
    evaluations: int

    @property
    def normalized_margins(self) -> Tensor:
        r"""$\min_iw^\top z_i/\|w\|$, `[T]`."""
        return torch.div(self.margins.amin(1), self.weights.norm(dim=1))

    def direction_errors(self, goal: Tensor) -> Tensor:
        r"""$\|w/\|w\|-\hat w/\|\hat w\|\|$, `[T]`."""
        unit = self.weights / self.weights.norm(dim=1, keepdim=True)
        apart: Tensor = torch.linalg.vector_norm(unit - goal / goal.norm(), dim=1)
        return apart


def separable_flow(
    x: Tensor,
    y: Tensor,
    times: Tensor | Sequence[float],
    *,
    loss: MarginLoss = EXPONENTIAL,
    start: Tensor | None = None,
) -> SeparableFlow:
    r"""Follow $\dot w=-\nabla\sum_i\ell(y_iw^\top x_i)$ to times as large as one likes.

    Scipy's Dormand-Prince method of order 8 in $\tau=\log(1+t)$, relative error
    $10^{-10}$ a step; the number of steps grows like $\log t$. Computed in double
    precision. The sample need not be separable.

    Args:
        x: `[s, d]`.
        y: `[s]` of ±1.
        times: increasing, at least 0, `[T]`.
        loss: of the margin.
        start: $w(0)$, `[d]`; 0 unless given.

    >>> x = torch.tensor([[1.0, 1.0], [1.0, -1.0]]).double()
    >>> flow = separable_flow(x, torch.ones(2), [0.0, 1.0, 1e7])
    >>> flow.weights[:, 0]                                        # log(1 + 2t)
    tensor([ 0.0000,  1.0986, 16.8112], dtype=torch.float64)
    """
    x, y = labeled_samples(x, y)
    z = (y[:, None] * x).double().cpu()
    moments = torch.as_tensor(times, dtype=torch.float64)
    if moments.ndim != 1 or not len(moments):
        raise ShapeMismatch(f"times must be one row of numbers, not of shape {list(moments.shape)}")
    good = bool(torch.isfinite(moments).all()) and float(moments[0]) >= 0
    if not good or bool((moments.diff() <= 0).any()):
        raise InvalidInput(
            f"times must be finite, at least 0 and increasing, not {described(moments.tolist())}"
        )
    w = torch.zeros(z.shape[1], dtype=torch.float64) if start is None else start.double().cpu()
    if w.shape != (z.shape[1],) or not bool(torch.isfinite(w).all()):
        raise ShapeMismatch(f"the start must be a vector of {z.shape[1]} finite numbers")

    def velocity(tau: float, point: np.ndarray) -> np.ndarray:
        heights = z @ torch.from_numpy(point)
        return torch.exp(tau + loss.log_slope(heights)).matmul(z).numpy()

    grid = torch.log1p(moments).numpy()
    found = solve_ivp(
        velocity,
        (0.0, max(float(grid[-1]), 1e-300)),
        w.numpy(),
        method="DOP853",
        t_eval=grid,
        rtol=1e-10,
        atol=1e-12,
    )
    if not found.success:
        raise NotConverged(f"the flow was not followed to the end: {found.message}")
    path = torch.from_numpy(found.y.T.copy())
    margins = path @ z.T
    return SeparableFlow(
        times=moments.to(x),
        weights=path.to(x),
        margins=margins.to(x),
        losses=loss.value(margins).sum(1).to(x),
        shares=loss.log_slope(margins).softmax(1).to(x),
        evaluations=int(found.nfev),
    )


@dataclass(frozen=True, slots=True)
class ResidualCertificate:
    r"""What bounds $r(t)=w(t)-\hat w\log t-\tilde w$ for the exponential loss.

    Attributes:
        limit: $\hat w$, the hard-margin vector, `[d]`.
        offset: $\tilde w$ with $e^{-\tilde w^\top z_i}=\alpha_i$ on the support
            vectors, the shortest; `[d]`.
        second_margin: $\theta=\min_{i\notin S}\hat w^\top z_i>1$.
        constant: $C=\sum_{i\notin S}e^{-\tilde w^\top z_i}$.
    """

    limit: Tensor
    offset: Tensor
    second_margin: float
    constant: float

    def growth(self, since: float) -> float:
        r"""No later $\|r(t)\|^2$ exceeds $\|r(t_1)\|^2$ by more than this.

        $2Ct_1^{1-\theta}/(\theta-1)$ for $t\ge t_1\ge1$; 0 if all are support vectors.
        """
        if not since >= 1:
            raise InvalidInput(f"the bound is for times from 1 on, not from {since!r}")
        if math.isinf(self.second_margin):
            return 0.0
        excess = self.second_margin - 1
        return float(2 * self.constant * since**-excess / excess)


def residual_certificate(x: Tensor, y: Tensor) -> ResidualCertificate:
    r"""The quantities of the proof that $w(t)-\hat w\log t$ stays bounded.

    Raises:
        InvalidInput: where a support vector has the multiplier 0, or the system for
            $\tilde w$ has no solution; both happen only on a null set of samples.
        NotSeparable: if the sample is not separable.

    >>> x, y = torch.tensor([[1.0, 1.0], [1.0, -2.0]]).double(), torch.ones(2)
    >>> residual_certificate(x, y).offset
    tensor([ 0.6365, -0.2310], dtype=torch.float64)
    """
    x, y = labeled_samples(x, y)
    best = hard_margin_svm(x, y)
    z = y[:, None] * x
    support = z[best.support]
    alpha = best.multipliers[best.support]
    if bool((alpha <= 1e-12 * alpha.max()).any()):
        raise InvalidInput(
            "a support vector has the multiplier 0: there is no offset, perturb the data"
        )
    offset = torch.linalg.pinv(support) @ -alpha.log()
    if float((support @ offset + alpha.log()).abs().max()) > 1e-6:
        raise InvalidInput("the support vectors depend on each other: there may be no offset")
    rest = z[~best.support]
    return ResidualCertificate(
        best.weight, offset, best.second_margin(x, y), float(torch.exp(-rest @ offset).sum())
    )


def _derivative(loss: Callable[[Tensor], Tensor], u: Tensor) -> Tensor:
    point = u.clone().requires_grad_()
    (slope,) = torch.autograd.grad(loss(point).sum(), point)
    return slope


def _slopes(loss: Callable[[Tensor], Tensor], radius: int, spacing: float) -> tuple[Tensor, Tensor]:
    u = torch.arange(-radius, radius + spacing / 2, spacing, dtype=torch.float64)
    return u, _derivative(loss, u)


def _falls_to_zero(loss: Callable[[Tensor], Tensor]) -> bool:
    """Whether the loss at ever larger margins keeps falling by a factor."""
    far = loss(torch.tensor([1e2, 1e4, 1e6], dtype=torch.float64))
    return bool((far[1:] <= 0.5 * far[:-1] + 1e-300).all())
