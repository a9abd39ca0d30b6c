"""Three groups of terms between the risk of what was learned and that of the best of the class."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchtheory.generalization.learning.bayes import bayes_classifier
from torchtheory.generalization.learning.finite_distributions import FiniteDistribution
from torchtheory.generalization.vc.hypothesis_sets import all_labelings, labelings_with_changes
from torchtheory.labs.engine import COLORS, Interval, Run, lab, mean_interval
from torchtheory.training.losses.surrogates import zero_one_loss


@lab(
    "risk-terms",
    room="generalization",
    covers=["B-29"],
    errata=["second-risk-group-sign"],
    title="The excess risk is at most the gap of the learned function, in the mean",
    full={"sizes": (10, 30, 100, 300, 1000, 3000, 10000), "trials": 1000, "largest": 6},
    least={"largest": 2, "trials": 20, "sizes": 5},
    items={"sizes": 3},
)
def risk_terms(
    run: Run, largest: int = 4, sizes: tuple[int, ...] = (10, 30, 100, 300, 1000), trials: int = 200
) -> None:
    """The excess risk of an empirical risk minimizer is the sum of three groups of terms.

    Its own gap between risk and empirical risk; how much lower its empirical risk is than that of
    the best function of the class, which is never positive; and the gap of that fixed function,
    whose mean is 0. All samples of a small population are listed, so every mean is exact. The
    second group has a sign only if the function compared with belongs to the class: with the best
    of *all* functions, as the text introduces it, the conclusion fails. Look at how the three
    groups change with the sample, and at the risk that tends to the best of the class.

    Args:
        largest: sample size up to which all samples are listed.
        sizes: of the samples that are drawn.
        trials: samples of each of these sizes.
    """
    law = population()
    functions = labelings_with_changes(len(law.points), 1)
    tables = {m: terms_of(law, functions, m) for m in range(1, largest + 1)}
    three_groups(run, law, functions, tables)
    chain(run, law, functions, tables)
    regularized(run, law, functions, largest)
    curve = consistency(run, law, functions, sorted(sizes), trials)
    run.figure(
        "risk-terms",
        lambda axes: plot(axes, tables, curve),
        caption="Left, exact means over all samples: the three groups, the excess risk they add "
        "up to, and the uniform gap that bounds it. Right, the excess risk of empirical risk "
        "minimization with more samples (means, 99 % intervals; 0 is drawn at the bottom) and the "
        "bound.",
        grid=(1, 2),
    )


def population() -> FiniteDistribution:
    """Four points; the best labeling changes sign twice, so one change cannot be it."""
    chance = torch.tensor([0.9, 0.2, 0.3, 0.8], dtype=torch.float64)  # of the label 1
    weight = torch.tensor([0.3, 0.3, 0.2, 0.2], dtype=torch.float64)
    joint = torch.stack([1 - chance, chance], 1) * weight[:, None]
    signs = torch.tensor([-1.0, 1.0]).double()
    return FiniteDistribution.from_joint(torch.arange(4).double(), signs, joint)


def certain() -> FiniteDistribution:
    """The same points with labels that are certain and change sign twice."""
    joint = torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64) / 4
    return FiniteDistribution.from_joint(torch.arange(4).double(), torch.tensor([-1.0, 1.0]).double(), joint)


@dataclass(frozen=True)
class Terms:
    """For every sample `[s]` with its probability: the groups and what they add up to."""

    chance: Tensor
    excess: Tensor
    first: Tensor
    second: Tensor
    third: Tensor
    uniform: Tensor

    def mean(self, values: Tensor) -> float:
        return float(self.chance @ values)


def terms_of(law: FiniteDistribution, functions: Tensor, m: int, reference: Tensor | None = None) -> Terms:
    """The groups with the best function of the class, or with another one `[k]`."""
    samples, chance = law.all_samples(m)
    masses = law.empirical_masses(samples)
    losses = law.losses(functions, zero_one_loss)  # [h, atoms]
    risks, empirical = losses @ law.mass, masses @ losses.T
    learned = empirical.argmin(1)
    if reference is None:
        reference = functions[int(risks.argmin())]
    other = law.losses(reference, zero_one_loss)
    differences = law.mass - masses  # as measures on the atoms
    return Terms(
        chance,
        risks[learned] - other @ law.mass,
        (losses[learned] * differences).sum(1),
        ((losses[learned] - other) * masses).sum(1),
        -(differences @ other),
        (differences @ losses.T).amax(1),
    )


def three_groups(run: Run, law: FiniteDistribution, functions: Tensor, tables: dict[int, Terms]) -> None:
    every = list(tables.values())

    def joined(values: list[Tensor]) -> Tensor:
        return torch.cat(values)

    says = run.states("B-29", r"R(f_S)-R(\hat f)=[R(f_S)-R_S(f_S)]+[R_S(f_S)-R_S(\hat f)]+[R_S(\hat f)-R(\hat f)]")
    says.equal(
        joined([t.first + t.second + t.third for t in every]),
        joined([t.excess for t in every]),
        1e-12,
        where=f"all samples of 1 to {max(tables)} draws; the groups by signed measures",
    )
    says.fails("without the third group, on each sample", joined([t.first + t.second for t in every]))
    best = bayes_classifier(law)
    constants = labelings_with_changes(len(law.points), 0)
    few = [terms_of(law, constants, m, best.values) for m in tables]
    sure = certain()  # its best function is never wrong, so that no sample speaks for a constant
    outside = terms_of(sure, constants, max(tables), bayes_classifier(sure).values)
    says = run.states("B-29", r"R_S(f_S)\le R_S(\hat f) \text{ on every sample, if } \hat f\in\mathcal F")
    says.at_most(joined([t.second for t in every]), 0, 1e-15)
    says.fails(
        "f̂ is the best of all functions and not in the class of the two constants", outside.second[outside.chance > 0]
    )
    run.refutes(
        "second-risk-group-sign", r"\hat f \text{ the best of all functions: } \mathbb E_S[R_S(f_S)-R_S(\hat f)]\le0"
    ).at_most(
        max(t.mean(t.second) for t in few),
        0,
        where="the class has the two constants only; the best function changes sign twice",
    )
    says = run.states("B-29", r"\mathbb E_S[R_S(\hat f)-R(\hat f)]=0")
    says.equal([t.mean(t.third) for t in every], within=1e-12)
    says.fails("the function learned on the sample instead of a fixed one", [-t.mean(t.first) for t in every])
    run.table(
        "groups",
        ["sample size", "excess risk", "first group", "second", "third", "uniform gap"],
        [(m, *(t.mean(v) for v in (t.excess, t.first, t.second, t.third, t.uniform))) for m, t in tables.items()],
        caption="Exact means over all samples",
    )


def chain(run: Run, law: FiniteDistribution, functions: Tensor, tables: dict[int, Terms]) -> None:
    every = list(tables.values())
    # two functions only, so that the best of all is far away, and is not among them
    constants = labelings_with_changes(len(law.points), 0)
    best = bayes_classifier(law)
    poor = [terms_of(law, constants, m, best.values) for m in tables]
    says = run.states("B-29", r"\mathbb E[R(f_S)-R(\hat f)]\le\mathbb E[R(f_S)-R_S(f_S)]")
    says.at_most([t.mean(t.excess) for t in every], [t.mean(t.first) for t in every], 1e-12)
    says.fails(
        "f̂ the best of all functions, the class the two constants",
        [t.mean(t.excess) for t in poor],
        promised=[t.mean(t.first) for t in poor],
    )
    fewer = [terms_of(law, constants, m) for m in tables]
    says = run.states("B-29", r"\mathbb E[R(f_S)-R_S(f_S)]\le\mathbb E\sup_{\mathcal F}(R-R_S)")
    says.at_most([t.mean(t.first) for t in every], [t.mean(t.uniform) for t in every], 1e-12)
    says.fails(
        "the supremum over the two constants, and $f_S$ from all functions",
        [t.mean(t.first) for t in (terms_of(law, all_labelings(4), m) for m in tables)],
        promised=[t.mean(t.uniform) for t in fewer],
    )


def regularized(run: Run, law: FiniteDistribution, functions: Tensor, m: int) -> None:
    """Θ(f) from Hoeffding and a union bound in which simple functions get more."""
    changes = (functions.diff(dim=1) != 0).sum(1)
    weight = torch.where(changes == 0, 0.9 / int((changes == 0).sum()), 0.1 / int((changes > 0).sum())).double()
    # fair labels, and the Θ of a constant just below 1/2: a sample of equal labels deceives
    law = law.with_mass(torch.full_like(law.mass, 1 / len(law.mass)))
    delta = 1.02 * math.exp(-m / 2) / float(weight.max())
    theta = torch.sqrt(torch.log(1 / (weight * delta)) / (2 * m))
    samples, chance = law.all_samples(m)
    masses = law.empirical_masses(samples)
    losses = law.losses(functions, zero_one_loss)
    risks, empirical = losses @ law.mass, masses @ losses.T

    def misses(penalty: Tensor) -> float:
        """Probability that the chosen function's risk exceeds what was minimized."""
        total = empirical + penalty
        chosen = total.argmin(1)
        over = risks[chosen] > total.gather(1, chosen[:, None])[:, 0] + 1e-12
        return float(chance @ over.double())

    says = run.states(
        "B-29",
        r"f=\arg\min R_S+\Theta \text{ with } \Theta\ge\sup(R-R_S) \text{ up to probability } "
        r"\delta:\ \Pr[R(f)>R_S(f)+\Theta(f)]\le\delta",
    )
    says.at_most(
        misses(theta),
        delta,
        where=f"exact, over all samples of {m} with fair labels; Hoeffding's inequality and a union bound",
    )
    says.fails("no Θ: plain empirical risk minimization", misses(0 * theta))


def consistency(
    run: Run, law: FiniteDistribution, functions: Tensor, sizes: list[int], trials: int
) -> tuple[list[int], list[tuple[float, float, float]], list[float]]:
    losses = law.losses(functions, zero_one_loss)
    risks = losses @ law.mass
    least = risks.min()
    rows, bounds = [], []
    for m in sizes:
        drawn = law.draw(trials, m, generator=run.generator)
        excess = risks[(law.empirical_masses(drawn) @ losses.T).argmin(1)] - least
        rows.append(mean_interval(excess))
        bounds.append(math.sqrt(math.log(len(functions)) / (2 * m)))
    for m in sizes:
        hard = torch.full((200,), min(0.5 + 1 / math.sqrt(m), 1.0), dtype=torch.float64)
        hard[-1] = 0.5
        plain = torch.where(torch.arange(200) < 100, 0.95, 0.05).double()
        bound = math.sqrt(math.log(200) / (2 * m))
        says = run.states("B-29", rf"\mathbb E[R(f_S)-R(\hat f)]\le\sqrt{{\log|\mathcal F|/(2m)}},\ m={m}")
        says.at_most(
            excess_of_independent(run, hard, m, 10 * trials),
            bound,
            where="200 functions with independent errors, one of them better by what a sample can hardly tell",
        )
        says.fails(
            "one draw repeated instead of independent ones (half of the functions have risk 0.05, half 0.95)",
            excess_of_independent(run, plain, 1, 10 * trials),
        )
    return sizes, [(i.estimate, i.low, i.high) for i in rows], bounds


def excess_of_independent(run: Run, risks: Tensor, m: int, trials: int) -> Interval:
    """Mean excess risk of the minimizer on m draws, for functions whose errors are independent."""
    draws = torch.full((trials, len(risks)), float(m), dtype=torch.float64)
    errors = torch.binomial(draws, risks.expand(trials, -1), generator=run.generator)
    return mean_interval(risks[errors.argmin(1)] - risks.min())


def plot(
    axes: Any,
    tables: dict[int, Terms],
    curve: tuple[list[int], list[tuple[float, float, float]], list[float]],
) -> None:
    sizes = list(tables)
    names = {
        "first": "gap of what was learned",
        "second": "lower empirical risk",
        "third": "gap of the best",
        "excess": "excess risk, their sum",
        "uniform": "uniform gap",
    }
    axis = axes[0, 0]
    for i, (name, label) in enumerate(names.items()):
        means = [t.mean(getattr(t, name)) for t in tables.values()]
        style = "k--" if name == "uniform" else "o-"
        axis.plot(sizes, means, style, label=label, **({} if style == "k--" else {"color": COLORS[i]}))
    axis.set(xlabel="sample size", ylabel="mean", xticks=sizes, ylim=(None, 0.95))
    axis.legend(ncols=2, loc="upper right")
    axis = axes[0, 1]
    many, rows, bounds = curve
    means = [max(r[0], 1e-5) for r in rows]
    low = [max(0.0, a - max(r[1], 1e-5)) for a, r in zip(means, rows, strict=True)]
    high = [max(0.0, r[2] - a) for a, r in zip(means, rows, strict=True)]
    axis.errorbar(many, means, yerr=[low, high], fmt="o-", color=COLORS[3], label="excess risk")
    axis.loglog(many, bounds, "k--", label=r"$\sqrt{\log|\mathcal{F}|/(2m)}$")
    axis.set(xlabel="sample size m")
    axis.legend(loc="lower left")
