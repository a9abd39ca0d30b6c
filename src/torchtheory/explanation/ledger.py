r"""Where relevance went, layer by layer.

Relevance that is handed from layer to layer is neither made nor lost but to biases and to the
stabilizer $\varepsilon$: at every operation

$$
\sum_k R_k \;=\; \sum_j R_j \;+\; \text{to biases} \;+\; \text{to }\varepsilon,
$$

and what is left of this equation is rounding. Rules that cannot hand on everything (an output
without positive contributions under the rule alpha 1, beta 0) leak, which is a column of its own.
Source: Mathematical Aspects of Deep Learning,
Eq. (5.8) and footnote 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Entry:
    """What one operation did with the relevance of its output; all tensors are `[n]`.

    Attributes:
        layer: name of the module it belongs to; empty at the top.
        operation: such as `conv2d`, in the words of torch.
        rule: such as `epsilon 0.01`.
        received: relevance of its output.
        passed: what it handed to its inputs.
        to_biases: what went to biases, and to whatever else does not come from the inputs.
        to_epsilon: what the stabilizer took, or what arrived at an output of 0.
        leaked: what the rule did not hand on although there was relevance; None for nothing.
    """

    layer: str
    operation: str
    rule: str
    received: Tensor
    passed: Tensor
    to_biases: Tensor
    to_epsilon: Tensor
    leaked: Tensor | None = None

    @property
    def unexplained(self) -> Tensor:
        """`[n]`, what is left: rounding."""
        rest = self.received - self.passed - self.to_biases - self.to_epsilon
        return rest if self.leaked is None else rest - self.leaked


@dataclass(frozen=True, slots=True)
class Ledger:
    """The books of one explanation, from the output to the inputs.

    Attributes:
        score: `[n]`, what was put in at the top.
        entries: in the order in which relevance met them.
        relevance: `[n]`, what arrived at the inputs.
        folded: batch normalizations that were folded, and the layers that they went into.
        not_folded: those that have a rule of their own, and why they were not folded.
    """

    score: Tensor
    entries: tuple[Entry, ...]
    relevance: Tensor
    folded: Mapping[str, str] = field(default_factory=dict)
    not_folded: Mapping[str, str] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    @property
    def to_biases(self) -> Tensor:
        """`[n]`, over all operations."""
        return self._sum([e.to_biases for e in self.entries])

    @property
    def to_epsilon(self) -> Tensor:
        """`[n]`, over all operations."""
        return self._sum([e.to_epsilon for e in self.entries])

    @property
    def leaked(self) -> Tensor:
        """`[n]`, over all operations."""
        return self._sum([e.leaked for e in self.entries if e.leaked is not None])

    @property
    def unexplained(self) -> Tensor:
        """`[n]`, what the books do not account for, from score to inputs."""
        return self.score - self.relevance - self.to_biases - self.to_epsilon - self.leaked

    def remarks(self) -> list[str]:
        """What was done about batch normalization, in sentences."""
        found = [
            f"batch normalization {name!r} is not folded into a layer and has a rule of its own, "
            f"because {reason}"
            for name, reason in self.not_folded.items()
        ]
        if self.folded:
            pairs = ", ".join(f"{norm} into {layer}" for norm, layer in self.folded.items())
            found.insert(0, f"batch normalizations were folded before LRP: {pairs}")
        return found

    def _sum(self, parts: list[Tensor]) -> Tensor:
        return torch.stack(parts).sum(0) if parts else torch.zeros_like(self.score)
