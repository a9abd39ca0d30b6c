"""Approximation, estimation and training: three links of one chain, and the sup norm's share."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from torchtheory.approximation.certificates import SupError, measured_error, sup_distance
from torchtheory.approximation.rates.risk_gaps import (
    LossName,
    RiskChain,
    linear_class_chain,
    loss_lipschitz,
    risk_gap_bound,
)
from torchtheory.approximation.targets import Function
from torchtheory.approximation.universality.cybenko import sigmoid_staircase
from torchtheory.approximation.universality.uniform_fit import best_uniform_fit
from torchtheory.labs.engine import COLORS, Run, lab, mean_interval
from torchtheory.neurons.regression import least_squares

X = torch.linspace(0, 1, 257, dtype=torch.float64)
NOISE = 0.3
WIDTHS = (2, 4, 8, 16)
STEPS = 30
#: of the target
STEEPEST = 2 * math.pi + 2


def target(x: Tensor) -> Tensor:
    return torch.sin(2 * math.pi * x) + x**2


def relu_features(width: int) -> Tensor:
    """A constant and ReLUs with kinks at multiples of 1/width: the classes nest as it doubles."""
    kinks = torch.arange(width, dtype=torch.float64) / width
    return torch.cat([torch.ones(len(X), 1).double(), torch.relu(X.unsqueeze(1) - kinks)], 1)


@lab(
    "risk-decomposition",
    room="approximation",
    covers=["A-33", "X-01", "X-02"],
    title="Excess risk = approximation + estimation + training; the sup norm bounds its first part",
    full={"trials": 400, "sizes": (50, 200, 800, 3200)},
    least={"trials": 10, "sizes": 20},
    items={"sizes": 2},
)
def risk_decomposition(run: Run, trials: int = 50, sizes: tuple[int, ...] = (50, 200, 800)) -> None:
    """ReLU networks with fixed kinks are fitted to noisy values of a wave, exactly and by descent.

    The class is linear, so its best function and the empirical minimizer are projections and the
    parts of the excess risk are exact. They add up to no less than the total; more samples shrink
    the second, more units the first, which is a squared L² distance and at most the squared sup
    distance. Risk gaps of random functions stay below Lipschitz constant times sup distance. Look
    at the chain in the figure.

    Args:
        trials: random samples per size.
        sizes: of the samples.
    """
    sizes = tuple(sorted(sizes))
    chains = {(n, m): [one_chain(run, n, m) for _ in range(trials)] for n in WIDTHS for m in sizes}
    every = [c for row in chains.values() for c in row]
    says = run.states(
        "X-01", r"|R(\hat f)-R(\hat f^*_{H,S})|\le\text{optimization gap}+\text{estimation}+\text{approximation}"
    )
    says.at_most([c.total for c in every], [c.bound for c in every], 1e-12)
    untrained = [one_chain(run, n, m, steps=0) for n, m in chains]
    says.fails(
        "a start that was not trained, without the optimization gap",
        [c.total for c in untrained],
        promised=[c.estimation + c.approximation for c in untrained],
    )
    sample_size(run, chains, sizes)
    distances(run)
    lipschitz(run)
    run.table(
        "parts",
        ["units", "sample", "approximation", "estimation", "optimization gap", "total"],
        [
            (n, m, *[sum(getattr(c, part) for c in row) / len(row) for part in PARTS], mean(row))
            for (n, m), row in chains.items()
        ],
        caption=f"Parts of the excess risk, means over {trials} samples; the source calls the "
        "optimization gap the training error",
    )
    run.figure(
        "chain",
        lambda axes: plot(axes, chains, sizes),
        grid=(1, 2),
        size=(11.0, 4.2),
        caption="Left: the chain from the best function to the trained one, with the mean lengths "
        "for 4 units and the smallest sample. Right: the parts by width.",
    )


PARTS = ("approximation", "estimation", "optimization_gap")


def mean(row: list[RiskChain]) -> float:
    return sum(c.total for c in row) / len(row)


def one_chain(run: Run, width: int, size: int, steps: int = STEPS) -> RiskChain:
    where = torch.randint(len(X), (size,), generator=run.generator)
    labels = target(X)[where] + NOISE * run.randn(size)
    return linear_class_chain(relu_features(width), target(X), NOISE, where, labels, steps)


def change(before: list[float], after: list[float]) -> float:
    """The upper end of the 99 % interval of the difference of the means."""
    a, b = mean_interval(before), mean_interval(after)
    return b.estimate - a.estimate + math.hypot(a.high - a.estimate, b.high - b.estimate)


def sample_size(run: Run, chains: dict[tuple[int, int], list[RiskChain]], sizes: tuple[int, ...]) -> None:
    """Beforehand: the mean logarithm of the estimation error falls, at 99 % for every pair.

    Logarithms, because the errors themselves are as skewed as a χ² of few degrees of freedom.
    """
    falls, again = [], []
    for n in WIDTHS:
        logs = [[math.log(c.estimation) for c in chains[n, m]] for m in sizes]
        falls += [change(a, b) for a, b in pairwise(logs)]
        again += [change(row[::2], row[1::2]) for row in logs]
    says = run.states(
        "X-01", r"m\to\infty: \text{ the estimation error falls: upper end of the change of its mean logarithm}"
    )
    says.below(falls, 0, where=f"from one size to the next, {len(WIDTHS)} widths, 99 % each")
    says.fails("the same size twice, each half of the samples", again)
    best = [chains[n, sizes[0]][0].approximation for n in WIDTHS]
    line = [float(least_squares(relu_features(n), 2 * X + 1).residual.square().mean()) for n in WIDTHS]
    says = run.states("X-01", r"\text{more units: the approximation error is at most an eighth for twice the width}")
    says.at_most(
        best[1:], [b / 8 for b in best[:-1]], where="broken lines err by $N^{-2}$ in L², a sixteenth in the limit"
    )
    says.fails(
        "classes that do not grow: constants and one ReLU",
        [float(least_squares(relu_features(1), target(X)).residual.square().mean())] * 3,
    )
    says = run.states("X-01", r"\hat f\in H: \text{ no approximation error}")
    says.equal(line, within=1e-24)
    says.fails("the wave", best)


def distances(run: Run) -> None:
    """The excess risk on noisy labels against squared distances of functions."""
    excess, squared, absolute, sup = [], [], [], []
    y = torch.stack([target(X) - NOISE, target(X) + NOISE])
    for n in WIDTHS:
        features = relu_features(n)
        best = features @ least_squares(features, target(X)).weight
        risk = [float((f - y).square().mean()) for f in (best, target(X))]
        excess.append(risk[0] - risk[1])
        squared.append(float((best - target(X)).square().mean()))
        loss = [float((f - y).abs().mean()) for f in (best, target(X))]
        absolute.append(loss[0] - loss[1])
        sup.append(best_uniform_fit(features, target(X)).error ** 2)
    says = run.states("A-33", r"\varepsilon^{approx}=R(f_H)-R(f^*)=\min_{f\in H}\|f-f^*\|_{L^2}^2")
    says.equal(excess, squared, 1e-12, where="risks from labels f* ± 0.3; the distance without them")
    says.fails("the absolute loss", absolute)
    says = run.states("A-33", r"\min_{f\in H}\|f-f^*\|_{L^2}^2\le\min_{f\in H}\|f-f^*\|_\infty^2")
    says.at_most(squared, sup)
    says.fails("the sup distance of a class of eight times the width", squared[0], promised=sup[3])


LOSSES: dict[LossName, Callable[[Tensor, Tensor], Tensor]] = {
    "absolute": lambda z, y: (z - y).abs(),
    "logistic": lambda z, y: torch.nn.functional.softplus(-y * z),
    "hinge": lambda z, y: torch.relu(1 - y * z),
    "squared": lambda z, y: (z - y).square(),
}

#: level, amplitude and label where a loss is as steep as its constant says: values around the level
STEEP: dict[LossName, tuple[float, float, float]] = {
    "absolute": (0.0, 1.0, -1.0),
    "logistic": (-6.0, 1.0, 1.0),
    "hinge": (0.0, 1.0, 1.0),
    "squared": (0.95, 0.05, -1.0),
}


def waves(run: Run, level: float, amplitude: float) -> tuple[Function, Function, SupError]:
    """Two random waves with values within the amplitude of a level, and how far they are apart."""
    turns, starts = 9 * run.rand(2), 2 * math.pi * run.rand(2)
    f, g = (
        lambda x, t=t, s=s: level + amplitude * torch.sin(t * x.reshape(len(x)) + s)
        for t, s in zip(turns, starts, strict=True)
    )
    apart = sup_distance(f, g, (0.0, 1.0), lipschitz=amplitude * float(turns.sum()), most_points=1 << 12)
    return f, g, apart


def lipschitz(run: Run) -> None:
    """Random pairs of functions; random laws on 40 points, and the law on the worst point."""
    gaps, bounds, wide = [], [], []
    for _ in range(10):
        x, mass = run.rand(40), run.rand(40)
        mass = mass / mass.sum()
        y = run.signs(40)
        for name, loss in LOSSES.items():
            level, amplitude, label = STEEP[name]
            f, g, apart = waves(run, level, amplitude)
            at, worst = apart.where, torch.full((1,), label, dtype=torch.float64)
            gaps.append(abs(float(mass @ (loss(f(x), y) - loss(g(x), y)))))
            gaps.append(abs(float(loss(f(at), worst) - loss(g(at), worst))))
            bounds += [risk_gap_bound(apart, loss_lipschitz(name, 1.0))] * 2
        f, g, apart = waves(run, 10.0, 10.0)
        at = apart.where
        wide.append((abs(float((f(at) + 1).square() - (g(at) + 1).square())), apart))
    says = run.states("X-02", r"|R(f)-R(g)|\le\mathrm{Lip}(L)\,\|f-g\|_\infty")
    says.at_most(gaps, bounds, where="absolute, logistic, hinge: 1; squared on [-1, 1]: 4")
    says.fails(
        "the squared loss outside [-1, 1]",
        [gap for gap, _ in wide],
        promised=[risk_gap_bound(apart, loss_lipschitz("squared", 1.0)) for _, apart in wide],
    )
    promised, found = [], []
    for cells in (4, 16, 64):
        made = sigmoid_staircase(target, cells, lipschitz=STEEPEST)
        apart = measured_error(target, made, lipschitz=STEEPEST)
        at = apart.where
        loss = LOSSES["logistic"]
        found.append(max(abs(float(loss(made(at), y) - loss(target(at), y))) for y in torch.tensor([[1.0], [-1.0]])))
        promised.append(risk_gap_bound(apart, loss_lipschitz("logistic")))
    run.states("X-02", r"\text{Cybenko's sum: gap of the logistic risk}\le1\cdot\text{its sup error}").at_most(
        found, promised, where="the law on the point with the largest error and the label that makes it worse"
    )


def plot(axes: Any, chains: dict[tuple[int, int], list[RiskChain]], sizes: tuple[int, ...]) -> None:
    from matplotlib.patches import Ellipse

    left, right = axes[0]
    row = chains[4, sizes[0]]
    means = {part: sum(getattr(c, part) for c in row) / len(row) for part in PARTS}
    left.add_patch(Ellipse((4.6, 1.6), 9.0, 4.2, facecolor=COLORS[0], alpha=0.08))
    left.add_patch(Ellipse((3.3, 1.1), 5.2, 2.4, facecolor=COLORS[0], alpha=0.15))
    left.text(7.4, 0.5, "all functions", fontsize=9, color="0.3")
    left.text(2.2, 0.15, "class H", fontsize=9, color="0.3")
    places = [(7.6, 2.4), (5.0, 1.5), (3.2, 1.8), (1.5, 1.2)]
    names = [r"$\hat f$", r"$\hat f_H$", r"$\hat f_{H,S}$", r"$\hat f^*_{H,S}$"]
    words = ["approximation", "estimation", "optimization"]
    for (x, y), name in zip(places, names, strict=True):
        left.plot(x, y, "o", color="black", markersize=5)
        left.annotate(name, (x, y), xytext=(0, -14), textcoords="offset points", ha="center")
    for i, (word, part) in enumerate(zip(words, PARTS, strict=True)):
        left.annotate("", places[i + 1], places[i], arrowprops={"arrowstyle": "->", "color": COLORS[i]})
        middle = [(a + b) / 2 for a, b in zip(places[i], places[i + 1], strict=True)]
        left.annotate(
            f"{word}\n{means[part]:.2g}",
            middle,
            xytext=(0, 8),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            color=COLORS[i],
        )
    left.set(xlim=(0, 9.2), ylim=(-0.6, 3.8))
    left.set_axis_off()
    widths = range(len(WIDTHS))
    for k, m in enumerate((sizes[0], sizes[-1])):
        bottom = torch.zeros(len(WIDTHS))
        for i, part in enumerate(PARTS):
            height = torch.tensor([sum(getattr(c, part) for c in chains[n, m]) / len(chains[n, m]) for n in WIDTHS])
            right.bar(
                [w + 0.4 * k - 0.2 for w in widths],
                height,
                0.36,
                bottom=bottom,
                color=COLORS[i],
                alpha=1.0 if k else 0.6,
                label=f"{words[i]}, sample {m}",
            )
            bottom = bottom + height
    right.margins(y=0.1)
    right.set_xticks(list(widths), [str(n) for n in WIDTHS])
    right.set(xlabel="hidden units", ylabel="excess risk", title="three parts of the excess risk")
    right.legend(fontsize=7)
