"""How well a class fits coin flips, and what a Lipschitz function does to that."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.generalization.complexity.rademacher import (
    estimate_rademacher,
    exact_rademacher,
    finite_class,
    linear_bounds,
    linear_class,
    massart_bound,
)
from torchtheory.generalization.complexity.symmetrization import expected_rademacher
from torchtheory.generalization.learning.finite_distributions import FiniteDistribution
from torchtheory.generalization.vc.hypothesis_sets import all_labelings, labelings_with_changes
from torchtheory.labs.engine import Run, lab, mean_interval


@lab(
    "rademacher-complexity",
    room="generalization",
    covers=["M-41", "M-42", "M-46", "M-51", "B-02"],
    title="Rademacher complexity: zero for one function, one for a class that fits every noise",
    errata=["linear-class-supremum-inside"],
    full={"samples": 14, "classes": 100, "draws": 20_000},
    least={"samples": 4, "classes": 2, "draws": 100},
)
def rademacher_complexity(run: Run, samples: int = 10, classes: int = 20, draws: int = 4000) -> None:
    """The empirical complexity is computed over all signs, and estimated where these are too many.

    First the definition: one function has none, a class that shatters the sample has all of it,
    larger classes have more, and sums of classes add up. Then the estimate from random signs, whose
    interval must contain the exact value. Then the bounds: Massart's for finite classes, and the
    two for linear ones, which orthonormal points attain. Last, the complexity of a random sample
    stays near its mean. Look at the figure for how thresholds and linear functions leave noise
    unfitted as the sample grows, while the class of all labelings fits it forever.

    Args:
        samples: for which all signs are listed.
        classes: random classes of functions.
        draws: of signs for the Monte Carlo estimate.
    """
    definition(run, samples, classes)
    estimate(run, samples, draws)
    finite_bounds(run, samples, classes)
    linear_functions(run, samples, classes)
    concentration(run)
    complexity_growth(run, draws)


def complexities(sets: Iterable[Tensor], *, absolute: bool = False) -> Tensor:
    """Exact complexity of every finite class `[h, m]`."""
    each = [exact_rademacher(finite_class(v, absolute=absolute), v.shape[1]) for v in sets]
    return torch.tensor(each, dtype=torch.float64)


def definition(run: Run, m: int, classes: int) -> None:
    """Exact values that need no theory."""
    ones = [run.randn(1, m) for _ in range(classes)]
    says = run.states(["M-41", "B-02"], r"|\mathcal F|=1:\ \hat R_S(\mathcal F)=0")
    says.equal(complexities(ones), within=1e-15)
    says.fails("the absolute value inside the supremum", complexities(ones, absolute=True))
    every, few = all_labelings(m), labelings_with_changes(m, m // 2)
    says = run.states("M-41", r"\text{a class with every labeling } \pm1 \text{ of } S:\ \hat R_S(\mathcal F)=1")
    says.equal(exact_rademacher(finite_class(every), m), 1)
    says.fails(f"at most {m // 2} changes of sign", exact_rademacher(finite_class(few), m))
    y = run.signs(m)
    says = run.states("B-02", r"\text{its 0-1 losses } (1-yf)/2:\ \hat R_S=\tfrac12")
    says.equal(
        exact_rademacher(finite_class((1 - every * y) / 2), m),
        0.5,
        where="so the bound on the risk is at least 1: no information",
    )
    says.fails(f"at most {m // 2} changes of sign", exact_rademacher(finite_class((1 - few * y) / 2), m))
    sets = [run.randn(6, m) for _ in range(classes)]
    values = complexities(sets)
    says = run.states("M-41", r"\hat R_S(-\mathcal F)=\hat R_S(\mathcal F)")
    says.equal(complexities(-v for v in sets), values, 1e-14)
    says.fails("the absolute values of the functions instead", complexities(v.abs() for v in sets))
    says = run.states("M-41", r"\mathcal F\subset\mathcal G\Rightarrow\hat R_S(\mathcal F)\le\hat R_S(\mathcal G)")
    says.at_most(complexities(v[:4] for v in sets), values)
    says.fails("a class of as many functions that are not in G", complexities(2 * v[:4] for v in sets))
    other = [run.randn(5, m) for _ in range(classes)]
    apart = complexities(other)
    says = run.states("M-51", r"\hat R_S(\mathcal F+\mathcal F')=\hat R_S(\mathcal F)+\hat R_S(\mathcal F')")
    says.equal(
        complexities((v[:, None] + w).reshape(-1, m) for v, w in zip(sets, other, strict=True)),
        values + apart,
        1e-13,
        where="asked for as an inequality; over all pairs of functions it is an equality",
    )
    says.fails(
        "only the sums of the k-th function with the k-th",
        complexities(v[:5] + w for v, w in zip(sets, other, strict=True)),
    )


def estimate(run: Run, m: int, draws: int) -> None:
    """Random signs against all signs."""
    both_ways = labelings_with_changes(m, 1)
    supremum = finite_class(both_ways)
    exact = exact_rademacher(supremum, m)
    one_way = exact_rademacher(finite_class(both_ways[both_ways[:, 0] > 0]), m)
    fair = estimate_rademacher(supremum, m, draws=draws, generator=run.generator)
    biased = mean_interval(supremum((run.rand(draws, m) < 0.75).double() * 2 - 1))
    says = run.states(
        "M-41", r"\tfrac1N\sum_{k\le N}\sup_f\tfrac1m\sum_i\sigma^{(k)}_if(z_i)\approx\hat R_S(\mathcal F)"
    )
    says.mean(
        fair,
        exact,
        against=(one_way, math.sqrt(2 * math.log(2 * m) / m)),  # one direction; Massart's bound
        where="thresholds in both directions",
    )
    says.fails("signs that are +1 with probability 3/4", biased)


def finite_bounds(run: Run, m: int, classes: int) -> None:
    """Massart's lemma."""
    every = all_labelings(m)  # the class for which the lemma is nearly sharp
    sets = [run.rand(2**k, m) for k in range(1, 7) for _ in range(max(1, classes // 6))] + [(every + 1) / 2]
    exact = complexities(sets)
    bounds = [math.sqrt(2 * math.log(len(v)) / m) for v in sets]
    says = run.states("B-02", r"f\in[0,1]:\ \hat R_S(\mathcal F)\le\sqrt{2\ln|\mathcal F|/m}")
    says.at_most(exact, bounds, where="random classes, and all 0-1 functions on the sample")
    says.fails("functions with values in [0, 8]", complexities(8 * v for v in sets))
    sets[-1] = every
    exact = complexities(sets)
    sharper = [massart_bound(v) for v in sets]
    says = run.states("B-02", r"\hat R_S(\mathcal F)\le\tfrac1m\max_f\|f(S)\|_2\sqrt{2\ln|\mathcal F|}")
    says.at_most(exact, sharper, where="random classes, and all signs on the sample")
    says.fails(
        "functions nine times as long added to the class, but not to the bound",
        complexities(torch.cat([v, 9 * v]) for v in sets),
    )


def linear_functions(run: Run, m: int, classes: int) -> None:
    """Lemma 63, and where it is sharp."""
    radius = 1.5
    rows, exact, data, worst, longer, wider = [], [], [], [], [], []
    for d in (1, 2, 5, 2 * m):
        for _ in range(max(1, classes // 4)):
            x = run.randn(m, d)
            exact.append(exact_rademacher(linear_class(x, radius), m))
            bounds = linear_bounds(x, radius)
            data.append(bounds[0])
            worst.append(bounds[1])
            longer.append(exact_rademacher(linear_class(x, 2 * radius), m))
            wider.append(linear_bounds(x, 2 * radius)[0])
        rows.append((f"Gaussian, d = {d}", exact[-1], data[-1], worst[-1]))
    says = run.states(
        "M-46",
        r"\hat R_S=\tfrac Wm\mathbb E\bigl\|\sum_i\sigma_ix_i\bigr\|\le\tfrac Wm\sqrt{\textstyle\sum_i\|x_i\|^2}",
    )
    says.at_most(exact, data)
    says.fails("weights of norm up to 2W", longer)
    says = run.states("M-46", r"\tfrac Wm\sqrt{\textstyle\sum_i\|x_i\|^2}\le WD/\sqrt m,\quad D=\max_i\|x_i\|")
    says.at_most(data, worst)
    says.fails("weights of norm up to 2W", wider)
    orthogonal = torch.linalg.qr(run.randn(m, m))[0]
    attained = exact_rademacher(linear_class(orthogonal, radius), m)
    repeated = exact_rademacher(linear_class(orthogonal[:1].expand(m, m), radius), m)
    says = run.states("M-46", r"x_1,\dots,x_m \text{ orthonormal}:\ \hat R_S=W/\sqrt m")
    says.equal(attained, radius / math.sqrt(m), 1e-14)
    says.fails("the same unit vector m times", repeated)
    run.refutes(
        "linear-class-supremum-inside", r"\tfrac1m\mathbb E_\sigma\sum_i\sup_f\sigma_if(z_i)=\hat R_S(\mathcal F)"
    ).equal(
        attained,
        radius * float(orthogonal.norm(dim=1).mean()),
        1e-9,
        where="orthonormal points: the left side is W whatever m",
    )
    rows.append(("orthonormal", attained, *linear_bounds(orthogonal, radius)))
    run.table(
        "linear-classes",
        ["points", "exact", "bound from the sample", "bound from the largest norm"],
        rows,
        caption=f"Complexity of linear functions with ‖w‖ ≤ {radius} on {m} points",
    )


def concentration(run: Run) -> None:
    """The complexity of the sample against its mean."""
    law = FiniteDistribution.of(torch.arange(4.0).double(), torch.zeros(4).double())
    values = run.rand(6, 4)
    sizes = [2, 4, 6, 8]
    spreads, errors = [], []
    for m in sizes:
        drawn, chance = law.all_samples(m)
        each = complexities(values[:, s] for s in drawn)
        mean = float(each @ chance)
        errors.append(mean - expected_rademacher(law, values, m))
        spreads.append(float(((each - mean) ** 2 @ chance).sqrt()))
    # half of the mass on a point where all functions vanish, and all functions on the rest: the
    # complexity is half of the share that falls there, and a point moves it by 1/(2m)
    spreads += [_spread_of_share(m) for m in sizes]
    limit = [1 / (2 * math.sqrt(m)) for m in sizes]
    says = run.states("M-42", r"f\in[0,1]:\ \bigl(\mathbb E_S(\hat R_S-R_m)^2\bigr)^{1/2}\le\tfrac1{2\sqrt m}")
    says.at_most(
        spreads,
        limit * 2,
        where="exact sums over all samples; one changed point moves the complexity by 1/m at most; six random "
        "functions on four points, and all functions on half of the space",
    )
    says.fails("functions with values in [0, 3]", [_spread_of_share(m, largest=3.0) for m in sizes], promised=limit)
    says = run.states("M-42", r"\mathbb E_S\hat R_S(\mathcal F)=R_m(\mathcal F):\ \text{difference}")
    says.equal(errors, within=1e-13, where="mean over samples of means over signs, against one sum over signed samples")
    says.fails(
        "with the absolute value on one side only",
        [
            e + expected_rademacher(law, values, m) - expected_rademacher(law, values, m, absolute=True)
            for e, m in zip(errors, sizes, strict=True)
        ],
    )


def _spread_of_share(m: int, largest: float = 1.0) -> float:
    """Standard deviation of the complexity where each point is free with probability 1/2."""
    each = []
    for free in range(m + 1):
        values = torch.zeros(2**free, m, dtype=torch.float64)
        values[:, :free] = largest * (all_labelings(free) + 1) / 2 if free else 0.0
        each.append(values)
    found = complexities(each)
    chance = torch.tensor([math.comb(m, k) / 2**m for k in range(m + 1)], dtype=torch.float64)
    mean = found @ chance
    return float(((found - mean) ** 2 @ chance).sqrt())


def complexity_growth(run: Run, draws: int) -> None:
    """Complexities and bounds for growing samples."""
    sizes = (4, 8, 16, 32, 64, 128)
    thresholds, linear = "thresholds", "linear, ‖w‖ ≤ 1"
    found: dict[str, list[float]] = {thresholds: [], linear: [], "all labelings": [1.0] * len(sizes)}
    bounds: dict[str, list[float]] = {thresholds: [], linear: []}
    for m in sizes:
        labelings = labelings_with_changes(m, 1)
        x = run.randn(m, 2)
        x = x / x.norm(dim=1, keepdim=True)
        for name, supremum in ((thresholds, finite_class(labelings)), (linear, linear_class(x))):
            value = estimate_rademacher(supremum, m, draws=min(draws, 2000), generator=run.generator)
            found[name].append(value.estimate)
        bounds[thresholds].append(massart_bound(labelings))
        bounds[linear].append(linear_bounds(x)[1])
    run.curves(
        "growth",
        sizes,
        found,
        bounds,
        axes=("samples m", "Rademacher complexity"),
        log="xy",
        caption="Empirical complexity against sample size, with Massart's bound for thresholds and 1/√m for "
        "linear classes (dashed); the class of all labelings stays at 1.",
    )


@lab(
    "contraction",
    room="generalization",
    covers=["M-47", "A-65"],
    title="A Lipschitz function applied to a class does not make it more complex",
    full={"samples": 12, "classes": 300},
    least={"samples": 3, "classes": 10},
)
def contraction(run: Run, samples: int = 8, classes: int = 40) -> None:
    """Random finite classes are passed through activations, and all signs are enumerated.

    Without absolute values the complexity grows at most by the Lipschitz constant, whatever the
    function does at 0. With absolute values inside the supremum it may double, and the function
    must vanish at 0. Look at the figure: the ratio stays below 1, and comes near it for the
    functions that are close to linear.

    Args:
        samples: for which all signs are listed.
        classes: random classes of functions.
    """
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "ReLU": torch.relu,
        "tanh": torch.tanh,
        "|t|": torch.abs,
        "clip to [0, 1]": lambda t: t.clamp(0, 1),
        "sin(t) + 1": lambda t: t.sin() + 1,
        "softplus": F.softplus,
    }
    scales = torch.linspace(0.1, 2, classes).tolist()
    sets = [s * run.randn(2 + k % 9, samples) for k, s in enumerate(scales)]
    plain = complexities(sets)
    both = complexities(sets, absolute=True)
    ratios = {}
    after, double = [], []
    for name, function in functions.items():
        one = complexities(function(v) for v in sets)
        ratios[name] = (one / plain).tolist()
        after.append(one)
        if float(function(torch.zeros(1))) == 0:
            double.append(complexities((function(v) for v in sets), absolute=True))
    steep = complexities((4 * v).clamp(0, 4) for v in sets)
    says = run.states("M-47", r"\phi\ L\text{-Lipschitz}:\ \hat R_S(\phi\circ\mathcal F)\le L\,\hat R_S(\mathcal F)")
    says.at_most(
        torch.cat(after),
        plain.repeat(len(functions)),
        1e-14,
        where="six functions with L = 1, of which two do not vanish at 0",
    )
    says.fails("a ramp of slope 4 taken for 1-Lipschitz", steep, promised=plain)
    shifted = complexities((torch.relu(0.1 * v) + 3 for v in sets), absolute=True)
    says = run.states(
        "A-65",
        r"\varrho\ 1\text{-Lipschitz},\ \varrho(0)=0:\ "
        r"\mathfrak R(\varrho\circ\mathcal F)\le2\,\mathfrak R(\mathcal F) \text{ with } |\cdot|",
    )
    says.at_most(torch.cat(double), 2 * both.repeat(len(double)))
    says.fails("ϱ(t) = max(t, 0) + 3 on a small class", shifted, promised=0.2 * both)
    run.table(
        "ratios",
        ["function", "largest ratio", "mean ratio"],
        [(name, max(r), sum(r) / len(r)) for name, r in ratios.items()],
        caption=f"Complexity after over complexity before, {classes} random classes",
    )
    run.figure(
        "ratios",
        lambda axis: plot_ratios(axis, ratios),
        caption="Complexity after the function over complexity before, class by class; the lemma says at most 1.",
    )


def plot_ratios(axis: Any, ratios: dict[str, list[float]]) -> None:
    for k, values in enumerate(ratios.values()):
        spread = [k + 0.3 * (i / len(values) - 0.5) for i in range(len(values))]
        axis.plot(spread, values, ".", markersize=4)
    axis.axhline(1, color="0.3", linestyle="--", linewidth=1)
    axis.set_xticks(range(len(ratios)), list(ratios), rotation=15)
    axis.set(ylabel="ratio of complexities", ylim=(0, 1.1))
