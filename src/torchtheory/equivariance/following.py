"""A pass of a network, followed: how a group acts on every tensor, and which layers keep to it.

Operations are looked at one by one, and torch's own layers as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchtheory.equivariance.actions import Element, Group
from torchtheory.equivariance.functions import constant_part, relative_defects
from torchtheory.equivariance.layouts import Layout, act, input_layout, pushed
from torchtheory.equivariance.reasons import reason_for
from torchtheory.equivariance.rules import (
    JOINS,
    REARRANGEMENTS,
    Settings,
    axis_of_sort,
    is_product,
    is_understood,
    joined_layouts,
    layout_after,
    layout_of_einsum,
    layout_of_product,
    settings_of,
    unit_of,
)
from torchtheory.models.model import PureFunction
from torchtheory.tracing.network import Network, Operation, Value, Visit, called, leaves, pair_up
from torchtheory.tracing.passes import network_of
from torchtheory.tracing.recorder import input_tensors

#: Operations that have better names than torch's.
_WORDS = {
    "getitem": "indexing",
    "slice": "indexing",
    "select": "indexing",
    "setitem": "writing",
    "rsub": "sub",
    "rdiv": "div",
    "multi_head_attention_forward": "attention",
    "scaled_dot_product_attention": "attention",
}

#: These make something of their first argument that is like the second, whose numbers are not read.
_LIKE = {"to", "type_as", "expand_as", "view_as", "reshape_as"}

#: Roundings of what a layer reads that may come together in what it returns.
_ROUNDINGS = 100

#: These are no layers of their own in a list.
_SILENT = REARRANGEMENTS | {"clone", "detach", "to", "type_as", "float", "double", "alias"}


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
    """One layer or operation in a pass: its defect, and what it returned with its action."""

    defect: LayerDefect
    shown: bool
    value: Value
    out: Tensor
    layout: Layout | None


Again = tuple[list[Tensor], Callable[[list[Tensor]], Any]]


@dataclass(slots=True)
class Call:
    """A layer or operation: what it is, what it reads, and how to do it again with other tensors.

    Attributes:
        name: the plain name of the operation, or of the one that a layer of torch's stands for.
        kind: the class of the layer, or the operation in a word.
        path: where it stands.
        settings: of the layer.
        again: the tensors that it reads, and what it returns for others in their places.
        arguments: of a single operation, by name.
    """

    name: str
    kind: str
    path: str
    settings: Settings
    again: Again
    arguments: dict[str, Any]

    def tensors(self) -> list[Tensor]:
        """What it reads."""
        return self.again[0]

    def repeated(self, replace: Callable[[Tensor], Tensor]) -> Any:
        """What it returns with every tensor replaced."""
        given, run = self.again
        return run([replace(t) for t in given])


class Following:
    """Follows data through a pass, and tries every layer on moved inputs.

    Attributes:
        known: the tensors made of the data, by id, with the action on them; None where that is
            not known. The tensors are kept, for an id is only good while its object lives.
        tried: the elements that layers were tried with.
    """

    def __init__(self, group: Group, rounding: float, function: PureFunction, x: Tensor) -> None:
        self.group, self.rounding = group, rounding
        self.known: dict[int, tuple[Tensor, Layout | None]] = {}
        self.steps: list[Step] = []
        self.tried: dict[Element, None] = {}
        self.network = network_of(function, x)
        self.samples = len(x)
        self.held: dict[Value, Any] = dict(self.network.tensors)
        self.units = _units(self.network)
        (start,) = input_tensors(function, x)
        self.known[id(start)] = (start, input_layout(group, x.shape))
        self.held[self.network.inputs[0]] = start
        self.network.evaluate([start], len(x), self._done)

    def _done(self, op: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operation is done; at the last one of a layer, the layer is looked at."""
        made = called(op, args, kwargs)
        pair_up(op.result, made, self.held)
        visit, own = self.units.get(op, (None, [op]))
        if own[-1] is not op or not op.follows:
            return made
        constant = visit is None and op.name in _LIKE and not op.inputs[0].follows
        if constant:  # it takes on the type or shape of the data
            return made
        entering, leaving = self.network.boundary(own)
        leaving = leaving or list(op.outputs)
        again = self._again(list(op.inputs) if visit is None else entering, leaving)
        call = self._single(op, again) if visit is None else self._layer(visit, own, again)
        if leaving and any(id(t) in self.known for t in call.tensors()):
            self._met(call, [self.held[v] for v in leaving], leaving[0])
        return made

    def _single(self, op: Operation, again: Again) -> Call:
        word = _WORDS.get(op.name, op.name)
        return Call(op.name, word, op.layer, Settings(), again, op.arguments)

    def _layer(self, visit: Visit, own: list[Operation], again: Again) -> Call:
        name, kind = unit_of(visit.kind)
        return Call(name, kind, visit.layer, settings_of(name, own), again, {})

    def _again(self, entering: list[Value], leaving: list[Value]) -> Again:
        part = self.network.until(*leaving, after=tuple(dict.fromkeys(entering)))

        def again(tensors: list[Tensor]) -> Any:
            given = dict(zip(entering, tensors, strict=True))
            others = {v: t for v, t in self.held.items() if v not in given}
            return part.evaluate(list(given.values()), self.samples, called, others)

        return [self.held[v] for v in entering], again

    def _forget(self, tensor: Tensor) -> None:
        self.known[id(tensor)] = (tensor, None)

    def _met(self, call: Call, outs: list[Tensor], value: Value) -> None:
        """A layer was applied: what is the action on what it returned, and does it follow it?"""
        after = self._layouts(call, outs)
        if len(after) != len(outs):
            after = [None] * len(outs)
        for out, layout in zip(outs, after, strict=True):
            self.known[id(out)] = (out, layout)
        if outs[0].is_floating_point() or outs[0].is_complex():
            self.steps.append(self._step(call, outs[0], value, after[0]))

    def _layouts(self, call: Call, outs: list[Tensor]) -> list[Layout | None]:
        data = [(t, self.known[id(t)][1]) for t in call.tensors() if id(t) in self.known]
        unknown: list[Layout | None] = [None] * len(outs)
        if any(layout is None for _, layout in data):
            return unknown
        circular = call.name == "circular" or call.arguments.get("mode") == "circular"
        if call.name in JOINS and (beside := self._beside(call, data)):
            return [beside]
        if call.name in REARRANGEMENTS or circular:
            return self._pushed(call) or unknown
        if is_product(call.name) and len(call.tensors()) == 2:
            a, b = call.tensors()
            pair = (self.known.get(id(t), (t, None))[1] for t in (a, b))
            return [layout_of_product(a, next(pair), b, next(pair))]
        if call.name == "einsum" and isinstance(call.arguments.get("equation"), str):
            operands = [(t, self.known.get(id(t), (t, None))[1]) for t in call.tensors()]
            return [layout_of_einsum(call.arguments["equation"], operands)]
        if (axis := axis_of_sort(call.name, call.arguments)) is not None:
            return self._sorted(data, axis) + [None] * (len(outs) - 1)
        stride = call.settings.stride or settings_of(call.name, [], call.arguments).stride
        dims = call.arguments.get("dim")
        dims = None if dims in ([], ()) else dims
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
        axis = int(call.arguments.get("dim", 0))
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

    def _step(self, call: Call, out: Tensor, value: Value, layout: Layout | None) -> Step:
        defect = LayerDefect(call.path, call.kind, followed=layout is not None)
        data = [self.known[id(t)][1] for t in call.tensors() if id(t) in self.known]
        if layout is None and any(before is None for before in data):
            shown = False  # the layer where the trail was lost is shown, those behind it are not
        else:
            shown = layout is None or call.name not in _SILENT
        if layout is not None:
            try:
                self._try(call, out, layout, defect)
                understood = not defect.breaks or is_understood(call.name, call.settings)
            except RuntimeError:  # it takes no moved inputs: a mask or a size depends on them
                understood = False
            if not understood:
                defect = LayerDefect(call.path, call.kind, followed=False)
                layout, shown = None, True
                self._forget(out)
        shown = shown or defect.breaks
        return Step(defect, shown, value, out, layout)

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
                self.group, element, call.name, call.settings, call.tensors(), out, before, layout,
                difference,
            )
            for element, difference, met in (
                (missing, None, defect.lost),
                (worst[1], worst[2], worst[0] > self.rounding),
            )
            if met
        ]  # fmt: skip
        defect.reason = ", and ".join(dict.fromkeys(reasons))


def _units(network: Network) -> dict[Operation, tuple[Visit, list[Operation]]]:
    """The operations that belong to a layer of torch's without modules inside, with all of it."""
    visited = {visit.layer for op in network for visit in op.visits}
    paths = [layer.split(".") for layer in visited if ".parametrizations" not in layer]
    opened = {".".join(path[:depth]) for path in paths for depth in range(1, len(path))}
    found: dict[Visit, list[Operation]] = {}
    for op in network:
        for visit in op.visits:
            leaf = visit.layer not in opened and (visit.layer or len(visited) == 1)
            if leaf and unit_of(visit.kind)[0]:
                found.setdefault(visit, []).append(op)
                break
    # what does not follow the input is no part of a layer that is looked at
    followed = {visit: [op for op in own if op.follows] for visit, own in found.items()}
    return {op: (visit, own) for visit, own in followed.items() for op in own}


def _is_broadcast(operands: list[Tensor], out: Tensor) -> bool:
    """Whether the output has the shape that the operands are broadcast to."""
    longest = max(z.ndim for z in operands)
    shapes = [[1] * (longest - z.ndim) + list(z.shape) for z in operands]
    largest = [max(sizes) for sizes in zip(*shapes, strict=True)]
    fits = all(a in (1, b) for shape in shapes for a, b in zip(shape, largest, strict=True))
    return fits and largest == list(out.shape)


def _all_tensors(values: Any) -> Iterator[Tensor]:
    return (leaf for leaf in leaves(values) if isinstance(leaf, Tensor))
