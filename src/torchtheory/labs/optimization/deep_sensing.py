"""A matrix learned as a product of several: what the flow conserves, and how factors line up."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.generalization.implicit_bias.layer_balance import (
    balanced_weights,
    layer_balance_of,
)
from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.models.model import flatten, unflatten
from torchtheory.models.problem import Problem
from torchtheory.optimization.curvature.operators import gradient
from torchtheory.optimization.descent.flow import ParameterPath, gradient_flow
from torchtheory.optimization.descent.iterates import gradient_descent
from torchtheory.optimization.linear_networks.deep_factorization import (
    FactoredMatrix,
    align_factors,
    factor_gradients,
    gaussian_measurements,
    product_gradients,
    product_of,
    sensing_problem,
)


class BentProduct(FactoredMatrix):
    """W_L tanh(W_{L-1} tanh(... W_1)): no product any more."""

    def product(self) -> Tensor:
        made: Tensor = self.factors[0]
        for w in list(self.factors)[1:]:
            made = w @ made.tanh()
        return made


@lab(
    "deep-matrix-sensing",
    room="optimization",
    covers=["L-161", "L-162", "L-163"],
    title="A product of matrices under gradient flow keeps its factors in balance",
    errata=["balanced-without-a-balanced-start", "singular-decomposition-not-unique"],
    full={"size": 8, "draws": 200_000, "until": 6.0, "steps": 4000},
    least={"size": 2, "depth": 2, "draws": 1_200, "until": 0.01, "steps": 300},
    most={"until": 100},
)
def deep_matrix_sensing(
    run: Run,
    size: int = 4,
    depth: int = 3,
    draws: int = 40_000,
    until: float = 1.0,
    steps: int = 500,
) -> None:
    """$W=W_L⋯W_1$ is learned from measurements ⟨W, A⟩ labeled by a planted matrix.

    With independent standard normal entries of A the expected loss is ‖W - W*‖²/(2L), and the
    gradient of each factor has a closed form. From it the flow conserves $W_{k+1}^⊤W_{k+1}-W_kW_k^⊤$,
    whatever the measurements and wherever it starts; gradient descent changes it by a sum that is
    known exactly. Factors that start in balance stay so: they share their singular values, and
    each one's left singular vectors are the next one's right. Look at the upper right panel, where
    each of the singular values has as many curves as there are factors, and at the last one: of a
    matrix of rank one some entries are shown, and from a small start more factors find the others.

    Args:
        size: of the matrices.
        depth: factors.
        draws: of measurements for the expectation.
        until: the time to which the flow is followed.
        steps: of descent in the part on completion.
    """
    target = run.randn(size, size)
    loose = [run.randn(size, size) / math.sqrt(size) for _ in range(depth)]
    balanced = balanced_weights(product_of(loose), [size] * (depth - 1), generator=run.generator)
    expectation(run, loose, target, draws)
    gradients(run, target, size)
    few = gaussian_measurements(size, size, size, generator=run.generator)
    times = torch.linspace(0, until, 21, dtype=torch.float64)
    paths = {
        "balanced": follow(sensing_problem(balanced, target), times),
        "not balanced": follow(sensing_problem(loose, target), times),
        "few measurements": follow(sensing_problem(loose, target, few), times),
    }
    bent = follow(bent_problem(loose, target), times)
    conservation(run, paths, bent, sensing_problem(loose, target, few))
    changes = by_steps(run, loose, target)
    alignment(run, paths)
    hidden = completion(run, steps)
    run.figure(
        "balance",
        lambda axes: plot(axes, paths, bent, changes, hidden),
        caption="Upper left: how far W₂ᵀW₂ - W₁W₁ᵀ is from its start, under flow, descent, and "
        "flow of a network with tanh between the factors. Upper right and lower left: the singular "
        "values of all factors, from a start that is balanced, where they coincide, and from one "
        "that is not. Lower right: error at the entries that are not shown, relative to their "
        "size, with one to three factors, from a small start (lines) and a large one (dashed).",
        grid=(2, 2),
        size=(10, 7),
    )


def follow(problem: Problem, times: Tensor) -> ParameterPath:
    return gradient_flow(problem, times, rtol=1e-7, atol=1e-9)


def bent_problem(factors: list[Tensor], target: Tensor) -> Problem:
    straight = sensing_problem(factors, target)
    data = (straight.train.x, straight.train.y)
    return Problem(BentProduct(factors), data, loss=straight.loss, task="regression")


def factors_at(path: ParameterPath, k: int) -> list[Tensor]:
    return list(path.parameters(k).values())


def balance(factors: list[Tensor]) -> Tensor:
    """All W_{k+1}ᵀW_{k+1} - W_kW_kᵀ, in one row."""
    return torch.cat([m.flatten() for m in layer_balance_of(factors).matrices])


def drift(path: ParameterPath) -> Tensor:
    """Largest change of an entry since the start, at every time."""
    start = balance(factors_at(path, 0))
    moments = range(len(path.times))
    return torch.stack([(balance(factors_at(path, k)) - start).abs().max() for k in moments])


def expectation(run: Run, factors: list[Tensor], target: Tensor, draws: int) -> None:
    gap = product_of(factors) - target
    size, depth = len(gap), len(factors)
    promised = float(gap.square().sum()) / (2 * depth)
    A = gaussian_measurements(draws, size, size, generator=run.generator)
    seen = torch.einsum("noi,oi->n", A, gap).square() / (2 * depth)
    # the same variances, but the entries (i, j) and (j, i) are one number, up to the sign that adds
    lower = torch.tril(torch.ones(size, size)).bool()
    tied = torch.where(lower, A, (gap * gap.mT).sign() * A.mT)
    seen_tied = torch.einsum("noi,oi->n", tied, gap).square() / (2 * depth)
    says = run.states("L-161", r"\tfrac1{2L}\mathbb E_A\langle W-W^\star,A\rangle_F^2=\tfrac1{2L}\|W-W^\star\|_F^2")
    # without 1/L, without 1/2, with a half too many
    says.mean(
        seen,
        promised,
        against=(depth * promised, 2 * promised, promised / 2),
        confidence=0.9999,
        where=f"{draws} Gaussian measurements",
    )
    says.fails("A symmetric up to signs: its entries are not independent", seen_tied)


def gradients(run: Run, target: Tensor, size: int) -> None:
    """The closed form against autograd, for several depths and for factors that are not square."""
    formula, automatic, untransposed = [], [], []
    for widths in ([size] * 2, [size] * 3, [size] * 5, [size, 2, 7, size], [size, 9, 1, size]):
        factors = [run.randn(b, a) / 2 for a, b in pairwise(widths)]
        slopes = product_gradients(factors, target)
        formula.append(torch.cat([g.flatten() for g in slopes]))
        automatic.append(gradient(sensing_problem(factors, target)))
        residual = (product_of(factors) - target).T / len(factors)
        wrong = product_gradients(factors, product_of(factors) - residual * len(factors))
        untransposed.append(torch.cat([g.flatten() for g in wrong]))
    says = run.states(
        "L-161",
        r"\frac{\partial\mathcal L}{\partial W_k}=\tfrac1L(W_L\cdots W_{k+1})^\top(W-W^\star)(W_{k-1}\cdots W_1)^\top",
    )
    says.equal(
        torch.cat(formula), torch.cat(automatic), 1e-12, where="1 to 4 factors, also rectangular ones, against autograd"
    )
    says.fails("the residual W - W* transposed", torch.cat(untransposed))


def conservation(run: Run, paths: dict[str, ParameterPath], bent: ParameterPath, few: Problem) -> None:
    weights = [w.detach() for w in few.parameters.values()]
    moves = list(unflatten(-gradient(few), few.parameters).values())
    # each factor learns twice as fast as the one before: no gradient flow of any loss of the product
    uneven = [2**k * move for k, move in enumerate(moves)]

    def sides(velocities: list[Tensor]) -> tuple[Tensor, Tensor]:
        pairs = range(len(weights) - 1)
        ahead = [weights[k + 1].T @ velocities[k + 1] for k in pairs]
        behind = [velocities[k] @ weights[k].T for k in pairs]
        return torch.stack(ahead), torch.stack(behind)

    left, right = sides(moves)
    left_uneven, right_uneven = sides(uneven)
    says = run.states("L-162", r"W_{k+1}^\top\dot W_{k+1}=\dot W_kW_k^\top")
    says.equal(
        left, right, 1e-12, where="at factors that are not balanced, for fewer measurements than entries, by autograd"
    )
    says.fails("each factor learns twice as fast as the one before", left_uneven, promised=right_uneven)
    says = run.states("L-162", r"W_{k+1}^\top W_{k+1}-W_kW_k^\top \text{ is conserved by gradient flow: drift}")
    says.at_most(
        torch.stack([drift(path)[-1] for path in paths.values()]),
        0,
        1e-6,
        where=f"until t = {float(bent.times[-1]):g}: balanced, not balanced, few measurements; "
        "the solver's relative error is 1e-7 a step",
    )
    says.fails("tanh between the factors", drift(bent)[-1])
    moments = range(len(paths["balanced"].times))
    kept = torch.stack([balance(factors_at(paths["balanced"], k)) for k in moments])
    says = run.states(
        "L-162", r"W_{k+1}^\top(0)W_{k+1}(0)=W_k(0)W_k^\top(0)\implies W_{k+1}^\top(t)W_{k+1}(t)=W_k(t)W_k^\top(t)"
    )
    says.equal(kept, within=1e-6, where=f"{len(moments)} times along the flow")
    says.fails("a start that is not balanced", balance(factors_at(paths["not balanced"], -1)))
    run.refutes(
        "balanced-without-a-balanced-start",
        r"W_{k+1}^\top(t)W_{k+1}(t)=W_k(t)W_k^\top(t) \text{ for all } t, \text{ from any start}",
    ).equal(
        balance(factors_at(paths["not balanced"], -1)).abs().max(),
        within=1e-3,
        where="largest entry of the difference at the last time, from random factors",
    )


def by_steps(run: Run, start: list[Tensor], target: Tensor) -> dict[float, Tensor]:
    """Gradient descent until time 1: what it adds to the balance, step by step."""

    def changes(
        step: float, decay: float = 0.0, factors: list[Tensor] = start, goal: Tensor = target, count: int = 0
    ) -> tuple[Tensor, Tensor, float, float]:
        like = {str(k): w for k, w in enumerate(factors)}

        def loss(theta: Tensor) -> Tensor:
            product = product_of(list(unflatten(theta, like).values()))
            fit = (product - goal).square().sum() / (2 * len(factors))
            return fit + decay / 2 * theta.square().sum()

        done = gradient_descent(loss, flatten(like), step, count or round(1 / step))
        rows = [list(unflatten(p, like).values()) for p in done.points]
        added = torch.zeros_like(balance(factors))
        for here, there in pairwise(rows):
            g = [(a - b) / step for a, b in zip(here, there, strict=True)]
            pairs = zip(g[1:], g[:-1], strict=True)
            added += step**2 * torch.cat([(a.T @ a - b @ b.T).flatten() for a, b in pairs])
        moved = torch.stack([balance(row) for row in rows]) - balance(factors)
        fallen = float(done.values[0] - done.values[-1])
        # what a step gains over half of the step times the squared gradient, at worst
        gain = done.values[:-1] - done.values[1:] - step / 2 * done.gradient_norms[:-1].square()
        return moved, added, fallen, float(gain.min())

    found = {step: changes(step) for step in (0.04, 0.02, 0.01)}
    decayed = changes(0.01, decay=0.1)
    says = run.states(
        "L-162",
        r"\text{descent changes it by } \eta^2\textstyle\sum_t(G_{k+1}^\top G_{k+1}-G_kG_k^\top),\ "
        r"G_k=\partial\mathcal L/\partial W_k",
    )
    says.equal(
        torch.cat([moved[-1] for moved, *_ in found.values()]),
        torch.cat([added for _, added, *_ in found.values()]),
        1e-10,
        where="steps of 0.04, 0.02 and 0.01 until time 1",
    )
    says.fails("with weight decay 0.1", decayed[0][-1], promised=decayed[1])
    # one number times another, which is 0: it alone moves, by a step that gains no more than that
    lone = [torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)]
    edge = changes(1.9, factors=lone, goal=torch.full((1, 1), 0.1, dtype=torch.float64), count=3)
    small = {step: one for step, one in found.items() if one[3] >= 0} | {1.9: edge}
    says = run.states(
        "L-162",
        r"\text{which is } O(\eta): \text{ entries of at most } 2\eta(\mathcal L_0-\mathcal L_T)"
        r" \text{ where each step gains } \tfrac\eta2\|\nabla\mathcal L\|^2",
    )
    says.at_most(
        [float(moved[-1].abs().max()) for moved, *_ in small.values()],
        [2 * step * fallen for step, (_, _, fallen, _) in small.items()],
        where=f"{len(small) - 1} of the three steps are small enough for that gain; and two numbers, of which one is "
        "learned by almost the longest step",
    )
    says.fails(
        "with weight decay 0.1, which shrinks the difference at any η",
        float(decayed[0][-1].abs().max()),
        promised=2 * 0.01 * decayed[2],
    )
    return {step: moved.abs().amax(1) for step, (moved, *_) in found.items()}


def alignment(run: Run, paths: dict[str, ParameterPath]) -> None:
    moments = range(len(paths["balanced"].times))
    residuals = {
        name: torch.tensor([align_factors(factors_at(path, k)).residual for k in moments], dtype=torch.float64)
        for name, path in paths.items()
        if name != "few measurements"
    }
    values = {
        name: torch.stack([torch.stack([torch.linalg.svdvals(w) for w in factors_at(p, k)]) for k in moments])
        for name, p in paths.items()
    }
    says = run.states("L-163", r"\Sigma_{k+1}=\Sigma_k: \text{ all factors have the same singular values}")
    says.equal(
        values["balanced"],
        values["balanced"][:, :1].expand_as(values["balanced"]),
        1e-6,
        where="along the flow from a balanced start",
    )
    says.fails(
        "a start that is not balanced",
        values["not balanced"],
        promised=values["not balanced"][:, :1].expand_as(values["not balanced"]),
    )
    gaps = -values["balanced"][:, 0].diff(dim=-1)
    says = run.states(
        "L-163",
        r"U_k=V_{k+1}: \text{ one chain of frames decomposes all factors: largest entry of } W_k-"
        r"Q_k\Sigma Q_{k-1}^\top",
    )
    says.at_most(
        residuals["balanced"], 0, 1e-6, where=f"singular values at least {float(gaps.min()):.3f} apart along the flow"
    )
    says.fails("a start that is not balanced", residuals["not balanced"])
    first, second, *_ = factors_at(paths["balanced"], -1)
    found = align_factors([first, second])
    rotation = torch.linalg.qr(run.randn(*first.shape)).Q
    says = run.states(
        "L-163",
        r"\text{two decompositions differ by a sign } s_i=\pm1 \text{ for each pair of vectors: } "
        r"|U^\top U'|=|V^\top V'|=I,\ (U^\top U')_{ii}(V^\top V')_{ii}=1",
    )
    says.equal(
        compare_decompositions(first, run),
        torch.eye(len(first)).expand(3, -1, -1),
        1e-6,
        where="one decomposition of W₁ itself, one of W₁ after random rotations, rotated back",
    )
    says.fails("all singular values equal", compare_decompositions(rotation, run))
    signs = torch.ones_like(found.singular_values)
    signs[0] = -1
    # both vectors of the first pair change sign: the same matrix, an equally good decomposition
    again_u, again_v = found.frames[1] * signs, found.frames[0] * signs
    gap = float((again_u * found.singular_values @ again_v.T - first).abs().max())
    run.refutes(
        "singular-decomposition-not-unique", r"U_k=V_{k+1} \text{ for `the (unique)' decompositions of } W_k, W_{k+1}"
    ).equal(
        again_u,
        found.frames[1],
        1e-3,
        where=f"V₂ against the left vectors of another decomposition of the same W₁, which gives it up to {gap:.0e}",
    )


def compare_decompositions(W: Tensor, run: Run) -> Tensor:
    """|UᵀU'|, |VᵀV'| and the products of their diagonals, for two decompositions of W."""
    left, right = (torch.linalg.qr(run.randn(*W.shape)).Q for _ in range(2))
    u, _, vt = torch.linalg.svd(W)
    other_u, _, other_vt = torch.linalg.svd(left @ W @ right)
    by_u, by_v = u.T @ left.T @ other_u, vt @ (other_vt @ right.T).T
    return torch.stack([by_u.abs(), by_v.abs(), torch.diag((by_u * by_v).diagonal())])


def completion(run: Run, steps: int, size: int = 8, step: float = 0.05, matrices: int = 4) -> Tensor:
    """Matrices of rank one learned from some of their entries; `[factors, start, iteration]`: error
    at the others, for the first one. The first row and the first column are shown, so the rank
    decides the rest, and decides it well: none of the shown entries is next to 0."""
    sizes = (run.rand(2, matrices, 1, size) + 0.5) * run.signs(2, matrices, 1, size)
    u, v = nn.functional.normalize(sizes, dim=-1)
    target = 4 * u.mT @ v
    shown = run.rand(matrices, size, size) < 0.4
    shown[:, 0], shown[:, :, 0] = True, True
    # [matrices, starts, size, size]
    target, shown = target[:, None], shown[:, None]
    scales = torch.tensor([1e-3, 1.0], dtype=torch.float64)[:, None, None]

    def size_at(where: Tensor, values: Tensor) -> Tensor:
        found: Tensor = (where * values).flatten(2).norm(dim=-1)
        return found

    errors, moved, rows = [], [], []
    for depth in (1, 2, 3):
        factors = [scales ** (1 / depth) * torch.linalg.qr(run.randn(matrices, 1, size, size)).Q for _ in range(depth)]
        start = product_of(factors)
        path = [start]
        for _ in range(steps):
            slopes = factor_gradients(factors, lambda W: shown * (W - target))
            factors = [w - step * g for w, g in zip(factors, slopes, strict=True)]
            path.append(product_of(factors))
        gaps = torch.stack([size_at(~shown, made - target) / size_at(~shown, target) for made in path], -1)
        errors.append(gaps)
        moved.append(((path[-1] - start) * ~shown)[(~shown).expand_as(start)])
        seen = size_at(shown, path[-1] - target) / size_at(shown, target)
        for k, name in enumerate(("small", "large")):
            sigma = torch.linalg.svdvals(path[-1][0, k])
            rows.append((depth, name, float(seen[0, k]), float(gaps[0, k, -1]), float(sigma[1] / sigma[0])))
    says = run.states(
        "L-161", r"\text{completion, } L=1: W_{ij}(t)=W_{ij}(0) \text{ at the entries that are not shown}"
    )
    says.equal(moved[0])
    says.fails("two factors", moved[1])
    small, large = (torch.stack([e[:, k, -1] for e in errors]) for k in (0, 1))
    says = run.states(
        "L-161",
        r"\text{completion of rank one from a small start: the error at hidden entries falls from }"
        r" L=1 \text{ to } 2 \text{ to } 3",
    )
    says.below(
        small[1:],
        small[:-1],
        loose="no theorem says by how much",
        where=f"{matrices} matrices of {size} × {size}, start of size 0.001",
    )
    says.fails("a start of size 1", large[1:], promised=small[:-1])
    run.table(
        "completion",
        ["factors", "start", "error at shown entries", "at hidden entries", "σ₂/σ₁ of the product"],
        rows,
        caption=f"Errors relative to the size of those entries, after {steps} steps of {step}",
    )
    return torch.stack([e[0] for e in errors])


def plot(
    axes: Any,
    paths: dict[str, ParameterPath],
    bent: ParameterPath,
    changes: dict[float, Tensor],
    hidden: Tensor,
) -> None:
    left, *values_axes, completed = axes.flat
    flow = drift(paths["not balanced"])
    left.semilogy(bent.times[1:], drift(bent)[1:], color=COLORS[1], label="flow, tanh between")
    for (step, moved), shade in zip(changes.items(), (1.0, 0.65, 0.35), strict=True):
        times = step * torch.arange(len(moved))
        left.semilogy(times[1:], moved[1:], color=COLORS[0], alpha=shade, label=f"descent, η = {step:g}")
    left.semilogy(paths["not balanced"].times[1:], flow[1:].clamp_min(1e-16), color="0.4", label="flow")
    left.set(
        title="What the flow conserves", xlabel="time",
        ylabel=r"change of $W_{k+1}^\top W_{k+1}-W_kW_k^\top$", ylim=(1e-10, 3e2),
    )  # fmt: skip
    left.legend(loc="upper right", ncols=2, fontsize=7)
    for k, (small, large) in enumerate(hidden):
        name = "one factor" if k == 0 else f"{k + 1} factors"
        completed.semilogy(small, color=COLORS[k], label=name)
        completed.semilogy(large, color=COLORS[k], linestyle="--", linewidth=1)
    completed.plot([], [], color="0.4", linestyle="--", linewidth=1, label="large start")
    completed.set(xlabel="step", ylabel="error at hidden entries", title="Matrix completion")
    completed.legend(loc="lower left")
    for axis, name in zip(values_axes, ("balanced", "not balanced"), strict=True):
        path = paths[name]
        depth = len(factors_at(path, 0))
        for k in range(depth):
            values = torch.stack([torch.linalg.svdvals(factors_at(path, t)[k]) for t in range(len(path.times))])
            lines = axis.plot(
                path.times,
                values,
                color=COLORS[k],
                linestyle=("-", "--", ":")[k % 3],
                linewidth=2.6 - 0.6 * k,
            )
            lines[0].set_label(f"$W_{k + 1}$")
        axis.set(title=f"Start {name}", xlabel="time", ylabel="singular values of the factors")
        axis.legend(loc="upper left", ncols=depth)
        axis.set_ylim(0, 1.25 * axis.get_ylim()[1])
