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
from torchtheory.core.budget import check_time, seconds_of, time_left, within
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
    @finding("endless", section="Capacity", title="Endless", cost="forward")
    def endless(problem: Problem, record: FindingRecord) -> None:
        record.headline("It began.")
        while True:
            problem.outputs(problem.train.first(5))

    problem = Problem(Slow(3, 2), _data())
    made = examine(all_findings()["endless"], problem, confidence=0.95, seed=0, seconds=0.2)
    assert not made.complete
    assert made.headlines == [("It began.", 1)]
    assert "for want of time" in made.claims[0].reason
    assert made.seconds < 1


def test_an_audit_keeps_its_time_and_says_what_it_left_out() -> None:
    start = time.perf_counter()
    report = audit(Slow(3, 2), _data(), budget=3)
    assert time.perf_counter() - start < 12  # a step of a finding may end after its time
    assert [f.name for f in report.findings]
    assert report.facts["time budget"] == "3 s"


def test_an_interrupted_audit_returns_what_it_has() -> None:
    @finding("interrupting", section="Capacity", title="Stops", cost="parameters")
    def interrupting(problem: Problem, record: FindingRecord) -> None:
        raise KeyboardInterrupt

    report = audit(nn.Linear(3, 2), _data(), only=["layers", "interrupting", "risk"])
    assert report.interrupted
    assert [f.name for f in report.findings] == ["layers"]
    assert report.facts["interrupted"] == "before interrupting, risk"
