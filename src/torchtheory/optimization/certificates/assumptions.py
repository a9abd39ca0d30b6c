r"""What is assumed of a function and of the method that descends it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.core.checks import described, positive_number
from torchtheory.core.errors import InvalidInput, InvalidType, NonFinite, UnknownName
from torchtheory.optimization.certificates.promises import PROMISES, Kind
from torchtheory.optimization.certificates.run_constants import Constant

Given = float | Constant | None

#: The constants in words.
SYMBOLS = {
    "smoothness": "the smoothness constant L",
    "convexity": "the strong convexity μ",
    "dominance": "the Polyak-Łojasiewicz constant μ",
    "minimum": "the minimum f*",
    "distance": "the distance ‖x₀ - x*‖",
    "gradient_bound": "the bound σ on the gradients",
    "momentum": "the momentum β",
}


@dataclass(frozen=True, slots=True)
class Assumptions:
    r"""What is assumed of a function and of the method that descends it.

    Constants that are not given are read off the run where that is possible, each with the
    direction in which it may be off.

    Attributes:
        kind: which theorem, a key of `PROMISES`.
        step: $\eta$.
        smoothness: $L$.
        convexity: $\mu$; on a quadratic, the smallest eigenvalue (that is not 0).
        dominance: the constant of the Polyak-Łojasiewicz inequality.
        minimum: $f^\star$.
        minimizer: $x^\star$, `[p]`.
        distance: $\|x_0-x^\star\|$.
        gradient_bound: $\sigma$, on single stochastic gradients.
        momentum: $\beta$.
    """

    kind: Kind
    step: float
    smoothness: Given = None
    convexity: Given = None
    dominance: Given = None
    minimum: Given = None
    minimizer: Tensor | None = None
    distance: Given = None
    gradient_bound: Given = None
    momentum: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in PROMISES:
            raise UnknownName("promise", self.kind, PROMISES)
        if isinstance(self.step, bool) or not isinstance(self.step, int | float):
            raise InvalidType(f"the step must be a number, not {type(self.step).__name__}")
        positive_number(self.step, "the step")
        for name in ("smoothness", "convexity", "dominance", "distance", "gradient_bound"):
            value = getattr(self, name)
            least = 0 if name == "distance" else 1e-300
            if value is not None and not least <= float(value) < math.inf:
                raise InvalidInput(
                    f"{SYMBOLS[name]} must be positive and finite, not {float(value)!r}"
                )
        if self.minimizer is not None and not isinstance(self.minimizer, Tensor):
            raise InvalidType(
                f"the minimizer must be a tensor [p], not {described(self.minimizer)}"
            )
        if self.minimizer is not None and not bool(torch.isfinite(self.minimizer).all()):
            raise NonFinite("the minimizer contains NaN or infinity")
        if self.momentum is not None and not 0 <= self.momentum < 1:
            raise InvalidInput(f"the momentum must lie in [0, 1), not {self.momentum!r}")
