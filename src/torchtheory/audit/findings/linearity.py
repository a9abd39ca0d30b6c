"""Does the network bend, or do its layers come to a single linear map?"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.hypotheses import deterministic, floating_inputs, has_parameters
from torchtheory.core.errors import TorchTheoryError
from torchtheory.core.intervals import median_interval
from torchtheory.core.quantity import Quantity
from torchtheory.core.usual import above
from torchtheory.models.model import flatten
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.nets.linear_networks import collapse_linear
from torchtheory.report.numbers import size_words
from torchtheory.tracing.chain import as_chain
from torchtheory.tracing.watching import watch_units

#: Pairs of samples that are tried.
PAIRS = 256

#: Deviations from a straight line that a network with activations usually has, relative.
BENT = 0.01


@finding(
    "linearity",
    area="signals",
    title="Does the network bend?",
    cost="forward",
    covers=["L-046"],
    needs=[has_parameters, deterministic, floating_inputs],
)
def linearity(problem: Problem, record: FindingRecord) -> None:
    """Outputs at midpoints of pairs of samples against the mean of the outputs at the pair."""
    problem = problem.in_double_if_possible()
    deviations, rounding, constant = _bend(problem, record)
    middle = median_interval(deviations, record.confidence)
    bend = record.quantity(
        "bend",
        "median deviation from a straight line between two samples, relative",
        middle.estimate,
        low=max(0.0, middle.low),  # by definition between 0 and 1
        high=min(1.0, middle.high),
        basis=f"{record.confidence:.4g} {middle.test}, {middle.trials} pairs",
    )
    if float(deviations.max()) > rounding:
        _assess_pairs(problem, record, bend)
        return
    matrices = [p for p in problem.parameters.values() if p.ndim > 1]
    if len(matrices) < 2:
        record.note("This is a linear model, and meant to be one: it has one weight matrix.")
        return
    if constant:
        record.defect(
            "The output does not depend on the input: it is the same at every point tried.",
            number=bend,
            usual=above(BENT),
            action="Look for a layer whose units are all dead or whose weights are all 0.",
        )
        return
    if applied := {u.function for u in watch_units(problem, problem.train.first(problem.chunk))}:
        record.defect(
            f"The network is affine although it applies {' and '.join(sorted(applied))}: at the "
            f"{len(deviations)} pairs of points tried, at the data and beyond, the units that "
            "matter stay on one straight piece.",
            number=bend,
            usual=above(BENT),
            action="A linear model computes the same; biases nearer to 0 let the units bend.",
        )
        return
    record.defect(
        f"The network is affine: its {len(matrices)} weight matrices compute one linear map, as if "
        "there were a single layer. An activation is missing.",
        number=bend,
        usual=above(BENT),
        action="Apply an activation such as nn.ReLU after each hidden layer.",
    )
    _collapses(problem, record)


def _assess_pairs(problem: Problem, record: FindingRecord, bend: Quantity) -> None:
    pairs = _redundant_pairs(problem)
    for one, two in pairs:
        record.defect(
            f"Layers {one} and {two} follow each other without an activation: together they "
            "are one linear layer, and the first adds nothing the second cannot do alone.",
            action=f"Put an activation between {one} and {two}, or merge them.",
        )
    if not pairs:
        record.headline(
            "The network bends: half way between two samples its output is "
            f"{size_words(bend)} of its size away from the straight line, at the median pair.",
        )


def _collapses(problem: Problem, record: FindingRecord) -> None:
    """The product of the weight matrices computes what the network does."""
    try:
        flat = collapse_linear(problem.model)
    except TorchTheoryError:
        return
    exact = problem.in_double_if_possible()  # half precision would round more than is allowed
    x = exact.train.x[: exact.chunk].flatten(1)
    outputs = exact.outputs(exact.train.first(exact.chunk)).double().reshape(len(x), -1)
    scale = float(outputs.abs().max().clamp_min(1e-300))
    product = x.double() @ flat.weight.double().T + flat.bias.double()
    says = record.checks("L-046", r"f(x) = W_L \cdots W_1 x + b")
    says.equal(
        float((product - outputs).abs().max()) / scale,
        within=1e-4,
        where=f"the product has rank {flat.rank}; largest relative difference of outputs",
    )
    if float(outputs.min()) < -1e-3 * scale:
        says.fails(
            "a ReLU behind the product", float((product.relu() - outputs).abs().max()) / scale
        )


def _bend(problem: Problem, record: FindingRecord) -> tuple[Tensor, float, bool]:
    """Relative deviations from affinity, what rounding makes, whether the output is constant."""
    x = problem.train.some(2 * min(PAIRS, problem.affordable(6)), record.generator).x
    half = max(1, len(x) // 2)
    # beyond the data as well: a ReLU may be on for every sample
    one = x[:half] * torch.linspace(1, 10, half).to(x).reshape(-1, *[1] * (x.ndim - 1))
    two = -x[-half:]
    points = torch.cat([one, two, (one + two) / 2])
    outputs = problem.outputs(Samples(points, torch.zeros(len(points)))).double()
    outputs = outputs.reshape(len(points), -1)
    *ends, middle = torch.split(outputs, half)
    gap = (middle - (ends[0] + ends[1]) / 2).norm(dim=1)
    size = ends[0].norm(dim=1) + ends[1].norm(dim=1) + middle.norm(dim=1)
    relative = gap / size.clamp_min(1e-300)
    finest = torch.finfo(problem.function.reference().dtype).eps
    rounding = 100 * finest * math.sqrt(flatten(problem.parameters).numel())
    spread = float((outputs - outputs[0]).abs().max())
    constant = spread <= rounding * float(outputs.abs().max())
    return relative.cpu(), rounding, constant


def _redundant_pairs(problem: Problem) -> list[tuple[str, str]]:
    """Dense layers that follow each other at once, with no bottleneck between them."""
    try:
        links = as_chain(problem.function, problem.train.x)
    except TorchTheoryError:
        return []
    found = []
    last: tuple[str, nn.Linear] | None = None
    for link in links:
        if isinstance(link.module, nn.Linear):
            if last is not None:
                between = last[1].out_features
                if between >= min(last[1].in_features, link.module.out_features):
                    found.append((last[0], link.name))
            last = (link.name, link.module)
        elif not isinstance(link.module, nn.Identity | nn.Dropout):
            last = None
    return found
