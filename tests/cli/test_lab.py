"""Listing, describing and running labs."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest

from torchtheory.labs.engine.registry import labs, listed_labs
from torchtheory.labs.engine.run import Run
from torchtheory.report.lab_parts import suggestions

from .calls import Call, false, good, interrupted, raises, refused, register

SMALL = ["perceptron-novikoff", "--set", "samples=40", "--set", "trials=2"]
CLAIM = {
    "id", "statement", "source", "promised", "relation", "measured", "tolerance", "verdict",
    "reason", "control",
}  # fmt: skip


def test_lab_list(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = call("lab", "list", "--json").json["labs"]
    assert all(set(row) == {"name", "room", "title", "covers"} for row in rows)
    assert {row["name"] for row in rows} == set(labs())
    names = [r["name"] for r in call("lab", "list", "--covers", "N-08", "--json").json["labs"]]
    assert names == ["perceptron-novikoff"]
    nets = call("lab", "list", "--room", "nets", "--json").json["labs"]
    assert {r["room"] for r in nets} == {"nets"}
    assert "perceptron-novikoff" in call("lab", "list").out
    register(monkeypatch, good)
    assert "The interval [a, b] and [/x]" in call("lab", "list").out


def test_lab_show(call: Call) -> None:
    shown = call("lab", "show", "perceptron-novikoff")
    assert shown.code == 0
    assert all(word in shown.out for word in ("samples", "a whole number", "N-08", "200", "2000"))
    data = call("lab", "show", "perceptron-novikoff", "--json").json
    assert set(data) == {
        "name", "room", "title", "covers", "errata", "description", "teaching", "parameters",
        "try",
    }  # fmt: skip
    samples, gap = (p for p in data["parameters"] if p["name"] in ("samples", "gap"))
    meaning = samples.pop("meaning")
    assert samples == {
        "name": "samples", "type": "a whole number", "quick": 200, "full": 2000,
        "least": 20, "most": 20_000_000, "items": 0, "choices": [],
    }  # fmt: skip
    assert meaning
    assert meaning in " ".join(shown.out.split())
    assert gap["meaning"].endswith("a hyperplane separates by at least `gap`.")
    assert data["try"] == [
        f"torchtheory lab run perceptron-novikoff {options}"
        for options in (
            "--set gap=0.02",
            "--set dimension=2",
            "--set separable=false",
            "--seeds 20",
            "--preset full",
        )
    ]
    assert all(command in shown.out for command in data["try"])


def test_what_every_lab_suggests_can_be_given() -> None:
    unlike = 0
    for lab in labs().values():
        for one in suggestions(lab):
            words = shlex.split(one.command)
            assert words[:4] == ["torchtheory", "lab", "run", lab.name]
            if words[4] == "--set":
                name, _, value = words[5].partition("=")
                unlike += lab.configure("quick", {name: value}) != lab.configure("quick", {})
    assert unlike > 0.9 * len(labs())


def test_a_run_says_what_to_try(call: Call) -> None:
    out = " ".join(call("lab", "run", *SMALL).out.split())
    assert "try: torchtheory lab run perceptron-novikoff --set gap=0.02 or --set dimension=2" in out
    # a lab that suggests nothing by itself is tried with a value of the other preset
    data = call("lab", "show", "threshold-neuron", "--json").json
    assert data["try"][0].startswith("torchtheory lab run threshold-neuron --set ")


def test_a_lab_is_shown_as_markdown(call: Call) -> None:
    outcome = call("lab", "show", "perceptron-novikoff", "--markdown")
    assert (outcome.code, outcome.err) == (0, "")
    assert "## Theorem" in outcome.out
    assert r"- *Bounded*: $\Vert x_i\Vert \le R$ for all $i$." in outcome.out


def test_outside_of_its_theorem_a_lab_does_not_fail(call: Call) -> None:
    outcome = call("lab", "run", *SMALL, "--set", "separable=false", "--json")
    assert (outcome.code, outcome.err) == (0, "")
    last = outcome.json["runs"][0]["claims"][-1]
    assert last["verdict"] == "not applicable"
    assert "no hyperplane separates the sample" in last["reason"]


def test_a_lab_of_the_user_is_tried_with_its_module(call: Call, own_registry: None) -> None:
    Path("zz_mine.py").write_text(MINE)
    data = call("lab", "show", "zz-mine", "--module", "zz_mine.py", "--json").json
    assert data["try"][1] == "torchtheory lab run zz-mine --module zz_mine.py --seeds 20"
    assert call(*data["try"][1].split()[1:], "--out", "o").code == 0


def test_lab_run_at_several_seeds(call: Call) -> None:
    outcome = call("lab", "run", *SMALL, "--seeds", "2", "--json")
    assert (outcome.code, outcome.err) == (0, "")
    assert (outcome.json["seeds"], outcome.json["passed"]) == (2, True)
    assert all(claim["seeds"] == 2 for claim in outcome.json["claims"])
    text = call("lab", "run", *SMALL, "--seeds", "2").out
    assert "0 fail more often than they may" in " ".join(text.split())


def test_lab_run_json(call: Call) -> None:
    outcome = call("lab", "run", *SMALL, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    (run,) = outcome.json["runs"]
    keys = {"lab", "room", "preset", "seed", "seconds", "claims", "tables", "figures"}
    assert keys <= set(run)
    assert (run["lab"], run["room"]) == ("perceptron-novikoff", "neurons")
    assert (run["preset"], run["seed"]) == ("quick", 0)
    assert run["claims"]
    for claim in run["claims"]:
        assert set(claim) >= CLAIM
        assert claim["verdict"] in ("holds", "violated", "vacuous", "not applicable")
        if claim["control"] is not None:
            assert set(claim["control"]) >= CLAIM
            assert claim["control"]["verdict"] == "violated"
    assert run["parameters"]["samples"] == 40
    again = call("lab", "run", *SMALL, "--json").json["runs"][0]
    assert again == run  # read back, seconds and all
    forced = call("lab", "run", *SMALL, "--json", "--force").json["runs"][0]
    assert forced["claims"] == run["claims"]
    pages = list(Path("torchtheory-runs").glob("perceptron-novikoff/*/report.html"))
    assert len(pages) == 1
    assert Path("torchtheory-runs/index.html").exists()


def test_lab_run_text_and_exit_codes(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, good, false, raises)
    passed = call("lab", "run", "zz-good", "--out", "o")
    assert (passed.code, passed.err) == (0, "")
    assert "report: o/index.html" in passed.out.replace(os.sep, "/")
    assert call("lab", "run", "zz-false", "--out", "o").code == 1
    # one lab that raises: one line, exit code 1, and the others are there
    outcome = call("lab", "run", "--all", "--out", "o")
    assert outcome.code == 1
    assert outcome.err == "torchtheory: lab zz-raises: RuntimeError: many lines\n"
    assert "zz-good" in outcome.out
    alone = call("lab", "run", "zz-raises", "--out", "new/deep")
    assert alone.code == 1
    assert alone.err.count("\n") == 1
    assert call("lab", "run", "zz-good", "zz-good", "--verbose", "--set", "size=3").code == 0


def test_an_interrupt_is_one_line_and_keeps_what_is_finished(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(monkeypatch, good, interrupted)
    outcome = call("lab", "run", "--all", "--out", "o")
    assert outcome.code == 130
    assert outcome.err == "torchtheory: interrupted; what was finished before is kept\n"
    assert Path("o/zz-good/quick-0/report.html").exists()
    assert not list(Path("o").glob(".partial*"))
    assert not Path("o/zz-interrupted").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "name the labs to run, or say --all"),
        (["--all", "perceptron-novikoff"], "or say --all, not both"),
        (["perceptron-novikof"], "did you mean 'perceptron-novikoff'"),
        (["perceptron-novikoff", "--set", "sample=3"], "did you mean 'samples'"),
        (["perceptron-novikoff", "--set", "samples=many"], "parameter samples must be a whole nu"),
        (["perceptron-novikoff", "--set", "samples=inf"], "parameter samples must be a whole nu"),
        (["perceptron-novikoff", "--set", "samples"], "--set takes name=value"),
        (["perceptron-novikoff", "--set", "=3"], "--set takes name=value"),
        (["--all", "--set", "samples=3"], "no parameter of lab"),
        (["perceptron-novikoff", "--seed", "-1"], "--seed"),
        (["perceptron-novikoff", "--seed", "99999999999999999999"], "a seed is"),
        (["perceptron-novikoff", "--set", "samples=-5"], "in the range 20 to 20,000,000, not -5"),
        (["perceptron-novikoff", "--set", "samples=1e9"], "in the range 20 to 20,000,000, not 1"),
        (["perceptron-novikoff", "--seeds", "3", "--set", "samples=0"], "samples must lie in"),
        (["perceptron-novikoff", "--seeds", "9" * 40], "seeds must be a whole number from 1 to"),
        (["perceptron-novikoff", "--jobs", "0"], "--jobs"),
        (["perceptron-novikoff", "--preset", "medium"], "--preset"),
        (["perceptron-novikoff", "--out", "file"], "file is a file; --out needs a directory"),
        (["perceptron-novikoff", "--out", "file/below"], "cannot write to"),
        (["perceptron-novikoff", "--bogus"], "No such option"),
    ],
)
def test_lab_run_refuses(call: Call, arguments: list[str], sentence: str) -> None:
    Path("file").write_text("")
    assert sentence in refused(call("lab", "run", *arguments))


def few(run: Run, size: int = 2) -> None:
    if size > 2:
        raise MemoryError("too\nmany")
    good(run, size)


def leaves(run: Run) -> None:
    raise SystemExit(0)


def test_values_a_lab_cannot_take_are_bad_input(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(monkeypatch, few)
    sentence = refused(call("lab", "run", "zz-few", "--set", "size=9"))
    assert "size is 2 in quick and 2 in full) it raised MemoryError: too many" in sentence
    # once, however many seeds there are
    sentence = refused(call("lab", "run", "zz-few", "--seeds", "3", "--set", "size=9"))
    assert "lab zz-few at 3 seeds (0, 1, 2): with these settings" in sentence
    refused(call("lab", "run", "zz-few", "--seeds", "2", "--set", "size=9", "--json"))
    refused(call("lab", "run", "zz-few", "--set", "size=9", "--json"))
    assert call("lab", "run", "zz-few").code == 0


def test_a_lab_that_ends_the_program_has_failed(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(monkeypatch, leaves)
    outcome = call("lab", "run", "zz-leaves")
    assert outcome.code == 1
    assert "SystemExit" in outcome.err


MINE = """\
import torchtheory as tt
@tt.lab("zz-mine", room="nets", covers=["N-08"], title="Mine")
def mine(run, size: int = 2):
    says = run.states("N-08", "x")
    says.at_most(1, 2)
    says.fails("b", 3)
"""


@pytest.mark.parametrize("module", ["zz_mine.py", "zz_mine", "sub/zz_mine.py"])
def test_labs_of_the_user(call: Call, own_registry: None, module: str) -> None:
    Path("sub").mkdir()
    for file in ("zz_mine.py", "sub/zz_mine.py"):
        Path(file).write_text(MINE)
    listed = call("lab", "list", "--module", module, "--json").json["labs"]
    assert "zz-mine" in {row["name"] for row in listed}
    assert "a whole number" in call("lab", "show", "zz-mine", "--module", module).out
    outcome = call("lab", "run", "zz-mine", "--module", module, "--json")
    assert outcome.code == 0, outcome.err
    beside = call("lab", "run", "zz-mine", "perceptron-novikoff", "--module", module, "--jobs", "2")
    assert beside.code == 0, beside.err
    sys.modules.pop("zz_mine", None)


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        ("absent.py", "there is no file absent.py"),
        ("zz_absent", "cannot import zz_absent: ModuleNotFoundError"),
        ("wrong.py", "cannot import wrong.py: SyntaxError"),
        ("ends.py", "cannot import ends.py: SystemExit"),
        ("room.py", "no room is named 'cellar'"),
        (".", "cannot import ."),
    ],
)
def test_modules_that_cannot_be_taken_up(call: Call, module: str, sentence: str) -> None:
    Path("wrong.py").write_text("def (")
    Path("ends.py").write_text("raise SystemExit(0)")
    Path("room.py").write_text(MINE.replace('"nets"', '"cellar"'))
    for command in (("run", "zz-mine"), ("list",), ("show", "zz-mine")):
        assert sentence in refused(call("lab", *command, "--module", module))


def test_a_list_for_a_program_has_one_line_a_lab(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS")
    header, *lines = call("lab", "list").out.splitlines()
    assert header.split() == ["lab", "room", "title", "covers"]
    assert [line.split()[0] for line in lines] == list(listed_labs())
    entries = call("index", "--room", "nets").out.splitlines()
    found = call("index", "--room", "nets", "--json").json["entries"]
    assert [line.split()[0] for line in entries[1:-1]] == [e["id"] for e in found]
    monkeypatch.setenv("COLUMNS", "60")
    assert max(map(len, call("lab", "list", "--room", "nets").out.splitlines())) <= 60


def test_nothing_found_is_said(call: Call) -> None:
    assert "0 entries match; a word stands in" in call("index", "zzz-nothing").out
    assert "0 errata match" in call("errata", "zzz-nothing").out
    assert "no lab matches" in call("lab", "list", "--room", "nets", "--covers", "M-24").out
