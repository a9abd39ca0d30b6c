"""How much better than the best constant answer: errors of any kind, judged in one way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.audit.engine.finding import FindingRecord
from torchtheory.core.diagnosis import Area, Assessment, State
from torchtheory.core.intervals import Interval, mean_interval
from torchtheory.core.quantity import Quantity
from torchtheory.core.usual import above
from torchtheory.models.samples import Samples
from torchtheory.report.numbers import size_words

#: Fewest samples that means of their errors are trusted for.
FEWEST = 20

#: A share of the constant's error below which little is learned, and a loss of it on new data that
#: is worth a look.
LITTLE, LARGE_LOSS = 0.2, 0.3


@dataclass(frozen=True, slots=True)
class Scored:
    """Errors of every sample, `[n]`: the network's, and those of the best constant answer."""

    samples: Samples
    own: Tensor
    constant: Tensor

    def skill(self, confidence: float) -> Interval | None:
        r"""$1-\overline e/\overline c$: the share of the constant's error that the network saves.

        Student's interval of the linearized quotient; None where the constant has no error.
        """
        own, constant = self.own.double().cpu(), self.constant.double().cpu()
        size = float(constant.mean())
        if len(own) < 2 or size <= 0:
            return None
        share = 1 - float(own.mean()) / size
        around = mean_interval((own - (1 - share) * constant) / size, confidence)
        return Interval(
            share, share - around.high, share - around.low, confidence, len(own),
            "Student t, linearized",
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Words:
    """What an error is called.

    Attributes:
        error: as in "mean deviance of the counts".
        constant: what the constant answer is, as in "always predicting the mean count".
        usual_action: what to do about a network that has learned nothing.
        percent: whether errors are shares.
    """

    error: str
    constant: str
    usual_action: str = (
        "Check that these are the trained weights, and that inputs and targets are those of "
        "training; else train longer."
    )
    percent: bool = False

    def shown(self, value: float) -> str:
        return f"{value:.1%}" if self.percent else f"{value:.3g}"


def judge_skill(record: FindingRecord, scored: Mapping[str, Scored], words: Words) -> None:
    """Record errors and skill on training and test data, and say whether it fits and carries over.

    Args:
        record: of the finding.
        scored: for `train`, and for `test` if there are test data.
        words: what the errors are.
    """
    rows: list[tuple[object, ...]] = []
    skills: dict[str, Interval | None] = {}
    numbers: dict[str, Quantity] = {}  # the shares saved, which decide
    for name, part in scored.items():
        where = "new data" if name == "test" else "the training data"
        interval = mean_interval(part.own, record.confidence) if len(part.own) > 1 else None
        known = name == "train" and len(part.samples) >= part.samples.population
        mean = float(part.own.double().mean())
        if known or interval is not None:
            record.quantity(
                f"{name}-error", f"{words.error} on {where}",
                mean if known or interval is None else interval, samples=part.samples,
            )  # fmt: skip
        skill = skills[name] = part.skill(record.confidence)
        if skill is not None:
            numbers[name] = record.quantity(
                f"{name}-skill", f"share of the constant's error that is saved on {where}",
                skill.estimate if known else skill, samples=part.samples,
            )  # fmt: skip
        valid = f"[{interval.low:.4g}, {interval.high:.4g}]" if interval and not known else "–"
        rows.append((name, len(part.own), mean, valid, float(part.constant.double().mean()),
                     None if skill is None else skill.estimate))  # fmt: skip
    record.table(
        "errors",
        ("data", "samples", words.error, "Student t", f"of {words.constant}", "share saved"),
        rows,
        caption=f"Intervals at {record.confidence:.0%}, over samples. The constant answer is that "
        "of the training data.",
    )
    record.headline(
        "; ".join(
            f"{words.error} {words.shown(float(p.own.double().mean()))} on "
            f"{'new' if n == 'test' else 'the training'} data"
            for n, p in scored.items()
        ).capitalize()
        + "."
    )
    train = skills["train"]
    if train is None:
        record.note("The targets do not vary, so nothing tells a fit from a constant.")
    elif len(scored["train"].own) >= FEWEST:
        _fit(record, scored["train"], numbers["train"], words)
    if "test" not in scored:
        without_test_data(record)
        return
    test = skills["test"]
    if test is None or len(scored["test"].own) < FEWEST:
        record.note("Too few test samples, or targets that do not vary, to judge them by.")
        return
    _new_data(record, scored["test"], train, numbers["test"], words)


def without_test_data(record: FindingRecord) -> None:
    """Say that nothing is known about new samples."""
    record.assessments.append(
        Assessment(
            Area.GENERALIZATION,
            State.UNMEASURED,
            "Without test data nothing is known about new samples.",
            action="Give data that training has not seen: test=(x, y).",
            finding=record.name,
        )
    )


def _compared(part: Scored, words: Words) -> str:
    own, constant = (float(v.double().mean()) for v in (part.own, part.constant))
    return (
        f"the {words.error} is {words.shown(own)}, that of {words.constant} {words.shown(constant)}"
    )


def _fit(record: FindingRecord, part: Scored, saved: Quantity, words: Words) -> None:
    usual, said = above(LITTLE), _compared(part, words)
    if saved.low <= 0:
        record.defect(
            f"The network has not learned its training data: {said}.",
            number=saved, usual=usual, area=Area.FIT, action=words.usual_action,
        )  # fmt: skip
    elif saved.value < LITTLE:
        record.look(
            f"The network fits its training data in part: {said}.",
            number=saved, usual=usual, area=Area.FIT,
            action="Train longer, or a larger network; if that does not help, the inputs may not "
            "tell more.",
        )  # fmt: skip
    else:
        record.fine(f"On the training data {said}.", number=saved, usual=usual, area=Area.FIT)


def _new_data(
    record: FindingRecord, part: Scored, train: Interval | None, saved: Quantity, words: Words
) -> None:
    usual, said = above(0.0), _compared(part, words)
    if saved.high < 0:
        record.defect(
            f"The network is worse on new data than {words.constant}: {said}.",
            number=saved, usual=usual,
            action="Check that training and test data are prepared alike.",
        )  # fmt: skip
    elif train is not None and train.estimate - saved.high > LARGE_LOSS:
        record.look(
            f"It does much worse on new data than on the training data: {said} "
            f"(share saved: {size_words(saved)}, in training {train.estimate:.2g}).",
            number=saved,
            usual=above(
                train.estimate - LARGE_LOSS, f"less than {LARGE_LOSS:g} below that in training"
            ),
            action="See whether training and test data come from one source; else more data, "
            "weight decay or an earlier stop would narrow the gap.",
        )  # fmt: skip
    else:
        record.fine(f"On new data {said}.", number=saved, usual=usual)


def per_sample(values: Tensor) -> Tensor:
    """The mean over a sample's entries, `[n]`."""
    return values.double().reshape(len(values), -1).mean(1).cpu() if len(values) else torch.empty(0)
