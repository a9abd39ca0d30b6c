"""A command in a directory of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from torchtheory import cli
from torchtheory.labs.engine import registry as labs_module
from torchtheory.labs.engine.registry import labs

from .calls import Call, Outcome


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    """Run a command in a directory of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(labs_module, "_LABS", dict(labs()))
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments: str) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main(arguments)
        code = ended.value.code
        assert isinstance(code, int)
        return Outcome(code, *capsys.readouterr())

    return run
