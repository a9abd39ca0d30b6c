"""How many patterns a Hopfield network holds, by three different questions."""

from __future__ import annotations

import math
from typing import Any

import torch
from scipy import integrate

from torchtheory.labs.engine import COLORS, Run, clopper_pearson, lab, mean_interval
from torchtheory.neurons.hopfield_capacity import (
    capacity_sweep,
    critical_load,
    hopfield_bit_error,
    pattern_capacity,
    retrieval_overlap,
)


@lab(
    "hopfield-capacity",
    room="neurons",
    covers=["N-16", "N-17"],
    title="How many patterns: bit errors, stable patterns, and the collapse near 0.138",
    errata=["hopfield-tail-not-normalized", "hopfield-capacity-logarithm"],
    full={"sizes": (250, 500, 1000), "loads": 20, "trials": 20},
    least={"sizes": 50, "trials": 12},
    items={"sizes": 3},
)
def hopfield_capacity_lab(
    run: Run, sizes: tuple[int, ...] = (125, 250, 500), loads: int = 10, trials: int = 20
) -> None:
    """Random patterns are stored at loads up to 0.2, and three different limits appear.

    The share of bits that the first update flips follows a Gaussian tail in the load (and depends
    on the diagonal). Patterns stop being stable to the last bit at about n/ln n of them. And the
    state the dynamics ends in stays close to the pattern up to a load of about 0.138 and then
    leaves it, the sharper the larger the network. The unit of every interval is a network: its
    bits and patterns are not independent of one another.

    Args:
        sizes: numbers of neurons.
        loads: numbers of patterns per neuron on the grid up to 0.2.
        trials: memories of each size and load.
    """
    special = (0.08, 0.11, 0.138, 0.17, 0.2)
    grid = sorted({round(0.2 * (k + 1) / loads, 6) for k in range(loads)} | set(special))
    sweeps = {n: capacity_sweep(n, grid, trials, generator=run.generator) for n in run.track(sizes, "capacity sweep")}
    n = max(sizes)
    large = sweeps[n]
    kept = capacity_sweep(n, grid, trials, zero_diagonal=False, probes=1, max_sweeps=1, generator=run.generator)
    at = {a: grid.index(a) for a in special}

    # one step
    s = large.patterns[at[0.138]]
    zero_error = mean_interval(large.bit_error[at[0.138]], 0.999)
    kept_error = mean_interval(kept.bit_error[at[0.138]], 0.999)
    says = run.states(
        "N-16",
        r"P(\text{bit flips}) = P(S < 1-n) + \tfrac12 P(S = 1-n) \approx "
        r"Q\big((n-1)/\sqrt{(s-1)(n-1)}\big),\ w_{ii} = 0",
    )
    exact, exact_kept = (hopfield_bit_error(n, s, zero_diagonal=z, method="exact") for z in (True, False))
    says.mean(
        zero_error,
        exact,
        against=(exact / 2, 2 * exact, exact_kept),
        where=f"n = {n}, s = {s}; S is a sum of (s-1)(n-1) fair signs, exactly",
    )
    says.fails("the diagonal kept", kept_error)
    says = run.states("N-16", r"P(\text{bit flips}) \approx Q\big((n+s-1)/\sqrt{(s-1)(n-1)}\big),\ w_{ii} = s/n")
    says.mean(kept_error, exact_kept, against=(exact_kept / 2, 2 * exact_kept, exact), where=f"n = {n}, s = {s}")
    says.fails("zero diagonal", zero_error)
    huge = 10**6
    limit = hopfield_bit_error(huge, round(0.138 * huge), method="asymptotic")
    says = run.states("N-16", r"P(\text{bit flips}) / Q(\sqrt{n/s}) \to 1 \text{ at fixed load } s/n = 0.138")
    says.equal(
        hopfield_bit_error(huge, round(0.138 * huge)) / limit,
        1.0,
        1e-4,
        where="at a million neurons; the difference is of the order 1/n",
    )
    says.fails(
        "the diagonal kept: the mean of the cross-talk is s/n, not 0",
        hopfield_bit_error(huge, round(0.138 * huge), zero_diagonal=False) / limit,
    )
    area, _ = integrate.quad(lambda z: math.exp(-z * z / (2 * 0.138)), 1, math.inf)
    run.refutes(
        "hopfield-tail-not-normalized",
        r"\int_1^\infty e^{-nz^2/(2s)}dz = \tfrac12\big(1-\operatorname{erf}\sqrt{n/(2s)}\big)",
    ).equal(area, limit, 1e-6, where=f"s/n = 0.138; their ratio is {area / limit:.4f}, the missing sqrt(2 pi s/n)")

    # the end of the dynamics
    needed = retrieval_overlap(critical_load() - 1e-9)
    below = mean_interval(large.overlap[at[0.11]], 0.99)
    above = mean_interval(large.overlap[at[0.17]], 0.99)
    finite = (
        f"n = {n}, {trials} networks; {needed:.3f} is the smallest overlap a retrieval state has "
        "as n grows without bound"
    )
    says = run.states(
        "N-16",
        r"\text{load } 0.11:\ \text{the dynamics ends with an overlap above } m_c "
        r"\text{ (lower end of a 99 \% interval)}",
    )
    says.above(below.low, needed, where=finite)
    says.fails("load 0.17, above the transition", above.low)
    says = run.states("N-16", r"\text{load } 0.17:\ \text{it ends below } m_c \text{ (upper end of a 99 \% interval)}")
    says.below(above.high, needed, where=finite)
    says.fails("load 0.11, below the transition", below.high)
    least = min(sizes)
    growth = {a: mean_interval(large.overlap[at[a]] - sweeps[least].overlap[at[a]], 0.99) for a in (0.08, 0.2)}
    says = run.states(
        "N-16",
        r"\text{load } 0.2:\ \text{the larger network ends with an overlap smaller by } 0.1 "
        r"\text{ (upper end of a 99 \% interval of the difference)}",
    )
    says.below(
        growth[0.2].high,
        -0.1,
        where=f"n = {n} against n = {least}: the collapse is a transition of large networks, and a small one blurs it",
    )
    says.fails("load 0.08, below the transition", growth[0.08].high)
    drift = {a: float((1 - large.overlap[at[a]].mean()) / 2 / large.bit_error[at[a]].mean()) for a in (0.08, 0.17)}
    says = run.states("N-16", r"\text{load } 0.17:\ \text{bits wrong at the end over bits wrong after one step}")
    says.above(
        drift[0.17],
        10.0,
        where="an avalanche: the one-step error is still below 1 %, so no one-step formula sees the transition",
    )
    says.fails("load 0.08", drift[0.08])
    says = run.states(
        "N-16", r"\alpha_c = \max_y \tfrac12\big(\operatorname{erf}(y)/y-\tfrac{2}{\sqrt\pi}e^{-y^2}\big)^2 = 0.138"
    )
    says.equal(critical_load(), 0.138, 0.0005, where="the quoted number has three digits")
    says.fails("the term by which the noise reacts to the state left out", 2 / math.pi)
    says = run.states(
        "N-16", r"\text{load } 0.08:\ \text{final overlap } = \operatorname{erf}(y) \text{ of the mean-field equation}"
    )
    # a small network loses a pattern now and then, and the mean with it: at least 1000 neurons
    steady = capacity_sweep(max(n, 1000), [0.08], 3 * trials, generator=run.generator).overlap[0]
    says.mean(
        steady,
        retrieval_overlap(0.08),
        against=(retrieval_overlap(0.1), retrieval_overlap(0.06)),
        confidence=0.999,
        where="against the overlaps of the loads 0.06 and 0.1",
    )
    says.fails("load 0.17", large.overlap[at[0.17]])
    blocks = capacity_sweep(125, [0.17], 8 * trials, blocks=1, generator=run.generator)
    says = run.states("N-16", r"\text{share of the walks that end in a fixed point}")
    says.equal(
        torch.stack([v.settled.min() for v in sweeps.values()]),
        1.0,
        where="neurons are updated in 32 groups, in a fresh random order every sweep",
    )
    says.fails("all neurons at once: two-cycles", blocks.settled.min())

    # patterns stable to the last bit
    counts = {
        "all_patterns": round(pattern_capacity(n, "all_patterns")),
        "printed": round(pattern_capacity(n, "printed")),
        "beyond": round(1.2 * pattern_capacity(n, "printed")),
        "one_pattern": round(pattern_capacity(n, "one_pattern")),
        "transition": round(pattern_capacity(n, "transition")),
        "union bound of ½": last_below(n, 0.5),
    }
    fine = capacity_sweep(
        n,
        [c / n for c in counts.values()],
        6 * trials,
        probes=1,
        max_sweeps=1,
        generator=run.generator,
    )
    stable = dict(zip(counts, fine.stable, strict=True))
    intervals = {k: mean_interval(v, 0.99) for k, v in stable.items()}
    union = 1 - n * hopfield_bit_error(n, counts["one_pattern"], method="exact")
    says = run.states("N-17", r"s = n/(2\ln n):\ P(x_t \text{ stable}) \ge 1 - n\,P(\text{bit flips})")
    says.at_least(
        intervals["one_pattern"], union, where=f"n = {n}, s = {counts['one_pattern']}, {6 * trials} networks, 99 %"
    )
    says.fails("load 0.138", intervals["transition"])
    whole = {k: int((stable[k] == 1).sum()) for k in stable}
    every = {k: clopper_pearson(v, 6 * trials, 0.99) for k, v in whole.items()}
    most = counts["union bound of ½"]
    says = run.states("N-17", r"P(\text{all patterns stable}) \ge 1 - sn\,P(\text{bit flips})")
    says.at_least(
        every["union bound of ½"],
        1 - n * most * hopfield_bit_error(n, most, method="exact"),
        where=f"n = {n}, s = {most}, the most for which that is ½; n/(4 ln n) is {counts['all_patterns']}",
    )
    says.fails("s = n/(2 ln n), enough for one pattern only", every["one_pattern"])
    says = run.states(
        "N-17", r"n\,Q(\sqrt{c\ln n}) \to 0 \text{ for } c = 2: \text{its value at } 10^{12} \text{ over that at } 10^3"
    )
    says.below(
        _expected_errors(10**12, 2, False) / _expected_errors(10**3, 2, False),
        1.0,
        where="it falls like 1/sqrt(4 pi ln n): slowly, so the constant is sharp",
    )
    says.fails("c = 1.9", _expected_errors(10**12, 1.9, False) / _expected_errors(10**3, 1.9, False))
    printed = 2 / math.log(2)
    says = run.states(
        "N-17",
        r"s\,n\,Q(\sqrt{c\ln n}) \to 0 \text{ for } c = 4: \text{its value at } 10^{12} \text{ over that at } 10^9",
    )
    says.below(_expected_errors(10**12, 4, True) / _expected_errors(10**9, 4, True), 1.0)
    says.fails(
        "the printed n/(2 log2 n), c = 2.885: too many for all patterns at once",
        _expected_errors(10**12, printed, True) / _expected_errors(10**9, printed, True),
    )
    run.refutes(
        "hopfield-capacity-logarithm",
        r"\text{a pattern is stable with probability } 0.9 \text{ only if } s \le n/(2\log_2 n):"
        r"\ P(x_t \text{ stable}) < 0.9 \text{ at } 1.2 \text{ times as many}",
    ).below(
        intervals["beyond"].low,
        0.9,
        where=f"n = {n}, s = {counts['beyond']}, against {pattern_capacity(n, 'printed'):.1f}; "
        "lower end of a 99 % interval",
    )
    run.table(
        "stable-patterns",
        ["criterion", "s", "stable patterns", "low", "high", "$(1-p)^n$", "networks with all stable"],
        [
            [
                k.replace("_", " ").replace("beyond", "1.2 × printed"),
                counts[k],
                intervals[k].estimate,
                intervals[k].low,
                intervals[k].high,
                (1 - hopfield_bit_error(n, counts[k], method="exact")) ** n,
                f"{whole[k]} of {4 * trials}",
            ]
            for k in counts
        ],
        caption=f"n = {n}. Share of patterns stable in every bit, 99 % intervals over networks.",
    )
    run.table(
        "loads",
        ["s", "s/n", "bit error", "exact", "asymptotic", "kept diagonal", "exact, kept", "overlap"],
        [
            [
                c,
                c / n,
                float(large.bit_error[k].mean()),
                hopfield_bit_error(n, c, method="exact"),
                hopfield_bit_error(n, c, method="asymptotic"),
                float(kept.bit_error[k].mean()),
                hopfield_bit_error(n, c, zero_diagonal=False, method="exact"),
                float(large.overlap[k].mean()),
            ]
            for k, c in enumerate(large.patterns)
        ],
        caption=f"n = {n}, {trials} networks a load.",
    )

    def bit_errors(axes: Any) -> None:
        fine_loads = [0.04 + 0.002 * k for k in range(84)]
        for color, name, sweep, zero in (
            (COLORS[0], "zero diagonal", large, True),
            (COLORS[1], "diagonal kept", kept, False),
        ):
            line = [hopfield_bit_error(n, round(a * n), zero_diagonal=zero) for a in fine_loads]
            axes.plot(fine_loads, line, color=color, label=f"{name}: predicted")
            seen = [k for k, v in enumerate(sweep.bit_error.mean(1)) if v > 0]
            bars = [mean_interval(sweep.bit_error[k], 0.95) for k in seen]
            axes.errorbar(
                [sweep.loads[k] for k in seen],
                [b.estimate for b in bars],
                yerr=[
                    # an interval that reaches zero has no place on a logarithmic axis
                    [b.estimate - max(b.low, 0.2 * b.estimate) for b in bars],
                    [b.high - b.estimate for b in bars],
                ],
                fmt="o",
                ms=3.5,
                color=color,
                label=f"{name}: measured",
            )
        asymptotic = [hopfield_bit_error(n, round(a * n), method="asymptotic") for a in fine_loads]
        axes.plot(fine_loads, asymptotic, color=COLORS[6], lw=1, ls="--", label="Q(√(n/s))")
        axes.set(yscale="log", ylim=(1e-7, 0.05), xlabel="load s/n", ylabel="bits flipped in one step")
        axes.minorticks_off()
        axes.legend(loc="lower right")

    run.figure(
        "bit-error",
        bit_errors,
        caption=f"n = {n}: share of bits that the first update flips, with 95 % intervals. The "
        "kept diagonal hides two thirds of the errors near 0.138.",
    )

    def collapse(axes: Any) -> None:
        for k, (size, sweep) in enumerate(sweeps.items()):
            bars = [mean_interval(row, 0.95) for row in sweep.overlap]
            axes.errorbar(
                sweep.loads,
                [b.estimate for b in bars],
                yerr=[
                    [b.estimate - b.low for b in bars],
                    [b.high - b.estimate for b in bars],
                ],
                fmt="o-",
                ms=3,
                lw=1,
                color=COLORS[k % 6],
                label=f"n = {size}",
            )
        alphas = [critical_load() * k / 100 for k in range(1, 101)]
        axes.plot(
            [*alphas, critical_load()],
            [*(retrieval_overlap(a) for a in alphas), 0.0],
            color=COLORS[6],
            lw=1.2,
            ls="--",
            label="n → ∞ (mean field)",
        )
        axes.text(critical_load() - 0.003, 0.1, "0.138", ha="right", fontsize=8)
        axes.set(xlabel="load s/n", ylabel="overlap where the dynamics ends", ylim=(0, 1.05))
        axes.legend(loc="lower left")

    run.figure(
        "collapse",
        collapse,
        caption="Final overlap with the stored pattern, 95 % intervals over networks. Beyond 0.138 "
        "it falls the more steeply the larger the network; what is left is the remanence of "
        "spurious states.",
    )

    def stable_share(axes: Any) -> None:
        for k, (size, sweep) in enumerate(sweeps.items()):
            law = [(1 - hopfield_bit_error(size, c, method="exact")) ** size for c in range(1, round(0.2 * size) + 1)]
            ratio = [c * math.log(size) / size for c in range(1, round(0.2 * size) + 1)]
            axes.plot(ratio, law, color=COLORS[k % 6], label=f"n = {size}")
            axes.plot(
                [c * math.log(size) / size for c in sweep.patterns],
                sweep.stable.mean(1),
                "o",
                ms=3.5,
                color=COLORS[k % 6],
            )
        for place, name in (
            (0.25, "n/(4 ln n)"),
            (math.log(2) / 2, "n/(2 log₂ n)"),
            (0.5, "n/(2 ln n)"),
        ):
            axes.axvline(place, color="0.4", lw=0.8, ls=":")
            axes.text(place - 0.012, 0.03, name, rotation=90, ha="right", va="bottom", fontsize=8)
        axes.set(xlabel="s ln(n) / n", ylabel="patterns stable in every bit", ylim=(0, 1.05))
        axes.set_xlim(0, 1.3)
        axes.legend(loc="upper right")

    run.figure(
        "stable-patterns",
        stable_share,
        caption="Share of patterns without a single unstable bit; lines: $(1-p)^n$, as if "
        "bits were independent. The printed limit lies between the one for all patterns and the "
        "one for one pattern.",
    )


def last_below(n: int, errors: float) -> int:
    """The most patterns with at most so many unstable bits in the mean, in all of them."""
    s = 2
    while (s + 1) * n * hopfield_bit_error(n, s + 1, method="exact") <= errors:
        s += 1
    return s


def _expected_errors(n: int, c: float, all_patterns: bool) -> float:
    """Expected unstable bits of one pattern, or of all, at s = n/(c ln n), by the Gaussian tail."""
    one = n * 0.5 * math.erfc(math.sqrt(c * math.log(n) / 2))
    return one * n / (c * math.log(n)) if all_patterns else one
