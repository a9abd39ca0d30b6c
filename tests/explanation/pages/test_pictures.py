"""Pictures: colors mean what they say, bars have their errors, foreign words stay words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.explanation.explanation import Explanation
from torchtheory.explanation.lrp import lrp
from torchtheory.explanation.pages import pictures
from torchtheory.explanation.pages.pictures import (
    bars,
    colored_words,
    heatmaps,
    picture,
    words_html,
)

Plotted = Callable[[], Any]


def explanation(relevance: Tensor, **given: Any) -> Explanation:
    score = torch.linspace(1, 2, len(relevance))
    return Explanation(relevance, score, "LRP", **given)


def shown(ax: Any) -> np.ndarray[Any, Any]:
    """Colors of what lies on top."""
    return np.asarray(ax.images[-1].to_rgba(ax.images[-1].get_array()))[..., :3]


def test_white_is_nothing_red_is_for_and_blue_against(drawn: Plotted) -> None:
    heatmaps(explanation(torch.tensor([[[[3.0, 0.0, -3.0]]]])))
    red, white, blue = shown(drawn()[0, 0])[0]
    assert white.min() > 0.95
    assert red[0] > 2 * red[2]
    assert blue[2] > 2 * blue[0]


def test_the_scale_is_symmetric_about_zero(drawn: Plotted) -> None:
    """A half of the largest relevance has the same strength on both sides, whatever the other."""
    heatmaps(explanation(torch.tensor([[[[4.0, 2.0, -2.0]]]])))
    one = shown(drawn()[0, 0])[0]
    heatmaps(explanation(torch.tensor([[[[2.0, -2.0, -4.0]]]])))
    two = shown(drawn()[0, 0])[0]
    np.testing.assert_allclose(one[1], two[0])
    np.testing.assert_allclose(one[2], two[1])


def test_channels_add_up_before_they_are_colored(drawn: Plotted) -> None:
    heatmaps(explanation(torch.tensor([[[[1.0, 5.0]], [[-1.0, 1.0]]]])))
    nothing, something = shown(drawn()[0, 0])[0]
    assert nothing.min() > 0.95 > something.min()


def test_a_heatmap_over_an_image_shows_the_image_where_nothing_is_relevant(drawn: Plotted) -> None:
    image = torch.tensor([[[[0.0, 1.0, 0.5]]]])
    heatmaps(explanation(torch.tensor([[[[0.0, 0.0, 1.0]]]])), image)
    dark, light, hot = shown(drawn()[0, 1])[0]
    assert np.ptp(dark) == np.ptp(light) == 0
    assert dark[0] < light[0]
    assert hot[0] > 2 * hot[2]


@pytest.mark.parametrize("blur", [0.5, 1.5, 4.0])
def test_blur_keeps_the_sum(blur: float) -> None:
    heat = np.random.default_rng(0).normal(size=(9, 7))
    smooth = pictures._smooth(heat, blur)
    assert np.abs(smooth).max() < np.abs(heat).max()
    np.testing.assert_allclose(smooth.sum(), heat.sum(), atol=1e-9)


def test_a_row_per_sample_and_a_column_per_method(drawn: Plotted) -> None:
    e = explanation(torch.randn(5, 1, 4, 4))
    heatmaps([e, e, e], torch.rand(5, 1, 4, 4), samples=[1, 4])
    assert drawn().shape == (2, 4)
    heatmaps(e)
    assert sum(ax.get_visible() for ax in drawn().ravel()) == 5
    assert "The first 24 of 40" in heatmaps(explanation(torch.ones(40, 4, 4))).caption


def test_an_explanation_of_zeros_can_be_drawn() -> None:
    for e in (explanation(torch.zeros(2, 3, 4, 4)), explanation(torch.zeros(2, 3))):
        picture(e)
    colored_words(explanation(torch.zeros(1, 2)), [["a", "b"]])


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: heatmaps(explanation(torch.ones(2, 3))), "use bars for tables"),
        (lambda: heatmaps([]), "no explanation"),
        (lambda: heatmaps(explanation(torch.ones(2, 4, 4)), torch.ones(2, 1, 4, 5)), "images"),
        (lambda: heatmaps(explanation(torch.ones(2, 4, 4)), samples=[2]), "sample"),
        (lambda: heatmaps(explanation(torch.ones(2, 4, 4)), blur=-1), "blur"),
        (lambda: heatmaps(explanation(torch.ones(2, 4, 4)), titles=["a"]), "1 titles for 2"),
        (lambda: bars(explanation(torch.ones(2, 3)), ["a"]), "1 names for 3 features"),
        (lambda: bars(explanation(torch.ones(1, 3)), sample=4), "sample"),
        (lambda: bars(explanation(torch.ones(2, 3)), sample=0, values=torch.ones(2)), "2 values"),
        (
            lambda: bars([explanation(torch.ones(2, 3)), explanation(torch.ones(2, 4))]),
            "of 3 and of 4 features",
        ),
        (lambda: explanation(torch.ones(2, 3)).plot(torch.ones(2, 3), samples=[7]), "sample"),
        (lambda: explanation(torch.ones(2, 3)).plot(torch.ones(1, 3), samples=[1]), "1 inputs"),
        (lambda: colored_words(explanation(torch.ones(1, 2)), ["a b"]), "list of words"),
        (lambda: colored_words(explanation(torch.ones(1, 2)), [["a"] * 3]), "3 words"),
        (lambda: colored_words(explanation(torch.ones(2, 2)), [["a"]]), "words of 1 samples"),
        (
            lambda: bars([explanation(torch.ones(2, 3)), explanation(torch.ones(3, 3))]),
            "of 2 and of 3 samples",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(call: Callable[[], object], sentence: str) -> None:
    with pytest.raises((InvalidInput, ShapeMismatch), match=sentence):
        call()


def test_words_are_escaped_and_tell_their_relevance() -> None:
    e = explanation(torch.tensor([[1.0, -2.0, 0.0]]))
    html = words_html(e, [["<script>", 'a"b\n', "\x1b"]])
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert "\x1b" not in html
    red, blue, white = html.split("<span style=")[1:]
    assert "178,24,43,0.38" in red
    assert "33,102,172,0.75" in blue
    assert "0.00)" in white
    assert 'title="−2"' in blue


def test_words_are_colored_on_their_own_scale(drawn: Plotted) -> None:
    e = explanation(torch.tensor([[1.0, -2.0], [30.0, 60.0]]))
    colored_words(e, [["a", "b"], ["c", "d"]])
    strengths = [patch.get_facecolor()[3] for patch in drawn()[0, 0].patches]
    np.testing.assert_allclose(strengths, [0.375, 0.75, 0.375, 0.75])
    red, blue = (patch.get_facecolor()[:3] for patch in drawn()[0, 0].patches[:2])
    assert red[0] > 2 * red[2]
    assert blue[2] > 2 * blue[0]


def test_long_sentences_are_broken_and_nothing_is_lost(drawn: Plotted) -> None:
    words = [f"word{k}" for k in range(60)]
    colored_words(explanation(torch.randn(1, 60)), [words])
    ax = drawn()[0, 0]
    assert [t.get_text() for t in ax.texts[1:]] == words
    boxes = [p.get_xy() for p in ax.patches]
    assert max(b[:, 0].max() for b in boxes) <= pictures.LINE + 0.5
    assert len({b[:, 1].min() for b in boxes}) > 3


def test_bars_are_sorted_and_colored_by_sign(drawn: Plotted) -> None:
    bars(explanation(torch.tensor([[1.0, -5.0, 3.0]])), ["a", "b", "c$"])
    ax = drawn()[0, 0]
    assert [t.get_text() for t in ax.get_yticklabels()] == ["b", r"c\$", "a"]
    np.testing.assert_allclose([p.get_width() for p in ax.patches], [-5, 3, 1])


def test_bars_of_many_samples_have_two_standard_errors(drawn: Plotted) -> None:
    values = torch.tensor([[1.0], [2.0], [3.0], [6.0]])
    assert "Mean over 4" in bars(explanation(values)).caption
    (whiskers,) = drawn()[0, 0].collections
    (low, _), (high, _) = whiskers.get_segments()[0]
    half = 2 * float(values.std()) / 2  # four samples
    np.testing.assert_allclose([low, high], [3 - half, 3 + half])


def test_bars_of_one_sample_have_the_errors_of_the_method(drawn: Plotted) -> None:
    e = explanation(torch.tensor([[4.0], [5.0]]), error=torch.tensor([[0.5], [0.25]]))
    bars(e, sample=1, values=torch.tensor([-7.0]))
    (whiskers,) = drawn()[0, 0].collections
    np.testing.assert_allclose(whiskers.get_segments()[0][:, 0], [4.5, 5.5])
    assert drawn()[0, 0].get_yticklabels()[0].get_text() == "feature 0 = −7"


@pytest.mark.parametrize(
    ("relevance", "given", "name"),
    [
        (torch.ones(2, 1, 4, 4), {}, "heatmaps"),
        (torch.ones(2, 3), {}, "bars"),
        (torch.ones(2, 3), {"words": [["a"], ["b"]]}, "words"),
        ((torch.ones(2, 3), torch.ones(2, 4, 4)), {"part": 1}, "heatmaps"),
    ],
)
def test_the_picture_suits_the_inputs(relevance: Any, given: Any, name: str) -> None:
    made = Explanation(relevance, torch.ones(2), "LRP")
    assert made.plot(**given).name == name


@pytest.mark.draws
def test_a_notebook_shows_pictures_sums_and_ledger() -> None:
    made = Explanation(
        torch.ones(2, 3), torch.ones(2), "<i>LRP", reference=torch.zeros(2),
        ledger=lrp(nn.Linear(3, 2), torch.ones(2, 3)).ledger,
    )  # fmt: skip
    html = made._repr_html_()
    assert html.count("<img") == 2
    assert "<i>LRP" not in html
    assert "−2" in html  # the gap
    assert "<script" not in html
    figure = made.plot()
    assert figure._repr_png_() == figure.png != b""
