"""A network and its tangent: equal to first order, and closer the wider the network is."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.kernels.infinite.two_layer import TwoLayerNetwork
from torchtheory.kernels.tangent.linearization import (
    activation_smoothness,
    linearization_gap,
    linearize,
    two_layer_gap_bound,
)
from torchtheory.labs.engine import COLORS, Run, fit_slope, lab
from torchtheory.nets.activations.moments import slope_of
from torchtheory.nets.activations.table import as_layer, nth_derivative
from torchtheory.nets.feedforward import mlp

SMOOTH: tuple[Any, ...] = ("logistic", "tanh", nn.Softplus(), torch.sin)


@lab(
    "linearized-network",
    room="kernels",
    covers=["M-14", "L-166", "L-167", "A-61"],
    title="A network is its tangent up to second order, and over-parametrization straightens it",
    full={"widths": (10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000), "draws": 20},
    least={"dimension": 2, "samples": 1, "draws": 2, "radius": 0.01, "widths": 2},
    most={"radius": 3},  # ten units of 100 moved by 1 each: beyond that tanh saturates, and the gap with it
    items={"widths": 4},
)
def linearized_network(
    run: Run,
    dimension: int = 4,
    samples: int = 6,
    radius: float = 1.0,
    widths: tuple[int, ...] = (10, 100, 1000, 10_000),
    draws: int = 5,
) -> None:
    r"""The tangent of a network in its parameters equals it at the start, and misses it by the
    square of the distance gone.

    First any smooth network: equality at the start, and a Taylor error of order two. Then the
    two-layer network with fixed output weights of size $1/\sqrt m$: its gradient, its
    tangent, and the bound $\frac\beta{2\sqrt m}\|W-W_0\|_F^2\|x\|^2$ for random and for the
    worst weights at distance `radius`. Look at how the worst direction follows the bound with
    slope -1/2 while a random one is far below it, and at the kink of ReLU, which has no
    $\beta$ and breaks both.

    Args:
        dimension: of the inputs.
        samples: inputs.
        widths: of the hidden layer.
        draws: networks of each width.
    """
    x = run.randn(samples, dimension)
    sizes, gaps = taylor_error(run, x)
    gradient_by_hand(run, x)
    smoothness_constants(run)
    bound_on_random_weights(run, x, widths)
    rows = worst_directions(run, dimension, radius, widths, draws)
    run.table(
        "gap-at-fixed-distance",
        ["m", "random direction", "worst direction found", "bound", "worst / bound"],
        rows,
        caption=f"Gap between a two-layer tanh network and its tangent at ‖W - W₀‖ = {radius:g}, "
        f"‖x‖ = 1; means over {draws} draws",
    )
    run.figure(
        "gap",
        lambda axes: plot_gap(axes, sizes, gaps, rows),
        caption="Left: the gap falls with the square of the distance, except on the kink of ReLU. "
        "Right: at a fixed distance the worst direction follows the bound, which falls with "
        "the root of the width; a random direction is far better.",
        grid=(1, 2),
    )


def taylor_error(run: Run, x: Tensor) -> tuple[Tensor, dict[str, list[float]]]:
    """Equality at the start; slope 2 in the distance; slope 1 on a kink."""
    net = mlp([x.shape[1], 16, 16, 2], "tanh", generator=run.generator)
    lin = linearize(net)
    start = {k: p.detach() for k, p in net.named_parameters()}
    away = {k: run.randn(*p.shape) for k, p in start.items()}
    moved = mlp([x.shape[1], 16, 16, 2], "tanh", generator=run.generator)
    set_parameters(moved, {k: start[k] + 0.1 * away[k] for k in start})
    says = run.states(["M-14", "L-166", "A-61"], r"f_{\rm lin}(x,\theta_0)=f(x,\theta_0)")
    says.equal(lin(x), net(x), 1e-12)
    says.fails("the network has moved by 0.1 in every parameter", moved(x))
    # ReLU exactly on its kink: every unit has w·x = 0 at the first sample
    weight = run.randn(20, x.shape[1])
    weight = weight - torch.outer(weight @ x[0], x[0]) / (x[0] @ x[0])
    kinked = TwoLayerNetwork(weight, run.signs(20), "relu")
    direction = {"weight": run.randn(*weight.shape)}
    sizes = torch.logspace(-4, -2, 9, dtype=torch.float64)
    smooth = [gap_along(net, away, float(s), x) for s in sizes]
    kink = [gap_along(kinked, direction, float(s), x[:1]) for s in sizes]
    says = run.states(["M-14", "A-61"], r"\max_x|f-f_{\rm lin}|(\theta_0+sv)\sim s^2")
    says.slope(sizes, smooth, 2, 0.01, against=(1, 1.5, 3))
    says.fails("ReLU units on their kink", sizes, kink)
    return sizes, {"tanh network": smooth, "ReLU units on the kink": kink}


def gap_along(net: nn.Module, direction: dict[str, Tensor], size: float, x: Tensor) -> float:
    """The largest gap after a step of this size from where the network is."""
    start = {k: p.detach().clone() for k, p in net.named_parameters()}
    set_parameters(net, {k: start[k] + size * direction[k] for k in start})
    gap = float(linearization_gap(net, start, x).max())
    set_parameters(net, start)
    return gap


def set_parameters(net: nn.Module, values: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, p in net.named_parameters():
            p.copy_(values[name])


def gradient_by_hand(run: Run, x: Tensor) -> None:
    """The gradient of the two-layer network, and its tangent, written out."""
    net = TwoLayerNetwork.random(12, x.shape[1], activation="tanh", generator=run.generator)
    start, a = net.weight.detach().clone(), net.outputs / math.sqrt(12)
    sigma, slope = as_layer("tanh"), slope_of("tanh")
    end = start + run.randn(*start.shape)
    (gradient,) = torch.autograd.grad(net(x[:1]).sum(), net.weight)
    point, far = x[0], end @ x[0]
    says = run.states("L-166", r"\nabla f(W)=Da\,x^\top,\ D=\operatorname{diag}\sigma'(w_j^\top x)")
    says.equal(torch.outer(slope(start @ point) * a, point), gradient, 1e-12)
    says.fails("D at other weights", torch.outer(slope(far) * a, point))

    def by_hand(at: Tensor) -> Tensor:
        z = x @ start.T
        moved: Tensor = (slope(x @ at.T) * (x @ (end - start).T)) @ a
        value: Tensor = sigma(z) @ a
        return value + moved

    lin = linearize(net)
    set_parameters(lin, {"displaced.weight": end})
    says = run.states(["L-166", "M-14"], r"f_0(W)=f(W_0)+\sum_ja_j\sigma'(w_{0,j}^\top x)(w_j-w_{0,j})^\top x")
    says.equal(by_hand(start), lin(x)[:, 0], 1e-12)
    says.fails("slopes at W instead of W₀", by_hand(end))


def smoothness_constants(run: Run) -> None:
    """The largest second derivative of each activation is its constant, and ReLU has none."""
    grid = torch.linspace(-12, 12, 24_001, dtype=torch.float64)
    smooth = [*SMOOTH, torch.atan, nn.SiLU(), nn.GELU()]
    measured = [float(nth_derivative(as_layer(a), grid, 2).abs().max()) for a in smooth]
    promised = [constant(a) for a in smooth]
    relu = slope_of("relu")(grid).diff().abs().max() / (grid[1] - grid[0])
    says = run.states("L-167", r"\beta=\sup|\sigma''| \text{ of logistic, tanh, softplus, sin, arctan, SiLU, GELU}")
    says.equal(measured, promised, 1e-6)
    says.fails("ReLU with the constant 1: its derivative jumps", float(relu), promised=1.0)
    names = ["logistic", "tanh", "softplus", "sin", "arctan", "SiLU", "GELU"]
    run.table(
        "smoothness-constants",
        ["activation", "β", "largest |σ''| on a grid"],
        [[n, p, m] for n, p, m in zip(names, promised, measured, strict=True)],
        caption="How fast the slope of an activation can change",
    )


def constant(given: Any) -> float:
    if given is torch.atan:
        return activation_smoothness("arctan")
    return activation_smoothness(given if isinstance(given, str) else as_layer(given))


def bound_on_random_weights(run: Run, x: Tensor, widths: tuple[int, ...]) -> None:
    """The bound for random weights at random distances, and on the kink of ReLU."""
    gaps, bounds, sizes = [], [], [1e-2, 0.3, 3.0, 30.0]
    for m in run.track(widths, "random weights"):
        for given in SMOOTH:
            net = TwoLayerNetwork.random(m, x.shape[1], activation=given, generator=run.generator)
            a = net.outputs / math.sqrt(m)
            lin = linearize(net)
            start = net.weight.detach()
            for size in sizes:
                step = run.randn(*start.shape)
                step *= size / step.norm()
                set_parameters(lin, {"displaced.weight": start + step})
                gaps.append((lin.exact(x) - lin(x)).detach().abs()[:, 0])
                bounds.append(two_layer_gap_bound(step, a, x, constant(given)))
    grid = torch.linspace(-4, 4, 8001, dtype=torch.float64)
    for given in SMOOTH:
        # every unit where the activation bends most, and one of them moved along the first sample
        bend = grid[nth_derivative(as_layer(given), grid, 2).abs().argmax()]
        start = (bend / x[0].square().sum() * x[0]).expand(widths[0], -1).clone()
        net = TwoLayerNetwork(start, run.signs(widths[0]), given)
        step = torch.zeros_like(start)
        step[0] = 1e-2 * x[0] / x[0].norm()
        lin = linearize(net)
        set_parameters(lin, {"displaced.weight": start + step})
        gaps.append((lin.exact(x[:1]) - lin(x[:1])).detach().abs()[:, 0])
        bounds.append(two_layer_gap_bound(step, net.outputs / math.sqrt(widths[0]), x[:1], constant(given)))
    # all units on the kink at the first sample
    weight = run.randn(50, x.shape[1])
    weight = weight - torch.outer(weight @ x[0], x[0]) / (x[0] @ x[0])
    kinked = TwoLayerNetwork(weight, torch.ones(50).double(), "relu")
    step = 1e-3 * run.randn(*weight.shape)
    kink = gap_along(kinked, {"weight": step}, 1.0, x[:1])
    tanh = two_layer_gap_bound(step, kinked.outputs / math.sqrt(50), x[:1], constant("tanh"))
    # rounding of tiny gaps
    says = run.states("L-167", r"|f(W)-f_0(W)|/\left(\frac{\beta}{2\sqrt m}\|W-W_0\|_F^2\|x\|^2\right)\le 1")
    says.at_most(
        torch.cat(gaps) / torch.cat(bounds),
        1,
        1e-6,
        where=f"m from {min(widths)} to {max(widths)}, distances from {min(sizes)} to "
        f"{max(sizes)}, logistic, tanh, softplus and sin; and one unit moved where it bends most",
    )
    says.fails("ReLU on its kink, with the constant of tanh", kink / float(tanh))


def worst_directions(run: Run, dimension: int, radius: float, widths: tuple[int, ...], draws: int) -> list[list[float]]:
    """The largest gap at a fixed distance falls like the root of the width, and no faster."""
    x = run.randn(dimension)
    x /= x.norm()
    beta = activation_smoothness("tanh")
    m_all: list[int] = []
    worst_all, unscaled_all = [], []
    rows: list[list[float]] = []
    for m in run.track(widths, "worst directions"):
        random_gaps, worst_gaps = [], []
        for _ in range(draws):
            z, a = run.randn(m, dimension) @ x, run.signs(m) / math.sqrt(m)
            step = run.randn(m, dimension)
            step = (step * (radius / step.norm())) @ x
            random_gaps.append(abs(float(unit_gaps(z, step) @ a)))
            worst_gaps.append(worst_gap(z, a, radius))
        m_all += [m] * draws
        worst_all += worst_gaps
        unscaled_all += [g * math.sqrt(m) for g in worst_gaps]
        bound = beta * radius**2 / (2 * math.sqrt(m))
        worst = sum(worst_gaps) / draws
        rows.append([m, sum(random_gaps) / draws, worst, bound, worst / bound])
    wide = [k for k, m in enumerate(m_all) if m >= 100]  # with few units, none may be curved
    fitted = fit_slope([m_all[k] for k in wide], [worst_all[k] for k in wide])
    broken = fit_slope([m_all[k] for k in wide], [unscaled_all[k] for k in wide])
    says = run.states("L-167", r"\max_{\|W-W_0\|_F=R}|f-f_0|\sim m^{-1/2}")
    says.slope(fitted, -0.5, 0.02, against=(-1.0, -0.25, 0.0))
    says.fails("output weights ±1 instead of ±1/√m", broken)
    says = run.states("L-167", r"\max_{\|W-W_0\|_F=R}|f-f_0| \le \beta R^2\|x\|^2/(2\sqrt m)")
    says.at_most([row[2] for row in rows], [row[3] for row in rows])
    says.fails(
        "m in place of √m: the rate of a random direction",
        [row[2] for row in rows],
        promised=[row[3] / math.sqrt(row[0]) for row in rows],
    )
    return rows


def unit_gaps(z: Tensor, r: Tensor) -> Tensor:
    """What the tangent of tanh at z misses after a step r."""
    return torch.tanh(z + r) - torch.tanh(z) - (1 - torch.tanh(z).square()) * r


def worst_gap(z: Tensor, a: Tensor, radius: float, steps: int = 20) -> float:
    """The largest gap over steps of this length along x, by power iterations from two starts.

    A step of the iteration replaces the direction by that of the gradient, which never lowers a
    convex function and here finds the units whose curvature has the best sign.
    """
    best, value = 0.0, torch.tanh(z)
    slope = 1 - value.square()
    curvature = -2 * a * value * slope
    for sign in (1.0, -1.0):
        top = torch.where(sign * curvature > 0, curvature.abs(), 0.0)
        for power in (1, 32):
            r = (top / top.max().clamp_min(1e-300)) ** power
            for _ in range(steps):
                r = r * (radius / r.norm())
                moved = torch.tanh(z + r)
                best = max(best, abs(float((moved - value - slope * r) @ a)))
                r = sign * a * (1 - moved.square() - slope)
                if not float(r.norm()) > 0:
                    break
    return best


def plot_gap(axes: Any, sizes: Tensor, gaps: dict[str, list[float]], rows: list[list[float]]) -> None:
    left, right = axes[0]
    for color, (name, values) in zip(COLORS, gaps.items(), strict=False):
        left.loglog(sizes, values, "o-", ms=3, color=color, label=name)
    left.set_xlabel("distance s from the start, in units of a random direction")
    left.set_ylabel("max |f - f_lin|")
    left.legend()
    m = [row[0] for row in rows]
    right.loglog(m, [row[3] for row in rows], "--", color="black", label="bound, slope -1/2")
    right.loglog(m, [row[2] for row in rows], "o-", ms=3, label="worst direction found")
    right.loglog(m, [row[1] for row in rows], "o-", ms=3, label="random direction")
    right.set_xlabel("width m")
    right.set_ylabel("|f - f_lin| at fixed distance")
    right.legend()
