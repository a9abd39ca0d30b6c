"""Reading an audit back: from the audit itself, its plain data, or the files it was saved in."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torchtheory.audit.engine.audit import Audit
from torchtheory.core.claim import RELATIONS, Claim, Verdict, parse_number
from torchtheory.core.diagnosis import Area, Assessment, State
from torchtheory.core.errors import FileProblem, InvalidInput, InvalidType
from torchtheory.core.files import existing_file, kind_of, read_json
from torchtheory.core.intervals import Interval
from torchtheory.core.naming import several
from torchtheory.core.quantity import Quantity

#: Where an audit can be read from.
AuditSource = Audit | Mapping[str, Any] | str | Path

Made = Literal["made", "made in part", "not made"]

# Longest fact that is shown, and most samples that errors are counted on.
_LONGEST = 1000
_MOST_SAMPLES = 10**9


@dataclass(frozen=True, slots=True)
class Tally:
    """Errors counted on a set of samples."""

    errors: int
    samples: int

    @property
    def rate(self) -> float:
        return self.errors / self.samples


@dataclass(frozen=True, slots=True)
class RecordedFinding:
    """One finding of an audit that was read back.

    Attributes:
        name, title, section: of the finding.
        made: whether it came to its end, to a part of it, or to nothing.
        reason: why it is not whole, in a sentence; empty where it is.
        quantities: its numbers, by name.
        claims: its claims; verdicts are computed again.
        warnings: what is wrong with the network, in sentences.
        tallies: errors counted on sets of samples, by the name of the set.
        assessments: what it says about areas; nothing in the record of an early version.
        seconds: how long it took.
    """

    name: str
    title: str
    section: str
    made: Made
    reason: str
    quantities: dict[str, Quantity]
    claims: tuple[Claim, ...]
    warnings: tuple[str, ...]
    tallies: dict[str, Tally]
    assessments: tuple[Assessment, ...] = ()
    seconds: float = 0.0

    @property
    def looks(self) -> tuple[str, ...]:
        """What is worth a look though it need not be wrong, in sentences."""
        return tuple(a.sentence for a in self.assessments if a.state is State.LOOK)


@dataclass(frozen=True, slots=True)
class RecordedAudit:
    """An audit that was read back.

    Attributes:
        title: the model's name.
        facts: what was audited, in words.
        findings: by name, in the report's order.
        file: the file it was read from, or None.
        diagnosis: one assessment for each area; nothing in the record of an early version.
        verdict: the audit in one sentence.
        interrupted: whether it was stopped before all findings were made.
        seconds: how long it took.
    """

    title: str
    facts: dict[str, str]
    findings: dict[str, RecordedFinding]
    file: Path | None = None
    diagnosis: tuple[Assessment, ...] = ()
    verdict: str = ""
    interrupted: bool = False
    seconds: float = 0.0

    @property
    def warnings(self) -> list[str]:
        """The defects of the network and its data, in sentences."""
        return [w for f in self.findings.values() for w in f.warnings]

    @property
    def looks(self) -> list[str]:
        """What is worth a look though it need not be wrong, in sentences."""
        return [sentence for f in self.findings.values() for sentence in f.looks]

    @property
    def violated(self) -> list[Claim]:
        """The claims that the measurements refute, or whose control did not fail."""
        return [c for f in self.findings.values() for c in f.claims if c.broken]

    def missing(self, name: str) -> str:
        """Why a finding is not among these, in words."""
        stopped = self.facts.get("interrupted", "").removeprefix("before ").split(", ")
        if name in stopped:
            return "the audit was interrupted before it"
        return "it was not among the findings of that audit"


def read_audit(source: AuditSource) -> RecordedAudit:
    """Read an audit back.

    Args:
        source: an `Audit`, what its `to_json` gives, an
            `audit.json` file, or the directory that holds one.

    >>> made = Audit("MLP", {"parameters": "90"}, [], seconds=1.0)
    >>> read_audit(made).facts
    {'parameters': '90'}
    """
    if isinstance(source, Audit):
        return _audit(source.to_json(), None)
    if isinstance(source, Mapping):
        try:
            return _audit(source, None)
        except FileProblem as error:
            raise InvalidInput(str(error)) from None
    if isinstance(source, str | Path):
        file = _file(Path(source))
        return _audit(read_json(file), file)
    raise InvalidType(
        "an audit is read from an Audit, its to_json(), an audit.json file or the directory that "
        f"holds one, not from a {type(source).__name__}"
    )


def _file(path: Path) -> Path:
    if kind_of(path) != "directory":
        return existing_file(path)
    if kind_of(path / "audit.json") == "nothing":
        raise FileProblem(f"there is no audit.json in {path}; {_where_else(path)}")
    return existing_file(path / "audit.json")


def _where_else(path: Path) -> str:
    """Which directories below hold an audit, as those of several checkpoints do."""
    below = sorted(p.parent.name for p in path.glob("*/audit.json"))
    if not below:
        return "torchtheory audit writes one"
    return f"there are audits in its directories {several(below)}: give one of these"


def _audit(data: Any, file: Path | None) -> RecordedAudit:
    name = "this" if file is None else str(file)
    if not isinstance(data, Mapping) or not isinstance(data.get("findings"), list):
        raise FileProblem(f"{name} is not the record of an audit{_other_kind(data)}")
    facts = data.get("facts")
    facts = {str(k): str(v)[:_LONGEST] for k, v in _items(facts)}
    findings = [f for f in data["findings"] if isinstance(f, Mapping)]
    if any("quantities" not in f for f in findings):
        version = re.match(r"torchtheory (\S+?),", facts.get("versions", ""))
        wrote = f" (torchtheory {version[1]})" if version else ""
        raise FileProblem(
            f"{name} was written by another version{wrote}, whose findings list no quantities to "
            "compare; audit the network again"
        )
    try:
        read = [_finding(f) for f in findings]
        return RecordedAudit(
            _word(data["title"]),
            facts,
            {f.name: f for f in read},
            file,
            tuple(_assessments(data.get("diagnosis", ()))),
            _word(data.get("verdict", "")),
            data.get("interrupted", False) is True,
            _seconds(data),
        )
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError):
        raise FileProblem(
            f"{name} is an audit with parts this version cannot read, because another version "
            "wrote it or it was changed; audit the network again"
        ) from None


def _other_kind(data: Any) -> str:
    if isinstance(data, Mapping):
        if "lab" in data:
            return " but that of a lab run"
        if "steps" in data and "quantities" in data:
            return " but that of a tracked training"
    return "; give the audit.json that torchtheory audit writes"


def _finding(data: Mapping[str, Any]) -> RecordedFinding:
    claims = tuple(_claim(c) for c in data["claims"])
    quantities = {q["name"]: _quantity(q) for q in data["quantities"]}
    nothing = (Verdict.NOT_APPLICABLE, Verdict.NOT_DONE)
    said = [c for c in claims if c.verdict not in nothing]
    reasons = [c.reason for c in claims if c.verdict in nothing]
    made: Made = "made" if data["complete"] else "made in part"
    if reasons and not (said or quantities or data["tables"]):
        made = "not made"
    return RecordedFinding(
        name=_word(data["name"]),
        title=_word(data["title"]),
        section=_word(data["section"]),
        made=made,
        # the engine appends its own reason to what the finding said before
        reason=reasons[-1] if reasons and made != "made" else "",
        quantities=quantities,
        claims=claims,
        warnings=tuple(_word(w) for w in data["warnings"]),
        tallies=dict(_tallies(data["tables"])),
        assessments=tuple(_assessments(data.get("assessments", ()))),
        seconds=_seconds(data),
    )


def _assessments(found: Any) -> Iterable[Assessment]:
    """What is said about areas; those that this version does not know are left out."""
    if not isinstance(found, list | tuple):
        raise TypeError(f"{type(found).__name__} is no list")
    for data in found:
        if data["area"] not in list(Area) or data["state"] not in list(State):
            continue
        number = data["number"]
        yield Assessment(
            Area(data["area"]),
            State(data["state"]),
            _word(data["sentence"]),
            None if number is None else _quantity(number),
            *(_word(data[k]) for k in ("usual", "action", "figure", "finding")),
        )


def _seconds(data: Mapping[str, Any]) -> float:
    seconds = float(data.get("seconds", 0.0))
    return seconds if 0 <= seconds < math.inf else 0.0


def _quantity(data: Mapping[str, Any]) -> Quantity:
    """A number; what a later version may add to it is left out."""
    name, label, basis, unit = (_word(data[k]) for k in ("name", "label", "basis", "unit"))
    value, low, high = (float(data[k]) for k in ("value", "low", "high"))
    return Quantity(name, label, value, low, high, basis, unit)


def _interval(data: Mapping[str, Any]) -> Interval:
    estimate, low, high = (float(data[name]) for name in ("estimate", "low", "high"))
    confidence, trials = float(data["confidence"]), int(data["trials"])
    return Interval(estimate, low, high, confidence, trials, _word(data["test"]))


def _word(value: Any) -> str:
    """A text, which nothing else is made to be one."""
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} is no text")
    return value


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    return value.items() if isinstance(value, Mapping) else ()


def _claim(data: Mapping[str, Any]) -> Claim:
    """A claim whose ids the catalogue of this version need not know."""
    if data["relation"] is not None and data["relation"] not in RELATIONS:
        raise InvalidInput(f"no relation is {data['relation']!r}")
    interval, control = data["interval"], data.get("control")
    return Claim(
        ids=tuple(i for i in _word(data["id"]).split(", ") if i),
        statement=_word(data["statement"]),
        promised=parse_number(data["promised"]),
        relation=data["relation"],
        measured=parse_number(data["measured"]),
        tolerance=float(data["tolerance"]),
        reason=_word(data["reason"]),
        trivial=parse_number(data["trivial"]),
        interval=None if interval is None else _interval(interval),
        cases=int(data["cases"]),
        undone=data.get("verdict") == Verdict.NOT_DONE,
        self_check=data.get("self_check") is True,
        control=_claim(control) if isinstance(control, Mapping) else None,
    )


def _tallies(tables: Iterable[Mapping[str, Any]]) -> Iterable[tuple[str, Tally]]:
    """Rows of tables that have a column of samples and one of errors, by their first cell."""
    for table in tables:
        columns = table["columns"]
        if not {"samples", "errors"} <= set(columns):
            continue
        for row in table["rows"]:
            errors, samples = row[columns.index("errors")], row[columns.index("samples")]
            counts = type(errors) is type(samples) is int
            if counts and 0 <= errors <= samples and 0 < samples <= _MOST_SAMPLES:
                yield str(row[0]), Tally(errors, samples)
