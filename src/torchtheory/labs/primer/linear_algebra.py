"""Spans and matrix products."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.primer.spans import span

INDEPENDENT = torch.tensor([[-3.0, 2.0], [2.0, 3.0]], dtype=torch.float64)
DEPENDENT = torch.tensor([[1.0, 2.0], [2.0, 4.0]], dtype=torch.float64)


@lab(
    "primer-linear-algebra",
    room="primer",
    covers=["L-001", "L-002"],
    errata=["span-second-column-label"],
    title="A span is what linear combinations reach; products associate and do not commute",
    full={"trials": 2000, "size": 60},
    least={"size": 4},
)
def primer_linear_algebra(run: Run, trials: int = 200, size: int = 12) -> None:
    """Linear combinations of columns, and the algebra of matrix products.

    The two worked examples of the source are computed, one with independent and one with
    dependent columns. Then random vectors are put into the span of random columns and found
    there again, with their coefficients. Products of random matrices are compared with the triple
    sum that defines them and with each other: they distribute, associate and have two-sided
    inverses, and they do not commute.

    Args:
        trials: random cases.
        size: dimension of the vectors.
    """
    V, W = INDEPENDENT, DEPENDENT
    c, e = torch.tensor([0.5, 1.0]).double(), torch.tensor([1.0, 0.5]).double()
    says = run.states("L-001", r"Vc = \sum_i c_i v_i = (0.5, 4) \text{ and } (2, 4) \text{ in the two examples}")
    says.equal(torch.cat([c[0] * V[:, 0] + c[1] * V[:, 1], W @ e]), [0.5, 4.0, 2.0, 4.0])
    says.fails("the coefficients are exchanged", torch.cat([V @ c.flip(0), W @ e.flip(0)]))
    run.refutes(
        "span-second-column-label", r"\text{the second column of } V \text{ is } v_1 \text{: its distance from } v_1"
    ).equal((V[:, 1] - V[:, 0]).norm())
    draws = run.randn(trials, 2)
    says = run.states(
        "L-001", r"v_2 = 2v_1:\ c_1v_1 + c_2v_2 \text{ is a multiple of } v_1 \text{ (distance from the line)}"
    )
    says.equal([span(W).distance(W @ d) for d in draws], within=1e-12)
    says.fails("independent columns", [span(W[:, :1]).distance(V @ d) for d in draws])
    inside, outside, recovered, ranks = [], [], [], []
    for _ in range(trials):
        columns = run.randn(size, 3)
        weights = run.randn(3)
        found = span(columns)
        b = columns @ weights
        inside.append(found.distance(b) / float(b.norm()))
        outside.append(found.distance(run.randn(size)))
        recovered.append((found.coefficients(b) - weights).abs().max())
        ranks.append(found.rank)
    says = run.states("L-001", r"b = Vc \text{ has distance 0 from the column space of } V")
    says.equal(inside, within=1e-12)
    says.fails("b is any vector", outside)
    says = run.states("L-001", r"\text{independent columns: the coefficients of a vector of the span are unique}")
    says.equal(torch.stack(recovered), within=1e-9)
    says.fails(
        "dependent columns: other coefficients give the same vector", (span(W).coefficients(W @ e) - e).abs().max()
    )
    says = run.states("L-001", r"\dim \operatorname{span}(v_1, v_2) = 1 \text{ for } v_2 = 2v_1")
    says.equal(span(W).rank, 1)
    says.fails("independent columns", span(V).rank)

    A, B, C = run.randn(size, size), run.randn(size, size), run.randn(size, size)
    says = run.states("L-002", r"(AB)_{ij} = \sum_k A_{ik}B_{kj}")
    says.equal(A @ B, torch.einsum("ik,kj->ij", A, B), 1e-12)
    says.fails("entry by entry", A * B)
    identity = torch.eye(size, dtype=torch.float64)
    laws = {
        "A(B+C) = AB+AC": (A @ (B + C), A @ B + A @ C),
        "(A+B)C = AC+BC": ((A + B) @ C, A @ C + B @ C),
        "(AB)C = A(BC)": ((A @ B) @ C, A @ (B @ C)),
        "(AB)ᵀ = BᵀAᵀ": ((A @ B).T, B.T @ A.T),
    }
    says = run.states("L-002", r"A(B+C)=AB+AC,\ (A+B)C=AC+BC,\ (AB)C=A(BC),\ (AB)^\top=B^\top A^\top")
    says.equal([relative(left, right) for left, right in laws.values()], within=1e-12)
    says.fails("the factors change places: AB and BA", relative(A @ B, B @ A))
    diagonal = torch.diag(run.randn(size)), torch.diag(run.randn(size))
    says = run.states("L-002", r"AB \ne BA \text{ for random matrices: } \|AB-BA\|_F > 0")
    says.above([commutator(run.randn(size, size), run.randn(size, size)) for _ in range(trials)], 0.0)
    says.fails("diagonal matrices", commutator(*diagonal))
    tall = run.randn(size, size // 2)
    says = run.states("L-002", r"AA^{-1} = A^{-1}A = I")
    says.equal(
        [(A @ torch.linalg.inv(A) - identity).abs().max(), (torch.linalg.inv(A) @ A - identity).abs().max()],
        within=1e-9,
    )
    says.fails(
        "A is not square: its left inverse is no right inverse", (tall @ torch.linalg.pinv(tall) - identity).abs().max()
    )
    run.table(
        "laws",
        ["law", "relative difference of the two sides"],
        [(name, relative(*sides)) for name, sides in laws.items()] + [("AB = BA (not a law)", relative(A @ B, B @ A))],
        caption=f"Random {size} × {size} matrices",
    )
    run.figure(
        "span",
        plot_spans,
        caption="The combinations with coefficients in [0, 1]: a parallelogram for independent "
        "vectors, a segment for dependent ones. The dot is the worked example.",
        grid=(1, 2),
        size=(9, 4),
    )


def relative(left: Tensor, right: Tensor) -> float:
    """Largest difference of two matrices, relative to the largest entry."""
    return float((left - right).abs().max() / right.abs().max())


def commutator(A: Tensor, B: Tensor) -> float:
    return float((A @ B - B @ A).norm())


def plot_spans(axes: Any) -> None:
    examples = [
        (INDEPENDENT, (0.5, 1.0), "rank 2"),
        (DEPENDENT, (1.0, 0.5), "rank 1"),
    ]
    for axis, (V, c, title) in zip(axes.ravel(), examples, strict=True):
        corners = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]).double() @ V.T
        axis.fill(corners[:, 0], corners[:, 1], color=COLORS[5], alpha=0.35, ec=COLORS[0], lw=1.5)
        for i, color in ((1, COLORS[2]), (0, COLORS[1])):
            tip = V[:, i].tolist()
            axis.annotate(
                "",
                xy=tip,
                xytext=(0, 0),
                arrowprops={"arrowstyle": "-|>", "color": color, "lw": 2},
            )
            axis.annotate(
                f"$v_{i + 1}$",
                tip,
                xytext=(6, -10) if tip[0] > 0 else (-10, 8),
                textcoords="offset points",
                color=color,
                fontsize=11,
            )
        point = (V @ torch.tensor(c).double()).tolist()
        axis.plot(*point, "o", color=COLORS[6], zorder=3)
        axis.annotate(
            f"{c[0]:g}$v_1$ + {c[1]:g}$v_2$ = ({point[0]:g}, {point[1]:g})",
            point,
            xytext=(-8, 6) if title == "rank 1" else (6, 6),
            textcoords="offset points",
            ha="right" if title == "rank 1" else "left",
        )
        axis.set_title(title)
        axis.margins(0.15)
        axis.set_aspect("equal", adjustable="datalim")
