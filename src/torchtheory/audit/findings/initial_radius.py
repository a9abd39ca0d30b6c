"""A finding about the start of training: how short a step changed the class of an input."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.engine.ranges import part_of
from torchtheory.audit.findings.hypotheses import (
    classification,
    deterministic,
    differentiable,
    floating_inputs,
    initial_weights,
    one_input,
)
from torchtheory.core.intervals import clopper_pearson, median_interval
from torchtheory.models.model import Parameters
from torchtheory.models.problem import Problem
from torchtheory.robustness.random_networks import flip_length_median

#: Samples that take the step, at most and at least.
MOST, FEWEST = 256, 16

#: Passes that a sample takes part in: forward, backward and forward again, before and after.
PASSES = 8

STATEMENT = (
    r"\Delta=-2f\,\nabla f/\|\nabla f\|^2:\quad "
    r"\mathrm{sign}f(x+\Delta)\ne\mathrm{sign}f(x),\ \|\Delta\|/\|x\|\sim d^{-1/2}"
)


@finding(
    "initial-radius",
    area="robustness",
    title="How short a gradient step changes a class, before training and after",
    cost="gradient",
    covers=["M-157"],
    needs=[
        initial_weights, classification, deterministic, floating_inputs, differentiable, one_input,
    ],
)  # fmt: skip
def initial_radius(problem: Problem, record: FindingRecord) -> None:
    """The step of Theorem 78 on the difference of the two highest scores."""
    assert problem.initial is not None
    count = min(MOST, problem.affordable(PASSES, share=0.4))
    samples = problem.train.some(max(1, count), record.generator)
    if len(samples) < min(FEWEST, samples.population):
        record.not_done(
            ["M-157"], STATEMENT, f"there was time for fewer than {FEWEST} samples; give more"
        )
        return
    dimension = samples.x[0].numel()
    said = {}
    for when, words, weights in (
        ("initial", "before training", problem.initial),
        ("trained", "now", problem.parameters),
    ):
        flipped, relative = gradient_flips(problem, weights, samples.x)
        share = clopper_pearson(int(flipped.sum()), len(flipped), record.confidence)
        length = median_interval(relative, record.confidence)
        for name, label, found in (
            (f"{when}-flips", f"samples whose class one gradient step changes, {words}", share),
            (
                f"{when}-step",
                f"length of that step over that of the input, median, {words}",
                length,
            ),
        ):
            record.quantity(
                name,
                label,
                found.estimate,
                low=found.low,
                high=found.high,
                basis=f"{len(samples)} samples",
                samples=samples,
            )
        said[when] = (share.estimate, length.estimate)
    predicted = flip_length_median("relu") / math.sqrt(dimension)
    record.headline(
        f"Before training, one gradient step of {said['initial'][1]:.2g} of an input's length "
        f"changed the class of {said['initial'][0]:.0%} of the samples (random two-layer networks "
        f"of {dimension} inputs: {predicted:.2g}); now a step of {said['trained'][1]:.2g} changes "
        f"that of {said['trained'][0]:.0%}{part_of(samples)}."
    )


def gradient_flips(problem: Problem, weights: Parameters, x: Tensor) -> tuple[Tensor, Tensor]:
    r"""Whether $\Delta=-2g\nabla g/\|\nabla g\|^2$ changes a class, and $\|\Delta\|/\|x\|$, `[n]`.

    $g$ is how far the highest score is above the next one; for a single logit, the logit. Where the
    gradient vanishes, nothing changes and the step is infinite.
    """
    with torch.enable_grad():
        points = x.detach().clone().requires_grad_(True)
        scores = _scores(problem.function(weights, points))
        top = scores.topk(2, dim=1).values
        gaps = top[:, 0] - top[:, 1]
        (slopes,) = torch.autograd.grad(gaps.sum(), points)
    with torch.no_grad():
        norms = slopes.flatten(1).norm(dim=1)
        rates = torch.where(norms > 0, 2 * gaps / norms.square(), 0.0)
        moved = x - rates.reshape(-1, *[1] * (x.ndim - 1)) * slopes
        after = _scores(problem.function(weights, moved))
        lengths = torch.where(norms > 0, 2 * gaps / norms, math.inf)
        relative = lengths / x.flatten(1).norm(dim=1)
    return (after.argmax(1) != scores.argmax(1)).cpu(), relative.detach().double().cpu()


def _scores(outputs: Tensor) -> Tensor:
    """One score per class; a single logit is that of the second class, against its negative."""
    flat = outputs.reshape(len(outputs), -1)
    return torch.cat([-flat, flat], 1) / 2 if flat.shape[1] == 1 else flat
