"""Three ways to factor a matrix in two, and the one number they all end at."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.neurons.autoencoder import LinearAutoencoder, least_loss
from torchtheory.optimization.linear_networks.second_moments import Covariances
from torchtheory.optimization.linear_networks.two_layer_critical_points import (
    linear_critical_points,
)
from torchtheory.primer.objectives import factorization_gradients, factorize


@lab(
    "matrix-factorization-optimum",
    room="optimization",
    covers=["L-060"],
    title="Two factors of inner width p leave exactly half the squared tail of the spectrum",
    full={"rows": 12, "columns": 10, "rank": 4, "sweeps": 500, "steps": 5000},
    least={"rows": 8, "columns": 3, "sweeps": 12, "steps": 200},
)
def matrix_factorization_optimum(
    run: Run, rows: int = 8, columns: int = 6, rank: int = 2, sweeps: int = 100, steps: int = 600
) -> None:
    r"""The least of ½‖UV - R‖² over factors of inner width p is $\tfrac12\sum_{i>p}σ_i(R)^2$.

    It is reached by alternating least squares, by the linear autoencoder that reconstructs the
    rows of R, and by the two-layer linear network with input I and target R; the last one also by
    gradient descent from random starts. Every choice of p left singular vectors is a critical
    point, and all but the leading one are saddles. Look at the ladder of their losses, and at
    gradient descent, which pauses where it has found only the first few directions.

    Args:
        rows: of the matrix.
        columns: of the matrix.
        rank: inner width of the two factors.
        sweeps: of alternating least squares.
        steps: of gradient descent.
    """
    # singular values well apart, so that no two critical values coincide
    left, _ = torch.linalg.qr(run.randn(rows, columns))
    right, _ = torch.linalg.qr(run.randn(columns, columns))
    sigma = 8 * 0.5 ** torch.arange(columns).double()
    R = left * sigma @ right.T
    least = float(sigma[rank:].square().sum()) / 2

    def loss(U: Tensor, V: Tensor) -> Tensor:
        return half_square(U, V, R)

    alternating = [factorize(R, rank, sweeps=sweeps, generator=run.generator) for _ in range(3)]
    autoencoder = LinearAutoencoder.optimal(R, rank)
    with torch.no_grad():
        # the sum over rows, where the autoencoder takes the mean
        reconstruction = float(autoencoder.loss(R)) * rows
    top = left[:, :rank]
    # the network sees the unit vectors, and is to answer with the columns of R
    shown = Covariances.from_samples(torch.eye(columns).double(), R.T)
    network = linear_critical_points(shown, rank)[0]
    narrow = factorize(R, rank - 1, sweeps=sweeps, generator=run.generator) if rank > 1 else None
    says = run.states(
        "L-060",
        r"\min_{U,V}\tfrac12\|UV-R\|_F^2=\tfrac12\sum_{i>p}\sigma_i(R)^2: \text{ alternating least "
        r"squares, linear autoencoder, two-layer linear network}",
    )
    says.equal(
        [
            *(float(fit.losses[-1]) for fit in alternating),
            reconstruction,
            least_loss(R, rank) * rows,
            float(loss(network.U, network.V.T)),
            network.value * columns / 2,
        ],
        least,
        1e-9,
    )
    says.fails("one column fewer", float(narrow.losses[-1]) if narrow is not None else float(R.square().sum()) / 2)
    anything = [loss(run.randn(rows, rank), run.randn(rank, columns)) for _ in range(200)]
    close = [loss(top + 0.05 * run.randn(rows, rank), top.T @ R + 0.05 * run.randn(rank, columns)) for _ in range(200)]
    wide = left[:, : rank + 1]
    says = run.states(
        "L-060", r"\tfrac12\|UV-R\|_F^2\ge\tfrac12\sum_{i>p}\sigma_i^2 \text{ for all factors of width } p"
    )
    says.at_least(torch.stack([*anything, *close]), least, 1e-12)
    says.fails("one column more", loss(wide, wide.T @ R))
    critical_ladder(run, R, left, sigma, rank)
    paths = descend(run, R, rank, sigma, steps)
    says = run.states("L-060", r"\text{gradient descent from random starts ends at the same number}")
    says.equal(torch.stack([path[-1] for path in paths]), least, 1e-6)
    says.fails(
        "started at U = 0, V = 0, a saddle",
        descend_from(R, torch.zeros(rows, rank).double(), torch.zeros(rank, columns).double(), 0.01, 50)[-1],
    )
    run.figure(
        "ladder",
        lambda axis: plot_descent(axis, paths, sigma, rank),
        caption="Loss of gradient descent from small random starts; it pauses at the critical "
        "points of lower rank, whose values are the lines, and ends at the minimum.",
    )


def half_square(U: Tensor, V: Tensor, R: Tensor) -> Tensor:
    return (U @ V - R).square().sum() / 2


def critical_ladder(run: Run, R: Tensor, left: Tensor, sigma: Tensor, rank: int) -> None:
    """One critical point for each choice of singular directions; loss and steepest escape."""
    rows, gradients, losses, tails, escapes = [], [], [], [], []
    turned, _ = torch.linalg.qr(run.randn(len(left), rank))
    for chosen in combinations(range(len(sigma)), rank):
        U = left[:, list(chosen)]
        V = U.T @ R
        gradients += [g.reshape(-1) for g in factorization_gradients(U, V, R)]
        value = float((U @ V - R).square().sum()) / 2
        rest = [i for i in range(len(sigma)) if i not in chosen]
        losses.append(value)
        tails.append(float(sigma[rest].square().sum()) / 2)
        best = chosen == tuple(range(rank))
        curvature = lowest_curvature(R, U, V)
        if not best:
            escapes.append(curvature)
        else:
            at_minimum = curvature
        rows.append((", ".join(str(i + 1) for i in chosen), value, curvature))
    nudged = [g.reshape(-1) for g in factorization_gradients(U + 0.01 * run.randn(*U.shape), V, R)]
    says = run.states(
        "L-060",
        r"U=U_I,\ V=U_I^\top R \text{ is critical for every choice } I \text{ of } p \text{ left singular vectors}",
    )
    says.equal(torch.cat(gradients), within=1e-10)
    says.fails("beside one of them", torch.cat(nudged))
    says = run.states("L-060", r"\text{its loss is } \tfrac12\sum_{i\notin I}\sigma_i^2")
    says.equal(losses, tails, 1e-10)
    says.fails("any orthonormal columns", float(half_square(turned, turned.T @ R, R)), promised=tails[0])
    says = run.states("L-060", r"\lambda_{\min}(\nabla^2L)<0 \text{ at all but the leading choice: saddles}")
    rounding = 1e-6
    says.below(torch.tensor(escapes) + rounding, 0, where=f"with {rounding:g} for rounding")
    says.fails("at the leading choice", at_minimum + rounding)
    run.table(
        "critical-points",
        ["singular directions", "loss", "least eigenvalue of the Hessian"],
        sorted(rows, key=lambda row: row[1]),
        caption="One critical point for each choice; only the first has no way down",
    )


def lowest_curvature(R: Tensor, U: Tensor, V: Tensor) -> float:
    """Least eigenvalue of the Hessian of the loss in both factors."""
    point = torch.cat([U.reshape(-1), V.reshape(-1)]).requires_grad_()
    left, right = point[: U.numel()], point[U.numel() :]
    loss = half_square(left.view_as(U), right.view_as(V), R)
    (gradient,) = torch.autograd.grad(loss, point, create_graph=True)
    rows = [torch.autograd.grad(entry, point, retain_graph=True)[0] for entry in gradient]
    return float(torch.linalg.eigvalsh(torch.stack(rows))[0])


def descend(run: Run, R: Tensor, rank: int, sigma: Tensor, steps: int) -> list[Tensor]:
    rate = 0.3 / float(sigma[0])  # the factors grow until the Hessian is about 2 sigma_1
    return [
        descend_from(
            R,
            1e-3 * run.randn(R.shape[0], rank),
            1e-3 * run.randn(rank, R.shape[1]),
            rate,
            steps,
        )
        for _ in range(3)
    ]


def descend_from(R: Tensor, U: Tensor, V: Tensor, rate: float, steps: int) -> Tensor:
    losses = []
    for _ in range(steps):
        losses.append(half_square(U, V, R))
        by_U, by_V = factorization_gradients(U, V, R)
        U, V = U - rate * by_U, V - rate * by_V
    losses.append(half_square(U, V, R))
    return torch.stack(losses)


def plot_descent(axis: Any, paths: list[Tensor], sigma: Tensor, rank: int) -> None:
    last = max(int((path > 1.0001 * path[-1]).sum()) for path in paths)
    for kept in range(rank + 1):
        level = float(sigma[kept:].square().sum()) / 2
        axis.axhline(level, color="black" if kept == rank else "0.6", linewidth=0.9, linestyle="--")
        axis.annotate(
            f"best of rank {kept}", (1.25 * last, level), xytext=(0, 3),
            textcoords="offset points", ha="right", fontsize=8,
        )  # fmt: skip
    for i, path in enumerate(paths):
        axis.semilogy(path, color=COLORS[i], label=f"start {i + 1}")
    axis.set(xlabel="step", ylabel=r"$\frac{1}{2}\|UV-R\|_F^2$", xlim=(0, 1.25 * last))
    axis.legend(loc="upper right", bbox_to_anchor=(1, 0.93))
