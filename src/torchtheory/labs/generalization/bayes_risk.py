"""What the best function risks, what any other loses, and what a test set says about it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchtheory.generalization.learning.bayes import (
    bayes_classifier,
    bayes_regression,
    classification_excess,
    regression_excess,
)
from torchtheory.generalization.learning.finite_distributions import FiniteDistribution
from torchtheory.generalization.learning.learners import (
    majority,
    minimize_errors,
    nearest_neighbor,
    outside_hypothesis_set,
)
from torchtheory.generalization.learning.tasks import LearningTask, prediction_task
from torchtheory.generalization.vc.hypothesis_sets import (
    all_labelings,
    labelings_with_changes,
    threshold_network_labelings,
)
from torchtheory.labs.engine import (
    COLORS,
    Interval,
    Run,
    clopper_pearson,
    hoeffding_radius,
    lab,
    quantile_interval,
)
from torchtheory.training.losses.surrogates import quadratic_loss, zero_one_loss

SIGNS = torch.tensor([-1.0, 1.0], dtype=torch.float64)


@lab(
    "bayes-risk",
    room="generalization",
    covers=["A-03", "A-17", "A-18", "A-19"],
    title="Every function's risk is the Bayes risk plus a distance, and a fresh sample shows it",
    full={"points": 12, "laws": 200, "trials": 20_000},
    least={"points": 2, "laws": 2, "sample": 10, "trials": 100},
    most={"points": 12},
)
def bayes_risk(run: Run, points: int = 8, laws: int = 40, sample: int = 100, trials: int = 2000) -> None:
    """On finite distributions every risk is a sum, so nothing here is estimated unless said.

    For the quadratic loss the risk of any function is the Bayes risk plus its squared distance to
    the conditional mean; for the 0-1 loss it is the Bayes risk plus the mass of the wrong
    decisions, weighted by how sure the right ones are. All classifiers on the points are tried.
    Then learning algorithms are run on every sample to see that they stay in their class, and the
    risk is estimated by test sets: the intervals keep their promise for a function fitted to other
    data, and break it on the very sample the function was fitted to. Look at the two clouds of
    errors in the figure: only one of them is centered.

    Args:
        points: of the input space, 2 to 12, so that all functions can be listed.
        laws: random laws of inputs and labels.
        sample: size of a fresh sample.
        trials: samples by which the coverage of intervals is counted.
    """
    regression(run, points, laws)
    classification(run, points, laws)
    interfaces(run)
    unbiased(run)
    away = coverage(run, sample, trials)
    law = noisy_sine(run)
    run.figure(
        "risk",
        lambda axes: plot(axes, law, away, sample),
        caption="Left, a law on 60 points, its conditional mean, and a spread of one conditional "
        "standard deviation. Right, how far the mean loss is from the risk of a fitted function: "
        "on a fresh sample within Hoeffding's radius, on its own training sample far below.",
        grid=(1, 2),
    )


def random_law(run: Run, points: int, labels: Tensor) -> FiniteDistribution:
    """Masses drawn uniformly from the simplex."""
    joint = -torch.log(1 - run.rand(points, len(labels)))
    return FiniteDistribution.from_joint(torch.arange(points).double(), labels, joint / joint.sum())


def conditional_median(law: FiniteDistribution, labels: Tensor) -> Tensor:
    """The least label with half of a point's mass at or below it."""
    joint = law.mass.reshape(len(law.points), len(labels))
    half = joint.sum(1, keepdim=True) / 2
    return labels[(joint.cumsum(1) < half).sum(1)]


def regression(run: Run, points: int, laws: int) -> None:
    """R(f) = R* + E(f - E[Y|X])², and R* = Eν² for additive noise."""
    labels = torch.tensor([-2.0, -0.5, 0.0, 1.0, 4.0], dtype=torch.float64)
    measured, promised, wrong = [], [], []
    for _ in range(laws):
        law = random_law(run, points, labels)
        values = 2 * run.randn(50, points)
        best, median = bayes_regression(law), conditional_median(law, labels)
        measured.append(law.risk(values, quadratic_loss))
        promised.append(best.risk + regression_excess(law, values))
        around = law.risk(median, quadratic_loss)
        wrong.append(around + (values - median).square() @ law.marginal)
    says = run.states("A-18", r"R(f)=\mathbb E\,(f(X)-\mathbb E[Y\mid X])^2+R^*")
    says.equal(torch.cat(measured), torch.cat(promised), 1e-12)
    says.fails("around the conditional median instead of the mean", torch.cat(measured), promised=torch.cat(wrong))
    noise = torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64)
    chance = torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64)  # mean 0, mean square 1.2
    least, drifting = [], []
    for _ in range(laws):
        marginal = -torch.log(1 - run.rand(points))
        x = torch.arange(points).double().repeat_interleave(3)
        mass = (marginal / marginal.sum()).repeat_interleave(3) * chance.repeat(points)
        f, drift = run.randn(points), run.randn(points)
        y = f.repeat_interleave(3) + noise.repeat(points)
        law = FiniteDistribution.of(x, y, mass)
        least.append(law.risk(f, quadratic_loss) - bayes_regression(law).risk)
        least.append(torch.as_tensor(bayes_regression(law).risk - float(chance @ noise**2)))
        moved = FiniteDistribution.of(x, y + drift.repeat_interleave(3), mass)
        drifting.append(moved.risk(f, quadratic_loss) - bayes_regression(moved).risk)
    says = run.states("A-18", r"Y=f^*(X)+\nu,\ \mathbb E[\nu\mid X]=0:\ R(f^*)-R^*=0,\ R^*=\mathbb E\,\nu^2")
    says.equal(torch.stack(least), within=1e-12)
    says.fails("noise whose mean depends on X", torch.stack(drifting))


def classification(run: Run, points: int, laws: int) -> None:
    """All 2^k classifiers on random laws."""
    every = all_labelings(points)
    soft = every * (run.rand(*every.shape) > 0.5)
    measured, promised, soft_risk, soft_promise = [], [], [], []
    least, optimum, formula, constant = [], [], [], []
    for _ in range(laws):
        law = random_law(run, points, SIGNS)
        best = bayes_classifier(law)
        risks = law.risk(every, zero_one_loss)
        measured.append(risks)
        promised.append(best.risk + classification_excess(law, every))
        soft_risk.append(law.risk(soft, zero_one_loss))
        soft_promise.append(best.risk + classification_excess(law, soft))
        least.append(risks.min())
        optimum.append(law.risk(best.values, zero_one_loss))
        formula.append(best.risk)
        constant.append(risks[[0, -1]].min())
    says = run.states(
        "A-19",
        r"R(f)=\mathbb E\,|\eta(X)|\,1_{(-\infty,0)}(\eta(X)f(X))+R^*,\ \eta=\mathbb E[Y\mid X]=2\Pr(Y=1\mid X)-1",
    )
    says.equal(torch.cat(measured), torch.cat(promised), 1e-12, where=f"all {len(every)} classifiers on {laws} laws")
    says.fails(
        "outputs of 0, which the 0-1 loss takes as right for either label",
        torch.cat(soft_risk),
        promised=torch.cat(soft_promise),
    )
    says = run.states("A-19", r"\min_fR(f)=R(\operatorname{sgn}\eta)=\mathbb E\,\tfrac12(1-|\eta(X)|)")
    says.equal(torch.stack(least + optimum), formula + formula, 1e-12)
    says.fails("the least over the two constants only", torch.stack(constant), promised=formula)


def interfaces(run: Run) -> None:
    """A learning algorithm maps every sample, of any size, into its hypothesis set."""
    line = torch.arange(6).double()[:, None]
    plane = run.randn(6, 2)
    thresholds = labelings_with_changes(6, 1)
    networks = threshold_network_labelings(plane, 1)
    constants = labelings_with_changes(6, 0)
    sizes = range(1, 5)
    pairs = [
        (majority(6), constants),
        (minimize_errors(thresholds), thresholds),
        (minimize_errors(networks), networks),
    ]
    left = [outside_hypothesis_set(rule, kind, m) for rule, kind in pairs for m in sizes]
    neighbor = [outside_hypothesis_set(nearest_neighbor(line), thresholds, m) for m in sizes if m > 2]
    says = run.states("A-03", r"\mathcal A(s)\in\mathcal F\ \text{ for every labeled sample } s \text{ of size } 1..4")
    says.equal(
        left,
        where="majority vote into the constants, empirical risk minimization into the threshold "
        "functions of a line and into the half-planes",
    )
    says.fails("nearest neighbors, said to be threshold functions", neighbor)


def unbiased(run: Run) -> None:
    """The mean of the empirical risk over all samples, listed one by one."""
    law = random_law(run, 3, SIGNS)
    every = all_labelings(3)
    losses = law.losses(every, zero_one_loss)
    samples, chance = law.all_samples(5)
    empirical = law.empirical_masses(samples) @ losses.T
    fitted = empirical.argmin(1)
    training = chance @ empirical.gather(1, fitted[:, None]).squeeze(1)
    says = run.states("A-17", r"\mathbb E\,\hat R_S(f)=R(f)\ \text{ over all samples } S \text{ of size } 5")
    says.equal(chance @ empirical, law.risk(every, zero_one_loss), 1e-12)
    says.fails(
        "f is the function with the least error on S itself",
        training,
        promised=chance @ law.risk(every, zero_one_loss)[fitted],
    )
    task = prediction_task(lambda n, generator: _pairs(law, law.draw(n, generator=generator)), zero_one_loss)
    uniform = law.with_mass(torch.full_like(law.mass, 1 / len(law)))
    skewed = prediction_task(lambda n, generator: _pairs(uniform, uniform.draw(n, generator=generator)), zero_one_loss)
    n, delta = 2000, 0.1
    truth = law.risk(every, zero_one_loss)
    best = int(truth.argmin())  # for which the two laws differ most

    def reach(task: LearningTask) -> Interval:
        found = [task.risk_interval(_table(every[best]), n, run.generator, delta=delta) for _ in range(300)]
        gaps = (torch.tensor([i.estimate for i in found]).double() - truth[best]).abs()
        return quantile_interval(gaps, 1 - delta, 0.999)

    radius = task.risk_interval(_table(every[best]), n, run.generator, delta=delta)
    says = run.states(
        "A-17",
        r"\Pr\bigl(|\hat R_{\tilde S}(f)-R(f)|\le\sqrt{\log(2/\delta)/(2n)}\bigr)\ge1-\delta\ "
        r"\text{ on } n=2000 \text{ fresh draws}",
    )
    says.at_most(
        reach(task),
        (radius.high - radius.low) / 2,
        where="an exact sum against means over independent draws, 300 times; quantile at 1 - δ, δ = 0.1, and the "
        "half-length of the interval",
    )
    says.fails("the test data come from another law", reach(skewed))


def _pairs(law: FiniteDistribution, drawn: Tensor) -> tuple[Tensor, Tensor]:
    return law.points[law.where[drawn]], law.labels[drawn]


def _table(values: Tensor) -> Any:
    """A vector of values as a function of the points 0, 1, 2, ..."""
    return lambda x: values[x.long()]


def coverage(run: Run, sample: int, trials: int) -> tuple[Tensor, Tensor]:
    """Intervals from test sets cover the risk of a fitted function; from training sets not."""
    law = random_law(run, 60, SIGNS)
    train = law.empirical_masses(law.draw(trials, sample, generator=run.generator))
    test = law.empirical_masses(law.draw(trials, sample, generator=run.generator))
    few = law.draw(trials, sample // 10, generator=run.generator)
    copied = law.empirical_masses(few.repeat(1, 10))
    votes = torch.zeros(trials, 60).double().index_add_(1, law.where, train * law.labels)
    fitted = torch.where(votes < 0, -1.0, 1.0).double()
    losses = law.losses(fitted, zero_one_loss)
    risk = losses @ law.mass
    away = [(losses * masses).sum(1) - risk for masses in (test, train, copied)]
    delta = 0.1
    radius = hoeffding_radius(sample, delta)
    inside = [clopper_pearson(int((a.abs() <= radius).sum()), trials, 0.999) for a in away]
    says = run.states(
        "A-17", r"\Pr\bigl(|\hat R_{\tilde S}(f_S)-R(f_S)|\le\sqrt{\log(2/\delta)/(2n)}\bigr)\ge1-\delta,\ \delta=0.1"
    )
    reached = [quantile_interval(a.abs(), 1 - delta, 0.999) for a in away]
    says.at_most(
        reached[0],
        radius,
        where=f"quantile at 1 - δ over {trials} pairs of a training and a test sample of {sample}",
    )
    says.fails("the sample that f was fitted to, taken as its test sample", reached[1])
    size = 10 * (sample // 10)
    ends = [clopper_pearson(k, size, 0.9) for k in range(size + 1)]
    low = torch.tensor([e.low for e in ends]).double()
    high = torch.tensor([e.high for e in ends]).double()
    exact = [law.empirical_masses(law.draw(trials, size, generator=run.generator)), copied, train]
    hits = []
    for masses, count in zip(exact, (size, size, sample), strict=True):
        errors = ((losses * masses).sum(1) * count).round().long().clamp(max=size)
        covered = (low[errors] <= risk) & (risk <= high[errors])
        hits.append(clopper_pearson(int(covered.sum()), trials, 0.999))
    says = run.states(
        "A-17", r"\text{Clopper--Pearson on } n \text{ test errors covers } R(f_S) \text{ with } \Pr\ge 0.9"
    )
    says.at_least(hits[0], 0.9)
    says.fails("not independent: each test datum is counted ten times", hits[1])
    rows = [
        ("fresh test sample", inside[0].estimate, hits[0].estimate),
        ("each datum ten times", inside[2].estimate, hits[1].estimate),
        ("training sample", inside[1].estimate, hits[2].estimate),
    ]
    run.table(
        "coverage",
        ["judged on", "Hoeffding 90 %", "Clopper–Pearson 90 %"],
        rows,
        caption=f"How often the interval contains the risk of the fitted function, {trials} trials",
    )
    return away[0], away[1]


def noisy_sine(run: Run) -> FiniteDistribution:
    x = torch.linspace(0, 1, 60).double()
    mean, spread = torch.sin(2 * torch.pi * x), 0.15 + 0.5 * x
    y = torch.stack([mean - spread, mean + spread], 1).reshape(-1)
    return FiniteDistribution.of(x.repeat_interleave(2), y)


def plot(axes: Any, law: FiniteDistribution, away: tuple[Tensor, Tensor], sample: int) -> None:
    left, right = axes[0]
    best = bayes_regression(law)
    joint = law.labels.reshape(-1, 2)
    left.fill_between(law.points, joint[:, 0], joint[:, 1], color=COLORS[0], alpha=0.15, lw=0)
    left.plot(law.points, best.values, label=r"$f^*(x)=E[Y|X=x]$")
    linear = torch.stack([torch.ones_like(law.points), law.points], 1)
    line = linear @ torch.linalg.lstsq(linear, best.values[:, None]).solution
    loss = float(regression_excess(law, line.squeeze(1)))
    left.plot(law.points, line, color=COLORS[1], label="best affine function")
    left.set(
        xlabel="x",
        ylabel="y",
        ylim=(-2, 2.6),
        title=rf"$R^*={best.risk:.3f}$; the line loses {loss:.3f} more",
    )
    left.legend(loc="upper right")
    bins = 40
    span = [float(torch.stack(away).min()), float(torch.stack(away).max())]
    for values, color, name in (
        (away[0], COLORS[0], "fresh test sample"),
        (away[1], COLORS[1], "its own training sample"),
    ):
        right.hist(values, bins, range=span, alpha=0.7, color=color, label=name)
    radius = hoeffding_radius(sample, 0.1)
    for sign in (-1, 1):
        right.axvline(sign * radius, ymax=0.8, color="0.3", linestyle="--", linewidth=1)
    right.annotate(
        "Hoeffding,\n90 %",
        (radius, 0.5),
        xycoords=("data", "axes fraction"),
        xytext=(5, 0),
        textcoords="offset points",
        color="0.3",
        fontsize=8,
    )
    right.set(xlabel="mean loss − risk", ylabel="trials", xlim=(span[0], max(span[1], radius * 2)))
    right.set_ylim(top=1.35 * right.get_ylim()[1])
    right.legend(loc="upper center", ncols=2)
