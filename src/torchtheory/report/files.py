"""The files that reports consist of, by name, and what each of them is."""

from __future__ import annotations

from collections.abc import Iterable

AUDIT = {
    "report.html": "audit page",
    "report.md": "audit text",
    "audit.json": "audit record",
}
#: Beside an audit that is one of several checkpoints.
CHECKPOINT = {"checkpoint.json": "checkpoint record"}
SERIES = {
    "index.html": "series page",
    "series.md": "series text",
    "series.json": "series record",
}
COMPARISON = {
    "comparison.html": "comparison page",
    "comparison.md": "comparison text",
    "comparison.json": "comparison record",
}
EXPLANATION = {
    "explanation.html": "explanation page",
    "explanation.json": "explanation record",
    "explanation.npz": "explanation arrays",
    "figures/sample-*.png": "picture",
}
TRACKING = {"tracking.json": "tracking record", "tracking.png": "picture"}
RUN = {
    "report.html": "run page",
    "claims.json": "claims record",
    "config.json": "config record",
    "figures/*.png": "picture",
    "figures/*.svg": "drawing",
}
INDEX = {"index.html": "index page"}


def audit_files(findings: Iterable[str]) -> dict[str, str]:
    """Those of an audit, with the pictures that these findings may draw.

    >>> audit_files(["risk"])["figures/risk-*.png"]
    'picture'
    """
    return AUDIT | {f"figures/{name}-*.png": "picture" for name in findings}
