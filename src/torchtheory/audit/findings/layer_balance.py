"""What gradient flow conserves between neighboring layers."""

from __future__ import annotations

import torch
from torch import Tensor

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.hypotheses import (
    deterministic,
    differentiable,
    has_loss,
    has_parameters,
)
from torchtheory.models.model import unflatten
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.nets.symmetries import rescalable_layers, unit_products
from torchtheory.optimization.curvature.operators import gradient


@finding(
    "layer-balance",
    area="capacity",
    title="What gradient flow conserves between neighboring layers",
    cost="gradient",
    covers=["L-162"],
    needs=[has_loss, has_parameters, deterministic, differentiable],
)
def layer_balance(problem: Problem, record: FindingRecord) -> None:
    """For each unit, how fast the weights that enter it and those that leave it would grow."""
    statement = (
        r"\langle w_j, \nabla_{w_j}L\rangle + b_j\,\partial_{b_j}L = \langle v_j, \nabla_{v_j}L"
        r"\rangle"
    )
    layers = rescalable_layers(problem.function, problem.train.x)
    if not layers:
        record.not_applicable(
            "L-162", statement, "no hidden layer stands between positively homogeneous activations"
        )
        return
    problem = problem.in_double_if_possible()
    samples = problem.train.some(min(512, problem.affordable(12)), record.generator)

    def rates(chosen: Samples) -> tuple[Tensor, Tensor]:
        """How fast the squared weights that enter and leave each unit grow, `[units]`."""
        # a symmetry of the function, of frozen weights as well
        slopes = unflatten(
            gradient(problem, chosen, parameters=problem.parameters), problem.parameters
        )
        pairs = [unit_products(problem.parameters, slopes, layer) for layer in layers]
        inward, outward = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        return inward, outward

    inward, outward = rates(samples)
    # gradients of samples that cancel leave their rounding behind
    seen = [rates(samples.at(torch.tensor([i]))) for i in range(min(4, len(samples)))]
    size = max(float(r.abs().max()) for r in (inward, outward, *(r for pair in seen for r in pair)))
    if size == 0:
        record.not_applicable(
            "L-162", statement, "the gradient vanishes: nothing moves", samples=samples
        )
        return
    balance = []
    for layer in layers:
        entering, leaving = unit_products(problem.parameters, problem.parameters, layer)
        balance.append((leaving - entering) / (leaving + entering).clamp_min(1e-300))
    uneven = torch.cat(balance)
    widest = max(layer.units for layer in layers)
    rounding = 1e3 * widest * torch.finfo(inward.dtype).eps
    shifted = float((inward - outward.roll(1)).abs().max()) / size
    says = record.checks("L-162", statement)
    says.equal(
        float((inward - outward).abs().max()) / size,
        within=rounding,
        where="largest difference over all units, relative to the largest side, of single samples "
        "as well: what enters and what leaves a unit grow alike under gradient flow",
    )
    if shifted > rounding:
        says.fails("what leaves the unit before it", shifted)
    record.quantity(
        "imbalance",
        "median over units of |leaving − entering| / (leaving + entering), squares",
        float(uneven.abs().median()),
    )
    rows = [
        (layer.incoming, layer.outgoing, layer.units, float(part.median()))
        for layer, part in zip(layers, balance, strict=True)
    ]
    record.table(
        "balance",
        ("from layer", "to layer", "units", "median of (leaving − entering) / sum"),
        rows,
        caption="Squared weights that leave and enter a unit. Gradient flow keeps their "
        "difference, and weight decay drives it to 0.",
    )
