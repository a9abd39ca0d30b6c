r"""How much the gradient of a sample varies, against the gradient itself.

McCandlish, Kaplan and Amodei, "An empirical model of large-batch training" (2018).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class NoiseScale:
    """A gradient noise scale and the ends of its error bar.

    Attributes:
        value: in samples; infinite where nothing of the gradient stands out of the noise.
        low, high: two standard errors of the jackknife; ``low`` is None where none is known.
    """

    value: float
    low: float | None
    high: float


def gradient_noise_scale(gram: Tensor, each: int, *, complete: bool = False) -> NoiseScale:
    r""":math:`\operatorname{tr}\Sigma/\|\nabla L\|^2` from gradients of groups of samples.

    Args:
        gram: inner products ``[K, K]`` of the gradients of K groups of equal size.
        each: samples a group.
        complete: whether the groups hold all samples there are, so that their mean gradient is
            the gradient itself; else it is an estimate of it, whose squared norm is too large by
            :math:`\operatorname{tr}\Sigma/n`, which is taken off.

    Both estimates are then free of bias, and the error bar is two standard errors of the jackknife
    over groups. Where the squared norm is estimated as 0 or less the ratio is infinite; the lower
    end is then the ratio to the squared norm as it is, noise included.

    >>> rows = torch.tensor([[1.0, 1.0], [1.0, -1.0], [1.0, 1.0], [1.0, -1.0]]).double()
    >>> found = gradient_noise_scale(rows @ rows.T, 1)
    >>> round(found.value, 9)                        # variance 4/3, squared norm 1 - 1/3
    2.0
    """

    def variance_and_square(kept: Tensor) -> tuple[float, float]:
        """Of the gradient of a group, and of the mean over groups."""
        part, k = gram[kept][:, kept], int(kept.sum())
        square = float(part.mean())
        return max(0.0, (float(part.diagonal().sum()) - k * square) / (k - 1)), square

    def ratio(kept: Tensor) -> float:
        variance, square = variance_and_square(kept)
        signal = whole if complete else square - variance / int(kept.sum())
        if variance == 0:
            return 0.0
        return each * variance / signal if signal > 0 else math.inf

    count, whole = len(gram), float(gram.mean())
    everything = torch.ones(count, dtype=torch.bool)
    value = ratio(everything)
    without = [ratio(torch.arange(count) != i) for i in range(count)]
    if not all(math.isfinite(v) for v in [value, *without]):
        variance, _ = variance_and_square(everything)
        return NoiseScale(value, each * variance / whole if whole > 0 else None, math.inf)
    centre = math.fsum(without) / count
    spread = math.fsum((v - centre) ** 2 for v in without) * (count - 1) / count
    radius = 2 * math.sqrt(spread)
    return NoiseScale(value, max(0.0, value - radius), value + radius)
