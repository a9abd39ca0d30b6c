"""Audits as Markdown."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from torchtheory.audit.engine.audit import audit as run_audit
from torchtheory.core.claim import Claim
from torchtheory.report.markdown import audit_markdown

from . import examples

pytestmark = pytest.mark.draws


def test_the_verdict_and_the_table_stand_outside_the_folds() -> None:
    text = audit_markdown(examples.audit())
    first, _, rest = text.partition("<details>")
    assert first.startswith("# What theory says about MLP\n\n**One defect: A quarter of the units")
    assert (
        "| Uses its capacity | ✗ defect | A quarter of the units is dead. | share of dead units: "
        "0.25 (0.2 to 0.3), from 512 of 3,088 samples | below 0.05 | Use a leaky activation. |"
    ) in first
    assert first.count("\n| ") == 1 + 8
    assert len(first.splitlines()) < 20
    assert text.count("<details>") == text.count("</details>") == text.count("<summary>")
    assert "- ✗ defect: A quarter of the units is dead. Usual: below 0.05." in rest
    assert "- → Lower the learning rate." in rest
    numbers = r"| share of dead units | 0.25 | \[0.2, 0.3\] | jackknife | 512 of 3,088 samples |"
    assert numbers in rest
    assert "✓ holds" in rest
    assert "○ vacuous" in rest
    assert "`torchtheory lab run perceptron-novikoff`" in rest
    for opened in text.split("<summary>")[1:]:
        after = opened.split("</summary>")[1]
        assert after.startswith("\n\n"), "Markdown goes on only after an empty line"


def test_the_power_of_a_check_is_said() -> None:
    told = examples.audit()
    told.findings = told.findings[:1]
    told.findings[0].claims = [
        Claim(("N-08",), "x", 18.0, "<=", 1.0, slack=18.0, loose="a | b"),
        Claim(("N-08",), "x", 1.0, "<=", 1.0, slack=1.0),
    ]
    text = audit_markdown(told)
    assert r"*the promise could be 18 times smaller: a \| b*" in text
    assert text.count("the promise could be") == 1


def test_it_is_never_too_long_for_a_comment() -> None:
    whole = audit_markdown(examples.audit())
    assert "too long" not in whole
    long = examples.audit()
    rows = [[n, "a word or two"] for n in range(40)]
    for k in range(60):
        long.findings[0].table(f"table-{k}", ["n", "words"], rows)
    text = audit_markdown(long)
    assert len(text) < 65_536
    assert "✓ holds" in text
    assert "a word or two" not in text
    assert text.endswith("*The rest was too long for a comment; it is in `report.html`.*\n")
    for k in range(3000):
        long.findings[1].note(f"Note {k} is of some length, as notes are.")
    text = audit_markdown(long)
    assert len(text) < 65_536
    assert text.startswith("# What theory says about MLP\n\n**One defect")
    assert text.count("<details>") == text.count("</details>")


def test_tables_keep_their_columns_whatever_is_in_them() -> None:
    text = audit_markdown(examples.audit(hostile=True))
    assert "<script" not in re.sub(r"\\<", "", text)
    for block in text.split("\n\n"):
        lines = [line for line in block.splitlines() if line.startswith("|")]
        columns = {len(re.findall(r"(?<!\\)\|", line)) for line in lines}
        assert len(columns) <= 1, lines


def test_a_real_audit_links_its_figures(tmp_path) -> None:  # type: ignore[no-untyped-def]
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    report = run_audit(nn.Linear(3, 2), (x, (x[:, 0] > 0).long()), only=["margins", "layers"])
    report.save(tmp_path)
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    places = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    assert places
    assert all((tmp_path / place).is_file() for place in places)
