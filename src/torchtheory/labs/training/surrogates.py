"""The loss that counts, the one that is minimized, and two whose risk is least at the truth."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.nets.feedforward import decide
from torchtheory.neurons.regression import logistic_regression
from torchtheory.training.losses.density_losses import (
    histogram,
    l2_density_loss,
    squared_norm,
    surprisal,
    which_bin,
)
from torchtheory.training.losses.surrogates import (
    logistic_calibration,
    logistic_surrogate,
    logistic_surrogate_slope,
    quadratic_loss,
    zero_one_loss,
)


@lab(
    "surrogate-losses",
    room="training",
    covers=["A-04", "A-06", "A-15"],
    title="A surrogate controls the errors over all functions, not over the class one trains",
    errata=["surrogate-minimizes-errors"],
    full={"samples": 5000, "laws": 5000},
)
def surrogate_losses(run: Run, samples: int = 300, laws: int = 200) -> None:
    """The 0-1 loss is what a classifier is judged by, the logistic loss what is minimized.

    The 0-1 loss counts errors of decisions, and lets a real output of 0 pass for either label. The
    logistic loss, divided by log 2, bounds it; over all functions on a finite set a small excess
    of logistic risk forces a small excess of error, by an explicit function. Over affine functions
    it does not: one far point turns the minimizer round. Last, the two losses for densities, whose
    risks are a distance to the truth: the squared L2 distance and the Kullback-Leibler divergence.

    Args:
        samples: random points.
        laws: random laws.
    """
    zero_one_and_quadratic(run, samples)
    surrogate(run, laws)
    printed_surrogate(run)
    densities(run, samples)
    run.figure(
        "surrogate",
        plot_surrogate,
        caption="The logistic loss, divided by log 2, bounds the 0-1 loss; right, the sample on "
        "which its minimizer among affine functions makes twenty errors instead of one.",
        grid=(1, 2),
    )


def zero_one_and_quadratic(run: Run, samples: int) -> None:
    """For decisions ±1 the 0-1 loss counts errors; a real output of 0 escapes it."""
    y, scores = run.signs(samples), run.randn(samples)
    scores[: samples // 10] = 0.0
    decisions = decide(scores[:, None]).double()
    says = run.states("A-04", r"f(x)\in\{\pm1\}:\ 1_{(-\infty,0)}(yf(x))=\tfrac12(1-yf(x))=\tfrac14(f(x)-y)^2")
    says.equal(
        torch.cat([zero_one_loss(decisions, y)] * 2),
        torch.cat([(1 - y * decisions) / 2, quadratic_loss(decisions, y) / 4]),
    )
    says.fails(
        "real-valued outputs, not composed with the sign", zero_one_loss(scores, y), promised=(1 - y * scores) / 2
    )
    says = run.states("A-04", r"\text{mean 0--1 loss of the sign of } f=\text{ share of errors, ties included}")
    says.equal(zero_one_loss(decisions, y).mean(), (decisions != y).double().mean(), 1e-15)
    says.fails("the zero function itself, right for both labels", zero_one_loss(torch.zeros_like(y), y).mean())


def least_risks(joint: Tensor) -> tuple[Tensor, Tensor]:
    """The least 0-1 and logistic risk over all functions on a finite set, `joint[x, 2]`."""
    mass = joint.sum(1)
    eta = joint[:, 1] / mass
    entropy = -(torch.xlogy(eta, eta) + torch.xlogy(1 - eta, 1 - eta))
    return joint.amin(1).sum(), (mass * entropy).sum()


def risks(joint: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """0-1 risk of the sign, and logistic risk, of a function on a finite set."""
    decisions = decide(scores[:, None]).double()
    zero_one = logistic = torch.zeros(()).double()
    for column, label in ((0, -1.0), (1, 1.0)):
        y = torch.full_like(scores, label)
        zero_one = zero_one + joint[:, column] @ zero_one_loss(decisions, y)
        logistic = logistic + joint[:, column] @ logistic_surrogate(scores, y)
    return zero_one, logistic


def surrogate(run: Run, laws: int) -> None:
    """The bound, the derivative, and calibration on finite distributions."""
    scores, y = 4 * run.randn(500), run.signs(500)
    says = run.states("A-15", r"\log(1+e^{-yf})=\text{cross-entropy of }\tfrac{y+1}2\text{ and }\varrho_\sigma(f)")
    entropies = F.binary_cross_entropy_with_logits(scores, (y + 1) / 2, reduction="none")
    says.equal(logistic_surrogate(scores, y), entropies, 1e-12)
    negative = y < 0
    says.fails(
        "the sign of negative labels lost",
        logistic_surrogate(scores[negative], -y[negative]),
        promised=entropies[negative],
    )
    leaf = scores.clone().requires_grad_()
    (autograd,) = torch.autograd.grad(logistic_surrogate(leaf, y).sum(), leaf)
    says = run.states("A-15", r"\frac{d}{df}\log(1+e^{-yf})=-y\,\varrho_\sigma(-yf)")
    says.equal(logistic_surrogate_slope(scores, y), autograd, 1e-12)
    says.fails("-yϱ(yf)", -y * torch.sigmoid(y * scores))
    grid = torch.cat([torch.linspace(-4, 4, 801).double(), torch.zeros(1).double()])
    ones = torch.ones_like(grid)
    wrong = (grid <= 0).double()
    says = run.states("A-15", r"\log(1+e^{-m})/\log2\ge1[m\le0]")
    says.at_least(logistic_surrogate(grid, ones) / math.log(2), wrong, 1e-15)
    barely = (grid <= 0) & (grid > -0.5)
    says.fails(
        "without dividing by log 2, for margins that are barely negative",
        logistic_surrogate(grid[barely], ones[barely]),
        promised=wrong[barely],
    )
    excess_errors, excess_loss = [], []
    for _ in range(laws):
        joint = torch.softmax(2 * run.randn(12), 0).reshape(6, 2)
        best_errors, best_loss = least_risks(joint)
        zero_one, logistic = risks(joint, 2 * run.randn(6))
        excess_errors.append((zero_one - best_errors).clamp(min=0))
        excess_loss.append(logistic - best_loss)
    joint, affine_scores, best = far_point()
    zero_one, _ = risks(joint, affine_scores)
    says = run.states(
        "A-15",
        r"\psi(R^{01}(f)-R^{01}_*)\le R^{\log}(f)-R^{\log}_*,\ \psi(\theta)="
        r"\tfrac{1+\theta}2\log(1+\theta)+\tfrac{1-\theta}2\log(1-\theta)",
    )
    says.at_most(
        logistic_calibration(torch.stack(excess_errors)),
        torch.stack(excess_loss),
        1e-12,
        where=f"{laws} random laws on 6 points and random functions",
    )
    says.fails(
        "both compared with the best affine function, at the affine logistic minimizer",
        logistic_calibration(zero_one - best),
        promised=0.0,
    )
    joint = torch.softmax(2 * run.randn(12), 0).reshape(6, 2)
    eta = joint[:, 1] / joint.sum(1)
    nudged = torch.logit(eta) + 0.2 * run.randn(500, 6)
    lowest = risks(joint, torch.logit(eta))[1]
    says = run.states("A-15", r"\text{over all functions the logistic risk is least at the logit of } P(y=1\mid x)")
    says.at_least(torch.stack([risks(joint, f)[1] for f in nudged]), lowest, 1e-12)
    says.fails(
        "the risk at three times the logit as the least",
        torch.stack([risks(joint, f)[1] for f in nudged]),
        promised=risks(joint, 3 * torch.logit(eta))[1],
    )


def far_sample() -> tuple[Tensor, Tensor]:
    """Ten points (0, +1), ten (1, -1), one (100, +1)."""
    x = torch.tensor([0.0] * 10 + [1.0] * 10 + [100.0], dtype=torch.float64)[:, None]
    y = torch.tensor([1.0] * 10 + [-1.0] * 10 + [1.0], dtype=torch.float64)
    return x, y


def affine_minimizer() -> tuple[Tensor, Tensor]:
    """Weight and bias of the logistic loss's minimizer among affine functions."""
    x, y = far_sample()
    fit = logistic_regression(torch.cat([x, torch.ones_like(x)], 1), (y + 1) / 2)
    return fit.weight[0], fit.weight[1]


def far_point() -> tuple[Tensor, Tensor, float]:
    """The sample as a law on {0, 1, 100}, the affine minimizer's scores, the least error."""
    joint = torch.tensor([[0.0, 10.0], [10.0, 0.0], [0.0, 1.0]], dtype=torch.float64) / 21
    places = torch.tensor([0.0, 1.0, 100.0], dtype=torch.float64)
    w, b = affine_minimizer()
    return joint, places * w + b, best_threshold_error()


def best_threshold_error() -> float:
    """The least 0-1 risk of the sign of an affine function: all thresholds, both directions."""
    x, y = far_sample()
    found = []
    for cut in (-1.0, 0.5, 50.0, 101.0):
        for side in (1.0, -1.0):
            decisions = torch.where(side * (x[:, 0] - cut) >= 0, 1.0, -1.0).double()
            found.append(float(zero_one_loss(decisions, y).mean()))
    return min(found)


def printed_surrogate(run: Run) -> None:
    joint, scores, best = far_point()
    zero_one, _ = risks(joint, scores)
    w, b = affine_minimizer()
    x, y = far_sample()
    residual = logistic_surrogate_slope(x[:, 0] * w + b, y)
    says = run.states(
        "A-15", r"\text{at the affine logistic minimizer of the far sample the gradient in slope and offset is }0"
    )
    says.equal(torch.stack([(residual * x[:, 0]).mean(), residual.mean()]), within=1e-7)
    says.fails(
        "at the classifier that makes one error",
        torch.stack(
            [
                (logistic_surrogate_slope(1 - 2 * x[:, 0], y) * x[:, 0]).mean(),
                logistic_surrogate_slope(1 - 2 * x[:, 0], y).mean(),
            ]
        ),
    )
    run.refutes(
        "surrogate-minimizes-errors",
        r"\operatorname{sgn}(\widehat f^{\,\rm surr})\text{ minimizes the empirical 0--1 risk}",
    ).equal(zero_one, best, 1e-9, where="10 points (0, +1), 10 points (1, -1), one (100, +1); affine functions")


def densities(run: Run, samples: int) -> None:
    """On a Gaussian mixture by quadrature, and on histograms exactly."""
    nodes = torch.linspace(-12, 12, 4001, dtype=torch.float64)
    weights = torch.full_like(nodes, float(nodes[1] - nodes[0]))

    def mixture(share: float, center: float, width: float) -> Callable[[Tensor], Tensor]:
        def density(z: Tensor) -> Tensor:
            parts = torch.stack(
                [
                    torch.exp(-((z - c) ** 2) / (2 * s**2)) / (s * math.sqrt(2 * math.pi))
                    for c, s in ((center, width), (-1.0, 0.8))
                ]
            )
            return share * parts[0] + (1 - share) * parts[1]

        return density

    truth = mixture(0.3, 1.5, 0.5)
    p = truth(nodes)
    candidates = [truth] + [
        mixture(*(float(v) for v in (0.1 + 0.8 * u[0], 4 * u[1] - 2, 0.3 + u[2]))) for u in run.rand(30, 3)
    ]
    square, surprise, gap, divergence = [], [], [], []
    for f in candidates:
        q = f(nodes)
        square.append((weights * p * l2_density_loss(q, squared_norm(f, nodes, weights))).sum())
        surprise.append((weights * p * surprisal(q)).sum())
        gap.append((weights * (q - p).square()).sum() - (weights * p.square()).sum())
        divergence.append((weights * p * (p.log() - q.log())).sum())
    entropy = -(weights * p * p.log()).sum()
    says = run.states("A-06", r"\mathbb E[-2f(Z)+\|f\|^2_{L^2(\mu)}]=\|f-p\|^2_{L^2(\mu)}-\|p\|^2_{L^2(\mu)}")
    says.equal(torch.stack(square), torch.stack(gap), 1e-12)
    says.fails(
        "-f(Z) in place of -2f(Z)",
        torch.stack(square) + torch.stack([(weights * p * f(nodes)).sum() for f in candidates]),
    )
    says = run.states("A-06", r"\mathbb E[-\log f(Z)]=\mathrm{KL}(p\|f)+H(p)")
    says.equal(torch.stack(surprise), torch.stack(divergence) + entropy, 1e-12)
    says.fails(
        "KL(f‖p), the other way round",
        torch.stack(surprise),
        promised=torch.stack([(weights * f(nodes) * (f(nodes).log() - p.log())).sum() + entropy for f in candidates]),
    )
    says = run.states("A-06", r"\text{both risks are least at } f=p: \text{ excess over it}")
    says.at_least(torch.stack([*(s - square[0] for s in square), *(s - surprise[0] for s in surprise)]), 0, 1e-12)
    says.fails("another density than p as the best", torch.stack([s - square[1] for s in square]))
    z, edges = run.rand(samples).square(), torch.linspace(0, 1, 9, dtype=torch.float64)
    heights, widths, bins = histogram(z, edges), edges.diff(), which_bin(z, edges)
    others = heights * torch.exp(0.3 * run.randn(300, len(heights)))
    others = others / (others * widths).sum(1, keepdim=True)

    def empirical(f: Tensor) -> tuple[Tensor, Tensor]:
        return (
            l2_density_loss(f[bins], (widths * f.square()).sum()).mean(),
            surprisal(f[bins]).mean(),
        )

    least = empirical(heights)
    pairs = [empirical(f) for f in others]
    flat = empirical(torch.ones_like(heights))
    says = run.states(
        "A-06", r"\text{on the sample, among densities constant on the bins, both are least at }n_b/(nw_b)"
    )
    says.at_least(
        torch.stack([part for pair in pairs for part in pair]),
        torch.stack([part for _ in pairs for part in least]),
        1e-12,
    )
    says.fails(
        "the uniform density as the best",
        torch.stack([part for pair in pairs for part in pair]),
        promised=torch.stack([part for _ in pairs for part in flat]),
    )


def plot_surrogate(axes: Any) -> None:
    left, right = axes[0]
    m = torch.linspace(-3, 3, 601, dtype=torch.float64)
    one = torch.ones_like(m)
    left.plot(m, logistic_surrogate(m, one) / math.log(2), label=r"$\log_2(1+e^{-m})$")
    left.plot(m, zero_one_loss(m, one), label="0-1 loss")
    left.plot(m, quadratic_loss(m, one), color="0.6", linewidth=1, label=r"quadratic, $(m-1)^2$")
    left.set(xlabel=r"margin $m=y\,f(x)$", ylabel="loss", ylim=(-0.1, 4.5))
    left.legend()
    w, b = (float(v) for v in affine_minimizer())
    spots = torch.linspace(-5, 105, 200, dtype=torch.float64)
    right.plot(spots, torch.sigmoid(w * spots + b), label=r"$P(y=+1)$ at the minimizer")
    right.axhline(0.5, color="0.5", linewidth=0.8)
    for place, label, count in ((0, 1, 10), (1, -1, 10), (100, 1, 1)):
        color = COLORS[2] if label > 0 else COLORS[1]
        right.scatter([place], [(label + 1) / 2], s=20 + 8 * count, color=color, zorder=3)
    right.annotate("10 points, +1", (0, 1), xytext=(12, 0), textcoords="offset points", va="center")
    right.annotate("10 points, -1", (1, 0), xytext=(12, 0), textcoords="offset points", va="center")
    right.annotate("1 point, +1", (100, 1), xytext=(-8, 3), textcoords="offset points", ha="right")
    right.set(xlabel="x", ylabel="label and probability", ylim=(-0.1, 1.15))
    right.legend(loc="lower right", bbox_to_anchor=(1.0, 0.1))
