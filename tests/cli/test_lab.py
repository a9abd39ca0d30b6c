"""Listing, describing and running labs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torchtheory.labs.engine.registry import labs

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
        "name", "room", "title", "covers", "errata", "description", "parameters",
    }  # fmt: skip
    samples = {"name": "samples", "type": "a whole number", "quick": 200, "full": 2000}
    assert samples in data["parameters"]


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
    assert (run["lab"], run["room"]) == ("perceptron-novikoff", "nets")
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
        (["perceptron-novikoff", "--set", "samples=-5"], "samples must lie in 1..20000000, not -5"),
        (["perceptron-novikoff", "--set", "samples=1e9"], "samples must lie in 1..20000000"),
        (["perceptron-novikoff", "--seeds", "3", "--set", "samples=0"], "samples must lie in"),
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
