"""A linear score explains itself: every method agrees there, and sensitivity says something else."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.explanation.methods.gradients import gradient_times_input, integrated_gradients, sensitivity
from torchtheory.explanation.methods.lime import lime
from torchtheory.explanation.methods.linear import explain_linear
from torchtheory.explanation.methods.occlusion import occlusion
from torchtheory.explanation.methods.shapley import shapley
from torchtheory.explanation.methods.taylor import taylor
from torchtheory.labs.engine import Run, lab
from torchtheory.nets.activations.table import as_layer
from torchtheory.nets.feedforward import dense

#: The catalogue's entry of each method that gives w x for a linear score.
METHODS: dict[str, tuple[str, Any]] = {
    "Taylor at 0": ("C-06", taylor),
    "LIME": ("C-11", partial(lime, samples=100)),
    "occlusion": ("C-12", occlusion),
    "gradient × input": ("C-13", gradient_times_input),
    "integrated gradients": ("C-15", integrated_gradients),
    "Shapley values": ("C-16", shapley),
}


@lab(
    "linear-explanations",
    room="explanation",
    covers=["C-03", "C-04", "C-06", "C-11", "C-12", "C-13", "C-15", "C-16"],
    title="For a linear score every method gives w x, and sensitivity gives w",
    full={"dimension": 12, "samples": 5000},
    least={"samples": 500},
)
def linear_explanations(run: Run, dimension: int = 6, samples: int = 3000) -> None:
    """The relevance w x of a linear score, by seven methods, and the three failures of sensitivity.

    A linear score is a sum with one term per feature, and these terms are its explanation. Taylor's
    decomposition at 0, LIME, occlusion, gradient times input, integrated gradients and Shapley
    values all give them. Sensitivity gives w: the same for every input, a sum that has nothing to
    do with the score, and signs that agree with the terms' in half of the cases.

    Args:
        dimension: of the inputs.
        samples: inputs that are explained.
    """
    w, x = run.randn(dimension), run.randn(samples, dimension)
    w = w.sign() * (0.5 + w.abs())  # every feature counts
    bias = run.randn(1)
    plain, shifted = dense(w[None]), dense(w[None], bias)
    found, with_bias = explain_linear(plain, x), explain_linear(shifted, x)
    says = run.states("C-03", r"f(x)=\sum_iw_ix_i:\ \sum_iR_i=f(x)")
    says.equal(found.total, found.score, 1e-12)
    says.fails("there is a bias, which no feature carries", with_bias.total, promised=with_bias.score)
    says = run.states("C-03", r"f(x)=\sum_iw_ix_i+b:\ \sum_iR_i=f(x)-b")
    says.equal(with_bias.total, with_bias.score - bias, 1e-12)
    says = run.states("C-03, C-13", r"x_i\to-x_i\text{ for one feature}:\ R_i\to-R_i")
    few = x[: min(samples, 50)]
    says.equal(flipped(plain, few), -gradient_times_input(plain, few).flat, 1e-12)
    bent = nn.Sequential(as_layer(lambda t: t @ w + F.softplus(t.sum(1))))
    says.fails("f = w·x + softplus(Σx)", flipped(bent, few), promised=-gradient_times_input(bent, few).flat)
    for name, (entry, method) in METHODS.items():
        says = run.states(["C-03", entry], rf"f(x)=w\cdot x+b:\ R_i=w_ix_i\quad\text{{({name})}}")
        says.equal(method(shifted, few).flat, explain_linear(shifted, few).flat, 1e-9)
        says.fails("f = w·x + softplus(Σx)", method(bent, few).flat)

    # -- sensitivity
    slope = sensitivity(plain, x)
    says = run.states("C-04", r"R_i=\partial_if:\ R_i=w_i\text{ for every }x")
    says.equal(slope.flat, w.expand(samples, -1), 1e-12)
    says.fails("f = w·x + softplus(Σx)", sensitivity(bent, x).flat)
    says = run.states("C-04", r"R_i=(\partial_if)^2:\ R_i=w_i^2\text{ for every }x")
    says.equal(sensitivity(plain, x, power=2).flat, w.square().expand(samples, -1), 1e-12)
    says.fails("f = w·x + softplus(Σx)", sensitivity(bent, x, power=2).flat)
    says = run.states(
        "C-04", r"\text{not conserving: }x\sim\mathcal N(0,I):\ E\bigl(\sum_iR_i-f(x)\bigr)^2=\|w\|^2+(\sum_iw_i)^2"
    )
    square, total = float(w.square().sum()), float(w.sum())
    says.mean((slope.total - slope.score) ** 2, square + total**2, against=(0.0, 2 * square + total**2),
              confidence=0.9999)  # fmt: skip
    says.fails("all inputs are 1, where the sum of weights is the score", missed(plain, torch.ones(samples, dimension)))
    says = run.states("C-04", r"\text{no sign: }P\bigl(\mathrm{sign}(\partial_if)=\mathrm{sign}(w_ix_i)\bigr)=\tfrac12")
    says.mean(agreement(plain, x), 0.5, against=(0.4, 1.0), confidence=0.9999)
    says.fails("all inputs are positive", agreement(plain, x.abs()))
    says = run.states("C-03", r"\text{the sign of }R_i\text{ is that of }f(x)-f(x\text{ without }x_i)")
    says.share(agreement(plain, few, explain_linear), 1.0)
    run.table(
        "methods",
        ["method", "passes forward", "passes backward", "largest difference from w x"],
        [
            (name, made.forwards, made.backwards, float((made.flat - w * few).abs().max()))
            for name, (_, method) in METHODS.items()
            for made in [method(shifted, few)]
        ],
        caption="Six methods on a linear score, with their cost per input.",
    )


def flipped(net: nn.Module, x: Tensor) -> Tensor:
    """The relevance of each feature after its own sign was changed."""
    columns = []
    for i in range(x.shape[1]):
        moved = x.clone()
        moved[:, i] = -moved[:, i]
        columns.append(gradient_times_input(net, moved).flat[:, i])
    return torch.stack(columns, 1)


def missed(net: nn.Module, x: Tensor) -> Tensor:
    """The square of what the sum of derivatives misses of the score."""
    found = sensitivity(net, x.double())
    return (found.total - found.score) ** 2


def agreement(net: nn.Module, x: Tensor, method: Any = sensitivity) -> Tensor:
    """Whether one random feature of each input has the sign of what its removal changes, 0 or 1.

    One feature per input, so that the answers are independent.
    """
    same = method(net, x).flat.sign() == occlusion(net, x).flat.sign()
    rows = torch.arange(len(x))
    agree: Tensor = same[rows, rows % x.shape[1]].double()
    return agree
