r"""What is promised of stochastic gradient descent with a constant step.

For $f=\frac1n\sum_if_i$ a step is $\theta\leftarrow\theta-\eta\nabla f_i(\theta)$ with
a uniformly random $i$. The functions $f_i$ are given as `loss(theta, *example)` that
broadcasts, as in `minibatch`. Source: Foundations of Deep Learning,
section 5.7 and the exercises of section 5.8.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.core.checks import as_points, as_targets, nonnegative_number, positive_number
from torchtheory.core.errors import EmptyData, InvalidInput, NonFinite, ShapeMismatch
from torchtheory.optimization.descent.minibatch import ExampleLoss, minibatch_gradient

#: Numbers of gradients that `step_budget` holds at once.
HELD = 10**7


def example_gradients(loss: ExampleLoss, theta: Tensor, *examples: Tensor) -> Tensor:
    r"""The gradient of every example, $\nabla f_1(\theta),\dots,\nabla f_n(\theta)$.

    Args:
        loss: of one example, broadcasting.
        theta: `[..., p]`.
        examples: each `[n, *]`.

    Returns:
        `[..., n, p]`.

    >>> half_square = lambda theta, x: (theta - x).square().sum(-1) / 2
    >>> example_gradients(half_square, torch.zeros(1), torch.tensor([[1.0], [3.0]]))
    tensor([[-1.],
            [-3.]])
    """
    if not examples or not len(examples[0]):
        raise EmptyData("there is no example to take a gradient at")
    n = len(examples[0])
    if any(len(part) != n for part in examples):
        raise ShapeMismatch(f"the examples have {[len(part) for part in examples]} rows")
    points = theta.unsqueeze(-2).expand(*theta.shape[:-1], n, theta.shape[-1])
    return minibatch_gradient(loss, points, *[part.unsqueeze(1) for part in examples])


def gradient_variance(loss: ExampleLoss, theta: Tensor, *examples: Tensor) -> Tensor:
    r"""$\frac1n\sum_i\|\nabla f(\theta)-\nabla f_i(\theta)\|^2$, `[...]`.

    At a minimizer of $f$ it is 0 if and only if all $\nabla f_i$ vanish there, as they
    do where one parameter fits every example. A batch of $r$ examples divides it by
    $r$, and without replacement by $r\frac{n-1}{n-r}$.

    >>> half_square = lambda theta, x: (theta - x).square().sum(-1) / 2
    >>> gradient_variance(half_square, torch.zeros(1), torch.tensor([[1.0], [3.0]]))
    tensor(1.)
    """
    each = example_gradients(loss, theta, *examples)
    return (each - each.mean(-2, keepdim=True)).square().sum(-1).mean(-1)


@dataclass(frozen=True, slots=True)
class StepBudget:
    r"""What a stochastic step does to the squared distance from a goal, on average over $i$.

    $$
    \mathbb E\|\theta-\eta\nabla f_i(\theta)-\theta^\star\|^2
    =\underbrace{\|\theta-\theta^\star\|^2}_{\text{before}}
    -\underbrace{2\eta(\theta-\theta^\star)^\top\nabla f(\theta)}_{\text{progress}}
    +\underbrace{\eta^2\,\tfrac1n\textstyle\sum_i\|\nabla f_i(\theta)\|^2}_{\text{noise}}
    $$

    Attributes:
        before, progress, noise: `[K, ...]`, one row per step.
    """

    before: Tensor
    progress: Tensor
    noise: Tensor

    @property
    def after(self) -> Tensor:
        """Expected squared distance after the step, `[K, ...]`."""
        return self.before - self.progress + self.noise


def step_budget(
    loss: ExampleLoss,
    examples: Sequence[Tensor],
    points: Tensor,
    goal: Tensor,
    step_sizes: Sequence[float] | Tensor,
) -> StepBudget:
    r"""Progress and noise of each step of a run, the expectation over $i$ taken exactly.

    Args:
        loss: of one example, broadcasting.
        examples: each `[n, *]`.
        points: `[K, ..., p]`, where the steps were taken (a trajectory without its end).
        goal: $\theta^\star$, `[p]`.
        step_sizes: $\eta_1,\dots,\eta_K$.

    Costs $Kn$ gradients; some $10^7$ of their numbers are held at once.

    >>> half_square = lambda theta, x: (theta - x).square().sum(-1) / 2
    >>> x = torch.tensor([[-1.0], [1.0]])
    >>> budget = step_budget(half_square, [x], torch.tensor([[2.0]]), torch.zeros(1), [0.5])
    >>> budget.progress, budget.noise, budget.after       # 2 goes to 1/2 or to 3/2
    (tensor([4.]), tensor([1.2500]), tensor([1.2500]))
    """
    if not examples:
        raise EmptyData("there is no example to take a gradient at")
    if points.ndim < 2 or len(points) != len(step_sizes) or points.shape[-1:] != goal.shape:
        raise ShapeMismatch(
            f"{len(step_sizes)} steps need points [{len(step_sizes)}, ..., p] and a goal [p], not "
            f"{list(points.shape)} and {list(goal.shape)}"
        )
    etas = torch.as_tensor(step_sizes, dtype=points.dtype, device=points.device)
    etas = etas.reshape(-1, *[1] * (points.ndim - 2))
    away = points - goal
    along, squares = [], []
    held = max(1, len(points) * HELD // max(1, points.numel() * len(examples[0])))
    pieces = zip(torch.split(points, held), torch.split(away, held), strict=True)
    for part, direction in pieces:
        each = example_gradients(loss, part, *examples)
        along.append((direction * each.mean(-2)).sum(-1))
        squares.append(each.square().sum(-1).mean(-1))
    return StepBudget(
        before=away.square().sum(-1),
        progress=2 * etas * torch.cat(along),
        noise=etas.square() * torch.cat(squares),
    )


def stationarity_bound(
    step: float, steps: int, *, gap: float, smoothness: float, gradient_bound: float
) -> float:
    r"""$\frac{\Delta}{\eta K}+\frac{L\eta\sigma^2}2$, which bounds
    $\frac1K\sum_{k<K}\mathbb E\|\nabla f(\theta_k)\|^2$.

    For $L$-smooth $f$, convex or not, unbiased directions with
    $\mathbb E\|D\|^2\le\sigma^2$ and $\Delta=f(\theta_0)-\inf f$; any larger
    $\Delta$ will do. It bounds the average over iterates, hence the best one and one drawn
    at random, but not the last.

    >>> stationarity_bound(0.5, 100, gap=1.0, smoothness=1.0, gradient_bound=1.0)
    0.27
    """
    positive_number(step, "the step")
    _check_constants(gap, smoothness, gradient_bound)
    if steps < 1:
        raise InvalidInput(f"an average needs at least one iteration, not {steps}")
    return gap / (step * steps) + smoothness * step * gradient_bound**2 / 2


@dataclass(frozen=True, slots=True)
class StationarityPlan:
    r"""A constant step, a number of iterations, and what they promise.

    Attributes:
        step: $\eta$, to be fixed before the first iteration.
        steps: $K$, known in advance.
        bound: of the mean of $\mathbb E\|\nabla f(\theta_k)\|^2$ over the iterates.
    """

    step: float
    steps: int
    bound: float


def stationarity_plan(
    *,
    gap: float,
    smoothness: float,
    gradient_bound: float,
    steps: int | None = None,
    tolerance: float | None = None,
) -> StationarityPlan:
    r"""The step that makes `stationarity_bound` smallest, for a horizon or for an accuracy.

    $\eta=\sqrt{2\Delta/(L\sigma^2K)}$ gives $\sigma\sqrt{2\Delta L/K}$, so that
    $\frac1K\sum\mathbb E\|\nabla f(\theta_k)\|^2\le\epsilon$ after
    $K=\lceil2\Delta L\sigma^2/\epsilon^2\rceil$ gradients of single examples. Full gradients
    need $2\Delta L/\epsilon$ iterations
    (`iterations_to_critical_point` at
    $\sqrt\epsilon$), each of $n$ gradients: more, once $n>\sigma^2/\epsilon$.

    Args:
        gap: $\Delta\ge f(\theta_0)-\inf f$.
        smoothness: $L$.
        gradient_bound: $\sigma\ge\|\nabla f_i\|$ wherever the run goes. No strongly convex
            function has one everywhere.
        steps: $K$, or
        tolerance: $\epsilon$, on the *squared* norm.

    >>> plan = stationarity_plan(gap=1.0, smoothness=2.0, gradient_bound=1.0, steps=100)
    >>> plan.step, plan.bound
    (0.1, 0.2)
    >>> plan = stationarity_plan(gap=1.0, smoothness=2.0, gradient_bound=1.0, tolerance=0.2)
    >>> plan.steps
    100
    """
    _check_constants(gap, smoothness, gradient_bound)
    positive_number(gap, "the gap")
    if (steps is None) == (tolerance is None):
        raise InvalidInput("a plan is for a number of iterations or for a tolerance: give one")
    if tolerance is not None:
        positive_number(tolerance, "the tolerance")
        exact = 2 * gap * smoothness * gradient_bound**2 / tolerance**2
        # rounding must not add an iteration where the quotient is whole
        steps = max(1, math.ceil(exact * (1 - 1e-12)))
    assert steps is not None
    if steps < 1:
        raise InvalidInput(f"a plan needs at least one iteration, not {steps}")
    step = math.sqrt(2 * gap / (smoothness * gradient_bound**2 * steps))
    bound = gradient_bound * math.sqrt(2 * gap * smoothness / steps)
    return StationarityPlan(step, steps, bound)


# -- least squares, where the expectations are exact ----------------------------------------------


@dataclass(frozen=True, slots=True)
class LeastSquaresError:
    r"""Exact expectations along single-example descent on least squares.

    Attributes:
        distance: `[K + 1]`, $\mathbb E\|w_k-w_\star\|^2$.
        noise: `[K + 1]`, $\mathbb E\|\nabla\ell_i(w_k)\|^2$.
        gradient: `[K + 1]`, $\mathbb E\|\nabla\ell(w_k)\|^2$.
        averaged: `[K]`, $\mathbb E\|\bar w_k-w_\star\|^2$ of the averages
            $\bar w_k=\frac1k(w_1+\dots+w_k)$ of Polyak and Ruppert.
    """

    distance: Tensor
    noise: Tensor
    gradient: Tensor
    averaged: Tensor


def expected_least_squares_error(
    x: Tensor, y: Tensor, start: Tensor, step_sizes: Sequence[float] | Tensor
) -> LeastSquaresError:
    r"""Second moments of stochastic descent on $\ell=\frac12\|Xw-y\|^2$, without sampling.

    With $\ell_i=\frac n2(x_i^\top w-y_i)^2$ the error $e=w-w_\star$ follows
    $e\leftarrow(I-\eta nx_ix_i^\top)e+\eta nr_ix_i$, $r=y-Xw_\star$, so that its mean
    and its second moments follow from their predecessors by averaging over $i$; so do
    $\mathbb E(e_1+\dots+e_k)e_k^\top$ and with it the error of the average.

    Args:
        x: `[n, d]` of rank $d$, so that $w_\star$ is unique.
        y: `[n]`.
        start: $w_0$, `[d]`.
        step_sizes: $\eta_1,\dots,\eta_K$.

    Time $O(Knd^2)$, memory $O(nd)$. Exact up to rounding, which is some
    $10^{-16}$ of $\|w_0\|^2+\|w_\star\|^2$ in double precision: smaller values mean
    nothing.

    >>> x = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    >>> path = expected_least_squares_error(x, x[:, 0], torch.zeros(1).double(), [0.1] * 2)
    >>> path.distance                                # the squares of 0.8 and 0.2, on average
    tensor([1.0000, 0.3400, 0.1156], dtype=torch.float64)
    """
    x = as_points(x)
    y = _targets(x, y)
    best = _least_squares(x, y)
    n, d = x.shape
    etas = [float(s) for s in step_sizes]
    if not all(math.isfinite(eta) for eta in etas):
        raise NonFinite(
            "every step size must be a finite number, not "
            f"{next(eta for eta in etas if not math.isfinite(eta))!r}"
        )
    if start.shape != best.shape:
        raise ShapeMismatch(f"the start must be [{d}], not {list(start.shape)}")
    r = y - x @ best
    gram, sizes = x.T @ x, x.square().sum(1)
    mean = start.detach().to(x) - best
    second = torch.outer(mean, mean)
    rows: list[tuple[Tensor, Tensor, Tensor]] = []
    # E (e_1 + ... + e_k) e_k^T and E |e_1 + ... + e_k|^2
    mixed, total = torch.zeros_like(gram), torch.zeros_like(mean[0])
    averaged: list[Tensor] = []
    for k, eta in enumerate([*etas, 0.0], 1):
        residuals = ((x @ second) * x).sum(1) - 2 * r * (x @ mean) + r.square()
        squares = n * sizes * residuals
        rows.append((second.trace(), squares.sum(), (gram @ second * gram).sum()))
        # the term r_i x_i m^T, linear in the step, is gone with X^T r = 0
        cross = gram @ second
        weighted = n * x.T @ (residuals[:, None] * x)
        second = second - eta * (cross + cross.T) + eta**2 * weighted
        mean = mean - eta * gram @ mean
        # given the past, the next error is on average (I - eta X^T X) times this one
        carried = mixed - eta * mixed @ gram
        total = total + 2 * carried.trace() + second.trace()
        mixed = carried + second
        averaged.append(total / k**2)
    distance, noise, gradient = (torch.stack(list(part)) for part in zip(*rows, strict=True))
    means = torch.stack(averaged[:-1]) if etas else distance[:0]
    return LeastSquaresError(distance, noise, gradient, means)


@dataclass(frozen=True, slots=True)
class StationaryError:
    r"""Where single-example descent on least squares with a constant step comes to rest.

    Attributes:
        distance: $\lim_k\mathbb E\|w_k-w_\star\|^2$.
        gradient: $\lim_k\mathbb E\|\nabla\ell(w_k)\|^2$.
        averaged: $\lim_kk\,\mathbb E\|\bar w_k-w_\star\|^2$ of the average of
            $w_1,\dots,w_k$, whose error goes on to fall where that of $w_k$ does not.
    """

    distance: float
    gradient: float
    averaged: float


def stationary_least_squares_error(x: Tensor, y: Tensor, step: float) -> StationaryError:
    r"""The limits of `expected_least_squares_error` for a constant step, from any start.

    With $H=X^\top X$ the stationary second moments solve the linear equation
    $HS+SH=\eta n\sum_i(x_i^\top Sx_i+r_i^2)x_ix_i^\top$; the noise of a step has then the
    covariance $\Sigma=n\sum_i(x_i^\top Sx_i+r_i^2)x_ix_i^\top-HSH$, and
    $k\,\mathbb E\|\bar w_k-w_\star\|^2\to\operatorname{tr}H^{-1}\Sigma H^{-1}$. Everything is
    0 if and only if some $w$ solves $Xw=y$. Refused where second moments do not settle.

    Args:
        x: `[n, d]` of rank $d$.
        y: `[n]`.
        step: $\eta$.

    Time $O(nd^4+d^6)$, memory $O(nd^2+d^4)$: for a few dozen features.

    >>> x = torch.ones(2, 1, dtype=torch.float64)
    >>> found = stationary_least_squares_error(x, torch.tensor([1.0, -1.0]).double(), 0.25)
    >>> round(found.distance, 9), round(found.averaged, 9)     # w <- w/2 ± 1/2 each time
    (0.333333333, 1.0)
    """
    x = as_points(x)
    y = _targets(x, y)
    positive_number(step, "the step")
    best = _least_squares(x, y)
    n, d = x.shape
    gram, noise = x.T @ x, (y - x @ best).square()
    eye = torch.eye(d, dtype=x.dtype, device=x.device)
    drift = torch.kron(gram, eye) + torch.kron(eye, gram)
    outer = (x[:, :, None] * x[:, None, :]).reshape(n, d * d)
    decay = drift - step * n * outer.T @ outer
    if float(torch.linalg.eigvalsh(decay)[0]) <= 0:
        raise InvalidInput(f"second moments do not settle with the step {step:.3g}: it is too long")
    second = torch.linalg.solve(decay, step * n * outer.T @ noise)
    errors = n * (outer.T @ (outer @ second + noise)).reshape(d, d)
    second = second.reshape(d, d)
    spread = errors - gram @ second @ gram
    return StationaryError(
        distance=float(second.trace()),
        gradient=float((gram @ second * gram).sum()),
        averaged=float(torch.linalg.solve(gram, torch.linalg.solve(gram, spread).mT).trace()),
    )


def mean_square_contraction(x: Tensor, step: float) -> float:
    r"""The largest factor by which a step changes $\mathbb E\|w-w_\star\|^2$ when
    $y=Xw_\star$.

    It is the largest eigenvalue of
    $I-2\eta X^\top X+\eta^2n\sum_i\|x_i\|^2x_ix_i^\top$: below 1 whenever
    $\eta n\max_i\|x_i\|^2<2$ and $X$ has rank $d$, and then descent converges
    with a constant step. $\eta\le1/(2\|X^\top X\|)$ alone is not enough: for $X=I_n$
    and $\eta=\frac12$ the factor is $n/4$.

    >>> round(mean_square_contraction(torch.tensor([[1.0], [2.0]], dtype=torch.float64), 0.1), 12)
    0.34
    >>> mean_square_contraction(torch.eye(8), 0.5)
    2.0
    """
    x = as_points(x)
    positive_number(step, "the step")
    n, d = x.shape
    weighted = x.T @ (x.square().sum(1, keepdim=True) * x)
    change = n * step**2 * weighted - 2 * step * (x.T @ x)
    made = torch.eye(d, dtype=x.dtype, device=x.device) + change
    return float(torch.linalg.eigvalsh(made)[-1])


def stochastic_error_floor(x: Tensor, y: Tensor, step: float) -> float:
    r"""What $\mathbb E\|w_k-w_\star\|^2$ stays above for every $k\ge1$ and any start.

    For $\eta\le1/(2\|X^\top X\|)$,
    $\mathbb E\|w_{k+1}-w_\star\|^2\ge\eta^2\,\mathbb E\|\nabla\ell_i(w_k)\|^2\ge
    \eta^2\min_wn\sum_i\|x_i\|^2(x_i^\top w-y_i)^2$, which is positive if and only if no $w$
    solves $Xw=y$. Only then does a constant step keep stochastic descent from converging.

    >>> x = torch.ones(2, 1, dtype=torch.float64)
    >>> round(stochastic_error_floor(x, torch.tensor([1.0, -1.0]).double(), 0.25), 12)
    0.25
    """
    x = as_points(x)
    y = _targets(x, y)
    positive_number(step, "the step")
    limit = 1 / (2 * float(torch.linalg.matrix_norm(x, 2)) ** 2)
    if step > limit * (1 + 1e-12):
        raise InvalidInput(
            f"the floor holds for steps up to 1/(2‖XᵀX‖) = {limit:.3g}, and the step is {step:.3g}"
        )
    sizes = x.norm(dim=1)
    best = _least_squares(sizes[:, None] * x, sizes * y)
    return step**2 * len(x) * float((sizes * (x @ best - y)).square().sum())


def _targets(x: Tensor, y: Tensor) -> Tensor:
    y = as_targets(y, x)
    if y.ndim != 1:
        raise ShapeMismatch(f"targets must be [{len(x)}], not {list(y.shape)}")
    return y


def _least_squares(x: Tensor, y: Tensor) -> Tensor:
    if int(torch.linalg.matrix_rank(x)) < x.shape[1]:
        raise InvalidInput(
            f"the examples span fewer than {x.shape[1]} dimensions: the solution is not unique"
        )
    solution: Tensor = torch.linalg.lstsq(x, y[:, None]).solution[:, 0]
    return solution


def _check_constants(gap: float, smoothness: float, gradient_bound: float) -> None:
    nonnegative_number(gap, "the gap to the infimum")
    positive_number(smoothness, "the smoothness constant")
    positive_number(gradient_bound, "the bound on the gradients")
