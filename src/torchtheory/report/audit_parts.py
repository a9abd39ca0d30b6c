"""What the report of an audit consists of, before it becomes a page, Markdown or a terminal's text.

The first screen is for whoever asks whether the network is all right: a sentence, a table of areas,
three pictures. Everything else is sorted here for those who ask why: findings by area, what does
not apply, what was not done, how the numbers were checked, and where the statements stand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torchtheory.core import catalogue
from torchtheory.core.claim import Claim, Verdict
from torchtheory.core.diagnosis import Area, Assessment, State
from torchtheory.core.figure import Figure
from torchtheory.core.record import Table
from torchtheory.report import wording
from torchtheory.report.numbers import duration
from torchtheory.report.results import AuditFinding, AuditResult, quantity_words

#: A sign beside each word, so that color is never alone.
STATE_MARKS = {
    State.DEFECT: "✗",
    State.LOOK: "!",
    State.OPEN: "?",
    State.FINE: "✓",
    State.UNMEASURED: "–",
}

#: What a violated self-check means, wherever it is shown.
OUR_ERROR = (
    "A self-check failed: this is an error of torchtheory, not of your network. Do not rely on the "
    "numbers of this finding, and please report it."
)


@dataclass(frozen=True, slots=True)
class AreaRow:
    """An area on the first screen, in words.

    Attributes:
        name: of the area.
        state, mark: how it stands.
        sentence: what was found.
        number: the number that decides with its range; empty where none does.
        label: what that number is.
        usual: what is usual of it.
        action: what to do.
    """

    name: str
    state: State
    mark: str
    sentence: str
    number: str
    label: str
    usual: str
    action: str

    @classmethod
    def of(cls, assessment: Assessment) -> AreaRow:
        number = assessment.number
        return cls(
            assessment.area.question,
            assessment.state,
            STATE_MARKS[assessment.state],
            assessment.sentence,
            "" if number is None else quantity_words(number),
            "" if number is None else number.label,
            assessment.usual,
            assessment.action,
        )


@dataclass(frozen=True, slots=True)
class FindingPart:
    """A finding under its area, without what is gathered elsewhere.

    Attributes:
        finding: what was collected.
        sentences: what it says in a sentence each.
        claims: about the network, that were measured.
        figures: those that do not stand on the first screen already.
        shown_above: whether one of its figures does.
    """

    finding: AuditFinding
    sentences: tuple[str, ...]
    claims: tuple[Claim, ...]
    figures: tuple[Figure, ...]
    shown_above: bool

    @property
    def state(self) -> State | None:
        """The most serious thing it says; None where it judges nothing."""
        states = [a.state for a in self.finding.assessments]
        return min(states, key=list(State).index) if states else None

    @property
    def in_short(self) -> tuple[str, ...]:
        """What its heading says: its own sentences, or else the most serious of its judgments."""
        said = [a.sentence for a in self.finding.assessments if a.state is self.state]
        return self.sentences or tuple(said[:1])

    @property
    def is_empty(self) -> bool:
        f = self.finding
        parts = (f.assessments, f.advice, f.quantities, f.errata, f.tables, f.figures, f.notes)
        return not (self.sentences or self.claims or any(parts))


@dataclass(frozen=True, slots=True)
class AreaPart:
    """An area with its findings, and what findings of other areas say about it."""

    area: Area
    row: AreaRow
    findings: tuple[FindingPart, ...]
    said_elsewhere: tuple[tuple[Assessment, str], ...]

    @property
    def claims(self) -> list[Claim]:
        return [c for part in self.findings for c in part.claims]


@dataclass(slots=True)
class Omission:
    """Why some statements were not measured, and which."""

    reason: str
    statements: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Reference:
    """A catalogue id: what it is called, where it stands, and the labs that exercise it."""

    id: str
    name: str
    citation: str
    labs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AuditParts:
    """Everything a report shows of an audit, sorted."""

    audit: AuditResult
    rows: tuple[AreaRow, ...]
    areas: tuple[AreaPart, ...]
    inapplicable: tuple[Omission, ...]
    undone: tuple[Omission, ...]
    self_checks: tuple[Claim, ...]
    broken: tuple[tuple[str, Claim], ...]
    references: tuple[Reference, ...]

    @property
    def state(self) -> State:
        """The most serious state of an area; nothing is fine of which most is not done."""
        worst = min((r.state for r in self.rows), key=list(State).index, default=State.UNMEASURED)
        late = self.audit.mostly_undone
        return State.UNMEASURED if late and worst in (State.OPEN, State.FINE) else worst

    @property
    def claims(self) -> list[Claim]:
        """The statements about the network, as they are counted."""
        return [
            c
            for f in self.audit.findings
            for c in f.claims
            if not c.self_check and not _has_no_subject(c)
        ]


def audit_parts(audit: AuditResult) -> AuditParts:
    """Sort what an audit collected into the parts of its report."""
    rows = [AreaRow.of(a) for a in audit.diagnosis]
    above = {id(figure) for _, figure in audit.pictures}
    found = [_finding_part(f, above) for f in audit.findings]
    areas = []
    for assessment, row in zip(audit.diagnosis, rows, strict=True):
        area = assessment.area
        here = tuple(p for p in found if p.finding.area is area and not p.is_empty)
        elsewhere = tuple(
            (said, f.title)
            for f in audit.findings
            for said in f.assessments
            if said.area is area and f.area is not area and said.state is not State.UNMEASURED
        )
        if here or elsewhere:
            areas.append(AreaPart(area, row, here, elsewhere))
    checks = [(f.title, c) for f in audit.findings for c in f.claims if c.self_check]
    return AuditParts(
        audit=audit,
        rows=tuple(rows),
        areas=tuple(areas),
        inapplicable=_omissions(audit, Verdict.NOT_APPLICABLE),
        undone=_omissions(audit, Verdict.NOT_DONE),
        self_checks=tuple(c for _, c in checks if c.verdict not in _UNMEASURED),
        broken=tuple((t, c) for t, c in checks if c.verdict is Verdict.VIOLATED),
        references=_references(audit),
    )


_UNMEASURED = (Verdict.NOT_APPLICABLE, Verdict.NOT_DONE)


def _finding_part(finding: AuditFinding, above: set[int]) -> FindingPart:
    assessed = [a.sentence for a in finding.assessments]
    # what an assessment says already is not said again
    sentences = [s for s in finding.headlines if s not in assessed]
    claims = [c for c in finding.claims if not c.self_check and c.verdict not in _UNMEASURED]
    figures = [f for f in finding.figures if id(f) not in above]
    return FindingPart(
        finding,
        tuple(dict.fromkeys(sentences)),
        tuple(claims),
        tuple(figures),
        len(figures) < len(finding.figures),
    )


def _has_no_subject(claim: Claim) -> bool:
    """Whether it says no more than that a finding has nothing to be about.

    That a model draws no random numbers or has no attention is no theorem that does not apply:
    without an entry of the catalogue it is neither listed nor counted.
    """
    return claim.verdict is Verdict.NOT_APPLICABLE and not claim.ids


def _omissions(audit: AuditResult, verdict: Verdict) -> tuple[Omission, ...]:
    """The statements with this verdict, those of one reason together."""
    found: dict[str, Omission] = {}
    for finding in audit.findings:
        for claim in finding.claims:
            if claim.verdict is verdict and not _has_no_subject(claim):
                reason = sentence(claim.reason)
                group = found.setdefault(reason, Omission(reason))
                if claim.statement not in group.statements:
                    group.statements.append(claim.statement)
                group.ids += [i for i in claim.ids if i not in group.ids]
    return tuple(found.values())


def _references(audit: AuditResult) -> tuple[Reference, ...]:
    ids = dict.fromkeys(i for f in audit.findings for c in f.claims for i in c.ids)
    known = catalogue.entries()
    return tuple(
        Reference(i, known[i].name, known[i].citation, tuple(audit.labs.get(i, ())))
        for i in sorted(ids)
        if i in known
    )


def sentence(words: str) -> str:
    """Words that begin with a capital and end with a stop.

    >>> sentence("the network has no degree")
    'The network has no degree.'
    """
    words = words.strip()
    return words[:1].upper() + words[1:] + ("" if words.endswith((".", "!", "?")) else ".")


def short_facts(audit: AuditResult) -> list[str]:
    """What was audited, in a line: size, task, data, time."""
    facts = audit.facts
    said = [f"{facts['parameters']} parameters"] if "parameters" in facts else []
    said += [facts[name] for name in ("audited", "samples", "sub-sampled") if name in facts]
    said.append(f"took {duration(audit.seconds)}")
    return [*said, facts["processor"]] if "processor" in facts else said


def task_line(audit: AuditResult) -> str:
    """What the outputs were taken for and why, by which loss, and how to say otherwise."""
    facts = audit.facts
    if "task" not in facts:
        return ""
    because = f", because {facts['task seen by']}" if "task seen by" in facts else ""
    said = [f"Task: {facts['task']}{because}", "else say task= (--task)"]
    if "loss" in facts:
        said += [f"loss: {facts['loss']}", "else loss= (--loss)"]
    if "targets" in facts:
        said.append(f"targets: {facts['targets']}")
    return "; ".join(said) + "."


def timing_table(findings: Sequence[AuditFinding]) -> Table:
    """How long each finding took, and the name that asks for it alone."""
    rows = tuple((f.title, duration(f.seconds), f.name) for f in findings)
    return Table("findings", ("finding", "time", "alone with --only"), rows)


def check_words(checks: Sequence[Claim]) -> str:
    """What the self-checks came to, in a sentence."""
    if not checks:
        return "There was no self-check."
    counts = wording.counted(len(checks), "self-check")
    if all(c.verdict is not Verdict.VIOLATED for c in checks):
        return f"{counts}, {'which holds' if len(checks) == 1 else 'all of which hold'}."
    return f"{counts}: {wording.tally(checks)}."
