"""The index of results, and the errata."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchtheory.core import catalogue
from torchtheory.core.claim import Claim
from torchtheory.labs.engine import coverage
from torchtheory.labs.engine.registry import lab
from torchtheory.labs.engine.run import Run

from .calls import Call, forget_labs


def test_index(call: Call) -> None:
    data = call("index", "--json").json
    counts = {"total", "covered", "background", "missing", "loose", "unresolved"}
    assert set(data) == counts | {"entries"}
    assert data["total"] == len(data["entries"]) == len(catalogue.entries()) == 1158
    assert data["covered"] + data["background"] + data["missing"] == 1158
    keys = {"id", "name", "source", "kind", "status", "labs", "loose", "unresolved", "bounds"}
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


def test_index_marks_what_is_checked_weakly(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def weak(run: Run, size: int = 2) -> None:
        says = run.states("N-08", "x")
        says.at_most(1, 18)
        says.fails("broken", 19)
        run.states("N-08", "x").at_most(1, 12, loose="no case comes near")
        run.states("N-06", "x").at_most(1, 12)
        run.states("N-06", "x").at_most(1, 1)
        run.states("N-07", "x").mean([0.4, 0.5, 0.6], 0.5)

    forget_labs(monkeypatch)
    lab("zz-weak", room="nets", covers=["N-08", "N-07", "N-06"], title="t")(weak)
    debts = {
        "loose": {"zz-weak": ("N-08#1", "N-06#1")},
        "unresolved": {"zz-weak": ("N-07#1",)},
        "control": {},
    }
    monkeypatch.setattr(coverage, "read_debts", lambda: debts)
    place = ("--out", str(tmp_path / "runs"))

    def marks() -> dict[str, tuple[int, int, int | None]]:
        listed = call("index", "--loose", "--json", *place).json["entries"]
        return {e["id"]: (len(e["loose"]), len(e["unresolved"]), e["bounds"]) for e in listed}

    # what the file of debts says
    assert marks() == {"N-06": (1, 0, None), "N-07": (0, 1, None), "N-08": (1, 0, None)}
    assert "1 loose" in call("index", "N-08", *place).out
    # what a kept run says
    assert call("lab", "run", "zz-weak", *place).code == 0
    assert marks() == {"N-06": (1, 0, 2), "N-07": (0, 1, 0), "N-08": (2, 0, 2)}
    found = call("index", "N-08", "--json", *place).json
    assert (found["loose"], found["unresolved"]) == (1, 0)
    assert found["entries"][0]["loose"] == ["zz-weak N-08#1", "zz-weak N-08#2"]
    assert found["entries"][0]["reasons"] == ["no case comes near"]
    assert "1 of 2 loose" in " ".join(call("index", "N-06", *place).out.split())
    assert "2 loose, 1 unresolved" in call("index", "--loose", *place).out


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


def test_errata_print_at_once_what_is_kept(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    key, other = "novikoff-fewer-than-floor", "novikoff-fewer-than-ceiling"
    ran: list[int] = []

    def refuting(run: Run) -> None:
        ran.append(run.seed)
        says = run.states("N-08", "x")
        says.at_most(0, 1)
        says.fails("b", 2)
        run.refutes(key, "x").at_most(3, 1)

    forget_labs(monkeypatch)
    lab("zz-kept", room="nets", covers=["N-08"], title="t", errata=[key])(refuting)
    claims = (Claim(("N-08",), "x", 1.0, "<=", 2.0),)
    monkeypatch.setattr(coverage, "kept_numbers", lambda: {"zz-kept": {key: claims}})

    def measured(*options: str) -> list[float]:
        (erratum,) = call("errata", *options, "--json").json["errata"]
        return [c["measured"] for c in erratum["counterexamples"]]

    assert measured() == [2.0]
    assert "measured 2 ≰ promised 1" in call("errata").out
    assert ran == []
    assert measured("--run") == [3.0]
    assert measured("--run") == [3.0], "a finished run is no reason not to"
    assert ran == [0, 0]
    # an erratum the lab has learned of since is not known
    monkeypatch.setattr(coverage, "kept_numbers", lambda: {"zz-kept": {other: claims}})
    assert measured() == [3.0]
    assert ran == [0, 0], "its finished run is"
