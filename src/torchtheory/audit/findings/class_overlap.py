r"""Finding: how well predicted regions of each class overlap with the true ones."""

from __future__ import annotations

import torch
from torch import Tensor

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.hypotheses import deterministic, labeled_positions
from torchtheory.audit.findings.positions import ratio_interval
from torchtheory.core.diagnosis import Area
from torchtheory.core.intervals import Interval, clopper_pearson, mean_interval
from torchtheory.core.naming import several
from torchtheory.core.usual import at_most
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.models.targets import IGNORED, position_words

#: Classes whose regions are compared; more are words rather than regions.
MOST = 256

#: Classes of a table.
SHOWN = 40


def regions(problem: Problem) -> str | None:
    """Classes of pixels or positions, not words of a language."""
    if problem.tokens:
        return "the labels are tokens, and this is about regions of pixels or positions"
    if (problem.classes or 0) > MOST:
        return f"there are {problem.classes} classes, and this is about at most {MOST}"
    return None


def overlaps(problem: Problem, samples: Samples) -> tuple[Tensor, Tensor, Tensor]:
    """Positions in both regions, in either one, and in the true one, `[n, C]` each."""
    classes = problem.classes or 2
    both: list[Tensor] = []
    either: list[Tensor] = []
    true: list[Tensor] = []
    for f, y in zip(
        torch.split(problem.outputs(samples), problem.chunk),
        torch.split(samples.y, problem.chunk),
        strict=True,
    ):
        y = y.flatten(1)
        said = f.argmax(-1).flatten(1).masked_fill(y == IGNORED, IGNORED)
        for parts, counted in ((both, (said == y)), (true, y != IGNORED)):
            marked = torch.where(counted & (y != IGNORED), y, classes)
            parts.append(_counts(marked, classes))
        named = _counts(torch.where(said == IGNORED, classes, said), classes)
        either.append(true[-1] + named - both[-1])
    return torch.cat(both), torch.cat(either), torch.cat(true)


def _counts(labels: Tensor, classes: int) -> Tensor:
    """How often each class occurs in each row, `[n, C]`; `classes` itself is none."""
    found = torch.zeros(len(labels), classes + 1, dtype=torch.float64, device=labels.device)
    found.scatter_add_(1, labels, torch.ones_like(labels, dtype=torch.float64))
    return found[:, :classes].cpu()


@finding(
    "class-overlap",
    area="generalization",
    title="Overlap of predicted and true regions (IoU) of each class",
    cost="forward",
    needs=[labeled_positions, regions, deterministic],
    whole=True,
)
def class_overlap(problem: Problem, record: FindingRecord) -> None:
    """Positions in both regions over those in either, over all samples; ranges by samples."""
    name, samples = ("train", problem.train) if problem.test is None else ("test", problem.test)
    one, label = position_words(samples.y, problem.tokens)
    both, either, true = overlaps(problem, samples)
    present = (either.sum(0) > 0).nonzero().flatten().tolist()
    found: dict[int, Interval] = {}
    for k in present:
        some = either[:, k] > 0
        if int(some.sum()) > 1:
            found[k] = _interval(both[some, k], either[some, k], record.confidence)
    shown = sorted(present, key=lambda k: float(both[:, k].sum() / either[:, k].sum()))[:SHOWN]
    record.table(
        "overlap",
        ("class", f"share of the {label}s", "IoU", "from", "to", f"{one}s with it"),
        [
            (k, float(true[:, k].sum() / true.sum()), float(both[:, k].sum() / either[:, k].sum()),
             found[k].low if k in found else None, found[k].high if k in found else None,
             int((true[:, k] > 0).sum()))
            for k in shown
        ],
        caption=f"On the {name} data, the worst first; intervals at {record.confidence:.0%}, "
        f"over {one}s.",
    )  # fmt: skip
    ratios = [float(both[:, k].sum() / either[:, k].sum()) for k in present]
    if len(samples) > 1 and ratios:
        record.quantity(
            "mean-overlap", f"mean IoU of the classes on {'new' if name == 'test' else name} data",
            _mean(both, either, record.confidence), samples=samples,
        )  # fmt: skip
        record.headline(
            f"Mean IoU over {len(ratios)} classes {sum(ratios) / len(ratios):.3g} on the {name} "
            "data."
        )
    _never_found(record, (both, either, true), samples, name, one, label)


def _interval(both: Tensor, either: Tensor, confidence: float) -> Interval:
    raw = ratio_interval(both, either, confidence)
    return Interval(raw.estimate, max(0.0, raw.low), min(1.0, raw.high), confidence, len(both),
                    raw.test)  # fmt: skip


def _mean(both: Tensor, either: Tensor, confidence: float) -> Interval:
    """The jackknife's interval of the mean over classes, one whole sample left out at a time."""

    def mean(b: Tensor, e: Tensor) -> Tensor:
        known = e > 0
        return torch.where(known, b / e.clamp_min(1), 0).sum(-1) / known.sum(-1).clamp_min(1)

    n = len(both)
    whole = mean(both.sum(0), either.sum(0))
    without = mean(both.sum(0) - both, either.sum(0) - either)
    found = mean_interval(n * whole - (n - 1) * without, confidence)
    around, center = found.high - found.estimate, float(whole)
    return Interval(center, max(0.0, center - around), min(1.0, center + around), confidence, n,
                    "jackknife over samples")  # fmt: skip


def _never_found(
    record: FindingRecord,
    counted: tuple[Tensor, Tensor, Tensor],
    samples: Samples,
    name: str,
    one: str,
    label: str,
) -> None:
    """Classes that many samples have and that are nowhere predicted."""
    both, either, true = counted
    named = either - true + both
    n = len(samples)
    never = [
        k for k in range(true.shape[1])
        if float(named[:, k].sum()) == 0 and float(true[:, k].sum()) > 0
    ]  # fmt: skip
    each = 1 - (1 - record.confidence) / max(1, true.shape[1])
    sure = [
        k for k in never
        if clopper_pearson(int((true[:, k] > 0).sum()), n, each).low
        > clopper_pearson(0, n, each).high
    ]  # fmt: skip
    if not sure:
        return
    worst = max(sure, key=lambda k: float(true[:, k].sum()))
    number = record.quantity(
        "never-found", f"share of {name} {one}s with class {worst}, which is predicted nowhere",
        clopper_pearson(int((true[:, worst] > 0).sum()), n, record.confidence), samples=samples,
    )  # fmt: skip
    record.look(
        f"{'Class' if len(sure) == 1 else 'Classes'} {several(sure)} "
        f"{'is' if len(sure) == 1 else 'are'} predicted at no {label} of {n:,} {name} {one}s, "
        f"though class {worst} is in {number.value:.0%} of them.",
        number=number, usual=at_most(0, "0"), area=Area.FIT,
        action="Weight rare classes more, or look whether their labels are right.",
    )  # fmt: skip
