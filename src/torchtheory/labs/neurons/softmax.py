"""Softmax: a distribution, its freedom, and the sigmoid for two classes."""

from __future__ import annotations

import torch
from torch import Tensor

from torchtheory.labs.engine import Run, lab
from torchtheory.labs.nets.comparing import gap
from torchtheory.neurons.softmax import fix_gauge, softmax_jacobian, two_class_logit


@lab(
    "softmax",
    room="neurons",
    covers=["L-056", "L-057", "N-24"],
    title="Softmax: a distribution, blind to shifts, the sigmoid for two classes",
    errata=["two-class-softmax-denominator"],
    full={"samples": 3000, "classes": 50},
    least={"samples": 10, "classes": 2},
)
def softmax(run: Run, samples: int = 500, classes: int = 7, features: int = 4) -> None:
    """Softmax outputs are probabilities, and adding one vector to all weights changes nothing.

    Random logits of very different sizes are used, up to ±1000 where the textbook formula
    overflows. Fixing the last class's weights to 0 removes the freedom. For two classes the
    first probability is the sigmoid of the difference; the printed derivation has a wrong line,
    which the picture shows next to the truth.

    Args:
        samples: random rows of logits.
        classes: in a row.
        features: of an input.
    """
    z = run.randn(samples, classes) * torch.logspace(-2, 3, samples).double().unsqueeze(1)
    p = torch.softmax(z, 1)
    says = run.states(["L-056", "N-24"], r"\sum_i\sigma_i^{\max}=1")
    says.equal(p.sum(1), 1, 1e-14, where="logits up to ±3000")
    says.fails("a sigmoid of each logit, not normalized", torch.sigmoid(z).sum(1))
    run.states("L-056", r"\sigma_i^{\max}\ge0").at_least(p, 0)
    mild = run.randn(samples, classes)
    base = torch.softmax(mild, 1)
    shift = 100 * run.randn(samples, 1)
    says = run.states("N-24", r"\mathrm{softmax}(z+c\mathbf 1)=\mathrm{softmax}(z)")
    says.equal(gap(torch.softmax(mild + shift, 1), base), within=1e-12)
    says.fails("another constant for every entry", gap(torch.softmax(mild + shift.T[:, :classes], 1), base))
    jacobian = torch.func.vmap(torch.func.jacrev(lambda v: torch.softmax(v, 0)))(mild)
    says = run.states("N-24", r"\partial\,\mathrm{softmax}/\partial z=\mathrm{diag}(p)-pp^\top")
    says.equal(gap(jacobian, softmax_jacobian(mild)), within=1e-15)
    says.fails("diag(p) alone", gap(jacobian, torch.diag_embed(base)))
    run.states("N-24", r"(\mathrm{diag}(p)-pp^\top)\mathbf 1=0,\quad \mathrm{diag}(p)-pp^\top\succeq0").at_least(
        torch.stack([-softmax_jacobian(mild).sum(2).abs().max(), torch.linalg.eigvalsh(jacobian).min()]), 0, 1e-15
    )
    weights, x = run.randn(classes, features), run.randn(samples, features)
    plain = torch.softmax(x @ weights.T, 1)
    moved = torch.softmax(x @ (weights + run.randn(1, features)).T, 1)
    one = weights.clone()
    one[0] += run.randn(features)
    says = run.states(
        "L-056", r"\sigma^{\max}(x;\theta_1+\Delta,\dots,\theta_k+\Delta)=\sigma^{\max}(x;\theta_1,\dots,\theta_k)"
    )
    says.equal(gap(moved, plain), within=1e-13)
    says.fails("only one class moved", gap(torch.softmax(x @ one.T, 1), plain))
    fixed = fix_gauge(weights)
    run.states("L-056", r"\theta_i\to\theta_i-\theta_k\text{ keeps the outputs and has }\theta_k=0").equal(
        [gap(torch.softmax(x @ fixed.T, 1), plain), float(fixed[-1].abs().max())], within=1e-13
    )
    other = fix_gauge(weights + run.randn(1, features))
    says = run.states("L-056", r"\text{with }\theta_k=0\text{ the parameters are determined}")
    says.equal(gap(other, fixed), within=1e-13)
    says.fails("no gauge fixed", gap(weights + run.randn(1, features), weights))
    pair = run.randn(2, features)
    first = torch.softmax(x @ pair.T, 1)[:, 0]
    says = run.states(["L-057", "N-24"], r"\sigma_1^{\max}(x)=\sigma(x^\top(\theta_1-\theta_2))")
    says.equal(
        gap(torch.sigmoid(two_class_logit(pair, x)), first),
        within=1e-14,
        where="so for two classes one sigmoid output does: a softmax layer is not needed",
    )
    says.fails("σ(xᵀθ₁)", gap(torch.sigmoid(x @ pair[0]), first))
    difference = torch.tensor(1.0, dtype=torch.float64)
    run.refutes(
        "two-class-softmax-denominator", r"\sigma_1^{\max}=\frac{e^u}{e^u+e^{-u}},\quad u=x\cdot(\theta_1-\theta_2)=1"
    ).equal(
        float(torch.softmax(torch.stack([difference, 0 * difference]), 0)[0]),
        float(printed_line(difference)),
        1e-12,
        where="the printed line is σ(2u)",
    )
    u = torch.linspace(-5, 5, 201, dtype=torch.float64)
    run.curves(
        "two-classes",
        u,
        {
            "softmax of two classes": torch.softmax(torch.stack([u, 0 * u]), 0)[0],
            "printed middle line": printed_line(u),
        },
        {"sigmoid": torch.sigmoid(u)},
        axes=("u = x·(θ₁−θ₂)", "probability of class 1"),
        caption="Probability of the first class against u = x·(θ₁−θ₂): the softmax is the "
        "sigmoid, the printed middle line is steeper.",
    )


def printed_line(u: Tensor) -> Tensor:
    return u.exp() / (u.exp() + (-u).exp())
