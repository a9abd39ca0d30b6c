"""Where the future gets into a network: two passes that differ in later positions, compared.

Functions are followed as torch calls them, so that what a user writes in `forward` counts as well
as what is a module. The model's own copy gets hooks for the names of its modules only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from torchtheory.models.model import tensors_in

#: Functions that have better names than torch's.
_WORDS = {
    "multi_head_attention_forward": "attention",
    "scaled_dot_product_attention": "attention",
}

# these change their first argument and return None
_WRITES = {"__setitem__", "__set__"}

#: A call: the path of the module whose forward makes it, the kind of that module, the function.
Place = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Leak:
    """The call through which something of later positions reaches earlier ones.

    Attributes:
        module: path of the module whose forward makes the call; empty for the model itself.
        kind: its class.
        function: what it calls there.
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


class Passes:
    """Two passes of a model, on inputs that agree up to a position, followed call by call.

    A tensor is *touched* if it differs between the passes before that position; a tensor without
    positions if it differs at all. The leak is the call that made the outputs touched out of what
    was not.

    Args:
        model: the module that both passes run.
        length: number of positions.
        before: positions before this one are the same in both inputs.
        within: difference, relative to the largest entry, that is rounding.
    """

    def __init__(self, model: nn.Module, length: int, before: int, within: float) -> None:
        self.model, self.length, self.before, self.within = model, length, before, within
        self.first: list[tuple[Place, list[Tensor]]] = []

    def leak(self, run: Callable[[int], Tensor]) -> Leak | None:
        """The call that leaks into `run(1)`, against `run(0)`; None where it cannot be told."""
        with torch.no_grad():
            one = _Recording(self)
            with one.named(), one:
                run(0)
            self.first = one.calls
            two = _Comparing(self)
            with two.named(), two:
                outputs = run(1)
        origin = two.origin(outputs)
        return None if origin is None else Leak(*self.first[origin][0])

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


class NamedCalls(TorchFunctionMode):
    """Every call of a function of torch in a pass, with the module whose forward makes it.

    Attributes:
        path: names and kinds of the modules that run, the outermost first.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.path: list[tuple[str, str]] = [("", type(model).__name__)]

    @contextmanager
    def named(self) -> Iterator[None]:
        """Inside it is known which module's forward runs."""
        handles = []
        for name, module in self.model.named_modules():
            handles.append(module.register_forward_pre_hook(self._entering(name)))
            handles.append(module.register_forward_hook(self._leaving, always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _entering(self, name: str) -> Callable[..., None]:
        def enter(module: nn.Module, args: tuple[Any, ...]) -> None:
            self.path.append((name, type(module).__name__))
            self.enters(name, args)

        return enter

    def _leaving(self, module: nn.Module, args: tuple[Any, ...], result: Any) -> None:
        name, _ = self.path.pop()
        self.leaves(name, result)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named = kwargs or {}
        result = func(*args, **named)
        self.calls_function(func, args, named, result)
        return result

    def enters(self, name: str, args: tuple[Any, ...]) -> None:
        """A module is called."""

    def leaves(self, name: str, result: Any) -> None:
        """A module has returned."""

    def calls_function(
        self, func: Any, args: tuple[Any, ...], named: dict[str, Any], result: Any
    ) -> None:
        """A function has returned."""


class _Following(NamedCalls):
    """Every call that makes tensors of tensors, in order."""

    def __init__(self, passes: Passes) -> None:
        super().__init__(passes.model)
        self.passes = passes
        self.calls: list[tuple[Place, list[Tensor]]] = []

    def calls_function(
        self, func: Any, args: tuple[Any, ...], named: dict[str, Any], result: Any
    ) -> None:
        name = getattr(func, "__name__", "").partition(".")[0]
        read = list(tensors_in([*args, *named.values()]))
        made = list(tensors_in(args[:1] if name in _WRITES else [result]))
        if read and made:
            said = _WORDS.get(name, name.strip("_"))
            self.met((*self.path[-1], said), read, made)

    def met(self, place: Place, read: list[Tensor], made: list[Tensor]) -> None:
        """A function was called."""


class _Recording(_Following):
    """The first pass: what every call returned, as it was then."""

    def met(self, place: Place, read: list[Tensor], made: list[Tensor]) -> None:
        self.calls.append((place, [t.detach().clone() for t in made]))


class _Comparing(_Following):
    """The second pass: from which call a touched tensor is."""

    def __init__(self, passes: Passes) -> None:
        super().__init__(passes)
        # the tensors themselves as well: an id is only good while its object lives
        self.known: dict[int, tuple[Tensor, int | None]] = {}
        self.count, self.lost = 0, False

    def met(self, place: Place, read: list[Tensor], made: list[Tensor]) -> None:
        number, self.count = self.count, self.count + 1
        first = self.passes.first
        if self.lost or number >= len(first) or first[number][0] != place:
            self.lost = True  # its way through the model depends on the inputs
            return
        before = [o for t in read if (o := self.origin(t)) is not None]
        own = min([*before, number])
        then = first[number][1]
        for here, there in zip(made, then, strict=False):
            touched = self.passes.touched(here.detach(), there)
            self.known[id(here)] = (here, own if touched else None)

    def origin(self, tensor: Tensor) -> int | None:
        """The number of the call that touched it; None if it is not touched, or not known."""
        return None if self.lost else self.known.get(id(tensor), (tensor, None))[1]
