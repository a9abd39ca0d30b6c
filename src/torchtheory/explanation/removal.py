r"""Taking features away: what a score becomes when only some features of an input are left.

A feature is a set of entries of a point: a number of a table, a pixel with its channels, a patch of
an image, a word. For a set $S$ of features and a reference $b$ the point $x_S$ has the entries of
$x$ in $S$ and those of $b$ elsewhere, and with references from a background

$$
v_x(S) = \frac1m\sum_{j=1}^m f\bigl(x_S, (b_j)_{\bar S}\bigr).
$$

Occlusion, LIME and Shapley values are all made of such numbers. Source: Mathematical Aspects of
Deep Learning, section 5.3.3.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torchtheory.core.checks import all_finite, described, finite_number, whole_number
from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch
from torchtheory.explanation.score import Inputs, Score

#: What stands where a feature was: a number, or inputs of one sample or of each explained one.
Baseline = float | Tensor | tuple[Tensor, ...]

#: Which entries belong together: whole numbers in the shape of one sample of every input.
Features = Tensor | tuple[Tensor, ...]

Patch = int | tuple[int, int]


class Removal:
    """A score with features taken away.

    Attributes:
        score: that is asked.
        features: `[d]`, which feature each entry of a point belongs to.
        count: of features.
        references: what stands in the place of features, `[m, n, d]`, or `[m, 1, d]` if it is the
            same for every sample.
    """

    def __init__(
        self,
        score: Score,
        *,
        features: Features | None = None,
        patch: Patch | None = None,
        baseline: Baseline = 0.0,
        background: Inputs | None = None,
    ) -> None:
        self.score = score
        self.features = grouped(score, features, patch)
        self.count = int(self.features.max()) + 1
        self.references = references(score, baseline, background)
        numbers = torch.arange(self.count, device=self.features.device)
        self._one_each = torch.equal(self.features, numbers)

    def __call__(self, kept: Tensor, rows: Tensor | None = None) -> Tensor:
        """Scores `[n, m]` with these features left, means over the references.

        Args:
            kept: `[m, features]` for all samples, or `[n, m, features]` for each its own; true
                where a feature stays.
            rows: the samples that are meant; all of them unless given.
        """
        if kept.ndim == 2:
            return self.of_sets(len(kept), lambda sample, which: kept[which], rows)
        return self.of_sets(kept.shape[1], lambda sample, which: kept[sample, which], rows)

    def of_sets(
        self, count: int, kept: Callable[[Tensor, Tensor], Tensor], rows: Tensor | None = None
    ) -> Tensor:
        """Scores `[n, count]` with features left by a rule, so that no table of sets is needed.

        Args:
            count: of sets for each sample.
            kept: of places among `rows` `[k]` and numbers of sets `[k]`, which features stay,
                `[k, features]`.
            rows: the samples that are meant; all of them unless given.

        Time: n `count` passes forward for each reference, in chunks; memory is that of a chunk.
        """
        device = self.score.points.device
        rows = torch.arange(len(self.score), device=device) if rows is None else rows
        n, many = len(rows), len(self.references)
        total = self.score.values.new_zeros(n * count)
        for start in range(0, len(total) * many, self.score.at_once):
            stop = min(start + self.score.at_once, len(total) * many)
            place = torch.arange(start, stop, device=device)
            sample, which = place // (count * many), place // many % count
            left = kept(sample, which)
            left = left if self._one_each else left[:, self.features]
            row = rows[sample]
            points = torch.where(left, self.score.points[row], self.reference(place % many, row))
            with torch.no_grad():
                total.index_add_(0, place // many, self.score(points, row) / many)
        return total.reshape(n, count)

    def reference(self, which: Tensor, rows: Tensor) -> Tensor:
        """The references `[k, d]` of these numbers, for these samples."""
        return self.references[which, rows if self.references.shape[1] > 1 else 0]

    def nothing_left(self) -> Tensor:
        """Scores `[n]` of the references, means over them."""
        return self(torch.zeros(1, self.count, dtype=torch.bool, device=self.features.device))[:, 0]

    def spread(self, values: Tensor) -> Tensor:
        """Numbers of features `[n, features]` in equal parts on their entries, `[n, d]`.

        So what channels of a pixel, or the entries of an embedding, add up to is its number.
        """
        sizes = torch.bincount(self.features, minlength=self.count)
        return (values / sizes.to(values))[:, self.features]


def grouped(score: Score, features: Features | None, patch: Patch | None) -> Tensor:
    """Which feature each entry of a point belongs to, `[d]`: 0, 1, 2, ... without gaps."""
    if features is not None and patch is not None:
        raise InvalidInput("give features= or patch=, not both")
    if patch is not None:
        height, width = image_size(score)
        tall, wide = patch_size(patch, height, width)
        across = -(-width // wide)
        rows, columns = torch.arange(height) // tall, torch.arange(width) // wide
        pixels = (rows[:, None] * across + columns).flatten().to(score.features.device)
        return pixels[score.features]
    if features is None:
        return score.features
    given = (features,) if isinstance(features, Tensor) else tuple(features)
    if len(given) != len(score.x) or not all(isinstance(t, Tensor) for t in given):
        raise InvalidType(f"features must be whole numbers for each input, not {described(given)}")
    for t, own in zip(given, score.x, strict=True):
        if t.is_floating_point() or t.is_complex():
            raise InvalidType(f"features are numbered by whole numbers, not by {described(t)}")
        if t.shape != own.shape[1:]:
            raise ShapeMismatch(
                f"features of inputs {list(own.shape)} have the shape {list(own.shape[1:])}, not "
                f"{list(t.shape)}"
            )
    numbers = torch.cat([t.reshape(-1) for t in given]).to(score.places.device)
    inverse: Tensor = torch.unique(numbers, return_inverse=True)[1]
    return inverse[score.places]


def references(score: Score, baseline: Baseline, background: Inputs | None) -> Tensor:
    """What features are replaced by, `[m, n, d]`, or `[m, 1, d]` if the same for all samples.

    Args:
        score: that is asked.
        baseline: a number; for words, one in every place of their embedding. Or inputs: of one
            sample, or one for each that is explained; words by their numbers.
        background: inputs of any number of samples, all of which are used, in place of a baseline.
    """
    if background is not None:
        if not (isinstance(baseline, int | float) and baseline == 0):
            raise InvalidInput("give a baseline or a background, not both")
        return _finite(score.points_of(background))[:, None]
    if not isinstance(baseline, Tensor | tuple | list):
        number = finite_number(baseline, "baseline")
        return torch.full_like(score.points[:1], number)[None]
    given = (baseline,) if isinstance(baseline, Tensor) else tuple(baseline)
    if all(isinstance(t, Tensor) for t in given) and len(given) == len(score.x):
        pairs = list(zip(given, score.x, strict=True))
        single = all(t.shape == own.shape[1:] for t, own in pairs)
        points = score.points_of([t[None] if single else t for t in given])
        if len(points) in {1, len(score)}:
            return _finite(points)[None]
    raise ShapeMismatch(
        f"a baseline is a number, inputs of one sample, or of each of the {len(score)} that are "
        f"explained, not {described(baseline)}; a background of many goes to background="
    )


def image_size(score: Score) -> tuple[int, int]:
    """Height and width of the images that are explained; anything else has no patches."""
    if len(score.x) > 1 or score.x[0].ndim != 4:
        raise InvalidInput(
            "patches are for images [n, channels, height, width]; group other features with "
            "features="
        )
    return score.x[0].shape[2], score.x[0].shape[3]


def patch_size(patch: Patch, height: int, width: int, name: str = "patch") -> tuple[int, int]:
    """Height and width of a patch inside an image; one number stands for both."""
    both = patch if isinstance(patch, tuple) else (patch, patch)
    if len(both) != 2:
        raise InvalidInput(f"{name} is a side, or a height and a width, not {described(patch)}")
    return (
        whole_number(both[0], f"the height of a {name}", least=1, most=height),
        whole_number(both[1], f"the width of a {name}", least=1, most=width),
    )


def _finite(points: Tensor) -> Tensor:
    return all_finite(points, "the baseline")
