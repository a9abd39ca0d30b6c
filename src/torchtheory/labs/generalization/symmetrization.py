"""From the worst gap of a class to its complexity, step by step, and the bounds that follow."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchtheory.generalization.complexity.rademacher import (
    empirical_uniform_deviation,
    exact_rademacher,
    finite_class,
    sequence_deviations,
    uniform_deviation,
)
from torchtheory.generalization.complexity.symmetrization import (
    SymmetrizationChain,
    expected_rademacher,
    expected_worst_gap,
    symmetrization_chain,
)
from torchtheory.generalization.learning.finite_distributions import FiniteDistribution
from torchtheory.generalization.vc.hypothesis_sets import all_labelings
from torchtheory.labs.engine import COLORS, Run, hoeffding_radius, lab, quantile_interval


@lab(
    "symmetrization",
    room="generalization",
    covers=["M-43", "M-44", "M-50", "A-40", "B-01", "B-02", "B-12"],
    title="The worst gap of a class is at most twice its Rademacher complexity",
    errata=["symmetrization-without-the-mean"],
    full={"laws": 20, "trials": 5000, "samples": 1000, "atoms": 500},
    least={"laws": 2, "trials": 200, "samples": 50, "atoms": 10},
)
def symmetrization_proof(run: Run, laws: int = 4, trials: int = 600, samples: int = 200, atoms: int = 100) -> None:
    """Every step of the proof is a finite sum on a finite distribution, so each is checked exactly.

    The gap between risk and empirical risk averages to zero for a function fixed beforehand, and
    its supremum over a class does not. A second sample, random signs and a split into two sums lead
    from there to twice the Rademacher complexity. With McDiarmid's inequality this becomes a
    bound that holds with probability 1 - δ: the exact probability of failure on small samples, and
    a simulation on larger ones with the class of all functions on `atoms` points. Look at the table for how much
    each step of the proof gives away.

    Args:
        laws: random laws for which the gaps are exact.
        trials: samples in which the bounds may fail.
        samples: size of each.
    """
    gaps(run, laws)
    chains = chain(run, laws)
    both_sides(run, laws)
    failures(run, laws)
    bounds = empirical_bounds(run, trials, samples, atoms)
    run.table(
        "chain",
        ["m", "worst gap", "with a ghost sample", "with signs", "2 R"],
        [(m, c.worst_gap, c.ghost_gap, c.signed_ghost_gap, c.twice_rademacher) for m, c in chains[0].items()],
        caption="The four quantities of the proof on one distribution with four atoms",
    )
    run.figure(
        "coverage",
        lambda axes: plot_chain(axes, chains[0], bounds),
        caption="Left: the steps of the proof. Right: gaps and bounds of "
        f"{trials} samples of {samples} from {atoms} atoms, all 0-1 functions; no gap passes its "
        "bound, which is far away.",
        grid=(1, 2),
    )


def random_law(run: Run, atoms: int) -> FiniteDistribution:
    mass = run.rand(atoms) + 0.1
    zeros = torch.zeros(atoms, dtype=torch.float64)
    return FiniteDistribution.of(torch.arange(atoms).double(), zeros, mass / mass.sum())


def gaps(run: Run, laws: int) -> None:
    """The gap of one function, of a selected one, and of the worst."""
    mean, selected, worst, mean_selected, alone, remembered = [], [], [], [], [], []
    for _ in range(laws):
        law, values = random_law(run, 4), run.rand(8, 4)
        drawn, chance = law.all_samples(5)
        empirical = values[:, drawn].mean(-1)
        gap = (values @ law.mass)[:, None] - empirical
        mean.append(gap @ chance)
        chosen = gap.gather(0, empirical.argmin(0, keepdim=True))[0]
        selected.append(chosen)
        worst.append(gap.amax(0))
        mean_selected.append(chosen @ chance)
        # one atom five times: a function outside the class has loss 0 there and 1 elsewhere
        same = (drawn == drawn[:, :1]).all(1)
        alone.append(worst[-1][same])
        remembered.append(1 - law.mass[drawn[same, 0]])
    says = run.states("B-01", r"f \text{ fixed beforehand}:\ \mathbb E_S(R[f]-R_S[f])=0")
    says.equal(torch.cat(mean), within=1e-13)
    says.fails("f with the least empirical risk", torch.stack(mean_selected))
    says = run.states("B-01", r"R[f_S]-R_S[f_S]\le\sup_f(R[f]-R_S[f])")
    says.at_most(
        torch.cat(selected), torch.cat(worst), where="the function with the least empirical risk, on all samples of 5"
    )
    says.fails("a function outside the class, which remembers", torch.cat(remembered), promised=torch.cat(alone))
    law, values = FiniteDistribution.of([0.0, 1.0, 2.0, 3.0], [0.0] * 4), run.rand(8, 4)
    whole = law.empirical_masses(torch.arange(4)[None])[0]
    part = law.empirical_masses(torch.arange(3)[None])[0]
    says = run.states("B-01", r"S \text{ the whole population}:\ R[f]=R_S[f]")
    says.equal(values @ whole, values @ law.mass, 1e-15)
    says.fails("one of the four left out", values @ part)


def chain(run: Run, laws: int) -> list[dict[int, SymmetrizationChain]]:
    """The four numbers of the proof."""
    found = []
    for _ in range(laws):
        law, values = random_law(run, 4), run.rand(6, 4)
        found.append({m: symmetrization_chain(law, values, m) for m in (1, 2, 3)})
    every = [c for each in found for c in each.values()]
    says = run.states(
        "M-44",
        r"\mathbb E_S\sup_f(\mathbb Ef-\hat{\mathbb E}_Sf)\le"
        r"\mathbb E_{S,S'}\sup_f(\hat{\mathbb E}_{S'}f-\hat{\mathbb E}_Sf)",
    )
    says.at_most([c.worst_gap for c in every], [c.ghost_gap for c in every], 1e-14)
    says.fails("the ghost sample is the sample itself", [c.worst_gap for c in every], promised=0.0)
    law, other, values = random_law(run, 4), random_law(run, 4), run.rand(6, 4)
    difference = values[:, :, None] - values[:, None, :]
    pair = torch.outer(other.mass, law.mass)
    one_way, back = difference.amax(0), (-difference).amax(0)
    unequal = float((pair * one_way).sum())
    says = run.states("M-44", r"\ldots=\mathbb E_{S,S',\sigma}\sup_f\tfrac1m\sum_i\sigma_i(f(z_i')-f(z_i))")
    says.equal([c.signed_ghost_gap for c in every], [c.ghost_gap for c in every], 1e-13)
    says.fails("the ghost sample follows another law", float((pair * (one_way + back)).sum() / 2), promised=unequal)
    says = run.states(["M-44", "B-02"], r"\ldots\le2R_m(\mathcal F)")
    says.at_most([c.signed_ghost_gap for c in every], [c.twice_rademacher for c in every], 1e-14)
    says.fails(
        "one of the two sums forgotten",
        [c.signed_ghost_gap for c in every],
        promised=[c.twice_rademacher / 2 for c in every],
    )
    two = [each[2] for each in found]
    run.refutes(
        "symmetrization-without-the-mean",
        r"\mathbb E_{S,S'}\sup_f(\hat{\mathbb E}_{S'}f-\hat{\mathbb E}_Sf)="
        r"\mathbb E\sup_f\sum_i\sigma_i(f(z_i')-f(z_i)),\quad m=2",
    ).equal(
        [c.ghost_gap for c in two],
        [2 * c.signed_ghost_gap for c in two],
        1e-9,
        where="the sum without 1/m is m times too large",
    )
    return found


def both_sides(run: Run, laws: int, m: int = 10) -> None:
    """Upper and lower bound of the two-sided gap, with absolute values."""
    gap, upper, lower, repeated, often, shifted = [], [], [], [], [], []
    for k in range(laws):
        law = FiniteDistribution.of([0.0, 1.0, 2.0], [0.0] * 3) if k == 0 else random_law(run, 3)
        values = all_labelings(3) / 2 + 0.5 if k == 0 else run.rand(1 + k, 3)
        complexity = expected_rademacher(law, values, m, absolute=True)
        gap.append(expected_worst_gap(law, values, m, absolute=True))
        upper.append(2 * complexity)
        lower.append((complexity - 1 / math.sqrt(m)) / 2)
        repeated.append(expected_worst_gap(law, values, 1, absolute=True))
        # Massart's lemma, for the functions and their negatives: 2 R <= sqrt(8 ln(2 |G|) / times)
        times = 1 + math.floor(8 * math.log(2 * len(values)) / repeated[-1] ** 2)
        often.append(math.sqrt(8 * math.log(2 * len(values)) / times))
        far = expected_rademacher(law, values + 9, m, absolute=True)
        shifted.append((far - 1 / math.sqrt(m)) / 2)
    coin, sign = FiniteDistribution.of([0.0, 1.0], [0.0] * 2), torch.tensor([[-1.0, 1.0]], dtype=torch.float64)
    says = run.states("A-40", r"\mathbb E\sup_g|R-R_S|\le2\,\mathfrak R_m(\mathcal G)")
    says.at_most(
        [*gap, expected_worst_gap(coin, sign, m, absolute=True)],
        [*upper, 2 * expected_rademacher(coin, sign, m, absolute=True)],
        where="exact; the first class has all 8 functions on 3 atoms, the last one function, a fair sign",
    )
    says.fails(
        "one draw written m times instead of m independent ones, where m is so large that "
        "Massart's lemma bounds the right side",
        repeated,
        promised=often,
    )
    says = run.states(
        "A-40", r"g\in[0,1]:\ \mathbb E\sup_g|R-R_S|\ge\tfrac12\bigl(\mathfrak R_m(\mathcal G)-\tfrac1{\sqrt m}\bigr)"
    )
    many, size = 100, 1000
    law = FiniteDistribution.of(torch.arange(many).double(), torch.zeros(many, dtype=torch.float64))
    masses = law.empirical_masses(law.draw(200, size, generator=run.generator))
    # with absolute values the sign of the whole sum adds its own E|S_m| / (2 m)
    walk = all_functions_complexity(torch.tensor([float(size)]))
    complexity = float(all_functions_complexity((masses * size).round()).sum(1).mean() + walk.sum())
    says.at_least(
        [*gap, float((law.mass - masses).clamp_min(0).sum(1).mean())],
        [*lower, (complexity - 1 / math.sqrt(size)) / 2],
        where=f"exact, and all functions on {many} atoms from 200 samples of {size}",
    )
    says.fails("functions with values in [9, 10]", gap, promised=shifted)
    every = all_labelings(6)
    says = run.states("A-40", r"\text{all sign patterns on } S:\ \mathfrak R=1 \text{ with absolute values as well}")
    says.equal(exact_rademacher(finite_class(every, absolute=True), 6), 1)
    says.fails(
        "without the labelings whose first two signs agree",
        exact_rademacher(finite_class(every[every[:, 0] != every[:, 1]], absolute=True), 6),
    )


def exact_quantile(values: Tensor, chance: Tensor, level: float) -> float:
    """The least number that the values do not exceed with probability `level`."""
    order = values.argsort()
    below = chance[order].cumsum(0)
    return float(values[order][int((below < level - 1e-12).sum())])


def failures(run: Run, laws: int, m: int = 6) -> None:
    """The exact quantile of the worst gap against the bound."""
    deltas = (0.5, 0.2, 0.05)
    coin = FiniteDistribution.of([0.0, 1.0], [0.0] * 2), torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    every = all_labelings(5) / 2 + 0.5
    reached, bounds, alone = [], [], []
    for law, values in [coin, *((random_law(run, 5), every) for _ in range(laws))]:
        complexity = expected_rademacher(law, values, m)
        drawn, chance = law.all_samples(m)
        worst = ((values @ law.mass)[:, None] - values[:, drawn].mean(-1)).amax(0)
        reached += [exact_quantile(worst, chance, 1 - delta) for delta in deltas]
        bounds += [uniform_deviation(complexity, m, delta) for delta in deltas]
        alone += [uniform_deviation(0.0, m, deltas[0])]
    says = run.states(
        ["M-43", "B-02"],
        r"\Pr\Bigl[\sup_f(\mathbb Ef-\hat{\mathbb E}_Sf)\le2R_m(\mathcal F)+\sqrt{\ln(1/\delta)/(2m)}\Bigr]\ge1-\delta",
    )
    says.at_most(
        reached,
        bounds,
        where="exact quantiles at 1 - δ: one fair coin, and all 32 functions on 5 atoms; the lecture's term without "
        "the 2 is larger",
    )
    says.fails("charged as if the class had one function, δ = 1/2", reached[3::3], promised=alone[1:])
    sizes = torch.tensor([10, 100, 1000])
    says = run.states(["M-43", "B-12"], r"|\mathcal F|=1:\ \text{the bound is Hoeffding's, } \sqrt{\ln(1/\delta)/(2m)}")
    says.equal(
        [uniform_deviation(0.0, int(n), 0.05) for n in sizes],
        [hoeffding_radius(int(n), 2 * 0.05) for n in sizes],
        1e-14,
    )
    says.fails("the printed term, without the 2 under the root", (math.log(1 / 0.05) / sizes.double()).sqrt())


def all_functions_complexity(counts: Tensor) -> Tensor:
    r"""Complexity of all 0-1 functions on a sample with these counts of atoms, `[..., a]`.

    Each atom adds $\mathbb E\max(0,S_n)/m=\mathbb E|S_n|/(2m)$ with the random walk
    $S_n$ of its count, and $\mathbb E|S_n|=n2^{1-n}\binom{n-1}{\lfloor(n-1)/2\rfloor}$.
    """
    most = int(counts.max())
    walks = torch.tensor(
        [0.0] + [n * math.comb(n - 1, (n - 1) // 2) / 2 ** (n - 1) for n in range(1, most + 1)],
        dtype=torch.float64,
    )
    return walks[counts.long()] / (2 * counts.sum(-1, keepdim=True))


def empirical_bounds(
    run: Run, trials: int, samples: int, atoms: int, delta: float = 0.5
) -> tuple[Tensor, Tensor, float]:
    """Bounds from the complexity of the very sample, for one class and for a sequence."""
    law = FiniteDistribution.of(torch.arange(atoms).double(), torch.zeros(atoms, dtype=torch.float64))
    drawn = law.draw(trials, samples, generator=run.generator)
    empirical = law.empirical_masses(drawn)
    excess = (law.mass - empirical).clamp_min(0)
    parts = all_functions_complexity((empirical * samples).round())
    worst, complexity = excess.sum(1), parts.sum(1)
    bounds = torch.tensor(
        [empirical_uniform_deviation(float(c), samples, delta, two_sided=True) for c in complexity],
        dtype=torch.float64,
    )
    alone = empirical_uniform_deviation(0.0, samples, delta, two_sided=True)
    says = run.states(
        "M-50",
        r"\Pr\bigl[\sup_f|\mathbb Ef-\hat{\mathbb E}_Sf|\le2\hat R_S(\mathcal F)+"
        r"3\sqrt{\ln(4/\delta)/(2m)}\bigr]\ge1-\delta",
    )
    says.at_most(
        quantile_interval(worst / bounds, 1 - delta, 0.99),
        1.0,
        where="gap over bound, quantile at 1 - δ; all 0-1 functions on the atoms, whose complexity is known",
    )
    says.fails("as if the class had one function", quantile_interval(worst / alone, 1 - delta, 0.99))
    grid = torch.linspace(0.01, 0.99, 99, dtype=torch.float64)
    says = run.states(
        "M-50", r"3\sqrt{\ln(4/\delta)/(2m)}\le3\sqrt{\ln(2/\delta)/m}:\ \text{the printed bound follows}"
    )
    says.at_most(
        [empirical_uniform_deviation(0.0, samples, float(d), two_sided=True) for d in grid],
        3 * ((2 / grid).log() / samples).sqrt(),
        1e-14,
    )
    says.fails(
        "values ±1, an interval of length 2",
        [empirical_uniform_deviation(0.0, samples, float(d), two_sided=True, width=2.0) for d in grid],
    )
    sizes = [atoms, atoms // 3, atoms // 10]
    some, none = torch.zeros(2, trials, dtype=torch.float64)
    for t in range(trials):
        radii = [float(parts[t, :k].sum()) for k in sizes]
        limits = sequence_deviations(radii, samples, delta)
        gap = [float(excess[t, :k].sum()) for k in sizes]
        some[t] = max(g / b for g, b in zip(gap, limits, strict=True))
        charged_as_one = sequence_deviations([0.0] * len(sizes), samples, delta)
        none[t] = max(g / b for g, b in zip(gap, charged_as_one, strict=True))
    says = run.states(
        "B-12",
        r"\Pr\bigl[\forall j:\ \sup_{f\in\mathcal F^{(j)}}(R-R_{\mathrm{val}})\le"
        r"2\hat R(\mathcal F^{(j)})+3\sqrt{\ln(2^{j+1}/\delta)/(2m)}\bigr]\ge1-\delta",
    )
    says.at_most(
        quantile_interval(some, 1 - delta, 0.99),
        1.0,
        where="the largest gap over its bound, quantile at 1 - δ; three classes fixed beforehand",
    )
    says.fails("each class charged as if it had one function", quantile_interval(none, 1 - delta, 0.99))
    weights = [6 / (math.pi * j) ** 2 for j in range(1, 6)]
    sequence = sequence_deviations([0.0] * 5, samples, 0.1, weights=weights, empirical=False)
    single = [uniform_deviation(0.0, samples, 0.1)] * 5
    says = run.states("B-12", r"2m\,(\text{bound}_j-2R)^2=\ln\tfrac1\delta+\ln\tfrac1{w_j},\quad w_j=6/(\pi j)^2")
    says.equal([2 * samples * b**2 for b in sequence], [math.log(1 / 0.1) + math.log(1 / w) for w in weights], 1e-12)
    says.fails("every class at δ itself", [2 * samples * b**2 for b in single])
    return worst, bounds, alone


def plot_chain(axes: Any, chains: dict[int, SymmetrizationChain], bounds: tuple[Tensor, Tensor, float]) -> None:
    left, right = axes[0]
    for k, (name, label) in enumerate(
        {
            "worst_gap": "worst gap",
            "ghost_gap": "with a ghost sample (= with signs)",
            "twice_rademacher": r"$2R_m$",
        }.items()
    ):
        heights = [getattr(c, name) for c in chains.values()]
        left.bar([m + 0.25 * (k - 1) for m in chains], heights, 0.23, label=label)
    left.set(xlabel="samples m", ylabel="expectation", xticks=list(chains))
    left.set_ylim(0, 1.45 * max(c.twice_rademacher for c in chains.values()))
    left.legend(loc="upper right")
    worst, limit, alone = bounds
    right.hist(worst, bins=30, color=COLORS[0], label="largest gap")
    right.hist(limit, bins=30, color=COLORS[1], label="bound")
    right.axvline(alone, color="0.3", linestyle="--", label="bound of one function")
    right.set(xlabel="gap between risk and empirical risk", ylabel="samples")
    right.legend()
