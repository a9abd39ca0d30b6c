"""One function, finitely many, countably many: what a sample says about all of them at once."""

from __future__ import annotations

import math
from typing import Any

import torch
from scipy import stats
from torch import Tensor

from torchtheory.generalization.concentration import (
    finite_class_radius,
    mcdiarmid_radius,
    weighted_class_radius,
)
from torchtheory.generalization.learning.finite_distributions import FiniteDistribution
from torchtheory.generalization.vc.hypothesis_sets import all_labelings
from torchtheory.labs.engine import COLORS, Interval, Run, hoeffding_radius, lab, quantile_interval
from torchtheory.training.losses.surrogates import zero_one_loss

DELTA = 0.05
SIGNS = torch.tensor([-1.0, 1.0], dtype=torch.float64)


@lab(
    "finite-class-bounds",
    room="generalization",
    covers=["M-28", "M-29", "M-30", "M-31", "M-32", "A-34", "A-39"],
    title="Hoeffding for one function, a logarithm more for all; none for the one the data chose",
    errata=["loss-of-being-right", "finite-class-bound-without-confidence"],
    full={"functions": 1000, "trials": 20_000},
    # the best of fewer functions rarely leaves Hoeffding's interval, and with fewer samples the union bound
    # of a thousand functions exceeds 1/2, as far as a risk can be from a sample's
    least={"functions": 100, "sample": 25, "trials": 200},
)
def finite_class_bounds(run: Run, functions: int = 1000, sample: int = 50, trials: int = 1000) -> None:
    """Random classifiers on labels that are pure noise: every one of them has risk one half.

    For a classifier fixed beforehand Hoeffding's interval covers the risk. For the one with the
    fewest errors on the sample it almost never does, and nothing is wrong with the inequality: the
    samples that are bad for one function differ from function to function, and the minimizer
    finds its own. The union bound covers it. Then the excess risk of the minimizer, classes with
    weights, and the concentration of the worst gap. All risks are exact sums. Look at the two
    histograms.

    Args:
        functions: in the class, of which the data choose one.
        sample: size of a sample.
        trials: samples in which the bounds may fail.
    """
    definitions(run)
    one_function(run, trials)
    noise(run, functions, sample, trials)
    minimizer(run, sample, trials)
    weights(run, sample, trials)


def reach(values: Tensor) -> Interval:
    """What the values stay below with probability 1 - δ: their quantile."""
    return quantile_interval(values, 1 - DELTA, 0.999)


def random_law(run: Run, points: int) -> FiniteDistribution:
    joint = -torch.log(1 - run.rand(points, 2))
    return FiniteDistribution.from_joint(torch.arange(points).double(), SIGNS, joint / joint.sum())


def definitions(run: Run) -> None:
    """The mean of the empirical risk, over all samples; and which indicator a loss is."""
    law = random_law(run, 3)
    every = all_labelings(3)
    losses = law.losses(every, zero_one_loss)
    samples, chance = law.all_samples(4)
    empirical = law.empirical_masses(samples) @ losses.T
    least = empirical.min(1)
    risks = losses @ law.mass
    says = run.states("M-28", r"\mathbb E_S\,R_S(f)=R(f)\ \text{ for fixed } f,\ \text{ over all samples of 4}")
    says.equal(chance @ empirical, risks, 1e-12)
    says.fails("f is the minimizer on S itself", chance @ least.values, promised=chance @ risks[least.indices])
    labels = run.signs(50)
    run.refutes(
        "loss-of-being-right", r"R_S(f)=\tfrac1n\sum_i1[f(x_i)=y_i]=0\ \text{ for a classifier without errors}"
    ).equal((labels == labels).double().mean())


def one_function(run: Run, trials: int) -> None:
    """Hoeffding's radius for one function, and its value."""
    run.states(
        ["M-29", "M-30", "A-34"],
        r"\sqrt{\tfrac{\log(2/\delta)}{2n}}=0.042947,\ \sqrt{\tfrac{\log N+\log(2/\delta)}{2n}}"
        r"=0.064397\ (N=100,n=1000),\ 0.02302\ (N=1000,n=10^4)",
    ).equal(
        [
            hoeffding_radius(1000, DELTA),
            finite_class_radius(100, 1000, DELTA),
            finite_class_radius(1000, 10_000, DELTA),
        ],
        [0.042947, 0.064397, 0.02302],
        5e-6,
    )
    n = 100
    radius = hoeffding_radius(n, DELTA)
    for p in (0.1, 0.5):
        values = (run.rand(trials, n) < p).double()
        few = values[:, :10].repeat(1, n // 10)
        says = run.states("M-29", rf"\Pr\bigl(|R_S-R|\le\sqrt{{\log(2/\delta)/(2n)}}\bigr)\ge1-\delta,\ R={p}")
        says.at_most(reach((values.mean(1) - p).abs()), radius, where=f"quantile at 1 - δ, n = {n}")
        if p == 0.5:
            says.fails("ten draws, each counted ten times", reach((few.mean(1) - p).abs()))


def noise(run: Run, functions: int, sample: int, trials: int) -> None:
    """Labels without any law: the best of many functions looks good on the sample."""
    points = 256
    law = FiniteDistribution.from_joint(
        torch.arange(points).double(),
        SIGNS,
        torch.full((points, 2), 0.5 / points, dtype=torch.float64),
    )
    losses = law.losses(run.signs(functions, points), zero_one_loss)
    masses = law.empirical_masses(law.draw(trials, sample, generator=run.generator))
    empirical = masses @ losses.T
    gap = (empirical - 0.5).abs()
    chosen = 0.5 - empirical.min(1).values
    single = hoeffding_radius(sample, DELTA)
    union = finite_class_radius(functions, sample, DELTA)
    says = run.states(
        ["M-32", "M-29"],
        r"\Pr\bigl(|R_S(f)-R(f)|\le\sqrt{\log(2/\delta)/(2n)}\bigr)\ge1-\delta\ "
        r"\text{ for } f \text{ fixed beforehand}",
    )
    says.at_most(
        reach(gap[:, 0]), single, where=f"quantile at 1 - δ; {functions} random classifiers, pure noise, n = {sample}"
    )
    says.fails("f is the one with the fewest errors on S", reach(chosen))
    says = run.states(
        ["M-30", "M-32", "A-34"],
        r"\Pr\bigl(\sup_{f\in\mathcal F}|R_S-R|\le\sqrt{(\log N+\log(2/\delta))/(2n)}\bigr)\ge1-\delta",
    )
    says.at_most(reach(gap.amax(1)), union, where="quantile at 1 - δ")
    # a function that repeats the labels of the sample, and has risk 1/2 as any other
    x, y = torch.randint(0, points, (trials, sample), generator=run.generator), run.signs(trials, sample)
    votes = torch.zeros(trials, points, dtype=torch.float64).scatter_add_(1, x, y)
    says.fails(
        "a class that depends on the sample: the function that repeats its labels",
        reach(0.5 - (votes.gather(1, x) * y < 0).double().mean(1)),
    )
    concentration(run, 20 * sample, trials)
    run.figure(
        "chosen-by-the-data",
        lambda axes: plot(axes, empirical, sample, single, union),
        caption=f"Every classifier has risk ½. Errors on samples of {sample}: of a classifier "
        "fixed beforehand, and of the best one of the sample. The lines are ½ minus Hoeffding's "
        "radius and minus that of the union bound.",
    )


def concentration(run: Run, sample: int, trials: int) -> None:
    """The worst gap of a class is itself nearly constant; nearest to the radius for one function."""
    errors = torch.arange(sample + 1)
    draws = torch.full((trials,), float(sample), dtype=torch.float64)
    gap = (torch.binomial(draws, torch.full_like(draws, 0.5), generator=run.generator) / sample - 0.5).abs()
    binomial = torch.as_tensor(stats.binom.pmf(errors.numpy(), sample, 0.5))
    expected = float((errors / sample - 0.5).abs().double() @ binomial)
    # one draw that is counted m times, risk 0.2: the gap is 0.2 or 0.8, its mean 0.32
    copied = ((run.rand(len(gap)) < 0.2).double() - 0.2).abs()
    says = run.states(
        "A-39",
        r"\Pr\bigl(|\varepsilon-\mathbb E\,\varepsilon|\le\sqrt{\log(2/\delta)/(2m)}\bigr)\ge1-"
        r"\delta,\ \varepsilon=\sup_f|R_S-R|",
    )
    says.at_most(
        reach((gap - expected).abs()),
        mcdiarmid_radius([1 / sample] * sample, DELTA),
        where="a class of one function of risk 1/2; quantile at 1 - δ",
    )
    says.fails("one draw counted m times", reach((copied - 0.32).abs()))


def minimizer(run: Run, sample: int, trials: int) -> None:
    """The excess risk of the empirical minimizer."""
    truth = run.signs(40)
    chance = (0.5 + 0.4 * truth[:, None] * SIGNS) / 40
    law = FiniteDistribution.from_joint(torch.arange(40).double(), SIGNS, chance)
    functions = torch.cat([run.signs(98, 40), truth[None], -truth[None]])
    losses = law.losses(functions, zero_one_loss)
    risks = losses @ law.mass
    empirical = law.empirical_masses(law.draw(trials, sample, generator=run.generator)) @ losses.T
    worst = (empirical - risks).abs().amax(1)
    excess = risks[empirical.argmin(1)] - risks.min()
    wrong = risks[empirical.argmax(1)] - risks.min()
    says = run.states("M-31", r"R(f_S)-\min_fR\le2\sup_f|R-R_S|\ \text{ on every sample}")
    says.at_most(excess, 2 * worst, 1e-12)
    says.fails("$f_S$ has the most errors instead of the fewest", wrong)
    # one good classifier among 99 that are worse by what the sample cannot tell, all independent
    size = 20 * sample
    worse = torch.full((100,), 0.5 + 1.9 / math.sqrt(size), dtype=torch.float64)
    worse[0] = 0.5
    counts = torch.binomial(torch.full((trials, 100), size).double(), worse.expand(trials, -1), generator=run.generator)
    empirical = counts / size
    few = torch.binomial(torch.full_like(counts, size // 16), worse.expand(trials, -1), generator=run.generator)
    copied = few / (size // 16)
    where = f"quantile at 1 - δ; {size} samples, 100 classifiers with independent errors, one of them better"
    says = run.states("M-31", r"\Pr\bigl(R(f_S)\le\min_fR+2\sqrt{(\log N+\log(2/\delta))/(2n)}\bigr)\ge1-\delta")
    says.at_most(reach(worse[empirical.argmin(1)] - 0.5), 2 * finite_class_radius(100, size, DELTA), where=where)
    says = run.states("M-31", r"\Pr\bigl(\sup_f(R-R_S)\le\sqrt{(\log N+\log(1/\delta))/(2n)}\bigr)\ge1-\delta")
    radius = finite_class_radius(100, size, DELTA, one_sided=True)
    says.at_most(reach((worse - empirical).amax(1)), radius, where=where)
    says.fails("a sixteenth of the sample, each draw counted 16 times", reach((worse - copied).amax(1)))


def weights(run: Run, sample: int, trials: int) -> None:
    """Each function has its own radius; the weights come before the data."""
    law = random_law(run, 40)
    losses = law.losses(run.signs(60, 40), zero_one_loss)
    risks = losses @ law.mass
    empirical = law.empirical_masses(law.draw(trials, sample, generator=run.generator)) @ losses.T
    gap = (empirical - risks).abs()
    prior = [2.0 ** -(k + 1) for k in range(60)]
    radii = torch.tensor([weighted_class_radius(-math.log(p), sample, DELTA) for p in prior], dtype=torch.float64)
    says = run.states(
        "A-34",
        r"\Pr\bigl(\forall f:|R-R_S|\le\sqrt{(\log(1/p(f))+\log(2/\delta))/(2m)}\bigr)\ge1-\delta,\ p(f_k)=2^{-k}",
    )
    says.at_most(reach((gap / radii).amax(1)), 1.0, where="the largest gap in units of its radius, quantile at 1 - δ")
    says.fails(
        "the whole weight on one function, chosen after seeing the sample",
        reach(gap.amax(1) / weighted_class_radius(0.0, sample, DELTA)),
    )
    one = gap[:, 0]
    run.refutes(
        "finite-class-bound-without-confidence",
        r"|\mathcal F|=1:\ \varepsilon\le c\sqrt{\log|\mathcal F|/m}=0\ \text{ with probability } 1-\delta",
    ).at_most(one.quantile(1 - DELTA), 0.0, where="the 95 % quantile of the gap of one function")


def plot(axes: Any, empirical: Tensor, sample: int, single: float, union: float) -> None:
    step = 1 / sample
    bins = [k * step - step / 2 for k in range(sample + 2)]
    axes.hist(empirical[:, 0], bins=bins, color=COLORS[0], alpha=0.8, label="fixed beforehand")
    axes.hist(empirical.min(1).values, bins=bins, color=COLORS[1], alpha=0.8,
              label="chosen by the sample")  # fmt: skip
    axes.axvline(0.5 - single, color=COLORS[6], ls="--", label="½ - Hoeffding")
    axes.axvline(0.5 - union, color=COLORS[6], ls=":", label="½ - union bound")
    axes.set(xlabel="share of errors on the sample", ylabel="samples", xlim=(0, 0.9))
    axes.legend(loc="upper right")
