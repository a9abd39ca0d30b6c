"""Audits as JUnit XML, which systems for continuous integration read: a test for each area."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from xml.etree import ElementTree

from torchtheory.core.diagnosis import Area, Assessment, State
from torchtheory.core.foreign_text import one_line
from torchtheory.report.sarif import ReportedAudit, refuted_sentence

#: The test for promises of theory that the measurements refute.
PROMISES = "Theory holds"


def junit_text(
    audits: Sequence[ReportedAudit], *, failing: Collection[State] = (State.DEFECT,)
) -> str:
    """A document with one suite for each audit, and in it one test for each area.

    An area fails for what is in a `failing` state, is skipped where nothing was measured, and
    passes otherwise; what is worth a look stands in its output. One more test fails if a promise of
    theory is refuted.
    """
    root = ElementTree.Element("testsuites", name="torchtheory audit")
    for audit in audits:
        root.append(_suite(audit, failing))
    for count in ("tests", "failures", "skipped"):
        root.set(count, str(sum(int(suite.get(count, "0")) for suite in root)))
    root.set("errors", "0")
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _suite(audit: ReportedAudit, failing: Collection[State]) -> ElementTree.Element:
    suite = ElementTree.Element("testsuite", name=_text(audit.title), time=f"{audit.seconds:.3f}")
    said = [a for f in audit.findings.values() for a in f.assessments]
    unmeasured = {a.area: a for a in audit.diagnosis if a.state is State.UNMEASURED}
    for area in Area:
        case = _case(suite, audit, area.question)
        here = [a for a in said if a.area is area]
        _fail(case, "defect", [_told(a) for a in here if a.state in failing])
        if area in unmeasured:
            ElementTree.SubElement(case, "skipped", message=_text(unmeasured[area].sentence))
        if looks := [_told(a) for a in here if a.state is State.LOOK and a.state not in failing]:
            ElementTree.SubElement(case, "system-out").text = "\n".join(looks)
    refuted = [
        _text(refuted_sentence(c)) for f in audit.findings.values() for c in f.claims if c.broken
    ]
    _fail(_case(suite, audit, PROMISES), "violated", refuted)
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(len(suite.findall("testcase/failure"))))
    suite.set("skipped", str(len(suite.findall("testcase/skipped"))))
    suite.set("errors", "0")
    return suite


def _case(suite: ElementTree.Element, audit: ReportedAudit, name: str) -> ElementTree.Element:
    return ElementTree.SubElement(
        suite, "testcase", classname=f"torchtheory.{_text(audit.title)}", name=name, time="0.000"
    )


def _fail(case: ElementTree.Element, kind: str, sentences: Sequence[str]) -> None:
    if sentences:
        failure = ElementTree.SubElement(case, "failure", message=sentences[0], type=kind)
        failure.text = "\n".join(sentences)


def _told(said: Assessment) -> str:
    return _text(f"{said.sentence} {said.action}".strip())


def _text(words: str) -> str:
    """One line of what XML can hold: no control character, and none of the two that are none."""
    return one_line(words).replace("\ufffe", "").replace("\uffff", "")
