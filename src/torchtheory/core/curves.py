"""The line plot of a measurement against what is promised; `Record.curves` records it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
import torch

from torchtheory.core.claim import Values
from torchtheory.core.intervals import Interval

# With more points than this the marks run into each other.
MOST_MARKS = 40


def plot_curves(
    ax: Any,
    x: Values,
    measured: Mapping[str, Values | Sequence[Interval]],
    promised: Mapping[str, Values],
    *,
    axes: tuple[str, str],
    log: str,
    at: Mapping[str, float],
    ylim: tuple[float | None, float | None] | None = None,
    beside: bool = False,
) -> None:
    """Draw on matplotlib's Axes; the arguments are those of `Record.curves`."""
    across = _numbers(x)
    marks = "o-" if across.size <= MOST_MARKS else "-"
    colors = {}
    for label, line in measured.items():
        heights, bars = _with_bars(line)
        (drawn,) = ax.plot(across, heights, marks, markersize=3.5, label=label)
        colors[label] = drawn.get_color()
        if bars is not None:
            ax.errorbar(across, heights, bars, fmt="none", ecolor=colors[label], elinewidth=0.9)
    dashes = cycle(("--", "-.", (0, (1, 1.2))))
    shared = colors.keys() & promised.keys()
    if shared:
        next(dashes)  # stands for all of the shared labels
    for label, limit in promised.items():
        heights = np.broadcast_to(_numbers(limit), across.shape)
        if label in colors:
            ax.plot(across, heights, "--", color=colors[label])
        else:
            ax.plot(across, heights, color="0.25", linestyle=next(dashes), label=label)
    if shared:
        ax.plot([], [], "--", color="0.25", label="promised")
    for k, (label, place) in enumerate(at.items(), len(measured)):
        ax.axvline(place, color=f"C{k}", linestyle=":", label=label)
    ax.set(xlabel=axes[0], ylabel=axes[1])
    if "x" in log:
        ax.set_xscale("log")
        ticks = _ticks(across)
        if ticks.size:
            ax.set_xticks(ticks, [f"{number:g}" for number in ticks])
            ax.minorticks_off()
    elif np.array_equal(across, across.round()):
        ax.xaxis.get_major_locator().set_params(integer=True)
    if "y" in log:
        ax.set_yscale("log")
    if ylim is not None:
        ax.set_ylim(*ylim)
    low, high = ax.get_ylim()
    if "y" in log and high < 12 * low:  # 2, 3, 4 and not 2 × 10⁰, 3 × 10⁰, 4 × 10⁰
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_formatter("{x:g}")
    if len(measured) + len(promised) + len(at) > 1:
        ax.legend(**({"loc": "center left", "bbox_to_anchor": (1.0, 0.5)} if beside else {}))


def _numbers(values: Values) -> np.ndarray[Any, Any]:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().double().numpy()
    return np.asarray(values, dtype=np.float64)


def _with_bars(line: Any) -> tuple[Any, Any]:
    """Ordinates, and how far intervals reach below and above them, as matplotlib takes it."""
    if isinstance(line, Sequence) and line and isinstance(line[0], Interval):
        low, middle, high = np.array([(i.low, i.estimate, i.high) for i in line]).T
        return middle, [middle - low, high - middle]
    return _numbers(line), None


def _ticks(across: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The points, or every second or third, where they can mark a logarithmic axis, or nothing.

    Over less than three powers of ten the points themselves say more than matplotlib's ticks.
    """
    if 2 <= across.size <= 8 and across.min() > 0 and across.max() < 1000 * across.min():
        places = np.unique(across)
        for every in (1, 2, 3):
            gaps = np.diff(np.log(places[::every]))
            if gaps.size and gaps.min() > gaps.sum() / 12:
                return places[::every]
    return np.empty(0)
