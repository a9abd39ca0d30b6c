"""What a tracker found: series by quantity, as numbers, as a figure, and where others read them."""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchtheory.audit.tracking.panels import draw_panel
from torchtheory.audit.tracking.quantities import Reading, TrackedQuantity
from torchtheory.core.claim import json_number
from torchtheory.core.errors import (
    InvalidInput,
    MissingPackage,
    UnknownName,
)
from torchtheory.core.figure import Figure, draw
from torchtheory.core.marks import record_text
from torchtheory.core.outputs import refuse_directory, write_outputs
from torchtheory.core.record import Cell, Table

#: Readings of one name by the step they were taken at.
Series = Mapping[int, Reading]

_COLUMNS = 3
_ROWS_OF_A_CELL = 40


@dataclass(frozen=True, slots=True)
class Tracking:
    """The course of a training, in the quantities that were tracked.

    Attributes:
        title: the model's name.
        unit: what a step is (`step`, or `epoch`).
        facts: what was tracked and how, in words.
        quantities: what was asked for, in order.
        series: readings by quantity, by name, by step.
        reasons: why a quantity was not measured, or not always.
        remarks: what else the reader should know.
        steps: the steps at which something was measured.
        taken: how many steps the training took.
        seconds: time spent measuring.
        training_seconds: time spent between measurements.
        stopped: why measuring ended before training did; empty if it did not.
    """

    title: str
    unit: str
    facts: Mapping[str, str]
    quantities: tuple[TrackedQuantity, ...]
    series: Mapping[str, Mapping[str, Series]]
    reasons: Mapping[str, str]
    remarks: tuple[str, ...]
    steps: tuple[int, ...]
    taken: int
    seconds: float
    training_seconds: float
    stopped: str = ""

    def __getitem__(self, name: str) -> Mapping[str, Series]:
        """The readings of a quantity, by name and step."""
        if name not in self.series:
            raise UnknownName("tracked quantity", name, self.series)
        return self.series[name]

    def values(self, name: str, label: str | None = None) -> tuple[list[int], list[float]]:
        """Steps and values of one series; the first of a quantity unless told which."""
        found = self[name]
        if not found:
            raise InvalidInput(f"{name} was not measured: {self.reasons.get(name, 'no reading')}")
        label = next(iter(found)) if label is None else label
        if label not in found:
            raise UnknownName(f"series of {name}", label, found)
        return list(found[label]), [reading.value for reading in found[label].values()]

    @property
    def overhead(self) -> float:
        """Time that went into measuring, over the time that went into training."""
        return self.seconds / self.training_seconds if self.training_seconds > 0 else math.inf

    @property
    def summary(self) -> list[str]:
        """The result in a few plain sentences."""
        found = [
            sentence
            for name, say in _SENTENCES.items()
            if self.series.get(name) and (sentence := say(self.series[name]))
        ]
        found.append(
            f"Measured {_times(len(self.steps))} in {self.taken:,} {self.unit}s; measuring took "
            f"{self.seconds:.3g} s beside {self.training_seconds:.3g} s of training"
            + (f" ({self.overhead:.1%})." if math.isfinite(self.overhead) else ".")
        )
        if self.stopped:
            found.append(self.stopped)
        return found

    def table(self) -> Table:
        """All values: a row for each measured step, a column for each series."""
        columns = [(q, label) for q, by_label in self.series.items() for label in by_label]
        rows = []
        for step in self.steps:
            readings = [self.series[q][label].get(step) for q, label in columns]
            rows.append((step, *(None if r is None else r.value for r in readings)))
        names = [q if q == label else f"{q}: {label}" for q, label in columns]
        return Table("tracking", (self.unit, *names), tuple(rows), self._caption())

    def plot(self) -> Figure:
        """The figure: one panel for each quantity that was measured."""
        shown = [
            q for q in self.quantities if any(_drawable(s) for s in self.series[q.name].values())
        ]
        if not shown:
            raise InvalidInput("there is nothing to draw: no quantity could be measured")
        columns = min(_COLUMNS, len(shown))
        rows = math.ceil(len(shown) / columns)

        def plot(axes: Any) -> None:
            panels = [axes] if len(shown) == 1 else list(axes.flat)
            for panel, quantity in zip(panels, shown, strict=False):
                draw_panel(panel, quantity, self.series[quantity.name], self.unit, self.taken)
            for panel in panels[len(shown) :]:
                panel.set_visible(False)

        size = (4.2 * columns, 2.9 * rows)
        return draw("tracking", plot, caption=self._caption(), grid=(rows, columns), size=size)

    def to_json(self) -> dict[str, Any]:
        """Everything as plain data."""
        return {
            "title": self.title,
            "unit": self.unit,
            "facts": dict(self.facts),
            "summary": self.summary,
            "remarks": list(self.remarks),
            "steps": list(self.steps),
            "taken": self.taken,
            "seconds": round(self.seconds, 4),
            "training_seconds": round(self.training_seconds, 4),
            "stopped": self.stopped,
            "quantities": [
                {
                    "name": q.name,
                    "title": q.title,
                    "limits": list(q.limits),
                    "reason": self.reasons.get(q.name, ""),
                    "series": {k: _columns(s) for k, s in self.series[q.name].items()},
                }
                for q in self.quantities
            ],
        }

    def save(self, directory: str | Path) -> Path:
        """Write `tracking.json` and the figure `tracking.png`; returns the directory.

        It is made if needed. The two belong together at any time, other files are left alone.
        """
        contents: dict[str, str | bytes] = {}
        contents["tracking.json"] = record_text("tracking", self.to_json())
        if any(self.series.values()):
            contents["tracking.png"] = self.plot().png
        return write_outputs(directory, contents)

    def to_tensorboard(self, directory: str | Path) -> Path:
        """Write every series as scalars TensorBoard shows; error bars are left out.

        Raises:
            MissingPackage: if the package `tensorboard` is not installed.
        """
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingPackage(
                "TensorBoard is not installed (pip install tensorboard); save() writes the same "
                "numbers as JSON"
            ) from error
        target = Path(directory)
        refuse_directory(target)
        writer: Any = SummaryWriter(str(target))  # type: ignore[no-untyped-call,unused-ignore]
        try:
            for name, by_label in self.series.items():
                for label, series in by_label.items():
                    for step, reading in series.items():
                        writer.add_scalar(f"{name}/{label}", reading.value, step)
        finally:
            writer.close()
        return target

    def __str__(self) -> str:
        why = [f"{name}: {reason}" for name, reason in self.reasons.items()]
        return "\n".join([*self.summary, *self.remarks, *why])

    def _caption(self) -> str:
        probe = self.facts.get("probe", "")
        return f"Measured on {probe}, in evaluation mode." if probe else ""

    def _repr_html_(self) -> str:
        parts = [f"<h3>{html.escape(self.title)}</h3>"]
        why = [f"{name}: {reason}" for name, reason in self.reasons.items()]
        said = [f"<li>{html.escape(s)}</li>" for s in (*self.summary, *self.remarks, *why)]
        parts.append(f"<ul>{''.join(said)}</ul>")
        if any(self.series.values()):
            figure = self.plot()
            address = base64.b64encode(figure.png).decode()
            caption = html.escape(figure.caption)
            parts.append(
                f'<img alt="{caption}" style="max-width:100%" '
                f'src="data:image/png;base64,{address}"><p>{caption}</p>'
            )
        parts.append(_html_table(self.table()))
        return "\n".join(parts)


def _columns(series: Series) -> dict[str, list[Any]]:
    return {
        "steps": list(series),
        "values": [json_number(r.value) for r in series.values()],
        "low": [json_number(r.low) for r in series.values()],
        "high": [json_number(r.high) for r in series.values()],
    }


def _drawable(series: Series) -> bool:
    return any(math.isfinite(reading.value) for reading in series.values())


def _cell_text(cell: Cell) -> str:
    if cell is None:
        return ""
    return f"{cell:.4g}" if isinstance(cell, float) else html.escape(str(cell))


def _html_table(table: Table) -> str:
    head = "".join(f"<th>{html.escape(c)}</th>" for c in table.columns)
    body = [
        "<tr>" + "".join(f"<td>{_cell_text(cell)}</td>" for cell in row) + "</tr>"
        for row in table.rows[:_ROWS_OF_A_CELL]
    ]
    cut = ""
    if len(table.rows) > _ROWS_OF_A_CELL:
        cut = f"<p>The first {_ROWS_OF_A_CELL} of {len(table.rows)} rows are shown.</p>"
    return (
        '<div style="overflow-x:auto"><table><thead><tr>'
        f"{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>{cut}"
    )


# ------------------------------------------------------------------------------------ sentences


def _ends(series: Series) -> tuple[float, float]:
    readings = list(series.values())
    return readings[0].value, readings[-1].value


def _about_loss(found: Mapping[str, Series]) -> str:
    changes = ["{} loss went from {:.3g} to {:.3g}".format(k, *_ends(s)) for k, s in found.items()]
    return f"The {', the '.join(changes)}."


def _about_sharpness(found: Mapping[str, Series]) -> str:
    first, last = _ends(found["largest eigenvalue"])
    said = f"The sharpness went from {first:.3g} to {last:.3g}"
    if "stability limit" not in found:
        return said + "."
    limit = _ends(found["stability limit"])[1]
    if not math.isfinite(limit) or limit <= 0:
        return said + "."
    where = (
        "above it a small displacement grows under gradient descent"
        if last > limit
        else "below it gradient descent is stable"
    )
    return f"{said}, {last / limit:.0%} of the limit {limit:.3g} of the last step size: {where}."


def _about_drift(found: Mapping[str, Series]) -> str:
    moved = _ends(next(iter(found.values())))[1]
    return f"The tangent kernel moved by {moved:.3g} times what it was at the start."


def _about_dead_units(found: Mapping[str, Series]) -> str:
    label, series = max(found.items(), key=lambda item: _ends(item[1])[1])
    worst = _ends(series)[1]
    return f"{worst:.0%} of the units {label} are silent on the probe." if worst > 0 else ""


_SENTENCES = {
    "loss": _about_loss,
    "sharpness": _about_sharpness,
    "kernel-drift": _about_drift,
    "dead-units": _about_dead_units,
}


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"
