"""A model whose conditional probabilities are listed by name, to try searches on by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchtheory.core.checks import closed_fraction, whole_number
from torchtheory.core.errors import EmptyData, InvalidInput
from torchtheory.sequences.language.decoding import Method, generate

START, OTHER, END = "<start>", "<other>", "<end>"


class Hypothesis(NamedTuple):
    """A sequence of names, without the end, and its probability."""

    names: tuple[str, ...]
    probability: float


class ListedModel:
    """Next-token probabilities that depend on the last token, as in a textbook's example.

    Args:
        initial: probabilities of the first token.
        expansions: those of the token after each token. A token without an entry ends the
            sequence. What is missing to 1 goes to a token `<other>`, which ends it as well.

    >>> model = ListedModel({"A": 0.4, "B": 0.6}, {"A": {"A1": 0.5, "A2": 0.2}})
    >>> model.search("exhaustive", steps=2, beams=2)
    [Hypothesis(names=('B',), probability=0.6), Hypothesis(names=('A', 'A1'), probability=0.2)]
    """

    def __init__(
        self, initial: Mapping[str, float], expansions: Mapping[str, Mapping[str, float]]
    ) -> None:
        if not initial:
            raise EmptyData("no token can come first")
        names = [*initial, *expansions, *(n for after in expansions.values() for n in after)]
        self.names = (START, *dict.fromkeys(names), OTHER, END)
        number = {name: i for i, name in enumerate(self.names)}
        if len(number) != len(self.names):
            raise InvalidInput(f"{START}, {OTHER} and {END} are not names for tokens of your own")
        self.end = number[END]
        chances = torch.zeros(len(self.names), len(self.names), dtype=torch.float64)
        for name, after in ((START, initial), *expansions.items()):
            for following, chance in after.items():
                chances[number[name], number[following]] = closed_fraction(
                    chance, f"the probability of {following} after {name}"
                )
            missing = 1 - float(chances[number[name]].sum())
            if missing < -1e-9:
                raise InvalidInput(f"the probabilities after {name} sum to {1 - missing:g}")
            if missing > 1e-9:
                chances[number[name], number[OTHER]] = missing
        chances[chances.sum(1) == 0, self.end] = 1.0
        self.log_chances = chances.log()

    def __call__(self, tokens: Tensor) -> Tensor:
        """Logits `[B, T, V]`."""
        return self.log_chances[tokens]

    def search(
        self, method: Method, *, steps: int, beams: int | None = None, **options: Any
    ) -> list[Hypothesis]:
        """The best sequences of `generate` by their names, probable ones only."""
        whole_number(steps, "steps", least=1)
        found = generate(
            self,
            torch.zeros(1, 1, dtype=torch.int64),
            method=method,
            max_new_tokens=steps,
            end=self.end,
            beams=beams,
            **options,
        )
        return [
            Hypothesis(
                tuple(self.names[i] for i in row[1 : 1 + n].tolist() if i != self.end),
                round(float(log.exp()), 12),
            )
            for row, n, log in zip(
                found.hypotheses[0], found.lengths[0], found.log_probabilities[0], strict=True
            )
            if log > -torch.inf
        ]
