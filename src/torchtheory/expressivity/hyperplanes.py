r"""Hyperplane arrangements: into how many regions they cut the space.

Sources: Deep Learning (notes), Theorem 2.8 (Zaslavsky); Mathematical Aspects of Deep Learning,
equation (1.33).
"""

from __future__ import annotations

from fractions import Fraction
from math import comb

from torch import Tensor

from torchtheory.core.checks import all_finite, described, whole_number
from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch

_Row = tuple[Fraction, ...]


def zaslavsky_bound(hyperplanes: int, dimension: int) -> int:
    r"""The most regions $m$ hyperplanes cut $\mathbb R^n$ into,
    $R(m)=\sum_{i=0}^{n}\binom mi$; reached in general position.

    >>> [zaslavsky_bound(m, n) for m, n in [(3, 2), (4, 2), (8, 2), (4, 3), (3, 5)]]
    [7, 11, 37, 15, 8]
    """
    whole_number(hyperplanes, "hyperplanes", least=0)
    whole_number(dimension, "dimension", least=0)
    return sum(comb(hyperplanes, i) for i in range(dimension + 1))


def hyperplane_regions(weight: Tensor, bias: Tensor) -> int:
    r"""The regions of $\mathbb R^n\setminus\bigcup_i\{w_i^\top x+b_i=0\}$, in any position.

    By deletion and restriction, $r(\mathcal A)=r(\mathcal A\setminus H)+r(\mathcal A^H)$:
    adding a hyperplane cuts as many regions in two as the others cut the hyperplane itself into.
    In rational arithmetic, so that parallel, equal and concurrent hyperplanes are told from
    nearly such ones. Time $O(m^{n+1})$: for small arrangements.

    Args:
        weight: `[m, n]`, the normals, none of them 0.
        bias: `[m]`.

    >>> import torch
    >>> parallel = torch.tensor([[1.0, 0.0], [2.0, 0.0], [-1.0, 0.0]])
    >>> hyperplane_regions(parallel, torch.tensor([0.0, 1.0, 2.0]))
    4
    >>> hyperplane_regions(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), torch.zeros(3))
    6
    """
    if not isinstance(weight, Tensor) or not isinstance(bias, Tensor):
        raise InvalidType(
            f"weight and bias must be torch tensors (weight is {described(weight)}, bias is "
            f"{described(bias)})"
        )
    if weight.ndim != 2 or bias.shape != weight.shape[:1]:
        raise ShapeMismatch(
            f"weight must be [m, n] and bias [m], not {list(weight.shape)} and {list(bias.shape)}"
        )
    all_finite(weight, "weight")
    all_finite(bias, "bias")
    if len(zero := (weight == 0).all(1).nonzero()):
        raise InvalidInput(f"row {int(zero[0])} of weight is 0: it defines no hyperplane")
    rows = [
        tuple(Fraction(v) for v in (*w, b))
        for w, b in zip(weight.tolist(), bias.tolist(), strict=True)
    ]
    return _regions(rows)


def _regions(rows: list[_Row]) -> int:
    """Rows are `(w, b)`; a hyperplane that occurs twice counts once."""
    planes = list(dict.fromkeys(_normalized(row) for row in rows if any(row[:-1])))
    # r(empty) = 1, and every hyperplane adds the regions that those before it cut it into
    return 1 + sum(
        _regions([_restrict(row, h) for row in planes[:i]]) for i, h in enumerate(planes)
    )


def _normalized(row: _Row) -> _Row:
    lead = next(v for v in row if v)
    return tuple(v / lead for v in row)


def _restrict(row: _Row, onto: _Row) -> _Row:
    """The hyperplane inside `onto`, one variable solved for and left out."""
    k = next(i for i, v in enumerate(onto) if v)
    factor = row[k] / onto[k]
    return tuple(v - factor * o for i, (v, o) in enumerate(zip(row, onto, strict=True)) if i != k)
