"""A finding about scale: layers scaled against each other, the function kept, the sharpness not."""

from __future__ import annotations

import math
from typing import Any

import torch

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.engine.ranges import part_of
from torchtheory.audit.findings.hypotheses import deterministic, differentiable, has_parameters
from torchtheory.core.errors import NotConverged
from torchtheory.core.figure import COLORS, label_text
from torchtheory.linalg.eigenvalues import top_eigenpairs
from torchtheory.models.model import Parameters
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.nets.symmetries import HiddenLayer, rescalable_layers, rescale_units
from torchtheory.optimization.curvature.operators import hessian_operator

#: The first of two layers is multiplied by these, the second divided.
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)

#: Samples of the loss whose curvature is taken, and products with its Hessian a factor.
SAMPLES, PRODUCTS = 256, 30


@finding(
    "rescaling-symmetry",
    area="capacity",
    title="Scaling layers against each other changes the sharpness, not the function",
    cost="curvature",
    covers=["A-68", "B-06"],
    needs=[has_parameters, deterministic, differentiable],
)
def rescaling_symmetry(problem: Problem, record: FindingRecord) -> None:
    """Multiply a layer and divide the next: outputs stay, the top Hessian eigenvalue does not."""
    statement = (
        r"f(a W_\ell, a b_\ell, W_{\ell+1} / a) = f(W_\ell, b_\ell, W_{\ell+1}), \quad a > 0"
    )
    pairs = rescalable_layers(problem.function, problem.train.x)
    if not pairs:
        record.not_applicable(
            ["A-68", "B-06"],
            statement,
            "no two dense layers, convolutions or batch normalizations follow each other with only "
            "positively homogeneous functions (ReLU, pooling) between them",
        )
        return
    pair = pairs[0]
    problem = problem.in_double_if_possible()
    points = {a: _scaled(problem.parameters, pair, a) for a in FACTORS}
    samples = problem.train.some(
        min(SAMPLES, problem.affordable(10 * PRODUCTS * len(FACTORS))), record.generator
    )
    outputs = problem.outputs(samples)
    scale = float(outputs.abs().max().clamp_min(torch.finfo(outputs.dtype).tiny))

    def deviation(parameters: Parameters) -> float:
        return float((problem.at(parameters).outputs(samples) - outputs).abs().max()) / scale

    half = _scaled(problem.parameters, pair, 2.0)
    half[f"{pair.outgoing}.weight"] = problem.parameters[f"{pair.outgoing}.weight"]
    rounding = 1e3 * torch.finfo(outputs.dtype).eps
    broken = deviation(half)
    says = record.checks(["A-68", "B-06"], statement)
    says.equal(
        [deviation(p) for p in points.values()],
        within=rounding,
        where=f"layers {pair.incoming} and {pair.outgoing}, factors from {FACTORS[0]:g} to "
        f"{FACTORS[-1]:g}; largest difference of outputs relative to the largest output",
    )
    if broken > rounding:
        says.fails("the second layer is not divided", broken)
    sharpness = {a: _sharpness(problem, samples, p, record) for a, p in points.items()}
    known = {a: v for a, v in sharpness.items() if v > 0}
    if len(known) < 2:
        record.note("The loss has no direction of positive curvature to speak of here.")
        return
    low, high = min(known.values()), max(known.values())
    if len(samples) == samples.population:
        record.quantity(
            "sharpness-range",
            f"largest over smallest sharpness of one function, factors {FACTORS[0]:g} to "
            f"{FACTORS[-1]:g}",
            high / low,
            samples=samples,
        )
    record.figure(
        "sharpness",
        lambda ax: _plot(ax, known, pair.incoming, pair.outgoing),
        caption="Top Hessian eigenvalue of networks that compute the same function.",
        size=(4.6, 2.8),
    )
    record.headline(
        f"Scaling layer {pair.incoming} against layer {pair.outgoing} leaves every output as it is "
        f"and changes the sharpness {high / low:.2g}-fold{part_of(samples)}: sharpness alone says "
        "nothing about generalization.",
    )


def _scaled(parameters: Parameters, layer: HiddenLayer, factor: float) -> Parameters:
    return rescale_units(parameters, layer, torch.full((layer.units,), factor))


def _sharpness(
    problem: Problem, samples: Samples, parameters: Parameters, record: FindingRecord
) -> float:
    hessian = hessian_operator(problem.at(parameters), samples)
    try:
        top = top_eigenpairs(hessian, tolerance=1e-2, steps=PRODUCTS, generator=record.generator)
    except NotConverged:
        return math.nan
    return float(top.values[0])


def _plot(ax: Any, sharpness: dict[float, float], one: str, two: str) -> None:
    ax.loglog(list(sharpness), list(sharpness.values()), "o-", color=COLORS[0])
    ax.set_xticks(list(sharpness), [f"{a:g}" for a in sharpness])
    ax.minorticks_off()
    for a, value in sharpness.items():
        ax.annotate(
            f"{value:.2g}", (a, value), xytext=(0, 5), textcoords="offset points", ha="center"
        )
    ax.margins(0.12, 0.18)
    ax.set_yticks([])
    scaled = label_text(f"layer {one} times, layer {two} divided by")
    ax.set(xlabel=scaled, ylabel="sharpness")
