r"""How much the gradient of a sample varies, against the gradient itself.

With $\Sigma$ the covariance of the gradient of one sample, a batch of $B$ samples has
the gradient $\nabla L$ plus noise of mean square $\operatorname{tr}\Sigma/B$. They are
alike at $B=\operatorname{tr}\Sigma/\|\nabla L\|^2$, the *simple noise scale*: where the
curvature is the same in all directions, the best step with batches of $B$ lowers the loss by
$1/(1+\operatorname{tr}\Sigma/(B\|\nabla L\|^2))$ of what the best step with the gradient
does. Source: McCandlish, Kaplan and Amodei, "An empirical model of large-batch training" (2018).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.core.checks import as_square
from torchtheory.core.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class NoiseScale:
    """A gradient noise scale and the ends of its error bar.

    Attributes:
        value: in samples; infinite where nothing of the gradient stands out of the noise.
        low, high: two standard errors of the jackknife; `low` is None where none is known.
    """

    value: float
    low: float | None
    high: float


def gradient_noise_scale(gram: Tensor, each: int, *, complete: bool = False) -> NoiseScale:
    r"""$\operatorname{tr}\Sigma/\|\nabla L\|^2$ from gradients of groups of samples.

    Args:
        gram: inner products `[K, K]` of the gradients of $K\ge3$ groups of equal size.
        each: samples a group.
        complete: whether the groups hold all samples there are, so that their mean gradient is
            the gradient itself; else it is an estimate of it, whose squared norm is too large by
            $\operatorname{tr}\Sigma/n$, which is taken off.

    Both estimates are then free of bias ($\Sigma$ of a finite set has the divisor
    $n-1$), and the error bar is two standard errors of the jackknife over groups. Where the
    squared norm is estimated as 0 or less the ratio is infinite; the lower end is then the ratio
    to the squared norm as it is, noise included. Time and memory $O(K^2)$.

    >>> rows = torch.tensor([[1.0, 1.0], [1.0, -1.0], [1.0, 1.0], [1.0, -1.0]]).double()
    >>> found = gradient_noise_scale(rows @ rows.T, 1)
    >>> round(found.value, 9)                        # variance 4/3, squared norm 1 - 1/3
    2.0
    """
    gram = as_square(gram, "the matrix of inner products").double()
    count = len(gram)
    if count < 3:
        raise InvalidInput(f"a noise scale needs the gradients of at least 3 groups, not {count}")
    if each < 1:
        raise InvalidInput(f"a group has at least one sample, not {each}")
    squares, total = gram.diagonal(), gram.sum()
    whole = float(total) / count**2

    def scales(sum_of_squares: Tensor, sum_of_all: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The ratio, and the variance of a group's gradient, from `k` groups."""
        mean = sum_of_all / k**2  # squared norm of the mean gradient
        variance = ((sum_of_squares - k * mean) / (k - 1)).clamp_min(0)
        signal = torch.full_like(mean, whole) if complete else mean - variance / k
        ratio = torch.where(signal > 0, each * variance / signal, math.inf)
        return torch.where(variance == 0, 0.0, ratio), variance

    found, noise = scales(squares.sum(), total, count)
    value = float(found)
    # without one group its square goes, and its row and column of inner products
    without, _ = scales(squares.sum() - squares, total - 2 * gram.sum(1) + squares, count - 1)
    if not (math.isfinite(value) and bool(without.isfinite().all())):
        return NoiseScale(value, each * float(noise) / whole if whole > 0 else None, math.inf)
    radius = 2 * math.sqrt(float((without - without.mean()).square().sum()) * (count - 1) / count)
    return NoiseScale(value, max(0.0, value - radius), value + radius)
