"""What the numbers in weights tell: not finite, zero, out of line with others, copied units."""

from __future__ import annotations

import math
from statistics import median

from torchtheory.audit.bare_weights.figures import draw_norms
from torchtheory.audit.bare_weights.survey import Survey
from torchtheory.audit.bare_weights.wording import (
    are,
    named_layers,
    named_tensors,
    say_undone,
    say_unseen,
)
from torchtheory.audit.engine.finding import FindingRecord
from torchtheory.core.diagnosis import Area, Assessment, State
from torchtheory.core.usual import at_most, below
from torchtheory.report.numbers import number_text
from torchtheory.report.wording import counted

#: A share of a layer's units from which silent ones and copies are a defect, and worth a look.
MANY, SOME = 0.25, 0.02

#: A layer is out of line if its gain is so many times, and deviations, away from the others'.
TIMES, DEVIATIONS = 10.0, 6.0

#: Fewest layers that something can be out of line with.
FEWEST = 5


def values(found: Survey, record: FindingRecord) -> None:
    """Not a number, infinite, zero; in which precision."""
    weights = [t for t in found.tensors if t.floating]
    trained = [t for t in weights if not t.buffer]
    for area in (
        Area.DATA,
        Area.FIT,
        Area.GENERALIZATION,
        Area.CALIBRATION,
        Area.ROBUSTNESS,
    ):
        needs = "Weights alone do not tell; give the model and its data."
        record.assessments.append(Assessment(area, State.UNMEASURED, needs, finding=record.name))
    record.quantity("parameters", "parameters", found.parameters)
    bad = sum(t.nans + t.infinite for t in weights)
    number = record.quantity("not-finite", "weights that are not finite numbers", bad)
    broken = [t for t in weights if not t.finite]
    if broken:
        record.defect(
            f"{counted(bad, 'number')} in {named_tensors(broken)} {are(bad)} NaN or infinite.",
            number=number,
            usual=at_most(0, "0"),
            action="Go back to a checkpoint from before the loss became NaN, and train on with a "
            "smaller step or clipped gradients.",
        )
    if trained:
        largest = max(t.largest for t in trained)
        size = math.hypot(*(t.frobenius for t in trained))
        if math.isfinite(size):
            record.quantity("norm", "norm of all weights", size)
        record.quantity("largest-weight", "largest weight", largest)
    if huge := [t for t in weights if t.finite and not t.measurable]:
        record.defect(
            f"The numbers in {named_tensors(huge)} are so large that their squares overflow.",
            number=record.quantity(
                "overflowing", "largest number whose square overflows", max(t.largest for t in huge)
            ),
            usual=below(1e100, "below 1e100"),
            action="Check how the weights were saved: no layer computes with such numbers.",
        )
    zeros = sum(m.values.zeros for m in found.matrices)
    entries = sum(m.values.count for m in found.matrices)
    if entries:
        share = record.quantity("zeros", "share of weights that are exactly 0", zeros / entries)
        empty = [m for m in found.matrices if m.values.zeros == m.values.count]
        sparse = [m for m in found.matrices if 2 * m.values.zeros > m.values.count]
        if empty:
            record.defect(
                f"{named_layers(empty)} {are(len(empty))} nothing but zeros, and "
                f"{_pass(len(empty))} no signal.",
                number=share,
                usual=at_most(0, "none"),
                action="Check whether the weights were saved and loaded under the right names, and "
                "whether the layer is trained.",
            )
        elif sparse:
            record.look(
                f"More than half of the weights of {named_layers(sparse)} are exactly 0.",
                number=share,
                usual=at_most(0, "0, unless the network was pruned"),
                action="If it was not pruned, look for a mask or a wrong initialization.",
            )
    kinds: dict[str, int] = {}
    for m in found.matrices:
        kinds[m.values.dtype] = kinds.get(m.values.dtype, 0) + 1
    if len(kinds) > 1:
        listed = ", ".join(f"{n} in {kind}" for kind, n in kinds.items())
        record.note(f"The layers are not of one precision: {listed}.")
    if found.unseen:
        say_unseen(found, record, "Values of the weights")
    elif not broken:
        record.fine(
            f"All {found.parameters:,} weights are finite numbers.",
            number=number,
            usual=at_most(0, "0"),
        )
    record.table(
        "tensors",
        ("tensor", "shape", "precision", "norm", "largest", "zeros", "not finite"),
        [
            (
                t.name,
                " × ".join(map(str, t.shape)) or "number",
                t.dtype,
                t.frobenius if t.floating else None,
                t.largest if t.floating else None,
                t.zeros,
                t.nans + t.infinite,
            )
            for t in found.tensors
        ],
    )


def scale(found: Survey, record: FindingRecord) -> None:
    """How large the layers are, and which are out of line with the others."""
    layers = [m for m in found.matrices if m.spectrum is not None]
    late = say_undone(found, record, "Norms of layers")
    if not layers:
        if not late:
            record.not_applicable((), r"\text{Norms of layers}", "there is no layer of weights")
        return
    largest = max(layers, key=lambda m: m.norm)
    high = largest.norm if largest.spectrum is None else largest.spectrum.norm_high
    label = "largest spectral norm of a layer"
    if high == largest.norm:
        record.quantity("largest-spectral-norm", label, high)
    else:
        basis = "Lanczos, its upper end with probability 0.999"
        record.quantity("largest-spectral-norm", label, largest.norm, low=largest.norm, high=high,
                        basis=basis)  # fmt: skip
    record.table(
        "norms",
        ("layer", "rows", "columns", "spectral norm", "Frobenius norm", "gain"),
        [(m.name, m.rows, m.columns, m.norm, m.values.frobenius, m.gain) for m in layers],
        caption="Gain: by how much a layer lengthens a random vector, per output. Where a norm was "
        "found by Lanczos it is a lower bound.",
    )
    draw_norms(layers, record)
    compared = [m for m in found.matrices if not m.is_table and m.gain > 0]
    if len(compared) < FEWEST:
        record.note(f"Fewer than {FEWEST} layers: none can be out of line with the others.")
        return
    logs = [math.log(m.gain) for m in compared]
    middle = median(logs)
    spread = 1.4826 * median([abs(x - middle) for x in logs])
    limit = math.exp(max(math.log(TIMES), DEVIATIONS * spread))
    odd = [
        (abs(x - middle), m)
        for x, m in zip(logs, compared, strict=True)
        if abs(x - middle) > math.log(limit)
    ]
    apart = math.exp(max(abs(x - middle) for x in logs))
    number = record.quantity("gain-apart", "layer farthest from the usual gain, in times", apart)
    usual = below(limit, f"below {limit:.3g} times")
    if odd:
        worst = max(odd, key=lambda pair: pair[0])[1]
        which = "larger" if math.log(worst.gain) > middle else "smaller"
        record.look(
            f"The weights of {named_layers([m for _, m in odd])} are out of line: those of "
            f"{worst.name} are {number_text(apart, 2)} times {which} than the usual layer's.",
            number=number,
            usual=usual,
            action="Look at its initialization, its learning rate and its weight decay.",
            figure="norms",
        )
    else:
        record.fine(
            "No layer's weights are out of line with the others'.", number=number, usual=usual
        )


def units(found: Survey, record: FindingRecord) -> None:
    """Units that do nothing, and units that do the same."""
    layers = [m for m in found.matrices if not m.is_table and m.values.zeros < m.values.count]
    if not layers:
        record.not_applicable((), r"\text{Units of layers}", "no layer has units")
        return
    rows = sum(m.rows for m in layers)
    silent, copies = sum(m.units.silent for m in layers), sum(m.units.copies for m in layers)
    record.table(
        "units",
        ("layer", "units", "without incoming weights", "copies of another", "inputs never read"),
        [(m.name, m.rows, m.units.silent, m.units.copies, m.units.unread) for m in layers],
    )
    record.quantity("silent-units", "share of units without weights", silent / rows)
    record.quantity("copied-units", "share of units that copy another", copies / rows)
    worst = max(layers, key=lambda m: m.units.silent / m.rows)
    dead = record.quantity(
        "silent-units-of-a-layer", "share of units without weights, in the layer with most of them",
        worst.units.silent / worst.rows,
    )  # fmt: skip
    few = below(SOME, f"below {SOME:.0%}")
    told = f"{worst.units.silent} of {worst.rows} units of {worst.name} have no incoming weights."
    action = "Use a smaller step or another activation; what has died can be cut off."
    if worst.units.silent >= MANY * worst.rows:
        record.defect(told, number=dead, usual=few, action=action)
    elif worst.units.silent > SOME * worst.rows:
        record.look(told, number=dead, usual=few, action=action)
    twin = max(layers, key=lambda m: m.units.copies / m.rows)
    same = record.quantity(
        "copied-units-of-a-layer", "share of units that copy another, in the layer with most of "
        "them", twin.units.copies / twin.rows,
    )  # fmt: skip
    told = f"{twin.units.copies} of {twin.rows} units of {twin.name} are copies of another unit."
    action = "Draw the initial weights at random: equal units have equal gradients and stay equal."
    if twin.units.copies >= MANY * twin.rows:
        record.defect(told, number=same, usual=few, action=action)
    elif twin.units.copies > SOME * twin.rows:
        record.look(told, number=same, usual=few, action=action)
    if not record.assessments:
        record.fine(
            f"Of {counted(rows, 'unit')}, {silent or 'none'} {are(silent)} without weights and "
            f"{copies or 'none'} {are(copies)} copies of another.",
            number=dead,
            usual=few,
        )


def _pass(count: int) -> str:
    return "passes" if count == 1 else "pass"
