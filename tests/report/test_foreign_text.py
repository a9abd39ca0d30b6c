"""Names and messages of a user's model in a terminal, in Markdown, in HTML and in figures."""

from __future__ import annotations

import html
import io
import json
import re
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from torch import nn

import torchtheory as tt
from torchtheory.audit import Audit, Comparison
from torchtheory.audit.comparison.page import print_comparison
from torchtheory.core.figure import draw, label_text
from torchtheory.report.markdown import inline_text
from torchtheory.report.terminal import Terminal, print_audit

CONTROL = re.compile("(?!\n)[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
NAMES = ("a$b", "$\\frac{", "\x1b[31m|`c`", "[d](http://e)\u202e")


class Hostile(nn.Sequential):
    """Fails where gradients are asked of its input, with a message of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.requires_grad:
            raise RuntimeError("\x1b]0;title\x07 <img src=x> $y$ \ud800 | `z`\nnext line")
        return super().forward(x)


def model() -> nn.Module:
    layers = (nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 2))
    net = Hostile(OrderedDict(zip(NAMES, layers, strict=True)))
    net.__class__ = type("<i>$N$\x9b1m", (Hostile,), {})
    return net


def audited(seed: int, only: list[str] | None = None) -> Audit:
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(seed))
    return tt.audit(model(), (x, (x[:, 0] > 0).long()), budget=None, only=only)


@pytest.fixture(scope="module")
def report() -> Audit:
    return audited(0)


@pytest.fixture(scope="module")
def comparison(report: Audit) -> Comparison:
    return tt.audit.compare(report, audited(1, ["layers", "risk", "curvature"]))


@pytest.mark.draws
@pytest.mark.slow
def test_no_control_character_gets_through(
    report: Audit, comparison: Comparison, tmp_path: Path
) -> None:
    report.save(tmp_path / "a")
    comparison.save(tmp_path / "c")
    files = [f for f in tmp_path.rglob("*") if f.suffix in (".json", ".md", ".html")]
    assert len(files) == 6
    for file in files:
        text = file.read_text("utf-8")
        assert not CONTROL.search(text), file
        assert "<i>" not in text or file.suffix == ".json", file
    kept = json.loads((tmp_path / "a/audit.json").read_text("utf-8"))
    assert kept["title"] == type(model()).__name__  # escaped, not lost
    said = " ".join(f["name"] for f in kept["findings"])
    assert "layers" in said


@pytest.mark.slow
def test_the_terminal_obeys_nothing(report: Audit, comparison: Comparison) -> None:
    for width in (40, 80, 120):
        page = io.StringIO()
        console = Terminal(file=page, width=width)
        print_audit(report, console, details=True)
        print_comparison(comparison, console, verbose=True)
        assert not CONTROL.search(page.getvalue())
    assert "a$b" in page.getvalue()
    colored = io.StringIO()
    print_audit(report, Terminal(file=colored, width=80, force_terminal=True))
    # colors are rich's own; what they contain is not
    plain = re.sub(r"\x1b\[[0-9;]*m", "", colored.getvalue())
    assert "\x1b" in colored.getvalue()
    assert not CONTROL.search(plain)


@pytest.mark.slow
def test_no_finding_stumbles_over_a_name(report: Audit) -> None:
    reasons = [c.reason for c in report.claims]
    assert not [r for r in reasons if "could not be computed" in r]
    assert "layers" in {f.name for f in report.findings if f.figures}


def test_words_in_markdown_mean_themselves() -> None:
    hostile = "$x$ [a](http://b.c) <img> `d` | *e* &lt; www.f.g\n# h"
    text = inline_text(hostile)
    assert "\n" not in text
    for mark in ("$", "[", "<", "`", "|", "*", "&", "#"):
        assert not re.search(rf"(?<!\\){re.escape(mark)}", text)
    assert "http://" not in text
    assert "www." not in text
    assert re.sub(r"\\(.)", r"\1", text) == " ".join(hostile.split())
    assert inline_text("- a").startswith("\\-")
    assert inline_text("12. a") == "12\\. a"
    assert inline_text("(1) and 2.5") == "(1) and 2.5"


@pytest.mark.draws
@pytest.mark.parametrize("name", [*NAMES, "漢字", "\udcff"])
def test_a_label_is_drawn_as_it_is(name: str) -> None:
    label = label_text(name)
    figure = draw(
        "labels", lambda ax: (ax.plot([0, 1], label=label), ax.set_xlabel(label), ax.legend())
    )
    assert figure.svg is not None
    assert not CONTROL.search(figure.svg)
    shown = html.unescape("".join(re.findall(r">([^<>]+)</text>", figure.svg)))
    assert label.replace("\\$", "$").strip() in shown
