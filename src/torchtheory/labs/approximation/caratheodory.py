"""A mixture of many elements is near a mixture of few; a wide network, near one percent of it."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from torchtheory.approximation.barron.caratheodory import PrunedNetwork, few_terms, prune_units
from torchtheory.approximation.barron.maurey import maurey_average, maurey_error
from torchtheory.approximation.barron.sampled_networks import ball_points
from torchtheory.approximation.network_calculus import chain
from torchtheory.labs.engine import Run, lab, mean_interval
from torchtheory.nets.feedforward import affine_layers

TERMS = (1, 2, 5, 10, 20, 50, 100)


@lab(
    "caratheodory-pruning",
    room="approximation",
    covers=["A-141", "A-142"],
    title="k of many elements stand for all within C/√k, so one percent of a wide layer may do",
    errata=["caratheodory-mass-twice"],
    full={"widths": (200, 1000, 5000, 20_000, 50_000), "draws": 4000},
    least={"draws": 30, "widths": 100},
    items={"widths": 3},
)
def caratheodory_pruning(run: Run, widths: tuple[int, ...] = (200, 1000, 5000, 10_000), draws: int = 300) -> None:
    """Terms of a mixture are chosen at random and one by one; then units of wide ReLU layers.

    Random terms have the promised error in the mean square, greedy ones always. Networks of
    `widths` units keep one percent of them, with the same inner weights: at least 99 % of the
    parameters are 0 and the error is below M/√k ≤ 15‖w‖₁/√n. Keeping the units of largest weight
    instead, at equal sparsity, breaks the first bound, inner weights longer than 1/2 the second.
    Look at the figure: the greedy choice is far better than promised, magnitude pruning far worse.

    Args:
        draws: random choices of terms.
    """
    lemma(run, draws)
    rows = [[n, *pruned(run, n)] for n in widths]
    proposition(run, rows)
    rescaled(run)
    misprint(run)
    units, thinned, random, largest, promised, certificate, *_ = zip(*rows, strict=True)
    run.curves(
        "pruning",
        units,
        {"one by one": thinned, "at random": random, "largest outer weights": largest},
        {"promised $15/\\sqrt{n}$": promised, "certificate $M/\\sqrt{k}$": certificate},
        axes=("units $n$ of the wide network", r"error / $\|w\|_1$"),
        log="xy",
        beside=True,
        caption="One percent of the units of a ReLU layer, unit inner weights of length 1/2 and "
        "outer weights of one sign: root mean square change over the ball, relative to ‖w‖₁.",
    )


def lemma(run: Run, draws: int) -> None:
    """Points in 40 dimensions with signed weights."""
    weights = run.randn(120)
    # signs that agree with the weights' on average: ‖g‖² is half of E‖f‖², not a negligible part
    points = run.randn(120, 40) + weights.sign()[:, None]
    points = points / points.norm(dim=1, keepdim=True)
    mass = float(weights.abs().sum())
    greedy = [few_terms(points, weights, k) for k in TERMS]
    exact = [maurey_error(points, weights, k) for k in TERMS]
    # heavy terms on one side, light ones on the other: a choice by weight sees only the first
    heavy = torch.where(weights.abs() > weights.abs().median(), 1.0, -1.0)
    sides = points.clone()
    sides[:, 0] = torch.sign(weights) * heavy
    sides = sides / sides.norm(dim=1, keepdim=True)
    largest = [largest_terms(sides, weights, k) for k in TERMS]
    says = run.states(
        "A-141",
        r"\text{one by one: }\|g-\tfrac1k\textstyle\sum_tf_{j_t}\|\le\sqrt{(\mathbb E\|f\|^2-\|g\|^2)/k}\le C/\sqrt k",
    )
    says.at_most([s.error for s in greedy], [s.bound for s in greedy])
    says.fails(
        "the k terms of largest weight, rescaled to the same total weight, where they point "
        "another way than the light ones",
        largest,
        promised=[maurey_error(sides, weights, k).expected ** 0.5 for k in TERMS],
    )
    says = run.states(
        "A-141",
        r"C=\max_j\|f_j\|: \quad\|g-\textstyle\sum_ic_if_i\|\le C/\sqrt k\text{ with }k"
        r"\text{ terms and }\|c\|_1=1\text{ (here times }\|a\|_1)",
    )
    says.at_most([s.error for s in greedy], [mass / math.sqrt(k) for k in TERMS])
    says.fails(
        "a target outside of the convex hull",
        [float((5 * weights @ points - s.coefficients @ points).norm()) for s in greedy],
    )
    ratios: list[Tensor] = []
    biased: list[Tensor] = []
    for k, e in zip(TERMS, exact, strict=True):
        average = maurey_average(points, weights, k, draws, run.generator)
        ratios.append((average - weights @ points).square().sum(1) / e.expected)
        even = maurey_average(points, torch.sign(weights) * mass / 120, k, draws, run.generator)
        biased.append((even - weights @ points).square().sum(1) / e.expected)
    # so wide that it misses the truth once in a million runs
    right, wrong = (mean_interval(torch.cat(found), 1 - 1e-6) for found in (ratios, biased))
    says = run.states(
        "A-141",
        r"\text{at random: }\mathbb E\|g-\tfrac1k\textstyle\sum_tf_{j_t}\|^2="
        r"(\mathbb E\|f\|^2-\|g\|^2)/k\text{, ratio}",
    )
    uncentered = float(1 + (weights @ points).square().sum() / maurey_error(points, weights, 1).expected)
    says.mean(right, 1, against=(0.5, uncentered), where=f"without -‖g‖² it would be {uncentered:.2f}")
    says.fails("terms drawn with equal probabilities", wrong)
    says = run.states("A-141", r"\#\{i:c_i\ne0\}\le k,\ \|c\|_1=\|a\|_1")
    says.at_most(
        [
            *(float(s.coefficients.count_nonzero()) for s in greedy),
            *(float(s.coefficients.abs().sum()) for s in greedy),
        ],
        [*map(float, TERMS), *([mass] * len(TERMS))],
        1e-12,
    )
    says.fails("the coefficients of the long mixture", float(weights.count_nonzero()), promised=100)
    rows = [
        [k, s.error, s.bound, s.worst, math.sqrt(float(r.mean()) * e.expected)]
        for k, s, e, r in zip(TERMS, greedy, exact, ratios, strict=True)
    ]
    run.table(
        "lemma",
        ["k", "one by one", "promised", "C/√k", "at random (root mean square)"],
        rows,
        caption="Distance of 120 weighted unit vectors in 40 dimensions from k of them",
    )


def largest_terms(points: Tensor, weights: Tensor, k: int) -> float:
    kept = torch.zeros_like(weights)
    top = weights.abs().topk(k).indices
    kept[top] = weights[top] * weights.abs().sum() / weights[top].abs().sum()
    return float(((kept - weights) @ points).norm())


def wide_network(run: Run, width: int, length: float = 0.5) -> tuple[nn.Sequential, float]:
    """Inner weights of the given length, biases up to 1/2, outer weights of one sign."""
    inner = run.randn(width, 3)
    inner = length * inner / inner.norm(dim=1, keepdim=True)
    outer = 0.5 + run.rand(width)
    net = chain([(inner, 0.5 - run.rand(width)), (outer[None], torch.zeros(1).double())], [nn.ReLU()])
    return net, float(outer.sum())


def hardest() -> tuple[nn.Sequential, Tensor]:
    """199 equal units of both signs, which nearly cancel, at the point where they are largest.

    Whatever odd number of them is kept, one is left over.
    """
    inner = torch.zeros(199, 3, dtype=torch.float64)
    inner[:, 0] = 0.5
    signs = (-1.0) ** torch.arange(199, dtype=torch.float64)
    net = chain([(inner, torch.full((199,), 0.5).double()), (signs[None], torch.zeros(1).double())], [nn.ReLU()])
    return net, torch.eye(3, dtype=torch.float64)[:1]


def by_magnitude(net: nn.Sequential, keep: int, inputs: Tensor) -> float:
    """Root mean square change when the units of largest outer weight are kept as they are."""
    (inner, bias), (outer, offset) = affine_layers(net)[0]
    top = outer[0].abs().topk(keep).indices
    slim = chain([(inner[top], bias[top]), (outer[:, top], offset)], [nn.ReLU()])
    return float((slim(inputs) - net(inputs)).square().mean().sqrt())


def pruned(run: Run, width: int) -> list[float]:
    """Errors over ‖w‖₁: greedy, at random, by magnitude, the proposition; and the zeros."""
    inputs = ball_points(80, 3, generator=run.generator)
    net, mass = wide_network(run, width)
    greedy = prune_units(net, inputs)
    random = [prune_units(net, inputs, method="sample", generator=run.generator).error for _ in range(5)]
    return [
        greedy.error / mass,
        math.sqrt(sum(e * e for e in random) / 5) / mass,
        by_magnitude(net, width // 100, inputs) / mass,
        15 / math.sqrt(width),
        greedy.bound / mass,
        greedy.zero_share,
        float(greedy.units),
    ]


def proposition(run: Run, rows: list[list[float]]) -> None:
    greedy, _, magnitude, promised, certificate, zeros, _ = ([row[i] for row in rows] for i in range(1, 8))
    long, mass = wide_network(run, int(rows[0][0]), length=100.0)
    inputs = ball_points(80, 3, generator=run.generator)
    says = run.states(
        "A-142",
        r"\|w_i\|\le\tfrac12,\ b_i\le\tfrac12: \quad\|\Phi-\tilde\Phi\|_{L^2(\mu)}/\|w^{(2)}\|_1"
        r"\le15/\sqrt n\text{ with }n/100\text{ units}",
    )
    last, ball = hardest()
    alone = prune_units(last, ball)
    says.at_most(
        [*greedy, alone.error / 199],
        [*promised, 15 / math.sqrt(199)],
        where="random networks, and 199 units that all but cancel, of which one is left",
    )
    says.fails(
        "inner weights of length 100, the narrowest network",
        prune_units(long, inputs).error / mass,
        promised=promised[0],
    )
    says = run.states(
        "A-142",
        r"\text{certificate }M/\sqrt k\text{, }M=\textstyle\sum_i|w_i|(r\|a_i\|+b_i)_+"
        r"\text{: error}\le M/\sqrt k\le15\|w\|_1/\sqrt n",
    )
    says.at_most([*greedy, *certificate], [*certificate, *promised])
    says.fails(
        "as many units kept by the size of their outer weight, the widest network",
        magnitude[-1],
        promised=certificate[-1],
    )
    says = run.states("A-142", r"\text{at least 99 \% of the }n(d+2)+1\text{ parameters are 0}")
    says.at_least(zeros, 0.99)
    says.fails("one unit more than a percent", one_unit_more(run))
    run.table(
        "pruning",
        ["n", "one by one", "at random", "by magnitude", "15/√n", "certificate", "zeros", "units"],
        rows,
        caption="Root mean square change over ‖w‖₁ when one percent of the units is kept",
    )


def one_unit_more(run: Run) -> float:
    inputs = ball_points(50, 3, generator=run.generator)
    net, _ = wide_network(run, 400)
    found = [prune_units(net, inputs, keep=0.0125, method="sample", generator=seed) for seed in range(20)]
    most = max(found, key=lambda made: made.units)
    return most.zero_share


def rescaled(run: Run) -> None:
    """A network outside of the hypotheses, by rescaling its units."""
    inputs = 3 * ball_points(150, 5, generator=run.generator)
    net = chain(
        [
            (4 * run.randn(2000, 5), 3 * run.randn(2000)),
            (run.randn(1, 2000), run.randn(1)),
        ],
        [nn.ReLU()],
    )
    shares = (0.005, 0.01, 0.05, 0.2)
    made: list[PrunedNetwork] = [prune_units(net, inputs, keep=k) for k in shares]
    far = [float((m.model(100 * inputs) - net(100 * inputs)).square().mean().sqrt()) for m in made]
    says = run.states("A-142", r"\text{any weights, any radius: }\|\Phi-\tilde\Phi\|_{L^2(\mu)}\le M/\sqrt k")
    last, ball = hardest()
    thinned = [prune_units(last, ball, keep=k) for k in (0.01, 0.02)]
    says.at_most(
        [m.error for m in [*made, *thinned]],
        [m.bound for m in [*made, *thinned]],
        where="random weights, and 199 units that all but cancel, of which one or three are left",
    )
    says.fails("a measure outside of the ball: inputs a hundred times longer", far, promised=[m.bound for m in made])


def misprint(run: Run) -> None:
    """The norm of f_i, which already holds ‖w‖₁."""
    inputs = ball_points(400, 3, generator=run.generator)
    net, _ = wide_network(run, 200)
    (inner, bias), (outer, _) = affine_layers(net)[0]
    w = outer[0] / (4 * outer.abs().sum())  # ‖w‖₁ = 1/4
    f = w.abs().sum() * torch.relu(inputs @ inner.T + bias)
    sup = w.abs().sum() * (inner.norm(dim=1) + bias).clamp(min=0)
    run.refutes(
        "caratheodory-mass-twice",
        r"\|w^{(2)}\|_1=\tfrac14: \quad\|f_i\|_{L^2(\mu)}\le\|w^{(2)}\|_1\|f_i\|_{L^\infty(B_1)}",
    ).at_most(f.square().mean(0).sqrt(), w.abs().sum() * sup, 1e-12)
