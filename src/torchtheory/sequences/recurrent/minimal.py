r"""Gated recurrences that are linear in the state, and so run as scans: minGRU and minLSTM.

Their gates see the input only, so for a fixed input the state is a linear recurrence with factors
that change over time. Source: Deep Learning (notes), section 5.2.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor, nn

from torchtheory.core.checks import one_of, whole_number
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.nets.feedforward import drawn_linear
from torchtheory.sequences.recurrent.linear_scans import linear_scan

Method = Literal["scan", "loop"]


class GatedLinear(nn.Module, ABC):
    r"""$z_t=f_t\odot z_{t-1}+i_t\odot Vx_t$ with gates $f_t,i_t$ of the input.

    Subclasses say what the gates are; `forward` runs the recurrence by a scan, or by the loop, to
    the same values.
    """

    gates = 1

    def __init__(
        self,
        inputs: int,
        units: int,
        *,
        bias: bool = False,
        generator: RandomSource = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        self.units = whole_number(units, "units", least=1)
        source = as_generator(generator)
        self.candidate = drawn_linear(inputs, units, bias=bias, generator=source, dtype=dtype)
        self.gate = drawn_linear(
            inputs, self.gates * units, bias=bias, generator=source, dtype=dtype
        )

    @abstractmethod
    def coefficients(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Factors and additions `[..., T, m]` of the recurrence for inputs `[..., T, n]`."""

    def forward(self, x: Tensor, initial: Tensor | None = None, method: Method = "scan") -> Tensor:
        one_of(method, "method", ("scan", "loop"))
        a, b = self.coefficients(x)
        if method == "scan":
            return linear_scan(a, b, initial=initial)
        z = torch.zeros_like(b[..., 0, :]) if initial is None else initial
        found = []
        for factor, added in zip(a.unbind(-2), b.unbind(-2), strict=True):
            z = factor * z + added
            found.append(z)
        return torch.stack(found, -2)


class MinGRU(GatedLinear):
    r"""$z_t=s_t\odot z_{t-1}+(1-s_t)\odot Vx_t$ with $s_t=\sigma(Gx_t)$.

    An average of the $Vx$ of the past with weights $(1-s_t)\prod_{j>t}s_j$, so it stays within
    their range.

    >>> net, x = MinGRU(3, 4), torch.randn(2, 9, 3, generator=torch.Generator().manual_seed(0)).double()
    >>> bool(torch.allclose(net(x), net(x, method="loop")))
    True
    """  # noqa: E501 - a doctest

    def coefficients(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.gate(x)
        # 1 - σ(u) = σ(-u), without the cancellation
        return logits.sigmoid(), (-logits).sigmoid() * self.candidate(x)


class MinLSTM(GatedLinear):
    r"""$z_t=f_t\odot z_{t-1}+i_t\odot Vx_t$, two gates of the input that are made to sum to one.

    $f=\sigma(Fx)/(\sigma(Fx)+\sigma(Gx))$ and $i=1-f$.

    >>> MinLSTM(3, 4)(torch.ones(2, 9, 3).double()).shape
    torch.Size([2, 9, 4])
    """

    gates = 2

    def coefficients(self, x: Tensor) -> tuple[Tensor, Tensor]:
        forget, enter = self.gate(x).chunk(2, -1)
        # the ratio of two logistic functions, by their logarithms: nothing is 0 / 0
        difference = nn.functional.logsigmoid(forget) - nn.functional.logsigmoid(enter)
        return difference.sigmoid(), (-difference).sigmoid() * self.candidate(x)
