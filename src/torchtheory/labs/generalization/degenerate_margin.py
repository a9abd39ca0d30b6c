"""The exceptional data of the hard margin: a support vector with the multiplier 0."""

from __future__ import annotations

import math

import torch

from torchtheory.generalization.implicit_bias.hard_margin import hard_margin_svm
from torchtheory.generalization.implicit_bias.separable_flow import LOGISTIC, POLYNOMIAL, separable_flow
from torchtheory.labs.engine import Run, lab


@lab(
    "degenerate-hard-margin",
    room="generalization",
    covers=["M-128", "M-131"],
    title="Where the residual of w(t) = ŵ log t + ρ(t) is not bounded: it grows like log log t",
    errata=["direction-rate-for-all-data"],
)
def degenerate_hard_margin(run: Run) -> None:
    """Two points, (1, 0) and (1, 1). The first alone gives the hard margin; the second lies on the
    margin as well and pulls with the multiplier 0.

    The flow of the exponential loss conserves a quantity, by which everything is known: the second
    weight is log log t up to what vanishes, so that the direction is reached more slowly than for
    almost all other data. Look at the line that keeps rising.
    """
    degenerate = torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    ordinary = torch.tensor([[1.0, 0.0], [1.0, -0.5], [1.0, 1.0]], dtype=torch.float64)
    both, three = torch.ones(2), torch.ones(3)
    logs = torch.tensor([5.0, 10.0, 20.0, 40.0, 60.0, 90.0, 138.0], dtype=torch.float64)
    times = logs.exp()
    flow = separable_flow(degenerate, both, times)
    first, second = flow.weights.T
    says = run.states("M-128", r"(1,0),(1,1) \text{ from } 0:\ w_2+e^{w_2}-w_1=1")
    says.equal(second + second.exp() - first, torch.ones(len(logs)).double(), 1e-7, where="t from e⁵ to e¹³⁸")
    other = separable_flow(degenerate, both, times, loss=LOGISTIC).weights.T
    says.fails("the logistic loss, whose tail alone is exponential", other[1] + other[1].exp() - other[0])
    says = run.states(
        "M-128", r"\|\rho(t)\|=O(\log\log t):\ |w_2-\log\log t|\le\log\log t/\log t \text{ where a multiplier is } 0"
    )
    late = logs >= 40
    says.at_most((second - logs.log()).abs()[late], (logs.log() / logs)[late])
    bounded = separable_flow(ordinary, three, times).weights[:, 1]
    says.fails("a third point gives all support vectors a multiplier", (bounded - logs.log()).abs()[late])
    says = run.states("M-131", r"t\,L(w(t))\to\|\hat w\|^2=1")
    says.equal(
        float(flow.losses[-1] * times[-1]), 1.0, 1 / float(logs[-1]), where="t = e¹³⁸; the rest is below 1/log t"
    )
    tail = separable_flow(degenerate, both, times, loss=POLYNOMIAL)
    says.fails("a loss without exponential tail", float(tail.losses[-1]) * math.exp(138.0))
    best = hard_margin_svm(degenerate, both).weight
    growing = flow.direction_errors(best) * logs
    run.refutes(
        "direction-rate-for-all-data", r"\log t\cdot\|w/\|w\|-\hat w/\|\hat w\|\|=O(1): \text{ slope in } \log\log t"
    ).slope(logs.log(), growing, 0.0, log=False, where="log t from 5 to 138")
    usual = separable_flow(ordinary, three, times).direction_errors(hard_margin_svm(ordinary, three).weight)
    run.curves(
        "direction",
        logs,
        {"a multiplier of 0": growing, "all multipliers positive": usual * logs},
        {"log log t": logs.log()},
        axes=("log t", "error of the direction times log t"),
        caption="For almost all data this product is bounded; where a support vector has the multiplier 0 it follows "
        "log log t.",
    )
