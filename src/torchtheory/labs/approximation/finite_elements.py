"""Finite elements and splines are networks: the same function, number for number."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from scipy.interpolate import BSpline
from torch import Tensor

from torchtheory.approximation.certificates import box_grid, network_size
from torchtheory.approximation.piecewise.finite_elements import (
    Mesh,
    affine_pieces_around,
    convex_star,
    cube_mesh,
    finite_element_network,
    interpolate_linearly,
    line_mesh,
    nodal_network,
)
from torchtheory.approximation.piecewise.splines import spline_network
from torchtheory.labs.engine import COLORS, Run, fit_slope, lab

BOTH = ["A-102", "X-39"]


@lab(
    "finite-element-networks",
    room="approximation",
    covers=["A-102", "X-39"],
    title="Linear finite elements and B-splines are networks, exactly",
    full={"cells": 7, "points": 4000, "degrees": 6},
    least={"cells": 2, "points": 10, "degrees": 2},
)
def finite_element_networks(run: Run, cells: int = 3, points: int = 500, degrees: int = 4) -> None:
    """Nodal functions of meshes in one, two and three dimensions by minima of affine pieces.

    The networks are compared with barycentric interpolation at random points, their values in the
    nodes with the Kronecker delta, and their sum with 1; interpolants of a smooth function keep
    the error bound of the finite element method. Where the simplices around a node do not form a
    convex set, the formula fails. B-splines of every degree are compared with scipy's. Look at
    the pyramid over the convex star and at what becomes of the other one.

    Args:
        cells: of the meshes, per direction.
        points: random points.
        degrees: of the B-splines, from 1 on.
    """
    dented = dented_mesh()
    nodal_values(run, cells, points, dented)
    whole_functions(run, cells, points, dented)
    sizes(run, cells)
    rates = smooth_function(run, cells)
    splines(run, degrees)
    run.figure(
        "pyramids",
        lambda axes: plot_pyramids(axes, dented),
        grid=(1, 2),
        size=(10.0, 4.2),
        caption="max(0, min of the affine pieces) of one node. Left: the star is convex, and the "
        "nodal function is met. Right: a corner of the star has been moved inwards, and the "
        "level lines no longer follow the star (thick line).",
    )
    run.figure(
        "rates",
        lambda axes: plot_rates(axes, rates, degrees),
        grid=(1, 2),
        caption="Left: the interpolant of sin πx sin πy as a network, promised (line) and measured "
        "error. Right: B-splines as sums of powers of ReLUs.",
    )


def dented_mesh() -> Mesh:
    """The structured mesh of the square in 3 x 3 cells, with one inner node moved far."""
    mesh = cube_mesh(3, 2)
    nodes = mesh.nodes.clone()
    nodes[10] = torch.tensor([0.42, 0.5])
    return Mesh(nodes, mesh.simplices)


def formula(mesh: Mesh, node: int, x: Tensor) -> Tensor:
    """max(0, min of the affine pieces), also where the star is not convex."""
    gradients, constants = affine_pieces_around(mesh, node)
    return (x @ gradients.T + constants).amin(1).clamp(min=0)


def nodal_values(run: Run, cells: int, points: int, dented: Mesh) -> None:
    meshes = [line_mesh(run.rand(cells + 2).sort().values), cube_mesh(cells, 2), cube_mesh(2, 3)]
    delta, total, below = [], [], []
    for mesh in meshes:
        low, high = mesh.nodes.amin(0), mesh.nodes.amax(0)
        x = low + (high - low) * run.rand(points, mesh.dimension)
        basis = [nodal_network(mesh, i) for i in range(len(mesh.nodes))]
        at_nodes = torch.cat([phi(mesh.nodes) for phi in basis], dim=1)
        inside = torch.cat([phi(x) for phi in basis], dim=1)
        delta.append(float((at_nodes - torch.eye(len(basis)).double()).abs().max()))
        total.append(float((inside.sum(1) - 1).abs().max()))
        below.append(float(inside.min()))
    shifted = float((formula(meshes[1], 0, meshes[1].nodes + 0.1 / cells)[0] - 1).abs())
    says = run.states(BOTH, r"\phi_i(x_j)=\delta_{ij}: \text{ largest difference}")
    says.equal(delta, within=1e-12)
    says.fails("a tenth of a cell beside the node", shifted)
    x = run.rand(points, 2)
    gaps = sum(formula(dented, i, x) for i in range(len(dented.nodes))) - torch.ones(points)
    says = run.states(BOTH, r"\sum_i\phi_i=1: \text{ largest difference at random points, } d=1,2,3")
    says.equal(total, within=1e-12)
    says.fails("a mesh with stars that are not convex", float(gaps.abs().max()))
    says = run.states(BOTH, r"\phi_i\ge0")
    says.at_least(below, 0)
    says.fails("without the outer maximum with 0", [float(_without_maximum(meshes[1], 0, x).min())])


def _without_maximum(mesh: Mesh, node: int, x: Tensor) -> Tensor:
    gradients, constants = affine_pieces_around(mesh, node)
    return (x @ gradients.T + constants).amin(1)


def whole_functions(run: Run, cells: int, points: int, dented: Mesh) -> None:
    apart = []
    for mesh in (line_mesh(run.rand(2 * cells)), cube_mesh(cells, 2), cube_mesh(2, 3)):
        values = run.randn(len(mesh.nodes))
        low, high = mesh.nodes.amin(0), mesh.nodes.amax(0)
        x = torch.cat([low + (high - low) * run.rand(points, mesh.dimension), mesh.nodes])
        network = finite_element_network(mesh, values)
        apart.append(float((network(x)[:, 0] - interpolate_linearly(mesh, values, x)).abs().max()))
    values, x = run.randn(len(dented.nodes)), run.rand(points, 2)
    wrong = sum(float(v) * formula(dented, i, x) for i, v in enumerate(values))
    assert isinstance(wrong, Tensor)
    says = run.states(BOTH, r"\sum_iv_i\phi_i \text{ as a network}=\text{barycentric interpolation, } d=1,2,3")
    says.equal(apart, within=1e-10)
    says.fails("stars that are not convex", float((wrong - interpolate_linearly(dented, values, x)).abs().max()))


def sizes(run: Run, cells: int) -> None:
    mesh = cube_mesh(max(cells, 2), 2)
    inner = [i for i in range(len(mesh.nodes)) if 0 < mesh.nodes[i].amin() <= mesh.nodes[i].amax() < 1]
    edge = [i for i in range(len(mesh.nodes)) if i not in inner]
    hidden = [network_size(nodal_network(mesh, i)).depth - 1 for i in inner]
    says = run.states("X-39", r"\text{six simplices around a node: } \lceil\log_26\rceil+1 \text{ hidden layers}")
    says.equal(hidden, math.ceil(math.log2(6)) + 1)
    says.fails(
        "nodes of the boundary, with fewer simplices", [network_size(nodal_network(mesh, i)).depth - 1 for i in edge]
    )
    lines = [line_mesh(torch.linspace(0, 1, n + 1, dtype=torch.float64)) for n in (3, 8, 21)]
    made = [network_size(finite_element_network(m, run.randn(len(m.nodes)))) for m in lines]
    says = run.states(BOTH, r"d=1:\ \text{one hidden layer, units}\le\text{nodes}")
    says.at_most([s.units * (s.depth - 1) for s in made], [len(m.nodes) for m in lines])
    says.fails(
        "the same functions with a nodal network for each hat",
        [sum(network_size(nodal_network(m, i)).units for i in range(len(m.nodes))) for m in lines],
    )
    rows = []
    for d, n in ((2, 2), (2, cells), (3, 1), (3, 2)):
        m = cube_mesh(n, d)
        s = network_size(finite_element_network(m, run.randn(len(m.nodes))))
        rows.append((d, len(m.nodes), len(m.simplices), s.depth, s.units, s.parameters, s.largest))
    run.table(
        "sizes",
        ["d", "nodes", "simplices", "affine layers", "units", "parameters", "largest weight"],
        rows,
        caption="Finite element functions of structured meshes as networks",
    )


def smooth(x: Tensor) -> Tensor:
    return torch.sin(math.pi * x[:, 0]) * torch.sin(math.pi * x[:, 1])


def smooth_function(run: Run, cells: int) -> tuple[list[int], list[float], list[float]]:
    """A triangle with legs h lies in a disc of radius h/√2: |f - If| ≤ h²/4 max‖D²f‖."""
    counts = list(range(2, cells + 4))
    grid = box_grid(((0.0, 1.0), (0.0, 1.0)), 61)

    def kinked(x: Tensor) -> Tensor:
        return (x[:, 0] - 1 / math.pi).abs()

    errors, rough = [], []
    for n in counts:
        mesh = cube_mesh(n, 2)
        errors.append(_gap(finite_element_network(mesh, smooth(mesh.nodes)), smooth, grid))
        rough.append(float((interpolate_linearly(mesh, kinked(mesh.nodes), grid)
                            - kinked(grid)).abs().max()))  # fmt: skip
    bounds = [math.pi**2 / (4 * n * n) for n in counts]
    says = run.states("X-39", r"\sup|f-\text{network}|\le\tfrac{h^2}4\max\|D^2f\|: \text{ the finite element bound}")
    says.at_most(errors, bounds)
    says.fails(
        "|x - 1/π| bends at once, and 1 was given for its curvature", rough, promised=[1 / (4 * n * n) for n in counts]
    )
    found = fit_slope(counts, errors)
    run.note(f"the error of the interpolant falls as h to the power {-found.estimate:.2f}")
    return counts, bounds, errors


def _gap(network: torch.nn.Module, f: Any, x: Tensor) -> float:
    return float((network(x)[:, 0] - f(x)).abs().max())


def splines(run: Run, degrees: int) -> None:
    apart, plain, sums, ends = [], [], [], []
    for k in range(1, degrees + 1):
        x = torch.linspace(-0.5, k + 1.5, 401, dtype=torch.float64)
        one = BSpline.basis_element(np.arange(k + 2.0), extrapolate=False)
        exact = torch.from_numpy(np.nan_to_num(one(x.numpy())))
        net = spline_network(torch.ones(1).double(), k)
        apart.append(float((net(x.unsqueeze(1))[:, 0] - exact).abs().max()))
        if k > 1:
            net[1] = torch.nn.ReLU()
            plain.append(float((net(x.unsqueeze(1))[:, 0] - exact).abs().max()))
        many = spline_network(torch.ones(3 * k + 2).double(), k)
        inside = k + (2 * k + 2) * run.rand(200, 1)
        sums.append(float((many(inside) - 1).abs().max()))
        ends.append(float((many(k * run.rand(200, 1) * 0.9) - 1).abs().max()))
    says = run.states("X-39", rf"\tfrac1{{k!}}\sum_j(-1)^j\binom{{k+1}}j\sigma(x-j)^k=N_k(x),\ k\le{degrees}")
    says.equal(apart, within=1e-10, where="scipy's BSpline at 401 points")
    says.fails("plain ReLUs in place of their powers", plain)
    says = run.states("X-39", r"\sum_jN_k(x-j)=1 \text{ where all splines over } x \text{ are present}")
    says.equal(sums, within=1e-9)
    says.fails("on the first k intervals, where some are missing", ends)


def plot_pyramids(axes: Any, dented: Mesh) -> None:
    grid = box_grid(((0.0, 1.0), (0.0, 1.0)), 161)
    plain = cube_mesh(3, 2)
    wrong = next(i for i in range(len(dented.nodes)) if not convex_star(dented, i))
    for panel, mesh, node in ((axes[0, 0], plain, 5), (axes[0, 1], dented, wrong)):
        values = formula(mesh, node, grid).reshape(161, 161).T
        side = torch.linspace(0, 1, 161)
        shown = panel.contourf(side, side, values, levels=np.linspace(0, 1, 11), cmap="Blues")
        panel.triplot(*mesh.nodes.T, mesh.simplices, color="0.55", linewidth=0.7)
        star = mesh.simplices[(mesh.simplices == node).any(1)]
        for simplex in star.tolist():
            a, b = (mesh.nodes[i] for i in simplex if i != node)
            panel.plot(*torch.stack([a, b]).T, color=COLORS[1], linewidth=2.2)
        panel.plot(*mesh.nodes[node], "o", color=COLORS[1])
        panel.set(title="convex star" if mesh is plain else "star with a dent", aspect="equal")
        panel.set(xlabel="$x_1$", ylabel="$x_2$")
        panel.grid(visible=False)
        panel.figure.colorbar(shown, ax=panel, shrink=0.8)


def plot_rates(axes: Any, rates: tuple[list[int], list[float], list[float]], degrees: int) -> None:
    left, right = axes[0]
    counts, bounds, errors = rates
    left.loglog(counts, bounds, color="0.4", label="promised $h^2\\pi^2/4$")
    left.loglog(counts, errors, "o", color=COLORS[0], label="measured")
    left.set_xticks(counts, [str(c) for c in counts], minor=False)
    left.minorticks_off()
    levels = [0.05, 0.1, 0.2, 0.5]
    left.set_yticks(levels, [str(v) for v in levels])
    left.set(xlabel="cells a side", ylabel="sup error", title="interpolation by a network")
    left.legend()
    for k in range(1, degrees + 1):
        x = torch.linspace(0, degrees + 1, 401, dtype=torch.float64)
        y = spline_network(torch.ones(1).double(), k)(x.unsqueeze(1))[:, 0]
        right.plot(x, y, label=f"k = {k}")
    right.set(xlabel="x", title="B-splines of k + 2 units")
    right.legend()
