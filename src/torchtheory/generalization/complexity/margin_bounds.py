r"""Risk bounds by margins: a confident decision counts, a hesitant one is an error.

The margin of a decision is $t=yf(x)$. The ramp loss lies between the 0-1 loss and the share
of margins below $\gamma$, and is $1/\gamma$-Lipschitz, so contraction brings in the
complexity of the *real-valued* functions, divided by $\gamma$. Sources: Mathematical Aspects
of Deep Learning, section 1.2.2; Foundations of Deep Learning, section 8.5.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from torchtheory.core.checks import all_finite
from torchtheory.core.errors import EmptyData, InvalidInput
from torchtheory.generalization.complexity.rademacher import (
    empirical_uniform_deviation,
    sequence_deviations,
    uniform_deviation,
)


def ramp_loss(margins: Tensor, gamma: float = 1.0) -> Tensor:
    r"""$\ell_\gamma(t)=\min(1,\max(0,1-t/\gamma))$: 1 for $t\le0$, 0 from γ on.

    >>> import torch
    >>> ramp_loss(torch.tensor([-1.0, 0.0, 0.5, 3.0]), 2.0)
    tensor([1.0000, 1.0000, 0.7500, 0.0000])
    """
    _gamma(gamma)
    return (1 - margins / gamma).clamp(0, 1)


def margin_error(margins: Tensor, gamma: float) -> float:
    r"""The share of margins below $\gamma$.

    >>> import torch
    >>> margin_error(torch.tensor([-1.0, 0.5, 2.0, 3.0]), 2.0)
    0.5
    """
    _gamma(gamma)
    _margins(margins)
    return float((margins < gamma).double().mean())


def margin_bound(
    margins: Tensor,
    complexity: float,
    gamma: float,
    delta: float,
    *,
    ramp: bool = False,
    empirical: bool = False,
) -> float:
    r"""With probability $1-\delta$, no function of the class has a larger risk.

    $\frac1m\sum_i1[y_if(x_i)<\gamma]+\frac2\gamma R_m(\mathcal F)+ \sqrt{\ln(1/\delta)/(2m)}$
    for $\Pr[yf(x)\le0]$, with $\gamma$ fixed beforehand.

    Args:
        margins: $y_if(x_i)$ on the sample.
        complexity: $R_m(\mathcal F)$ of the real-valued functions.
        gamma: the margin that is asked for.
        delta: probability of failure.
        ramp: the mean ramp loss as first term, which is not larger.
        empirical: the complexity is that of this sample; the last term becomes
            $3\sqrt{\ln(2/\delta)/(2m)}$.

    >>> import torch
    >>> round(margin_bound(torch.ones(100), 0.1, 0.5, 0.05), 6)
    0.522387
    """
    _gamma(gamma)
    _margins(margins)
    first = float(ramp_loss(margins, gamma).mean()) if ramp else margin_error(margins, gamma)
    deviation = empirical_uniform_deviation if empirical else uniform_deviation
    return first + deviation(complexity / gamma, margins.numel(), delta)


def best_margin_bound(
    margins: Tensor,
    complexity: float,
    gammas: Sequence[float],
    delta: float,
) -> tuple[float, float]:
    r"""The least bound over a grid of margins, and the margin that has it.

    All bounds of the grid hold together when $\delta$ is divided among them in equal parts; the
    choice may then follow the data.

    >>> import torch
    >>> bound, gamma = best_margin_bound(torch.linspace(0, 2, 1000), 0.01, [0.1, 0.2, 0.4], 0.05)
    >>> round(bound, 4), gamma
    (0.2452, 0.2)
    """
    if not gammas:
        raise EmptyData("a grid of margins needs at least one")
    for gamma in gammas:
        _gamma(gamma)
    _margins(margins)
    deviations = sequence_deviations(
        [complexity / gamma for gamma in gammas],
        margins.numel(),
        delta,
        weights=[1 / len(gammas)] * len(gammas),
        empirical=False,
    )
    return min(
        (margin_error(margins, gamma) + deviation, gamma)
        for gamma, deviation in zip(gammas, deviations, strict=True)
    )


def _gamma(gamma: float) -> None:
    if not (math.isfinite(gamma) and gamma > 0):
        raise InvalidInput(f"a margin to ask for is a positive number, not {gamma!r}")


def _margins(margins: Tensor) -> None:
    if margins.numel() == 0:
        raise EmptyData(f"there are no margins (the shape is {list(margins.shape)})")
    all_finite(margins, "the margins")
