"""Dense associative memories, and the one whose update is attention."""

from __future__ import annotations

import math
from typing import Any

import torch
from scipy import stats
from torch.nn.functional import scaled_dot_product_attention

from torchtheory.labs.engine import COLORS, Interval, Run, lab, mean_interval
from torchtheory.neurons.dense_memory import (
    DenseMemory,
    Exponential,
    Power,
    dense_bit_error,
    dense_capacity,
    dense_capacity_sweep,
    modern_hopfield_energy,
    modern_hopfield_update,
    modern_retrieval_bound,
)
from torchtheory.neurons.hopfield import (
    Hopfield,
    all_states,
    hebbian,
    sign,
)


@lab(
    "dense-associative-memory",
    room="neurons",
    covers=["N-19"],
    title="Steeper energies hold more, and the steepest is attention",
    full={"n": 100, "trials": 20, "sizes": (24, 32, 48, 64, 96)},
    least={"n": 48, "trials": 8, "sizes": 2, "dim": 2},
)
def dense_associative_memory(
    run: Run,
    n: int = 48,
    trials: int = 12,
    sizes: tuple[int, ...] = (24, 32, 48),
    dim: int = 32,
) -> None:
    """Replace the square in Hopfield's energy by a higher power, then by the exponential.

    The second power is Hebb's rule with zero diagonal, exactly. Powers three and four hold of the
    order n² and n³ patterns, the exponential a number exponential in n; at a high load they also have
    more minima that nobody stored. With continuous states
    the exponential's update is one step of attention, and Ramsauer's energy falls along it.

    Args:
        n: neurons.
        trials: random memories.
        sizes: numbers of neurons over which capacities grow.
        dim: dimension of the continuous memory.
    """
    # the second power is Hebb's rule
    stored = run.signs(6, 10)
    states = all_states(10)
    square, cube = DenseMemory(stored, Power(2)), DenseMemory(stored, Power(3))
    kept = Hopfield(hebbian(stored, zero_diagonal=False, normalize=False))
    hebb = Hopfield(hebbian(stored, normalize=False))
    says = run.states("N-19", r"F(z) = z^2:\ E(x) = 2n\,H(x) \text{ with Hebb's weights, diagonal kept}")
    says.equal(square.energy(states), 2 * kept.energy(states), where="all states of ten neurons, whole numbers")
    says.fails("F(z) = $z^3$", cube.energy(states))
    says = run.states("N-19", r"F(z) = z^2:\ \text{bits in which its update and Hebb's with zero diagonal differ}")
    says.equal(
        int((square.step(states) != sign(hebb.field(states))).sum()),
        where="the energy comparison leaves the diagonal out by itself",
    )
    says.fails("Hebb's rule with the diagonal kept", int((square.step(states) != sign(kept.field(states))).sum()))

    # the energy falls
    crowd, start = run.signs(3 * n, n), run.signs(20, n)
    kinds = (Power(3), Power(4), Power(3, rectified=True), Exponential())
    walks = [DenseMemory(crowd, kind).recall(start, trace=True, generator=run.generator) for kind in kinds]
    # as rounding is relative, so is the comparison
    rises = torch.stack([(w.energies.diff(dim=0) / w.energies[:-1].abs()).max() for w in walks])
    together = DenseMemory(crowd, Power(2)).recall(start, mode="synchronous", max_sweeps=20)
    says = run.states(
        "N-19",
        r"\max_k E(x^{k+1}) - E(x^k) \le 0 \text{ one neuron at a time, relative to } |E|;\ "
        r"F = z^3, z^4, \max(z,0)^3, e^z",
    )
    says.at_most(rises, 0.0, 1e-12)
    says.fails(
        "all neurons at once, F(z) = $z^2$", (together.energies.diff(dim=0) / together.energies[:-1].abs()).max()
    )
    says = run.states("N-19", r"\text{the asynchronous dynamics stops: walks that end in a fixed point}")
    says.equal(torch.stack([w.fixed_point for w in walks]).double(), 1.0)
    says.fails(
        "both neurons at once, F(z) = $z^2$, stored (+1, +1), started at (+1, -1): a two-cycle",
        DenseMemory(torch.ones(1, 2), Power(2))
        .recall(torch.tensor([1.0, -1.0]), mode="synchronous")
        .fixed_point.double(),
    )

    # what else they hold: minima nobody stored
    crowded, roomy = (minima_gained(run, 12, load, 2 * trials) for load in (12, 2))
    says = run.states(
        "N-19",
        r"s=n:\ \text{strict minima of } -\sum_t(x_t\cdot x)^4 \text{ less those of } -\sum_t(x_t\cdot x)^2"
        r" \text{ (lower end of a 99 \% interval of the mean)}",
    )
    says.above(crowded.low, 0.0, where=f"all 4096 states of 12 neurons, {2 * trials} memories")
    says.fails("two patterns: a low load", roomy.low)

    # how much they hold
    sweeps = {
        p: dense_capacity_sweep(
            n,
            [max(2, round(dense_capacity(n, p) * f)) for f in (1, 2, 4)],
            Power(p),
            trials,
            generator=run.generator,
        )
        for p in run.track((2, 3, 4), "capacity")
    }
    for p in (3, 4):
        sweep = sweeps[p]
        rate = dense_bit_error(n, sweep.patterns[2], Power(p))
        hebbs = dense_capacity_sweep(n, [sweep.patterns[2]], Power(2), trials, generator=run.generator)
        says = run.states(
            "N-19",
            rf"F(z) = z^{p}:\ P(\text{{bit flips}}) \approx "
            r"Q\big((F(n)-F(n-2))/\sqrt{(s-1)\,\mathbb E[(F(z+1)-F(z-1))^2]}\big)",
        )
        says.mean(
            sweep.bit_error[2],
            rate,
            against=[rate / 2, 2 * rate],
            confidence=0.999,
            where=f"n = {n}, s = {sweep.patterns[2]}, {trials} memories, 99.9 %",
        )
        says.fails("F(z) = $z^2$", hebbs.bit_error[0])
    left = {
        p: mean_interval(
            dense_capacity_sweep(n, [n], Power(p), 4 * trials, flip=0.1, generator=run.generator).bit_error[0],
            0.99,
        )
        for p in (2, 3)
    }
    says = run.states(
        "N-19",
        r"F(z)=z^3 \text{ at load } 1\ (7 \text{ times } 0.138):\ \text{one update repairs seven "
        r"eighths of the flipped bits (upper end of a 99 \% interval of what is left)}",
    )
    says.at_most(
        left[3].high, round(0.1 * n) / n / 8, where=f"n = s = {n}, a tenth of the bits flipped, {4 * trials} memories"
    )
    says.fails("F(z) = $z^2$", left[2].high)
    bits = 20
    many = 2 ** (bits // 2)
    held = {
        kind: mean_interval(
            dense_capacity_sweep(bits, [many], kind, trials, generator=run.generator).stable[0],
            0.99,
        )
        for kind in (Exponential(), Power(2))
    }
    says = run.states(
        "N-19",
        r"F(z) = e^z \text{ with } s = 2^{n/2}:\ \text{share of patterns stable in every bit "
        r"(lower end of a 99 \% interval)}",
    )
    says.at_least(held[Exponential()].low, 0.9, where=f"n = {bits}, s = {many}, {trials} memories")
    says.fails("F(z) = $z^2$", held[Power(2)].low)
    growth: dict[int, list[float]] = {
        p: [_patterns_at(size, p, 0.01, trials, run.generator) for size in sizes] for p in (2, 3, 4)
    }
    run.table(
        "capacity",
        ["n", *(f"measured, p = {p}" for p in growth), *(f"predicted, p = {p}" for p in growth)],
        [
            [
                size,
                *(round(growth[p][k], 1) for p in growth),
                *(round(_predicted_patterns_at(size, p, 0.01), 1) for p in growth),
            ]
            for k, size in enumerate(sizes)
        ],
        caption="Patterns stored when one update flips 1 % of the bits.",
    )

    # attention
    patterns, query = run.randn(40, dim), 1.5 * run.randn(60, dim)
    beta = 1 / math.sqrt(dim)
    attention = scaled_dot_product_attention(query[None], patterns[None], patterns[None])[0]
    says = run.states(
        "N-19, N-82",
        r"X^\top\operatorname{softmax}(\beta X\xi) = \operatorname{attention}(\xi, X, X)\text{ at } \beta = 1/\sqrt{d}",
    )
    says.equal(
        modern_hopfield_update(patterns, query, beta),
        attention,
        1e-12,
        where="against torch's scaled_dot_product_attention",
    )
    says.fails("beta = 1", modern_hopfield_update(patterns, query, 1.0))
    path, energies, others = [query], [], []
    for _ in range(12):
        energies.append(modern_hopfield_energy(patterns, path[-1], beta))
        others.append(modern_hopfield_energy(patterns, path[-1], 4 * beta))
        path.append(modern_hopfield_update(patterns, path[-1], beta))
    trace, foreign = torch.stack(energies), torch.stack(others)
    says = run.states(
        "N-19",
        r"E(\xi^{k+1}) \le E(\xi^k),\quad E = -\operatorname{lse}(\beta, X\xi) + \tfrac12\|\xi\|^2 + \text{const}",
    )
    says.at_most(trace.diff(dim=0).max(), 0.0, 1e-12, where="60 starts, 12 updates")
    says.fails("the energy of another temperature, 4 beta", foreign.diff(dim=0).max())
    largest = float(patterns.square().sum(-1).max())
    hull = torch.stack([modern_hopfield_energy(patterns, x, beta) for x in path[1:]])
    one = patterns[:1]
    opposite = modern_hopfield_energy(one, -one)
    says = run.states("N-19", r"\|\xi\| \le M \implies E(\xi) \le 2M^2")
    says.at_most(
        torch.stack([hull.max(), opposite[0]]),
        [2 * largest, 2 * float(one.square().sum())],
        1e-12,
        where="averages of the patterns; and one pattern with the state opposite to it, which attains the bound",
    )
    says.fails(
        "states of norm 4M",
        modern_hopfield_energy(
            patterns, -4 * math.sqrt(largest) * patterns / patterns.norm(dim=-1, keepdim=True)
        ).max(),
    )
    index = torch.arange(len(patterns))
    near = patterns + 0.2 * run.randn(len(patterns), dim)
    betas = [0.02 * 2**k for k in range(8)]
    errors = torch.stack([(modern_hopfield_update(patterns, near, b) - patterns).norm(dim=-1) for b in betas])
    bounds = torch.stack([modern_retrieval_bound(patterns, near, index, b) for b in betas])
    # two opposite patterns are as far apart as patterns can be
    pair = torch.stack([patterns[0], -patterns[0]])
    pair_errors = torch.stack([(modern_hopfield_update(pair, pair, b) - pair).norm(dim=-1) for b in betas])
    pair_bounds, keen = (
        torch.stack([modern_retrieval_bound(pair, pair, torch.arange(2), factor * b) for b in betas])
        for factor in (1, 2)
    )
    # neither so warm that the bound is far, nor so cold that both sides are below rounding
    between = torch.tensor([1 < b * float(patterns[0].square().sum()) < 10 for b in betas])
    says = run.states("N-19", r"\|X^\top\operatorname{softmax}(\beta X\xi) - x_t\| \le 2M(s-1)e^{-\beta\Delta}")
    says.at_most(
        torch.cat([errors.flatten(), pair_errors.flatten()]),
        torch.cat([bounds.flatten(), pair_bounds.flatten()]),
        1e-13,
        where="40 noisy patterns and two opposite ones, at eight temperatures",
    )
    says.fails("the temperature is twice the one in the bound", pair_errors[between], promised=keen[between])

    def loads(axes: Any) -> None:
        for color, (p, sweep) in zip(COLORS, sweeps.items(), strict=False):
            low, high = sweep.patterns[0] / 2, sweep.patterns[-1] * 1.5
            line = sorted({max(2, round(low * (high / low) ** (k / 60))) for k in range(61)})
            axes.plot(
                [s / n for s in line],
                [dense_bit_error(n, s, Power(p)) for s in line],
                color=color,
                label=f"z{'²³⁴'[p - 2]}",
            )
            shown = [k for k, v in enumerate(sweep.bit_error.mean(1)) if v > 0]
            bars = [mean_interval(sweep.bit_error[k], 0.95) for k in shown]
            axes.errorbar(
                [sweep.patterns[k] / n for k in shown],
                [b.estimate for b in bars],
                yerr=[
                    [b.estimate - max(b.low, 0.2 * b.estimate) for b in bars],
                    [b.high - b.estimate for b in bars],
                ],
                fmt="o",
                ms=3.5,
                color=color,
            )
        axes.axvline(0.138, color="0.4", lw=0.8, ls=":")
        axes.text(0.138, 1.3e-4, " 0.138", fontsize=8)
        axes.set(xscale="log", yscale="log", ylim=(1e-4, 0.4))
        axes.set(xlabel="patterns per neuron, s/n", ylabel="bits flipped in one step")
        axes.minorticks_off()
        axes.legend(title="F(z)", loc="lower right")

    run.figure(
        "loads",
        loads,
        caption=f"n = {n}: predicted (lines) and measured bit errors with 95 % intervals.",
    )

    run.curves(
        "capacity",
        sizes,
        {f"z{'²³⁴'[p - 2]}": values for p, values in growth.items()},
        {f"z{'²³⁴'[p - 2]}": [_predicted_patterns_at(v, p, 0.01) for v in sizes] for p in growth}
        | {"0.138 n": [0.138 * v for v in sizes]},
        axes=("neurons n", "patterns at 1 % bit errors"),
        log="xy",
        beside=True,
        caption="Capacity grows like n to the power p - 1. Marks: measured, dashed: predicted.",
    )

    corners = torch.tensor([[1.0, 0.0], [-0.5, 0.87], [-0.5, -0.87]], dtype=torch.float64)
    plane = torch.stack(
        torch.meshgrid(
            torch.linspace(-1.5, 1.5, 61, dtype=torch.float64),
            torch.linspace(-1.5, 1.5, 61, dtype=torch.float64),
            indexing="xy",
        ),
        -1,
    )
    angles = 0.2 + 2 * math.pi * torch.arange(14, dtype=torch.float64) / 14
    seeds = 1.3 * torch.stack([angles.cos(), angles.sin()], -1)

    def landscape(axes: Any) -> None:
        for panel, b in zip(axes[0], (1.0, 4.0, 16.0), strict=True):
            panel.contour(
                plane[..., 0],
                plane[..., 1],
                modern_hopfield_energy(corners, plane, b),
                levels=14,
                colors="0.75",
                linewidths=0.6,
            )
            walk = [seeds]
            for _ in range(15):
                walk.append(modern_hopfield_update(corners, walk[-1], b))
            steps = torch.stack(walk)
            panel.plot(steps[..., 0], steps[..., 1], color=COLORS[0], lw=0.8)
            panel.plot(*steps[-1].T, "o", ms=11, mfc="none", color=COLORS[0], label="end")
            panel.plot(*corners.T, "x", ms=6, mew=2, color=COLORS[1], label="pattern")
            panel.set(title=f"β = {b:g}", aspect="equal", xlim=(-1.5, 1.5), ylim=(-1.5, 1.5))
            panel.set(xticks=(-1, 0, 1), yticks=(-1, 0, 1))
            panel.grid(False)
        axes[0, 0].legend(loc="lower right")

    run.figure(
        "softmax-landscape",
        landscape,
        grid=(1, 3),
        size=(10.5, 3.7),
        caption="Three patterns in the plane, level lines of the energy and walks from a circle: "
        "warm, all end in the patterns' mean; cold, each ends at the nearest pattern.",
    )

    run.curves(
        "softmax-retrieval",
        betas,
        {"mean error": errors.mean(1), "largest error": errors.amax(1)},
        {"largest bound": bounds.amax(1)},
        axes=("β", "distance to the pattern"),
        log="xy",
        at={"attention's 1/√d": beta},
        ylim=(1e-14, 1e5),
        caption=f"One update from a noisy pattern, 40 patterns in {dim} dimensions: the error "
        "falls exponentially once β times the separation exceeds log s.",
    )


def minima_gained(run: Run, n: int, load: int, memories: int) -> Interval:
    """How many more strict minima the fourth power has than the second, over all states."""
    states = all_states(n)
    gained = []
    for _ in range(memories):
        stored = run.signs(load, n)
        counts = []
        for p in (2, 4):
            energy = DenseMemory(stored, Power(p)).energy(states).reshape([2] * n)
            higher = [energy.flip(k) > energy for k in range(n)]  # with neuron k turned over
            counts.append(int(torch.stack(higher).all(0).sum()))
        gained.append(float(counts[1] - counts[0]))
    return mean_interval(gained, 0.99)


def _patterns_at(n: int, degree: int, level: float, trials: int, generator: torch.Generator) -> float:
    """Number of stored patterns at which one update flips that share of the bits, measured."""
    guess = _predicted_patterns_at(n, degree, level)
    counts = sorted({max(2, round(guess * f)) for f in (0.5, 0.7, 1.0, 1.4, 2.0)})
    sweep = dense_capacity_sweep(n, counts, Power(degree), trials, probes=32, generator=generator)
    errors: list[float] = sweep.bit_error.mean(1).tolist()
    for k in range(len(counts) - 1):
        if errors[k] <= level <= errors[k + 1] and errors[k] < errors[k + 1]:
            share = (level - errors[k]) / (errors[k + 1] - errors[k])
            return counts[k] + share * (counts[k + 1] - counts[k])
    return math.nan


def _predicted_patterns_at(n: int, degree: int, level: float) -> float:
    """The same, by the Gaussian formula: its argument is proportional to 1/sqrt(s - 1)."""
    s = 2
    while dense_bit_error(n, s, Power(degree)) < level:
        s *= 2
    ratio = stats.norm.isf(dense_bit_error(n, s, Power(degree))) / stats.norm.isf(level)
    return 1 + (s - 1) * float(ratio) ** 2
