"""Findings about the network itself: its layers and its symmetries."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.hypotheses import chain, deterministic, has_parameters
from torchtheory.core.figure import label_text
from torchtheory.models.model import Parameters
from torchtheory.models.problem import Problem
from torchtheory.nets.symmetries import hidden_layers, log10_equivalent_parameters, permute_units


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
    record.quantity("parameters", "parameters", total)
    record.quantity("parameters-per-sample", "parameters for each training sample", total / n)
    record.headline(
        f"The network has {total:,} parameters, {total / n:.3g} for each of the {n:,} training "
        f"samples."
    )


@finding(
    "permutation-symmetry",
    area="capacity",
    title="Permuting hidden units leaves the function unchanged",
    cost="forward",
    covers=["N-23"],
    needs=[has_parameters, deterministic, chain],
)
def permutation_symmetry(problem: Problem, record: FindingRecord) -> None:
    """Permute the units of each hidden layer at random and compare outputs."""
    hidden = hidden_layers(problem.model)
    exponent = log10_equivalent_parameters(hidden)
    permuted = broken = problem.parameters
    for layer in hidden:
        order = _derangement(layer.units, record.generator)
        permuted = permute_units(permuted, layer, order)
        # the same permutation without its inverse on the way out: no symmetry
        half = permute_units(broken, layer, order)
        half[f"{layer.outgoing}.weight"] = broken[f"{layer.outgoing}.weight"]
        broken = half
    samples = problem.train.first(problem.chunk)
    outputs = problem.outputs(samples)
    scale = float(outputs.abs().max().clamp_min(torch.finfo(outputs.dtype).tiny))

    def deviation(parameters: Parameters) -> float:
        return float((problem.at(parameters).outputs(samples) - outputs).abs().max()) / scale

    # a sum of m terms in another order: rounding grows at most like m times the unit round-off
    widest = max(layer.units for layer in hidden)
    rounding = 10 * len(hidden) * widest * torch.finfo(outputs.dtype).eps
    says = record.states(
        "N-23", r"F[P W_\ell, P b_\ell, W_{\ell+1} P^\top](x) = F[W_\ell, b_\ell, W_{\ell+1}](x)"
    )
    says.equal(
        deviation(permuted),
        within=rounding,
        where="largest difference of outputs relative to the largest output; the tolerance is "
        "ten times the rounding error of reordered sums",
    )
    half_permuted = deviation(broken)
    if half_permuted > rounding:
        says.fails("incoming weights permuted, outgoing ones not", half_permuted)
    else:
        record.note("No control: the outputs do not depend on which hidden unit is which.")
    units = ", ".join(str(layer.units) for layer in hidden)
    record.table(
        "orbit",
        ("hidden layers", "units", "parameter vectors with this function, at least"),
        [(len(hidden), units, f"10^{math.floor(exponent)}")],
        caption="The product of the factorials of the hidden widths.",
    )
    if exponent > 0:
        record.headline(
            f"At least 10^{math.floor(exponent)} other parameter vectors compute exactly this "
            "function (permuted hidden units).",
            0,
        )


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
