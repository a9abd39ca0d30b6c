"""Separable or not, with a proof either way; the version space; and XOR."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchtheory.data.synthetic import separable_gaussians, xor
from torchtheory.labs.engine import COLORS, Run, clopper_pearson, lab
from torchtheory.nets.biases import homogeneous
from torchtheory.neurons.perceptron import perceptron_fit
from torchtheory.neurons.separability import (
    MaxMargin,
    max_margin,
    minimum_norm_point,
    separate,
    version_space_fractions,
)


@lab(
    "linear-separability",
    room="neurons",
    covers=["N-05", "N-09"],
    title="Either a hyperplane separates the sample or a convex combination proves that none does",
    full={"samples": 400, "dimension": 20, "trials": 100, "directions": 1_000_000},
    least={"samples": 20, "dimension": 1, "trials": 1, "directions": 10_000},
)
def linear_separability(
    run: Run, samples: int = 60, dimension: int = 5, trials: int = 20, directions: int = 100_000
) -> None:
    """Samples with and without a separating hyperplane are decided, with a proof each time.

    A hyperplane is checked point by point; a convex combination of the signed points that
    vanishes shows that there is none (Gordan's theorem). The largest margin is half the distance
    between the two hulls, and no hyperplane does better. The version space is a convex cone that
    shrinks with every point; random directions measure how much of it is left. XOR is the
    smallest sample nobody separates: all four points carry the same weight in its certificate,
    the perceptron never ends on it, and two ReLU units fit it exactly.

    Args:
        samples: points of each data set.
        dimension: of the points.
        trials: random data sets.
        directions: random directions by which the version space is measured.
    """
    decided(run, samples, dimension, trials)
    margins(run, samples, dimension, trials)
    version_space(run, directions)
    exclusive_or(run)

    x, y, *_ = separable_gaussians(40, 2, margin=0.35, bias=0.3, generator=run.generator)
    run.figure(
        "margin",
        lambda axis: plot_margin(axis, x, y, max_margin(x, y)),
        caption="A separable sample with its widest empty band; ringed points hold it up.",
        size=(5, 4),
    )
    small = separable_gaussians(5, 2, margin=0.4, generator=run.generator)
    run.figure(
        "version-space",
        lambda axes: plot_version_space(axes, small.x, small.y),
        caption="Each data point (left) is a half-plane of weights that classify it correctly "
        "(right, same color). The darker the region, the more points are right; the version space "
        "is where all are.",
        grid=(1, 2),
        size=(8.4, 4),
    )
    run.figure(
        "xor",
        plot_xor,
        caption="XOR in the plane and after two ReLU units: the hidden points are separable.",
        grid=(1, 2),
        size=(8.4, 4),
    )


def decided(run: Run, samples: int, dimension: int, trials: int) -> None:
    """A witness or a certificate, each checked for what it says."""
    lowest, lowest_broken, residuals, nearest = [], [], [], []
    for _ in run.track(range(trials), "deciding"):
        x, y, *_ = separable_gaussians(samples, dimension, margin=0.01, bias=0.3, generator=run.generator)
        found = separate(x, y)
        assert found.weight is not None
        assert found.bias is not None
        lowest.append(float((y * (x @ found.weight + found.bias)).min()))
        broken = y.clone()
        broken[0] *= -1
        lowest_broken.append(float((broken * (x @ found.weight + found.bias)).min()))
        # the midpoint of two positive points, labeled negative, is in the positive hull
        inside = torch.cat([x, (x[y > 0][:2]).mean(0, keepdim=True)])
        labels = torch.cat([y, -y.new_ones(1)])
        refuted = separate(inside, labels)
        assert refuted.combination is not None
        z = labels.unsqueeze(1) * homogeneous(inside)
        residuals.append(float((refuted.combination @ z).norm()))
        z = y.unsqueeze(1) * homogeneous(x)
        nearest.append(float(minimum_norm_point(z)[0].norm()))
    says = run.states("N-05", r"S \text{ separable: the witness has } y_i(w^\top x_i+b)>0")
    says.above(lowest, 0)
    says.fails("one label flipped after the witness was found", lowest_broken)
    says = run.states(
        "N-05",
        r"S \text{ not separable: } \alpha\ge0,\ \mathbf 1^\top\alpha=1,\ \|\textstyle\sum_i\alpha_iy_i(x_i,1)\|=0",
    )
    says.equal(residuals, within=1e-12)
    says.fails("S separable: the smallest norm there is", nearest)


def margins(run: Run, samples: int, dimension: int, trials: int) -> None:
    """Strong duality, optimality and monotonicity of the largest margin."""
    reached, bound, challengers, long, falls = [], [], [], [], []
    for _ in run.track(range(trials), "margins"):
        x, y, *_ = separable_gaussians(samples, dimension, margin=0.1, generator=run.generator)
        best = max_margin(x, y)
        reached.append(best.margin)
        bound.append(best.upper_bound)
        nearby = best.weight + 10 ** (-1 - 4 * run.rand(500, 1)) * run.randn(500, dimension)
        nearby = nearby / nearby.norm(dim=1, keepdim=True)
        challengers.append(float(best_margin(nearby, x, y).max()))
        long.append(float(best_margin(2 * nearby, x, y).max()))
        part = half_of_each_class(y)
        falls.append(best.margin - max_margin(x[part], y[part]).margin)
    run.states("N-05", r"\gamma^*=\tfrac12\operatorname{dist}(\operatorname{conv}S_+,\operatorname{conv}S_-)").equal(
        reached, bound, 1e-10
    )
    says = run.states(
        "N-05", r"\min_i y_i(w^\top x_i+b)\le\gamma^* \text{ for } \|w\|=1, \text{ close to the best one}"
    )
    says.at_most(challengers, bound, 1e-12)
    says.fails("‖w‖ = 2", long)
    fresh = []
    for _ in range(20):
        one, other = (separable_gaussians(samples, dimension, margin=0.1, generator=run.generator) for _ in range(2))
        fresh.append(max_margin(one.x, one.y).margin - max_margin(other.x, other.y).margin)
    says = run.states("N-05", r"S\subseteq S':\ \max\gamma^*(S')-\gamma^*(S)\le0")
    says.at_most(max(falls), 0, 1e-12, where=f"{trials} samples and the first half of either class")
    says.fails("20 pairs of samples that are not nested", max(fresh))


def half_of_each_class(y: Tensor) -> Tensor:
    """Indices of the first half of either class, rounded up."""
    classes = ((y > 0).nonzero().ravel(), (y < 0).nonzero().ravel())
    return torch.cat([c[: (len(c) + 1) // 2] for c in classes])


def best_margin(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The least `y(w·x + b)` for each row of `w`, with the bias that suits it best."""
    heights = w @ x.T
    return (heights[:, y > 0].min(1).values - heights[:, y < 0].max(1).values) / 2


def version_space(run: Run, directions: int) -> None:
    """A convex cone that only shrinks, and its angle in the plane."""
    x, y, *_ = separable_gaussians(12, 2, margin=0.2, generator=run.generator)
    shares = version_space_fractions(x, y, directions=directions, generator=run.generator)
    scattered = torch.stack(
        [
            version_space_fractions(
                *separable_gaussians(k, 2, margin=0.2, generator=run.generator)[:2],
                directions=2000,
                generator=run.generator,
            )[-1]
            for k in range(1, 13)
        ]
    )
    says = run.states("N-05", r"\max_k|\mathcal V(S_{k+1})|-|\mathcal V(S_k)|\le0 \text{ for nested } S_k")
    says.at_most(shares.diff().max(), 0)
    says.fails("samples that are not nested", scattered.diff().max())
    z = y.unsqueeze(1) * homogeneous(x)
    v = run.randn(200_000, 3)
    inside = v[(v @ z.T > 0).all(1)][:200]
    pairs = run.rand(1000, 2)
    i, j = torch.randint(len(inside), (2, 1000), generator=run.generator)
    mixed = pairs[:, :1] * inside[i] + pairs[:, 1:] * inside[j]
    signed = mixed - 2 * pairs[:, 1:] * inside[j]
    says = run.states(
        "N-05",
        r"v,v'\in\mathcal V,\ \lambda,\mu>0 \Rightarrow \lambda v+\mu v'\in\mathcal V:\ "
        r"\min_i z_i^\top(\lambda v+\mu v')>0",
    )
    says.above((mixed @ z.T).min(1).values, 0)
    says.fails("a negative coefficient", (signed @ z.T).min(1).values)
    v = run.randn(directions, 2)
    planar = y.unsqueeze(1) * x
    share = int((v @ planar.T > 0).all(1).sum())
    skewed = v * torch.tensor([1.0, 0.2], dtype=torch.float64)
    skewed_share = int((skewed @ planar.T > 0).all(1).sum())
    interval = clopper_pearson(share, directions, 0.999)
    says = run.states(
        "N-05",
        r"d=2,\ \text{no bias: the version space is a cone of angle } \phi,\ \text{a share "
        r"} \phi/2\pi \text{ of all directions}",
    )
    turn = cone_angle(planar) / (2 * math.pi)
    says.mean(interval, turn, against=(turn / 2, 2 * turn))
    says.fails("directions that are not isotropic", clopper_pearson(skewed_share, directions, 0.999))


def cone_angle(z: Tensor) -> float:
    """Angle of the cone `{v : z v > 0}` in the plane: π less the spread of the rows."""
    best = max_margin(z, torch.ones(len(z)), bias=False).weight
    across = torch.stack([-best[1], best[0]])
    angles = torch.atan2(z @ across, z @ best)
    return math.pi - float(angles.max() - angles.min())


def exclusive_or(run: Run) -> None:
    """XOR: certificate, endless perceptron, two ReLU units."""
    x, y = xor()
    conjunction = torch.tensor([-1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
    alpha = separate(x, y).combination
    assert alpha is not None
    quarter = torch.full((4,), 0.25, dtype=torch.float64)
    z = homogeneous(x)
    says = run.states("N-09", r"\tfrac14\textstyle\sum_i y_i(x_i,1)=0,\ \text{so XOR is not separable}")
    says.equal((quarter @ (y.unsqueeze(1) * z)).abs().max())
    says.fails("AND", (quarter @ (conjunction.unsqueeze(1) * z)).abs().max())
    run.states("N-09", r"\text{the linear program finds } \alpha=(\tfrac14,\tfrac14,\tfrac14,\tfrac14)").equal(
        alpha, quarter, 1e-12
    )
    cap = 1000
    stuck = perceptron_fit(x, y, max_sweeps=cap)
    ends = perceptron_fit(x, conjunction, max_sweeps=cap)
    says = run.states("N-09", r"\text{the perceptron makes mistakes in every sweep: clean sweeps}")
    says.equal(float(stuck.converged))
    says.fails("AND", float(ends.converged))
    total = x.sum(1)
    says = run.states("N-09", r"y=1-2(x_1+x_2)_++4(x_1+x_2-1)_+: \text{ largest difference}")
    says.equal((1 - 2 * total.relu() + 4 * (total - 1).relu() - y).abs().max())
    says.fails("the same weights without the ReLU", (1 - 2 * total + 4 * (total - 1) - y).abs().max())
    hidden = torch.stack([total.relu(), (total - 1).relu()], 1)
    says = run.states("N-09", r"\text{the two hidden units make XOR separable}")
    says.equal(bool(separate(hidden, y)), True)
    says.fails("without them", bool(separate(x, y)))


def scatter(axis: Any, x: Tensor, y: Tensor) -> None:
    for label, marker, color in ((1, "o", COLORS[0]), (-1, "s", COLORS[1])):
        chosen = x[y == label]
        axis.scatter(
            chosen[:, 0],
            chosen[:, 1],
            marker=marker,
            color=color,
            label=f"y = {label:+d}",
            zorder=3,
        )


def plot_margin(axis: Any, x: Tensor, y: Tensor, best: MaxMargin) -> None:
    scatter(axis, x, y)
    normal, along = best.weight, torch.stack([-best.weight[1], best.weight[0]])
    reach = torch.tensor([-9.0, 9.0], dtype=x.dtype).unsqueeze(1)
    for shift, style in ((0.0, "-"), (-best.margin, ":"), (best.margin, ":")):
        line = (shift - best.bias) * normal + reach * along
        axis.plot(line[:, 0], line[:, 1], style, color="0.3", linewidth=1.2)
    edge = (-best.margin - best.bias) * normal + reach * along
    other = (best.margin - best.bias) * normal + reach * along
    corners = torch.cat([edge, other.flip(0)])
    axis.fill(corners[:, 0], corners[:, 1], color="0.9", zorder=0)
    support = x[best.combination > 1e-9]
    axis.scatter(support[:, 0], support[:, 1], s=120, facecolors="none", edgecolors="0.2", zorder=4)
    low, high = x.min(0).values - 0.5, x.max(0).values + 0.5
    axis.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), aspect="equal")
    axis.set(xlabel="$x_1$", ylabel="$x_2$", title=rf"$\gamma^* = {best.margin:.3f}$")
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))


def plot_version_space(axes: Any, x: Tensor, y: Tensor) -> None:
    left, right = axes[0]
    limit = 1.25 * float(x.abs().max())
    grid = torch.linspace(-1, 1, 301, dtype=x.dtype)
    w1, w2 = torch.meshgrid(grid, grid, indexing="xy")
    weights = torch.stack([w1, w2], -1)
    z = y.unsqueeze(1) * x
    right_ones = ((weights @ z.T) > 0).sum(-1)
    right.imshow(
        right_ones,
        extent=(-1, 1, -1, 1),
        origin="lower",
        cmap="Greys",
        alpha=0.5,
        vmin=0,
        vmax=len(x) + 1,
        interpolation="nearest",
    )
    for i in range(len(x)):
        color = COLORS[i % len(COLORS)]
        left.scatter(*x[i], color=color, s=160, marker="o" if y[i] > 0 else "s", zorder=3)
        left.annotate(
            "+" if y[i] > 0 else "−",
            tuple(x[i].tolist()),
            color="white",
            ha="center",
            va="center",
            zorder=4,
            fontweight="bold",
        )
        normal = z[i] / z[i].norm()
        along = torch.stack([-normal[1], normal[0]])
        ends = torch.stack([-2 * along, 2 * along])
        # dashes and steps: two points in one direction have the same line and arrow
        right.plot(ends[:, 0], ends[:, 1], color=color, linestyle="--" if i % 2 else "-")
        start = (0.4 + 0.55 * i / len(x)) * along
        right.annotate(
            "",
            tuple((start + 0.18 * normal).tolist()),
            xytext=tuple(start.tolist()),
            arrowprops={"arrowstyle": "->", "color": color, "linewidth": 1.5},
        )
    best = max_margin(x, y, bias=False).weight
    right.plot(*(0.6 * best).tolist(), "*", color="white", markeredgecolor="black", markersize=13)
    right.annotate(
        "largest margin",
        tuple((0.6 * best).tolist()),
        xytext=(0, -14),
        textcoords="offset points",
        ha="center",
        color="white",
        fontsize=8,
    )
    left.set(xlim=(-limit, limit), ylim=(-limit, limit), aspect="equal", title="data space")
    left.set(xlabel="$x_1$", ylabel="$x_2$")
    right.set(xlim=(-1, 1), ylim=(-1, 1), aspect="equal", title="weight space (no bias)")
    right.set(xlabel="$w_1$", ylabel="$w_2$", xticks=[-1, 0, 1], yticks=[-1, 0, 1])
    right.grid(False)


def plot_xor(axes: Any) -> None:
    left, right = axes[0]
    x, y = xor()
    grid = torch.linspace(-0.4, 1.4, 200, dtype=torch.float64)
    a, b = torch.meshgrid(grid, grid, indexing="xy")
    value = 1 - 2 * (a + b).relu() + 4 * (a + b - 1).relu()
    left.contourf(a, b, value, levels=[-9, 0, 9], colors=[COLORS[1], COLORS[0]], alpha=0.18)
    scatter(left, x, y)
    left.set(aspect="equal", title="input space", xlabel="$x_1$", ylabel="$x_2$")
    left.set(xticks=[0, 1], yticks=[0, 1])
    left.legend(loc="upper center", ncols=2, framealpha=0.9, frameon=True)
    total = x.sum(1)
    hidden = torch.stack([total.relu(), (total - 1).relu()], 1)
    h1 = torch.linspace(-0.4, 2.5, 200, dtype=torch.float64)
    h2 = torch.linspace(-0.4, 1.4, 200, dtype=torch.float64)
    a, b = torch.meshgrid(h1, h2, indexing="xy")
    right.contourf(a, b, 1 - 2 * a + 4 * b, levels=[-20, 0, 20], colors=[COLORS[1], COLORS[0]], alpha=0.18)
    scatter(right, hidden, y)
    for point, name in (((0, 0), "(0,0)"), ((1, 0), "(0,1) and (1,0)"), ((2, 1), "(1,1)")):
        right.annotate(name, point, xytext=(0, -16), textcoords="offset points", ha="center")
    right.set(title="hidden space", xlabel="$(x_1+x_2)_+$", ylabel="$(x_1+x_2-1)_+$")
    right.set(xticks=[0, 1, 2], yticks=[0, 1])
