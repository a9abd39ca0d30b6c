"""Two expectations of an activation and its slope, of two correlated Gaussians."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor, nn

#: What was computed once for each point, each tensor of shape `[..., *variances]`.
Prepared = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Moments:
    r"""Two expectations, entry by entry.

    Attributes:
        values: $\mathbb E\,\varphi(z)\varphi(z')$.
        slopes: $\mathbb E\,\varphi'(z)\varphi'(z')$, unless left out.
        error: how far entries may be off beyond rounding; 0 for closed forms.
    """

    values: Tensor
    slopes: Tensor | None
    error: float = 0.0


class DualActivation(ABC):
    """An activation with its two expectations.

    `prepare` does what depends on one point only; `pair` combines two prepared points, whose
    tensors may broadcast against the covariances.
    """

    name = "activation"

    @abstractmethod
    def layer(self) -> nn.Module:
        """The activation as a module."""

    @abstractmethod
    def prepare(self, variance: Tensor) -> Prepared:
        """What depends on one point only."""

    @abstractmethod
    def pair(self, k12: Tensor, one: Prepared, other: Prepared, *, slopes: bool) -> Moments:
        """The expectations of two prepared points."""

    def on_diagonal(self, variance: Tensor, *, slopes: bool = True) -> Moments:
        r"""The case $z'=z$: $\mathbb E\varphi(z)^2$, $\mathbb E\varphi'(z)^2$."""
        point = self.prepare(variance)
        return self.pair(variance, point, point, slopes=slopes)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"
