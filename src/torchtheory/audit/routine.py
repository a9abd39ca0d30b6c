"""An audit in a team's routine: when a build fails, and what other programs read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torchtheory.audit.comparison.recorded import AuditSource, RecordedAudit, read_audit
from torchtheory.audit.engine.audit import Audit
from torchtheory.core.checks import one_of
from torchtheory.core.diagnosis import State
from torchtheory.report.junit import junit_text
from torchtheory.report.sarif import sarif_text

#: What a build fails on, the least serious last: each includes those before it.
FailOn = Literal["never", "violated", "defect", "look"]
FAIL_ON: tuple[FailOn, ...] = ("never", "violated", "defect", "look")


def fails(audit: AuditSource | RecordedAudit, on: FailOn) -> bool:
    """Whether an audit should fail a build.

    Args:
        audit: an audit, its record, or where it was saved.
        on: `never`; `violated`, a promise of theory that the measurements refute; `defect`, also a
            defect; `look`, also what is only worth a look.

    >>> audit = {"title": "net", "facts": {}, "findings": []}
    >>> fails(audit, "look")
    False
    """
    one_of(on, "level of failure", FAIL_ON)
    read = audit if isinstance(audit, Audit) else _read(audit)
    serious = FAIL_ON.index(on)
    return bool(
        (serious >= 1 and read.violated)
        or (serious >= 2 and read.warnings)
        or (serious >= 3 and read.looks)
    )


def sarif(audits: Sequence[tuple[AuditSource | RecordedAudit, str]]) -> str:
    """Audits as a SARIF 2.1.0 log, each with the file it is about; see `sarif_text`."""
    return sarif_text([(_read(audit), file) for audit, file in audits])


def junit(audits: Sequence[AuditSource | RecordedAudit], *, on: FailOn = "defect") -> str:
    """Audits as JUnit XML; an area fails for what `fails` would fail on, or for a defect."""
    one_of(on, "level of failure", FAIL_ON)
    failing = (State.DEFECT, State.LOOK) if on == "look" else (State.DEFECT,)
    return junit_text([_read(audit) for audit in audits], failing=failing)


def _read(audit: AuditSource | RecordedAudit) -> RecordedAudit:
    return audit if isinstance(audit, RecordedAudit) else read_audit(audit)
