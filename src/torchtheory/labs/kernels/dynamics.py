"""Least squares with a fixed kernel: flow, steps and momentum in closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torchdiffeq import odeint

from torchtheory.kernels.tangent.dynamics import DescentRule, HeavyBallRule, KernelTraining
from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.optimization.descent.iterates import gradient_descent
from torchtheory.training.optimizers.momentum import HeavyBall


@dataclass(frozen=True)
class FeatureModel:
    r"""The model $f(x,\theta)=p^{-1/2}\theta^\top\varphi(Wx+b)$ on points of the line."""

    weight: Tensor
    bias: Tensor

    def features(self, x: Tensor) -> Tensor:
        r"""Rows $\phi(x)/\sqrt p$, whose inner products are the kernel."""
        return torch.tanh(x[:, None] * self.weight + self.bias) / math.sqrt(len(self.weight))

    def kernel(self, x: Tensor, other: Tensor) -> Tensor:
        return self.features(x) @ self.features(other).T


@dataclass(frozen=True)
class Task:
    """Training and test points of a feature model, with their features and kernels."""

    model: FeatureModel
    x: Tensor
    y: Tensor
    test: Tensor

    @property
    def train_features(self) -> Tensor:
        return self.model.features(self.x)

    @property
    def test_features(self) -> Tensor:
        return self.model.features(self.test)

    @property
    def kernel(self) -> Tensor:
        return self.model.kernel(self.x, self.x)

    @property
    def cross(self) -> Tensor:
        return self.model.kernel(self.test, self.x)

    def loss(self, theta: Tensor) -> Tensor:
        """Half the sum of squares, for parameters `[..., p]`."""
        return (theta @ self.train_features.T - self.y).square().sum(-1) / 2

    def training(self, theta: Tensor | None = None) -> KernelTraining:
        """The closed form from given parameters, or from zero."""
        start = None if theta is None else self.train_features @ theta
        return KernelTraining(self.kernel, self.y, start)

    def integrate(self, theta: Tensor, times: Tensor) -> Tensor:
        """Gradient flow in the space of parameters from `[..., p]`, by Runge-Kutta steps."""
        phi = self.train_features
        matrix, pull = phi.T @ phi, phi.T @ self.y
        path: Tensor = odeint(lambda _, point: pull - point @ matrix, theta, times, rtol=1e-9, atol=1e-11)
        return path


@lab(
    "kernel-gradient-flow",
    room="kernels",
    covers=["M-05", "M-08"],
    title="Training with a fixed kernel is solved by one eigendecomposition",
    errata=["kernel-flow-start-omitted", "kernel-flow-exponential-of-cross-kernel"],
    full={"samples": 12, "features": 400, "steps": 2000},
    least={"samples": 8, "features": 25, "steps": 40, "momentum": 0.009},
    most={"momentum": 0.9},
)
def kernel_gradient_flow(
    run: Run, samples: int = 10, features: int = 30, steps: int = 300, momentum: float = 0.9
) -> None:
    """Random tanh features on the line, trained by least squares.

    The closed form of gradient flow, from zero and from any other start, on training and on test
    points, is held against a Runge-Kutta solution in the space of parameters, and its limit
    against linear algebra: the interpolant closest to the start. Gradient descent and the heavy
    ball have closed forms as well, exact below and above their limits of stability. Look at how
    the directions of large eigenvalue are learned first, and at what 1 % around the limit does.

    Args:
        samples: training points on [-2, 2], and as many test points.
        features: random features, whose products are the kernel.
        steps: of gradient descent.
        momentum: of the descent with momentum.
    """
    model = FeatureModel(2 * run.randn(features), run.randn(features))
    x = torch.linspace(-2, 2, samples, dtype=torch.float64)
    test = torch.linspace(-2.5, 2.5, samples, dtype=torch.float64)
    task = Task(model, x, torch.sin(2 * x) + 0.1 * run.randn(samples), test)
    times = torch.tensor([0, 0.1, 0.5, 1, 2, 5], dtype=torch.float64)
    theta = run.randn(features)
    path = task.integrate(torch.stack([torch.zeros_like(theta), theta]), times)
    from_zero(run, task, times, path)
    from_anywhere(run, task, times, path[:, 1])
    singular_kernel(run, task, times)
    descent_steps(run, task, steps, momentum)
    stability(run, task, steps, momentum)
    run.figure(
        "flow",
        lambda axes: plot_flow(axes, task),
        caption="Left: the function at growing times. Middle: what is left of the error along "
        "the eigenvectors of the kernel. Right: the loss of gradient descent and of the heavy "
        "ball with steps 1 % below and above their limits.",
        grid=(1, 3),
        size=(13, 3.6),
    )


def from_zero(run: Run, task: Task, times: Tensor, paths: Tensor) -> None:
    """Flow from the parameters zero; the other path starts elsewhere."""
    training = task.training()
    path, elsewhere = paths.unbind(1)
    closed = training.test(task.cross, times)

    def difference(points: Tensor) -> Tensor:
        return (points @ task.test_features.T - closed).abs().max()

    says = run.states("M-05", r"\theta_0=0:\ f_{\theta_t}(x)=K_x^\top K^{-1}(I-e^{-Kt})y: \text{ largest difference}")
    says.equal(difference(path), within=1e-6, where="from a Runge-Kutta solution in the parameters")
    says.fails("the parameters start elsewhere", difference(elsewhere))
    run.refutes(
        "kernel-flow-start-omitted", r"f_{\theta_t}(x)=K_xK^{-1}(I-e^{-Kt})y \text{ for every } \theta_0"
    ).equal(difference(elsewhere), within=1e-6, where="the flow from random parameters")
    says = run.states("M-05", r"f_{\theta_0}=0: \text{ largest value at time 0}")
    says.equal(training.test(task.cross, 0.0).abs().max())
    says.fails("at time 0.1", training.test(task.cross, 0.1).abs().max())
    # the pseudo-inverse of the features, not of the kernel, whose condition is the square
    solution = torch.linalg.lstsq(task.train_features, task.y, driver="gelsd").solution
    limit = task.test_features @ solution
    late = 60 / float(training.eigenvalues[0])

    def distance(time: float) -> float:
        return float((training.test(task.cross, time) - limit).abs().max())

    says = run.states("M-05", r"t\to\infty:\ f_{\theta_t}(x)\to K_x^\top K^{-1}y: \text{ largest difference}")
    says.equal(
        [distance(late), distance(math.inf)],
        within=1e-6,
        where=f"at t = 60/λ = {late:.2g} with the smallest eigenvalue λ, and at infinity",
    )
    says.fails("t = 1 is not infinity", distance(1.0))


def from_anywhere(run: Run, task: Task, times: Tensor, path: Tensor) -> None:
    """Flow from random parameters: trajectories, decay, limit."""
    theta = path[0]
    training = task.training(theta)
    begin = task.test_features @ theta
    closed = training.test(task.cross, times, begin)
    numeric = path @ task.test_features.T
    train = (path @ task.train_features.T - training.train(times)).abs().max()
    test = (numeric - closed).abs().max()
    forgetful = (numeric - training.test(task.cross, times)).abs().max()
    says = run.states(
        "M-08",
        r"f(X,\theta_t)=y+e^{-K(X,X)t}(f(X,\theta_0)-y),\ f(x,\theta_t)-f(x,\theta_0)="
        r"K(x,X)K(X,X)^{-1}(e^{-K(X,X)t}-I)(f(X,\theta_0)-y): \text{ largest difference}",
    )
    says.equal(
        torch.stack([train, test]),
        within=1e-6,
        where="from a Runge-Kutta solution in the parameters, on training and on test points",
    )
    says.fails("the start at test points is taken for zero", forgetful)
    # as many test points as training points: then K(x,X) is square and has an exponential
    print_time = float(times[2])
    printed = begin + task.cross @ torch.linalg.solve(
        task.kernel,
        (torch.linalg.matrix_exp(-task.cross * print_time) - torch.eye(len(task.x))) @ (training.start - task.y),
    )
    run.refutes(
        "kernel-flow-exponential-of-cross-kernel",
        r"f(x,\theta_t)-f(x,\theta_0)=K(x,X)K(X,X)^{-1}(e^{-K(x,X)t}-I)(f(X,\theta_0)-y)",
    ).equal(
        printed, numeric[2], 1e-6, where=f"{len(task.x)} test points, so that K(x,X) is square, at t = {print_time:g}"
    )
    error = (task.y - training.train(times)).norm(dim=1)
    rates = training.eigenvalues
    says = run.states("M-08", r"\|f(X,\theta_t)-y\|\le e^{-\lambda_{\min}t}\|f(X,\theta_0)-y\|")
    says.at_most(error, torch.exp(-rates[0] * times) * error[0], 1e-9)
    says.fails(
        "the mean eigenvalue instead of the smallest", error, promised=torch.exp(-rates.mean() * times) * error[0]
    )
    move = torch.linalg.lstsq(task.train_features, task.y - task.train_features @ theta, driver="gelsd").solution
    closest = theta + move
    other = closest + _orthogonal_to(task.train_features, run.randn(len(theta)))
    final = training.test(task.cross, math.inf, begin)
    says = run.states(
        "M-08", r"f(\cdot,\theta_\infty) \text{ is the interpolant closest to } \theta_0: \text{ largest difference}"
    )
    says.equal((final - task.test_features @ closest).abs().max(), within=1e-6)
    says.fails("another interpolant, further from the start", (final - task.test_features @ other).abs().max())
    fitted = training.time_to_fit(0.01)
    says = run.states("M-08", r"e^{-\lambda_it}=0.01 \text{ at } t=\log(100)/\lambda_i")
    says.equal(training.residual(fitted).diagonal(), 0.01, 1e-12)
    says.fails("half the time", training.residual(fitted / 2).diagonal())
    run.table(
        "eigen-directions",
        ["direction", "eigenvalue", "time to 1 %", "share of the initial error"],
        [
            [k + 1, float(rates[-1 - k]), float(fitted[-1 - k]), float(share)]
            for k, share in enumerate(
                training.coefficients.flip(0).flatten().square() / training.coefficients.square().sum()
            )
        ],
        caption="One clock a direction: the time is log(100)/λ.",
    )


def singular_kernel(run: Run, task: Task, times: Tensor) -> None:
    """Fewer features than points: the kernel has no inverse, and none is needed."""
    few = max(2, len(task.x) // 3)
    small = FeatureModel(task.model.weight[:few], task.model.bias[:few])
    thin = Task(small, task.x, task.y, task.test)
    path = thin.integrate(torch.zeros(few, dtype=torch.float64), times)
    training = thin.training()
    fits = torch.linalg.lstsq(thin.train_features, thin.y).solution
    says = run.states("M-08", r"p<n:\ K(X,X) \text{ is singular and the closed form holds: largest difference}")
    says.equal(
        torch.stack(
            [
                (path @ thin.test_features.T - training.test(thin.cross, times)).abs().max(),
                (training.test(thin.cross, math.inf) - thin.test_features @ fits).abs().max(),
            ]
        ),
        within=1e-6,
        where=f"{few} features for {len(task.x)} points; the limit is least squares",
    )
    says.fails("all of y is fitted, as if K(X,X) had an inverse", (training.train(math.inf) - thin.y).abs().max())


def descent_steps(run: Run, task: Task, steps: int, momentum: float) -> None:
    """The closed forms of gradient descent and of the heavy ball."""
    theta = run.randn(len(task.model.weight))
    training, begin = task.training(theta), task.test_features @ theta
    count = torch.arange(steps + 1)
    eta = 0.9 * training.stability_limit()
    path = gradient_descent(task.loss, theta, eta, steps).points
    numeric = path @ task.test_features.T
    closed = training.with_rule(DescentRule(eta)).test(task.cross, count, begin)
    flow = training.test(task.cross, eta * count, begin)
    says = run.states(
        "M-08",
        r"\text{gradient descent: }e_k=(1-\eta\lambda)^k \text{ along each eigenvector: largest}\text{ difference}",
    )
    says.equal(
        (numeric - closed).abs().max(), within=1e-8, where=f"{steps} steps of 0.9 times the limit, on test points"
    )
    says.fails("the flow at time ηk instead", (numeric - flow).abs().max())
    eta = 0.5 * training.stability_limit(momentum)
    moving = theta.clone().requires_grad_()
    optimizer = HeavyBall([moving], lr=eta, momentum=momentum)
    iterates = [theta]
    for _ in range(steps):
        optimizer.zero_grad()
        task.loss(moving).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        iterates.append(moving.detach().clone())
    numeric = torch.stack(iterates) @ task.test_features.T
    ball = training.with_rule(HeavyBallRule(eta, momentum)).test(task.cross, count, begin)
    plain = training.with_rule(DescentRule(eta)).test(task.cross, count[:20], begin)
    says = run.states(
        "M-08", r"\text{heavy ball: } e_{k}=U_{k+1}-\beta U_k,\ U_k=(z_1^k-z_2^k)/(z_1-z_2): \text{ largest difference}"
    )
    says.equal(
        (numeric - ball).abs().max(),
        within=1e-8,
        where=f"{steps} steps with β = {momentum:g}, half the limit, on test points",
    )
    says.fails("without the momentum", (numeric[:20] - plain).abs().max())


def stability(run: Run, task: Task, steps: int, momentum: float) -> None:
    """Just below and just above the limits of the step."""
    training = task.training()
    # the worst start: all of the error along the eigenvector with the largest eigenvalue
    worst = KernelTraining(task.kernel, training.eigenvectors[:, -1].contiguous())
    far = 2 * steps

    def growth(each: KernelTraining, relative: float, beta: float, begin: int) -> Tensor:
        """The last loss over the one at the beginning."""
        rule = HeavyBallRule(relative * each.stability_limit(beta), beta)
        losses = each.with_rule(rule).loss([begin, begin + far])
        return losses[1] / losses[0]

    for beta, name in ((0.0, r"2/\lambda_{\max}"), (momentum, r"2(1+\beta)/\lambda_{\max}")):
        says = run.states(["M-05", "M-08"], rf"\eta<{name}: \text{{ the loss does not grow: last over first}}")
        says.at_most(
            # near its limit the heavy ball swings by (1 + β) / (1 - β) at first
            torch.stack(
                [*(growth(training, r, beta, 0) for r in (0.5, 0.9, 0.99)), growth(worst, 1 - 1e-6, beta, far)]
            ),
            1,
            where=f"{far} steps, β = {beta:g}; steps of 0.5, 0.9 and 0.99 times the limit, and of 1 - 10⁻⁶ for the "
            "labels that are slowest there",
        )
        says.fails("1 + 10⁻⁶ times the limit", growth(worst, 1 + 1e-6, beta, far))
    losses = gradient_descent(
        task.loss,
        torch.zeros(len(task.model.weight), dtype=torch.float64),
        1.01 * training.stability_limit(),
        steps,
    ).values
    closed = training.with_rule(DescentRule(1.01 * training.stability_limit()))
    says = run.states("M-08", r"\text{beyond the limit the closed form is exact as well: ratio of the losses}")
    says.equal(
        losses / closed.loss(torch.arange(steps + 1)),
        1,
        1e-8,
        where=f"the loss of {steps} steps of gradient descent, 1 % above the limit",
    )
    says.fails(
        "the closed form 1 % below the limit",
        losses / training.with_rule(DescentRule(0.99 * training.stability_limit())).loss(torch.arange(steps + 1)),
    )


def _orthogonal_to(rows: Tensor, vector: Tensor) -> Tensor:
    """The part of a vector that the rows do not see."""
    basis = torch.linalg.qr(rows.T).Q
    rest: Tensor = vector - basis @ (basis.T @ vector)
    return rest


def plot_flow(axes: Any, task: Task) -> None:
    left, middle, right = axes[0]
    training = task.training()
    grid = torch.linspace(-2.5, 2.5, 200, dtype=torch.float64)
    cross = task.model.kernel(grid, task.x)
    for k, t in enumerate((0.1, 1.0, 10.0, 100.0, math.inf)):
        label = "t → ∞" if math.isinf(t) else f"t = {t:g}"
        left.plot(grid, training.test(cross, t), color=COLORS[k], label=label)
    left.plot(task.x, task.y, "ko", markersize=4)
    left.set(xlabel="x", ylabel="f(x)", title="gradient flow from zero")
    spread = float(task.y.abs().max())
    left.set_ylim(-1.6 * spread, 1.6 * spread)
    left.legend(ncols=2, fontsize=7)
    times = torch.logspace(-2, 3, 200, dtype=torch.float64)
    residual = training.residual(times)
    shown = [-1, -2, -3, -4, -5, -6]
    for k, i in enumerate(shown):
        middle.semilogx(
            times,
            residual[:, i],
            color=COLORS[k],
            label=f"λ = {float(training.eigenvalues[i]):.2g}",
        )
    middle.minorticks_off()
    middle.set(xlabel="t", ylabel="error left", title="along the eigenvectors")
    middle.legend(fontsize=7)
    steps = torch.arange(0, 400)
    styles = ((0.99, "-"), (1.01, "--"))
    for k, beta in enumerate((0.0, 0.9)):
        for relative, style in styles:
            rule = HeavyBallRule(relative * training.stability_limit(beta), beta)
            right.semilogy(
                steps,
                training.with_rule(rule).loss(steps),
                style,
                color=COLORS[k],
                linewidth=1.2,
                label=f"β = {beta:g}, {relative:g} × limit",
            )
    right.set(xlabel="steps", ylabel="loss", title="around the limit of stability", ylim=(1e-4, 1e6))
    right.legend(fontsize=7)
