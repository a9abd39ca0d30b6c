"""Times, deadlines, and audits that keep them."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
import torch
from torch import nn

from torchtheory.audit.engine import finding as registry
from torchtheory.audit.engine.audit import audit
from torchtheory.audit.engine.finding import FindingRecord, all_findings, examine, finding
from torchtheory.core.budget import check_time, seconds_of, stopped_after, time_left, within
from torchtheory.core.claim import Verdict
from torchtheory.core.errors import InvalidInput, OutOfTime
from torchtheory.models.problem import Problem


@pytest.mark.parametrize("bad", ["", "soon", "-3s", 0, True, "5 days", float("nan")])
def test_bad_times_are_refused(bad: Any) -> None:
    with pytest.raises(InvalidInput, match="a time must be positive"):
        seconds_of(bad)


def test_blocks_nest_and_the_earliest_end_counts() -> None:
    check_time()
    with within(100):
        with within(1000):
            assert time_left() < 101
        with within(-1), pytest.raises(OutOfTime):
            check_time()
        check_time()
    assert time_left() == math.inf


@pytest.fixture(autouse=True)
def _own_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_FINDINGS", dict(all_findings()))


class Slow(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.05)
        return super().forward(x)


def _data() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(30, 3, generator=torch.Generator().manual_seed(0)), torch.arange(30) % 2


def test_what_was_recorded_before_the_end_of_the_time_is_kept() -> None:
    @finding("endless", area="capacity", title="Endless", cost="forward")
    def endless(problem: Problem, record: FindingRecord) -> None:
        record.headline("It began.")
        while True:
            problem.outputs(problem.train.first(5))

    problem = Problem(Slow(3, 2), _data())
    made = examine(all_findings()["endless"], problem, confidence=0.95, seed=0, seconds=0.2)
    assert not made.complete
    assert made.headlines == ["It began."]
    assert "for want of time" in made.claims[0].reason
    assert made.seconds < 1


def test_an_audit_keeps_its_time_and_says_what_it_left_out() -> None:
    audit(nn.Linear(3, 2), _data(), only=["risk"])  # what is imported once is not counted
    start = time.perf_counter()
    report = audit(Slow(3, 2), _data(), budget=3)
    assert time.perf_counter() - start < 12  # a step of a finding may end after its time
    assert [f.name for f in report.findings]
    assert report.facts["time budget"] == "3 s"


def test_an_interrupted_audit_returns_what_it_has() -> None:
    @finding("interrupting", area="capacity", title="Stops", cost="parameters")
    def interrupting(problem: Problem, record: FindingRecord) -> None:
        raise KeyboardInterrupt

    report = audit(nn.Linear(3, 2), _data(), only=["layers", "interrupting", "risk"])
    assert report.interrupted
    assert [f.name for f in report.findings] == ["risk", "layers"]
    assert report.facts["interrupted"] == "before interrupting"


def test_code_that_never_asks_for_the_time_is_stopped_and_what_it_imports_is_whole() -> None:
    start = time.perf_counter()

    def endless() -> None:
        while True:
            math.sqrt(2.0)

    with pytest.raises(OutOfTime), stopped_after(0.1):
        endless()
    assert time.perf_counter() - start < 5
    with stopped_after(0.05):
        pass
    for _ in range(20):  # nothing arrives after its block
        time.sleep(0.01)


def test_a_deadline_arrives_once_wherever_the_block_is() -> None:
    arrived = 0
    for k in range(60):
        try:
            with stopped_after(0.002):
                begin = time.perf_counter()
                while time.perf_counter() < begin + 0.002 + 1e-5 * (k - 30):
                    pass
        except OutOfTime:
            arrived += 1
    begin = time.perf_counter()
    while time.perf_counter() < begin + 1.2:  # longer than until it is called out again
        pass
    assert 0 <= arrived <= 60


def test_running_out_of_time_is_never_taken_for_an_error() -> None:
    assert not issubclass(OutOfTime, Exception)

    @finding("swallowing", area="capacity", title="Swallows", cost="forward")
    def swallowing(problem: Problem, record: FindingRecord) -> None:
        try:
            while True:
                problem.outputs(problem.train.first(5))
        except Exception:
            record.defect("Something inside the model cuts the graph.")

    made = examine(
        all_findings()["swallowing"], Problem(Slow(3, 2), _data()),
        confidence=0.95, seed=0, seconds=0.2,
    )  # fmt: skip
    assert made.assessments == []
    assert [c.verdict for c in made.claims] == [Verdict.NOT_DONE]
