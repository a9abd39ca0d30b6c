r"""Randomized smoothing: a certificate for any classifier from its votes under Gaussian noise.

The smoothed classifier of $f$ is $g(x)=\arg\max_cP[f(x+\sigma\xi)=c]$, $\xi\sim N(0,I)$. If class
$c$ has probability at least $p>\tfrac12$ there, $g$ keeps it for every Euclidean perturbation
shorter than

$$
R = \sigma\,\Phi^{-1}(p)
$$

(Cohen, Rosenfeld and Kolter 2019), and no better radius follows from $p$: for a linear classifier
it is the distance to the boundary. The probability is not known; $k$ votes of $n$ give Clopper and
Pearson's lower bound of it, $I^{-1}(\alpha;k,n-k+1)$, at a confidence of $1-\alpha$. The class is
chosen by votes of its own, so that the choice does not bias the bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy import special
from torch import Tensor, nn

from torchtheory.core.budget import check_time
from torchtheory.core.checks import (
    as_batch,
    as_module,
    open_fraction,
    positive_number,
    whole_number,
)
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.core.intervals import Interval, clopper_pearson
from torchtheory.core.random import RandomSource, as_generator, gaussian
from torchtheory.models.model import PureFunction

#: What stands for a class where none is certain enough.
ABSTAIN = -1


@dataclass(frozen=True)
class SmoothedPrediction:
    """Classes of a smoothed classifier with certificates, one of each per sample.

    Attributes:
        classes: `[n]`, or `ABSTAIN` (-1).
        radii: `[n]`, Euclidean radii within which the class stays; 0 where it abstains.
        probabilities: `[n]`, lower bounds of the probability of the class under noise.
        confidence: with which each radius holds.
    """

    classes: Tensor
    radii: Tensor
    probabilities: Tensor
    confidence: float

    @property
    def abstained(self) -> Tensor:
        return self.classes == ABSTAIN

    def accuracy(
        self, y: Tensor, radii: Sequence[float] | Tensor, confidence: float = 0.95
    ) -> list[Interval]:
        """The share of samples with the right class and a certificate beyond each radius.

        Of each sample the certificate holds with its own confidence; the intervals are for the
        share in the population that the samples were drawn from.
        """
        if y.shape != self.classes.shape:
            raise ShapeMismatch(
                f"{len(self.classes)} samples were certified, and the labels are {list(y.shape)}"
            )
        right = self.classes == y.to(self.classes)
        return [
            clopper_pearson(int((right & (self.radii >= r)).sum()), len(right), confidence)
            for r in [float(v) for v in radii]
        ]


class SmoothedClassifier:
    r"""$g(x)=\arg\max_cP[f(x+\sigma\xi)=c]$ for any classifier $f$.

    Args:
        model: any network with one output per class, or one logit for the classes 0 and 1; a
            private copy runs in evaluation mode.
        sigma: the standard deviation of the noise.
        chunk: noisy inputs that run at once.

    >>> net = nn.Linear(2, 2, bias=False)
    >>> _ = net.weight.data.copy_(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
    >>> found = SmoothedClassifier(net, 0.5).certify(torch.tensor([[1.0, 0.0]]), 10_000)
    >>> found.classes.item(), 0.9 < found.radii.item() < 1      # the boundary is at distance 1
    (0, True)
    """

    def __init__(self, model: nn.Module, sigma: float, *, chunk: int = 1024) -> None:
        as_module(model)
        self.sigma = positive_number(sigma, "sigma")
        self.chunk = whole_number(chunk, "chunk", least=1)
        self._function = PureFunction(model)

    @torch.no_grad()
    def votes(self, x: Tensor, trials: int, generator: RandomSource = None) -> Tensor:
        """How often each class is chosen under `trials` draws of noise, `[n, classes]`."""
        x = as_batch(x)
        trials = whole_number(trials, "trials", least=1)
        source = as_generator(generator)
        like = self._function.reference()
        x = x.to(like)
        counts: Tensor | None = None
        total = len(x) * trials
        for start in range(0, total, self.chunk):
            check_time()
            some = torch.arange(start, min(start + self.chunk, total), device=x.device) // trials
            noise = gaussian(
                len(some), *x.shape[1:], generator=source, dtype=x.dtype, device=x.device
            )
            outputs = self._function(self._function.parameters, x[some] + self.sigma * noise)
            if outputs.ndim > 2 or len(outputs) != len(some):
                raise ShapeMismatch(
                    f"a classifier gives one row of scores per sample, and this model returns "
                    f"{list(outputs.shape)} for {len(some)} samples"
                )
            outputs = outputs.reshape(len(some), -1)
            if bool(outputs.isnan().any()):
                raise InvalidInput("the model's outputs are not numbers for some noisy inputs")
            if outputs.shape[1] == 1:  # one logit
                chosen, classes = (outputs[:, 0] > 0).long(), 2
            else:
                chosen, classes = outputs.argmax(1), outputs.shape[1]
            if counts is None:
                counts = torch.zeros(len(x), classes, dtype=torch.long, device=x.device)
            counts += torch.bincount(some * classes + chosen, minlength=counts.numel()).reshape(
                counts.shape
            )
        assert counts is not None
        return counts

    def predict(
        self,
        x: Tensor,
        trials: int = 1000,
        *,
        confidence: float = 0.999,
        generator: RandomSource = None,
    ) -> Tensor:
        r"""Classes `[n]` of the smoothed classifier, or `ABSTAIN`.

        The class with the most votes $k_1$ is told from the next one with $k_2$ by the two-sided
        binomial test of $k_1$ among $k_1+k_2$ fair votes; where that cannot reject at the level
        $\alpha$, it abstains. A class that is returned is the right one with probability at least
        $1-\alpha$.
        """
        open_fraction(confidence, "confidence")
        top = self.votes(x, trials, generator).topk(2, dim=1)
        first, second = top.values.cpu().unbind(1)
        # P[Bin(k1 + k2, 1/2) >= k1], twice
        tail = torch.as_tensor(special.bdtrc(first.numpy() - 1.0, (first + second).numpy(), 0.5))
        certain = 2 * tail <= 1 - confidence
        return torch.where(certain, top.indices[:, 0].cpu(), ABSTAIN)

    def certify(
        self,
        x: Tensor,
        trials: int = 10_000,
        *,
        selection: int = 100,
        confidence: float = 0.999,
        generator: RandomSource = None,
    ) -> SmoothedPrediction:
        """Classes with radii that hold with the given confidence for each sample.

        Args:
            x: inputs `[n, ...]`.
            trials: draws of noise for the bound of the probability.
            selection: draws of noise before them, from which the class is chosen.
            confidence: with which a radius holds.
            generator: of the noise.

        Time: n (trials + selection) forward passes of one sample, `chunk` at a time. With n
        votes of n the radius is at most $\\sigma\\Phi^{-1}(\\alpha^{1/n})$.
        """
        open_fraction(confidence, "confidence")
        source = as_generator(generator)
        chosen = self.votes(x, selection, source).argmax(1)
        counts = self.votes(x, trials, source).gather(1, chosen[:, None])[:, 0].double().cpu()
        low = probability_lower_bound(counts, trials, confidence)
        certain = low > 0.5
        radii = self.sigma * torch.as_tensor(special.ndtri(low.clamp(0.5, 1 - 1e-16).numpy()))
        return SmoothedPrediction(
            torch.where(certain, chosen.cpu(), ABSTAIN),
            torch.where(certain, radii, 0.0),
            low,
            confidence,
        )


def probability_lower_bound(hits: Tensor, trials: int, confidence: float) -> Tensor:
    r"""Clopper and Pearson's one-sided lower bound of a probability, from hits among trials.

    >>> round(probability_lower_bound(torch.tensor([10]), 10, 0.95).item(), 6)   # 0.05^(1/10)
    0.741134
    """
    open_fraction(confidence, "confidence")
    counts = hits.double()
    if bool(((counts < 0) | (counts > trials)).any()):
        raise InvalidInput(f"hits must be from 0 to {trials}, the number of trials")
    some = counts.clamp_min(1.0).numpy()
    low = torch.as_tensor(special.betaincinv(some, trials - some + 1, 1 - confidence))
    return torch.where(counts > 0, low, 0.0)


def largest_radius(sigma: float, trials: int, confidence: float = 0.999) -> float:
    r"""$\sigma\Phi^{-1}(\alpha^{1/n})$: the radius that all votes of n for one class certify.

    >>> round(largest_radius(1.0, 100_000), 3)
    3.811
    """
    positive_number(sigma, "sigma")
    open_fraction(confidence, "confidence")
    level = math.exp(math.log1p(-confidence) / whole_number(trials, "trials", least=1))
    return float(sigma * special.ndtri(level))
