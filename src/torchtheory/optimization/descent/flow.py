r"""Gradient flow, $\dot\theta=-\nabla L(\theta)$, of a model's mean loss or of a function.

Sources: The Modern Mathematics of Deep Learning, Eq. (1.20); Foundations of Deep Learning, section
5.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import cast

import torch
from torch import Tensor
from torchdiffeq import odeint

from torchtheory.core.checks import all_finite, described, first_entry
from torchtheory.core.errors import InvalidInput, NonFinite, NotConverged, ShapeMismatch
from torchtheory.core.progress import track
from torchtheory.models.model import Parameters, flatten, global_randomness_kept, unflatten
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.optimization.curvature.operators import gradient
from torchtheory.optimization.descent.iterates import Function, check_start, value_and_gradient


@dataclass(frozen=True, slots=True)
class ParameterPath:
    """A path through the parameters of a model.

    Attributes:
        times: `[T]`.
        points: the parameters there as vectors, `[T, p]`.
        losses: the mean loss there, `[T]`.
        evaluations: how many gradients it took.
        like: parameters by name, for their shapes.
    """

    times: Tensor
    points: Tensor
    losses: Tensor
    evaluations: int
    like: Parameters

    def parameters(self, k: int) -> Parameters:
        """The parameters by name at the k-th time, ready for `torch.func.functional_call`."""
        return unflatten(self.points[k], self.like)


def gradient_flow(
    problem: Problem,
    times: Tensor | Sequence[float],
    *,
    parameters: Parameters | None = None,
    rtol: float | None = None,
    atol: float | None = None,
) -> ParameterPath:
    r"""Follow $\dot\theta=-\nabla L(\theta)$ from $\theta_0$ at time 0.

    $L$ is the mean loss over the training data, so for mean squared error and one output
    $\dot\theta=-\frac2m\sum_i(f_\theta(x_i)-y_i)\nabla f_\theta(x_i)$. The solver is
    torchdiffeq's Dormand-Prince method of order 5, whose steps follow the error and are not bound
    to `times`: it takes about $\lambda_{\max}t$ gradients where $\lambda_{\max}$ is
    the largest curvature on the way, which is what explicit methods pay for stability.

    Args:
        problem: model, loss and training data. The model is not changed.
        times: increasing, at least 0, `[T]`.
        parameters: $\theta_0$; the model's own trainable parameters unless given. Those it names
            move, and it names at least the trainable ones.
        rtol, atol: error of a step, relative and absolute; 1e-7 and 1e-9 in double precision,
            1e-4 and 1e-6 in single, unless given.

    Memory: about ten vectors of parameters, the $T$ returned ones, and one chunk of data.

    Raises:
        NonFinite: where a gradient is NaN or infinite.
        NotConverged: where the step becomes too small to go on.

    >>> from torch import nn
    >>> line = nn.Linear(1, 1, bias=False).double()
    >>> x = torch.ones(1, 1).double()
    >>> p = Problem(line, (x, 0 * x), task="regression")           # L = θ²
    >>> path = gradient_flow(p, [0.0, 1.0], parameters={"weight": x})
    >>> [round(v, 6) for v in path.points.flatten().tolist()]      # θ = exp(-2t)
    [1.0, 0.135335]
    """
    own = problem.parameters
    start = problem.trainable if parameters is None else parameters
    if any(k not in own or start[k].shape != own[k].shape for k in start) or (
        not problem.trainable.keys() <= start.keys()
    ):
        given = {k: list(p.shape) for k, p in start.items()}
        raise ShapeMismatch(
            "the starting parameters must have the model's names and shapes, "
            f"{described({k: list(p.shape) for k, p in own.items()})}, not {described(given)}"
        )
    start = {k: start[k].detach() for k in own if k in start}

    def slope(point: Tensor) -> Tensor:
        return gradient(problem, parameters=unflatten(point, start))

    with global_randomness_kept():
        moments, points, count = _follow(slope, flatten(start), times, rtol, atol)
        losses = torch.stack([_mean_loss(problem, unflatten(p, start)) for p in points])
    if not bool(torch.isfinite(losses).all()):
        raise NonFinite(
            "the loss is NaN or infinite along the gradient flow: "
            f"{first_entry(losses, 'the value', ~torch.isfinite(losses))}"
        )
    return ParameterPath(moments, points, losses, count, start)


def function_flow(
    function: Function,
    start: Tensor,
    times: Tensor | Sequence[float],
) -> Tensor:
    r"""Follow $\dot x=-\nabla f(x)$ for a plain function, from many starts at once.

    Gradient descent with step $\eta$ is Euler's method for it, and on times up to $T$
    stays within $\frac\eta2G(e^{LT}-1)$ where $\|\nabla f\|\le G$ and
    $\|\nabla^2f\|\le L$. Solver and tolerances as in `gradient_flow`; the error is
    controlled for all starts together.

    Args:
        function: of `[..., p]`, with one value a vector.
        start: $x(0)$, `[..., p]`.
        times: increasing, at least 0, `[T]`.

    Returns:
        $x(t)$, `[T, ..., p]`.

    >>> path = function_flow(lambda x: x.square().sum(-1) / 2, torch.ones(1).double(), [0.0, 1.0])
    >>> [round(v, 6) for v in path.flatten().tolist()]                     # exp(-t)
    [1.0, 0.367879]
    """
    check_start(start)

    def slope(point: Tensor) -> Tensor:
        return value_and_gradient(function, point.reshape(start.shape))[1].reshape(-1)

    _, points, _ = _follow(slope, start.detach().reshape(-1), times)
    return points.reshape(-1, *start.shape)


def _follow(
    slope: Callable[[Tensor], Tensor],
    theta: Tensor,
    times: Tensor | Sequence[float],
    rtol: float | None = None,
    atol: float | None = None,
) -> tuple[Tensor, Tensor, int]:
    """Times `[T]`, points `[T, p]` and the number of gradients of the flow of a slope."""
    all_finite(theta, "the starting parameters")
    moments = torch.as_tensor(times, dtype=torch.float64).detach().cpu()
    if moments.ndim != 1 or not len(moments):
        raise ShapeMismatch(f"times must be one row of numbers, not of shape {list(moments.shape)}")
    if not bool(torch.isfinite(moments).all()) or float(moments[0]) < 0:
        raise InvalidInput(f"times must be finite numbers >= 0, not {described(moments.tolist())}")
    if bool((moments.diff() <= 0).any()):
        raise InvalidInput(f"times must increase, not {described(moments.tolist())}")
    double = theta.dtype == torch.float64
    rtol = (1e-7 if double else 1e-4) if rtol is None else rtol
    atol = (1e-9 if double else 1e-6) if atol is None else atol
    if not (math.isfinite(rtol) and rtol > 0 and math.isfinite(atol) and atol > 0):
        raise InvalidInput(f"tolerances must be positive numbers, not {rtol!r} and {atol!r}")

    count = 0
    passed = 0
    grid = moments if moments[0] == 0 else torch.cat([moments.new_zeros(1), moments])
    ticks = cast("Generator[float]", track(moments.tolist(), "gradient flow"))
    with closing(ticks) as bar:

        def velocity(t: Tensor, point: Tensor) -> Tensor:
            nonlocal count, passed
            count += 1
            while passed < len(moments) and float(t) >= float(moments[passed]):
                passed += len(list(islice(bar, 1)))
            found = slope(point)
            if not bool(torch.isfinite(found).all()):
                raise NonFinite(f"the gradient is NaN or infinite at time {float(t):.4g}")
            return -found

        points = theta[None]
        if len(grid) > 1:
            try:
                points = odeint(
                    velocity, theta, grid.to(theta.device), rtol=rtol, atol=atol, method="dopri5"
                )
            except AssertionError as error:
                raise NotConverged(
                    f"the step of the gradient flow became too small ({error}); "
                    "allow larger rtol and atol"
                ) from error
    return moments.to(theta), points[len(grid) - len(moments) :], count


def _mean_loss(problem: Problem, parameters: Parameters) -> Tensor:
    """The mean loss over the training data at a point, in chunks."""
    samples = problem.train
    with torch.no_grad():
        parts = [
            problem.objective(Samples(x, y))(parameters) * (len(x) / len(samples))
            for x, y in samples.chunks(problem.chunk)
        ]
    return torch.stack(parts).sum()
