"""When something is measured: on time, within its share of the time, first and last."""

from __future__ import annotations

from typing import Any

import pytest

from torchtheory.audit.tracking import clock as tracking_clock
from torchtheory.audit.tracking.quantities import Snapshot, tracked
from torchtheory.audit.tracking.tracker import track


class _Time:
    """A clock that tests turn by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Time:
    made = _Time()
    monkeypatch.setattr(tracking_clock, "time", made)
    return made


def test_overhead_stays_below_its_bound_and_nothing_starves(
    clock: _Time, blobs: Any, small_net: Any
) -> None:
    @tracked("cheap")
    def cheap(at: Snapshot) -> float:
        clock.now += 0.01
        return 0.0

    @tracked("dear")
    def dear(at: Snapshot) -> float:
        clock.now += 2.0
        return 0.0

    tracker = track(small_net(), blobs(), every=1, overhead=0.1, quantities=["dear", "cheap"])
    for _ in range(2000):
        clock.now += 0.1
        tracker.step()
    found = tracker.result()
    assert found.training_seconds == pytest.approx(200)
    assert 0.05 < found.overhead <= 0.1
    dear_steps, cheap_steps = found.values("dear")[0], found.values("cheap")[0]
    assert dear_steps[0] == cheap_steps[0] == 0
    assert dear_steps[-1] == cheap_steps[-1] == 2000
    assert 4 <= len(dear_steps) <= 11
    assert len(cheap_steps) > 100
    assert any("overhead below 10%" in r for r in found.remarks)


def test_without_a_bound_every_due_step_is_measured_and_the_last_in_any_case(
    small_net: Any, descend: Any
) -> None:
    found = descend(small_net(), 12, quantities=["loss"])
    assert found.steps == (0, 5, 10, 12)
    assert found.taken == 12
    assert 0 < found.overhead < 1
    assert not any("left out" in r for r in found.remarks)


def test_a_short_training_has_its_first_and_last_measurement_whatever_they_cost(
    small_net: Any, descend: Any
) -> None:
    found = descend(small_net(), 7, overhead=1e-6)
    assert found.steps == (0, 7)
    assert found.overhead > 1e-6


def test_result_may_be_asked_for_along_the_way(blobs: Any, small_net: Any) -> None:
    net = small_net()
    tracker = track(net, blobs(), every=10, overhead=None, quantities=["loss"])
    tracker.step()
    assert tracker.result().steps == (0, 1)
    tracker.step()
    again = tracker.result()
    assert again.steps == tracker.result().steps == (0, 1, 2)


def test_an_exception_of_the_training_is_not_swallowed_and_costs_no_measurement(
    blobs: Any, small_net: Any
) -> None:
    tracker = track(small_net(), blobs(), quantities=["loss"])
    tracker.step()
    with pytest.raises(ZeroDivisionError), tracker:
        _ = 1 / 0
    assert tracker._measured == [0]
