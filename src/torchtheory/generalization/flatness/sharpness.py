r"""How flat the loss is around the parameters of a network.

Three numbers for the mean loss $L$ of any network and any differentiable loss at
$\theta\in\mathbb R^p$: the worst rise within a ball, the mean rise under Gaussian noise, and
the Hessian's largest eigenvalues and trace,

$$
\max_{\|v\|\le\delta}L(\theta+v)-L(\theta),\qquad
\mathbb E_{z\sim N(0,I)}L(\theta+\sigma z)-L(\theta),\qquad
\lambda_{\max}(\nabla^2L(\theta)),\ \operatorname{tr}\nabla^2L(\theta).
$$

At a minimum of a quadratic loss the first is $\frac12\delta^2\lambda_{\max}$ and the second
$\frac12\sigma^2\operatorname{tr}\nabla^2L$.

None of them is a property of the *function* the network computes: scaling a layer of a ReLU network
up and the next one down changes all three as much as one likes
(`rescaling`). With `relative=True` every parameter moves in
proportion to its own size, $v=D u$ with $D=\operatorname{diag}|\theta|$, and the
measures are taken in $u$: those do not change under that scaling.

Sources: Mathematical Aspects of Deep Learning, section 1.2.3 and section 2.2, where flatness is
described and not defined; Keskar et al. (2017) for the ball, Kwon et al. (2021) for the relative
version.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.core.checks import positive_number, whole_number
from torchtheory.core.errors import NonFinite, UnsupportedModel
from torchtheory.core.estimate import Estimate
from torchtheory.core.intervals import Interval, mean_interval
from torchtheory.core.random import RandomSource, as_generator, gaussian
from torchtheory.linalg.eigenvalues import EigenResult, top_eigenpairs
from torchtheory.linalg.operators import LinearOperator
from torchtheory.linalg.trace import trace
from torchtheory.models.model import Parameters, flatten, unflatten
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.optimization.curvature.operators import gradient, hessian_operator

_Rise = Callable[[Tensor], float]
_Slope = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class BallSharpness:
    r"""The largest rise of the loss that ascent found within a ball.

    Attributes:
        value: $L(\theta+v)-L(\theta)\ge0$ at the best $v$ found: a *lower* bound of the
            maximum, which nothing short of a convex loss makes equal to it.
        loss: $L(\theta)$.
        radius: $\delta$.
        direction: $v$, `[p]`.
        evaluations: how often the loss over all samples was computed.
    """

    value: float
    loss: float
    radius: float
    direction: Tensor
    evaluations: int


def ball_sharpness(
    problem: Problem,
    radius: float,
    samples: Samples | None = None,
    *,
    parameters: Parameters | None = None,
    relative: bool = False,
    steps: int = 20,
    starts: int = 2,
    generator: RandomSource = None,
) -> BallSharpness:
    r"""$\max_{\|v\|\le\delta}L(\theta+v)-L(\theta)$ from below, by ascent.

    From the gradient and from random directions, each with both signs, it steps towards the point
    of the sphere where the linearized loss is largest, $v\leftarrow(1-t)v+t\,\delta\,g/\|g\|$
    with $g=\nabla L(\theta+v)$ and $t=1,\frac12,\frac14,\dots$ until the loss rises.
    At a minimum of a quadratic loss this is the power method and ends at
    $\frac12\delta^2\lambda_{\max}$.

    Args:
        problem: model, loss and data.
        radius: $\delta>0$.
        samples: the data of the loss; the training data unless given.
        parameters: the point $\theta$; the model's own trainable parameters unless given. Those it
            names are perturbed; others keep their values.
        relative: the ball is $\{Du:\|u\|\le\delta\}$ with
            $D=\operatorname{diag}|\theta|$.
        steps: most ascent steps from each start.
        starts: random directions besides the gradient.
        generator: seed or generator of the directions.

    Cost: a gradient and one to seven losses over the samples a step; memory of one chunk.

    >>> from torch import nn
    >>> x = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    >>> p = Problem(nn.Linear(1, 1, bias=False).double(), (x, 3 * x), task="regression")
    >>> at = {"weight": torch.tensor([[3.0]]).double()}     # the minimum; L'' = 5
    >>> round(ball_sharpness(p, 0.1, parameters=at).value, 6)
    0.025
    """
    positive_number(radius, "the radius")
    whole_number(steps, "steps", least=1)
    whole_number(starts, "the number of random starts", least=0)
    samples = problem.train if samples is None else samples
    point = _point(problem, parameters)
    theta = flatten(point)
    scale = _scale(theta, relative)
    random = as_generator(generator, theta.device)
    evaluations = 1
    base = _finite_loss(problem, theta, point, samples)

    def rise(u: Tensor) -> float:
        nonlocal evaluations
        evaluations += 1
        return _finite_loss(problem, theta + scale * u, point, samples) - base

    def slope(u: Tensor) -> Tensor:
        nonlocal evaluations
        evaluations += 1
        at = unflatten(theta + scale * u, point)
        return scale * gradient(problem, samples, parameters=at)

    first = slope(torch.zeros_like(theta))
    noise = gaussian(starts, theta.numel(), generator=random, dtype=theta.dtype).to(theta.device)
    directions = [first] if bool(first.norm() > 0) else []
    directions += [sign * row for row in noise for sign in (1.0, -1.0)]
    best, where = 0.0, torch.zeros_like(theta)
    for direction in directions:
        value, u = _ascend(rise, slope, radius * direction / direction.norm(), radius, steps)
        if value > best:
            best, where = value, u
    return BallSharpness(best, base, radius, scale * where, evaluations)


def _ascend(
    rise: _Rise, slope: _Slope, u: Tensor, radius: float, steps: int
) -> tuple[float, Tensor]:
    """Conditional-gradient steps with halving; the value never falls."""
    value = rise(u)
    for _ in range(steps):
        g = slope(u)
        if not bool(g.norm() > 0):
            break
        target = radius * g / g.norm()
        for halvings in range(7):
            moved = u + 0.5**halvings * (target - u)
            reached = rise(moved)
            if reached > value:
                break
        else:
            break
        gain, value, u = reached - value, reached, moved
        if gain <= 1e-6 * abs(value):
            break
    return value, u


def noise_sharpness(
    problem: Problem,
    sigma: float,
    samples: Samples | None = None,
    *,
    parameters: Parameters | None = None,
    relative: bool = False,
    draws: int = 50,
    confidence: float = 0.99,
    generator: RandomSource = None,
) -> Interval:
    r"""$\mathbb E\,L(\theta+\sigma z)-L(\theta)$ for standard normal $z$.

    Every draw is used with both signs, $\frac12(L(\theta+\sigma z)+L(\theta-\sigma z))- L(\theta)$,
    which takes the gradient's noise away. The result is the mean of the draws with
    Student's interval; it may be negative away from a minimum.

    Args:
        problem, samples, parameters: as for `ball_sharpness`.
        sigma: standard deviation of every parameter's noise, or of every parameter's noise over
            its own size if `relative`.
        draws: how many $z$, at least two.
        confidence: of the interval.
        generator: seed or generator of the noise.

    Cost: two losses over the samples a draw.

    >>> from torch import nn
    >>> x = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    >>> p = Problem(nn.Linear(1, 1, bias=False).double(), (x, 3 * x), task="regression")
    >>> found = noise_sharpness(p, 0.1, draws=200)          # sigma² tr(Hessian) / 2 = 0.025
    >>> found.low < 0.025 < found.high
    True
    """
    positive_number(sigma, "the noise")
    whole_number(draws, "draws", least=1)
    samples = problem.train if samples is None else samples
    point = _point(problem, parameters)
    theta = flatten(point)
    scale = sigma * _scale(theta, relative)
    random = as_generator(generator, theta.device)
    base = _finite_loss(problem, theta, point, samples)
    rises = []
    for _ in range(draws):
        z = gaussian(theta.numel(), generator=random, dtype=theta.dtype, device=theta.device)
        both = [
            _finite_loss(problem, theta + sign * scale * z, point, samples) for sign in (1.0, -1.0)
        ]
        rises.append(sum(both) / 2 - base)
    return mean_interval(rises, confidence)


@dataclass(frozen=True, slots=True)
class HessianSharpness:
    r"""The curvature of the loss.

    Attributes:
        eigenvalues: the largest ones, decreasing, with their residuals.
        trace: of the Hessian, with its standard error (0 where it is exact).
    """

    eigenvalues: EigenResult
    trace: Estimate

    @property
    def largest(self) -> float:
        r"""$\lambda_{\max}$."""
        return float(self.eigenvalues.values[0])


def hessian_sharpness(
    problem: Problem,
    samples: Samples | None = None,
    *,
    parameters: Parameters | None = None,
    relative: bool = False,
    count: int = 1,
    trace_samples: int = 99,
    generator: RandomSource = None,
) -> HessianSharpness:
    r"""The largest eigenvalues and the trace of $\nabla^2L(\theta)$, or of
    $D\nabla^2L(\theta)D$.

    Args:
        problem, samples, parameters, relative: as for `ball_sharpness`.
        count: eigenvalues wanted.
        trace_samples: products spent on the trace; exact from $p$ on.
        generator: seed or generator of the start vectors.

    Cost: a Hessian product is about four passes over the samples; some dozens for the eigenvalues
    and `trace_samples` for the trace.

    >>> from torch import nn
    >>> x = torch.tensor([[1.0], [2.0]])
    >>> p = Problem(nn.Linear(1, 1, bias=False), (x, 3 * x), task="regression")
    >>> found = hessian_sharpness(p)
    >>> found.largest, found.trace.value
    (5.0, 5.0)
    """
    operator = relative_hessian(problem, samples, parameters=parameters, relative=relative)
    random = as_generator(generator, operator.device)
    return HessianSharpness(
        top_eigenpairs(operator, count, generator=random),
        trace(operator, samples=max(trace_samples, 6), generator=random),
    )


def relative_hessian(
    problem: Problem,
    samples: Samples | None = None,
    *,
    parameters: Parameters | None = None,
    relative: bool = True,
) -> LinearOperator:
    r"""$D\nabla^2L(\theta)D$ with $D=\operatorname{diag}|\theta|$, by its action.

    Rescaling parameters by a positive diagonal $S$ that leaves the function alone turns
    $\nabla^2L$ into $S^{-1}\nabla^2L\,S^{-1}$ and $D$ into $SD$: the
    product stays. With `relative=False` it is the Hessian itself.

    >>> from torch import nn
    >>> x = torch.tensor([[1.0], [2.0]])
    >>> p = Problem(nn.Linear(1, 1, bias=False), (x, 3 * x), task="regression")
    >>> relative_hessian(p, parameters={"weight": torch.tensor([[-2.0]])}).to_dense()
    tensor([[20.]])
    """
    point = _point(problem, parameters)
    plain = hessian_operator(problem, samples, parameters=point)
    if not relative:
        return plain
    scale = _scale(flatten(point), relative)
    return LinearOperator(
        plain.shape,
        lambda v: scale * (plain @ (scale * v)),
        symmetric=True,
        dtype=plain.dtype,
        device=plain.device,
    )


def _point(problem: Problem, parameters: Parameters | None) -> Parameters:
    point = problem.trainable if parameters is None else parameters
    if not point:
        raise UnsupportedModel("the model has no parameter: there is nothing to perturb")
    for name, tensor in point.items():
        if not tensor.is_floating_point() or not bool(torch.isfinite(tensor).all()):
            raise NonFinite(f"{name} must hold finite real numbers to be perturbed")
    return point


def _scale(theta: Tensor, relative: bool) -> Tensor:
    return theta.abs() if relative else torch.ones_like(theta)


def _finite_loss(problem: Problem, theta: Tensor, like: Parameters, samples: Samples) -> float:
    try:
        value = problem.at(unflatten(theta, like)).risk(samples)
    except NonFinite:
        value = math.inf
    if not math.isfinite(value):
        raise NonFinite(
            "the loss is NaN or infinite at perturbed parameters; take a smaller perturbation "
            f"(value = {value!r})"
        )
    return value
