r"""Minimal relevant sets: the few features that fix the score when all others become noise.

With $s\in[0,1]^p$ and noise $\nu$, the *distortion* and what is minimized are

$$
D(s)=\tfrac12\,\mathbb E_\nu\bigl(f(x)-f(s\odot x+(1-s)\odot\nu)\bigr)^2,\qquad
\frac{D(s)}{D(0)}+\frac{\lambda}{p}\,\|s\|_1 .
$$

$D$ is 0 where everything is kept; a feature that the score ignores costs $\lambda/p$ and gains
nothing, so its $s_i$ goes to 0. Source: Mathematical Aspects of Deep Learning, section 5.3.3;
Macdonald et al. (2019), Fong and Vedaldi (2017).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.core.checks import closed_fraction, positive_number, whole_number
from torchtheory.core.errors import InvalidInput
from torchtheory.core.random import RandomSource, as_generator, gaussian
from torchtheory.explanation.explanation import Explanation, explained
from torchtheory.explanation.removal import Baseline, Features, Patch, Removal
from torchtheory.explanation.score import Inputs, Target, open_score

#: Draws of noise for D(0), which everything is measured by, and for each set on the curve.
_DRAWS_OF_ALL, _DRAWS_OF_CURVE = 256, 64
#: Sets on the curve, at most.
_SETS_OF_CURVE = 33


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class RelevantSet(Explanation):
    """A rate-distortion explanation: `relevance` is $s$, and the sets of the largest $s_i$.

    Attributes:
        weights: `[n, features]`, $s$ by feature.
        order: `[n, features]`, features from the largest $s_i$ to the smallest.
        sizes: `[m]`, of the sets on the curve, from 0 to all features.
        distortions: `[n, m]`, of the sets of that many first features, as shares of D(0).
        distortion_errors: `[n, m]`, their standard errors over draws of noise.
        everything: `[n]`, D(0): the distortion when nothing is kept.
    """

    weights: Tensor = None  # type: ignore[assignment]
    order: Tensor = None  # type: ignore[assignment]
    sizes: Tensor = None  # type: ignore[assignment]
    distortions: Tensor = None  # type: ignore[assignment]
    distortion_errors: Tensor = None  # type: ignore[assignment]
    everything: Tensor = None  # type: ignore[assignment]

    def kept(self, threshold: float = 0.5) -> Tensor:
        """Which features have a weight above the threshold, `[n, features]`."""
        return self.weights > closed_fraction(threshold, "threshold")

    def smallest(self, share: float = 0.05) -> Tensor:
        """The size of the smallest set on the curve with so small a share of D(0), `[n]`."""
        enough = self.distortions <= closed_fraction(share, "share")
        enough[:, -1] = True  # all features, whatever rounding says
        return self.sizes[enough.long().argmax(1)]


def minimal_relevant_set(
    model: nn.Module,
    x: Inputs,
    target: Target = None,
    *,
    penalty: float = 0.5,
    background: Inputs | None = None,
    baseline: Baseline = 0.0,
    sigma: float = 1.0,
    steps: int = 200,
    draws: int = 32,
    rate: float = 0.05,
    features: Features | None = None,
    patch: Patch | None = None,
    probabilities: bool = False,
    output: int | str | None = None,
    generator: RandomSource = None,
) -> RelevantSet:
    r"""Weights $s\in[0,1]$ of features, of which few are not 0, that keep the score under noise.

    Adam's steps on $s$, from 1/2, with fresh noise in each and a rate that falls to 0, are put back
    into the box $[0,1]^p$. Then the distortion of the first $k$ features in the order of $s$ is
    measured with the other features replaced altogether. Weights are no shares of the score, so no
    sum is promised; and where noise in two features cancels on average, both may be left to it.

    Args:
        model, x, target, output: see `open_score`.
        penalty: $\lambda$: what keeping all features costs, in units of D(0). If the score is
            linear in features with independent noise, what has less than $\lambda/2$ of the mean
            share of D(0) goes to 0.
        background: samples that noise is drawn from, whole inputs at a time; Gaussian noise around
            the baseline unless given.
        baseline: mean of Gaussian noise: a number, or inputs of one sample or of each.
        sigma: standard deviation of Gaussian noise.
        steps: of the optimization.
        draws: of noise in each.
        rate: length of the first steps.
        features: which entries make a feature, whole numbers in the shape of one sample; a number
            of a table, a pixel with its channels or a word unless given.
        patch: side, or height and width, of patches of an image that make a feature.
        probabilities: whether to explain the probability of a class instead of its score.
        generator: of the noise.

    Time: `steps` × `draws` passes forward and backward, and 64 forward for each of at most 33 sets
    on the curve, in chunks; memory is that of a chunk.

    Raises:
        InvalidInput: if noise in all features leaves the score of a sample as it is.

    >>> class First(nn.Module):
    ...     def forward(self, x):
    ...         return 2 * x[:, 0]
    >>> found = minimal_relevant_set(First(), torch.ones(1, 5))
    >>> found.kept().tolist(), found.smallest().tolist()
    ([[True, False, False, False, False]], [1])
    """
    started = time.perf_counter()
    positive_number(penalty, "penalty")
    positive_number(sigma, "sigma")
    positive_number(rate, "rate")
    whole_number(steps, "steps", least=1)
    whole_number(draws, "draws", least=1)
    source = as_generator(generator)
    with open_score(model, x, target, output=output, probabilities=probabilities) as score:
        removal = Removal(
            score, features=features, patch=patch, baseline=baseline, background=background
        )
        noise = _Noise(removal, None if background is not None else sigma, source)
        n, p = len(score), removal.count
        nothing = score.points.new_zeros(n, p)
        everything = noise.distortions(nothing, _DRAWS_OF_ALL).mean(1)
        if bool((everything <= 0).any()):
            k = int(everything.argmin())
            raise InvalidInput(
                f"the score of sample {k} stays the same whatever the noise, so there is nothing "
                "to explain; try another background or a larger sigma"
            )
        kept = torch.full_like(nothing, 0.5).requires_grad_(True)
        optimizer = torch.optim.Adam([kept], rate, betas=(0.9, 0.99))
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for _ in range(steps):
            slope = noise.slope(kept.detach(), draws)
            kept.grad = slope / everything[:, None] + penalty / p
            optimizer.step()
            schedule.step()
            with torch.no_grad():
                kept.clamp_(0, 1)
        weights = kept.detach()
        order = weights.argsort(dim=1, descending=True, stable=True)
        places = order.argsort(1)
        sizes = torch.linspace(0, p, min(p + 1, _SETS_OF_CURVE)).round().long().to(order.device)
        curve = [noise.distortions((places < k).to(weights), _DRAWS_OF_CURVE) for k in sizes]
        means = torch.stack([c.mean(1) for c in curve], 1) / everything[:, None]
        spread = torch.stack([c.std(1) for c in curve], 1) / everything[:, None]
        # every number of the inputs has the weight of its feature, and a word is one number
        owner = torch.empty_like(score.places[: int(score.places.max()) + 1])
        owner[score.places] = removal.features
        entries = score.shared(weights[:, owner])
        found = explained(score, entries, "minimal relevant set", started=started)
        return RelevantSet(
            found.relevance,
            found.score,
            found.method,
            found.classes,
            forwards=found.forwards,
            backwards=found.backwards,
            seconds=found.seconds,
            weights=weights,
            order=order,
            sizes=sizes,
            distortions=means,
            distortion_errors=spread / _DRAWS_OF_CURVE**0.5,
            everything=everything,
        )


class _Noise:
    """A score where features are mixed with noise."""

    def __init__(self, removal: Removal, sigma: float | None, source: torch.Generator) -> None:
        self.removal, self.sigma, self.source = removal, sigma, source

    def distortions(self, kept: Tensor, draws: int) -> Tensor:
        """Half the squared change of the score `[n, draws]` for weights `[n, p]`."""
        score, parts = self.removal.score, []
        for rows, points, _ in self._mixed(kept, draws):
            with torch.no_grad():
                parts.append((score(points, rows) - score.values[rows]).square() / 2)
        return torch.cat(parts).reshape(len(kept), draws)

    def slope(self, kept: Tensor, draws: int) -> Tensor:
        """The gradient `[n, p]` of the distortion by the weights, a mean over draws."""
        score, total = self.removal.score, torch.zeros_like(kept)
        for rows, points, apart in self._mixed(kept, draws):
            values, gradient = score.gradients(points, rows)
            change = (values - score.values[rows])[:, None]
            by_feature = kept.new_zeros(len(rows), kept.shape[1])
            by_feature.index_add_(1, self.removal.features, change * gradient * apart / draws)
            total.index_add_(0, rows, by_feature)
        return total

    def _mixed(self, kept: Tensor, draws: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Samples, mixtures with noise and what noise was away from the samples, chunk by chunk."""
        score, removal = self.removal.score, self.removal
        total = len(kept) * draws
        for start in range(0, total, score.at_once):
            place = torch.arange(
                start, min(start + score.at_once, total), device=score.points.device
            )
            rows = place // draws
            if self.sigma is None:
                many = len(removal.references)
                which = torch.randint(
                    many, (len(rows),), generator=self.source, device=self.source.device
                )
                noise = removal.reference(which.to(rows.device), rows)
            else:
                noise = removal.reference(torch.zeros_like(rows), rows)
                noise = noise + self.sigma * gaussian(
                    *noise.shape, generator=self.source, dtype=noise.dtype, device=noise.device
                )
            apart = score.points[rows] - noise
            share = kept[rows][:, removal.features]
            yield rows, torch.where(share == 1, score.points[rows], noise + share * apart), apart
