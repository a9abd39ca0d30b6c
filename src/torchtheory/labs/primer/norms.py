"""Norms: axioms, unit balls, induced norms, Cauchy-Schwarz."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.primer.norms import AXIOMS, cauchy_schwarz, check_norm, induced_norm

EXPONENTS = (1.0, 2.0, math.inf)
Functional = tuple[Callable[[Tensor], Tensor], tuple[int, ...]]

NORMS: dict[str, Functional] = {
    "‖v‖₁": (lambda v: torch.linalg.vector_norm(v, 1), (5,)),
    "‖v‖₂": (lambda v: torch.linalg.vector_norm(v, 2), (5,)),
    "‖v‖₃": (lambda v: torch.linalg.vector_norm(v, 3), (5,)),
    "‖v‖∞": (lambda v: torch.linalg.vector_norm(v, math.inf), (5,)),
    "‖A‖₂, operator": (lambda A: torch.linalg.matrix_norm(A, 2), (4, 3)),
    "‖A‖₁, operator": (lambda A: torch.linalg.matrix_norm(A, 1), (4, 3)),
    "‖A‖_F, Frobenius": (lambda A: torch.linalg.matrix_norm(A, "fro"), (4, 3)),
}
#: Functionals that fail, and the axiom (by its place in AXIOMS) that each is meant to fail.
IMPOSTORS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...], int]] = {
    "(Σ√|vᵢ|)²": (lambda v: v.abs().sqrt().sum() ** 2, (5,), 3),
    "‖v‖₂²": (lambda v: v.square().sum(), (5,), 2),
    "|v₁|": (lambda v: v[0].abs(), (5,), 1),
    "Σvᵢ": (lambda v: v.sum(), (5,), 0),
    "spectral radius": (lambda A: torch.linalg.eigvals(A).abs().max(), (3, 3), 1),
}


@lab(
    "primer-norms",
    room="primer",
    covers=["L-003", "L-004", "L-005", "L-006", "L-032"],
    errata=["cauchy-schwarz-equality-case"],
    title="What a norm is, how far a matrix stretches it, and Cauchy-Schwarz",
    full={"trials": 100_000, "axiom_trials": 3000},
    least={"trials": 200, "axiom_trials": 20},
)
def primer_norms(run: Run, trials: int = 10_000, axiom_trials: int = 200) -> None:
    """Vector norms, the norms they induce on matrices, and the Cauchy-Schwarz inequality.

    A search for counterexamples to the four axioms finds none for the norms and finds one for
    every functional that only looks like a norm; it can refute and never prove. The induced norms
    for p = 1, 2, ∞ are exact: no random vector is stretched more, and the vector that is returned
    is stretched exactly as much. For other p the power method gives a lower bound, compared with
    a fine scan of the circle. The figure shows unit balls, their images and the ball they just
    fit into.

    Args:
        trials: random vectors.
        axiom_trials: random cases for each axiom.
    """
    axioms_of_norms(run, axiom_trials)
    equivalence(run, trials)
    induced(run, trials)
    largest_singular_value(run)
    inner_products(run, trials)
    A = torch.tensor([[1.0, 0.9], [-0.4, 1.2]], dtype=torch.float64)
    run.figure(
        "unit-balls",
        lambda axes: plot_balls(axes, A),
        caption="The unit ball of each p (filled), its image under A (line) and the ball of radius "
        "‖A‖ₚ (dashed), which the image touches. For p = ½ the ball is not convex: no norm.",
        grid=(1, 4),
        size=(12, 3.4),
    )


def axioms_of_norms(run: Run, trials: int) -> None:
    norms = {name: check_norm(p, shape, trials=trials, generator=run.generator) for name, (p, shape) in NORMS.items()}
    impostors = {
        name: check_norm(p, shape, trials=trials, generator=run.generator) for name, (p, shape, _) in IMPOSTORS.items()
    }
    says = run.states(
        "L-003, L-032",
        r"\|\cdot\|_1,\|\cdot\|_2,\|\cdot\|_3,\|\cdot\|_\infty, \text{operator and Frobenius norm"
        r" satisfy the axioms: axioms refuted}",
    )
    says.equal(
        [len(found.counterexamples) for found in norms.values()],
        where="a search can refute an axiom and cannot prove it",
    )
    says.fails("five functionals that are no norms", [len(found.counterexamples) for found in impostors.values()])
    says = run.states("L-003", r"\text{each impostor is refuted on the axiom it lacks}")
    says.equal([AXIOMS[axiom] in impostors[name].counterexamples for name, (_, _, axiom) in IMPOSTORS.items()], 1)
    says.fails(
        "the 1-norm in their place",
        [AXIOMS[axiom] in norms["‖v‖₁"].counterexamples for *_, axiom in IMPOSTORS.values()],
    )
    half = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]).double().abs().sqrt().sum(1) ** 2
    one = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]).double().abs().sum(1)
    says = run.states("L-003", r"p(v)=(\sum_i|v_i|^{1/2})^2:\ p(e_1+e_2) = 4 > 2 = p(e_1)+p(e_2)")
    says.above(half[2], half[0] + half[1])
    says.fails("the 1-norm", one[2], promised=one[0] + one[1])
    rows: list[tuple[object, ...]] = []
    for name, found in {**norms, **impostors}.items():
        for axiom, example in found.counterexamples.items():
            u = "" if example.u is None else short(example.u)
            rows.append((name, axiom, u, short(example.v), example.left, example.right, found.trials))
        if not found.refuted:
            rows.append((name, "none found to fail", "", "", "", "", found.trials))
    run.table(
        "axioms",
        ["functional", "axiom", "u", "v", "left", "right", "pairs tried"],
        rows,
        caption="Worst counterexample to each axiom: p(v) and 0, p(av) and |a|p(v), or p(u+v) and p(u)+p(v)",
    )


def equivalence(run: Run, trials: int) -> None:
    chains, dimensions = [], (1, 2, 7, 50)
    for n in dimensions:
        v = torch.cat([run.randn(trials // 10, n), torch.eye(n).double(), torch.ones(1, n)])
        one, two, most = (torch.linalg.vector_norm(v, p, dim=1) for p in EXPONENTS)
        chains.append(torch.stack([most, two, one, math.sqrt(n) * two, n * most]))
    lower = torch.cat([c[:-1].flatten() for c in chains])
    upper = torch.cat([c[1:].flatten() for c in chains])
    says = run.states("L-004", r"\|v\|_\infty\le\|v\|_2\le\|v\|_1\le\sqrt n\,\|v\|_2\le n\,\|v\|_\infty")
    says.at_most(lower, upper, 1e-12)
    ones = [n for n in dimensions if n > 1]  # the norms of (1, …, 1) are n, the root of n, and 1
    says.fails(
        "n is one coordinate too few, at (1, …, 1)",
        [*ones, *ones],
        promised=[*(math.sqrt(n - 1) * math.sqrt(n) for n in ones), *(n - 1 for n in ones)],
    )
    sharp = [float((c[i + 1] / c[i].clamp_min(1e-300)).min()) for c in chains for i in range(4)]
    says = run.states("L-004", r"\text{each constant of the chain is attained, at } e_1 \text{ or } (1,\dots,1)")
    says.equal(sharp, 1.0, 1e-12)
    says.fails(
        "only Gaussian vectors of dimension 50",
        float((chains[-1][2, : trials // 10] / chains[-1][1, : trials // 10]).min()),
    )


def induced(run: Run, trials: int) -> None:
    A = run.randn(4, 6)
    x = run.randn(trials, 6)
    norms = {p: induced_norm(A, p) for p in EXPONENTS}
    ratios = {p: ratio(A, x, p).max() for p in EXPONENTS}
    says = run.states("L-005", r"\|Ax\|_p \le \|A\|_p\|x\|_p,\ p\in\{1,2,\infty\} \text{ (largest of many ratios)}")
    says.at_most(torch.stack([ratios[p] for p in EXPONENTS]), [norms[p].value for p in EXPONENTS])
    says.fails("the largest singular value bounds another norm", norms[1.0].value, promised=norms[2.0].value)
    says = run.states("L-005", r"\text{the supremum is attained: } \|Ax\|_p/\|x\|_p \text{ at the returned vector}")
    says.equal(
        torch.stack([ratio(A, norms[p].maximizer[None], p)[0] for p in EXPONENTS]),
        [float(torch.linalg.matrix_norm(A, p)) for p in EXPONENTS],
        1e-12,
    )
    says.fails("at the best of the random vectors", torch.stack(list(ratios.values())))
    says = run.states("L-005", r"\|A\|_1=\max_j\sum_i|a_{ij}|,\ \|A\|_2=\sigma_1,\ \|A\|_\infty=\max_i\sum_j|a_{ij}|")
    says.equal(
        [norms[p].value for p in EXPONENTS],
        torch.stack([A.abs().sum(0).max(), torch.linalg.svdvals(A)[0], A.abs().sum(1).max()]),
        1e-12,
    )
    says.fails("rows and columns are exchanged", [norms[p].value for p in reversed(EXPONENTS)])
    angle = torch.linspace(0, math.pi, 100_001, dtype=torch.float64)
    circle = torch.stack([angle.cos(), angle.sin()], dim=1)
    between = (1.2, 1.5, 3.0, 6.0)
    ones, share = torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=torch.float64), 2 / 1.2 - 1
    plane = [run.randn(2, 2) for _ in range(4)]
    found = [induced_norm(M, p, generator=run.generator) for M in plane for p in between]
    scanned = [float(ratio(M, circle, p).max()) for M in plane for p in between]
    says = run.states(
        "L-005", r"1<p<\infty: \text{ the power method finds } \|A\|_p \text{ in the plane (scan of the circle)}"
    )
    says.equal([f.value for f in found], scanned, 1e-6)
    # near a rotation all vectors are stretched nearly alike, and the method is slow
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    slow = [turn + 0.2 * torch.diag(run.rand(2) + 0.5) for _ in range(2)]
    says.fails(
        "one step of it, near a rotation",
        [induced_norm(M, p, starts=1, steps=1, generator=run.generator).value for M in slow for p in between],
        promised=[float(ratio(M, circle, p).max()) for M in slow for p in between],
    )
    says = run.states("L-005", r"\|A\|_p \text{ lies below its bound by interpolation (Riesz and Thorin)}")
    says.at_most(scanned, [f.upper for f in found], 1e-12)
    says.fails(
        "interpolated towards ∞ instead of 1, for A = (1, 0; 1, 0) and p = 1.2",
        float(ratio(ones, circle, 1.2).max()),
        promised=induced_norm(ones, math.inf).value ** share * induced_norm(ones).value ** (1 - share),
    )
    run.table(
        "induced-norms",
        ["p", "lower bound", "upper bound", "largest random ratio"],
        [
            (p, n.value, n.upper, float(ratio(A, x, p).max()))
            for p in sorted({*EXPONENTS, *between})
            for n in [induced_norm(A, p, generator=run.generator)]
        ],
        caption="Induced norms of one random 4 × 6 matrix; the bounds agree where it is exact",
    )


def largest_singular_value(run: Run) -> None:
    matrices = [run.randn(m, n) for m, n in ((3, 3), (5, 2), (40, 15), (9, 9))]
    norms = [induced_norm(A).value for A in matrices]
    says = run.states("L-005, L-032", r"m\ge n:\ \sup_{x\ne0}\|Ax\|/\|x\| = s_1(A) = \sqrt{\lambda_1(A^\top A)}")
    says.equal(
        torch.stack(
            [torch.linalg.svdvals(A)[0] for A in matrices]
            + [torch.linalg.eigvalsh(A.T @ A)[-1].sqrt() for A in matrices]
        ),
        [*norms, *norms],
        1e-12,
    )
    says.fails(
        "the largest |λ(A)| of a square A in its place",
        torch.linalg.eigvals(matrices[0]).abs().max(),
        promised=norms[0],
    )
    says = run.states(
        "L-032", r"\text{the maximizer is the first right singular vector: } |\langle x^\star,v_1\rangle|"
    )
    says.equal(torch.stack([(induced_norm(A).maximizer @ top_direction(A)).abs() for A in matrices]), 1.0, 1e-9)
    says.fails(
        "the maximizer of the 1-norm",
        torch.stack([(induced_norm(A, 1).maximizer @ top_direction(A)).abs() for A in matrices]),
    )


def inner_products(run: Run, trials: int) -> None:
    pairs = [(run.randn(n), run.randn(n)) for n in (2, 3, 10) for _ in range(trials // 100)]
    found = [cauchy_schwarz(x, y) for x, y in pairs]
    signs = torch.tensor([1.0, -1.0]).double()
    x, y = torch.tensor([2.0, 1.0]).double(), torch.tensor([2.0, -1.0]).double()
    says = run.states("L-006", r"|\langle x,y\rangle| \le \|x\|\|y\|")
    says.at_most([abs(f.inner) for f in found], [f.bound for f in found])
    says.fails(
        "the form x₁y₁ − x₂y₂ is not positive definite",
        ((signs * x) @ y).abs(),
        promised=float(((signs * x) @ x).abs().sqrt() * ((signs * y) @ y).abs().sqrt()),
    )
    says = run.states("L-006", r"\min_z\sum_i(x_i-zy_i)^2 = \frac{\|x\|^2\|y\|^2-\langle x,y\rangle^2}{\|y\|^2}")
    says.equal(
        [f.minimum for f in found],
        [(f.bound**2 - f.inner**2) / float(y @ y) for f, (_, y) in zip(found, pairs, strict=True)],
        1e-9,
    )
    says.fails("the value at z = 0 in its place", [float(x @ x) for x, _ in pairs])
    multiples = [cauchy_schwarz(a * y, y) for (_, y), a in zip(pairs, run.randn(len(pairs)), strict=True)]
    says = run.states("L-006", r"x = cy: \text{ equality (relative gap)}")
    says.equal([f.gap / f.bound for f in multiples], within=1e-12)
    says.fails("independent vectors", [f.gap / f.bound for f in found])
    says = run.states("L-006", r"\sup\,\langle x,y\rangle^2/(\|x\|^2\|y\|^2) = 1, \text{ not the } 4 \text{ of (1.7)}")
    says.equal(max((f.inner / f.bound) ** 2 for f in multiples), 1.0, 1e-12)
    says.fails("only independent vectors", max((f.inner / f.bound) ** 2 for f in found[:50]))
    ones, zero = torch.ones(3).double(), torch.zeros(3).double()
    nothing = cauchy_schwarz(ones, zero)
    run.refutes(
        "cauchy-schwarz-equality-case",
        r"\text{equality, so } x = cy \text{ for some } c \text{: } \min_c\|x-cy\| \text{ at } x=(1,1,1),\ y=0",
    ).equal(math.sqrt(nothing.minimum), nothing.gap, where="the gap of the inequality is 0 there")


def ratio(A: Tensor, x: Tensor, p: float) -> Tensor:
    """How much A stretches each row of x in the p-norm."""
    stretched = torch.linalg.vector_norm(x @ A.T, p, dim=1)
    made: Tensor = stretched / torch.linalg.vector_norm(x, p, dim=1)
    return made


def top_direction(A: Tensor) -> Tensor:
    """The top eigenvector of AᵀA."""
    made: Tensor = torch.linalg.eigh(A.T @ A).eigenvectors[:, -1]
    return made


def short(v: Tensor) -> str:
    return "(" + ", ".join(f"{x:.3g}" for x in v.flatten().tolist()[:5]) + (", …)" if v.numel() > 5 else ")")


def plot_balls(axes: Any, A: Tensor) -> None:
    angle = torch.linspace(0, 2 * math.pi, 1601, dtype=torch.float64)
    circle = torch.stack([angle.cos(), angle.sin()], dim=1)
    titles = {0.5: "p = ½ (no norm)", 1.0: "p = 1", 2.0: "p = 2", math.inf: "p = ∞"}
    for axis, (p, title) in zip(axes.ravel(), titles.items(), strict=True):
        ball = circle / torch.linalg.vector_norm(circle, p, dim=1, keepdim=True)
        image = ball @ A.T
        axis.fill(ball[:, 0], ball[:, 1], color=COLORS[5], alpha=0.4, label="unit ball")
        axis.plot(image[:, 0], image[:, 1], color=COLORS[1], label="its image")
        if p >= 1:
            found = induced_norm(A, p)
            outer, tip = found.value * ball, A @ found.maximizer
            axis.plot(outer[:, 0], outer[:, 1], "--", color=COLORS[2], lw=1.2, label="‖A‖ₚ · ball")
            axis.plot(*tip.tolist(), "o", color=COLORS[6], ms=4)
            title += f", ‖A‖ = {found.value:.3f}"
        axis.set_title(title)
        axis.set(xlim=(-2.4, 2.4), ylim=(-2.4, 2.4), aspect="equal")
    axes[0, 2].legend(loc="lower center", ncol=3, fontsize=6.5, columnspacing=0.8, handlelength=1.4)
