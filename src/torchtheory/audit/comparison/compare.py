r"""What changed between two audits: two checkpoints, two architectures, before and after a fix.

A number of a finding comes with a range, so a difference counts only beyond the error:

| the two numbers | are called | when |
|---|---|---|
| error rates on test sets, counted | `changed` | Fisher's exact test rejects at the confidence |
| with a range | `changed` | the ranges are disjoint |
| with a range | `within the error` | they overlap |
| exact | `different` or `equal` | they differ by more than rounding, or do not |

If two true values agree although their ranges are disjoint, at least one range misses
its value: for ranges of confidence $1 - \delta$ that has probability at most
$2 \delta$, and much less for independent samples.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchtheory.audit.comparison.page import (
    comparison_fragment,
    comparison_markdown,
    comparison_page,
)
from torchtheory.audit.comparison.pull_request import pull_request_text
from torchtheory.audit.comparison.recorded import (
    AuditSource,
    Made,
    RecordedAudit,
    RecordedFinding,
    Tally,
    read_audit,
)
from torchtheory.audit.comparison.rows import (
    AreaChange,
    Change,
    ClaimChange,
    FindingGap,
    QuantityChange,
    WarningChange,
    relative_difference,
)
from torchtheory.audit.comparison.words import summary
from torchtheory.core.claim import Claim, Verdict
from torchtheory.core.diagnosis import State
from torchtheory.core.errors import InvalidInput
from torchtheory.core.foreign_text import printable
from torchtheory.core.marks import marked_markdown, record_text
from torchtheory.core.outputs import write_outputs
from torchtheory.core.quantity import ROUNDING

# What of the facts says which data was used, and how.
_DATA = ("task", "samples", "input", "output", "audited")


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """What changed between two audits.

    Attributes:
        names: what to call the two.
        quantities: numbers both have, the clearest changes first.
        claims: claims with another verdict, what became worse first.
        warnings: defects: new ones, gone ones, those of findings only one audit made, those that
            remain.
        gaps: findings only one of the two made.
        facts: what differs in the facts: name to the two values.
        cautions: why numbers may not be comparable, in sentences: data or confidence differ.
        remarks: what else is not the same and may matter, in sentences.
        confidence: of the tests between error rates.
        areas: the state of each area in both audits; nothing where one is of an early version.
        looks: what is worth a look, as `warnings`.
    """

    names: tuple[str, str]
    quantities: list[QuantityChange]
    claims: list[ClaimChange]
    warnings: list[WarningChange]
    gaps: list[FindingGap]
    facts: dict[str, tuple[str, str]]
    cautions: list[str]
    remarks: list[str]
    confidence: float
    areas: list[AreaChange] = field(default_factory=list)
    looks: list[WarningChange] = field(default_factory=list)

    def __repr__(self) -> str:
        """Its sentences, one on a line."""
        return "\n".join(printable(sentence) for sentence in (*self.summary, *self.cautions))

    @property
    def changed(self) -> list[QuantityChange]:
        """The numbers that differ beyond their errors, the clearest first."""
        return [q for q in self.quantities if q.beyond_error]

    @property
    def worsened(self) -> bool:
        """Whether there is a new defect, a new violation, or a promise that became vacuous."""
        return any(c.worse for c in self.claims) or any(w.state == "new" for w in self.warnings)

    @property
    def summary(self) -> list[str]:
        """The comparison in at most six plain sentences."""
        return summary(self)

    def to_json(self) -> dict[str, Any]:
        return {
            "names": list(self.names),
            "summary": self.summary,
            "cautions": list(self.cautions),
            "remarks": list(self.remarks),
            "confidence": self.confidence,
            "worsened": self.worsened,
            "facts": {k: list(v) for k, v in self.facts.items()},
            "quantities": [q.to_json() for q in self.quantities],
            "claims": [c.to_json() for c in self.claims],
            "areas": [a.to_json() for a in self.areas],
            "warnings": [w.to_json() for w in self.warnings],
            "looks": [w.to_json() for w in self.looks],
            "findings": [g.to_json() for g in self.gaps],
        }

    def to_markdown(self) -> str:
        """What changed, as a comment on a pull request; `comparison.md` has everything."""
        return pull_request_text(self)

    def save(self, directory: str | Path) -> Path:
        """Write `comparison.html`, `comparison.md` and `comparison.json`; returns the page.

        The directory is made if needed; other files in it are left alone.
        """
        texts = {
            "comparison.json": record_text("comparison", self.to_json()),
            "comparison.md": marked_markdown("comparison", comparison_markdown(self)),
            "comparison.html": comparison_page(self),
        }
        target = write_outputs(directory, texts)
        return target / "comparison.html"

    def _repr_html_(self) -> str:
        return comparison_fragment(self)


def compare(
    first: AuditSource, second: AuditSource, *, names: tuple[str, str] | None = None
) -> Comparison:
    """What changed from one audit to another, beyond the error bars.

    Args:
        first, second: audits, what their `to_json` gives, `audit.json` files, or the
            directories that hold one.
        names: what to call the two; their titles, or where they lie, unless given.

    >>> number = {"name": "sharpness", "label": "sharpness", "basis": "residual", "unit": ""}
    >>> def made(value):
    ...     quantity = {**number, "value": value, "low": value - 0.1, "high": value + 0.1}
    ...     finding = {"name": "curvature", "title": "Curvature", "section": "Curvature",
    ...                "complete": True, "warnings": [], "claims": [], "tables": [],
    ...                "quantities": [quantity]}
    ...     return {"title": f"net {value}", "facts": {}, "findings": [finding]}
    >>> [str(q.change) for q in compare(made(1.0), made(1.1)).quantities]
    ['within the error']
    >>> compare(made(1.0), made(3.0)).summary[-1]
    'The sharpness rose from 1 ± 0.1 to 3 ± 0.1 (3-fold).'
    """
    if first is second:
        raise InvalidInput("both are the same audit; give two to compare")
    a, b = read_audit(first), read_audit(second)
    if a.file is not None and b.file is not None and a.file.samefile(b.file):
        raise InvalidInput(f"both are the same file, {a.file}; give two audits to compare")
    confidence = max(_confidence(a), _confidence(b))
    quantities: list[QuantityChange] = []
    claims: list[ClaimChange] = []
    warnings: list[WarningChange] = []
    looks: list[WarningChange] = []
    gaps: list[FindingGap] = []
    for name in dict.fromkeys([*a.findings, *b.findings]):
        one, two = a.findings.get(name), b.findings.get(name)
        gap = _gap(name, a, b)
        if gap is not None:
            gaps.append(gap)
        if one is not None and two is not None:
            quantities += _quantities(one, two, 1 - confidence)
            if "not made" not in (one.made, two.made):
                claims += _claims(one, two)
        warnings += _said(one, two, State.DEFECT)
        looks += _said(one, two, State.LOOK)
    order = list(Change)
    quantities.sort(
        key=lambda q: (
            0 if q.beyond_error else order.index(q.change),
            -q.sure,
            -relative_difference(q.first.value, q.second.value),
        )
    )
    facts = _facts(a, b)
    return Comparison(
        names=_names(a, b) if names is None else (str(names[0]), str(names[1])),
        quantities=quantities,
        claims=sorted(claims, key=lambda c: (not c.worse, c.first is None or c.second is None)),
        warnings=sorted(warnings, key=_newest_first),
        gaps=gaps,
        facts=facts,
        cautions=_cautions(facts, a, b),
        remarks=_remarks(facts, a, b),
        confidence=confidence,
        areas=_areas(a, b),
        looks=sorted(looks, key=_newest_first),
    )


def fisher_p_value(first: Tally, second: Tally) -> float:
    r"""Fisher's exact test that two error rates are the same: its p-value.

    Given how many errors there are in all, those of the first set are hypergeometric if the rates
    agree; the p-value is the probability of a split at most as likely as this one. The two sets
    count as independent. On one and the same test set two networks mostly err on the same samples,
    which makes the test cautious.

    >>> round(fisher_p_value(Tally(1, 10), Tally(9, 10)), 6)     # 2 (100 + 1) / 184756
    0.001093
    """
    from scipy import stats  # here, because it takes a second to import

    table = [[t.errors, t.samples - t.errors] for t in (first, second)]
    return float(stats.fisher_exact(table).pvalue)


def _quantities(
    one: RecordedFinding, two: RecordedFinding, level: float
) -> Iterable[QuantityChange]:
    for name, a in one.quantities.items():
        b = two.quantities.get(name)
        if b is None:
            continue
        counted = _counted(name, one, two)
        p_value = None
        if a.unit != b.unit:
            change = Change.INCOMPARABLE
            criterion = f"one is in {a.unit or 'no unit'}, the other in {b.unit or 'no unit'}"
        elif any(map(math.isnan, (a.value, a.low, a.high, b.value, b.low, b.high))):
            change, criterion = Change.INCOMPARABLE, "one of them is not a number"
        elif counted is not None and not (a.exact and b.exact):
            p_value = fisher_p_value(*counted)
            change = Change.CHANGED if p_value < level else Change.WITHIN
            criterion = "Fisher's exact test"
        elif a.exact and b.exact:
            same = a.value == b.value or relative_difference(a.value, b.value) <= ROUNDING
            change = Change.EQUAL if same else Change.DIFFERENT
            criterion = "both are exact"
        elif a.differs_from(b):
            change, criterion = Change.CHANGED, "the ranges are disjoint"
        else:
            change, criterion = Change.WITHIN, "the ranges overlap"
        yield QuantityChange(one.name, two.title, a, b, change, criterion, p_value, counted)


def _counted(name: str, one: RecordedFinding, two: RecordedFinding) -> tuple[Tally, Tally] | None:
    """Counts of the error rate a quantity is: named after their row, and equal to their rate."""
    for row, a in one.tallies.items():
        b = two.tallies.get(row)
        if b is None or row not in name.split("-"):
            continue
        if all(
            math.isclose(t.rate, f.quantities[name].value, rel_tol=1e-9)
            for t, f in ((a, one), (b, two))
        ):
            return a, b
    return None


def _claims(one: RecordedFinding, two: RecordedFinding) -> Iterable[ClaimChange]:
    # what only an error of ours could break says nothing about the networks
    left, right = ([c for c in f.claims if not c.self_check] for f in (one, two))
    pairs: list[tuple[Claim | None, Claim | None]] = []
    # first word for word; what is left, whatever numbers stand in the statement
    for key in (_exactly, _but_for_numbers):
        for a in list(left):
            b = next((b for b in right if key(b) == key(a)), None)
            if b is not None:
                pairs.append((a, b))
                left.remove(a)
                right.remove(b)
    if one.made == two.made == "made":  # or there was no time to state the rest
        pairs += [(a, None) for a in left]
        pairs += [(None, b) for b in right]
    for first, second in pairs:
        if any(c is not None and c.verdict is Verdict.NOT_DONE for c in (first, second)):
            continue
        if first is None or second is None or first.verdict is not second.verdict:
            yield ClaimChange(one.name, two.title, first, second)


def _exactly(claim: Claim) -> tuple[str, str]:
    return claim.id, claim.statement


def _but_for_numbers(claim: Claim) -> tuple[str, str]:
    return claim.id, _without_numbers(claim.statement)


def _newest_first(row: WarningChange) -> int:
    return ("new", "gone", "examined", "remains").index(row.state.split()[0])


def _areas(a: RecordedAudit, b: RecordedAudit) -> list[AreaChange]:
    later = {said.area: said for said in b.diagnosis}
    return [AreaChange(d.area, d, later[d.area]) for d in a.diagnosis if d.area in later]


def _said(
    one: RecordedFinding | None, two: RecordedFinding | None, state: State
) -> Iterable[WarningChange]:
    """Defects, or what is worth a look, of a finding: matched whatever numbers stand in them."""
    found = two or one
    assert found is not None
    examined = one is not None and two is not None and one.made == two.made == "made"

    def sentences(side: RecordedFinding | None) -> list[str]:
        if side is None:
            return []
        return list(side.warnings if state is State.DEFECT else side.looks)

    actions = {a.sentence: a.action for a in found.assessments}
    left = sentences(one)
    for sentence in sentences(two):
        before = next((s for s in left if _without_numbers(s) == _without_numbers(sentence)), None)
        if before is not None:
            left.remove(before)
        action = actions.get(sentence, "")
        yield WarningChange(found.name, found.title, before, sentence, examined, action)
    for sentence in left:
        yield WarningChange(found.name, found.title, sentence, None, examined)


def _gap(name: str, a: RecordedAudit, b: RecordedAudit) -> FindingGap | None:
    one, two = a.findings.get(name), b.findings.get(name)
    first: Made = one.made if one is not None else "not made"
    second: Made = two.made if two is not None else "not made"
    if first == second:
        return None
    ranks = ("made", "made in part", "not made")
    lesser, audit = (one, a) if ranks.index(first) > ranks.index(second) else (two, b)
    found = two or one
    assert found is not None
    reason = audit.missing(name) if lesser is None else lesser.reason
    return FindingGap(name, found.title, first, second, reason)


def _facts(a: RecordedAudit, b: RecordedAudit) -> dict[str, tuple[str, str]]:
    names = dict.fromkeys([*a.facts, *b.facts])
    pairs = {k: (a.facts.get(k, "–"), b.facts.get(k, "–")) for k in names}
    return {k: pair for k, pair in pairs.items() if pair[0] != pair[1]}


def _cautions(facts: dict[str, tuple[str, str]], a: RecordedAudit, b: RecordedAudit) -> list[str]:
    found = []
    data = [k for k in _DATA if k in facts]
    if data or _same_data(a, b) is False:
        how = _told(facts, data) or "the samples are others"
        found.append(
            f"The two are not audits on the same data ({how}), so their numbers may not be "
            "comparable."
        )
    if "confidence" in facts:
        found.append(
            f"The ranges are not of the same confidence ({' and '.join(facts['confidence'])}), so "
            "they may not be comparable."
        )
    return found


def _remarks(facts: dict[str, tuple[str, str]], a: RecordedAudit, b: RecordedAudit) -> list[str]:
    found = []
    if chance := [k for k in ("seed", "time budget", "sub-sampled") if k in facts]:
        found.append(
            f"Not all else is equal ({_told(facts, chance)}): what is estimated from random "
            "samples may differ by chance."
        )
    if other := [k for k in ("precision", "versions") if k in facts]:
        found.append(
            f"Not all else is equal ({_told(facts, other)}): a number may have been computed in "
            "another way."
        )
    with_data = "audited" not in {*a.facts, *b.facts}
    if with_data and _same_data(a, b) is None and not any(k in facts for k in _DATA):
        found.append(
            "The data have the same sizes; these audits do not record whether they are the same "
            "samples."
        )
    return found


def _same_data(a: RecordedAudit, b: RecordedAudit) -> bool | None:
    """Whether both were made on the same samples; None where one does not say."""
    one, two = a.facts.get("data"), b.facts.get("data")
    return None if one is None or two is None else one == two


def _told(facts: dict[str, tuple[str, str]], names: Sequence[str]) -> str:
    return "; ".join(f"{k}: {facts[k][0]} and {facts[k][1]}" for k in names)


def _confidence(audit: RecordedAudit) -> float:
    try:
        confidence = float(audit.facts.get("confidence", "0.95"))
    except ValueError:
        return 0.95
    return confidence if 0 < confidence < 1 else 0.95


def _names(a: RecordedAudit, b: RecordedAudit) -> tuple[str, str]:
    if a.title != b.title:
        return a.title, b.title
    if a.file is not None and b.file is not None:
        for one, two in (
            (a.file.parent.name, b.file.parent.name),
            (a.file.name, b.file.name),
            (str(a.file), str(b.file)),
        ):
            if one and two and one != two:
                return one, two
    return "first", "second"


def _without_numbers(sentence: str) -> str:
    return re.sub(r"\d[\d,]*(\.\d+)?(e[-+]?\d+)?", "#", sentence)
