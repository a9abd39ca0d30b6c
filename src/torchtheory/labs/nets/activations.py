"""Activation functions: the table against definitions, quotients and torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.labs.nets.comparing import gap, linear_layer
from torchtheory.nets.activations.table import (
    ACTIVATIONS,
    Activation,
    activation,
    logistic_derivative,
    logistic_derivative_polynomial,
    logit,
    nth_derivative,
)
from torchtheory.nets.feedforward import mlp

Function = Callable[[Tensor], Tensor]


@lab(
    "activation-functions",
    room="nets",
    covers=["A-09", "S-02", "N-24", "L-053", "L-054", "L-055"],
    title="Seventeen activation functions: values, derivatives, limits, identities",
    full={"points": 200_001},
)
def activation_functions(run: Run, points: int = 4001) -> None:
    """The table of activations against definitions, difference quotients and torch's own layers.

    Derivatives are compared with difference quotients at `points` places away from the kinks,
    limits with values far out, joins at 0 from both sides. The identities are
    tanh(z) = 2σ(2z) − 1, softplus' = σ and σ⁽ᵏ⁾ = $P_k$(σ). A network of threshold units is trained
    by gradient descent to show that its hidden weights never move. Look at the sheet of plots.
    """
    x = torch.linspace(-6, 6, points, dtype=torch.float64)
    x = x[x.abs() > 1e-3]
    rows = list(ACTIVATIONS.values())

    def quotient_gap(row: Activation, slope: Function) -> float:
        step = 1e-5
        return gap((row(x + step) - row(x - step)) / (2 * step), slope(x))

    tanh, logistic = activation("tanh"), activation("logistic")
    says = run.states(["A-09", "S-02"], r"\varrho'(x)=\lim_{h\to0}\frac{\varrho(x+h)-\varrho(x-h)}{2h}")
    says.equal([quotient_gap(row, row.slope) for row in rows], within=1e-8, where="difference quotients with h = 1e-5")
    says.fails("the logistic derivative for tanh", quotient_gap(tanh, logistic.slope))
    far = torch.tensor([-1e12, 1e12], dtype=torch.float64)
    ends = [(row(far), (row.known.left_limit, row.known.right_limit)) for row in rows]
    finite = [(v, k) for pair, known in ends for v, k in zip(pair, known, strict=True)]
    says = run.states("A-09", r"\text{finite limits of }\varrho\text{ at }\pm\infty")
    says.equal([float(v) for v, k in finite if math.isfinite(k)], [k for _, k in finite if math.isfinite(k)], 1e-10)
    says.fails("softsign without the bars, x/(1+x), at −∞", float(far[0] / (1 + far[0])), promised=-1.0)
    says = run.states("A-09", r"\text{ELU, ISRLU: }\max\{|\varrho(0^+)-\varrho(0^-)|,|\varrho'(0^+)-\varrho'(0^-)|\}=0")
    says.equal([max(jumps(activation(name))) for name in ("elu", "isrlu")], within=1e-9)
    says.fails("ELU with α = 2", max(jumps(activation("elu", alpha=2.0))))
    run.states("S-02", r"\text{ELU: }|\varrho'(0^+)-\varrho'(0^-)|=|1-\alpha|").equal(
        [jumps(activation("elu", alpha=a))[1] for a in (0.5, 1.0, 2.0)], [abs(1 - a) for a in (0.5, 1.0, 2.0)], 1e-9
    )
    run.states("S-02", r"\text{ELU}\to-\alpha\text{ at }-\infty;\ \text{leaky ReLU of slope 0 is ReLU}").equal(
        [
            *(float(activation("elu", alpha=a)(far[0])) for a in (0.5, 1.0, 2.0)),
            gap(activation("leaky relu", slope=0.0)(x), torch.relu(x)),
        ],
        [-0.5, -1.0, -2.0, 0.0],
    )
    run.states("A-09", r"\tfrac{d}{dx}\ln(1+e^x)=\frac{1}{1+e^{-x}}").equal(
        gap(nth_derivative(activation("softplus"), x, 1), torch.sigmoid(x)), within=1e-15
    )
    says = run.states(["L-055", "A-09"], r"\tanh z=2\sigma(2z)-1")
    says.equal(gap(torch.tanh(x), 2 * torch.sigmoid(2 * x) - 1), within=1e-15)
    says.fails("2σ(z) − 1", gap(torch.tanh(x), 2 * torch.sigmoid(x) - 1))
    says = run.states("L-055", r"|\tanh z|<1")
    says.below(torch.tanh(x).abs(), 1)
    says.fails("arctan instead", torch.atan(x).abs())
    zero = torch.zeros(1, dtype=torch.float64)
    at_zero = [activation(n)(zero) for n in ("heaviside", "closed heaviside", "sign")]
    run.states(["A-09", "L-053"], r"1_{(0,\infty)}(0)=0,\quad H(0)=1,\quad \mathrm{sign}(0)=1").equal(
        [float(v) for v in at_zero], [0, 1, 1]
    )
    whole = torch.cat([x, zero])
    sign = activation("sign")(whole)
    says = run.states("L-053", r"\mathrm{sign}(z)=2H(z)-1")
    says.equal(gap(sign, 2 * activation("closed heaviside")(whole) - 1))
    says.fails("the open step of Table 1.1, at 0", gap(sign, 2 * activation("heaviside")(whole) - 1))
    says = run.states("L-053", r"\text{gradient descent leaves the weights into threshold units where they are}")
    says.equal([hidden_movement(run, name) for name in ("closed heaviside", "sign")])
    says.fails("logistic units", hidden_movement(run, "logistic"))
    s = torch.sigmoid(x)
    run.states("L-054", r"\sigma'=\sigma(1-\sigma)=\sigma(z)\sigma(-z)\le\tfrac14").equal(
        [
            gap(nth_derivative(torch.sigmoid, x, 1), s * (1 - s)),
            gap(s * (1 - s), s * torch.sigmoid(-x)),
            float((s * (1 - s)).max().clamp(min=0.25)) - 0.25,
            float(logistic.slope(zero)) - 0.25,
        ],
        within=1e-15,
    )
    orders = range(1, 7)
    sizes = [abs(c) for c in logistic_derivative_polynomial(orders[-1])]
    rounding = torch.finfo(torch.float64).eps * sum(sizes)
    says = run.states("L-054", r"\sigma^{(k)}=P_k(\sigma),\ P_{k+1}(s)=P_k'(s)s(1-s),\ P_0(s)=s")
    says.equal(
        [gap(logistic_derivative(x, k), nth_derivative(torch.sigmoid, x, k)) for k in orders],
        within=rounding,
        where="orders 1 to 6 against repeated automatic differentiation; the tolerance is the "
        "round-off of a polynomial with the coefficients of P₆",
    )
    says.fails("tanh's derivatives", [gap(logistic_derivative(x, k), tanh_derivative(x, k)) for k in orders])
    t = torch.linspace(0.001, 0.999, 999, dtype=torch.float64)
    says = run.states("L-054", r"\sigma(\ln\tfrac{t}{1-t})=t")
    says.equal(gap(torch.sigmoid(logit(t)), t), within=1e-14)
    says.fails("ln t alone", gap(torch.sigmoid(torch.log(t)), t))
    run.states(["N-24", "S-02"], r"\text{identity, }\sigma,\ (z)_+\text{ and the others are torch's own layers}").equal(
        [gap(row(10 * x), row.layer()(10 * x)) for row in rows if row.module is not None], within=1e-14
    )
    run.table(
        "activations",
        ["name", "formula", "parameters", "torch"],
        [(row.name, f"${row.formula}$", parameters(row), str(row.layer()) if row.module else "") for row in rows],
        caption="The fourteen of Table 1.1 of the monograph, the closed step and the sign of the "
        "lectures, and the slides' leaky ReLU.",
    )
    run.figure(
        "sheet",
        lambda axes: plot_sheet(axes, rows),
        caption="Every activation (blue) and its derivative (orange) on [−4, 4].",
        grid=(3, 6),
        size=(14, 7),
    )


def jumps(row: Activation) -> list[float]:
    """Jump of the value and of the slope at 0, from quotients on either side."""
    h = torch.tensor([1e-6], dtype=torch.float64)
    right = float((-3 * row(0 * h) + 4 * row(h) - row(2 * h)) / (2 * h))
    left = float((3 * row(0 * h) - 4 * row(-h) + row(-2 * h)) / (2 * h))
    tiny = 1e-15 * h
    return [gap(row(tiny), row(-tiny)), abs(right - left)]


def hidden_movement(run: Run, name: str) -> float:
    """How far gradient descent moves the weights below one hidden layer of such units."""
    source = torch.Generator().manual_seed(run.seed)
    net = mlp([2, 8, 1], name, generator=source)
    x = torch.randn(50, 2, generator=source, dtype=torch.float64)
    y = x[:, :1] * x[:, 1:]
    start = linear_layer(net, 0).weight.detach().clone()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(50):
        optimizer.zero_grad()
        (net(x) - y).square().mean().backward()
        optimizer.step()
    return gap(linear_layer(net, 0).weight.detach(), start)


def tanh_derivative(x: Tensor, order: int) -> Tensor:
    return nth_derivative(torch.tanh, x, order)


def parameters(row: Activation) -> str:
    return ", ".join(f"{k} = {v:g}" for k, v in row.parameters.items())


def plot_sheet(axes: Any, rows: list[Activation]) -> None:
    x = torch.linspace(-4, 4, 801, dtype=torch.float64)
    for axis, row in zip(axes.flat, rows, strict=False):
        steps = not row.known.continuous
        for part in (x < 0, x > 0) if steps else (x == x,):
            axis.plot(x[part], row(x)[part], color=COLORS[0])
        slope_parts = (x < 0, x > 0) if row.known.smoothness < 1 else (x == x,)
        for part in slope_parts:
            axis.plot(x[part], row.slope(x)[part], color=COLORS[1], linestyle="--", linewidth=1.1)
        axis.set_ylim(-1.6, 2.6)
        values = parameters(row)
        axis.set_title(row.name + (f", {values}" if values else ""), fontsize=9)
        axis.set_xticks([-4, 0, 4])
        axis.set_yticks([-1, 0, 1, 2])
        axis.tick_params(labelbottom=False, labelleft=False)
    for axis in axes[-1]:
        axis.tick_params(labelbottom=True)
    for axis in axes[:, 0]:
        axis.tick_params(labelleft=True)
    last = axes.flat[len(rows)]
    last.plot([], [], color=COLORS[0], label="activation")
    last.plot([], [], color=COLORS[1], linestyle="--", label="derivative")
    last.legend(loc="center", fontsize=10)
    for axis in axes.flat[len(rows) :]:
        axis.axis("off")
