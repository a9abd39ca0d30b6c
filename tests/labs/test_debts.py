"""Debts: what a lab owes is listed, what is new fails, what is paid leaves the list."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from typer import Typer
from typer.testing import CliRunner

from torchtheory.core.errors import FileProblem
from torchtheory.core.intervals import Interval
from torchtheory.labs.engine import debts as module
from torchtheory.labs.engine.debts import (
    Debts,
    first_debts,
    outstanding,
    paid,
    print_debts,
    pruned,
    read_debts,
    write_debts,
)
from torchtheory.labs.engine.registry import Lab, find_lab, lab
from torchtheory.labs.engine.run import Run, run_lab

pytestmark = pytest.mark.usefixtures("own_registry")


def weak(run: Run, improved: bool = False) -> None:
    says = run.states("N-08", "x")
    says.at_most(9 if improved else 1, 18)
    says.fails("broken", [19, 1, 1])
    run.states("N-06, N-08", "x").mean([0.4, 0.5, 0.6], 0.5)
    run.states("N-08", "x").equal(0.02, 0.01, 0.01)
    run.states("N-06", "x").mean(Interval(0.5, 0.2, 0.8, 0.99, 9, "t"), 0.5, against=5.0)
    run.states("N-06", "x").mean(Interval(0.5, 0.4, 0.6, 0.99, 9, "t"), 0.5, against=0.65)


def register(function: Callable[..., object] = weak, name: str = "zz-weak") -> Lab:
    lab(name, room="nets", covers=["N-08"], title="A test")(function)
    return find_lab(name)


@pytest.fixture
def run() -> Run:
    return run_lab(register())


def owing(**tables: list[str]) -> Debts:
    return {kind: {"zz-weak": tuple(tables.get(kind, ()))} for kind in module.KINDS}


ALL = owing(
    loose=["N-08#1"],
    unresolved=["N-06, N-08#1"],
    control=["N-08#1"],
    tolerance=["N-08#2"],
    far=["N-06#1"],
    narrow=["N-06#2"],
)


def test_what_is_not_listed_is_outstanding(run: Run) -> None:
    assert outstanding(run, ALL) == []
    assert outstanding(run, owing(loose=["N-08#1"])) == [
        ("N-08#1", "control"),
        ("N-06, N-08#1", "unresolved"),
        ("N-08#2", "tolerance"),
        ("N-06#1", "far"),
        ("N-06#2", "narrow"),
    ]
    # the shipped file knows nothing of it
    assert len(outstanding(run)) == 6
    assert paid(run) == []


def test_what_is_listed_and_mended_is_paid(run: Run) -> None:
    assert paid(run, ALL) == []
    assert paid(run, owing(loose=["N-08#1", "N-08#2"])) == [("N-08#2", "loose")]
    better = run_lab("zz-weak", settings={"improved": True})
    assert paid(better, ALL) == [("N-08#1", "loose")]
    left = pruned(ALL, [better])
    assert left["loose"] == {"zz-weak": ()}
    assert left["control"] == ALL["control"]


def test_pruning_never_adds_and_forgets_labs_that_are_gone(run: Run) -> None:
    debts: Debts = {**owing(), "loose": {"no-such-lab": ("N-08#1",), "zz-weak": ("N-08#1",)}}
    assert pruned(debts, [run]) == {**owing(), "loose": {"zz-weak": ("N-08#1",)}}


def test_a_file_is_written_as_it_is_read(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "debts.toml"
    assert read_debts(path) == {kind: {} for kind in module.KINDS}
    debts = first_debts([run])
    assert debts == ALL
    write_debts(debts, path)
    assert read_debts(path) == debts
    assert set(tomllib.loads(path.read_text("utf-8"))) == set(module.TABLES)
    long: Debts = {**ALL, "loose": {"zz-weak": tuple(f"N-08#{k}" for k in range(1, 30))}}
    write_debts(long, path)
    assert read_debts(path) == long
    assert all(len(line) <= 100 for line in path.read_text("utf-8").splitlines())
    write_debts(owing(), path)
    assert read_debts(path) == {kind: {} for kind in module.KINDS}


def test_other_tables_stay_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "debts.toml"
    others = '[seeds]\nzz-weak = ["N-08#1"]  # why\n\n[mutants]\n"f:1" = "f is even"\n'
    path.write_text("# My heading.\n\n" + others, encoding="utf-8")
    write_debts(ALL, path)
    text = path.read_text("utf-8")
    assert text.startswith("# My heading.\n\n[loose]\n")
    assert text.endswith(others)
    write_debts(ALL, path)
    assert path.read_text("utf-8") == text


@pytest.mark.parametrize("text", ["[loose", '[loose]\na = "N-08#1"', "[loose]\na = [1]"])
def test_a_bad_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "debts.toml"
    path.write_text(text)
    with pytest.raises(FileProblem, match=r"debts\.toml"):
        read_debts(path)


def test_rooms_are_counted(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "debts.toml"
    path.write_text('[mutants]\n"f:1" = "f is even"\n')
    write_debts(first_debts([run]), path)
    console = Console(width=100)
    with console.capture() as shown:
        print_debts(console, path)
    lines = [line.split() for line in shown.get().splitlines()]
    assert ["nets", *"11111100"] in lines
    assert lines[-1] == ["all", *"11111101"]


@pytest.mark.draws
def test_the_command_begins_and_prunes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "debts.toml"
    monkeypatch.setattr(module, "PATH", path)
    made = register()
    monkeypatch.setattr(module, "listed_labs", lambda: {"zz-weak": made.listed})
    app = Typer()
    app.command()(module.main)

    def call(*options: str) -> tuple[int, str]:
        outcome = CliRunner().invoke(app, [*options, "--runs", str(tmp_path / "runs")])
        return outcome.exit_code, outcome.output

    assert call()[0] == 0
    assert not path.exists()
    assert call("--begin")[0] == 0
    assert read_debts(path) == ALL
    code, words = call("--begin")
    assert code == 2
    assert "has begun already" in words
    path.write_text(path.read_text("utf-8").replace('["N-06, N-08#1"]', '["N-08#7"]'), "utf-8")
    assert call("--prune")[0] == 0
    assert read_debts(path) == {**ALL, "unresolved": {}}
    assert call("--prune", "--begin")[0] == 2
