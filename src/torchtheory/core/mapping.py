"""A function on each of many items: at once where that gives the same, else one by one.

`torch.func.vmap` runs each operation of a function once for all items. Its rules for some
operations take a dimension of the items for one of the operation where both have the same size
(the derivative of `nn.PReLU`, `torch.linalg.solve`) or are wrong altogether (the derivative of
`torch.cdist`, also in `torch.func.jacrev`), and say nothing. So what it gives is compared with the
function on single items, once for every size, and a function that it gets wrong, or has no rule
for, is run on one item after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from torchtheory.core.errors import ModelRaised, TorchTheoryError, UnsupportedModel


class Mapped:
    r"""$(f(x_1),\dots,f(x_n))$ for a function of one item; in the place of `torch.func.vmap`.

    Args:
        function: of tensors, or of lists and dictionaries of them, and its values likewise.
        dims: where the items are, for each argument: 0, or None for one that all items share.
        alone: the same function in another way, to compare with and to fall back on; the function
            itself unless given.

    Items of a size that was not met before are compared at two of them, which costs as many calls
    more; again, if all values of a kind were 0 there, as soon as they are not. What the function
    writes into its arguments is written once.

    >>> solve = lambda right: torch.linalg.solve(torch.eye(3), right)
    >>> items = torch.ones(4, 1, 3, 1)
    >>> torch.func.vmap(solve)(items).shape, Mapped(solve)(items).shape
    (torch.Size([4, 4, 3, 1]), torch.Size([4, 1, 3, 1]))
    """

    def __init__(
        self,
        function: Callable[..., Any],
        dims: Sequence[int | None] | None = None,
        *,
        alone: Callable[..., Any] | None = None,
    ) -> None:
        self._alone = function if alone is None else alone
        self._dims = dims
        self._at_once = torch.func.vmap(function, 0 if dims is None else tuple(dims))
        # for sizes of arguments: the values that were 0 at all items that were compared
        self._right: dict[tuple[torch.Size, ...], frozenset[Hashable]] = {}
        self._one_by_one = False

    def __call__(self, *items: Any) -> Any:
        if self._one_by_one:
            return self._in_turn(items)
        sizes = tuple(leaf.shape for leaf in tree_leaves(items) if isinstance(leaf, Tensor))
        open_values = self._right.get(sizes)
        # a transform hides the numbers
        trusted = inside_transform() or open_values == frozenset()
        before = None if trusted else _Before(items)
        try:
            made = self._at_once(*items)
        except (RuntimeError, NotImplementedError) as error:
            # a function of chance would not be one one by one either
            if "randomness" in str(error) or not self._count(items):
                raise
            # what a model raises may be that vmap has no rule; other sentences are final
            if not isinstance(error, ModelRaised) and isinstance(error, TorchTheoryError):
                raise
            return self._not_at_once(items, before)  # no rule for something the function does
        if before is None or not self._count(items):
            return made
        if open_values is not None and not _any_is_not_zero(made, open_values):
            return made
        seen = self._compared(made, before.items)
        if not seen.right:
            return self._not_at_once(items, before)
        self._right[sizes] = seen.zero
        return made

    def _not_at_once(self, items: Sequence[Any], before: _Before | None) -> Any:
        self._one_by_one = True
        if before is not None:
            before.restore()
        return self._in_turn(items)

    def _shared(self, place: int) -> bool:
        return self._dims is not None and self._dims[place] is None

    def _count(self, items: Sequence[Any]) -> int:
        given = [item for place, item in enumerate(items) if not self._shared(place)]
        return len(tree_leaves(given)[0])

    def _item(self, items: Sequence[Any], k: int) -> list[Any]:
        return [
            item if self._shared(place) else tree_map(lambda leaf: leaf[k], item)
            for place, item in enumerate(items)
        ]

    @torch.no_grad()
    def _compared(self, made: Any, items: Sequence[Any]) -> Agreement:
        seen = Agreement()
        for k in looked_at(self._count(items)):
            # copies, as the function may write into what it is given
            own = tree_leaves(self._alone(*_copies(self._item(items, k))))
            for name, (ours, value) in enumerate(zip(tree_leaves(made), own, strict=True)):
                seen.add(name, value, agrees=_equal(ours[k], value))
            if seen.decided:
                break
        return seen

    def _in_turn(self, items: Sequence[Any]) -> Any:
        return stacked([self._alone(*self._item(items, k)) for k in range(self._count(items))])


class _Before:
    """Arguments as they were before a function was called, which may write into them."""

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = _copies(items)
        self._leaves = [leaf for leaf in tree_leaves(items) if isinstance(leaf, Tensor)]
        self._versions = [_version(leaf) for leaf in self._leaves]

    @torch.no_grad()
    def restore(self) -> None:
        copies = [leaf for leaf in tree_leaves(self.items) if isinstance(leaf, Tensor)]
        for leaf, version, copy in zip(self._leaves, self._versions, copies, strict=True):
            if version is None or _version(leaf) != version:
                leaf.copy_(copy)


def _version(leaf: Tensor) -> int | None:
    """How often it was written to, which inference tensors do not know."""
    return None if leaf.is_inference() else leaf._version


def _copies(items: Any) -> Any:
    return tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf, items)


def _any_is_not_zero(made: Any, names: Collection[Hashable]) -> bool:
    return any(bool(leaf.any()) for name, leaf in enumerate(tree_leaves(made)) if name in names)


def looked_at(count: int) -> list[int]:
    """Items to compare, in this order; the first comes last, as all may have its values by mistake.

    >>> looked_at(100), looked_at(2)
    ([99, 50, 75, 25, 98, 0], [1, 0])
    """
    wanted = [count - 1, count // 2, 3 * count // 4, count // 4, max(0, count - 2), 0]
    return sorted(set(wanted), key=wanted.index)


class Agreement:
    """Whether values agree at most of the items that are looked at, for each name of a value.

    One of three may differ, as a derivative at a kink does by rounding; values that are 0 do not
    count as right, for by mistake they often are 0 as well.

    >>> seen = Agreement()
    >>> seen.add("slope", torch.zeros(1), agrees=True)
    >>> seen.decided, seen.right
    (False, True)
    >>> seen.add("slope", torch.ones(1), agrees=False)
    >>> seen.right
    False
    """

    def __init__(self) -> None:
        self._right: Counter[Hashable] = Counter()
        self._wrong: Counter[Hashable] = Counter()
        self._names: set[Hashable] = set()

    def add(self, name: Hashable, value: Tensor, *, agrees: bool) -> None:
        self._names.add(name)
        if not agrees:
            self._wrong[name] += 1
        elif bool(value.any()):
            self._right[name] += 1

    @property
    def right(self) -> bool:
        return all(self._right[name] > times for name, times in self._wrong.items())

    @property
    def zero(self) -> frozenset[Hashable]:
        """Names of the values that were 0 at all items, of which nothing is known."""
        return frozenset(name for name in self._names if not self._right[name])

    @property
    def decided(self) -> bool:
        """Whether two more items of each value agree than differ."""
        return all(self._right[name] >= self._wrong[name] + 2 for name in self._names)


def stacked(results: Sequence[Any]) -> Any:
    """Values of single items, along a new first dimension."""
    leaves, specs = zip(*(tree_flatten(r) for r in results), strict=True)
    return tree_unflatten([torch.stack(v) for v in zip(*leaves, strict=True)], specs[0])


def jacobian(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    r"""$x\mapsto J_f(x)$, `[*outputs, *inputs]`, row by row; in the place of `torch.func.jacrev`.

    Args:
        function: from a tensor, and others that are not differentiated in, to a tensor.

    >>> places = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    >>> jacobian(lambda x: torch.cdist(x[None], places)[0])(torch.zeros(2))
    tensor([[-1.,  0.],
            [ 0., -1.]])
    """

    def derivative(x: Tensor, *others: Any) -> Tensor:
        value, pull = torch.func.vjp(lambda v: function(v, *others), x)  # type: ignore[misc]
        if not value.numel():
            return x.new_zeros(*value.shape, *x.shape)
        basis = torch.eye(value.numel(), dtype=value.dtype, device=value.device)
        rows: Tensor = Mapped(lambda u: pull(u.reshape(value.shape))[0])(basis)
        return rows.reshape(*value.shape, *x.shape)

    return derivative


def hessian(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    r"""$x\mapsto\nabla^2f(x)$, `[*inputs, *inputs]`; in the place of `torch.func.hessian`.

    Row by row by two passes backward: it needs no derivative forward, which some operations lack.

    Raises:
        UnsupportedModel: if torch has no second derivative of something the function does.

    >>> hessian(lambda x: x[0] ** 2 * x[1])(torch.tensor([1.0, 3.0]))
    tensor([[6., 2.],
            [2., 0.]])
    """
    second = jacobian(torch.func.grad(function))

    def derivative(x: Tensor) -> Tensor:
        try:
            return second(x)
        except NotImplementedError as error:
            sentence = " ".join(str(error).split())[:120]
            raise UnsupportedModel(
                f"torch has no second derivative of what the function does ({sentence}): write it "
                "in other operations, such as (a - b).square().sum(-1).sqrt() for cdist"
            ) from error

    return derivative


def inside_transform() -> bool:
    """Whether a transform of `torch.func` is running the code that asks."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def differentiating() -> bool:
    """Whether a transform of `torch.func` is differentiating the code that asks."""
    running = torch._C._functorch.peek_interpreter_stack()
    kinds = torch._C._functorch.TransformType
    return running is not None and running.key() in (kinds.Grad, kinds.Jvp)


def _equal(ours: Tensor, own: Tensor) -> bool:
    if ours.shape != own.shape or ours.dtype != own.dtype:
        return False
    if not ours.is_floating_point() and not ours.is_complex():
        return torch.equal(ours, own)
    allowed = torch.finfo(own.dtype).eps ** 0.5
    finite = own[torch.isfinite(own)].abs()
    scale = float(finite.max()) if finite.numel() else 0.0
    return torch.allclose(ours, own, rtol=allowed, atol=allowed * scale, equal_nan=True)
