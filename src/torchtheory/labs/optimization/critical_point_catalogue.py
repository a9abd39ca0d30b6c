"""Every kind of stationary point, from a curve with all of them to a network's own weights."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.models.problem import Problem
from torchtheory.nets.feedforward import dense
from torchtheory.optimization.descent.iterates import gradient_descent
from torchtheory.optimization.descent.objectives import objective_of
from torchtheory.optimization.landscape.critical_points import Label, landscape_probe
from torchtheory.optimization.linear_networks.deep import deep_linear_function, flat_layers
from torchtheory.optimization.linear_networks.degenerate_saddles import product_risk
from torchtheory.optimization.linear_networks.second_moments import (
    Covariances,
    reduced_rank_regression,
)
from torchtheory.optimization.linear_networks.two_layer_critical_points import (
    linear_critical_points,
)

#: Places, heights and second derivatives of the curve; between them it is of degree five.
NODES = (
    (-1.5, 3.0, -2.0), (0.0, 2.0, 0.0), (1.0, 2.0, 0.0), (2.2, 0.0, 4.0), (3.2, 1.2, 0.0),
    (4.2, 1.2, 0.0), (5.4, 0.0, 4.0), (6.6, 2.2, -5.0), (7.7, 0.9, 4.0), (8.8, 1.9, -4.0),
    (9.9, 0.6, 4.0), (11.4, 3.0, -2.0),
)  # fmt: skip

#: The same for the shape of Figure 4.2: no minima but global ones, and a way down from everywhere.
ALLOWED = (
    (-1.5, 3.0, -2.0), (0.0, 2.0, 0.0), (1.0, 2.0, 0.0), (2.2, 0.0, 4.0), (3.2, 1.2, 0.0),
    (4.2, 1.2, 0.0), (5.4, 0.0, 4.0), (7.2, 1.4, 0.0), (8.6, 1.4, 0.0), (9.9, 2.2, 0.0),
    (11.4, 3.0, -2.0),
)  # fmt: skip

#: The letters of Figure 4.1, where they are and what they are.
LETTERS: tuple[tuple[str, float, Label], ...] = (
    ("a", 0.5, "plateau"),
    ("b", 2.2, "global minimum"),
    ("c", 3.7, "plateau"),
    ("d", 5.4, "global minimum"),
    ("e", 6.6, "local maximum"),
    ("f", 7.7, "local minimum"),
    ("g", 8.8, "local maximum"),
    ("h", 9.9, "local minimum"),
)


@lab(
    "critical-point-catalogue",
    room="optimization",
    covers=["B-28", "L-145"],
    title="Plateaus, minima, maxima, strict and degenerate saddles, told apart",
    errata=["saddle-needs-indefinite-hessian"],
    full={"starts": 400, "width": 3},
    least={"starts": 10, "width": 2},
)
def critical_point_catalogue(run: Run, starts: int = 50, width: int = 2) -> None:
    """A stationary point is classified by its Hessian where that decides, and by a search for lower
    and higher values around it where it does not.

    The classifier meets a curve with two plateaus, two global minima, two maxima and two other
    minima (the source's Figure 4.1, whose curve is not given), the classical degenerate examples,
    and all critical points of a two-layer linear network, whose labels are known exactly. In the
    shape of Figure 4.2, with plateaus and saddles but no other minima, a path that never rises
    leads from everywhere to a global minimum; gradient descent may still stop on a plateau. Look at
    both curves, and at where gradient descent ends on them.

    Args:
        starts: of descent on the curve.
        width: of the two-layer network.
    """
    probes = [probe(run, x) for _, x, _ in LETTERS]
    says = run.states("B-28", r"\text{all eight points of Figure 4.1 get their label}")
    says.equal(sum(p.label == label for p, (_, _, label) in zip(probes, LETTERS, strict=True)), len(LETTERS))
    says.fails(
        "the infimum not known: a global minimum cannot be told from a local one",
        sum(probe(run, x, infimum=None).label == label for _, x, label in LETTERS),
    )
    examples(run)
    two_layers(run, width)
    ends = descent_on_curve(run, starts)
    begin = torch.linspace(-1.4, 11.3, starts).double()[:, None]
    stopped = gradient_descent(lambda t: curve(t, ALLOWED), begin, 0.05, 250).points[-1, :, 0]
    never_rising(run)
    run.table(
        "figure-4-1",
        ["point", "label", "decided by", "second derivative", "negative eigenvalues, from", "to"],
        [
            (letter, p.label, p.evidence, float(p.eigenvalues[0]), *p.index)
            for p, (letter, _, _) in zip(probes, LETTERS, strict=True)
        ],
    )
    run.figure(
        "figure-4-1",
        lambda axes: plot_curves(axes, ends, stopped),
        grid=(2, 1),
        size=(8, 6.4),
        caption="Above: one curve with every kind of stationary point of one variable. Below: the "
        "shape that theorems on benign landscapes allow, without minima that are not global. Ticks "
        "at the bottom of each: where gradient descent from evenly spread starts has ended.",
    )


def curve(theta: Tensor, through: Sequence[tuple[float, float, float]] = NODES) -> Tensor:
    """The function of `[..., 1]` with given heights and curvatures, and slope 0, at the nodes."""
    x = theta[..., 0]
    nodes = torch.tensor(through, dtype=x.dtype)
    left = (torch.searchsorted(nodes[:, 0].contiguous(), x.detach()) - 1).clamp(0, len(nodes) - 2)
    at, low, bend = nodes[left].unbind(-1)
    end, high, other = nodes[left + 1].unbind(-1)
    wide = end - at
    s = (x - at) / wide
    rise = s**3 * (10 - 15 * s + 6 * s**2)
    first = s**2 / 2 * (1 - s) ** 3
    second = s**3 / 2 * (1 - s) ** 2
    return low + (high - low) * rise + wide**2 * (bend * first + other * second)


def probe(run: Run, x: float, infimum: float | None = 0.0) -> Any:
    point = torch.tensor([x], dtype=torch.float64)
    return landscape_probe(curve, point, infimum=infimum, radius=0.2, generator=run.generator)


def examples(run: Run) -> None:
    """Points that second order calls right, and points where it is silent."""
    zero, pair = torch.zeros(1).double(), torch.zeros(2).double()
    cases: list[tuple[str, Any, Tensor, Label]] = [
        ("(1 - u²)²", lambda u: (1 - u[..., 0] ** 2) ** 2, zero, "local maximum"),
        ("(1 - u³)²", lambda u: (1 - u[..., 0] ** 3) ** 2, zero, "degenerate saddle"),
        ("u⁴", lambda u: u[..., 0] ** 4, zero, "local minimum"),
        ("-u⁴", lambda u: -(u[..., 0] ** 4), zero, "local maximum"),
        ("u² - v²", lambda u: u[..., 0] ** 2 - u[..., 1] ** 2, pair, "strict saddle"),
        ("u² - v⁴", lambda u: u[..., 0] ** 2 - u[..., 1] ** 4, pair, "degenerate saddle"),
        ("-u², v free", lambda u: -(u[..., 0] ** 2), pair, "local maximum"),
        ("-u² + v⁴", lambda u: u[..., 1] ** 4 - u[..., 0] ** 2, pair, "strict saddle"),
        ("u² - v", lambda u: u[..., 0] ** 2 - u[..., 1], pair, "not stationary"),
        (
            "three factors",
            product_risk(1.0, 1.0, 1.0),
            torch.zeros(3).double(),
            "degenerate saddle",
        ),
        ("two factors", product_risk(1.0, 1.0, 1.0), pair, "strict saddle"),
    ]
    found = [landscape_probe(f, at, generator=run.generator) for _, f, at, _ in cases]
    one_start = [landscape_probe(f, at, radius=1e-7, generator=run.generator) for _, f, at, _ in cases]
    says = run.states(["B-28", "L-145"], r"\text{labels at the origin of eleven functions, degenerate ones among them}")
    says.equal(sum(p.label == c[3] for p, c in zip(found, cases, strict=True)), len(cases))
    says.fails(
        "a ball so small that its values differ by less than rounding",
        sum(p.label == c[3] for p, c in zip(one_start, cases, strict=True)),
    )
    run.table(
        "examples",
        ["function", "label", "decided by", "least eigenvalue", "largest eigenvalue"],
        [
            (name, p.label, p.evidence, float(p.eigenvalues[0]), float(p.eigenvalues[-1]))
            for (name, *_), p in zip(cases, found, strict=True)
        ],
    )
    three = found[9]
    assert three.lower is not None
    says = run.states("L-145", r"(1-w_3w_2w_1)^2 \text{ is lower somewhere near the origin, where its Hessian is } 0")
    says.below(
        float(product_risk(1.0, 1.0, 1.0)(three.lower)),
        three.value,
        where="a saddle is a stationary point that is neither minimum nor maximum",
    )
    says.fails("1 + (w₃w₂w₁)², of which the origin is a minimum, at the same place", float(1 + three.lower.prod() ** 2))
    run.refutes("saddle-needs-indefinite-hessian", r"\text{the Hessian at a saddle has a negative eigenvalue}").below(
        float(three.eigenvalues[0]), 0, where="the origin of (1 - w₃w₂w₁)², which has lower and higher points around it"
    )


def two_layers(run: Run, width: int) -> None:
    """Labels of the classifier against those of the theorem; then a network of torch."""
    x = run.randn(40, 4)
    y = x @ run.randn(4, 3) * torch.tensor([2.0, 1.0, 0.5]).double() + 0.1 * run.randn(40, 3)
    moments = Covariances.from_samples(x, y)
    width = min(width, 3)
    function = deep_linear_function((4, width, 3), moments)
    infimum = reduced_rank_regression(moments, width).value
    points = [p for r in range(width + 1) for p in linear_critical_points(moments, width, rank=r)]
    probes = [
        landscape_probe(function, flat_layers([p.V.T, p.U]), infimum=infimum, generator=run.generator) for p in points
    ]
    beside = [landscape_probe(function, flat_layers([p.V.T, p.U + 0.1]), infimum=infimum) for p in points]
    says = run.states(["B-28", "L-145"], r"\text{labels of all critical points of a two-layer linear network}")
    says.equal(sum(p.label == q.label for p, q in zip(points, probes, strict=True)), len(points))
    says.fails("beside the points", sum(p.label == q.label for p, q in zip(points, beside, strict=True)))
    wrong = [not q.index[0] <= p.index <= q.index[1] for p, q in zip(points, probes, strict=True)]
    run.states("B-28", r"\text{the number of negative eigenvalues is within what rounding allows}").equal(sum(wrong))
    saddle = points[1]
    net = nn.Sequential(dense(saddle.V.T), dense(saddle.U))
    kept = [p.clone() for p in net.parameters()]
    loss, theta = objective_of(Problem(net, (x, y), task="regression"))
    own = landscape_probe(loss, theta)
    assert own.direction is not None
    down = [float(loss(theta + t * own.direction).detach()) for t in (0.05, -0.05)]
    up = [float(loss(theta - t * theta / theta.norm()).detach()) for t in (0.05, -0.05)]
    same = all(bool((a == b).all()) for a, b in zip(kept, net.parameters(), strict=True))
    says = run.states("L-145", r"\text{at a saddle of a network in torch the loss falls along the direction found}")
    says.below(down, own.value, where=f"found to be a {own.label}; the network is {'as it was' if same else 'changed'}")
    says.fails("along the weights themselves", up)


def descent_on_curve(run: Run, starts: int) -> Tensor:
    """Gradient descent from evenly spread starts: where it ends."""
    start = torch.linspace(-1.4, 11.3, starts).double()[:, None]
    done = gradient_descent(curve, start, 0.05, 250)
    ends = done.points[-1, :, 0]
    low, high = NODES[1][0], NODES[2][0]
    flat = ((start[:, 0] > low) & (start[:, 0] < high)).nonzero()[:, 0]
    edge = torch.tensor([[high + 0.15]]).double()
    says = run.states("B-28", r"\text{gradient descent does not leave the inside of a plateau}")
    says.equal(ends[flat], start[flat, 0], 1e-9)
    says.fails("from just beyond its edge", gradient_descent(curve, edge, 0.05, 250).points[-1, 0], promised=edge[0])
    return ends


def never_rising(run: Run) -> None:
    """From how many points of a curve a path that never rises leads to its infimum."""
    x = torch.linspace(-1.5, 11.4, 2581).double()  # every node is one of them

    def lead_down(nodes: Sequence[tuple[float, float, float]]) -> float:
        values = curve(x[:, None], nodes).tolist()
        least = min(values) + 1e-9

        def one_way(heights: list[float]) -> list[bool]:
            """Whether going on towards the first of them never rises before the infimum."""
            found = [heights[0] <= least]
            for before, here in itertools.pairwise(heights):
                found.append(here <= least or (found[-1] and before <= here + 1e-12))
            return found

        # a path on a line gains nothing by turning: it goes one way or the other
        left, right = one_way(values), one_way(values[::-1])[::-1]
        return sum(map(max, left, right)) / len(x)

    says = run.states(
        "B-28",
        r"\text{Figure 4.2: from every point a path that never rises leads to a global minimum: share of the points}",
    )
    says.equal(lead_down(ALLOWED), 1, where=f"{len(x)} points; plateaus are slid along")
    says.fails("the curve of Figure 4.1, with local minima", lead_down(NODES))


def plot_curves(axes: Any, ends: Tensor, stopped: Tensor) -> None:
    upper, lower = axes[:, 0]
    x = torch.linspace(-1.5, 11.4, 800).double()
    for axis, nodes, places in ((upper, NODES, ends), (lower, ALLOWED, stopped)):
        axis.plot(x, curve(x[:, None], nodes), color="0.4", linewidth=1.4)
        axis.plot(places, torch.full_like(places, -0.35), "|", color="black", markersize=9)
        axis.set(xlabel="θ", ylabel="h(θ)", ylim=(-0.55, 3.2))
        axis.annotate("ends of gradient descent", (-1.4, -0.25), fontsize=8, va="bottom")
    colors = {
        "plateau": COLORS[4],
        "global minimum": COLORS[2],
        "local maximum": COLORS[1],
        "local minimum": COLORS[0],
    }
    seen = set()
    for letter, at, label in LETTERS:
        height = float(curve(torch.tensor([at]).double()))
        new = None if label in seen else label
        seen.add(label)
        upper.plot(at, height, "o", color=colors[label], markersize=7, label=new)
        upper.annotate(letter, (at, height), xytext=(0, 8), textcoords="offset points", ha="center")
    upper.legend(loc="upper center", ncols=2)
    upper.set_title("Figure 4.1: everything there is")
    lower.set_title("Figure 4.2: global minima, plateaus and saddles alone")
