r"""A task for recurrent networks in which the relevance of every word is known.

A sequence holds a number at each moment, and two of the moments $a<b$ are marked. The target is

$$
n_a+n_b\quad\text{or}\quad n_a-n_b,
$$

so the marked numbers contribute $n_a$ and $\pm n_b$, and all others nothing. A network that has
learned this must have relevance in these proportions, and a method that says otherwise is wrong.
Source: Mathematical Aspects of Deep Learning, section 5.4.3; Arras et al. (2019).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from torchtheory.core.checks import one_of, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.core.random import RandomSource, as_generator

Task = Literal["sum", "difference"]


class MarkedNumbers(NamedTuple):
    """Sequences `x[n, T, 2]`, targets `y[n, 1]`, and what each moment contributes, `[n, T]`.

    The first entry of a word is its number if it is not marked, the second one if it is.
    """

    x: Tensor
    y: Tensor
    contribution: Tensor


def marked_numbers(
    n: int,
    length: int = 8,
    task: Task = "sum",
    *,
    generator: RandomSource = None,
    dtype: torch.dtype = torch.float32,
) -> MarkedNumbers:
    """Sequences of numbers from -1 to 1 of which two are to be added, or subtracted.

    Marked numbers are at least a half in absolute value, so that a share of their sum is not
    that of almost nothing.

    Args:
        n: sequences.
        length: moments of each.
        task: `sum` of the marked numbers, or the first minus the second.
        generator: randomness, or a seed.

    >>> x, y, contribution = marked_numbers(5, 6, "difference", generator=1)
    >>> bool((contribution.sum(1) == y[:, 0]).all()), (contribution != 0).sum(1).tolist()
    (True, [2, 2, 2, 2, 2])
    """
    whole_number(n, "n", least=1)
    whole_number(length, "length", least=2)
    one_of(task, "task", ("sum", "difference"))
    source = as_generator(generator)
    drawn = torch.rand(n, length, generator=source, dtype=dtype) * 2 - 1
    places = torch.rand(n, length, generator=source).argsort(1)[:, :2].sort(1).values
    marked = torch.zeros(n, length, dtype=torch.bool).scatter_(1, places, True)
    drawn = torch.where(marked, (drawn + drawn.sign()) / 2, drawn)
    x = torch.stack([drawn * ~marked, drawn * marked], 2)
    sign = torch.ones(n, length, dtype=dtype)
    if task == "difference":
        sign.scatter_(1, places[:, 1:], -1.0)
    contribution = x[..., 1] * sign
    return MarkedNumbers(x, contribution.sum(1, keepdim=True), contribution)


class SequenceReader(nn.Module):
    """An LSTM and one linear output of its last hidden state, without biases there.

    Args:
        inputs: size of a word.
        units: of the LSTM.
    """

    def __init__(self, inputs: int = 2, units: int = 8) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, units, batch_first=True)
        self.output = nn.Linear(units, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Values `[n, 1]` of sequences `[n, T, inputs]`."""
        value: Tensor = self.output(self.lstm(x)[0][:, -1])
        return value


def relevance_correlations(relevance: Tensor, contribution: Tensor, groups: int = 20) -> Tensor:
    r"""Correlations `[groups]` of the relevance of words with what they contribute.

    The sequences are divided into groups, and each correlation is over all words of a group, so
    that their mean has an interval.

    Args:
        relevance: `[n, T]`, or `[n, T, d]`, of which words have the sum.
        contribution: `[n, T]`.
        groups: so many, of equal size; sequences left over are not used.
    """
    if relevance.ndim == 3:
        relevance = relevance.sum(2)
    if relevance.shape != contribution.shape:
        raise ShapeMismatch(
            f"relevance {list(relevance.shape)} is not that of words {list(contribution.shape)}"
        )
    whole_number(groups, "groups", least=1)
    each = len(relevance) // groups
    if each < 2:
        raise InvalidInput(f"{len(relevance)} sequences are too few for {groups} groups")
    pairs = [t[: each * groups].double().reshape(groups, -1) for t in (relevance, contribution)]
    centered = [t - t.mean(1, keepdim=True) for t in pairs]
    together = (centered[0] * centered[1]).sum(1)
    found: Tensor = together / (centered[0].square().sum(1) * centered[1].square().sum(1)).sqrt()
    return found
