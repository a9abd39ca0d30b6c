"""Averaged over all targets no learner beats a coin, and no rate is safe."""

from __future__ import annotations

from typing import Any

import torch
from scipy import special
from torch import Tensor

from torchtheory.generalization.learning.learners import (
    Learner,
    majority,
    memorize,
    minimize_errors,
    nearest_neighbor,
    train_network,
)
from torchtheory.generalization.learning.no_free_lunch import (
    TargetCensus,
    missed_mass,
    no_free_lunch_bound,
    slow_distribution,
    target_census,
)
from torchtheory.generalization.vc.hypothesis_sets import (
    all_labelings,
    labelings_with_changes,
    threshold_network_labelings,
)
from torchtheory.labs.engine import COLORS, Run, lab


@lab(
    "no-free-lunch",
    room="generalization",
    covers=["A-20"],
    title="Averaged over all targets, every learner is a coin outside its sample",
    errata=["no-free-lunch-constant-rate"],
    full={"points": 10, "samples": 5, "horizon": 1000},
    least={"points": 3, "samples": 2, "horizon": 20, "labelings": 1},
    most={"points": 12, "samples": 6},
)
def no_free_lunch(run: Run, points: int = 8, samples: int = 4, horizon: int = 200, labelings: int = 100) -> None:
    """Seven learners meet every target on a few points and every sample, without exception.

    Nearest neighbors, majority vote, memory, empirical risk minimization over threshold functions
    and over small networks, and a network trained by gradient descent: on the points a sample
    misses, the errors average to one half exactly, as fractions. So some target is bad for each,
    although a function without error exists. If only threshold functions can be targets, the
    learner that knows it wins: that is the control. Then the theorem's own form: for rates that
    fall slowly to zero, a law on which learning is slower for every sample size; and why the rates
    must fall to zero, which the source forgets to ask. Look at how the curves of the learners
    cross in the figure: what one gains on some targets it loses on others.

    Args:
        points: of the input space, 3 to 12, so that all targets can be listed.
        samples: that a learner is shown, 1 to 6.
        horizon: largest sample size in the part on slow rates.
        labelings: random targets of that part.
    """
    found = census(run, points, samples)
    half_of_all(run, points, samples)
    rates = slow_rates(run, horizon, labelings)
    constant_rates(run)
    run.figure(
        "lunch",
        lambda axes: plot(axes, found, points, samples, rates),
        caption="Left, each learner's expected risk on all targets, sorted: every curve averages "
        "to at least the bound. Right, a law made for the rates: every learner's average risk "
        "stays above them, while on a geometric law it drops below.",
        grid=(1, 2),
    )


def learners(run: Run, points: int) -> dict[str, Learner]:
    """The rules by name; the points are drawn in the plane, and ordered along their first axis."""
    plane = run.randn(points, 2)
    plane = plane[plane[:, 0].argsort()]
    return {
        "nearest neighbor": nearest_neighbor(plane),
        "memory, else +1": memorize(points),
        "majority": majority(points),
        "least errors, thresholds": minimize_errors(labelings_with_changes(points, 1)),
        "least errors, 2 threshold units": minimize_errors(threshold_network_labelings(plane, 2)),
        "least errors, all functions": minimize_errors(all_labelings(points)),
        "trained tanh network": train_network(plane, 4, steps=60, rate=1.0, generator=run.generator),
    }


def census(run: Run, points: int, samples: int) -> dict[str, TargetCensus]:
    """Every learner on every target and every sample."""
    rules = learners(run, points)
    found = {name: target_census(rule, points, samples) for name, rule in run.track(rules.items(), "targets")}
    thresholds = labelings_with_changes(points, 1)
    known = target_census(rules["least errors, thresholds"], points, samples, thresholds)
    bound = no_free_lunch_bound(points, samples)
    assert known.mean_unseen_error is not None
    unseen = [c.mean_unseen_error for c in found.values() if c.mean_unseen_error is not None]
    says = run.states(
        "A-20", r"\text{averaged over all } 2^k \text{ targets, the share of errors outside the sample is }\tfrac12"
    )
    says.equal([float(u) for u in unseen], 0.5, where="exact, for seven learners")
    says.fails("the targets are threshold functions, and the learner knows it", float(known.mean_unseen_error))
    says = run.states("A-20", r"\text{average of } \mathbb E\,R(\mathcal A(S))\ge\tfrac12(1-1/k)^m")
    says.at_least([float(c.mean_risk) for c in found.values()], float(bound))
    says.fails("threshold functions as targets only", float(known.mean_risk))
    reproduce = ["nearest neighbor", "memory, else +1", "least errors, all functions"]
    says = run.states("A-20", r"\text{with equality for learners that reproduce the labels they have seen}")
    says.equal([float(found[name].mean_risk) for name in reproduce], float(bound))
    says.fails("majority vote does not", float(found["majority"].mean_risk))
    says = run.states("A-20", r"\text{some target: } \mathbb E\,R(\mathcal A(S))\ge\tfrac12(1-1/k)^m,\ R^*=0")
    says.at_least([float(c.risks.max()) for c in found.values()], float(bound))
    says.fails("the best target instead of the worst", [float(c.risks.min()) for c in found.values()])
    rows = [(name, str(c.mean_unseen_error), c.mean_risk, c.risks.min(), c.risks.max()) for name, c in found.items()]
    run.table(
        "learners",
        ["learner", "error on unseen points", "mean risk", "least", "largest"],
        [(n, u, float(m), float(a), float(b)) for n, u, m, a, b in rows],
        caption=f"Over all {2**points} targets on {points} points and all samples of {samples}; "
        f"the bound is {float(bound):.4f}",
    )
    return found


def half_of_all(run: Run, points: int, samples: int) -> None:
    """With twice as many points as samples, every learner has a target of risk 1/4."""
    worst, easy = [], []
    for m in range(1, min(samples, points // 2) + 1):
        rules = learners(run, 2 * m) if m > 1 else {"majority": majority(2)}
        worst += [float(target_census(rule, 2 * m, m).risks.max()) for rule in rules.values()]
        constants = labelings_with_changes(2 * m, 0)
        easy.append(float(target_census(majority(2 * m), 2 * m, m, constants).risks.max()))
    says = run.states("A-20", r"k=2m:\ \text{some target has } \mathbb E\,R(\mathcal A(S))\ge\tfrac14")
    says.at_least(worst, 0.25)
    says.fails("majority vote on constant targets, which it learns at once", easy)


def slow_rates(run: Run, horizon: int, labelings: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A law made for given rates beats every learner at every sample size."""
    m = torch.arange(1, horizon + 1).double()
    sequences = [1 / (16 * m**0.25), 1 / (16 * (1 + m.log())), 1 / (16 * m)]
    average, wanted, drawn, drawn_rate = [], [], [], []
    for rates in sequences:
        mass = slow_distribution(rates)
        average.append(missed_mass(mass, m) / 2)
        wanted.append(3 * rates)
        # the memory that says +1 elsewhere errs on the unseen points labeled -1
        often = torch.linspace(0.3, 0.5, labelings).double()[:, None]
        negative = (run.rand(labelings, len(mass)) < often).double()
        unseen = (1 - mass) ** m[:, None] * mass
        drawn.append((unseen @ negative.T).amin(1))
        drawn_rate.append(rates)
    geometric = 0.5 ** torch.arange(1, 60).double()
    fast = missed_mass(geometric / geometric.sum(), m) / 2
    says = run.states(
        "A-20",
        r"a_m\downarrow0,\ a_1\le\tfrac1{16}:\ \text{a law with average risk } "
        r"\tfrac12\sum_ip_i(1-p_i)^m\ge3a_m \text{ for every } m",
    )
    says.at_least(
        torch.cat(average),
        torch.cat(wanted),
        where="for $m^{-1/4}$/16, 1/(16 + 16 log m) and 1/(16 m), at every m up to the horizon",
    )
    says.fails("a geometric law", fast[10:], promised=3 * sequences[1][10:])
    says = run.states("A-20", r"\text{one labeling for all } m:\ \mathbb E\,R(\mathcal A(S))\ge R^*+a_m")
    says.at_least(
        torch.cat(drawn),
        torch.cat(drawn_rate),
        where=f"memory, on each of {labelings} labelings, 30 to 50 % of which it does not expect",
    )
    says.fails(
        "the labeling that the learner expects", unseen @ torch.zeros(len(mass)).double(), promised=sequences[-1]
    )
    return m, sequences[1], average[1], fast


def constant_rates(run: Run) -> None:
    """Rates that do not tend to zero contradict rules that learn every law."""
    m = torch.tensor([1, 11, 101, 301, 401, 1001])
    rates = 1 / 32 + 1 / (32 * m.double())
    eta = torch.linspace(0, 1, 2001).double()
    wrong = special.bdtr(((m - 1) // 2)[:, None].numpy(), m[:, None].numpy(), (1 + eta) / 2)
    excess = (eta * torch.as_tensor(wrong)).amax(1)
    says = run.states("A-20", r"\text{majority vote at a point: } R-R^*\le1/(2\sqrt{e\,m}) \text{ on every law of } Y")
    says.at_most(
        excess,
        0.5 / (torch.e * m.double()).sqrt(),
        where="exact binomial sums for 2001 laws; for all, as an odd number of votes errs with probability at most "
        "$(1 - η²)^{m/2}$ / 2",
    )
    says.fails("one draw alone decides, whatever m", excess[:1].expand(len(m)))
    run.refutes(
        "no-free-lunch-constant-rate",
        r"a_m=\tfrac1{32}(1+\tfrac1m):\ \sup_{\text{laws}}\mathbb E\,R(\mathcal A(S))-R^*\ge a_m \text{ for every } m",
    ).at_least(excess, rates, where="majority vote on an input space of one point: below 1/32 on every law at m = 401")
    k = torch.arange(1, 5001).double()
    horizon = torch.arange(1, 201).double()
    laws = {
        "uniform": torch.ones(1000).double(),
        "power": k**-1.2,
        "geometric": 0.5 ** k[:60],
        "slow": slow_distribution(1 / (16 * (1 + horizon.log()))),
    }
    late = torch.tensor([3e4])
    left = [missed_mass(mass / mass.sum(), late) / 2 for mass in laws.values()]
    soon = [missed_mass(mass / mass.sum(), torch.tensor([1.0])) / 2 for mass in laws.values()]
    says = run.states(
        "A-20", r"\text{memory is consistent: average risk}<\tfrac1{32} \text{ after } 30\,000 \text{ draws}"
    )
    says.below(torch.cat(left), 1 / 32, where="uniform, power, geometric and slow law on countably many points")
    says.fails("after one draw", torch.cat(soon))


def plot(
    axes: Any,
    found: dict[str, TargetCensus],
    points: int,
    samples: int,
    rates: tuple[Tensor, Tensor, Tensor, Tensor],
) -> None:
    left, right = axes[0]
    shown = ["nearest neighbor", "memory, else +1", "majority", "least errors, thresholds",
             "trained tanh network"]  # fmt: skip
    for name in shown:
        risks = found[name].risks.sort().values
        left.plot(torch.arange(len(risks)) / len(risks), risks, label=name)
    bound = float(no_free_lunch_bound(points, samples))
    left.axhline(bound, color="0.3", linestyle="--", linewidth=1)
    left.annotate(
        r"$\frac{1}{2}(1-1/k)^m$",
        (1, bound),
        xytext=(0, -13),
        textcoords="offset points",
        ha="right",
        color="0.3",
    )
    left.set(
        xlabel="share of the targets",
        ylabel="expected risk on a target",
        title=f"k = {points} points, m = {samples} samples",
        ylim=(0, 1.35 * max(float(found[name].risks.max()) for name in shown)),
    )
    left.legend(loc="upper left", ncols=2, fontsize=7)
    m, wanted, average, fast = rates
    right.loglog(m, average, label="average risk, law made for the rates")
    right.loglog(m, wanted, "--", color="0.3", label=r"$a_m=1/(16+16\,\log m)$")
    right.loglog(m, fast, color=COLORS[1], label="average risk, geometric law")
    right.set(xlabel="samples m", ylabel="risk", ylim=(min(2e-3, float(fast.min())), 1))
    right.legend(loc="lower left")
