"""Figures as data: drawn once, kept as SVG and PNG, the same bytes for the same numbers."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from torchtheory.core.foreign_text import one_line, printable
from torchtheory.core.naming import check_name

# An SVG with many thousand marks is slower to open than a picture of it.
LARGEST_SVG = 150_000

#: Okabe and Ito's colors: told apart by every kind of eyesight, and in this order everywhere.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")

_STYLE: Any = {
    "svg.hashsalt": "torchtheory",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "figure.constrained_layout.use": True,
}

_SAVED: ContextVar[bool] = ContextVar("figures are laid out and saved", default=True)


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawn figure.

    Attributes:
        name: file name without ending.
        caption: what to look at, in a sentence.
        svg: the drawing, or None where it would be too large to inline.
        png: the same as a picture.
    """

    name: str
    caption: str
    svg: str | None
    png: bytes

    def _repr_png_(self) -> bytes | None:
        """What a notebook shows."""
        return self.png or None

    def to_json(self) -> dict[str, str]:
        return {"name": self.name, "caption": self.caption, "file": f"figures/{self.name}.png"}


def draw(
    name: str,
    plot: Callable[[Any], object],
    *,
    caption: str = "",
    grid: tuple[int, int] = (1, 1),
    size: tuple[float, float] | None = None,
) -> Figure:
    """Draw `plot(axes)` and keep the result.

    Args:
        name: letters, digits and hyphens.
        plot: gets the Axes, or a 2-D array of them when `grid` is not (1, 1).
        caption: a sentence on what the figure shows.
        grid: rows and columns of panels.
        size: width and height in inches; 5 x 3.2 a panel unless told.
    """
    check_name(name, "figure")
    import matplotlib as mpl
    from cycler import cycler
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    rows, columns = grid
    with mpl.rc_context():
        mpl.rcdefaults()  # a user's own style would change the bytes
        mpl.rcParams.update({**_STYLE, "axes.prop_cycle": cycler(color=COLORS)})
        canvas = Canvas(figsize=size or (5.0 * columns, 3.2 * rows))
        FigureCanvasAgg(canvas)
        axes = canvas.subplots(rows, columns, squeeze=False)
        plot(axes[0, 0] if grid == (1, 1) else axes)
        if not _SAVED.get():
            _check_formulas(canvas)
            return Figure(name, caption, None, b"")
        png, svg = io.BytesIO(), io.StringIO()
        with warnings.catch_warnings():  # a name in letters the font lacks is drawn as boxes
            warnings.filterwarnings("ignore", "Glyph .* missing from font")
            # once, and not again for each of the two files: it takes longer than drawing
            layout = canvas.get_layout_engine()
            assert layout is not None  # the style asks for one
            layout.execute(canvas)
            canvas.set_layout_engine("none")
            around: dict[str, Any] = {}
            if _sticks_out(canvas):
                around = {"bbox_inches": "tight", "pad_inches": 0.05}
            # what our pictures are recognized by when they are replaced; without a date
            by, drawn_by = {"Software": "torchtheory"}, {"Date": None, "Creator": "torchtheory"}
            canvas.savefig(png, format="png", dpi=160, metadata=by, **around)
            canvas.savefig(svg, format="svg", metadata=drawn_by, **around)
    text = printable(svg.getvalue())
    return Figure(
        name, caption, _inline(text) if len(text) <= LARGEST_SVG else None, png.getvalue()
    )


class LateFigure(Figure):
    """A figure that is drawn when it is first looked at: drawing takes a tenth of a second or more.

    What cannot be drawn says so in its place. Where figures are not saved, it is drawn at once.

    >>> late = LateFigure("line", lambda axes: axes.plot([0, 1]), caption="A line.")
    >>> late.png == draw("line", lambda axes: axes.plot([0, 1])).png
    True
    """

    __slots__ = ("_draw", "_made")
    _draw: Callable[[], Figure] | None
    _made: Figure | None

    def __new__(cls, *plotted: Any, **given: Any) -> Any:
        # dataclasses.replace gives the fields of a figure: those of one that is drawn
        return Figure(**given) if "png" in given else super().__new__(cls)

    def __init__(
        self,
        name: str,
        plot: Callable[[Any], object],
        *,
        caption: str = "",
        grid: tuple[int, int] = (1, 1),
        size: tuple[float, float] | None = None,
    ) -> None:
        check_name(name, "figure")

        def make() -> Figure:
            try:
                return draw(name, plot, caption=caption, grid=grid, size=size)
            except Exception as error:
                why = f"not drawn: {one_line(str(error))[:200]}"
                return draw(name, lambda axes: _say(axes, why), caption=caption)

        values = {"name": name, "caption": caption, "_draw": make, "_made": None}
        if not _SAVED.get():
            values |= {
                "_draw": None,
                "_made": draw(name, plot, caption=caption, grid=grid, size=size),
            }
        for key, value in values.items():
            object.__setattr__(self, key, value)

    @property
    def svg(self) -> str | None:
        return self._drawn().svg

    @property
    def png(self) -> bytes:
        return self._drawn().png

    def __repr__(self) -> str:
        return f"Figure({self.name!r}, {self.caption!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Figure) and _content(self) == _content(other)

    def __hash__(self) -> int:
        return hash(_content(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return Figure, (self.name, self.caption, self.svg, self.png)

    def _drawn(self) -> Figure:
        make = self._draw  # read first: another thread may be drawing it
        if self._made is None and make is not None:
            object.__setattr__(self, "_made", make())
            object.__setattr__(self, "_draw", None)  # lets go of the data
        assert self._made is not None
        return self._made


def _content(figure: Figure) -> tuple[str, str, str | None, bytes]:
    return figure.name, figure.caption, figure.svg, figure.png


def _say(axes: Any, sentence: str) -> None:
    """A sentence instead of a drawing."""
    axes.axis("off")
    axes.text(0.5, 0.5, label_text(sentence), ha="center", va="center", wrap=True)


def import_drawing() -> None:
    """Import what drawing needs: seconds that should not count where time is measured."""
    draw("nothing", lambda axes: axes.plot([0, 1]))


def label_text(name: str) -> str:
    r"""A name from outside as a label: matplotlib takes no dollar in it for a formula.

    >>> label_text("layer $1\x1b")
    'layer \\$1'
    """
    return one_line(name).replace("$", r"\$")


@contextmanager
def figures_not_saved() -> Iterator[None]:
    """Inside, `draw` plots on real axes but neither lays out nor saves: the figures are empty.

    Layout and the two files take most of a figure's time. Where only numbers are wanted, as in a
    test of a lab, an error of the plotting function or in a label's formula still comes up.

    >>> with figures_not_saved():
    ...     draw("line", lambda axes: axes.plot([0, 1])).png
    b''
    """
    before = _SAVED.set(False)
    try:
        yield
    finally:
        _SAVED.reset(before)


def _check_formulas(canvas: Any) -> None:
    """Parse the formulas in titles, labels and legends, as drawing them would."""
    from matplotlib.cbook import is_math_text
    from matplotlib.mathtext import MathTextParser

    texts = list(canvas.texts)
    for axes in canvas.axes:
        texts += [axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts]
        texts += axes.legend_.get_texts() if axes.legend_ else []
    parser = MathTextParser("agg")
    for text in {t.get_text() for t in texts}:
        if is_math_text(text):
            parser.parse(text)


def _sticks_out(canvas: Any) -> bool:
    """Whether a label would be cut: matplotlib's layout overlooks what a fixed aspect moves."""
    if all(ax.get_aspect() == "auto" for ax in canvas.axes):
        return False
    drawn, (width, height) = canvas.get_tightbbox(), canvas.get_size_inches()
    return bool(min(drawn.x0, drawn.y0) < 0 or drawn.x1 > width or drawn.y1 > height)


def _inline(svg: str) -> str:
    """The drawing without the XML prologue, ready to stand inside an HTML page."""
    return svg[svg.index("<svg") :]
