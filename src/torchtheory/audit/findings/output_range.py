"""What the outputs are: logits or probabilities, different for different inputs or all the same."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.engine.ranges import part_of
from torchtheory.audit.engine.row_statistics import row_statistic
from torchtheory.audit.findings.hypotheses import class_or_labels, deterministic
from torchtheory.core.intervals import clopper_pearson
from torchtheory.core.usual import above, at_most
from torchtheory.models.losses import are_log_probabilities, are_probabilities
from torchtheory.models.problem import Problem
from torchtheory.report.numbers import share_words
from torchtheory.tracing.passes import network_of

#: Outputs whose probabilities differ less than this from sample to sample are the same in effect.
SAME = 1e-3


@finding(
    "output-range",
    area="fit",
    title="Are the outputs what the loss expects?",
    cost="forward",
    needs=[class_or_labels, deterministic],
    whole=True,
)
def output_range(problem: Problem, record: FindingRecord) -> None:
    """Probabilities where logits are expected: the loss then cannot become small.

    With $C$ classes the cross-entropy of the softmax of a probability vector is at least
    $\\log(1+(C-1)/e)$, attained where all of the probability is on the right class.
    """
    outputs = problem.outputs(problem.train)
    logits = problem.loss_takes_logits
    record.table(
        "outputs",
        ("smallest", "mean", "largest", "the loss takes them as"),
        [
            (
                float(outputs.min()),
                float(outputs.double().mean()),
                float(outputs.max()),
                "logits" if logits else "they are",
            )
        ],
        caption=f"Outputs at {len(outputs):,} training samples.",
    )
    if not logits:
        return
    if problem.task == "multiclass":
        if are_probabilities(outputs):
            _accuse_softmax(problem, record, outputs.shape[1])
        elif are_log_probabilities(outputs):
            record.note(
                "The outputs are logarithms of probabilities. Cross-entropy takes the logarithm of "
                "the softmax once more, which changes nothing."
            )
        return
    if bool(((outputs >= 0) & (outputs <= 1)).all()):
        _accuse_sigmoid(problem, record, outputs)


def _accuse_softmax(problem: Problem, record: FindingRecord, classes: int) -> None:
    least = math.log(1 + (classes - 1) / math.e)
    number = record.quantity("least-loss", "least loss possible", least)
    record.defect(
        "The model ends with a softmax, and its loss applies another: the training loss, now "
        f"{problem.risk(problem.train):.3g}, cannot fall below {least:.3g}, and gradients are "
        "small where they should be large.",
        number=number,
        usual=at_most(0, "0"),
        action="Remove the softmax at the end of the model and train again; "
        "nn.CrossEntropyLoss takes logits.",
    )


def _accuse_sigmoid(problem: Problem, record: FindingRecord, outputs: Tensor) -> None:
    seen = ends_with(problem, "sigmoid")
    # a sigmoid that is not called by its name shows by its range
    if not seen and not (float(outputs.min()) < 0.1 and float(outputs.max()) > 0.9):
        return
    share = float(problem.train.y.double().mean())
    least = share * math.log1p(1 / math.e) + (1 - share) * math.log(2)
    number = record.quantity("least-loss", "least loss possible", least)
    action = (
        "Remove the sigmoid at the end of the model and train again, or train and audit with "
        "loss=nn.BCELoss(); nn.BCEWithLogitsLoss takes logits."
    )
    if seen:
        record.defect(
            "The model ends with a sigmoid, and its loss applies another: the training loss, now "
            f"{problem.risk(problem.train):.3g}, cannot fall below {least:.3g}.",
            number=number,
            usual=at_most(0, "0"),
            action=action,
        )
    else:
        record.look(
            f"All {len(outputs):,} outputs looked at lie between 0 and 1, as probabilities do, and "
            "the loss expects logits.",
            number=number,
            usual=at_most(0, "0"),
            action=action,
        )


@finding(
    "constant-outputs",
    area="fit",
    title="Do the outputs depend on the inputs?",
    cost="forward",
    needs=[deterministic],
    whole=True,
)
def constant_outputs(problem: Problem, record: FindingRecord) -> None:
    """The spread of the outputs over the training samples, and the classes that are predicted."""
    outputs = problem.outputs(problem.train).double()
    if len(outputs) < 2:
        record.not_applicable(
            (), r"f(x) \ne f(x')", "there is only one training sample", samples=problem.train
        )
        return
    part = part_of(problem.train)
    unit = _unit(problem)
    spread = record.quantity(
        "output-spread",
        f"largest deviation of an output, {unit}",
        row_statistic(
            lambda rows: float(rows.std(0, correction=0).max()),
            _answers(problem, outputs).reshape(len(outputs), -1),
            problem.train,
            record.confidence,
        ),
        samples=problem.train,
    )
    if spread.high < SAME:
        record.defect(
            f"The outputs ignore the inputs: over {len(outputs):,} training samples{part} they "
            f"vary by less than {max(spread.high, 1e-16):.1g} {unit}.",
            number=spread,
            usual=above(SAME),
            action="Look at the last layer: its weights are 0, or what comes into it is the same "
            "for all samples.",
        )
    elif problem.is_classification:
        _classes_predicted(problem, record, outputs, part)


def _answers(problem: Problem, outputs: Tensor) -> Tensor:
    """Probabilities of classes; other outputs in units of the spread of the targets."""
    if problem.task == "multiclass" or problem.task == "labeling":
        return outputs.softmax(-1)
    if problem.task in ("binary", "multilabel") or _thresholds(problem):
        return outputs if problem.decision_level else outputs.sigmoid()
    if problem.task == "count" and problem.outputs_are_logarithms:
        outputs = outputs.exp()
    y, known = problem.train.y, problem.task in ("regression", "count", "ordinal")
    scale = float(y.double().std(correction=0)) if known and y.numel() > 1 else 0.0
    if not scale > 0:
        scale = float(outputs.abs().max())
    return outputs / (scale if scale > 0 else 1.0)


def _thresholds(problem: Problem) -> bool:
    return problem.task == "ordinal" and problem.train.y[0].numel() > 1


def _unit(problem: Problem) -> str:
    """What `_answers` are in."""
    if problem.task in ("binary", "multiclass", "multilabel", "labeling") or _thresholds(problem):
        return "in probability"
    if problem.task in ("regression", "count", "ordinal"):
        return "over that of the targets"
    return "over the largest output"


def _classes_predicted(problem: Problem, record: FindingRecord, outputs: Tensor, part: str) -> None:
    """Classes that are never predicted although the labels have them, beyond chance."""
    n, y = len(outputs), problem.train.y.reshape(-1).long()
    chosen = (
        outputs.argmax(1)
        if problem.task == "multiclass"
        else outputs.reshape(-1) > problem.decision_level
    )
    classes = problem.classes or 2
    labels, predicted = (torch.bincount(t.long(), minlength=classes).tolist() for t in (y, chosen))
    record.table(
        "predicted-classes",
        ("class", "samples", "predicted"),
        [(k, labels[k], predicted[k]) for k in range(classes)],
        caption=f"Training samples of every class, and how often it is predicted{part}.",
    )
    each = 1 - (1 - record.confidence) / classes
    most = clopper_pearson(0, n, each).high
    never = [
        k
        for k in range(classes)
        if predicted[k] == 0 and labels[k] and clopper_pearson(labels[k], n, each).low > most
    ]
    if not never:
        return
    missed = record.quantity(
        "never-predicted",
        "samples whose class is never predicted",
        clopper_pearson(sum(labels[k] for k in never), n, record.confidence),
        samples=problem.train,
    )
    number = sum(count > 0 for count in predicted)
    if number == 1:
        only = next(k for k in range(classes) if predicted[k])
        sentence = f"It predicts class {only} for every training sample{part}"
    else:
        which = f"class {never[0]}" if len(never) == 1 else f"{len(never)} classes"
        sentence = f"It never predicts {which} on the training data{part}"
    record.look(
        f"{sentence}, and {share_words(missed)} of the samples belong to "
        f"{'another' if number == 1 else 'what it never predicts'}.",
        number=missed,
        usual=at_most(0, "0"),
        action="Train longer, weight rare classes more, or look whether their labels can be "
        "told from the inputs at all.",
    )


def ends_with(problem: Problem, *names: str) -> bool:
    """Whether the model's outputs are what an operation of one of these names returned."""
    network = network_of(problem.function, problem.train.x)
    ends = [network.makers.get(value) for value in network.outputs]
    while any(op is not None and op.kind == "moves" for op in ends):  # its shape may be changed
        ends = [
            network.makers.get(op.inputs[0]) if op is not None and op.kind == "moves" else op
            for op in ends
        ]
    return any(op is not None and op.name in names for op in ends)
