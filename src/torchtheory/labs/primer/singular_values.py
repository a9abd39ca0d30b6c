"""Every statement about the singular value decomposition, factor by factor."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchtheory.labs.engine import COLORS, Run
from torchtheory.linalg.operators import LinearOperator
from torchtheory.linalg.singular_values import operator_norm, singular_values
from torchtheory.primer.spectra import singular_decomposition


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
    says = run.states("L-021", r"\sigma_i(A)=\sqrt{\lambda_i(AA^\top)}=\sqrt{\lambda_i(A^\top A)},\ i\le\min(m,n)")
    says.equal(torch.stack(three), within=1e-6)
    says.fails(
        "√λ(A²) of a matrix that is not symmetric",
        (torch.linalg.eigvals(A @ A).abs().sort(descending=True).values.sqrt() - torch.linalg.svdvals(A)).abs().max(),
    )
    says = run.states("L-021", r"\text{the larger Gram matrix has } |m-n| \text{ more eigenvalues, all } 0")
    says.equal(torch.stack(padded), within=1e-12)
    says.fails("the next one", torch.linalg.eigvalsh(larger)[abs(m - n)])
    ranks = [(r, run.randn(9, r) @ run.randn(r, 7)) for r in (1, 2, 4, 6) for _ in range(3)]
    says = run.states("L-021", r"\text{the number of nonzero singular values is the rank}")
    says.equal([singular_decomposition(P).rank for _, P in ranks], [r for r, _ in ranks])
    says.fails("noise of 10⁻⁶ is added", [singular_decomposition(P + 1e-6 * run.randn(9, 7)).rank for _, P in ranks])
    top = run.randn(30, 20)
    says = run.states("L-021", r"\sigma_1(A)=\|A\|_2")
    says.equal(
        singular_decomposition(top).values[0],
        operator_norm(LinearOperator.from_matrix(top), tolerance=1e-10, generator=run.generator).value,
        1e-9,
    )
    says.fails("the Frobenius norm", top.norm())
    says = run.states("L-022", r"A=UDV^\top \text{ with } D \text{ diagonal and } \sigma_1\ge\dots\ge0")
    says.equal(torch.stack(rebuilt), within=1e-12)
    says.fails("V in the place of its transpose", (U @ D @ V - run.randn(m, n)).abs().max())
    says = run.states("L-022", r"Av_i=\sigma_iu_i,\quad A^\top u_i=\sigma_iv_i")
    says.equal(torch.stack(relations), within=1e-12)
    says.fails("u and v are exchanged", exchanged(run.randn(5, 5)))
    skew = torch.linalg.eig(A).eigenvectors
    says = run.states("L-022", r"U^\top U=UU^\top=I,\ U^{-1}=U^\top")
    says.equal(torch.stack(inverse), within=1e-12)
    says.fails("the eigenvectors of a matrix that is not normal", (skew.mH @ skew - torch.eye(5)).abs().max())
    low = run.randn(6, 2) @ run.randn(2, 5)
    found = singular_decomposition(low)
    onto = low @ torch.linalg.pinv(low)
    outside = (found.left - onto @ found.left).norm(dim=0)
    says = run.states(
        "L-022",
        r"u_1,\dots,u_{\operatorname{rank}A} \text{ lie in the column space, and } A \text{ sends"
        r" the last } v_i \text{ to } 0",
    )
    says.equal(torch.cat([outside[: found.rank], (low @ found.kernel).norm(dim=0)]), within=1e-12)
    says.fails("all columns of U", outside)
    run.refutes(
        "singular-vectors-span-columns",
        r"\text{all columns of } U \text{ lie in the column space of } A \text{ (largest distance,"
        r" rank 2 in } \mathbb R^6)",
    ).equal(outside, within=1e-9)
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
    says = run.states(
        "L-021", r"\text{a decomposition finds } \sigma=10^{-10} \text{ next to } \sigma_1=1: \text{ found}/\text{true}"
    )
    # σ moves by some roundings of σ₁, 10⁻¹⁶, at most: a part in 10⁻⁶ of it, and room for a hundred
    says.equal(rows[4][1] / rows[4][0], 1.0, 1e-4)
    says.fails("the root of an eigenvalue of AᵀA", rows[4][2] / rows[4][0])


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
    says = run.states("L-023", r"\text{every term } \sigma_iu_iv_i^\top \text{ has rank 1}")
    says.equal(ranks, 1)
    says.fails("the sum of two terms", int(torch.linalg.matrix_rank(found.terms()[:2].sum(0))))
    says = run.states("L-023", r"\|A-\sum_{i\le k}\sigma_iu_iv_i^\top\|_F=\sqrt{\textstyle\sum_{i>k}\sigma_i^2}")
    says.equal(torch.stack(frobenius), torch.stack(tails), 1e-12)
    says.fails("the smallest terms are taken first", torch.stack(backwards), promised=torch.stack(heads))
    says = run.states("L-023", r"\|A-\sum_{i\le k}\sigma_iu_iv_i^\top\|_2=\sigma_{k+1}")
    says.equal(torch.stack(operator), torch.stack(nexts), 1e-12)
    says.fails("in the Frobenius norm", torch.stack(frobenius))


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
    says = run.states("L-024", r"U(D(V^\top x))=Ax \text{ on the unit disc: three steps end where one does}")
    says.equal(torch.stack(differences), within=1e-12)
    says.fails(
        "the first and the last step change places",
        (found.right.T @ (found.diagonal @ (found.left @ disc)) - A @ disc).abs().max(),
    )
    says = run.states(
        "L-024",
        r"\text{the image of the disc is an ellipse with semi-axes } \sigma_1,\sigma_2"
        r" \text{ (squared; 100 000 directions)}",
    )
    says.equal(torch.stack(axes_of_image), torch.stack(sigmas), 1e-6)
    says.fails(
        "the moduli of the eigenvalues",
        torch.linalg.eigvals(A).abs().sort(descending=True).values ** 2,
        promised=torch.stack(sigmas[-2:]),
    )
    says = run.states("L-024", r"\det U\,\det V=\operatorname{sgn}\det A")
    says.equal(torch.stack(determinants), torch.stack(signs), 1e-12)
    says.fails("one column of U changes its sign", -torch.stack(determinants))
    mirror = torch.tensor([[1.0, 0.6], [0.8, -0.9]], dtype=torch.float64)
    found = singular_decomposition(mirror)
    run.refutes(
        "svd-two-rotations",
        r"U \text{ and } V \text{ are rotations: the smaller of } \det U,\det V, \text{ for a matrix with } \det A<0",
    ).equal(torch.minimum(torch.linalg.det(found.left), torch.linalg.det(found.right)), 1.0, 1e-9)
    shear = torch.tensor([[1.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
    run.figure(
        "svd",
        lambda axes: plot_svd(axes, shear),
        caption="A shear in three steps: Vᵀ turns the disc, D stretches the axes, U turns again. "
        "The last panel is the shear itself.",
        grid=(1, 5),
        size=(13, 3.0),
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
        axis.fill(image[0], image[1], color=COLORS[5], alpha=0.3, ec=COLORS[0], lw=1.2)
        for i, color in ((0, COLORS[1]), (1, COLORS[2])):
            axis.annotate(
                "",
                xy=M[:, i].tolist(),
                xytext=(0, 0),
                arrowprops={"arrowstyle": "-|>", "color": color, "lw": 2},
            )
            tip = 1.25 * M[:, i]
            axis.text(float(tip[0]), float(tip[1]), f"$e_{i + 1}$", color=color, ha="center", va="center")
        axis.set(xlim=(-2, 2), ylim=(-2, 2), aspect="equal", title=title)
