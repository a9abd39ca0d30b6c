r"""Prefix scans: all running results of an associative operation, in few parallel steps.

$$
y_1=e_1,\qquad y_t=y_{t-1}\bullet e_t=e_1\bullet\dots\bullet e_t .
$$

Because $\bullet$ is associative, brackets may be set otherwise: by doubling (Hillis and Steele),
in $\lceil\log_2n\rceil$ parallel steps and about $n\log_2n$ operations, or over a tree (Blelloch),
in $2\log_2n$ steps and fewer than $2n$ operations. Steps are few; operations are never fewer than
the $n-1$ of the loop. Source: Deep Learning (notes), section 5.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from torchtheory.core.checks import as_function, described, one_of
from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType, ShapeMismatch

Elements = TypeVar("Elements")
ScanMethod = Literal["sequential", "hillis_steele", "blelloch"]

METHODS: tuple[ScanMethod, ...] = ("sequential", "hillis_steele", "blelloch")

#: An operation on the leaves of two trees, each `[n, ...]` along its first axis.
_Operation = Callable[[list[Tensor], list[Tensor]], list[Tensor]]


class Counted:
    """An operation that counts its parallel steps and the pairs that it joins.

    Give it to `associative_scan` in place of the operation.

    Attributes:
        depth: calls, one after the other; each joins any number of pairs at once.
        work: pairs joined.

    >>> op = Counted(torch.add)
    >>> associative_scan(op, torch.ones(8), dim=0).tolist()
    [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    >>> op.depth, op.work
    (5, 11)
    """

    def __init__(self, op: Callable[[Any, Any], Any], dim: int = 0) -> None:
        self.op = as_function(op, "op")
        self.dim = dim
        self.depth = 0
        self.work = 0

    def __call__(self, left: Any, right: Any) -> Any:
        self.depth += 1
        self.work += _leaves(left)[0].shape[self.dim]
        return self.op(left, right)


def associative_scan(
    op: Callable[[Elements, Elements], Elements],
    elements: Elements,
    dim: int,
    *,
    reverse: bool = False,
    method: ScanMethod = "blelloch",
) -> Elements:
    r"""All prefixes $y_t=e_1\bullet\dots\bullet e_t$ of an associative operation.

    Args:
        op: takes what comes earlier and what comes later, each like `elements` with any length
            along `dim`, and joins them pair by pair. It must be associative,
            $(a\bullet b)\bullet c=a\bullet(b\bullet c)$; it need not commute.
        elements: a tensor, or lists, tuples and dictionaries of tensors, all of one length along
            `dim`; real or complex.
        dim: the axis of time.
        reverse: scan from the end: $y_t=e_n\bullet\dots\bullet e_t$, so that what was met before
            still stands on the left.
        method: `sequential` is the loop, n - 1 steps and operations; `hillis_steele` takes
            $\lceil\log_2n\rceil$ steps and $\sum_k(n-2^k)$ operations; `blelloch`, for $n=2^k$,
            $2k-1$ steps and $2n-2-k$ operations. They differ by rounding.

    Returns:
        What `elements` is, with all prefixes along `dim`; differentiable if `op` is.

    Source: Deep Learning (notes), section 5.2.

    >>> associative_scan(torch.maximum, torch.tensor([3.0, 1.0, 4.0, 1.0, 5.0]), dim=0).tolist()
    [3.0, 3.0, 4.0, 4.0, 5.0]
    >>> matrices = torch.tensor([[[1.0, 1.0], [0.0, 1.0]], [[2.0, 0.0], [0.0, 1.0]]])
    >>> associative_scan(lambda a, b: b @ a, matrices, dim=0)[1].tolist()
    [[2.0, 2.0], [0.0, 1.0]]
    """
    as_function(op, "op")
    one_of(method, "method", METHODS)
    leaves = _leaves(elements)
    _check_lengths(leaves, dim)
    turned = [leaf.flip(dim) for leaf in leaves] if reverse else leaves
    count = len(turned)

    def joined(left: list[Tensor], right: list[Tensor]) -> list[Tensor]:
        made = _leaves(op(_rebuilt(elements, left), _rebuilt(elements, right)))
        if len(made) != count:
            raise InvalidInput(f"op returned {len(made)} tensors for {count}")
        for a, b in zip(made, right, strict=True):
            if a.shape != b.shape:
                raise ShapeMismatch(
                    f"op returned a tensor {list(a.shape)} for elements {list(b.shape)}; it joins "
                    f"pairs along axis {dim} and keeps their shape"
                )
        return made

    found = _SCANS[method](joined, turned, dim)
    made: Elements = _rebuilt(elements, [leaf.flip(dim) for leaf in found] if reverse else found)
    return made


# ------------------------------------------------------------------------------- the algorithms


def _sequential(op: _Operation, leaves: list[Tensor], dim: int) -> list[Tensor]:
    length = leaves[0].shape[dim]
    steps = [_part(leaves, dim, 0, 1)]
    for t in range(1, length):
        steps.append(op(steps[-1], _part(leaves, dim, t, t + 1)))
    return [torch.cat(column, dim) for column in zip(*steps, strict=True)]


def _hillis_steele(op: _Operation, leaves: list[Tensor], dim: int) -> list[Tensor]:
    length, shift = leaves[0].shape[dim], 1
    while shift < length:
        late = op(_part(leaves, dim, 0, length - shift), _part(leaves, dim, shift, length))
        leaves = [
            torch.cat([old.narrow(dim, 0, shift), new], dim)
            for old, new in zip(leaves, late, strict=True)
        ]
        shift *= 2
    return leaves


def _blelloch(op: _Operation, leaves: list[Tensor], dim: int) -> list[Tensor]:
    length = leaves[0].shape[dim]
    if length == 1:
        return leaves
    pairs = op(_part(leaves, dim, 0, length - 1, 2), _part(leaves, dim, 1, length, 2))
    odd = _blelloch(op, pairs, dim)
    first = _part(leaves, dim, 0, 1)
    if length == 2:
        return [torch.cat([a, b], dim) for a, b in zip(first, odd, strict=True)]
    rest = _part(leaves, dim, 2, length, 2)
    before = _part(odd, dim, 0, rest[0].shape[dim])
    even = [torch.cat([a, b], dim) for a, b in zip(first, op(before, rest), strict=True)]
    return [_interleaved(a, b, dim) for a, b in zip(even, odd, strict=True)]


_SCANS: dict[ScanMethod, Callable[[_Operation, list[Tensor], int], list[Tensor]]] = {
    "sequential": _sequential,
    "hillis_steele": _hillis_steele,
    "blelloch": _blelloch,
}


def _interleaved(even: Tensor, odd: Tensor, dim: int) -> Tensor:
    """even[0], odd[0], even[1], ...; there may be one more of the even ones."""
    common = odd.shape[dim]
    axis = dim % odd.ndim
    both = torch.stack([even.narrow(axis, 0, common), odd], axis + 1).flatten(axis, axis + 1)
    return (
        both if even.shape[dim] == common else torch.cat([both, even.narrow(axis, common, 1)], axis)
    )


def _part(leaves: Sequence[Tensor], dim: int, start: int, stop: int, step: int = 1) -> list[Tensor]:
    if step == 1:
        return [leaf.narrow(dim, start, stop - start) for leaf in leaves]
    return [leaf.movedim(dim, 0)[start:stop:step].movedim(0, dim) for leaf in leaves]


# ------------------------------------------------------------------------------- trees of tensors


def _leaves(tree: Any) -> list[Tensor]:
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, list | tuple):
        return [leaf for part in tree for leaf in _leaves(part)]
    if isinstance(tree, dict):
        return [leaf for key in tree for leaf in _leaves(tree[key])]
    raise InvalidType(
        "elements are tensors, or lists, tuples and dictionaries of them, not " + described(tree)
    )


def _rebuilt(tree: Any, leaves: Sequence[Tensor]) -> Any:
    """A tree of the same form with other leaves."""
    rest = iter(leaves)

    def build(part: Any) -> Any:
        if isinstance(part, Tensor):
            return next(rest)
        if isinstance(part, dict):
            return {key: build(value) for key, value in part.items()}
        made = [build(value) for value in part]
        if isinstance(part, list):
            return made
        return type(part)(*made) if hasattr(part, "_fields") else tuple(made)

    return build(tree)


def _check_lengths(leaves: Sequence[Tensor], dim: int) -> None:
    if not leaves:
        raise EmptyData("there are no tensors to scan")
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise InvalidType(f"dim is the number of an axis, not {described(dim)}")
    for leaf in leaves:
        if not -leaf.ndim <= dim < leaf.ndim:
            raise ShapeMismatch(f"elements of shape {list(leaf.shape)} have no axis {dim}")
    lengths = {leaf.shape[dim] for leaf in leaves}
    if len(lengths) > 1:
        raise ShapeMismatch(f"elements have different lengths along axis {dim}: {sorted(lengths)}")
    if lengths == {0}:
        raise EmptyData(f"elements have length 0 along axis {dim}")
