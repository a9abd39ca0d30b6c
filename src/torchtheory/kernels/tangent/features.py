r"""What the tangent kernel of two samples is made of, and how it is put together.

For a group of parameters used as $y_t = W a_t + b$ the kernel is

$$
\sum_{t,s} \langle \tilde a_t, \tilde a'_s \rangle\, \langle g_{ct}, g'_{c's} \rangle,
\qquad \tilde a = (a, 1),
$$

two Gram matrices multiplied entry by entry (`Factors`), or the product of the Jacobians
$J_c = \sum_t g_{ct} \tilde a_t^\top$ (`Jacobians`). The first never forms a Jacobian and is
the cheaper one for few positions t; the number of operations decides. Where Jacobians are cheaper
to multiply but too large to keep, their factors are kept and they are formed a piece at a time
(`LateJacobians`).
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self

import torch
from torch import Tensor

from torchtheory.kernels.tangent.parameter_uses.jacobians import Lookup, OuterUse, Use, outer_sum
from torchtheory.kernels.tangent.tiles import blocks

Outputs = Literal["full", "trace", "diagonal"]

#: A tensor for every use, by its number.
ByUse = Sequence[Tensor] | Mapping[int, Tensor]

#: Bytes of Jacobians that are formed at a time from the factors kept.
WORKSPACE = 2**26


@dataclass(frozen=True)
class Group:
    """Parameters whose kernel is computed together: a weight, a bias, or both of one layer.

    Attributes:
        names: of the parameters.
        places: index of each use and which of its parts belong to the group.
        outer: whether all uses are outer products of the same orientation.
    """

    names: tuple[str, ...]
    places: tuple[tuple[int, tuple[str, ...]], ...]
    outer: bool


def group_parameters(uses: Sequence[Use]) -> list[Group]:
    """Group the followed parameters: a weight with the bias that is used at the same places."""
    where: dict[str, list[tuple[int, str]]] = {}
    for index, use in enumerate(uses):
        for part, role in use.roles():
            where.setdefault(role.name, []).append((index, part))
    groups = []
    done: set[str] = set()
    for name, places in where.items():
        if name in done:
            continue
        indices = [i for i, _ in places]
        outer = all(isinstance(uses[i], OuterUse) for i in indices)
        turned = {w.transposed for i, part in places if part == "weight" and (w := uses[i].weight)}
        kinds = {isinstance(uses[i], Lookup) for i in indices}
        outer = outer and len(turned) <= 1 and len(kinds) == 1
        outer = outer and len({part for _, part in places}) == 1
        biases = {b.name for i in indices if (b := uses[i].bias) is not None}
        partner = next(iter(biases), None) if len(biases) == 1 else None
        if (
            outer
            and places[0][1] == "weight"
            and partner is not None
            and where[partner] == [(i, "bias") for i in indices]
        ):
            done.add(partner)
            groups.append(
                Group((name, partner), tuple((i, ("weight", "bias")) for i in indices), True)
            )
        else:
            groups.append(Group((name,), tuple((i, (p,)) for i, p in places), outer))
        done.add(name)
    # a bias may come up before the weight it is merged with
    merged = {g.names[1] for g in groups if len(g.names) == 2}
    return [g for g in groups if not (len(g.names) == 1 and g.names[0] in merged)]


@dataclass(frozen=True)
class Size:
    """Extents of a group on one side: positions T, left factor d, right factor o, Jacobian P."""

    positions: int
    left: int
    right: int
    jacobian: int


def measure(group: Group, uses: Sequence[Use], inputs: ByUse, grads: ByUse) -> Size:
    """Sizes of a group from what a single sample `[1, ...]` gave."""
    if not group.outer:
        made = jacobian_of(group, uses, inputs, grads)
        return Size(1, 0, 0, made.shape[2])
    left, right = factors_of(group, uses, inputs, grads)
    o, positions = right.shape[3], right.shape[2]
    if not left.is_floating_point():
        use = uses[group.places[0][0]]
        assert isinstance(use, Lookup)
        return Size(positions, 1, o, use.rows * o)
    return Size(positions, left.shape[2], o, left.shape[2] * o)


def factors_of(
    group: Group, uses: Sequence[Use], inputs: ByUse, grads: ByUse
) -> tuple[Tensor, Tensor]:
    """Left `[n, T, d]` and right `[n, C, T, o]` factors, the uses one after the other."""
    lefts, rights = [], []
    for index, parts in group.places:
        use = uses[index]
        assert isinstance(use, OuterUse)
        right = use.right(grads[index])
        rights.append(right)
        lefts.append(use.left(parts, inputs[index], right.shape[2]))
    if len(lefts) == 1:
        return lefts[0], rights[0]
    return torch.cat(lefts, 1), torch.cat(rights, 2)


def jacobian_of(group: Group, uses: Sequence[Use], inputs: ByUse, grads: ByUse) -> Tensor:
    """The Jacobian `[n, C, P]` of a group, summed over its uses."""
    if group.outer:
        left, right = factors_of(group, uses, inputs, grads)
        use = uses[group.places[0][0]]
        return outer_sum(right, left, use.rows if isinstance(use, Lookup) else 0).flatten(2)
    total: Tensor | None = None
    for index, parts in group.places:
        made = uses[index].jacobian(parts[0], inputs[index], grads[index])
        total = made if total is None else total.add_(made)
    assert total is not None
    return total


def factors_are_cheaper(
    one: Size, two: Size, n1: int, n2: int, classes: int, outputs: Outputs
) -> bool:
    """Whether Gram matrices of the factors need fewer multiplications than Jacobians."""
    pairs = classes**2 if outputs == "full" else classes
    entries = n1 * n2 * one.positions * two.positions
    gram = entries * (one.left + pairs * one.right + (pairs if outputs == "full" else 1))
    form = classes * (n1 * one.positions + n2 * two.positions) * one.jacobian
    return gram <= form + n1 * n2 * pairs * one.jacobian


class Features(ABC):
    """What a group contributes to the kernels of `n` samples."""

    outputs: Outputs

    @abstractmethod
    def add_to(self, total: Tensor, rows: slice, other: Self, columns: slice) -> None:
        """Add the kernel of some samples here with some there.

        `total` is `[n, m]` for the trace, `[C, n, m]` for the diagonal and `[n C, m C]`
        for all pairs.
        """

    @abstractmethod
    def samples(self) -> dict[str, int]:
        """The tensors that are kept, by name, and which of their dimensions are the samples."""

    @property
    def bytes(self) -> int:
        """Of what is kept."""
        kept: list[Tensor] = [getattr(self, name) for name in self.samples()]
        return sum(t.numel() * t.element_size() for t in kept)

    def room_for(self, samples: int) -> Self:
        """The same without numbers, for so many samples (see `put`)."""
        made = copy.copy(self)
        for name, dim in self.samples().items():
            few: Tensor = getattr(self, name)
            shape = [*few.shape[:dim], samples, *few.shape[dim + 1 :]]
            setattr(made, name, few.new_empty(shape))
        return made

    def put(self, start: int, others: Self) -> None:
        """Put samples in their place, the first of them at `start`."""
        for name, dim in self.samples().items():
            few: Tensor = getattr(others, name)
            getattr(self, name).narrow(dim, start, few.shape[dim]).copy_(few)


class Factors(Features):
    """Left and right factors of `n` samples, laid out for the products they enter."""

    def __init__(self, left: Tensor, right: Tensor, outputs: Outputs) -> None:
        self.left = left
        if outputs == "trace":  # [n, T, C o]: the sum over outputs is part of the product
            right = right.transpose(1, 2).flatten(2)
        elif outputs == "diagonal":  # [C, n, T, o]
            right = right.transpose(0, 1)
        self.right = right.contiguous()
        self.outputs = outputs

    def samples(self) -> dict[str, int]:
        return {"left": 0, "right": int(self.outputs == "diagonal")}

    def add_to(self, total: Tensor, rows: slice, other: Self, columns: slice) -> None:
        a1, a2 = self.left[rows], other.left[columns]
        n, t, m, s = len(a1), a1.shape[1], len(a2), a2.shape[1]
        if a1.is_floating_point():
            alpha = a1.reshape(n * t, -1) @ a2.reshape(m * s, -1).T
        else:
            same = (a1.reshape(-1, 1) == a2.reshape(1, -1)) & (a1.reshape(-1, 1) >= 0)
            alpha = same.to(self.right.dtype)
        if self.outputs == "trace":
            g1, g2 = self.right[rows], other.right[columns]
            gamma = g1.reshape(n * t, -1) @ g2.reshape(m * s, -1).T
            if t == s == 1:
                total.addcmul_(gamma, alpha)
            else:
                total += gamma.mul_(alpha).view(n, t, m, s).sum((1, 3))
        elif self.outputs == "diagonal":
            g1, g2 = self.right[:, rows], other.right[:, columns]
            c = len(g1)
            gamma = torch.bmm(g1.reshape(c, n * t, -1), g2.reshape(c, m * s, -1).transpose(1, 2))
            if t == s == 1:
                total.addcmul_(gamma, alpha)
            else:
                total += gamma.mul_(alpha).view(c, n, t, m, s).sum((2, 4))
        else:
            g1, g2 = self.right[rows], other.right[columns]
            c1, c2 = g1.shape[1], g2.shape[1]
            gamma = g1.reshape(n * c1 * t, -1) @ g2.reshape(m * c2 * s, -1).T
            weighted = gamma.view(n, c1, t, m, c2, s)
            alpha = alpha.view(n, 1, t, m, 1, s)
            if t == s == 1:
                shape = (n, c1, m, c2)
                total.view(shape).addcmul_(weighted.view(shape), alpha.view(n, 1, m, 1))
            else:
                total.view(n, c1, m, c2).add_(weighted.mul_(alpha).sum((2, 5)))


class Jacobians(Features):
    """Jacobians `[n, C, P]` of `n` samples, `[C, n, P]` for the diagonal."""

    def __init__(self, jacobian: Tensor, outputs: Outputs) -> None:
        self.outputs = outputs
        self.values = (
            jacobian.transpose(0, 1).contiguous()
            if outputs == "diagonal"
            else jacobian.contiguous()
        )

    @classmethod
    def empty(cls, shape: tuple[int, int, int], outputs: Outputs, like: Tensor) -> Jacobians:
        """Room for Jacobians of this shape `[n, C, P]`; see `by_sample`."""
        n, classes, parameters = shape
        made = cls(like.new_empty(0, 0, 0), outputs)
        lead = (classes, n) if outputs == "diagonal" else (n, classes)
        made.values = like.new_empty(*lead, parameters)
        return made

    @property
    def by_sample(self) -> Tensor:
        """The Jacobians as `[n, C, P]`, to write to."""
        return self.values.transpose(0, 1) if self.outputs == "diagonal" else self.values

    def samples(self) -> dict[str, int]:
        return {"values": int(self.outputs == "diagonal")}

    def add_to(self, total: Tensor, rows: slice, other: Self, columns: slice) -> None:
        if self.outputs == "trace":
            total.addmm_(self.values[rows].flatten(1), other.values[columns].flatten(1).T)
        elif self.outputs == "diagonal":
            total.baddbmm_(self.values[:, rows], other.values[:, columns].transpose(1, 2))
        else:
            total.addmm_(self.values[rows].flatten(0, 1), other.values[columns].flatten(0, 1).T)


class LateJacobians(Features):
    """Factors of `n` samples whose Jacobians are formed where two are multiplied.

    A few outputs of the weight at a time: the kernel is the sum over them, so that no more than
    `WORKSPACE` is needed however many parameters there are.

    Args:
        left: `[n, T, d]`, or whole numbers `[n, T]` that stand for one-hot vectors.
        right: `[n, C, T, o]`.
        outputs: what the kernel is taken of.
        rows: length of the one-hot vectors.
    """

    def __init__(self, left: Tensor, right: Tensor, outputs: Outputs, rows: int = 0) -> None:
        self.left, self.right = left.contiguous(), right.contiguous()
        self.outputs, self.rows = outputs, rows

    def samples(self) -> dict[str, int]:
        return {"left": 0, "right": 0}

    def add_to(self, total: Tensor, rows: slice, other: Self, columns: slice) -> None:
        same = other is self and rows == columns
        each = sum(
            features.right[part].shape[0] * features.right.shape[1]
            for features, part in ((self, rows), *([] if same else [(other, columns)]))
        )
        length = self.rows or self.left.shape[2]
        width = max(1, WORKSPACE // (each * length * self.right.element_size()))
        for some in blocks(self.right.shape[3], width):
            one = self._formed(rows, some)
            two = one if same else other._formed(columns, some)
            one.add_to(total, slice(None), two, slice(None))

    def _formed(self, samples: slice, some: slice) -> Jacobians:
        right = self.right[samples][..., some]
        return Jacobians(outer_sum(right, self.left[samples], self.rows).flatten(2), self.outputs)
