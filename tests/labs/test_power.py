"""Checks with too few observations: silent where a user chose the number, red where the lab did."""

from __future__ import annotations

import pytest

from torchtheory.core.catalogue import errata
from torchtheory.core.claim import Verdict
from torchtheory.labs.engine.registry import Lab, find_lab, lab
from torchtheory.labs.engine.run import Run, run_lab

pytestmark = pytest.mark.usefixtures("own_registry")


def coin(run: Run, tosses: int = 400, shift: float = 0.0, bias: float = 1.0) -> None:
    """Signs have mean 0, and -1 and 1 are other values; broken: signs with a bias."""
    says = run.states("N-08", "E x = 0")
    says.mean(run.signs(tosses) + shift, 0.0, against=(-1.0, 1.0))
    says.fails("biased", run.signs(tosses) + bias)


def registered() -> Lab:
    lab(
        "zz-coin",
        room="nets",
        covers=["N-08"],
        title="Coins",
        full={"tosses": 900},
        least={"tosses": 2},
    )(coin)
    return find_lab("zz-coin")


def test_at_the_presets_all_is_resolved() -> None:
    assert run_lab(registered()).problems == []


def test_an_interval_that_contains_an_alternative_shows_nothing() -> None:
    (made,) = (run := run_lab(registered(), settings={"tosses": 4})).claims
    assert made.verdict is Verdict.NOT_APPLICABLE
    assert made.reason.startswith(
        "4 observations do not tell 0 from -1 and 1: their interval reaches from "
    )
    assert run.problems == []


def test_a_control_that_is_not_told_from_the_claim_shows_nothing() -> None:
    (made,) = (run := run_lab(registered(), settings={"tosses": 100, "bias": 0.02})).claims
    assert made.verdict is Verdict.NOT_APPLICABLE
    assert "100 observations do not tell the control from it (biased)" in made.reason
    assert run.problems == []


def test_few_observations_that_refute_the_claim_still_do() -> None:
    run = run_lab(registered(), settings={"tosses": 100, "shift": 5.0})
    assert run.claims[0].verdict is Verdict.VIOLATED
    assert len(run.problems) == 1


def test_at_the_presets_the_same_is_a_fault_of_the_lab() -> None:
    def few(run: Run, tosses: int = 4) -> None:
        coin(run, tosses)

    lab("zz-few", room="nets", covers=["N-08"], title="Coins", full={"tosses": 900})(few)
    run = run_lab("zz-few")
    assert run.claims[0].verdict is Verdict.HOLDS
    assert any("is not resolved" in sentence for sentence in run.problems)


def test_what_a_source_prints_is_refuted_or_left_open() -> None:
    key = next(iter(errata()))

    def printed(run: Run, tosses: int = 400) -> None:
        coin(run, tosses)
        run.refutes(key, "E x = 1").mean(run.signs(tosses), 1.0)

    lab(
        "zz-printed",
        room="nets",
        covers=["N-08"],
        title="Coins",
        full={"tosses": 900},
        errata=[key],
    )(printed)
    run = run_lab("zz-printed")
    assert run.problems == []
    assert len(run.errata) == 1
    run = run_lab("zz-printed", settings={"tosses": 4})
    assert run.problems == []
    assert run.errata == []
    assert "4 observations do not refute what is printed" in run.claims[-1].reason
