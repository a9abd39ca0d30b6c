"""Softmax: a distribution, its freedom, and the sigmoid for two classes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchtheory.core.record import Control
from torchtheory.labs.engine.registry import lab
from torchtheory.labs.engine.run import Run
from torchtheory.labs.nets.comparing import gap
from torchtheory.nets.softmax import fix_gauge, softmax_jacobian, two_class_logit


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


def printed_line(u: Tensor) -> Tensor:
    return u.exp() / (u.exp() + (-u).exp())


def plot_two_classes(axis: Any) -> None:
    u = torch.linspace(-5, 5, 201, dtype=torch.float64)
    axis.plot(u, torch.softmax(torch.stack([u, 0 * u]), 0)[0], label="softmax of two classes")
    axis.plot(u, torch.sigmoid(u), linestyle=":", linewidth=3, label="sigmoid")
    axis.plot(u, printed_line(u), linestyle="--", label="printed middle line")
    axis.set_xlabel("u = x·(θ₁−θ₂)")
    axis.set_ylabel("probability of class 1")
    axis.legend()
