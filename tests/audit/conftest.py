"""Shared by the tests of the audit."""

import pytest

from torchtheory.audit.engine.finding import FindingRecord


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes most of the time, and is tested with the examples."""
    monkeypatch.setattr(FindingRecord, "figure", lambda *_, **__: None)
