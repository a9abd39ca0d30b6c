"""Explanations as pictures: heatmaps, colored words, bars, and the ledger as a flow.

Red speaks for the score, blue against it, white does neither. The scale of every picture is
symmetric, so that zero is white, and its own: two pictures are compared by where their colors are.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import NDArray
from torch import Tensor

from torchtheory.core.checks import nonnegative_number, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.core.figure import COLORS, Figure, draw, label_text
from torchtheory.core.foreign_text import one_line
from torchtheory.report.numbers import MINUS, number_words

if TYPE_CHECKING:
    from torchtheory.explanation.explanation import Explanation
    from torchtheory.explanation.ledger import Ledger

#: Blue for what speaks against the score, red for what speaks for it; told apart by every eyesight.
FOR, AGAINST = "#b2182b", "#2166ac"

#: Most tiles, bars and layers of one picture; a caption says what was left out.
TILES, BARS, STEPS = 24, 20, 14

#: Characters on a line of words.
LINE = 84

_MAP = "RdBu_r"
_TO_BIASES, _TO_EPSILON, _LOST = COLORS[4], COLORS[3], "#8a8f98"

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
        told = number_words(float(value)).replace("-", MINUS)
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
        labels = [
            f"{name} = {number_words(float(v)).replace('-', MINUS)}"
            for name, v in zip(labels, own, strict=True)
        ]
    short = [label_text(_shortened(labels[j], 34)) for j in order]

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
        ax.text(0, 0.33, f"score {_told(start)}", ha="center", va="bottom", fontweight="bold")
        for step, height in zip(steps, heights, strict=True):
            bottom = top - height
            biases, rest = (amount * unit for amount in step.sides)
            # what leaves turns away at the top of the step, what comes back joins at its bottom
            inner = left + max(rest, 0.0), right - max(biases, 0.0)
            _stream(ax, *inner, top, bottom, step.after)
            _branch(ax, right, top, bottom, biases, +1, _TO_BIASES, step.to_biases)
            _branch(ax, left, top, bottom, rest, -1, step.left_color, step.sides[1])
            left, right, top = left + rest, right - biases, bottom
            ax.text(-3.13, top + height - 0.17, label_text(_shortened(step.name, 24)), fontsize=8,
                    va="center")  # fmt: skip
            ax.text(-3.13, top + height - 0.33, label_text(_shortened(", ".join(step.done), 34)),
                    fontsize=6.5, va="center", color="#666")  # fmt: skip
        last = steps[-1].after if steps else start
        _stream(ax, left, right, top, top - 0.25, last)
        middle = (left + right) / 2
        ax.text(middle, top - 0.3, f"inputs {_told(last)}", ha="center", va="top",
                fontweight="bold")  # fmt: skip
        for x, name, color in ((1.35, "biases", _TO_BIASES), (-1.1, "epsilon", _TO_EPSILON)):
            ax.text(x, 0.33, f"to {name}", color=color, ha="center", va="bottom", fontsize=8)

    said = "The width is the relevance on its way from the score to the inputs."
    if any(v * abs(unit) < -_THIN for s in steps for v in s.sides):
        said += " Hatched streams come back and make it wider."
    if abs(lost := sum(s.lost for s in steps)) > 1e-4 * widest:
        said += f" {_told(lost)} of it leaks (gray)."
    if sample is None and len(ledger.score) > 1:
        said = f"Mean over {len(ledger.score)} samples. {said}"
    return draw("ledger", plot, caption=said, size=(5.3, tall + 1.15))


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
    return [_shortened(t, 40) for t in titles]


def sample_title(e: Explanation, sample: int) -> str:
    """What was explained: a class and its score."""
    score = f"score {_told(float(e.score[sample]))}"
    return score if e.classes is None else f"class {int(e.classes[sample])}, {score}"


def _caption(listed: Sequence[Explanation], left: str) -> str:
    of = listed[0].method if len(listed) == 1 else "Each method"
    return (
        f"{of}: red speaks for the score, blue against it; every picture has its own scale.{left}"
    )


def _told(value: float) -> str:
    return number_words(value).replace("-", MINUS)


def _shortened(text: str, most: int) -> str:
    text = one_line(text)
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def _broken(text: str) -> str:
    """A title over a narrow panel, on two lines if it is long."""
    text = _shortened(text, 60)
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


# The flow


#: Inches of the widest stream, and below which a branch is not drawn.
_STREAM, _THIN = 1.0, 0.003


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
        values = _numbers(value)
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
        end + side * 0.06, tip[1].mean(), _told(amount), fontsize=7.5, va="center",
        ha="left" if side > 0 else "right", color="#222",
    )  # fmt: skip
