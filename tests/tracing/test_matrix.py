"""Every analysis on every architecture: it works, or says in one sentence why it does not."""

from __future__ import annotations

import re

import pytest
from tests.tracing.architectures import ALL_NAMES
from tests.tracing.matrix import ANALYSES, PAGE, cell


def _on_the_page(analysis: str) -> set[str]:
    """Architectures with a cross."""
    rows = [
        line.strip("| ").split("|") for line in PAGE.read_text().splitlines() if line[:1] == "|"
    ]
    head = [word.strip() for word in rows[0]]
    place = head.index(analysis)
    return {row[0].strip() for row in rows[2:] if len(row) > place and row[place].strip() == "×"}


@pytest.mark.parametrize("analysis", ANALYSES)
def test_the_page_is_true_and_reasons_are_sentences(analysis: str) -> None:
    reasons = {name: cell(analysis, name) for name in ALL_NAMES}
    assert not [r for r in reasons.values() if re.match(r"RAW", r)]
    assert not [r for r in reasons.values() if "\n" in r]
    works = {name for name, reason in reasons.items() if not reason}
    assert works == _on_the_page(analysis) & set(ALL_NAMES)
