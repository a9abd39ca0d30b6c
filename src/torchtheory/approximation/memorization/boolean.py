r"""Boolean functions as threshold networks: minterms, parity by depth, shortest formulas.

A unit $\mathbf 1[\sum_is_ix_i\ge|a|]$ with $s_i=+1$ where $a_i=1$ and
$-1$ elsewhere fires at $x=a$ only, so one such unit for every $a$ with
$f(a)=1$ makes any Boolean function. Parity needs $2^{d-1}$ of them, yet $d$
threshold units of another kind, or $\log_2d$ layers of exclusive ors. Sources: slides
"Barron's Theorem"; Mathematical Aspects of Deep Learning, section 3.7.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchtheory.approximation.network_calculus import block_diagonal, chain
from torchtheory.core.checks import described, first_entry, whole_number
from torchtheory.core.errors import InvalidInput, LabelOutOfRange, ShapeMismatch
from torchtheory.nets.activations.table import as_layer
from torchtheory.neurons.threshold_neuron import boolean_inputs

#: A cube of the Boolean cube: which bits it fixes, and to what.
Cube = tuple[int, int]


def minterm_network(table: Tensor, *, complement: bool = True) -> nn.Sequential:
    r"""The threshold network $\sum_{a:f(a)=1}\mathbf 1[\sum_is_ix_i\ge|a|]$.

    Args:
        table: `[2^d]` of 0 and 1, in the order of
            `boolean_inputs`.
        complement: write $1-\sum_{a:f(a)=0}$ where that is shorter, so that
            $2^{d-1}$ units always suffice.

    >>> exclusive_or = minterm_network(torch.tensor([0, 1, 1, 0]))
    >>> exclusive_or(boolean_inputs(2).double()).flatten().tolist()
    [0.0, 1.0, 1.0, 0.0]
    """
    values, d = _table(table)
    flipped = complement and 2 * int(values.sum()) > len(values)
    wanted = ~values if flipped else values
    where = boolean_inputs(d)[wanted].double()
    if not len(where):  # a constant: a layer cannot be empty, so one unit that is not listened to
        where = torch.zeros(1, d).double()
    sign = -1.0 if flipped else 1.0
    heard = torch.full((1, len(where)), sign if bool(wanted.any()) else 0.0).double()
    return chain(
        [(2 * where - 1, -where.sum(1)), (heard, torch.tensor([float(flipped)]).double())],
        [as_layer("closed heaviside")],
    )


def parity_network(inputs: int) -> nn.Sequential:
    r"""Parity, $\sum_{j=1}^d(-1)^{j+1}\mathbf 1[\sum_ix_i\ge j]$: $d$ threshold units.

    >>> parity_network(3)(torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 1.0]]).double()).tolist()
    [[1.0], [0.0]]
    """
    d = whole_number(inputs, "inputs", least=1)
    levels = torch.arange(1, d + 1).double()
    signs = 1 - 2 * (torch.arange(d) % 2).double()
    return chain(
        [(torch.ones(d, d).double(), -levels), (signs.unsqueeze(0), torch.zeros(1).double())],
        [as_layer("closed heaviside")],
    )


def parity_tree(inputs: int) -> nn.Sequential:
    r"""Parity by a tree of exclusive ors, $a\oplus b=\mathbf 1[a+b\ge1]-\mathbf 1[a+b\ge2]$.

    $\lceil\log_2d\rceil$ hidden layers; an odd bit out is passed on by
    $\mathbf 1[a\ge1]$. Altogether at most $2(d-1)+\lceil\log_2d\rceil$ units.

    >>> parity_tree(4)(torch.tensor([[1.0, 1.0, 1.0, 0.0]]).double()).item()
    1.0
    """
    d = whole_number(inputs, "inputs", least=1)
    read = torch.eye(d).double()
    maps = []
    while d > 1:
        pair, alone = torch.ones(2, 2).double(), torch.ones(1, 1).double()
        rest = [alone] * (d % 2)
        into = block_diagonal(*[pair] * (d // 2), *rest)
        level = torch.tensor([1.0, 2.0] * (d // 2) + [1.0] * (d % 2)).double()
        maps.append((into @ read, -level))
        read = block_diagonal(*[torch.tensor([[1.0, -1.0]]).double()] * (d // 2), *rest)
        d = (d + 1) // 2
    maps.append((read, torch.zeros(1).double()))
    return chain(maps, [as_layer("closed heaviside") for _ in maps[1:]])


def prime_implicants(table: Tensor) -> list[Cube]:
    r"""The largest cubes on which a Boolean function is 1, as `(fixed bits, their values)`.

    Two cubes that fix the same bits and differ in one merge; what never merges is prime (Quine
    and McCluskey). Time and memory $O(3^dd)$.

    >>> prime_implicants(torch.tensor([0, 0, 1, 1]))          # the first bit of two
    [(2, 2)]
    """
    values, d = _table(table)
    cubes = {((1 << d) - 1, int(a)) for a in values.nonzero()[:, 0]}
    prime: list[Cube] = []
    while cubes:
        merged: set[Cube] = set()
        used: set[Cube] = set()
        for fixed, bits in cubes:
            for i in range(d):
                other = (fixed, bits ^ (1 << i))
                if fixed >> i & 1 and other in cubes:
                    used |= {(fixed, bits), other}
                    merged.add((fixed & ~(1 << i), bits & ~(1 << i)))
        prime += sorted(cubes - used)
        cubes = merged
    return prime


def least_terms(table: Tensor) -> int:
    r"""Terms of the shortest disjunction of conjunctions (DNF) of a Boolean function.

    A shortest one is made of prime implicants; how few of them cover the ones is found by
    branch and bound, so the answer is exact. Exponential in $d$: meant for
    $d\le5$.

    >>> least_terms(torch.tensor([0, 1, 1, 0])), least_terms(torch.tensor([0, 1, 1, 1]))
    (2, 2)
    """
    values, d = _table(table)
    if d > 6:
        raise InvalidInput(f"shortest formulas are searched for up to 6 bits, not {d}")
    covers = [
        sum(1 << a for a in range(len(values)) if a & fixed == bits)
        for fixed, bits in prime_implicants(table)
    ]
    ones = sum(1 << int(a) for a in values.nonzero()[:, 0])
    return _least_cover(ones, covers, ones.bit_count())


def _least_cover(left: int, covers: list[int], most: int) -> int:
    """The fewest sets whose union contains `left`, or more than `most`."""
    if not left:
        return 0
    widest = max((c & left).bit_count() for c in covers)
    if -(-left.bit_count() // widest) > most:
        return most + 1
    # the element that fewest sets contain leaves the fewest choices
    element = min(
        (i for i in range(left.bit_length()) if left >> i & 1),
        key=lambda i: sum(c >> i & 1 for c in covers),
    )
    best = most + 1
    for cover in covers:
        if cover >> element & 1:
            best = min(best, 1 + _least_cover(left & ~cover, covers, min(best, most + 1) - 2))
    return best


def _table(table: Tensor) -> tuple[Tensor, int]:
    if not isinstance(table, Tensor) or table.ndim != 1 or len(table) < 2:
        raise ShapeMismatch(f"a truth table is a tensor [2^d] with d >= 1, not {described(table)}")
    d = len(table).bit_length() - 1
    if len(table) != 1 << d:
        raise ShapeMismatch(f"a truth table has 2^d entries, not {len(table)}")
    if not bool(((table == 0) | (table == 1)).all()):
        raise LabelOutOfRange(
            "the entries of a truth table are 0 or 1: "
            f"{first_entry(table, 'table', ~((table == 0) | (table == 1)))}"
        )
    return table.bool(), d
