"""Covering numbers, and the road from the VC dimension to a bound on the gap."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchtheory.generalization.complexity.covering import (
    covering_bounds,
    covering_dimension,
    covering_number,
    dudley_bound,
    haussler_bound,
    packing_number,
    separation_radii,
    vc_rademacher_bound,
)
from torchtheory.generalization.complexity.rademacher import (
    estimate_rademacher,
    exact_rademacher,
    finite_class,
    linear_class,
)
from torchtheory.generalization.learning.finite_distributions import FiniteDistribution
from torchtheory.generalization.vc.hypothesis_sets import all_labelings, labelings_with_changes
from torchtheory.labs.engine import COLORS, Interval, Run, lab
from torchtheory.neurons.dichotomies import realizable_dichotomies


@lab(
    "covering-numbers",
    room="generalization",
    covers=["A-41", "A-42", "A-43", "A-44"],
    title="How many functions are enough: covering numbers, Dudley's integral, Haussler's bound",
    errata=["dudley-with-absolute-values", "haussler-near-one"],
    full={"samples": 10, "classes": 10, "points": 5000, "line": 80},
    least={"samples": 4, "classes": 1, "points": 500, "line": 20},
)
def covering_numbers(run: Run, samples: int = 8, classes: int = 2, points: int = 1000, line: int = 40) -> None:
    """Covering and packing numbers are found exactly by integer programming, and bounded greedily.

    Packings and coverings enclose each other; 0-1 losses are half as far apart as the functions;
    Dudley's integral over the greedy covers is above the exact Rademacher complexity; Haussler's
    bound is above the packings of classes with known VC dimension. The same slope that is a VC
    dimension there is the dimension of a manifold: one for the circle, two for sphere and torus.
    Two statements fail as they are printed, at a class of one function and at distances near 1.
    Look at the profile in the figure: the area under a root of its logarithm is the bound.

    Args:
        samples: points that the functions are compared on.
        classes: random classes of functions.
        points: of each set whose dimension is read off its covering numbers.
        line: points on a line, for Haussler's bound.
    """
    sandwich(run, samples, classes)
    losses(run, samples)
    dudley(run, samples, classes)
    haussler(run, line)
    slopes = manifolds(run, points)
    run.table(
        "dimensions",
        ["set", "dimension", "slope", "from", "to"],
        [(name, d, s.estimate, s.low, s.high) for name, (d, s) in slopes.items()],
        caption="Slope of log N against log 1/α between 10 and 100 balls",
    )
    run.figure(
        "profile",
        lambda axis: plot_profile(axis, line),
        caption="Covering numbers of thresholds on a line, between the greedy bounds, with "
        "Haussler's bound: far above, and steeper.",
    )


def sandwich(run: Run, m: int, classes: int) -> None:
    """Packings, coverings, and the greedy traversal between them."""
    sets = [run.randn(20, m) for _ in range(classes)] + [labelings_with_changes(m, 1)]
    covers, packed, packed_twice, low, high, finer = [], [], [], [], [], []
    for values in sets:
        for alpha in (0.4, 0.8, 1.2):
            covers.append(covering_number(values, alpha))
            packed.append(packing_number(values, alpha))
            packed_twice.append(packing_number(values, 2 * alpha))
            bounds = covering_bounds(values, alpha)
            low.append(bounds[0])
            high.append(bounds[1])
            finer.append(covering_bounds(values, alpha / 4)[0])
    says = run.states("A-41", r"N_\alpha\le M_\alpha")
    says.at_most(covers, packed)
    says.fails("packings at 2α in the place of those at α", covers, promised=packed_twice)
    says = run.states("A-41", r"M_{2\alpha}\le N_\alpha")
    says.at_least(covers, packed_twice)
    says.fails("the packing at α itself", covers, promised=packed)
    says = run.states("A-41", r"N_\alpha\ge\text{the greedy lower bound}")
    says.at_least(covers, low)
    says.fails("the bound for balls of a quarter of the radius", covers, promised=finer)
    says = run.states("A-41", r"N_\alpha\le\text{the greedy upper bound}")
    says.at_most(covers, high)
    says.fails("the greedy lower bound in its place", covers, promised=low)
    diameters = [float(torch.pdist(v).max()) / math.sqrt(m) for v in sets]
    says = run.states("A-41", r"\alpha\ge\text{diameter}\Rightarrow N_\alpha=1")
    says.equal([covering_number(v, d * (1 + 1e-9)) for v, d in zip(sets, diameters, strict=True)], 1)
    says.fails("a third of the diameter", [covering_number(v, d / 3) for v, d in zip(sets, diameters, strict=True)])


def losses(run: Run, m: int) -> None:
    """0-1 losses are half as far apart as the decisions."""
    functions = [labelings_with_changes(m, 1), labelings_with_changes(m, 2), all_labelings(5)]
    alphas = (0.36, 0.52, 0.72)
    of_losses, of_functions, same = [], [], []
    for f in functions:
        y = run.signs(f.shape[1])
        for alpha in alphas:
            of_losses.append(covering_number((1 - f * y) / 2, alpha))
            of_functions.append(covering_number(f, 2 * alpha))
            same.append(covering_number(f, alpha))
    says = run.states("A-43", r"\mathcal L=(1-yf)/2:\ N_\alpha(\mathcal G,d_S)=N_{2\alpha}(\mathcal F,d_X)")
    says.equal(of_losses, of_functions)
    says.fails("at one α for both", of_losses, promised=same)


def dudley(run: Run, m: int, classes: int) -> None:
    """Dudley's bound against exact complexities, and the class where the printed one fails."""
    sets = [
        labelings_with_changes(m, 1),
        all_labelings(m),
        *(run.randn(4**k, m) for k in range(1, 1 + min(4, classes))),
    ]
    exact = [exact_rademacher(finite_class(v), m) for v in sets]
    x = run.randn(m, 2)
    angle = torch.linspace(0, 2 * math.pi, 400, dtype=torch.float64)
    linear = torch.stack([angle.cos(), angle.sin()], 1) @ x.T
    sets.append(linear)
    exact.append(exact_rademacher(finite_class(linear), m))
    bounds = [dudley_bound(v) for v in sets]
    says = run.states(
        "A-42",
        r"\hat R_S\le\inf_\epsilon\Bigl(4\epsilon+\tfrac{12}{\sqrt m}"
        r"\int_\epsilon^{r/2}\sqrt{\ln N_\alpha}\,d\alpha\Bigr)",
    )
    says.at_most(
        exact,
        bounds,
        loose="at its coarse end, ε = r/2, it is four times what any complexity can be, and finer scales cost 12 each",
        where="without absolute values; thresholds, all labelings, random and linear classes",
    )
    says.fails("the covers of one function of the class", exact, promised=[dudley_bound(v[:1]) for v in sets])
    says = run.states("A-42", r"\text{400 directions stand for the whole linear class: } \hat R_S")
    says.equal(exact[-1], exact_rademacher(linear_class(x), m), 1e-4)
    says.fails("4 directions", exact_rademacher(finite_class(linear[::100]), m))
    sizes = [4, 8, 12, 16]
    one = [exact_rademacher(finite_class(torch.ones(1, k).double(), absolute=True), k) for k in sizes]
    run.refutes(
        "dudley-with-absolute-values",
        r"\mathcal G=\{1\}:\ \mathfrak R_m(\mathcal G)\lesssim"
        r"\mathbb E\int_0^\infty\sqrt{\ln N_\alpha/m}\,d\alpha \text{ with } |\cdot|",
    ).at_most(
        one,
        [dudley_bound(torch.ones(1, k)) for k in sizes],
        where="the integral is 0, the complexity E|mean of signs| is not, whatever the constant",
    )
    shifted = [torch.cat([v, v + 2]) for v in sets[2:-1]]
    says = run.states("A-42", r"\text{with } |\cdot|:\ \mathfrak R\le\text{Dudley}+\sup_f\|f\|_S/\sqrt m")
    says.at_most(
        [exact_rademacher(finite_class(v, absolute=True), m) for v in shifted] + one,
        [dudley_bound(v) + float(v.norm(dim=1).max()) / m for v in shifted] + [1 / math.sqrt(k) for k in sizes],
        where="including the class of one function",
    )
    says.fails("the added term left out, one function", one, promised=[dudley_bound(torch.ones(1, k)) for k in sizes])


def haussler(run: Run, line: int) -> None:
    """Classes of known VC dimension; and the printed bound near distance 1."""
    plane = run.randn(14, 2)
    kinds: list[tuple[int, Tensor]] = [
        (2, labelings_with_changes(line, 1)),
        (3, labelings_with_changes(min(line, 40), 2)),
        (3, realizable_dichotomies(plane, bias=True).labels),
    ]
    alphas = (0.25, 0.5, 0.75, 1.0, 1.5)
    packed, bounds = [], []
    for dimension, values in kinds:
        radii = separation_radii(values)
        for alpha in alphas:
            packed.append(int((radii > alpha).sum()))
            bounds.append(haussler_bound(dimension, alpha))
    every = separation_radii(all_labelings(10))
    says = run.states("A-44", r"N_\alpha\le M_\alpha\le e(V+1)(8e/\alpha^2)^V")
    says.at_most(
        packed,
        bounds,
        loose="8e for every dimension comes from counting labelings of a sample; packings of intervals have 1/α²",
        where="greedy packings of thresholds, functions with two changes, half-planes; "
        "thresholds in both directions have V = 2, the others 3",
    )
    says.fails(
        "all labelings of 10 points, with V = 1 instead of 10",
        [int((every > a).sum()) for a in (0.5, 0.6)],
        promised=[haussler_bound(1, a) for a in (0.5, 0.6)],
    )
    near = 1 - 1e-6
    thresholds = labelings_with_changes(min(line, 60), 1)
    run.refutes("haussler-near-one", r"\ln N_\alpha\le K\,V\,\ln(1/\alpha),\quad\alpha=1-10^{-6},\ K=1000").at_most(
        math.log(covering_number(thresholds, near)),
        1000 * 2 * math.log(1 / near),
        where="the right side vanishes at α = 1, while the diameter of the class is 2",
    )


def manifolds(run: Run, points: int) -> dict[str, tuple[int, Interval]]:
    """The dimension of a set from its covering numbers."""
    sphere = run.randn(points, 3)
    sphere = sphere / sphere.norm(dim=1, keepdim=True)
    angle, other = 2 * math.pi * run.rand(points), 2 * math.pi * run.rand(points)
    circle = torch.stack([angle.cos(), angle.sin()], 1)
    torus = torch.cat([circle, torch.stack([other.cos(), other.sin()], 1)], 1)
    sets = {"circle": (1, circle), "sphere": (2, sphere), "torus": (2, torus)}
    slopes = {name: (d, covering_dimension(x, largest=100)) for name, (d, x) in sets.items()}
    errors = [abs(s.estimate - d) for d, s in slopes.values()]
    says = run.states(
        "A-44",
        r"\ln N_\alpha\sim d\,\ln(1/\alpha) \text{ on a compact } d\text{-manifold}:\ |\text{slope}-d|\le\tfrac14",
    )
    says.at_most(errors, 0.25, where="circle, sphere, torus; between 10 and 100 balls")
    says.fails("the sphere taken for a curve", abs(slopes["sphere"][1].estimate - 1))
    return slopes


def plot_profile(axis: Any, line: int) -> None:
    values = labelings_with_changes(line, 1)
    alphas = torch.logspace(-0.8, 0.3, 60).tolist()
    radii = separation_radii(values)
    bounds = [(int((radii > 2 * a).sum()), int((radii > a).sum())) for a in alphas]
    axis.fill_between(alphas, *zip(*bounds, strict=True), alpha=0.3, label="between greedy bounds")
    few = alphas[::12]
    axis.plot(few, [covering_number(values, a) for a in few], "o", color=COLORS[6], label="exact")
    axis.plot(alphas, [haussler_bound(2, a) for a in alphas], "--", color=COLORS[1], label="Haussler")
    axis.set(xscale="log", yscale="log", xlabel="α", ylabel=r"$N_\alpha$")
    axis.set_xticks([0.2, 0.5, 1, 2], ["0.2", "0.5", "1", "2"])
    axis.minorticks_off()
    axis.legend()


@lab(
    "vc-pipeline",
    room="generalization",
    covers=["A-45"],
    title="From the VC dimension to the gap: every link of the chain, and where it turns empty",
    full={"trials": 1000, "sizes": 8},
    least={"trials": 20, "sizes": 4, "grid": 32},
)
def vc_pipeline(run: Run, trials: int = 60, sizes: int = 5, grid: int = 128) -> None:
    """Thresholds on a line with noisy labels; every link of the chain is computed.

    The expected worst gap, twice the Rademacher complexity of the losses, Dudley's integral over
    the covers of the sample, the same with Haussler's bound in place of the covers, and last a
    constant times the root of V/m. Each is at most the next. Look at the figure for where each
    falls below 1, which is where it begins to say something.

    Args:
        trials: samples of each size.
        sizes: how many sizes there are: 25, 50, 100 and so on.
        grid: points that thresholds are distinguished by.
    """
    functions = labelings_with_changes(grid, 1)
    x = torch.arange(grid).double().repeat(2)
    truth = torch.where(torch.arange(grid) < grid // 3, -1.0, 1.0).double()
    noise = torch.cat([torch.full((grid,), 0.8), torch.full((grid,), 0.2)]).double() / grid
    law = FiniteDistribution.of(x, torch.cat([truth, -truth]), noise)
    errors = (1 - functions[:, law.where] * law.labels) / 2
    risk = errors @ law.mass

    def mean_gap(drawn: Tensor) -> Tensor:
        return (risk - law.empirical_masses(drawn) @ errors.T).abs().amax(1).mean()

    rows, repeated = [], []
    for m in run.track([25 * 2**k for k in range(sizes)], "sizes"):
        drawn = law.draw(trials, m, generator=run.generator)
        gap = mean_gap(drawn)
        repeated.append(float(mean_gap(law.draw(trials, 25, generator=run.generator))))
        sample = [errors[:, s] for s in drawn[: max(5, trials // 12)]]
        complexity = [
            estimate_rademacher(finite_class(v), m, draws=100, generator=run.generator).estimate for v in sample
        ]
        cover = [dudley_bound(torch.unique(v, dim=0)) for v in sample]
        chain = vc_rademacher_bound(2, m)
        rows.append((
            m, float(gap), 2 * sum(complexity) / len(sample), 2 * sum(cover) / len(sample),
            2 * chain,
        ))  # fmt: skip
    m, gap_means, radii, covers, ends = (torch.tensor(c, dtype=torch.float64) for c in zip(*rows, strict=True))
    says = run.states("A-45", r"\mathbb E\sup_f|R-R_S|\le2\mathfrak R_m(\mathcal G)")
    says.at_most(gap_means, radii, where="the class is closed under negation, so one side is both sides")
    says.fails("25 points, each written m/25 times", repeated)
    says = run.states("A-45", r"\mathfrak R_m(\mathcal G)\le\text{Dudley's integral over the covers}")
    says.at_most(
        radii,
        covers,
        loose="at its coarse end the integral is four times what any complexity can be, and finer scales cost 12 each",
    )
    says.fails(
        "covers of one function in place of the class", radii, promised=[dudley_bound(errors[:1, : int(n)]) for n in m]
    )
    first = math.ceil((2 * vc_rademacher_bound(2, 1)) ** 2) + 1  # where the last link is below 1
    says = run.states("A-45", r"\text{Dudley over the covers}\le\text{Dudley over Haussler's bound, } V=2")
    says.at_most(covers, ends)
    says.fails(
        f"all 0-1 functions of {first} points, charged as if V were 2: Dudley's integral is "
        "at least their complexity 1/2",
        1.0,
        promised=2 * vc_rademacher_bound(2, first),
    )
    constant = vc_rademacher_bound(2, 1) * 2 / math.sqrt(2)
    says = run.states("A-45", r"\ldots=c\sqrt{V/m}:\ m\text{-independent } c")
    says.equal(ends * (m / 2).sqrt(), constant, 1e-12)
    says.fails("the rate 1/m instead", ends * m / 2)
    says = run.states("A-45", r"\mathbb E\sup_f|R-R_S|\sim m^{-1/2}")
    says.slope(m, gap_means, -0.5, against=(-1.0, -1 / 3))
    says.fails("25 points, each written m/25 times", m, repeated)
    run.table(
        "links",
        ["m", "worst gap", "2 R", "2 Dudley (covers)", "2 Dudley (Haussler)"],
        rows,
        caption=f"V = 2, {trials} samples a row. A gap is at most 1: the last column is below it from m = {first} on",
    )
    run.curves(
        "links",
        m,
        {
            "expected worst gap": gap_means,
            "twice the Rademacher complexity": radii,
            "Dudley, covers of the sample": covers,
            "Dudley, Haussler's bound": ends,
        },
        {"vacuous above": 1},
        axes=("samples m", "bound on the gap"),
        log="xy",
        beside=True,
        caption="Every link of the chain against the sample size: all fall like $m^{-1/2}$, and "
        "above the dashed line they say nothing.",
    )
