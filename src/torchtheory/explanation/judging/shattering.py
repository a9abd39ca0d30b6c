r"""Shattered gradients: how fast explanations forget themselves on a way between two inputs.

On the line $x(t)=(1-t)x+tx'$ the correlation, over features, of the relevance at $t$ and at
$t+\ell$,

$$
\rho(\ell)=\mathbb E_t\,\mathrm{corr}\bigl(R(x(t)),R(x(t+\ell))\bigr),
$$

stays near 1 for an explanation that changes slowly. Gradients of plain networks of ReLUs lose it
faster the deeper the network, up to white noise; relevance that favors positive contributions does
so much later. Source: Mathematical Aspects of Deep Learning, section 5.3.2; Balduzzi et al. (2017).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.core.checks import open_fraction, whole_number
from torchtheory.core.errors import InvalidType, ShapeMismatch
from torchtheory.core.intervals import Interval
from torchtheory.explanation.by_feature import (
    Method,
    correlation,
    explained_by,
    feature_totals,
    named_methods,
    sample_mean,
)
from torchtheory.explanation.score import Target, open_score


@dataclass(frozen=True, slots=True)
class Shattering:
    """How fast one method's explanations change on the way.

    Attributes:
        lags: `[points]`, shares of the way, from 0.
        correlations: `[n, points]`, of relevance so far apart, for each way.
        confidence: of `at`.
    """

    lags: Tensor
    correlations: Tensor
    confidence: float

    @property
    def mean(self) -> Tensor:
        """Over the ways, `[points]`."""
        return self.correlations.mean(0)

    def at(self, lag: float) -> Interval:
        """The correlation at the lag that is nearest to this one, its mean over the ways."""
        place = int((self.lags - lag).abs().argmin())
        return sample_mean(self.correlations[:, place], self.confidence)


def shattering(
    model: nn.Module,
    x: Tensor,
    other: Tensor,
    methods: Method | Mapping[str, Method],
    target: Target = None,
    *,
    points: int = 33,
    confidence: float = 0.95,
) -> dict[str, Shattering]:
    """How fast explanations forget themselves on the lines from some inputs to others.

    Args:
        model: the network.
        x, other: where the lines begin and end, `[n, ...]` each.
        methods: called as `method(model, x, target)`, by name.
        target: whose score is explained; the classes predicted at `x` unless given, on the whole
            way.
        points: on each line.
        confidence: of the intervals over lines.

    Time: `n * points` explanations for each method.

    >>> def flat_map(model, x, target):
    ...     return Explanation(x * model.weight.detach()[0], model(x)[:, 0].detach(), "by hand")
    >>> from torchtheory.explanation.explanation import Explanation
    >>> x = torch.eye(3)
    >>> found = shattering(nn.Linear(3, 1), x, 2 * x, flat_map)["flat map"]
    >>> round(float(found.mean.min()), 4)                    # the map grows and keeps its pattern
    1.0
    """
    whole_number(points, "points", least=2)
    open_fraction(confidence, "confidence")
    for t in (x, other):
        if not isinstance(t, Tensor) or not t.is_floating_point():
            raise InvalidType("lines lead from real inputs to real inputs, one tensor each")
    if x.shape != other.shape:
        raise ShapeMismatch(f"lines from {list(x.shape)} cannot end at {list(other.shape)}")
    with open_score(model, x, target) as score:
        fixed: Target = score.classes if target is None else target
    # a class for each sample, or weights for each; one class or one row of weights is for all
    if isinstance(fixed, Tensor) and fixed.ndim == 1 + fixed.is_floating_point():
        fixed = fixed.repeat_interleave(points, 0)
    share = torch.linspace(0, 1, points, dtype=x.dtype, device=x.device)
    weights = share.reshape(1, points, *[1] * (x.ndim - 1))
    way = (x[:, None] + weights * (other - x)[:, None]).flatten(0, 1)
    found = {}
    for name, method in named_methods(methods).items():
        maps = feature_totals(explained_by(method, model, way, fixed).relevance).double().cpu()
        maps = maps.reshape(len(x), points, -1)
        lagged = [
            correlation(
                maps[:, : points - k].flatten(0, 1), maps[:, k:].flatten(0, 1)
            ).reshape(len(x), points - k).mean(1)
            for k in range(points)
        ]  # fmt: skip
        found[name] = Shattering(share.double().cpu(), torch.stack(lagged, 1), confidence)
    return found
