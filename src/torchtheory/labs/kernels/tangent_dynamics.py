"""Gradient flow of a network, seen through its tangent kernel."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchdiffeq import odeint

from torchtheory.kernels.infinite.dense import limit_kernels
from torchtheory.kernels.tangent.dynamics import DescentRule, KernelTraining
from torchtheory.kernels.tangent.kernel import empirical_ntk
from torchtheory.kernels.tangent.laws import law_of_training
from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.labs.kernels.laws import CONFIDENCE, WideNetwork, lifted, wide_kernels
from torchtheory.models.model import Parameters, flatten, unflatten
from torchtheory.models.problem import Problem
from torchtheory.optimization.curvature.operators import gradient
from torchtheory.optimization.descent.flow import ParameterPath, gradient_flow
from torchtheory.optimization.descent.iterates import Direction, trajectory

STEEPNESS = 1.0


class SideBySide(nn.Module):
    """Independent wide networks with one output each, `[n, 1]` to `[n, networks]`."""

    def __init__(self, networks: int, width: int, generator: torch.Generator) -> None:
        super().__init__()
        members = [WideNetwork(width, generator, STEEPNESS) for _ in range(networks)]
        self.hidden = nn.Parameter(torch.stack([m.hidden.detach() for m in members]))
        self.output = nn.Parameter(torch.stack([m.output.detach() for m in members]))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.erf(lifted(x, STEEPNESS) @ self.hidden.mT)
        outputs = (hidden @ self.output.unsqueeze(-1)).squeeze(-1)
        return outputs.T / math.sqrt(self.output.shape[-1])


@dataclass(frozen=True)
class WidthSweep:
    """How far networks of growing width are from the closed form."""

    widths: list[int]
    deviations: list[float]
    example: dict[int, tuple[Tensor, Tensor]]
    times: Tensor


@lab(
    "tangent-kernel-dynamics",
    room="kernels",
    covers=["A-54", "A-55", "A-59"],
    title="A network follows its tangent kernel; a wide one has a closed form",
    full={"hidden": 64, "widths": (32, 64, 128, 256, 512, 1024, 2048, 4096)},
    least={"samples": 2, "widths": 15, "networks": 30},
    items={"widths": 3},
)
def tangent_kernel_dynamics(
    run: Run,
    hidden: int = 24,
    samples: int = 4,
    widths: tuple[int, ...] = (32, 64, 128, 256, 512),
    networks: int = 96,
) -> None:
    """A small tanh network under gradient flow, then wide ones beside the closed form.

    Gradient descent is Euler's method for the flow, with an error proportional to the step. At
    any parameters, outputs and risk move as the tangent kernel there says, for any loss, and the
    risk of least squares falls at least as fast as the smallest eigenvalue on the way promises.
    With the kernel of infinite width everything is known beforehand; look at how networks
    approach that prediction like one over the square root of their width.

    Args:
        hidden: units of the small network.
        samples: that it is trained on.
        widths: of the networks that are compared with the closed form.
        networks: of each of these widths.
    """
    inputs = run.randn(samples, 2)
    net = _small_network(run, hidden)
    problem = Problem(net, (inputs, torch.sin(2 * inputs[:, :1])), task="regression")
    path = flow_and_descent(run, problem)
    at_any_point(run, problem)
    bound = risk_bound(run, problem, path)
    logistic_convergence(run, problem.model, inputs)
    x = torch.tensor([-1.8, -1.0, 0.1, 0.9, 1.7], dtype=torch.float64)[:, None]
    y = torch.tensor([0.6, -0.5, 0.2, 0.7, -0.3], dtype=torch.float64)
    grid = torch.linspace(-2.5, 2.5, 30, dtype=torch.float64)[:, None]
    written_out(run)
    closed_form(run, x, y, grid)
    random_part(run, x, y, grid)
    sweep = widening(run, x, y, grid, list(widths), networks)
    run.figure(
        "tangent-kernel",
        lambda axes: plot_dynamics(axes, problem, path, bound, sweep),
        caption="Left: risk of a small network along the flow, under gradient descent, and the "
        "exponential bound. Middle: outputs at three test points for a narrow and a wide network "
        "(lines), and the closed form (dotted). Right: their distance against the width.",
        grid=(1, 3),
        size=(13, 3.6),
    )


def _small_network(run: Run, hidden: int) -> nn.Module:
    net = nn.Sequential(nn.Linear(2, hidden), nn.Tanh(), nn.Linear(hidden, 1)).double()
    with torch.no_grad():
        for parameter in net.parameters():
            fan_in = parameter.shape[-1] if parameter.ndim == 2 else 1
            parameter.copy_(run.randn(*parameter.shape) / math.sqrt(fan_in))
    return net


def descent_direction(problem: Problem) -> Direction:
    """The gradient of the mean loss, as a function of the vector of parameters."""
    return lambda theta, _: gradient(problem, parameters=unflatten(theta, problem.parameters))


def flow_and_descent(run: Run, problem: Problem) -> ParameterPath:
    """The flow itself: what moves, that the risk falls, and Euler's method."""
    theta, direction = flatten(problem.parameters), descent_direction(problem)
    x, y = problem.train.x, problem.train.y
    jacobian = _jacobian(problem, problem.parameters, x)
    slopes = 2 * (problem.outputs(problem.train) - y).flatten()
    says = run.states(
        "A-54",
        r"\nabla\hat{\mathcal R}(\theta)=\frac1m\sum_i\nabla_\theta\Phi(x^{(i)},\theta)D_i,"
        r"\ D_i=2(\Phi(x^{(i)},\theta)-y^{(i)}): \text{ largest difference}",
    )
    says.equal((jacobian.T @ slopes / len(x) - gradient(problem)).abs().max(), within=1e-12)
    says.fails("D without the factor 2", (jacobian.T @ slopes / 2 / len(x) - gradient(problem)).abs().max())
    # the fastest direction has the rate 2 λ / m: a few of its times
    end = 2 * len(x) / (2 * float(torch.linalg.matrix_norm(jacobian, 2)) ** 2)
    path = gradient_flow(problem, end * torch.arange(0, 8.1, 0.5), rtol=1e-6, atol=1e-8)
    far = trajectory(direction, theta, [2 * end] * 3)
    says = run.states("A-54", r"\hat{\mathcal R}_s(\Phi(\cdot,\Theta(t))) \text{ never increases: largest increase}")
    says.at_most(path.losses.diff().max(), 0)
    says.fails(f"steps of {2 * end:.2g} instead of the flow", _losses(problem, far).diff().max())
    counts = [6, 8, 12, 16, 24, 32, 48]
    euler = [_distance(trajectory(direction, theta, [end / k] * k)[-1], path) for k in counts]

    def midpoint(theta: Tensor, step: float, count: int) -> Tensor:
        for k in range(count):
            theta = theta - step * direction(theta - step / 2 * direction(theta, k), k)
        return theta

    better = [_distance(midpoint(theta, 2 * end / k, k // 2), path) for k in counts]
    sizes = [end / k for k in counts]
    says = run.states("A-54", r"\|\Theta^{(T/\eta)}-\Theta(T)\|=O(\eta) \text{ for gradient descent: exponent}")
    says.slope(sizes, euler, 1, 0.1, against=(0.5, 2), where=f"T = {end:.3g} in {counts} steps")
    says.fails("the midpoint rule, of order 2", sizes, better)
    run.table(
        "euler",
        ["steps", "step size", "distance of gradient descent from the flow"],
        [[k, end / k, error] for k, error in zip(counts, euler, strict=True)],
        caption=f"Parameters at time {end:.3g}; the flow took {path.evaluations} gradients.",
    )
    return path


def at_any_point(run: Run, problem: Problem) -> None:
    """Both identities at random parameters, for two losses, against differences of the flow."""
    x = problem.train.x
    labels = (x[:, :1] * x[:, 1:] > 0).double()
    logistic = Problem(problem.model, (x, labels), task="binary")
    test = run.randn(4, 2)
    h = 2e-4
    changes: dict[str, list[Tensor]] = {"outputs": [], "risk": [], "stale": [], "scaled": []}
    for one, loss in ((problem, F.mse_loss), (logistic, F.binary_cross_entropy_with_logits)):
        for _ in range(2):
            start = {k: run.randn(*p.shape) for k, p in one.parameters.items()}
            other = {k: run.randn(*p.shape) for k, p in one.parameters.items()}
            near = gradient_flow(one, [0, h, 2 * h, 3 * h], parameters=start, rtol=1e-9, atol=1e-12)
            outputs = torch.stack([one.function(near.parameters(k), test) for k in range(4)])
            here = one.function(start, x).detach().requires_grad_()
            slopes = torch.autograd.grad(loss(here, one.train.y, reduction="sum"), here)[0]
            kernel, cross = (
                empirical_ntk(one.model, points, x, outputs="trace", parameters=start) for points in (x, test)
            )
            wrong = empirical_ntk(one.model, test, x, outputs="trace", parameters=other)
            m, scale = len(x), 1 + cross.abs().max() * slopes.abs().max()
            moved = _derivative(outputs, h)
            falls = -(slopes.T @ kernel @ slopes).squeeze() / m**2
            fallen = _derivative(near.losses, h)
            changes["outputs"].append((moved + cross @ slopes / m).abs().max() / scale)
            changes["stale"].append((moved + wrong @ slopes / m).abs().max() / scale)
            changes["risk"].append((fallen - falls).abs() / falls.abs())
            changes["scaled"].append((fallen - m * falls).abs() / falls.abs())
    measured = {name: torch.stack(values) for name, values in changes.items()}
    says = run.states(
        "A-55",
        r"\frac{d\Phi(\cdot,\Theta)}{dt}=-\frac1m\sum_iK_\Theta(\cdot,x^{(i)})D_i: \text{ largest relative difference}",
    )
    says.equal(
        measured["outputs"],
        within=1e-5,
        where="differences along the flow from two random parameters, for squared and logistic loss",
    )
    says.fails("the kernel at other parameters", measured["stale"])
    says = run.states(
        "A-55",
        r"\frac{d\hat{\mathcal R}}{dt}=-\frac1{m^2}\sum_{ij}D_iK_\Theta(x^{(i)},x^{(j)})D_j:"
        r" \text{ largest relative difference}",
    )
    says.equal(measured["risk"], within=1e-4)
    says.fails("1/m instead of 1/m²", measured["scaled"])


def risk_bound(run: Run, problem: Problem, path: ParameterPath) -> Tensor:
    """The exponential bound of least squares."""
    x, m = problem.train.x, len(problem.train)
    spectra = torch.stack(
        [
            torch.linalg.eigvalsh(empirical_ntk(problem.model, x, outputs="trace", parameters=path.parameters(k)))
            for k in range(0, len(path.times), 2)
        ]
    )
    least = below_all(spectra[:, 0])
    bound = path.losses[0] * torch.exp(-4 * least * path.times / m)
    steep = path.losses[0] * torch.exp(-4 * spectra[:, -1].min() * path.times / m)
    says = run.states(
        "A-55",
        r"\hat{\mathcal R}(t)\le\hat{\mathcal R}(0)e^{-4\lambda_{\min}t/m},\ "
        r"\lambda_{\min}=\min_t\lambda_{\min}(\bar K_{\Theta(t)})",
    )
    says.at_most(
        path.losses,
        bound,
        1e-9,
        where=f"λ = {float(least):.3g}, from {len(spectra)} times; the kernel's largest "
        f"eigenvalue moved from {float(spectra[0, -1]):.3g} to {float(spectra[-1, -1]):.3g}",
    )
    says.fails("λ is the largest eigenvalue", path.losses, promised=steep)
    return bound


def below_all(values: Tensor) -> Tensor:
    """The least of a smooth function, from its values at some times: less by what it moves between two."""
    return values.min() - values.diff().abs().max()


def logistic_convergence(run: Run, net: nn.Module, x: Tensor) -> None:
    r"""The risk of the logistic loss, which has no minimizer, tends to its infimum 0.

    One of the losses is at least their mean $R$, and its slope is $1-e^{-R}$ or more, so that
    $\dot R\le-\lambda_{\min}(1-e^{-R})^2/m^2$. Integrated, $G(R)=1/(e^R-1)-\log(e^R-1)$ grows
    at least like $\lambda_{\min}t/m^2$. With a single sample nothing is lost.
    """

    def flow(points: Tensor, labels: list[float], end: float | None = None) -> tuple[Tensor, Tensor, float]:
        """How much G has grown, what is promised, and the last time."""
        m = len(points)
        problem = Problem(net, (points, torch.tensor(labels, dtype=torch.float64)[:, None]), task="binary")

        def smallest(parameters: Parameters) -> float:
            gram = empirical_ntk(net, points, outputs="trace", parameters=parameters)
            return float(torch.linalg.eigvalsh(gram)[0])

        end = end or 3 * m**2 / smallest(problem.parameters)
        path = gradient_flow(problem, torch.linspace(0, end, 33, dtype=torch.float64), rtol=1e-8, atol=1e-10)
        least = below_all(torch.tensor([smallest(path.parameters(k)) for k in range(len(path.times))]).double())
        excess = torch.expm1(path.losses)
        grown = 1 / excess - excess.log()
        return grown[1:] - grown[0], least * path.times[1:] / m**2, end

    one, two = flow(x[:1], [1.0]), flow(x[:2], [0.0, 1.0])
    says = run.states(
        "A-55",
        r"\ell(\hat y,y)=\log(1+e^{-y\hat y}),\ G(R)=\frac1{e^R-1}-\log(e^R-1):\ "
        r"G(\hat{\mathcal R}(t))-G(\hat{\mathcal R}(0))\ge\lambda_{\min}t/m^2, \text{ so }\hat{\mathcal R}(t)\to0",
    )
    says.at_least(torch.cat([one[0], two[0]]), torch.cat([one[1], two[1]]), 1e-6, where="one sample, and two")
    twice = flow(x[:1].expand(2, -1), [0.0, 1.0], two[2])
    says.fails("one input with both labels: the kernel is singular", twice[0], promised=two[1])


def closed_form(run: Run, x: Tensor, y: Tensor, grid: Tensor) -> None:
    """The closed form against a numerical solution of the equation, at all points."""
    m = len(y)
    points = torch.cat([x, grid])
    kernel = wide_kernels(points, STEEPNESS)[1]
    start = run.randn(len(points))
    times = torch.tensor([0.0, 0.1, 0.5, 2.0, 5.0], dtype=torch.float64)

    def solved(slope: Callable[[Tensor], Tensor]) -> Tensor:
        """Runge and Kutta's solution for a loss whose derivative at an error is given."""
        path: Tensor = odeint(lambda _, f: -kernel[:, :m] @ slope(f[:m] - y) / m, start, times, rtol=1e-8, atol=1e-10)
        return path

    closed = KernelTraining(kernel[:m, :m], y, start[:m], rate=2 / m).test(kernel[:, :m], times, start)
    says = run.states(
        "A-59",
        r"\Phi=C(t)y+(\Phi_0-C(t)\Phi_0(X)) \text{ solves } \dot\Phi=-\frac1m\sum_i"
        r"K^\infty(\cdot,x^{(i)})D_i,\ D_i=2(\Phi(x^{(i)})-y^{(i)})",
    )
    says.equal(closed, solved(lambda error: 2 * error), 1e-6, where=f"at {len(points)} points and {len(times)} times")
    says.fails(
        "the loss 2 log cosh is quadratic near 0 only", closed[1:], promised=solved(lambda error: 2 * error.tanh())[1:]
    )


def written_out(run: Run) -> None:
    """The source's formula as it stands, for kernels of several depths, sizes and times."""
    cases = [(1, 2), (3, 2), (3, 4), (8, 3), (20, 2)]
    times = [0.0, 0.1, 1.0, 10.0]

    def formulas(m: int, depth: int, steps: int = 0) -> tuple[list[Tensor], list[Tensor]]:
        """Outputs elsewhere, C(t), errors on the training inputs, and mean and covariance over the
        start: as computed, and written out.

        With `steps` the flow is left to gradient descent with so many steps per unit of time.
        """
        points = run.randn(m + 6, 3)
        kernels = limit_kernels(points, depth=depth, bias_variance=0.1)
        kernel, sigma = kernels.ntk, kernels.nngp
        y, start = run.randn(m), run.randn(m + 6)
        gram, cross = kernel[:m, :m], kernel[m:, :m]
        rule = DescentRule(1 / steps) if steps else None
        training = KernelTraining(gram, y, start[:m], rate=2 / m, rule=rule)
        found, promised = [], []
        for t in times:
            left = torch.linalg.matrix_exp(-2 * gram * t / m)
            C = cross @ torch.linalg.solve(gram, torch.eye(m).double() - left)
            clock = t * max(1, steps)
            found += [training.test(cross, clock, start[m:]), training.influence(cross, clock).flatten()]
            found.append(y - training.train(clock))
            promised += [C @ y + (start[m:] - C @ start[:m]), C.flatten(), left @ (y - start[:m])]
            law = law_of_training(kernel, y, clock, initial=sigma, rate=2 / m, rule=rule)
            found += [law.mean[m:], law.covariance[m:, m:].flatten()]
            away = torch.cat([-C, torch.eye(6).double()], 1)  # of the start, from what C carries over
            promised += [C @ y, (away @ sigma @ away.T).flatten()]
        return found, promised

    made = [formulas(*case) for case in cases]
    measured, wanted = (torch.cat([v for pair in made for v in pair[k]]) for k in (0, 1))
    stepped = [formulas(*case, steps=10) for case in cases]
    slow, exact = (torch.cat([v for pair in stepped for v in pair[k]]) for k in (0, 1))
    says = run.states(
        "A-59",
        r"\Phi(\cdot,\Theta(t))=C(t)y+(\Phi_0-C(t)\Phi_0(X)),\ "
        r"C(t)=k(\cdot)^\top\bar K^{-1}(I-e^{-2\bar Kt/m}),\ y-\Phi(X,t)=e^{-2\bar Kt/m}(y-\Phi_0(X)),\ "
        r"\text{mean } C(t)y,\ \text{covariance of } \Phi_0-C(t)\Phi_0(X)",
    )
    says.equal(
        measured,
        wanted,
        1e-7,
        where="m, L = " + "; ".join(f"{m}, {depth}" for m, depth in cases) + "; t = 0, 0.1, 1, 10",
    )
    says.fails("gradient descent with steps of 0.1 in place of the flow", slow, promised=exact)


def random_part(run: Run, x: Tensor, y: Tensor, grid: Tensor, draws: int = 1500) -> None:
    """What the start leaves behind: its mean, its variance, and nothing on the training inputs."""
    m, time = len(y), 1.0
    points = torch.cat([x, grid])
    covariance, kernel = wide_kernels(points, STEEPNESS)
    training = KernelTraining(kernel[:m, :m], y, rate=2 / m)

    def trained(mean: float) -> Tensor:
        """Outputs `[grid, networks]` at the time, from weights drawn around the mean."""
        networks = SideBySide(draws, 256, run.generator)
        with torch.no_grad():
            for weights in networks.parameters():
                weights.add_(mean)
            start = networks(points)
        y_each = y[:, None].expand(m, draws)
        return KernelTraining(kernel[:m, :m], y_each, start[:m], rate=2 / m).test(kernel[m:, :m], time, start[m:])

    law = law_of_training(kernel, y, time, initial=covariance, rate=2 / m)
    centered, shifted = trained(0.0), trained(0.3)
    # a direction in which the mean is not small
    weights = law.mean[m:] / law.mean[m:].square().sum()
    finally_there = law_of_training(kernel, y, initial=covariance, rate=2 / m)
    says = run.states(
        "A-59", r"\mathbb E\,\Phi(\cdot,\Theta(t))=C(t)y: \text{ its share, projected on } C(t)y \text{ over inputs}"
    )
    says.mean(
        weights @ centered,
        1.0,
        against=(
            0.0,
            float(weights @ finally_there.mean[m:]),
            float(weights @ training.test(kernel[m:, :m], time / 2)),
        ),
        confidence=CONFIDENCE,
        where=f"{draws} networks of width 256 at t = {time:g}; neither at t → ∞ nor by a clock of t/m",
    )
    says.fails("initial weights with mean 0.3", weights @ shifted)
    variance = law.covariance.diagonal()[m:].mean()

    def spread(outputs: Tensor) -> Tensor:
        return (outputs - law.mean[m:, None]).square().mean(0) / variance

    says = run.states(
        "A-59", r"\mathrm{var}\,\Phi(\cdot,\Theta(t))=\mathrm{var}(\Phi_0-C(t)\Phi_0(X)): \text{ ratio, over inputs}"
    )
    says.mean(
        spread(centered),
        1.0,
        against=[
            float(other.diagonal()[m:].mean() / variance) for other in (covariance, finally_there.covariance, kernel)
        ],
        confidence=CONFIDENCE,
        where="neither the variance at the start, nor that at t → ∞, nor the tangent kernel",
    )
    says.fails("initial weights with mean 0.3", spread(shifted))
    late = 20 / float(training.eigenvalues[0] * 2 / m)
    flat = lifted(points, STEEPNESS) @ lifted(points, STEEPNESS).T

    def left(kernel: Tensor) -> Tensor:
        laws = [law_of_training(kernel, y, t, initial=covariance, rate=2 / m) for t in (late, math.inf)]
        return torch.stack([law.covariance.diagonal()[:m] for law in laws])

    says = run.states("A-59", r"\mathrm{var}\,\Phi(x^{(i)},\Theta(t))\to0 \text{ on the training inputs}")
    says.equal(left(kernel), within=1e-12, where=f"at t = {late:.3g} and at infinity")
    says.fails("a kernel of rank 2 on the 5 inputs, that of linear functions", left(flat))


def widening(run: Run, x: Tensor, y: Tensor, grid: Tensor, widths: list[int], networks: int) -> WidthSweep:
    """Networks under gradient flow against the closed form with the kernel of infinite width."""
    m = len(y)
    points = torch.cat([x, grid])
    covariance, kernel = wide_kernels(points, STEEPNESS)
    times = torch.linspace(0.25, 5, 20, dtype=torch.float64)
    targets = y[:, None].expand(m, networks).contiguous()
    each: dict[str, list[float]] = {"tangent": [], "last layer": []}
    deviations: list[float] = []
    last_layer: list[float] = []
    example = {}
    for width in run.track(widths, "widths"):
        model = SideBySide(networks, width, run.generator)
        problem = Problem(model, (x, targets), task="regression")
        # the loss is a mean over the networks as well, which slows each of them down
        path = gradient_flow(problem, networks * times, rtol=1e-5, atol=1e-6)
        with torch.no_grad():
            start = model(points)
            flow = torch.stack([problem.function(path.parameters(k), points) for k in range(len(times))])
        closed, other = (
            KernelTraining(k[:m, :m], targets, start[:m], rate=2 / m).test(k[:, :m], times, start)
            for k in (kernel, covariance)
        )
        for name, prediction, overall in (("tangent", closed, deviations), ("last layer", other, last_layer)):
            squares = (flow - prediction).square().mean((0, 1))
            each[name] += squares.sqrt().tolist()
            overall.append(float(squares.mean().sqrt()))
        example[width] = (
            torch.cat([start[None], flow])[..., 0],
            torch.cat([start[None], closed])[..., 0],
        )
    says = run.states(
        "A-59",
        r"\text{gradient flow of a network of width } N \text{ is within } O(N^{-1/2})"
        r" \text{ of the closed form: exponent}",
    )
    drawn = [width for width in widths for _ in range(networks)]
    says.slope(
        drawn,
        each["tangent"],
        -0.5,
        against=(-1.0, -0.25, 0.0),
        confidence=CONFIDENCE,
        where=f"{networks} networks of each width, root mean square over inputs and times",
    )
    says.fails("the kernel of the last layer only", drawn, each["last layer"])
    run.table(
        "widths",
        ["width", "distance from the closed form", "with the last layer's kernel"],
        [list(row) for row in zip(widths, deviations, last_layer, strict=True)],
        caption="Root mean square over inputs, times and networks.",
    )
    return WidthSweep(widths, deviations, example, torch.cat([torch.zeros(1), times]))


def _jacobian(problem: Problem, parameters: Parameters, x: Tensor) -> Tensor:
    """Derivatives of the outputs by all parameters, `[n, p]`."""
    made: Parameters = torch.func.jacrev(lambda p: problem.function(p, x).flatten())(parameters)
    return torch.cat([part.reshape(len(x), -1) for part in made.values()], 1)


def _losses(problem: Problem, points: Tensor) -> Tensor:
    objective = problem.objective(problem.train)
    with torch.no_grad():
        return torch.stack([objective(unflatten(p, problem.parameters)) for p in points])


def _distance(theta: Tensor, path: ParameterPath) -> float:
    """How far parameters are from the flow at the third of its times, where both end."""
    return float((theta - path.points[2]).norm())


def _derivative(values: Tensor, h: float) -> Tensor:
    """The derivative at the first of four equidistant values, to third order."""
    a, b, c, d = values.detach().unbind()
    return (-11 * a + 18 * b - 9 * c + 2 * d) / (6 * h)


def plot_dynamics(axes: Any, problem: Problem, path: ParameterPath, bound: Tensor, sweep: WidthSweep) -> None:
    left, middle, right = axes[0]
    theta, direction = flatten(problem.parameters), descent_direction(problem)
    left.semilogy(path.times, path.losses, color=COLORS[0], label="gradient flow")
    for k, count in enumerate((3, 5)):
        step = float(path.times[4]) / count
        losses = _losses(problem, trajectory(direction, theta, [step] * (4 * count)))
        moments = torch.arange(4 * count + 1) * step
        style = {"color": COLORS[1 + k], "markersize": 3, "linewidth": 0.8}
        left.semilogy(moments, losses, "o-", label=f"descent, η = {step:.2g}", **style)
    left.semilogy(path.times, bound, "--", color="0.4", label="bound")
    left.minorticks_off()
    left.set(xlabel="t", ylabel="risk", title="a small network")
    left.legend(fontsize=7)
    for k, width in enumerate((sweep.widths[0], sweep.widths[-1])):
        flow, closed = sweep.example[width]
        for i, point in enumerate((7, 19, 34)):
            label = f"width {width}" if i == 0 else None
            middle.plot(sweep.times, flow[:, point], color=COLORS[k], label=label)
            middle.plot(sweep.times, closed[:, point], "k:", linewidth=1.2)
    middle.plot([], [], "k:", linewidth=1.2, label="closed form")
    middle.set(xlabel="t", ylabel="output", title="wide networks at three inputs")
    middle.legend(fontsize=7)
    right.loglog(sweep.widths, sweep.deviations, "o-", label="distance")
    guide = [sweep.deviations[0] * math.sqrt(sweep.widths[0] / w) for w in sweep.widths]
    right.loglog(sweep.widths, guide, "--", color="0.4", label="slope -1/2")
    right.set_xticks(sweep.widths, [str(n) for n in sweep.widths])
    right.minorticks_off()
    right.set(xlabel="width", ylabel="root mean square", title="distance from the closed form")
    right.legend(fontsize=7)
