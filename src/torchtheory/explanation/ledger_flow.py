"""The ledger of an explanation as a stream: where relevance goes between score and inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from torchtheory.core.checks import whole_number
from torchtheory.core.figure import COLORS, Figure, draw, label_text
from torchtheory.explanation.ledger import Ledger
from torchtheory.explanation.pages.pictures import AGAINST, FOR, number_label, shortened

#: Most steps of the stream; neighbors are merged beyond.
STEPS = 14

#: Inches of the widest stream, and below which a branch is not drawn.
_STREAM, _THIN = 1.0, 0.003

_TO_BIASES, _TO_EPSILON, _LOST = COLORS[4], COLORS[3], "#8a8f98"


def ledger_flow(ledger: Ledger, sample: int | None = None) -> Figure:
    """The ledger as a stream from the output down to the inputs.

    Its width is the relevance that is on its way: it branches off to biases (to the right) and to
    the stabilizer epsilon (to the left, with what rules leak in gray); what comes back from there
    makes it wider. Operations of one layer stand together, and where there are many steps those
    neighbors that lose least.

    Args:
        ledger: of an explanation.
        sample: whose; the mean over all samples unless given.
    """
    steps, start = _steps(ledger, sample)
    widest = max([abs(start), *(abs(s.after) for s in steps), *(s.leak for s in steps)]) or 1.0
    unit = math.copysign(_STREAM / widest, start)  # inches of width; to the right is with the score
    heights = [max(0.46, 0.28 + max(map(abs, s.sides)) * abs(unit)) for s in steps]
    tall = sum(heights)

    def plot(ax: Any) -> None:
        ax.set_axis_off()
        ax.set_aspect("equal")
        ax.set_xlim(-3.15, 2.15)
        ax.set_ylim(-tall - 0.55, 0.6)
        left, right, top = -start * unit / 2, start * unit / 2, 0.0
        _stream(ax, left, right, 0.25, top, start)
        ax.text(
            0, 0.33, f"score {number_label(start)}", ha="center", va="bottom", fontweight="bold"
        )
        for step, height in zip(steps, heights, strict=True):
            bottom = top - height
            biases, rest = (amount * unit for amount in step.sides)
            # what leaves turns away at the top of the step, what comes back joins at its bottom
            inner = left + max(rest, 0.0), right - max(biases, 0.0)
            _stream(ax, *inner, top, bottom, step.after)
            _branch(ax, right, top, bottom, biases, +1, _TO_BIASES, step.to_biases)
            _branch(ax, left, top, bottom, rest, -1, step.left_color, step.sides[1])
            left, right, top = left + rest, right - biases, bottom
            ax.text(-3.13, top + height - 0.17, label_text(shortened(step.name, 24)), fontsize=8,
                    va="center")  # fmt: skip
            ax.text(-3.13, top + height - 0.33, label_text(shortened(", ".join(step.done), 34)),
                    fontsize=6.5, va="center", color="#666")  # fmt: skip
        last = steps[-1].after if steps else start
        _stream(ax, left, right, top, top - 0.25, last)
        middle = (left + right) / 2
        ax.text(middle, top - 0.3, f"inputs {number_label(last)}", ha="center", va="top",
                fontweight="bold")  # fmt: skip
        for x, name, color in ((1.35, "biases", _TO_BIASES), (-1.1, "epsilon", _TO_EPSILON)):
            ax.text(x, 0.33, f"to {name}", color=color, ha="center", va="bottom", fontsize=8)

    said = "The width is the relevance on its way from the score to the inputs."
    if any(v * abs(unit) < -_THIN for s in steps for v in s.sides):
        said += " Hatched streams come back and make it wider."
    if abs(lost := sum(s.lost for s in steps)) > 1e-4 * widest:
        said += f" {number_label(lost)} of it leaks (gray)."
    if sample is None and len(ledger.score) > 1:
        said = f"Mean over {len(ledger.score)} samples. {said}"
    return draw("ledger", plot, caption=said, size=(5.3, tall + 1.15))


@dataclass(frozen=True, slots=True)
class _Step:
    """What a layer did with the stream.

    Attributes:
        name: of the layer.
        done: its operations and rules.
        after: what is left.
        to_biases, to_epsilon: what left.
        lost: what rules leaked, and rounding.
    """

    name: str
    done: tuple[str, ...]
    after: float
    to_biases: float
    to_epsilon: float
    lost: float

    @property
    def leak(self) -> float:
        return abs(self.to_biases) + abs(self.to_epsilon) + abs(self.lost)

    @property
    def sides(self) -> tuple[float, float]:
        """What leaves to the right, and to the left."""
        return self.to_biases, self.to_epsilon + self.lost

    @property
    def left_color(self) -> str:
        return _TO_EPSILON if abs(self.to_epsilon) >= abs(self.lost) else _LOST


def _steps(ledger: Ledger, sample: int | None) -> tuple[list[_Step], float]:
    """The stream's steps and its start; neighbors are merged till there are few enough."""

    def number(value: Tensor) -> float:
        values = value.detach().cpu().double()
        return float(values.mean() if sample is None else values[sample])

    if sample is not None:
        whole_number(sample, "sample", least=0, most=len(ledger.score) - 1)
    start = left = number(ledger.score)
    steps: list[_Step] = []
    for entry in ledger.entries:
        biases, epsilon = number(entry.to_biases), number(entry.to_epsilon)
        after = left - number(entry.received - entry.passed)
        lost = left - after - biases - epsilon
        name = entry.layer or entry.operation
        what = dict.fromkeys((entry.operation if entry.layer else "", entry.rule))
        step = _Step(name, tuple(w for w in what if w), after, biases, epsilon, lost)
        left = after
        if entry.layer and steps and steps[-1].name == name:
            steps[-1] = _merged(steps[-1], step, name)
        else:
            steps.append(step)
    while len(steps) > STEPS:  # the two neighbors that lose least together
        k = min(range(len(steps) - 1), key=lambda k: steps[k].leak + steps[k + 1].leak)
        first, last = steps[k].name.split(" … ")[0], steps[k + 1].name.split(" … ")[-1]
        steps[k : k + 2] = [_merged(steps[k], steps[k + 1], f"{first} … {last}")]
    return steps, start


def _merged(one: _Step, two: _Step, name: str) -> _Step:
    return _Step(
        name,
        tuple(dict.fromkeys(one.done + two.done)),
        two.after,
        one.to_biases + two.to_biases,
        one.to_epsilon + two.to_epsilon,
        one.lost + two.lost,
    )


def _stream(ax: Any, left: float, right: float, top: float, bottom: float, value: float) -> None:
    """The stream between two heights."""
    color = FOR if value > 0 else AGAINST
    ax.fill_between([left, right], bottom, top, color=color, alpha=0.62, linewidth=0)


def _branch(
    ax: Any, edge: float, top: float, bottom: float, wide: float, side: int, color: str,
    amount: float,
) -> None:  # fmt: skip
    """What turns away from an edge of the stream, or comes from that side and joins it.

    Args:
        edge: of the stream at the top of the step.
        wide: in the direction of the stream; negative for what comes back.
        side: 1 for the right edge, -1 for the left.
        amount: relevance, written at the end.
    """
    thick = abs(wide)
    if thick < _THIN:
        return
    bend, back = 0.08, wide < 0
    corner, outer = edge + side * (bend + (thick if back else 0.0)), bend + thick
    turn = np.linspace(0, np.pi / 2, 24)
    around = np.array([-side * np.cos(turn), (1 if back else -1) * np.sin(turn)])
    start = np.array([[corner], [bottom if back else top]])
    inside, outside = start + bend * around, start + outer * around
    end = side * max(1.15, abs(corner) + 0.1)
    tip = np.array([[end, end], [inside[1, -1], outside[1, -1]]])
    border = np.concatenate([inside, tip, outside[:, ::-1]], axis=1)
    ax.fill(
        *border, facecolor=color, alpha=0.7, linewidth=0, edgecolor="white",
        hatch="/////" if back else None,
    )  # fmt: skip
    ax.text(
        end + side * 0.06, tip[1].mean(), number_label(amount), fontsize=7.5, va="center",
        ha="left" if side > 0 else "right", color="#222",
    )  # fmt: skip
