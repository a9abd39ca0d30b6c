"""The 0-1 risk of networks with frozen gates, bounded by the margins of several classes."""

from __future__ import annotations

import math

import torch
from torch import nn

from torchtheory.generalization.paths.two_phase_margins import (
    ball_complexity,
    best_two_phase_margin_bound,
    class_margins,
    feature_radius,
    margin_loss,
    two_phase_margin_bound,
)
from torchtheory.generalization.paths.two_phase_training import gated_outputs
from torchtheory.kernels.paths.deep_paths import path_features
from torchtheory.kernels.paths.path_kernel import deep_path_kernel, path_norms
from torchtheory.labs.engine import Run, lab, mean_interval, quantile_interval
from torchtheory.nets.feedforward import dense, mlp


@lab(
    "two-phase-margins",
    room="generalization",
    covers=["B-20"],
    title="Margins bound the 0-1 risk of networks whose gates were frozen beforehand",
    full={"trials": 200, "samples": 10000},
    least={"trials": 10, "samples": 100, "delta": 0.01},
    most={"delta": 0.5},
)
def two_phase_margins_lab(run: Run, trials: int = 20, samples: int = 4000, delta: float = 0.1) -> None:
    """The ramp of the margin among several classes, and the bound it gives with frozen gates.

    The ramp lies between the 0-1 loss (a tie counts as wrong) and the share of margins below ρ,
    and has slope 1/ρ. The complexity of the ball of path weights follows from the path kernel and
    is at most radius times root mean square feature times the root of the sample size. Over
    redraws the bound is kept, with numbers below 1; with weights longer than was fixed beforehand
    it is not. Look at the table: what a grid of margins and radii buys.

    Args:
        trials: samples in which the bound may fail.
        samples: size of each.
        delta: probability with which it may.
    """
    margins(run)
    complexity(run)
    zero_one_risk(run, trials, samples, delta)


def margins(run: Run) -> None:
    """The ramp of the margin, between two indicators."""
    outputs = run.randn(400, 4)
    labels = torch.randint(0, 4, (400,), generator=run.generator)
    outputs[:20] = 0.0  # ties
    rho = 0.7
    t = class_margins(outputs, labels)
    losses = margin_loss(outputs, labels, rho)
    wrong = ~((outputs >= outputs.amax(1, keepdim=True)).sum(1) == 1) | (outputs.argmax(1) != labels)
    moved = margin_loss(outputs + rho * nn.functional.one_hot(labels, 4), labels, rho)
    nearly = wrong & (t > -rho)
    says = run.states("B-20", r"1[\text{wrong or tied}]\le L_\rho(t)\le1[t<\rho]")
    says.at_most(torch.cat([wrong.double(), losses]), torch.cat([losses, (t < rho).double()]))
    says.fails("the ramp moved to the left by ρ, where t > -ρ", wrong[nearly].double(), promised=moved[nearly])
    steps = (losses[:, None] - losses[None]).abs() - (t[:, None] - t[None]).abs() / rho
    jumps = (wrong[:, None].double() - wrong[None].double()).abs() - (t[:, None] - t[None]).abs() / rho
    says = run.states("B-20", r"|L_\rho(t)-L_\rho(t')|\le|t-t'|/\rho")
    says.at_most(steps.max(), 0.0, 1e-12)
    says.fails("the 0-1 loss, which jumps", jumps.max())


def complexity(run: Run) -> None:
    """Rademacher complexity of the ball of path weights."""
    net = mlp([3, 6, 5, 2], generator=run.generator)
    radius, size, points = 2.0, 40, 300
    x = run.randn(points, 3)
    ball = feature_radius(net, x)
    found, aligned = [], []
    kernel = deep_path_kernel(net, x)
    for _ in range(60):
        chosen = torch.randint(0, points, (size,), generator=run.generator)
        part = kernel[chosen][:, chosen]
        found.append(float(ball_complexity(part, radius, run.signs(8, size)).mean()))
        aligned.append(float(ball_complexity(part, radius, torch.ones(1, size))[0]))
    mean, same = mean_interval(found, 0.99), mean_interval(aligned, 0.99)
    says = run.states(
        "B-20", r"\mathbb E\sup_{\|\bar w\|\le C_w}\sum_i\xi_i\tilde z_i^\top\bar w\le C_wC_\sigma\sqrt{m_\sigma}"
    )
    says.at_most(
        mean,
        radius * ball * math.sqrt(size),
        where="60 samples of 40 from a population of 300, 8 sign vectors each, 99 % interval",
    )
    says.fails("all signs equal", same)
    z = path_features(net, x[:size]).features
    signs = run.signs(20, size)
    sums = signs @ z
    says = run.states(
        "B-20",
        r"\sup_{\|\bar w\|\le C_w}\sum_i\xi_i\tilde z_i^\top\bar w=C_w\|\sum_i\xi_i\tilde z_i\|"
        r" \text{ from the kernel}",
    )
    says.equal(ball_complexity(kernel[:size, :size], radius, signs), radius * sums.norm(dim=1), 1e-9)
    says.fails("the diagonal of the kernel alone", ball_complexity(torch.diag(kernel.diagonal()[:size]), radius, signs))


def zero_one_risk(run: Run, trials: int, samples: int, delta: float) -> None:
    """Two classes in the plane, one layer: the bound, and what a norm beyond the radius does."""
    rho, radius = 0.5, 1.5
    angle = 2 * math.pi * run.rand(20_000)
    x = torch.stack([angle.cos(), angle.sin()], 1)
    labels = (x[:, 0] < 0).long()
    flip = run.rand(20_000) < 0.1
    labels = torch.where(flip, 1 - labels, labels)
    used, rows = [], []
    for trial in range(trials):
        chosen = torch.randint(0, len(x), (samples,), generator=run.generator)
        signs = 1 - 2 * labels[chosen].double()
        direction = torch.linalg.lstsq(x[chosen], signs[:, None]).solution.T
        direction = direction / direction.norm()
        net = nn.Sequential(dense(torch.cat([direction, -direction]) * radius))
        outputs = gated_outputs(net, net, x).detach()
        risk = float((class_margins(outputs, labels) <= 0).double().mean())
        bound = two_phase_margin_bound(
            outputs[chosen],
            labels[chosen],
            rho,
            feature_radius=1.0,
            weight_radius=radius,
            delta=delta,
        )
        used.append(risk / bound)
        grid = best_two_phase_margin_bound(
            outputs[chosen],
            labels[chosen],
            [0.25, 0.5, 1.0, 2.0],
            [0.5, 1.0, 2.0, 4.0],
            feature_radius=1.0,
            weight_norm=float(path_norms(net, (2,)).max()),
            delta=delta,
        )
        if trial < 5:
            empirical = float((class_margins(outputs[chosen], labels[chosen]) <= 0).double().mean())
            rows.append((risk, empirical, bound, *grid))
    coins = [on_two_points(run, samples, radius, delta) for _ in range(200)]
    broken = [beyond_the_radius(run, delta) for _ in range(20)]
    says = run.states(
        "B-20",
        r"\Pr\Bigl[R\le R^{(\rho)}_{S\setminus S_{\alpha m}}+\tfrac{2d_y^2C_\sigma C_w}"
        r"{\rho\sqrt{m_\sigma}}+\sqrt{\tfrac{\ln(1/\delta)}{2m_\sigma}}\Bigr]\ge1-\delta",
    )
    says.at_most(
        [quantile_interval(shares, 1 - delta, 0.99).low for shares in (used, coins)],
        1.0,
        where="risk over bound, lower ends of 99 % intervals for the quantile at 1 - δ: "
        f"{trials} samples of {samples}, two classes with a tenth of the labels turned; and two points with coins as "
        "labels. The source has another factor $(1-α)^{{-1/2}}$ in the middle, which its proof does not need",
    )
    says.fails(
        "weights a hundred times longer than $C_w$ allows, fitted to random labels",
        quantile_interval(broken, 1 - delta, 0.99).low,
    )
    worst = max(r[2] for r in rows)
    says = run.states("B-20", r"\text{the bound says something here: it is below 1}")
    says.below(worst, 1.0)
    says.fails(f"50 samples instead of {samples}", few_samples_bound(run, delta))
    run.table(
        "classes",
        ("risk", "empirical 0-1 risk", "bound, ρ and radius fixed", "best of a grid", "its ρ",
         "its radius"),
        rows,
        caption=f"Unit vectors in the plane, one layer with path norm {radius}, {samples} fresh "
        "samples. The grid of margins and radii is paid for by a union bound.",
    )  # fmt: skip


def on_two_points(run: Run, samples: int, radius: float, delta: float) -> float:
    """Risk over bound for points e and -e with fair coins as labels: all margins are ±2 radius."""
    signs = run.signs(samples)
    outputs = radius * torch.stack([signs, -signs], 1)
    labels = torch.randint(0, 2, (samples,), generator=run.generator)
    rho = 2 * radius
    bound = two_phase_margin_bound(outputs, labels, rho, feature_radius=1.0, weight_radius=radius, delta=delta)
    return 0.5 / bound


def beyond_the_radius(run: Run, delta: float) -> float:
    """Risk over bound, interpolating random labels in many dimensions, with C_w = 1 claimed all the same."""
    samples, dimension, rho = 200, 800, 5.0
    x = run.randn(samples, dimension)
    x = x / x.norm(dim=1, keepdim=True)
    labels = torch.randint(0, 2, (samples,), generator=run.generator)
    solution = torch.linalg.lstsq(x, (1 - 2 * labels.double())[:, None]).solution.T
    outputs = torch.cat([x @ solution.T, -(x @ solution.T)], 1) * 100
    bound = two_phase_margin_bound(outputs, labels, rho, feature_radius=1.0, weight_radius=1.0, delta=delta)
    return 0.5 / bound  # labels are coins: no function has another risk


def few_samples_bound(run: Run, delta: float) -> float:
    x = run.randn(50, 2)
    x = x / x.norm(dim=1, keepdim=True)
    outputs = 1.5 * torch.stack([x[:, 0], -x[:, 0]], 1)
    return two_phase_margin_bound(
        outputs, (x[:, 0] < 0).long(), 0.5, feature_radius=1.0, weight_radius=1.5, delta=delta
    )
