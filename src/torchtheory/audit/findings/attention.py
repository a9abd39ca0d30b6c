"""What attention looks at: everything, one token, or something in between; are tokens alike?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.engine.ranges import mean_range, part_of
from torchtheory.audit.findings.hypotheses import deterministic
from torchtheory.core.errors import UnsupportedModel
from torchtheory.core.figure import COLORS, label_text
from torchtheory.core.intervals import Interval
from torchtheory.core.usual import above, below
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.report.numbers import size_words
from torchtheory.report.wording import counted
from torchtheory.sequences.attention.watching import (
    TokenSpread,
    WatchedHeads,
    joined_heads,
    joined_spreads,
    watch_attention,
)

#: Samples looked at, and the forward passes that each costs.
SAMPLES, PASSES = 32, 4

#: Relative entropies below which a head looks at one token, and above which at all alike.
ONE, ALL = 0.05, 0.99

#: A mean weight of one token, over all that look, above which a head looks at that token alone.
SAME = 0.9

#: Tokens that are this close to being all the same, after layers that made them ten times closer,
#: have collapsed.
COLLAPSED, CLOSER = 0.01, 0.1


@finding(
    "attention-maps",
    area="signals",
    title="What attention looks at, and how alike tokens become",
    cost="forward",
    needs=[deterministic],
)
def attention_maps(problem: Problem, record: FindingRecord) -> None:
    """Entropy of attention by layer and head, and the spread of tokens by depth."""
    count = min(SAMPLES, problem.affordable(PASSES))
    # one sample first: most models have no attention, which costs no more than that to see
    heads, spreads = watch_attention(problem.function, problem.train.x[:1])
    if not heads:
        raise UnsupportedModel("the model calls no attention")
    samples = problem.train.some(count, record.generator)
    parts = [
        watch_attention(problem.function, x)
        for x, _ in samples.chunks(max(1, min(problem.chunk, problem.capacity)))
    ]
    if any(len(h) != len(heads) or len(s) != len(spreads) for h, s in parts):
        record.headline("Its attention layers differ from batch to batch; nothing is said of them.")
        return
    heads, spreads = joined_heads([h for h, _ in parts]), joined_spreads([s for _, s in parts])
    judged = _judged(record, heads, samples)
    _draw(record, heads, spreads, samples)
    if len(samples) < 2:
        record.headline("There was time for one sample only; see the figures.")
        return
    if not _assess_collapse(problem, record, spreads, samples):
        _assess_heads(record, judged, samples)


@dataclass(frozen=True, slots=True)
class Judged:
    """One head: its relative entropy with its range, and what it does."""

    layer: str
    head: int
    entropy: Interval
    favorite: Interval

    @property
    def kind(self) -> str:
        if self.entropy.low > ALL:
            return "averages"
        if self.favorite.low > SAME:
            return "one and the same token"
        return "one token" if self.entropy.high < ONE else ""


def _range(values: Tensor, samples: Samples, confidence: float) -> Interval:
    return mean_range(values, len(samples), samples.population, confidence)


def _judged(record: FindingRecord, heads: list[WatchedHeads], samples: Samples) -> list[Judged]:
    # what is said of all heads holds of all at once
    each = 1 - (1 - record.confidence) / max(1, sum(layer.heads for layer in heads))
    judged = [
        Judged(
            layer.name or layer.kind,
            h,
            _range(layer.entropy[:, h], samples, each),
            _range(layer.favorite[:, h], samples, each),
        )
        for layer in heads
        for h in range(layer.heads)
    ]
    record.table(
        "heads",
        ("layer", "head", "relative entropy", "from", "to", "most looked at", "what it does"),
        [
            (
                j.layer,
                j.head,
                j.entropy.estimate,
                j.entropy.low,
                j.entropy.high,
                j.favorite.estimate,
                j.kind,
            )
            for j in judged
        ],
        caption="Relative entropy of a token's weights: 0 if it looks at one token, 1 if it "
        "averages over all it may look at; means over tokens and samples. Most looked at: the "
        "largest mean weight that one token gets from all others.",
    )
    if len(samples) > 1:
        whole = torch.cat([layer.entropy for layer in heads], 1).mean(1)
        record.quantity(
            "attention-entropy",
            "relative entropy of attention, mean over all heads",
            _range(whole, samples, record.confidence),
            samples=samples,
        )
        record.quantity(
            "least-entropy",
            "relative entropy of attention, the head where it is least",
            min(j.entropy.estimate for j in judged),
            low=min(j.entropy.low for j in judged),
            high=min(j.entropy.high for j in judged),
            basis=f"{record.confidence:.4g} {judged[0].entropy.test}, all heads at once",
            samples=samples,
        )
    return judged


def _assess_heads(record: FindingRecord, judged: Sequence[Judged], samples: Samples) -> None:
    number, least = record.quantities[:2]
    kinds = [j.kind for j in judged]
    average, same = kinds.count("averages"), kinds.count("one and the same token")
    part = part_of(samples)
    if average == len(judged):
        record.look(
            f"All {counted(len(judged), 'head')} average over the tokens they may look at"
            f"{part}: attention does nothing here that a mean would not.",
            number=least,
            usual=below(ALL, f"below {ALL:g} for some heads"),
            action="Train it longer or with a larger learning rate for queries and keys; if it "
            "does as well with means, it needs no attention.",
            figure="entropies",
        )
        return
    others = []
    if average:
        others.append(f"{average} of {counted(len(judged), 'head')} average over their tokens")
    if same:
        verb = "looks" if same == 1 else "look"
        others.append(f"{same} {verb} at one and the same token whatever the sample's others are")
    one = kinds.count("one token")
    if one:
        others.append(f"{one} {'looks' if one == 1 else 'look'} at one token at a time")
    said = "; ".join(others) or "no head is seen to average over its tokens or to look at one only"
    record.headline(
        f"Attention has {size_words(number)} of its largest entropy on average{part}: {said}."
    )


def _assess_collapse(
    problem: Problem, record: FindingRecord, spreads: list[TokenSpread], samples: Samples
) -> bool:
    """Whether the tokens of a stack of blocks have become all the same."""
    stacks = dict.fromkeys(s.stack for s in spreads)
    for k, stack in enumerate(stacks):
        rows = [s for s in spreads if s.stack == stack]
        first, last = rows[0], rows[-1]
        end = _range(last.distance, samples, record.confidence)
        number = record.quantity(
            "token-spread" if k == 0 else f"token-spread-{k + 1}",
            "distance of the last tokens from being all the same, of their size"
            + (f", stack {k + 1}" if k else ""),
            end,
            samples=samples,
        )
        begin = float(first.distance.mean())
        if len(rows) > 1 and end.high < COLLAPSED and end.high < CLOSER * begin:
            # where each position has its own output, that is lost as well
            say = record.defect if problem.task == "labeling" else record.look
            say(
                f"Tokens become alike with depth: behind {last.name} they differ from their "
                f"mean by {size_words(end)} of their size, and before the first layer by "
                f"{begin:.2g}{part_of(samples)}.",
                number=number,
                usual=above(COLLAPSED),
                action="Keep residual connections around attention, or use fewer layers.",
                figure="depth",
            )
            return True
    return False


# ------------------------------------------------------------------------------------- figures


def _draw(
    record: FindingRecord, heads: list[WatchedHeads], spreads: list[TokenSpread], samples: Samples
) -> None:
    shown = heads[:4]
    columns = min(4, max(layer.heads for layer in shown))
    grid = (len(shown), columns)

    def maps(axes: Any) -> None:
        panels = iter([axes] if grid == (1, 1) else axes.flat)
        for layer in shown:
            for h in range(columns):
                ax = next(panels)
                if h >= layer.heads:
                    ax.set_axis_off()
                    continue
                ax.imshow(layer.weights[h].float().numpy(), cmap="viridis", vmin=0)
                ax.grid(False)
                ax.set_title(f"{_short(layer.name or layer.kind)}, head {h}", fontsize=7)
                ax.tick_params(labelsize=6)

    record.figure(
        "maps",
        maps,
        caption="What each token (row) of one sample looks at (column), by layer and head; the "
        "first heads of the first layers.",
        grid=grid,
        size=(1.9 * columns + 0.4, 1.9 * len(shown) + 0.3),
    )
    record.figure(
        "entropies",
        lambda ax: _plot_entropies(ax, heads),
        caption=f"Relative entropy of the heads by layer, means over {len(samples)} samples: 1 is "
        "an average over all tokens, 0 a look at one.",
        size=(5, 3),
    )
    if len(spreads) > 1:
        record.figure(
            "depth",
            lambda ax: _plot_depth(ax, spreads),
            caption="How far tokens are from being all the same, of their size, by depth; the "
            "bars reach over the samples.",
            size=(5, 3),
        )


def _plot_entropies(ax: Any, heads: list[WatchedHeads]) -> None:
    for k, layer in enumerate(heads):
        values = layer.entropy.mean(0)
        low, high = layer.entropy.amin(0), layer.entropy.amax(0)
        across = k + 0.5 * (torch.arange(layer.heads) + 0.5 - layer.heads / 2) / layer.heads
        bars = torch.stack([values - low, high - values])
        ax.errorbar(across, values, bars, fmt="o", ms=3.5, color=COLORS[0], elinewidth=0.8)
    ax.set_xticks(range(len(heads)), [_short(layer.name or layer.kind) for layer in heads])
    ax.tick_params(axis="x", labelsize=7, rotation=30 if len(heads) > 4 else 0)
    ax.set(ylabel="relative entropy", ylim=(-0.03, 1.03))


def _plot_depth(ax: Any, spreads: list[TokenSpread]) -> None:
    for k, stack in enumerate(list(dict.fromkeys(s.stack for s in spreads))[: len(COLORS)]):
        rows = [s for s in spreads if s.stack == stack]
        mean = torch.stack([s.distance.mean() for s in rows])
        low = torch.stack([s.distance.amin() for s in rows])
        high = torch.stack([s.distance.amax() for s in rows])
        bars = torch.stack([mean - low, high - mean])
        ax.errorbar(
            range(len(rows)), mean, bars, fmt="o-", ms=3.5, color=COLORS[k], elinewidth=0.8,
            label=label_text(stack),
        )  # fmt: skip
    ax.set(xlabel="blocks passed", ylabel="distance from all the same")
    low = ax.get_ylim()[0]
    ax.set_ylim(min(0.0, low), None)
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.legend(loc="lower left")


def _short(name: str) -> str:
    """The end of a long path, which tells layers apart."""
    parts = name.split(".")
    return label_text(".".join(parts[-3:]))
