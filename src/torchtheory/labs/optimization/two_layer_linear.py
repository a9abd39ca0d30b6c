"""The landscape of the two-layer linear network: every critical point, its value, its way down."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torchtheory.labs.engine import Run, lab
from torchtheory.labs.optimization.two_layer_points import (
    ROUNDING,
    catalogue_of_points,
    certificates,
    direct,
    plot_ladder,
    searched_points,
)
from torchtheory.models.problem import Problem
from torchtheory.nets.feedforward import dense
from torchtheory.optimization.descent.flow import gradient_flow
from torchtheory.optimization.descent.iterates import gradient_descent, last_iterate
from torchtheory.optimization.linear_networks.deep import (
    deep_linear_function,
    deep_linear_slope,
    flat_layers,
    layers_of,
)
from torchtheory.optimization.linear_networks.second_moments import (
    Covariances,
    least_squares_map,
    reduced_rank_regression,
)
from torchtheory.optimization.linear_networks.two_layer import (
    alternating_minimization,
    best_input_factor,
    best_output_factor,
    column_projector,
    two_layer_gradients,
    two_layer_hessian,
)
from torchtheory.optimization.linear_networks.two_layer_critical_points import (
    linear_critical_points,
)


@lab(
    "two-layer-linear-landscape",
    room="optimization",
    covers=["L-147", "L-148", "L-149", "L-150", "B-30", "B-31", "B-32", "B-33", "B-34"],
    title="A two-layer linear network has one global minimum and strict saddles, all listed",
    errata=[
        "two-layer-gradient-transposed",
        "two-layer-gradient-gram",
        "critical-form-transposed-covariance",
        "full-column-rank-unconstrained",
        "critical-form-inverse-cross-covariance",
        "two-layer-hessian-half",
    ],
    full={"samples": 400, "inputs": 7, "width": 3, "starts": 20, "steps": 2000},
    least={"samples": 6, "inputs": 5},
)
def two_layer_linear_landscape(
    run: Run, samples: int = 60, inputs: int = 5, width: int = 2, starts: int = 8, steps: int = 300
) -> None:
    r"""The risk of x ↦ UVᵀx depends on second moments only. Its critical points are one class for
    every choice J of eigenvectors of Σ = Σyx Σxx⁻¹ Σxy, with the value
    $\mathrm{tr}\,Σ_{yy}-\sum_{j\in J}λ_j$; all but the leading choice are saddles with negative
    curvature, also with singular Σxx and with repeated eigenvalues.

    The points are written down and their gradients, values and Hessians measured; others are
    searched for by solving ∇R = 0 from random starts, and each must lie on one of the levels. Look
    at the ladder of levels and at gradient descent, which slows down where it passes one.

    Args:
        samples: of the data.
        inputs: dimension of an input.
        width: of the hidden layer.
        starts: of the searches and descents.
        steps: of descent.
    """
    outputs = 4
    x, y, values = regression(run, samples, inputs, 8 * 0.45 ** torch.arange(outputs).double())
    moments = Covariances.from_samples(x, y)
    risk_and_gradients(run, x, y, moments, width)
    conserved(run, x, y, width)
    half_steps(run, moments, width, starts)
    points = catalogue_of_points(run, x, y, moments, width, values)
    found = searched_points(run, moments, width, starts)
    certificates(run, x, y, moments, width)
    no_assumption(run, samples, inputs, width, starts)
    autoencoder(run, x, width)
    losses = descents(run, moments, width, starts, steps)
    printed_errors(run, samples, width)
    run.figure(
        "ladder",
        lambda axes: plot_ladder(axes, points, losses, moments, width, found),
        grid=(1, 2),
        size=(11, 4.2),
        caption="Left: all classes of critical points, full rank and deficient, by value and "
        "number of descending directions; crosses are points found by solving ∇R = 0. Right: "
        "gradient descent from small starts pauses at levels of saddles and ends at the minimum.",
    )


def regression(
    run: Run, samples: int, inputs: int, explained: Tensor, rank: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs with a mean, of the given rank, and targets such that Σ has these eigenvalues."""
    turned, _ = torch.linalg.qr(run.randn(inputs, inputs))
    scales = torch.linspace(1.2, 0.8, inputs).double()
    if rank is not None:
        scales[rank:] = 0
    x = (run.randn(samples, inputs) + 0.5) @ (scales[:, None] * turned)
    left, sigma, _ = torch.linalg.svd(x, full_matrices=False)
    seen = left[:, : int((sigma > 1e-9 * sigma[0]).sum())]
    outputs = len(explained)
    turn, _ = torch.linalg.qr(run.randn(outputs, outputs))
    plane, _ = torch.linalg.qr(run.randn(seen.shape[1], outputs))
    noise = run.randn(samples, outputs)
    noise = noise - seen @ (seen.T @ noise)
    y = samples**0.5 * (seen @ plane * explained.sqrt()) @ turn.T + 0.5 * noise
    return x, y, explained


def risk_and_gradients(run: Run, x: Tensor, y: Tensor, moments: Covariances, width: int) -> None:
    inputs, outputs = moments.inputs, moments.outputs
    pairs = [(run.randn(outputs, width), run.randn(inputs, width)) for _ in range(10)]
    centered = Covariances.from_samples(x - x.mean(0), y - y.mean(0))
    truth = torch.stack([direct(x, y, U, V) for U, V in pairs])
    says = run.states(
        "B-30",
        r"\frac1m\|Y-UV^\top X\|_F^2=\operatorname{tr}(\Sigma_{yy}-2\Sigma_{yx}VU^\top+UV^\top\Sigma_{xx}VU^\top)",
    )
    says.equal(torch.stack([moments.risk(U @ V.T) for U, V in pairs]), truth, 1e-10)
    says.fails(
        "covariances about the means instead of second moments", torch.stack([centered.risk(U @ V.T) for U, V in pairs])
    )
    best = least_squares_map(moments)
    line = torch.linalg.lstsq(x, y).solution.T
    says = run.states("B-30", r"R(Z^*)=\operatorname{tr}(\Sigma_{yy}-\Sigma), \quad Z^*=\Sigma_{yx}\Sigma_{xx}^{-1}")
    says.equal((y - x @ best.T).square().sum(1).mean(), float((moments.yy - moments.explained()).trace()), 1e-10)
    says.fails(
        "the regression of the centered data, without its intercept",
        (y - x @ least_squares_map(centered).T).square().sum(1).mean(),
    )
    run.states("B-30", r"Z^* \text{ is the least-squares fit}").equal(best, line, 1e-8)
    closed: list[Tensor] = []
    wrong: list[Tensor] = []
    automatic = []
    shuffled = Covariances.from_samples(x, y[torch.randperm(len(y), generator=run.generator)])
    for U, V in pairs:
        net = nn.Sequential(dense(V.T), dense(U))
        loss = (y - net(x)).square().sum() / 2
        slopes = torch.autograd.grad(loss, list(net.parameters()))
        automatic += [slopes[1].reshape(-1), slopes[0].T.reshape(-1)]
        for data, into in ((moments, closed), (shuffled, wrong)):
            into += [len(x) / 2 * g.reshape(-1) for g in two_layer_gradients(U, V, data)]
    says = run.states(
        ["L-147", "B-31"],
        r"\partial_AL=-(\Sigma_{yx}-AB\Sigma_{xx})B^\top,\ \partial_BL=-A^\top(\Sigma_{yx}-AB"
        r"\Sigma_{xx}) \text{ for } L=\tfrac12\sum_i\|y_i-ABx_i\|^2",
    )
    says.equal(
        torch.cat(closed), torch.cat(automatic), 1e-10, where="against automatic differentiation of an nn.Sequential"
    )
    says.fails("targets given to the wrong inputs", torch.cat(wrong))
    wide = min(inputs, outputs)
    narrow = alternating_minimization(moments, width, sweeps=20, generator=run.generator)
    ranks = [int(torch.linalg.matrix_rank(m)) for m in (narrow.U, narrow.V)]
    run.refutes(
        "full-column-rank-unconstrained", r"U, V \text{ of full column rank}\Rightarrow\min_{U,V}R(UV^\top)=R(Z^*)"
    ).equal(
        narrow.risks[-1],
        float(moments.risk(best)),
        1e-3,
        where=f"factors of column ranks {ranks}, both full, and {wide} needed for any map",
    )


def conserved(run: Run, x: Tensor, y: Tensor, width: int) -> None:
    """A flow of the network itself, and of one with an activation between the layers."""
    first, second = 0.5 * run.randn(width, x.shape[1]), 0.5 * run.randn(y.shape[1], width)
    drifts = []
    for between in (nn.Identity(), nn.Tanh()):
        net = nn.Sequential(dense(first), between, dense(second))
        path = gradient_flow(Problem(net, (x, y), task="regression"), [0.0, 0.05, 0.1], rtol=1e-7, atol=1e-9)
        balance = []
        for k in range(3):
            B, A = path.parameters(k).values()
            balance.append(A.T @ A - B @ B.T)
        drifts.append(torch.stack([b - balance[0] for b in balance[1:]]))
    says = run.states("L-147", r"A^\top A-BB^\top \text{ does not change along the gradient flow}")
    says.equal(drifts[0], within=1e-6)
    says.fails("tanh between the layers", drifts[1])


def half_steps(run: Run, moments: Covariances, width: int, starts: int) -> None:
    """Alternating least squares: convex halves of a function that is not convex."""
    inputs, outputs = moments.inputs, moments.outputs
    stationary, beside = [], []
    for _ in range(5):
        U, V = run.randn(outputs, width), run.randn(inputs, width)
        new_V, new_U = best_input_factor(U, moments), best_output_factor(V, moments)
        stationary.append(two_layer_gradients(U, new_V, moments)[1].reshape(-1))
        stationary.append(two_layer_gradients(new_U, V, moments)[0].reshape(-1))
        beside.append(two_layer_gradients(U, new_V, moments)[0].reshape(-1))
    says = run.states(
        ["L-148", "B-31"],
        r"V=\Sigma_{xx}^{-1}\Sigma_{xy}U(U^\top U)^+,\ U=\Sigma_{yx}V(V^\top\Sigma_{xx}V)^+: "
        r"\text{ each half step makes its own gradient } 0",
    )
    says.equal(torch.cat(stationary), within=1e-9)
    says.fails("the gradient in the factor that was not solved for", torch.cat(beside))
    function = deep_linear_function((inputs, width, outputs), moments)
    lowest, both = [], []
    split = inputs * width
    for _ in range(5):
        theta = run.randn(split + width * outputs)
        full = torch.func.hessian(function)(theta)
        blocks = (full[:split, :split], full[split:, split:])
        lowest += [float(torch.linalg.eigvalsh(block)[0]) for block in blocks]
    at_zero = torch.func.hessian(function)(torch.zeros_like(theta))
    both.append(float(torch.linalg.eigvalsh(at_zero)[0]))
    says = run.states("L-148", r"\nabla_V^2R\succeq0 \text{ and } \nabla_U^2R\succeq0: \text{ convex in each factor}")
    says.at_least(lowest, 0, 1e-9)
    says.fails("in both factors together, at the origin", both)
    fits = [alternating_minimization(moments, width, sweeps=25, generator=run.generator) for _ in range(starts)]
    _, vectors = moments.directions()
    half = vectors[:, :width], least_squares_map(moments).T @ vectors[:, :width] / 2
    jump = moments.risk(best_output_factor(half[1], moments) @ best_input_factor(half[0], moments).T)
    says = run.states(["L-148", "B-31"], r"R \text{ never increases under alternating minimization}")
    says.at_most(torch.stack([f.risks.diff().max() for f in fits]), 0, 1e-10)
    says.fails("both factors solved for at once, from half the best product", jump - moments.risk(half[0] @ half[1].T))
    saddle = linear_critical_points(moments, width)[-1]
    stuck = alternating_minimization(moments, width, start=saddle.U, sweeps=3)
    says = run.states(
        ["B-31", "L-148"],
        r"\text{alternating minimization ends at } \operatorname{tr}\Sigma_{yy}-\sum_{i\le n_1}\lambda_i",
    )
    says.equal(torch.stack([f.risks[-1] for f in fits]), reduced_rank_regression(moments, width).value, 1e-8)
    says.fails("started at the eigenvectors of the least eigenvalues", stuck.risks[-1])


def local_search(widths: tuple[int, int, int], moments: Covariances, starts: int, run: Run) -> Tensor:
    """Risks at which descent ends: gradient steps from random starts, then alternating half steps,
    which never increase the risk either and need no rate."""
    slope = deep_linear_slope(widths, moments)
    start = 0.5 * run.randn(starts, widths[1] * (widths[0] + widths[2]))
    ends = last_iterate(lambda theta, _: slope(theta), start, [descent_rate(moments)] * 100)
    factors = [layers_of(theta, widths)[1] for theta in ends]
    return torch.stack([alternating_minimization(moments, widths[1], start=U, sweeps=40).risks[-1] for U in factors])


def settled(widths: Sequence[int], moments: Covariances, theta: Tensor, rate: float, steps: int) -> Tensor:
    """Gradient descent of many starts `[n, p]` until every gradient is below 1e-5, or the steps
    are used up. Where a step would increase the risk it is not taken, and the rate halved."""
    function, slope = deep_linear_function(widths, moments), deep_linear_slope(widths, moments)
    values, rates = function(theta), torch.full((len(theta), 1), rate).to(theta)
    for _ in range(steps):
        slopes = slope(theta)
        if float(slopes.norm(dim=1).max()) < 1e-5:
            break
        there = theta - rates * slopes
        new = function(there)
        down = new <= values
        theta, values = torch.where(down[:, None], there, theta), torch.where(down, new, values)
        rates = torch.where(down[:, None], 1.02 * rates, rates / 2)
    return theta


def descent_rate(moments: Covariances) -> float:
    """A step below 2 over the curvature at balanced minima, 2(|U|² λ_max(Σxx) + |Σxx^½V|²)."""
    largest = float(torch.linalg.eigvalsh(moments.xx)[-1])
    explained = float(moments.directions()[0][0])
    return 0.25 / (math.sqrt(explained * largest) + largest)


def no_assumption(run: Run, samples: int, inputs: int, width: int, starts: int) -> None:
    """Singular inputs, a rank-deficient Σ, repeated eigenvalues: the same landscape."""
    plain, repeated, short = (
        torch.tensor(v, dtype=torch.float64) for v in ([4.0, 2.0, 1.0], [3.0, 3.0, 1.0], [4.0, 2.0, 0.0])
    )
    cases = [
        ("distinct", regression(run, samples, inputs, plain)),
        ("singular Σxx", regression(run, samples, inputs, plain, rank=inputs - 1)),
        ("rank-deficient Σ", regression(run, samples, inputs, short)),
        ("repeated eigenvalues", regression(run, samples, inputs, repeated)),
    ]
    gaps, rows = [], []
    curvatures: list[float] = []
    at_minima: list[float] = []
    for name, (x, y, _) in cases:
        moments = Covariances.from_samples(x, y)
        for hidden in range(1, 4):
            best = reduced_rank_regression(moments, hidden).value
            ends = local_search((inputs, hidden, 3), moments, max(2, starts // 2), run)
            gaps.append(ends - best)
            own: list[float] = []
            for p in linear_critical_points(moments, hidden, rank="all"):
                lowest = torch.linalg.eigvalsh(two_layer_hessian(p.U, p.V, moments))[0]
                (own if p.value > best + 1e-6 else at_minima).append(float(lowest))
            curvatures += own
            rows.append((name, hidden, best, float(ends.max()) - best, max(own)))
    ended = gradient_descent(weighted_fit, run.randn(20, 4), 0.1, 600).values[-1]
    says = run.states("B-34", r"\text{descent ends at the reduced-rank optimum, for all covariances and widths}")
    says.equal(
        torch.cat(gaps),
        within=1e-6,
        where="gradient and alternating descent from random starts; worst gap to the optimum",
    )
    says.fails(
        "every entry of the residual has its own weight, which no covariance expresses: the worst of 20 ends",
        ended.max() - ended.min(),
    )
    says = run.states(
        "B-34",
        r"\lambda_{\min}(\nabla^2R)<0 \text{ at critical points above the minimum, also where } "
        r"\Sigma_{xx} \text{ is singular or } \Sigma \text{ has repeated eigenvalues}",
    )
    says.below(torch.tensor(curvatures) + ROUNDING, 0, where=f"with {ROUNDING:g} for rounding")
    says.fails("at those on the level of the minimum", torch.tensor(at_minima) + ROUNDING)
    run.table(
        "no-assumption",
        ["data", "width", "optimum", "worst end above it", "flattest saddle's least eigenvalue"],
        rows,
        caption="Local descents from random starts, and the saddles that were written down",
    )


def weighted_fit(theta: Tensor) -> Tensor:
    """A rank-one fit of two inputs and outputs in which every entry of the residual has its own
    weight; no covariance expresses that, and there is a bad local minimum."""
    target = torch.tensor([[1.0, 0.1], [0.1, 0.8]], dtype=torch.float64)
    weight = torch.tensor([[1.0, 0.05], [0.05, 1.0]], dtype=torch.float64)
    products = theta[..., :2, None] * theta[..., None, 2:]
    return (weight * (products - target).square()).sum((-2, -1))


def autoencoder(run: Run, x: Tensor, width: int) -> None:
    # principal values well apart: a sweep removes an error by their ratio squared
    left, sigma, rows = torch.linalg.svd(x, full_matrices=False)
    x = left * sigma[0] * 0.7 ** torch.arange(len(sigma)) @ rows
    own = Covariances.from_samples(x, x)
    principal = rows[:width].T @ rows[:width]
    fit = alternating_minimization(own, width, sweeps=40, generator=run.generator)
    # the same principal directions, and targets that are the inputs turned
    turned = Covariances.from_samples(x @ torch.linalg.qr(run.randn(len(rows), len(rows))).Q, x)
    other = alternating_minimization(turned, width, sweeps=40, generator=run.generator)
    says = run.states(
        ["L-150", "B-32"], r"Y=X: UV^\top \text{ is the projector onto the first } n_1 \text{ principal directions}"
    )
    says.equal(
        fit.U @ fit.V.T,
        principal,
        1e-6,
        where="alternating minimization against a singular value decomposition of the data",
    )
    says.fails("inputs turned, so that Y is not X", other.U @ other.V.T)


def descents(run: Run, moments: Covariances, width: int, starts: int, steps: int) -> Tensor:
    """Gradient descent from small random starts: `[T + 1, starts]`."""
    inputs, outputs = moments.inputs, moments.outputs
    function = deep_linear_function((inputs, width, outputs), moments)
    rate = descent_rate(moments)
    size = width * (inputs + outputs)
    done = gradient_descent(function, 1e-3 * run.randn(starts, size), rate, steps)
    widths = (inputs, width, outputs)
    ends = function(settled(widths, moments, done.points[-1], rate, 100 * steps))
    saddle = linear_critical_points(moments, width)[1]
    stuck = gradient_descent(function, flat_layers([saddle.V.T, saddle.U]), rate, 5)
    says = run.states(["L-150", "B-32"], r"\text{gradient descent from random starts ends at the lowest level}")
    says.equal(ends, reduced_rank_regression(moments, width).value, 1e-6, where="when all gradients are below 1e-5")
    says.fails("started exactly at the second lowest", stuck.values[-1])
    return done.values


def printed_errors(run: Run, samples: int, width: int) -> None:
    """Square layers, for which the printed formulas at least have the right shape."""
    A, B = run.randn(3, 3), run.randn(3, 3)
    x, y = run.randn(3), run.randn(3)
    by_B = torch.func.grad(lambda M: x @ M.T @ A.T @ y)(B)
    run.refutes("two-layer-gradient-transposed", r"\partial(x^\top B^\top A^\top y)/\partial B=xy^\top A").equal(
        by_B, torch.outer(x, y) @ A, 1e-3, where="square layers, automatic differentiation"
    )
    squared = torch.func.grad(lambda M: (A @ M @ x).square().sum())(B)
    run.refutes("two-layer-gradient-gram", r"\partial(x^\top B^\top A^\top ABx)/\partial B=2AA^\top Bxx^\top").equal(
        squared, 2 * A @ A.T @ B @ torch.outer(x, x), 1e-3, where="square layers, automatic differentiation"
    )
    inputs, targets, _ = regression(run, samples, 3, torch.tensor([4.0, 2.0, 1.0]).double())
    moments = Covariances.from_samples(inputs, targets)
    best = linear_critical_points(moments, min(width, 2))[0]
    projector = column_projector(best.U)
    run.refutes(
        "critical-form-transposed-covariance",
        r"W=P_A\Sigma_{xy}\Sigma_{xx}^{-1} \text{ with } \Sigma_{xy}=\sum_ix_iy_i^\top",
    ).equal(
        best.U @ best.V.T,
        projector @ moments.yx.T @ torch.linalg.inv(moments.xx),
        1e-3,
        where="three inputs and three outputs, at the global minimum",
    )
    slope = least_squares_map(moments)
    run.refutes(
        "critical-form-inverse-cross-covariance",
        r"P_U\Sigma_{yx}\Sigma_{xx}^{-1}\Sigma_{xx}\Sigma_{xy}^{-1}P_U=\Sigma_{yx}\Sigma_{xx}^{-1}\Sigma_{xy}P_U",
    ).equal(
        slope @ moments.yx.T @ projector,
        projector @ moments.yx @ torch.linalg.inv(moments.yx.T) @ projector,
        1e-3,
        where="three inputs and three outputs, at the global minimum",
    )
