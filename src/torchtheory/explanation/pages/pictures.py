"""Explanations as pictures: heatmaps, colored words and bars.

Red speaks for the score, blue against it, white does neither. The scale of every picture is
symmetric, so that zero is white, and its own: two pictures are compared by where their colors are.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import NDArray
from torch import Tensor

from torchtheory.core.checks import nonnegative_number, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.core.figure import Figure, draw, label_text
from torchtheory.core.foreign_text import one_line
from torchtheory.report.numbers import MINUS, number_words

if TYPE_CHECKING:
    from torchtheory.explanation.explanation import Explanation

#: Blue for what speaks against the score, red for what speaks for it; told apart by every eyesight.
FOR, AGAINST = "#b2182b", "#2166ac"

#: Most tiles and bars of one picture; a caption says what was left out.
TILES, BARS = 24, 20

#: Characters on a line of words.
LINE = 84

_MAP = "RdBu_r"

Array = NDArray[np.float64]


def heatmaps(
    explanations: Explanation | Sequence[Explanation],
    x: Tensor | None = None,
    *,
    samples: Sequence[int] | None = None,
    titles: Sequence[str] | None = None,
    blur: float = 0.0,
    part: int = 0,
) -> Figure:
    """Heatmaps of images: one row per sample and one column per method, or one tile per sample.

    The channels of a pixel are added. With the images, heatmaps lie over them in gray.

    Args:
        explanations: one, or several of the same samples, with relevance `[n, C, H, W]` or
            `[n, H, W]`.
        x: the images, in the same shape.
        samples: which of them; the first ones unless given.
        titles: what to call these samples; class and score unless given.
        blur: standard deviation in pixels of a Gaussian that smooths the heatmaps; the sum of each
            stays what it is.
        part: which input is meant, of a model of several.
    """
    listed = _listed(explanations)
    blur = nonnegative_number(blur, "blur")
    maps = [_maps(e, part) for e in listed]
    images = None if x is None else _images(x, maps[0].shape)
    chosen, left = _chosen(listed[0], samples, TILES if len(listed) == 1 else TILES // 2)
    names = _titles(listed[0], chosen, titles)
    tall = maps[0].shape[1] / maps[0].shape[2]
    scales: list[Any] = []

    def heat(ax: Any, method: int, sample: int) -> None:
        image = None if images is None else images[sample]
        heated = _smooth(maps[method][sample], blur)
        strength = heated / (float(np.abs(heated).max()) or 1.0)
        scale = _bare(ax).imshow(strength, cmap=_MAP, vmin=-1, vmax=1, aspect="equal")
        if image is not None:
            ax.imshow(_over(strength, image), aspect="equal")
        scales.append(scale)

    def rows(axes: Any) -> None:
        for r, k in enumerate(chosen):
            if images is not None:
                _bare(axes[r, 0]).imshow(_shown(images[k]), cmap="gray", aspect="equal")
            for c in range(len(listed)):
                heat(axes[r, c + first], c, k)
            axes[r, 0].set_ylabel(label_text(names[r]), fontsize=8)
        heads = [*["input"] * first, *(e.method for e in listed)]
        for ax, head in zip(axes[0], heads, strict=True):
            ax.set_title(label_text(_broken(head)), fontsize=8)
        _meaning(axes, scales[0])

    def tiles(axes: Any) -> None:
        flat = np.atleast_1d(np.asarray(axes, dtype=object)).ravel()
        for ax, k, name in zip(flat, chosen, names, strict=False):
            heat(ax, 0, k)
            ax.set_title(label_text(name), fontsize=8)
        for ax in flat[len(chosen) :]:
            ax.set_visible(False)
        _meaning(axes, scales[0])

    if len(listed) == 1 and (images is None or len(chosen) > 1):
        across = min(len(chosen), max(3, math.ceil(math.sqrt(len(chosen) * tall))), 8)
        grid, plot = (math.ceil(len(chosen) / across), across), tiles
    else:
        first = int(images is not None)
        grid, plot = (len(chosen), len(listed) + first), rows
    side = min(2.0, 9.0 / grid[1])
    return draw(
        "heatmaps",
        plot if grid != (1, 1) else lambda ax: plot(np.array([[ax]])),
        caption=_caption(listed, left) + (f" Smoothed over {blur:g} pixels." if blur else ""),
        grid=grid,
        size=(grid[1] * side + 0.9, grid[0] * (side * tall + 0.3) + 0.2),
    )


def colored_words(
    explanations: Explanation | Sequence[Explanation],
    words: Sequence[Sequence[str]],
    *,
    samples: Sequence[int] | None = None,
    titles: Sequence[str] | None = None,
    part: int = 0,
) -> Figure:
    """Sentences with each word on the color of its relevance.

    Args:
        explanations: one, or several of the same samples, with relevance `[n, T]`.
        words: the words of all samples, at most `T` each; what stands behind them is padding.
        samples, titles, part: see `heatmaps`.
    """
    listed = _listed(explanations)
    shades = [_shades(e, words, part) for e in listed]
    chosen, left = _chosen(listed[0], samples, TILES // 2)
    names = _titles(listed[0], chosen, titles)
    placed: list[tuple[float, float, str, float]] = []  # column, line, word, shade
    heads: list[tuple[float, str]] = []
    line = 0.0
    for name, k in zip(names, chosen, strict=True):
        for e, shade in zip(listed, shades, strict=True):
            heads.append((line, name if len(listed) == 1 else f"{name}; {e.method}"))
            line += 1.0
            column = 0.0
            for word, value in zip(words[k], shade[k], strict=False):
                text = one_line(str(word))[:LINE] or " "
                wide = _columns(text)
                if column + wide > LINE:
                    column, line = 0.0, line + 1.25
                placed.append((column, line, text, value))
                column += wide + 1
            line += 1.6
        line += 0.2

    def plot(ax: Any) -> None:
        ax.axis("off")
        ax.set_xlim(-0.5, LINE + 0.5)
        ax.set_ylim(line - 0.4, -0.7)
        for at, head in heads:
            ax.text(0, at, label_text(head), fontsize=7.5, va="center", color="#555")
        for column, at, text, value in placed:
            wide = _columns(text)
            color = (*_rgb(FOR if value > 0 else AGAINST), 0.75 * abs(value))
            left, right = column - 0.35, column + wide + 0.35
            ax.fill(
                [left, right, right, left], [at - 0.5, at - 0.5, at + 0.5, at + 0.5], color=color,
                linewidth=0,
            )  # fmt: skip
            ax.text(
                column + wide / 2,
                at,
                label_text(text),
                fontsize=9,
                family="monospace",
                ha="center",
                va="center_baseline",
            )

    return draw(
        "words",
        plot,
        caption=_caption(listed, left),
        size=(7.4, 0.2 + 0.19 * line),
    )


def words_html(
    explanation: Explanation, words: Sequence[Sequence[str]], *, sample: int = 0, part: int = 0
) -> Markup:
    """One sentence as a piece of HTML: each word on the color of its relevance, which it tells.

    Words are escaped. The colors let the page shine through, so that they do on dark ones too.

    >>> import torch
    >>> from torchtheory.explanation.explanation import Explanation
    >>> made = Explanation(torch.tensor([[0.5, -1.0]]), torch.tensor([-0.5]), "LRP")
    >>> print(words_html(made, [["very", "<bad>"]])[-25:])
    &lt;bad&gt;</span></span>
    """
    shade = _shades(explanation, words, part)[sample]
    values = _part(explanation, part)[sample]
    spans = []
    for word, weight, value in zip(words[sample], shade, values, strict=False):
        red, green, blue = (round(255 * c) for c in _rgb(FOR if weight > 0 else AGAINST))
        color = f"rgba({red},{green},{blue},{0.75 * abs(weight):.2f})"
        told = number_label(float(value))
        shown = escape(one_line(str(word)) or "\N{NO-BREAK SPACE}")
        spans.append(
            Markup('<span style="background:{}" title="{}">{}</span>').format(color, told, shown)
        )
    return Markup('<span class="words">{}</span>').format(Markup(" ").join(spans))


def bars(
    explanations: Explanation | Sequence[Explanation],
    names: Sequence[str] | None = None,
    *,
    sample: int | None = None,
    values: Tensor | None = None,
    part: int = 0,
) -> Figure:
    """Relevance of the features of a table, the largest first.

    Args:
        explanations: one, or several of the same samples side by side.
        names: of the features; numbers unless given.
        sample: whose relevance; the mean over all samples unless given, with two standard errors
            of that mean. For one sample the bars are two standard errors of the method, if it
            draws at random.
        values: `[d]`, what the sample has in each feature, shown beside the names.
        part: see `heatmaps`.
    """
    listed = _listed(explanations)
    parts = [_part(e, part) for e in listed]
    flats = [p.reshape(len(p), -1) for p in parts]
    d = flats[0].shape[1]
    labels = [f"feature {j}" for j in range(d)] if names is None else [str(n) for n in names]
    if len(labels) != d:
        raise ShapeMismatch(f"there are {len(labels)} names for {d} features")
    if sample is None and len(flats[0]) == 1:
        sample = 0
    for f in flats[1:]:
        if f.shape != flats[0].shape:
            raise ShapeMismatch(f"relevance of {d} and of {f.shape[1]} features in one picture")
    heights, errors = [], []
    for e, f in zip(listed, flats, strict=True):
        if sample is None:
            heights.append(f.mean(0))
            errors.append(2 * f.std(0, ddof=1) / math.sqrt(len(f)))
        else:
            _sample_of(e, sample)
            heights.append(f[sample])
            told = None if e.error is None else _numbers(_tensor(e.error, part))
            errors.append(None if told is None else 2 * told.reshape(len(f), -1)[sample])
    largest = np.max([np.abs(h) / max(np.abs(h).max(), 1e-300) for h in heights], axis=0)
    order = np.argsort(-largest, kind="stable")[:BARS]
    if values is not None:
        own = _numbers(values).reshape(-1)
        if len(own) != d:
            raise ShapeMismatch(f"there are {len(own)} values of {d} features")
        labels = [f"{name} = {number_label(float(v))}" for name, v in zip(labels, own, strict=True)]
    short = [label_text(shortened(labels[j], 34)) for j in order]

    def plot(axes: Any) -> None:
        for ax, e, height, error in zip(axes[0], listed, heights, errors, strict=True):
            colors = [FOR if v > 0 else AGAINST for v in height[order]]
            spread = None if error is None else error[order]
            ax.barh(
                range(len(order)), height[order], color=colors, xerr=spread, height=0.72,
                error_kw={"ecolor": "#333", "elinewidth": 1, "capsize": 2},
            )  # fmt: skip
            ax.axvline(0, color="#333", linewidth=0.8)
            ax.set_ylim(len(order) - 0.4, -0.6)
            ax.set_yticks(range(len(order)), short if ax is axes[0, 0] else [])
            ax.grid(visible=False, axis="y")
            ax.locator_params(axis="x", nbins=5)
            ax.set_title(label_text(_broken(e.method)), fontsize=9)
        axes[0, 0].set_xlabel("relevance" if len(listed) == 1 else "")

    said = (
        f"Mean over {len(flats[0])} samples, with two standard errors."
        if sample is None
        else "Red speaks for the score, blue against it."
    )
    if sample is not None and any(e is not None for e in errors):
        said += " Bars show two standard errors of the method."
    if d > BARS:
        said += f" The {BARS} largest of {d} features."
    one = len(listed) == 1
    return draw(
        "bars",
        (lambda ax: plot(np.array([[ax]], dtype=object))) if one else plot,
        caption=said,
        grid=(1, len(listed)),
        size=(5.6 if one else min(2.4 + 2.4 * len(listed), 11.0), 0.9 + 0.23 * len(order)),
    )


def picture(
    explanations: Explanation | Sequence[Explanation],
    x: Tensor | None = None,
    *,
    names: Sequence[str] | None = None,
    words: Sequence[Sequence[str]] | None = None,
    samples: Sequence[int] | None = None,
    part: int = 0,
) -> Figure:
    """The picture that suits the inputs: words if there are words, heatmaps of images, or bars.

    Args:
        explanations: one, or several of the same samples.
        x: the inputs, to lie under heatmaps.
        names: of the features of a table.
        words: of the samples.
        samples: which; bars show the mean over all unless it is one.
        part: see `heatmaps`.
    """
    if words is not None:
        return colored_words(explanations, words, samples=samples, part=part)
    if _part(_listed(explanations)[0], part).ndim > 2:
        return heatmaps(explanations, x, samples=samples, part=part)
    sample = samples[0] if samples is not None and len(samples) == 1 else None
    values = None
    if x is not None and sample is not None:
        first = _listed(explanations)[0]
        if len(x) != len(first):
            raise ShapeMismatch(f"there are {len(x)} inputs for {len(first)} samples")
        values = x[_sample_of(first, sample)]
    return bars(explanations, names, sample=sample, values=values, part=part)


# The explanations


def _listed(explanations: Explanation | Sequence[Explanation]) -> list[Explanation]:
    listed = list(explanations) if isinstance(explanations, list | tuple) else [explanations]
    if not listed:
        raise InvalidInput("there is no explanation to draw")
    for other in listed[1:]:
        if len(other) != len(listed[0]):
            raise ShapeMismatch(
                f"explanations of {len(listed[0])} and of {len(other)} samples in one picture"
            )
    return listed  # type: ignore[return-value]


def _tensor(relevance: Tensor | tuple[Tensor, ...], part: int) -> Tensor:
    parts = (relevance,) if isinstance(relevance, Tensor) else relevance
    return parts[whole_number(part, "part", least=0, most=len(parts) - 1)]


def _numbers(values: Tensor) -> Array:
    return np.asarray(values.detach().cpu().double().numpy(), dtype=np.float64)


def _part(explanation: Explanation, part: int) -> Array:
    return _numbers(_tensor(explanation.relevance, part))


def _maps(explanation: Explanation, part: int) -> Array:
    """Heatmaps `[n, H, W]`: channels of a pixel are added."""
    values = _part(explanation, part)
    if values.ndim == 4:
        values = values.sum(1)
    if values.ndim != 3:
        raise ShapeMismatch(
            f"a heatmap needs relevance [n, C, H, W] or [n, H, W], not {list(values.shape)}: use "
            "bars for tables and colored_words for words"
        )
    return values


def _images(x: Tensor, shape: tuple[int, ...]) -> Array:
    values = _numbers(x)
    if values.ndim == 3:
        values = values[:, None]
    if values.ndim != 4 or (len(values), *values.shape[2:]) != shape:
        raise ShapeMismatch(
            f"images {list(x.shape)} do not belong to heatmaps {list(shape)} of the same samples"
        )
    return values


def _chosen(e: Explanation, samples: Sequence[int] | None, most: int) -> tuple[list[int], str]:
    """Samples to show, and what to say about the others."""
    if samples is not None:
        return [_sample_of(e, k) for k in samples], ""
    left = f" The first {most} of {len(e)} samples." if len(e) > most else ""
    return list(range(min(len(e), most))), left


def _sample_of(e: Explanation, k: int) -> int:
    return whole_number(k, "sample", least=0, most=len(e) - 1)


def _titles(e: Explanation, chosen: Sequence[int], titles: Sequence[str] | None) -> list[str]:
    if titles is None:
        return [sample_title(e, k) for k in chosen]
    if len(titles) != len(chosen):
        raise ShapeMismatch(f"there are {len(titles)} titles for {len(chosen)} samples")
    return [shortened(t, 40) for t in titles]


def sample_title(e: Explanation, sample: int) -> str:
    """What was explained: a class and its score."""
    score = f"score {number_label(float(e.score[sample]))}"
    return score if e.classes is None else f"class {int(e.classes[sample])}, {score}"


def _caption(listed: Sequence[Explanation], left: str) -> str:
    of = listed[0].method if len(listed) == 1 else "Each method"
    return (
        f"{of}: red speaks for the score, blue against it; every picture has its own scale.{left}"
    )


def number_label(value: float) -> str:
    """A number with a real minus sign."""
    return number_words(value).replace("-", MINUS)


def shortened(text: str, most: int) -> str:
    """A text on one line, of so many characters at most."""
    text = one_line(text)
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def _broken(text: str) -> str:
    """A title over a narrow panel, on two lines if it is long."""
    text = shortened(text, 60)
    if len(text) <= 20 or " " not in text:
        return text
    spaces = [k for k, c in enumerate(text) if c == " "]
    at = min(spaces, key=lambda k: abs(k - len(text) / 2))
    return f"{text[:at]}\n{text[at + 1 :]}"


# Colors


def _rgb(color: str) -> tuple[float, float, float]:
    red, green, blue = (int(color[k : k + 2], 16) / 255 for k in (1, 3, 5))
    return red, green, blue


def _smooth(heat: Array, blur: float) -> Array:
    if not blur:
        return heat
    from scipy.ndimage import gaussian_filter

    # reflected at the border: nothing leaves the image
    return np.asarray(gaussian_filter(heat, blur, mode="reflect"), dtype=np.float64)


def _over(strength: Array, image: Array) -> Array:
    """Colors `[H, W, 3]` of a heatmap from -1 to 1 over the image `[C, H, W]` in gray."""
    below = 0.62 + 0.38 * _scaled(image.mean(0))  # light, so that colors keep their brightness
    # full color already at half the largest relevance: single pixels stand out anyway
    weight = np.minimum(2 * np.abs(strength), 1.0)[..., None]
    ends = np.where(strength[..., None] > 0, _rgb(FOR), _rgb(AGAINST))
    deep = 1 - 0.3 * np.maximum(np.abs(strength)[..., None] - 0.5, 0.0)
    return np.asarray((1 - weight) * below[..., None] + weight * ends * deep)


def _scaled(image: Array) -> Array:
    low, high = float(image.min()), float(image.max())
    return (image - low) / ((high - low) or 1.0)


def _shown(image: Array) -> Array:
    """An image as matplotlib takes it: in color if it has three channels, gray otherwise."""
    return _scaled(image).transpose(1, 2, 0) if len(image) == 3 else _scaled(image.mean(0))


def _shades(e: Explanation, words: Sequence[Sequence[str]], part: int) -> Array:
    """Relevance `[n, T]` from -1 to 1 in every sentence."""
    values = _part(e, part)
    if values.ndim != 2:
        raise ShapeMismatch(f"words need relevance [n, words], not {list(values.shape)}")
    if len(words) != len(values):
        raise ShapeMismatch(f"there are words of {len(words)} samples, relevance of {len(values)}")
    if any(isinstance(w, str) for w in words):
        raise InvalidInput("words are given as a list of words for every sample, not as one text")
    if max(map(len, words)) > values.shape[1]:
        raise ShapeMismatch(
            f"a sentence has {max(map(len, words))} words, but relevance {values.shape[1]}"
        )
    return np.asarray(values / np.maximum(np.abs(values).max(1, keepdims=True), 1e-300))


def _bare(ax: Any) -> Any:
    ax.set_xticks([])
    ax.set_yticks([])
    ax.grid(visible=False)
    for spine in ax.spines.values():
        spine.set_visible(True)
        spine.set_color("#c8ccd2")
        spine.set_linewidth(0.6)
    return ax


def _meaning(axes: Any, scale: Any) -> None:
    """The meaning of the colors, once for all panels."""
    flat = list(np.asarray(axes, dtype=object).ravel())
    bar = flat[0].figure.colorbar(
        scale, ax=flat, shrink=min(1.0, 1.6 / axes.shape[0]), aspect=18, pad=0.02
    )
    bar.set_ticks([-1, 0, 1], labels=["against", "0", "for"], fontsize=8)
    bar.outline.set_linewidth(0.4)


def _columns(text: str) -> int:
    """How many columns of a monospaced font a text takes."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
