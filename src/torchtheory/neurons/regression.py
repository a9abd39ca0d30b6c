r"""Linear and logistic regression, with what the data do not determine said out loud.

Rows of `x[s, d]` are samples. Source: notes "Deep Learning", section 2.1, which writes patterns
as columns: its $X\in\mathbb R^{d\times s}$ is our `x.T`.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import softplus

from torchtheory.core.checks import (
    as_points,
    as_targets,
    labeled_samples,
    nonnegative_number,
    positive_number,
    whole_number,
)
from torchtheory.core.errors import NotConverged, ShapeMismatch, UnknownName
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.nets.biases import homogeneous
from torchtheory.neurons.separability import weakly_separating_direction

Method = Literal["newton", "gradient", "stochastic"]


@dataclass(frozen=True, slots=True)
class LeastSquares:
    r"""The least-squares fit of smallest norm.

    Attributes:
        weight: `[d]`, or `[d, k]` for `k` targets.
        bias: one number a target; 0 without an intercept.
        residual: $y-Xw-b$, of the shape of the targets; orthogonal to every feature.
        loss: $\tfrac12\|Xw+b-y\|^2$, half the SUM of squares.
        rank: rank of the features (centered, with an intercept).
        unique: whether no other weights fit as well.
    """

    weight: Tensor
    bias: Tensor
    residual: Tensor
    loss: float
    rank: int
    unique: bool


def least_squares(x: Tensor, y: Tensor, *, intercept: bool = False) -> LeastSquares:
    r"""Minimize $\tfrac12\|Xw-y\|^2$; of all minimizers, the one of smallest norm.

    $w^\star=X^+y$, which is $(X^\top X)^{-1}X^\top y$ where that exists. Through the
    singular value decomposition, $O(sd\min(s,d))$; singular values below
    $\max(s,d)\,\varepsilon\,\sigma_1$ count as 0.

    Args:
        x: `[s, d]`.
        y: `[s]`, or `[s, k]` for several targets at once.
        intercept: fit a bias as well, which is not part of the norm.

    >>> fit = least_squares(torch.tensor([[1.0, 1.0], [2.0, 2.0]]), torch.tensor([2.0, 4.0]))
    >>> fit.weight, fit.rank, fit.unique              # w1 + w2 = 2 is all the data say
    (tensor([1.0000, 1.0000]), 1, False)
    """
    x = as_points(x)
    y = as_targets(y, x)
    if y.ndim > 2:
        raise ShapeMismatch(f"y must be [samples] or [samples, targets], not {list(y.shape)}")
    mean_x = x.mean(0) if intercept else torch.zeros_like(x[0])
    mean_y = y.mean(0) if intercept else torch.zeros_like(y[0])
    u, sigma, vh = torch.linalg.svd(x - mean_x, full_matrices=False)
    cut = max(x.shape) * torch.finfo(x.dtype).eps * sigma[0]
    rank = int((sigma > cut).sum())
    u, sigma, vh = u[:, :rank], sigma[:rank], vh[:rank]
    weight = (vh.T / sigma) @ (u.T @ (y - mean_y))
    bias = mean_y - mean_x @ weight
    residual = y - x @ weight - bias
    loss = 0.5 * float(residual.square().sum())
    return LeastSquares(weight, bias, residual, loss, rank, rank == x.shape[1])


class NoMinimizer(UserWarning):
    """The logistic loss of the data has an infimum and no minimum: the weights grow for ever."""


@dataclass(frozen=True, slots=True)
class LogisticFit:
    r"""A logistic regression.

    Attributes:
        weight: `[d]`.
        bias: one number; 0 without an intercept.
        losses: the objective at the start and after every iteration (an epoch, if stochastic).
        converged: whether the gradient got below the tolerance at a minimizer.
        steps: how many were made.
        runaway: where the loss has no minimizer, a unit direction (bias last, with an intercept)
            along which it falls for ever; else None.
    """

    weight: Tensor
    bias: Tensor
    losses: Tensor
    converged: bool
    steps: int
    runaway: Tensor | None

    @property
    def minimizer_exists(self) -> bool:
        return self.runaway is None

    def probability(self, x: Tensor) -> Tensor:
        r"""The model's $P(y=1\mid x)=\sigma(w^\top x+b)$ for the rows of `x`."""
        return torch.sigmoid(as_points(x) @ self.weight + self.bias)


def logistic_regression(
    x: Tensor,
    y: Tensor,
    *,
    ridge: float = 0.0,
    intercept: bool = False,
    method: Method = "newton",
    step: float | None = None,
    steps: int | None = None,
    tolerance: float | None = None,
    generator: RandomSource = None,
) -> LogisticFit:
    r"""Minimize $\frac1s\sum_i-\log\sigma((2y_i-1)w^\top x_i)+\frac\lambda2\|w\|^2$.

    The same problem as scikit-learn's `LogisticRegression` with $C=1/(\lambda s)$, or with
    no penalty for $\lambda=0$; an intercept is not penalized. Without a ridge a minimizer
    exists only if no direction separates the classes weakly (`weakly_separating_direction`,
    a linear program). Where one does, a `NoMinimizer` warning is given, the result's
    `runaway` is that direction, and the weights are those after `steps`.

    Args:
        x: `[s, d]`.
        y: `[s]` of 0 and 1.
        ridge: $\lambda\ge0$.
        intercept: fit a bias as well.
        method: `newton` (damped, $O(sd^2+d^3)$ an iteration), `gradient` descent, or
            `stochastic`: one random example per step, in a new order each epoch.
        step: of the gradient ($1/L$ unless told) or stochastic method ($1/(2L_1)$,
            $L_1=\max\|x\|^2/4+\lambda$, falling as $1/\sqrt{\text{epoch}}$).
        steps: 100 for Newton, 10 000 for the gradient, 100 epochs unless told.
        tolerance: stop when no entry of the gradient is larger; $10^{-10}$ (or
            $10^{-5}$ in float32) unless told. The stochastic method never stops early.
        generator: order of the examples.

    >>> x, y = torch.tensor([[1.0], [1.0], [1.0], [1.0]]).double(), torch.tensor([1, 1, 1, 0])
    >>> round(float(logistic_regression(x, y).weight), 6)        # log odds: log 3
    1.098612
    """
    if method not in get_args(Method):
        raise UnknownName("method", method, get_args(Method))
    nonnegative_number(ridge, "ridge")
    x, y = labeled_samples(x, y, classes=(0.0, 1.0))
    if step is not None:
        positive_number(step, "step")
    if tolerance is None:
        tolerance = 1e-10 if x.dtype == torch.float64 else 1e-5
    defaults = {"newton": 100, "gradient": 10_000, "stochastic": 100}
    limit = defaults[method] if steps is None else steps
    whole_number(limit, "steps", least=1)

    features = homogeneous(x) if intercept else x
    penalty = torch.full((features.shape[1],), ridge, dtype=x.dtype, device=x.device)
    if intercept:
        penalty[-1] = 0.0
    objective = _Objective(features, y, penalty)
    start = features.new_zeros(features.shape[1])
    if method == "newton":
        w, losses = _newton(objective, start, limit, tolerance)
    elif method == "gradient":
        rate = step or 1 / (_largest_eigenvalue(features) / 4 + ridge)
        w, losses = _gradient_descent(objective, start, rate, limit, tolerance)
    else:
        rate = step or 0.5 / (float(features.square().sum(1).max()) / 4 + ridge)
        w, losses = _stochastic(objective, start, rate, limit, as_generator(generator))
    runaway = None
    if ridge == 0:
        probe = w if method == "newton" else _newton(objective, start, 100, tolerance)[0]
        if not _certifies_minimizer(objective, probe):
            runaway = weakly_separating_direction(x, 2 * y - 1, bias=intercept)
    elif intercept and bool((y == y[0]).all()):
        # the bias is not penalized, and with one class it runs away
        runaway = torch.cat([torch.zeros_like(x[0]), 2 * y[:1] - 1])
    if runaway is not None:
        warnings.warn(
            "the classes can be separated (weakly): the logistic loss has no minimizer and the "
            "weights grow for ever; add a ridge, or use max_margin for the limiting direction",
            NoMinimizer,
            stacklevel=2,
        )
    flat = float(objective.gradient(w).abs().max()) <= tolerance
    weight, bias = (w[:-1], w[-1]) if intercept else (w, w.new_zeros(()))
    return LogisticFit(
        weight=weight,
        bias=bias,
        losses=torch.tensor(losses, dtype=x.dtype, device=x.device),
        converged=flat and runaway is None,
        steps=len(losses) - 1,
        runaway=runaway,
    )


def logistic_loss(weight: Tensor, x: Tensor, y: Tensor) -> Tensor:
    r"""Cross-entropy $\frac1s\sum_i-\log\sigma((2y_i-1)w^\top x_i)$, without overflow.

    >>> logistic_loss(torch.zeros(2), torch.eye(2), torch.tensor([0, 1]))
    tensor(0.6931)
    """
    x, y = labeled_samples(x, y, classes=(0.0, 1.0))
    return softplus((1 - 2 * y) * (x @ weight)).mean()


def logistic_gradient(weight: Tensor, x: Tensor, y: Tensor) -> Tensor:
    r"""Gradient $\frac1s\sum_i(\sigma(w^\top x_i)-y_i)x_i$ of `logistic_loss`.

    >>> logistic_gradient(torch.zeros(2), torch.eye(2), torch.tensor([0, 1]))
    tensor([ 0.2500, -0.2500])
    """
    x, y = labeled_samples(x, y, classes=(0.0, 1.0))
    return x.T @ (torch.sigmoid(x @ weight) - y) / len(x)


def logistic_hessian(weight: Tensor, x: Tensor) -> Tensor:
    r"""Hessian $\frac1s\sum_ip_i(1-p_i)x_ix_i^\top\succeq0$; the labels do not enter.

    >>> logistic_hessian(torch.zeros(2), torch.eye(2))
    tensor([[0.1250, 0.0000],
            [0.0000, 0.1250]])
    """
    x = as_points(x)
    p = torch.sigmoid(x @ weight)
    return (x.T * (p * (1 - p))) @ x / len(x)


def logistic_smoothness(x: Tensor) -> float:
    r"""The smallest $L$ with $\nabla^2\ell\preceq LI$ everywhere.

    $L=\lambda_{\max}(X^\top X)/(4s)$, attained at $w=0$ and at most
    $\max\|x\|^2/4$.

    >>> logistic_smoothness(torch.eye(2))
    0.125
    """
    return _largest_eigenvalue(as_points(x)) / 4


@dataclass(frozen=True, slots=True)
class _Objective:
    """The penalized loss on checked data; the penalty is one number a weight."""

    x: Tensor
    y: Tensor
    penalty: Tensor

    def value(self, w: Tensor) -> float:
        loss = softplus((1 - 2 * self.y) * (self.x @ w)).mean()
        return float(loss + 0.5 * (self.penalty * w).dot(w))

    def gradient(self, w: Tensor) -> Tensor:
        errors = torch.sigmoid(self.x @ w) - self.y
        return self.x.T @ errors / len(self.x) + self.penalty * w

    def hessian(self, w: Tensor) -> Tensor:
        p = torch.sigmoid(self.x @ w)
        return (self.x.T * (p * (1 - p))) @ self.x / len(self.x) + torch.diag(self.penalty)


def _newton(
    objective: _Objective, w: Tensor, limit: int, tolerance: float
) -> tuple[Tensor, list[float]]:
    losses = [objective.value(w)]
    for _ in range(limit):
        gradient = objective.gradient(w)
        if float(gradient.abs().max()) <= tolerance:
            break
        # the pseudo-inverse takes the shortest step where features repeat each other
        direction = torch.linalg.pinv(objective.hessian(w), hermitian=True) @ gradient
        slope, rate = float(gradient @ direction), 1.0
        value = objective.value(w - direction)
        # where the decrease is lost in rounding Newton's full step is the best there is
        while slope > 1e-12 and rate > 1e-8 and not value <= losses[-1] - 1e-4 * rate * slope:
            rate /= 2
            value = objective.value(w - rate * direction)
        if not math.isfinite(value):
            break
        w = w - rate * direction
        losses.append(value)
    return w, losses


def _gradient_descent(
    objective: _Objective, w: Tensor, step: float, limit: int, tolerance: float
) -> tuple[Tensor, list[float]]:
    losses = [objective.value(w)]
    for _ in range(limit):
        gradient = objective.gradient(w)
        if float(gradient.abs().max()) <= tolerance:
            break
        w = w - step * gradient
        losses.append(_finite(objective.value(w), step))
    return w, losses


def _stochastic(
    objective: _Objective, w: Tensor, step: float, epochs: int, generator: torch.Generator
) -> tuple[Tensor, list[float]]:
    x, y, penalty = objective.x, objective.y, objective.penalty
    losses = [objective.value(w)]
    for epoch in range(epochs):
        rate = step / math.sqrt(1 + epoch)
        order = torch.randperm(len(x), generator=generator, device=generator.device)
        for i in order.tolist():
            w = w - rate * ((torch.sigmoid(x[i] @ w) - y[i]) * x[i] + penalty * w)
        losses.append(_finite(objective.value(w), step))
    return w, losses


def _finite(value: float, step: float) -> float:
    if not math.isfinite(value):
        raise NotConverged(f"the loss is no longer finite with step {step:g}: take a smaller one")
    return value


def _largest_eigenvalue(x: Tensor) -> float:
    """Of the second-moment matrix of the rows."""
    return float(torch.linalg.matrix_norm(x, ord=2)) ** 2 / len(x)


def _certifies_minimizer(objective: _Objective, w: Tensor) -> bool:
    r"""Whether the gradient at `w` proves that no direction separates the classes weakly.

    It is a combination of the signed points with the positive weights $|p_i-y_i|/s$. If its
    norm is $g$, a unit $v$ with all $z_i^\top v\ge0$ has none of them above
    $sg/\min_i|p_i-y_i|$: so for a tiny $g$ there is none but $z_i^\top v=0$.
    """
    pull = (torch.sigmoid(objective.x @ w) - objective.y).abs().min()
    reach = len(objective.x) * objective.gradient(w).norm()
    return bool(reach < 1e-7 * pull * objective.x.norm(dim=1).min())
