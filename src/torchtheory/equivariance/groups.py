r"""Convolution on a finite group, given by its multiplication table.

$$
(a*b)_i=\sum_{j\in G}a_j\,b_{j^{-1}i},\qquad
(b\star a)_i=\sum_{j\in G}b_{i^{-1}j}\,a_j=(a*\bar b)_i,\quad\bar b_j=b_{j^{-1}}.
$$

Both commute with the translations $(L_ga)_j=a_{g^{-1}j}$ of the signal. On $\mathbb Z/n$ and its
products they are the circular convolution and cross-correlation of images. The convolution is
commutative exactly if the group is, and then the group's characters make a product of it. Source:
The Modern Mathematics of Deep Learning, section 1.6.1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from torchtheory.core.checks import all_finite, described, one_of, whole_number
from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType, ShapeMismatch

Method = Literal["auto", "sum", "fft", "characters"]

_LARGEST_ORDER = 5040  # S_7; a table has as many entries as the square of this


@dataclass(frozen=True, eq=False)
class FiniteGroup:
    """A finite group; its elements are numbered from 0 and multiplied by the table.

    Attributes:
        name: what it is called.
        table: `[n, n]`, whole numbers; entry (i, j) is the number of the product of i and j.
        elements: what the numbers stand for.
        cyclic_orders: for a product of cyclic groups their orders, the last varying fastest;
            empty where no such product is known.

    Make one by `finite_group`, which checks the table, or by `cyclic_group`, `product_group`,
    `dihedral_group` and `symmetric_group`.
    """

    name: str
    table: Tensor
    elements: tuple[Hashable, ...]
    cyclic_orders: tuple[int, ...] = ()

    @property
    def order(self) -> int:
        """The number of elements."""
        return len(self.table)

    @cached_property
    def identity(self) -> int:
        """The number of the neutral element."""
        first = self.table[:, 0] == 0
        return int(first.nonzero()[0])

    @cached_property
    def inverse(self) -> Tensor:
        """The number of each element's inverse, `[n]`."""
        return (self.table == self.identity).long().argmax(1)

    @cached_property
    def is_abelian(self) -> bool:
        """Whether all elements commute."""
        return torch.equal(self.table, self.table.T)

    @cached_property
    def left_division(self) -> Tensor:
        r"""The number of $j^{-1}i$ in row j and column i, `[n, n]`."""
        return self.table[self.inverse]

    def __repr__(self) -> str:
        kind = "abelian" if self.is_abelian else "not abelian"
        return f"FiniteGroup({self.name}, order {self.order}, {kind})"


def finite_group(
    table: Tensor | Sequence[Sequence[int]],
    *,
    name: str = "G",
    elements: Sequence[Hashable] | None = None,
) -> FiniteGroup:
    """The group with a given multiplication table, refused with a reason if it is none.

    Args:
        table: `[n, n]`; entry (i, j) is the number of the product of i and j.
        name: what to call it.
        elements: names of the elements; their numbers unless given.

    Cost: associativity is checked on generators only (Light's test), about $n^2\\log n$.

    >>> finite_group([[0, 1], [1, 0]])
    FiniteGroup(G, order 2, abelian)
    >>> finite_group([[0, 1], [1, 1]])
    Traceback (most recent call last):
        ...
    torchtheory.core.errors.InvalidInput: this is no group: row 1 of the table holds 1 twice
    """
    try:
        made = torch.as_tensor(table)
    except (TypeError, ValueError, RuntimeError):
        raise InvalidType(
            f"a table is square and holds whole numbers, and this is {described(table)}"
        ) from None
    if made.is_floating_point() or made.is_complex() or made.dtype == torch.bool:
        raise InvalidType(f"a table holds whole numbers, not {described(made)}")
    if made.ndim != 2 or made.shape[0] != made.shape[1]:
        raise ShapeMismatch(f"a table is square, and this one has the shape {list(made.shape)}")
    if len(made) == 0:
        raise EmptyData("a group has at least one element, and the table is empty")
    n = whole_number(len(made), "the order of the group", least=1, most=_LARGEST_ORDER)
    made = made.long()
    names = tuple(range(n)) if elements is None else tuple(elements)
    if len(names) != n:
        raise ShapeMismatch(f"{n} elements have {n} names, and {len(names)} were given")
    _refuse_no_group(made)
    return FiniteGroup(name, made, names)


def cyclic_group(n: int) -> FiniteGroup:
    r"""$\mathbb Z/n$: whole numbers added modulo n.

    >>> cyclic_group(3).table.tolist()
    [[0, 1, 2], [1, 2, 0], [2, 0, 1]]
    """
    n = whole_number(n, "n", least=1, most=_LARGEST_ORDER)
    numbers = torch.arange(n)
    return FiniteGroup(f"Z/{n}", (numbers[:, None] + numbers) % n, tuple(range(n)), (n,))


def product_group(*groups: FiniteGroup) -> FiniteGroup:
    r"""The direct product; its elements are numbered with the last factor varying fastest.

    A function on $\mathbb Z/m\times\mathbb Z/n$ is thus an image `[m, n]`, flattened.

    >>> product_group(cyclic_group(2), cyclic_group(3))
    FiniteGroup(Z/2 x Z/3, order 6, abelian)
    """
    if not groups or not all(isinstance(g, FiniteGroup) for g in groups):
        raise InvalidType(
            f"a product is one of groups, at least one, not {described(groups)}: cyclic_group(n) "
            "makes one"
        )
    order = math.prod(g.order for g in groups)
    whole_number(order, "the order of the product", least=1, most=_LARGEST_ORDER)
    table = groups[0].table
    for g in groups[1:]:
        joined = table[:, None, :, None] * g.order + g.table[None, :, None, :]
        table = joined.reshape(len(table) * g.order, -1)
    cyclic = all(g.cyclic_orders for g in groups)
    return FiniteGroup(
        " x ".join(g.name for g in groups),
        table,
        tuple(itertools.product(*(g.elements for g in groups))),
        tuple(n for g in groups for n in g.cyclic_orders) if cyclic else (),
    )


def dihedral_group(n: int) -> FiniteGroup:
    r"""The 2n symmetries of a regular n-gon: element $(k,s)$ is a rotation by k after s flips.

    >>> dihedral_group(3), dihedral_group(2)
    (FiniteGroup(D3, order 6, not abelian), FiniteGroup(D2, order 4, abelian))
    """
    n = whole_number(n, "n", least=1, most=_LARGEST_ORDER // 2)
    elements = tuple(itertools.product(range(n), range(2)))
    turn, flips = torch.tensor(elements).T
    # a flip turns the rotation that follows it the other way round
    turned = (turn[:, None] + (1 - 2 * flips[:, None]) * turn) % n
    return FiniteGroup(f"D{n}", 2 * turned + (flips[:, None] + flips) % 2, elements)


def symmetric_group(n: int) -> FiniteGroup:
    r"""The n! permutations of n places; the product $\sigma\tau$ is $\sigma$ after $\tau$.

    >>> symmetric_group(3)
    FiniteGroup(S3, order 6, not abelian)
    """
    n = whole_number(n, "n", least=1, most=7)
    elements = tuple(itertools.permutations(range(n)))
    places = np.array(elements, dtype=np.int64).reshape(-1, n)
    digits = n ** np.arange(n)
    number = np.zeros(n**n, dtype=np.int64)
    number[places @ digits] = np.arange(len(places))
    table = np.stack([number[row[places] @ digits] for row in places])
    return FiniteGroup(f"S{n}", torch.from_numpy(table), elements)


def group_convolve(a: Tensor, b: Tensor, group: FiniteGroup, *, method: Method = "auto") -> Tensor:
    r"""The convolution $(a*b)_i=\sum_ja_jb_{j^{-1}i}$ of functions on a group.

    Args:
        a: the signal, `[..., n]`; leading axes are a batch.
        b: the kernel, `[n]`.
        group: of order n.
        method: `sum` is the definition; `fft` needs a product of cyclic groups; `characters`
            multiplies the transforms of `group_characters`, on any abelian group; `auto` is `fft`
            where it can be and `sum` elsewhere.

    Returns:
        `[..., n]`. Time $O(n^2)$, or $O(n\log n)$ by `fft`; memory $O(n^2)$ for `sum`.

    Source: The Modern Mathematics of Deep Learning, section 1.6.1.

    >>> a, b = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.0, 1.0, 0.5])
    >>> group_convolve(a, b, cyclic_group(3), method="sum").tolist()
    [4.0, 2.5, 2.5]
    """
    one_of(method, "method", ("auto", "sum", "fft", "characters"))
    a, b = _function(a, group, "a"), _function(b, group, "b", kernel=True)
    if a.dtype != b.dtype or a.device != b.device:
        raise InvalidType(
            f"a and b must be of one kind, not {described(a)} on {a.device} and {described(b)} on "
            f"{b.device}"
        )
    if method == "auto":
        method = "fft" if group.cyclic_orders else "sum"
    if method == "sum" or not a.numel():  # torch does not transform an empty batch
        return a @ b[group.left_division.to(b.device)]
    if method == "fft":
        if not group.cyclic_orders:
            raise InvalidInput(
                f"the fast Fourier transform is that of cyclic_group and of their product_group, "
                f"and {group!r} is not known to be one; 'sum' works on every group"
            )
        axes, sizes = tuple(range(-len(group.cyclic_orders), 0)), group.cyclic_orders
        grid_a, grid_b = (v.reshape(*v.shape[:-1], *sizes) for v in (a, b))
        spectrum = torch.fft.rfftn(grid_a, dim=axes) * torch.fft.rfftn(grid_b, dim=axes)
        back: Tensor = torch.fft.irfftn(spectrum, sizes, dim=axes)
        return back.reshape(a.shape)
    transform = group_characters(group).conj().to(b.device)
    complex_type = torch.promote_types(b.dtype, torch.complex64)
    transform = transform.to(complex_type)
    spectrum = (a.to(complex_type) @ transform.T) * (transform @ b.to(complex_type))
    return (spectrum @ transform.conj()).real / group.order


def group_cross_correlate(
    b: Tensor, a: Tensor, group: FiniteGroup, *, method: Method = "auto"
) -> Tensor:
    r"""The cross-correlation $(b\star a)_i=\sum_jb_{i^{-1}j}a_j=(a*\bar b)_i$ on a group.

    The kernel comes first. On $\mathbb Z/n$ it is $\sum_tb_ta_{i+t}$, what deep-learning libraries
    call a convolution. On a group that is not abelian this order, and not $\bar b*a$, is the one
    that commutes with the translations $L_g$ of the signal.

    Args:
        b: the kernel, `[n]`.
        a: the signal, `[..., n]`.
        group, method: as for `group_convolve`.

    Source: The Modern Mathematics of Deep Learning, section 1.6.1 and footnote 29.

    >>> b, a = torch.tensor([1.0, 10.0, 0.0]), torch.tensor([1.0, 2.0, 3.0])
    >>> group_cross_correlate(b, a, cyclic_group(3), method="sum").tolist()
    [21.0, 32.0, 13.0]
    """
    b = _function(b, group, "b", kernel=True)
    return group_convolve(a, reverse(b, group), group, method=method)


def reverse(b: Tensor, group: FiniteGroup) -> Tensor:
    r"""The function $\bar b_j=b_{j^{-1}}$, `[..., n]`.

    >>> reverse(torch.tensor([0.0, 1.0, 2.0]), cyclic_group(3)).tolist()
    [0.0, 2.0, 1.0]
    """
    return _function(b, group, "b")[..., group.inverse.to(b.device)]


def translate(a: Tensor, by: int, group: FiniteGroup) -> Tensor:
    r"""The function $(L_ga)_j=a_{g^{-1}j}$ moved from the left by the element number g, `[..., n]`.

    >>> translate(torch.tensor([1.0, 2.0, 3.0]), 1, cyclic_group(3)).tolist()
    [3.0, 1.0, 2.0]
    """
    a = _function(a, group, "a")
    by = whole_number(by, "by", least=0, most=group.order - 1)
    return a[..., group.left_division[by].to(a.device)]


def group_convolution_matrix(b: Tensor, group: FiniteGroup) -> Tensor:
    r"""The matrix with the entries $b_{j^{-1}i}$, so that $a*b$ is its product with a.

    On $\mathbb Z/n$ it is a circulant matrix. Memory $n^2$.

    Args:
        b: the kernel, `[n]`.
        group: of order n.

    >>> group_convolution_matrix(torch.tensor([1.0, 2.0]), cyclic_group(2)).tolist()
    [[1.0, 2.0], [2.0, 1.0]]
    """
    b = _function(b, group, "b", kernel=True)
    return b[group.left_division.T.to(b.device)]


def group_characters(group: FiniteGroup) -> Tensor:
    r"""The n characters of an abelian group: the maps $\chi$ to the unit circle with
    $\chi(ij)=\chi(i)\chi(j)$, one per row.

    $\hat a=\overline Xa$ is the group's Fourier transform, $\widehat{a*b}=\hat a\hat b$ and
    $\overline XX^\top=nI$. On $\mathbb Z/n$ the rows are $e^{2\pi ikj/n}$.

    They are extended from the trivial subgroup, one generator after the other: if $g^k$ is the
    first power in the subgroup, each character goes on in k ways, $\chi(g)^k=\chi(g^k)$. All
    phases are exact whole multiples of one over the group's exponent. Time and memory $O(n^2)$.

    >>> group_characters(cyclic_group(2)).real.round().tolist()
    [[1.0, 1.0], [1.0, -1.0]]
    """
    if not group.is_abelian:
        raise InvalidInput(
            f"{group!r}: only an abelian group has as many characters as elements, which make a "
            "product of the convolution; 'sum' works on every group"
        )
    table, exponent = group.table, _exponent(group)
    subgroup = torch.tensor([group.identity])
    phases = torch.zeros(1, 1, dtype=torch.long)  # [characters, elements of the subgroup]
    while len(subgroup) < group.order:
        inside = torch.zeros(group.order, dtype=torch.bool)
        inside[subgroup] = True
        g = int((~inside).nonzero()[0])
        powers = [group.identity, g]
        while not inside[powers[-1]]:
            powers.append(int(table[powers[-1], g]))
        k = len(powers) - 1
        closing = phases[:, int((subgroup == powers[k]).nonzero()[0])]
        roots = closing[:, None] // k + torch.arange(k) * (exponent // k)  # [characters, k]
        steps = torch.arange(k)
        joined = roots[:, :, None, None] * steps[:, None] + phases[:, None, None, :]
        phases = (joined % exponent).reshape(len(phases) * k, -1)
        subgroup = torch.cat([table[p, subgroup] for p in powers[:k]])
    ordered = torch.empty_like(phases)
    ordered[:, subgroup] = phases
    angles = ordered.double() * (2 * math.pi / exponent)
    return torch.polar(torch.ones_like(angles), angles)


# -- what they share -------------------------------------------------------------------------------


def _exponent(group: FiniteGroup) -> int:
    """The least common multiple of the orders of the elements."""
    powers, order = torch.arange(group.order), torch.ones(group.order, dtype=torch.long)
    while bool((unfinished := powers != group.identity).any()):
        powers = torch.where(unfinished, group.table[powers, torch.arange(group.order)], powers)
        order += unfinished
    return math.lcm(*order.tolist())


def _refuse_no_group(table: Tensor) -> None:
    n = len(table)
    if bool(((table < 0) | (table >= n)).any()):
        raise InvalidInput(f"this is no group: the table must hold numbers from 0 to {n - 1}")
    for axis, word in ((1, "row"), (0, "column")):
        lines = table if axis == 1 else table.T
        for place, line in enumerate(lines.sort(1).values):
            twice = (line[1:] == line[:-1]).nonzero()
            if len(twice):
                number = int(line[int(twice[0])])
                raise InvalidInput(
                    f"this is no group: {word} {place} of the table holds {number} twice"
                )
    numbers = torch.arange(n)
    neutral = (table == numbers).all(1) & (numbers == table.T).all(1)
    if not bool(neutral.any()):
        raise InvalidInput("this is no group: no element is neutral on both sides")
    # Light's test: (xg)y = x(gy) for all x, y and every g of a generating set
    reached = neutral.clone()
    while not bool(reached.all()):
        g = int((~reached).nonzero()[0])
        if not torch.equal(table[table[:, g]], table[:, table[g]]):
            raise InvalidInput(
                f"this is no group: the product is not associative, (x {g}) y is not x ({g} y) "
                "everywhere"
            )
        reached[g] = True
        while True:
            known = reached.nonzero()[:, 0]
            more = reached.clone()
            more[table[known][:, known].reshape(-1)] = True
            if torch.equal(more, reached):
                break
            reached = more


def _function(value: Tensor, group: FiniteGroup, name: str, *, kernel: bool = False) -> Tensor:
    if not isinstance(group, FiniteGroup):
        raise InvalidType(
            f"a group is made by finite_group(table) or cyclic_group(n), not {described(group)}"
        )
    if not isinstance(value, Tensor) or value.dtype not in (torch.float32, torch.float64):
        raise InvalidType(
            f"{name} must be a tensor of float32 or float64 numbers, not {described(value)}"
        )
    if value.ndim == 0 or value.shape[-1] != group.order or (kernel and value.ndim != 1):
        wanted = f"[{group.order}]" if kernel else f"[..., {group.order}]"
        raise ShapeMismatch(
            f"{name} is a function on {group.name}, {wanted}, and has the shape {list(value.shape)}"
        )
    return all_finite(value, name)
