"""Networks through given points: m neurons always do, and few parameters suffice."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.approximation.memorization.networks import (
    Memorizer,
    inverse_certificate,
    line_memorizer,
    memorizer_parameters,
    shallow_memorizer,
)
from torchtheory.labs.engine import COLORS, Run, lab

ACTIVATIONS = ("relu", "tanh", "softplus", "gaussian")
EPSILON = torch.finfo(torch.float64).eps

Rows = list[tuple[str, int, int, Memorizer, Memorizer, float]]


@lab(
    "exact-interpolation",
    room="approximation",
    covers=["A-29", "A-30"],
    title="m neurons pass through m points, and O(d + mk) parameters suffice",
    full={"samples": 320},
    least={"samples": 20},
)
def exact_interpolation(run: Run, samples: int = 80, pixels: int = 784) -> None:
    """Points with random labels are memorized by weights that are written down.

    One hidden layer of m neurons is chosen so that its values at the m points are an invertible
    matrix A; the output weights are then the labels times the inverse of A. Projecting the points
    on a line first needs far fewer parameters when the inputs are many. Both are done for four
    activations and growing m. Look at the condition number of A: it bounds the residual, and it
    is the price of the one-dimensional hidden layer.

    Args:
        samples: points to memorize, at most.
        pixels: inputs where parameters are counted.
    """
    sizes = [samples // 16, samples // 4, samples]
    rows = [memorize(run, name, m, d) for name in ACTIVATIONS for m in sizes for d in (1, 10)]
    exact(run, rows)
    any_labels(run, samples // 4)
    criterion(run, samples // 4)
    counted(run, samples // 2, pixels)
    run.table(
        "memorizers",
        ["activation", "m", "d", "κ, one hidden layer", "residual", "κ, on a line", "residual "],
        [(name, m, d, one.condition, one.residual, two.condition, two.residual) for name, m, d, one, two, _ in rows],
        caption="Condition numbers of the matrix that is inverted, and what is left of the error",
    )
    x = run.rand(10, 1).sort(0).values
    y = run.rand(10, 1)
    run.figure(
        "memorizers",
        lambda axes: plot(axes, x, y, rows),
        grid=(1, 2),
        caption="Left: two networks of ten neurons through the same ten points. Right: condition "
        "numbers for points in 10 dimensions; dashed, after the projection on a line.",
    )


def memorize(run: Run, name: str, m: int, d: int) -> tuple[str, int, int, Memorizer, Memorizer, float]:
    x, y = run.randn(m, d), run.randn(m, 3)
    one = shallow_memorizer(x, y, name, generator=run.generator)
    two = line_memorizer(x, y, name, generator=run.generator)
    return name, m, d, one, two, float(torch.linalg.matrix_norm(y, 2))


def exact(run: Run, rows: Rows) -> None:
    """The residual is rounding, magnified by the condition number at most."""
    m = rows[-1][1]
    x, y = run.randn(m, 1), run.randn(m, 3)
    squares = (x @ run.randn(1, m) + run.randn(m)).square()
    best = torch.linalg.lstsq(squares, y, driver="gelsd").solution
    left = float((squares @ best - y).abs().max())
    for id, made in (("A-29", [row[3] for row in rows]), ("A-30", [row[4] for row in rows])):
        says = run.states(
            id, r"\Phi(x_i)=y_i: \text{ largest difference, in units of the rounding } m\,\epsilon\,\kappa(A)\,\|Y\|_2"
        )
        scale = [row[1] * EPSILON * a.condition * row[5] for row, a in zip(rows, made, strict=True)]
        says.equal(
            [a.residual / s for a, s in zip(made, scale, strict=True)],
            within=1.0,
            where=f"{len(rows)} samples, ReLU, tanh, softplus and Gaussian neurons",
        )
        says.fails(
            f"the activation is a polynomial: the best output weights for {m} squares",
            left / max(scale),
        )
    says = run.states("A-29, A-30", r"A \text{ is invertible: } \operatorname{rank}A=m, \text{ up to rounding}")
    matrices = [a.matrix for row in rows for a in (row[3], row[4])]
    says.equal([int(torch.linalg.matrix_rank(a)) for a in matrices], [len(a) for a in matrices])
    says.fails("squares instead: a matrix of rank 3", int(torch.linalg.matrix_rank(squares)), promised=m)


def any_labels(run: Run, m: int) -> None:
    """The hidden layer is chosen before the labels are seen."""
    x, seed = run.randn(m, 4), 7
    hidden = []
    for outputs in (1, 1, 5):
        net = shallow_memorizer(x, run.randn(m, outputs), "tanh", generator=seed).network
        hidden.append(first_layer(net))
    other = first_layer(shallow_memorizer(run.randn(m, 4), run.randn(m, 1), "tanh", generator=seed).network)
    says = run.states(
        "A-29", r"\theta^{(1)} \text{ depends on the inputs only: largest difference for three labelings}"
    )
    says.equal([float((h - hidden[0]).abs().max()) for h in hidden])
    says.fails("other inputs", float((other - hidden[0]).abs().max()))


def first_layer(net: nn.Sequential) -> Tensor:
    layer = net[0]
    assert isinstance(layer, nn.Linear)
    return torch.cat([layer.weight, layer.bias.unsqueeze(1)], dim=1)


def criterion(run: Run, m: int) -> None:
    """An approximate inverse proves that the matrix is invertible."""
    matrix = shallow_memorizer(run.randn(m, 4), run.randn(m, 1), generator=run.generator).matrix
    inverse = torch.linalg.inv(matrix)
    promised, measured = [], []
    for size in (0.01, 0.1, 0.5, 0.9):
        left = (torch.eye(m) + size / m * (2 * run.rand(m, m) - 1)) @ inverse
        promised.append(inverse_certificate(left, matrix))
        measured.append(float(torch.linalg.svdvals(left @ matrix)[-1]))
    singular = torch.eye(m).double() - 1 / m
    says = run.states(
        "A-29", r"\sigma_{\min}(\widetilde W\widetilde A)\ge 1-m\max_{ij}|(\widetilde W\widetilde A-I)_{ij}|>0"
    )
    says.at_least(measured, promised, 1e-12)
    says.fails(
        "√m in place of m, for the singular matrix I - 11ᵀ/m",
        float(torch.linalg.svdvals(singular)[-1]),
        promised=1 - math.sqrt(m) * float((singular - torch.eye(m)).abs().max()),
    )


def counted(run: Run, m: int, pixels: int) -> None:
    """For inputs of many entries, the projection pays."""
    x, y = run.randn(m, pixels), run.randn(m, 10)
    shallow = shallow_memorizer(x, y, "tanh", generator=run.generator)
    relu = line_memorizer(x, y, "relu", generator=run.generator)
    smooth = line_memorizer(x, y, "tanh", generator=run.generator)
    says = run.states("A-29", r"\text{parameters}=m(d+1)+km")
    says.equal(shallow.parameters, m * (pixels + 1) + 10 * m)
    says.fails("the network with the projection", relu.parameters)
    says = run.states("A-30", r"\text{parameters}=d+1+2m+k(m+1) \text{ (ReLU)},\ 2(d+1)+3m+k(m+1) \text{ (smooth)}")
    says.equal(
        [relu.parameters, smooth.parameters],
        [pixels + 1 + 2 * m + 10 * (m + 1), 2 * (pixels + 1) + 3 * m + 10 * (m + 1)],
        where=f"d = {pixels}, k = 10, m = {m}; without the projection {shallow.parameters}",
    )
    says.fails("without the projection", [shallow.parameters] * 2)
    run.table(
        "parameters",
        ["m", "one hidden layer", "projection, ReLU", "projection, smooth"],
        [
            (
                n,
                memorizer_parameters(n, pixels, 10),
                memorizer_parameters(n, pixels, 10, line=True),
                memorizer_parameters(n, pixels, 10, line=True, relu=False),
            )
            for n in (10, 100, 1000, 60_000)
        ],
        caption=f"Parameters that memorize m samples of {pixels} entries with 10 outputs",
    )


def plot(axes: Any, x: Tensor, y: Tensor, rows: Rows) -> None:
    left, right = axes[0]
    t = torch.linspace(-0.05, 1.05, 1500, dtype=torch.float64)[:, None]
    for color, name in zip(COLORS, ("relu", "tanh"), strict=False):
        net = shallow_memorizer(x, y, name, generator=0).network
        left.plot(t, net(t), color=color, label=f"{name}, {len(x)} neurons")
    left.plot(x, y, "o", color="black", markersize=4)
    left.set(xlabel="x", title="through every point", ylim=(-1, 3.2))
    left.legend(loc="upper left")
    for color, name in zip(COLORS, ACTIVATIONS, strict=False):
        mine = [r for r in rows if r[0] == name and r[2] == 10]
        m = [r[1] for r in mine]
        right.loglog(m, [r[3].condition for r in mine], "o-", color=color, label=name)
        right.loglog(m, [r[4].condition for r in mine], "o--", color=color)
    right.set_xticks(m, [str(v) for v in m])
    right.set_xticks([], minor=True)
    right.set(xlabel="samples m", ylabel="κ(A)", title="the price of a line")
    right.legend()
