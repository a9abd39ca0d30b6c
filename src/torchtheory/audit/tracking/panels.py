"""One panel of the figure of a tracked training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torchtheory.audit.tracking.quantities import Reading, TrackedQuantity
from torchtheory.core.figure import COLORS, label_text

#: Values that span more than this factor are drawn on a logarithmic axis, if the panel may choose.
WIDE = 30.0
#: A logarithmic axis needs at least this factor to have ticks worth reading.
WIDE_ENOUGH = 10.0
_LONGEST_NAME = 22


def draw_panel(
    panel: Any,
    quantity: TrackedQuantity,
    series: Mapping[str, Mapping[int, Reading]],
    unit: str,
    last: int,
) -> None:
    """Draw the series of one quantity on matplotlib's `panel`.

    Error bars are bands, limits dashed lines. More series than there are colors (the layers of a
    deep network) are shaded from the first to the last, and only some are named.
    """
    measured = {k: s for k, s in series.items() if k not in quantity.limits}
    logarithmic = _is_logarithmic(quantity, series)
    shades = _shades(measured)
    named = _named(list(measured))
    finest = _smallest(series)
    for label, points in measured.items():
        name = _short(label) if label in named and len(series) > 1 else None
        _line(panel, points, shades[label], name, finest if logarithmic else None)
    for label in quantity.limits:
        if label in series:
            steps = [k for k, r in series[label].items() if math.isfinite(r.value)]
            values = [series[label][k].value for k in steps]
            panel.plot(steps, values, "--", color="#555555", linewidth=1.2, label=label)
    if logarithmic:
        panel.set_yscale("log")
    panel.set_title(quantity.title)
    panel.set_xlabel(unit)
    panel.set_xlim(-0.02 * max(1, last), 1.02 * max(1, last))  # the same in all panels
    if len(series) > 1:
        panel.legend(
            fontsize=7,
            handlelength=1.4,
            labelspacing=0.25,
            frameon=True,
            framealpha=0.75,
            edgecolor="none",
            ncols=2 if len(named) > 3 else 1,
        )


def _line(
    panel: Any, points: Mapping[int, Reading], color: Any, name: str | None, finest: float | None
) -> None:
    """A line with its band; on a logarithmic axis what is not positive is left out."""
    infinite = {k: r.low for k, r in points.items() if r.value == math.inf and r.low is not None}
    if infinite:  # known only to be at least this
        panel.plot(list(infinite), list(infinite.values()), "^", color=color, markersize=3)
    kept = {
        k: r
        for k, r in points.items()
        if math.isfinite(r.value) and (finest is None or r.value > 0)
    }
    if not kept:
        return
    marker = "o" if len(kept) <= 25 else None
    panel.plot(
        list(points),
        [r.value if k in kept else math.nan for k, r in points.items()],  # a gap where it is not
        color=color,
        label=name,
        marker=marker,
        markersize=2.5,
        linewidth=1.3,
    )
    floor = -math.inf if finest is None else finest / 3
    bands = {k: _band(r, floor) if k in kept else _NO_BAND for k, r in points.items()}
    if any(band is not _NO_BAND for band in bands.values()):
        lows, highs = zip(*bands.values(), strict=True)
        panel.fill_between(list(bands), lows, highs, color=color, alpha=0.18, linewidth=0)


_NO_BAND = (math.nan, math.nan)


def _band(reading: Reading, floor: float) -> tuple[float, float]:
    if reading.low is None or reading.high is None or not math.isfinite(reading.high):
        return _NO_BAND
    return max(reading.low, floor), reading.high


def _is_logarithmic(quantity: TrackedQuantity, series: Mapping[str, Mapping[int, Reading]]) -> bool:
    values = [r.value for s in series.values() for r in s.values() if math.isfinite(r.value)]
    positive = [v for v in values if v > 0]
    if quantity.scale == "linear" or not positive or min(values) < 0:
        return False
    span = max(positive) / min(positive)
    return span > (WIDE_ENOUGH if quantity.scale == "log" else WIDE)


def _smallest(series: Mapping[str, Mapping[int, Reading]]) -> float:
    values = (r.value for s in series.values() for r in s.values())
    return min((v for v in values if math.isfinite(v) and v > 0), default=1.0)


def _shades(series: Mapping[str, Any]) -> dict[str, Any]:
    if len(series) <= len(COLORS) - 1:
        return dict(zip(series, COLORS, strict=False))
    from matplotlib import colormaps

    colors = colormaps["viridis"].resampled(len(series))
    shades = {label: colors(i) for i, label in enumerate(series)}
    return shades | ({"all": "#000000"} if "all" in shades else {})


def _named(labels: list[str]) -> set[str]:
    """All of a few; of many the first, the middle, the last, and the one over all."""
    if len(labels) <= len(COLORS) - 1:
        return set(labels)
    layers = [label for label in labels if label != "all"]
    return {"all", layers[0], layers[len(layers) // 2], layers[-1]}


def _short(label: str) -> str:
    short = label if len(label) <= _LONGEST_NAME else "…" + label[1 - _LONGEST_NAME :]
    return label_text(short)
