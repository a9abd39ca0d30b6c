"""Audits as SARIF 2.1.0, which code hosts show beside a pull request.

Every defect is a result of level `error`, everything worth a look one of level `warning`, each
under the rule of its finding; a claim that the measurements refute is an error as well.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath, PureWindowsPath
from typing import Any, Protocol
from urllib.parse import quote

from torchtheory import __version__
from torchtheory.core.claim import Claim
from torchtheory.core.diagnosis import Assessment, State
from torchtheory.core.foreign_text import json_text, one_line
from torchtheory.report.numbers import number_text
from torchtheory.report.plain_math import plain, plain_prose
from torchtheory.report.wording import claim_relation

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"

_LEVELS = {State.DEFECT: "error", State.LOOK: "warning"}


class ReportedFinding(Protocol):
    """One finding of an audit that was read back."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def assessments(self) -> Sequence[Assessment]: ...
    @property
    def claims(self) -> Sequence[Claim]: ...


class ReportedAudit(Protocol):
    """An audit that was read back."""

    @property
    def title(self) -> str: ...
    @property
    def findings(self) -> Mapping[str, ReportedFinding]: ...
    @property
    def diagnosis(self) -> Sequence[Assessment]: ...
    @property
    def interrupted(self) -> bool: ...
    @property
    def seconds(self) -> float: ...


def sarif_text(audits: Sequence[tuple[ReportedAudit, str]]) -> str:
    """A SARIF log of one run.

    Args:
        audits: audits, each with the file it is about: of the weights, or of the model's code.
    """
    rules: dict[str, dict[str, Any]] = {}
    results = []
    for audit, file in audits:
        for finding in audit.findings.values():
            for level, sentence, action in said_by(finding):
                rule = rules.setdefault(finding.name, _rule(finding))
                if action and action not in rule["help"]["text"]:
                    rule["help"]["text"] += f" {action}"
                message = f"{audit.title}: {sentence}" if len(audits) > 1 else sentence
                place = list(rules).index(finding.name)
                results.append(_result(finding.name, place, level, message, action, file))
    run = {
        "tool": {
            "driver": {
                "name": "torchtheory",
                "version": __version__,
                "semanticVersion": __version__,
                "rules": list(rules.values()),
            }
        },
        "invocations": [{"executionSuccessful": not any(a.interrupted for a, _ in audits)}],
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    return json_text({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]})


def said_by(finding: ReportedFinding) -> list[tuple[str, str, str]]:
    """Level, sentence and action of whatever is not as it should be, in plain text."""
    found = [
        (_LEVELS[a.state], one_line(a.sentence), one_line(a.action))
        for a in finding.assessments
        if a.state in _LEVELS
    ]
    found += [("error", refuted_sentence(c), "") for c in finding.claims if c.broken]
    return found


def refuted_sentence(claim: Claim) -> str:
    """What was promised and what was measured, on one line."""
    sentence = f"Not as promised: {plain(claim.statement)}"
    if (how := claim_relation(claim)) is not None:
        measured, promised = (number_text(x, how.digits) for x in (claim.measured, claim.promised))
        sentence += f"; measured {measured}, promised {promised}"
    return one_line(sentence + (f" ({claim.id})." if claim.id else "."))


def _rule(finding: ReportedFinding) -> dict[str, Any]:
    title = one_line(plain_prose(finding.title)).rstrip(".")
    return {
        "id": finding.name,
        "name": finding.name.title().replace("-", ""),
        "shortDescription": {"text": f"{title}."},
        "fullDescription": {"text": f"What an audit finds under: {title}."},
        "help": {"text": f"{title}."},
        "defaultConfiguration": {"level": "warning"},
    }


def _result(
    rule: str, place: int, level: str, sentence: str, action: str, file: str
) -> dict[str, Any]:
    text = f"{one_line(sentence)} {action}".strip()
    # the same defect at the next audit, whatever its numbers are then
    same = re.sub(r"\d[\d,.]*", "#", f"{rule} {file} {sentence}")
    return {
        "ruleId": rule,
        "ruleIndex": place,
        "level": level,
        "message": {"text": text},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": _address(file)},
                    "region": {"startLine": 1},
                }
            }
        ],
        "partialFingerprints": {
            "sentence/v1": hashlib.blake2b(
                same.encode("utf-8", "replace"), digest_size=16
            ).hexdigest()
        },
    }


def _address(file: str) -> str:
    """A path as an address: relative where it was, with what an address cannot hold escaped.

    >>> _address("models/best one.pt"), _address("C:\\\\a.pt")
    ('models/best%20one.pt', 'file:///C:/a.pt')
    """
    if PureWindowsPath(file).drive:
        return PureWindowsPath(file).as_uri()
    path = PurePath(one_line(file))
    return f"file://{quote(str(path))}" if path.is_absolute() else quote(path.as_posix())
