r"""Stability: how much an explanation changes where the input hardly does.

For perturbations $\delta$ of length $r\|x\|$ in random directions,

$$
L(x)=\max_\delta\frac{\|R(x+\delta)-R(x)\|}{\|\delta\|},\qquad
c(x)=\max_\delta\frac{\|R(x+\delta)-R(x)\|}{\|R(x)\|}.
$$

Both are maxima over the directions that were tried, so lower bounds of the maxima over all; attacks
(`torchtheory.explanation.manipulation`) find more. Perturbed inputs stay in the range of the data:
an entry that would leave it moves the other way. The explained class stays that of $x$. Source: the
continuity asked for in Mathematical Aspects of Deep Learning, section 5.3.3; Alvarez-Melis and
Jaakkola (2018).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.core.checks import open_fraction, positive_number, whole_number
from torchtheory.core.errors import InvalidType
from torchtheory.core.intervals import Interval
from torchtheory.core.random import RandomSource, as_generator, gaussian
from torchtheory.explanation.by_feature import Method, explained_by, sample_mean
from torchtheory.explanation.explanation import flat
from torchtheory.explanation.score import Inputs, Target, open_score


@dataclass(frozen=True, slots=True)
class Stability:
    """How much explanations change with small perturbations.

    Attributes:
        radius: length of the perturbations, relative to that of the input.
        lipschitz: `[n]`, the largest change of relevance per length of the perturbation.
        changes: `[n]`, the largest change relative to the relevance.
        change: its mean over samples, with the interval.
    """

    radius: float
    lipschitz: Tensor
    changes: Tensor
    change: Interval


def explanation_stability(
    model: nn.Module,
    x: Inputs,
    method: Method,
    target: Target = None,
    *,
    radius: float = 0.01,
    draws: int = 8,
    confidence: float = 0.95,
    generator: RandomSource = None,
) -> Stability:
    """How much an explanation changes when its input is moved a little in random directions.

    No entry leaves the range that the inputs have (that of its channel, for images), so that rules
    and models for pixels between 0 and 1 are asked about such pixels only.

    Args:
        model: the network.
        x: real inputs `[n, ...]`, or several such tensors.
        method: that is judged, called as `method(model, x, target)`.
        target: whose score is explained; the classes predicted at `x` unless given.
        radius: length of the perturbations, relative to each input's own.
        draws: directions that are tried per sample.
        confidence: of the interval over samples.
        generator: of the directions.

    Time: `draws + 1` explanations.

    >>> def by_hand(model, x, target):
    ...     return Explanation(x * model.weight.detach()[0], model(x)[:, 0].detach(), "by hand")
    >>> from torchtheory.explanation.explanation import Explanation
    >>> net = nn.Linear(3, 1)
    >>> found = explanation_stability(net, torch.ones(4, 3), by_hand)
    >>> bool((found.lipschitz <= float(net.weight.detach().abs().max()) + 1e-4).all())
    True
    """
    positive_number(radius, "radius")
    whole_number(draws, "draws", least=1)
    open_fraction(confidence, "confidence")
    with open_score(model, x, target) as score:
        fixed = score.classes if target is None else target
        inputs = score.x
    if not all(t.is_floating_point() for t in inputs):
        raise InvalidType("words cannot be moved a little; give a model of their embeddings")
    single = isinstance(x, Tensor)
    before = flat(explained_by(method, model, x, fixed).relevance).double()
    size = flat(inputs).double().norm(dim=1)
    source = as_generator(generator)
    lipschitz, largest = torch.zeros(2, len(before), dtype=torch.float64)
    for _ in range(draws):
        moves = [
            gaussian(*t.shape, generator=source, dtype=t.dtype, device=t.device) for t in inputs
        ]
        lengths = flat(tuple(moves)).norm(dim=1)
        scale = (radius * size / lengths).to(inputs[0].dtype)
        moved = tuple(
            _inside(t, scale.reshape(-1, *[1] * (t.ndim - 1)) * m)
            for t, m in zip(inputs, moves, strict=True)
        )
        after = flat(
            explained_by(method, model, moved[0] if single else moved, fixed).relevance
        ).double()
        apart = (flat(moved).double() - flat(inputs).double()).norm(dim=1)
        change = (after - before).norm(dim=1)
        slope = torch.where(apart > 0, change / apart, 0.0)
        lipschitz = torch.maximum(lipschitz, slope.cpu())
        largest = torch.maximum(largest, change.cpu())
    changes = torch.where(largest > 0, largest / before.norm(dim=1).cpu(), 0.0)
    known = changes[changes.isfinite()]
    return Stability(
        radius, lipschitz, changes, sample_mean(known if len(known) else [0.0], confidence)
    )


def _inside(x: Tensor, move: Tensor) -> Tensor:
    """Inputs after a move, turned back in entries that would leave the range of the inputs."""
    over = [d for d in range(x.ndim) if x.ndim != 4 or d != 1]
    low, high = x.amin(over, keepdim=True), x.amax(over, keepdim=True)
    if bool((low == high).all()):
        return x + move  # the same number everywhere has no range
    there = x + move
    turned = torch.where((there < low) | (there > high), x - move, there)
    return torch.minimum(torch.maximum(turned, low), high)
