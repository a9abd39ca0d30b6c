"""Do the features before the last layer still tell samples apart?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.engine.ranges import part_of
from torchtheory.audit.engine.row_statistics import row_statistic
from torchtheory.audit.findings.hypotheses import deterministic, has_parameters
from torchtheory.models.model import global_randomness_kept
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples

#: Samples looked at.
SAMPLES = 512

#: Features that differ by less than this share of their size are one point in effect.
COLLAPSED = 1e-3


@finding(
    "feature-collapse",
    area="signals",
    title="Do the features before the last layer differ?",
    cost="forward",
    needs=[has_parameters, deterministic],
)
def feature_collapse(problem: Problem, record: FindingRecord) -> None:
    r"""The spread of what goes into the last layer, relative to its size.

    $\sqrt{\frac1n\sum_i\|h_i-\bar h\|^2 \big/ \frac1n\sum_i\|h_i\|^2}$ is 0 where all samples have
    the same features, and 1 where their mean is 0. That the samples of one class come together,
    as they do at the end of training, does not make it small.
    """
    samples = problem.train.some(min(SAMPLES, problem.affordable(2)), record.generator)
    statement = r"\operatorname{Var} h(x) > 0"
    if problem.train.population < 2:
        record.not_applicable((), statement, "there is only one training sample")
        return
    if len(samples) < 2:
        record.complete = False
        record.not_done((), statement, "there was no time to look at two samples")
        return
    place, features = last_features(problem, samples)
    if features is None:
        record.not_applicable(
            (),
            statement,
            "no dense or convolutional layer was seen to run, or its input changes "
            "its shape from batch to batch",
        )
        return
    found = row_statistic(_relative_spread, features, samples, record.confidence, most=1.0)
    spread = record.quantity(
        "feature-spread",
        "spread of the last features, relative to their size",
        found,
        samples=samples,
    )
    if spread.high < COLLAPSED:
        record.defect(
            "The features have collapsed: what goes into the last layer"
            f"{f' ({place})' if place else ''} is the same for all samples up to "
            f"{max(spread.high, 1e-16):.1g} of its size{part_of(samples)}, so it cannot tell "
            "them apart.",
            number=spread,
            usual="above 0.1",
            action="Look for the layer where inputs stop mattering: dead units, weights of 0, or a "
            "bias that drowns everything else.",
        )


def last_features(problem: Problem, samples: Samples) -> tuple[str, Tensor | None]:
    """The layer with a weight matrix that ran last, and what went into it, `[n, d]`."""
    place, parts = "", []
    with torch.no_grad(), global_randomness_kept(), _inputs_kept(problem.model) as last:
        for x, _ in samples.chunks(problem.chunk):
            last.clear()
            problem.function(problem.parameters, x)
            if not last:
                return "", None
            ((place, rows),) = last.items()
            if rows.ndim < 2 or len(rows) != len(x):
                return "", None
            parts.append(rows.flatten(1).double())
    if len({p.shape[1] for p in parts}) != 1:
        return "", None
    return place, torch.cat(parts)


@contextmanager
def _inputs_kept(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """A dictionary that holds the layer which ran last, and its input."""
    last: dict[str, Tensor] = {}

    def before(name: str) -> Any:
        def hook(layer: nn.Module, arguments: Any) -> None:
            if arguments and isinstance(arguments[0], Tensor):
                last.clear()
                last[name] = arguments[0].detach()

        return hook

    handles = [
        module.register_forward_pre_hook(before(name))
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | nn.Bilinear | _ConvNd)
    ]
    try:
        yield last
    finally:
        for handle in handles:
            handle.remove()


def _relative_spread(rows: Tensor) -> float:
    size = rows.square().sum()
    return float(((rows - rows.mean(0)).square().sum() / size).sqrt()) if size > 0 else 0.0
