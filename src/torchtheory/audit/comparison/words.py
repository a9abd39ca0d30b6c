"""What pages and terminals say about two audits side by side, in the same words."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from torchtheory.audit.comparison.rows import AreaChange, Change, FindingGap, QuantityChange
from torchtheory.core.claim import Claim
from torchtheory.core.quantity import Quantity
from torchtheory.report.numbers import MINUS, enough_digits, number_text, percent
from torchtheory.report.wording import claim_relation, counted

if TYPE_CHECKING:
    from torchtheory.audit.comparison.compare import Comparison

#: A sign beside each word, so that color is never alone.
MARKS = {
    Change.CHANGED: "≠",
    Change.DIFFERENT: "≠",
    Change.WITHIN: "≈",
    Change.EQUAL: "=",
    Change.INCOMPARABLE: "?",
}

#: A sign for what became of an area.
TURNS = {"worse": "✗", "better": "✓", "same": "=", "unknown": "?"}

#: Most sentences of a summary, and of those most about single numbers.
SENTENCES = 6
NUMBERS = 3

# An error below this share of the number says nothing at four digits.
_SMALL = 1e-4


def summary(comparison: Comparison) -> list[str]:
    """At most six sentences: cautions, how much changed, then what."""
    if not comparison.quantities and not comparison.claims and not comparison.warnings:
        found = ["The two audits have no number in common, so there is nothing to compare."]
        return (comparison.cautions + found + _gaps(comparison))[:SENTENCES]
    first = [*comparison.cautions, _count(comparison)]
    must = _verdicts(comparison) + _warnings(comparison, "new", "New defect")
    may = _warnings(comparison, "gone", "No longer a defect") + _gaps(comparison)
    left = SENTENCES - len(first)
    room = max(1, min(2, left - len(must)), left - len(must) - len(may))
    return (first + _numbers(comparison, min(NUMBERS, room)) + must + may)[:SENTENCES]


def _count(comparison: Comparison) -> str:
    total = len(comparison.quantities)
    counts = Counter(q.change for q in comparison.quantities)
    if not total:
        return "The two audits have no number in common."
    beyond = counts[Change.CHANGED] + counts[Change.DIFFERENT]
    if beyond == 0 and not comparison.claims and not comparison.gaps:
        how = "exactly" if counts[Change.EQUAL] == total else "within their errors"
        return f"The two audits agree {how} in {counted(total, 'number')}, all that they share."
    phrases = (
        (counts[Change.CHANGED], "changed beyond the error", "changed beyond the error"),
        (counts[Change.DIFFERENT], "exact one differs", "exact ones differ"),
        (counts[Change.WITHIN], "agrees within the error", "agree within the error"),
        (counts[Change.EQUAL], "is equal", "are equal"),
        (counts[Change.INCOMPARABLE], "cannot be compared", "cannot be compared"),
    )
    parts = [f"{n} {one if n == 1 else many}" for n, one, many in phrases if n]
    if not beyond:
        parts.insert(0, "none changed beyond the error")
    return f"Of {counted(total, 'number')} in both audits, {', '.join(parts)}."


def _numbers(comparison: Comparison, most: int) -> list[str]:
    """The clearest changes, and the error on new data whether it changed or not."""
    tested = [q for q in comparison.quantities if q.p_value is not None][:1]
    chosen = comparison.changed[:most]
    if tested and tested[0] not in chosen and (most > 1 or not chosen):
        chosen = [*chosen[: most - 1], tested[0]]
    return [sentence(q) for q in chosen]


def sentence(row: QuantityChange) -> str:
    """One number in a sentence."""
    first, second = both(row)
    subject = row.label if row.label.lower().startswith("the ") else f"The {row.label}"
    subject = subject[0].upper() + subject[1:] + ("," if "," in subject else "")
    verb = "changed"
    if row.beyond_error:
        verb = "rose" if row.difference > 0 else "fell"
    text = f"{subject} {verb} from {first} to {second}"
    test = _by_test(row)
    if row.change is Change.WITHIN:
        return f"{text}, which is within the error{f' ({test})' if test else ''}."
    if row.change is Change.INCOMPARABLE:
        return f"{subject} cannot be compared: {row.criterion}."
    if not row.beyond_error:
        return f"{subject} is {first} in both."
    extra = "; ".join(filter(None, (fold(row), test)))
    return f"{text} ({extra})." if extra else f"{text}."


def _by_test(row: QuantityChange) -> str:
    return "" if row.p_value is None else f"{row.criterion}, {p_value(row)}"


def p_value(row: QuantityChange) -> str:
    """The p-value as people write it.

    >>> from torchtheory.core.quantity import Quantity
    >>> q = Quantity("e", "error", 0.1, 0.0, 0.2, "")
    >>> p_value(QuantityChange("risk", "Risk", q, q, Change.WITHIN, "test", 0.51234))
    'p = 0.51'
    """
    p = row.p_value
    if p is None:
        return ""
    return "p < 0.0001" if p < 1e-4 else f"p = {min(p, 1.0):.2g}"


def fold(row: QuantityChange) -> str:
    """How many times larger or smaller, or by how many percent; empty where that has no sense.

    >>> def row(a, b):
    ...     one, two = (Quantity("x", "x", v, v, v, "exact") for v in (a, b))
    ...     return QuantityChange("f", "F", one, two, Change.DIFFERENT, "both are exact")
    >>> fold(row(0.25, 1.6)), fold(row(8.0, 2.0)), fold(row(1.0, 1.1)), fold(row(0.0, 1.0))
    ('6.4-fold', '4-fold', 'by 10 %', '')
    """
    sign, size = _factor(row)
    if sign in ("+", MINUS):
        return f"by {size}"
    return f"{size}-fold" if sign else ""


def factor(row: QuantityChange) -> str:
    """The same as a table has it; a dash where it has no sense.

    >>> def row(a, b):
    ...     one, two = (Quantity("x", "x", v, v, v, "exact") for v in (a, b))
    ...     return QuantityChange("f", "F", one, two, Change.DIFFERENT, "both are exact")
    >>> factor(row(0.25, 1.6)), factor(row(8.0, 2.0)), factor(row(1.0, 1.1)), factor(row(0.0, 1.0))
    ('× 6.4', '÷ 4', '+ 10 %', '–')
    """
    return " ".join(_factor(row)).strip() or "–"


def _factor(row: QuantityChange) -> tuple[str, str]:
    ratio = row.ratio
    if ratio is None or abs(ratio - 1) < 1e-4:
        return "", ""
    if 1 / 1.5 < ratio < 1.5:
        return "+" if ratio > 1 else MINUS, f"{100 * abs(ratio - 1):.2g} %"
    return ("×", number_text(ratio, 2)) if ratio > 1 else ("÷", number_text(1 / ratio, 2))


def both(row: QuantityChange) -> tuple[str, str]:
    """The two numbers with their errors, as a sentence has them."""
    if row.tallies is not None:  # the test, not the two ranges, says whether they differ
        return _value(row.first, row)[0], _value(row.second, row)[0]
    first, second = cells(row)
    return " ".join(first).strip(), " ".join(second).strip()


def cells(row: QuantityChange) -> tuple[tuple[str, str], tuple[str, str]]:
    """The two numbers as a table has them: each with its error, or with its range beside it."""
    return _value(row.first, row), _value(row.second, row)


def _value(q: Quantity, row: QuantityChange) -> tuple[str, str]:
    a, b = row.first.value, row.second.value
    if row.tallies is not None:
        digits = min(6, enough_digits(100 * a, 100 * b, 3))
        ends = (f"{number_text(100 * end, 3)} %" for end in (q.low, q.high))
        return f"{number_text(100 * q.value, digits)} %", "" if q.exact else f"[{', '.join(ends)}]"
    return with_error(q, enough_digits(a, b, 3) if row.beyond_error else 3)


def with_error(q: Quantity, digits: int = 3) -> tuple[str, str]:
    """A number with its error, and its range where that is not the same to both sides.

    >>> with_error(Quantity("x", "x", 0.2513, 0.2411, 0.2615, "two standard errors"))
    ('0.251 ± 0.01', '')
    >>> with_error(Quantity("x", "x", 0.25, 0.25, 0.4, "Clopper-Pearson"))
    ('0.25', '[0.25, 0.4]')
    >>> with_error(Quantity("x", "x", 7.0, 7.0, 7.0, "exact"))
    ('7', '')
    """
    half = (q.high - q.low) / 2
    if q.exact or half < _SMALL * abs(q.value) < math.inf:
        return number_text(q.value, digits), ""
    if not math.isfinite(half) or abs(q.high + q.low - 2 * q.value) > 0.1 * half:
        return number_text(q.value, digits), f"[{number_text(q.low, 3)}, {number_text(q.high, 3)}]"
    if half < abs(q.value):  # no more digits than the error leaves
        digits = max(2, min(digits, math.ceil(math.log10(abs(q.value) / half)) + 1))
    return f"{number_text(q.value, digits)} ± {number_text(half, 2)}", ""


def verdict(claim: Claim | None) -> str:
    """A verdict, or that the claim was not made."""
    return "not stated" if claim is None else str(claim.verdict)


def area_sentence(row: AreaChange) -> str:
    """An area with its two states, and what is said of it now."""
    states = f"{row.first.state} → {row.second.state}"
    if row.turn == "same":
        states = str(row.second.state)
    return f"{row.area.question}: {states}. {row.second.sentence}"


def _verdicts(comparison: Comparison) -> list[str]:
    rows = [c for c in comparison.claims if c.first is not None and c.second is not None]
    new = [c for c in comparison.claims if c.first is None and c.worse]
    if not rows and not new:
        return []
    shown = [f"{c.title.rstrip('.')}: {verdict(c.first)} → {verdict(c.second)}" for c in rows + new]
    what = counted(len(shown), "claim")
    tail = f"; and {len(shown) - 2} more" if len(shown) > 2 else ""
    has = "has" if len(shown) == 1 else "have"
    return [f"{what} {has} another verdict ({'; '.join(shown[:2])}{tail})."]


def _warnings(comparison: Comparison, state: str, words: str) -> list[str]:
    rows = [w.sentence for w in comparison.warnings if w.state == state]
    more = f" (and {len(rows) - 1} more)" if len(rows) > 1 else ""
    return [f"{words}{more}: {rows[0]}"] if rows else []


def _gaps(comparison: Comparison) -> list[str]:
    if not comparison.gaps:
        return []
    one, two = comparison.names
    parts = []
    for name, side in ((one, "first"), (two, "second")):
        only = [g for g in comparison.gaps if only_in(g) == side]
        if only:
            titles = ", ".join(f"“{g.title}”" for g in only[:2])
            more = f" and {len(only) - 2} more" if len(only) > 2 else ""
            reasons = {g.reason for g in only}
            why = f" ({reasons.pop()})" if len(reasons) == 1 and "" not in reasons else ""
            parts.append(f"only {name} has {titles}{more} in full{why}")
    text = "; ".join(parts)
    return [f"{text[0].upper()}{text[1:]}."]


def only_in(gap: FindingGap) -> str:
    """Which audit came further with a finding: `first` or `second`."""
    ranks = ("not made", "made in part", "made")
    return "first" if ranks.index(gap.first) > ranks.index(gap.second) else "second"


def comparison_of(claim: Claim | None) -> str:
    """The numbers of a claim, or why there are none."""
    if claim is None:
        return ""
    how = claim_relation(claim)
    if how is None:
        return claim.reason
    measured = number_text(claim.measured, how.digits)
    return f"measured {measured} {how.relation} promised {number_text(claim.promised, how.digits)}"


def decided(row: QuantityChange) -> str:
    """How it was decided whether a number changed."""
    return f"{row.criterion}, {p_value(row)}" if row.p_value is not None else row.criterion


def notes(comparison: Comparison) -> list[str]:
    """What a reader must know of the words used."""
    found = []
    changes = {q.change for q in comparison.quantities}
    if Change.CHANGED in changes or Change.WITHIN in changes:
        found.append(
            "A number changed where the two ranges have none in common, and is within the error "
            "where they overlap. Ranges rest on what each audit says of them."
        )
    if changes & {Change.DIFFERENT, Change.EQUAL}:
        found.append(
            "An exact number is exact for the samples it was computed on; on other samples it "
            "would be another."
        )
    tested = [q for q in comparison.quantities if q.p_value is not None]
    if tested:
        found.append(
            f"Error rates on test sets are compared by {tested[0].criterion} at "
            f"{percent(comparison.confidence)} confidence, as if the test sets were independent: "
            "an audit does not record which samples were wrong. On one and the same test set this "
            "is cautious."
        )
    ranged = sum(q.change in (Change.CHANGED, Change.WITHIN) for q in comparison.quantities)
    if ranged > 10:
        found.append(
            f"There are {ranged} numbers with a range: a few may seem to change by chance alone."
        )
    return found


def told(claim: Claim | None) -> str:
    """A verdict with its numbers."""
    numbers = comparison_of(claim)
    return verdict(claim) + (f": {numbers}" if numbers else "")


def labeled(row: QuantityChange) -> str:
    """What a number is, with its unit."""
    unit = row.second.unit
    return f"{row.label} ({unit})" if unit else row.label


def gap_rows(comparison: Comparison) -> list[tuple[str, str, str, str]]:
    """Finding, how far each audit came with it, and why not further."""
    return [(g.finding, g.first, g.second, g.reason or "–") for g in comparison.gaps]
