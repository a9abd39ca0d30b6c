"""Outputs at positions as logits of classes, which come last: `[n, *positions, classes]`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class Arrangement:
    r"""How a model's outputs at positions become logits of classes, and what they were.

    One output at a position is a logit $f$, and the classes 0 and 1 have $(0, f)$; or it is a
    probability $p$, and they have $(\log(1-p), \log p)$.

    Attributes:
        shape: of a sample's outputs, as the model gives them.
        dimension: which one holds the classes; none where there is one output per position.
        single: what one output per position is.

    >>> at = Arrangement(torch.Size([1, 2]), single="logit")
    >>> at(torch.tensor([[[3.0, -1.0]]])).tolist()
    [[[0.0, 3.0], [0.0, -1.0]]]
    >>> at.undone(at(torch.tensor([[[3.0, -1.0]]]))).tolist()
    [[[3.0, -1.0]]]
    """

    shape: torch.Size
    dimension: int | None = None
    single: Literal["logit", "probability"] | None = None

    def __call__(self, outputs: Tensor) -> Tensor:
        if self.single is None:
            return outputs if self.dimension is None else outputs.movedim(self.dimension, -1)
        one = outputs.reshape(len(outputs), *(s for s in self.shape if s != 1))
        if self.single == "logit":
            return torch.stack([torch.zeros_like(one), one], -1)
        least = torch.finfo(one.dtype).tiny
        return torch.stack([(1 - one).clamp_min(least).log(), one.clamp_min(least).log()], -1)

    def undone(self, logits: Tensor) -> Tensor:
        """The outputs as the model gives them."""
        if self.single is None:
            return logits if self.dimension is None else logits.movedim(-1, self.dimension)
        one = logits[..., 1] - logits[..., 0]
        return (one if self.single == "logit" else one.sigmoid()).reshape(len(one), *self.shape)

    def labels(self, y: Tensor) -> Tensor:
        """Targets 0 and 1 at positions as class indices, for one output per position."""
        return y.reshape(len(y), *(s for s in self.shape if s != 1))
