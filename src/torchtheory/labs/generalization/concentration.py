"""McDiarmid's inequality for functions of a sample, and Bernstein's for sums of matrices."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchtheory.generalization.concentration import (
    bernstein_radius,
    matrix_bernstein_radius,
    matrix_bernstein_tail,
    mcdiarmid_radius,
    mcdiarmid_tail,
    observed_differences,
)
from torchtheory.labs.engine import COLORS, Run, clopper_pearson, hoeffding_radius, lab, quantile_interval


@lab(
    "concentration-inequalities",
    room="generalization",
    covers=["M-45", "B-26"],
    title="A function that no single observation moves much is nearly constant",
    errata=["mcdiarmid-for-a-sample-mean", "matrix-bernstein-without-root"],
    full={"trials": 100_000},
    least={"trials": 500, "size": 20},
)
def concentration_inequalities(run: Run, trials: int = 4000, size: int = 60) -> None:
    """Tails are simulated and compared with what the inequalities allow.

    McDiarmid: the number of different values in a sample changes by at most 1 when one draw is
    replaced; observations that depend on each other break the hypothesis and the tail. For a mean
    it is Hoeffding's inequality. Matrix Bernstein: the largest eigenvalue of a sum of fixed
    symmetric matrices with random signs; one dimension gives the scalar inequality. Look at the
    figure: both bounds fall with the tails, and give away a good deal.

    Args:
        trials: independent draws whose deviations are counted.
        size: observations in a draw.
    """
    counts = bounded_differences(run, trials, size)
    norms = matrices(run, trials)
    run.figure(
        "tails",
        lambda axes: plot(axes, counts, size, *norms),
        caption="Left, the number of different values among draws and the bound of McDiarmid. "
        "Right, the largest eigenvalue of a sum of matrices with random signs and the bound of "
        "Bernstein. Dots: share of the trials beyond the threshold.",
        grid=(1, 2),
    )


def different(x: Tensor) -> Tensor:
    """How many different values each row has."""
    ordered = x.sort(-1).values
    return 1.0 + (ordered.diff(dim=-1) != 0).sum(-1).double()


def bounded_differences(run: Run, trials: int, size: int) -> Tensor:
    """Occupied values among `size` draws from as many."""

    def draw(*shape: int) -> Tensor:
        return torch.randint(0, size, shape, generator=run.generator).double()

    start, other = draw(300, size), draw(300, size)
    largest = observed_differences(different, start, other)
    says = run.states(
        "M-45", r"|f(x)-f(x')|\le1\ \text{ when one draw is replaced, } f \text{ the number of different values}"
    )
    says.at_most(largest, 1.0)
    says.fails("f is the sum of the values", observed_differences(lambda x: x.sum(-1), start, other))
    expected = size * (1 - (1 - 1 / size) ** size)
    values = different(draw(trials, size))
    # a coin decides whether all the draws are one draw
    together = (run.rand(trials) < 0.5).double()
    copied = together * 1.0 + (1 - together) * different(draw(trials, size))
    middle = (1 + expected) / 2
    for delta in (0.2, 0.01):
        says = run.states(
            "M-45",
            r"|f(X)-\mathbb E f(X)|\le\sqrt{\tfrac12\log(2/\delta)\textstyle\sum_ic_i^2}\text{ with probability }"
            rf"1-\delta,\ \delta={delta}",
        )
        says.at_most(
            quantile_interval((values - expected).abs(), 1 - delta, 0.999),
            mcdiarmid_radius([1.0] * size, delta),
            where="quantile at 1 - δ; the mean is exact, n(1-$(1-1/n)^n$)",
        )
        says.fails(
            "a coin makes all draws equal: not independent",
            quantile_interval((copied - middle).abs(), 1 - delta, 0.999),
        )
    sizes, deltas = (1, 10, 500), (0.01, 0.3)
    says = run.states(
        "M-45", r"c_i=\tfrac1n:\ \sqrt{\tfrac12\log(2/\delta)\textstyle\sum c_i^2}=\sqrt{\log(2/\delta)/(2n)}"
    )
    says.equal(
        [mcdiarmid_radius([1 / n] * n, d) for n in sizes for d in deltas],
        [hoeffding_radius(n, d) for n in sizes for d in deltas],
        1e-12,
    )
    says.fails("$c_i$ = 2/n, losses in [-1, 1]", [mcdiarmid_radius([2 / n] * n, d) for n in sizes for d in deltas])
    n, epsilon = 50, 0.5
    bits = (run.rand(trials, n) < 0.9).double()
    # f(x) = 1 - mean(x) has c_i = 1/n and mean 0.1
    far = clopper_pearson(int(((bits.mean(1) - 0.1).abs() >= epsilon).sum()), trials, 0.999)
    run.refutes(
        "mcdiarmid-for-a-sample-mean",
        r"\Pr\bigl(|\tfrac1n\sum_iX_i-\mathbb E f(X)|\ge\varepsilon\bigr)\le2e^{-2\varepsilon^2/\sum_ic_i^2}",
    ).at_most(far, mcdiarmid_tail([1 / n] * n, epsilon), where="f(x) = 1 - mean(x), coins of probability 0.9")
    return values - expected


def matrices(run: Run, trials: int) -> tuple[Tensor, float, float, int]:
    """Random signs times fixed matrices; one dimension."""
    d, terms, delta = 6, 40, 0.05
    fixed = run.randn(terms, d, d)
    fixed = (fixed + fixed.mT) / 2
    bound = float(torch.linalg.matrix_norm(fixed, 2).max())
    variance = float(torch.linalg.matrix_norm((fixed @ fixed).sum(0), 2))
    sums = torch.einsum("tn,nij->tij", run.signs(trials, terms), fixed)
    top = torch.linalg.eigvalsh(sums)[:, -1]
    # the identity with one sign for all terms: R = 1 and the variance is the number of terms
    alike = run.signs(trials) * terms
    radius = matrix_bernstein_radius(variance, bound, d, delta)
    other = matrix_bernstein_radius(float(terms), 1.0, d, delta)
    says = run.states(
        "B-26",
        r"\Pr\Bigl(\lambda_{\max}\bigl(\sum_iM_i\bigr)\le\tfrac R3u+\sqrt{(\tfrac R3u)^2+"
        r"2\gamma^2u}\Bigr)\ge1-\delta,\ u=\log(d/\delta)",
    )
    says.at_most(
        quantile_interval(top, 1 - delta, 0.999),
        radius,
        where=f"quantile at 1 - δ; {terms} fixed {d} x {d} matrices with random signs",
    )
    says.fails("identities, one sign for all of them", quantile_interval(alike, 1 - delta, 0.999), promised=other)
    tails, bounds = [], []
    for share in (0.3, 0.6, 0.9):
        at = share * radius
        tails.append(clopper_pearson(int((top >= at).sum()), trials, 0.999).low)
        bounds.append(matrix_bernstein_tail(at, variance, bound, d))
    run.states("B-26", r"\Pr(\lambda_{\max}\ge t)\le d\exp\bigl(-\tfrac{t^2/2}{\gamma^2+Rt/3}\bigr)").at_most(
        tails, bounds, where="lower ends of 99.9 % intervals at three thresholds"
    )
    grid = [(v, b, k, e) for v in (0.001, 0.1, 1.0, 50.0) for b in (0.1, 1.0, 10.0)
            for k in (1, 5, 100) for e in (1e-6, 0.05, 0.5)]  # fmt: skip
    roots = [matrix_bernstein_radius(*g) for g in grid]
    says = run.states("B-26", r"\tfrac R3u+\sqrt{(\tfrac R3u)^2+2\gamma^2u}\le\tfrac{2R}3u+\sqrt{2\gamma^2u}")
    says.at_most(roots, [matrix_bernstein_radius(*g, relaxed=True) for g in grid], 1e-12)
    says.fails(
        "one third in place of two",
        roots,
        promised=[b * math.log(k / e) / 3 + math.sqrt(2 * v * math.log(k / e)) for v, b, k, e in grid],
    )
    run.refutes(
        "matrix-bernstein-without-root", r"\tfrac R3u+\sqrt{(\tfrac R3u)^2+2\gamma^2u}\le\tfrac{2R}3u+2\gamma^2u"
    ).at_most(roots, [2 * b * math.log(k / e) / 3 + 2 * v * math.log(k / e) for v, b, k, e in grid])
    run.states(
        "B-26", r"d=1:\ \text{ the scalar inequality; } R\to0:\ \gamma\sqrt{2u},\ \text{ as for Gaussians}"
    ).equal(
        [matrix_bernstein_radius(50 * 0.3, 1.0, 1, 0.1) / 50, matrix_bernstein_radius(3.0, 1e-12, 4, 0.1)],
        [bernstein_radius(0.3, 1.0, 50, 0.1), math.sqrt(2 * 3.0 * math.log(4 / 0.1))],
        1e-10,
    )
    return top, variance, bound, d


def plot(axes: Any, counts: Tensor, size: int, top: Tensor, variance: float, bound: float, d: int) -> None:
    left, right = axes[0]
    t = torch.linspace(0, 3 * math.sqrt(size), 60)
    left.semilogy(t, [mcdiarmid_tail([1.0] * size, float(v)) for v in t], color=COLORS[1],
                  label="McDiarmid")  # fmt: skip
    seen = [float((counts.abs() >= v).double().mean()) for v in t]
    left.semilogy(t, [s if s > 0 else math.nan for s in seen], "o", ms=3, color=COLORS[0],
                  label="measured")  # fmt: skip
    left.set(xlabel="threshold", ylabel="probability", title="different values in a sample")
    u = torch.linspace(0, 1.4 * float(top.max()), 60)
    right.semilogy(u, [matrix_bernstein_tail(float(v), variance, bound, d) for v in u],
                   color=COLORS[1], label="matrix Bernstein")  # fmt: skip
    seen = [float((top >= v).double().mean()) for v in u]
    right.semilogy(u, [s if s > 0 else math.nan for s in seen], "o", ms=3, color=COLORS[0],
                   label="measured")  # fmt: skip
    right.set(xlabel="threshold", title="largest eigenvalue of a sum")
    for ax in (left, right):
        ax.set_ylim(1e-4, 2)
        ax.legend(loc="lower left")
