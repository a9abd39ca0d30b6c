"""Derivatives as limits, the chain rule, and gradients written out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchtheory.labs.engine import COLORS, Run, fit_slope, lab
from torchtheory.neurons.regression import least_squares
from torchtheory.primer.differences import (
    Scheme,
    best_step,
    chain_rule,
    derivative_by_limit,
    directional_difference,
    gradient_check,
    hessian_at,
    hessian_vector_product,
    numerical_jacobian,
)
from torchtheory.primer.objectives import (
    factorization_gradients,
    factorize,
    nonlinear_least_squares,
    nonlinear_least_squares_gradient,
    nonlinear_least_squares_hessian,
    squared_norm_gradient,
    squared_residual,
    squared_residual_gradient,
)

LINKS: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "identity": lambda z: 1 * z,
}
SCHEMES: tuple[Scheme, ...] = ("forward", "central")


@lab(
    "primer-derivatives",
    room="primer",
    covers=["L-007", "L-008", "L-014", "L-015", "L-033", "L-034", "L-035", "L-039"],
    title="Difference quotients converge as promised and agree with every gradient formula",
    full={"size": 40, "sweeps": 1000},
    least={"size": 4, "sweeps": 100},
)
def primer_derivatives(run: Run, size: int = 8, sweeps: int = 300) -> None:
    """Derivatives by limits are the judge of all formulas for gradients.

    Forward quotients err like the step, central ones like its square, until rounding takes over;
    the figure shows where. Then the chain rule, the Jacobian of a linear map, the gradients of
    least squares, of matrix factorization and of nonlinear least squares and its Hessian are
    compared with quotients and with automatic differentiation, and Hessian-vector products with
    differences of gradients. Each formula has a control that leaves something out.

    Args:
        size: dimension of the vectors.
        sweeps: of alternating least squares in the part on factorization.
    """
    limits(run)
    chains(run, size)
    least_squares_gradients(run, size)
    factorization(run, size, sweeps)
    nonlinear(run, size)
    hessian_products(run, size)


def limits(run: Run) -> None:
    square = derivative_by_limit(torch.square, torch.tensor(3.0).double())
    kink = derivative_by_limit(lambda x: (x - 3).abs(), torch.tensor(3.0).double())
    says = run.states("L-007", r"f(x)=x^2:\ f'(3)=\lim_{t\to0}(f(3+t)-f(3))/t=6")
    says.equal(square.value, 6.0, 1e-12)
    says.fails(
        "a single forward quotient with step 10⁻⁴",
        float(
            directional_difference(
                torch.square, torch.tensor(3.0).double(), torch.tensor(1.0).double(), step=1e-4, scheme="forward"
            )
        ),
    )
    functions: dict[str, tuple[Callable[[Tensor], Tensor], float, float]] = {
        "exp at 1": (torch.exp, 1.0, math.e),
        "sin at 2": (torch.sin, 2.0, math.cos(2.0)),
        "log at 3": (torch.log, 3.0, 1 / 3),
        "tanh at ½": (torch.tanh, 0.5, 1 - math.tanh(0.5) ** 2),
    }
    found = {name: derivative_by_limit(f, torch.tensor(x).double()) for name, (f, x, _) in functions.items()}
    says = run.states("L-007", r"\text{the extrapolated limit is the derivative of exp, sin, log, tanh}")
    says.equal([limit.value for limit in found.values()], [exact for *_, exact in functions.values()], 1e-11)
    says.fails("|x − 3| has a kink at 3, where the limit from the right is 1", kink.value, promised=1.0)
    x, one = torch.tensor(0.7, dtype=torch.float64), torch.tensor(1.0).double()

    def wave(v: Tensor) -> Tensor:
        return torch.exp(torch.sin(2 * v))

    exact = 2 * math.cos(1.4) * math.exp(math.sin(1.4))
    steps = {"forward": torch.logspace(-2, -5, 7), "central": torch.logspace(-1, -3, 7)}
    slopes = {}
    for scheme in SCHEMES:
        errors = [
            abs(float(directional_difference(wave, x, one, step=t, scheme=scheme)) - exact)
            for t in steps[scheme].tolist()
        ]
        slopes[scheme] = fit_slope(steps[scheme].tolist(), errors)
    for scheme, order in (("forward", 1), ("central", 2)):
        other = slopes["central" if scheme == "forward" else "forward"]
        says = run.states("L-007", rf"\text{{the error of the {scheme} quotient falls like }} t^{order}")
        says.slope(slopes[scheme], order, 0.02, against=[order - 1, order + 1])
        says.fails("the other scheme", other)
    w = run.randn(6)

    def smooth(v: Tensor) -> Tensor:
        return torch.sin(w @ v) + v.square().sum()

    point, directions = run.randn(6), run.randn(20, 6)
    gradient = torch.func.grad(smooth)(point)

    def not_differentiable(v: Tensor) -> Tensor:
        return v[0] ** 2 * v[1] / (v @ v).clamp_min(1e-300)

    corner = torch.tensor([0.6, 0.8], dtype=torch.float64)
    says = run.states("L-007", r"\lim_{t\to0}(f(x+tu)-f(x))/t=\nabla f(x)\cdot u,\ \text{in particular for } u=e_i")
    says.equal(
        [derivative_by_limit(smooth, point, u).value for u in [*directions, *torch.eye(6).double()]],
        torch.cat([directions @ gradient, gradient]),
        1e-9,
    )
    says.fails(
        "x²y/(x²+y²) at 0 has directional derivatives and no derivative",
        derivative_by_limit(not_differentiable, torch.zeros(2).double(), corner).value,
        promised=0.0,
    )
    run.figure(
        "step-sizes",
        lambda axis: plot_steps(axis, wave, x, exact),
        caption="Error of a difference quotient against its step: truncation on the right, "
        "rounding on the left. The dots are the default steps, the dashed line is the "
        "extrapolated limit.",
    )


def chains(run: Run, size: int) -> None:
    A, B = run.randn(5, 4), run.randn(4, size)

    def inner(v: Tensor) -> Tensor:
        return torch.tanh(B @ v)

    def outer(v: Tensor) -> Tensor:
        return torch.sin(A @ v) * v.sum()

    x = run.randn(size)
    exact = chain_rule(outer, inner, x)
    numerical = chain_rule(outer, inner, x, numerical=True)
    wrong_place = torch.func.jacrev(outer)(x[:4]) @ exact.inner
    says = run.states("L-008", r"J_{f\circ g}(x)=J_f(g(x))\,J_g(x) \text{ by automatic differentiation}")
    says.equal(exact.residual, within=1e-12)
    says.fails("$J_f$ is taken at x instead of g(x)", (wrong_place - exact.composed).abs().max())
    says = run.states("L-008", r"J_{f\circ g}(x)=J_f(g(x))\,J_g(x) \text{ by difference quotients alone}")
    says.equal(numerical.residual, within=1e-7)
    says.fails("f is not applied", (exact.inner[:4] - exact.composed[:4]).abs().max())
    scalar = torch.tensor([0.3], dtype=torch.float64)
    says = run.states("L-008", r"(f\circ g)'(x)=f'(g(x))\,g'(x):\ \sin(x^3) \text{ at } 0.3")
    says.equal(float(chain_rule(torch.sin, lambda v: v**3, scalar).composed), math.cos(0.3**3) * 3 * 0.3**2, 1e-14)
    says.fails("g'(x) is forgotten", math.cos(0.3**3))
    M = run.randn(5, size)
    says = run.states("L-014", r"f(x)=Ax:\ df/dx=A")
    says.equal(numerical_jacobian(lambda v: M @ v, x), M, 1e-8)
    says.fails("f(x) = Ax + (Ax)² is not linear", numerical_jacobian(lambda v: M @ v + (M @ v).square(), x))


def least_squares_gradients(run: Run, size: int) -> None:
    A, y, x = run.randn(3 * size, size), run.randn(3 * size), run.randn(size)
    claimed = squared_residual_gradient(A, y, x)

    def loss(v: Tensor) -> Tensor:
        return squared_residual(A, y, v)

    says = run.states("L-015, L-033", r"\nabla\|Ax-y\|^2=2A^\top(Ax-y) \text{ (relative error against quotients)}")
    says.equal(gradient_check(loss, x, claimed).error, within=1e-8)
    says.fails("the factor 2 is missing", gradient_check(loss, x, claimed / 2).error)
    row = 2 * (A @ x - y)[None] @ A
    general = squared_norm_gradient(lambda v: A @ v - y, x)
    automatic = torch.func.grad(loss)(x)
    says = run.states(
        "L-015", r"2(Ax-y)^\top A,\ 2A^\top(Ax-y),\ 2J_g^\top g \text{ and automatic differentiation agree}"
    )
    says.equal(torch.cat([row[0], general, automatic]), torch.cat([claimed, claimed, claimed]), 1e-12)
    says.fails("without y", torch.cat([2 * A.T @ (A @ x)] * 3))
    best = least_squares(A, y).weight
    says = run.states("L-015", r"\nabla L(A^+y)=0")
    says.equal(squared_residual_gradient(A, y, best).abs().max(), within=1e-10)
    says.fails("at a point near by", squared_residual_gradient(A, y, best + 1e-3).abs().max())


def factorization(run: Run, size: int, sweeps: int) -> None:
    p = 3
    U, V, R = run.randn(size, p), run.randn(p, size + 2), run.randn(size, size + 2)
    by_U, by_V = factorization_gradients(U, V, R)

    def loss(left: Tensor, right: Tensor) -> Tensor:
        return 0.5 * (left @ right - R).square().sum()

    checks = [
        gradient_check(lambda left: loss(left, V), U, by_U).error,
        gradient_check(lambda right: loss(U, right), V, by_V).error,
    ]
    says = run.states("L-034", r"L=\tfrac12\|UV-R\|_F^2:\ \partial_UL=(UV-R)V^\top,\ \partial_VL=U^\top(UV-R)")
    says.equal(checks, within=1e-8)
    says.fails(
        "R has the wrong sign",
        [
            gradient_check(lambda left: loss(left, V), U, (U @ V + R) @ V.T).error,
            gradient_check(lambda right: loss(U, right), V, U.T @ (U @ V + R)).error,
        ],
    )
    sigma = torch.linalg.svdvals(R)
    least = 0.5 * sigma[p:].square().sum()
    fits = [factorize(R, p, sweeps=sweeps, generator=run.generator) for _ in range(3)]
    says = run.states(
        "L-034",
        r"\min_{U,V}\tfrac12\|UV-R\|_F^2=\tfrac12\sum_{i>p}\sigma_i(R)^2"
        r" \text{ (alternating least squares, three starts)}",
    )
    says.equal(torch.stack([fit.losses[-1] for fit in fits]), least, 1e-6)
    says.fails("one column fewer", factorize(R, p - 1, sweeps=sweeps, generator=run.generator).losses[-1])
    says = run.states("L-034", r"\text{no factors of width } p \text{ do better, at any sweep}")
    says.at_least(torch.cat([fit.losses for fit in fits]), least, 1e-12)
    says.fails("one column more", factorize(R, p + 1, sweeps=sweeps, generator=run.generator).losses[-1])


def nonlinear(run: Run, size: int) -> None:
    x, y, w = run.randn(4 * size, size), run.randn(4 * size), run.randn(size) / math.sqrt(size)
    gradients, hessians, gauss_newton, unweighted = [], [], [], []
    for link in LINKS.values():

        def loss(v: Tensor, link: Callable[[Tensor], Tensor] = link) -> Tensor:
            return nonlinear_least_squares(link, v, x, y)

        def slope(v: Tensor, link: Callable[[Tensor], Tensor] = link) -> Tensor:
            return nonlinear_least_squares_gradient(link, v, x, y)

        gradients.append(gradient_check(loss, w, slope).error)
        unweighted.append(gradient_check(loss, w, -x.T @ (y - link(x @ w)) / len(x)).error)
        hessian = nonlinear_least_squares_hessian(link, w, x, y)
        hessians.append(gradient_check(slope, w, hessian).error)
        hessians.append(float((hessian - torch.func.hessian(loss)(w)).abs().max() / hessian.abs().max()))
        from_fit = nonlinear_least_squares_hessian(link, w, x, link(x @ w))
        gauss_newton.append(gradient_check(slope, w, from_fit).error)
    says = run.states(
        "L-035", r"\nabla L=-\tfrac1n\sum_i(y_i-\ell(z_i))\ell'(z_i)x_i,\ \ell \text{ sigmoid, tanh, identity}"
    )
    says.equal(gradients, within=1e-8)
    says.fails("ℓ'(z) is left out, for the sigmoid", unweighted[0])
    says = run.states("L-035", r"\nabla^2L=\tfrac1n\sum_i[\ell'(z_i)^2-(y_i-\ell(z_i))\ell''(z_i)]x_ix_i^\top")
    says.equal(hessians, within=1e-8)
    says.fails("only the Gauss-Newton term, for the sigmoid", gauss_newton[0])
    says = run.states("L-035", r"\ell(z)=z:\ \nabla^2L=X^\top X/n")
    says.equal(nonlinear_least_squares_hessian(LINKS["identity"], w, x, y), x.T @ x / len(x), 1e-12)
    says.fails("tanh", nonlinear_least_squares_hessian(torch.tanh, w, x, y))
    run.table(
        "gradient-checks",
        ["link", "gradient", "Hessian", "Hessian without ℓ''"],
        [(name, gradients[i], hessians[2 * i], gauss_newton[i]) for i, name in enumerate(LINKS)],
        caption="Relative errors against difference quotients",
    )


def hessian_products(run: Run, size: int) -> None:
    A = run.randn(size, size) / math.sqrt(size)

    def f(v: Tensor) -> Tensor:
        return torch.logsumexp(A @ torch.tanh(A @ v), 0)

    x, v = run.randn(size), run.randn(size)
    exact = hessian_vector_product(f, x, v)
    dense = torch.func.hessian(f)(x)
    says = run.states("L-039", r"\text{Pearlmutter's product is } \nabla^2f(x)v")
    says.equal(
        torch.cat([exact, hessian_at(f, x).to_dense().flatten()]), torch.cat([dense @ v, dense.flatten()]), 1e-12
    )
    says.fails("only the diagonal of the Hessian", torch.cat([dense.diagonal() * v, dense.diagonal().diag().flatten()]))
    gradient = torch.func.grad(f)
    errors = {
        scheme: (directional_difference(gradient, x, v, scheme=scheme) - exact).norm() / exact.norm()
        for scheme in SCHEMES
    }
    says = run.states("L-039", r"(\nabla f(x+tv)-\nabla f(x))/t \to \nabla^2f(x)v \text{ at the best step}")
    says.equal(torch.stack([errors["forward"], errors["central"]]), within=1e-6)
    says.fails(
        "t = ½ is no limit", float((directional_difference(gradient, x, v, step=0.5) - exact).norm() / exact.norm())
    )
    steps = torch.logspace(-2, -5, 7).tolist()
    slopes = {
        scheme: fit_slope(
            steps[:5] if scheme == "central" else steps,
            [
                float((directional_difference(gradient, x, v, step=t, scheme=scheme) - exact).norm())
                for t in (steps[:5] if scheme == "central" else steps)
            ],
        )
        for scheme in SCHEMES
    }
    says = run.states("L-039", r"\text{the error of the one-sided quotient of gradients is } O(t)")
    says.slope(slopes["forward"], 1.0, 0.02, against=[0.0, 2.0])
    says.fails("the central quotient", slopes["central"])


def plot_steps(axis: Any, f: Callable[[Tensor], Tensor], x: Tensor, exact: float) -> None:
    steps = torch.logspace(-15, 0, 91).tolist()
    for scheme, color in zip(SCHEMES, COLORS, strict=False):

        def error(t: float, scheme: Scheme = scheme) -> float:
            one = torch.ones_like(x)
            return abs(float(directional_difference(f, x, one, step=t, scheme=scheme)) - exact)

        axis.loglog(steps, [max(error(t), 1e-17) for t in steps], color=color, lw=1.2, label=scheme)
        best = best_step(scheme)
        axis.plot(best, error(best), "o", color=color, ms=6)
    limit = abs(derivative_by_limit(f, x).value - exact)
    axis.axhline(max(limit, 1e-17), ls="--", color=COLORS[2], label="extrapolated")
    axis.set(xlabel="step t", ylabel="error of the derivative", ylim=(1e-17, 10))
    axis.legend()
