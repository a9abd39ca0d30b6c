r"""How far weights may be perturbed before a network errs: a probe of flatness.

Source: Foundations of Deep Learning, section 9.2 ("wide minima: robust to large parameter
perturbations"), made precise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn

from torchtheory.core.checks import described
from torchtheory.core.errors import EmptyData, InvalidInput
from torchtheory.generalization.pac_bayes.gibbs_risk import gibbs_risk, mistakes
from torchtheory.generalization.pac_bayes.stochastic_network import StochasticNetwork, spread_like
from torchtheory.models.model import Parameters
from torchtheory.models.samples import Samples

FRACTIONS = tuple(2.0 ** (k / 2) for k in range(-16, 5))


@dataclass(frozen=True)
class Flatness:
    r"""What a network's error does as its weights become noisy.

    Attributes:
        fraction: the largest noise within the tolerance, as a fraction of each tensor's root mean
            square; 0 if even the least one is too much.
        spread: that noise as standard deviations by the parameter's name; empty if there is none.
        fractions, errors: the curve, from little noise to much; it ends at the first error beyond
            the tolerance.
        error: of the network without noise.
    """

    fraction: float
    spread: Parameters
    fractions: tuple[float, ...]
    errors: tuple[float, ...]
    error: float


def flatness(
    model: nn.Module,
    samples: Samples,
    *,
    tolerance: float = 0.01,
    fractions: Sequence[float] = FRACTIONS,
    passes: int = 1,
    seed: int = 0,
) -> Flatness:
    r"""The largest Gaussian noise on the weights that raises the error by at most `tolerance`.

    The noise is $N(0,(\tau\,\mathrm{rms}_\ell)^2)$ on every weight of tensor $\ell$, frozen
    or not.
    The relative size makes the answer the same for networks that differ by rescaling a tensor;
    noise of one absolute size would not be.

    Args:
        model: any network; not changed.
        samples: as `Problem` prepares them.
        tolerance: how much the mean error may exceed that without noise.
        fractions: the $\tau$ to try, increasing.
        passes: evaluations of the samples at each.
        seed: of the noise, the same for all $\tau$.

    >>> from torchtheory.models.problem import Problem
    >>> x = torch.tensor([[1.0], [-1.0]]).repeat(200, 1)
    >>> net = nn.Linear(1, 1, bias=False)
    >>> with torch.no_grad(): _ = net.weight.fill_(1.0)
    >>> train = Problem(net, (x, x[:, 0] > 0)).train
    >>> 0.35 < flatness(net, train, tolerance=0.01).fraction <= 0.5     # P(1 + τξ < 0) = 0.01
    True
    """
    if not 0 <= tolerance < 1:
        raise InvalidInput(f"the tolerance lies between 0 and 1, not {tolerance}")
    values = [float(f) for f in fractions]
    if not values or any(not 0 < a < b for a, b in pairwise(values)):
        raise InvalidInput(f"the fractions must be positive and increase, not {described(values)}")
    if not len(samples):
        raise EmptyData("the flatness of a minimum is measured on at least one sample, not on 0")
    network = StochasticNetwork(model, spread=1.0)
    with torch.no_grad():
        parts = [mistakes(network(x, "none"), y).double() for x, y in samples.chunks(2048)]
    error = float(torch.cat(parts).mean())
    tried: list[float] = []
    errors: list[float] = []
    best = 0.0
    for fraction in values:
        noisy = StochasticNetwork(model, spread=spread_like(model, fraction), generator=seed)
        tried.append(fraction)
        errors.append(gibbs_risk(noisy, samples, passes=passes).estimate)
        if errors[-1] > error + tolerance:
            break
        best = fraction
    spread = spread_like(model, best) if best else {}
    return Flatness(best, spread, tuple(tried), tuple(errors), error)
