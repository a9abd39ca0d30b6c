"""An explanation: a number for every input, what they should add up to, and what they cost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchtheory.core.errors import NonFinite
from torchtheory.explanation.ledger import Ledger
from torchtheory.explanation.score import Score

if TYPE_CHECKING:
    from torchtheory.core.figure import Figure

Relevance = Tensor | tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    r"""How much each input contributed to a score.

    Attributes:
        relevance: in the shape of the inputs `[n, ...]`, one number per word for words; a tuple of
            such tensors for a model of several inputs.
        score: `[n]`, what was explained.
        method: its name in words.
        classes: `[n]`, the classes that were explained, or None if they are no classes.
        reference: `[n]`, the score of the reference that the method compares with; relevance of a
            method that is complete adds up to `score - reference`. None for a method that promises
            no sum, such as sensitivity.
        error: standard errors, in the shape of `relevance`, of a method that samples.
        ledger: where relevance went layer by layer, of a method that propagates it.
        forwards, backwards: passes through the network per explanation.
        seconds: it took, for all samples.
    """

    relevance: Relevance
    score: Tensor
    method: str
    classes: Tensor | None = None
    reference: Tensor | None = None
    error: Relevance | None = None
    ledger: Ledger | None = None
    forwards: float = 0.0
    backwards: float = 0.0
    seconds: float = field(default=0.0, compare=False)

    def __len__(self) -> int:
        return len(self.score)

    @property
    def flat(self) -> Tensor:
        """Relevance `[n, features]` of all inputs side by side."""
        return flat(self.relevance)

    @property
    def total(self) -> Tensor:
        """`[n]`, what the relevance adds up to."""
        return self.flat.sum(1)

    @property
    def gap(self) -> Tensor | None:
        """`[n]`, what is missing in the sum; None for a method that promises none."""
        if self.reference is None:
            return None
        return self.score - self.reference - self.total

    def plot(
        self,
        x: Tensor | None = None,
        *,
        names: Sequence[str] | None = None,
        words: Sequence[Sequence[str]] | None = None,
        samples: Sequence[int] | None = None,
        part: int = 0,
    ) -> Figure:
        """The picture that suits the inputs: heatmaps of images, colored words, or bars.

        Args:
            x: the inputs, to lie under heatmaps.
            names: of the features of a table.
            words: of the samples.
            samples: which of them; bars show the mean over all unless it is one.
            part: which input is meant, of a model of several.
        """
        from torchtheory.explanation.pages.pictures import picture  # most are never shown

        return picture(self, x, names=names, words=words, samples=samples, part=part)

    def _repr_html_(self) -> str:
        from torchtheory.explanation.pages.one_explanation import explanation_fragment

        return explanation_fragment(self)

    def __repr__(self) -> str:
        gap = self.gap
        missing = "" if gap is None else f", at most {float(gap.abs().max()):.3g} missing in a sum"
        return (
            f"Explanation({self.method} of {len(self)} scores{missing}, "
            f"{self.forwards:g} passes forward and {self.backwards:g} backward each)"
        )


def flat(relevance: Relevance) -> Tensor:
    """Relevance `[n, features]`, of several inputs side by side."""
    parts = (relevance,) if isinstance(relevance, Tensor) else relevance
    return torch.cat([p.reshape(len(p), -1) for p in parts], 1)


def explained(
    score: Score,
    relevance: Tensor,
    method: str,
    *,
    started: float,
    reference: Tensor | None = None,
    error: Tensor | None = None,
    ledger: Ledger | None = None,
) -> Explanation:
    """The explanation with relevance of entries `[n, d]` that a method computed from a score.

    Args:
        score: that was asked, with its counters.
        relevance, error: `[n, d]` over the entries of `score.points`.
        method: its name in words.
        started: `time.perf_counter()` before the score was opened.
        reference, ledger: see `Explanation`.

    Raises:
        NonFinite: if a relevance is none of the numbers of its precision.
    """
    if not bool(torch.isfinite(relevance).all()):
        kind = str(relevance.dtype).removeprefix("torch.")
        raise NonFinite(
            f"{method} gives relevances that are NaN or infinite in {kind}: call model.double(), "
            "or give the method smaller numbers"
        )
    return Explanation(
        score.shaped(relevance.detach()),
        score.values,
        method,
        score.classes,
        reference,
        None if error is None else score.shaped(error),
        ledger,
        score.forwards / len(score),
        score.backwards / len(score),
        time.perf_counter() - started,
    )
