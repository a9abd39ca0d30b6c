"""A number known up to chance, with its standard error."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from torchtheory.core.errors import EmptyData


@dataclass(frozen=True)
class Estimate:
    r"""The mean of independent samples $x_1, \dots, x_s$ and how far it may be off.

    Attributes:
        value: $\bar x = \frac1s \sum_i x_i$.
        standard_error: $\sqrt{\frac{1}{s(s-1)} \sum_i (x_i - \bar x)^2}$; infinite for a single
            sample, which says nothing about its spread, and 0 for a result that is exact.
        samples: $s$, or what the function that returns the estimate says it counts.
    """

    value: float
    standard_error: float
    samples: int

    @classmethod
    def of(cls, samples: Tensor) -> Estimate:
        """The estimate from independent samples of any shape.

        >>> import torch
        >>> Estimate.of(torch.tensor([1.0, 3.0]))
        Estimate(value=2.0, standard_error=1.0, samples=2)
        """
        s = samples.numel()
        if s == 0:
            raise EmptyData("an estimate needs at least one sample, and there is none")
        x = samples.detach().cpu().double().flatten()
        error = float(x.std()) / math.sqrt(s) if s > 1 else math.inf
        return cls(float(x.mean()), error, s)

    def __float__(self) -> float:
        return self.value
