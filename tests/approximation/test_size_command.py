"""The command that says how large a network must be."""

from __future__ import annotations

import json
from typing import Any

import pytest

from torchtheory import cli
from torchtheory.approximation.rates.theorems import FUNCTION_CLASSES


class Outcome:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        def refuse(name: str) -> None:
            raise AssertionError(name)

        return json.loads(self.out, parse_constant=refuse)


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments: str) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main(["size", *arguments])
        code = ended.value.code
        assert isinstance(code, int)
        return Outcome(code, *capsys.readouterr())

    return run


SOBOLEV = ["--class", "sobolev", "--smoothness", "2", "--dim", "5", "--error", "1e-2"]


def test_help_has_examples(call: Any) -> None:
    outcome = call("--help")
    assert outcome.code == 0
    assert "torchtheory size --class sobolev" in outcome.out
    assert "--list" in outcome.out


def test_list(call: Any) -> None:
    assert all(name in call("--list").out for name in FUNCTION_CLASSES)
    assert call("--list", "--json").json["classes"] == FUNCTION_CLASSES


def test_lower_bounds_stand_apart_and_sizes_are_sorted(call: Any) -> None:
    outcome = call(*SOBOLEV)
    assert outcome.code == 0
    out = outcome.out
    assert out.index("Needed") < out.index("X-16") < out.index("Enough") < out.index("X-31")
    assert out.index("X-37") < out.index("X-18") < out.index("X-31")
    assert "Not applicable here" in out
    assert "X-15 (sums of ridge functions, one hidden layer): it is about p = 2" in out
    assert "~ is an order: its constant is unknown" in out


def test_json(call: Any) -> None:
    data = call(*SOBOLEV, "--json").json
    assert data["smoothness"] == 2
    assert data["p"] == "inf"
    needed = {row["id"]: row for row in data["lower"]}
    assert needed["X-16"]["size"] == 32
    assert needed["X-16"]["constant"] == "constant known"
    assert {r["constant"] for r in data["upper"]} == {"constant known", "order, constant unknown"}
    sizes = [row["log10_size"] for row in data["upper"]]
    assert sizes == sorted(sizes)
    assert {r["id"] for r in data["not_applicable"]} == {"X-15", "L-071", "X-83"}


def test_options_reach_the_theorems(call: Any) -> None:
    barron = call("--class", "barron", "--dim", "9", "--error", "0.1", "--barron-constant", "3",
                  "--radius", "2", "--json").json  # fmt: skip
    assert {(r["size"], r["constant_known"]) for r in barron["upper"]} == {
        (14400, True),
        (63, False),
    }
    assert call(*SOBOLEV, "--p", "2", "--json").json["p"] == 2
    assert "X-16" in call("--class", "lipschitz", "--dim", "784", "--error", "0.1").out
    shallow = call(*SOBOLEV, "--shallow", "--continuous", "--constant", "10")
    assert "its networks have more than one hidden layer" in shallow.out
    assert "was taken to be 10" in shallow.out
    assert "weaker than asked" in call(*SOBOLEV).out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "size needs --class, --dim and --error"),
        (["--class", "sobolev", "--dim", "3"], "size needs --class, --dim and --error"),
        (["--class", "sobolv", "--dim", "3", "--error", "0.1"], "did you mean 'sobolev'"),
        (["--class", "sobolev", "--dim", "3", "--error", "0.1"], "needs its smoothness"),
        ([*SOBOLEV, "--order", "3"], "0 to 1 derivatives"),
        (["--class", "barron", "--dim", "3", "--error", "2"], "strictly between 0 and 1"),
        (["--class", "barron", "--dim", "-3", "--error", "0.1"], "whole number >= 1"),
        (["--class", "barron", "--dim", "x", "--error", "0.1"], "--dim"),
    ],
)
def test_mistakes_are_one_sentence(call: Any, arguments: list[str], sentence: str) -> None:
    outcome = call(*arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    assert sentence in outcome.err
    assert outcome.err.count("\n") == 1
