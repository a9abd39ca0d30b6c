"""Finding: columns of the inputs that are constant, copies of others, or give the label away."""

from __future__ import annotations

import torch
from scipy import stats
from torch import Tensor

from torchtheory.audit.causes.trial import costs, instead
from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.certificates import alarm_level
from torchtheory.audit.findings.data_overlap import NAMED
from torchtheory.audit.findings.hypotheses import one_label_per_sample
from torchtheory.audit.findings.input_neighbors import real_inputs
from torchtheory.core.intervals import Interval, clopper_pearson
from torchtheory.core.naming import several
from torchtheory.core.usual import at_most, below
from torchtheory.data.columns import (
    common_share,
    constant_columns,
    copied_columns,
    telling_columns,
)
from torchtheory.data.telling import single_column_scores
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples

#: Samples from which on equal columns are not an accident.
FEWEST_ROWS = 32

#: A column that the label explains to this share is a copy of it.
COPY = 0.99

#: In columns of sparse data, one value has at least this share.
OFTEN = 0.5

#: Fewest samples that prove a column constant: one that is so in nine of ten cases would be the
#: same in 44 samples with probability 0.01.
ENOUGH = 44


#: Features and samples that single features are judged on, at most, and the fewest samples.
MOST_SCORED, SCORED, ENOUGH_TO_SCORE = 300, 3000, 100

#: A feature stands out that tells so much of the label, and leaves so many times less of it untold
#: than the next. One that varies with it in the same order is no other.
TELLS, APART, ALIKE = 0.85, 4.0, 0.9


def table_of_numbers(problem: Problem) -> str | None:
    """Why the inputs have no columns, or None."""
    if (reason := real_inputs(problem)) is not None:
        return reason
    if problem.train.x.ndim != 2:
        return (
            "the inputs are not a table with a column for each feature: pixels and time steps may "
            "be constant or equal"
        )
    return None


@finding(
    "features",
    area="data",
    title="Features that are constant, copies of others, or copies of the label",
    cost="forward",
    needs=[table_of_numbers],
    whole=True,
)
def features(problem: Problem, record: FindingRecord) -> None:
    """Columns that carry nothing, and columns that a network should not know."""
    x = problem.train.x
    total = x.shape[1]
    constant = constant_columns(x) if len(x) >= ENOUGH else []
    shares = common_share(x, 0)
    rare = (shares > OFTEN) & (shares < 1)
    usual_values = set(x[:, rare].mode(0).values.tolist())
    strange = [c for c in constant if float(x[0, c]) not in usual_values]
    sparse = 0 if strange else int(rare.sum())
    # of few samples, columns with few values agree by chance
    copies = copied_columns(x, 0) if len(x) >= FEWEST_ROWS else []
    wasted = (len(constant) + len(copies)) / total
    record.quantity(
        "idle-features", "share of features that are constant or copies of another", wasted
    )
    said = _give_away(problem, record)
    if copies:
        of = [f"{b} (of {a})" for a, b in copies]
        record.table(
            "copies",
            ("feature", "is a copy of feature"),
            [(b, a) for a, b in copies[:NAMED]],
            caption="Numbers from 0; copies in other units count as well.",
        )
        said = True
        record.defect(
            f"{len(copies)} of {total} features "
            + (f"is a copy of another: {of[0]}." if len(copies) == 1 else "are copies of others: "
               f"{several(of)}."),
            number=record.quantities[0],
            usual=at_most(0, "0"),
            action="Find out why: a column was joined twice, or is missing; else drop the copies.",
        )  # fmt: skip
    # where many features are nearly always 0, as pixels at the border, some always are
    if len(constant) == total or len(constant) > sparse:
        said = True
        what = (
            f"All {total} features are constant: the inputs carry no information"
            if len(constant) == total
            else f"{len(constant)} of {total} features "
            f"{'is' if len(constant) == 1 else 'are'} constant: {several(constant)}"
        )
        record.defect(
            f"{what}.",
            number=record.quantities[0],
            usual=at_most(0, "0"),
            action="Look at how these columns are read: is a feature lost or filled with a "
            "default? Else drop them.",
        )
    if not said:
        record.fine(
            "No feature is a copy of another" + _or_of_targets(problem)
            if not constant
            else f"{len(constant)} of {total} features are constant, as is usual where many are "
            "nearly so."
        )


def _or_of_targets(problem: Problem) -> str:
    """The rest of the sentence, where features were compared with targets."""
    if problem.train.y[0].numel() != 1 or one_label_per_sample(problem) is not None:
        return "."
    return " or of the label." if problem.is_classification else " or of the target."


def _give_away(problem: Problem, record: FindingRecord) -> bool:
    """Say it if one feature alone tells the label."""
    y = problem.train.y
    if y[0].numel() != 1 or one_label_per_sample(problem) is not None:
        return False
    labels = y.reshape(len(y)).long() if problem.is_classification else y.reshape(len(y)).double()
    level = alarm_level(record)
    found = telling_columns(problem.train.x, labels, level=level)
    if not found:
        return _stands_out(problem, record, labels)
    best = max(found, key=lambda c: c.explained)
    share: float | Interval = best.explained
    if len(problem.train) < problem.train.population:
        # how often the next sample would be an exception
        seen = clopper_pearson(0, len(problem.train), record.confidence)
        share = Interval(
            best.explained, best.explained - seen.high, 1.0, seen.confidence, seen.trials, seen.test
        )
    number = record.quantity(
        "feature-and-label", "largest share of a feature's variance that the label explains",
        share, samples=problem.train,
    )  # fmt: skip
    if best.explained >= COPY:
        what = "copy of the label" if problem.is_classification else "copy of the target"
        record.defect(
            f"Feature {best.column} is a {what}, which can be read off it without exception.",
            number=number,
            usual=below(COPY),
            action="Drop it: a network that is given the answer learns nothing else.",
        )
    else:
        record.look(
            f"Feature {best.column} alone separates the classes without exception.",
            action="Make sure that it is known before the label is, and not computed from it.",
        )
    return True


def _stands_out(problem: Problem, record: FindingRecord, labels: Tensor) -> bool:
    """Say it if one feature alone tells nearly all of the label, and the others far less.

    Noisy, monotone and logarithmic forms of the label are found by held-out predictions from single
    features; how much the network leans on it is measured by shuffling it.
    """
    x = problem.train.x
    if len(x) < ENOUGH_TO_SCORE or not 3 <= x.shape[1] <= MOST_SCORED:
        return False
    some = problem.train.some(SCORED, record.generator)
    targets = some.y.reshape(len(some)).to(labels.dtype)
    scores = single_column_scores(some.x, targets)
    first = int(scores.argmax())
    z = some.x.double().cpu()
    alike = torch.as_tensor(stats.spearmanr(z.numpy()).statistic)[first].abs() < ALIKE
    others = scores[alike & (torch.arange(len(scores)) != first)]
    next_best = max(0.0, float(others.max())) if len(others) else 0.0
    # a score is about a share of samples that are predicted
    error = 2 * (max(0.0, 1 - float(scores[first])) / len(some)) ** 0.5
    best = float(scores[first])
    if best - error < TELLS or 1 - best > (1 - next_best) / APART:
        return False
    number = record.quantity(
        "best-single-feature", "how far one feature alone tells the label of held-out samples, 0-1",
        float(scores[first]), error=error, samples=some, basis="two standard errors, cross-fitted",
    )  # fmt: skip
    what = "label" if problem.is_classification else "target"
    record.look(
        f"Feature {first} alone tells the {what}: of held-out samples it explains "
        f"{100 * float(scores[first]):.3g}%, the next feature {100 * next_best:.3g}%"
        f"{_without(problem, record, first)}.",
        number=number, usual=below(TELLS),
        action=f"Make sure that it is known before the {what} is, and not computed from it.",
    )  # fmt: skip
    return True


def _without(problem: Problem, record: FindingRecord, column: int) -> str:
    """What becomes of the network where the feature is shuffled, in words."""
    if not problem.deterministic:
        return ""
    samples = problem.train.some(SCORED, record.generator)
    order = torch.randperm(len(samples), generator=record.generator).to(samples.x.device)
    x = samples.x.clone()
    x[:, column] = x[order, column]
    before, after = (float(costs(problem, Samples(v, samples.y)).mean()) for v in (samples.x, x))
    return f"; with it shuffled, the network {instead(problem, after, before)}"
