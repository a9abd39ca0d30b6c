"""Attacks without gradients: finite differences, and random search."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.labs.engine import Run, lab
from torchtheory.labs.robustness.attacks import trained
from torchtheory.robustness.attacks.goals import cross_entropy
from torchtheory.robustness.attacks.gradient_steps import PGD
from torchtheory.robustness.attacks.square import Square
from torchtheory.robustness.finite_differences import (
    FiniteDifferences,
    Scheme,
    finite_difference_gradient,
)


@lab(
    "black-box",
    room="robustness",
    covers=["M-146"],
    title="Queries alone give the gradient, at 2d of them each, and an attack as good as the exact one",
    full={"epochs": 60, "attacked": 300, "steps": 20},
    least={"epochs": 6, "attacked": 10, "radius": 0.03},
    most={"radius": 0.18},
)
def black_box(run: Run, epochs: int = 12, attacked: int = 60, steps: int = 6, radius: float = 0.06) -> None:
    """Finite differences estimate the gradient of the loss at a network that only answers.

    Central differences have an error of order h² and cost 2d queries, one-sided ones h and d + 1;
    where the loss has a kink both have an error that h does not cure. Projected ascent with them is
    held beside the same ascent with exact gradients on digits, and beside attacks that ask less.

    Args:
        epochs: of the training.
        attacked: test digits.
        steps: of projected ascent.
        radius: of the perturbations.
    """
    smooth = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).double()
    for p in smooth.parameters():
        nn.init.normal_(p, generator=run.generator)
    x = run.randn(20, 8)
    y = torch.randint(4, (20,), generator=run.generator)

    def loss(some: Tensor) -> Tensor:
        with torch.no_grad():
            return cross_entropy(smooth(some), y[:1].expand(len(some)))

    def kinked(some: Tensor) -> Tensor:
        # the kinks run through the points: |x_1 - x_1 there|
        return loss(some) + 2 * (some - x[:1]).clamp_min(0.0).sum(1)

    widths = [0.2, 0.1, 0.05, 0.025, 0.0125]
    exact = gradient(smooth, x, y)
    errors: dict[str, list[float]] = {}
    broken: dict[str, list[float]] = {}
    schemes: tuple[tuple[Scheme, float], ...] = (("central", 2.0), ("forward", 1.0))
    for scheme, order in schemes:
        errors[scheme] = [off(loss, x[:1], exact[:1], h, scheme) for h in widths]
        broken[scheme] = [off(kinked, x[:1], exact[:1], h, scheme) for h in widths]
        says = run.states("M-146", rf"\text{{{scheme} differences: error}}\sim h^{{{order:g}}}")
        says.slope(widths, errors[scheme], order, 0.25, against=(3 - order, 3.0))
        says.fails("the loss has a kink at the point", widths, broken[scheme])
    asked = 0

    def counted(some: Tensor) -> Tensor:
        nonlocal asked
        asked += len(some)
        return loss(some)

    finite_difference_gradient(counted, x[:1], width=1e-3)
    says = run.states("M-146", r"\text{queries for one gradient}=2d")
    says.equal([asked, FiniteDifferences().queries(8), FiniteDifferences().queries(64)], [16, 16, 128])
    says.fails("one-sided differences", [FiniteDifferences(scheme="forward").queries(d) for d in (8, 8, 64)])

    net, (images, labels) = trained(run, epochs, attacked)
    common: dict[str, Any] = {"box": (0, 1), "loss": "cross_entropy", "generator": 0, "stop_when_fooled": False}
    white = PGD(radius, steps, **common)(net, images, labels)
    black = PGD(radius, steps, gradient=FiniteDifferences(1e-4), **common)(net, images, labels)
    coarse = PGD(radius, steps, gradient=FiniteDifferences(5.0), **common)(net, images, labels)
    by_gradients, by_queries, by_coarse = (float((a.losses - a.clean_losses).mean()) for a in (white, black, coarse))
    says = run.states("M-146", r"\text{rise of the loss by queries}/\text{by gradients}\ge0.95")
    says.at_least(by_queries / by_gradients, 0.95)
    says.fails("h = 5, far beyond where the loss is near its linearization", by_coarse / by_gradients)
    says = run.states("M-146", r"\text{share of the pixels that both attacks set to the same value}\ge0.95")
    says.at_least(same(black.adversarial, white.adversarial), 0.95)
    says.fails("h = 5", same(coarse.adversarial, white.adversarial))
    says = run.states("M-146", r"\text{queries of the attack}=1+k(2d+1)+1,\ \text{no gradient}")
    says.equal(black.queries + black.gradients, 2 + steps * (2 * 64 + 1))
    says.fails("exact gradients", white.queries + white.gradients)

    few: dict[str, list[float]] = {}
    budgets = [50, 150, 400, 1000]
    attacks: dict[str, Callable[[int], Any]] = {
        "Square": lambda q: Square(radius, q, box=(0, 1)),
        "differences in 10 random directions": lambda q: PGD(
            radius, max(1, q // 21), box=(0, 1), gradient=FiniteDifferences(0.02, directions=10)
        ),
        "differences in all 64 coordinates": lambda q: PGD(
            radius, max(1, q // 129), box=(0, 1), gradient=FiniteDifferences(0.02)
        ),
    }
    for name, make in attacks.items():
        least = FiniteDifferences().queries(64) if "all" in name else 0  # one gradient takes so many
        few[name] = [make(q)(net, images, labels).success_rate if q > least else math.nan for q in budgets]
    run.curves(
        "queries",
        budgets,
        few,
        {"exact gradients": PGD(radius, 4 * steps, box=(0, 1))(net, images, labels).success_rate},
        axes=("queries per digit", "share of digits misread"),
        log="x",
        ylim=(0, None),
        caption=f"Digits that are misread after so many queries, within {radius:g} in L∞.",
    )
    run.curves(
        "widths",
        widths,
        {"central": errors["central"], "forward": errors["forward"], "central, at a kink": broken["central"]},
        axes=("width h", "error of the gradient"),
        log="xy",
        caption="Errors of finite differences, at a smooth loss and at one with a kink at the point.",
    )


def gradient(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    leaf = x.clone().requires_grad_(True)
    (found,) = torch.autograd.grad(cross_entropy(net(leaf), y[:1].expand(len(x))).sum(), leaf)
    return found


def off(loss: Callable[[Tensor], Tensor], x: Tensor, exact: Tensor, h: float, scheme: Scheme) -> float:
    """Length of the error of an estimated gradient."""
    return float((finite_difference_gradient(loss, x, width=h, scheme=scheme) - exact).norm())


def same(a: Tensor, b: Tensor) -> float:
    """Share of entries that are equal up to rounding."""
    return float(((a - b).abs() < 1e-6).double().mean())
