"""Compositions: depth that follows the structure, and what it saves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.approximation.certificates import Approximant, network_size
from torchtheory.approximation.depth.compositional import (
    SmoothFunction,
    bilinear_network,
    composite_network,
    tree_network,
    tree_values,
)
from torchtheory.approximation.layer_maps import relu_chain
from torchtheory.approximation.network_calculus import deepen
from torchtheory.approximation.piecewise.interpolants import relu_interpolant
from torchtheory.approximation.polynomials.relu import Polynomial, polynomial_values
from torchtheory.approximation.polynomials.squaring import square_network
from torchtheory.approximation.targets import Function
from torchtheory.expressivity.bounds import curvature_floor, least_units
from torchtheory.labs.engine import COLORS, Run, fit_slope, lab

SINE = SmoothFunction(torch.sin, lambda k: 1.0)
COSINE = SmoothFunction(torch.cos, lambda k: 1.0)
DECAY = SmoothFunction(lambda x: torch.exp(x - 1), lambda k: 1.0)

#: inputs of the binary trees
TREES = (4, 8, 16)

#: name, functions from the outermost on, polynomial of at most 1 on the cube
CHAINS: tuple[tuple[str, tuple[SmoothFunction, ...], Polynomial], ...] = (
    ("sin cos xy", (SINE, COSINE), {(1, 1): 1.0}),
    ("exp(sin((x²y - z)/2) - 1)", (DECAY, SINE), {(2, 1, 0): 0.5, (0, 0, 1): -0.5}),
)


@lab(
    "compositional-functions",
    room="approximation",
    covers=["X-51", "X-52"],
    title="Networks that follow a composition: polylogarithmic chains, trees without the curse",
    errata=["composite-depth"],
    full={"digits": 4, "cells": 16, "points": 5000},
    least={"digits": 2, "cells": 8, "points": 50},
)
def compositional_functions(run: Run, digits: int = 2, cells: int = 8, points: int = 500) -> None:
    """Chains g₁∘…∘gₖ∘l by Taylor polynomials, and binary trees of functions of two variables.

    Measured errors stay below the certificates handed on through Lipschitz constants; a polynomial
    that leaves [-1, 1], or a curvature that was understated, breaks them. Twice the digits cost a
    chain a bounded factor, where one hidden layer needs a power of 1/ε at least. A tree's weights
    are those of its d - 1 nodes, with the same exponent of 1/ε whatever d. Look at the right
    panel: the lines of 4, 8 and 16 inputs are parallel.

    Args:
        digits: accuracies 1e-2, 1e-4, ... per chain, so many of them.
        cells: per node of a tree and direction, at most.
        points: random points at which errors are measured.
    """
    chains(run, digits, points)
    fixed_depth(run)
    too_many_layers(run)
    rows = trees(run, cells, points)
    run.figure(
        "trees",
        lambda axes: plot(axes, rows),
        grid=(1, 3),
        caption="Left: the tree of d = 8 inputs and 7 nodes. Middle: promised (lines) and measured "
        "(marks) errors of trees of smooth nodes. Right: their weights against the promise, with "
        "the numbers of values a full grid of d variables takes (dashed).",
    )


def chain_values(outer: Sequence[SmoothFunction], inner: Polynomial, x: Tensor) -> Tensor:
    made = polynomial_values(inner, x)
    for g in reversed(outer):
        made = g.function(made)
    return made


def chains(run: Run, digits: int, points: int) -> None:
    """Certificates and sizes of chains."""
    promised, measured, wanted, rows = [], [], [], []
    sizes: dict[str, list[int]] = {}
    for name, outer, inner in CHAINS:
        d = len(next(iter(inner)))
        x = 2 * run.rand(points, d) - 1
        sizes[name] = []
        for j in range(1, digits + 1):
            error = 10.0 ** (-2 * j)
            a = composite_network(outer, inner, error)
            promised.append(a.bound)
            wanted.append(error)
            measured.append(float((a(x) - chain_values(outer, inner, x)).abs().max()))
            sizes[name].append(a.size.units)
            rows.append((name, error, a.bound, measured[-1], a.size.depth, a.size.units))
    large: Polynomial = {(1, 1): 3.0}
    x = 2 * run.rand(points, 2) - 1
    wrong = composite_network((SINE, COSINE), large, 1e-2)
    says = run.states("X-51", r"\sup|\Phi-g_1\circ\dots\circ g_k\circ l|\le\text{certificate}")
    says.at_most(measured, promised)
    says.fails(
        "l = 3xy, which leaves [-1, 1]",
        float((wrong(x) - chain_values((SINE, COSINE), large, x)).abs().max()),
        promised=wrong.bound,
    )
    run.states("X-51", r"\text{certificate}\le\epsilon").at_most(promised, wanted)
    floors = [least_units(math.ceil((8 * 10.0 ** (-2 * j)) ** -0.5), 1) for j in (1, 2)]
    says = run.states(
        "X-51",
        r"N\lesssim\mathrm{polylog}(1/\epsilon): \text{ neurons at }\epsilon^2 \text{ over neurons "
        r"at }\epsilon=10^{-2}",
    )
    says.at_most([row[1] / row[0] for row in sizes.values()], 8.0, where="log³ would be 8")
    says.fails("one hidden layer: the least that x² needs, $(8ε)^{-1/2}$ pieces", floors[1] / floors[0])
    run.table(
        "chains",
        ["function", "ε", "certificate", "measured", "depth", "neurons"],
        rows,
        caption="Chains of Taylor polynomials",
    )


def fixed_depth(run: Run) -> None:
    """Why a fixed depth needs a power of 1/ε: each affine piece leaves its share."""
    x = torch.linspace(0, 1, (1 << 14) + 1, dtype=torch.float64)
    pieces = [2, 4, 8, 16, 64]
    best = []
    for p in pieces:
        gap = relu_interpolant(torch.square, p, curvature=2.0)(x) - x**2
        best.append(float((gap - gap.max() / 2).abs().max()))
    deep = square_network(5)
    gap = deep(x) - x**2
    folded = float((gap - gap.max() / 2).abs().max())
    says = run.states(
        "X-51", r"p \text{ affine pieces on } [0,1]:\ \sup|f-x^2|\ge\tfrac1{8p^2}, \text{ attained by equal pieces}"
    )
    says.equal(best, [curvature_floor(2.0, 1.0, p) for p in pieces], 1e-9)
    says.fails(
        "a deep network, its pieces counted as if its units lay in one layer",
        folded,
        promised=curvature_floor(2.0, 1.0, deep.size.units + 1),
    )


def too_many_layers(run: Run) -> None:
    """Networks of 1/ε layers have at least as many neurons."""
    layers = 256
    network = square_network(4).network
    assert isinstance(network, nn.Sequential)
    size = network_size(deepen(network, layers))
    run.refutes(
        "composite-depth",
        r"L=\lceil1/\epsilon\rceil \text{ layers have } N\le(\log_2\tfrac1\epsilon)^2 \text{ neurons}",
    ).at_most(
        size.units, math.log2(layers) ** 2, where=f"{size.depth} layers for ε = 1/256: a neuron a layer is the least"
    )


def smooth_nodes(run: Run, count: int) -> list[Function]:
    """sin(αa + βb) with α, β between 1/2 and 1: 2-Lipschitz in the sup norm, curvature 1."""
    factors = 0.5 + 0.5 * run.rand(count, 2)
    return [lambda x, w=w: torch.sin(x @ w) for w in factors]  # type: ignore[misc]


def rough_nodes(run: Run, count: int) -> list[Function]:
    """|αa - βb| - 1 has a kink: Lipschitz, and no more."""
    factors = 0.5 + 0.5 * run.rand(count, 2)
    return [
        lambda x, w=w: (x[:, 0] * w[0] - x[:, 1] * w[1]).abs() - 1  # type: ignore[misc]
        for w in factors
    ]


def build(nodes: list[Function], inputs: int, cells: int, levels: int, **smoothness: float) -> Approximant:
    parts = [bilinear_network(f, cells, levels, **smoothness) for f in nodes]
    return tree_network(parts, inputs, lipschitz=2.0)


def pushed_tree(steep: int, inputs: int, delta: float = 0.01) -> tuple[float, float]:
    """Error and bound for nodes λ(a + b)/2, clipped to [-1, 1], whose networks are δ too high everywhere."""

    def node(x: Tensor) -> Tensor:
        return (steep * x.mean(1)).clamp(-1, 1)

    inner = torch.full((2, 2), steep / 2, dtype=torch.float64), torch.tensor([1.0, -1.0], dtype=torch.float64)
    outer = torch.tensor([[1.0, -1.0]], dtype=torch.float64), torch.tensor([delta - 1.0], dtype=torch.float64)
    high = Approximant(relu_chain([inner, outer]), delta, ((-1.0, 1.0),) * 2, "X-52")
    made = tree_network([high] * (inputs - 1), inputs, lipschitz=steep)
    x = torch.zeros(1, inputs, dtype=torch.float64)
    return float((made(x) - tree_values([node] * (inputs - 1), x)).abs().max()), made.bound


def trees(run: Run, cells: int, points: int) -> dict[int, list[tuple[int, float, float, int]]]:
    """Errors and weights of trees over 4, 8 and 16 inputs."""
    rows: dict[int, list[tuple[int, float, float, int]]] = {}
    grids = [m for m in (2, 4, 8, 16) if m <= cells]
    rough_promised, rough_measured = [], []
    for d in TREES:
        nodes = smooth_nodes(run, d - 1)
        x = 2 * run.rand(points, d) - 1
        rows[d] = []
        for m in grids:
            a = build(nodes, d, m, 4, curvature=1.0)
            error = float((a(x) - tree_values(nodes, x)).abs().max())
            rows[d].append((m, a.bound, error, a.size.parameters))
        rough = rough_nodes(run, d - 1)
        b = build(rough, d, cells, 4, lipschitz=1.0)
        rough_promised.append(b.bound)
        rough_measured.append(float((b(x) - tree_values(rough, x)).abs().max()))
    nodes, x = smooth_nodes(run, 3), 2 * run.rand(points, 4) - 1
    wrong = build(nodes, 4, 2, 6, curvature=0.01)
    pushed = [pushed_tree(steep, inputs) for steep in (1, 2) for inputs in (4, 8)]
    says = run.states(
        "X-52",
        r"\text{nodes within }\delta,\ \lambda\text{-Lipschitz}:\ \sup|\Phi-f|\le\delta\sum_{k<\log_2d}\lambda^k",
    )
    says.at_most(
        [r[2] for row in rows.values() for r in row] + rough_measured + [error for error, _ in pushed],
        [r[1] for row in rows.values() for r in row] + rough_promised + [bound for _, bound in pushed],
        1e-12,
        where="networks of smooth and of rough nodes, and means and sums whose nodes all err by δ upwards",
    )
    says.fails(
        "a curvature of 1 given as 0.01", float((wrong(x) - tree_values(nodes, x)).abs().max()), promised=wrong.bound
    )
    per_node, boxes = [], []
    for d in TREES[1:]:
        for i, m in enumerate(grids):
            per_node.append(rows[d][i][3] / (d - 1) / (rows[4][i][3] / 3))
            boxes.append((m + 1) ** d / (d - 1) / ((m + 1) ** 4 / 3))
    says = run.states("X-52", r"M\lesssim(d-1)\,M_{\text{node}}: \text{ weights a node, } d=8,16 \text{ over } d=4")
    says.at_most(per_node, 1.05, where="5 % for the clipping between the levels")
    says.fails("values on the full grid of d variables, a node", boxes)
    for d in TREES:
        slope = fit_slope([1 / r[1] for r in rows[d]], [float(r[3]) for r in rows[d]])
        full = fit_slope([1 / r[1] for r in rows[d]], [float((r[0] + 1) ** d) for r in rows[d]])
        says = run.states("X-52", rf"M\lesssim\epsilon^{{-2/n}},\ n=2,\ d={d}: \text{{ exponent of }} 1/\epsilon")
        says.at_most(
            slope.estimate,
            1.0,
            where="at these sizes the products, a number of weights for each of the m + 1 "
            "columns, still outweigh the m² values",
        )
        says.fails("values on the full grid, without the tree", full.estimate)
    run.table(
        "trees",
        ["d", "cells a node", "promised", "measured", "weights"],
        [(d, *r) for d, row in rows.items() for r in row],
        caption="Trees of nodes sin(αa + βb)",
    )
    return rows


def plot(axes: Any, rows: dict[int, list[tuple[int, float, float, int]]]) -> None:
    left, middle, right = axes[0]
    draw_tree(left)
    for color, mark, (d, row) in zip(COLORS, "os^", rows.items(), strict=False):
        cells = [r[0] for r in row]
        promised = [r[1] for r in row]
        middle.loglog(cells, promised, color=color, linewidth=0.8)
        # errors of 4 and of 8 inputs may coincide: a smaller mark on a larger one
        size = 10 - d // 3
        middle.loglog(cells, [r[2] for r in row], mark, color=color, ms=size, label=f"d = {d}")
        right.loglog(promised, [r[3] for r in row], f"{mark}-", color=color, label=f"tree, d = {d}")
        full = [float(m + 1) ** d for m in cells]
        right.loglog(promised, full, "--", color=color, label=f"grid, d = {d}")
    middle.set(xlabel="cells a node and direction", ylabel="sup error", title="error")
    middle.set_xticks(cells, [str(m) for m in cells])
    middle.minorticks_off()
    middle.legend()
    right.set(xlabel="promised error", title="weights")
    right.invert_xaxis()
    right.legend()


def draw_tree(axis: Any) -> None:
    names: list[Callable[[int], str]] = [
        lambda i: f"$x_{i + 1}$",
        lambda i: f"$f_{{1{i + 1}}}$",
        lambda i: f"$f_{{2{i + 1}}}$",
        lambda i: "$f_3$",
    ]
    for level, label in enumerate(names):
        count = 8 >> level
        for i in range(count):
            x = (i + 0.5) * 8 / count
            if level < 3:
                axis.plot([x, (i // 2 + 0.5) * 16 / count], [level, level + 1], color="0.6",
                          linewidth=0.9, zorder=1)  # fmt: skip
            axis.scatter([x], [level], s=330, color="white", edgecolors=COLORS[level], zorder=2)
            axis.text(x, level, label(i), ha="center", va="center", fontsize=8, zorder=3)
    axis.set(xlim=(0, 8), ylim=(-0.5, 3.5))
    axis.set_axis_off()
