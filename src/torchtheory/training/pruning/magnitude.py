r"""Magnitude pruning: the smallest weights go.

Of all masks with $k$ zeros, the one that removes the $k$ smallest $|\theta_i|$ changes the
parameters least, in every $\ell_p$ norm. Globally the weights of all layers compete; per layer
each loses the same share. Source: Mathematical Aspects of Deep Learning, section 1.6.5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from torchtheory.core.checks import all_finite, closed_fraction, one_of
from torchtheory.core.errors import EmptyData, InvalidInput
from torchtheory.core.random import RandomSource
from torchtheory.training.pruning.masks import (
    Masks,
    checked_masks,
    masked,
    prunable_weights,
    random_masks,
    sparsity,
)

Rule = Literal["magnitude", "magnitude per layer", "random"]
#: Most magnitudes that are sorted for a threshold.
SORTED = 4_000_000

RULES: tuple[Rule, ...] = ("magnitude", "magnitude per layer", "random")


class Pruned(NamedTuple):
    """A pruned network.

    Attributes:
        network: a copy whose pruned weights are 0.
        masks: True where a weight stays, by the names of the parameters.
    """

    network: nn.Module
    masks: dict[str, Tensor]

    @property
    def sparsity(self) -> float:
        """The share of the weights that went."""
        return sparsity(self.masks)


def prune(
    model: nn.Module, share: float, rule: Rule = "magnitude", *, generator: RandomSource = None
) -> Pruned:
    """A copy of a network without a share of its weights; the network itself is left alone.

    Args:
        model: any module; see `prunable_weights` for what can go.
        share: of all its weights, 0 to 1; the number that go is rounded.
        rule: `magnitude`, the smallest of all; `magnitude per layer`, the smallest of each layer;
            `random`, as many of each layer as magnitude would take, drawn at random.
        generator: generator or seed of the random rule.

    Time: one selection among the weights.

    >>> net = nn.Linear(4, 1)
    >>> _ = net.weight.data.copy_(torch.tensor([[0.1, -3.0, 0.2, 2.0]]))
    >>> smaller, masks = prune(net, 0.5)
    >>> masks["weight"].tolist()
    [[False, True, False, True]]
    """
    one_of(rule, "rule", RULES)
    masks = magnitude_masks(model, share, per_layer=rule == "magnitude per layer")
    if rule == "random":
        masks = random_masks(masks, generator)
    return Pruned(masked(model, masks), masks)


def magnitude_masks(
    model: nn.Module, share: float, *, per_layer: bool = False, within: Masks | None = None
) -> dict[str, Tensor]:
    """Masks without the smallest weights.

    Args:
        model: any module.
        share: of all its weights that go, rounded to a number; per layer of each layer's.
        per_layer: whether each layer loses its share, instead of all together.
        within: masks of an earlier round; what went there goes first, and never comes back. Masks
            of other parameters, such as biases, are handed on.

    >>> net = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Linear(1, 2, bias=False))
    >>> _ = net[0].weight.data.fill_(1.0), net[1].weight.data.fill_(-2.0)
    >>> {k: m.flatten().tolist() for k, m in magnitude_masks(net, 0.5).items()}
    {'0.weight': [False, False], '1.weight': [True, True]}
    >>> {k: int(m.sum()) for k, m in magnitude_masks(net, 0.5, per_layer=True).items()}
    {'0.weight': 1, '1.weight': 1}
    """
    closed_fraction(share, "the share of weights")
    scores = {k: all_finite(w, k).abs() for k, w in prunable_weights(model).items()}
    handed_on: dict[str, Tensor] = {}
    if within is not None:
        gone = checked_masks(model, within)
        handed_on = {k: m for k, m in gone.items() if k not in scores}
        before = {k: int((~gone[k]).sum()) if k in gone else 0 for k in scores}
        total = {k: s.numel() for k, s in scores.items()}
        if not per_layer:
            before, total = {"": sum(before.values())}, {"": sum(total.values())}
        for k, count in before.items():
            if round(share * total[k]) < count:
                raise InvalidInput(
                    f"{count} of {total[k]} weights{f' of {k}' * bool(k)} went before, more than a "
                    f"share of {share:g}"
                )
        # below every magnitude, so that these are the first to go
        scores = {k: s.masked_fill(~gone[k], -1.0) if k in gone else s for k, s in scores.items()}
    if per_layer:
        own = {k: _without_smallest(s.reshape(-1), share).view(s.shape) for k, s in scores.items()}
        return own | handed_on
    flat = torch.cat([s.reshape(-1).to("cpu", torch.float64) for s in scores.values()])
    parts = torch.split(_without_smallest(flat, share), [s.numel() for s in scores.values()])
    return {
        k: part.view(s.shape).to(s.device)
        for (k, s), part in zip(scores.items(), parts, strict=True)
    } | handed_on


def _without_smallest(scores: Tensor, share: float) -> Tensor:
    gone = round(share * len(scores))
    kept = torch.ones(len(scores), dtype=torch.bool, device=scores.device)
    kept[torch.topk(scores, gone, largest=False).indices] = False
    return kept


def magnitude_thresholds(weights: Mapping[str, Tensor], shares: Sequence[float]) -> list[float]:
    """For each share the magnitude up to which weights go, so that about that share does.

    Exact, up to ties, for as many weights as `SORTED`; of more, an evenly spaced part is sorted.
    Time: one sort for all shares.

    >>> magnitude_thresholds({"w": torch.tensor([0.5, -4.0, 1.0, 2.0])}, [0.25, 0.5])
    [0.5, 1.0]
    """
    total = sum(w.numel() for w in weights.values())
    if not total:
        raise EmptyData("there is no weight to find a threshold of")
    step = -(-total // SORTED)
    parts = [w.detach().reshape(-1)[::step].abs().cpu().double() for w in weights.values()]
    ordered = torch.cat(parts).sort().values
    gone = [round(closed_fraction(s, "the share of weights") * len(ordered)) for s in shares]
    return [float(ordered[k - 1]) if k else -1.0 for k in gone]
