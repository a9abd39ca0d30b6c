"""Uniform stability: measured by leaving samples out, proved for ridge regression; its bound."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchtheory.generalization.stability import (
    Trained,
    Training,
    leave_one_out,
    ridge_stability,
    textbook_ridge_stability,
    uniform_stability_bound,
)
from torchtheory.labs.engine import Run, lab, quantile_interval

#: Size of the sample that is made to move ridge regression.
CONTRARY = 2000


@lab(
    "uniform-stability",
    room="generalization",
    covers=["B-03"],
    title="An algorithm that one sample hardly moves generalizes, if it is moved by less than 1/√m",
    full={"trials": 5000, "samples": 60},
    least={"samples": 6, "trials": 50, "delta": 0.01},
    most={"delta": 0.5},
)
def uniform_stability(run: Run, samples: int = 24, trials: int = 300, delta: float = 0.1) -> None:
    """Ridge regression with targets and clipped predictions in [0, 1], and squared loss.

    Its stability is proved, so what leaving one sample out changes must stay below. The textbook's
    shorter constant is exceeded once predictions have to be clipped, and by a nearest neighbor,
    which has no stability at all. Then the bound on the gap: over many samples of a known law it
    fails no more often than promised, and a memorizing rule with ridge regression's stability put
    in breaks it every time. Look at the slopes in the figure: a β of 1/√m is not enough.

    Args:
        samples: size of a sample.
        trials: samples in which the bound may fail.
        delta: probability with which it may.
    """
    measured_against_proved(run, samples)
    textbook_constant(run, samples)
    coverage(run, trials, delta)
    rates(run, delta)
    table_and_figure(run, delta)


def ridge(penalty: float, divide_by: int | None = None) -> Training:
    """Ridge regression on the mean loss, or on the sum over a fixed number; clipped to [0, 1]."""

    def train(x: Tensor, y: Tensor, seed: int) -> Trained:
        weight = penalty * (divide_by or len(x))
        w = torch.linalg.solve(x.T @ x + weight * torch.eye(x.shape[1]).to(x), x.T @ y)
        return lambda a, b: ((a @ w).clamp(0, 1) - b).square()

    return train


def nearest(x: Tensor, y: Tensor, seed: int) -> Trained:
    """The label of the nearest training point."""
    return lambda a, b: (y[torch.cdist(a, x).argmin(1)] - b).square()


def measured_against_proved(run: Run, samples: int) -> None:
    """Leave-one-out changes of ridge regression on random and on contrary samples."""
    promised, found, memorized = [], [], []
    for dimension in (1, 3):
        for penalty in (0.05, 1.0):
            x = ball(run, samples, dimension)
            y = run.rand(samples).round()
            probes = ball(run, 50, dimension)
            ends = torch.cat([probes, probes]), torch.arange(2).double().repeat_interleave(50)
            promised.append(ridge_stability(penalty, samples))
            found.append(leave_one_out(ridge(penalty), x, y, *ends).stability)
            memorized.append(leave_one_out(nearest, x, y, *ends).stability)
    large = [k for k, p in enumerate(promised) if p < 1]
    far, target, probe = contrary(CONTRARY, 0.01)
    left = leave_one_out(ridge(0.01), far, target, probe, torch.zeros(1).double(), left_out=[0])
    says = run.states(
        "B-03",
        r"|\ell(A(S);z)-\ell(A(S\setminus i);z)|\le\frac{2\kappa B^2}{\lambda m}"
        r"\Bigl(\kappa+\frac{\kappa^2}{2\sqrt\lambda}+\frac{\sqrt\lambda}2\Bigr)",
    )
    says.at_most(
        [*found, left.stability],
        [*promised, ridge_stability(0.01, CONTRARY)],
        where="largest change over all i and 100 probes, dimension 1 and 3, λ = 0.05 and 1; and a "
        "sample made to move the fit, λ = 0.01",
    )
    says.fails(
        "the nearest neighbor instead of ridge regression",
        [memorized[k] for k in large],
        promised=[promised[k] for k in large],
    )


def contrary(m: int, penalty: float) -> tuple[Tensor, Tensor, Tensor]:
    """A sample on which the fit without its first member misses that one by far more than 1.

    All others are (√λ, 0) with target 1, which makes the weights 1/(2√λ) long; the first is at 45
    degrees with target 0. The probe is where the prediction without it is just 1.
    """
    c = math.sqrt(penalty)
    x = torch.zeros(m, 2, dtype=torch.float64)
    x[1:, 0] = c
    x[0] = math.sqrt(0.5)
    y = torch.ones(m, dtype=torch.float64)
    y[0] = 0
    across = min(2 * c, 1.0)
    probe = torch.tensor([[across, math.sqrt(1 - across**2)]], dtype=torch.float64)
    return x, y, probe


def textbook_constant(run: Run, samples: int) -> None:
    """2 kappa² B² / (lambda m): true where predictions need no clipping, and only there."""
    penalty = 0.25  # on the line with x and y in [0, 1] all predictions lie in [0, 1]
    x, y = run.rand(samples, 1), run.rand(samples).round()
    x[0], y[0] = 1.0, 0.0
    probes = torch.linspace(0, 1, 50).double()[:, None]
    ends = torch.cat([probes, probes]), torch.arange(2).double().repeat_interleave(50)
    found = [leave_one_out(ridge(penalty, samples), x, y, *ends).stability]
    x, y = torch.zeros_like(x), torch.zeros_like(y)  # all that is known comes from the first
    x[0], y[0] = 1.0, 1.0
    found.append(leave_one_out(ridge(penalty, samples), x, y, *ends, left_out=[0]).stability)
    m = CONTRARY
    far, target, probe = contrary(m, 0.01)
    zero = torch.zeros(1).double()
    broken = leave_one_out(ridge(0.01, m), far, target, probe, zero, left_out=[0]).stability
    says = run.states("B-03", r"|\ell(A(S);z)-\ell(A(S\setminus i);z)|\le\frac{2\kappa^2B^2}{\lambda m}")
    says.at_most(
        found,
        textbook_ridge_stability(penalty, samples),
        where="the fit without i still divides by m, and predictions lie in [0, B] unclipped; random points, and "
        "one at 1 among others at 0",
    )
    says.fails(
        "predictions clipped to [0, B] after the fit: unclipped they reach 1/(2√λ) = 5",
        broken,
        promised=textbook_ridge_stability(0.01, m),
    )


def gaps_of_ridge(run: Run, m: int, trials: int, penalty: float) -> Tensor:
    """Exact R - R_S on draws of size m from a law on 50 points of the line."""
    x = torch.linspace(0.02, 1, 50).double().repeat(2)  # every point with target 0 and with 1
    y = torch.arange(2).double().repeat_interleave(50)
    chance = 0.2 + 0.6 * x[:50]
    mass = torch.cat([1 - chance, chance]) / 50
    drawn = torch.multinomial(mass, trials * m, replacement=True, generator=run.generator)
    drawn = drawn.reshape(trials, m)
    counts = torch.zeros(trials, 100, dtype=torch.float64)
    counts.scatter_add_(1, drawn, torch.ones_like(drawn, dtype=torch.float64))
    w = counts @ (x * y) / (counts @ x.square() + m * penalty)
    losses = ((w[:, None] * x).clamp(0, 1) - y).square()
    return losses @ mass - (losses * counts).sum(1) / m


def gaps_of_table(run: Run, m: int, trials: int) -> Tensor:
    """The same for a rule that looks up the label and says 0 where it has none."""
    atoms = 50 * m
    found = []
    for _ in range(trials):
        labels = run.rand(atoms) < 0.5
        unseen = torch.ones(atoms, dtype=torch.bool)
        unseen[torch.randint(atoms, (m,), generator=run.generator)] = False
        found.append((labels & unseen).double().mean())
    return torch.stack(found)


def coverage(run: Run, trials: int, delta: float) -> None:
    """How often the bound fails over samples of a law whose risks are sums."""
    m, penalty = 1000, 400.0  # so that what is left of the bound is not the stability alone
    bound = uniform_stability_bound(ridge_stability(penalty, m), m, delta)
    gaps, table = gaps_of_ridge(run, m, trials, penalty), gaps_of_table(run, m, trials)
    says = run.states("B-03", r"\Pr\Bigl(R-R_S>2\beta+(4m\beta+M)\sqrt{\ln(1/\delta)/(2m)}\Bigr)\le\delta")
    says.at_most(
        quantile_interval(gaps, 1 - delta, 0.999),
        bound,
        where=f"quantile of the gap at 1 - δ; ridge regression, m = {m}, λ = {penalty:g}, {trials} samples",
    )
    says.fails(
        "a rule that looks labels up has no stability below 1: ridge regression's β is not its",
        quantile_interval(table, 1 - delta, 0.999),
    )


def rates(run: Run, delta: float) -> None:
    """With beta = c / sqrt(m) the bound does not vanish."""
    sizes = [10.0**k for k in range(2, 15, 2)]
    limit = 4 * math.sqrt(math.log(1 / delta) / 2)
    slow = [uniform_stability_bound(1 / math.sqrt(m), int(m), delta) for m in sizes]
    fast = [uniform_stability_bound(1 / m, int(m), delta) for m in sizes]
    says = run.states(
        "B-03", r"\beta=c/\sqrt m\ \Rightarrow\ \text{bound}\ge4c\sqrt{\ln(1/\delta)/2}\text{ for every }m"
    )
    says.at_least(slow, limit)
    says.fails("β = c/m", fast)


def table_and_figure(run: Run, delta: float) -> None:
    """What is proved, what is measured and what is true, by number of samples."""
    penalty, sizes = 4.0, (100, 1000, 10_000, 100_000)
    rows = []
    for m in sizes:
        beta = ridge_stability(penalty, m)
        gap = float(gaps_of_ridge(run, m, 20, penalty).abs().max())
        bound = uniform_stability_bound(beta, m, delta)
        rows.append((m, beta, bound, "says nothing" if bound >= 1 else "", gap))
    run.table(
        "stability-bounds",
        ("m", "β of ridge regression", "bound on the gap", "", "largest |gap| of 20 samples"),
        rows,
        caption=f"λ = {penalty:g}, δ = {delta:g}; losses lie in [0, 1].",
    )
    run.curves(
        "stability-bounds",
        sizes,
        {
            "largest |gap| seen, ridge regression": [gap for *_, gap in rows],
            f"ridge regression, λ = {penalty:g}": [bound for _, _, bound, *_ in rows],
            "β = 1/√m": [uniform_stability_bound(m**-0.5, m, delta) for m in sizes],
            "β = 1": [uniform_stability_bound(1.0, m, delta) for m in sizes],
        },
        {"vacuous above": 1},
        axes=("samples m", "bound on the gap"),
        log="xy",
        beside=True,
        caption="The bound on R - $R_S$ by number of samples: for ridge regression, for an algorithm "
        "with β = 1/√m, and for one that memorizes (β = 1). Above 1 (dashed) it says nothing.",
    )


def ball(run: Run, n: int, dimension: int) -> Tensor:
    """Points of the unit ball."""
    x = run.randn(n, dimension)
    inside: Tensor = x / x.norm(dim=1, keepdim=True) * run.rand(n, 1)
    return inside
