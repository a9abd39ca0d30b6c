"""Bounds on the risk from the growth function and from the VC dimension, and how loose they are."""

from __future__ import annotations

import math

import torch
from scipy import stats
from torch import Tensor

from torchtheory.generalization.vc.bounds import (
    growth_radius,
    vc_radius,
    vc_rate,
    vc_sample_size,
)
from torchtheory.generalization.vc.growth import (
    growth_halfspaces,
    growth_signed_thresholds,
    log_sauer_polynomial,
)
from torchtheory.labs.engine import Interval, Run, lab, quantile_interval

DELTA = 0.05
NOISE = 0.1


@lab(
    "vc-generalization-bounds",
    room="generalization",
    covers=["M-35", "M-39", "A-38"],
    title="Few labelings, small gap: the growth function bounds the worst gap over a class",
    errata=["vc-theorem-without-confidence"],
    full={"trials": 2000, "sizes": (100, 200, 400, 800, 1600, 3200)},
    least={"trials": 100, "sizes": 50},
    items={"sizes": 4},
)
def vc_generalization_bounds(run: Run, trials: int = 500, sizes: tuple[int, ...] = (200, 400, 800, 1600)) -> None:
    """All thresholds of a line, either sign, on noisy labels: the worst gap is known exactly.

    The risk of a threshold is a formula and the empirical risks are piecewise constant, so the
    supremum over the class is a maximum over the sample. The bounds from the growth function and
    from the VC dimension hold in every trial, and are an order of magnitude too large; the class
    of all functions, charged as if its VC dimension were 2, breaks them. The bound "up to a
    constant" is calibrated: the table has the least constant that covers. Look at the figure: all
    curves fall like $n^{-1/2}$, at very different heights.

    Args:
        trials: samples of each size.
        sizes: of the samples.
    """
    run.assumes(max(sizes) >= 200, f"with samples of {max(sizes)} every bound is vacuous")
    golden(run)
    gaps = {n: worst_gaps(run, n, trials) for n in sizes}
    coverage(run, gaps)
    calibration(run, gaps)
    degenerate(run)
    n = list(gaps)
    run.curves(
        "gaps",
        n,
        {
            "measured, 95 % quantile": [float(gaps[k].quantile(1 - DELTA)) for k in n],
            "measured, median": [float(gaps[k].median()) for k in n],
            "from the VC dimension": [vc_radius(2, k, DELTA) for k in n],
            "from the growth function": [growth_radius(math.log(growth_signed_thresholds(2 * k)), k, DELTA) for k in n],
            "up to a constant, c = 1": [vc_rate(2, k, DELTA) for k in n],
        },
        {"vacuous above": 1},
        axes=("n", "sup |R - R_S| over signed thresholds"),
        log="xy",
        beside=True,
        caption="The worst gap over all signed thresholds (median, and its 95 % quantile) and what "
        "the theorems promise with probability 95 %. The bounds that hold are some ten times too "
        "large; above the dashed line they say nothing.",
    )


def golden(run: Run) -> None:
    """Half-planes with a thousand samples, by hand."""
    count = 2 * (1 + 1999 + 1999 * 1998 // 2)
    first = growth_radius(math.log(growth_halfspaces(2000, 2)), 1000, DELTA)
    says = run.states(
        "M-35", r"S(2000)=2\,(1+1999+\tbinom{1999}2)=3\,998\,002,\quad 2\sqrt{2(\log S(2n)+\log(2/\delta))/n}=0.38874"
    )
    says.equal(
        [count, growth_halfspaces(2000, 2), first],
        [3_998_002, 3_998_002, 0.38874],
        5e-6,
        where="lines in the plane, n = 1000, δ = 0.05",
    )
    says.fails(
        "the growth function of n points instead of 2n",
        growth_radius(math.log(growth_halfspaces(1000, 2)), 1000, DELTA),
        promised=0.38874,
    )
    printed, sharp = vc_radius(3, 1000, DELTA), vc_radius(3, 1000, DELTA, sharp=True)
    says = run.states(
        "M-39", r"2\sqrt{2(h(\log(2n)+1)+\log(2/\delta))/n}=0.48573,\quad \text{with } h(\log(2n/h)+1):\ 0.45778"
    )
    says.equal([printed, sharp], [0.48573, 0.45778], 5e-6, where="h = 3, n = 1000, δ = 0.05")
    says.fails("h = 2", vc_radius(2, 1000, DELTA), promised=0.48573)
    small, large, most, short = [], [], [], []
    for d in range(1, 9):
        for n in (5, 20, 100, 1000, 10_000):
            exact = growth_radius(math.log(growth_halfspaces(2 * n, d)), n, DELTA)
            tight = growth_radius(log_sauer_polynomial(2 * n, d + 1), n, DELTA)
            small += [exact, tight]
            large += [vc_radius(d + 1, n, DELTA, sharp=True), vc_radius(d + 1, n, DELTA)]
            if n >= 100:
                most.append(tight)
                short.append(vc_radius(d, n, DELTA, sharp=True))
    says = run.states(["M-35", "M-39"], r"\log S(2n)\le h(\log(2n/h)+1)\le h(\log(2n)+1)")
    says.at_most(small, large, 1e-12, where="half-spaces, h = d + 1; each step loses something")
    says.fails(
        "a class of VC dimension d + 1 with as many labelings as it can have, charged for d", most, promised=short
    )


#: The proof goes from the gap to that of two samples, and bounds differences, of twice the range.
TOO_LARGE = (
    "the ghost sample and the doubled range of differences lose a factor of 2 each: even one function with fair "
    "labels, for which Hoeffding's exponent is exact, stays 4 times below"
)


def reach(gaps: Tensor) -> Interval:
    """What the gaps stay below with probability 1 - δ: their quantile."""
    return quantile_interval(gaps, 1 - DELTA, 0.999)


def risk(t: Tensor) -> Tensor:
    """Risk of the threshold t on uniform points whose labels are flipped with probability NOISE."""
    return NOISE + (1 - 2 * NOISE) * (t - 0.5).abs()


def worst_gaps(run: Run, n: int, trials: int) -> Tensor:
    """sup |R - R_S| over all thresholds for each of the samples; no grid, the supremum itself.

    Between two neighboring points the empirical risk is constant and the risk convex, so the
    extremes are at the points or at the best threshold. The other sign has the same |gap|.
    """
    x = run.rand(trials, n).sort(1).values
    flips = run.rand(trials, n) < NOISE
    positive = ((x > 0.5) ^ flips).double()
    below = torch.cat([torch.zeros(trials, 1).double(), positive.cumsum(1)], 1)
    above = (1 - positive).sum(1, keepdim=True) - (
        torch.arange(n + 1).double() - below
    )  # negatives that are called positive
    empirical = (below + above) / n
    left = torch.cat([torch.zeros(trials, 1).double(), x], 1)
    right = torch.cat([x, torch.ones(trials, 1).double()], 1)
    most = torch.maximum(risk(left), risk(right))
    middle = torch.full_like(left, 0.5)
    least = risk(torch.minimum(torch.maximum(middle, left), right))
    return torch.maximum((most - empirical).amax(1), (empirical - least).amax(1))


def coverage(run: Run, gaps: dict[int, Tensor]) -> None:
    """The theorem's radius covers; the class of all functions is not covered by it."""
    n = max(gaps)
    found = gaps[n]
    # one function and fair labels, where Hoeffding's exponent is the true one: an exact quantile
    rare = 1e-12
    coin = 0.5 - float(stats.binom.ppf(rare, n, 0.5)) / n
    says = run.states("M-35", r"|\mathcal F|=1:\ \Pr\bigl(R\le R_S+2\sqrt{2\log(2/\delta)/n}\bigr)\ge1-\delta")
    says.at_most(coin, growth_radius(0.0, n, rare), loose=TOO_LARGE, where=f"exact, a fair coin, n = {n}, δ = {rare}")
    says.fails("one draw repeated n times: half of the samples have no error", 0.5)
    for ids, statement, radius in (
        (
            ["M-35"],
            r"\Pr\Bigl(\forall f: R\le R_S+2\sqrt{2(\log S(2n)+\log(2/\delta))/n}\Bigr)\ge1-\delta",
            growth_radius(math.log(growth_signed_thresholds(2 * n)), n, DELTA),
        ),
        (
            ["M-39"],
            r"\Pr\Bigl(\forall f: R\le R_S+2\sqrt{2(h(\log(2n)+1)+\log(2/\delta))/n}\Bigr)"
            r"\ge1-\delta",
            vc_radius(2, n, DELTA),
        ),
    ):
        # right on the sample and wrong elsewhere: risk 1 - NOISE, empirical risk 0
        everything = torch.full_like(found, 1 - NOISE)
        says = run.states(ids, statement)
        says.at_most(
            reach(found),
            radius,
            loose=TOO_LARGE,
            where=f"quantile at 1 - δ; signed thresholds, h = 2, S(n) = 2n; n = {n}, {len(found)} samples",
        )
        says.fails("the class of all functions, charged as if its VC dimension were 2", reach(everything))


def calibration(run: Run, gaps: dict[int, Tensor]) -> None:
    """Which constant would the bound of unspecified constant need here?"""
    rows, needed = [], []
    for n, found in gaps.items():
        quantile = float(found.quantile(1 - DELTA))
        needed.append(quantile / vc_rate(2, n, DELTA))
        rows.append(
            [n, found.median(), quantile, needed[-1],
             growth_radius(math.log(growth_signed_thresholds(2 * n)), n, DELTA),
             vc_radius(2, n, DELTA)]
        )  # fmt: skip
    run.table(
        "worst-gap",
        ["n", "median of sup |R-$R_S$|", "95 % quantile", "least constant", "by growth", "by VC"],
        rows,
        caption="Signed thresholds of a line, h = 2. The constant is the one in c√((h+log 1/δ)/n).",
    )
    n = max(gaps)
    found = gaps[n]
    radius = vc_rate(2, n, DELTA, constant=1.0)
    says = run.states(
        "A-38",
        r"\Pr\bigl(\sup_f|R-R_S|\le c\sqrt{(h+\log(1/\delta))/n}\bigr)\ge1-\delta\ "
        r"\text{ for } c=1 \text{ in this example}",
    )
    says.at_most(
        reach(found),
        radius,
        where=f"quantile at 1 - δ; the least constant here is {needed[-1]:.3f}, and the theorem does not name one",
    )
    # right on the sample and wrong elsewhere: risk 1 - NOISE, empirical risk 0
    says.fails(
        "the class of all functions, charged as if its VC dimension were 2", reach(torch.full_like(found, 1 - NOISE))
    )
    dimensions = (1, 10, 100, 1000)
    first = [vc_sample_size(h, 1.0, DELTA) for h in dimensions]
    says = run.states("A-38", r"\varepsilon\le1\ \text{ from } n=m(h) \text{ on, and not before}")
    says.at_most(
        [vc_radius(h, n, DELTA) for h, n in zip(dimensions, first, strict=True)],
        1.0,
        where=f"h = {dimensions}: the bound with its constants says something from {first} samples on",
    )
    says.fails("one sample fewer", [vc_radius(h, n - 1, DELTA) for h, n in zip(dimensions, first, strict=True)])


def degenerate(run: Run) -> None:
    """One function, one sample, delta near 1: the right side vanishes and the left does not."""
    chances, promises = [], []
    for constant in (1.0, 10.0, 1000.0):
        delta = math.exp(-1 / (16 * constant**2))
        radius = constant * math.sqrt((0 + math.log(1 / delta)) / 1)
        # a fair coin: R = 1/2 and R_S is 0 or 1, so the gap is 1/2 always
        chances.append(float(radius >= 0.5))
        promises.append(1 - delta)
    run.refutes(
        "vc-theorem-without-confidence",
        r"\exists c\ \forall\mathcal F,Z,m,\delta\in(0,1):\ "
        r"\Pr\bigl(\sup_f|R-R_S|\le c\sqrt{(h+\log(1/\delta))/m}\bigr)\ge1-\delta",
    ).at_least(
        chances, promises, where="one function, labels that are fair coins, m = 1, and δ near 1 after c was chosen"
    )
