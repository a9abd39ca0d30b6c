"""What the theorems ask of an activation, measured from its values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.labs.engine import Run, lab
from torchtheory.labs.nets.comparing import gap
from torchtheory.nets.activations.properties import (
    MOST_DERIVATIVES,
    ActivationProperties,
    applicable_theorems,
    inspect_activation,
    invert,
    point_of_nonzero_derivative,
)
from torchtheory.nets.activations.table import ACTIVATIONS, Activation, activation, logit

Function = Callable[[Tensor], Tensor]


@lab(
    "activation-properties",
    room="nets",
    covers=["A-10"],
    title="What the theorems ask of an activation, measured from its values",
    least={"units": 150, "samples": 10},
)
def activation_properties(run: Run, units: int = 200, samples: int = 12) -> None:
    """Each property a theorem needs is measured from function values and compared with the known.

    Smoothness comes from the decay of fifth differences (see the picture: the slope counts the
    derivatives), Lipschitz constants from quotients, degrees and pieces from fits. The control
    adds a tiny ripple, 0.01 sin 5x, and looks whether the inspector notices. Polynomials are also
    told apart by what they can do: `units` of them never span more than degree + 1 functions.

    Args:
        samples: points at which the rank of random units is taken.
    """
    rows = list(ACTIVATIONS.values())
    found = {row.name: inspect_activation(row) for row in rows}
    ripple = [inspect_activation(rippled(row)) for row in rows]
    says = run.states("A-10", r"\text{measured properties that differ from the known ones, per activation}")
    says.equal(
        [len(found[row.name].differences(row.known)) for row in rows],
        where="18 properties each: range, limits, smoothness, Lipschitz constant, monotony, "
        "convexity, symmetry, homogeneity, ϱ = xϱ', degree, pieces",
    )
    says.fails(
        "0.01 sin 5x added: fewest differences over all activations",
        min(len(p.differences(row.known)) for p, row in zip(ripple, rows, strict=True)),
    )
    smooth = [row for row in rows if math.isfinite(row.known.lipschitz)]
    alphas = (0.5, 1.0, 2.0, 3.0)
    elus = [inspect_activation(activation("elu", alpha=a)) for a in alphas]
    says = run.states(
        ["A-10", "S-02"], r"\mathrm{Lip}(\varrho)=\sup|\varrho'|;\ \mathrm{Lip}(\mathrm{ELU}_\alpha)=\max(1,\alpha)"
    )
    says.equal(
        [*(found[r.name].lipschitz for r in smooth), *(p.lipschitz for p in elus)],
        [*(r.known.lipschitz for r in smooth), *(max(1.0, a) for a in alphas)],
        1e-6,
    )
    says.fails("Heaviside", found["heaviside"].lipschitz, promised=1.0)
    says = run.states(
        ["A-10", "S-02"], r"\mathrm{ELU}_\alpha\in C^1\iff\alpha=1;\quad \max\{0,x\}^k\in C^{k-1}\setminus C^k"
    )
    says.equal(
        [
            *(p.smoothness for p in elus),
            *(inspect_activation(activation("power relu", k=k)).smoothness for k in range(1, 5)),
        ],
        [0, 1, 0, 0, *range(4)],
    )
    says.fails("softplus, a smooth ReLU", found["softplus"].smoothness, promised=0)
    says = run.states("A-10", r"\max\{0,\lambda x\}^k=\lambda^k\max\{0,x\}^k:\ \text{degree of homogeneity}")
    says.equal(
        [
            *(degree(activation("power relu", k=k)) for k in range(1, 5)),
            degree(activation("parametric relu", a=3.0)),
            degree(activation("leaky relu")),
        ],
        [1, 2, 3, 4, 1, 1],
    )
    says.fails("softplus (−1: none)", degree(activation("softplus")), promised=1)
    euler = ("relu", "parametric relu", "leaky relu", "linear")
    says = run.states("A-10", r"\varrho(x)=x\varrho'(x)\text{ a.e. for ReLU, PReLU, leaky ReLU}")
    says.equal([found[name].euler for name in euler], 1)
    says.fails("power ReLU, k = 2, where xϱ' = 2ϱ", inspect_activation(activation("power relu")).euler)
    says = run.states("A-10", r"\text{sigmoidal: the logistic function, and no other row}")
    says.equal([found[row.name].sigmoidal for row in rows], [row.name == "logistic" for row in rows])
    says.fails("(1 + tanh)/2", inspect_activation(half_tanh).sigmoidal, promised=0)
    polynomials = [polynomial(run, d) for d in range(7)]
    says = run.states("A-10", r"\text{degree of random polynomials; every row but the linear one is no polynomial}")
    says.equal(
        [
            *(none_is(inspect_activation(p).polynomial_degree) for p in polynomials),
            *(none_is(found[row.name].polynomial_degree) for row in rows),
        ],
        [*range(7), *(1 if row.name == "linear" else -1 for row in rows)],
        where="−1 stands for no polynomial of degree up to 8",
    )
    says.fails(
        "x² with a kink of 1e-6 added",
        none_is(inspect_activation(lambda x: x**2 + 1e-6 * torch.relu(x)).polynomial_degree),
        promised=2,
    )
    ranks = [feature_rank(run, p, units, samples) for p in polynomials]
    nonlinear = [row for row in rows if row.known.universal]
    says = run.states("A-10", r"\dim\mathrm{span}\{p(wx+b)\}\le\deg p+1\text{ on }\mathbb R,\text{ whatever the width}")
    says.at_most(ranks, [d + 1 for d in range(7)], where=f"numerical rank of {units} random units at {samples} points")
    says.fails("ReLU against degree 6", feature_rank(run, torch.relu, units, samples), promised=7)
    says = run.states("A-10", r"\text{units of a non-polynomial activation span all functions on a finite set}")
    says.equal([feature_rank(run, row, units, samples) for row in nonlinear], samples)
    says.fails("x ↦ x³", feature_rank(run, lambda x: x**3, units, samples))
    x = torch.linspace(-5, 5, 401, dtype=torch.float64)
    monotone = [row for row in rows if found[row.name].invertible]
    run.states(
        ["A-10", "L-054"], r"\varrho^{-1}(\varrho(x))=x\text{ for the strictly monotone ones; logit, artanh, tan}"
    ).equal(
        [
            *(gap(invert(row, row(x)), x) for row in monotone),
            *inverse_gaps(torch.linspace(-0.9, 0.9, 99, dtype=torch.float64)),
        ],
        within=1e-7,
        where="bisection on the values; where ϱ is flat rounding is magnified by 1/ϱ'",
    )
    curved = {row.name: point_of_nonzero_derivative(row, 2) is not None for row in rows}
    flat = {name for name in curved if not curved[name]}
    run.states("A-10", r"\exists\lambda:\varrho''(\lambda)\ne0\text{ except for the piecewise linear ones}").equal(
        [curved[row.name] for row in rows if row.known.piece_degree != 0],
        [(row.known.piece_degree or 9) > 1 for row in rows if row.known.piece_degree != 0],
        where=f"none for {', '.join(sorted(flat))}",
    )
    run.table(
        "properties",
        PROPERTY_COLUMNS,
        [property_row(name, found[name]) for name in found]
        + [property_row(f"torch {m}", inspect_activation(m())) for m in TORCH_ONLY],
        caption=f"Measured. $C^{MOST_DERIVATIVES}$ stands for that or smoother.",
    )
    names = {t.id: t.result for t in applicable_theorems(rows[0])}
    run.table(
        "theorems",
        ["activation", *names.values()],
        [(row.name, *("yes" if t.applies else "" for t in applicable_theorems(row))) for row in rows],
        caption="Which results cover networks with the activation: " + ", ".join(names),
    )
    steps = torch.logspace(-6, -2, 5, base=2.0, dtype=torch.float64)
    run.curves(
        "smoothness",
        steps,
        fifth_differences(steps),
        axes=("step h", "largest |Δₕ⁵ϱ|"),
        log="xy",
        beside=True,
        caption="Largest fifth difference against its step. The slope is 0 with a jump, 1 with a "
        "kink, k with a jump in the k-th derivative, and 5 for a smooth function.",
    )


def half_tanh(x: Tensor) -> Tensor:
    """The logistic function at twice the argument: sigmoidal too."""
    return (1 + torch.tanh(x)) / 2


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
    """Rank of random units of one variable at distinct points, each unit centered among them.

    A step is seen between two points only if some unit is centered there, and a bump only by the
    points near it.
    """
    x = torch.linspace(-1, 1, samples, dtype=torch.float64).unsqueeze(1)
    centers = 2.4 * run.rand(units) - 1.2
    features = function(8 * run.randn(1, units) * (x - centers))
    # not their norm: squares of small values would underflow, and the quotient explode
    features = features / features.abs().amax(dim=0).clamp(min=1e-300)
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
        "jump" if not p.continuous else f"$C^{p.smoothness}$",
        round(p.lipschitz, 6),
        monotone,
        "yes" if p.convex else "",
        "odd" if p.odd else "even" if p.even else "",
        "" if p.homogeneity is None else str(p.homogeneity),
        "" if p.pieces is None else f"{p.pieces} of degree {p.piece_degree}",
        "yes" if p.universal else "no",
    )


def fifth_differences(steps: Tensor) -> dict[str, list[float]]:
    """The largest fifth difference of some activations by step; the label names the slope."""
    found = {}
    signs = torch.tensor([math.comb(5, k) * (-1) ** (5 - k) for k in range(6)], dtype=torch.float64)
    for name in ("heaviside", "relu", "elu", "isrlu", "logistic"):
        sizes = []
        for h in steps:
            x = torch.arange(-4 * 64, 4 * 64, dtype=torch.float64) * h / 32
            values = torch.stack([ACTIVATIONS[name](x + (k - 2.5) * h) for k in range(6)])
            sizes.append(float((signs @ values).abs().max()))
        slope = math.log(sizes[-1] / sizes[0]) / math.log(float(steps[-1] / steps[0]))
        found[f"{name}: slope {slope:.2f}"] = sizes
    return found
