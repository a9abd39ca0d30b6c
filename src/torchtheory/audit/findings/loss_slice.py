"""A finding about the loss around the weights: a picture of a plane, and what theory says of it."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.engine.ranges import group_losses, mean_range, part_of, spread_over_both
from torchtheory.audit.findings.hypotheses import deterministic, has_loss, has_parameters
from torchtheory.core.errors import NonFinite, TorchTheoryError
from torchtheory.core.figure import COLORS
from torchtheory.core.random import as_generator
from torchtheory.models.model import flatten, unflatten
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.optimization.landscape.slices import LossSlice, loss_slice, random_directions
from torchtheory.tracing.layer_features import last_layer

#: Points on a side of the plane that is drawn, and samples whose loss it shows.
SIDE, SLICED = 15, 256

#: Random directions along which the weights are disturbed.
DISTURBED = 16

#: Fewer samples than this say too little about the others.
FEWEST = 16

#: Losses that are convex in the outputs.
CONVEX_LOSSES = (F.mse_loss, F.binary_cross_entropy_with_logits, F.cross_entropy)
CONVEX_MODULES = (nn.MSELoss, nn.BCEWithLogitsLoss, nn.CrossEntropyLoss)

CONVEX = r"\theta^{(L)}\mapsto L(\theta) \text{ of the last layer's weights is convex}"


@finding(
    "loss-slice",
    area="training",
    title="The loss on a plane through the weights, along directions scaled like their filters",
    cost="forward",
    covers=["A-53", "A-117"],
    needs=[has_loss, has_parameters, deterministic],
)
def loss_slice_finding(problem: Problem, record: FindingRecord) -> None:
    """Loss values on two grids: of all layers, which is drawn, and of the last, which bends up."""
    problem = problem.in_double_if_possible()
    # before samples are drawn: the plane is the same, however many there are
    ways = random_directions(problem, 2, generator=record.generator)
    count = min(SLICED, problem.affordable(3 * SIDE**2, 0.7))
    samples = problem.train.some(count, record.generator)
    if len(samples) < min(FEWEST, samples.population):
        record.not_done(
            ["A-53", "A-117"], CONVEX, f"there was time for fewer than {FEWEST} samples"
        )
        return
    grid = torch.linspace(-1, 1, SIDE, dtype=torch.float64)
    plane = loss_slice(problem, ways, grid, samples=samples)
    low, high = float(plane.values.min()), float(plane.values.max())
    if not math.isfinite(high):
        record.not_applicable("A-117", CONVEX, "the loss overflows on the plane around the weights")
        return
    _disturbed(problem, record, samples)
    record.figure(
        "plane",
        lambda ax: _plot_plane(ax, plane, max(low, 1e-12 * max(high, 1e-300))),
        caption="The loss on a plane through the weights (cross), along two random directions with "
        "filters as long as the network's own: at 1 every filter has changed by its own length. "
        "A plane is not the landscape: a minimum on it need not be one of the loss"
        f"{part_of(samples)}.",
        size=(4.8, 3.8),
    )
    _last_layer_bends_up(problem, record, plane, samples)


def _disturbed(problem: Problem, record: FindingRecord, samples: Samples) -> None:
    """The mean loss at random weights as far from these as the edge of the plane.

    Over directions and over samples: one direction, or one plane, tells little of the others.
    """
    center = flatten(problem.trainable)
    rows, shares = [], torch.ones(0)
    for _ in range(DISTURBED):  # one after the other: each is as large as the network
        (way,) = random_directions(problem, 1, generator=record.generator)
        moved = problem.at(unflatten(center + way, problem.trainable))
        try:
            # the same groups for all directions
            row, shares = group_losses([moved], samples, as_generator(0))
        except NonFinite:
            record.note("Not measured: the loss at disturbed weights, which overflows.")
            return
        rows.append(row[0])
    losses = torch.stack(rows)
    value = float((losses @ shares).mean())
    complete = len(samples) >= samples.population
    # where all samples are known, the directions are all that is drawn
    found = (
        mean_range(losses @ shares, DISTURBED, math.inf, record.confidence)
        if complete
        else spread_over_both(
            losses.T, len(samples), samples.population, record.confidence, value=value
        )
    )
    record.quantity(
        "disturbed-loss",
        "mean loss after a random change of every filter by its own length",
        found.estimate,
        low=max(0.0, found.low) if float(losses.min()) >= 0 else found.low,
        high=found.high,
        basis=f"{DISTURBED} random directions"
        + ("" if complete else f", {len(samples):,} of {samples.population:,} samples"),
        samples=samples,
    )


def _last_layer_bends_up(
    problem: Problem, record: FindingRecord, plane: LossSlice, samples: Samples
) -> None:
    """Second differences in a plane of the last layer alone, beside those of the whole plane."""
    try:
        last = {id(p) for p in last_layer(problem.model).parameters()}
    except TorchTheoryError as error:
        record.not_applicable("A-117", CONVEX, str(error))
        return
    if not (problem.loss in CONVEX_LOSSES or isinstance(problem.loss, CONVEX_MODULES)):
        record.not_applicable("A-117", CONVEX, "the loss is not known to be convex in the outputs")
        return
    mask = {
        k: torch.full_like(problem.trainable[k], float(id(p) in last))
        for k, p in problem.model.named_parameters()
        if k in problem.trainable
    }
    flat = loss_slice(problem, plane.directions * flatten(mask), plane.positions, samples=samples)
    rounding = 1e4 * torch.finfo(plane.values.dtype).eps
    bends, all_layers = least_second_difference(flat), least_second_difference(plane)
    says = record.checks("A-117", CONVEX)
    says.at_least(
        bends,
        0.0,
        rounding,
        where="least second difference of neighbors on a grid, over the largest loss there",
    )
    if all_layers < -rounding:
        says.fails("all layers change", all_layers)
    if all_layers < -rounding:
        record.note(
            "The loss is not convex in all weights: on the plane there are three points in a row "
            "whose middle lies above the mean of the others."
        )


def least_second_difference(found: LossSlice) -> float:
    """The least of f(a - h) - 2 f(a) + f(a + h) along rows and columns, over the largest value."""
    v = found.values
    across, down = (v.diff(n=2, dim=k).min() for k in (0, 1))
    return float(torch.minimum(across, down) / v.abs().max().clamp_min(1e-300))


def _plot_plane(ax: Any, plane: LossSlice, least: float) -> None:
    heights = plane.values.clamp_min(least).log10()
    low, high = float(heights.min()), float(heights.max())
    levels = torch.linspace(low, max(high, low + 1e-9), 16).tolist()
    grid = plane.positions
    shown = ax.contourf(grid, grid, heights.T, levels=levels, cmap="viridis")
    ax.figure.colorbar(shown, ax=ax, label=r"$\log_{10}$ loss", ticks=levels[::5], format="%.1f")
    ax.plot(0, 0, "+", color=COLORS[1], markersize=11, markeredgewidth=2)
    ticks = (-1, -0.5, 0, 0.5, 1)
    ax.set(xlabel="along $d_1$", ylabel="along $d_2$", aspect="equal", xticks=ticks, yticks=ticks)
    ax.grid(False)
