"""Logistic regression on separable data goes to infinity in the direction of the hard margin."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchtheory.data.synthetic import separable_gaussians
from torchtheory.generalization.implicit_bias.hard_margin import hard_margin_svm
from torchtheory.generalization.implicit_bias.separable_flow import (
    EXPONENTIAL,
    LOGISTIC,
    POLYNOMIAL,
    SeparableFlow,
    residual_certificate,
    separable_flow,
)
from torchtheory.labs.engine import COLORS, Run, fit_slope, lab
from torchtheory.optimization.descent.iterates import gradient_descent
from torchtheory.training.losses.surrogates import logistic_surrogate


@lab(
    "logistic-regression-to-hard-margin",
    room="generalization",
    covers=["M-128", "M-129", "M-130", "M-131", "M-132", "A-71"],
    title="On separable data w(t) = ŵ log t + ρ(t): direction 1/log t, loss 1/t",
    errata=["validation-loss-grows-for-all-datasets"],
    full={"samples": 200, "dimension": 20, "steps": 20_000},
    least={"samples": 10, "dimension": 2, "steps": 100},
)
def logistic_regression_to_hard_margin(run: Run, samples: int = 30, dimension: int = 3, steps: int = 1000) -> None:
    """Gradient flow on separable data, followed in logarithmic time to t = 1e7 and to 1e60.

    First four points whose limit is known in closed form, under the exponential loss, the logistic
    loss and one without exponential tail, which goes elsewhere. Then Gaussian samples: the proof's
    bound on the residual, the gradient as a combination of support vectors, and the validation
    loss that grows while the error does not. Look at the logarithmic axes: the loss is down by
    seven powers of ten when the direction has gained one digit.

    Args:
        samples: of the separable data.
        dimension: of the inputs.
        steps: of gradient descent.
    """
    x = torch.tensor([[1, 1], [1, -2], [1.6, 0.3], [2.2, -0.5]], dtype=torch.float64)
    y = torch.ones(4, dtype=torch.float64)
    flows = known_limit(run, x, y)
    combination(run, x, y)
    planted = separable_gaussians(samples, dimension, margin=0.2, generator=run.generator)
    certificate(run, [(x, y), (planted.x, planted.y)])
    by_steps(run, steps)
    validation(run, x, y)
    run.figure(
        "log-time",
        lambda axes: plot_flows(axes, x, y, flows),
        caption="Left: the loss falls like 1/t. Right: the distance of the direction, times log t, "
        "tends to "
        "0.231; without an exponential tail it does not stay bounded.",
        grid=(1, 2),
    )


def known_limit(run: Run, x: Tensor, y: Tensor) -> dict[str, SeparableFlow]:
    """Four points with ŵ = (1, 0): everything about the limit in closed form."""
    pair = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    start = torch.tensor([0.7, 0.0], dtype=torch.float64)
    times = torch.logspace(-2, 7, 37, dtype=torch.float64)
    exact = torch.log(2 * times + math.exp(0.7))
    followed = separable_flow(pair, torch.ones(2), times, start=start)
    logistic = separable_flow(pair, torch.ones(2), times, loss=LOGISTIC, start=start)
    says = run.states("M-128", r"(1,1),(1,-1) \text{ from } (u_0,0):\ w(t)=(\log(2t+e^{u_0}),0)")
    says.equal(followed.weights[:, 0], exact, 1e-8, where=f"t from 0.01 to 1e7 in {followed.evaluations} evaluations")
    says.fails("the logistic loss", logistic.weights[:, 0])
    certified = residual_certificate(x, y)
    best = hard_margin_svm(x, y)
    grid = torch.logspace(1, 7, 49, dtype=torch.float64)
    flows = {loss.name: separable_flow(x, y, grid, loss=loss) for loss in (EXPONENTIAL, LOGISTIC, POLYNOMIAL)}
    other = separable_flow(x, y, grid, start=torch.tensor([-1.0, 2.0], dtype=torch.float64))
    log = math.log(1e7)
    remainders = [f.weights[-1] - best.weight * log for f in (flows["exponential"], flows["logistic"], other)]
    wrong = flows["polynomial"].weights[-1] - best.weight * log
    says = run.states("M-128", r"w(t)-\hat w\log t\to\tilde w=(0.63651,-0.23105) \text{ from any start},\ t=10^7")
    says.equal(
        torch.cat(remainders),
        certified.offset.repeat(3),
        3e-4,
        where="exponential from two starts, logistic; the rest decays like $t^{1-θ}$, θ = 1.6",
    )
    says.fails("a loss without exponential tail", wrong.repeat(3))
    late = separable_flow(x, y, [1e60])
    across = float(certified.offset[1].abs())
    strayed = flows["polynomial"].direction_errors(best.weight)
    says = run.states(
        ["M-128", "M-131"], r"\log t\cdot\|w/\|w\|-\hat w/\|\hat w\|\|\to\|P^\perp\tilde w\|/\|\hat w\|=0.231"
    )
    says.equal(float(late.direction_errors(best.weight)[0]) * math.log(1e60), across, 2e-3, where="at t = 1e60")
    says.fails("a loss without exponential tail, t = 1e7", float(strayed[-1]) * log)
    says = run.states("M-131", r"t\,L(w(t))\to\sum_i\alpha_i=\|\hat w\|^2,\ t=10^7")
    says.equal(
        [float(flows[n].losses[-1] * 1e7) for n in ("exponential", "logistic")], float(best.multipliers.sum()), 1e-3
    )
    says.fails("a loss without exponential tail", float(flows["polynomial"].losses[-1]) * 1e7)
    tail = grid >= 1e3
    says = run.states("M-131", r"L(w(t))=O(1/t): \text{ exponent}")
    says.slope(
        grid[tail],
        flows["logistic"].losses[tail],
        -1.0,
        0.01,
        against=(-0.5, -2.0),
        where="logistic loss, t from 1e3 to 1e7",
    )
    says.fails("a loss without exponential tail", grid[tail], flows["polynomial"].losses[tail])
    errors = flows["logistic"].direction_errors(best.weight)
    margins = flows["logistic"].normalized_margins
    says = run.states(
        "A-71",
        r"\text{logistic loss: the distance from the hard-margin direction falls, and is } "
        r"O(1/\log t): \text{ largest } \log t\cdot\text{error}",
    )
    says.at_most(errors[grid >= 100] * grid[grid >= 100].log(), 1.05 * across)
    says.fails("a loss without exponential tail", strayed[grid >= 100] * grid[grid >= 100].log())
    final = flows["polynomial"].normalized_margins[-1]
    says = run.states("A-71", r"\text{the normalized margin comes within } 2\,\% \text{ of the largest one}")
    says.at_least(float(margins[-1]), 0.98 * best.margin)
    says.fails("a loss without exponential tail", float(final))
    norms = flows["logistic"].weights.norm(dim=1)
    says = run.states("A-71", r"\|w(t)\|\sim\|\hat w\|\log t: \text{ slope}")
    largest = float(best.weight.norm())
    says.slope(grid[tail].log(), norms[tail], largest, 0.01, against=(largest / 2, 2 * largest), log=False)
    says.fails("a loss without exponential tail", grid[tail].log(), flows["polynomial"].weights.norm(dim=1)[tail])
    run.table(
        "rates",
        ["t", "loss × t", "direction error", "× log t", "normalized margin", "share of the rest"],
        [
            (
                float(grid[k]),
                flows["logistic"].losses[k] * grid[k],
                errors[k],
                errors[k] * grid[k].log(),
                margins[k],
                flows["logistic"].shares[k, ~best.support].sum(),
            )
            for k in range(0, len(grid), 8)
        ],
        caption="Logistic loss on four points; the last column is what points off the margin "
        "still contribute to the gradient",
    )
    return flows


def combination(run: Run, x: Tensor, y: Tensor) -> None:
    """The gradient is soon made of support vectors alone."""
    best = hard_margin_svm(x, y)
    times = torch.logspace(4, 12, 33, dtype=torch.float64)
    flow = separable_flow(x, y, times)
    rest = flow.shares[:, ~best.support].sum(1)
    theta = best.second_margin(x, y)
    says = run.states(
        "M-129",
        r"\text{the share of } \nabla L \text{ off the margin decays like } t^{1-\theta},\ "
        r"\theta=\min_{i\notin S}\hat w^\top x_i: \text{ exponent}",
    )
    says.slope(times, rest, 1 - theta, 0.01, against=(-theta, -1.0), where=f"θ = {theta:g}, t from 1e4 to 1e12")
    says.fails("the share of a support vector", times, flow.shares[:, 0])
    early = separable_flow(x, y, [1.0])
    says = run.states("M-129", r"\text{the shares tend to } \alpha_i/\sum_k\alpha_k")
    says.equal(flow.shares[-1], best.multipliers / best.multipliers.sum(), 1e-6)
    says.fails("at t = 1", early.shares[0])


def certificate(run: Run, data: list[tuple[Tensor, Tensor]]) -> None:
    """The proof's bound on the growth of the residual, between all pairs of times."""
    times = torch.logspace(0, 7, 29, dtype=torch.float64)
    earlier, later = torch.triu_indices(len(times), len(times), 1)
    grown, allowed, rows = [], [], []
    for name, (x, y) in zip(("four points", "Gaussian sample"), data, strict=True):
        bound = residual_certificate(x, y)
        flow = separable_flow(x, y, times)
        log = times.log()[:, None]
        squares = (flow.weights - bound.limit * log - bound.offset).square().sum(1)
        wrong = (flow.weights - 2 * bound.limit * log - bound.offset).square().sum(1)
        growth = torch.tensor([bound.growth(t) for t in times.tolist()], dtype=torch.float64)
        grown.append(squares[later] - squares[earlier])
        if name == "four points":  # whose constants are small: from later times on little is allowed
            late = (times >= 1e3) & (times < 1e7)
            doubled, doubled_allowed = (wrong[-1] - wrong)[late], growth[late]
        allowed.append(growth[earlier])
        rows.append((name, bound.second_margin, bound.constant, growth[0], squares[0], squares[-1]))
    run.table(
        "residual",
        ["sample", "θ", "C", "allowed growth from t = 1", "‖r(1)‖²", "‖r(1e7)‖²"],
        rows,
        caption="The proof's constants: the residual is bounded, though not always by a small number",
    )
    says = run.states(
        "M-130", r"\|r(t)\|^2-\|r(t_1)\|^2\le\tfrac{2C\,t_1^{1-\theta}}{\theta-1},\ r=w-\hat w\log t-\tilde w"
    )
    says.at_most(
        torch.cat(grown),
        torch.cat(allowed),
        1e-9,
        loose="the proof drops the terms that shrink the residual, and on these data they outweigh those it keeps",
        where="the four points and a Gaussian sample, all pairs of 29 times up to 1e7",
    )
    says.fails("r with 2 ŵ log t", doubled, promised=doubled_allowed)
    z = torch.linspace(-20, 20, 2001, dtype=torch.float64)
    says = run.states("M-130", r"z(e^{-z}-1)\le0 \text{ and } z\,e^{-z}\le1: \text{ largest excess}")
    says.at_most(torch.maximum(z * torch.expm1(-z), z * torch.exp(-z) - 1), 0.0)
    says.fails("z($e^z$ - 1) instead", z * torch.expm1(z))


def by_steps(run: Run, steps: int) -> None:
    """Gradient descent as in the theorem: the step rule, and the same path as the flow."""
    z = torch.tensor([[1.0, 6.0], [1.0, -7.0]], dtype=torch.float64)
    largest = 8 / float(torch.linalg.matrix_norm(z, 2)) ** 2

    def loss(w: Tensor) -> Tensor:
        return LOGISTIC.value(w @ z.T).sum(-1)

    zero = torch.zeros(z.shape[1], dtype=torch.float64)
    calm = gradient_descent(loss, zero, 0.99 * largest, steps)
    wild = gradient_descent(loss, zero, 3 * largest, 50)
    says = run.states(
        "M-128",
        r"\eta<2\beta^{-1}\sigma_{\max}^{-2}(X)=8/\sigma_{\max}^2:\ L \text{ falls at every step}:"
        r" \text{ largest change}",
    )
    says.below(calm.values.diff().max(), 0.0, where=f"{steps} steps with 0.99 of that step")
    says.fails("three times that step", wild.values.diff().max())
    end = 0.99 * largest * (steps // 8)
    flow = separable_flow(z, torch.ones(2), [end], loss=LOGISTIC).weights[0]
    rates = [0.99 * largest / k for k in (1, 2, 4, 8)]
    near, late = [], []
    for rate in rates:
        path = gradient_descent(loss, zero, rate, round(end / rate)).points
        near.append(float((path[-1] - flow).norm() / flow.norm()))
        late.append(float((path[len(path) // 10] - flow).norm() / flow.norm()))
    says = run.states(
        "M-128", r"\text{descent after } t/\eta \text{ steps differs from the flow at } t \text{ by } O(\eta)"
    )
    says.slope(rates, near, 1.0, 0.05, against=(0.5, 2.0), where="relative distance, four step sizes, the same time")
    says.fails("after a tenth of the steps", rates, late)


def validation(run: Run, x: Tensor, y: Tensor) -> None:
    """A validation point on the wrong side of ŵ, and a validation set without one."""
    best = hard_margin_svm(x, y)
    times = torch.logspace(1, 7, 25, dtype=torch.float64)
    flow = separable_flow(x, y, times, loss=LOGISTIC)
    wrong = torch.tensor([[-0.5, 0.3], [2.0, 0.1], [0.7, 0.7]], dtype=torch.float64)
    right = wrong.abs()
    log = times.log()
    rest = flow.weights - log[:, None] * best.weight

    def total(points: Tensor) -> Tensor:
        return logistic_surrogate(flow.weights @ points.T, torch.ones(len(times), 3)).sum(1)

    lower = -log * (best.weight @ wrong[0]) - rest @ wrong[0]
    says = run.states("M-132", r"L_{val}(w(t))\ge-\log t\,\hat w^\top x_k-\rho(t)^\top x_k")
    says.at_least(total(wrong), lower)
    says.fails("a validation set that ŵ separates", total(right))
    late = times >= 1e4
    falls = fit_slope(log[late], total(right)[late], log=False)
    says = run.states("M-132", r"\text{slope of } L_{val} \text{ in } \log t: \ |\hat w^\top x_k|")
    says.slope(
        log[late],
        total(wrong)[late],
        0.5,
        0.01,
        against=(0.25, 1.0),  # its square; the margin of the training set
        log=False,
        where="ŵᵀx_k = -0.5; t from 1e4 to 1e7",
    )
    says.fails("a validation set that ŵ separates", falls)
    run.refutes(
        "validation-loss-grows-for-all-datasets",
        r"L_{val} \text{ grows with } \log t \text{ for all datasets}: \text{ slope}>0",
    ).above(
        falls.high,
        0.0,
        where=f"a validation set that ŵ separates: the loss falls to {float(total(right)[-1]):.1e} at t = 1e7",
    )

    run.curves(
        "validation",
        times,
        {
            "training loss": flow.losses,
            "validation, one point wrong": total(wrong),
            "validation, none wrong": total(right),
        },
        {"lower bound, one point wrong": lower},
        axes=("time t", "loss (sum)"),
        log="x",
        caption="With one point on the wrong side of the limit the validation loss grows like "
        "log t for ever, although the predictions no longer change.",
    )


def plot_flows(axes: Any, x: Tensor, y: Tensor, flows: dict[str, SeparableFlow]) -> None:
    goal = hard_margin_svm(x, y).weight
    left, right = axes[0]
    for k, (name, flow) in enumerate(flows.items()):
        style = "--" if name == "logistic" else "-"
        log = flow.times.log()
        left.loglog(flow.times, flow.losses, style, color=COLORS[k], label=name)
        right.plot(log, flow.direction_errors(goal) * log, style, color=COLORS[k], label=name)
    left.loglog(flow.times, 1 / flow.times, ":", color="0.4", label="$1/t$")
    right.axhline(0.231, ls=":", color="0.4", label="0.231")
    left.set(xlabel="time t", ylabel="loss")
    right.set(xlabel="log t", ylabel="log t × error of the direction")
    left.minorticks_off()
    left.legend()
    right.legend()
