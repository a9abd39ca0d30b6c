r"""Distributions on finitely many pairs $(x,y)$, whose risks are sums and not estimates.

A function on the finitely many inputs is the vector of its values, so whatever learning theory
says about *all* functions can be tried on all of them. Source: Mathematical Aspects of Deep
Learning, Assumption 1.10 and Definition 1.11.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchtheory.core.checks import all_finite, first_entry
from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    ShapeMismatch,
)
from torchtheory.core.random import RandomSource, as_generator

PairLoss = Callable[[Tensor, Tensor], Tensor]
"""A loss of outputs and labels of one shape, entry by entry."""

#: The most samples that are listed one by one.
MOST_SAMPLES = 2_000_000


@dataclass(frozen=True, slots=True)
class FiniteDistribution:
    r"""The law of $Z=(X,Y)$ with masses on finitely many atoms $(x_i,y_i)$.

    Attributes:
        points: `[k, ...]`, the different inputs in ascending order.
        where: `[a]`, which input each atom has.
        labels: `[a]`, the label of each atom.
        mass: `[a]`, its probability.

    >>> law = FiniteDistribution.of([0.0, 0.0, 1.0], [-1.0, 1.0, 1.0], [0.1, 0.3, 0.6])
    >>> law.points, law.marginal
    (tensor([0., 1.], dtype=torch.float64), tensor([0.4000, 0.6000], dtype=torch.float64))
    >>> law.conditional_mean
    tensor([0.5000, 1.0000], dtype=torch.float64)
    """

    points: Tensor
    where: Tensor
    labels: Tensor
    mass: Tensor

    @classmethod
    def of(
        cls,
        x: Tensor | list[float],
        y: Tensor | list[float],
        mass: Tensor | list[float] | None = None,
    ) -> FiniteDistribution:
        """The law with these atoms; without masses, all alike: a sample's empirical measure.

        Args:
            x: inputs `[a]` or `[a, ...]`; equal rows are one point.
            y: labels `[a]`.
            mass: probabilities `[a]` that sum to 1 up to rounding, which is divided out.
        """
        inputs, labels = _tensor(x, "x"), _tensor(y, "y")
        if inputs.ndim == 0 or labels.ndim != 1 or len(inputs) != len(labels):
            raise ShapeMismatch(
                f"atoms need inputs [a, ...] and labels [a], not {list(inputs.shape)} and "
                f"{list(labels.shape)}"
            )
        if len(labels) == 0:
            raise EmptyData(f"a distribution needs at least one atom, not {len(labels)}")
        if mass is None:
            weights = torch.full_like(labels, 1 / len(labels))
        else:
            weights = _tensor(mass, "mass").to(labels)
        points, where = torch.unique(inputs, dim=0, return_inverse=True)
        return cls(points, where, labels, _probabilities(weights, len(labels)))

    @classmethod
    def from_joint(cls, points: Tensor, labels: Tensor, joint: Tensor) -> FiniteDistribution:
        r"""The law with $\Pr(X=x_i,Y=y_j)$ in `joint[k, l]`.

        >>> signs = torch.tensor([-1.0, 1.0])
        >>> FiniteDistribution.from_joint(torch.arange(2.0), signs, torch.eye(2) / 2).mass
        tensor([0.5000, 0.0000, 0.0000, 0.5000])
        """
        if joint.shape != (len(points), len(labels)):
            raise ShapeMismatch(
                f"{len(points)} points and {len(labels)} labels need a joint law of that shape, "
                f"not {list(joint.shape)}"
            )
        x = points.repeat_interleave(len(labels), dim=0)
        return cls.of(x, labels.repeat(len(points)).to(joint), joint.reshape(-1))

    def __len__(self) -> int:
        """The number of atoms."""
        return len(self.mass)

    def with_mass(self, mass: Tensor) -> FiniteDistribution:
        """Other probabilities on the same atoms, for instance those of a sample."""
        return replace(self, mass=_probabilities(mass.to(self.mass), len(self)))

    @property
    def marginal(self) -> Tensor:
        r"""$\Pr(X=x)$ of every point, `[k]`."""
        return self._by_point(self.mass)

    @property
    def conditional_mean(self) -> Tensor:
        r"""$\mathbb E[Y\mid X=x]$ of every point, `[k]`; 0 where the point has no mass."""
        marginal = self.marginal
        total = self._by_point(self.mass * self.labels)
        return torch.where(marginal > 0, total / marginal, torch.zeros_like(total))

    def losses(self, values: Tensor, loss: PairLoss) -> Tensor:
        r"""$\mathcal L(f,z)$ at every atom, `[..., a]`, for functions `values[..., k]`.

        The risk under any measure on these atoms is the product with its masses.
        """
        if values.ndim == 0 or values.shape[-1] != len(self.points):
            raise ShapeMismatch(
                f"a function on {len(self.points)} points has as many values, "
                f"and these are {list(values.shape)}"
            )
        outputs = values[..., self.where].to(self.labels)
        return loss(outputs, self.labels.expand_as(outputs))

    def risk(self, values: Tensor, loss: PairLoss) -> Tensor:
        r"""$R(f)=\sum_i\Pr(z_i)\,\mathcal L(f,z_i)$, `[...]` for `values[..., k]`.

        >>> from torchtheory.training.losses.surrogates import quadratic_loss
        >>> law = FiniteDistribution.of([0.0, 0.0, 1.0], [-1.0, 1.0, 1.0], [0.25, 0.25, 0.5])
        >>> law.risk(torch.tensor([[0.0, 1.0], [1.0, 1.0]]), quadratic_loss)
        tensor([0.5000, 1.0000], dtype=torch.float64)
        """
        return self.losses(values, loss) @ self.mass

    def draw(self, *shape: int, generator: RandomSource = None) -> Tensor:
        """Independent draws, as numbers of atoms: `points[where[i]]` and `labels[i]`.

        >>> FiniteDistribution.of([0.0, 1.0], [1.0, 2.0], [0.0, 1.0]).draw(2, 3)
        tensor([[1, 1, 1],
                [1, 1, 1]])
        """
        generator = as_generator(generator, self.mass.device)
        cumulative = self.mass.double().cumsum(0)
        uniform = torch.rand(
            shape, dtype=torch.float64, generator=generator, device=generator.device
        ).to(self.mass.device)
        # right=True steps over atoms without mass; rounding may leave the last a little short of 1
        last = int(self.mass.nonzero().max())
        found = torch.searchsorted(cumulative, uniform * cumulative[-1], right=True)
        return found.clamp(max=last)

    def empirical_masses(self, drawn: Tensor) -> Tensor:
        """The empirical measures `[..., a]` of samples `drawn[..., n]` of atom numbers.

        >>> law = FiniteDistribution.of([0.0, 1.0], [1.0, 2.0])
        >>> law.empirical_masses(torch.tensor([[0, 1, 1, 1]]))
        tensor([[0.2500, 0.7500]], dtype=torch.float64)
        """
        if drawn.ndim == 0 or drawn.shape[-1] == 0:
            raise EmptyData(f"a sample needs at least one draw, not {list(drawn.shape)}")
        counts = self.mass.new_zeros(*drawn.shape[:-1], len(self))
        return counts.scatter_add_(-1, drawn, torch.ones_like(drawn).to(counts)) / drawn.shape[-1]

    def all_samples(self, size: int) -> tuple[Tensor, Tensor]:
        """Every sample of this size up to order `[s, size]`, and its probability `[s]`.

        The probability is that of all its orderings together, so they sum to 1.

        >>> samples, chance = FiniteDistribution.of([0.0, 1.0], [0.0, 0.0]).all_samples(2)
        >>> samples.tolist(), chance.tolist()
        ([[0, 0], [0, 1], [1, 1]], [0.25, 0.5, 0.25])
        """
        samples, orderings = multisets(len(self), size)
        samples = samples.to(self.mass.device)
        return samples, self.mass[samples].prod(-1) * orderings.to(self.mass)

    def _by_point(self, values: Tensor) -> Tensor:
        return values.new_zeros(len(self.points)).index_add_(0, self.where, values)


def multisets(kinds: int, size: int) -> tuple[Tensor, Tensor]:
    """The ways to choose with repetition, `[s, size]` ascending, and their orderings `[s]`.

    The orderings of all of them are the `kinds ** size` sequences.

    >>> chosen, orderings = multisets(3, 2)
    >>> chosen.tolist(), orderings.tolist()
    ([[0, 0], [0, 1], [0, 2], [1, 1], [1, 2], [2, 2]], [1, 2, 2, 1, 2, 1])
    """
    if kinds < 1 or size < 1:
        raise InvalidInput(f"there is no sample of {size} from {kinds} kinds: both must be >= 1")
    if math.comb(kinds + size - 1, size) > MOST_SAMPLES or size > 20:
        raise InvalidInput(
            f"there are {math.comb(kinds + size - 1, size)} samples of {size} from {kinds} kinds: "
            "too many to list"
        )
    chosen = torch.tensor(list(itertools.combinations_with_replacement(range(kinds), size)))
    # the sorted row's runs: every ordering is one of size! up to those within the runs
    repeats = torch.ones(len(chosen), dtype=torch.int64)
    run = torch.ones(len(chosen), dtype=torch.int64)
    for j in range(1, size):
        run = torch.where(chosen[:, j] == chosen[:, j - 1], run + 1, 1)
        repeats *= run
    return chosen, math.factorial(size) // repeats


def _tensor(values: Tensor | list[float], name: str) -> Tensor:
    try:
        made = values if isinstance(values, Tensor) else torch.tensor(values, dtype=torch.float64)
    except (TypeError, ValueError):
        raise InvalidType(f"{name} must be numbers, not {type(values).__name__}") from None
    made = made.detach()
    made = made if made.is_floating_point() else made.double()
    all_finite(made, name)
    return made


def _probabilities(mass: Tensor, count: int) -> Tensor:
    if mass.shape != (count,):
        raise ShapeMismatch(f"{count} atoms need as many masses, not {list(mass.shape)}")
    if not bool((mass >= 0).all()):
        raise InvalidInput(
            f"a mass is negative or not a number: {first_entry(mass, 'mass', ~(mass >= 0))}"
        )
    total = float(mass.double().sum())
    if abs(total - 1) > 1e-6:
        raise InvalidInput(f"the masses sum to {total:.12g}, not to 1")
    return mass / total  # 0.1 and the like sum to 1 only up to rounding, in single precision 1e-8
