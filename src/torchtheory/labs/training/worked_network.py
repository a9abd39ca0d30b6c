"""The 2-2-1 network that the lectures work out by hand."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.labs.engine import Run
from torchtheory.labs.training.autograd_reference import autograd_gradients, half_square
from torchtheory.models.model import flatten, unflatten
from torchtheory.nets.feedforward import dense
from torchtheory.primer.differences import numerical_jacobian
from torchtheory.training.backpropagation.chain import backpropagate

#: The weights of Figure 2.7 by the source's names: w_ij leads from input i to hidden unit j, and
#: w_3j from hidden unit j to the output.
WEIGHTS = {"w11": 0.5, "w21": -0.4, "w12": 0.3, "w22": 0.8, "w31": 1.2, "w32": -0.7}
POINT, TARGET, RATE = (1.0, 2.0), 1.0, 0.5


def small_network() -> tuple[nn.Sequential, Tensor, Tensor]:
    w = WEIGHTS
    hidden = torch.tensor([[w["w11"], w["w21"]], [w["w12"], w["w22"]]], dtype=torch.float64)
    last = torch.tensor([[w["w31"], w["w32"]]], dtype=torch.float64)
    net = nn.Sequential(dense(hidden), nn.Sigmoid(), dense(last), nn.Sigmoid())
    point = torch.tensor([POINT], dtype=torch.float64)
    return net, point, torch.tensor([[TARGET]], dtype=torch.float64)


def by_hand() -> dict[str, float]:
    """The source's formulas, one line each."""
    w = WEIGHTS
    x1, x2 = POINT

    def s(t: float) -> float:
        return 1 / (1 + math.exp(-t))

    net_h1 = w["w11"] * x1 + w["w21"] * x2
    net_h2 = w["w12"] * x1 + w["w22"] * x2
    h1, h2 = s(net_h1), s(net_h2)
    net_o = w["w31"] * h1 + w["w32"] * h2
    y_hat = s(net_o)
    error = (y_hat - TARGET) * y_hat * (1 - y_hat)
    d1, d2 = error * w["w31"] * h1 * (1 - h1), error * w["w32"] * h2 * (1 - h2)
    return {
        "net_h1": net_h1, "net_h2": net_h2, "h1": h1, "h2": h2, "net_o": net_o, "ŷ": y_hat,
        "L": (TARGET - y_hat) ** 2 / 2, "∂L/∂ŷ": y_hat - TARGET, "∂L/∂net_o": error,
        "∂L/∂h1": error * w["w31"], "∂L/∂h2": error * w["w32"],
        "∂L/∂net_h1": d1, "∂L/∂net_h2": d2,
        "w11": d1 * x1, "w21": d1 * x2, "w12": d2 * x1, "w22": d2 * x2,
        "w31": error * h1, "w32": error * h2,
    }  # fmt: skip


def named(hidden: Tensor, last: Tensor) -> list[float]:
    """Gradients of the two matrices in the order of `WEIGHTS`."""
    return [*hidden.reshape(-1).tolist(), *last.reshape(-1).tolist()]


def two_two_one(run: Run) -> None:
    """The example the lectures work out by hand."""
    net, x, y = small_network()
    found = backpropagate(net, x, y, half_square)
    hand = by_hand()
    by_formula = [hand[name] for name in WEIGHTS]
    ours = named(found.gradients["0.weight"], found.gradients["2.weight"])
    other = backpropagate(net, x, y, lambda outputs, targets: (outputs - targets).abs().sum()).gradients
    says = run.states(
        "L-061",
        r"\frac{\partial L}{\partial w_{3j}}=(\hat y-y)\sigma'(\mathrm{net}_o)h_j,\quad\frac{\partial L}{\partial "
        r"w_{ij}}=(\hat y-y)\sigma'(\mathrm{net}_o)w_{3j}\sigma'(\mathrm{net}_{h_j})x_i",
    )
    says.equal(ours, by_formula, 1e-14)
    says.fails("the loss |ŷ - y| in place of half its square", named(other["0.weight"], other["2.weight"]))
    autograd = autograd_gradients(net, x, y, half_square)
    run.states(
        ["L-061", "A-22"], r"\text{the hand-worked gradients are those of autograd and of difference quotients}"
    ).equal(
        [*by_formula, *by_formula], [*named(autograd["0.weight"], autograd["2.weight"]), *quotients(net, x, y)], 1e-9
    )
    inner = [unit for unit in found.units() if unit.layer == 1]
    says = run.states("L-061", r"\frac{\partial L}{\partial h_j}=(\hat y-y)\,\sigma'(\mathrm{net}_o)\,w_{3j}")
    says.equal([unit.delta for unit in inner], [hand["∂L/∂h1"], hand["∂L/∂h2"]], 1e-14)
    says.fails("the error at the hidden net inputs", [unit.error for unit in inner])
    run.table(
        "two-two-one-units",
        ["unit", "net input", "value", "∂L/∂value", "σ'(net input)", "∂L/∂net input"],
        [
            (name, u.net_input, u.value, u.delta, u.slope, u.error)
            for name, u in zip(("h1", "h2", "ŷ"), found.units(), strict=True)
        ],
        caption=f"x = {POINT}, y = {TARGET:g}, L = {float(found.loss):.6f}",
    )
    run.table(
        "two-two-one-weights",
        ["weight", "value", "∂L/∂w", "updated"],
        [(name, w, g, w - RATE * g) for (name, w), g in zip(WEIGHTS.items(), ours, strict=True)],
        caption=f"One step of gradient descent at rate {RATE:g}",
    )


def quotients(net: nn.Sequential, x: Tensor, y: Tensor) -> list[float]:
    theta = {name: p.detach() for name, p in net.named_parameters()}

    def value(vector: Tensor) -> Tensor:
        return half_square(torch.func.functional_call(net, unflatten(vector, theta), (x,)), y)

    made: list[float] = numerical_jacobian(value, flatten(theta)).tolist()
    return made


def plot_two_two_one(axis: Any) -> None:
    """The source's Figure 2.8: the graph with values and, in red, gradients."""
    hand = by_hand()
    red, paper = "#C1121F", {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
    places = {"x1": (0, 1), "x2": (0, 0), "h1": (1.6, 1), "h2": (1.6, 0), "ŷ": (3.1, 0.5)}
    edges = {
        "w11": ("x1", "h1", 0.5), "w21": ("x2", "h1", 0.3), "w12": ("x1", "h2", 0.3),
        "w22": ("x2", "h2", 0.5), "w31": ("h1", "ŷ", 0.5), "w32": ("h2", "ŷ", 0.5),
    }  # fmt: skip
    for name, (start, end, along) in edges.items():
        (x0, y0), (x1, y1) = places[start], places[end]
        axis.plot([x0, x1], [y0, y1], color="0.6", linewidth=1, zorder=1)
        at = (x0 + along * (x1 - x0), y0 + along * (y1 - y0))
        digit = f"{name[0]}_{{{name[1:]}}}"
        axis.annotate(
            rf"${digit}={WEIGHTS[name]:g}$", at, xytext=(0, 5), textcoords="offset points",
            ha="center", fontsize=8, bbox=paper,
        )  # fmt: skip
        axis.annotate(
            f"{hand[name]:+.4f}", at, xytext=(0, -11), textcoords="offset points", ha="center",
            fontsize=8, color=red, bbox=paper,
        )  # fmt: skip
    values = {"x1": POINT[0], "x2": POINT[1], "h1": hand["h1"], "h2": hand["h2"], "ŷ": hand["ŷ"]}
    for name, (x, y) in places.items():
        axis.scatter([x], [y], s=1500, color="white", edgecolors="black", zorder=2)
        axis.text(x, y, f"{name}\n{values[name]:.3f}", ha="center", va="center", fontsize=8)
        key = f"∂L/∂{name}"
        if key in hand:
            axis.annotate(
                f"{key} = {hand[key]:+.4f}", (x, y), xytext=(0, 26 if y == 1 else -32),
                textcoords="offset points",
                ha="center", fontsize=8, color=red,
            )  # fmt: skip
    axis.annotate("", (4.15, 0.5), (3.32, 0.5), arrowprops={"arrowstyle": "->", "color": "0.6"}, zorder=1)
    axis.text(4.2, 0.5, f"L = {hand['L']:.4f}\n(y = {TARGET:g})", va="center", fontsize=8)
    axis.set(xlim=(-0.4, 4.9), ylim=(-0.45, 1.35))
    axis.axis("off")
