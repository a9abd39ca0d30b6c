"""Do the features before the last layer still tell samples apart?"""

from __future__ import annotations

from torch import Tensor

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.engine.ranges import part_of
from torchtheory.audit.engine.row_statistics import row_statistic
from torchtheory.audit.findings.hypotheses import deterministic, has_parameters
from torchtheory.core.usual import above
from torchtheory.models.problem import Problem
from torchtheory.tracing.last_features import last_layer_inputs

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
        record.not_done((), statement, "there was no time to look at two samples")
        return
    last = last_layer_inputs(problem, samples)
    if last is None:
        record.not_applicable(
            (),
            statement,
            "no dense or convolutional layer is applied to a row per sample, or its input changes "
            "its shape from batch to batch",
        )
        return
    place, features = last
    found = row_statistic(_relative_spread, features.double(), samples, record.confidence, most=1.0)
    spread = record.quantity(
        "feature-spread",
        "spread of the last features, relative to their size",
        found,
        samples=samples,
    )
    if spread.high < COLLAPSED:
        record.defect(
            "The features have collapsed: what goes into the last layer"
            f"{f' ({place})' if place else ''} varies from sample to sample by less than "
            f"{max(spread.high, 1e-16):.1g} of its size{part_of(samples)}, so it cannot tell "
            "them apart.",
            number=spread,
            usual=above(COLLAPSED),
            action="Look for the layer where inputs stop mattering: dead units, weights of 0, or a "
            "bias that drowns everything else.",
        )


def _relative_spread(rows: Tensor) -> float:
    size = rows.square().sum()
    return float(((rows - rows.mean(0)).square().sum() / size).sqrt()) if size > 0 else 0.0
