"""Labs at many seeds: the rate a confidence states is accepted, luck is not."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from scipy import stats

from torchtheory.core.errors import InvalidInput
from torchtheory.core.intervals import Interval
from torchtheory.labs.engine import registry as labs_module
from torchtheory.labs.engine.registry import Lab, find_lab, lab
from torchtheory.labs.engine.run import Run
from torchtheory.labs.engine.seeds import SeedReport, allowed_violations, print_seeds, run_seeds
from torchtheory.labs.engine.store import RunStore


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labs_module, "_LABS", dict(labs_module._LABS))


def register(name: str, function: Callable[..., object]) -> Lab:
    lab(name, room="nets", covers=["N-08"], title="A test")(function)
    return find_lab(name)


def around(value: float, confidence: float = 0.99) -> Interval:
    return Interval(value, value - 0.1, value + 0.1, confidence, 50, "by construction")


def report_of(tmp_path: Path, function: Callable[..., object], seeds: int) -> SeedReport:
    return run_seeds([register("zz-seeds", function)], RunStore(tmp_path), seeds)


@pytest.mark.parametrize("confidence", [0.9, 0.99, 0.999])
@pytest.mark.parametrize("seeds", [1, 5, 20, 100])
def test_allowed_is_the_largest_number_that_is_no_surprise(seeds: int, confidence: float) -> None:
    allowed = allowed_violations(seeds, confidence)
    law = stats.binom(seeds, 1 - confidence)
    assert law.sf(allowed - 1) >= 0.001
    assert allowed == seeds or law.sf(allowed) < 0.001


def test_a_claim_that_fails_at_the_rate_of_its_confidence_is_accepted(tmp_path: Path) -> None:
    def rare(run: Run) -> None:
        says = run.states("N-08", "x = 0")
        says.mean(around(5.0 if run.seed == 7 else 0.0), 0.0, against=(1.0,))
        says.fails("moved", around(1.0))

    report = report_of(tmp_path, rare, 20)
    (rate,) = report.rates
    assert (rate.violated, rate.allowed, rate.confidence) == ([7], 2, 0.995)
    assert report.passed
    assert not rate.steady


def test_a_claim_that_fails_at_half_of_the_seeds_is_not(tmp_path: Path) -> None:
    def often(run: Run) -> None:
        says = run.states("N-08", "x = 0")
        says.mean(around(5.0 * (run.seed % 2)), 0.0, against=(1.0,))
        says.fails("moved", around(1.0))

    report = report_of(tmp_path, often, 10)
    assert report.rates[0].violated == [1, 3, 5, 7, 9]
    assert not report.passed


def test_without_statistics_one_seed_is_too_many(tmp_path: Path) -> None:
    def exact(run: Run) -> None:
        says = run.states("N-08", "x <= 1")
        says.at_most(2.0 if run.seed == 3 else 0.5 + run.seed / 20, 1.0)
        says.fails("y", 2.0)

    report = report_of(tmp_path, exact, 5)
    (rate,) = report.rates
    assert (rate.violated, rate.allowed, report.passed) == ([3], 0, False)
    assert (rate.smallest_slack, rate.largest_slack) == (1.0, 2.0)


def test_controls_and_alternatives_must_fail_at_every_seed(tmp_path: Path) -> None:
    def weak(run: Run) -> None:
        says = run.states("N-08", "x = 0")
        says.mean(around(0.0), 0.0, against=(0.05,) if run.seed == 1 else (1.0,))
        says.fails("moved", around(0.0 if run.seed == 2 else 1.0))

    report = report_of(tmp_path, weak, 4)
    (rate,) = report.rates
    assert (rate.violated, rate.accepted, rate.control_held) == ([], [1], [2])
    assert not report.passed


def test_claims_are_known_by_their_place(tmp_path: Path) -> None:
    def several(run: Run) -> None:
        for _ in range(3 if run.seed == 0 else 2):
            run.states("N-08", "x <= 1").at_most(0.5, 1.0)
        says = run.states("N-06", "y <= 1")
        says.at_most(0.5, 1.0)
        says.fails("y", 2.0)

    report = report_of(tmp_path, several, 3)
    made = {(r.id, r.place): len(r.seeds) for r in report.rates}
    assert made == {("N-08", 0): 3, ("N-08", 1): 3, ("N-08", 2): 1, ("N-06", 0): 3}


def test_what_raises_or_is_not_done_fails_too(tmp_path: Path) -> None:
    def raises(run: Run) -> None:
        says = run.states("N-08" if run.seed != 1 else "N-06", "x <= 1")
        says.at_most(0.5, 1.0)
        says.fails("y", 2.0)
        if run.seed == 2:
            raise RuntimeError("two")

    report = report_of(tmp_path, raises, 3)
    assert [(f.seed, f.sentence) for f in report.failures] == [(2, "RuntimeError: two")]
    assert report.problems == {("zz-seeds", "covers N-08, but no claim is about it"): [1]}
    assert not report.passed


def test_finished_seeds_are_read_back_and_everything_is_shown(tmp_path: Path) -> None:
    ran = []

    def counted(run: Run) -> None:
        ran.append(run.seed)
        says = run.states("N-08", "x <= 1")
        says.at_most(0.5, 1.0)
        says.fails("y", 2.0)

    made = register("zz-counted", counted)
    run_seeds([made], RunStore(tmp_path), 2)
    report = run_seeds([made], RunStore(tmp_path), 3)
    assert ran == [0, 1, 2]
    assert json.loads(json.dumps(report.to_json(), allow_nan=False))["passed"] is True
    short, full = io.StringIO(), io.StringIO()
    print_seeds(report, Console(file=short, width=120))
    print_seeds(report, Console(file=full, width=120), verbose=True)
    assert short.getvalue().strip().startswith("1 claims at 3 seeds: 0 fail")
    assert "zz-counted" in full.getvalue()


def test_bad_input(tmp_path: Path) -> None:
    for seeds in (0, 10**40):
        with pytest.raises(InvalidInput, match="seeds must be a whole number from 1 to 1000000"):
            run_seeds([], RunStore(tmp_path), seeds)
    with pytest.raises(InvalidInput, match="confidence must"):
        allowed_violations(3, 1.0)
