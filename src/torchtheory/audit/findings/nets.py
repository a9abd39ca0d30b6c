"""Findings about the network itself: its layers and its symmetries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.hypotheses import deterministic, has_parameters
from torchtheory.core.figure import label_text
from torchtheory.core.usual import above
from torchtheory.linalg.equal_rows import copied_rows
from torchtheory.linalg.singular_values import spectral_norm
from torchtheory.models.model import Parameters
from torchtheory.models.problem import Problem
from torchtheory.models.targets import IGNORED, position_words
from torchtheory.nets.unit_groups import permute_group, unit_groups
from torchtheory.report.wording import counted

#: Samples at which outputs are compared.
CHECKED = 64

#: Relative difference of rows that count as equal: rounding of single precision, many times over.
EQUAL = 1e-5

#: A larger share of all units that are idle is worth a look.
SOME = 0.02

AFFINE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)

NO_UNITS = (
    "no dense layer or convolution is read by another with only functions of each unit between "
    "them, sums included, and with weights of their own"
)


@finding("layers", area="capacity", title="Layers and parameters", cost="parameters")
def layers(problem: Problem, record: FindingRecord) -> None:
    """One row for every module that owns parameters."""
    rows = []
    for name, module in problem.model.named_modules():
        own = list(module.named_parameters(recurse=False))
        if own:
            shapes = ", ".join(f"{k} {'×'.join(map(str, p.shape)) or '1'}" for k, p in own)
            frozen = sum(p.numel() for _, p in own if not p.requires_grad)
            count = sum(p.numel() for _, p in own)
            rows.append((name or "(model)", _kind(module), count, frozen, shapes))
    record.table(
        "layers",
        ("layer", "kind", "parameters", "of these frozen", "shapes"),
        rows,
        caption="Modules that own parameters; a shared parameter is listed at each owner.",
    )
    if len(rows) > 1:
        sizes = [(str(row[0]), int(row[2])) for row in rows]
        record.figure(
            "layers",
            lambda ax: _plot_layers(ax, sizes),
            caption="Parameters by layer, in order.",
            size=(5, 2.4),
        )
    n = problem.train.population
    total = problem.function.count
    if not total:
        return
    record.quantity("parameters", "parameters", total)
    record.quantity("parameters-per-sample", "parameters for each training sample", total / n)
    words = f"{total / n:.3g} for each of the {n:,} training samples"
    if problem.task == "labeling":
        labels = round(float((problem.train.y != IGNORED).double().flatten(1).sum(1).mean()) * n)
        _, label = position_words(problem.train.y, problem.tokens)
        about = "" if len(problem.train) == n else "about "
        words += f" and {total / labels:.3g} for each of their {about}{labels:,} {label}s"
    record.headline(f"The network has {total:,} parameters, {words}.")


@finding(
    "permutation-symmetry",
    area="capacity",
    title="Permuting hidden units leaves the function unchanged",
    cost="forward",
    covers=["N-23"],
    needs=[has_parameters, deterministic],
)
def permutation_symmetry(problem: Problem, record: FindingRecord) -> None:
    """Permute the units or channels of each hidden layer at random and compare outputs."""
    hidden = unit_groups(problem.function, problem.train.x).groups
    statement = r"F[P W_\ell, P b_\ell, W_{\ell+1} P^\top](x) = F[W_\ell, b_\ell, W_{\ell+1}](x)"
    if not hidden:
        record.not_applicable("N-23", statement, NO_UNITS)
        return
    problem = problem.in_double_if_possible()
    whole = {**problem.function.buffers, **problem.parameters}
    permuted = broken = whole
    for layer in hidden:
        order = _derangement(layer.units, record.generator)
        permuted = permute_group(permuted, layer, order)
        # the same permutation without its inverse on the way out: no symmetry
        broken = permute_group(broken, replace(layer, outgoing=()), order)
    samples = problem.train.first(min(CHECKED, problem.chunk))
    outputs = problem.outputs(samples)
    scale = float(outputs.abs().max().clamp_min(torch.finfo(outputs.dtype).tiny))

    def deviation(parameters: Parameters) -> float:
        return float((problem.at(parameters).outputs(samples) - outputs).abs().max()) / scale

    # a sum of m terms in another order: rounding grows at most like m times the unit round-off
    readers = {name for layer in hidden for name in layer.outgoing}
    widest = max(problem.parameters[f"{name}.weight"][0].numel() for name in readers)
    rounding = 10 * len(hidden) * widest * torch.finfo(outputs.dtype).eps
    says = record.checks("N-23", statement)
    says.equal(
        deviation(permuted),
        within=rounding,
        where=f"units and channels in {counted(len(hidden), 'group')}; largest difference "
        "of outputs relative to the largest output; the tolerance is ten times the rounding error "
        "of reordered sums",
    )
    half_permuted = deviation(broken)
    if half_permuted > rounding:
        says.fails("incoming weights permuted, outgoing ones not", half_permuted)
    else:
        record.note("No control: the outputs do not depend on which hidden unit is which.")


# ----------------------------------------------------------------------------- units in use


@finding(
    "used-units",
    area="capacity",
    title="Are all units in use?",
    cost="parameters",
    needs=[has_parameters],
)
def used_units(problem: Problem, record: FindingRecord) -> None:
    """Units with the same weights as another one, or with none, add nothing to the network."""
    rows: list[tuple[str, str, int, int, int, float]] = []
    for name, module in problem.model.named_modules():
        weights = _unit_weights(module)
        if weights is None or len(weights) < 2:
            continue
        copies, empty = _copies(weights)
        _, n_in = weights.shape
        spread = float(weights.square().sum() / spectral_norm(weights) ** 2) if n_in else 0.0
        rows.append((name or "(model)", _kind(module), len(weights), copies, empty, spread))
    if not rows:
        record.not_applicable(
            (), r"w_i \ne w_j \ne 0", "no layer has a weight matrix with two rows or more"
        )
        return
    total = sum(row[2] for row in rows)
    copies, empty = sum(row[3] for row in rows), sum(row[4] for row in rows)
    record.table(
        "units",
        ("layer", "kind", "units", "copies of another", "without weights", "stable rank"),
        rows,
        caption="Units of all layers with a weight matrix. A copy has the same incoming weights "
        "and bias as another unit up to rounding, and training keeps them equal. Stable rank: in "
        "how many directions the weights are large, squared Frobenius over squared spectral norm.",
    )
    share = record.quantity(
        "units-in-use", "share of units with weights of their own", 1 - (copies + empty) / total
    )
    worst = max(rows, key=lambda row: (row[3] + row[4]) / row[2])
    idle = (worst[3] + worst[4]) / worst[2]
    usual = above(1 - SOME, "1, or nearly")
    if idle >= 0.5 and worst[2] >= 4:
        record.defect(
            f"In layer {worst[0]}, {worst[3] + worst[4]} of {worst[2]} units are copies of another "
            "unit or have no weights: they add nothing, and training cannot tell them apart.",
            number=record.quantity(
                "units-in-use-of-a-layer",
                "share of units with weights of their own, in the layer where it is least",
                1 - idle,
            ),
            usual=above(0.5),
            action="Start from random weights, different for each unit, or leave these units out.",
        )
    elif copies + empty > SOME * total:
        record.look(
            f"{copies + empty} of {total} units are copies of another unit or have no weights.",
            number=share,
            usual=usual,
            action="Leave them out: the network computes the same without them.",
        )
    else:
        record.fine(
            f"Of {counted(total, 'unit')} of {counted(len(rows), 'layer')}, "
            f"{100 * share.value:.3g}% have weights of their own.",
            number=share,
            usual=usual,
        )


def _unit_weights(module: nn.Module) -> Tensor | None:
    """What enters each unit of a layer, weights and bias, one row per unit.

    Of a recurrent layer it is one row per gate of a unit, in its first layer and forward only.
    """
    parts: list[Tensor]
    if isinstance(module, nn.RNNBase):
        parts = [p for n, p in module.named_parameters() if "_l0" in n and "reverse" not in n]
    # a weight that is computed (weight_norm, spectral_norm) is none of its parameters
    elif isinstance(module, AFFINE) and isinstance(getattr(module, "weight", None), Tensor):
        parts = [module.weight] + ([] if module.bias is None else [module.bias])
    else:
        return None
    return torch.cat([p.detach().double().reshape(len(p), -1) for p in parts], 1)


def _copies(weights: Tensor) -> tuple[int, int]:
    """How many rows are copies of another one, and how many are 0 beside the largest."""
    lengths = weights.norm(dim=1)
    empty = lengths <= EQUAL * float(lengths.max())
    return int(copied_rows(weights[~empty], EQUAL).sum()), int(empty.sum())


def _plot_layers(ax: Any, sizes: list[tuple[str, int]]) -> None:
    where = range(len(sizes))
    bars = ax.bar(where, [count for _, count in sizes], color="#0072B2")
    if len(sizes) <= 12:
        ax.bar_label(bars, [f"{count:,}" for _, count in sizes], fontsize=8)
    every = max(1, len(sizes) // 12)
    labels = [label_text(name) for name, _ in sizes]
    ax.set_xticks(list(where)[::every], labels[::every], rotation=45, ha="right")
    ax.set(xlabel="layer", ylabel="parameters")
    ax.margins(y=0.12)


def _derangement(units: int, generator: torch.Generator) -> torch.Tensor:
    """A random cyclic permutation: no unit stays where it was (unless there is only one)."""
    cycle = torch.randperm(units, generator=generator)
    order = torch.empty_like(cycle)
    order[cycle] = cycle.roll(1)
    return order


def _kind(module: nn.Module) -> str:
    return type(module).__name__
