r"""Finite hypothesis sets: all decisions $\pm1$ a class makes on finitely many points.

A set is a matrix `[h, k]`, one function per row.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from torchtheory.core.errors import InvalidInput
from torchtheory.neurons.dichotomies import realizable_dichotomies

#: The most functions that are listed one by one.
MOST_FUNCTIONS = 1 << 20


def all_labelings(points: int) -> Tensor:
    r"""All $2^k$ functions to $\pm1$, `[2 ** k, k]`; bit $j$ of the row is
    point $j$.

    >>> all_labelings(2).tolist()
    [[-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0], [1.0, 1.0]]
    """
    if not 1 <= points <= MOST_FUNCTIONS.bit_length() - 1:
        raise InvalidInput(f"the 2^{points} labelings cannot be listed; take from 1 to 20 points")
    bits = (torch.arange(1 << points)[:, None] >> torch.arange(points)) & 1
    return 2.0 * bits.double() - 1


def labelings_with_changes(points: int, changes: int) -> Tensor:
    r"""The functions on $k$ ordered points that change sign at most `changes` times.

    There are $2\sum_{i\le c}\binom{k-1}i$, the larger sets begin with the smaller ones, and
    $c=k-1$ gives all. One change makes the threshold functions; in general these are the
    decisions of a network with one input and `changes` hidden threshold units.

    >>> labelings_with_changes(3, 1).tolist()
    [[1.0, 1.0, 1.0], [-1.0, -1.0, -1.0],
     [1.0, -1.0, -1.0], [-1.0, 1.0, 1.0], [1.0, 1.0, -1.0], [-1.0, -1.0, 1.0]]
    """
    if not 0 <= changes < points:
        raise InvalidInput(f"{points} points in a row have 0 to {points - 1} changes of sign")
    count = 2 * sum(math.comb(points - 1, i) for i in range(changes + 1))
    if count > MOST_FUNCTIONS:
        raise InvalidInput(f"there are {count} such functions: too many to list")
    rows = []
    for number in range(changes + 1):
        places = torch.tensor(list(itertools.combinations(range(1, points), number)))
        flips = torch.zeros(len(places), points, dtype=torch.int64)
        flips.scatter_(1, places.long().reshape(len(places), number), 1)
        signs = 1.0 - 2.0 * (flips.cumsum(1) % 2).double()
        rows.append(torch.stack([signs, -signs], 1).reshape(-1, points))
    return torch.cat(rows)


def threshold_network_labelings(x: Tensor, hidden: int) -> Tensor:
    r"""What networks of threshold units with `hidden` = 1 or 2 hidden units say on `x[k, d]`.

    Every hidden unit labels the points by a hyperplane, and the output unit is a threshold
    function of their signs: of two signs it makes 14 of the 16, all but the exclusive or and its
    negation.

    >>> square = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    >>> len(threshold_network_labelings(square, 1)), len(threshold_network_labelings(square, 2))
    (14, 16)
    """
    if hidden not in (1, 2):
        raise InvalidInput(f"the functions of 1 or 2 hidden units can be listed, not of {hidden}")
    one: Tensor = realizable_dichotomies(x.double(), bias=True).labels
    if hidden == 1:
        return one
    # a constant, a literal, or the AND of two literals up to negation; negations of dichotomies
    # are dichotomies, so that AND and OR of the plain ones give everything
    both = torch.minimum(one[:, None], one[None]).reshape(-1, one.shape[1])
    found: Tensor = torch.unique(torch.cat([both, -both]), dim=0)
    return found
