"""Capacity that depends on the distribution, and the VC dimensions of a printed table."""

from __future__ import annotations

import math
from itertools import combinations

import torch
from torch import Tensor

from torchtheory.generalization.vc.bounds import growth_radius
from torchtheory.generalization.vc.growth import growth_thresholds, intervals, log_labelings, thresholds
from torchtheory.generalization.vc.networks import piecewise_linear_vc_order
from torchtheory.labs.engine import Run, lab, mean_interval

#: Networks of the table: weights, layers of weights, printed VC dimension in millions.
COLUMNS = {
    "600": (471_000, 2, 26),
    "1200": (943_000, 2, 56),
    "300²": (326_000, 3, 26),
    "600²": (832_000, 3, 66),
    "1200²": (2_384_000, 3, 187),
    "600³": (1_193_000, 4, 121),
}
SAMPLES = 55_000
ATOMS = 5


@lab(
    "vc-entropy",
    room="generalization",
    covers=["M-31", "M-66"],
    title="The VC entropy of a distribution lies below the growth function; VC bounds of real networks are vacuous",
    full={"trials": 5000},
    least={"trials": 40, "points": 2},
)
def vc_entropy(run: Run, trials: int = 400, points: int = 12) -> None:
    """Thresholds and intervals on a line, once with points from a density and once from few atoms.

    The growth function counts the labelings of the worst sample, the VC entropy those of a typical
    one. With a density both are the same here; where points repeat, the entropy is smaller, and is
    known exactly. Then the VC dimensions printed for networks on MNIST: what their bound says about
    an error rate, and which of their sizes they follow.

    Args:
        trials: samples that the entropy is averaged over.
        points: in a sample.
    """
    entropy(run, trials, points)
    printed_table(run)
    sizes = range(1, 2 * points + 1)
    run.curves(
        "entropy",
        list(sizes),
        {
            "a density": [mean_interval(log_labelings(thresholds, run.rand(60, n, 1))) for n in sizes],
            "five atoms": [mean_interval(log_labelings(thresholds, atom_samples(run, 60, n))) for n in sizes],
        },
        {
            "a density": [math.log(growth_thresholds(n)) for n in sizes],
            "five atoms": [entropy_of_atoms(n) for n in sizes],
        },
        axes=("points in a sample", "mean of ln(number of labelings)"),
        caption="Thresholds: measured, and (dashed) the logarithm of the growth function and the exact entropy of "
        "five atoms, which stays below ln 6 for samples of any size.",
    )


def atom_samples(run: Run, trials: int, n: int) -> Tensor:
    return torch.randint(ATOMS, (trials, n, 1), generator=run.generator).double()


def entropy_of_atoms(n: int) -> float:
    """E ln(D + 1) for D different ones among n draws, by inclusion and exclusion over those missed."""
    k = ATOMS
    shares = [
        math.comb(k, d) * sum((-1) ** j * math.comb(d, j) * ((d - j) / k) ** n for j in range(d + 1))
        for d in range(1, k + 1)
    ]
    return math.fsum(share * math.log(d + 1) for d, share in enumerate(shares, start=1))


def entropy(run: Run, trials: int, n: int) -> None:
    continuous, atoms = run.rand(trials, n, 1), atom_samples(run, trials, n)
    says = run.states(
        "M-31",
        r"\mathbb E\ln|\mathcal F_z|=\ln S_{\mathcal F}(n) \text{ for thresholds, where } P \text{ has a density}",
    )
    largest = math.log(growth_thresholds(n))
    says.equal(log_labelings(thresholds, continuous), largest, 1e-12, where=f"{trials} samples of {n} points")
    says.fails("five atoms", log_labelings(thresholds, atoms))
    says = run.states(
        "M-31", r"\mathbb E\ln|\mathcal F_z|=\mathbb E\ln(D+1)<\ln S_{\mathcal F}(n),\ D \text{ different atoms}"
    )
    few = log_labelings(thresholds, atoms)
    says.mean(few, entropy_of_atoms(n), against=(largest, math.log(ATOMS)), confidence=0.9999)
    says.fails(
        "a density in place of the atoms",
        log_labelings(thresholds, run.rand(trials, n, 1) + 1e-3 * run.rand(trials, n, 1)),
    )
    says = run.states("M-31", r"\mathbb E\ln|\mathcal F_z|\le\ln S_{\mathcal F}(n)")
    says.at_most(
        torch.stack([log_labelings(intervals, part).mean() for part in (continuous[:40], atoms[:40])]),
        math.log(n * (n + 1) // 2 + 1),
        1e-9,
        where="intervals, from a density and from atoms",
    )
    says.fails("a sample of three more points than n", log_labelings(intervals, run.rand(20, n + 3, 1)).mean())


def printed_table(run: Run) -> None:
    names = list(COLUMNS)
    dimensions = [1_000_000 * COLUMNS[k][2] for k in names]
    bounds = [growth_radius(h * (1 + math.log(2 * SAMPLES)), SAMPLES, 0.05) for h in dimensions]
    says = run.states(
        "M-66", r"2\sqrt{2(h(\log2n+1)+\log\tfrac2\delta)/n} \text{ for } n=55000 \text{ lies between 218 and 586}"
    )
    says.equal(
        [min(bounds), max(bounds)], [218.0, 586.0], 0.005, where="an error rate is at most 1: vacuous everywhere"
    )
    enough = [growth_radius(h * (1 + math.log(2e12)), 10**12, 0.05) for h in (min(dimensions), max(dimensions))]
    says.fails("a trillion samples", enough)
    sizes = [piecewise_linear_vc_order(COLUMNS[k][0], COLUMNS[k][1]) for k in names]

    def inversions(order: list[float]) -> int:
        """Pairs of networks that are ordered differently by the printed dimension."""
        return sum(
            (order[i] - order[j]) * (dimensions[i] - dimensions[j]) < 0 for i, j in combinations(range(len(names)), 2)
        )

    says = run.states(
        "M-66", r"W\,L\log_2W \text{ orders the networks as the printed VC dimensions: pairs that differ}"
    )
    says.equal(inversions(sizes))
    says.fails("the number of weights alone", inversions([float(COLUMNS[k][0]) for k in names]))
    run.table(
        "columns",
        ("network", "weights", "layers", "printed VC dimension", "W L log W", "bound on the error"),
        [
            (k, COLUMNS[k][0], COLUMNS[k][1], h, s, b)
            for k, h, s, b in zip(names, dimensions, sizes, bounds, strict=True)
        ],
    )
