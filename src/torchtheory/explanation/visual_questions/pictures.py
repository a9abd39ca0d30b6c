"""Questions with their answers, the words on the color of their relevance, heatmaps over images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchtheory.core.errors import EmptyData
from torchtheory.core.figure import Figure, draw, label_text
from torchtheory.data.visual_questions import ANSWERS, VisualQuestions
from torchtheory.explanation.visual_questions.explaining import AnswerExplanation

#: Characters on a line of a question.
LINE = 26

#: Names of methods in pictures.
NAMES = {"lrp": "LRP", "gradient_times_input": "gradient × input", "occlusion": "occlusion"}


def example_pictures(
    explanations: Mapping[str, AnswerExplanation],
    data: VisualQuestions,
    rows: Tensor | Sequence[int],
    answers: Sequence[str] = ANSWERS,
) -> Figure:
    """A row for each question: its image, and for each method its words and heatmap.

    Words have the color of their absolute relevance, heatmaps are blurred and laid over the image
    in gray; the raw heatmap stands below the words, red for the answer and blue against it.

    Args:
        explanations: of all questions, by the name of the method.
        data: the questions.
        rows: numbers of the questions that are shown.
        answers: words of the answers by number.
    """
    chosen = [int(k) for k in rows]
    if not chosen:
        raise EmptyData("no question to show")
    shown = {name: found for name, found in explanations.items() if found.of_pixels}
    columns = 1 + 2 * len(shown)
    return draw(
        "examples",
        lambda axes: plot_examples(axes, shown, data, chosen, answers),
        caption="What the answers rest on: words by their absolute relevance, below them the raw "
        "heatmaps, and these over the images, blurred.",
        grid=(len(chosen), columns),
        size=example_size(len(chosen), len(shown)),
    )


def example_size(questions: int, methods: int) -> tuple[float, float]:
    """Width and height in inches of a picture of examples."""
    return 1.5 + 3.5 * methods, 0.3 + 1.55 * questions


def plot_examples(
    axes: Any,
    explanations: Mapping[str, AnswerExplanation],
    data: VisualQuestions,
    rows: Sequence[int],
    answers: Sequence[str] = ANSWERS,
) -> None:
    """Draw examples into axes `[questions, 1 + 2 methods]`; see `example_pictures`."""
    overlays = {name: found.at(rows).overlays for name, found in explanations.items()}
    for place, k in enumerate(rows):
        image = data.images[data.image_of[k]]
        ax = axes[place][0]
        ax.imshow(image.permute(1, 2, 0).numpy())
        first = next(iter(explanations.values()))
        given, true = answers[int(first.answers[k])], answers[int(data.answers[k])]
        verdict = f"{given} is right" if given == true else f"{given}, but {true} is right"
        ax.set_title(label_text(verdict), fontsize=8, color="#000" if given == true else "#b2182b")
        for m, (name, found) in enumerate(explanations.items()):
            _words(axes[place][1 + 2 * m], data.words[k], found.word_strengths[k])
            _raw(axes[place][1 + 2 * m], found.maps[k])
            _overlay(axes[place][2 + 2 * m], image, overlays[name][place])
            if place == 0:
                axes[0][1 + 2 * m].set_title(label_text(NAMES.get(name, name)), fontsize=9)
        for ax in axes[place]:
            _bare(ax)


def _words(ax: Any, words: Sequence[str], strengths: Tensor) -> None:
    """Words, several on a line, each on red as strong as its share of the strongest."""
    strongest = float(strengths.max()) or 1.0
    column, line = 0, 0
    for word, strength in zip(words, strengths.tolist(), strict=False):
        if column + len(word) > LINE:
            column, line = 0, line + 1
        left, right = column - 0.25, column + len(word) + 0.25
        color = (0.7, 0.09, 0.17, 0.75 * min(1.0, strength / strongest))
        ax.fill_between([left, right], line - 0.42, line + 0.42, color=color, linewidth=0)
        ax.text(
            column + len(word) / 2,
            line,
            label_text(word),
            fontsize=7.5,
            family="monospace",
            ha="center",
            va="center_baseline",
        )
        column += len(word) + 1
    ax.set_xlim(-0.5, LINE + 0.5)
    ax.set_ylim(5.5, -0.8)


def _bare(ax: Any) -> None:
    ax.set(xticks=[], yticks=[])
    ax.grid(False)
    for spine in ax.spines.values():
        spine.set_visible(False)


def _raw(ax: Any, raw: Tensor) -> None:
    """The raw heatmap, in the lower part of the axes of words."""
    limit = float(raw.abs().max()) or 1.0
    inset = ax.inset_axes((0.0, 0.0, 0.5, 0.5), anchor="SW")
    inset.imshow(raw.numpy(), cmap="RdBu_r", vmin=-limit, vmax=limit)
    _bare(inset)


def _overlay(ax: Any, image: Tensor, overlay: Tensor) -> None:
    """A heatmap over the gray image."""
    gray = 0.35 + 0.5 * image.mean(0, keepdim=True).expand(3, -1, -1)
    heat = (overlay / overlay.max().clamp_min(1e-30)).float()
    red = torch.tensor([0.85, 0.05, 0.05])[:, None, None]
    ax.imshow((gray * (1 - heat) + red * heat).permute(1, 2, 0).numpy())
