r"""The McCulloch-Pitts neuron $f[\sigma,\theta](x) = \mathbb 1\{\sigma^\top x \ge \theta\}$.

With synapses $\sigma\in\{-1,+1\}^n$ and bits $x\in\{0,1\}^n$ a neuron says whether at
least $j$ of $n$ literals are true (a literal is a bit or its negation), which makes
$n2^n+2$ Boolean functions of the $2^{2^n}$.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from torchtheory.core.checks import first_entry, whole_number
from torchtheory.core.errors import (
    InvalidInput,
    InvalidType,
    LabelOutOfRange,
    ShapeMismatch,
    UnknownName,
)

Gate = Literal["and", "or", "nand", "nor", "not"]

#: Beyond this many inputs the table of all functions no longer fits in memory.
MOST_INPUTS = 10


@dataclass(frozen=True, slots=True)
class ThresholdNeuron:
    r"""A neuron with synapses $\sigma$ and threshold $\theta$.

    Attributes:
        signs: `[n]`, +1 where a synapse is excitatory and -1 where it is inhibitory.
        threshold: the neuron fires when $\sigma^\top x$ reaches it.

    >>> both = ThresholdNeuron(torch.tensor([1, 1]), 2)
    >>> both(torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]]))
    tensor([0, 0, 0, 1])
    """

    signs: Tensor
    threshold: float

    def __post_init__(self) -> None:
        if not isinstance(self.signs, Tensor):
            raise InvalidType(f"signs must be a torch tensor, not {type(self.signs).__name__}")
        if self.signs.ndim != 1 or self.signs.numel() == 0:
            raise ShapeMismatch(f"signs must be [inputs], not {list(self.signs.shape)}")
        if not (self.signs.abs() == 1).all():
            raise InvalidInput(
                "every synapse must be +1 or -1: this neuron has no other weights ("
                f"{first_entry(self.signs, 'signs', ~(self.signs.abs() == 1))})"
            )
        if math.isnan(self.threshold):
            raise InvalidInput("the threshold is NaN")

    def __call__(self, x: Tensor) -> Tensor:
        """0 or 1 for each row of bits `x[..., n]`, in the dtype of `x`."""
        n = self.signs.numel()
        if not isinstance(x, Tensor):
            raise InvalidType(f"x must be a torch tensor, not {type(x).__name__}")
        if x.ndim == 0 or x.shape[-1] != n:
            raise ShapeMismatch(f"the neuron has {n} inputs and x is {list(x.shape)}")
        if not ((x == 0) | (x == 1)).all():
            raise LabelOutOfRange(
                "the inputs of a threshold neuron are 0 or 1: "
                f"{first_entry(x, 'x', ~((x == 0) | (x == 1)))}"
            )
        excitation = (x.double() * self.signs.to(x.device, torch.float64)).sum(-1)
        return (excitation >= self.threshold).to(x.dtype)


def boolean_inputs(inputs: int) -> Tensor:
    """All $2^n$ rows of `n` bits, counting up; `[2^n, n]` int64.

    >>> boolean_inputs(2)
    tensor([[0, 0],
            [0, 1],
            [1, 0],
            [1, 1]])
    """
    whole_number(inputs, "inputs", least=1)
    if inputs > 24:
        raise InvalidInput(f"2^{inputs} rows are too many; at most 24 inputs")
    shifts = torch.arange(inputs - 1, -1, -1)
    return (torch.arange(2**inputs).unsqueeze(1) >> shifts) & 1


def truth_table(neuron: ThresholdNeuron) -> Tensor:
    """The neuron's output on every row of `boolean_inputs`; `[2^n]` int64.

    >>> truth_table(ThresholdNeuron(torch.tensor([-1, 1]), 1))     # not a, and b
    tensor([0, 1, 0, 0])
    """
    return neuron(boolean_inputs(neuron.signs.numel()))


def logic_gate(name: Gate, inputs: int) -> ThresholdNeuron:
    """The neuron that computes a gate of `inputs` bits (`not` has one).

    | gate | synapses | threshold |
    |---|---|---|
    | and  | +1 | n      |
    | or   | +1 | 1      |
    | nand | -1 | -(n-1) |
    | nor  | -1 | 0      |
    | not  | -1 | 0      |

    >>> truth_table(logic_gate("nand", 2))
    tensor([1, 1, 1, 0])
    """
    n = whole_number(inputs, "inputs", least=1)
    table = {"and": (1, n), "or": (1, 1), "nand": (-1, 1 - n), "nor": (-1, 0), "not": (-1, 0)}
    if name not in table:
        raise UnknownName("gate of one neuron", name, table)
    if name == "not" and n != 1:
        raise InvalidInput(f"not is a gate of one input, not of {n}; nor is its extension")
    sign, threshold = table[name]
    return ThresholdNeuron(torch.full((n,), sign), threshold)


def neuron_functions(inputs: int) -> Tensor:
    r"""Every Boolean function one neuron computes, as distinct truth tables `[m, 2^n]` bool.

    All $2^n$ synapse vectors and all thresholds that matter are tried at once; the rows of
    the result are in lexicographic order. Time and memory $O(n4^n)$.

    >>> neuron_functions(2).shape[0]
    10
    """
    n = whole_number(inputs, "inputs", least=1)
    if n > MOST_INPUTS:
        raise InvalidInput(f"the tables of {n} inputs do not fit in memory; at most {MOST_INPUTS}")
    bits = boolean_inputs(n).to(torch.int8)
    signs = 2 * bits - 1
    # with k inhibitory synapses the excitation runs over -k .. n-k; one threshold above is never
    excitation = (signs.unsqueeze(1) * bits).sum(-1)
    lowest = -(signs < 0).sum(1)
    thresholds = lowest.unsqueeze(1) + torch.arange(n + 2)
    fires = excitation.unsqueeze(1) >= thresholds.unsqueeze(2)
    tables: Tensor = torch.unique(fires.reshape(-1, 2**n), dim=0)
    return tables


def count_neuron_functions(inputs: int) -> int:
    r"""How many Boolean functions of `n` bits one neuron computes: $n2^n+2$.

    Each of the $2^n$ choices of literals gives "at least $j$ of $n$" for
    $j=1..n$, all different, and the two constants.

    >>> [count_neuron_functions(n) for n in (1, 2, 3, 4)]
    [4, 10, 26, 66]
    """
    n = whole_number(inputs, "inputs", least=1)
    return n * (1 << n) + 2
