"""Two factors with weight decay: not convex, and yet with a certificate of the optimum."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.neurons.autoencoder import low_rank
from torchtheory.optimization.descent.iterates import Descent, gradient_descent
from torchtheory.optimization.parallel_networks.factorization_certificates import (
    certify_factorization,
    decay_objective,
    grow_factorization,
    shared_null_direction,
)
from torchtheory.optimization.parallel_networks.nuclear_norm import (
    balanced_factors,
    factorize_with_decay,
    least_decay_objective,
    threshold_singular_values,
)


@lab(
    "weight-decay-factorization",
    room="optimization",
    covers=["B-39", "B-40", "B-41", "B-42", "B-43"],
    title="Weight decay on two factors is the nuclear norm, and one singular value certifies it",
    errata=["global-factorization-zero-column"],
    full={"rows": 20, "columns": 16, "starts": 20, "steps": 6000},
    least={"columns": 3, "rows": 3, "strength": 0.05, "steps": 700},
    most={"strength": 2},
)
def weight_decay_factorization(
    run: Run, rows: int = 8, columns: int = 6, strength: float = 0.6, starts: int = 4,
    steps: int = 700,
) -> None:  # fmt: skip
    """Fitting Y by UVᵀ with weight decay is not convex, and yet solved by thresholding the
    singular values of Y.

    Weight decay charges a product its nuclear norm, so the problem has a convex lower bound that
    is attained. Gradient descent from random starts reaches it once there is a column to spare; a
    local minimum with such a spare column is global. Whether any given pair of factors is the best
    one is read off the largest singular value of its residual, and where it is not, the singular
    pair is the column that is missing: appended one by one, the columns build the solution.
    Look at the lower bound that the certificate computes without knowing the solution, and at how
    it meets the objective.

    Args:
        rows: of the matrix.
        columns: of the matrix.
        strength: of the weight decay.
        starts: random factors that descent begins with.
        steps: of descent.
    """
    run.assumes(rows >= columns, f"{rows} rows leave no room for {columns} orthonormal columns")
    left, _ = torch.linalg.qr(run.randn(rows, columns))
    right, _ = torch.linalg.qr(run.randn(columns, columns))
    sigma = 4 * 0.6 ** torch.arange(columns).double()
    Y = left * sigma @ right.T
    variational_form(run, Y)
    kept = int((sigma > strength).sum())
    run.assumes(2 <= kept < columns, f"λ = {strength:g} keeps {kept} of {columns} singular values: too few, or all")
    needed = thresholding(run, Y, sigma, strength)
    descents = wide_and_narrow(run, Y, sigma, strength, starts, steps, needed)
    bounds = certificates(run, Y, sigma, strength, descents)
    grown = growth(run, Y, sigma, strength)
    run.figure(
        "certificate",
        lambda axes: plot(axes, bounds, grown, least_decay_objective(sigma, strength), strength),
        caption="Left: the objective of gradient descent with spare columns, and the lower bound "
        "its certificate gives at the same iterates. Right: factors grown column by column; each "
        "new column gains half the square of what σ_max of the residual exceeds λ by.",
        grid=(1, 2),
        size=(10.5, 3.5),
    )


# -- the nuclear norm ---------------------------------------------------------------------------


def decay(U: Tensor, V: Tensor) -> Tensor:
    return (U.square().sum((-2, -1)) + V.square().sum((-2, -1))) / 2


def variational_form(run: Run, Y: Tensor) -> None:
    cheap, dear, turned, smaller, product = [], [], [], [], []
    for rank in range(1, min(Y.shape) + 1):
        Z = low_rank(Y, rank).matrix
        norm = torch.linalg.matrix_norm(Z, "nuc")
        U, V = balanced_factors(Z, rank + 2)
        cheap.append(decay(U, V) / norm)
        smaller.append(decay(*balanced_factors(0.9 * Z)) / norm)
        product.append((U @ V.T - Z).abs().max())
        Q, _ = torch.linalg.qr(run.randn(rank + 2, rank + 2))
        turned.append(decay(U @ Q, V @ Q) / norm)
        for _ in range(40):
            A = torch.eye(rank + 2).double() + 0.3 * run.randn(rank + 2, rank + 2)
            dear.append(decay(U @ A, torch.linalg.solve(A, V.T).T) / norm)
    says = run.states("B-39", r"UV^\top=Z:\ \tfrac12(\|U\|_F^2+\|V\|_F^2)/\|Z\|_*\ge1")
    says.at_least(torch.stack(dear), 1, 1e-12, where=f"(UA, VA⁻ᵀ) for {len(dear)} random A")
    says.fails("the product of the factors is 0.9 Z", torch.stack(smaller))
    says = run.states(
        "B-39", r"U=U_Z\Sigma^{1/2},\ V=V_Z\Sigma^{1/2}: \text{ equality, and for } (UQ,VQ) \text{ with orthogonal } Q"
    )
    says.equal(
        torch.stack(cheap + turned), 1, 1e-12, where=f"the product is Z up to {float(torch.stack(product).max()):.1e}"
    )
    says.fails("(UA, VA⁻ᵀ), A not orthogonal", torch.stack(dear))


def thresholding(run: Run, Y: Tensor, sigma: Tensor, strength: float) -> int:
    strengths = [0.2, strength, 2.0]
    norms, products, both, values = [], [], [], []
    for lam in strengths:
        Z = threshold_singular_values(Y, lam)
        Q = (Y - Z) / lam
        norms.append(torch.linalg.matrix_norm(Q, 2))
        products.append((Q * Z).sum() - torch.linalg.matrix_norm(Z, "nuc"))
        made = factorize_with_decay(Y, lam)
        f = decay_objective(Y, made.U, made.V, lam)
        both.append(f - convex(Y, made.U @ made.V.T, lam))
        values.append(f - made.objective)
    hard = low_rank(Y, 2).matrix
    says = run.states(["B-40", "B-41"], r"Z=\mathcal D_\lambda(Y):\ \|(Y-Z)/\lambda\|_2\le1")
    says.at_most(torch.stack(norms), 1, 1e-12)
    says.fails("hard thresholding at rank 2", torch.linalg.matrix_norm((Y - hard) / strength, 2))
    says = run.states(
        ["B-40", "B-41"], r"\langle(Y-Z)/\lambda,Z\rangle=\|Z\|_*: \text{ a subgradient of the nuclear norm}"
    )
    says.equal(torch.stack(products), within=1e-11)
    says.fails("hard thresholding", ((Y - hard) / strength * hard).sum() - torch.linalg.matrix_norm(hard, "nuc"))
    made = factorize_with_decay(Y, strength)
    says = run.states(
        "B-40",
        r"f(U,V)=F(UV^\top) \text{ at } U=U_Y(\Sigma-\lambda)_+^{1/2},\ V=V_Y(\Sigma-\lambda)_+^{1/2}, \text{ and "
        r"both are } \sum_i(\lambda\sigma_i-\lambda^2/2 \text{ or } \sigma_i^2/2)",
    )
    says.equal(torch.stack(both + values), within=1e-11)
    says.fails(
        "factors of unequal sizes, 2U and V/2",
        decay_objective(Y, 2 * made.U, made.V / 2, strength) - convex(Y, made.U @ made.V.T, strength),
    )
    pairs = [(run.randn(len(Y), w), run.randn(Y.shape[1], w)) for w in (1, 3, 6) for _ in range(50)]
    says = run.states("B-40", r"F(UV^\top)\le f(U,V): \text{ the convex problem is a lower bound}")
    says.at_most(
        torch.stack([convex(Y, U @ V.T, strength) for U, V in pairs]),
        torch.stack([decay_objective(Y, U, V, strength) for U, V in pairs]),
        1e-12,
    )
    says.fails(
        "only one of the two factors is decayed, at the balanced factors",
        convex(Y, made.U @ made.V.T, strength),
        promised=decay_objective(Y, made.U, made.V, strength) - strength * made.V.square().sum() / 2,
    )
    trials = run.randn(500, *Y.shape)
    inside, outside = ((1.0, 1.1)[i] * Y / sigma[0] for i in range(2))
    nuclear = torch.linalg.matrix_norm(trials, "nuc")
    u, _, v = torch.linalg.svd(Y, full_matrices=False)
    says = run.states(
        "B-41", r"\|\cdot\|_*^\star(Q)=\sup_Z\langle Q,Z\rangle-\|Z\|_*=0 \text{ if } \sigma_{\max}(Q)\le1"
    )
    says.at_most((trials * inside).sum((1, 2)) - nuclear, 0, where="500 random Z")
    says.fails("σ_max(Q) = 1.1, along its top singular pair", (outside * torch.outer(u[:, 0], v[0])).sum() - 1)
    return made.needed


def convex(Y: Tensor, Z: Tensor, strength: float) -> Tensor:
    norm: Tensor = torch.linalg.matrix_norm(Z, "nuc")
    return (Y - Z).square().sum() / 2 + strength * norm


# -- descents -----------------------------------------------------------------------------------


def wide_and_narrow(
    run: Run, Y: Tensor, sigma: Tensor, strength: float, starts: int, steps: int, needed: int
) -> dict[int, Descent]:
    """Gradient descent from random starts, with one column too few and with two to spare."""
    found = {}
    for width in (needed - 1, needed + 2):

        def objective(theta: Tensor, width: int = width) -> Tensor:
            U, V = split(theta, Y, width)
            fit = (Y - U @ V.mT).square().sum((-2, -1)) / 2
            return fit + strength * decay(U, V)

        start = 0.3 * run.randn(starts, width * sum(Y.shape))
        found[width] = gradient_descent(objective, start, 0.3 / float(sigma[0]), steps)
    narrow, wide = found[needed - 1], found[needed + 2]
    least = least_decay_objective(sigma, strength)
    says = run.states(["B-40", "B-41"], r"\text{gradient descent with columns to spare ends at } \min F")
    says.equal(wide.values[-1], least, 1e-6, where=f"{starts} random starts, width {needed + 2}, {needed} needed")
    says.fails("one column too few", narrow.values[-1])
    says = run.states("B-40", r"\text{width below } \#\{\sigma_i>\lambda\}: \text{ the best is the truncation}")
    says.equal(narrow.values[-1], least_decay_objective(sigma, strength, needed - 1), 1e-6)
    says.fails("columns to spare", wide.values[-1])
    ends = [split(theta, Y, needed + 2) for theta in wide.points[-1]]
    begins = [split(theta, Y, needed + 2) for theta in wide.points[0]]
    says = run.states("B-41", r"\nabla f=0\Rightarrow U^\top U=V^\top V")
    says.equal(torch.stack([(U.T @ U - V.T @ V).abs().max() for U, V in ends]), within=1e-5)
    says.fails("at the random starts", torch.stack([(U.T @ U - V.T @ V).abs().max() for U, V in begins]))
    nothing = [shared_null_direction(U, V, tolerance=1e-3) is None for U, V in ends]
    short = [split(theta, Y, needed - 1) for theta in narrow.points[-1]]
    says = run.states(
        "B-41",
        r"\text{the minima with columns to spare have a direction } e \text{ with } Ue=Ve=0: \text{ those without}",
    )
    says.equal(sum(nothing))
    says.fails("one column too few", sum(shared_null_direction(U, V, tolerance=1e-3) is None for U, V in short))
    exact = factorize_with_decay(Y, strength)
    both = torch.cat([exact.U, exact.V])
    run.refutes(
        "global-factorization-zero-column",
        r"\text{a global minimum has } e \text{ with } Ue=Ve=0: \text{ least singular value of } "
        r"(U;V) \text{ at the closed form of width } \#\{\sigma_i>\lambda\}",
    ).equal(torch.linalg.svdvals(both)[-1], within=1e-6)
    return found


def split(theta: Tensor, Y: Tensor, width: int) -> tuple[Tensor, Tensor]:
    rows, columns = Y.shape
    U = theta[..., : rows * width].reshape(*theta.shape[:-1], rows, width)
    return U, theta[..., rows * width :].reshape(*theta.shape[:-1], columns, width)


def certificates(
    run: Run, Y: Tensor, sigma: Tensor, strength: float, descents: dict[int, Descent]
) -> tuple[list[int], list[float], list[float]]:
    """Verdicts at known points, and the lower bound along a descent."""
    least = least_decay_objective(sigma, strength)
    exact = factorize_with_decay(Y, strength)
    needed = exact.needed
    spare = exact.U.new_zeros(len(exact.U), 2), exact.V.new_zeros(len(exact.V), 2)
    points = {
        "the closed form": (exact.U, exact.V),
        "two columns of zeros more": (
            torch.cat([exact.U, spare[0]], 1),
            torch.cat([exact.V, spare[1]], 1),
        ),
        "zero": (0 * exact.U, 0 * exact.V),
        "one column fewer": (exact.U[:, :-1], exact.V[:, :-1]),
        "without its first column": (exact.U[:, 1:], exact.V[:, 1:]),
        "unequal sizes": (2 * exact.U, exact.V / 2),
    }
    found = {name: certify_factorization(Y, U, V, strength) for name, (U, V) in points.items()}
    good = list(found)[:2]
    says = run.states(
        "B-42",
        r"\text{globally optimal}\Leftrightarrow\sigma_{\max}(Y-UV^\top)\le\lambda \text{ and } \langle "
        r"Y-UV^\top,UV^\top\rangle=\tfrac\lambda2(\|U\|_F^2+\|V\|_F^2): \text{ gap of the certificate}",
    )
    says.equal([found[name].gap for name in good], within=1e-8, where="at " + " and ".join(good))
    says.fails(
        "points that are not optimal: " + ", ".join(list(found)[2:]), [found[name].gap for name in list(found)[2:]]
    )
    run.table(
        "verdicts",
        ["factors", "certified", "objective above the least", "gap", "largest singular value",
         "balance"],
        [
            (n, c.optimal, c.objective - least, c.gap, c.largest_residual, c.balance)
            for n, c in found.items()
        ],
        caption=f"λ = {strength:g}; the gap is an upper bound of the column before it",
    )  # fmt: skip
    path = descents[needed + 2]
    times = sorted({int(t) for t in torch.logspace(0, 2.7, 24)} & set(range(len(path.values))))
    objectives, lowers, unscaled = [], [], []
    for t in times:
        U, V = split(path.points[t, 0], Y, needed + 2)
        one = certify_factorization(Y, U, V, strength)
        R = Y - U @ V.T
        objectives.append(one.objective)
        lowers.append(one.lower_bound)
        unscaled.append(float((R * Y).sum() - R.square().sum() / 2))
    says = run.states(
        "B-42", r"\langle Q,Y\rangle-\tfrac12\|Q\|_F^2\le\min f,\quad Q=\min(1,\lambda/\sigma_{\max})\,(Y-UV^\top)"
    )
    says.at_most(lowers, least, 1e-12, where="along a gradient descent")
    says.fails("Q not scaled into the dual's feasible set", unscaled)
    return times, objectives, lowers


def growth(run: Run, Y: Tensor, sigma: Tensor, strength: float) -> tuple[list[int], list[float], list[float]]:
    grown = grow_factorization(Y, strength, generator=run.generator)
    start = (0.5 * run.randn(len(Y), 1), 0.5 * run.randn(Y.shape[1], 1))
    other = grow_factorization(Y, strength, start=start, generator=run.generator)
    least = least_decay_objective(sigma, strength)
    says = run.states("B-43", r"\text{started empty it ends with } \#\{\sigma_i(Y)>\lambda\} \text{ columns}")
    says.equal(grown.widths[-1], int((sigma > strength).sum()))
    says.fails("twice the λ", grow_factorization(Y, 2 * strength, generator=run.generator).widths[-1])
    says = run.states("B-43", r"\text{and, started from any columns, at the least objective}")
    says.equal([grown.objectives[-1], other.objectives[-1]], least, 1e-9)
    says.fails("before the last column", grown.objectives[-2])
    gains = -torch.tensor(grown.objectives, dtype=torch.float64).diff()
    excess = torch.tensor(grown.residuals[:-1], dtype=torch.float64) - strength
    u, _, v = torch.linalg.svd(Y, full_matrices=False)
    root = (excess[0] / 2).sqrt()
    less = decay_objective(Y, u[:, :1] * root, v[:1].T * root, strength)
    says = run.states("B-43", r"\text{each column gains exactly } (\sigma_{\max}-\lambda)^2/2")
    says.equal(gains, excess.square() / 2, 1e-9)
    says.fails(
        "half of the best ε for the first column",
        float(Y.square().sum()) / 2 - float(less),
        promised=float(excess[0]) ** 2 / 2,
    )
    says = run.states("B-43", r"\text{the objective falls with every column}")
    says.below(torch.tensor(grown.objectives, dtype=torch.float64).diff(), 0)
    says.fails(
        "a random unit pair with the same ε instead of the singular pair",
        random_pair_change(run, Y, strength, float(sigma[0]) - strength),
    )
    return grown.widths, grown.objectives, grown.residuals


def random_pair_change(run: Run, Y: Tensor, strength: float, epsilon: float) -> Tensor:
    u, v = run.randn(len(Y), 1), run.randn(Y.shape[1], 1)
    U, V = epsilon**0.5 * u / u.norm(), epsilon**0.5 * v / v.norm()
    return decay_objective(Y, U, V, strength) - Y.square().sum() / 2


def plot(
    axes: Any,
    bounds: tuple[list[int], list[float], list[float]],
    grown: tuple[list[int], list[float], list[float]],
    least: float,
    strength: float,
) -> None:
    times, objectives, lowers = bounds
    axis = axes[0, 0]
    axis.plot(times, objectives, color=COLORS[0], label="objective")
    axis.plot(times, lowers, color=COLORS[1], label="lower bound of the certificate")
    axis.axhline(least, color="black", linewidth=0.9, linestyle="--", label="least of all")
    axis.set(xscale="log", xlabel="step of gradient descent", ylabel="objective")
    axis.legend(loc="upper right")
    widths, values, residuals = grown
    axis = axes[0, 1]
    axis.plot(widths, values, "o-", color=COLORS[0], label="objective")
    axis.plot(widths, residuals, "s-", color=COLORS[2], label=r"$\sigma_{\max}$ of the residual")
    axis.axhline(least, color="black", linewidth=0.9, linestyle="--", label="least of all")
    axis.axhline(strength, color=COLORS[2], linewidth=0.9, linestyle=":", label="λ")
    axis.set(xlabel="columns", ylabel="objective; singular value", xticks=widths, ylim=(0, None))
    axis.legend(loc="upper right")
