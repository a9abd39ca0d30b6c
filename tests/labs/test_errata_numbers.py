"""The kept numbers of the errata's counterexamples: those of the labs, and read back unchanged."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import typer

from torchtheory.core import catalogue
from torchtheory.core.claim import Claim, Verdict
from torchtheory.core.errors import FileProblem
from torchtheory.core.intervals import Interval
from torchtheory.labs.engine import errata_numbers
from torchtheory.labs.engine.errata_numbers import kept_numbers, main, numbers_of, write_numbers
from torchtheory.labs.engine.registry import listed_labs
from torchtheory.labs.engine.run import run_lab


def test_what_is_kept_refutes_what_labs_say_they_refute() -> None:
    kept, labs, texts = kept_numbers(), listed_labs(), catalogue.errata()
    assert set(kept) == {name for name, lab in labs.items() if lab.errata}
    for lab, found in kept.items():
        assert set(found) == set(labs[lab].errata), lab
        for key, claims in found.items():
            assert claims, key
            for claim in claims:
                assert claim.verdict is Verdict.VIOLATED, key
                assert texts[key].id in catalogue.entries()


@pytest.mark.parametrize("lab", ["barron-constants", "approximation-error", "sawtooth"])
def test_what_is_kept_is_what_the_lab_gives_now(lab: str) -> None:
    now, kept = numbers_of(run_lab(lab).errata), kept_numbers()[lab]
    assert set(now) == set(kept)
    for key in now:
        for a, b in zip(now[key], kept[key], strict=True):
            assert (a.ids, a.statement, a.relation, a.reason) == (
                b.ids,
                b.statement,
                b.relation,
                b.reason,
            )
            assert a.measured is not None
            assert b.measured is not None
            assert math.isclose(a.measured, b.measured, rel_tol=1e-6, abs_tol=1e-9), key
            assert a.promised == pytest.approx(b.promised, rel=1e-6, abs=1e-9)


def test_numbers_come_back_as_they_were(tmp_path: Path) -> None:
    interval = Interval(0.5, 0.4, 0.6, 0.95, 10, "t")
    claims = (
        Claim(("N-08", "N-06"), r"a \le \infty", 0.1, "<=", math.inf, reason="„π“", cases=3),
        Claim(("N-08",), "b", 0.9, "~", 0.5, interval=interval, against=(0.0, 1.0), trivial=2.0),
    )
    path = tmp_path / "numbers.json"
    write_numbers({"b": {"k": claims}, "a": {"l": claims[:1]}}, path)
    assert kept_numbers(path) == {"a": {"l": claims[:1]}, "b": {"k": claims}}
    assert list(json.loads(path.read_text("utf-8"))) == ["a", "b"]
    assert kept_numbers(tmp_path / "absent.json") == {}
    bad = tmp_path / "bad.json"
    bad.write_text('{"a": {"k": [{"id": "N-08"}]}}')
    with pytest.raises(FileProblem, match="cannot be read"):
        kept_numbers(bad)


def test_numbers_are_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "numbers.json"
    monkeypatch.setattr(errata_numbers, "PATH", path)
    other = (Claim(("N-08",), "x", 1.0, "<=", 2.0),)
    write_numbers({"gone-lab": {"k": other}, "hopfield-capacity": {"k": other}})
    with pytest.raises(typer.Exit) as left:
        main(["barron-constants"], tmp_path / "runs")
    assert left.value.exit_code == 0
    made = kept_numbers()
    assert set(made) == {"barron-constants", "hopfield-capacity"}, "what is gone has left"
    assert set(made["barron-constants"]) == set(listed_labs()["barron-constants"].errata)
    assert made["hopfield-capacity"] == {"k": other}
