r"""The linear recurrence $z_t=a_tz_{t-1}+b_t$, entry by entry, for all times at once.

Pairs are joined by the associative operation

$$
(a,b)\bullet(a',b')=(a'a,\;a'b+b'),
$$

so the recurrence is a prefix scan. Its gradient is the same recurrence run backwards in time.
Source: Deep Learning (notes), section 5.2.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from torchtheory.core.checks import described, one_of
from torchtheory.core.errors import EmptyData, InvalidType, ShapeMismatch
from torchtheory.sequences.recurrent.scans import associative_scan

LinearScanMethod = Literal["blocked", "sequential", "hillis_steele", "blelloch"]

METHODS: tuple[LinearScanMethod, ...] = ("blocked", "sequential", "hillis_steele", "blelloch")

#: Entries per moment from which on the work of a step outweighs the cost of calling for it, so
#: that the loop, which does a third of the work, is no slower than blocks.
WIDE = 2**15

#: Shorter sequences are not cut into blocks.
SHORT = 32


def linear_scan(
    a: Tensor,
    b: Tensor,
    *,
    initial: Tensor | None = None,
    dim: int = -2,
    reverse: bool = False,
    method: LinearScanMethod = "blocked",
) -> Tensor:
    r"""All $z_t=a_tz_{t-1}+b_t$, $t=1,\dots,T$, with $z_0$ `initial` (0 unless given).

    Args:
        a: factors, of a shape that broadcasts with `b`'s; real or complex, of any size: nothing is
            divided by them.
        b: what is added, `[..., T, D]` unless `dim` says otherwise.
        initial: $z_0$, of the shape of `b` without `dim`, or one that broadcasts to it.
        dim: the axis of time.
        reverse: run from the end, $z_t=a_tz_{t+1}+b_t$ with $z_{T+1}$ `initial`.
        method: `blocked` runs about $\sqrt T$ blocks side by side and then carries their ends on,
            in $2\sqrt T$ steps, and is the fastest on a processor with few cores; `sequential` is
            the loop; the others are those of `associative_scan`. They differ by rounding.

    Returns:
        `[..., T, D]`, all $z_t$; differentiable any number of times, also forward and under
        `torch.func`. Time $O(TD)$. Memory: a few tensors like `b`, and for the gradient `a` and
        the result are kept, where a loop under autograd keeps a node per step.

    Source: Deep Learning (notes), section 5.2.

    >>> a, b = torch.full((4, 1), 0.5), torch.ones(4, 1)
    >>> linear_scan(a, b).flatten().tolist()
    [1.0, 1.5, 1.75, 1.875]
    >>> linear_scan(a, b, reverse=True, initial=torch.tensor([4.0])).flatten().tolist()
    [2.125, 2.25, 2.5, 3.0]
    """
    one_of(method, "method", METHODS)
    a, b, start = _prepared(a, b, initial, dim)
    if reverse:
        a, b = a.flip(0), b.flip(0)
    if method in ("blocked", "sequential"):
        found = _scan(a, b, start, method == "blocked")
    else:
        first = torch.addcmul(b[:1], a[:1], start.unsqueeze(0))
        pairs = (a, torch.cat([first, b[1:]]))
        found = associative_scan(join_affine, pairs, 0, method=method)[1]  # type: ignore[arg-type]
    return (found.flip(0) if reverse else found).movedim(0, dim)


def join_affine(
    earlier: tuple[Tensor, Tensor], later: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    r"""$(a,b)\bullet(a',b')=(a'a,a'b+b')$: first $z\mapsto az+b$, then $z\mapsto a'z+b'$.

    >>> one = lambda *v: tuple(torch.tensor(x) for x in v)
    >>> join_affine(one(2.0, 1.0), one(3.0, 5.0))
    (tensor(6.), tensor(8.))
    """
    (a, b), (c, d) = earlier, later
    return c * a, c * b + d


class _LinearScan(torch.autograd.Function):
    """The recurrence along the first axis; its derivatives are recurrences again."""

    @staticmethod
    def forward(a: Tensor, b: Tensor, start: Tensor, blocked: bool) -> Tensor:
        row = math.prod(b.shape[1:])
        if not blocked or len(b) < SHORT or row >= WIDE:
            return _in_turn(a, b, start)
        return _in_blocks(a, b, start)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        a, _, start, ctx.blocked = inputs
        ctx.save_for_backward(a, start, output)
        ctx.save_for_forward(a, start, output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        a, start, z = ctx.saved_tensors
        turned = grads[0].flip(0)
        # the gradient at t comes from t + 1 through a[t + 1]; behind the end there is nothing
        factors = torch.cat([torch.zeros_like(a[:1]), a[1:].flip(0)]).conj().resolve_conj()
        passed = _scan(factors, turned, torch.zeros_like(start), ctx.blocked).flip(0)
        at_a = passed * torch.cat([start.unsqueeze(0), z[:-1]]).conj()
        return at_a, passed, passed[0] * a[0].conj(), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        a, start, z = ctx.saved_tensors
        da, db, dstart, _ = tangents
        added = torch.zeros_like(z) if db is None else db
        if da is not None:
            added = added + da * torch.cat([start.unsqueeze(0), z[:-1]])
        moved = torch.zeros_like(start) if dstart is None else dstart
        return _scan(a, added, moved, ctx.blocked)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        a: Tensor,
        b: Tensor,
        start: Tensor,
        blocked: bool,
    ) -> tuple[Tensor, int]:
        def last(value: Tensor, place: int | None) -> Tensor:
            if place is None:
                return value.unsqueeze(-1).expand(*value.shape, info.batch_size)
            return value.movedim(place, -1)

        a, b, start = (last(v, d) for v, d in zip((a, b, start), in_dims[:3], strict=True))
        made = _scan(a, b, start, blocked)
        return made, made.ndim - 1


def _scan(a: Tensor, b: Tensor, start: Tensor, blocked: bool) -> Tensor:
    made: Tensor = _LinearScan.apply(a, b, start, blocked)  # type: ignore[no-untyped-call]
    return made


def _in_turn(a: Tensor, b: Tensor, start: Tensor) -> Tensor:
    """The loop, written into one tensor."""
    made = torch.empty_like(b)
    before = start
    for z, factor, added in zip(made.unbind(), a.unbind(), b.unbind(), strict=True):
        torch.addcmul(added, factor, before, out=z)
        before = z
    return made


def _in_blocks(a: Tensor, b: Tensor, start: Tensor) -> Tensor:
    """Blocks side by side from 0, the ends of blocks in turn, then the ends carried into blocks."""
    length = 2 ** round(math.log2(len(b)) / 2)
    blocks = len(b) // length
    whole = blocks * length
    made = torch.empty_like(b)
    factors, added, inside = (
        v[:whole].unflatten(0, (blocks, length))  # type: ignore[no-untyped-call]
        for v in (a, b, made)
    )
    products = torch.empty_like(factors, memory_format=torch.contiguous_format)
    rows = zip(
        inside.unbind(1), products.unbind(1), factors.unbind(1), added.unbind(1), strict=True
    )
    z, product, factor, plus = next(rows)
    z.copy_(plus)
    product.copy_(factor)
    for next_z, next_product, factor, plus in rows:
        torch.addcmul(plus, factor, z, out=next_z)
        torch.mul(product, factor, out=next_product)
        z, product = next_z, next_product
    if not bool(product.isfinite().all()):
        # factors above 1 overflow together where the loop, from 0 or by small ones, need not
        return _in_turn(a, b, start)
    ends = _in_turn(product, z, start)
    before = torch.cat([start.unsqueeze(0), ends[:-1]])
    inside.addcmul_(products, before.unsqueeze(1))
    if whole < len(b):
        made[whole:] = _in_turn(a[whole:], b[whole:], made[whole - 1])
    return made


def _prepared(
    a: Tensor, b: Tensor, initial: Tensor | None, dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Factors and additions `[T, ...]` and the start `[...]`, of one shape and dtype."""
    for name, value in (("a", a), ("b", b)):
        if not isinstance(value, Tensor) or not (value.is_floating_point() or value.is_complex()):
            raise InvalidType(f"{name} must be a real or complex tensor, not {described(value)}")
    if not -b.ndim <= dim < b.ndim:
        advice = "; give dim=0 for one sequence of numbers" if b.ndim == 1 else ""
        raise ShapeMismatch(f"b has shape {list(b.shape)} and no axis {dim} of time{advice}")
    try:
        shape = torch.broadcast_shapes(a.shape, b.shape)  # type: ignore[no-untyped-call]
    except RuntimeError:
        shape = torch.Size()
    if shape != b.shape:
        raise ShapeMismatch(f"a {list(a.shape)} does not broadcast to b {list(b.shape)}")
    if b.numel() == 0:
        raise EmptyData(f"b is empty, its shape is {list(b.shape)}")
    kind = torch.promote_types(a.dtype, b.dtype)
    if initial is not None:
        if not isinstance(initial, Tensor):
            raise InvalidType(f"initial must be a tensor, not {described(initial)}")
        kind = torch.promote_types(kind, initial.dtype)
    a, b = (v.to(kind).expand(shape).movedim(dim, 0) for v in (a, b))
    if initial is None:
        return a, b, torch.zeros_like(b[0])
    try:
        start = initial.to(kind).expand(b.shape[1:])
    except RuntimeError:
        raise ShapeMismatch(
            f"initial {list(initial.shape)} is not a state {list(b.shape[1:])}"
        ) from None
    return a, b, start
