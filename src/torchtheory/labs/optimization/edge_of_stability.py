"""What curvature a step can bear: sharpness against 2/η, on quadratics, a product and a network."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.func import hessian, vmap
from torch.optim import SGD

from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.optimization.curvature.edge_of_stability import stability_limit
from torchtheory.optimization.descent.iterates import (
    Function,
    gradient_descent,
    gradient_of,
    trajectory,
)

WIDTH = 6


@lab(
    "edge-of-stability",
    room="optimization",
    covers=["L-125"],
    title="Gradient descent ends where the curvature is at most 2/η",
    full={"steps": 6000, "starts": 400},
)
def edge_of_stability(run: Run, steps: int = 900, starts: int = 40) -> None:
    """The step limit of a quadratic, read the other way round: a step η bears curvature up to 2/η.

    torch.optim.SGD has such a limit for each of its settings, and it is met exactly on a quadratic.
    On ½(ab - 1)², whose minima have every sharpness from 2 upwards, gradient flow goes to the
    minimum next to it; gradient descent cannot stay at one that is too sharp, and ends at a flatter
    one. On a small network the sharpness usually rises as it learns, until it passes 2/η, and then
    hovers there while the loss goes on falling: an observation, which is shown and not judged. Look
    at the curves beside their dashed limits.

    Args:
        steps: of gradient descent on the network.
        starts: in the part on a product of two numbers.
    """
    limits_of_sgd(run)
    displacement(run)
    ends = product(run, starts)
    curves = network(run, steps)
    run.figure(
        "sharpness",
        lambda axes: plot(axes, curves, ends),
        caption="Left: sharpness along gradient descent on a network, by time, for three steps η; "
        "dashed, the limit 2/η of each. Middle: its losses. Right: the minima of ½(ab - 1)² at "
        "which descent ends, by the sharpness at which gradient flow from the same start ends.",
        grid=(1, 3),
        size=(12.5, 3.5),
    )


def limits_of_sgd(run: Run) -> None:
    settings: list[tuple[str, dict[str, Any]]] = [
        ("plain", {}),
        ("momentum 0.9", {"momentum": 0.9}),
        ("Nesterov 0.5", {"momentum": 0.5, "nesterov": True}),
        ("momentum 0.5, dampening 0.4", {"momentum": 0.5, "dampening": 0.4}),
        ("weight decay 3", {"weight_decay": 3.0}),
    ]

    def growth(options: dict[str, Any], share: float, steps: int = 300) -> float:
        """The factor per step on a displacement, on a quadratic of `share` times the limit."""
        x = torch.ones(1, dtype=torch.float64, requires_grad=True)
        optimizer = SGD([x], lr=0.1, foreach=False, **options)
        limit, _ = stability_limit(optimizer, None)
        assert limit is not None  # every SGD has one
        for _ in range(steps):
            x.grad = share * limit * x.detach()
            optimizer.step()
        return math.pow(float(x.detach().abs()), 1 / steps)

    below = [growth(options, 0.97) for _, options in settings]
    above = [growth(options, 1.03) for _, options in settings]
    says = run.states(
        "L-125", r"\text{SGD on } \tfrac\lambda2x^2, \lambda=0.97 \text{ of its limit}: |x_{300}/x_0|^{1/300}<1"
    )
    says.below(below, 1, where=", ".join(name for name, _ in settings))
    says.fails("1.03 of the limit", above)
    run.table(
        "limits",
        ["SGD with", "factor per step at 0.97 of the limit", "at 1.03 of the limit"],
        [(name, b, a) for (name, _), b, a in zip(settings, below, above, strict=True)],
        caption="What a step makes of a displacement on a quadratic, mean of 300 steps",
    )


def half_square(z: Tensor) -> Tensor:
    """½(ab - 1)²: the minima are the hyperbola ab = 1, with sharpness a² + b²."""
    return (z[..., 0] * z[..., 1] - 1).square() / 2


def displacement(run: Run) -> None:
    """Next to a minimum one step multiplies a displacement by 1 - ηλ."""
    eta, steps, away = 0.5, 6, 1e-7
    a = torch.tensor([1.0, 1.3, 1.8, 2.2, 2.6], dtype=torch.float64)
    minima = torch.stack([a, 1 / a], 1)
    sharpness = minima.square().sum(1)
    top = torch.stack([1 / a, a], 1) / sharpness.sqrt()[:, None]
    flat = torch.stack([a, -1 / a], 1) / sharpness.sqrt()[:, None]

    def factor(direction: Tensor) -> Tensor:
        path = gradient_descent(half_square, minima + away * direction, eta, steps).points
        made: Tensor = (path[-1] - minima).norm(dim=1) / away
        return made

    says = run.states(
        "L-125",
        r"\text{next to a minimum: } \|x_k-x^\star\|=|1-\eta\lambda_{\max}|^k\,\|x_0-x^\star\|"
        r" \text{ along the top eigenvector}",
    )
    says.equal(
        factor(top),
        (1 - eta * sharpness).abs() ** steps,
        1e-4,
        where=f"minima of ½(ab - 1)² of sharpness 2 to {float(sharpness[-1]):.3g}, η = {eta:g}, "
        f"{steps} steps from a distance of 10⁻⁷",
    )
    says.fails("along the minima instead", factor(flat))


def product(run: Run, starts: int) -> list[tuple[float, Tensor, Tensor]]:
    at = torch.stack([1.9 + 0.7 * run.rand(starts), 0.5 * run.rand(starts)], 1)
    # gradient flow keeps a² - b², and on ab = 1 that decides a² + b²
    kept = at[:, 0].square() - at[:, 1].square()
    of_flow = (kept.square() + 4).sqrt()

    def ends(eta: float, time: float = 300.0) -> Tensor:
        done = gradient_descent(half_square, at, eta, round(time / eta))
        assert float(done.gradient_norms[-1].max()) < 1e-6  # every run has converged
        return done.points[-1].square().sum(1)

    found = [(eta, of_flow, ends(eta)) for eta in (0.5, 0.4)]
    slow = ends(0.05, time=30.0)
    says = run.states("L-125", r"\tfrac12(ab-1)^2: \text{ gradient descent ends at minima of sharpness}\le2/\eta")
    says.at_most(
        torch.cat([end for _, _, end in found]),
        torch.cat([torch.full_like(of_flow, 2 / eta) for eta, _, _ in found]),
        1e-6,
        where=f"{starts} starts, η = 0.5 and 0.4; gradient flow would end at sharpness "
        f"{float(of_flow.min()):.3g} to {float(of_flow.max()):.3g}",
    )
    says.fails("the same starts with η = 0.05, against the limit of η = 0.5", slow, promised=4.0)
    return found


def network_loss(x: Tensor, y: Tensor) -> tuple[Function, int]:
    """Mean squared error of a tanh network with two hidden layers, of `[..., p]`."""
    sizes = [WIDTH, WIDTH, WIDTH * WIDTH, WIDTH, WIDTH, 1]

    def loss(theta: Tensor) -> Tensor:
        first, shift, middle, other, last, offset = torch.split(theta, sizes, dim=-1)
        hidden = torch.tanh(x[:, None] * first[..., None, :] + shift[..., None, :])
        square = middle.reshape(*middle.shape[:-1], WIDTH, WIDTH)
        hidden = torch.tanh(hidden @ square + other[..., None, :])
        outputs = (hidden @ last[..., None])[..., 0] + offset
        made: Tensor = (outputs - y).square().mean(-1)
        return made

    return loss, sum(sizes)


def network(run: Run, steps: int) -> list[tuple[float, Tensor, Tensor, Tensor]]:
    """Times, sharpness and losses of the same network, trained with three steps."""
    x = torch.linspace(-1, 1, 12, dtype=torch.float64)
    loss, size = network_loss(x, torch.sin(4 * x))
    scales = torch.full((size,), 1 / math.sqrt(WIDTH), dtype=torch.float64)
    scales[: 2 * WIDTH] = 1.0
    etas = torch.tensor([0.05, 0.1, 0.15], dtype=torch.float64)
    start = (scales * run.randn(size)).expand(len(etas), -1)
    slope = gradient_of(loss)
    # the steps differ by row, so they stand in the direction
    path = trajectory(lambda t, k: etas[:, None] * slope(t, k), start, [1.0] * steps)
    shown = torch.arange(0, steps + 1, max(1, steps // 20))
    spectra = torch.linalg.eigvalsh(vmap(hessian(loss))(path[shown].flatten(0, 1)))
    sharpness = spectra[:, -1].reshape(len(shown), len(etas))
    losses = loss(path)
    # no theorem says when a run above the limit is thrown off, so this is shown and not judged
    run.table(
        "network",
        ["η", "2/η", "sharpness at the start", "largest", "at the end", "loss at the end"],
        [
            (float(eta), 2 / float(eta), sharpness[0, k], sharpness[:, k].max(), sharpness[-1, k],
             losses[-1, k])
            for k, eta in enumerate(etas)
        ],
        caption="A tanh network trained with three steps: above 2/η a displacement grows at every "
        "step, and the run is thrown to where the loss is flatter",
    )  # fmt: skip
    return [(float(eta), eta * shown, sharpness[:, k], losses[:, k]) for k, eta in enumerate(etas)]


def plot(
    axes: Any,
    curves: list[tuple[float, Tensor, Tensor, Tensor]],
    ends: list[tuple[float, Tensor, Tensor]],
) -> None:
    left, middle, right = axes[0]
    for (eta, times, sharpness, losses), color in zip(curves, COLORS, strict=False):
        left.plot(times, sharpness, ".-", color=color, label=rf"$\eta={eta:g}$")
        left.axhline(2 / eta, color=color, linestyle="--", linewidth=0.9)
        middle.semilogy(eta * torch.arange(len(losses)), losses, color=color, linewidth=0.9)
    left.set(xlabel=r"time $\eta k$", ylabel=r"sharpness $\lambda_{\max}$", ylim=(0, None))
    left.legend(loc="lower right")
    middle.set(xlabel=r"time $\eta k$", ylabel="loss")
    for (eta, flow, end), color in zip(ends, COLORS, strict=False):
        right.plot(flow, end, ".", color=color, label=rf"$\eta={eta:g}$")
        right.axhline(2 / eta, color=color, linestyle="--", linewidth=0.9)
    low, high = float(ends[0][1].min()), float(ends[0][1].max())
    right.plot([low, high], [low, high], color="0.6", linewidth=0.9, label="the same as flow")
    right.set(xlabel="sharpness where flow ends", ylabel="sharpness where descent ends")
    right.legend(loc="upper left")
