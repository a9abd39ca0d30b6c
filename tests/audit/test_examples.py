"""Every example runs in small form, says what it found and writes its report."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from torchtheory.audit import example
from torchtheory.audit.engine import finding as registry
from torchtheory.audit.engine.finding import all_findings

PLACE = Path(__file__).parents[2] / "examples"

#: Those with a test of their own elsewhere.
OTHERS = {"track_training", "explanation"}


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Findings registered by an example and the seeds it sets do not reach other tests."""
    monkeypatch.setattr(registry, "_FINDINGS", dict(all_findings()))
    monkeypatch.chdir(tmp_path)  # no data set is found there
    with torch.random.fork_rng():
        yield


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"zz_{name}", PLACE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, f"zz_{name}", module)
    spec.loader.exec_module(module)
    return module


SMALL = {
    "audit_mlp_digits": ["--width=8", "--epochs=2", "--samples=200", "--budget=3s"],
    "audit_resnet_fashion": [
        "--channels=4", "--blocks=1", "--batches=4", "--samples=60", "--budget=3s",
    ],
    "audit_sequences": ["--width=4", "--epochs=1", "--samples=60", "--length=4", "--budget=2s"],
    "audit_autoencoder": ["--code=2", "--epochs=1", "--samples=60", "--budget=2s"],
    "audit_token_model": [
        "--letters=4", "--width=4", "--length=5", "--epochs=1", "--samples=60", "--budget=2s",
    ],
    "audit_transformer": [
        "--width=8", "--layers=1", "--length=4", "--tokens=9", "--steps=2", "--samples=60",
        "--budget=2s",
    ],
    "audit_vit": ["--width=8", "--layers=1", "--epochs=1", "--samples=60", "--budget=2s"],
    "language_model": [
        "--width=8", "--depth=1", "--length=8", "--steps=2", "--samples=80", "--budget=2s",
    ],
    "audit_regression": ["--width=4", "--epochs=5", "--budget=2s"],
    "audit_own_finding": [],
    "bug_hunt": ["--defect=forgotten-activation"],
}  # fmt: skip


def test_every_example_is_here() -> None:
    assert {p.stem for p in PLACE.glob("*.py")} == SMALL.keys() | OTHERS


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # of a few steps
@pytest.mark.parametrize("name", SMALL)
def test_example(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(example, "EPOCHS", 3)
    target = tmp_path / "reports"
    load(name, monkeypatch).main(["--directory", str(target), *SMALL[name]])
    said = capsys.readouterr().out
    pages = sorted(target.rglob("report.html"))
    two = ("audit_sequences", "audit_autoencoder", "audit_regression", "bug_hunt")
    assert len(pages) == (2 if name in two else 1)
    for page in pages:
        assert page.stat().st_size > 5000
        made = json.loads((page.parent / "audit.json").read_text("utf-8"))
        assert made["findings"]
        if name != "bug_hunt":
            assert all(sentence in said for sentence in made["summary"])
    assert "Traceback" not in said


def test_what_the_examples_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(example, "EPOCHS", 3)
    report = load("audit_own_finding", monkeypatch).main(["--directory", str(tmp_path)])
    assert report.warnings == ["Class 3 occurs in the data but is never predicted."]
    before, _, after = capsys.readouterr().out.partition("Without class 3:")
    assert "never predicted" not in before
    assert "Class 3 occurs in the data but is never predicted." in after


def test_the_example_of_explanations_writes_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = load("explanation", monkeypatch).main(
        ["--directory", str(tmp_path / "page"), "--epochs=1", "--samples=2"]
    )
    said = capsys.readouterr().out
    assert "marked network, suspicious places:" in said
    assert len(found.agreement()) == 3
    assert (tmp_path / "page" / "explanation.html").stat().st_size > 5000
