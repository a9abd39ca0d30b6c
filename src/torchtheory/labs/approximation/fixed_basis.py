"""Adaptive units against a basis fixed in advance."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchtheory.approximation.barron.fixed_basis import (
    fixed_basis_floor,
    fourier_basis_error,
    lattice_shells,
    network_beats_every_basis,
)
from torchtheory.approximation.barron.sampled_networks import barron_network
from torchtheory.approximation.barron.spectra import PlaneWaves
from torchtheory.labs.engine import Run, fit_slope, lab, mean_interval

CONSTANT = 2 * math.pi


@lab(
    "adaptive-against-fixed-basis",
    room="approximation",
    covers=["L-102", "X-19"],
    title="No k functions fixed in advance are good for all of Barron's class; k units are",
    full={"dimensions": (4, 6, 8, 12), "seeds": 50, "units": 4096},
    least={"seeds": 3, "units": 16, "members": 8, "dimensions": 4},
)
def fixed_basis_lab(
    run: Run,
    dimensions: tuple[int, ...] = (5, 8),
    seeds: int = 8,
    units: int = 512,
    members: int = 40,
) -> None:
    """The waves of whole frequencies in Barron's class defeat every basis of k functions.

    The bound on the worst error of any k-dimensional space is computed exactly from counts of
    lattice points. Random spaces and the lowest frequencies are measured against it; the lowest
    frequencies follow $k^{-2/d}$. Networks drawn by Barron's construction for members of the class
    err by at most dC²/k. From some k on that promise is below the floor of every basis. One smooth
    target alone can be easier: a basis that contains it has no error. Look at the two slopes.

    Args:
        dimensions: of the space, each 4 or more.
        seeds: networks drawn per wave.
        units: of the networks.
        members: functions in the largest basis that is drawn.
    """
    random_spaces(run, members)
    slopes(run, dimensions)
    networks(run, dimensions, seeds, units)
    crossing(run, dimensions)


def distances(space: Tensor, norms: Tensor) -> Tensor:
    """Squared distances of orthogonal functions with given squared norms from a space.

    The space is given by coordinates `[k, N]` in their orthonormal directions.
    """
    basis = torch.linalg.qr(space.T).Q
    outside: Tensor = 1 - basis.square().sum(1)
    return norms * outside


def best_distance(k: int, norms: Tensor) -> float:
    r"""The least worst squared distance $t$ of orthogonal functions from a space of k dimensions.

    Projections of rank k can have any shares $p_i\in[0,1]$ with $\sum p_i=k$ on their diagonal
    (Schur and Horn); those with $\rho_i(1-p_i)=t$ wherever $\rho_i>t$ are the best. The space is
    built by plane rotations and measured.
    """
    count, total = 0, 0.0
    ranked = norms.sort(descending=True).values
    while count < len(ranked):
        inverse = total + 1 / float(ranked[count])
        if (count + 1 - k) / inverse >= float(ranked[count]):
            break
        count, total = count + 1, inverse
    shares = 1 - (count - k) / total / ranked[:count]
    return float(distances(with_shares(shares.flip(0), k, len(ranked) - count), ranked).max())


def with_shares(rising: Tensor, k: int, others: int) -> Tensor:
    """An orthonormal basis `[k, N]` whose columns have given squared norms, falling from the last."""
    count = len(rising)
    rows = torch.zeros(k, count, dtype=torch.float64)
    rows[:, -k:] = torch.eye(k, dtype=torch.float64)
    for i in range(count - 1):
        # turn column i against the first later one that has enough, until i has its share
        have = rows.square().sum(0)
        j = i + 1 + int((have[i + 1 :] >= rising[i]).nonzero()[0])
        a, b, c = have[i], rows[:, i] @ rows[:, j], have[j]
        low, high = 0.0, math.pi / 2
        for _ in range(60):
            angle = (low + high) / 2
            met = math.cos(angle) ** 2 * a + 2 * math.sin(angle) * math.cos(angle) * b + math.sin(angle) ** 2 * c
            low, high = (angle, high) if met < rising[i] else (low, angle)
        cos, sin = math.cos(angle), math.sin(angle)
        rows[:, i], rows[:, j] = cos * rows[:, i] + sin * rows[:, j], cos * rows[:, j] - sin * rows[:, i]
    return torch.nn.functional.pad(rows.flip(1), (0, others))


def random_spaces(run: Run, members: int) -> None:
    """Spaces of k functions, at random and adapted, against the floor."""
    d = 2
    shells = lattice_shells(d, 8 * members)
    norms = torch.cat([torch.full((n,), CONSTANT**2 / (8 * math.pi**2 * q), dtype=torch.float64) for q, n in shells])
    ks = (members // 4, members // 2, members)
    floors = [fixed_basis_floor(k, d, CONSTANT) for k in ks]
    worst = [min(float(distances(run.randn(k, len(norms)), norms).max()) for _ in range(5)) for k in ks]
    lowest = [float(distances(torch.eye(k, len(norms)).double(), norms).max()) for k in ks]
    best = [best_distance(k, norms) for k in ks]
    # all functions of the class in one direction: a class of one dimension, not orthogonal
    one = torch.ones(1, len(norms)).double()
    collinear = float((norms * (1 - (one / one.norm()).square().sum())).max())
    says = run.states(
        "L-102",
        r"\dim V=k: \quad\sup_{f\in\Gamma_C}\operatorname{dist}(f,V)^2\ge"
        r"\max_N(1-\tfrac kN)\tfrac{C^2}{8\pi^2|\ell_N|^2}\text{, for random spaces and the best}",
    )
    says.at_least(worst + lowest + best, floors * 3)
    says.fails(
        "members that are multiples of one function instead of orthogonal: one basis function has them all",
        [collinear],
        promised=[floors[0]],
    )
    run.states("L-102", r"\text{the best space of }k\text{ functions is within twice the floor}").at_most(
        best, [2 * floor for floor in floors], where="waves of norms ρ_i, and shares 1 - t/ρ_i of them that add up to k"
    )
    says = run.states("L-102", r"\text{the }k\text{ lowest frequencies: worst member }C^2/(8\pi^2|\ell_{k+1}|^2)")
    says.equal(lowest, [fourier_basis_error(k, d, CONSTANT) for k in ks], 1e-12)
    says.fails(
        "the k highest frequencies of the list",
        [float(distances(torch.eye(len(norms)).double()[-k:], norms).max()) for k in ks],
    )


def slopes(run: Run, dimensions: tuple[int, ...]) -> None:
    """The exponent -2/d of the floor."""
    for d in dimensions:
        # lengths are whole square roots: far out, where shells are thin against their radius
        ks = [2**j for j in range(8, 27, 2)] if d <= 6 else [2**j for j in range(16, 33, 2)]
        floor = fit_slope(ks, [fixed_basis_floor(k, d) for k in ks])
        says = run.states(["L-102", "X-19"], rf"d={d}: \text{{the floor of every basis falls like }}k^{{-2/d}}")
        says.equal(floor.estimate, -2 / d, 0.05)
        says.fails(
            "functions of twice as many variables", fit_slope(ks, [fixed_basis_floor(k, 2 * d) for k in ks]).estimate
        )


def networks(run: Run, dimensions: tuple[int, ...], seeds: int, units: int) -> None:
    """Members of the class, each with its own network."""
    rows = []
    for d in dimensions:
        x = run.rand(300, d) - 0.5
        radius = math.sqrt(d) / 2
        for squared in (1, 2, 4):
            ell = torch.zeros(1, d, dtype=torch.float64)
            ell[0, :squared] = 1.0
            wave = PlaneWaves(
                torch.tensor([CONSTANT / (2 * math.pi * math.sqrt(squared))], dtype=torch.float64),
                2 * math.pi * ell,
            )
            errors = []
            with torch.no_grad():
                for _ in range(seeds):
                    net = barron_network(wave, units, radius, generator=run.generator).model
                    errors.append(float((net(x)[:, 0] - wave(x)).square().mean()))
            found = mean_interval(errors)
            rows.append([d, squared, found.estimate, found.high, d * CONSTANT**2 / units])
    run.states("L-102", rf"k={units}\text{{ units: }}\mathbb E\|f-f_k\|^2\le dC^2/k\text{{ for members}}").at_most(
        [r[3] for r in rows],
        [r[4] for r in rows],
        loose="the bound is for every measure on the ball around the cube, and the cube has its points at about half "
        "of the radius, where few steps are on",
    )
    run.table(
        "networks",
        ["d", "|ℓ|²", "error", "its 99 % end", "promised dC²/k"],
        rows,
        caption=f"Networks of {units} units for waves of the class, C = 2π",
    )


def crossing(run: Run, dimensions: tuple[int, ...]) -> None:
    """Where the promise for networks passes below every basis."""
    first = {d: network_beats_every_basis(d) for d in dimensions}
    says = run.states("L-102", r"\text{from some }k\text{ on }dC^2/k\text{ is below the floor of every fixed basis}")
    says.below([d / (2 * first[d]) for d in dimensions], [fixed_basis_floor(2 * first[d], d) for d in dimensions])
    says.fails(
        "a sixteenth as many units",
        [d / (first[d] // 16) for d in dimensions],
        promised=[fixed_basis_floor(first[d] // 16, d) for d in dimensions],
    )
    run.table(
        "crossing",
        ["d", "k from which units beat every basis", "promise dC²/k", "floor of every basis"],
        [[d, k, d / k, fixed_basis_floor(k, d)] for d, k in first.items()],
        caption="Worst case over Barron's class on the unit cube, C = 1",
    )
    run.figure(
        "floor",
        lambda axis: plot(axis, dimensions, first),
        caption="Any basis of k functions errs by at least the solid line for some function of "
        "the class; networks of k units err by at most the dashed one.",
    )


def plot(axis: Any, dimensions: tuple[int, ...], first: dict[int, int]) -> None:
    for i, d in enumerate(dimensions):
        ks = [2**j for j in range(4, int(math.log2(first[d])) + 4)]
        axis.loglog(
            ks,
            [fixed_basis_floor(k, d) for k in ks],
            "-",
            color=f"C{i}",
            label=f"d = {d}: every basis ≥",
        )
        axis.loglog(ks, [d / k for k in ks], "--", color=f"C{i}", label=f"d = {d}: networks ≤")
    axis.set(xlabel="basis functions or units $k$", ylabel="worst squared error, $C=1$")
    axis.legend()
