"""Line plots: what stands in the legend, which lines share a color, where the ticks are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from torchtheory.core.curves import plot_curves
from torchtheory.core.intervals import Interval
from torchtheory.core.record import Record


def drawn(
    x: Any, measured: Any, promised: Any = None, *, log: str = "", at: Any = None, **more: Any
) -> Any:
    ax = Figure().subplots()
    plot_curves(ax, x, measured, promised or {}, axes=("x", "y"), log=log, at=at or {}, **more)
    return ax


def legend(ax: Any) -> list[str]:
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_measured_then_promised_then_vertical_lines() -> None:
    ax = drawn([1, 2, 4], {"loss": [3, 2, 1]}, {"bound": 5.0}, at={"stopped": 2.0})
    assert legend(ax) == ["loss", "bound", "stopped"]
    loss, bound, stopped = ax.lines
    assert (loss.get_linestyle(), bound.get_linestyle()) == ("-", "--")
    assert bound.get_ydata().tolist() == [5, 5, 5]
    assert list(stopped.get_xdata()) == [2, 2]


def test_one_line_needs_no_legend() -> None:
    assert drawn([1, 2], {"loss": torch.tensor([1.0, 2.0])}).get_legend() is None


def test_a_promise_under_the_label_of_a_measurement_has_its_color() -> None:
    ax = drawn([1, 2], {"a": [1, 2], "b": [2, 3]}, {"b": [3, 4]})
    assert ax.lines[2].get_color() == ax.lines[1].get_color()
    assert legend(ax) == ["a", "b", "promised"]


def test_intervals_have_error_bars() -> None:
    interval = Interval(2.0, 1.0, 4.0, 0.99, 10, "by hand")
    ax = drawn([1, 2], {"mean": [interval, interval], "plain": [1, 1]})
    (bars,) = ax.collections
    assert [s.tolist() for s in bars.get_segments()] == [[[1, 1], [1, 4]], [[2, 1], [2, 4]]]
    assert legend(ax) == ["mean", "plain"]


@pytest.mark.parametrize(
    ("x", "ticks"),
    [
        ([16, 32, 64], [16, 32, 64]),
        ([289, 561, 833, 1105, 1377, 1649, 1921], [289, 833, 1377, 1921]),
    ],
)
def test_few_points_are_the_ticks_of_a_logarithmic_axis(x: list[int], ticks: list[int]) -> None:
    assert drawn(x, {"a": x}, log="xy").get_xticks().tolist() == ticks


def test_whole_numbers_have_whole_ticks() -> None:
    ticks = drawn(range(1, 6), {"a": [1] * 5}).get_xticks()
    assert np.array_equal(ticks, ticks.round())


def test_other_promises_look_different_from_those_of_the_measurements() -> None:
    ax = drawn([1, 2], {"a": [1, 2]}, {"a": [3, 4], "limit": 5})
    assert [line.get_linestyle() for line in ax.lines] == ["-", "--", "-.", "--"]
    assert legend(ax) == ["a", "limit", "promised"]


def test_an_end_of_the_vertical_axis_can_be_given() -> None:
    low, high = drawn([1, 2], {"a": [3, 4]}, ylim=(0, None)).get_ylim()
    assert low == 0
    assert high > 4


@pytest.mark.parametrize("beside", [False, True])
def test_the_legend_can_stand_beside_the_plot(beside: bool) -> None:
    ax = drawn([1, 2], {"a": [1, 2], "b": [2, 1]}, beside=beside)
    ax.figure.draw_without_rendering()
    assert bool(ax.get_legend().get_window_extent().x0 >= ax.get_window_extent().x1) == beside


def test_a_short_logarithmic_axis_has_plain_numbers() -> None:
    ax = drawn([1, 2], {"a": [2, 8]}, log="y")
    ax.figure.draw_without_rendering()
    shown = [text.get_text() for text in ax.get_yticklabels(which="both")]
    assert {"3", "4"} <= set(shown)


def test_the_record_keeps_the_figure() -> None:
    record = Record()
    record.curves("loss", [1, 2], {"loss": [2, 1]}, {"bound": 3}, axes=("step", "loss"), log="y")
    assert [figure.name for figure in record.figures] == ["loss"]
