r"""Clever Hans: classifiers that are right for the wrong reason.

A network that tells horses by the photographer's tag is right as long as the tag is there. Three
things give it away. Relevance of the class lies in a small place, the same in many samples: in all
of them, or in a cluster of similar heatmaps. Without what stands there the class is not recognized.
And *planted* on samples of other classes, it turns them into this one.

The last is a test: what makes a horse of most other pictures, while it covers a sixteenth of them
at most, is no horse. A place is *suspicious* if the share of foreign samples that it converts is
above 1/2 with the stated confidence (Clopper and Pearson, over all classes together). It is chosen
by relevance and never by what it converts, so the test is not bent by the choice. A tag that only
helps, and converts fewer, is not accused: by these numbers it is like a part of the object, such as
the hole of a zero, without which zeros are not recognized either. Source: Mathematical Aspects of
Deep Learning, section 5.2.1 with footnote 1, and section 5.3.3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.core.checks import described, open_fraction
from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType, ShapeMismatch
from torchtheory.core.intervals import Interval, clopper_pearson
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.explanation.by_feature import Method, feature_totals, relevance_of, sample_mean
from torchtheory.explanation.judging.heatmap_clusters import heatmap_clusters
from torchtheory.explanation.judging.localization import features_inside
from torchtheory.explanation.methods.gradients import integrated_gradients
from torchtheory.explanation.score import Score, open_score

#: Largest share of the features that is a small place.
AREA = 1 / 16

#: Share of foreign samples above which what stands in a place decides alone.
CONVERTED = 0.5

#: Fewest samples of a class, and of a cluster.
FEWEST = 8

#: Most samples of a class that are looked at, and most that things are planted on.
OWN, FOREIGN = 400, 400

#: Points on the way of the integrated gradients that are used unless another method is given.
STEPS = 8


@dataclass(frozen=True, slots=True)
class Cluster:
    """Samples of a class whose heatmaps are alike.

    Attributes:
        label: the class.
        members: their numbers among the samples given.
        heatmap: their mean, in the shape of one sample's features.
    """

    label: int
    members: Tensor
    heatmap: Tensor


@dataclass(frozen=True, slots=True)
class Place:
    """A place that a class may hang on.

    Attributes:
        label: the class.
        mask: True in the place, in the shape of one sample's features.
        area: the share of the features that it covers.
        share: of the positive relevance that lies in it; the mean over samples that had no part in
            its choice.
        planted: share of samples of other classes that become this one when what samples of the
            class have there is put into them.
        accuracy, without: how often samples of the class are recognized, as they are and with the
            place filled by the mean of the other classes.
    """

    label: int
    mask: Tensor
    area: float
    share: Interval
    planted: Interval
    accuracy: Interval
    without: Interval

    @property
    def suspicious(self) -> bool:
        """Whether the place alone makes the class, in most samples of others."""
        return self.planted.low > CONVERTED and self.share.low > self.area


@dataclass(frozen=True, slots=True)
class CleverHans:
    """What may be wrong with the reasons of a classifier.

    Attributes:
        heatmaps: `[n, ...]`, positive relevance of the samples' own classes, adding up to 1; all 0
            for a sample without any.
        clusters: of each class, of samples that are recognized.
        eigenvalues: the smallest ones of the graph of each class's heatmaps; the largest gap tells
            the number of clusters.
        places: one for each class: that with most relevance, in all its samples or, of images, in
            a cluster; or that of the artifact. None where samples have fewer than 16 features, one
            of which is no small place.
    """

    heatmaps: Tensor
    clusters: tuple[Cluster, ...]
    eigenvalues: dict[int, Tensor]
    places: tuple[Place, ...]

    @property
    def suspects(self) -> tuple[Place, ...]:
        """The suspicious places, those that convert most first."""
        found = [p for p in self.places if p.suspicious]
        return tuple(sorted(found, key=lambda p: -p.planted.estimate))


def clever_hans(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    artifact_mask: Tensor | None = None,
    *,
    method: Method | None = None,
    output: int | str | None = None,
    level: float = 0.0,
    confidence: float = 0.95,
    generator: RandomSource = None,
) -> CleverHans:
    """Look for small places that a class hangs on, or judge one that is suspected.

    Args:
        model: a classifier with one logit per class, or with a single one for class 1.
        x: real inputs `[n, ...]`.
        y: their classes `[n]`, as whole numbers.
        artifact_mask: True in the place that is suspected, in the shape of one sample's features
            (`[height, width]` of images); searched for unless given.
        method: that explains, called as `method(model, x, target)`; integrated gradients from the
            mean of the inputs unless given, which also see what is darker than usual.
        output: position or key of the output that is meant, where there are several.
        level: of a single logit, above which it says class 1.
        confidence: of all statements about places together.
        generator: of what is planted where.

    Time: an explanation of every sample (8 passes in each direction unless a method is given), and
    about two passes forward for each sample and class.

    Raises:
        EmptyData: if fewer than two classes have 8 samples that are recognized.
    """
    open_fraction(confidence, "confidence")
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim < 2:
        raise InvalidType("places are looked for in one tensor of real inputs [n, ...]")
    if not isinstance(y, Tensor) or y.is_floating_point() or y.shape != (len(x),):
        raise ShapeMismatch(
            f"y must have the classes of {len(x)} samples as whole numbers, not {described(y)}"
        )
    source = as_generator(generator)
    y = y.cpu().long()
    heat = own_heatmaps(model, x, y, method, output)
    shape = x.shape[2:] if x.ndim == 4 else x.shape[1:]
    fixed = None if artifact_mask is None else features_inside(artifact_mask, x)[0]
    if fixed is not None and not bool(fixed.any()):
        raise EmptyData("the mask of the artifact is empty")
    with open_score(model, x, _any_score, output=output) as score:
        asked = _Asked(score, level)
        known = asked.said(score.points) == y
        usable = known & (heat.sum(1) > 0)
        counts = {int(c): int((usable & (y == c)).sum()) for c in sorted(set(y.tolist()))}
        labels = [c for c, count in counts.items() if count >= FEWEST]
        if len(labels) < 2:
            raise EmptyData(
                f"there are no two classes of which the model recognizes {FEWEST} samples or more"
            )
        each = 1 - (1 - confidence) / len(labels)
        clusters: list[Cluster] = []
        places: list[Place] = []
        eigenvalues: dict[int, Tensor] = {}
        for label in labels:
            own = (usable & (y == label)).nonzero().flatten()
            own = own[torch.randperm(len(own), generator=source)[:OWN].sort().values]
            grouped = heatmap_clusters(_pictures(heat[own], shape))
            eigenvalues[label] = grouped.eigenvalues
            groups = [own[m] for m in grouped.members]
            clusters += [Cluster(label, g, heat[g].mean(0).reshape(shape)) for g in groups]
            if fixed is not None:
                choice = _Choice(fixed, own, own)
            elif heat.shape[1] * AREA >= 1:
                # of a table, clusters are samples in which one feature is large: of course it
                # converts others, also where it is one of several that matter
                choice = _densest(heat, [own, *groups] if len(shape) == 2 else [own], shape)
            else:
                continue
            places.append(asked.judged(choice, label, y, heat, shape, each, source))
    return CleverHans(heat.reshape(len(x), *shape), tuple(clusters), eigenvalues, tuple(places))


def own_heatmaps(
    model: nn.Module, x: Tensor, y: Tensor, method: Method | None, output: int | str | None
) -> Tensor:
    """Positive relevance of each sample's own class, `[n, features]`, adding up to 1 or all 0."""
    how = method or partial(integrated_gradients, baseline=x.mean(0), steps=STEPS, output=output)
    with open_score(model, x, _any_score, output=output) as score:
        outputs = score.outputs.reshape(len(x), -1)
    classes = max(2, outputs.shape[1])
    if int(y.max()) >= classes or int(y.min()) < 0:
        raise InvalidInput(
            f"the model has the classes 0 to {classes - 1}, and y those from {int(y.min())} to "
            f"{int(y.max())}"
        )
    if outputs.shape[1] == 1:  # one logit, that of class 1
        relevance = feature_totals(relevance_of(how(model, x, None), len(x))).cpu()
        relevance = relevance * (2 * y - 1)[:, None]
    else:
        relevance = feature_totals(relevance_of(how(model, x, y), len(x))).cpu()
    positive = relevance.double().clamp(min=0)
    total = positive.sum(1, keepdim=True)
    return positive / torch.where(total > 0, total, 1.0)


@dataclass(frozen=True, slots=True)
class _Choice:
    """A place `[features]`, the samples that have it, and those of them that did not choose it."""

    mask: Tensor
    members: Tensor
    judges: Tensor


class _Asked:
    """A classifier that is asked what it makes of changed samples."""

    def __init__(self, score: Score, level: float) -> None:
        self.score, self.level = score, level

    def said(self, points: Tensor) -> Tensor:
        """The classes `[m]` of points, some at a time."""
        parts = []
        with torch.no_grad():
            for some in torch.split(points, self.score.at_once):
                out = self.score.run(some).reshape(len(some), -1)
                parts.append(
                    (out[:, 0] > self.level).long() if out.shape[1] == 1 else out.argmax(1)
                )
        return torch.cat(parts).cpu()

    def judged(
        self,
        choice: _Choice,
        label: int,
        y: Tensor,
        heat: Tensor,
        shape: Sequence[int],
        confidence: float,
        source: torch.Generator,
    ) -> Place:
        points, inside = self.score.points, choice.mask.to(self.score.features.device)
        entries = inside[self.score.features]
        foreign = (y != label).nonzero().flatten()
        usual = points[foreign].mean(0)
        members = choice.members
        without = self.said(torch.where(entries, usual, points[members])) == label
        before = self.said(points[members]) == label
        drawn = torch.randperm(len(foreign), generator=source)[:FOREIGN]
        targets = foreign[drawn]
        targets = targets[self.said(points[targets]) != label]
        planted = Interval(0.0, 0.0, 1.0, confidence, 0, "no sample")
        if len(targets):
            donors = members[torch.randint(len(members), (len(targets),), generator=source)]
            turned = self.said(torch.where(entries, points[donors], points[targets])) == label
            planted = clopper_pearson(int(turned.sum()), len(turned), confidence)
        return Place(
            label,
            choice.mask.reshape(shape),
            float(choice.mask.double().mean()),
            sample_mean(heat[choice.judges][:, choice.mask].sum(1), confidence),
            planted,
            clopper_pearson(int(before.sum()), len(before), confidence),
            clopper_pearson(int(without.sum()), len(without), confidence),
        )


def _densest(heat: Tensor, groups: Sequence[Tensor], shape: Sequence[int]) -> _Choice:
    """The place with the largest share of relevance, of all samples or of a cluster.

    Every other sample of a group chooses, and the rest judges.
    """
    best, found = -1.0, None
    for group in groups:
        if len(group) < FEWEST:
            continue
        share, mask = _window(heat[group[::2]].mean(0), shape)
        if share > best:
            best, found = share, _Choice(mask, group, group[1::2])
    assert found is not None  # the first group is the whole class
    return found


def _window(heat: Tensor, shape: Sequence[int]) -> tuple[float, Tensor]:
    """The square of an image, or the feature of anything else, with most of a heatmap."""
    mask = torch.zeros(heat.shape, dtype=torch.bool)
    if len(shape) != 2:
        place = int(heat.argmax())
        mask[place] = True
        return float(heat[place]), mask
    side = max(1, math.isqrt(int(AREA * heat.numel())))
    side = min(side, *shape)
    sums = F.avg_pool2d(heat.reshape(1, 1, *shape), side, 1)[0, 0] * side**2
    row, column = divmod(int(sums.argmax()), sums.shape[1])
    mask.view(*shape)[row : row + side, column : column + side] = True
    return float(sums.max()), mask


def _pictures(heat: Tensor, shape: Sequence[int]) -> Tensor:
    """Heatmaps of images as images, of anything else as rows."""
    return heat.reshape(len(heat), *shape) if len(shape) == 2 else heat


def _any_score(outputs: Tensor) -> Tensor:
    """The outputs themselves are asked for, and any number of them opens the model."""
    return outputs.reshape(len(outputs), -1)[:, 0]
