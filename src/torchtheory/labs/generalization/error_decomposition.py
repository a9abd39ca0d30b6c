"""Three reasons why a learned function is not the best one, measured apart."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from torchtheory.generalization.interpolation.step_functions import best_steps, greedy_steps
from torchtheory.generalization.learning.bayes import (
    bayes_classifier,
    bayes_regression,
    classification_excess,
    regression_excess,
)
from torchtheory.generalization.learning.error_decomposition import ErrorTerms, decompose_error
from torchtheory.generalization.learning.finite_distributions import FiniteDistribution
from torchtheory.generalization.vc.hypothesis_sets import labelings_with_changes
from torchtheory.labs.engine import COLORS, Run, lab, mean_interval
from torchtheory.training.losses.surrogates import quadratic_loss, zero_one_loss


@lab(
    "error-decomposition",
    room="generalization",
    covers=["A-21", "S-06"],
    title="Approximation falls, estimation grows with the class, and the search adds its own",
    full={"trials": 2000, "sizes": (50, 100, 200, 400, 800)},
    least={"sample": 2, "trials": 80, "sizes": 20},
    items={"sizes": 2},
)
def error_decomposition(run: Run, sample: int = 30, trials: int = 150, sizes: tuple[int, ...] = (50, 200, 800)) -> None:
    """How much worse than the best function is a learned one, and why?

    Classifiers on a line with more and more changes of sign form nested finite classes, whose
    risks are exact sums: on every sample the excess risk is at most the optimization error plus
    twice the uniform generalization error plus the approximation error. Then regression by
    networks of threshold units, wider and wider: the best network and the one with the least
    empirical risk are found exactly by dynamic programming, and a greedy search stands for a real
    optimizer. Approximation, estimation and search add up to the excess risk. Look at the
    bottom of the total in the figure: it moves to wider networks as the sample grows.

    Args:
        sample: size of the samples for the nested classes.
        trials: samples of each size.
        sizes: of the samples that networks are fitted to.
    """
    classes = nested_classes(run, sample, trials)
    sizes = tuple(sorted(sizes))
    widths = networks(run, sizes, trials)
    family = one_parameter(run)
    run.figure(
        "risk-and-empirical-risk",
        lambda axis: plot_family(axis, family),
        caption="The risk and the empirical risk along a family of functions. The class is "
        "the white part of the axis, and the search has stopped in a local minimum.",
        size=(6.4, 3.8),
    )
    run.figure(
        "trade-off",
        lambda axes: plot_trade_off(axes, classes, widths, sizes),
        caption="Left, the terms of the bound for classifiers with more and more changes of sign. "
        "Right, the parts of the excess risk of threshold networks by width, for the smallest and "
        "the largest sample. Where the black line runs below the stack, a less thorough search has "
        "helped: the greedy network overfits less.",
        grid=(1, 3),
        size=(12.0, 3.4),
    )


def nested_classes(run: Run, sample: int, trials: int) -> list[ErrorTerms]:
    """Classifiers with at most 0, 1, 2, ... changes of sign on twelve points."""
    k = 12
    eta = torch.tensor([0.6, 0.4, 0.3, -0.4, -0.6, -0.3, 0.4, 0.6, 0.3, -0.3, -0.6, -0.4]).double()
    marginal = 0.5 + run.rand(k)
    joint = (marginal / marginal.sum())[:, None] * torch.stack([1 - eta, 1 + eta], 1) / 2
    signs = torch.tensor([-1.0, 1.0]).double()
    law = FiniteDistribution.from_joint(torch.arange(k).double(), signs, joint)
    best = bayes_classifier(law)
    masses = law.empirical_masses(law.draw(trials, sample, generator=run.generator))
    everything = labelings_with_changes(k, k - 1)  # it begins with the smaller classes
    sizes = [2 * sum(math.comb(k - 1, i) for i in range(c + 1)) for c in range(k)]
    exact, hasty, values = [], [], []
    for size in sizes:
        # in random order: among equally good functions the simplest shall not come first
        functions = everything[torch.randperm(size, generator=run.generator)]
        losses = law.losses(functions, zero_one_loss)
        risks, empirical = losses @ law.mass, masses @ losses.T
        minimizer = empirical.argmin(1)
        # a hasty search looks at five functions of the class only
        tried = torch.randint(len(functions), (trials, 5), generator=run.generator)
        pick = empirical.gather(1, tried).argmin(1, keepdim=True)
        found = tried.gather(1, pick).squeeze(1)
        exact.append(decompose_error(risks, empirical, minimizer, best.risk))
        hasty.append(decompose_error(risks, empirical, found, best.risk))
        values.append(classification_excess(law, functions[found]))
    both = exact + hasty
    excess = torch.stack([t.excess for t in both])
    without = torch.stack([t.optimization + t.approximation for t in both])
    says = run.states("A-21", r"R(f_S)-R^*\le\varepsilon^{opt}+2\varepsilon^{gen}+\varepsilon^{approx}")
    says.at_most(
        excess,
        torch.stack([t.bound for t in both]),
        1e-12,
        where=f"{trials} samples, 12 classes, empirical risk minimizer and a hasty search",
    )
    says.fails("the generalization error left out", excess, promised=without)
    says = run.states("A-21", r"\varepsilon^{opt}=0 \text{ for an empirical risk minimizer}")
    says.equal(torch.stack([t.optimization for t in exact]))
    says.fails("a hasty search", torch.stack([t.optimization for t in hasty]))
    says = run.states(["A-21", "S-06"], r"\text{approximation}+\text{estimation}+\text{search}=R(f_S)-R^*")
    says.equal(
        torch.stack([t.sum for t in hasty]),
        torch.stack(values),
        1e-12,
        where="the right side by the weight of the wrong decisions, not by a difference",
    )
    says.fails(
        "without the search, which the slides leave out", torch.stack([t.approximation + t.estimation for t in hasty])
    )
    approximation = torch.stack([t.approximation[0] for t in exact])
    generalization = torch.stack([t.generalization for t in exact])
    # classes that are not nested: exactly so many changes of sign
    apart = []
    for start, size in zip([0, *sizes], sizes, strict=False):
        losses = law.losses(everything[start:size], zero_one_loss)
        risks = losses @ law.mass
        apart.append((risks.min(), (risks - masses @ losses.T).abs().amax(1)))
    says = run.states("A-21", r"\mathcal F\subset\mathcal G:\ \varepsilon^{approx} \text{ does not grow}")
    says.at_most(approximation.diff(), 0.0, 1e-15)
    says.fails("not nested: exactly, not at most, so many changes of sign", torch.stack([a for a, _ in apart]).diff())
    says = run.states("A-21", r"\mathcal F\subset\mathcal G:\ \varepsilon^{gen} \text{ does not fall, on any sample}")
    says.at_least(generalization.diff(dim=0), 0.0, 1e-15)
    says.fails(
        "not nested, the last classes with ever fewer functions", torch.stack([g for _, g in apart[-3:]]).diff(dim=0)
    )
    rows = [
        (c, sizes[c], t.approximation[0], t.generalization.mean(), t.estimation.mean(),
         t.excess.mean())
        for c, t in enumerate(exact)
    ]  # fmt: skip
    run.table(
        "classes",
        ["changes of sign", "functions", "approximation", "uniform generalization", "estimation",
         "excess risk"],
        rows,
        caption=f"Empirical risk minimization on {sample} draws, means over {trials} samples",
    )  # fmt: skip
    return exact


@dataclass(frozen=True)
class Widths:
    """Parts of the excess risk by width `[w]` and sample `[w, trials]`."""

    approximation: Tensor
    estimation: Tensor
    search: Tensor


def networks(run: Run, sizes: tuple[int, ...], trials: int) -> dict[int, Widths]:
    """Threshold networks of growing width on noisy regression data."""
    k, pieces = 48, 16
    x = (torch.arange(k).double() + 0.5) / k
    target = torch.sin(2 * torch.pi * x) + x**2
    noise = 0.5
    y = torch.stack([target - noise, target + noise], 1).reshape(-1)
    law = FiniteDistribution.of(x.repeat_interleave(2), y)
    best = bayes_regression(law)
    best_in_class = best_steps(law.marginal, best.values, pieces)
    approximation = regression_excess(law, best_in_class)
    found: dict[int, Widths] = {}
    sums, excess, gaps, exact_gaps = [], [], [], []
    for n in run.track(sizes, "sample sizes"):
        masses = law.empirical_masses(law.draw(trials, n, generator=run.generator))
        weight = masses.new_zeros(trials, k).index_add_(1, law.where, masses)
        total = masses.new_zeros(trials, k).index_add_(1, law.where, masses * law.labels)
        mean = torch.where(weight > 0, total / weight, torch.zeros_like(total))
        minimizer, greedy = best_steps(weight, mean, pieces), greedy_steps(weight, mean, pieces)
        loss = [law.losses(values, quadratic_loss) for values in (minimizer, greedy)]
        empirical = [(each * masses).sum(-1) for each in loss]
        gaps.append(empirical[1] - empirical[0])
        exact_gaps.append(empirical[0] - empirical[0])
        estimation = regression_excess(law, minimizer) - approximation[:, None]
        search = regression_excess(law, greedy) - regression_excess(law, minimizer)
        found[n] = Widths(approximation, estimation, search)
        sums.append(approximation[:, None] + estimation + search)
        excess.append(loss[1] @ law.mass - best.risk)
    says = run.states("S-06", r"\text{approximation}+\text{estimation}+\text{search}=R(f_S)-R^*")
    says.equal(
        torch.stack(sums),
        torch.stack(excess),
        1e-12,
        where="distances to the conditional mean on one side, risks on the other",
    )
    says.fails("without the search", torch.stack([(w.approximation[:, None] + w.estimation) for w in found.values()]))
    says = run.states("S-06", r"\text{approximation falls with the width}")
    says.below(approximation.diff(), 0.0)
    says.fails(
        "a target that two pieces make already",
        regression_excess(
            two := FiniteDistribution.of(x, (x > 0.5).double()), best_steps(two.marginal, two.labels, 4)
        ).diff(),
    )
    widths = [0, 3, 15]  # 1, 4, 16 pieces
    rises, falls = [], []
    for n in sizes:
        estimation = found[n].estimation
        for a, b in pairwise(widths):
            rises.append(mean_interval(estimation[b] - estimation[a], 0.999).low)
    # learned from the whole law: what best_steps gives there has no estimation error
    learned = best_steps(law.marginal, law.conditional_mean, pieces)
    whole = regression_excess(law, learned) - approximation
    none = [float(whole[b] - whole[a]) for a, b in pairwise(widths)]
    says = run.states("S-06", r"\text{estimation grows with the width: }1\to4\to16 \text{ pieces}")
    says.above(rises, 0.0, where="lower ends of 99.9 % intervals for the mean difference on the same samples")
    says.fails("the population instead of a sample: nothing to estimate", none)
    for a, b in pairwise(sizes):
        falls += [
            mean_interval(found[b].estimation[w], 0.999).high - mean_interval(found[a].estimation[w], 0.999).low
            for w in widths
        ]
    again = [
        mean_interval(found[sizes[0]].estimation[w], 0.999).high
        - mean_interval(found[sizes[0]].estimation[w], 0.999).low
        for w in widths
    ]
    says = run.states("S-06", r"\text{estimation falls with the sample}")
    says.below(falls, 0.0, where="the 99.9 % intervals of the means do not meet")
    says.fails("the same size twice", again)
    says = run.states(
        ["A-21", "S-06"], r"\text{a greedy search leaves } \varepsilon^{opt}=\hat R_S(f_S)-\hat R_S(\hat f_S)>0"
    )
    says.above(
        [mean_interval(gap[7], 0.999).low for gap in gaps],
        0.0,
        where="eight pieces; lower ends of 99.9 % intervals for the mean",
    )
    says.fails("the exact search", [mean_interval(gap[7], 0.999).low for gap in exact_gaps])
    return found


@dataclass(frozen=True)
class Family:
    """Risk and empirical risk of functions with one parameter."""

    theta: Tensor
    risk: Tensor
    empirical: Tensor
    inside: Tensor
    chosen: int
    bayes: float
    terms: ErrorTerms


def one_parameter(run: Run) -> Family:
    """Cosines of growing frequency; the truth is one of them plus a line."""
    x = torch.linspace(0, 2, 60).double()
    noise = 0.4
    mean = torch.cos(4 * x) + 0.7 * (x - 1)
    y = torch.stack([mean - noise, mean + noise], 1).reshape(-1)
    law = FiniteDistribution.of(x.repeat_interleave(2), y)
    theta = torch.linspace(0, 5, 501).double()
    losses = law.losses(torch.cos(theta[:, None] * law.points), quadratic_loss)
    masses = law.empirical_masses(law.draw(10, generator=run.generator))
    risk, empirical = losses @ law.mass, losses @ masses
    inside = (theta >= 0.3) & (theta <= 4.7)
    # downhill from the left end of the class until no neighbor is better
    chosen = int(inside.nonzero()[0])
    while bool(inside[chosen + 1]) and bool(empirical[chosen + 1] < empirical[chosen]):
        chosen += 1
    first = int(inside.nonzero()[0])
    terms = decompose_error(
        risk[inside],
        empirical[inside],
        torch.tensor(chosen - first),
        bayes_regression(law).risk,
    )
    says = run.states(
        "A-21",
        r"R(f_S)-R^*\le\varepsilon^{opt}+2\varepsilon^{gen}+\varepsilon^{approx}"
        r"\ \text{ along } f_\theta(x)=\cos\theta x",
    )
    says.at_most(terms.excess, terms.bound)
    says.fails("the approximation error alone", terms.excess, promised=terms.approximation)
    return Family(theta, risk, empirical, inside, chosen, bayes_regression(law).risk, terms)


def plot_family(axis: Any, family: Family) -> None:
    theta, inside = family.theta, family.inside
    axis.plot(theta, family.risk, label=r"risk $R$")
    axis.plot(theta, family.empirical, color=COLORS[1], label=r"empirical risk $\hat R_S$")
    axis.axhline(family.bayes, color="0.4", linestyle=":", linewidth=1)
    axis.annotate(r"$R^*$", (0.02, family.bayes), xytext=(0, 4), textcoords="offset points")
    low, high = float(theta[inside][0]), float(theta[inside][-1])
    axis.axvspan(float(theta[0]), low, color="0.9", zorder=0)
    axis.axvspan(high, float(theta[-1]), color="0.9", zorder=0)
    hidden = torch.where(inside, 0.0, torch.inf)
    best = int((family.risk + hidden).argmin())
    minimizer = int((family.empirical + hidden).argmin())
    marks = [
        (best, family.risk, r"$f^*_{\mathcal{F}}$", COLORS[0], (-27, -7)),
        (minimizer, family.empirical, r"$\hat f_S$", COLORS[1], (4, 6)),
        (family.chosen, family.empirical, r"$f_S$", COLORS[1], (-3, 7)),
    ]
    arrow = {"arrowstyle": "<->", "shrinkA": 0, "shrinkB": 0}
    for at, curve, name, color, shift in marks:
        axis.plot(theta[at], curve[at], "o", color=color, zorder=5)
        axis.annotate(name, (theta[at], curve[at]), xytext=shift, textcoords="offset points")
    gap = int(((family.risk - family.empirical).abs() - hidden).argmax())
    top, bottom = family.risk[gap], family.empirical[gap]
    axis.annotate("", (theta[gap], top), (theta[gap], bottom), arrowprops=arrow)
    axis.annotate(
        r"$\varepsilon^{gen}$",
        (theta[gap], torch.minimum(top, bottom)),
        xytext=(5, -12),
        textcoords="offset points",
    )
    for name, place, ends in (
        (r"$\varepsilon^{approx}$", theta[best], (family.bayes, family.risk[best])),
        (
            r"$\varepsilon^{opt}$",
            theta[family.chosen],
            (family.empirical[minimizer], family.empirical[family.chosen]),
        ),
    ):
        axis.annotate("", (place, ends[0]), (place, ends[1]), arrowprops=arrow)
        axis.annotate(
            name,
            (place, (ends[0] + ends[1]) / 2),
            xytext=(5, -3),
            textcoords="offset points",
        )
    axis.set(xlabel=r"$\theta$ in $f_\theta(x)=\cos\theta x$", ylabel="mean squared error")
    axis.set_ylim(0, 1.2 * float(torch.maximum(family.risk, family.empirical).max()))
    axis.set_xlim(0, 5)
    axis.legend(loc="upper center", ncols=2)


def plot_trade_off(axes: Any, classes: list[ErrorTerms], widths: dict[int, Widths], sizes: tuple[int, ...]) -> None:
    first = axes[0, 0]
    changes = range(len(classes))
    for name, values, style in (
        ("approximation", [t.approximation[0] for t in classes], "o-"),
        ("uniform generalization", [t.generalization.mean() for t in classes], "s-"),
        ("excess risk", [t.excess.mean() for t in classes], "^-"),
    ):
        first.plot(changes, values, style, markersize=4, label=name)
    first.set(xlabel="changes of sign allowed", title="classification, 0–1 loss")
    first.set_ylim(bottom=0, top=1.3 * float(classes[-1].generalization.mean()))
    first.legend(loc="upper left")
    top = 0.0
    for axis, n in zip(axes[0, 1:], (sizes[0], sizes[-1]), strict=True):
        parts = widths[n]
        pieces = torch.arange(1, len(parts.approximation) + 1)
        layers = [parts.approximation, parts.estimation.mean(1), parts.search.mean(1).clamp(min=0)]
        axis.stackplot(
            pieces,
            *[layer.numpy() for layer in layers],
            labels=["approximation", "estimation", "search"],
            colors=COLORS[:3],
            alpha=0.75,
        )
        total = layers[0] + layers[1] + parts.search.mean(1)
        axis.plot(pieces, total, color="black", linewidth=1.2, label="excess risk")
        at = int(total.argmin())
        axis.plot(pieces[at], total[at], "o", color="black")
        axis.set(xlabel="pieces (hidden units + 1)", title=f"regression, n = {n}")
        top = max(top, float(total[1:].max()))
    for axis in axes[0, 1:]:
        axis.set_ylim(0, 1.1 * top)
        axis.set_xlim(1, 16)
    axes[0, 2].legend(loc="upper right")
