"""The critical points of the two-layer linear network, written down, searched for, and left."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy import optimize
from torch import Tensor

from torchtheory.labs.engine import COLORS, Run
from torchtheory.optimization.landscape.critical_points import critical_point
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
    column_projector,
    critical_form_residual,
    two_layer_gradients,
    two_layer_hessian,
)
from torchtheory.optimization.linear_networks.two_layer_critical_points import (
    LinearCriticalPoint,
    escape_direction,
    linear_critical_points,
)

#: What a computed eigenvalue may be off by.
ROUNDING = 1e-6


def direct(x: Tensor, y: Tensor, U: Tensor, V: Tensor) -> Tensor:
    """The mean squared error itself, from the samples."""
    return (y - x @ V @ U.T).square().sum(1).mean()


def any_mixing(run: Run, width: int) -> Tensor:
    """An invertible C with singular values from 1/2 to 2, turned at random on both sides.

    The theorem takes every invertible C, but curvatures shrink and grow with the squares of its
    singular values: near a singular C the signs of the least ones are lost in rounding.
    """
    left, right = (torch.linalg.qr(run.randn(width, width)).Q for _ in range(2))
    made: Tensor = left * torch.logspace(1, -1, width, base=2).double() @ right
    return made


def catalogue_of_points(
    run: Run, x: Tensor, y: Tensor, moments: Covariances, width: int, values: Tensor
) -> list[LinearCriticalPoint]:
    """Every class with a random mixing: gradient, value, Hessian."""
    mixing = any_mixing(run, width)
    points = linear_critical_points(moments, width, rank="all", mixing=mixing)
    full = [p for p in points if len(p.chosen) == width]
    plain = {p.chosen: p for p in linear_critical_points(moments, width)}
    function = deep_linear_function((moments.inputs, width, moments.outputs), moments)
    hessians = [critical_point(function, flat_layers([p.V.T, p.U])) for p in points]

    def slopes(shift: float) -> Tensor:
        return torch.stack(
            [flat_layers(two_layer_gradients(p.U + shift * run.randn(*p.U.shape), p.V, moments)) for p in points]
        )

    says = run.states(
        ["B-32", "L-150"], r"U=Q_JC,\ V=\Sigma_{xx}^{-1}\Sigma_{xy}Q_JC^{-\top} \text{ is critical for every } J"
    )
    says.equal(slopes(0.0), within=1e-9)
    says.fails("U moved by 0.01", slopes(0.01))
    total = float(y.square().sum(1).mean())
    says = run.states(["B-32", "L-150"], r"R=\operatorname{tr}\Sigma_{yy}-\sum_{j\in J}\lambda_j")
    says.equal(
        torch.stack([direct(x, y, p.U, p.V) for p in points]),
        [total - float(values[list(p.chosen)].sum()) for p in points],
        1e-9,
        where="mean squared error on the samples, eigenvalues as the data were made to have",
    )
    says.fails(
        "V not mixed back by the inverse of C",
        torch.stack([direct(x, y, p.U, plain[p.chosen].V) for p in full]),
        promised=[total - float(values[list(p.chosen)].sum()) for p in full],
    )
    run.states(
        ["B-32", "L-150"],
        r"\text{the Hessian has } \#\{(j,k):j\in J,k\notin J,\lambda_k>\lambda_j\}+(n_1-|J|)"
        r"(n_2-|J|) \text{ negative eigenvalues}",
    ).equal([h.index for h in hessians], [p.index for p in points])
    saddles = [h for p, h in zip(points, hessians, strict=True) if p.label == "strict saddle"]
    minimum = next(h for p, h in zip(points, hessians, strict=True) if p.label == "global minimum")
    says = run.states(["B-32", "L-150"], r"\lambda_{\min}(\nabla^2R)<0 \text{ at every class but the leading one}")
    says.below(torch.stack([h.eigenvalues[0] for h in saddles]) + ROUNDING, 0, where=f"with {ROUNDING:g} for rounding")
    says.fails("at the leading choice", minimum.eigenvalues[0] + ROUNDING)
    says = run.states(["B-31", "B-32"], r"\Sigma P_U=P_U\Sigma \text{ at critical points}")
    says.equal(torch.stack([commutator(p.U, moments) for p in points]), within=1e-9)
    says.fails(
        "a random U with its best V, where only one gradient is 0",
        commutator(run.randn(moments.outputs, width), moments),
    )
    run.table(
        "classes",
        ["eigenvectors", "value", "label", "negative eigenvalues", "least eigenvalue", "escape"],
        [
            (
                ", ".join(str(j + 1) for j in p.chosen) or "none",
                p.value,
                p.label,
                p.index,
                float(h.eigenvalues[0]),
                "" if p.escape is None else f"curvature {p.escape.curvature:.4g}",
            )
            for p, h in zip(points, hessians, strict=True)
        ],
        caption="All classes of critical points; the first is the global minimum",
    )
    return points


def commutator(U: Tensor, moments: Covariances) -> Tensor:
    projector, explained = column_projector(U), moments.explained()
    return (explained @ projector - projector @ explained).abs().max()


def searched_points(run: Run, moments: Covariances, width: int, starts: int) -> list[float]:
    """Zeros of the gradient found without knowing the formula."""
    inputs, outputs = moments.inputs, moments.outputs
    widths = (inputs, width, outputs)
    function = deep_linear_function(widths, moments)
    gradient = deep_linear_slope(widths, moments)

    def factors(theta: Tensor) -> tuple[Tensor, Tensor]:
        first, second = layers_of(theta, widths)
        return second, first.T

    def slope(theta: Any) -> Any:
        return gradient(torch.from_numpy(theta)).numpy()

    def curvature(theta: Any) -> Any:
        return two_layer_hessian(*factors(torch.from_numpy(theta)), moments).numpy()

    found, anywhere = [], []
    for k in range(2 * starts):
        scale = 0.1 if k % 2 else 1.0
        start = scale * run.randn(width * (inputs + outputs))
        anywhere.append(start)
        done = optimize.least_squares(slope, start.numpy(), curvature, xtol=1e-15, ftol=1e-15, gtol=1e-15, max_nfev=300)
        if float(np.linalg.norm(done.fun)) < 1e-9:
            found.append(torch.from_numpy(done.x))

    levels = torch.tensor(
        [p.value for p in linear_critical_points(moments, width, rank="all")],
        dtype=torch.float64,
    )

    def off(theta: Tensor) -> float:
        return float((levels - function(theta)).abs().min())

    # a gradient of 1e-9 leaves an error of 3e-5 in U where the Hessian is singular across
    says = run.states(["L-149", "B-31"], r"\nabla R=0\Rightarrow UV^\top=P_U\Sigma_{yx}\Sigma_{xx}^{-1}")
    says.equal(
        [critical_form_residual(*factors(t), moments, 1e-4) for t in found],
        within=1e-4,
        where="at zeros of the gradient found by least squares from random starts",
    )
    says.fails("at the starts", [critical_form_residual(*factors(t), moments, 1e-4) for t in anywhere])
    says = run.states(["L-150", "B-32"], r"\text{every critical point has one of the listed values}")
    says.equal(
        [off(t) for t in found],
        within=1e-7,
        where="distance to the nearest level, at zeros of the gradient found by least squares",
    )
    says.fails("at the starts", [off(t) for t in anywhere])
    return [float(function(t)) for t in found]


def certificates(run: Run, x: Tensor, y: Tensor, moments: Covariances, width: int) -> None:
    """Second differences of the mean squared error along the directions of escape."""
    mixing = any_mixing(run, width)
    values, vectors = moments.directions()
    saddles = [p for p in linear_critical_points(moments, width, mixing=mixing) if p.escape]

    def second(U: Tensor, V: Tensor, dU: Tensor, dV: Tensor, step: float = 1e-3) -> float:
        ends = [direct(x, y, U + s * dU, V + s * dV) for s in (step, 0.0, -step)]
        return float(ends[0] - 2 * ends[1] + ends[2]) / step**2

    promised, measured, backwards = [], [], []
    for p in saddles:
        assert p.escape is not None
        worst = values[max(p.chosen)]
        taken = values[min(k for k in range(len(values)) if k not in p.chosen)]
        promised.append(float(2 * (worst - taken)))
        measured.append(second(p.U, p.V, p.escape.dU, p.escape.dV))
        backwards.append(second(p.U, p.V, p.escape.dU, -p.escape.dV))
    says = run.states("B-33", r"\tfrac{d^2}{dt^2}R(U+t\Delta_U,V+t\Delta_V)=2(\lambda_{J^*}-\lambda_k)<0")
    says.equal(measured, promised, 1e-4, where="second differences of the mean squared error on the samples")
    says.fails("the first layer turned the other way", backwards)
    run.refutes("two-layer-hessian-half", r"\nabla^2R(U,V)[\Delta,\Delta]=\lambda_J-\lambda_k").equal(
        measured, [p / 2 for p in promised], 1e-3, where="second differences of the mean squared error"
    )
    # a column of U is 0 while the same one of V is not: critical if the residual maps it to 0
    U, V = vectors[:, :width].clone(), least_squares_map(moments).T @ vectors[:, :width]
    U[:, -1] = 0
    residual = moments.yx - U @ V.T @ moments.xx
    _, _, rows = torch.linalg.svd(residual)
    V[:, -1] = rows[-1]
    way = escape_direction(U, V, moments)
    assert way is not None
    says = run.states(
        ["B-33", "B-34"],
        r"Ua=0,\ Va\ne0: \Delta_U=q_ka^\top,\ \Delta_V=\alpha\Sigma_{xx}^{-1}\Sigma_{xy}q_ka^\top "
        r"\text{ has negative curvature}",
    )
    says.below(second(U, V, way.dU, way.dV), 0)
    says.fails("α of the other sign", second(U, V, way.dU, -way.dV))


def plot_ladder(
    axes: Any,
    points: list[LinearCriticalPoint],
    losses: Tensor,
    moments: Covariances,
    width: int,
    found: list[float],
) -> None:
    ladder, curves = axes[0]
    for p in points:
        full = len(p.chosen) == width
        color = COLORS[2] if p.label == "global minimum" else COLORS[0 if full else 1]
        ladder.plot([p.index - 0.3, p.index + 0.3], [p.value, p.value], color=color, linewidth=2.5)
        name = "{" + ", ".join(str(j + 1) for j in p.chosen) + "}" if p.chosen else "∅"
        ladder.annotate(
            name, (p.index + 0.32, p.value), xytext=(2, 0), textcoords="offset points",
            va="center", fontsize=7,
        )  # fmt: skip
    by_value = {p.value: p.index for p in points}
    for value in found:
        level = min(by_value, key=lambda v: abs(v - value))
        ladder.plot(by_value[level], value, "x", color="black", markersize=5)
    kinds = (("global minimum", 2), ("saddles, U of full rank", 0), ("saddles, U deficient", 1))
    for kind, number in kinds:
        ladder.plot([], [], color=COLORS[number], linewidth=2.5, label=kind)
    ladder.plot([], [], "x", color="black", label="found by solving ∇R = 0")
    ladder.set(xlabel="negative eigenvalues of the Hessian", ylabel="risk", title="Every critical point")
    ladder.legend(loc="lower right")
    best = reduced_rank_regression(moments, width).value
    over = max(int((path > best * 1.02).sum()) for path in losses.T)
    last = min(len(losses) - 1, int(1.15 * over))
    for kept in range(width + 1):
        level = reduced_rank_regression(moments, kept).value
        curves.axhline(level, color="0.5", linewidth=0.9, linestyle="--")
        chosen = "{" + ", ".join(str(j + 1) for j in range(kept)) + "}" if kept else "∅"
        curves.annotate(
            f"level of {chosen}", (last, level), xytext=(0, 3), textcoords="offset points",
            ha="right", fontsize=8,
        )  # fmt: skip
    for k, path in enumerate(losses.T[:6]):
        curves.plot(path[: last + 1], color=COLORS[k % len(COLORS)], linewidth=1.2)
    curves.set(xlabel="step", ylabel="risk", title="Gradient descent from six small starts")
