"""A network as a picture: what is done from top to bottom, layers as frames, shortcuts as arcs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchtheory.core.figure import Figure, draw
from torchtheory.tracing.kinds import Kind
from torchtheory.tracing.summary import Row, folded, rows_of

if TYPE_CHECKING:
    from torchtheory.tracing.network import Network, Value

#: What an operation does, by color (Okabe and Ito's, lightened so that black is read on them).
KIND_COLORS: dict[Kind | None, str] = {
    "affine": "#A6CEE3", "product": "#F4C7A1", "composite": "#F4C7A1", "normalization": "#D9C2E0",
    "entrywise": "#B7E0CC", "extreme": "#F7E49B", "reduction": "#CFE8F7", "joins": "#E8E8E8",
    "moves": "#F5F5F5", "selects": "#F5F5F5", "random": "#FFD0D0", "decision": "#FFD0D0",
}  # fmt: skip

_MOST_ROWS = 30
_WIDTH, _HEIGHT, _GAP = 4.6, 0.62, 2.2
_MOST_FRAMES = 2


@dataclass(frozen=True)
class _Edge:
    """From one row to a later one."""

    start: int
    end: int


def figure_of(network: Network) -> Figure:
    """The network drawn, repeated blocks folded; long ones in several columns."""
    rows = folded(rows_of(network))
    edges = _edges(network, rows)
    columns = _columns(rows, edges)
    tallest = max((len(c) for c in columns), default=1)
    width = len(columns) * (_WIDTH + _GAP) * 0.78
    caption = (
        f"{network.title}: what is done from top to bottom, with the sizes of what it makes; "
        "n is the number of samples."
    )
    return draw(
        "network",
        lambda axes: _Picture(axes, rows, edges, columns, network).draw(),
        caption=caption,
        size=(max(4.0, width), max(2.0, 0.42 * (tallest + 3))),
    )


def _edges(network: Network, rows: Sequence[Row]) -> list[_Edge]:
    """Which row takes what which row made; of folded blocks those of the first."""
    maker: dict[Value, int] = dict.fromkeys(network.inputs, -1)
    found: dict[_Edge, None] = {}
    passed: dict[Value, Value] = {}
    shown = {op.number: k for k, row in enumerate(rows) for op in row.operations}
    last_shown = -1
    for op in network:
        if not (op.follows and op.outputs):
            continue
        row = shown.get(op.number)
        if row is None:  # a repetition of a block: what it makes stands for what the first made
            for value in op.outputs:
                maker[value] = last_shown
            continue
        for value in op.inputs:
            start = maker.get(passed.get(value, value))
            if value.follows and start is not None and start < row:
                found[_Edge(start, row)] = None
        for value in op.outputs:
            maker[value] = row
        last_shown = row
    return list(found)


def _columns(rows: Sequence[Row], edges: Sequence[_Edge]) -> list[list[int]]:
    """Rows in columns, cut where the fewest arcs are cut."""
    start, columns = 0, []
    while len(rows) - start > _MOST_ROWS:
        places = range(start + _MOST_ROWS // 2, start + _MOST_ROWS + 1)

        def cut(place: int) -> tuple[int, int]:
            return sum(e.start < place - 1 < e.end for e in edges if e.end >= place), -place

        place = min(places, key=cut)
        columns.append(list(range(start, place)))
        start = place
    return [*columns, list(range(start, len(rows)))]


class _Picture:
    """Draws rows as boxes at places of a grid."""

    def __init__(
        self,
        axes: Any,
        rows: Sequence[Row],
        edges: Sequence[_Edge],
        columns: list[list[int]],
        network: Network,
    ) -> None:
        self.axes, self.rows, self.edges, self.network = axes, rows, edges, network
        self.columns = columns
        self.place = {k: (c, i) for c, column in enumerate(columns) for i, k in enumerate(column)}
        self.place[-1] = (0, -1)

    def draw(self) -> None:
        """Everything."""
        axes = self.axes
        axes.axis("off")
        self._box(
            -1,
            "input",
            ", ".join(" × ".join(map(str, v.shape)) for v in self.network.inputs),
            "#FFFFFF",
        )
        for k, row in enumerate(self.rows):
            name = row.layer.rpartition(".")[2]
            left = row.words if not name or name.isdigit() else f"{row.words}  ·  {name}"
            self._box(k, left, row.sizes, KIND_COLORS.get(row.what, "#FFFFFF"))
        self._frames()
        self._arrows()
        tallest = max((len(c) for c in self.columns), default=1)
        axes.set_xlim(-1.0, len(self.columns) * (_WIDTH + _GAP) - 0.2)
        axes.set_ylim(-tallest + 0.2, 1.9)

    def _corner(self, k: int) -> tuple[float, float]:
        column, line = self.place[k]
        return column * (_WIDTH + _GAP), -float(line)

    def _box(self, k: int, left: str, right: str, color: str) -> None:
        x, y = self._corner(k)
        sides, ends = _around(x, y - _HEIGHT / 2, x + _WIDTH, y + _HEIGHT / 2)
        self.axes.fill(sides, ends, facecolor=color, edgecolor="#555555", linewidth=0.7, zorder=3)
        room = 46 - len(right)
        left = left if len(left) <= room else left[: room - 1] + "…"
        self.axes.text(x + 0.12, y, left, ha="left", va="center", fontsize=7, zorder=4)
        self.axes.text(
            x + _WIDTH - 0.12,
            y,
            right,
            ha="right",
            va="center",
            fontsize=6,
            color="#444444",
            zorder=4,
        )

    def _frames(self) -> None:
        """A frame around the rows of a module that has several, its name at the side."""
        for column in self.columns:
            frames = _framed([self.rows[k].layer for k in column])
            for frame in frames:
                self._frame(frame, [column[i] for i in frame.members])

    def _frame(self, frame: _Frame, members: list[int]) -> None:
        inset = 0.3 + 0.3 * frame.height
        x, top = self._corner(members[0])
        _, bottom = self._corner(members[-1])
        up, down = top + 0.4 + 0.03 * frame.height, bottom - 0.4 - 0.03 * frame.height
        repeated = {
            (row.block, row.times) for row in (self.rows[k] for k in members) if row.times > 1
        }
        times = [f" × {n}" for block, n in repeated if block in frame.paths]
        sides, ends = _around(x - inset, down, x + _WIDTH + inset, up)
        color, width = ("#0072B2", 1.1) if times else ("#999999", 0.7)
        self.axes.fill(sides, ends, facecolor="none", edgecolor=color, linewidth=width, zorder=2)
        most = max(4, int(7 * (up - down)))
        name = (
            frame.paths[-1] if len(frame.paths[-1]) <= most else f"…{frame.paths[-1][1 - most :]}"
        )
        self.axes.text(
            x - inset + 0.05,
            (up + down) / 2,
            name + "".join(times),
            ha="left",
            va="center",
            fontsize=6,
            rotation=90,
            color="#0072B2" if times else "#666666",
        )

    def _arrows(self) -> None:
        lanes: list[tuple[int, int]] = []
        numbers: dict[int, int] = {}
        for edge in sorted(self.edges, key=lambda e: e.end - e.start):
            if self.place[edge.start][0] != self.place[edge.end][0]:
                numbers.setdefault(edge.start, len(numbers) + 1)
            elif edge.end == edge.start + 1:
                x, y = self._corner(edge.start)
                middle = x + _WIDTH / 2
                self._arrow([(middle, y - _HEIGHT / 2), (middle, y - 1 + _HEIGHT / 2)])
            else:
                lane = sum(start < edge.end and edge.start < end for start, end in lanes)
                lanes.append((edge.start, edge.end))
                self._arc(edge, 0.25 + 0.22 * min(lane, 6))
        for start, number in numbers.items():
            self._mark(start, f"{number} →")
            for edge in self.edges:
                if edge.start == start and self.place[edge.end][0] != self.place[start][0]:
                    self._mark(edge.end, f"→ {number}")

    def _arc(self, edge: _Edge, reach: float) -> None:
        (x, y0), (_, y1) = self._corner(edge.start), self._corner(edge.end)
        right = x + _WIDTH
        self._arrow(
            [
                (right, y0 - 0.1),
                (right + reach, y0 - 0.1),
                (right + reach, y1 + 0.1),
                (right, y1 + 0.1),
            ],
            "#D55E00",
        )

    def _arrow(self, points: list[tuple[float, float]], color: str = "#333333") -> None:
        self.axes.plot(*zip(*points, strict=True), color=color, linewidth=0.9, zorder=5)
        style = {"arrowstyle": "-|>", "color": color, "linewidth": 0.9, "shrinkA": 0, "shrinkB": 0}
        self.axes.annotate("", points[-1], points[-2], arrowprops=style, zorder=5)

    def _mark(self, k: int, text: str) -> None:
        """An edge from one column to another has the same number at both ends."""
        x, y = self._corner(k)
        up = 0.13 if text.startswith("→") else -0.13
        self.axes.text(
            x + _WIDTH + 0.08, y + up, text, ha="left", va="center", fontsize=6.5, color="#D55E00"
        )


def _around(left: float, low: float, right: float, high: float) -> tuple[list[float], list[float]]:
    return [left, right, right, left], [low, low, high, high]


@dataclass(frozen=True)
class _Frame:
    """Consecutive rows of one module.

    Attributes:
        members: their places in the column.
        paths: the module, and those in it that have the very same rows.
        height: how many frames lie inside of it.
    """

    members: tuple[int, ...]
    paths: tuple[str, ...]
    height: int = 0


def _framed(layers: Sequence[str]) -> list[_Frame]:
    """The frames of a column: at most two around a row, blocks first."""
    runs: dict[tuple[int, ...], list[str]] = {}
    deepest = max((layer.count(".") + 1 for layer in layers if layer), default=0)
    for depth in range(1, deepest + 1):
        run: list[int] = []
        path = ""
        for place, layer in enumerate([*layers, ""]):
            parts = layer.split(".")
            here = ".".join(parts[:depth]) if layer and len(parts) >= depth else ""
            if here != path or not here:
                if path and len(run) > 1:
                    runs.setdefault(tuple(run), []).append(path)
                run, path = [], here
            run.append(place)
    numbered = [set(run) for run, paths in runs.items() if _is_block(run, paths)]
    made: list[_Frame] = []
    for members in sorted(runs, key=len):
        paths = runs[members]
        # of what lies inside of a block only other blocks, or a block of two layers is all frames
        if not _is_block(members, paths) and any(set(members) < block for block in numbered):
            continue
        inside = [f.height for f in made if set(f.members) < set(members)]
        height = 1 + max(inside, default=-1)
        if height < _MOST_FRAMES:
            made.append(_Frame(members, tuple(paths), height))
    return made


def _is_block(members: tuple[int, ...], paths: list[str]) -> bool:
    """Whether it is one of several blocks that a list holds, of more than a layer or two."""
    return len(members) > 3 and any(path.rpartition(".")[2].isdigit() for path in paths)
