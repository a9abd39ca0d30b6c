"""Associative memories: energies that descend, how much they hold, and what happens beyond."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from scipy import integrate
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from torchtheory.core.figure import COLOURS
from torchtheory.core.intervals import Interval, clopper_pearson, mean_interval
from torchtheory.core.lab import lab
from torchtheory.core.record import Control
from torchtheory.core.run import Run
from torchtheory.data.real import digits
from torchtheory.nets.dense_memory import (
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
from torchtheory.nets.hopfield import (
    Hopfield,
    crosstalk,
    flip_bits,
    hebbian,
    overlap,
    sign,
)
from torchtheory.nets.hopfield_capacity import (
    CapacitySweep,
    capacity_sweep,
    critical_load,
    hopfield_bit_error,
    hopfield_capacity,
    retrieval_overlap,
)


@lab(
    "hopfield-dynamics",
    room="nets",
    covers=["N-13", "N-14", "N-15"],
    title="A Hopfield network walks downhill and stops",
    errata=["hebbian-diagonal"],
    full={"small": 12, "n": 200, "starts": 200},
)
def hopfield_dynamics(
    run: Run, small: int = 9, n: int = 80, starts: int = 40, patterns: int = 10
) -> None:
    """One neuron at a time, symmetric weights without a negative diagonal: the energy falls.

    On a small network every one of its states is tried; on a larger one the energy is recorded
    after every update. All weights are whole numbers, so that energies and ties are exact. Each
    hypothesis is then broken in turn: symmetry, the sign of the diagonal, one neuron at a time.
    Last, patterns are stored by Hebb's rule and the field is split into pattern and cross-talk.
    """
    states = _all_states(small)
    upper = torch.randint(-4, 5, (small, small), generator=run.generator).double().triu(1)
    weights, bias = upper + upper.T, torch.randint(-2, 3, (small,), generator=run.generator)
    skewed = upper + torch.randint(-4, 5, (small, small), generator=run.generator).tril(-1)
    net, lopsided = Hopfield(weights, bias), Hopfield(skewed, bias, strict=False)
    change, field_says = _flips(net, states)
    skewed_change, skewed_says = _flips(lopsided, states)
    run.claim(
        "N-13",
        r"H(x^{(i)}) - H(x) = -(x_i' - x_i)\,h_i(x) \text{ for every state } x \text{ and neuron } i",
        promised=field_says,
        relation="==",
        measured=change,
        control=Control(
            "weights that are not symmetric", measured=skewed_change, promised=skewed_says
        ),
    )

    heavy = Hopfield(weights + 3 * torch.eye(small), bias)
    run.claim(
        "N-13",
        r"\text{states and neurons where the rule by energy and the rule by field disagree}",
        promised=0,
        relation="==",
        measured=_disagreements(net, states),
        reason=f"all {len(states)} states of {small} neurons",
        control=Control("a positive diagonal, w_ii = 3", measured=_disagreements(heavy, states)),
    )

    start = run.signs(starts, n)
    wide = torch.randint(-9, 10, (n, n), generator=run.generator).double()
    symmetric = (wide.triu(1) + wide.triu(1).T) + torch.diag(wide.diagonal().abs())
    descent = Hopfield(symmetric).recall(start, trace=True, random=run.generator)
    asymmetric = Hopfield(wide.clone().fill_diagonal_(0), strict=False).recall(
        start, trace=True, max_sweeps=descent.sweeps, random=run.generator
    )
    negative = Hopfield(symmetric - 60 * torch.eye(n), strict=False).recall(
        start, trace=True, max_sweeps=descent.sweeps, random=run.generator
    )
    run.claim(
        "N-13",
        r"\max_k H(x^{k+1}) - H(x^k) \le 0 \text{ one neuron at a time}",
        promised=0,
        relation="<=",
        measured=descent.energies.diff(dim=0).max(),
        reason=f"{starts} random starts, {len(descent.energies) - 1} updates each",
        control=Control(
            "weights that are not symmetric", measured=asymmetric.energies.diff(dim=0).max()
        ),
    )
    run.claim(
        "N-13",
        r"w_{ii} \ge 0 \implies \max_k H(x^{k+1}) - H(x^k) \le 0",
        promised=0,
        relation="<=",
        measured=descent.energies.diff(dim=0).max(),
        reason="the diagonal of these weights is positive in places; a flip then gains 2 w_ii more",
        control=Control(
            "a negative diagonal, 60 below", measured=negative.energies.diff(dim=0).max()
        ),
    )
    pair = Hopfield(torch.tensor([[0.0, 1.0], [1.0, 0.0]])).recall(
        torch.tensor([1.0, -1.0]), mode="synchronous"
    )
    small_walk = net.recall(states, random=run.generator)
    run.claim(
        "N-13",
        r"\text{the asynchronous dynamics stops: share of starts that end in a fixed point}",
        promised=1.0,
        relation="==",
        measured=torch.cat([small_walk.fixed_point, descent.fixed_point]).double(),
        reason="every state of the small network, and the random starts of the large one",
        control=Control(
            "both neurons at once, w_12 = 1, x = (+1, -1): a two-cycle",
            measured=pair.fixed_point.double(),
        ),
    )
    together = net.recall(states, mode="synchronous", max_sweeps=200)
    rotation = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
    circling = Hopfield(rotation, strict=False).recall(_all_states(2), mode="synchronous")
    run.claim(
        "N-13",
        r"W = W^\top:\ \text{all neurons at once end in a fixed point or a two-cycle}",
        promised=1.0,
        relation="==",
        measured=(together.fixed_point | together.two_cycle).double(),
        reason=f"{int(together.two_cycle.sum())} of {len(states)} states end in a two-cycle",
        control=Control(
            "w_12 = 1, w_21 = -1: a cycle of four",
            measured=(circling.fixed_point | circling.two_cycle).double(),
        ),
    )

    one = run.signs(1, n)
    kept = Hopfield(hebbian(one, normalize=False))
    run.claim(
        "N-14",
        r"\text{one stored pattern: } x \text{ and } -x \text{ are fixed points}",
        promised=1.0,
        relation="==",
        measured=kept.is_fixed_point(torch.cat([one, -one])).double(),
        control=Control(
            "a state that was not stored: x with one sign changed",
            measured=kept.is_fixed_point(flip_bits(one, 1, random=run.generator)).double(),
        ),
    )
    hadamard = _hadamard(4)[:7]
    stored = run.signs(7, 16)
    both = torch.stack([hadamard, stored])
    images = torch.stack([x @ hebbian(x, zero_diagonal=False) for x in both])
    run.claim(
        "N-14",
        r"x_r^\top x_t = 0\ (r \ne t) \implies W x_t = x_t \text{ for } W=\tfrac1n\sum_t x_tx_t^\top",
        promised=hadamard,
        relation="==",
        measured=images[0],
        reason="7 of the 16 rows of a Hadamard matrix",
        control=Control("7 random patterns", measured=images[1], promised=stored),
    )
    memory = run.signs(patterns, n)
    run.erratum(
        "hebbian-diagonal",
        r"w_{ii} = 0 \text{ for } W = \tfrac1n\sum_t x_t x_t^\top",
        promised=0.0,
        relation="==",
        measured=hebbian(memory, zero_diagonal=False).diagonal(),
        reason=f"s/n with s = {patterns}, n = {n}",
    )

    report, loose = crosstalk(memory), crosstalk(memory, zero_diagonal=False)
    shift = (patterns - 1) * memory
    run.claim(
        "N-15",
        r"n\,h_i(x_t) = n\,x_{t,i} + n\,C_{t,i}"
        r"\text{, and } (n-1)\,x_{t,i} + n\,C^0_{t,i} \text{ with zero diagonal}",
        promised=torch.stack([n * memory + loose.scaled, (n - 1) * memory + report.scaled]),
        relation="==",
        measured=torch.stack(
            [
                memory @ hebbian(memory, zero_diagonal=False, normalize=False),
                memory @ hebbian(memory, normalize=False),
            ]
        ),
        reason="in whole numbers; the weights are formed on one side and not on the other",
        control=Control(
            "the cross-talk of the other diagonal",
            measured=torch.stack(
                [
                    memory @ hebbian(memory, zero_diagonal=False, normalize=False),
                    memory @ hebbian(memory, normalize=False),
                ]
            ),
            promised=torch.stack(
                [n * memory + loose.scaled - shift, (n - 1) * memory + report.scaled + shift]
            ),
        ),
    )
    crowd = run.signs(3 * n // 4, n)
    crowded = crosstalk(crowd, zero_diagonal=False)
    size = crowded.scaled.abs()
    run.claim(
        "N-15",
        r"|C_{t,i}| < 1 \implies x_{t,i} \text{ is stable: number of counterexamples}",
        promised=0,
        relation="==",
        measured=int((crowded.unstable & (size < n)).sum()),
        reason=f"{len(crowd)} patterns on {n} neurons",
        control=Control(
            "1 < |C| < 2", measured=int((crowded.unstable & (size > n) & (size < 2 * n)).sum())
        ),
    )
    against = -crowd * crowded.scaled
    exact = (against < n) | ((against == n) & (crowd > 0))
    run.claim(
        "N-15",
        r"x_{t,i} \text{ is stable iff } -x_{t,i}C_{t,i} < 1\ (\text{or} = 1 \text{ and } "
        r"x_{t,i} = +1)\text{: number of exceptions}",
        promised=0,
        relation="==",
        measured=int((exact == crowded.unstable).sum()),
        control=Control(
            "|C| < 1 taken for the condition", measured=int(((size < n) == crowded.unstable).sum())
        ),
    )
    harmless = int((~crowded.unstable & (size >= n)).sum())
    run.note(
        f"{harmless} of {crowd.numel()} bits have |C| >= 1 and are stable all the same: cross-talk "
        "of the right sign does no harm, so |C| < 1 is sufficient and not necessary."
    )
    run.table(
        "crosstalk",
        ["diagonal", "mean of -xC", "variance of C", "s/n", "unstable bits", "stable patterns"],
        [
            [
                name,
                float((-crowd * r.scaled).double().mean() / n),
                float(r.values.var()),
                len(crowd) / n,
                int(r.unstable.sum()),
                int(r.stable_patterns.sum()),
            ]
            for name, r in (("zero", crosstalk(crowd)), ("kept", crowded))
        ],
        caption=f"{len(crowd)} random patterns on {n} neurons: the kept diagonal supports every "
        "bit by (s-1)/n.",
    )

    def energies(axes: Any) -> None:
        for panel, walk, title in zip(
            axes[0],
            (descent, asymmetric, negative),
            ("symmetric, w_ii ≥ 0", "not symmetric", "diagonal below zero"),
            strict=True,
        ):
            steps = torch.arange(len(walk.energies)) / n
            panel.plot(steps, walk.energies[:, :12], lw=0.9)
            panel.set(title=title, xlabel="sweeps")
        axes[0, 0].set_ylabel("energy H(x)")

    run.figure(
        "energy",
        energies,
        grid=(1, 3),
        size=(10.5, 3.2),
        caption="Energy after every single update, twelve starts. It falls and stops on the left; "
        "either hypothesis broken, it also rises and need not end.",
    )

    def histogram(axes: Any) -> None:
        for colour, name, r, need in (
            (COLOURS[0], "zero diagonal", crosstalk(crowd), (n - 1) / n),
            (COLOURS[1], "diagonal kept", crowded, 1.0),
        ):
            value = (-crowd * r.scaled).double().flatten() / n
            axes.hist(value, bins=50, density=True, histtype="step", color=colour, label=name)
            axes.axvline(need, color=colour, lw=0.8, ls=":")
        z = torch.linspace(-4, 4, 300)
        load = len(crowd) / n
        density = torch.exp(-z * z / (2 * load)) / math.sqrt(2 * math.pi * load)
        axes.plot(z, density, color=COLOURS[6], lw=1, label="N(0, s/n)")
        axes.set(xlabel="cross-talk against the bit, −x C", ylabel="density", ylim=(0, 0.72))
        axes.text(1.05, 0.66, "flipped →", fontsize=8)
        axes.legend(loc="upper left")

    run.figure(
        "crosstalk",
        histogram,
        caption=f"Cross-talk of {len(crowd)} random patterns on {n} neurons. Bits to the right of "
        "1 flip. N(0, s/n) describes the zero diagonal; the kept one is shifted by (s-1)/n.",
    )


@lab(
    "hopfield-capacity",
    room="nets",
    covers=["N-16", "N-17"],
    title="How many patterns: bit errors, stable patterns, and the collapse near 0.138",
    errata=["hopfield-tail-not-normalised", "hopfield-capacity-logarithm"],
    full={"sizes": (250, 500, 1000), "loads": 20, "trials": 10},
)
def hopfield_capacity_lab(
    run: Run, sizes: tuple[int, ...] = (125, 250, 500), loads: int = 10, trials: int = 10
) -> None:
    """Random patterns are stored at loads up to 0.2, and three different limits appear.

    The share of bits that the first update flips follows a Gaussian tail in the load (and depends
    on the diagonal). Patterns stop being stable to the last bit at about n/ln n of them. And the
    state the dynamics ends in stays close to the pattern up to a load of about 0.138 and then
    leaves it, the sharper the larger the network. The unit of every interval is a network: its
    bits and patterns are not independent of one another.
    """
    grid = sorted({0.2 * (k + 1) / loads for k in range(loads)} | {0.08, 0.11, 0.138, 0.17})
    sweeps = {
        n: capacity_sweep(n, grid, trials, random=run.generator)
        for n in run.track(sizes, "capacity sweep")
    }
    n = max(sizes)
    large = sweeps[n]
    kept = capacity_sweep(
        n, grid, trials, zero_diagonal=False, probes=1, max_sweeps=1, random=run.generator
    )
    at = {a: grid.index(a) for a in (0.08, 0.11, 0.138, 0.17)}

    # one step
    s = large.patterns[at[0.138]]
    zero_error = mean_interval(large.bit_error[at[0.138]], 0.999)
    kept_error = mean_interval(kept.bit_error[at[0.138]], 0.999)
    run.claim(
        "N-16",
        r"P(\text{bit flips}) = P(S < 1-n) + \tfrac12 P(S = 1-n) \approx "
        r"Q\big((n-1)/\sqrt{(s-1)(n-1)}\big),\ w_{ii} = 0",
        promised=hopfield_bit_error(n, s, method="exact"),
        relation="~",
        measured=zero_error.estimate,
        interval=zero_error,
        reason=f"n = {n}, s = {s}; S is a sum of (s-1)(n-1) fair signs, exactly",
        control=Control("the diagonal kept", measured=kept_error.estimate, interval=kept_error),
    )
    run.claim(
        "N-16",
        r"P(\text{bit flips}) \approx Q\big((n+s-1)/\sqrt{(s-1)(n-1)}\big),\ w_{ii} = s/n",
        promised=hopfield_bit_error(n, s, zero_diagonal=False, method="exact"),
        relation="~",
        measured=kept_error.estimate,
        interval=kept_error,
        reason=f"n = {n}, s = {s}",
        control=Control("zero diagonal", measured=zero_error.estimate, interval=zero_error),
    )
    huge = 10**6
    limit = hopfield_bit_error(huge, round(0.138 * huge), method="asymptotic")
    run.claim(
        "N-16",
        r"P(\text{bit flips}) / Q(\sqrt{n/s}) \to 1 \text{ at fixed load } s/n = 0.138",
        promised=1.0,
        relation="==",
        measured=hopfield_bit_error(huge, round(0.138 * huge)) / limit,
        tolerance=1e-4,
        reason="at a million neurons; the difference is of the order 1/n",
        control=Control(
            "the diagonal kept: the mean of the cross-talk is s/n, not 0",
            measured=hopfield_bit_error(huge, round(0.138 * huge), zero_diagonal=False) / limit,
        ),
    )
    area, _ = integrate.quad(lambda z: math.exp(-z * z / (2 * 0.138)), 1, math.inf)
    run.erratum(
        "hopfield-tail-not-normalised",
        r"\int_1^\infty e^{-nz^2/(2s)}dz = \tfrac12\big(1-\operatorname{erf}\sqrt{n/(2s)}\big)",
        promised=limit,
        relation="==",
        measured=area,
        tolerance=1e-6,
        reason=f"s/n = 0.138; their ratio is {area / limit:.4f}, the missing sqrt(2 pi s/n)",
    )

    # the end of the dynamics
    needed = retrieval_overlap(critical_load() - 1e-9)
    below = mean_interval(large.overlap[at[0.11]], 0.99)
    above = mean_interval(large.overlap[at[0.17]], 0.99)
    finite = (
        f"n = {n}, {trials} networks; {needed:.3f} is the smallest overlap a retrieval state has "
        "as n grows without bound"
    )
    run.claim(
        "N-16",
        r"\text{load } 0.11:\ \text{the dynamics ends with an overlap above } m_c "
        r"\text{ (lower end of a 99 \% interval)}",
        promised=needed,
        relation=">",
        measured=below.low,
        reason=finite,
        control=Control("load 0.17, above the transition", measured=above.low),
    )
    run.claim(
        "N-16",
        r"\text{load } 0.17:\ \text{it ends below } m_c \text{ (upper end of a 99 \% interval)}",
        promised=needed,
        relation="<",
        measured=above.high,
        reason=finite,
        control=Control("load 0.11, below the transition", measured=below.high),
    )
    least = min(sizes)
    finite_size = {a: _growth(sweeps[least], large, at[a]) for a in (0.08, 0.17)}
    run.claim(
        "N-16",
        r"\text{load } 0.17:\ \text{the larger the network, the smaller the final overlap "
        r"(upper end of a 99 \% interval of the difference)}",
        promised=0.0,
        relation="<",
        measured=finite_size[0.17].high,
        reason=f"n = {n} against n = {least}: the collapse is a transition of large networks, "
        "and a small one blurs it",
        control=Control("load 0.08, below the transition", measured=finite_size[0.08].high),
    )
    drift = {
        a: float((1 - large.overlap[at[a]].mean()) / 2 / large.bit_error[at[a]].mean())
        for a in (0.08, 0.17)
    }
    run.claim(
        "N-16",
        r"\text{load } 0.17:\ \text{bits wrong at the end over bits wrong after one step}",
        promised=10.0,
        relation=">",
        measured=drift[0.17],
        reason="an avalanche: the one-step error is still below 1 %, so no one-step formula "
        "sees the transition",
        control=Control("load 0.08", measured=drift[0.08]),
    )
    run.claim(
        "N-16",
        r"\alpha_c = \max_y \tfrac12\big(\operatorname{erf}(y)/y-\tfrac{2}{\sqrt\pi}e^{-y^2}\big)^2"
        r" = 0.138",
        promised=0.138,
        relation="==",
        measured=critical_load(),
        tolerance=0.0005,
        reason="the quoted number has three digits",
        control=Control(
            "the term by which the noise reacts to the state left out",
            measured=2 / math.pi,
        ),
    )
    meanfield = mean_interval(large.overlap[at[0.08]], 0.99)
    crowded = mean_interval(large.overlap[at[0.138]], 0.99)
    run.claim(
        "N-16",
        r"\text{load } 0.08:\ \text{final overlap } = \operatorname{erf}(y)"
        r" \text{ of the mean-field equation}",
        promised=retrieval_overlap(0.08),
        relation="~",
        measured=meanfield.estimate,
        interval=meanfield,
        control=Control("load 0.138", measured=crowded.estimate, interval=crowded),
    )
    blocks = capacity_sweep(125, [0.17], 8 * trials, blocks=1, random=run.generator)
    run.claim(
        "N-16",
        r"\text{share of the walks that end in a fixed point}",
        promised=1.0,
        relation="==",
        measured=torch.stack([v.settled.min() for v in sweeps.values()]),
        reason="neurons are updated in 32 groups, in a fresh random order every sweep",
        control=Control("all neurons at once: two-cycles", measured=blocks.settled.min()),
    )

    # patterns stable to the last bit
    counts = {
        "all_patterns": round(hopfield_capacity(n, "all_patterns")),
        "printed": round(hopfield_capacity(n, "printed")),
        "beyond": round(1.2 * hopfield_capacity(n, "printed")),
        "one_pattern": round(hopfield_capacity(n, "one_pattern")),
        "transition": round(hopfield_capacity(n, "transition")),
    }
    fine = capacity_sweep(
        n,
        [c / n for c in counts.values()],
        4 * trials,
        probes=1,
        max_sweeps=1,
        random=run.generator,
    )
    stable = dict(zip(counts, fine.stable, strict=True))
    intervals = {k: mean_interval(v, 0.99) for k, v in stable.items()}
    union = 1 - n * hopfield_bit_error(n, counts["one_pattern"], method="exact")
    run.claim(
        "N-17",
        r"s = n/(2\ln n):\ P(x_t \text{ stable}) \ge 1 - n\,P(\text{bit flips})",
        promised=union,
        relation=">=",
        measured=intervals["one_pattern"].estimate,
        interval=intervals["one_pattern"],
        reason=f"n = {n}, s = {counts['one_pattern']}, {4 * trials} networks, 99 %",
        control=Control(
            "load 0.138",
            measured=intervals["transition"].estimate,
            interval=intervals["transition"],
        ),
    )
    whole = {k: int((stable[k] == 1).sum()) for k in stable}
    every = {k: clopper_pearson(v, 4 * trials, 0.99) for k, v in whole.items()}
    all_union = 1 - n * counts["all_patterns"] * hopfield_bit_error(
        n, counts["all_patterns"], method="exact"
    )
    run.claim(
        "N-17",
        r"s = n/(4\ln n):\ P(\text{all patterns stable}) \ge 1 - sn\,P(\text{bit flips})",
        promised=all_union,
        relation=">=",
        measured=every["all_patterns"].estimate,
        interval=every["all_patterns"],
        reason=f"n = {n}, s = {counts['all_patterns']}",
        control=Control(
            "s = n/(2 ln n), enough for one pattern only",
            measured=every["one_pattern"].estimate,
            interval=every["one_pattern"],
        ),
    )
    run.claim(
        "N-17",
        r"n\,Q(\sqrt{c\ln n}) \to 0 \text{ for } c = 2: \text{its value at } 10^{12} "
        r"\text{ over that at } 10^3",
        promised=1.0,
        relation="<",
        measured=_expected_errors(10**12, 2, False) / _expected_errors(10**3, 2, False),
        reason="it falls like 1/sqrt(4 pi ln n): slowly, so the constant is sharp",
        control=Control(
            "c = 1.9",
            measured=_expected_errors(10**12, 1.9, False) / _expected_errors(10**3, 1.9, False),
        ),
    )
    printed = 2 / math.log(2)
    run.claim(
        "N-17",
        r"s\,n\,Q(\sqrt{c\ln n}) \to 0 \text{ for } c = 4: \text{its value at } 10^{12} "
        r"\text{ over that at } 10^3",
        promised=1.0,
        relation="<",
        measured=_expected_errors(10**12, 4, True) / _expected_errors(10**3, 4, True),
        control=Control(
            "the printed n/(2 log2 n), c = 2.885: too many for all patterns at once",
            measured=_expected_errors(10**12, printed, True)
            / _expected_errors(10**3, printed, True),
        ),
    )
    run.erratum(
        "hopfield-capacity-logarithm",
        r"\text{a pattern is stable with probability } 0.9 \text{ only if } s \le n/(2\log_2 n):"
        r"\ P(x_t \text{ stable}) < 0.9 \text{ at } 1.2 \text{ times as many}",
        promised=0.9,
        relation="<",
        measured=intervals["beyond"].low,
        reason=f"n = {n}, s = {counts['beyond']}, printed limit {hopfield_capacity(n, 'printed'):.1f}; "
        "lower end of a 99 % interval",
    )
    run.table(
        "stable-patterns",
        ["criterion", "s", "stable patterns", "low", "high", "(1-p)^n", "networks with all stable"],
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
        caption=f"n = {n}. Share of patterns stable in every bit, with 99 % intervals over networks.",
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
        for colour, name, sweep, zero in (
            (COLOURS[0], "zero diagonal", large, True),
            (COLOURS[1], "diagonal kept", kept, False),
        ):
            line = [hopfield_bit_error(n, round(a * n), zero_diagonal=zero) for a in fine_loads]
            axes.plot(fine_loads, line, color=colour, label=f"{name}: predicted")
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
                color=colour,
                label=f"{name}: measured",
            )
        asymptotic = [hopfield_bit_error(n, round(a * n), method="asymptotic") for a in fine_loads]
        axes.plot(fine_loads, asymptotic, color=COLOURS[6], lw=1, ls="--", label="Q(√(n/s))")
        axes.set(
            yscale="log", ylim=(1e-7, 0.05), xlabel="load s/n", ylabel="bits flipped in one step"
        )
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
                color=COLOURS[k % 6],
                label=f"n = {size}",
            )
        alphas = [critical_load() * k / 100 for k in range(1, 101)]
        axes.plot(
            [*alphas, critical_load()],
            [*(retrieval_overlap(a) for a in alphas), 0.0],
            color=COLOURS[6],
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
            law = [
                (1 - hopfield_bit_error(size, c, method="exact")) ** size
                for c in range(1, round(0.2 * size) + 1)
            ]
            ratio = [c * math.log(size) / size for c in range(1, round(0.2 * size) + 1)]
            axes.plot(ratio, law, color=COLOURS[k % 6], label=f"n = {size}")
            axes.plot(
                [c * math.log(size) / size for c in sweep.patterns],
                sweep.stable.mean(1),
                "o",
                ms=3.5,
                color=COLOURS[k % 6],
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
        caption="Share of patterns without a single unstable bit; lines are (1-p)^n. The printed "
        "limit lies between the one for all patterns and the one for one pattern.",
    )


@lab(
    "hopfield-recall",
    room="nets",
    covers=["N-18"],
    title="Recalling noisy digits: three by Hebb's rule, ten only by a dense memory",
    full={"draws": 1000},
)
def hopfield_recall(run: Run, draws: int = 150, flips: int = 6, threshold: float = 0.3) -> None:
    """Images of digits are stored, a tenth of their pixels flipped, and the dynamics started.

    The images are 8 x 8, grey, and first made ±1 at a threshold. Three of them chosen to be almost
    uncorrelated come back. Ten, one of each digit, do not: digits resemble one another, Hebb's
    rule adds up what they share, and the network ends in mixtures that were never stored. The same
    ten come back from a memory with a steeper energy.
    """
    grey, labels = digits(torch.float64)
    images = torch.where(grey > threshold, 1.0, -1.0).double()
    n = images.shape[1]
    few, chosen = _least_correlated(images, labels)
    ten = torch.stack([images[labels == k][0] for k in range(10)])
    noisy_few = flip_bits(few.expand(draws, -1, -1), flips, random=run.generator)
    noisy_ten = flip_bits(ten.expand(draws, -1, -1), flips, random=run.generator)
    hebb_few, hebb_ten = (Hopfield(hebbian(x, normalize=False)) for x in (few, ten))
    dense = DenseMemory(ten, Power(10))
    cubic = DenseMemory(ten, Power(3))
    back_few = hebb_few.recall(noisy_few, random=run.generator).state
    back_ten = hebb_ten.recall(noisy_ten, random=run.generator).state
    back_dense = dense.recall(noisy_ten, random=run.generator).state
    back_cubic = cubic.recall(noisy_ten, random=run.generator).state

    exact = {
        name: _exact_recall(state, target)
        for name, state, target in (
            ("three", back_few, few),
            ("ten", back_ten, ten),
            ("cubic", back_cubic, ten),
            ("dense", back_dense, ten),
        )
    }
    unit = f"{draws} independent noisy copies of each image, {flips} of {n} pixels flipped; 99 %"
    run.claim(
        "N-18",
        r"\text{three almost uncorrelated images: share of exact recalls "
        r"(lower end of the interval)}",
        promised=0.95,
        relation=">=",
        measured=exact["three"].low,
        reason=unit,
        control=Control("all ten digits, correlated", measured=exact["ten"].low),
    )
    run.claim(
        "N-18",
        r"\text{three almost uncorrelated images: mean overlap after recall } \to 1",
        promised=1.0,
        relation="==",
        measured=float(overlap(back_few, few).mean()),
        tolerance=0.01,
        reason=unit + f"; it starts at {1 - 2 * flips / n:.4f}",
        control=Control(
            "all ten digits, correlated", measured=float(overlap(back_ten, ten).mean())
        ),
    )
    run.claim(
        "N-18",
        r"\text{ten digits by Hebb's rule: share of exact recalls (upper end of the interval)}",
        promised=0.05,
        relation="<=",
        measured=exact["ten"].high,
        reason=unit + f"; {int(hebb_ten.is_fixed_point(ten).sum())} of the ten are fixed points",
        control=Control("three almost uncorrelated images", measured=exact["three"].high),
    )
    run.claim(
        "N-18, N-19",
        r"\text{the same ten in a dense memory, } F(z) = z^{10}\text{: share of exact recalls "
        r"(lower end of the interval)}",
        promised=0.95,
        relation=">=",
        measured=exact["dense"].low,
        reason=unit,
        control=Control("the same memory with F(z) = z^3", measured=exact["cubic"].low),
    )
    shuffled = run.signs(10, n)
    likeness = {name: _mean_square_overlap(x) for name, x in (("ten", ten), ("random", shuffled))}
    run.claim(
        "N-18",
        r"\text{mean squared overlap of the ten digits, against } 1/n \text{ of independent signs}",
        promised=3 / n,
        relation=">",
        measured=likeness["ten"],
        reason="three times what independence would give; Hebb's rule assumes patterns without "
        "correlation",
        control=Control("ten random patterns of that size", measured=likeness["random"]),
    )
    # a state is spurious when it is neither a stored image nor the negative of one
    agreement = (back_ten @ ten.T / n).abs().amax(-1)
    run.note(
        f"Of the ten digits stored by Hebb's rule, {float((agreement < 1).double().mean()):.0%} of "
        f"the walks end in a state that was never stored, and all of them end in only "
        f"{len(torch.unique(back_ten.reshape(-1, n), dim=0))} different states."
    )
    run.table(
        "recall",
        ["memory", "images", "overlap before", "overlap after", "exact recalls", "low", "high"],
        [
            [
                name,
                len(target),
                1 - 2 * flips / n,
                float(overlap(state, target).mean()),
                i.estimate,
                i.low,
                i.high,
            ]
            for name, state, target, i in (
                ("Hebb", back_few, few, exact["three"]),
                ("Hebb", back_ten, ten, exact["ten"]),
                ("dense, z^3", back_cubic, ten, exact["cubic"]),
                ("dense, z^10", back_dense, ten, exact["dense"]),
            )
        ],
        caption="Exact recalls with 99 % Clopper-Pearson intervals.",
    )

    def three(axes: Any) -> None:
        rows = (("stored", few), ("noisy", noisy_few[0]), ("Hebb", back_few[0]))
        _pictures(axes, rows)

    run.figure(
        "three-digits",
        three,
        grid=(3, 3),
        size=(3.6, 3.6),
        caption=f"Digits {', '.join(map(str, chosen))}: stored, a tenth of the pixels flipped, "
        "recalled by Hebb's rule.",
    )

    def all_ten(axes: Any) -> None:
        rows = (
            ("stored", ten),
            ("noisy", noisy_ten[0]),
            ("Hebb", back_ten[0]),
            ("dense, z³", back_cubic[0]),
            ("dense, z¹⁰", back_dense[0]),
        )
        _pictures(axes, rows)

    run.figure(
        "ten-digits",
        all_ten,
        grid=(5, 10),
        size=(9.0, 4.7),
        caption="All ten digits. Hebb's rule ends in blends of the digits; the dense memory of "
        "degree ten returns every one.",
    )
    shares = range(0, n // 2 + 1, 4)
    curves: dict[str, list[float]] = {"Hebb, three": [], "Hebb, ten": [], "dense z¹⁰, ten": []}
    for k in run.track(shares, "noise"):
        for name, memory, target in (
            ("Hebb, three", hebb_few, few),
            ("Hebb, ten", hebb_ten, ten),
            ("dense z¹⁰, ten", dense, ten),
        ):
            start = flip_bits(target.expand(30, -1, -1), k, random=run.generator)
            end = memory.recall(start, random=run.generator).state
            curves[name].append(float(overlap(end, target).mean()))

    def noise(axes: Any) -> None:
        share = [k / n for k in shares]
        for colour, (name, values) in zip(COLOURS, curves.items(), strict=False):
            axes.plot(share, values, "o-", ms=3, color=colour, label=name)
        axes.plot(share, [1 - 2 * v for v in share], color="0.5", lw=1, ls=":", label="no recall")
        axes.set(xlabel="share of pixels flipped", ylabel="mean overlap after recall")
        axes.legend(loc="lower left")

    run.figure(
        "noise",
        noise,
        caption="Recall against noise. Hebb's rule with ten digits does not even keep the clean "
        "images.",
    )


@lab(
    "dense-associative-memory",
    room="nets",
    covers=["N-19"],
    title="Steeper energies hold more, and the steepest is attention",
    full={"n": 100, "trials": 20, "sizes": (24, 32, 48, 64, 96)},
)
def dense_associative_memory(
    run: Run,
    n: int = 48,
    trials: int = 12,
    sizes: tuple[int, ...] = (16, 24, 32, 48),
    dim: int = 32,
) -> None:
    """Replace the square in Hopfield's energy by a higher power, then by the exponential.

    The second power is Hebb's rule with zero diagonal, exactly. Powers three and four hold of the
    order n² and n³ patterns, the exponential a number exponential in n. With continuous states
    the exponential's update is one step of attention, and Ramsauer's energy falls along it.
    """
    # the second power is Hebb's rule
    stored = run.signs(6, 10)
    states = _all_states(10)
    square, cube = DenseMemory(stored, Power(2)), DenseMemory(stored, Power(3))
    kept = Hopfield(hebbian(stored, zero_diagonal=False, normalize=False))
    hebb = Hopfield(hebbian(stored, normalize=False))
    run.claim(
        "N-19",
        r"F(z) = z^2:\ E(x) = 2n\,H(x) \text{ with Hebb's weights, diagonal kept}",
        promised=2 * kept.energy(states),
        relation="==",
        measured=square.energy(states),
        reason="all states of ten neurons, whole numbers",
        control=Control("F(z) = z^3", measured=cube.energy(states)),
    )
    run.claim(
        "N-19",
        r"F(z) = z^2:\ \text{bits in which its update and Hebb's with zero diagonal differ}",
        promised=0,
        relation="==",
        measured=int((square.step(states) != sign(hebb.field(states))).sum()),
        reason="the energy comparison leaves the diagonal out by itself",
        control=Control(
            "Hebb's rule with the diagonal kept",
            measured=int((square.step(states) != sign(kept.field(states))).sum()),
        ),
    )

    # the energy falls
    crowd, start = run.signs(3 * n, n), run.signs(20, n)
    kinds = (Power(3), Power(4), Power(3, rectified=True), Exponential())
    walks = [
        DenseMemory(crowd, kind).recall(start, trace=True, random=run.generator) for kind in kinds
    ]
    # as rounding is relative, so is the comparison
    rises = torch.stack([(w.energies.diff(dim=0) / w.energies[:-1].abs()).max() for w in walks])
    jump = DenseMemory(crowd, Power(4))
    together = jump.recall(start, mode="synchronous", max_sweeps=20)
    run.claim(
        "N-19",
        r"\max_k E(x^{k+1}) - E(x^k) \le 0 \text{ one neuron at a time, relative to } |E|;\ "
        r"F = z^3, z^4, \max(z,0)^3, e^z",
        promised=0.0,
        relation="<=",
        measured=rises,
        tolerance=1e-12,
        control=Control(
            "all neurons at once, F(z) = z^4",
            measured=(together.energies.diff(dim=0) / together.energies[:-1].abs()).max(),
        ),
    )
    run.claim(
        "N-19",
        r"\text{the asynchronous dynamics stops: walks that end in a fixed point}",
        promised=1.0,
        relation="==",
        measured=torch.stack([w.fixed_point for w in walks]).double(),
        control=Control("all neurons at once, F(z) = z^4", measured=together.fixed_point.double()),
    )

    # how much they hold
    sweeps = {
        p: dense_capacity_sweep(
            n,
            [max(2, round(dense_capacity(n, p) * f)) for f in (1, 2, 4, 8)],
            Power(p),
            trials,
            random=run.generator,
        )
        for p in run.track((2, 3, 4), "capacity")
    }
    for p in (3, 4):
        sweep = sweeps[p]
        seen = mean_interval(sweep.bit_error[2], 0.999)
        hebbs = dense_capacity_sweep(n, [sweep.patterns[2]], Power(2), trials, random=run.generator)
        other = mean_interval(hebbs.bit_error[0], 0.999)
        run.claim(
            "N-19",
            rf"F(z) = z^{p}:\ P(\text{{bit flips}}) \approx "
            r"Q\big((F(n)-F(n-2))/\sqrt{(s-1)\,\mathbb E[(F(z+1)-F(z-1))^2]}\big)",
            promised=dense_bit_error(n, sweep.patterns[2], Power(p)),
            relation="~",
            measured=seen.estimate,
            interval=seen,
            reason=f"n = {n}, s = {sweep.patterns[2]}, {trials} memories, 99.9 %",
            control=Control("F(z) = z^2", measured=other.estimate, interval=other),
        )
    restored = {
        p: mean_interval(
            1
            - 2
            * dense_capacity_sweep(
                n, [n], Power(p), trials, flip=0.1, random=run.generator
            ).bit_error[0],
            0.99,
        )
        for p in (2, 3)
    }
    run.claim(
        "N-19",
        r"F(z)=z^3 \text{ at load } 1\ (7 \text{ times } 0.138):\ \text{overlap after one update "
        r"from } 10\,\% \text{ flips (lower end of a 99 \% interval)}",
        promised=0.99,
        relation=">=",
        measured=restored[3].low,
        reason=f"n = s = {n}, {trials} memories",
        control=Control("F(z) = z^2", measured=restored[2].low),
    )
    bits = 20
    many = 2 ** (bits // 2)
    held = {
        kind: mean_interval(
            dense_capacity_sweep(bits, [many], kind, trials, random=run.generator).stable[0], 0.99
        )
        for kind in (Exponential(), Power(2))
    }
    run.claim(
        "N-19",
        r"F(z) = e^z \text{ with } s = 2^{n/2}:\ \text{share of patterns stable in every bit "
        r"(lower end of a 99 \% interval)}",
        promised=0.9,
        relation=">=",
        measured=held[Exponential()].low,
        reason=f"n = {bits}, s = {many}, {trials} memories",
        control=Control("F(z) = z^2", measured=held[Power(2)].low),
    )
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
                *(_predicted_patterns_at(size, p, 0.01) for p in growth),
            ]
            for k, size in enumerate(sizes)
        ],
        caption="Patterns stored when one update flips 1 % of the bits.",
    )

    # attention
    patterns, query = run.randn(40, dim), 1.5 * run.randn(60, dim)
    beta = 1 / math.sqrt(dim)
    attention = scaled_dot_product_attention(query[None], patterns[None], patterns[None])[0]
    run.claim(
        "N-19, N-82",
        r"X^\top\operatorname{softmax}(\beta X\xi) = \operatorname{attention}(\xi, X, X)"
        r"\text{ at } \beta = 1/\sqrt{d}",
        promised=attention,
        relation="==",
        measured=modern_hopfield_update(patterns, query, beta),
        tolerance=1e-12,
        reason="against torch's scaled_dot_product_attention",
        control=Control("beta = 1", measured=modern_hopfield_update(patterns, query, 1.0)),
    )
    path, energies, others = [query], [], []
    for _ in range(12):
        energies.append(modern_hopfield_energy(patterns, path[-1], beta))
        others.append(modern_hopfield_energy(patterns, path[-1], 4 * beta))
        path.append(modern_hopfield_update(patterns, path[-1], beta))
    trace, foreign = torch.stack(energies), torch.stack(others)
    run.claim(
        "N-19",
        r"E(\xi^{k+1}) \le E(\xi^k),\quad E = -\operatorname{lse}(\beta, X\xi) + \tfrac12\|\xi\|^2"
        r" + \text{const}",
        promised=0.0,
        relation="<=",
        measured=trace.diff(dim=0).max(),
        tolerance=1e-12,
        reason="60 starts, 12 updates",
        control=Control(
            "the energy of another temperature, 4 beta", measured=foreign.diff(dim=0).max()
        ),
    )
    largest = float(patterns.square().sum(-1).max())
    hull = torch.stack([modern_hopfield_energy(patterns, x, beta) for x in path[1:]])
    run.claim(
        "N-19",
        r"\|\xi\| \le M \implies E(\xi) \le 2M^2",
        promised=2 * largest,
        relation="<=",
        measured=hull.max(),
        reason="every updated state is an average of patterns, so it lies in that ball",
        control=Control(
            "states of norm 4M",
            measured=modern_hopfield_energy(
                patterns, -4 * math.sqrt(largest) * patterns / patterns.norm(dim=-1, keepdim=True)
            ).max(),
        ),
    )
    index = torch.arange(len(patterns))
    near = patterns + 0.2 * run.randn(len(patterns), dim)
    betas = [0.02 * 2**k for k in range(8)]
    errors = torch.stack(
        [(modern_hopfield_update(patterns, near, b) - patterns).norm(dim=-1) for b in betas]
    )
    bounds = torch.stack([modern_retrieval_bound(patterns, near, index, b) for b in betas])
    keen = torch.stack([modern_retrieval_bound(patterns, near, index, 2 * b) for b in betas])
    run.claim(
        "N-19",
        r"\|X^\top\operatorname{softmax}(\beta X\xi) - x_t\| \le 2M(s-1)e^{-\beta\Delta}",
        promised=bounds,
        relation="<=",
        measured=errors,
        tolerance=1e-13,
        reason="40 noisy patterns at eight temperatures",
        control=Control("the bound of 2 beta", measured=errors, promised=keen),
    )

    def loads(axes: Any) -> None:
        for colour, (p, sweep) in zip(COLOURS, sweeps.items(), strict=False):
            low, high = sweep.patterns[0] / 2, sweep.patterns[-1] * 1.5
            line = [low * (high / low) ** (k / 60) for k in range(61)]
            axes.plot(
                [s / n for s in line],
                [dense_bit_error(n, max(2, round(s)), Power(p)) for s in line],
                color=colour,
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
                color=colour,
            )
        axes.axvline(0.138, color="0.4", lw=0.8, ls=":")
        axes.text(0.138, 1.3e-4, " 0.138", fontsize=8)
        axes.set(xscale="log", yscale="log", ylim=(1e-4, 0.4))
        axes.set(xlabel="patterns per neuron, s/n", ylabel="bits flipped in one step")
        axes.legend(title="F(z)", loc="lower right")

    run.figure(
        "loads",
        loads,
        caption=f"n = {n}: predicted (lines) and measured bit errors with 95 % intervals.",
    )

    def capacities(axes: Any) -> None:
        line = torch.arange(min(sizes), max(sizes) + 1)
        for colour, (p, values) in zip(COLOURS, growth.items(), strict=False):
            axes.plot(
                line,
                [_predicted_patterns_at(int(v), p, 0.01) for v in line],
                color=colour,
                lw=1,
                label=f"z{'²³⁴'[p - 2]}",
            )
            axes.plot(sizes, values, "o", ms=4, color=colour)
        axes.plot(line, 0.138 * line, color="0.4", lw=0.8, ls=":", label="0.138 n")
        axes.set(
            xscale="log", yscale="log", xlabel="neurons n", ylabel="patterns at 1 % bit errors"
        )
        axes.set_xticks(sizes, [str(v) for v in sizes])
        axes.minorticks_off()
        axes.legend(title="F(z)", loc="upper left")

    run.figure(
        "capacity",
        capacities,
        caption="Capacity grows like n to the power p - 1. Points: measured, lines: predicted.",
    )

    corners = torch.tensor([[1.0, 0.0], [-0.5, 0.87], [-0.5, -0.87]], dtype=torch.float64)
    plane = torch.stack(
        torch.meshgrid(
            torch.linspace(-1.5, 1.5, 81, dtype=torch.float64),
            torch.linspace(-1.5, 1.5, 81, dtype=torch.float64),
            indexing="xy",
        ),
        -1,
    )
    seeds = 1.3 * torch.stack(
        [torch.tensor([math.cos(a), math.sin(a)], dtype=torch.float64) for a in range(0, 63, 4)]
    )

    def landscape(axes: Any) -> None:
        for panel, b in zip(axes[0], (1.0, 4.0, 16.0), strict=True):
            panel.contour(
                plane[..., 0],
                plane[..., 1],
                modern_hopfield_energy(corners, plane, b),
                levels=18,
                colors="0.75",
                linewidths=0.6,
            )
            walk = [seeds]
            for _ in range(15):
                walk.append(modern_hopfield_update(corners, walk[-1], b))
            steps = torch.stack(walk)
            panel.plot(steps[..., 0], steps[..., 1], color=COLOURS[0], lw=0.8)
            panel.plot(*steps[-1].T, "o", ms=5, color=COLOURS[0], label="where it ends")
            panel.plot(*corners.T, "x", ms=7, mew=2, color=COLOURS[1], label="patterns")
            panel.set(title=f"β = {b:g}", aspect="equal", xlim=(-1.5, 1.5), ylim=(-1.5, 1.5))
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

    def retrieval(axes: Any) -> None:
        axes.plot(betas, errors.mean(1), "o-", ms=3.5, label="mean error")
        axes.plot(betas, errors.amax(1), "s--", ms=3.5, label="largest error")
        axes.plot(betas, bounds.amax(1), color=COLOURS[6], lw=1, label="largest bound")
        axes.set(xscale="log", yscale="log", xlabel="β", ylabel="distance to the pattern")
        axes.set_ylim(1e-14, 1e5)
        axes.axvline(beta, color="0.4", lw=0.8, ls=":")
        axes.text(beta * 1.05, 1e-13, "attention's 1/√d", fontsize=8)
        axes.legend(loc="lower left")

    run.figure(
        "softmax-retrieval",
        retrieval,
        caption=f"One update from a noisy pattern, 40 patterns in {dim} dimensions: the error falls "
        "exponentially once β times the separation exceeds log s.",
    )


def _all_states(n: int) -> Tensor:
    """Every state of n neurons, ``[2^n, n]``."""
    bits = torch.arange(2**n)[:, None] >> torch.arange(n) & 1
    return bits.double() * 2 - 1


def _flips(net: Hopfield, states: Tensor) -> tuple[Tensor, Tensor]:
    """Energy change of every single flip from every state, measured and by the field formula."""
    n = states.shape[1]
    flipped = states[:, None, :] * (1 - 2 * torch.eye(n, dtype=states.dtype))
    change = net.energy(flipped) - net.energy(states)[:, None]
    return change, 2 * states * net.field(states)


def _disagreements(net: Hopfield, states: Tensor) -> int:
    """State-neuron pairs in which comparing energies and the sign of the field differ."""
    n = states.shape[1]
    index = torch.arange(n)
    up = states[:, None, :].repeat(1, n, 1)
    down = up.clone()
    up[:, index, index], down[:, index, index] = 1.0, -1.0
    by_energy = torch.where(net.energy(up) <= net.energy(down), 1.0, -1.0)
    return int((by_energy != sign(net.field(states))).sum())


def _hadamard(k: int) -> Tensor:
    """Sylvester's Hadamard matrix of size 2^k: rows of ±1, pairwise orthogonal."""
    matrix = torch.ones(1, 1, dtype=torch.float64)
    for _ in range(k):
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix


def _growth(small: CapacitySweep, large: CapacitySweep, load: int) -> Interval:
    """Overlap of the larger network minus that of the smaller, over independent pairs."""
    return mean_interval(large.overlap[load] - small.overlap[load], 0.99)


def _expected_errors(n: int, c: float, all_patterns: bool) -> float:
    """Expected unstable bits of one pattern, or of all, at s = n/(c ln n), by the Gaussian tail."""
    one = n * 0.5 * math.erfc(math.sqrt(c * math.log(n) / 2))
    return one * n / (c * math.log(n)) if all_patterns else one


def _least_correlated(images: Tensor, labels: Tensor) -> tuple[Tensor, list[int]]:
    """Three images of different digits whose largest overlap in absolute value is least."""
    pool = torch.cat([(labels == k).nonzero()[:12, 0] for k in range(10)])
    gram = (images[pool] @ images[pool].T).abs()
    gram[labels[pool][:, None] == labels[pool]] = math.inf
    worst = torch.maximum(torch.maximum(gram[:, :, None], gram[:, None, :]), gram[None])
    best = int(worst.argmin())
    size = len(pool)
    chosen = pool[torch.tensor([best // size**2, best // size % size, best % size])]
    return images[chosen], labels[chosen].tolist()


def _exact_recall(state: Tensor, target: Tensor) -> Interval:
    hits = (state == target).all(-1)
    return clopper_pearson(int(hits.sum()), hits.numel(), 0.99)


def _mean_square_overlap(patterns: Tensor) -> float:
    s, n = patterns.shape
    pairs = [float((a @ b / n) ** 2) for a, b in itertools.combinations(patterns, 2)]
    return sum(pairs) / (s * (s - 1) / 2)


def _pictures(axes: Any, rows: tuple[tuple[str, Tensor], ...]) -> None:
    for line, (name, images) in zip(axes, rows, strict=True):
        for panel, image in zip(line, images, strict=True):
            panel.imshow(image.reshape(8, 8), cmap="gray_r", vmin=-1, vmax=1)
            panel.set(xticks=[], yticks=[])
            panel.grid(False)
        line[0].set_ylabel(name, rotation=0, ha="right", va="center")


def _patterns_at(
    n: int, degree: int, level: float, trials: int, generator: torch.Generator
) -> float:
    """Number of stored patterns at which one update flips that share of the bits, measured."""
    guess = _predicted_patterns_at(n, degree, level)
    counts = sorted({max(2, round(guess * f)) for f in (0.5, 0.7, 1.0, 1.4, 2.0)})
    sweep = dense_capacity_sweep(n, counts, Power(degree), trials, probes=32, random=generator)
    errors = sweep.bit_error.mean(1).tolist()
    for k in range(len(counts) - 1):
        if errors[k] <= level <= errors[k + 1] and errors[k] < errors[k + 1]:
            share = (level - errors[k]) / (errors[k + 1] - errors[k])
            return counts[k] + share * (counts[k + 1] - counts[k])
    return math.nan


def _predicted_patterns_at(n: int, degree: int, level: float) -> int:
    """The same, by the Gaussian formula (bisection)."""
    low, high = 2, 4
    while dense_bit_error(n, high, Power(degree)) < level:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if dense_bit_error(n, middle, Power(degree)) < level:
            low = middle
        else:
            high = middle
    return high
