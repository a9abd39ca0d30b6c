r"""Lottery tickets: prune a trained network, go back to its beginning, train what is left.

The hypothesis of Frankle and Carbin: a randomly initialized dense network contains a sub-network
that, trained alone *from the same initial weights*, reaches the test accuracy of the whole in at
most as many steps. It is empirical, so what comes out here is a curve with its spread over seeds,
beside two controls of the same sizes per layer: the ticket's mask with other initial weights, and
its initial weights with a random mask. Source: Mathematical Aspects of Deep Learning, section
1.6.5.

All networks of a round are trained as one batch (`fit_many`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.core.checks import described, number_between, one_of, whole_number, whole_numbers
from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType
from torchtheory.core.intervals import Interval, mean_interval
from torchtheory.core.progress import track
from torchtheory.models.samples import Data
from torchtheory.nets.fresh_weights import drawn_anew
from torchtheory.training.loop.seeds import derived_seed
from torchtheory.training.many.networks import ManyResult, fit_many
from torchtheory.training.pruning.magnitude import magnitude_masks
from torchtheory.training.pruning.masks import Masks, masked, random_masks, sparsity

#: What is trained at every sparsity, the ticket first.
KINDS = ("ticket", "other initial weights", "random mask")


@dataclass(frozen=True, slots=True)
class Recipe:
    """How every network is trained; see `fit`."""

    epochs: int = 10
    batch_size: int = 64
    optimizer: str = "adam"
    learning_rate: float | None = None
    weight_decay: float = 0.0

    def run(
        self,
        networks: Sequence[nn.Module],
        train: Data,
        seeds: Sequence[int],
        masks: Sequence[Masks | None] | None = None,
        *,
        epochs: int | None = None,
        validation: Data | None = None,
    ) -> ManyResult:
        """All of them as one batch."""
        epochs = self.epochs if epochs is None else epochs
        return fit_many(
            networks,
            train,
            validation=validation,
            validate_every=epochs,  # the last one is what counts
            epochs=epochs,
            batch_size=self.batch_size,
            optimizer=self.optimizer,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            masks=masks,
            seed=list(seeds),
        )


@dataclass(frozen=True, slots=True)
class Tickets:
    """Tickets of one architecture at several sparsities and seeds.

    Attributes:
        sparsities: the share of weights that went, `[S]`.
        dense: test measure of the whole networks after training, `[seeds]`: the share of errors
            in classification, the mean loss in regression.
        measures: the same of what was trained at every sparsity, `[S, seeds]` for each of `KINDS`.
        masks: of the tickets, by sparsity and seed.
        starts: the networks that tickets start from, by seed: the initial ones, or where they
            were after `rewind` epochs.
    """

    sparsities: Tensor
    dense: Tensor
    measures: Mapping[str, Tensor]
    masks: tuple[tuple[Masks, ...], ...]
    starts: tuple[nn.Module, ...]

    def ticket(self, s: int, seed: int) -> nn.Module:
        """The untrained ticket at the s-th sparsity: its start with the mask applied."""
        return masked(self.starts[seed], self.masks[s][seed])

    def mean(self, kind: str, s: int, confidence: float = 0.95) -> Interval:
        """The mean over seeds of one kind at the s-th sparsity."""
        return mean_interval(self.measures[one_of(kind, "kind", self.measures)][s], confidence)

    def advantage(self, over: str, s: int, confidence: float = 0.95) -> Interval:
        """By how much the ticket errs less than a control, seed by seed: mean and interval.

        >>> same = torch.tensor([[0.1, 0.2, 0.3]])
        >>> found = Tickets(torch.tensor([0.5]), same[0], {"ticket": same, "random mask": 2 * same},
        ...                 (), ())
        >>> round(found.advantage("random mask", 0).estimate, 3)
        0.2
        """
        others = self.measures[one_of(over, "kind", self.measures)]
        return mean_interval(others[s] - self.measures["ticket"][s], confidence)


def lottery_tickets(
    model: nn.Module,
    train: Data,
    test: Data,
    *,
    sparsities: Sequence[float],
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    rewind: int = 0,
    iterative: bool = True,
    per_layer: bool = False,
    recipe: Recipe | None = None,
) -> Tickets:
    """Find tickets, and train them and their controls, at several sparsities and seeds.

    Args:
        model: the architecture; its own weights are not used, and it is left alone. Each seed
            draws initial weights by the layers' own rules, and the order of the batches. Networks
            that `fit_many` trains: no dropout, no batch normalization.
        train, test: data as for `fit`.
        sparsities: shares of weights that go, increasing.
        seeds: one network each.
        rewind: epochs that the weights are trained for before they count as the start; 0 goes
            back to initialization. The controls' start is made the same way.
        iterative: prune round after round, each time the ticket of the round before; otherwise
            all sparsities at once from the dense network, in one batch.
        per_layer: as for `magnitude_masks`.
        recipe: epochs and optimizer.

    Time: one batched training of `3 * seeds` networks per sparsity; of all of them at once where
    it is not iterative.

    >>> x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    >>> net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    >>> data = (x, (x[:, 0] > 0).long())
    >>> found = lottery_tickets(net, data, data, sparsities=[0.5, 0.75], seeds=[0, 1])
    >>> found.sparsities.tolist(), found.measures["ticket"].shape
    ([0.5, 0.75], torch.Size([2, 2]))
    """
    recipe = recipe or Recipe()
    whole_number(recipe.epochs, "the recipe's epochs", least=1)
    if not isinstance(sparsities, Iterable):
        raise InvalidType(f"sparsities are a list of shares, not {described(sparsities)}")
    shares = [number_between(s, "a sparsity", 0, 1, closed="left") for s in sparsities]
    if not shares or any(b <= a for a, b in itertools.pairwise(shares)):
        raise InvalidInput(f"sparsities must increase, at least one, not {list(sparsities)}")
    numbers = whole_numbers(seeds, "seeds", least=0)
    if len(numbers) < 2:
        raise EmptyData("error bars need at least two seeds")
    if len(set(numbers)) < len(numbers):
        raise InvalidInput(f"a seed that is given twice says nothing new: {list(seeds)}")
    whole_number(rewind, "rewind", least=0, most=recipe.epochs - 1)
    others = [derived_seed(s, "other initial weights") for s in numbers]
    first = [drawn_anew(model, s) for s in (*numbers, *others)]
    order = [*numbers, *numbers]
    if rewind:
        first = list(recipe.run(first, train, order, epochs=rewind).networks())
    starts, strangers = first[: len(numbers)], first[len(numbers) :]
    left = recipe.epochs - rewind

    def trained(
        networks: list[nn.Module], masks: Sequence[Masks] | None
    ) -> tuple[ManyResult, Tensor]:
        rounds = len(networks) // len(numbers)
        result = recipe.run(
            networks, train, list(numbers) * rounds, masks, epochs=left, validation=test
        )
        return result, _final(result).view(rounds, len(numbers))

    result, measured = trained(starts, None)
    dense = measured[0]
    found: list[tuple[Masks, ...]] = []
    rows: list[Tensor] = []
    draws = torch.Generator().manual_seed(derived_seed(numbers[0], "random masks"))
    waves = [[s] for s in shares] if iterative else [shares]
    for wave in track(waves, "rounds of pruning"):
        networks = [result.network(k) for k in range(len(numbers))]
        at, masks = [], []
        for share in wave:
            # in the first round nothing has gone yet
            earlier = found[-1] if iterative and found else [None] * len(numbers)
            chosen = tuple(
                magnitude_masks(net, share, per_layer=per_layer, within=before)
                for net, before in zip(networks, earlier, strict=True)
            )
            found.append(chosen)
            drawn = [random_masks(m, draws) for m in chosen]
            at += [*starts, *strangers, *starts]
            masks += [*chosen, *chosen, *drawn]
        result, measured = trained(at, masks)  # the tickets are the first
        rows += list(measured.view(len(wave), len(KINDS), len(numbers)))
    table = torch.stack(rows)
    return Tickets(
        torch.tensor([sparsity(m[0]) for m in found], dtype=torch.float64),
        dense,
        {kind: table[:, i] for i, kind in enumerate(KINDS)},
        tuple(found),
        tuple(starts),
    )


def _final(result: ManyResult) -> Tensor:
    """Test errors after the last epoch, or losses in regression."""
    found = result.validation_error
    if found is None:
        found = result.validation_loss
    assert found is not None
    return found[:, -1]
