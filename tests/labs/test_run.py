"""Runs: what makes one fail, and a store in which a run is complete or absent."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from torchtheory.core import catalogue, outputs
from torchtheory.core.claim import Claim, Verdict
from torchtheory.core.errors import FileProblem, InvalidInput, TorchTheoryError, UnknownName
from torchtheory.labs.engine import store as store_module
from torchtheory.labs.engine.registry import Lab, find_lab, lab
from torchtheory.labs.engine.run import Run, run_lab
from torchtheory.labs.engine.store import RunStore

KEYS = list(catalogue.errata())


# what is stored is drawn
pytestmark = [pytest.mark.usefixtures("own_registry"), pytest.mark.draws]


def register(function: Callable[..., object], **more: Any) -> Lab:
    name = more.pop("name", "zz-run-lab")
    lab(name, **({"room": "nets", "covers": ["N-08"], "title": "A test"} | more))(function)
    return find_lab(name)


def random_lab(run: Run, size: int = 4, factor: float = 1.0) -> None:
    draws = run.randn(size) * factor
    says = run.states("N-08", r"x \le 9")
    says.at_most(draws, 9)
    says.fails("b", 10)
    run.table("draws", ["value", "odd"], [(v, float("inf")) for v in draws])
    run.figure("draws", lambda ax: ax.plot(draws))
    run.note(f"rand {float(run.rand(1)):.17g}, signs {run.signs(8).tolist()}")


def passing(run: Run) -> None:
    says = run.states("N-08", "x")
    says.at_most(0.5, 1)
    says.fails("broken", 2)


def problems(function: Callable[[Run], object], **more: Any) -> list[str]:
    return run_lab(register(function, **more)).problems


def test_a_good_run_has_no_problems() -> None:
    run = run_lab(register(passing))
    assert run.problems == []
    assert run.passed
    assert run.to_json()["passed"] is True


def test_a_violated_claim_is_a_problem() -> None:
    def function(run: Run) -> None:
        says = run.states("N-08", "x > y")
        says.at_most(2, 1)
        says.fails("broken", 2)

    assert problems(function) == ["N-08: $x > y$ is violated"]


def test_an_alternative_that_is_not_excluded_is_a_problem() -> None:
    def function(run: Run) -> None:
        says = run.states("N-08", "x")
        says.mean([0.4, 0.5, 0.6], 0.5, against=(0.52, 0.55, 9.0))
        says.fails("broken", [7.0, 7.1, 7.2])

    assert problems(function) == [
        "N-08: $x$ is not resolved, its interval contains 0.52 and 0.55 as well"
    ]


def test_weaknesses_are_known_by_ids_and_place() -> None:
    def function(run: Run) -> None:
        passing(run)
        says = run.states("N-08", "x")
        says.at_most(1, 18)
        says.fails("broken", [19, 1, 1])
        run.states("N-08, N-06", "x").at_most(1, 18)
        run.states("N-08", "x").at_most(1, 18, loose="no case comes nearer")
        run.states("N-08", "x").mean([0.4, 0.5, 0.6], 0.5)
        run.states("N-08", "x").mean([0.4, 0.5, 0.6] * 9, 0.5, against=9.0)

    run = run_lab(register(function))
    assert run.weaknesses == [
        ("N-08#2", "loose"),
        ("N-08#2", "control"),
        ("N-08, N-06#1", "loose"),
        ("N-08#4", "unresolved"),
    ]


def test_a_control_that_holds_is_a_problem() -> None:
    def function(run: Run) -> None:
        says = run.states("N-08", "x")
        says.at_most(0.5, 1)
        says.fails("nothing", 0.7)

    assert problems(function) == ["the control of N-08 did not fail (nothing)"]


def test_a_run_without_controls_is_a_problem() -> None:
    found = problems(lambda run: run.states("N-08", "x").at_most(0.5, 1))
    assert found == ["no claim has a control"]


def test_an_id_that_is_not_met_is_a_problem() -> None:
    found = problems(passing, covers=["N-08", "N-06"])
    assert found == ["covers N-06, but no claim is about it"]


def test_a_vacuous_claim_covers_nothing() -> None:
    def function(run: Run) -> None:
        passing(run)
        run.states("N-06", "R \\le 1").at_most(0.2, 1.3, trivial=1.0)

    found = problems(function, covers=["N-08", "N-06"])
    assert found == ["covers N-06, but no claim is about it"]


def test_errata_must_be_declared_met_and_refuted() -> None:
    def function(run: Run) -> None:
        passing(run)
        run.refutes(KEYS[0], "x").at_most(2, 1)
        run.refutes(KEYS[1], "x").at_most(0, 1)

    assert problems(function, errata=[KEYS[1], KEYS[2]]) == [
        f"erratum {KEYS[1]} is not refuted",
        f"declares erratum {KEYS[2]}, but met none",
        f"met erratum {KEYS[0]} without declaring it",
    ]


def test_same_seed_same_numbers_other_seed_others() -> None:
    register(random_lab)
    first, second, other = (run_lab("zz-run-lab", seed=s) for s in (3, 3, 4))
    assert first.claims == second.claims
    assert first.tables == second.tables
    assert first.notes == second.notes
    assert first.figures == second.figures
    assert first.claims != other.claims


def test_a_lab_neither_sees_nor_moves_the_global_generators() -> None:
    def careless(run: Run) -> None:
        run.note(f"{nn.Linear(2, 2).weight.tolist()}")
        np.random.rand(3)  # noqa: NPY002
        random.random()

    made = register(careless)
    torch.manual_seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]  # noqa: NPY002
    first = run_lab(made)
    after = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]  # noqa: NPY002
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]
    torch.manual_seed(2)
    assert run_lab(made).notes == first.notes


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_seeds_out_of_range_are_refused(seed: int) -> None:
    with pytest.raises(InvalidInput, match="seed must be"):
        run_lab(register(random_lab), seed=seed)
    with pytest.raises(UnknownName):
        run_lab("zz-nothing")


def test_reload_gives_the_same_run(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "deep" / "store")
    made = register(random_lab)
    run = run_lab(made, seed=7, settings={"size": "3"})
    path = store.save(run)
    back = store.load(made, "quick", 7, {"size": 3})
    assert back is not None
    assert back.to_json() == run.to_json() | {"seconds": back.seconds}
    assert back.claims == run.claims
    assert back.tables == run.tables
    assert back.figures == run.figures
    assert back.notes == run.notes
    names = {p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file()}
    assert names == {
        "claims.json", "config.json", "report.html", "figures/draws.png", "figures/draws.svg",
    }  # fmt: skip
    assert (path / "report.html").read_text("utf-8").lower().startswith("<!doctype html")
    config = json.loads((path / "config.json").read_text("utf-8"))
    assert config["parameters"] == {"size": 3, "factor": 1.0}


def test_the_place_follows_from_the_parameters(tmp_path: Path) -> None:
    store, made = RunStore(tmp_path), register(random_lab, full={"size": 9})
    places = [
        store.directory(made, "quick", 0),
        store.directory(made, "quick", 1),
        store.directory(made, "full", 0),
        store.directory(made, "quick", 0, {"size": 5}),
        store.directory(made, "quick", 0, {"size": 5, "factor": 2.0}),
    ]
    assert len(set(places)) == 5
    assert store.directory(made, "quick", 0, {"size": "4"}) == places[0]  # the default, spelled out
    assert store.directory(made, "quick", 0, {"size": "5"}) == places[3]
    # a run is stored under what it was made with
    assert store.save(run_lab(made, settings={"size": 5})) == places[3]
    assert store.load(made, "quick", 0) is None


def test_a_run_is_only_taken_up_by_the_code_that_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, made = RunStore(tmp_path), register(random_lab)
    store.save(run_lab(made))
    assert store.load(made, "quick", 0) is not None
    monkeypatch.setattr(store_module, "code_fingerprint", lambda lab: "other")
    assert store.load(made, "quick", 0) is None


def test_a_users_lab_is_run_again_when_its_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RunStore(tmp_path / "runs")
    monkeypatch.syspath_prepend(str(tmp_path))

    def load(value: float) -> Lab:
        (tmp_path / "zz_user_lab.py").write_text(
            "from torchtheory.labs.engine.registry import lab\n"
            "@lab('zz-user', room='nets', covers=['N-08'], title='t')\n"
            "def user(run):\n"
            "    says = run.states('N-08', 'x')\n"
            f"    says.at_most({value}, 1)\n"
            "    says.fails('b', 2)\n"
        )
        sys.modules.pop("zz_user_lab", None)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        __import__("zz_user_lab")
        return find_lab("zz-user")

    made = load(0.25)
    store.save(run_lab(made))
    assert store.load(made, "quick", 0) is not None
    assert store.load(load(0.5), "quick", 0) is None
    sys.modules.pop("zz_user_lab", None)


@pytest.mark.parametrize("step", ["report", "_write", "write_bytes", "copystat", "_exchange"])
@pytest.mark.parametrize("earlier", [False, True])
def test_an_exception_while_saving_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, earlier: bool
) -> None:
    store, made = RunStore(tmp_path), register(random_lab)
    if earlier:
        store.save(run_lab(made))
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}
    run = run_lab(made)

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt

    if step == "report":
        monkeypatch.setattr(store_module, "run_page", fail)
    elif step == "write_bytes":
        monkeypatch.setattr(Path, "write_bytes", fail)
    elif step == "copystat":
        monkeypatch.setattr(shutil, "copystat", fail)
    else:
        monkeypatch.setattr(outputs, step, fail)
    with pytest.raises(KeyboardInterrupt):
        store.save(run)
    monkeypatch.undo()
    after = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}
    assert after == before
    assert list(tmp_path.rglob(".partial*")) == []
    assert (store.load(made, "quick", 0) is not None) == earlier


@pytest.mark.parametrize("damage", ["claims.json", "config.json", "figures/draws.png"])
def test_a_damaged_run_counts_as_not_there(tmp_path: Path, damage: str) -> None:
    store, made = RunStore(tmp_path), register(random_lab)
    path = store.save(run_lab(made))
    (path / damage).unlink()
    assert store.load(made, "quick", 0) is None
    assert store.finished() == []
    (path / damage).write_text("[1, 2")
    if damage.endswith("json"):
        assert store.load(made, "quick", 0) is None
    with pytest.raises(FileProblem, match="is not replaced"):  # who knows whose it is
        store.save(run_lab(made))
    (path / damage).write_text("")
    assert store.save(run_lab(made)) == path
    assert store.load(made, "quick", 0) is not None


def test_saving_again_replaces(tmp_path: Path) -> None:
    store, made = RunStore(tmp_path), register(random_lab)
    path = store.save(run_lab(made))
    before = store.load(made, "quick", 0)
    (path / "notes").write_text("mine")
    store.save(run_lab(made))
    assert before is not None
    assert store.load(made, "quick", 0) is not None
    assert (path / "notes").read_text() == "mine"
    assert [p.name for p in tmp_path.iterdir()] == [made.name]
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_the_directory_is_as_readable_as_any_other(tmp_path: Path) -> None:
    store, made = RunStore(tmp_path / "store"), register(random_lab)
    path = store.save(run_lab(made))
    (tmp_path / "other").mkdir()
    assert path.stat().st_mode == (tmp_path / "other").stat().st_mode


def test_what_a_killed_run_left_is_no_run(tmp_path: Path) -> None:
    store, made = RunStore(tmp_path), register(random_lab)
    path = store.save(run_lab(made))
    shutil.copytree(path, path.with_name(".partial-0123456789abcdef-abcdefgh"))
    assert len(store.finished()) == 1


def test_sweep_removes_only_what_is_old_and_ours(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    old = time.time() - 3600
    first, second, index = (f".partial-{k:016x}-abcd_123" for k in range(3))
    mine = ".partial-download"  # a name that somebody else gave
    for name in (first, second, mine):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    (tmp_path / index).write_text("")
    (tmp_path / "kept").mkdir()
    for name in (first, index, mine, "kept"):
        os.utime(tmp_path / name, (old, old))
    store.sweep()
    assert {p.name for p in tmp_path.iterdir()} == {second, mine, "kept"}
    RunStore(tmp_path / "missing").sweep()
    assert store.finished() == []


def test_index_page_lists_finished_runs(tmp_path: Path) -> None:
    store, made = RunStore(tmp_path), register(random_lab)
    store.save(run_lab(made))
    store.save(run_lab(made, seed=1))
    assert [place for _, place in store.finished()] == ["zz-run-lab/quick-0", "zz-run-lab/quick-1"]
    text = store.write_index().read_text("utf-8")
    assert "zz-run-lab/quick-1/report.html" in text
    empty = RunStore(tmp_path / "empty").write_index()
    assert empty.exists()


def test_places_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileProblem, match="is a file"):
        RunStore(tmp_path / "file")
    with pytest.raises(FileProblem, match="File name too long"):
        RunStore(tmp_path / ("x" * 300))
    run = run_lab(register(random_lab))
    below = RunStore(tmp_path / "file" / "below")
    with pytest.raises(FileProblem, match="cannot write to"):
        below.save(run)
    with pytest.raises(FileProblem, match="cannot write to"):
        below.write_index()

    def full(self: Path, *args: Any, **kwargs: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(FileProblem, match="No space left on device"):
        RunStore(tmp_path).save(run)
    assert list(tmp_path.glob(".partial*")) == []


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere"
)
def test_a_read_only_directory(tmp_path: Path) -> None:
    run = run_lab(register(random_lab))
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(FileProblem, match="Permission denied"):
            RunStore(tmp_path).save(run)
    finally:
        tmp_path.chmod(0o700)


def test_claims_json_is_strict_and_has_the_documented_fields(tmp_path: Path) -> None:
    path = RunStore(tmp_path).save(run_lab(register(random_lab)))

    def refuse(name: str) -> None:
        raise AssertionError(name)

    data = json.loads((path / "claims.json").read_text("utf-8"), parse_constant=refuse)
    assert {"lab", "room", "preset", "seed", "seconds", "claims", "tables", "figures"} <= set(data)
    assert Claim.from_json(data["claims"][0]).cases == 4


@pytest.mark.parametrize("seed", ["a", 0.5, None, -1, 2**63, True])
def test_what_is_no_seed(seed: Any) -> None:
    with pytest.raises(TorchTheoryError, match="seed must be a whole number from 0 to"):
        run_lab("perceptron-novikoff", seed=seed)


@pytest.mark.parametrize("given", [3, None, ["perceptron-novikoff"]])
def test_what_is_no_lab(given: Any) -> None:
    with pytest.raises(TypeError, match="a lab is given by its name or by find_lab"):
        run_lab(given)


def many_means(run: Run, claims: int = 12) -> None:
    for _ in range(claims):
        run.states("N-08", "x").mean(run.randn(40), 0.0, against=(3.0,), confidence=0.99)
    says = run.states("N-08", "y")
    says.equal(1.0, 1.0)
    says.fails("broken", 2.0)


def test_the_confidence_is_that_of_the_lab() -> None:
    lab = register(many_means)
    runs = [run_lab(lab, seed=seed) for seed in range(60)]
    found = {c.interval.confidence for c in runs[0].claims if c.interval is not None}
    assert found == {1 - 1 / 200 / 12}
    assert sum(not run.passed for run in runs) <= 2
    # as many claims at 99% each would contradict a tenth of the true labs
    alone = [[c.at(0.99) for c in run.claims] for run in runs]
    assert sum(any(c.verdict is Verdict.VIOLATED for c in claims) for claims in alone) > 2


def test_a_higher_confidence_of_a_claim_is_kept() -> None:
    def careful(run: Run) -> None:
        says = run.states("N-08", "x")
        says.mean(run.randn(40), 0.0, against=(3.0,), confidence=0.99999)
        says.fails("broken", run.randn(40) + 9)

    claim = run_lab(register(careful)).claims[0]
    assert claim.interval is not None
    assert claim.interval.confidence == 0.99999
    assert claim.control is not None
    assert claim.control.interval is not None
    assert claim.control.interval.confidence == 0.99999
