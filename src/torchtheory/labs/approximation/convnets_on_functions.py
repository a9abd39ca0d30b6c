"""Convolutional networks on functions: continuous functionals, and continuous equivariant maps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.approximation.architectures.function_convnets import (
    CellGrid,
    Image,
    blur_threshold_convnet,
    discretize,
    distance_to_steps,
    energy_convnet,
    inner_product_convnet,
    step_image,
)
from torchtheory.labs.engine import COLORS, Run, fit_slope, lab

CUTOFF = 4.0
BLUR, LEVEL = 0.4, 0.1


@dataclass(frozen=True)
class Bumps:
    r"""The images $a\,e^{-|x-c|^2/2s^2}$; norms and gradients are known in closed form."""

    amplitude: Tensor
    center: Tensor
    width: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        near = torch.exp(-((x[:, 0] - self.center[:, :1]) / self.width[:, None]).square() / 2)
        other = torch.exp(-((x[:, 1] - self.center[:, 1:]) / self.width[:, None]).square() / 2)
        return self.amplitude[:, None] * near * other

    @property
    def energy(self) -> Tensor:
        return (self.amplitude * self.width).square() * math.pi

    @property
    def gradient(self) -> Tensor:
        """The norm of the gradient in L2: it does not depend on the width."""
        return self.amplitude.abs() * math.sqrt(math.pi)

    @property
    def tail(self) -> Tensor:
        """At most the norm outside the square."""
        room = (CUTOFF - self.center.abs().amax(1)) / self.width
        made: Tensor = (2 * self.energy * torch.special.erfc(room)).sqrt()
        return made

    def moved(self, by: Tensor) -> Bumps:
        return Bumps(self.amplitude, self.center + by, self.width)

    def blurred(self, width: float) -> Bumps:
        wide = (self.width.square() + width**2).sqrt()
        return Bumps(self.amplitude * (self.width / wide).square(), self.center, wide)

    def product(self, other: Bumps) -> Tensor:
        both = self.width.square() + other.width.square()
        far = (self.center - other.center).square().sum(1)
        size = 2 * math.pi * (self.width * other.width).square() / both
        return self.amplitude * other.amplitude * size * torch.exp(-far / (2 * both))


@lab(
    "convnets-on-functions",
    room="approximation",
    covers=["X-79", "X-80"],
    title="Convolutional networks reach the continuous functionals and equivariant maps, no others",
    full={"images": 16, "finest": 128},
    least={"images": 8, "finest": 32},
)
def convnets_on_functions(run: Run, images: int = 8, finest: int = 64) -> None:
    r"""Bumps with bounded parameters, a compact family, are discretized ever more finely.

    The projection keeps norms and misses at most λ/π times the gradient's norm. Networks with
    downsampling come within an explicit distance of ‖ξ‖² and of ⟨ξ,φ⟩; the value ξ(0), which is
    not continuous, keeps an error of 1/2 on a compact family whatever the grid. Networks without
    downsampling commute with shifts of the grid and reach the map max(G*ξ - t, 0), with all its
    shifts in the limit; ξ ↦ x₁ξ, not equivariant, keeps the distance that equivariance forces.
    Look at the errors and their promises, and at the two flat lines.

    Args:
        images: random bumps in the family.
        finest: cells per side of the finest grid.
    """
    bumps = family(run, images)
    grids = [CellGrid(CUTOFF, n) for n in (8, 16, 32, 64, 128) if n <= finest]
    curves = {
        "projection": projection(run, bumps, grids),
        "‖ξ‖²": energies(run, bumps, grids),
        "⟨ξ,φ⟩": products(run, bumps, grids),
    }
    point = point_values(run, grids)
    maps = equivariant(run, bumps, grids)
    place = not_equivariant(run, bumps, grids)
    rows = [
        (name, g.cells, p, e)
        for name, curve in [*curves.items(), *maps.items()]
        for g, p, e in zip(grids, *curve, strict=True)
    ]
    run.table("errors", ["what", "cells", "promised", "measured"], rows, caption="Worst image")
    run.figure(
        "grids",
        lambda axes: plot(axes, [g.scale for g in grids], curves, point, maps, place),
        grid=(1, 2),
        caption="Errors (marks) and promises (lines) against the side of a cell, for numbers and "
        "for images; dashed: what is not continuous, or not equivariant, stays away.",
    )


def family(run: Run, count: int, width: tuple[float, float] = (0.35, 0.6)) -> Bumps:
    low, high = width
    return Bumps(0.5 + run.rand(count), run.rand(count, 2) - 0.5, low + (high - low) * run.rand(count))


def nodes_of(grid: CellGrid) -> int:
    """Enough points a cell that the quadrature is no part of what is measured."""
    return 12 if grid.scale > 0.3 else 6 if grid.scale > 0.2 else 4


Curve = tuple[list[float], list[float]]


def projection(run: Run, bumps: Bumps, grids: list[CellGrid]) -> Curve:
    """An isometry, and how much it misses."""
    lengths, norms, plain, promised, missed, discs = [], [], [], [], [], []

    def disc(x: Tensor) -> Tensor:
        return (x.square().sum(1) < 1).double()[None]

    for grid in grids:
        c = discretize(bumps, grid, nodes=nodes_of(grid))
        fine = CellGrid(CUTOFF, 2 * grid.cells)
        middles = fine.quadrature(1)[0].reshape(-1, 2)
        steps = step_image(c, grid)(middles).square().sum(1) * fine.scale**2
        norms += c.flatten(1).norm(dim=1).tolist()
        plain += (c / grid.scale).flatten(1).norm(dim=1).tolist()
        lengths += steps.sqrt().tolist()
        bound = (grid.scale / math.pi * bumps.gradient).square() + bumps.tail.square()
        apart = distance_to_steps(bumps, c, grid, nodes=nodes_of(grid))
        worst = int((apart / bound.sqrt()).argmax())
        promised.append(float(bound[worst].sqrt()))
        missed.append(float(apart[worst]))
        flat = discretize(disc, grid, nodes=nodes_of(grid))
        discs.append(float(distance_to_steps(disc, flat, grid, nodes=nodes_of(grid))))
    says = run.states("X-79", r"\|P\xi\|_{L_2}=\|c\|_2")
    says.equal(norms, lengths, 1e-12)
    says.fails("means over the cells, without the factor λ", plain)
    says = run.states(["X-79", "X-80"], r"\|\xi-P\xi\|\le\tfrac\lambda\pi\|\nabla\xi\|")
    says.at_most(missed, promised)
    says.fails("a disc with a sharp border, whose gradient is 0 almost everywhere", discs, promised=0.0)
    return promised, missed


def energies(run: Run, bumps: Bumps, grids: list[CellGrid]) -> Curve:
    """The squared norm, by broken lines and downsampling."""
    promised, found, narrow = [], [], []
    largest = float(bumps.amplitude.max())
    for grid in grids:
        # pieces in proportion to the cells: both parts of the error then fall alike
        net = energy_convnet(grid, largest, 2 * grid.cells)
        bound = (grid.scale / math.pi * bumps.gradient).square() + bumps.tail.square() + net.error
        apart = (net(bumps, nodes=nodes_of(grid)) - bumps.energy).abs()
        worst = int((apart / bound).argmax())
        promised.append(float(bound[worst]))
        found.append(float(apart[worst]))
    # the same norm on an eighth of the width: bounded in L2, but in no common compact set
    thin = Bumps(bumps.amplitude[:1] * 8, bumps.center[:1] * 0, bumps.width[:1] / 8)
    for grid in grids[1:3]:
        high = energy_convnet(grid, 8 * largest, 16 * grid.cells)
        narrow.append(float((high(thin, nodes=24) - thin.energy).abs()))
    says = run.states("X-79", r"|\|\xi\|^2-\Phi(\xi)|\le(\lambda/\pi)^2\|\nabla\xi\|^2+(2\Lambda B/k)^2")
    says.at_most(found, promised)
    says.fails("bumps eight times as narrow and as high, outside the family", narrow, promised=promised[1:3])
    slope = fit_slope([g.cells for g in grids], found)
    run.note(f"the error for ‖ξ‖² falls with the cells to the power {slope.estimate:.2f}, the promise is -2")
    return promised, found


def products(run: Run, bumps: Bumps, grids: list[CellGrid]) -> Curve:
    """An inner product, by one large filter."""
    template = Bumps(torch.ones(1).double(), torch.full((1, 2), 0.25).double(), torch.ones(1) / 2)
    other = template.moved(torch.full((1, 2), 1.5).double())
    promised, found, elsewhere = [], [], []
    exact = template.product(bumps)
    for grid in grids:
        net = inner_product_convnet(template, grid, nodes=nodes_of(grid))
        part = grid.scale / math.pi
        bound = (part * bumps.gradient + bumps.tail) * (part * template.gradient + template.tail)
        apart = (net(bumps, nodes=nodes_of(grid)) - exact).abs()
        worst = int((apart / bound).argmax())
        promised.append(float(bound[worst]))
        found.append(float(apart[worst]))
        moved = inner_product_convnet(other, grid, nodes=nodes_of(grid))
        elsewhere.append(float((moved(bumps, nodes=nodes_of(grid)) - exact).abs().max()))
    says = run.states("X-79", r"|\langle\xi,\phi\rangle-\Phi(\xi)|\le(\lambda/\pi)^2\|\nabla\xi\|\,\|\nabla\phi\|")
    says.at_most(found, promised)
    says.fails("the filter of another template", elsewhere)
    return promised, found


def point_values(run: Run, grids: list[CellGrid]) -> list[float]:
    """The value at 0, on a compact family: bumps of height 1 that shrink, and their limit 0."""
    widths = torch.tensor([0.5**k for k in range(1, 13)], dtype=torch.float64)
    ones, center = torch.ones_like(widths), torch.zeros(len(widths), 2, dtype=torch.float64)
    shrinking = Bumps(ones, center, widths)
    errors, smooth = [], []
    fixed = Bumps(ones[:1], center[:1], 0.5 * ones[:1])
    for grid in grids:
        # the mean over the four cells at 0, the obvious network, and louder ones
        four = CellGrid(grid.scale, 2)
        c = discretize(shrinking, four, nodes=96)[:, 0].mean((1, 2)) / grid.scale
        one = discretize(fixed, four, nodes=24)[:, 0].mean((1, 2)) / grid.scale
        # at 0 every one of them gives 0 plus a constant, which is free; the best is taken
        gains = [g * c for g in (1.0, 4.0, 64.0)]
        errors.append(min(best_constant(v) for v in gains))
        smooth.append(best_constant(one))
    says = run.states("X-79", r"f(\xi)=\xi(0),\ K=\{\xi_n\}\cup\{0\}:\ \sup_K|f-\Phi|\ge\tfrac12")
    says.at_least(
        errors,
        0.5,
        1e-3,
        where="the bumps shrink to 0 in L2 while their value at 0 stays 1; the narrowest has width $2^{-12}$",
    )
    says.fails("bumps of one width only: K no longer tells ξ(0) from a mean", smooth)
    return errors


def best_constant(values: Tensor) -> float:
    r"""Least over constants b of the sup of \|1 - v - b\| over the values, and \|0 - b\|."""
    gaps = torch.cat([1 - values, values.new_zeros(1)])
    return float((gaps.max() - gaps.min()) / 2)


def segmented(bumps: Bumps) -> Image:
    """The exact image of the map: a blurred bump less the level, where that is positive."""
    wide = bumps.blurred(BLUR)
    return lambda x: (wide(x) - LEVEL).clamp_min(0)


def missed_by_map(bumps: Bumps, grid: CellGrid) -> Tensor:
    """What the projections before and after the blur miss, at most."""
    wide = bumps.blurred(BLUR)
    smooth = grid.scale / math.pi * (bumps.gradient + wide.gradient)
    return smooth + bumps.tail + wide.tail


def equivariant(run: Run, bumps: Bumps, grids: list[CellGrid]) -> dict[str, Curve]:
    """The map max(G*ξ - t, 0): errors, shifts of the grid, other shifts."""
    promised, found, off = [], [], []
    whole, half, gaps, bounds, multiplied, steep, near = [], [], [], [], [], [], []
    high = Bumps(torch.full((1,), 8.0).double(), torch.full((1, 2), -0.5).double(), torch.full((1,), 0.8).double())
    for grid in grids:
        net = blur_threshold_convnet(grid, BLUR, LEVEL)
        nodes = nodes_of(grid)
        out = net(discretize(bumps, grid, nodes=nodes))
        bound = missed_by_map(bumps, grid)
        apart = distance_to_steps(segmented(bumps), out, grid, nodes=nodes)
        worst = int((apart / bound).argmax())
        promised.append(float(bound[worst]))
        found.append(float(apart[worst]))
        off.append(float(distance_to_steps(segmented(bumps.moved(torch.ones(2).double())), out,
                                           grid, nodes=nodes).max()))  # fmt: skip
        # a shift by whole cells, about 1 each way
        steps = round(1 / grid.scale)
        by = torch.full((2,), steps * grid.scale, dtype=torch.float64)
        moved = net(discretize(bumps.moved(by), grid, nodes=nodes))
        whole.append(float((moved - torch.roll(out, (steps, steps), (2, 3))).abs().max()))
        # and by half a cell more: both are constant on cells half as large
        more = by + grid.scale / 2
        other = net(discretize(bumps.moved(more), grid, nodes=nodes))
        half.append(float((other - torch.roll(out, (steps, steps), (2, 3))).abs().max()))
        fine = CellGrid(CUTOFF, 2 * grid.cells)
        x = fine.quadrature(1)[0].reshape(-1, 2)
        left, right = step_image(other, grid)(x), step_image(out, grid)(x - more)
        gap = (left - right).square().sum(1).sqrt() * fine.scale
        gaps.append(float(gap.max()))
        both = bound + missed_by_map(bumps.moved(more), grid)
        bounds.append(float(both[int(gap.argmax())]))
        # the output times the first coordinate: as continuous, but not equivariant
        wrong = left * x[:, 0] - right * (x[:, 0] - more[0])
        multiplied.append(float((wrong.square().sum(1).sqrt() * fine.scale).max()))
        # a wide and high bump, of which the blur and the threshold leave nearly all
        still, gone = (net(discretize(b, grid, nodes=nodes)) for b in (high, high.moved(more)))
        apart = step_image(gone, grid)(x) - step_image(still, grid)(x - more)
        steep.append(float(apart.square().sum().sqrt() * fine.scale))
        near.append(float(missed_by_map(high, grid) + missed_by_map(high.moved(more), grid)))
    says = run.states(
        "X-80", r"\|f(\xi)-\Phi(\xi)\|\le\tfrac\lambda\pi(\|\nabla\xi\|+\|\nabla G\xi\|),\ f(\xi)=\max(G*\xi-t,0)"
    )
    says.at_most(found, promised)
    says.fails("images moved by (1, 1) and the output not", off)
    says = run.states(
        ["X-80", "X-76"], r"\Phi(\xi(\cdot-\tau))=\Phi(\xi)(\cdot-\tau) \text{ for shifts by whole cells}"
    )
    says.equal(whole, within=1e-7, where="bumps end smoothly at the border of the square, not exactly")
    says.fails("half a cell more", half)
    says = run.states(
        "X-80",
        r"\|\Phi(\xi(\cdot-\tau))-\Phi(\xi)(\cdot-\tau)\|\le\tfrac{2\lambda}\pi"
        r"(\|\nabla\xi\|+\|\nabla G\xi\|) \text{ for the others}",
    )
    says.at_most([*gaps, *steep], [*bounds, *near])
    # on coarse grids the promise is wide enough for it
    says.fails("the output times x₁, which is not equivariant, on fine grids", multiplied[2:], promised=bounds[2:])
    return {"max(G*ξ - t, 0)": (promised, found), "gap for half a cell": (bounds, gaps)}


def times_first(image: Image) -> Image:
    return lambda x: x[:, 0] * image(x)


def not_equivariant(run: Run, bumps: Bumps, grids: list[CellGrid]) -> Curve:
    """The map ξ ↦ x₁ξ, by the best small filter for the family and its shifts."""
    floors, errors, located = [], [], []
    for grid in grids:
        steps = round(1 / grid.scale)
        by = torch.tensor([steps * grid.scale, 0.0], dtype=torch.float64)
        shifted = [bumps.moved(k * by) for k in (-1, 0, 1)]
        nodes = nodes_of(grid)
        inputs = torch.cat([discretize(b, grid, nodes=nodes) for b in shifted])
        targets = torch.cat([discretize(times_first(b), grid, nodes=nodes) for b in shifted])
        patches = F.unfold(inputs, 5, padding=2).transpose(1, 2).reshape(-1, 25)
        best = torch.linalg.lstsq(patches, targets.reshape(-1, 1)).solution
        made = (patches @ best).reshape(targets.shape)
        lengths = inputs.flatten(1).norm(dim=1)
        apart = (made - targets).flatten(1).norm(dim=1).reshape(3, -1).amax(0)
        # 2 |τ₁| between the outermost shifts, shared by two errors
        floor = float(by[0]) * lengths.reshape(3, -1).amin(0)
        tightest = int((apart / floor).argmin())
        floors.append(float(floor[tightest]))
        errors.append(float(apart[tightest]))
        centers = -CUTOFF + grid.scale * (torch.arange(grid.cells, dtype=torch.float64) + 0.5)
        there = (inputs * centers[:, None] - targets).flatten(1).norm(dim=1)
        located.append(float(there.reshape(3, -1).amax(0)[tightest]))
    says = run.states(
        "X-80", r"f(\xi)=x_1\xi:\ \max_{k\in\{-1,0,1\}}\|f(\xi_{k\tau})-\Phi(\xi_{k\tau})\|\ge|\tau_1|\,\|P\xi\|"
    )
    says.at_least(errors, floors, 1e-9)
    says.fails("a network that knows where it is, and multiplies by x₁", located)
    return floors, errors


def plot(
    axes: Any,
    scales: list[float],
    curves: dict[str, Curve],
    point: list[float],
    maps: dict[str, Curve],
    place: Curve,
) -> None:
    left, right = axes[0]
    flat = (("ξ(0), not continuous", point), ("x₁ξ, not equivariant", place[1]))
    panels = zip((left, right), (curves, maps), flat, strict=True)
    for axis, found, (name, errors) in panels:
        for color, (label, (promised, measured)) in zip(COLORS, found.items(), strict=False):
            axis.loglog(scales, promised, color=color, linewidth=0.8)
            axis.loglog(scales, measured, "o", color=color, label=label)
        axis.loglog(scales, errors, "s--", color=COLORS[6], label=name)
        axis.set_xticks(scales, [f"{s:g}" for s in scales])
        axis.minorticks_off()
        axis.set(xlabel="side λ of a cell", ylabel="largest error")
        axis.legend(loc="lower right")
    left.set_title("to numbers")
    right.set_title("to images")
