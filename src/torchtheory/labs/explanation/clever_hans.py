"""A classifier that reads a tag instead of the digit, and its twin that never saw the tag."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.data.real import digits, split
from torchtheory.explanation.judging.clever_hans import CONVERTED, CleverHans, Place, clever_hans
from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.training.loop.trainer import fit

#: The tag: four pixels in a corner, brighter than any stroke.
TAG, BRIGHTNESS = (slice(0, 2), slice(0, 2)), 2.0


@lab(
    "clever-hans",
    room="explanation",
    covers=["C-02"],
    title="Right for the wrong reason: a tag in the corner, found by explanations, and not in the clean twin",
    full={"epochs": 40, "networks": 10},
    least={"part": 0.2, "networks": 1},
    most={"part": 0.8},
)
def clever_hans_lab(run: Run, tagged: int = 3, epochs: int = 8, networks: int = 1, part: float = 0.5) -> None:
    """One digit carries a tag in a corner, in training and test data, and a network learns to read it.

    Its test accuracy is high, and nothing looks wrong. But relevance of the class lies in the corner,
    the class is not recognized without the tag, and the tag makes it of most other digits. The same
    network trained on the same digits without tags has none of this. Where only a part of the class is
    tagged, its heatmaps fall into clusters.

    Args:
        tagged: the digit with the tag.
        epochs: of each training.
        networks: of either kind.
        part: of the class that is tagged where heatmaps are clustered.
    """
    mask = torch.zeros(8, 8, dtype=torch.bool)
    mask[TAG] = True
    poisoned: list[CleverHans] = []
    clean: list[CleverHans] = []
    known: list[tuple[Place, Place]] = []
    for k in run.track(range(networks), "networks"):
        plain = split(*images(), 0.4, run.generator)
        with_tags = tuple((with_tag(x, y == tagged), y) for x, y in plain)
        for data, reports in ((with_tags, poisoned), (plain, clean)):
            net = trained(run, data[0], epochs, k)
            reports.append(clever_hans(net, *data[1], generator=run.generator))
            # the place of the tag, judged in both networks
            judged = clever_hans(net, *data[1], mask, generator=run.generator)
            place = next(p for p in judged.places if p.label == tagged)
            if data is with_tags:
                tagged_place = place
            else:
                known.append((tagged_place, place))

    says = run.states("C-02", r"\text{share of relevance in the tag, }\tfrac1{16}\text{ of the area}>\tfrac12")
    says.above([p.share.low for p, _ in known], 0.5, where="lower end of the interval, digits with tags")
    says.fails("the network saw no tags", [p.share.low for _, p in known])
    says = run.states("C-02", r"\text{accuracy of the class with its tag}\ge0.9")
    says.at_least([p.accuracy.estimate for p, _ in known], 0.9)
    says.fails("the tag is removed", [p.without.estimate for p, _ in known])
    says = run.states("C-02", r"P(\text{other digits with the tag are called the class})>\tfrac12")
    says.above(
        [p.planted.low for p, _ in known], CONVERTED, where="lower end of the interval, other digits with the tag"
    )
    says.fails("the network saw no tags", [p.planted.low for _, p in known])
    says = run.states("C-02", r"\text{places found without being told}=\text{the tag, and no other}")
    says.equal([found_tag(r, mask, tagged) for r in poisoned], 1.0)
    says.fails("the network saw no tags", [found_tag(r, mask, tagged) for r in clean])
    says = run.states("C-02", r"\text{suspicious classes of the clean twin}=0")
    says.equal([float(len(r.suspects)) for r in clean], 0.0)
    says.fails("a class has tags", [float(len(r.suspects)) for r in poisoned])

    # -- a part of the class has the tag: clusters of heatmaps
    (x, y), (tx, ty) = split(*images(), 0.4, run.generator)
    marked = [(y == tagged) & (run.rand(len(y)) < part), (ty == tagged) & (run.rand(len(ty)) < part)]
    net = trained(run, (with_tag(x, marked[0]), y), epochs, networks)
    report = clever_hans(net, with_tag(tx, marked[1]), ty, generator=run.generator)
    says = run.states("C-02", r"\text{clusters of heatmaps are of tagged or of plain digits alone}")
    says.at_least(purity(report, marked[1], tagged), 0.9, where="share of the members that are of a cluster's majority")
    invisible = trained(run, (with_tag(x, marked[0], 0.0), y), epochs, networks)
    plain_report = clever_hans(invisible, with_tag(tx, marked[1], 0.0), ty, generator=run.generator)
    says.fails("the tag is black on black", purity(plain_report, marked[1], tagged))
    run.figure(
        "heatmaps",
        lambda axes: plot(axes, poisoned[0], clean[0], report, tagged),
        grid=(2, 4),
        size=(8, 4.2),
        caption=f"Mean relevance of the digit {tagged}, and of two others, in a network that saw tags (top) and in its "
        "clean twin (bottom), with the place that holds most of it; right: clusters of the heatmaps where a part of "
        "the digits was tagged.",
    )
    run.table(
        "places",
        ("network", "class", "share of relevance", "share of the area", "planted", "accuracy", "without"),
        [
            (name, p.label, p.share.estimate, p.area, p.planted.estimate, p.accuracy.estimate, p.without.estimate)
            for name, r in (("tags", poisoned[0]), ("clean", clean[0]))
            for p in r.places
        ],
        caption="The place with most relevance of each class: 'planted' is the share of other digits that it turns "
        "into the class, 'without' the accuracy with the place filled by the mean of the others.",
    )


def purity(report: CleverHans, marked: Tensor, label: int) -> float:
    """How many samples are of the majority of their cluster, with tags or without."""
    groups = [marked[c.members] for c in report.clusters if c.label == label]
    return sum(max(int(g.sum()), int((~g).sum())) for g in groups) / sum(len(g) for g in groups)


def images() -> tuple[Tensor, Tensor]:
    x, y = digits()
    return x.reshape(-1, 1, 8, 8), y


def with_tag(x: Tensor, which: Tensor, brightness: float = BRIGHTNESS) -> Tensor:
    made = x.clone()
    corner = made[which]
    corner[:, :, *TAG] = brightness
    made[which] = corner
    return made


def trained(run: Run, data: tuple[Tensor, Tensor], epochs: int, number: int) -> nn.Module:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    for p in net.parameters():
        nn.init.normal_(p, std=0.12, generator=run.generator)
    fit(net, data, epochs=epochs, learning_rate=0.005, seed=run.seed + number)
    return net


def found_tag(report: CleverHans, mask: Tensor, tagged: int) -> float:
    """1 if the tag is the one suspicious place, found where it is."""
    suspects = report.suspects
    right = len(suspects) == 1 and suspects[0].label == tagged and torch.equal(suspects[0].mask, mask)
    return float(right)


def plot(axes: Any, poisoned: CleverHans, clean: CleverHans, parts: CleverHans, tagged: int) -> None:
    shown = [tagged, (tagged + 1) % 10, (tagged + 4) % 10]
    for row, report, name in ((axes[0], poisoned, "tags"), (axes[1], clean, "clean")):
        for ax, label in zip(row, shown, strict=False):
            members = torch.cat([c.members for c in report.clusters if c.label == label])
            place = next(p for p in report.places if p.label == label)
            heat(ax, report.heatmaps[members].mean(0), place)
            ax.set_title(f"{name}: digit {label}, converts {place.planted.estimate:.0%}", fontsize=7)
    groups = [c for c in parts.clusters if c.label == tagged]
    for ax, cluster in zip(axes[:, 3], groups, strict=False):
        heat(ax, cluster.heatmap, None)
        ax.set_title(f"a cluster of {len(cluster.members)} digits {tagged}", fontsize=7)
    for ax in axes[len(groups) :, 3]:
        ax.set_axis_off()


def heat(ax: Any, values: Tensor, place: Place | None) -> None:
    ax.imshow(values, cmap="magma", vmin=0)
    if place is not None:
        rows, columns = place.mask.nonzero(as_tuple=True)
        left, top = float(columns.min()) - 0.5, float(rows.min()) - 0.5
        box = ([left, left + 2, left + 2, left, left], [top, top, top + 2, top + 2, top])
        ax.plot(*box, color=COLORS[5], linewidth=1.5)
    ax.set_xticks([])
    ax.set_yticks([])
    ax.grid(visible=False)
