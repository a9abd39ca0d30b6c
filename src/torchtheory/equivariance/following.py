"""A pass of a network, followed: how a group acts on every tensor, and which layers keep to it.

Functions are seen as torch calls them, and torch's own layers as a whole, so that what a user
writes in `forward` counts as well as what is a module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from torchtheory.equivariance.actions import Element, Group
from torchtheory.equivariance.functions import constant_part, relative_defects
from torchtheory.equivariance.layouts import Layout, act, input_layout, pushed
from torchtheory.equivariance.reasons import reason_for
from torchtheory.equivariance.rules import (
    JOINS,
    REARRANGEMENTS,
    axis_of_sort,
    function_of,
    is_product,
    is_understood,
    is_unit,
    joined_layouts,
    kind_of,
    layout_after,
    layout_of_einsum,
    layout_of_product,
    stride_of,
)
from torchtheory.models.evaluation import called
from torchtheory.models.model import PureFunction

#: Functions that have better names than torch's.
_WORDS = {
    "__getitem__": "indexing",
    "__setitem__": "writing",
    "__rsub__": "sub",
    "__radd__": "add",
    "__rmul__": "mul",
    "__truediv__": "div",
    "multi_head_attention_forward": "attention",
    "scaled_dot_product_attention": "attention",
}

#: These make something of their first argument that is like the second, whose numbers are not read.
_LIKE = {"to", "type_as", "expand_as", "view_as", "reshape_as"}

#: Roundings of what a layer reads that may come together in what it returns.
_ROUNDINGS = 100

#: These are no layers of their own in a list.
_SILENT = REARRANGEMENTS | {"clone", "detach", "to", "type_as", "float", "double"}


@dataclass(slots=True)
class LayerDefect:
    """What a layer does to equivariance.

    Attributes:
        name: the path of its module in the model; that of the module whose forward calls it, for a
            function.
        kind: the class of the module, or the name of the function.
        introduced: the relative defect of this layer alone, over all inputs, at the worst element.
        total: the same of its outputs in the network.
        lost: whether an element that acts on what it reads has no counterpart on what it returns.
        reason: why it breaks equivariance, a sentence; empty where it does not.
        followed: whether it is known how the group acts on what it reads and returns.
    """

    name: str
    kind: str
    introduced: float = 0.0
    total: float = 0.0
    lost: bool = False
    reason: str = ""
    followed: bool = True

    @property
    def breaks(self) -> bool:
        """Whether it adds a defect."""
        return bool(self.reason)

    @property
    def is_module(self) -> bool:
        """Whether it is a module, and no function that one calls."""
        return self.kind[:1].isupper()

    @property
    def place(self) -> str:
        """Its name and kind, as one says them.

        >>> LayerDefect("2", "MaxPool2d").place, LayerDefect("", "add").place
        ('2 (MaxPool2d)', 'add in forward')
        """
        if self.is_module:
            return f"{self.name} ({self.kind})" if self.name else self.kind
        return f"{self.kind} in {self.name or 'forward'}"


def overall_defect(found: Tensor, wanted: Tensor) -> float:
    """The relative defect of a batch as a whole: not every axis 0 inside a model is the samples.

    What is the same along axis 0 counts as constant all the same, for any number may be taken off
    both.
    """
    if found.is_complex():
        found, wanted = torch.view_as_real(found), torch.view_as_real(wanted)
    constant = constant_part(lambda: [wanted]) if wanted.ndim else None
    if constant is not None:
        constant = constant.expand(len(wanted), -1).reshape(-1)
    return float(relative_defects(found[None], wanted[None], constant)[0])


def _is_rounding(difference: Tensor, read: list[Tensor]) -> bool:
    """Whether a difference is what rounding makes of the numbers that were read.

    What a layer returns may be 0 but for rounding, as the mean behind a normalization is.
    """
    real = [t for t in read if t.is_floating_point() or t.is_complex()]
    size = max((float(torch.linalg.vector_norm(t)) for t in real), default=0.0)
    noise = _ROUNDINGS * torch.finfo(difference.dtype).eps * size
    return float(torch.linalg.vector_norm(difference)) <= noise


@dataclass(slots=True)
class Step:
    """One layer or function in a pass: its defect, and what it returned with its action."""

    defect: LayerDefect
    shown: bool
    out: Tensor | None
    layout: Layout | None


@dataclass(slots=True)
class Call:
    """A layer or function that is called: how to do that again with other tensors."""

    name: str
    kind: str
    module: nn.Module | None
    args: tuple[Any, ...]
    named: dict[str, Any]
    again: Callable[..., Any]

    def tensors(self) -> list[Tensor]:
        return list(_all_tensors((self.args, self.named)))

    def repeated(self, replace: Callable[[Tensor], Tensor]) -> Any:
        """What it returns with every tensor replaced."""
        args, named = _replaced((self.args, self.named), replace)
        return self.again(*args, **named)


class Following(TorchFunctionMode):
    """Follows data through a pass, and tries every layer on moved inputs.

    Attributes:
        known: the tensors made of the data, by id, with the action on them; None where that is
            not known. The tensors are kept, for an id is only good while its object lives.
        tried: the elements that layers were tried with.
    """

    def __init__(self, group: Group, rounding: float, trying: bool = True) -> None:
        super().__init__()
        self.group, self.rounding, self.trying = group, rounding, trying
        self.known: dict[int, tuple[Tensor, Layout | None]] = {}
        self.steps: list[Step] = []
        self.tried: dict[Element, None] = {}
        self.path: list[str] = []
        self.inside = 0
        self.waiting: list[Call] = []

    def run(self, function: PureFunction, x: Tensor) -> None:
        """Follow one pass of the model."""
        self.known[id(x)] = (x, input_layout(self.group, x.shape))
        with self._hooked(function.model), self:
            called(function, lambda t: function.call(function.parameters, t), x)

    @contextmanager
    def _hooked(self, model: nn.Module) -> Iterator[None]:
        handles = []
        for path, module in model.named_modules():
            handles.append(module.register_forward_pre_hook(self._entering(path), with_kwargs=True))
            handles.append(module.register_forward_hook(self._leaving(), with_kwargs=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _entering(self, path: str) -> Callable[..., None]:
        def enter(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
            self.path.append(path)
            if is_unit(module):
                if self.inside == 0 and self._concerned((args, named)):
                    kind = kind_of(module)
                    call = Call(function_of(module), kind, module, args, named, module.forward)
                    self.waiting.append(self._kept(call))
                self.inside += 1

        return enter

    def _leaving(self) -> Callable[..., None]:
        def leave(module: nn.Module, args: Any, named: Any, result: Any) -> None:
            if is_unit(module):
                self.inside -= 1
                if self.inside == 0 and self.waiting:
                    self._met(self.waiting.pop(), result)
            self.path.pop()

        return leave

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named = kwargs or {}
        if self.inside or not self._concerned((args, named)):
            return func(*args, **named)
        name = getattr(func, "__name__", "").partition(".")[0]  # conv2d.default of an exported one
        if name in _LIKE and not self._concerned(args[:1]):
            return func(*args, **named)  # a constant that takes on the type or shape of the data
        said = _WORDS.get(name, name.strip("_"))
        writes = name in ("__setitem__", "copy_")
        again = _written(func) if writes else func
        call = self._kept(Call(name, said, None, args, named, again))
        result = func(*args, **named)
        made = args[0] if writes else result
        if next(_all_tensors(made), None) is not None:
            self._met(call, made)
        return result

    def _concerned(self, values: Any) -> bool:
        return any(id(t) in self.known for t in _all_tensors(values))

    def _kept(self, call: Call) -> Call:
        """With copies of the data that it reads: it may write to them."""
        copies: dict[int, Tensor] = {}

        def copy(t: Tensor) -> Tensor:
            if id(t) not in self.known:
                return t
            if id(t) not in copies:
                copies[id(t)] = t.clone()
                self.known[id(copies[id(t)])] = (copies[id(t)], self.known[id(t)][1])
            return copies[id(t)]

        self.inside += 1
        try:
            call.args, call.named = _replaced((call.args, call.named), copy)
        finally:
            self.inside -= 1
        return call

    def _forget(self, tensor: Tensor) -> None:
        self.known[id(tensor)] = (tensor, None)

    def _met(self, call: Call, result: Any) -> None:
        """A layer was applied: what is the action on what it returned, and does it follow it?"""
        self.inside += 1
        try:
            outs = list(_all_tensors(result))
            after = self._layouts(call, outs)
            if len(after) != len(outs):
                after = [None] * len(outs)
            for out, layout in zip(outs, after, strict=True):
                self.known[id(out)] = (out, layout)
            if outs[0].is_floating_point() or outs[0].is_complex():
                self.steps.append(self._step(call, outs[0], after[0]))
        finally:
            self.inside -= 1

    def _layouts(self, call: Call, outs: list[Tensor]) -> list[Layout | None]:
        data = [(t, self.known[id(t)][1]) for t in call.tensors() if id(t) in self.known]
        unknown: list[Layout | None] = [None] * len(outs)
        if any(layout is None for _, layout in data):
            return unknown
        circular = call.name == "circular" or (
            call.name == "pad" and "circular" in (*call.args, *call.named.values())
        )
        if call.name in JOINS and (beside := self._beside(call, data)):
            return [beside]
        if call.name in REARRANGEMENTS or circular:
            return self._pushed(call) or unknown
        if is_product(call.name) and len(call.tensors()) == 2:
            a, b = call.tensors()
            pair = (self.known.get(id(t), (t, None))[1] for t in (a, b))
            return [layout_of_product(a, next(pair), b, next(pair))]
        if call.name == "einsum" and call.args and isinstance(call.args[0], str):
            operands = [(t, self.known.get(id(t), (t, None))[1]) for t in call.tensors()]
            return [layout_of_einsum(call.args[0], operands)]
        if (axis := axis_of_sort(call.name, call.args, call.named)) is not None:
            return self._sorted(data, axis) + [None] * (len(outs) - 1)
        stride = stride_of(call.module, call.name, call.args, call.named)
        dims = call.named.get("dim", _dims(call.args))
        found: list[Layout | None] = []
        for out in outs:
            if len(data) > 1 and _is_broadcast([z for z, _ in data], out):
                found.append(joined_layouts(data, out.ndim))
                continue
            # the operand that the others are broadcast to
            z, layout = max(
                data, key=lambda d: (d[0].shape == out.shape, d[0].ndim, len(d[1] or ()))
            )
            assert layout is not None
            found.append(layout_after(call.name, stride, z, layout, out, dims))
        return found

    @staticmethod
    def _beside(call: Call, data: list[tuple[Tensor, Layout | None]]) -> Layout | None:
        """The action on data with what does not move beside it, as channels: that on the data."""
        moving = [layout for _, layout in data if layout]
        still = len(moving) < len(call.tensors())
        if not (still and moving):
            return None
        axis = int(call.named.get("dim", call.args[1] if len(call.args) > 1 else 0))
        places = [[(m.axes, m.grid) for m in layout] for layout in moving]
        own = all(m.place is None for layout in moving for m in layout)
        alike = own and all(p == places[0] for p in places)
        apart = all(axis % data[0][0].ndim not in axes for axes, _ in places[0])
        return moving[0] if alike and apart else None

    @staticmethod
    def _sorted(data: list[tuple[Tensor, Layout | None]], axis: int) -> list[Layout | None]:
        """Sorted along all that moves, nothing is left that does."""
        z, layout = data[0]
        along = axis % z.ndim
        left = [m for m in layout or () if m.axes != (along,)]
        return [None if any(along in m.axes for m in left) else tuple(left)]

    def _pushed(self, call: Call) -> list[Layout | None]:
        """The actions on what a rearrangement returns; none where it is not one after all."""
        # constants that are joined on have places of their own, and indices stay as they are
        every = [
            (t, self.known.get(id(t), (t, None))[1])
            for t in call.tensors()
            if id(t) in self.known or t.is_floating_point()
        ]
        kept = {id(t) for t in call.tensors()} - {id(t) for t, _ in every}

        def run(label: Callable[[Tensor], Tensor]) -> list[Tensor]:
            made = call.repeated(lambda t: t if id(t) in kept else label(t))
            return list(_all_tensors(made))

        try:
            return pushed(every, run)
        except (RuntimeError, TypeError, IndexError, ValueError):  # it looks at the numbers
            return []

    def _step(self, call: Call, out: Tensor, layout: Layout | None) -> Step:
        path = self.path[-1] if self.path else ""
        defect = LayerDefect(path, call.kind, followed=layout is not None)
        data = [self.known[id(t)][1] for t in call.tensors() if id(t) in self.known]
        if layout is None and any(before is None for before in data):
            shown = False  # the layer where the trail was lost is shown, those behind it are not
        else:
            shown = layout is None or call.name not in _SILENT
        if self.trying and layout is not None:
            try:
                self._try(call, out, layout, defect)
                understood = not defect.breaks or is_understood(call.name, call.module)
            except RuntimeError:  # it takes no moved inputs: a mask or a size depends on them
                understood = False
            if not understood:
                defect = LayerDefect(path, call.kind, followed=False)
                layout, shown = None, True
                self._forget(out)
        shown = shown or defect.breaks
        return Step(defect, shown, out.clone(), layout)

    def _try(self, call: Call, out: Tensor, layout: Layout, defect: LayerDefect) -> None:
        """The layer alone: on moved inputs, against its moved outputs."""
        before = [
            m for t in call.tensors() if id(t) in self.known for m in self.known[id(t)][1] or ()
        ]
        # those of the outputs as well: behind a stride, none of the others may be left
        elements = dict.fromkeys(e for m in (*before, *layout) for e in self.group.steps(m.grid))
        worst: tuple[float, Element, Tensor | None] = (0.0, None, None)
        missing = None
        for element in elements:
            if any(m.index(self.group, element) is None for m in before):
                continue
            self.tried[element] = None
            wanted = act(self.group, element, out, layout)
            if wanted is None:
                missing = element
                defect.lost = True
                continue

            def move(t: Tensor, element: Element = element) -> Tensor:
                if id(t) not in self.known:
                    return t
                moved = act(self.group, element, t, self.known[id(t)][1] or ())
                assert moved is not None
                return moved.clone()

            got = next(_all_tensors(call.repeated(move)))
            size = overall_defect(got, wanted)
            if size > worst[0] and not _is_rounding(got - wanted, call.tensors()):
                worst = (size, element, got - wanted)
        defect.introduced = worst[0]
        reasons = [
            reason_for(
                self.group, element, call.name, call.module, call.tensors(), out, before, layout,
                difference,
            )
            for element, difference, met in (
                (missing, None, defect.lost),
                (worst[1], worst[2], worst[0] > self.rounding),
            )
            if met
        ]  # fmt: skip
        defect.reason = ", and ".join(dict.fromkeys(reasons))


def _written(func: Callable[..., Any]) -> Callable[..., Tensor]:
    """A function that writes to its first argument, as one that returns what it makes of it."""

    def write(tensor: Tensor, *args: Any, **named: Any) -> Tensor:
        own = tensor.clone()
        func(own, *args, **named)
        return own

    return write


def _is_broadcast(operands: list[Tensor], out: Tensor) -> bool:
    """Whether the output has the shape that the operands are broadcast to."""
    longest = max(z.ndim for z in operands)
    shapes = [[1] * (longest - z.ndim) + list(z.shape) for z in operands]
    largest = [max(sizes) for sizes in zip(*shapes, strict=True)]
    fits = all(a in (1, b) for shape in shapes for a, b in zip(shape, largest, strict=True))
    return fits and largest == list(out.shape)


def _dims(args: tuple[Any, ...]) -> Any:
    return args[1] if len(args) > 1 and not isinstance(args[1], Tensor) else None


def _all_tensors(values: Any) -> Iterator[Tensor]:
    if isinstance(values, dict):
        yield from _all_tensors(list(values.values()))
    elif isinstance(values, Tensor):
        yield values
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _all_tensors(value)


def _replaced(values: Any, replace: Callable[[Tensor], Tensor]) -> Any:
    """The same with every tensor replaced, in lists, tuples and dictionaries."""
    if isinstance(values, Tensor):
        return replace(values)
    if isinstance(values, dict):
        return {k: _replaced(v, replace) for k, v in values.items()}
    if type(values) in (list, tuple):
        return type(values)(_replaced(v, replace) for v in values)
    return values
