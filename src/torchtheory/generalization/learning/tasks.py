r"""Learning tasks and prediction tasks, also those made of data without labels.

A task is a loss $\mathcal L(f,z)$ and a source of data; a learning algorithm any function
that turns a data set, of whatever size, into a hypothesis. Data $z$ without labels become a
prediction task by two transformations, $x=T_1(z)$ and $y=T_2(z)$: mask a coordinate,
add noise, cut a sequence before its next symbol. Source: Mathematical Aspects of Deep Learning,
Definitions 1.1 and 1.2, Remark 1.3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchtheory.core.checks import first_entry
from torchtheory.core.errors import EmptyData, InvalidInput, NonFinite, ShapeMismatch
from torchtheory.core.intervals import Interval, hoeffding_radius
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.generalization.learning.finite_distributions import FiniteDistribution, PairLoss

Hypothesis = Callable[[Tensor], Tensor]
Transformation = Callable[[Tensor], Tensor]
Data = Any
"""What a task's source yields: `z[n, ...]`, or a pair `(x, y)` for a prediction task."""

Algorithm = Callable[[Data], Hypothesis]
"""A learning algorithm: from a data set of any size to a hypothesis."""


@dataclass(frozen=True, slots=True)
class LearningTask:
    r"""A loss and a source of data.

    Attributes:
        loss: $\mathcal L(f,z)$ of a hypothesis at every datum, `[n]`.
        source: `source(n, generator)`, `n` independent data.

    >>> coin = LearningTask(
    ...     loss=lambda f, z: -torch.log(f(z)),
    ...     source=lambda n, generator: torch.randint(0, 2, (n,), generator=generator),
    ... )
    >>> bool(torch.isclose(coin.mean_loss(lambda z: torch.full((len(z),), 0.5), coin.draw(9)),
    ...                    torch.tensor(2.0).log()))
    True
    """

    loss: Callable[[Hypothesis, Data], Tensor]
    source: Callable[[int, torch.Generator], Data]

    def draw(self, n: int, generator: RandomSource = None) -> Data:
        """A data set of `n` independent draws."""
        if n < 1:
            raise EmptyData(f"a data set needs at least one draw, not {n!r}")
        return self.source(n, as_generator(generator))

    def mean_loss(self, f: Hypothesis, data: Data) -> Tensor:
        r"""The empirical risk $\frac1n\sum_i\mathcal L(f,z_i)$."""
        return self.loss(f, data).mean()

    def risk_interval(
        self,
        f: Hypothesis,
        n: int,
        generator: RandomSource = None,
        *,
        delta: float = 0.05,
        low: float = 0.0,
        high: float = 1.0,
    ) -> Interval:
        r"""The risk by `n` fresh draws, within Hoeffding's radius with probability
        $1-\delta$.

        Args:
            f: a hypothesis chosen without these draws.
            low, high: a range that contains every loss.

        >>> always = LearningTask(
        ...     loss=lambda f, z: (f(z) != 1).double(),
        ...     source=lambda n, generator: torch.rand(n, generator=generator),
        ... )
        >>> found = always.risk_interval(torch.ones_like, 1000)
        >>> found.estimate, round(found.high, 6)
        (0.0, 0.042947)
        """
        losses = self.loss(f, self.draw(n, generator))
        return loss_interval(losses, delta=delta, low=low, high=high)


def loss_interval(
    losses: Tensor, *, delta: float = 0.05, low: float = 0.0, high: float = 1.0
) -> Interval:
    r"""Hoeffding's interval for a risk, from the losses on a test set.

    With probability $1-\delta$ the mean of $n$ independent losses in $[a,b]$
    is within $(b-a)\sqrt{\log(2/\delta)/(2n)}$ of the risk. The hypothesis must have been
    chosen without the test set: on its own training set the interval means nothing.

    >>> loss_interval(torch.tensor([1.0, 0.0, 0.0, 1.0]), delta=0.5).estimate
    0.5
    """
    if losses.ndim != 1:
        raise ShapeMismatch(f"the losses of a test set are [n], not {list(losses.shape)}")
    radius = hoeffding_radius(len(losses), delta, low, high)
    if not bool(torch.isfinite(losses).all()):
        raise NonFinite(
            "a loss is NaN or infinite: "
            f"{first_entry(losses, 'the value', ~torch.isfinite(losses))}"
        )
    if bool((losses < low).any()) or bool((losses > high).any()):
        raise InvalidInput(f"a loss lies outside [{low:g}, {high:g}]; say which range holds them")
    mean = float(losses.double().mean())
    return Interval(mean, mean - radius, mean + radius, 1 - delta, len(losses), "Hoeffding")


def prediction_task(
    source: Callable[[int, torch.Generator], tuple[Tensor, Tensor]], loss: PairLoss
) -> LearningTask:
    r"""The task with $\mathcal L(f,(x,y))=\ell(f(x),y)$ over labeled pairs.

    >>> from torchtheory.training.losses.surrogates import quadratic_loss
    >>> twice = prediction_task(lambda n, generator: (torch.ones(n), torch.full((n,), 2.0)),
    ...                         quadratic_loss)
    >>> twice.mean_loss(lambda x: 2 * x, twice.draw(3)).item()
    0.0
    """
    return LearningTask(lambda f, data: loss(f(data[0]), data[1]), source)


def self_supervised_task(
    source: Callable[[int, torch.Generator], Tensor],
    features: Transformation,
    labels: Transformation,
    loss: PairLoss,
) -> LearningTask:
    r"""The prediction task $x=T_1(z)$, $y=T_2(z)$ over data without labels.

    Args:
        source: unlabeled data `z[n, ...]`.
        features: $T_1$, row by row.
        labels: $T_2$, row by row.
        loss: of outputs and labels, entry by entry.

    >>> from torchtheory.training.losses.surrogates import quadratic_loss
    >>> def ramps(n, generator):
    ...     return torch.rand(n, 1, generator=generator) + torch.arange(3.0)
    >>> next_step = self_supervised_task(ramps, lambda z: z[:, :2], lambda z: z[:, 2],
    ...                                  quadratic_loss)
    >>> bool(next_step.mean_loss(lambda x: 2 * x[:, 1] - x[:, 0], next_step.draw(5)) < 1e-10)
    True
    """

    def labeled(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        z = source(n, generator)
        return features(z), labels(z)

    return prediction_task(labeled, loss)


def induced_distribution(
    outcomes: Tensor, mass: Tensor, features: Transformation, labels: Transformation
) -> FiniteDistribution:
    r"""The law of $(T_1(Z),T_2(Z))$ for $Z$ on finitely many `outcomes[a, ...]`.

    Its Bayes function is $\mathbb E[T_2(Z)\mid T_1(Z)=x]$.

    >>> bits = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> law = induced_distribution(bits, torch.tensor([0.25, 0.25, 0.5]),
    ...                            lambda z: z[:, 0], lambda z: z[:, 1])
    >>> law.conditional_mean
    tensor([0.5000, 1.0000])
    """
    return FiniteDistribution.of(features(outcomes), labels(outcomes), mass)


def split_fibers(law: FiniteDistribution) -> Tensor:
    r"""The points, by number, on which the label is not a function of the features.

    $T_2\circ T_1^{-1}$ is a function exactly if there are none, up to null sets: if
    $T_2$ is constant on the fibers of $T_1$. On the others the target of the quadratic
    loss is the conditional mean, and the Bayes risk is positive.

    >>> split_fibers(FiniteDistribution.of([0.0, 0.0, 1.0, 1.0], [2.0, 2.0, 3.0, 4.0]))
    tensor([1])
    """
    possible = law.mass > 0
    where, labels = law.where[possible], law.labels[possible]
    top = labels.new_full((len(law.points),), -torch.inf)
    low = labels.new_full((len(law.points),), torch.inf)
    top = top.scatter_reduce(0, where, labels, "amax")
    low = low.scatter_reduce(0, where, labels, "amin")
    return (top > low).nonzero().flatten()
