"""The index of results, and the errata."""

from __future__ import annotations

import pytest

from torchtheory.core import catalogue
from torchtheory.labs.engine.registry import lab
from torchtheory.labs.engine.run import Run

from .calls import Call, forget_labs


def test_index(call: Call) -> None:
    data = call("index", "--json").json
    assert set(data) == {"total", "covered", "background", "missing", "entries"}
    assert data["total"] == len(data["entries"]) == len(catalogue.entries()) == 1158
    assert data["covered"] + data["background"] + data["missing"] == 1158
    keys = {"id", "name", "source", "kind", "status", "labs"}
    assert all(keys <= set(e) for e in data["entries"])
    for e in data["entries"]:
        assert (e["status"] == "covered") == bool(e["labs"])
    found = call("index", "novikoff", "--json").json
    assert "N-08" in {e["id"] for e in found["entries"]}
    missing = call("index", "--source", "notes", "--missing", "--json").json
    assert {e["status"] for e in missing["entries"]} <= {"missing"}
    assert call("index", "--room", "nets", "--json").json["total"] < 1158
    assert "N-08" in call("index", "N-08").out
    assert "1158" in call("index").out
    assert call("index", "zzzz-nothing", "--json").json["total"] == 0


def test_several_words_need_no_quotes(call: Call) -> None:
    quoted, plain, other_order = (
        call("index", *words, "--json").json["entries"]
        for words in (["gradient descent"], ["gradient", "descent"], ["descent", "gradient"])
    )
    assert plain == quoted
    assert 0 < len(plain) < len(call("index", "gradient", "--json").json["entries"])
    assert {e["id"] for e in other_order} == {e["id"] for e in plain}
    inside = call("index", "gradient", "descent", "--room", "optimization", "--json").json
    assert {e["room"] for e in inside["entries"]} == {"optimization"}
    assert call("errata", "zzz", "nothing", "--json").json == {"errata": []}


def test_errata(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "novikoff-fewer-than-floor"

    def refuting(run: Run) -> None:
        says = run.states("N-08", "x")
        says.at_most(0, 1)
        says.fails("b", 2)
        run.refutes(key, "x").at_most(2, 1)

    def failing(run: Run) -> None:
        raise RuntimeError("no numbers")

    forget_labs(monkeypatch)
    lab("zz-errata", room="nets", covers=["N-08"], title="t", errata=[key])(refuting)
    data = call("errata", "--json").json["errata"]
    (erratum,) = data
    assert (erratum["key"], erratum["id"], erratum["lab"]) == (key, "N-08", "zz-errata")
    assert {"source", "printed", "correct", "counterexamples"} <= set(erratum)
    assert erratum["counterexamples"][0]["verdict"] == "violated"
    assert call("errata", "zzz-nothing", "--json").json == {"errata": []}
    assert "Novikoff" in call("errata", "N-08").out or "updates" in call("errata", "N-08").out
    # a lab that fails is not silence
    other = "novikoff-fewer-than-ceiling"
    lab("zz-failing", room="nets", covers=["N-08"], title="t", errata=[other])(failing)
    outcome = call("errata", "--json")
    assert outcome.code == 1
    assert len(outcome.json["errata"]) == 2
    sentence = f"erratum {other} has no numbers: lab zz-failing did not finish"
    assert outcome.err == f"torchtheory: {sentence}\n"
