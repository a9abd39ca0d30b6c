"""Second and fourth moments of random matrices: the rules behind every initializer."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor

from torchtheory.labs.engine import COLORS, Interval, Run, lab, mean_interval
from torchtheory.labs.optimization.example_losses import error_bars
from torchtheory.optimization.linear_networks.matrix_moments import (
    KURTOSIS,
    forward_norms,
    fourth_moments,
    sandwiched_norm,
    three_valued_matrices,
)
from torchtheory.training.initialization import draw_weight

#: Confidence of each Monte Carlo comparison; there are a dozen of them.
SURE = 0.9999


@lab(
    "moment-rules",
    room="optimization",
    covers=["L-153", "L-154", "L-156", "L-157"],
    title="What a random matrix does to second and fourth moments",
    errata=["uncorrelated-is-not-independent", "fourth-moment-brace"],
    full={"draws": 100_000, "depth": 8},
    least={"draws": 5_000, "depth": 2},
    most={"depth": 8},
)
def moment_rules(run: Run, draws: int = 30_000, depth: int = 5) -> None:
    """A random matrix with independent entries of variance σ² multiplies squared lengths by dσ² on
    average, and their squares by σ⁴d(d + 2), corrected by the kurtosis of the entries.

    Entries that take three values can have any kurtosis, and there are so few small matrices of
    them that the mean over all is computed without sampling: the rules hold to the last digit, and
    with the kurtosis of another distribution they fail. Normal, uniform and sign entries are then
    sampled through several layers of unequal widths. Look at how the relative fourth moment grows
    with depth for each kurtosis: that is why a deep network's signal is random although its mean
    is kept.

    Args:
        draws: random matrices that moments are averaged over, 5000 at least.
        depth: layers that a signal goes through, 2 to 8.
    """
    jacobian(run)
    norm_of_a_sum(run)
    second_moments(run, draws)
    every_matrix(run)
    curves = through_layers(run, draws, depth)
    run.figure(
        "moments",
        lambda axes: plot(axes, curves),
        caption="Lines: exact; points: sampled, with 99.99% intervals. Left: mean squared length "
        "through layers of the widths below. Right: how far the squared length is from its mean "
        "in square widths of 5, σ² = 1/5.",
        grid=(1, 2),
        size=(9.5, 3.4),
    )


def jacobian(run: Run) -> None:
    """The derivative of Ax in the entries of A, by columns and by rows."""
    p, d = 3, 4
    a, x = run.randn(p, d), run.randn(d)
    whole = torch.func.jacrev(lambda m: m @ x)(a)  # [p, p, d]
    by_columns, by_rows = whole.mT.reshape(p, d * p), whole.reshape(p, p * d)
    eye = torch.eye(p, dtype=torch.float64)
    columns, rows = torch.kron(x[None], eye), torch.kron(eye, x[None])
    says = run.states(
        "L-153", r"\partial(Ax)/\partial\operatorname{vec}A=x^\top\otimes I_p \text{ (vec stacks columns)}"
    )
    of_entries = f"largest difference for each of the {p * d} entries of A from automatic differentiation"
    says.equal((columns - by_columns).abs().amax(0), within=1e-14, where=of_entries)
    says.fails("vec stacks rows", (columns - by_rows).abs().amax(0))
    says = run.states("L-153", r"\partial(Ax)/\partial\operatorname{vec}A=I_p\otimes x^\top \text{ (vec stacks rows)}")
    says.equal((rows - by_rows).abs().amax(0), within=1e-14, where=of_entries)
    says.fails("vec stacks columns", (rows - by_columns).abs().amax(0))
    says = run.states("L-153", r"(x^\top\otimes I_p)\operatorname{vec}A=Ax")
    says.equal(columns @ a.T.reshape(-1), a @ x, 1e-13)
    says.fails("vec stacks rows", columns @ a.reshape(-1))


def norm_of_a_sum(run: Run) -> None:
    count = 1000
    x = run.randn(count, 5) * 10 ** (2 * run.randn(count, 1))
    y = run.randn(count, 5) * 10 ** (2 * run.randn(count, 1))
    y[: count // 2] = x[: count // 2] * (1 + 1e-3 * run.randn(count // 2, 1))  # nearly equal
    promised = 2 * x.square().sum(1) + 2 * y.square().sum(1)
    found = (x + y).square().sum(1)
    z = run.randn(5)
    says = run.states("L-154", r"\|x+y\|^2\,/\,(2\|x\|^2+2\|y\|^2)\le1")
    says.at_most(found / promised, 1.0, 1e-14, where="pairs of very different and of nearly equal vectors")
    says.fails("three equal summands in place of two", (3 * z).square().sum() / (2 * 3 * z.square().sum()))
    says = run.states("L-154", r"2\|A\|_F^2+2\|B\|_F^2-\|A+B\|_F^2=\|A-B\|_F^2 \text{, relative to the left}")
    says.equal((promised - found - (x - y).square().sum(1)) / promised, torch.zeros(count, dtype=torch.float64), 1e-13)
    says.fails("the norm of the largest singular value", _operator_gap(run.randn(4, 3), run.randn(4, 3)), promised=0.0)


def _operator_gap(a: Tensor, b: Tensor) -> float:
    sizes = [float(torch.linalg.matrix_norm(m, 2)) ** 2 for m in (a, b, a + b, a - b)]
    return (2 * sizes[0] + 2 * sizes[1] - sizes[2] - sizes[3]) / (2 * sizes[0] + 2 * sizes[1])


def draw(run: Run, law: str, shape: tuple[int, ...], deviation: float) -> Tensor:
    """Matrices with independent entries of mean 0 and the deviation given."""
    if law == "signs":
        return deviation * run.signs(*shape)
    kind: Any = law
    return draw_weight(shape, deviation**2, distribution=kind, generator=run.generator)


def second_moments(run: Run, draws: int) -> None:
    sigma = 0.7
    a, b = run.randn(2, 4), run.randn(3, 5)
    promised = sandwiched_norm(a, b, sigma)
    # signs for which the means add up in the product
    shifted = draw(run, "normal", (draws, 4, 3), sigma) + sigma * torch.sign(a[0][:, None] * b[:, 0])
    biased = mean_interval((a @ shifted @ b).square().sum((1, 2)), SURE)
    for law in KURTOSIS:
        w = draw(run, law, (draws, 4, 3), sigma)
        says = run.states("L-156", rf"\mathbb E\|AWB\|_F^2=\sigma^2\|A\|_F^2\|B\|_F^2 \text{{, entries: {law}}}")
        says.mean(
            (a @ w @ b).square().sum((1, 2)),
            promised,
            against=(promised / sigma, sigma * promised, 2 * promised),  # σ, σ³, the source's factor 2
            confidence=SURE,
            where=f"{draws} matrices W, 4 × 3",
        )
        says.fails("entries of mean ±σ", biased)
    # w = ± r with r = 0 or √2 and A = r: uncorrelated, and not independent
    cases = torch.tensor(list(itertools.product((-1.0, 1.0), (0.0, math.sqrt(2)))), dtype=torch.float64)
    factor, entry = cases[:, 1], cases[:, 0] * cases[:, 1]
    run.refutes(
        "uncorrelated-is-not-independent",
        r"A, W \text{ uncorrelated} \implies \mathbb E\|AW\|_F^2=\sigma^2\,\mathbb E\|A\|_F^2",
    ).equal(
        (factor * entry).square().mean(),
        entry.square().mean() * factor.square().mean(),
        1e-12,
        where=f"W = sr, A = r with a fair sign s and r = 0 or √2; their covariance is "
        f"{float((factor * entry).mean() - factor.mean() * entry.mean()):g}",
    )


def every_matrix(run: Run) -> None:
    """Means over all matrices whose entries take three values: no sampling error."""
    x = run.randn(3)
    kappas = [1.0, 1.8, 3.0, 9.0]
    exact, second, gaussian = [], [], []
    for kappa in kappas:
        matrices, chance = three_valued_matrices(2, 3, kappa)
        squares = (matrices @ x).square().sum(1)
        exact.append(chance @ squares.square())
        second.append(chance @ squares)
        gaussian.append(fourth_moments(x, [3, 2], 1.0)[-1].euclidean)
    says = run.states("L-157", r"\mathbb E\|W\xi\|_2^4=\sigma^4\bigl(d(d+2)\|\xi\|_2^4+(\kappa-3)d\,\|\xi\|_4^4\bigr)")
    says.equal(
        torch.stack(exact),
        [fourth_moments(x, [3, 2], 1.0, k)[-1].euclidean for k in kappas],
        1e-12,
        where="every 2 × 3 matrix with three-valued entries of kurtosis 1, 1.8, 3 and 9",
    )
    says.fails("the kurtosis taken for 3", torch.stack(exact), promised=gaussian)
    run.states("L-156", r"\mathbb E\|W\xi\|^2=d\sigma^2\|\xi\|^2 \text{ whatever the kurtosis}").equal(
        torch.stack(second), forward_norms([3, 2], 1.0)[-1] * float(x.square().sum()), 1e-12, where="the same matrices"
    )
    two, chance = three_valued_matrices(2, 2, 3.0)
    both = (two[:, None] @ two[None]) @ x[:2]
    squares = both.square().sum(-1)
    weights = chance[:, None] * chance
    tied = (two @ two @ x[:2]).square().sum(-1)
    start = x[:2]
    says = run.states("L-156, L-157", r"\text{two layers: } \mathbb E\|W^2W^1x\|^2,\ \mathbb E\|W^2W^1x\|^4")
    says.equal(
        torch.stack([(weights * squares).sum(), (weights * squares.square()).sum()]),
        [
            forward_norms([2, 2, 2], 1.0)[-1] * float(start.square().sum()),
            fourth_moments(start, [2, 2, 2], 1.0)[-1].euclidean,
        ],
        1e-12,
        where=f"all {two.shape[0] ** 2} pairs of 2 × 2 matrices",
    )
    says.fails("layers not independent: the same matrix twice", torch.stack([chance @ tied, chance @ tied.square()]))
    powers = x.square()
    pairs = sum(float(powers[r] * powers[s]) for r in range(3) for s in range(3) if r != s)
    d = 3
    run.refutes("fourth-moment-brace", r"3\sum_{i=1}^d\sum_{r\ne s}\xi_r^2\xi_s^2=3d\,\|\xi\|_2^4-\|\xi\|_4^4").equal(
        3 * d * pairs,
        3 * d * float(powers.sum()) ** 2 - float(powers.square().sum()),
        1e-12,
        where="a vector of three entries, d = 3",
    )


Curves = dict[str, list[tuple[float, Interval]]]


def through_layers(run: Run, draws: int, depth: int) -> tuple[list[int], Curves, Curves]:
    widths = [7, 4, 3, 9, 5, 10, 5, 4, 5][: depth + 1]  # none as wide as the first
    sigmas = [0.3 + 0.05 * k for k in range(depth)]
    x = run.randn(widths[0])
    size = float(x.square().sum())

    # fourth moments have long tails
    many = 4 * draws

    def signals(law: str, sizes: list[int], deviations: list[float], start: Tensor, count: int) -> list[Tensor]:
        found = [start.expand(count, -1)]
        for p, q, sigma in zip(sizes[1:], sizes, deviations, strict=False):
            found.append((draw(run, law, (count, p, q), sigma) @ found[-1][..., None])[..., 0])
        return found

    second: Curves = {}
    fourth: Curves = {}
    square, start = [5] * (depth + 1), run.randn(5)
    for law, kappa in KURTOSIS.items():
        exact = forward_norms(widths, sigmas)
        paths = [mean_interval(v.square().sum(1) / size, SURE) for v in signals(law, widths, sigmas, x, draws)[1:]]
        second[law] = list(zip(exact[1:], paths, strict=True))
        moments = fourth_moments(start, square, 5**-0.5, kappa)
        length = float(start.square().sum()) ** 2
        found = [
            mean_interval(v.square().sum(1).square() / length, SURE)
            for v in signals(law, square, [5**-0.5] * depth, start, many)[1:]
        ]
        fourth[law] = [(m.euclidean / length, i) for m, i in zip(moments[1:], found, strict=True)]
    for law, kappa in KURTOSIS.items():
        # the control keeps the widths and forgets that they differ
        careless = forward_norms([widths[0]] * (depth + 1), sigmas)[-1]
        promised, found_here = second[law][-1]
        says = run.states("L-156", rf"\mathbb E\|W^{{L:1}}x\|^2=\|x\|^2\prod_\ell d_\ell\sigma_\ell^2 \text{{, {law}}}")
        says.mean(
            found_here,
            promised,
            against=(promised * widths[0] / widths[-1], careless),  # widths of the inputs; all widths one
            where=f"widths {', '.join(map(str, widths))}; {draws} networks",
        )
        says.fails(f"all widths taken for {widths[0]}", found_here, promised=careless)
        promised, found_here = fourth[law][1]
        other = "signs" if law == "normal" else "normal"
        says = run.states(
            "L-157",
            rf"\text{{two layers of width 5, }} \sigma^2=\tfrac15:\ \mathbb E\|W^{{2:1}}x\|^4/"
            rf"\|x\|^4 \text{{, {law}, }} \kappa={kappa:g}",
        )
        # fourth moments as squares of second ones, and those of another kurtosis
        says.mean(found_here, promised, against=(1.0, fourth[other][1][0]), where=f"{many} networks")
        says.fails(f"entries: {other}", fourth[other][1][1])
    return widths, second, fourth


def plot(axes: Any, curves: tuple[list[int], Curves, Curves]) -> None:
    left, right = axes[0]
    widths, second, fourth = curves
    layers = range(1, len(widths))
    for ax, found in ((left, second), (right, fourth)):
        for k, (law, points) in enumerate(found.items()):
            at = [layer + 0.06 * (k - 1) for layer in layers]
            color = COLORS[k]
            if ax is right or k == 0:
                ax.plot(layers, [p for p, _ in points], color=color if ax is right else "0.4")
            ax.errorbar(
                at,
                [i.estimate for _, i in points],
                yerr=error_bars([i for _, i in points]),
                fmt="o",
                markersize=3.5,
                color=color,
                label=f"{law}, κ = {KURTOSIS[law]:g}",
            )
        ax.legend(loc="upper left")
    left.set_xticks(list(layers), [f"{k}\nd = {widths[k]}" for k in layers])
    left.set(xlabel="layer", ylabel=r"$\mathbb{E}\,\|W^{k:1}x\|^2/\|x\|^2$", title="second moments")
    right.set_xticks(list(layers))
    right.set(
        xlabel="layers",
        ylabel=r"$\mathbb{E}\,\|W^{k:1}x\|^4/\|x\|^4$",
        title="fourth moments, mean square length 1",
    )
