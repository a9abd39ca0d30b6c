"""Eigenvalues, the Loewner order and the singular value decomposition."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from torchtheory.labs.engine import Run, lab
from torchtheory.labs.primer.singular_values import decomposition, picture, rank_one
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
    covers=["L-018", "L-019", "L-020", "L-021", "L-022", "L-023", "L-024", "L-025"],
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
    least={"size": 3},
)
def primer_spectra(run: Run, trials: int = 20, size: int = 6) -> None:
    """What eigenvalues and singular values say about a matrix, and what they do not.

    Eigenvalues are compared with the roots of the characteristic polynomial, which is computed
    without them, and counted with both multiplicities. The trace, semidefiniteness and the Loewner
    order follow from them for symmetric matrices. The decomposition into rotation or reflection,
    scaling, and again rotation or reflection is checked factor by factor and drawn. Six statements
    of the source are false as printed; each has its counterexample here.

    Args:
        trials: random matrices.
        size: of a matrix.
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
    says = run.states("L-018", r"Av=\lambda v")
    says.equal(torch.stack(residuals), within=1e-12)
    says.fails("a random unit vector", unit_residual(run.randn(size, size), run))
    says = run.states("L-018", r"\text{the eigenvalues are the roots of } \det(A-\lambda I)")
    says.equal(distances, within=1e-8)
    says.fails(
        "of the polynomial of another matrix",
        float(
            (torch.linalg.eigvals(run.randn(size, size))[:, None] - torch.linalg.eigvals(run.randn(size, size)))
            .abs()
            .min(0)
            .values.max()
        ),
    )
    says = run.states("L-018", r"A-\lambda I \text{ is singular (its smallest singular value)}")
    says.equal(torch.stack(singular), within=1e-12)
    says.fails("λ + 0.1", torch.linalg.svdvals(shifted - 0.1 * torch.eye(size).double())[-1])
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
    says = run.states("L-018", r"\text{algebraic multiplicities add up to } d")
    says.equal([sum(e.algebraic for e in spectrum) for spectrum in found.values()], [len(A) for A in examples.values()])
    defective = [name for name, spectrum in found.items() if any(e.geometric < e.algebraic for e in spectrum)]
    says.fails(
        "geometric multiplicities, of the matrices with too few eigenvectors",
        [sum(e.geometric for e in found[name]) for name in defective],
        promised=[len(examples[name]) for name in defective],
    )
    says = run.states("L-018", r"\text{geometric} \le \text{algebraic multiplicity}")
    says.at_most(
        [e.geometric for spectrum in found.values() for e in spectrum],
        [e.algebraic for spectrum in found.values() for e in spectrum],
    )
    # λ and -λ have one square, whose eigenvectors are those of both
    mirrored = [rotation, torch.diag(torch.tensor([1.0, -1.0])).double(), torch.eye(2).double().flip(0)]
    squares = [eigenvalues(A @ A)[0].geometric for A in mirrored]
    says.fails(
        "eigenvectors of A² to the eigenvalue λ², where -λ is an eigenvalue of A as well",
        squares,
        promised=[eigenvalues(A)[0].algebraic for A in mirrored],
    )
    plane = found["identity of R²"]
    run.refutes(
        "eigenvalue-multiplicity",
        r"\text{number of distinct eigenvalues} = \text{multiplicity of } \lambda \text{ as a root},\ A=I_2",
    ).equal(plane[0].algebraic, len(plane))
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
    says = run.states("L-019", r"\operatorname{tr}A=\sum_i\lambda_i \text{ over the complex eigenvalues}")
    says.equal(torch.stack(sums), within=1e-12)
    says.fails("only the real ones, which the source's definition admits", torch.stack(real_only))
    says = run.states(
        "L-019",
        r"\operatorname{tr}(AB)=\operatorname{tr}(BA) \text{ (rectangular too)},\ "
        r"\operatorname{tr}A^\top=\operatorname{tr}A,\ \text{linearity}",
    )
    says.equal(torch.stack(cyclic).abs(), within=1e-12)
    says.fails("tr(ABC) and tr(ACB) differ", torch.stack(others))


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
    says = run.states("L-020", r"A=GG^\top:\ u^\top Au\ge0 \text{ and } \lambda_i\ge0")
    says.at_least([*[float(f) for f in forms], *smallest], 0.0, 1e-12)
    says.fails("a random matrix", indefinite.smallest)
    random = [run.randn(size, size) for _ in range(trials)]
    witnesses = [definiteness(A) for A in random]
    says = run.states("L-020", r"\min_{\|u\|=1}u^\top Au=\lambda_{\min}((A+A^\top)/2), \text{ at the witness}")
    says.equal(
        torch.stack([w.witness @ A @ w.witness for w, A in zip(witnesses, random, strict=True)]),
        [w.smallest for w in witnesses],
        1e-12,
    )
    says.fails(
        "the smallest real part of an eigenvalue of A itself",
        torch.stack([torch.linalg.eigvals(A).real.min() for A in random]),
    )
    shear = torch.tensor([[1.0, 4.0], [0.0, 1.0]], dtype=torch.float64)
    u = torch.tensor([1.0, -1.0], dtype=torch.float64)
    run.refutes(
        "semidefinite-by-eigenvalues",
        r"\lambda_i(A)\ge0 \text{ for all } i, \text{ so } u^\top Au\ge0:\ A=(1,4;0,1),\ u=(1,-1)",
    ).at_least(u @ shear @ u, 0.0, where=f"the eigenvalues are {torch.linalg.eigvals(shear).real.tolist()}")
    e1 = torch.diag(torch.tensor([1.0, 0.0])).double()
    e2 = torch.eye(2).double() - e1
    split, comparable = loewner_order(e1, e2), loewner_order(e1 + e2, e1)
    says = run.states(
        "L-020",
        r"\operatorname{diag}(1,0) \text{ and } \operatorname{diag}(0,1): \text{ neither is}"
        r"\succeq\text{ the other } (u^\top(A-B)u \text{ takes both signs})",
    )
    says.below(split.smallest * split.largest, 0.0)
    says.fails("I and diag(1,0)", comparable.smallest * comparable.largest)
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
    says = run.states(
        "L-020", r"B\preceq B+PP^\top\preceq B+PP^\top+QQ^\top: \text{ order, transitivity, reflexivity (violations)}"
    )
    says.equal(wrong)
    says.fails("random pairs of symmetric matrices", incomparable.count("incomparable"))


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
    says = run.states("L-025", r"A=A^\top:\ \text{the singular values are the moduli of the eigenvalues, as multisets}")
    says.equal(torch.stack(differences), within=1e-12)
    says.fails(
        "A is not symmetric",
        (torch.linalg.eigvals(rough).abs().sort(descending=True).values - torch.linalg.svdvals(rough)).abs().max(),
    )
    found = singular_decomposition(rough)
    says = run.states(
        "L-025",
        r"u_i=v_i \text{ for } \lambda>0,\ u_i=-v_i \text{ for } \lambda<0:"
        r"\ \langle u_i,v_i\rangle-\operatorname{sgn}\lambda",
    )
    says.equal(torch.stack(agreements), within=1e-9)
    says.fails("A is not symmetric", ((found.left * found.right).sum(0).abs() - 1).abs().max())
    descending = torch.diag(torch.tensor([1.0, -2.0])).double()
    run.refutes(
        "singular-values-in-order", r"\sigma_1(A)=|\lambda_1(A)| \text{ for } A=\operatorname{diag}(1,-2)"
    ).equal(torch.linalg.svdvals(descending)[0], torch.linalg.eigvalsh(descending).flip(0)[0].abs())
    indefinite = singular_decomposition(torch.diag(torch.tensor([2.0, -1.0])).double())
    both = torch.stack([indefinite.left - indefinite.right, indefinite.left + indefinite.right]).norm(dim=1)
    run.refutes(
        "symmetric-means-equal-vectors",
        r"A \text{ symmetric, so } U=V \text{ up to the signs of the pairs: the largest }"
        r" \|u_i-v_i\| \text{ for } \operatorname{diag}(2,-1)",
    ).equal(both[0], where="a common sign of uᵢ and vᵢ does not change ‖uᵢ − vᵢ‖")
