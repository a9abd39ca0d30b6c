"""What pages and terminals say about a claim, in the same words."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torchtheory.core import catalogue
from torchtheory.core.claim import Claim, Relation, Verdict
from torchtheory.core.errors import UnknownName
from torchtheory.core.record import Table
from torchtheory.report.numbers import enough_digits, number_text, percent
from torchtheory.report.results import LabRun

#: A sign beside each word, so that color is never alone.
MARKS = {
    Verdict.HOLDS: "✓",
    Verdict.VIOLATED: "✗",
    Verdict.VACUOUS: "○",
    Verdict.NOT_APPLICABLE: "–",
    Verdict.NOT_DONE: "…",
}

#: What a page says once of its controls.
CONTROL = (
    "A control is the same check once more with a hypothesis of the theorem broken on purpose. It "
    "must come out violated: a check that could not fail would show nothing."
)

_RELATIONS = {"<=": "≤", "<": "<", ">=": "≥", ">": ">", "==": "=", "~": "≈", "slope": "≈"}
# What holds only thanks to its tolerance or its confidence interval.
_NEARLY = {"<=": "≲", "<": "≲", ">=": "≳", ">": "≳", "==": "≈", "~": "≈", "slope": "≈"}
_NEGATED = {"<=": "≰", "<": "≮", ">=": "≱", ">": "≯", "==": "≠", "~": "≉", "slope": "≉"}
# A promise that could be less than so many times better counts as met.
_NEARLY_MET = 1.05


@dataclass(frozen=True, slots=True)
class ClaimRelation:
    """`measured relation promised` so that the line read aloud is true.

    Attributes:
        relation: its sign, struck through where the claim is violated, wavy where it holds only
            thanks to a tolerance or a confidence interval.
        digits: enough to tell the two numbers apart where their difference decides.
        margin: how much slack the tolerance gives, or None.
        off: by how much an equation that holds is missed, or None.
    """

    relation: str
    digits: int
    margin: float | None
    off: float | None


def claim_relation(claim: Claim) -> ClaimRelation | None:
    """How to write a claim's comparison; None where there is none."""
    promised, measured, relation = claim.promised, claim.measured, claim.relation
    if promised is None or measured is None or relation is None:
        return None
    violated = claim.verdict is Verdict.VIOLATED
    decides = violated or relation in ("<", ">")
    margin = off = None
    if claim.tolerance:
        margin = claim.tolerance * max(1.0, abs(promised))
        if not math.isfinite(margin):
            margin = claim.tolerance
    missed = relation == "==" and measured != promised and not violated
    if missed and promised and math.isfinite(measured - promised):
        off = abs(measured - promised)
    sign = (_NEGATED if violated else _RELATIONS)[relation]
    if not violated and not _plainly(relation, measured, promised):
        sign = _NEARLY[relation]
    return ClaimRelation(
        relation=sign,
        digits=enough_digits(measured, promised) if decides else 4,
        margin=margin,
        off=off,
    )


def _plainly(relation: Relation, measured: float, promised: float) -> bool:
    """Whether the two numbers as they are shown satisfy the relation."""
    if number_text(measured) == number_text(promised) and relation not in ("<", ">"):
        return True
    match relation:
        case "<" | "<=":
            return measured < promised
        case ">" | ">=":
            return measured > promised
    return False


def slack_words(claim: Claim) -> str:
    """How much better the promise of a bound could be; empty where that is not worth saying.

    >>> slack_words(Claim((), "", 9.0, "<=", 0.5, slack=18.0))
    'the promise could be 18 times smaller'
    >>> slack_words(Claim((), "", -2.0, "<=", -6.0, slack=3.0))
    'the promise could be 3 times as far below 0'
    """
    if claim.slack is None or claim.promised is None or claim.slack < _NEARLY_MET:
        return ""
    if claim.verdict is not Verdict.HOLDS:
        return ""
    if claim.about_failures:
        least = "0" if math.isinf(claim.slack) else f"{number_text(claim.slack, 2)} times smaller"
        return f"the probability of failure could be {least}"
    if math.isinf(claim.promised):
        return "any number would meet it"
    if math.isinf(claim.slack):
        return (
            "0 does not put it to the test"
            if _finite(claim.measured)
            else "any promise would be met"
        )
    above = claim.relation in (">", ">=")
    times = f"{number_text(claim.slack, 2)} times"
    if claim.promised < 0:
        return f"the promise could be {times} " + ("as near to 0" if above else "as far below 0")
    return f"the promise could be {times} {'larger' if above else 'smaller'}"


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def alternative_words(claim: Claim) -> str:
    """Which other values a statistical equation excludes, or fails to.

    >>> from torchtheory.core.intervals import Interval
    >>> near = Interval(-0.5, -0.6, -0.4, 0.99, 9, "least squares")
    >>> alternative_words(Claim((), "", -0.5, "slope", -0.5, interval=near, against=(-1.0, 0.0)))
    'excludes -1 and 0'
    """
    excluded = [a for a in claim.against if a not in claim.accepted]
    said = []
    if excluded:
        said.append(f"excludes {listed_numbers(excluded)}")
    if claim.accepted:
        said.append(f"would accept {listed_numbers(claim.accepted)} as well")
    return ", but ".join(said)


def power_words(claim: Claim) -> list[str]:
    """What the check could show: slack and why it is loose, or the alternatives."""
    said = [slack_words(claim), alternative_words(claim)]
    if claim.loose:
        said[0] = f"{said[0]}: {claim.loose}" if said[0] else f"loose: {claim.loose}"
    return [words for words in said if words]


def listed_numbers(values: Sequence[float]) -> str:
    """Numbers in a sentence.

    >>> listed_numbers([-1.0, 0.0, 0.25])
    '-1, 0 and 0.25'
    """
    *first, last = (number_text(v) for v in values)
    return f"{', '.join(first)} and {last}" if first else last


def control_words(control: Claim) -> str:
    """What a control came to; only *violated* is right.

    A control is there to show that the check can fail.

    >>> control_words(Claim((), "", 1.0, "<=", 9.0, cases=40, violations=37))
    'violated, as it must be, in 37 of 40 cases'
    """
    if control.verdict is not Verdict.VIOLATED:
        return f"{control.verdict}, but it must be violated"
    words = "violated, as it must be"
    if control.cases == 1 or not control.violations:  # files of old runs do not count them
        return words
    if control.violations == control.cases:
        return f"{words}, in all {control.cases:,} cases"
    return f"{words}, in {control.violations:,} of {control.cases:,} cases"


def erratum_words(claim: Claim) -> str:
    """What the printed statement of an erratum came to."""
    if claim.verdict is Verdict.VIOLATED:
        return "refuted"
    return f"{claim.verdict}, so not refuted"


def source(claim: Claim) -> str:
    """Where a statement stands; empty for ids no catalogue knows."""
    try:
        return "; ".join(few(claim.source.split("; ")))
    except UnknownName:
        return ""


def few(items: Sequence[str], most: int = 4) -> list[str]:
    """The first of a long list, and how many follow.

    >>> few(["a", "b", "c", "d", "e"], most=3)
    ['a', 'b', 'and 3 more']
    """
    if len(items) <= most:
        return list(items)
    return [*items[: most - 1], f"and {len(items) - most + 1} more"]


def interval_basis(claim: Claim) -> str:
    """What a confidence interval rests on.

    >>> from torchtheory.core.intervals import Interval
    >>> i = Interval(0.5, 0.4, 0.6, 0.95, 1200, "Clopper-Pearson")
    >>> interval_basis(Claim((), "", 1.0, "<=", 0.5, interval=i))
    'Clopper-Pearson, 1,200 observations'
    """
    if claim.interval is None:
        return ""
    return f"{claim.interval.test}, {counted(claim.interval.trials, 'observation')}"


def at_confidence(claim: Claim) -> str:
    return "" if claim.interval is None else f"at {percent(claim.interval.confidence)}"


def room_order(room: str) -> tuple[int, str]:
    """Rooms in the catalogue's order, then any other."""
    known = room in catalogue.ROOMS
    return (catalogue.ROOMS.index(room) if known else len(catalogue.ROOMS)), room


def numeric_columns(table: Table) -> list[bool]:
    """Which columns hold nothing but numbers.

    >>> numeric_columns(Table("t", ("a", "b"), ((1, "x"), (None, 2.5))))
    [True, False]
    """
    numeric = []
    for column in range(len(table.columns)):
        cells = [row[column] for row in table.rows if row[column] is not None]
        numbers = [c for c in cells if isinstance(c, int | float) and not isinstance(c, bool)]
        numeric.append(bool(cells) and len(numbers) == len(cells))
    return numeric


def controls(claims: Iterable[Claim]) -> list[Claim]:
    return [c.control for c in claims if c.control is not None]


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number with its noun.

    >>> counted(1, "claim"), counted(1200, "claim"), counted(0, "erratum", "errata")
    ('1 claim', '1,200 claims', 'no errata')
    """
    word = noun if number == 1 else plural or noun + "s"
    return f"{number:,} {word}" if number else f"no {word}"


def tally(claims: Sequence[Claim]) -> str:
    """Verdicts counted in words.

    >>> tally([Claim((), "", 1.0, "<=", 0.5), Claim((), "", None, None, None)])
    '1 holds, 1 not applicable'
    """
    counts = Counter(c.verdict for c in claims)
    words = {v: str(v) for v in Verdict} | {
        Verdict.HOLDS: "holds" if counts[Verdict.HOLDS] == 1 else "hold"
    }
    return ", ".join(f"{counts[v]:,} {words[v]}" for v in Verdict if counts[v])


def outcome(run: LabRun) -> tuple[str, Verdict]:
    """What a run came to in a word, and the verdict whose mark stands beside it."""
    if not run.passed:
        return "fails", Verdict.VIOLATED
    return ("passes", Verdict.HOLDS) if run.applies else ("does not apply", Verdict.NOT_APPLICABLE)


def summary(run: LabRun) -> str:
    """One line on a run's claims, controls and errata."""
    parts = [counted(len(run.claims), "claim")]
    if run.claims:
        parts[0] += f": {tally(run.claims)}"
    checks = controls(run.claims)
    failed = sum(c.verdict is Verdict.VIOLATED for c in checks)
    if checks:
        state = "violated as it must be" if len(checks) == 1 else "all violated as they must be"
        if failed < len(checks):
            state = f"only {failed} violated"
        parts.append(f"{counted(len(checks), 'control')}, {state}")
    if run.errata:
        refuted = sum(e.claim.verdict is Verdict.VIOLATED for e in run.errata)
        state = "refuted" if refuted == len(run.errata) else f"{refuted} refuted"
        parts.append(f"{counted(len(run.errata), 'erratum', 'errata')} {state}")
    return " · ".join(parts)


def shown(value: Any) -> str:
    """A parameter's value as a person would type it.

    >>> shown((16, 32)), shown(True), shown(None), shown("relu")
    ('16, 32', 'yes', 'none', 'relu')
    """
    match value:
        case bool():
            return "yes" if value else "no"
        case None:
            return "none"
        case float():
            return f"{value:g}" if value == float(f"{value:g}") else repr(value)
        case list() | tuple():
            return ", ".join(shown(v) for v in value)
    return str(value)
