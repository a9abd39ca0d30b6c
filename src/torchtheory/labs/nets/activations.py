"""Activation functions: the table, their measured properties, and softmax."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.figure import COLOURS
from torchtheory.core.lab import lab
from torchtheory.core.record import Control
from torchtheory.core.run import Run
from torchtheory.labs.nets.comparing import gap, linear_layer
from torchtheory.nets.activation_properties import (
    MOST_DERIVATIVES,
    ActivationProperties,
    applicable_theorems,
    inspect_activation,
    invert,
    point_of_nonzero_derivative,
)
from torchtheory.nets.activations import (
    ACTIVATIONS,
    Activation,
    activation,
    logistic_derivative,
    logistic_derivative_polynomial,
    logit,
    nth_derivative,
)
from torchtheory.nets.feedforward import mlp
from torchtheory.nets.softmax import fix_gauge, softmax_jacobian, two_class_logit

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
    tanh(z) = 2σ(2z) − 1, softplus' = σ and σ⁽ᵏ⁾ = P_k(σ). A network of threshold units is trained
    by gradient descent to show that its hidden weights never move. Look at the sheet of plots.
    """
    x = torch.linspace(-6, 6, points, dtype=torch.float64)
    x = x[x.abs() > 1e-3]
    rows = list(ACTIVATIONS.values())

    def quotient_gap(row: Activation, slope: Function) -> float:
        step = 1e-5
        return gap((row(x + step) - row(x - step)) / (2 * step), slope(x))

    tanh, logistic = activation("tanh"), activation("logistic")
    run.claim(
        ["A-09", "S-02"],
        r"\varrho'(x)=\lim_{h\to0}\frac{\varrho(x+h)-\varrho(x-h)}{2h}",
        promised=0,
        relation="==",
        measured=[quotient_gap(row, row.slope) for row in rows],
        tolerance=1e-8,
        reason="difference quotients with h = 1e-5",
        control=Control("the logistic derivative for tanh", quotient_gap(tanh, logistic.slope)),
    )
    far = torch.tensor([-1e12, 1e12], dtype=torch.float64)
    ends = [(row(far), (row.known.left_limit, row.known.right_limit)) for row in rows]
    finite = [(v, k) for pair, known in ends for v, k in zip(pair, known, strict=True)]
    run.claim(
        "A-09",
        r"\text{finite limits of }\varrho\text{ at }\pm\infty",
        promised=[k for _, k in finite if math.isfinite(k)],
        relation="==",
        measured=[float(v) for v, k in finite if math.isfinite(k)],
        tolerance=1e-10,
        control=Control(
            "softsign without the bars, x/(1+x), at −∞", float(far[0] / (1 + far[0])), -1.0
        ),
    )
    run.claim(
        "A-09",
        r"\text{ELU, ISRLU: }|\varrho(0^+)-\varrho(0^-)|=|\varrho'(0^+)-\varrho'(0^-)|=0",
        promised=0,
        relation="==",
        measured=[j for name in ("elu", "isrlu") for j in jumps(activation(name))],
        tolerance=1e-9,
        control=Control("ELU with α = 2", jumps(activation("elu", alpha=2.0))),
    )
    run.claim(
        "S-02",
        r"\text{ELU: }|\varrho'(0^+)-\varrho'(0^-)|=|1-\alpha|",
        promised=[abs(1 - a) for a in (0.5, 1.0, 2.0)],
        relation="==",
        measured=[jumps(activation("elu", alpha=a))[1] for a in (0.5, 1.0, 2.0)],
        tolerance=1e-9,
    )
    run.claim(
        "S-02",
        r"\text{ELU}\to-\alpha\text{ at }-\infty;\ \text{leaky ReLU of slope 0 is ReLU}",
        promised=[-0.5, -1.0, -2.0, 0.0],
        relation="==",
        measured=[
            *(float(activation("elu", alpha=a)(far[0])) for a in (0.5, 1.0, 2.0)),
            gap(activation("leaky relu", slope=0.0)(x), torch.relu(x)),
        ],
    )
    run.claim(
        "A-09",
        r"\tfrac{d}{dx}\ln(1+e^x)=\frac{1}{1+e^{-x}}",
        promised=0,
        relation="==",
        measured=gap(nth_derivative(activation("softplus"), x, 1), torch.sigmoid(x)),
        tolerance=1e-15,
    )
    run.claim(
        ["L-055", "A-09"],
        r"\tanh z=2\sigma(2z)-1",
        promised=0,
        relation="==",
        measured=gap(torch.tanh(x), 2 * torch.sigmoid(2 * x) - 1),
        tolerance=1e-15,
        control=Control("2σ(z) − 1", gap(torch.tanh(x), 2 * torch.sigmoid(x) - 1)),
    )
    run.claim(
        "L-055",
        r"|\tanh z|<1",
        promised=1,
        relation="<",
        measured=torch.tanh(x).abs(),
        control=Control("arctan instead", torch.atan(x).abs()),
    )
    zero = torch.zeros(1, dtype=torch.float64)
    at_zero = [activation(n)(zero) for n in ("heaviside", "closed heaviside", "sign")]
    run.claim(
        ["A-09", "L-053"],
        r"1_{(0,\infty)}(0)=0,\quad H(0)=1,\quad \mathrm{sign}(0)=1",
        promised=[0, 1, 1],
        relation="==",
        measured=[float(v) for v in at_zero],
    )
    whole = torch.cat([x, zero])
    sign = activation("sign")(whole)
    run.claim(
        "L-053",
        r"\mathrm{sign}(z)=2H(z)-1",
        promised=0,
        relation="==",
        measured=gap(sign, 2 * activation("closed heaviside")(whole) - 1),
        control=Control(
            "the open step of Table 1.1, at 0", gap(sign, 2 * activation("heaviside")(whole) - 1)
        ),
    )
    run.claim(
        "L-053",
        r"\text{gradient descent leaves the weights into threshold units where they are}",
        promised=0,
        relation="==",
        measured=[hidden_movement(run, name) for name in ("closed heaviside", "sign")],
        control=Control("logistic units", hidden_movement(run, "logistic")),
    )
    s = torch.sigmoid(x)
    run.claim(
        "L-054",
        r"\sigma'=\sigma(1-\sigma)=\sigma(z)\sigma(-z)\le\tfrac14",
        promised=0,
        relation="==",
        measured=[
            gap(nth_derivative(torch.sigmoid, x, 1), s * (1 - s)),
            gap(s * (1 - s), s * torch.sigmoid(-x)),
            float((s * (1 - s)).max().clamp(min=0.25)) - 0.25,
            float(logistic.slope(zero)) - 0.25,
        ],
        tolerance=1e-15,
    )
    orders = range(1, 7)
    sizes = [abs(c) for c in logistic_derivative_polynomial(orders[-1])]
    rounding = torch.finfo(torch.float64).eps * sum(sizes)
    run.claim(
        "L-054",
        r"\sigma^{(k)}=P_k(\sigma),\ P_{k+1}(s)=P_k'(s)s(1-s),\ P_0(s)=s",
        promised=0,
        relation="==",
        measured=[
            gap(logistic_derivative(x, k), nth_derivative(torch.sigmoid, x, k)) for k in orders
        ],
        tolerance=rounding,
        reason="orders 1 to 6 against repeated automatic differentiation; the tolerance is the "
        "round-off of a polynomial with the coefficients of P₆",
        control=Control(
            "tanh's derivatives",
            [gap(logistic_derivative(x, k), tanh_derivative(x, k)) for k in orders],
        ),
    )
    t = torch.linspace(0.001, 0.999, 999, dtype=torch.float64)
    run.claim(
        "L-054",
        r"\sigma(\ln\tfrac{t}{1-t})=t",
        promised=0,
        relation="==",
        measured=gap(torch.sigmoid(logit(t)), t),
        tolerance=1e-14,
        control=Control("ln t alone", gap(torch.sigmoid(torch.log(t)), t)),
    )
    run.claim(
        ["N-24", "S-02"],
        r"\text{identity, }\sigma,\ (z)_+\text{ and the others are torch's own layers}",
        promised=0,
        relation="==",
        measured=[gap(row(10 * x), row.layer()(10 * x)) for row in rows if row.module is not None],
        tolerance=1e-14,
    )
    run.table(
        "activations",
        ["name", "formula", "parameters", "torch"],
        [
            (row.name, f"${row.formula}$", parameters(row), str(row.layer()) if row.module else "")
            for row in rows
        ],
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


@lab(
    "activation-properties",
    room="nets",
    covers=["A-10"],
    title="What the theorems ask of an activation, measured from its values",
)
def activation_properties(run: Run, units: int = 200, samples: int = 12) -> None:
    """Each property a theorem needs is measured from function values and compared with the known.

    Smoothness comes from the decay of fifth differences (see the picture: the slope counts the
    derivatives), Lipschitz constants from quotients, degrees and pieces from fits. The control
    adds a tiny ripple, 0.01 sin 5x, and looks whether the inspector notices. Polynomials are also
    told apart by what they can do: `units` of them never span more than degree + 1 functions.
    """
    rows = list(ACTIVATIONS.values())
    found = {row.name: inspect_activation(row) for row in rows}
    ripple = [inspect_activation(rippled(row)) for row in rows]
    run.claim(
        "A-10",
        r"\text{measured properties that differ from the known ones, per activation}",
        promised=0,
        relation="==",
        measured=[len(found[row.name].differences(row.known)) for row in rows],
        reason="18 properties each: range, limits, smoothness, Lipschitz constant, monotony, "
        "convexity, symmetry, homogeneity, ϱ = xϱ', degree, pieces",
        control=Control(
            "0.01 sin 5x added: fewest differences over all activations",
            min(len(p.differences(row.known)) for p, row in zip(ripple, rows, strict=True)),
        ),
    )
    smooth = [row for row in rows if math.isfinite(row.known.lipschitz)]
    alphas = (0.5, 1.0, 2.0, 3.0)
    elus = [inspect_activation(activation("elu", alpha=a)) for a in alphas]
    run.claim(
        ["A-10", "S-02"],
        r"\mathrm{Lip}(\varrho)=\sup|\varrho'|;\ \mathrm{Lip}(\mathrm{ELU}_\alpha)=\max(1,\alpha)",
        promised=[*(r.known.lipschitz for r in smooth), *(max(1.0, a) for a in alphas)],
        relation="==",
        measured=[*(found[r.name].lipschitz for r in smooth), *(p.lipschitz for p in elus)],
        tolerance=1e-6,
        control=Control("Heaviside", found["heaviside"].lipschitz, 1.0),
    )
    run.claim(
        ["A-10", "S-02"],
        r"\mathrm{ELU}_\alpha\in C^1\iff\alpha=1;\quad \max\{0,x\}^k\in C^{k-1}\setminus C^k",
        promised=[0, 1, 0, 0, *range(4)],
        relation="==",
        measured=[
            *(p.smoothness for p in elus),
            *(inspect_activation(activation("power relu", k=k)).smoothness for k in range(1, 5)),
        ],
        control=Control("softplus, a smooth ReLU", found["softplus"].smoothness, 0),
    )
    run.claim(
        "A-10",
        r"\max\{0,\lambda x\}^k=\lambda^k\max\{0,x\}^k:\ \text{degree of homogeneity}",
        promised=[1, 2, 3, 4, 1, 1],
        relation="==",
        measured=[
            *(degree(activation("power relu", k=k)) for k in range(1, 5)),
            degree(activation("parametric relu", a=3.0)),
            degree(activation("leaky relu")),
        ],
        control=Control("softplus (−1: none)", degree(activation("softplus")), 1),
    )
    euler = ("relu", "parametric relu", "leaky relu", "linear")
    run.claim(
        "A-10",
        r"\varrho(x)=x\varrho'(x)\text{ a.e. for ReLU, PReLU, leaky ReLU}",
        promised=1,
        relation="==",
        measured=[found[name].euler for name in euler],
        control=Control(
            "power ReLU, k = 2, where xϱ' = 2ϱ", inspect_activation(activation("power relu")).euler
        ),
    )
    run.claim(
        "A-10",
        r"\text{sigmoidal: the logistic function, and no other row}",
        promised=[row.name == "logistic" for row in rows],
        relation="==",
        measured=[found[row.name].sigmoidal for row in rows],
        control=Control("(1 + tanh)/2", inspect_activation(half_tanh).sigmoidal, 0),
    )
    polynomials = [polynomial(run, d) for d in range(7)]
    run.claim(
        "A-10",
        r"\text{degree of random polynomials; every row but the linear one is no polynomial}",
        promised=[*range(7), *(1 if row.name == "linear" else -1 for row in rows)],
        relation="==",
        measured=[
            *(none_is(inspect_activation(p).polynomial_degree) for p in polynomials),
            *(none_is(found[row.name].polynomial_degree) for row in rows),
        ],
        reason="−1 stands for no polynomial of degree up to 8",
        control=Control(
            "x² with a kink of 1e-6 added",
            none_is(inspect_activation(lambda x: x**2 + 1e-6 * torch.relu(x)).polynomial_degree),
            2,
        ),
    )
    ranks = [feature_rank(run, p, units, samples) for p in polynomials]
    nonlinear = [row for row in rows if row.known.universal]
    run.claim(
        "A-10",
        r"\dim\mathrm{span}\{p(wx+b)\}\le\deg p+1\text{ on }\mathbb R,\text{ whatever the width}",
        promised=[d + 1 for d in range(7)],
        relation="<=",
        measured=ranks,
        reason=f"numerical rank of {units} random units at {samples} points",
        control=Control("ReLU against degree 6", feature_rank(run, torch.relu, units, samples), 7),
    )
    run.claim(
        "A-10",
        r"\text{units of a non-polynomial activation span all functions on a finite set}",
        promised=samples,
        relation="==",
        measured=[feature_rank(run, row, units, samples) for row in nonlinear],
        control=Control("x ↦ x³", feature_rank(run, lambda x: x**3, units, samples)),
    )
    x = torch.linspace(-5, 5, 401, dtype=torch.float64)
    monotone = [row for row in rows if found[row.name].invertible]
    run.claim(
        ["A-10", "L-054"],
        r"\varrho^{-1}(\varrho(x))=x\text{ for the strictly monotone ones; logit, artanh, tan}",
        promised=0,
        relation="==",
        measured=[
            *(gap(invert(row, row(x)), x) for row in monotone),
            *inverse_gaps(torch.linspace(-0.9, 0.9, 99, dtype=torch.float64)),
        ],
        tolerance=1e-7,
        reason="bisection on the values; where ϱ is flat rounding is magnified by 1/ϱ'",
    )
    curved = {row.name: point_of_nonzero_derivative(row, 2) is not None for row in rows}
    flat = {name for name in curved if not curved[name]}
    run.claim(
        "A-10",
        r"\exists\lambda:\varrho''(\lambda)\ne0\text{ except for the piecewise linear ones}",
        promised=[(row.known.piece_degree or 9) > 1 for row in rows if row.known.piece_degree != 0],
        relation="==",
        measured=[curved[row.name] for row in rows if row.known.piece_degree != 0],
        reason=f"none for {', '.join(sorted(flat))}",
    )
    run.table(
        "properties",
        PROPERTY_COLUMNS,
        [property_row(name, found[name]) for name in found]
        + [property_row(f"torch {m}", inspect_activation(m())) for m in TORCH_ONLY],
        caption=f"Measured. C^{MOST_DERIVATIVES} stands for that or smoother.",
    )
    names = {t.id: t.result for t in applicable_theorems(rows[0])}
    run.table(
        "theorems",
        ["activation", *names.values()],
        [
            (row.name, *("yes" if t.applies else "" for t in applicable_theorems(row)))
            for row in rows
        ],
        caption="Which results cover networks with the activation: " + ", ".join(names),
    )
    run.figure(
        "smoothness",
        plot_smoothness,
        caption="Largest fifth difference against its step. The slope is 0 with a jump, 1 with a "
        "kink, k with a jump in the k-th derivative, and 5 for a smooth function.",
    )


@lab(
    "softmax",
    room="nets",
    covers=["L-056", "L-057", "N-24"],
    title="Softmax: a distribution, blind to shifts, the sigmoid for two classes",
    errata=["two-class-softmax-denominator"],
    full={"samples": 3000, "classes": 50},
)
def softmax(run: Run, samples: int = 500, classes: int = 7, features: int = 4) -> None:
    """Softmax outputs are probabilities, and adding one vector to all weights changes nothing.

    Random logits of very different sizes are used, up to ±1000 where the textbook formula
    overflows. Fixing the last class's weights to 0 removes the freedom. For two classes the
    first probability is the sigmoid of the difference; the printed derivation has a wrong line,
    which the picture shows next to the truth.
    """
    z = run.randn(samples, classes) * torch.logspace(-2, 3, samples).double().unsqueeze(1)
    p = torch.softmax(z, 1)
    run.claim(
        ["L-056", "N-24"],
        r"\sum_i\sigma_i^{\max}=1",
        promised=1,
        relation="==",
        measured=p.sum(1),
        tolerance=1e-14,
        reason="logits up to ±3000",
        control=Control(
            "exp(z)/Σexp(z) as written, which overflows", (z.exp() / z.exp().sum(1, True)).sum(1)
        ),
    )
    run.claim("L-056", r"\sigma_i^{\max}\ge0", promised=0, relation=">=", measured=p)
    mild = run.randn(samples, classes)
    base = torch.softmax(mild, 1)
    shift = 100 * run.randn(samples, 1)
    run.claim(
        "N-24",
        r"\mathrm{softmax}(z+c\mathbf 1)=\mathrm{softmax}(z)",
        promised=0,
        relation="==",
        measured=gap(torch.softmax(mild + shift, 1), base),
        tolerance=1e-12,
        control=Control(
            "another constant for every entry",
            gap(torch.softmax(mild + shift.T[:, :classes], 1), base),
        ),
    )
    jacobian = torch.func.vmap(torch.func.jacrev(lambda v: torch.softmax(v, 0)))(mild)
    run.claim(
        "N-24",
        r"\partial\,\mathrm{softmax}/\partial z=\mathrm{diag}(p)-pp^\top",
        promised=0,
        relation="==",
        measured=gap(jacobian, softmax_jacobian(mild)),
        tolerance=1e-15,
        control=Control("diag(p) alone", gap(jacobian, torch.diag_embed(base))),
    )
    run.claim(
        "N-24",
        r"(\mathrm{diag}(p)-pp^\top)\mathbf 1=0,\quad \mathrm{diag}(p)-pp^\top\succeq0",
        promised=0,
        relation=">=",
        measured=torch.stack(
            [-softmax_jacobian(mild).sum(2).abs().max(), torch.linalg.eigvalsh(jacobian).min()]
        ),
        tolerance=1e-15,
    )
    weights, x = run.randn(classes, features), run.randn(samples, features)
    plain = torch.softmax(x @ weights.T, 1)
    moved = torch.softmax(x @ (weights + run.randn(1, features)).T, 1)
    one = weights.clone()
    one[0] += run.randn(features)
    run.claim(
        "L-056",
        r"\sigma^{\max}(x;\theta_1+\Delta,\dots,\theta_k+\Delta)=\sigma^{\max}(x;\theta_1,\dots,\theta_k)",
        promised=0,
        relation="==",
        measured=gap(moved, plain),
        tolerance=1e-13,
        control=Control("only one class moved", gap(torch.softmax(x @ one.T, 1), plain)),
    )
    fixed = fix_gauge(weights)
    run.claim(
        "L-056",
        r"\theta_i\to\theta_i-\theta_k\text{ keeps the outputs and has }\theta_k=0",
        promised=0,
        relation="==",
        measured=[gap(torch.softmax(x @ fixed.T, 1), plain), float(fixed[-1].abs().max())],
        tolerance=1e-13,
    )
    other = fix_gauge(weights + run.randn(1, features))
    run.claim(
        "L-056",
        r"\text{with }\theta_k=0\text{ the parameters are determined}",
        promised=0,
        relation="==",
        measured=gap(other, fixed),
        tolerance=1e-13,
        control=Control("no gauge fixed", gap(weights + run.randn(1, features), weights)),
    )
    pair = run.randn(2, features)
    first = torch.softmax(x @ pair.T, 1)[:, 0]
    run.claim(
        ["L-057", "N-24"],
        r"\sigma_1^{\max}(x)=\sigma(x^\top(\theta_1-\theta_2))",
        promised=0,
        relation="==",
        measured=gap(torch.sigmoid(two_class_logit(pair, x)), first),
        tolerance=1e-14,
        reason="so for two classes one sigmoid output does: a softmax layer is not needed",
        control=Control("σ(xᵀθ₁)", gap(torch.sigmoid(x @ pair[0]), first)),
    )
    difference = torch.tensor(1.0, dtype=torch.float64)
    run.erratum(
        "two-class-softmax-denominator",
        r"\sigma_1^{\max}=\frac{e^u}{e^u+e^{-u}},\quad u=x\cdot(\theta_1-\theta_2)=1",
        promised=float(printed_line(difference)),
        relation="==",
        measured=float(torch.softmax(torch.stack([difference, 0 * difference]), 0)[0]),
        tolerance=1e-12,
        reason="the printed line is σ(2u)",
    )
    run.figure(
        "two-classes",
        plot_two_classes,
        caption="Probability of the first class against u = x·(θ₁−θ₂): the softmax is the "
        "sigmoid, the printed middle line is steeper.",
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
    net = mlp([2, 8, 1], name, random=source)
    x = torch.randn(50, 2, generator=source, dtype=torch.float64)
    y = x[:, :1] * x[:, 1:]
    start = linear_layer(net, 0).weight.detach().clone()
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(50):
        optimiser.zero_grad()
        (net(x) - y).square().mean().backward()
        optimiser.step()
    return gap(linear_layer(net, 0).weight.detach(), start)


def tanh_derivative(x: Tensor, order: int) -> Tensor:
    return nth_derivative(torch.tanh, x, order)


def half_tanh(x: Tensor) -> Tensor:
    """The logistic function at twice the argument: sigmoidal too."""
    return (1 + torch.tanh(x)) / 2


def parameters(row: Activation) -> str:
    return ", ".join(f"{k} = {v:g}" for k, v in row.parameters.items())


def rippled(row: Activation) -> Function:
    return lambda x: row(x) + 0.01 * torch.sin(5 * x)


def none_is(value: int | None) -> int:
    return -1 if value is None else value


def degree(row: Activation) -> int:
    return none_is(inspect_activation(row).homogeneity)


def polynomial(run: Run, order: int) -> Function:
    """A random polynomial of exactly that degree."""
    coefficients = [*run.randn(order).tolist(), 1.0]

    def evaluate(x: Tensor) -> Tensor:
        value = torch.zeros_like(x)
        for c in reversed(coefficients):
            value = value * x + c
        return value

    return evaluate


def feature_rank(run: Run, function: Function, units: int, samples: int) -> int:
    """Rank of random units of one variable at distinct points."""
    x = torch.linspace(-1, 1, samples, dtype=torch.float64).unsqueeze(1)
    features = function(8 * run.randn(1, units) * x + 8 * run.randn(units))
    features = features / features.norm(dim=0).clamp(min=1e-300)
    values = torch.linalg.svdvals(features)
    return int((values > 1e-10 * values[0]).sum())


def inverse_gaps(t: Tensor) -> list[float]:
    """The bisection against inverses known in closed form, at values between -1 and 1."""
    positive = (1 + t) / 2
    return [
        gap(invert(torch.sigmoid, positive), logit(positive)),
        gap(invert(torch.tanh, t), torch.atanh(t)),
        gap(invert(torch.atan, t), torch.tan(t)),
        gap(invert(activation("softsign"), t), t / (1 - t.abs())),
        gap(invert(activation("softplus"), positive), torch.log(torch.expm1(positive))),
    ]


def printed_line(u: Tensor) -> Tensor:
    return u.exp() / (u.exp() + (-u).exp())


TORCH_ONLY: tuple[Callable[[], nn.Module], ...] = (nn.GELU, nn.SiLU, nn.Mish, nn.ReLU6, nn.SELU)

PROPERTY_COLUMNS = [
    "activation", "range", "smooth", "Lipschitz", "monotone", "convex", "symmetry",
    "homogeneous", "pieces", "universal",
]  # fmt: skip


def property_row(name: str, p: ActivationProperties) -> tuple[Any, ...]:
    name = name.replace("<class 'torch.nn.modules.activation.", "").replace("'>", "")
    monotone = "strictly" if p.strictly_monotone else "yes" if p.increasing or p.decreasing else ""
    return (
        name,
        f"[{p.lowest:.4g}, {p.highest:.4g}]",
        "jump" if not p.continuous else f"C^{p.smoothness}",
        round(p.lipschitz, 6),
        monotone,
        "yes" if p.convex else "",
        "odd" if p.odd else "even" if p.even else "",
        "" if p.homogeneity is None else str(p.homogeneity),
        "" if p.pieces is None else f"{p.pieces} of degree {p.piece_degree}",
        "yes" if p.universal else "no",
    )


def plot_sheet(axes: Any, rows: list[Activation]) -> None:
    x = torch.linspace(-4, 4, 801, dtype=torch.float64)
    for axis, row in zip(axes.flat, rows, strict=False):
        steps = not row.known.continuous
        for part in (x < 0, x > 0) if steps else (x == x,):
            axis.plot(x[part], row(x)[part], color=COLOURS[0])
        slope_parts = (x < 0, x > 0) if row.known.smoothness < 1 else (x == x,)
        for part in slope_parts:
            axis.plot(x[part], row.slope(x)[part], color=COLOURS[1], linestyle="--", linewidth=1.1)
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
    last.plot([], [], color=COLOURS[0], label="activation")
    last.plot([], [], color=COLOURS[1], linestyle="--", label="derivative")
    last.legend(loc="center", fontsize=10)
    for axis in axes.flat[len(rows) :]:
        axis.axis("off")


def plot_smoothness(axis: Any) -> None:
    steps = torch.logspace(-6, -2, 9, base=2.0, dtype=torch.float64)
    shown = ("heaviside", "relu", "elu", "isrlu", "logistic")
    for name in shown:
        f, sizes = ACTIVATIONS[name], []
        for h in steps:
            x = torch.arange(-4 * 64, 4 * 64, dtype=torch.float64) * h / 32
            values = [f(x + (k - 2.5) * h) for k in range(6)]
            signs = [math.comb(5, k) * (-1) ** (5 - k) for k in range(6)]
            total = torch.stack([s * v for s, v in zip(signs, values, strict=True)]).sum(0)
            sizes.append(float(total.abs().max()))
        slope = math.log(sizes[-1] / sizes[0]) / math.log(float(steps[-1] / steps[0]))
        axis.loglog(steps, sizes, marker="o", markersize=3, label=f"{name}: slope {slope:.2f}")
    axis.set_xticks([2.0**-k for k in range(6, 1, -1)], [f"1/{2**k}" for k in range(6, 1, -1)])
    axis.minorticks_off()
    axis.set_xlabel("step h")
    axis.set_ylabel("largest |Δₕ⁵ϱ|")
    axis.legend(fontsize=8)


def plot_two_classes(axis: Any) -> None:
    u = torch.linspace(-5, 5, 201, dtype=torch.float64)
    axis.plot(u, torch.softmax(torch.stack([u, 0 * u]), 0)[0], label="softmax of two classes")
    axis.plot(u, torch.sigmoid(u), linestyle=":", linewidth=3, label="sigmoid")
    axis.plot(u, printed_line(u), linestyle="--", label="printed middle line")
    axis.set_xlabel("u = x·(θ₁−θ₂)")
    axis.set_ylabel("probability of class 1")
    axis.legend()
