from __future__ import annotations

import threading

import pytest
import torch

from torchtheory.core import threads
from torchtheory.core.threads import SideBySide, UsefulThreads
from torchtheory.models.model import process_kept


def with_speeds(monkeypatch: pytest.MonkeyPatch, seconds: dict[int, float]) -> list[int]:
    tried: list[int] = []

    def trial(count: int) -> float:
        tried.append(count)
        return seconds[count]

    monkeypatch.setattr(threads, "_trial", trial)
    return tried


@pytest.mark.parametrize(
    ("seconds", "fastest"),
    [
        ({4: 1.0, 2: 2.0}, 4),  # an idle machine
        ({4: 3.0, 2: 1.0, 1: 2.0}, 2),
        ({4: 3.0, 2: 2.0, 1: 1.0}, 1),  # a busy one
    ],
)
def test_the_fastest_number_of_threads_is_chosen(
    seconds: dict[int, float], fastest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = torch.get_num_threads()
    tried = with_speeds(monkeypatch, seconds)
    with process_kept():
        chosen = UsefulThreads()
        chosen.most = 4
        assert chosen.choose() == fastest == torch.get_num_threads()
        times = len(tried)
        assert chosen.choose() == fastest  # a moment later nothing is tried again
        assert len(tried) == times
        monkeypatch.setattr(chosen, "_until", 0.0)
        seconds |= {4: 0.1, 2: 0.2}
        assert chosen.choose() == 4  # the machine is free again
    assert torch.get_num_threads() == before


def test_one_thread_needs_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = with_speeds(monkeypatch, {})
    with process_kept():
        torch.set_num_threads(1)
        assert UsefulThreads().choose() == 1
    assert tried == []


def test_a_share_that_fails_stops_those_before_it() -> None:
    def waits(stop: threading.Event) -> bool:
        return stop.wait(20)

    def fails(stop: threading.Event) -> bool:
        raise ZeroDivisionError

    seen: list[bool] = []
    before = torch.get_num_threads()
    with pytest.raises(ZeroDivisionError):
        SideBySide()([lambda stop: seen.append(waits(stop)), waits, fails])
    assert seen == [True]
    assert torch.get_num_threads() == before


def test_there_are_threads_for_all_shares_also_when_they_grow_more() -> None:
    side_by_side = SideBySide()
    for count in (2, 4, 3):
        together = threading.Barrier(count)  # nobody passes before all are there
        places = side_by_side([lambda stop: together.wait(20)] * count)  # noqa: B023
        assert sorted(places) == list(range(count))
