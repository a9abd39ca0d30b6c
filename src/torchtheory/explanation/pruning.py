r"""Pruning by relevance: the units and filters that no decision needs go first.

The relevance of a unit is what layer-wise relevance propagation hands it,

$$
s_j=\frac1n\sum_{i=1}^n\Bigl|\sum_pR_{j,p}(x_i)\Bigr|,
$$

over reference samples $x_i$, with the places $p$ of a filter added up. Of every layer the lowest
go, with their rows and columns, so that the network is really smaller. Source: Mathematical Aspects
of Deep Learning, sections 5.4.2 and 5.6; Yeom et al. (2019).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.core.checks import described, whole_number
from torchtheory.core.errors import EmptyData, ShapeMismatch, UnsupportedModel
from torchtheory.core.intervals import Interval, clopper_pearson
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.explanation.composites import Composite, Rules, first_layer
from torchtheory.explanation.lrp import layer_relevances
from torchtheory.explanation.rules import AlphaBeta, Epsilon
from torchtheory.explanation.score import Target
from torchtheory.models.model import evaluation_mode
from torchtheory.models.opened import answer
from torchtheory.nets.symmetries import HiddenLayer, hidden_layers
from torchtheory.training.pruning.masks import masked
from torchtheory.training.pruning.units import (
    PrunedUnits,
    largest_units,
    remove_units,
    unit_masks,
    unit_scores,
)

#: Alpha 1 and beta 0, but in the first layer, whose inputs may be negative: what units get of it is
#: the same.
USUAL = Composite(((first_layer, Epsilon(1e-6)),), AlphaBeta(1, 0))


def unit_relevances(
    model: nn.Module, x: Tensor, target: Target = None, rules: Rules = None
) -> dict[HiddenLayer, Tensor]:
    """How much relevance each unit, or filter, is handed, `[units]` for each hidden layer.

    Args:
        model: a module whose hidden layers `hidden_layers` finds.
        x: reference inputs `[n, ...]`.
        target: whose score is explained; the predicted classes unless given.
        rules: of the propagation; `AlphaBeta(1, 0)` unless given, as in the source.

    Time: one propagation of relevance.

    >>> net = nn.Sequential(nn.Linear(1, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False))
    >>> _ = net[0].weight.data.copy_(torch.tensor([[3.0], [1.0]])), net[2].weight.data.fill_(2.0)
    >>> [[round(float(v), 4) for v in s] for s in unit_relevances(net, torch.ones(4, 1)).values()]
    [[6.0, 2.0]]
    """
    layers = hidden_layers(model)
    if not layers:
        raise UnsupportedModel(
            "the network has no hidden layer between two dense layers or convolutions whose units "
            "could go"
        )
    found = layer_relevances(
        model, x, target, USUAL if rules is None else rules, [h.incoming for h in layers]
    )
    return {h: _by_unit(found[h.incoming], model.get_submodule(h.incoming)) for h in layers}


def prune_by_relevance(
    model: nn.Module, x: Tensor, share: float, target: Target = None, rules: Rules = None
) -> PrunedUnits:
    """Remove a share of the units, or filters, of every hidden layer, the least relevant ones.

    Args:
        model: a module whose hidden layers `hidden_layers` finds; it is left alone.
        x: reference inputs `[n, ...]`.
        share: of each layer's units, from 0 to below 1; one stays at least.
        target, rules: as for `unit_relevances`.

    Returns:
        the smaller network, and the one of the old shape in which the removed units have weights 0.

    >>> net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> prune_by_relevance(net, torch.randn(5, 2), 0.5).network[0].out_features
    4
    """
    kept = largest_units(unit_relevances(model, x, target, rules), share)
    masks = unit_masks(model, kept)
    return PrunedUnits(remove_units(model, kept), masked(model, masks), masks, dict(kept))


@dataclass(frozen=True, slots=True)
class PruningCurves:
    """Accuracy against the share of units that went, by what chose them.

    Attributes:
        shares: of each layer's units, `[S]`.
        accuracy: `[S]` by criterion: `relevance`, `magnitude` (weights in and out of a unit), and
            `random`, the mean over the draws.
        draws: `[draws, S]`, of every random choice.
        samples: that were classified.
    """

    shares: Tensor
    accuracy: Mapping[str, Tensor]
    draws: Tensor
    samples: int

    def interval(self, criterion: str, place: int, confidence: float = 0.95) -> Interval:
        """That of the accuracy at the s-th share, over samples."""
        right = round(float(self.accuracy[criterion][place]) * self.samples)
        return clopper_pearson(right, self.samples, confidence)


def pruning_curves(
    model: nn.Module,
    reference: Tensor,
    data: tuple[Tensor, Tensor],
    shares: Sequence[float],
    *,
    target: Target = None,
    rules: Rules = None,
    draws: int = 10,
    generator: RandomSource = None,
) -> PruningCurves:
    """Accuracy of networks without their least relevant units, beside two other choices.

    Every network is really smaller, and none is trained again.

    Args:
        model: a classifier with one logit per class.
        reference: inputs that tell relevance.
        data: inputs `[n, ...]` and classes `[n]` that judge.
        shares: of each layer's units that go.
        target, rules: as for `unit_relevances`.
        draws: of units at random.
        generator: of these.
    """
    whole_number(draws, "draws", least=1)
    if not len(shares):
        raise EmptyData("there is no share to remove")
    x, y = data
    if not isinstance(y, Tensor) or y.shape != (len(x),):
        raise ShapeMismatch(f"there are {len(x)} inputs, so their classes are not {described(y)}")
    relevance = unit_relevances(model, reference, target, rules)
    magnitude = unit_scores(model)
    source = as_generator(generator)
    at_random = [
        {h: torch.rand(h.units, generator=source) for h in relevance} for _ in range(draws)
    ]

    def accuracies(scores: Mapping[HiddenLayer, Tensor]) -> Tensor:
        found = [_accuracy(remove_units(model, largest_units(scores, s)), x, y) for s in shares]
        return torch.tensor(found, dtype=torch.float64)

    drawn = torch.stack([accuracies(scores) for scores in at_random])
    return PruningCurves(
        torch.tensor(shares, dtype=torch.float64),
        {
            "relevance": accuracies(relevance),
            "magnitude": accuracies(magnitude),
            "random": drawn.mean(0),
        },
        drawn,
        len(y),
    )


def _accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad(), evaluation_mode(model):
        outputs = answer(model, x)
    if not isinstance(outputs, Tensor) or outputs.ndim != 2 or outputs.shape[1] == 1:
        raise UnsupportedModel("the model must return one logit per class and sample")
    return float((outputs.argmax(1) == y).double().mean())


def _by_unit(relevance: Tensor, layer: nn.Module) -> Tensor:
    """The mean over samples of what a unit has in all its places, in size."""
    dim = relevance.ndim - 1 if isinstance(layer, nn.Linear) else 1
    by_unit = relevance.movedim(dim, 1).reshape(len(relevance), relevance.shape[dim], -1)
    return by_unit.sum(2).abs().mean(0)
