r"""Fourier series as networks: the cosine squasher, whose shifted copies add up to a cosine.

Gallant and White's squasher rises from 0 to 1 along half a wave,

$$
\sigma(x)=\tfrac12\bigl(1+\cos(x+\tfrac{3\pi}2)\bigr)=\tfrac12(1+\sin x),
\quad|x|\le\tfrac\pi2,
$$

and is 0 before and 1 after. On $[-\pi a,\pi b]$ a cosine is a finite alternating sum of
copies, so that every trigonometric sum is a network with one hidden layer, exactly. Named in
Mathematical Aspects of Deep Learning, section 3.2.1; the formula is Gallant and White's (1988).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.approximation.certificates import Box, as_box
from torchtheory.approximation.network_calculus import chain
from torchtheory.approximation.targets import Function, values_of
from torchtheory.core.checks import whole_number


class CosineSquasher(nn.Module):
    r"""0 before $-\pi/2$, $\tfrac12(1+\sin x)$, 1 after $\pi/2$.

    >>> CosineSquasher()(torch.tensor([-9.0, 0.0, 9.0])).tolist()
    [0.0, 0.5, 1.0]
    """

    def forward(self, x: Tensor) -> Tensor:
        return (1 + torch.sin(x.clamp(-math.pi / 2, math.pi / 2))) / 2


def squashed_cosine(low: float, high: float) -> tuple[Tensor, Tensor, float]:
    r"""Biases, output weights and the constant with which squashers are a cosine on [low, high].

    $\cos t=(-1)^a\bigl[1-2\sum_{j=0}^{J-1}(-1)^j\sigma(t+(a-\tfrac12-j)\pi)\bigr]$ for
    $-a\pi\le t\le(J-a)\pi$: one squasher for each half wave.

    >>> bias, weight, constant = squashed_cosine(-1.0, 4.0)
    >>> len(bias), constant
    (3, -1.0)
    """
    ((low, high),) = as_box((low, high))
    first = math.ceil(-low / math.pi)
    count = max(1, math.ceil(high / math.pi) + first)
    j = torch.arange(count, dtype=torch.float64)
    sign = (-1.0) ** (first % 2)
    alternating = 1 - 2 * (j % 2)
    return (first - 0.5 - j) * math.pi, -2 * sign * alternating, sign


@dataclass(frozen=True, slots=True)
class FourierNetwork:
    r"""A partial Fourier sum as a network of cosine squashers.

    Attributes:
        network: one hidden layer, from `[n, 1]` to `[n, 1]`.
        cosines, sines: the coefficients $a_0,\dots,a_n$ and $0,b_1,\dots,b_n$ of
            $\tfrac{a_0}2+\sum_ka_k\cos\omega_k(x-a)+b_k\sin\omega_k(x-a)$,
            $\omega_k=2\pi k/(b-a)$.
        domain: the interval; outside of it the network is not periodic but constant in the end.
    """

    network: nn.Sequential
    cosines: Tensor
    sines: Tensor
    domain: Box

    def series(self, x: Tensor) -> Tensor:
        """The partial sum itself at `x[n]`, by its definition."""
        ((low, high),) = self.domain
        k = torch.arange(len(self.cosines), dtype=x.dtype)
        angle = (2 * math.pi / (high - low)) * (x - low).unsqueeze(1) * k
        mean = self.cosines[0] / 2
        waves = torch.cos(angle[:, 1:]) @ self.cosines[1:] + torch.sin(angle) @ self.sines
        return mean + waves

    def __call__(self, x: Tensor) -> Tensor:
        """The network at `x[n]`."""
        with torch.no_grad():
            made: Tensor = self.network(x.unsqueeze(1))
        return made[:, 0]


def fourier_network(
    function: Function,
    terms: int,
    interval: tuple[float, float] = (0.0, 1.0),
    *,
    samples: int = 4096,
) -> FourierNetwork:
    r"""The Fourier sum of a function up to frequency `terms` as a network of squashers.

    Each frequency $k$ is one shifted cosine $r_k\cos(\omega_k(x-a)-\varphi_k)$ over
    $2k$ half waves, hence $2k$ or $2k+1$ units: $O(n^2)$ units in all.

    Args:
        function: of one variable.
        terms: $n$, the largest frequency kept.
        samples: of the midpoint rule for the coefficients, more than twice the terms.

    >>> wave = fourier_network(lambda x: torch.cos(2 * torch.pi * x), 1)
    >>> round(wave(torch.tensor([0.5]).double()).item(), 9)
    -1.0
    """
    whole_number(terms, "terms", least=0)
    whole_number(samples, "samples", least=2 * terms + 1)
    ((low, high),) = box = as_box(interval)
    t = (torch.arange(samples, dtype=torch.float64) + 0.5) / samples
    values = values_of(function, (low + (high - low) * t).unsqueeze(1))
    k = torch.arange(terms + 1, dtype=torch.float64)
    angle = 2 * math.pi * t.unsqueeze(1) * k
    cosines, sines = (
        2 * values @ torch.cos(angle) / samples,
        2 * values @ torch.sin(angle) / samples,
    )
    weights, biases, outputs = [torch.zeros(1).double()], [torch.zeros(1).double()], []
    outputs.append(torch.zeros(1).double())
    offset = float(cosines[0]) / 2
    for i in range(1, terms + 1):
        size = math.hypot(cosines[i], sines[i])
        phase = math.atan2(sines[i], cosines[i])
        omega = 2 * math.pi * i / (high - low)
        bias, out, constant = squashed_cosine(-phase, 2 * math.pi * i - phase)
        weights.append(torch.full_like(bias, omega))
        biases.append(bias - omega * low - phase)
        outputs.append(size * out)
        offset += size * constant
    out = torch.cat(outputs).unsqueeze(0)
    network = chain(
        [
            (torch.cat(weights).unsqueeze(1), torch.cat(biases)),
            (out, torch.tensor([offset], dtype=torch.float64)),
        ],
        [CosineSquasher()],
    )
    return FourierNetwork(network, cosines, sines, box)
