"""Figures: the same bytes for the same numbers, whatever style the user has set."""

from __future__ import annotations

import copy
import dataclasses
import io
import pickle
import xml.etree.ElementTree as ElementTree
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.image import imread

from torchtheory.core.figure import LateFigure, draw, figures_not_saved

pytestmark = pytest.mark.draws


def plot(ax: Any) -> None:
    ax.plot([0, 1, 2], [0, 1, 4], "o-", label="$x^2$ & <more>")
    ax.fill_between([0, 1], [0, 1], alpha=0.2)
    ax.legend()


def test_same_bytes_twice() -> None:
    first, second = draw("f", plot), draw("f", plot)
    assert first.svg == second.svg
    assert first.png == second.png
    assert first.png.startswith(b"\x89PNG")


def test_a_users_style_changes_nothing() -> None:
    plain = draw("f", plot)
    with mpl.rc_context({"axes.facecolor": "red", "font.size": 30, "savefig.dpi": 30}):
        assert draw("f", plot) == plain
        assert mpl.rcParams["font.size"] == 30  # and ours stays inside


def test_svg_is_xml_without_prologue() -> None:
    svg = draw("f", plot).svg
    assert svg is not None
    assert svg.startswith("<svg")
    ElementTree.fromstring(svg)


def test_a_figure_of_many_marks_is_a_picture_only() -> None:
    x = np.random.default_rng(0).normal(size=20_000)
    figure = draw("cloud", lambda ax: ax.plot(x, x[::-1], "o"))
    assert figure.svg is None
    assert len(figure.png) > 1000


def test_grid_gives_an_array_of_axes() -> None:
    shapes = []
    draw("f", lambda axes: shapes.append(axes.shape), grid=(2, 3), size=(3, 2))
    draw("g", lambda axes: shapes.append(axes.shape), grid=(1, 2), size=(3, 2))
    assert shapes == [(2, 3), (1, 2)]


def test_an_error_in_the_plot_leaves_the_style_alone() -> None:
    before = dict(mpl.rcParams)
    with pytest.raises(ZeroDivisionError):
        draw("f", lambda ax: 1 / 0)
    assert dict(mpl.rcParams) == before


def test_json() -> None:
    assert draw("f", plot, caption="c").to_json() == {
        "name": "f",
        "caption": "c",
        "file": "figures/f.png",
    }


def test_a_fixed_aspect_cuts_no_label() -> None:
    def plot(ax: Any) -> None:
        shown = ax.imshow([[0.0, 1.0], [2.0, 3.0]])
        ax.figure.colorbar(shown, ax=ax, label="a quantity")
        ax.set(xlabel="across", ylabel="a label that is long enough to reach out of the picture")

    picture = imread(io.BytesIO(draw("square", plot, size=(2.6, 2.2)).png))[..., :3]
    border = [picture[0], picture[-1], picture[:, 0], picture[:, -1]]
    assert all((edge == 1).all() for edge in border)


def test_nothing_is_saved_where_nobody_looks_but_plots_are_made() -> None:
    calls = []
    with figures_not_saved():
        figure = draw("f", lambda axes: calls.append(axes.plot([0, 1])), caption="A line.")
        with pytest.raises(ZeroDivisionError):
            draw("f", lambda axes: 1 / 0)
    assert (figure.name, figure.caption, figure.svg, figure.png) == ("f", "A line.", None, b"")
    assert len(calls) == 1
    assert draw("f", plot).png.startswith(b"\x89PNG")


@pytest.mark.parametrize("place", ["set_title", "set_xlabel", "legend", "text"])
def test_a_broken_formula_is_met_in_either_case(place: str) -> None:
    def broken(axes: Any) -> None:
        axes.plot([0, 1], label=r"$\frac{1}$" if place == "legend" else "a line")
        arguments = {"legend": (), "text": (0.5, 0.5, r"$\frac{1}$")}.get(place, (r"$\frac{1}$",))
        getattr(axes, place)(*arguments)

    with pytest.raises(ValueError, match="frac"):
        draw("f", broken)
    with figures_not_saved(), pytest.raises(ValueError, match="frac"):
        draw("f", broken)


def test_a_late_figure_is_drawn_when_it_is_looked_at() -> None:
    drawn = []
    late = LateFigure("line", lambda axes: drawn.append(axes.plot([0, 1])), caption="A line.")
    assert (late.to_json()["caption"], drawn) == ("A line.", [])
    assert late.png == draw("line", lambda axes: axes.plot([0, 1])).png
    assert late.svg is not None
    assert len(drawn) == 1  # once for both
    again = pickle.loads(pickle.dumps(late))
    assert (again.png, again.name) == (late.png, "line")
    with figures_not_saved():
        assert LateFigure("line", lambda axes: drawn.append(axes)).png == b""
    assert len(drawn) == 2  # at once, so that what is wrong with it comes up


def test_a_late_figure_that_cannot_be_drawn_says_so() -> None:
    def broken(axes: Any) -> None:
        raise ValueError("no $points")

    late = LateFigure("line", broken)
    assert late.svg is not None
    assert "not drawn: no " in late.svg
    with figures_not_saved(), pytest.raises(ValueError, match="points"):
        LateFigure("line", broken)


def test_a_late_figure_equals_its_copies() -> None:
    late = LateFigure("line", lambda axes: axes.plot([0, 1]), caption="A line.")
    for other in (copy.copy(late), copy.deepcopy(late), pickle.loads(pickle.dumps(late))):
        assert late == other
        assert other == late
        assert hash(late) == hash(other)
    assert late != draw("line", lambda axes: axes.plot([0, 2]), caption="A line.")


def test_a_late_figure_with_a_field_replaced_is_a_drawn_one() -> None:
    late = LateFigure("line", lambda axes: axes.plot([0, 1]), caption="A line.")
    other = dataclasses.replace(late, caption="Another line.")
    assert other == draw("line", lambda axes: axes.plot([0, 1]), caption="Another line.")
    assert late.caption == "A line."
    with pytest.raises(TypeError, match="color"):
        dataclasses.replace(late, color="red")  # type: ignore[call-arg]
