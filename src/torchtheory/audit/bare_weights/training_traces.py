"""Whether weights show that they were trained: origin, biases, running statistics."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torchtheory.audit.bare_weights.origins import ANY_SIZE, FEWEST_UNIFORM
from torchtheory.audit.bare_weights.survey import Matrix, Survey, Values
from torchtheory.audit.bare_weights.values import SOME
from torchtheory.audit.bare_weights.wording import named_layers
from torchtheory.audit.engine.finding import FindingRecord
from torchtheory.core.usual import at_most
from torchtheory.report.wording import counted


def origin(found: Survey, record: FindingRecord) -> None:
    """Whether the weights are still as they were drawn."""
    tested = [
        m
        for m in found.matrices
        if m.values.count >= FEWEST_UNIFORM and m.values.zeros < m.values.count
    ]
    if not tested:
        record.not_applicable(
            (),
            r"\text{Weights as they were drawn}",
            f"no layer has {FEWEST_UNIFORM} weights that are not all 0, too few to tell laws apart",
        )
        return
    fresh = [m for m in tested if _as_drawn(m)]
    witnessed = [m for m in fresh if _witnessed(found, m)]
    no_trace = len(fresh) == len(tested) and not _moved(found)
    untrained = no_trace and bool(witnessed)
    if not no_trace:
        fresh = witnessed
    number = record.quantity(
        "as-drawn", "layers that cannot be told from freshly drawn ones", len(fresh)
    )
    record.table(
        "origins",
        ("layer", "cannot be told from", "singular values beyond noise"),
        [
            (
                m.name,
                m.law.rule if m.law is not None else "–",
                m.outliers,
            )
            for m in tested
        ],
        caption="Entries against the laws of usual initializations (Kolmogorov and Smirnov's test "
        "at 99.9%), and singular values against those of noise.",
    )
    if untrained:
        record.defect(
            "The network looks untrained: "
            + (f"all {len(fresh)} layers" if len(fresh) > 1 else f"its layer {fresh[0].name}")
            + " cannot be told from freshly drawn weights.",
            number=number,
            usual=at_most(0, "0"),
            action="Check whether this is the checkpoint you meant, and whether the weights were "
            "loaded before they were saved.",
        )
    elif no_trace:
        record.note(
            "No layer can be told from freshly drawn weights, and no layer has a bias that would "
            "show more: a wide layer may learn while its weights hardly move."
        )
    elif fresh:
        record.look(
            f"{named_layers(fresh)} cannot be told from freshly drawn weights, though the network "
            "was trained.",
            number=number,
            usual=at_most(0, "0, unless layers are frozen on purpose"),
            action="Check whether these layers are used, and whether the optimizer has them.",
        )
    else:
        record.fine(
            "No layer looks as it was drawn: training left its trace.",
            number=number,
            usual=at_most(0, "0"),
        )


def statistics(found: Survey, record: FindingRecord) -> None:
    """Running statistics of normalizations."""
    if not found.normalizations:
        record.not_applicable((), r"\text{Running statistics}", "no layer keeps running statistics")
        return
    broken, still, flat, rows = [], [], [], []
    for place, kept in found.normalizations.items():
        variance, mean = kept.get("running_var"), kept.get("running_mean")
        batches = kept.get("num_batches_tracked")
        count = None if batches is None or batches.numel() != 1 else float(batches)
        bad = 0
        for part in (variance, mean):
            bad += 0 if part is None else int((~part.isfinite()).sum())
        bad += 0 if variance is None else int((variance < 0).sum())
        none = 0 if variance is None else int((variance == 0).sum())
        at_start = (
            variance is not None
            and mean is not None
            and bool((variance == 1).all())
            and bool((mean == 0).all())
        )
        if bad:
            broken.append(place)
        elif at_start:
            still.append(place)
        elif variance is not None and none > SOME * variance.numel():
            flat.append(place)
        low, high = (
            (None, None)
            if variance is None or bad or variance.numel() == 0
            else (float(variance.min()), float(variance.max()))
        )
        rows.append((place or "(model)", count, low, high, none, at_start))
    total = len(found.normalizations)
    record.table(
        "statistics",
        ("normalization", "batches seen", "smallest variance", "largest variance",
         "variances of 0", "as at the start"),
        rows,
    )  # fmt: skip
    number = record.quantity(
        "statistics-at-start", "normalizations whose statistics are those of the start", len(still)
    )
    again = "Run the training data through the model in training mode, without optimizer steps."
    if broken:
        record.defect(
            f"The running statistics of {_places(broken)} are negative, NaN or infinite.",
            number=record.quantity(
                "statistics-not-finite",
                "normalizations with negative or infinite statistics, or NaN",
                len(broken),
            ),
            usual=at_most(0, "0"),
            action="Go back to a checkpoint from before the loss became NaN.",
        )
    if still:
        untrained = all(_as_drawn(m) for m in found.matrices) and not _moved(found)
        say = record.look if untrained else record.defect
        say(
            f"The running statistics of {_places(still)} are those of the start (mean 0, variance "
            "1): they were reset, or never estimated.",
            number=number,
            usual=at_most(0, "0"),
            action=again,
        )
    if flat:
        record.look(
            f"Some channels of {_places(flat)} have no variance: they are constant.",
            action="What is constant can be cut off.",
        )
    if not record.assessments:
        record.fine(
            f"The running statistics of all {counted(total, 'normalization')} were estimated."
            if total > 1
            else "The running statistics were estimated.",
            number=number,
            usual=at_most(0, "0"),
        )


def _as_drawn(m: Matrix) -> bool:
    """No test tells it from fresh weights: neither its entries nor its singular values.

    Where nobody is known to draw weights of its size, the singular values must have been looked at.
    """
    if m.law is None or m.outliers:
        return False
    return m.law.rule != ANY_SIZE or m.outliers == 0


def _moved(found: Survey) -> bool:
    """Whether vectors show that the network was trained: biases that are not as they are drawn,
    scales of normalizations that are not 1, batches that were counted.
    """
    if any(float(k["num_batches_tracked"].sum()) > 0 for k in found.normalizations.values()
           if "num_batches_tracked" in k):  # fmt: skip
        return True
    bounds = {_place(m.name): 1 / math.sqrt(m.columns) for m in found.matrices}
    return any(not _fresh_vector(t, bounds.get(_place(t.name))) for t in _vectors(found))


def _witnessed(found: Survey, m: Matrix) -> bool:
    """Whether more than the bulk of its entries says that a layer is as it was drawn.

    A normal law has no ends that training would move weights beyond, so there its bias must be as
    it was drawn, too: a wide layer can learn much while its entries hardly move.
    """
    if m.law is not None and m.law.kind == "uniform":
        return True
    own = [t for t in _vectors(found) if _place(t.name) == _place(m.name)]
    return bool(own) and all(_fresh_vector(t, 1 / math.sqrt(m.columns)) for t in own)


def _vectors(found: Survey) -> list[Values]:
    return [t for t in found.tensors if t.floating and not t.buffer and len(t.shape) == 1]


def _place(name: str) -> str:
    return name.rpartition(".")[0]


def _fresh_vector(t: Values, bound: float | None) -> bool:
    """All the same, or uniform up to the bound as far as the largest and the mean square tell."""
    if t.constant or not t.finite:
        return True
    if bound is None or not t.name.rpartition(".")[2].startswith("bias"):
        return False
    size = t.frobenius / math.sqrt(t.count) * math.sqrt(3) / bound
    # four standard errors of the root of the mean square of uniform numbers, and rounding
    return t.largest <= 1.01 * bound and abs(size - 1) <= 4 * 0.447 / math.sqrt(t.count) + 0.01


def _places(chosen: Sequence[str]) -> str:
    if len(chosen) == 1:
        return f"normalization {chosen[0]}" if chosen[0] else "the model"
    return f"{len(chosen)} normalizations ({', '.join(chosen[:3])}{', …' * (len(chosen) > 3)})"
