"""When something is measured: on time, within its share of the time, first and last."""

from __future__ import annotations

from typing import Any

import pytest
import torch

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
    assert found.overhead == pytest.approx(found.seconds / found.training_seconds)
    assert not any("left out" in r for r in found.remarks)


def test_the_first_quantity_is_measured_first_and_last_whatever_it_costs(
    clock: _Time, blobs: Any, small_net: Any
) -> None:
    @tracked("dear")
    def dear(at: Snapshot) -> float:
        clock.now += 5.0
        return float(at.step)

    tracker = track(small_net(), blobs(), every=1, overhead=1e-6, quantities=["dear", "loss"])
    for _ in range(7):
        clock.now += 0.1
        tracker.step()
    found = tracker.result()
    assert found.values("dear") == ([0, 7], [0.0, 7.0])
    assert found.overhead > 1e-6
    assert tracker.result().steps == found.steps  # asked again, nothing is measured again


@pytest.mark.parametrize("step_seconds", [0.002, 0.005, 0.05])
def test_four_hundred_steps_keep_the_promised_tenth_and_are_measured_often(
    clock: _Time, step_seconds: float, blobs: Any, small_net: Any
) -> None:
    """Costs of a small network, the first call of each eight times that: 0.8 s to 20 s long."""
    costs = {"loss-like": 0.001, "gradient-like": 0.003, "kernel-like": 0.04, "sharp-like": 0.06}
    seen: dict[str, int] = {}

    def register(name: str, cost: float) -> None:
        def measure(at: Snapshot) -> float:
            seen[name] = seen.get(name, 0) + 1
            clock.now += cost * (8 if seen[name] == 1 else 1)
            return float(at.step)

        tracked(name, passes=1000 * cost)(measure)

    for name, cost in costs.items():
        register(name, cost)
    net = small_net()
    tracker = track(net, blobs(), every=20, overhead=0.1, quantities=list(costs))
    for _ in range(400):
        clock.now += step_seconds
        tracker.step()
    found = tracker.result()
    # what a first call costs nobody knows beforehand; nothing else follows one that was too much
    allowed = max(tracking_clock.GRACE, 0.1 * found.training_seconds)
    assert found.seconds <= allowed + 8 * max(costs.values())
    assert len(found.steps) > 2
    assert found.steps[0] == 0
    assert found.steps[-1] == 400
    for name in costs:
        if found.series.get(name):
            steps, values = found.values(name)
            assert steps == [int(v) for v in values] == sorted(steps)
    if step_seconds == 0.05:  # 20 s: there is time for everything, several times
        assert min(len(found.values(name)[0]) for name in costs) >= 4
        assert found.overhead <= 0.1


def test_the_start_is_measured_later_as_it_was(clock: _Time, blobs: Any, small_net: Any) -> None:
    @tracked("largest-weight", passes=1)
    def largest_weight(at: Snapshot) -> float:
        clock.now += 0.5
        return max(float(p.abs().max()) for p in at.parameters.values())

    net = small_net()
    begun = max(float(p.detach().abs().max()) for p in net.parameters())
    names = ["loss", "largest-weight"]
    tracker = track(net, blobs(), every=1, overhead=0.1, quantities=names)
    for _ in range(100):
        clock.now += 0.2
        with torch.no_grad():
            for p in net.parameters():
                p.mul_(1.01)
        tracker.step()
    steps, values = tracker.result().values("largest-weight")
    assert steps[0] == 0
    assert values[0] == pytest.approx(begun)
    assert values[-1] == pytest.approx(begun * 1.01 ** steps[-1], rel=1e-4)


def test_what_there_was_no_time_for_is_said(clock: _Time, blobs: Any, small_net: Any) -> None:
    @tracked("dear", passes=1e9)
    def dear(at: Snapshot) -> float:
        raise AssertionError("not measured")

    @tracked("cheap", passes=1)
    def cheap(at: Snapshot) -> float:
        clock.now += 0.001
        return 0.0

    tracker = track(small_net(), blobs(), every=1, overhead=0.1, quantities=["cheap", "dear"])
    for _ in range(20):
        clock.now += 0.01
        tracker.step()
    found = tracker.result()
    assert "no time for it within 10% of the training time" in found.reasons["dear"]
    assert not found["dear"]
    assert tracker.result().taken == 20


def test_a_real_training_keeps_near_its_share(small_net: Any, descend: Any) -> None:
    """On the clock of a machine that others use, so only roughly."""
    found = descend(small_net(), 300, overhead=0.1)
    assert len(found.steps) > 2
    # one first call of each quantity may take longer than planned
    assert found.seconds < 0.1 * found.training_seconds + 3.0


def test_drift_is_from_the_start_whenever_it_is_measured(blobs: Any, small_net: Any) -> None:
    nets = [small_net(), small_net()]
    results = []
    for net, overhead in zip(nets, (None, 1e-9), strict=True):
        tracker = track(net, blobs(), every=1, overhead=overhead, quantities=["kernel-drift"])
        with torch.no_grad():
            for p in net.parameters():
                p.mul_(1.5)
        tracker.step()
        results.append(tracker.result().values("kernel-drift"))
    assert results[0][0][-1] == results[1][0][-1] == 1
    assert results[0][1][-1] == pytest.approx(results[1][1][-1], rel=1e-5)
    assert results[0][1][-1] > 0.1


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


def test_cheap_quantities_are_known_at_every_measured_step(
    clock: _Time, blobs: Any, small_net: Any
) -> None:
    def costing(name: str, seconds: float) -> None:
        @tracked(name, passes=500 * seconds)
        def quantity(at: Snapshot) -> float:
            clock.now += seconds
            return 0.0

    for name, seconds in (("cheap", 0.01), ("cheaper", 0.002), ("dear", 1.0), ("dearer", 3.0)):
        costing(name, seconds)
    asked = ["dear", "cheap", "cheaper", "dearer"]
    tracker = track(small_net(), blobs(), every=1, overhead=0.1, quantities=asked)
    for _ in range(3000):
        clock.now += 0.1
        tracker.step()
    found = tracker.result()
    assert found.overhead <= 0.1
    steps = {name: set(map(int, found.values(name)[0])) for name in asked}
    assert steps["cheaper"] >= steps["cheap"] >= steps["dear"] >= {0, 3000}
    assert len(steps["dear"]) > len(steps["dearer"]) > 3
    assert len(steps["cheap"]) > 100


def test_time_before_the_training_begins_is_none_of_its_share(
    clock: _Time, blobs: Any, small_net: Any
) -> None:
    @tracked("dear")
    def dear(at: Snapshot) -> float:
        clock.now += 0.4
        return 0.0

    def overhead(begins: bool) -> float:
        tracker = track(small_net(), blobs(), every=1, overhead=0.1, quantities=["dear"])
        clock.now += 60.0  # a trainer that sets itself up
        if begins:
            tracker.begin()
        start, taken = clock.now, 0.0
        for _ in range(200):
            clock.now += 0.1
            taken += 0.1
            tracker.step()
        tracker.measure_last()
        tracker.begin()  # too late to say so
        return (clock.now - start - taken) / taken

    assert overhead(begins=True) <= 0.1
    assert overhead(begins=False) > 0.2
