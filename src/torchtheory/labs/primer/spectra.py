"""Eigenvalues, the Loewner order and the singular value decomposition."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchtheory.core.figure import COLOURS
from torchtheory.core.lab import lab
from torchtheory.core.linear_operators import LinearOperator
from torchtheory.core.record import Control
from torchtheory.core.run import Run
from torchtheory.core.singular_values import operator_norm, singular_values
from torchtheory.primer.spectra import (
    characteristic_polynomial,
    definiteness,
    eigenvalues,
    loewner_order,
    singular_decomposition,
)


@lab(
    "primer-spectra",
    room="primer",
    covers=[f"L-0{i}" for i in range(18, 26)],
    errata=[
        "eigenvalue-multiplicity",
        "semidefinite-by-eigenvalues",
        "singular-vectors-span-columns",
        "symmetric-means-equal-vectors",
        "svd-two-rotations",
        "singular-values-in-order",
    ],
    title="Eigenvalues, traces, the Loewner order, and every statement about the SVD",
    full={"trials": 200, "size": 10},
)
def primer_spectra(run: Run, trials: int = 20, size: int = 6) -> None:
    """What eigenvalues and singular values say about a matrix, and what they do not.

    Eigenvalues are compared with the roots of the characteristic polynomial, which is computed
    without them, and counted with both multiplicities. The trace, semidefiniteness and the Loewner
    order follow from them for symmetric matrices. The decomposition into rotation or reflection,
    scaling, and again rotation or reflection is checked factor by factor and drawn. Six statements
    of the source are false as printed; each has its counterexample here.
    """
    characteristic(run, trials, size)
    traces(run, trials, size)
    order(run, trials, size)
    decomposition(run, trials)
    rank_one(run, trials)
    picture(run, trials)
    symmetric_matrices(run, trials, size)


def characteristic(run: Run, trials: int, size: int) -> None:
    residuals, distances, singular = [], [], []
    for _ in range(trials):
        A = run.randn(size, size)
        values, vectors = torch.linalg.eig(A)
        residuals.append((A.to(vectors) @ vectors - vectors * values).abs().max())
        roots = torch.from_numpy(np.roots(characteristic_polynomial(A).numpy()))
        gaps = (values[:, None] - roots).abs()
        distances.append(max(float(gaps.min(0).values.max()), float(gaps.min(1).values.max())))
        shifted = A - values[0] * torch.eye(size).double()
        singular.append(torch.linalg.svdvals(shifted)[-1])
    run.claim(
        "L-018",
        r"Av=\lambda v",
        promised=0.0,
        relation="==",
        measured=torch.stack(residuals),
        tolerance=1e-12,
        control=Control("a random unit vector", unit_residual(run.randn(size, size), run)),
    )
    run.claim(
        "L-018",
        r"\text{the eigenvalues are the roots of } \det(A-\lambda I)",
        promised=0.0,
        relation="==",
        measured=distances,
        tolerance=1e-8,
        control=Control(
            "of the polynomial of another matrix",
            float(
                (
                    torch.linalg.eigvals(run.randn(size, size))[:, None]
                    - torch.linalg.eigvals(run.randn(size, size))
                )
                .abs()
                .min(0)
                .values.max()
            ),
        ),
    )
    run.claim(
        "L-018",
        r"A-\lambda I \text{ is singular (its smallest singular value)}",
        promised=0.0,
        relation="==",
        measured=torch.stack(singular),
        tolerance=1e-12,
        control=Control(
            "λ + 0.1", torch.linalg.svdvals(shifted - 0.1 * torch.eye(size).double())[-1]
        ),
    )
    jordan = torch.diag(torch.ones(2), 1).double() + 2 * torch.eye(3).double()
    rotation = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    block = torch.zeros(7, 7).double()
    block[:3, :3], block[3:5, 3:5], block[5:, 5:] = jordan, 5 * torch.eye(2), rotation
    basis = run.randn(7, 7) + 3 * torch.eye(7).double()
    examples = {
        "identity of R²": torch.eye(2).double(),
        "rotation by 90°": rotation,
        "Jordan block of 2": jordan,
        "all of them, in another basis": basis @ block @ torch.linalg.inv(basis),
    }
    found = {name: eigenvalues(A) for name, A in examples.items()}
    run.claim(
        "L-018",
        r"\text{algebraic multiplicities add up to } d",
        promised=[len(A) for A in examples.values()],
        relation="==",
        measured=[sum(e.algebraic for e in spectrum) for spectrum in found.values()],
        control=Control(
            "geometric multiplicities",
            [sum(e.geometric for e in spectrum) for spectrum in found.values()],
        ),
    )
    run.claim(
        "L-018",
        r"\text{geometric} \le \text{algebraic multiplicity}",
        promised=[e.algebraic for spectrum in found.values() for e in spectrum],
        relation="<=",
        measured=[e.geometric for spectrum in found.values() for e in spectrum],
        control=Control(
            "the two are exchanged",
            [e.algebraic for spectrum in found.values() for e in spectrum],
            promised=[e.geometric for spectrum in found.values() for e in spectrum],
        ),
    )
    plane = found["identity of R²"]
    run.erratum(
        "eigenvalue-multiplicity",
        r"\text{number of distinct eigenvalues} = \text{multiplicity of } \lambda \text{ as a root}"
        r",\ A=I_2",
        promised=len(plane),
        relation="==",
        measured=plane[0].algebraic,
    )
    run.table(
        "multiplicities",
        ["matrix", "eigenvalue", "algebraic", "geometric"],
        [
            (name, f"{e.value.real:.4g}{e.value.imag:+.4g}i", e.algebraic, e.geometric)
            for name, spectrum in found.items()
            for e in spectrum
        ],
    )


def unit_residual(A: Tensor, run: Run) -> float:
    v = run.randn(len(A))
    v = v / v.norm()
    return float((A @ v - (v @ A @ v) * v).abs().max())


def traces(run: Run, trials: int, size: int) -> None:
    sums, real_only, cyclic, others = [], [], [], []
    for _ in range(trials):
        A, B, C = run.randn(size, size), run.randn(size, size), run.randn(size, size)
        values = torch.linalg.eigvals(A)
        sums.append((values.sum() - A.trace()).abs())
        real_only.append((values[values.imag == 0].real.sum() - A.trace()).abs())
        wide, tall = run.randn(3, size), run.randn(size, 3)
        cyclic += [(A @ B).trace() - (B @ A).trace(), (wide @ tall).trace() - (tall @ wide).trace()]
        cyclic += [
            (2 * A - 3 * B).trace() - 2 * A.trace() + 3 * B.trace(),
            A.T.trace() - A.trace(),
        ]
        others.append(((A @ B @ C).trace() - (A @ C @ B).trace()).abs())
    run.claim(
        "L-019",
        r"\operatorname{tr}A=\sum_i\lambda_i \text{ over the complex eigenvalues}",
        promised=0.0,
        relation="==",
        measured=torch.stack(sums),
        tolerance=1e-12,
        control=Control(
            "only the real ones, which the source's definition admits", torch.stack(real_only)
        ),
    )
    run.claim(
        "L-019",
        r"\operatorname{tr}(AB)=\operatorname{tr}(BA) \text{ (rectangular too)},\ "
        r"\operatorname{tr}A^\top=\operatorname{tr}A,\ \text{linearity}",
        promised=0.0,
        relation="==",
        measured=torch.stack(cyclic).abs(),
        tolerance=1e-12,
        control=Control("tr(ABC) and tr(ACB) differ", torch.stack(others)),
    )


def order(run: Run, trials: int, size: int) -> None:
    forms, smallest = [], []
    for _ in range(trials):
        G = run.randn(size, 3)
        A = G @ G.T
        u = run.randn(200, size)
        u = u / u.norm(dim=1, keepdim=True)
        forms.append(((u @ A) * u).sum(1).min())
        smallest.append(definiteness(A).smallest)
    indefinite = definiteness(run.randn(size, size))
    run.claim(
        "L-020",
        r"A=GG^\top:\ u^\top Au\ge0 \text{ and } \lambda_i\ge0",
        promised=0.0,
        relation=">=",
        measured=[*[float(f) for f in forms], *smallest],
        tolerance=1e-12,
        control=Control("a random matrix", indefinite.smallest),
    )
    random = [run.randn(size, size) for _ in range(trials)]
    witnesses = [definiteness(A) for A in random]
    run.claim(
        "L-020",
        r"\min_{\|u\|=1}u^\top Au=\lambda_{\min}((A+A^\top)/2), \text{ at the witness}",
        promised=[w.smallest for w in witnesses],
        relation="==",
        measured=torch.stack(
            [w.witness @ A @ w.witness for w, A in zip(witnesses, random, strict=True)]
        ),
        tolerance=1e-12,
        control=Control(
            "the smallest real part of an eigenvalue of A itself",
            torch.stack([torch.linalg.eigvals(A).real.min() for A in random]),
        ),
    )
    shear = torch.tensor([[1.0, 4.0], [0.0, 1.0]], dtype=torch.float64)
    u = torch.tensor([1.0, -1.0], dtype=torch.float64)
    run.erratum(
        "semidefinite-by-eigenvalues",
        r"\lambda_i(A)\ge0 \text{ for all } i, \text{ so } u^\top Au\ge0:\ A=(1,4;0,1),\ u=(1,-1)",
        promised=0.0,
        relation=">=",
        measured=u @ shear @ u,
        reason=f"the eigenvalues are {torch.linalg.eigvals(shear).real.tolist()}",
    )
    e1 = torch.diag(torch.tensor([1.0, 0.0])).double()
    e2 = torch.eye(2).double() - e1
    split, comparable = loewner_order(e1, e2), loewner_order(e1 + e2, e1)
    run.claim(
        "L-020",
        r"\operatorname{diag}(1,0) \text{ and } \operatorname{diag}(0,1): \text{ neither is}"
        r"\succeq\text{ the other } (u^\top(A-B)u \text{ takes both signs})",
        promised=0.0,
        relation="<",
        measured=split.smallest * split.largest,
        control=Control("I and diag(1,0)", comparable.smallest * comparable.largest),
    )
    wrong = 0
    for _ in range(trials):
        S = run.randn(size, size)
        B = S + S.T
        P, Q = run.randn(size, 2), run.randn(size, 2)
        A, C = B + P @ P.T, B + P @ P.T + Q @ Q.T
        wrong += loewner_order(A, B).order != ">="
        wrong += loewner_order(B, A).order != "<="
        wrong += loewner_order(C, B).order != ">="
        wrong += loewner_order(B, B.clone()).order != "=="
    incomparable = [
        loewner_order(S + S.T, T + T.T).order
        for S, T in ((run.randn(size, size), run.randn(size, size)) for _ in range(trials))
    ]
    run.claim(
        "L-020",
        r"B\preceq B+PP^\top\preceq B+PP^\top+QQ^\top: \text{ order, transitivity, reflexivity"
        r" (violations)}",
        promised=0,
        relation="==",
        measured=wrong,
        control=Control("random pairs of symmetric matrices", incomparable.count("incomparable")),
    )


def decomposition(run: Run, trials: int) -> None:
    shapes = [(4, 7), (7, 4), (5, 5), (6, 1)]
    three, padded, rebuilt, relations, inverse = [], [], [], [], []
    for m, n in shapes * max(1, trials // 4):
        A = run.randn(m, n)
        found = singular_decomposition(A)
        U, D, V, r = found.left, found.diagonal, found.right, min(m, n)
        by_rows = torch.linalg.eigvalsh(A @ A.T).flip(0)[:r].clamp_min(0).sqrt()
        by_columns = torch.linalg.eigvalsh(A.T @ A).flip(0)[:r].clamp_min(0).sqrt()
        krylov = singular_values(LinearOperator.from_matrix(A), r, generator=run.generator).values
        three += [(s - found.values).abs().max() for s in (by_rows, by_columns, krylov)]
        larger = A @ A.T if m > n else A.T @ A
        if m != n:
            padded.append(torch.linalg.eigvalsh(larger)[: abs(m - n)].abs().max())
        rebuilt.append((U @ D @ V.T - A).abs().max())
        relations += [(A @ V - U @ D).abs().max(), (A.T @ U - V @ D.T).abs().max()]
        for Q in (U, V):
            eye = torch.eye(len(Q)).double()
            inverse += [
                (Q.T @ Q - eye).abs().max(),
                (Q @ Q.T - eye).abs().max(),
                (torch.linalg.inv(Q) - Q.T).abs().max(),
            ]
    A = run.randn(5, 5)
    run.claim(
        "L-021",
        r"\sigma_i(A)=\sqrt{\lambda_i(AA^\top)}=\sqrt{\lambda_i(A^\top A)},\ i\le\min(m,n)",
        promised=0.0,
        relation="==",
        measured=torch.stack(three),
        tolerance=1e-6,
        control=Control(
            "√λ(A²) of a matrix that is not symmetric",
            (
                torch.linalg.eigvals(A @ A).abs().sort(descending=True).values.sqrt()
                - torch.linalg.svdvals(A)
            )
            .abs()
            .max(),
        ),
    )
    run.claim(
        "L-021",
        r"\text{the larger Gram matrix has } |m-n| \text{ more eigenvalues, all } 0",
        promised=0.0,
        relation="==",
        measured=torch.stack(padded),
        tolerance=1e-12,
        control=Control("the next one", torch.linalg.eigvalsh(larger)[abs(m - n)]),
    )
    ranks = [(r, run.randn(9, r) @ run.randn(r, 7)) for r in (1, 2, 4, 6) for _ in range(3)]
    run.claim(
        "L-021",
        r"\text{the number of nonzero singular values is the rank}",
        promised=[r for r, _ in ranks],
        relation="==",
        measured=[singular_decomposition(P).rank for _, P in ranks],
        control=Control(
            "noise of 10⁻⁶ is added",
            [singular_decomposition(P + 1e-6 * run.randn(9, 7)).rank for _, P in ranks],
        ),
    )
    top = run.randn(30, 20)
    run.claim(
        "L-021",
        r"\sigma_1(A)=\|A\|_2",
        promised=operator_norm(
            LinearOperator.from_matrix(top), tolerance=1e-10, generator=run.generator
        ).value,
        relation="==",
        measured=singular_decomposition(top).values[0],
        tolerance=1e-9,
        control=Control("the Frobenius norm", top.norm()),
    )
    run.claim(
        "L-022",
        r"A=UDV^\top \text{ with } D \text{ diagonal and } \sigma_1\ge\dots\ge0",
        promised=0.0,
        relation="==",
        measured=torch.stack(rebuilt),
        tolerance=1e-12,
        control=Control(
            "V in the place of its transpose", (U @ D @ V - run.randn(m, n)).abs().max()
        ),
    )
    run.claim(
        "L-022",
        r"Av_i=\sigma_iu_i,\quad A^\top u_i=\sigma_iv_i",
        promised=0.0,
        relation="==",
        measured=torch.stack(relations),
        tolerance=1e-12,
        control=Control("u and v are exchanged", exchanged(run.randn(5, 5))),
    )
    skew = torch.linalg.eig(A).eigenvectors
    run.claim(
        "L-022",
        r"U^\top U=UU^\top=I,\ U^{-1}=U^\top",
        promised=0.0,
        relation="==",
        measured=torch.stack(inverse),
        tolerance=1e-12,
        control=Control(
            "the eigenvectors of a matrix that is not normal",
            (skew.mH @ skew - torch.eye(5)).abs().max(),
        ),
    )
    low = run.randn(6, 2) @ run.randn(2, 5)
    found = singular_decomposition(low)
    onto = low @ torch.linalg.pinv(low)
    outside = (found.left - onto @ found.left).norm(dim=0)
    run.claim(
        "L-022",
        r"u_1,\dots,u_{\operatorname{rank}A} \text{ lie in the column space, and } A \text{ sends"
        r" the last } v_i \text{ to } 0",
        promised=0.0,
        relation="==",
        measured=torch.cat([outside[: found.rank], (low @ found.kernel).norm(dim=0)]),
        tolerance=1e-12,
        control=Control("all columns of U", outside),
    )
    run.erratum(
        "singular-vectors-span-columns",
        r"\text{all columns of } U \text{ lie in the column space of } A \text{ (largest distance,"
        r" rank 2 in } \mathbb R^6)",
        promised=0.0,
        relation="==",
        measured=outside,
        tolerance=1e-9,
    )
    scales = [10.0**-k for k in (2, 4, 6, 8, 10, 12)]
    left, right = torch.linalg.qr(run.randn(8, 8)).Q, torch.linalg.qr(run.randn(8, 8)).Q
    rows = []
    for small in scales:
        diagonal = torch.ones(8).double()
        diagonal[-1] = small
        M = left @ torch.diag(diagonal) @ right
        gram = float(torch.linalg.eigvalsh(M.T @ M)[0].clamp_min(0).sqrt())
        rows.append((small, float(torch.linalg.svdvals(M)[-1]), gram))
    run.table(
        "precision",
        ["true smallest singular value", "by the decomposition", "as √λ(AᵀA)"],
        rows,
        caption="Forming AᵀA halves the digits: below 10⁻⁸ nothing is left",
    )
    run.claim(
        "L-021",
        r"\text{a decomposition finds } \sigma=10^{-10} \text{ next to } \sigma_1=1"
        r" \text{ (relative error)}",
        promised=1e-4,
        relation="<=",
        measured=abs(rows[4][1] / rows[4][0] - 1),
        control=Control("the root of an eigenvalue of AᵀA", abs(rows[4][2] / rows[4][0] - 1)),
    )


def exchanged(A: Tensor) -> Tensor:
    found = singular_decomposition(A)
    return (A @ found.left - found.right * found.values).abs().max()


def rank_one(run: Run, trials: int) -> None:
    operator, frobenius, ranks, tails, nexts, backwards, heads = [], [], [], [], [], [], []
    for _ in range(max(2, trials // 4)):
        A = run.randn(7, 5)
        found = singular_decomposition(A)
        ranks += [int(torch.linalg.matrix_rank(term)) for term in found.terms()]
        for k in range(5):
            error = A - found.partial_sum(k)
            operator.append(torch.linalg.matrix_norm(error, 2))
            frobenius.append(error.norm())
            nexts.append(found.values[k])
            tails.append(found.values[k:].norm())
            if k:
                smallest_first = found.terms().flip(0)[:k].sum(0)
                backwards.append((A - smallest_first).norm())
                heads.append(found.values[k:].norm())
    run.claim(
        "L-023",
        r"\text{every term } \sigma_iu_iv_i^\top \text{ has rank 1}",
        promised=1,
        relation="==",
        measured=ranks,
        control=Control(
            "the sum of two terms", int(torch.linalg.matrix_rank(found.terms()[:2].sum(0)))
        ),
    )
    run.claim(
        "L-023",
        r"\|A-\sum_{i\le k}\sigma_iu_iv_i^\top\|_F=\sqrt{\textstyle\sum_{i>k}\sigma_i^2}",
        promised=torch.stack(tails),
        relation="==",
        measured=torch.stack(frobenius),
        tolerance=1e-12,
        control=Control(
            "the smallest terms are taken first",
            torch.stack(backwards),
            promised=torch.stack(heads),
        ),
    )
    run.claim(
        "L-023",
        r"\|A-\sum_{i\le k}\sigma_iu_iv_i^\top\|_2=\sigma_{k+1}",
        promised=torch.stack(nexts),
        relation="==",
        measured=torch.stack(operator),
        tolerance=1e-12,
        control=Control("in the Frobenius norm", torch.stack(frobenius)),
    )


def picture(run: Run, trials: int) -> None:
    angle = torch.linspace(0, 2 * math.pi, 100_001, dtype=torch.float64)
    disc = torch.stack([angle.cos(), angle.sin()])
    differences, axes_of_image, sigmas, signs, determinants = [], [], [], [], []
    for _ in range(trials):
        A = run.randn(2, 2)
        found = singular_decomposition(A)
        path = found.left @ (found.diagonal @ (found.right.T @ disc))
        differences.append((path - A @ disc).abs().max())
        squares = (A @ disc).square().sum(0)
        axes_of_image += [squares.max(), squares.min()]
        sigmas += [found.values[0] ** 2, found.values[1] ** 2]
        signs.append(torch.linalg.det(A).sign())
        determinants.append(torch.linalg.det(found.left) * torch.linalg.det(found.right))
    run.claim(
        "L-024",
        r"U(D(V^\top x))=Ax \text{ on the unit disc: three steps end where one does}",
        promised=0.0,
        relation="==",
        measured=torch.stack(differences),
        tolerance=1e-12,
        control=Control(
            "the first and the last step change places",
            (found.right.T @ (found.diagonal @ (found.left @ disc)) - A @ disc).abs().max(),
        ),
    )
    run.claim(
        "L-024",
        r"\text{the image of the disc is an ellipse with semi-axes } \sigma_1,\sigma_2"
        r" \text{ (squared; 100 000 directions)}",
        promised=torch.stack(sigmas),
        relation="==",
        measured=torch.stack(axes_of_image),
        tolerance=1e-6,
        control=Control(
            "the moduli of the eigenvalues",
            torch.linalg.eigvals(A).abs().sort(descending=True).values ** 2,
            promised=torch.stack(sigmas[-2:]),
        ),
    )
    run.claim(
        "L-024",
        r"\det U\,\det V=\operatorname{sgn}\det A",
        promised=torch.stack(signs),
        relation="==",
        measured=torch.stack(determinants),
        tolerance=1e-12,
        control=Control("one column of U changes its sign", -torch.stack(determinants)),
    )
    mirror = torch.tensor([[1.0, 0.6], [0.8, -0.9]], dtype=torch.float64)
    found = singular_decomposition(mirror)
    run.erratum(
        "svd-two-rotations",
        r"U \text{ and } V \text{ are rotations: the smaller of } \det U,\det V, \text{ for a"
        r" matrix with } \det A<0",
        promised=1.0,
        relation="==",
        measured=torch.minimum(torch.linalg.det(found.left), torch.linalg.det(found.right)),
        tolerance=1e-9,
    )
    shear = torch.tensor([[1.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
    run.figure(
        "svd",
        lambda axes: plot_svd(axes, shear),
        caption="A shear in three steps: Vᵀ turns the disc, D stretches the axes, U turns again. "
        "The last panel is the shear itself.",
        grid=(1, 5),
        size=(13, 3.0),
    )


def symmetric_matrices(run: Run, trials: int, size: int) -> None:
    differences, agreements = [], []
    for _ in range(trials):
        S = run.randn(size, size)
        A = S + S.T
        values = torch.linalg.eigvalsh(A)
        found = singular_decomposition(A)
        differences.append((values.abs().sort(descending=True).values - found.values).abs().max())
        alignment = (found.left * found.right).sum(0)
        signed = values[values.abs().argsort(descending=True)].sign()
        agreements.append((alignment - signed).abs().max())
    rough = run.randn(size, size)
    run.claim(
        "L-025",
        r"A=A^\top:\ \text{the singular values are the moduli of the eigenvalues, as multisets}",
        promised=0.0,
        relation="==",
        measured=torch.stack(differences),
        tolerance=1e-12,
        control=Control(
            "A is not symmetric",
            (
                torch.linalg.eigvals(rough).abs().sort(descending=True).values
                - torch.linalg.svdvals(rough)
            )
            .abs()
            .max(),
        ),
    )
    found = singular_decomposition(rough)
    run.claim(
        "L-025",
        r"u_i=v_i \text{ for } \lambda>0,\ u_i=-v_i \text{ for } \lambda<0:"
        r"\ \langle u_i,v_i\rangle-\operatorname{sgn}\lambda",
        promised=0.0,
        relation="==",
        measured=torch.stack(agreements),
        tolerance=1e-9,
        control=Control(
            "A is not symmetric", ((found.left * found.right).sum(0).abs() - 1).abs().max()
        ),
    )
    descending = torch.diag(torch.tensor([1.0, -2.0])).double()
    run.erratum(
        "singular-values-in-order",
        r"\sigma_1(A)=|\lambda_1(A)| \text{ for } A=\operatorname{diag}(1,-2)",
        promised=torch.linalg.eigvalsh(descending).flip(0)[0].abs(),
        relation="==",
        measured=torch.linalg.svdvals(descending)[0],
    )
    indefinite = singular_decomposition(torch.diag(torch.tensor([2.0, -1.0])).double())
    both = torch.stack(
        [indefinite.left - indefinite.right, indefinite.left + indefinite.right]
    ).norm(dim=1)
    run.erratum(
        "symmetric-means-equal-vectors",
        r"A \text{ symmetric, so } U=V \text{ up to the signs of the pairs: the largest }"
        r" \|u_i-v_i\| \text{ for } \operatorname{diag}(2,-1)",
        promised=0.0,
        relation="==",
        measured=both[0],
        reason="a common sign of uᵢ and vᵢ does not change ‖uᵢ − vᵢ‖",
    )


def plot_svd(axes: Any, A: Tensor) -> None:
    found = singular_decomposition(A)
    U, D, Vt = found.left, found.diagonal, found.right.T
    stages = [
        ("unit disc", torch.eye(2).double()),
        ("after Vᵀ", Vt),
        ("after D", D @ Vt),
        ("after U", U @ D @ Vt),
        ("A at once", A),
    ]
    angle = torch.linspace(0, 2 * math.pi, 200, dtype=torch.float64)
    disc = torch.stack([angle.cos(), angle.sin()])
    for axis, (title, M) in zip(axes.ravel(), stages, strict=True):
        image = M @ disc
        axis.fill(image[0], image[1], color=COLOURS[5], alpha=0.3, ec=COLOURS[0], lw=1.2)
        for i, colour in ((0, COLOURS[1]), (1, COLOURS[2])):
            axis.annotate(
                "",
                xy=M[:, i].tolist(),
                xytext=(0, 0),
                arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 2},
            )
            tip = 1.25 * M[:, i]
            axis.text(
                float(tip[0]), float(tip[1]), f"$e_{i + 1}$", color=colour, ha="center", va="center"
            )
        axis.set(xlim=(-2, 2), ylim=(-2, 2), aspect="equal", title=title)
