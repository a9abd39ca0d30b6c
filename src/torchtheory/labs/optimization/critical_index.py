"""Critical points of random landscapes: the lower they lie, the fewer ways lead down."""

from __future__ import annotations

import math
from typing import Any

import torch
from scipy import stats
from torch import Tensor

from torchtheory.labs.engine import COLORS, Interval, Run, lab
from torchtheory.optimization.descent.iterates import Function, gradient_descent
from torchtheory.optimization.landscape.spin_glass import (
    CriticalSet,
    SphericalSpinGlass,
    critical_points_of,
    critical_points_of_glass,
    expected_index,
)


@lab(
    "critical-index",
    room="optimization",
    covers=["A-116"],
    title="High critical points of a random landscape are saddles; its minima lie low",
    full={"spins": 50, "starts": 600, "network_starts": 300, "hidden": 4},
    least={"spins": 16, "starts": 100, "network_starts": 80},
)
def critical_index(run: Run, spins: int = 20, starts: int = 150, network_starts: int = 120, hidden: int = 3) -> None:
    """The index of a critical point is the share of directions in which the function curves down.

    For the spherical spin glass with p = 3, critical points are searched with a method that does
    not prefer minima, from points on the way of gradient descent so that all heights are met.
    Index and energy rise together, along a curve that random matrix theory gives: Wigner's
    semicircle, shifted by the energy. Then the same for the loss of a small network with random
    labels. Look at the dots beside the curve, which was not fitted.

    Args:
        spins: of the spherical spin glass.
        starts: of the search for its critical points.
        network_starts: of the search on the network's loss.
        hidden: units of that network.
    """
    glass = SphericalSpinGlass.random(spins, 3, generator=run.generator)
    found = critical_points_of_glass(glass, on_the_way(run, glass, starts))
    spin_glass(run, glass, found)
    loss, size = network_loss(run, hidden)
    begin = run.randn(network_starts, size)
    path = gradient_descent(loss, begin, 0.2, 300).points
    times = (300 * run.rand(network_starts).square()).long()  # more of them early, and high
    chosen = path[times, torch.arange(network_starts)]
    points = without_copies(critical_points_of(loss, chosen, tolerance=1e-7, steps=100))
    network(run, loss, points, chosen)
    run.figure(
        "index",
        lambda axes: plot(axes, glass, found, points),
        caption="Index and height of critical points: a spherical spin glass (left; the curve is "
        "the limit for many spins, the dotted line the energy below which no saddles are left) and "
        "a network with one hidden layer, random labels and weight decay (right).",
        grid=(1, 2),
        size=(10.5, 3.8),
    )


def on_the_way(run: Run, glass: SphericalSpinGlass, count: int) -> Tensor:
    """Points after a random number of steps of gradient descent on the sphere."""
    points = glass.to_sphere(run.randn(count, glass.size))
    steps = torch.randint(0, 80, (count,), generator=run.generator)
    for k in range(80):
        slope, _ = glass.derivatives(points)
        moved = glass.to_sphere(points - 0.05 * slope)
        points = torch.where((k < steps)[:, None], moved, points)
    return points


def rank_correlation(values: Tensor, index: Tensor) -> Interval:
    """Spearman's, with Fisher's 99% interval."""
    rho = float(stats.spearmanr(values, index).statistic)
    radius = 2.576 * 1.03 / math.sqrt(len(values) - 3)
    middle = math.atanh(min(rho, 1 - 1e-12))
    low, high = math.tanh(middle - radius), math.tanh(middle + radius)
    return Interval(rho, low, high, 0.99, len(values), "Spearman, Fisher z")


def spin_glass(run: Run, glass: SphericalSpinGlass, found: CriticalSet) -> None:
    energy = found.values / glass.size
    says = run.states("A-116", r"P\nabla H(s)=0 \text{ on the sphere } \|s\|^2=n: \text{ gradient norm}")
    says.at_most(found.gradient_norms, 0, 1e-7, where=f"{len(energy)} different critical points, {glass.size} spins")
    says.fails(
        "random points of the sphere", glass.derivatives(glass.to_sphere(run.randn(20, glass.size)))[0].norm(dim=-1)
    )
    # the Hessian of the polynomial alone, without the curvature of the sphere it lives on
    _, hessians = glass.derivatives(found.points)
    n = glass.size
    eye = torch.eye(n, dtype=torch.float64)
    project = eye - found.points[:, :, None] * found.points[:, None, :] / n
    bare = hessians + (3 * energy)[:, None, None] * project
    eigenvalues = torch.linalg.eigvalsh(bare)
    flat = (eigenvalues < -1e-8).sum(-1) / (n - 1)
    rank = rank_correlation(energy, found.index)
    says = run.states("A-116", r"p=3: \text{ index and energy of critical points rise together: rank correlation}")
    says.above(rank.estimate, 0.8, where=f"99% interval {rank.low:.2f} to {rank.high:.2f}; 0.8 was set beforehand")
    says.fails("the Hessian without the sphere's curvature", rank_correlation(energy, flat).estimate)
    expected = expected_index(energy, 3)
    other = expected_index(-energy, 3)
    says = run.states(
        "A-116",
        r"\text{index}\approx F(e\sqrt{p/(p-1)}), F \text{ of Wigner's semicircle: root mean "
        r"square difference below two eigenvalues}",
    )
    says.at_most(
        (found.index - expected).square().mean().sqrt(),
        2 / (n - 1),
        where="nothing is fitted; fluctuations are of the order of log n eigenvalues",
    )
    says.fails("the energy with the wrong sign", (found.index - other).square().mean().sqrt())
    minima = energy[found.index == 0]
    high = energy[found.index >= 0.25]
    says = run.states(
        "A-116",
        r"\text{minima lie low: the highest below every critical point with a quarter of its directions downwards}",
    )
    says.below(minima.max(), high.min(), where=f"{len(minima)} minima, {len(high)} such saddles")
    depths, lowest = wells()
    says.fails("a sum of double wells, one per coordinate: no random couplings", depths.max(), promised=lowest)
    bands = [(0.0, 0.0), (1e-9, 0.1), (0.1, 0.25), (0.25, 0.4), (0.4, 1.0)]
    rows = []
    for low, top in bands:
        inside = (found.index >= low) & (found.index <= top)
        if bool(inside.any()):
            name = "0" if top == 0 else f"{max(low, 0):.2g} to {top:g}"
            values = energy[inside]
            rows.append((name, int(inside.sum()), values.min(), values.mean(), values.max()))
    run.table(
        "bands",
        ["index", "critical points", "least energy", "mean", "largest"],
        rows,
        caption=f"Energy H/n of the critical points found, by index; n = {n}, p = 3",
    )


def wells() -> tuple[Tensor, Tensor]:
    """Heights of the minima of a separable function, and of its lowest saddle of index 1/4."""

    def function(x: Tensor) -> Tensor:
        return ((x.square() - 1).square() + 0.3 * x).sum(-1)

    one = torch.tensor([-1.0, 0.1, 0.9], dtype=torch.float64)  # near each of its three points
    found = critical_points_of(function, torch.cartesian_prod(*[one] * 4))
    return found.values[found.index == 0], found.values[found.index >= 0.25].min()


def network_loss(run: Run, hidden: int) -> tuple[Function, int]:
    """A tanh network of two inputs on random labels, with weight decay, of many vectors at once."""
    x, y = run.randn(14, 2), run.randn(14)

    def loss(theta: Tensor) -> Tensor:
        weight = theta[..., : 2 * hidden].reshape(*theta.shape[:-1], hidden, 2)
        bias, output = theta[..., 2 * hidden : 3 * hidden], theta[..., 3 * hidden : 4 * hidden]
        signal = weight @ x.T + bias[..., None]
        made = (output[..., None, :] @ signal.tanh())[..., 0, :] + theta[..., -1:]
        # weight decay makes the critical points isolated: without it, units may run off
        total: Tensor = (made - y).square().mean(-1) + 0.002 * theta.square().sum(-1)
        return total

    return loss, 4 * hidden + 1


def without_copies(found: CriticalSet) -> CriticalSet:
    """One of each value: units exchanged or turned over give the same network again."""
    new = torch.ones(len(found.values), dtype=torch.bool)
    new[1:] = found.values.diff() > 1e-6
    return CriticalSet(found.points[new], found.values[new], found.index[new], found.gradient_norms[new])


def network(run: Run, loss: Function, found: CriticalSet, starts: Tensor) -> None:
    size = found.points.shape[1]
    says = run.states("A-116", r"\text{a network: index of its critical points, from values of the loss alone}")
    says.equal(
        found.index,
        index_by_differences(loss, found.points),
        1e-9,
        where=f"{len(found.points)} different critical points in {size} dimensions",
    )
    says.fails(
        "the values at the points the search began from",
        found.index,
        promised=index_by_differences(loss, starts[: len(found.points)]),
    )
    rank = rank_correlation(found.values, found.index)
    run.states("A-116", r"\text{a network: index and loss of critical points rise together: rank correlation}").above(
        rank.low, 0, where=f"lower end of the 99% interval around {rank.estimate:.2f}"
    )


def index_by_differences(loss: Function, points: Tensor, step: float = 1e-3) -> Tensor:
    """The share of negative eigenvalues of second differences of the loss, without derivatives."""
    size = points.shape[1]
    moves = step * torch.eye(size, dtype=points.dtype)
    here = points[:, None, None]
    across, down = moves[:, None], moves[None]
    four = [loss(here + a * across + b * down) * a * b for a in (1, -1) for b in (1, -1)]
    hessians = torch.stack(four).sum(0) / (4 * step**2)
    share: Tensor = (torch.linalg.eigvalsh(hessians) < 0).double().mean(-1)
    return share


def plot(axes: Any, glass: SphericalSpinGlass, found: CriticalSet, points: CriticalSet) -> None:
    left, right = axes[0]
    energy = found.values / glass.size
    grid = torch.linspace(float(energy.min()) - 0.25, float(energy.max()) + 0.1, 200)
    left.plot(expected_index(grid, 3), grid, color="0.4", label="many spins")
    left.plot(found.index, energy, "o", color=COLORS[0], markersize=4, alpha=0.7, label="found")
    left.axhline(-2 * math.sqrt(2 / 3), color="0.4", linewidth=0.9, linestyle=":")
    left.set(
        xlabel="index (share of negative eigenvalues)",
        ylabel="energy H/n",
        title=f"spin glass, p = 3, n = {glass.size}",
    )
    left.legend(loc="upper left")
    right.plot(points.index, points.values, "o", color=COLORS[1], markersize=4, alpha=0.7)
    right.set(
        xlabel="index (share of negative eigenvalues)",
        ylabel="loss",
        title=f"network with {points.points.shape[1]} parameters",
    )
