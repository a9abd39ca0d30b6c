"""Quadratic models: Newton's step, cheaper curvature, and gradient descent as the crudest."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.linalg.conjugate_gradients import NotPositiveDefinite
from torchtheory.linalg.operators import LinearOperator
from torchtheory.models.problem import Problem
from torchtheory.optimization.curvature.operators import hessian_operator
from torchtheory.optimization.descent.iterates import Function, gradient_of, trajectory
from torchtheory.optimization.descent.newton import (
    DiagonalBlocks,
    QuadraticModel,
    approximation_error,
    diagonal_blocks,
    isotropic_model,
    layer_sizes,
    newton_direction,
    quadratic_model,
    quadratic_model_of,
)


@lab(
    "second-order-models",
    room="optimization",
    covers=["L-121", "L-122", "L-123"],
    title="Newton's step, its diagonal and block approximations, and the step of gradient descent",
    errata=["newton-indefinite-hessian", "gradient-descent-identity-hessian"],
    full={"size": 30, "samples": 300, "width": 12},
    least={"size": 3},
)
def second_order_models(run: Run, size: int = 6, samples: int = 60, width: int = 4) -> None:
    """A quadratic model of f at a point is minimized instead of f.

    With the Hessian it is Newton's method: one step on a quadratic, and near a minimum the error
    is squared at every step. With the diagonal, or a block for every layer, of the Hessian it is
    cheaper, and how far that is from the Hessian decides whether it converges. With 1/η times
    the identity it is gradient descent. Look at the models drawn over the function, and at what
    each kind of curvature buys on a badly scaled regression.

    Args:
        size: dimension of the quadratic and of the inputs.
        samples: of the regression.
        width: of the network.
    """
    newton(run, size)
    indefinite(run)
    approximations(run, size)
    curves = regression(run, samples, size)
    network(run, width)
    isotropic(run, size)
    run.figure(
        "models",
        lambda axes: plot(axes, curves),
        caption="Left: a function, its quadratic model at the blue point and the model's minimizer "
        "in red. Middle: isotropic models, whose minimizers are the steps of gradient descent. "
        "Right: a badly scaled logistic regression descended with each kind of curvature.",
        grid=(1, 3),
        size=(12.5, 3.5),
    )


def newton(run: Run, size: int) -> None:
    half = run.randn(size, size)
    matrix = half @ half.T + torch.eye(size, dtype=torch.float64)
    linear, start = run.randn(size), run.randn(size)
    best = torch.linalg.solve(matrix, linear)

    def f(x: Tensor) -> Tensor:
        made: Tensor = (x @ matrix * x).sum(-1) / 2 - x @ linear
        return made

    def bent(x: Tensor) -> Tensor:
        return f(x) + x.square().square().sum(-1)

    def after(g: Function) -> Tensor:
        end: Tensor = start + quadratic_model(g, start).minimizer() - best
        return end

    says = run.states(
        "L-121", r"f \text{ quadratic}: x-[\nabla^2f]^{-1}\nabla f=x^\star: \text{ distance after one step}"
    )
    says.at_most(after(f).norm(), 0, 1e-9)
    says.fails("Σ xᵢ⁴ is added", after(bent).norm())

    def sums(x: Tensor) -> Tensor:
        u = x @ half.T
        return (u.exp() - u).sum(-1)

    # Newton's method does not see the change of variables u = Ax: there each coordinate is alone
    start = torch.linalg.solve(half, run.rand(size) - 0.5)
    path = trajectory(newton_direction(sums), start, [1.0] * 5) @ half.T
    slow = trajectory(gradient_of(sums), start, [0.01] * 5) @ half.T
    says = run.states(
        "L-121",
        r"f=\sum_ie^{u_i}-u_i,\ u=Ax: |u_i^{k+1}|\le\tfrac12e^{|u_i^k|}|u_i^k|^2: \text{ quadratic convergence}",
    )
    says.at_most(
        path[1:].abs(), path[:-1].abs().exp() / 2 * path[:-1].square(), 1e-13, where="every coordinate, five steps"
    )
    says.fails("gradient descent", slow[1:].abs(), promised=slow[:-1].abs().exp() / 2 * slow[:-1].square())
    run.table(
        "newton",
        ["step", "Newton: largest |u|", "gradient descent: largest |u|"],
        [(k, a.abs().max(), b.abs().max()) for k, (a, b) in enumerate(zip(path, slow, strict=True))],
        caption="The number of correct digits doubles at every step of Newton's method",
    )


def indefinite(run: Run) -> None:
    def saddle(x: Tensor) -> Tensor:
        return x[..., 0].square() - x[..., 1].square()

    def refused(model: QuadraticModel) -> int:
        try:
            model.minimizer()
        except NotPositiveDefinite as error:
            d = error.direction
            return int(float(d @ (model.curvature @ d)) <= 0)
        return 0

    at = [run.randn(2) for _ in range(10)]
    says = run.states(
        "L-121",
        r"\nabla^2f \text{ indefinite: the model has no minimizer, and a direction of no positive "
        r"curvature is returned: cases}",
    )
    says.equal(sum(refused(quadratic_model(saddle, x)) for x in at), len(at), where="x² - y² at ten points")
    says.fails("x² + y²", sum(refused(quadratic_model(lambda v: v.square().sum(-1), x)) for x in at))
    x = torch.ones(2, dtype=torch.float64)
    model = quadratic_model(saddle, x)
    formula = -torch.linalg.solve(model.curvature.to_dense(), model.slope)
    others = [model(formula + 0.5 * run.randn(2)) for _ in range(40)]
    run.refutes(
        "newton-indefinite-hessian", r"m(\Delta)\ge m\bigl(-[\nabla^2f]^{-1}\nabla f\bigr) \text{ for every } \Delta"
    ).at_least(
        others, model(formula), where="x² - y² at (1, 1): the formula gives the saddle of the model; other Δ are lower"
    )


def approximations(run: Run, size: int) -> None:
    def separable(x: Tensor) -> Tensor:
        return (x.exp() + x.square()).sum(-1)

    def coupled(x: Tensor) -> Tensor:
        return separable(x) + x.sum(-1).square()

    x = run.randn(size)

    def error(f: Function) -> float:
        hessian = LinearOperator.from_matrix(torch.func.hessian(f)(x))
        return approximation_error(hessian, diagonal_blocks(hessian))

    says = run.states("L-122", r"f \text{ separable}: \|\nabla^2f-\operatorname{Diag}(\nabla^2f)\|_2=0")
    says.at_most(error(separable), 0, 1e-12)
    says.fails("(Σ x)² is added", error(coupled))
    # x ← x - B⁻¹(Qx - q) multiplies the error by I - B⁻¹Q
    predicted, found, rows = [], [], []
    for coupling in (0.05, 0.3, 0.8):
        ones = torch.full((size, size), coupling, dtype=torch.float64)
        matrix = torch.diag(torch.logspace(-1, 1, size, dtype=torch.float64)) + ones
        operator = LinearOperator.from_matrix(matrix)
        for name, sizes in (
            ("diagonal", [1] * size),
            ("blocks of 2", [2] * (size // 2) + [1] * (size % 2)),
        ):
            blocks = diagonal_blocks(operator, sizes)
            change = torch.eye(size, dtype=torch.float64) - torch.linalg.solve(blocks.operator.to_dense(), matrix)
            radius = float(torch.linalg.eigvals(change).abs().max())
            factor = late_factor(matrix, blocks, run.randn(size))
            predicted.append(radius)
            found.append(factor)
            rows.append((coupling, name, approximation_error(operator, blocks), radius, factor))
    says = run.states(
        "L-122", r"x\leftarrow x-B^{-1}\nabla f: \text{ asymptotic factor} = \text{spectral radius of } I-B^{-1}Q"
    )
    says.equal(
        found, predicted, 1e-4, where="diagonal and block-diagonal B, three strengths of coupling; above 1 it diverges"
    )
    says.fails(
        "the factors of the other kind of blocks", found[1::2] + found[::2], promised=predicted[::2] + predicted[1::2]
    )
    run.table(
        "approximations",
        ["coupling", "B", "‖H - B‖₂", "spectral radius of I - B⁻¹Q", "measured factor"],
        rows,
        caption="Quadratics with a coupling of all coordinates, descended with part of the Hessian",
    )


def late_factor(matrix: Tensor, blocks: DiagonalBlocks, error: Tensor) -> float:
    """By how much the error changes per step, late; sizes are kept in range on the way."""
    size = torch.ones((), dtype=torch.float64)
    for k in range(300):
        error = error - blocks.solve(matrix @ error)
        if k >= 280:
            size = size * error.norm()
        error = error / error.norm()
    return float(size ** (1 / 20))


def regression(run: Run, samples: int, size: int) -> list[tuple[str, Tensor]]:
    scales = torch.logspace(-1.5, 0.5, size, dtype=torch.float64)
    x = run.randn(samples, size) * scales
    y = torch.sign(x @ (1 / scales) + 2 * run.randn(samples))

    def f(w: Tensor) -> Tensor:
        made: Tensor = F.softplus(-y * (w @ x.T)).mean(-1) + 1e-4 * w.square().sum(-1)
        return made

    start = torch.zeros(size, dtype=torch.float64)
    best = trajectory(newton_direction(f), start, [1.0] * 25)[-1]
    big = float(torch.linalg.matrix_norm(x, 2)) ** 2 / (4 * samples) + 2e-4
    curves = [("gradient", f(trajectory(gradient_of(f), start, [1 / big] * 25)) - f(best))]
    for name, kind in (("diagonal", "diagonal"), ("Hessian", "full")):
        path = trajectory(newton_direction(f, kind), start, [1.0 if kind == "full" else 0.5] * 25)  # type: ignore[arg-type]
        curves.append((name, f(path) - f(best)))
    hessian = torch.func.hessian(f)(best)
    diagonal = hessian.diag()
    # direction, step, and what stands in the place of the Hessian at the minimum
    methods: list[tuple[Any, float, Tensor]] = [
        (newton_direction(f, "diagonal"), 0.5, diagonal),
        (gradient_of(f), 1 / float(torch.linalg.eigvalsh(hessian)[-1]), torch.ones_like(diagonal)),
        (flat_direction(f), 0.5, torch.full_like(diagonal, float(diagonal.sum()))),
    ]
    found, radii = [], []
    for direction, step, divisor in methods:
        values, vectors = torch.linalg.eig(torch.eye(size, dtype=torch.float64) - step * hessian / divisor[:, None])
        slowest = int(values.abs().argmax())
        away = 1e-5 * F.normalize(vectors.real[:, slowest], dim=0)
        end = trajectory(direction, best + away, [step] * 10)[-1]
        found.append(math.pow(float((end - best).norm() / away.norm()), 0.1))
        radii.append(float(values.abs().max()))
    says = run.states("L-122", r"\text{next to the minimum of a badly scaled logistic regression: factor per step}")
    says.equal(found[:2], radii[:2], 1e-3, where="the diagonal and gradient descent; spectral radius of I - ηB⁻¹∇²f")
    says.fails("the diagonal is replaced by its sum", found[2], promised=radii[0])
    says = run.states("L-122", r"\text{... smaller with the diagonal than for gradient descent with } 1/\lambda_{\max}")
    says.below(found[0], found[1], where="the diagonal undoes the scaling")
    says.fails("the diagonal is replaced by its sum, which undoes nothing", found[2])
    return curves


def flat_direction(f: Function) -> Any:
    """The gradient over the sum of the Hessian's diagonal."""

    def direction(w: Tensor, k: int) -> Tensor:
        diagonal = torch.func.hessian(f)(w).diag()
        scaled: Tensor = torch.func.grad(f)(w) / diagonal.sum()
        return scaled

    return direction


def network(run: Run, width: int) -> None:
    inputs = run.randn(20, 2)
    net = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 1)).double()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(run.randn(*p.shape))
    problem = Problem(net, (inputs, inputs.prod(1, keepdim=True)), task="regression")
    hessian = hessian_operator(problem)
    dense = hessian.to_dense()
    rows, errors, exact, squares, kept = [], [], [], [], []
    for name, sizes in (
        ("diagonal", "diagonal"),
        ("block a layer", layer_sizes(problem)),
        ("all of it", "full"),
    ):
        blocks = diagonal_blocks(hessian, sizes)  # type: ignore[arg-type]
        kept.append(blocks.operator.to_dense())
        rest = dense - kept[-1]
        errors.append(approximation_error(hessian, blocks) if name != "all of it" else 0.0)
        exact.append(float(torch.linalg.matrix_norm(rest, 2)))
        squares.append(float(rest.norm()))
        rows.append((name, exact[-1], squares[-1], sum(b.numel() for b in blocks.blocks)))
    says = run.states("L-122", r"\|H-B\|_2 \text{ of a network's Hessian by Lanczos is that of the dense matrix}")
    says.equal(errors[:2], exact[:2], 1e-5)
    says.fails("the Hessian itself for the difference", [float(torch.linalg.matrix_norm(dense, 2))] * 2)
    elsewhere = problem.at({k: p + run.randn(*p.shape) for k, p in problem.parameters.items()})
    foreign = [
        diagonal_blocks(hessian_operator(elsewhere), sizes).operator.to_dense()
        for sizes in ("diagonal", layer_sizes(problem))
    ]
    total = float(dense.square().sum())
    says = run.states(
        "L-122",
        r"\|H-B\|_F^2=\|H\|_F^2-\|B\|_F^2: \text{ the diagonal and the blocks of } H \text{ are "
        r"the nearest matrices of their kind}",
    )
    says.equal([square**2 for square in squares[:2]], [total - float(part.square().sum()) for part in kept[:2]], 1e-9)
    says.fails(
        "B from the Hessian at other weights",
        [float((dense - part).square().sum()) for part in foreign],
        promised=[total - float(part.square().sum()) for part in foreign],
    )
    run.table(
        "network",
        ["B", "‖H - B‖₂", "‖H - B‖ Frobenius", "numbers kept"],
        rows,
        caption=f"The Hessian of a tanh network with {len(dense)} parameters",
    )
    values, vectors = torch.linalg.eigh(dense)
    model = quadratic_model_of(problem)
    damped = model.minimizer(damping=1.05 * max(0.0, -float(values[0])) + 0.1)
    down = vectors[:, values < 0]
    part = down @ (down.T @ model.slope)
    says = run.states(
        "L-121",
        r"H+\mu I \text{ positive definite: the damped Newton step of a network is a descent "
        r"direction: } \nabla f\cdot\Delta",
    )
    says.below(float(model.slope @ damped), 0)
    says.fails(
        "no damping, and the gradient's part in the directions of negative curvature",
        float(-part @ torch.linalg.solve(dense, part)),
    )


def isotropic(run: Run, size: int) -> None:
    def f(x: Tensor) -> Tensor:
        return x.cos().sum(-1) + x.square().sum(-1)

    x = run.randn(size)
    steps = (0.01, 0.1, 0.3)
    moves = torch.stack([isotropic_model(f, x, eta).minimizer() for eta in steps])
    slope = torch.func.grad(f)(x)
    expected = torch.stack([-eta * slope for eta in steps])
    newtons = quadratic_model(f, x).minimizer()
    says = run.states("L-123", r"\arg\min_\Delta f+\nabla f\cdot\Delta+\tfrac1{2\eta}\|\Delta\|^2=-\eta\nabla f")
    says.equal(moves, expected, 1e-10)
    says.fails("the Hessian in place of 1/η", newtons.expand(3, -1))
    same = LinearOperator.identity(size, dtype=torch.float64)
    unit = QuadraticModel(float(f(x)), slope, same).minimizer()
    run.refutes(
        "gradient-descent-identity-hessian",
        r"\nabla^2f=I \implies \text{the minimizer of the second-order model is } -\eta\nabla f",
    ).equal(unit, expected[1], 1e-6, where="η = 0.1: with the Hessian I the minimizer is -∇f, ten times as long")
    moves = run.randn(300, size)
    values = f(x + moves)

    def above(eta: float) -> Tensor:
        model = isotropic_model(f, x, eta)
        return torch.tensor([model(m) for m in moves]) - values

    says = run.states("L-123", r"\eta\le1/L: \text{ the isotropic model lies above } f: \text{ difference}")
    says.at_least(above(1 / 3), 0, 1e-12, where="Σ cos x + x², L = 3")
    says.fails("η = 2/L", above(2 / 3))


def plot(axes: Any, curves: list[tuple[str, Tensor]]) -> None:
    def f(x: Tensor) -> Tensor:
        return (x.square() / 4 + 0.6 * (1.7 * x).sin()).sum(-1)

    def values(model: QuadraticModel, moves: Tensor) -> Tensor:
        curvature = float(model.curvature.to_dense())
        return model.value + float(model.slope) * moves + curvature / 2 * moves.square()

    grid = torch.linspace(-2.6, 2.4, 200, dtype=torch.float64)
    at = torch.tensor([-1.5], dtype=torch.float64)
    model = quadratic_model(f, at)
    left, middle, right = axes[0]
    left.plot(grid, f(grid[:, None]), color="0.2", label="f")
    left.plot(grid, values(model, grid - at), ":", color=COLORS[0], label="model")
    goal = at + model.minimizer()
    left.plot(at, f(at), "o", color=COLORS[0])
    left.plot(goal, model(goal - at), "o", color="#d00000")
    middle.plot(grid, f(grid[:, None]), color="0.2", label="f")
    point = torch.tensor([-1.9], dtype=torch.float64)
    middle.plot(point, f(point), "o", color=COLORS[0])
    for eta, color in zip((0.2, 0.45, 0.7), COLORS[1:], strict=False):
        crude = isotropic_model(f, point, eta)
        middle.plot(grid, values(crude, grid - point), ":", color=color, label=rf"$\eta = {eta:g}$")
        end = point + crude.minimizer()
        middle.plot(end, crude(end - point), "o", color=color, markersize=4)
    for axis in (left, middle):
        axis.set(xlabel="x", ylabel="f(x) and models", ylim=(-1.2, 2.4))
    left.legend(loc="upper center")
    middle.legend(loc="lower right", ncols=2)
    for name, curve in curves:
        right.semilogy(curve.clamp_min(1e-16), label=name)
    right.set(xlabel="step", ylabel="loss above its minimum", ylim=(1e-16, 3))
    right.legend(loc="lower right", bbox_to_anchor=(1.0, 0.12), title="curvature")
