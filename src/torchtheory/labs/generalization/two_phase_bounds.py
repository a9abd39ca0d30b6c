"""The squared-loss gap of networks with frozen gates, bounded by Bernstein's inequality."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from scipy.stats import binom
from torch import Tensor, nn

from torchtheory.generalization.paths.two_phase_bounds import (
    FeatureLaw,
    measure_feature_law,
    path_weight_sizes,
    two_phase_gap_bound,
)
from torchtheory.generalization.paths.two_phase_training import FrozenGates
from torchtheory.kernels.paths.deep_paths import path_features
from torchtheory.labs.engine import Run, lab, quantile_interval
from torchtheory.nets.feedforward import mlp
from torchtheory.training.loop.trainer import fit

Pair = tuple[Tensor, Tensor]
#: One path, feature 1, a fair coin ±1 as label.
COIN = FeatureLaw(0, 0, 1, 1, 0, 0, paths=1, outputs=1)


@lab(
    "two-phase-bounds",
    room="generalization",
    covers=["B-19"],
    errata=[
        "two-phase-norms-swapped",
        "two-phase-bernstein-factor",
        "two-phase-third-constant-size",
    ],
    title="With frozen gates the gap is bounded by Bernstein, once its norms are paired rightly",
    full={"redraws": 200, "population": 200, "fresh": 200, "tosses": 20000},
    least={"population": 10, "fresh": 10, "redraws": 5, "tosses": 100, "delta": 0.01},
    most={"delta": 0.5},
)
def two_phase_bounds_lab(
    run: Run,
    population: int = 60,
    fresh: int = 60,
    redraws: int = 20,
    tosses: int = 2000,
    delta: float = 0.1,
) -> None:
    """Probabilistic bounds for networks whose gates do not depend on the fresh samples.

    On a finite population the constants of the assumption are sums, and the theorem can be put to
    the test over redraws of the fresh sample, with the values trained on it each time. The smallest
    case is one path and a fair coin as label: there the printed pairing of the norms fails with
    certainty, and the printed second constant too often, by an exact binomial tail. Look at the
    figure: the gap and the two pairings of the norms for the coin.

    Args:
        population: points of the law, over which the risk is exact.
        fresh: samples that the values are trained on once gates are frozen.
        redraws: of these samples.
        tosses: samples of tosses of a coin in the part on constants.
        delta: probability with which a bound may fail.
    """
    law = finite_law(run, population)
    constants(run, law)
    networks(run, law, fresh, redraws, delta)
    coin(run, tosses, delta)
    binomial_tails(run)


@dataclass
class Law:
    """A finite population, and gates that were trained on another sample of it."""

    x: Tensor
    y: Tensor
    masses: Tensor
    gates: nn.Sequential

    def draw(self, run: Run, count: int) -> Pair:
        chosen = torch.multinomial(self.masses, count, replacement=True, generator=run.generator)
        return self.x[chosen], self.y[chosen]


def finite_law(run: Run, points: int) -> Law:
    x = 2 * run.rand(points, 3) - 1
    y = torch.stack([(3 * x[:, 0]).sin(), x[:, 1] * x[:, 2]], 1) + 0.1 * run.signs(points, 2)
    share = 0.2 + run.rand(points)
    law = Law(x, y, share / share.sum(), mlp([3, 4, 3, 2], generator=run.generator))
    fit(law.gates, law.draw(run, 20), epochs=20, batch_size=20, learning_rate=0.02)
    return law


def constants(run: Run, law: Law) -> None:
    """From the path kernel against the list of paths."""
    found = measure_feature_law(law.gates, (law.x, law.y), masses=law.masses, listed=True)
    quick = measure_feature_law(law.gates, (law.x, law.y), masses=law.masses)
    other = mlp([3, 4, 3, 2], generator=run.generator)
    says = run.states(
        "B-19",
        r"C_{zz}=\max_i\lambda_{\max}(G^{(i)}),\ \gamma_{zz}^2=\|\mathbb E(G^{(i)})^2\| \text{ from the path kernel}",
    )
    says.equal(
        [quick.feature_bound, quick.feature_variance],
        listed_constants(law.gates, law),
        1e-9,
        where=f"all {found.paths:.0f} paths listed, {len(law.x)} points",
    )
    says.fails(
        "features of gates with other weights",
        [quick.feature_bound, quick.feature_variance],
        promised=listed_constants(other, law),
    )
    says = run.states(
        "B-19", r"C_{yz},\gamma_{yz}^2 \text{ over the listed paths, at most those from inputs and labels}"
    )
    says.at_most([found.product_bound, found.product_variance], [quick.product_bound, quick.product_variance])
    says.fails(
        "inputs three times as large",
        [
            getattr(measure_feature_law(law.gates, (3 * law.x, law.y), masses=law.masses, listed=True), name)
            for name in ("product_bound", "product_variance")
        ],
    )


def listed_constants(gates: nn.Module, law: Law) -> list[float]:
    """The matrices of the assumption, written out over all paths."""
    z = path_features(gates, law.x).features
    single = z.mT @ (law.masses[:, None] * z) - z[:, :, None] * z[:, None, :]
    moment = torch.einsum("i,ijk,ikl->jl", law.masses, single, single)
    tops = torch.linalg.eigvalsh(single)[:, -1]
    return [float(tops.max()), float(torch.linalg.eigvalsh(moment)[-1])]


@dataclass
class Outcome:
    """One redraw: the gap, the deterministic bound, the probabilistic one."""

    gap: float
    certain: float
    swapped: float
    bound: float


def networks(run: Run, law: Law, fresh: int, redraws: int, delta: float) -> None:
    """Values trained on each redraw, gates fixed."""
    constants_ = measure_feature_law(law.gates, (law.x, law.y), masses=law.masses, listed=True)
    rows = []
    for i in range(redraws):
        sample = law.draw(run, fresh)
        net = FrozenGates(law.gates)
        if i % 2:  # random weights as well as trained ones
            fit(net, sample, epochs=25, batch_size=fresh, learning_rate=0.05)
        else:
            with torch.no_grad():
                for p in net.values.parameters():
                    p.add_(0.5 * run.randn(*p.shape))
        rows.append(outcome(law, net, sample, constants_, delta))
    certain = [r.certain for r in rows]
    gaps = [r.gap for r in rows]
    says = run.states(
        "B-19",
        r"R-R_{S\setminus S_{\alpha m}}\le\lambda_{\max}(G)\sum_k\|\bar w_k\|_2^2"
        r"+2\sum_k\|\bar w_k\|_1\|v_k\|_\infty+c_y",
    )
    says.at_most(
        [*gaps, scaled_coin(1e-3)[2]],
        [*certain, scaled_coin(1e-3)[0]],
        1e-12,
        where="every redraw, trained and random values; and one path with weight 0.001",
    )
    says.fails(
        "the norms swapped, as printed",
        scaled_coin(1e-3)[2],
        promised=scaled_coin(1e-3)[1],
    )

    def coin_share(weight: float, samples: int = 400) -> float:
        """The gap of one path with a fair coin as label, over its bound."""
        return 2 * weight**2 / two_phase_gap_bound(COIN, weight**2, abs(weight), samples, delta).value

    coins = [coin_share(float(w)) for w in run.signs(500, 400).mean(1) if w != 0]
    reached = [quantile_interval(shares, 1 - delta, 0.99).low for shares in ([r.gap / r.bound for r in rows], coins)]
    says = run.states(
        "B-19",
        r"\Pr\Bigl[R-R_{S\setminus S_{\alpha m}}>\beta_1\sum_k\|\bar w_k\|_2^2"
        r"+2\beta_2\sum_k\|\bar w_k\|_1+\beta_3\Bigr]\le\delta",
    )
    says.at_most(
        reached,
        1.0,
        where=f"gap over bound, lower ends of 99 % intervals for the quantile at 1 - δ: {redraws} redraws of {fresh} "
        "samples, and 500 samples of a coin",
    )
    says.fails("the fresh samples are one draw, 400 times, of a coin", coin_share(float(run.signs(1))))
    scaling(run, law, fresh, delta)
    trained = rows[1::2]
    run.table(
        "gaps",
        ("gap", "deterministic bound", "norms swapped in it", "Theorem 2.9"),
        [(r.gap, r.certain, r.swapped, r.bound) for r in trained[:6]],
        caption=f"Squared loss, values trained on {fresh} fresh samples; {constants_.paths:.0f} "
        "paths. The probabilistic bound is far above the gap even here: its norms are those of "
        "all paths, and its constants those of single samples.",
    )


def outcome(law: Law, net: FrozenGates, sample: Pair, found: FeatureLaw, delta: float) -> Outcome:
    z, y = path_features(net.gates, sample[0]).features, sample[1]
    pz = path_features(net.gates, law.x).features
    with torch.no_grad():
        own = (net(sample[0]) - y).square().sum(1).mean()
        every = law.masses @ (net(law.x) - law.y).square().sum(1)
    difference = pz.mT @ (law.masses[:, None] * pz) - z.mT @ z / len(z)
    top = float(torch.linalg.eigvalsh(difference)[-1])
    v = y.mT @ z / len(z) - (law.masses[:, None] * law.y).mT @ pz
    weights = path_features(net.values, sample[0]).weights
    squares, sums = weights.square().sum(1), weights.abs().sum(1)
    largest = v.abs().amax(1)
    label = float(law.masses @ law.y.square().sum(1) - y.square().sum(1).mean())
    squared, absolute = path_weight_sizes(net.values, sample[0].shape[1:])
    return Outcome(
        gap=float(every - own),
        certain=top * float(squares.sum()) + 2 * float(sums @ largest) + label,
        swapped=top * float(sums.sum()) + 2 * float(squares @ largest) + label,
        bound=two_phase_gap_bound(found, squared, absolute, len(y), delta).value,
    )


def scaled_coin(weight: float) -> tuple[float, float, float]:
    """One path, z = 1, a sample of heads only: right side, swapped right side, gap."""
    # G = 0, v = 1, c_y = 0; R - R_S = (1 + w²) - (1 - w)²
    return 2 * abs(weight), 2 * weight**2, (1 + weight**2) - (1 - weight) ** 2


def scaling(run: Run, law: Law, fresh: int, delta: float) -> None:
    """Features divided by c, path weights times c: nothing about the function changes."""
    net = mlp([3, 4, 3, 2], bias=False, generator=run.generator)
    values, swapped = [], []
    for c in (1.0, 0.1, 7.0):
        shrunk = mlp([3, 4, 3, 2], bias=False)
        shrunk.load_state_dict(net.state_dict())
        first = shrunk[0]
        assert isinstance(first, nn.Linear)
        with torch.no_grad():
            first.weight.mul_(c)
        found = measure_feature_law(shrunk, (law.x / c, law.y), masses=law.masses, listed=True)
        bound = two_phase_gap_bound(found, *path_weight_sizes(shrunk, (3,)), fresh, delta)
        values.append(bound.value)
        swapped.append(printed_pairing(bound))
    says = run.states("B-19", r"\tilde z\mapsto\tilde z/c,\ \bar w\mapsto c\bar w \text{ leaves the bound as it is}")
    says.equal([v / values[0] for v in values], 1.0, 1e-9)
    says.fails("the norms swapped, as printed", [s / swapped[0] for s in swapped])


def printed_pairing(bound: Any) -> float:
    return float(
        bound.feature_radius * bound.absolute_norm + 2 * bound.product_radius * bound.squared_norm + bound.label_radius
    )


def coin(run: Run, tosses: int, delta: float) -> None:
    """z = 1 and Y = ±1: the least-squares value is the mean, and the gap 2 w²."""
    samples = 401  # odd, so that the mean is not 0
    weights = torch.cat([run.signs(min(1000, tosses - i), samples).mean(1) for i in range(0, tosses, 1000)])
    gap = (1 + weights.square()) - (1 - weights.square())
    beta = two_phase_gap_bound(COIN, 0.0, 0.0, samples, delta).product_radius
    right, printed = (
        quantile_interval(gap / (2 * beta * size), 1 - delta, 0.99) for size in (weights.abs(), weights.square())
    )
    statement = r"\Pr[R-R_{S\setminus S_{\alpha m}}\le2\beta_2|\bar w|]\ge1-\delta \text{ for a coin}"
    says = run.states("B-19", statement)
    says.at_most(right, 1.0, where=f"gap over bound, quantile at 1 - δ; {tosses} samples of {samples} tosses")
    says.fails("2β₂ times the squared norm", printed)
    run.refutes(
        "two-phase-norms-swapped",
        r"\Pr\Bigl[R-R_{S\setminus S_{\alpha m}}>\beta_1\sum\|\bar w\|_1+2\beta_2\sum\|\bar w\|_2^2"
        r"+\beta_3\Bigr]\le\delta",
    ).at_most(
        printed,
        1.0,
        where="gap over bound, quantile at 1 - δ; one path with feature 1 and a fair coin ±1 as label: β₁ = β₃ = 0 and "
        "β₂ < 1, while the gap is twice the squared weight",
    )
    run.figure(
        "coin",
        lambda ax: plot_coin(ax, weights, gap, beta),
        caption=f"One path, label a fair coin: the gap of the least-squares value on {samples} "
        "tosses, against that value. With the absolute value the bound is a tent that "
        "the gap exceeds on a few samples, fewer than δ allows; with the square, as printed, it is "
        "a flatter parabola below all of them.",
    )


def plot_coin(ax: Any, weights: Tensor, gap: Tensor, beta: float) -> None:
    ax.plot(weights, gap, ".", ms=3, label="gap")
    line = torch.linspace(float(weights.min()), float(weights.max()), 201, dtype=torch.float64)
    ax.plot(line, 2 * beta * line.abs(), color="#009E73", label=r"$2\beta_2|\bar w|$ (proof)")
    ax.plot(line, 2 * beta * line.square(), "--", color="#D55E00",
            label=r"$2\beta_2\bar w^2$ (printed)")  # fmt: skip
    ax.set(xlabel=r"path weight $\bar w$", ylabel="squared-loss gap")
    ax.legend(loc="upper center")


def binomial_tails(run: Run) -> None:
    """The coin with exact tails: what the constants of the theorem must be."""
    delta, samples = 1e-4, 10**7
    u = math.log(6 / delta)
    right = two_phase_gap_bound(COIN, 0.0, 0.0, samples, delta).product_radius
    printed = 2 * u / (3 * samples) + math.sqrt(u / samples)
    # |mean of fair signs| exceeds it with probability δ
    reached = 2 * float(binom.isf(delta / 2, samples, 0.5)) / samples - 1
    says = run.states("B-19", r"\Pr[|\bar w|\le\beta_2]\ge1-\delta \text{ by the exact binomial quantile}")
    says.at_most(reached, right, where=f"a coin tossed ten million times, δ = {delta}")
    fewer = samples // 4
    says.fails(
        "every toss counted four times: a quarter are independent",
        2 * float(binom.isf(delta / 2, fewer, 0.5)) / fewer - 1,
    )
    run.refutes(
        "two-phase-bernstein-factor",
        r"\Pr\bigl[|\bar w|>\tfrac{2}{3m}\ln\tfrac6\delta+\sqrt{\tfrac1m\ln\tfrac6\delta}\bigr]\le\delta",
    ).at_most(reached, printed, where="δ = 0.0001, a coin tossed ten million times, exact binomial quantile")
    # labels 0 or 1, α = 0.95: m_σ = 500 fresh samples out of m = 10000
    fresh, every, level = 500, 10_000, 0.05
    v = math.log(3 / level)
    radius = 2 * 0.5 / (3 * every) * v + math.sqrt(2 * 0.25 / every * v)
    # E Y² - mean > radius, a lower tail of the number of ones
    failing = float(binom.cdf(math.ceil((0.5 - radius) * fresh) - 1, fresh, 0.5))
    run.refutes(
        "two-phase-third-constant-size",
        r"\Pr\Bigl[\mathbb E\|Y\|^2-\tfrac1{m_\sigma}\sum\|Y^{(i)}\|^2>\tfrac{2C_y}{3m}\ln\tfrac3\delta+\sqrt{"
        r"\tfrac{2\gamma_y^2}m\ln\tfrac3\delta}\Bigr]\le\tfrac\delta3",
    ).at_most(failing, level / 3, where="labels 0 or 1 with equal chances, α = 0.95, m = 10000, δ = 0.05")
