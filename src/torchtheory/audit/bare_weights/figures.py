"""The figures of an audit of weights alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from torchtheory.audit.bare_weights.survey import Matrix
from torchtheory.audit.engine.finding import FindingRecord
from torchtheory.core.figure import COLORS, label_text

# Layers in one figure: as curves with a legend, and as points.
_CURVES, _POINTS = 12, 60


def draw_norms(layers: Sequence[Matrix], record: FindingRecord) -> None:
    """Spectral norms and stable ranks by depth."""
    shown = layers[:_POINTS]

    def plot(axes: Any) -> None:
        for ax, label, heights in (
            (axes[0, 0], "spectral norm", [m.norm for m in shown]),
            (axes[0, 1], "stable rank", [m.stable_rank or 0.0 for m in shown]),
        ):
            ax.plot(range(len(shown)), heights, "o-", markersize=4, linewidth=0.8)
            ax.set(xlabel="layer", ylabel=label)
            ax.set_yscale("log" if max(heights) > 20 * min(heights) > 0 else "linear")
            ax.xaxis.get_major_locator().set_params(integer=True)

    record.figure(
        "norms",
        plot,
        grid=(1, 2),
        size=(8.4, 3.0),
        caption="Spectral norm and stable rank of each layer, in the order of the file.",
    )


def draw_spectra(layers: Sequence[Matrix], record: FindingRecord) -> None:
    """Singular values over the largest, of layers at even distances."""
    step = math.ceil(len(layers) / _CURVES)
    shown = [(m, s) for m in layers[::step] if (s := m.singular) is not None and m.norm > 0]
    if not shown:
        return

    def plot(ax: Any) -> None:
        for k, (m, singular) in enumerate(shown):
            heights = (singular / m.norm).clamp_min(1e-8)
            across = torch.arange(1, len(heights) + 1) / len(heights)
            color, style = COLORS[k % len(COLORS)], "-" if k < len(COLORS) else "--"
            ax.plot(across, heights, style, color=color, linewidth=1.1, label=label_text(m.name))
        ax.set(xlabel="place, of all singular values", ylabel="singular value / largest")
        ax.set_yscale("log")
        ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=6.5)

    record.figure(
        "spectra",
        plot,
        size=(7.2, 3.2),
        caption="Singular values of the layers over their largest. A steep fall means that few "
        "directions carry the layer.",
    )


def draw_heaviest_tail(layers: Sequence[Matrix], record: FindingRecord) -> None:
    """The share of squared singular values above each of them, and the power law."""
    found = [(law.exponent, k) for k, m in enumerate(layers) if (law := m.tail) is not None]
    heaviest = layers[min(found)[1]]
    law, singular = heaviest.tail, heaviest.singular
    assert law is not None
    assert singular is not None
    squares = singular[singular > 0].square().flip(0)
    count = len(squares)

    def plot(ax: Any) -> None:
        ax.plot(squares, 1 - torch.arange(count) / count, ".", label="share above")
        line = torch.logspace(math.log10(law.cutoff), math.log10(float(squares[-1])), 50)
        share = law.tail / count * (line / law.cutoff) ** (1 - law.exponent)
        ax.plot(line, share, "--", label=f"power law, exponent {law.exponent:.2g}")
        ax.set(xlabel="squared singular value", ylabel="share above it", xscale="log", yscale="log")
        ax.set_title(label_text(heaviest.name))
        ax.legend()

    record.figure("tail", plot, caption="The layer with the heaviest tail, and its power law.")
