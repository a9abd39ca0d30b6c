"""Where the future gets into a network: two passes that differ in later positions, compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchtheory.tracing.network import Network, Operation, mapped

#: Operations that have better names than torch's.
_WORDS = {
    "multi_head_attention_forward": "attention",
    "scaled_dot_product_attention": "attention",
}


@dataclass(frozen=True, slots=True)
class Leak:
    """The operation through which something of later positions reaches earlier ones.

    Attributes:
        module: path of the module whose forward does it; empty for the model itself.
        kind: its class.
        function: what is done there.
    """

    module: str
    kind: str
    function: str

    @property
    def place(self) -> str:
        """Module and function, as one says them.

        >>> Leak("layers.1.self_attn", "MultiheadAttention", "attention").place
        'attention in layers.1.self_attn (MultiheadAttention)'
        """
        where = f"{self.module} ({self.kind})" if self.module else f"forward of {self.kind}"
        return f"{self.function} in {where}"


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """A tensor in two passes, and the operation that made it differ in early positions, if it does.

    A tensor is *touched* if it differs between the passes before a position; a tensor without
    positions if it differs at all.
    """

    first: Tensor
    second: Tensor
    origin: Operation | None = None

    @property
    def leak(self) -> Leak | None:
        """The operation that touched it, in words."""
        op = self.origin
        if op is None:
            return None
        return Leak(op.layer, op.layer_kind, _WORDS.get(op.name, op.name))


class Passes:
    """Two passes of a network side by side, on inputs that agree up to a position.

    Args:
        length: number of positions.
        before: positions before this one are the same in both inputs.
        within: difference, relative to the largest entry, that is rounding.
    """

    def __init__(self, length: int, before: int, within: float) -> None:
        self.length, self.before, self.within = length, before, within

    def outputs(self, network: Network, first: list[Tensor], second: list[Tensor]) -> Any:
        """What the network returns, with a `Pair` for every tensor that follows the inputs."""
        start = [Pair(a, b) for a, b in zip(first, second, strict=True)]
        with torch.no_grad():
            return network.evaluate(start, len(first[0]), self._step)

    def _step(self, op: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        pairs: list[Pair] = []

        def of(leaf: Any, which: str) -> Any:
            if not isinstance(leaf, Pair):
                return leaf
            pairs.append(leaf)
            return getattr(leaf, which)

        own, named = mapped((args, kwargs), partial(of, which="first"))
        one = op.function(*own, **named)
        if not pairs:
            return one
        own, named = mapped((args, kwargs), partial(of, which="second"))
        two = op.function(*own, **named)
        origins = [pair.origin for pair in pairs if pair.origin is not None]
        earliest = min([*origins, op], key=lambda origin: origin.number)
        return self._together(one, two, earliest)

    def _together(self, one: Any, two: Any, origin: Operation) -> Any:
        if isinstance(one, Tensor):
            return Pair(one, two, origin if self.touched(one, two) else None)
        if isinstance(one, tuple | list):
            return [self._together(a, b, origin) for a, b in zip(one, two, strict=True)]
        if isinstance(one, dict):
            return {key: self._together(a, two[key], origin) for key, a in one.items()}
        return one

    def touched(self, a: Tensor, b: Tensor) -> bool:
        """Whether two tensors differ before the position, along any axis that may be positions."""
        if a.shape != b.shape:
            return True
        if a.numel() == 0:
            return False
        if a.is_floating_point() or a.is_complex():
            scale = float(torch.maximum(a.abs(), b.abs()).nan_to_num(0, 0, 0).amax())
            # masks hold infinities, which agree if they are equal
            apart = (a - b).abs() > self.within * scale
            differ = (a != b) & (apart | ~torch.isfinite(a - b))
        else:
            differ = a != b
        if not bool(differ.any()):
            return False
        return all(bool(part.any()) for part in self._early(differ))

    def _early(self, differ: Tensor) -> Iterator[Tensor]:
        """The part before the position, for each way in which an axis may hold the positions."""
        for axis, size in enumerate(differ.shape):
            if size % self.length:
                continue
            times = size // self.length
            orders = {(times, self.length), (self.length, times)}
            for order in orders:
                along = axis + (0 if order[0] == self.length else 1)
                shape = (*differ.shape[:axis], *order, *differ.shape[axis + 1 :])
                yield differ.reshape(shape).narrow(along, 0, self.before)
