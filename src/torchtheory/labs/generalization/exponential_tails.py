"""What the theorem on the hard margin asks of the data and of the loss."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchtheory.data.synthetic import separable_gaussians
from torchtheory.generalization.implicit_bias.hard_margin import hard_margin_svm, kkt_residuals
from torchtheory.generalization.implicit_bias.separable_flow import (
    EXPONENTIAL,
    LOGISTIC,
    POLYNOMIAL,
    check_loss,
    exponential_tail,
)
from torchtheory.labs.engine import Run, lab
from torchtheory.neurons.separability import NotSeparable, separate
from torchtheory.training.losses.surrogates import logistic_surrogate


def hinge(u: Tensor) -> Tensor:
    return (1 - u).clamp(min=0)


@lab(
    "losses-with-exponential-tail",
    room="generalization",
    covers=["M-122", "M-123", "M-124", "M-125", "M-126", "M-127", "A-72"],
    title="What the theorem on the hard margin needs: separable data and an exponential tail",
    errata=[
        "exponential-loss-called-smooth",
        "tight-tail-lower-condition",
        "critical-point-by-norm-alone",
    ],
    full={"trials": 200},
    least={"trials": 5},
)
def losses_with_exponential_tail(run: Run, trials: int = 20) -> None:
    """The assumptions, each checked on what should satisfy it and on what should not.

    Separability by a linear program against the hard-margin problem; positivity, monotonicity and
    smoothness of losses; their tails; the support vector machine and its KKT conditions; and that
    a separable sample leaves the exponential risk without a critical point. Look at the table: the
    logistic loss passes everything, the exponential is not smooth, the hinge has no tail at all.

    Args:
        trials: random samples whose separability is decided.
    """
    separability(run, trials)
    assumptions(run)
    machine(run, trials)
    no_critical_point(run, trials)


def separability(run: Run, trials: int) -> None:
    agree, confused, found = [], [], 0
    for k in range(trials):
        x = run.randn(4 + k % 7, 3)
        y = run.signs(len(x))
        try:
            hard_margin_svm(x, y)
            feasible = True
        except NotSeparable:
            feasible = False
        found += feasible
        agree.append(bool(separate(x, y, bias=False)) == feasible)
        confused.append(bool(separate(x, y.flip(0), bias=False)) == feasible)
    says = run.states(
        "M-122",
        r"\exists w:\ y_iw^\top x_i>0\ \forall i \iff \text{the hard-margin problem is feasible}:"
        r" \text{ share of samples}",
    )
    says.equal(sum(agree) / trials, 1.0, where=f"{trials} samples of random labels, {found} of them separable")
    says.fails("the labels in another order", sum(confused) / trials)


def assumptions(run: Run) -> None:
    losses = {
        "logistic": LOGISTIC.value,
        "exponential": EXPONENTIAL.value,
        "polynomial": POLYNOMIAL.value,
        "hinge": hinge,
    }
    checked = {name: check_loss(f) for name, f in losses.items()}
    tails = {name: exponential_tail(f) for name, f in losses.items()}
    run.table(
        "losses",
        ["loss", "ℓ > 0", "ℓ' < 0", "→ 0", "steep at -∞", "β", "tail a", "tail c", "tight"],
        [
            (
                n,
                *(c.positive, c.decreasing, c.vanishing, c.steep, c.smoothness),
                *(t.rate, t.constant, t.tight),
            )
            for n, c, t in zip(losses, checked.values(), tails.values(), strict=True)
        ],
        caption="The assumptions of the theorem, loss by loss",
    )
    says = run.states("M-123", r"\log(1+e^{-u}) \text{ satisfies Assumption 3}")
    says.equal(checked["logistic"].satisfied, 1)
    says.fails("the hinge, which is flat beyond 1", checked["hinge"].satisfied)
    says = run.states("M-123", r"\text{the logistic loss is } \tfrac14\text{-smooth}")
    says.equal(checked["logistic"].smoothness, 0.25, 1e-4)
    says.fails("the exponential loss", checked["exponential"].smoothness)
    betas = torch.tensor([1.0, 1e3, 1e6, 1e9], dtype=torch.float64)
    u = -(2 * betas).log()
    run.refutes(
        "exponential-loss-called-smooth",
        r"e^{-u} \text{ has a } \beta\text{-Lipschitz derivative, for } \beta=1,10^3,10^6,10^9",
    ).at_most(torch.exp(-u), betas, where="its second derivative at u = -log(2β)")
    says = run.states(
        "M-124", r"-\ell' \text{ has the tail } c\,e^{-au} \text{ with } a=c=1\text{ (logistic, exponential)}"
    )
    says.equal([v for n in ("logistic", "exponential") for v in (tails[n].rate, tails[n].constant)], 1.0, 1e-8)
    says.fails("1/(1+u)", [tails["polynomial"].rate, tails["polynomial"].constant])
    says = run.states("M-124", r"\text{and it is tight}")
    says.equal([tails["logistic"].tight, tails["exponential"].tight], 1)
    says.fails("1/(1+u)", [tails["polynomial"].tight])
    grid = torch.linspace(0.01, 30, 500, dtype=torch.float64)
    says = run.states("M-124", r"1-e^{-u}\le-\ell'(u)e^u \text{ for the logistic loss},\ u>0")
    says.at_least(torch.sigmoid(grid), 1 - torch.exp(-grid), 1e-15)
    says.fails("the hinge, whose slope is 0 beyond 1", torch.exp(grid) * (grid < 1))
    says = run.states("M-124", r"-\ell'(u)e^u\le1 \text{ for the logistic loss},\ u>0")
    says.at_most(torch.sigmoid(grid), 1.0)
    says.fails("1/(1+u)", torch.exp(grid) / (1 + grid).square())
    run.refutes(
        "tight-tail-lower-condition",
        r"f(u)\ge c(1-e^{-u})e^{-au}\ \forall u<u_- \text{ gives the tail } f(u)e^{au}\to c",
    ).equal(
        math.exp(1 - 2 * 30) * math.exp(30), 1.0, 0.5, where="f = $e^{-u}$ up to 1 and $e^{1-2u}$ beyond, at u = 30"
    )
    far = torch.tensor([0.0, -800.0, 700.0, -1e4], dtype=torch.float64)
    exact = torch.tensor([math.log(2), 800.0, math.exp(-700), 1e4], dtype=torch.float64)
    ones = torch.ones_like(far)
    says = run.states("M-125", r"\log(1+e^{-u}) \text{ at } u=0,-800,700,-10^4: \text{ ratio to the exact value}")
    says.equal(logistic_surrogate(far, ones) / exact, 1.0, 1e-12)
    says.fails("as written: log(1 + exp(-u))", torch.log(1 + torch.exp(-far)) / exact)

    u = torch.linspace(-4, 6, 300, dtype=torch.float64)
    run.curves(
        "losses",
        u,
        {name: f(u) for name, f in losses.items()},
        axes=("margin $u = y\\,w^\\top x$", "loss"),
        ylim=(-0.1, 5),
        caption="The logistic loss (Figure 11.3) and its relatives: where a loss never stops "
        "falling, the weights never stop growing.",
    )


def machine(run: Run, trials: int) -> None:
    """The hard-margin solution by hand and through its KKT conditions."""
    x = torch.tensor([[1.0, 1.0], [1.0, -2.0]], dtype=torch.float64)
    y = torch.ones(2, dtype=torch.float64)
    found = hard_margin_svm(x, y)
    says = run.states("M-127", r"(1,1),(1,-2):\ \hat w=(1,0),\ \alpha=(\tfrac23,\tfrac13)")
    says.equal(torch.cat([found.weight, found.multipliers]), [1, 0, 2 / 3, 1 / 3], 1e-12)
    moved = hard_margin_svm(torch.tensor([[1.0, 1.0], [2.0, -2.0]], dtype=torch.float64), y)
    says.fails("the second point at (2, -2)", torch.cat([moved.weight, moved.multipliers]))
    worst, scaled, sums, squares = [], [], [], []
    for _ in range(trials):
        planted = separable_gaussians(15, 4, margin=0.2, generator=run.generator)
        found = hard_margin_svm(planted.x, planted.y)
        z = planted.y[:, None] * planted.x

        def conditions(w: Tensor, z: Tensor = z, alpha: Tensor = found.multipliers) -> float:
            return kkt_residuals(lambda v: v @ v / 2, w, inequalities=lambda v: 1 - z @ v, multipliers=alpha).largest

        worst.append(conditions(found.weight) / float(found.weight.norm()))
        scaled.append(conditions(1.1 * found.weight) / float(found.weight.norm()))
        sums.append(float(found.multipliers.sum()))
        squares.append(float(found.weight.square().sum()))
    says = run.states(
        ["M-126", "M-127"],
        r"\nabla f+\sum_i\lambda_i\nabla g_i=0,\ g\le0,\ \lambda\ge0,\ \lambda_ig_i=0"
        r"\text{ at } \hat w: \text{ largest residual}",
    )
    says.equal(worst, within=1e-8, where=f"{trials} samples of 15 points in 4 dimensions")
    says.fails("at 1.1 ŵ, feasible but longer", scaled)
    says = run.states("M-127", r"\sum_i\alpha_i=\|\hat w\|^2")
    says.equal(sums, squares, 1e-8)
    says.fails("the multipliers of another sample", [*sums[1:], sums[0]])


def no_critical_point(run: Run, trials: int) -> None:
    planted = separable_gaussians(12, 3, margin=0.1, generator=run.generator)
    z = planted.y[:, None] * planted.x
    best = hard_margin_svm(planted.x, planted.y).weight
    points = 3 * run.randn(50 * trials, 3)

    def slopes(w: Tensor, z: Tensor) -> Tensor:
        return -torch.exp(-w @ z.T) @ z / len(z)

    both = torch.cat([z, -z])
    says = run.states(
        "A-72", r"\langle\hat\theta,\nabla r(\theta)\rangle<0 \text{ for every } \theta: \text{ largest value}"
    )
    says.below((slopes(points, z) @ best).max(), 0.0, where=f"{len(points)} random θ")
    says.fails("every point with both labels", (slopes(points, both) @ best).max())
    flat = torch.cat([z, torch.zeros(len(z), 1, dtype=torch.float64)], dim=1)
    away = torch.zeros(4, dtype=torch.float64)
    away[:3] = best
    far = away.clone()
    far[3] = 1e6
    run.refutes(
        "critical-point-by-norm-alone", r"\|\theta\|\to\infty,\ \gamma(\theta)>0\ \Rightarrow\ \nabla r(\theta)\to0"
    ).at_most(
        float(slopes(far, flat).norm()),
        1e-3 * float(slopes(away, flat).norm()),
        where="θ moved by 1e6 at a right angle to all points: the same gradient",
    )
