"""How the rules of tracing make values of a graph."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchtheory.core.errors import UnsupportedModel
from torchtheory.robustness.bounds.graph import Graph, Map, Operation, Picks, Shape, Vertex
from torchtheory.tracing.network import leaves


class Growing:
    """A graph that is being made.

    Attributes:
        vertices: the values so far; the first is the input.
        like: a tensor of the network's precision and place.
        name: of the layer that runs.
        picked: places of values that pick entries of one other, by which and from where.
    """

    def __init__(self, shape: Shape, like: Tensor) -> None:
        self.vertices = [Vertex(shape=shape)]
        self.like, self.name = like, ""
        self.picked: dict[Any, int] = {}

    def constant(self, value: Any) -> Tensor:
        """A number or a tensor in the precision of the network."""
        return torch.as_tensor(value, dtype=self.like.dtype, device=self.like.device)

    def finished(self, output: int, whole: bool) -> Graph:
        """The values that the output is made of, numbered anew."""
        kept = Graph(tuple(self.vertices), output).ancestors(output)
        places = {old: new for new, old in enumerate(dict.fromkeys((0, *kept)))}
        made = []
        for old, new in places.items():
            vertex = self.vertices[old]
            operands = tuple(places[k] for k in vertex.operands)
            made.append(Vertex(vertex.operation, operands, vertex.shape, new, vertex.name))
        return Graph(tuple(made), places[output], whole)


@dataclass(eq=False)
class Signal:
    """A value of a growing graph, as rules see it: of one sample.

    Attributes:
        graph: which graph.
        place: its number.
        shape: as the network has it for one sample.
        hidden: entries that are minus infinity, of which softmax makes 0; None if there are none.
    """

    graph: Growing
    place: int
    shape: Shape
    hidden: Tensor | None = None

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def entries(self) -> int:
        return math.prod(self.shape)

    @property
    def operation(self) -> Operation | None:
        return self.graph.vertices[self.place].operation

    @property
    def operands(self) -> tuple[int, ...]:
        return self.graph.vertices[self.place].operands


@dataclass(eq=False)
class Condition:
    """Where a value is beyond a threshold."""

    asked: Signal
    threshold: Tensor
    above: bool

    @property
    def shape(self) -> Shape:
        return self.asked.shape


class Untold:
    """In the place of what a rule does not tell, such as where maxima are."""


def vertex(operation: Operation, operands: Sequence[Signal], shape: Iterable[int]) -> Signal:
    """A new value, made of others."""
    graph = operands[0].graph
    for operand in operands:
        if operand.hidden is not None:
            raise UnsupportedModel(
                f"the network fills entries with minus infinity, which only softmax makes numbers "
                f"of (in {graph.name})"
            )
    made = Vertex(
        operation, tuple(o.place for o in operands), tuple(shape), len(graph.vertices), graph.name
    )
    graph.vertices.append(made)
    return Signal(graph, made.place, made.shape)


def signals_in(thing: Any) -> list[Signal]:
    """The signals in a structure, each once."""
    found = {id(leaf): leaf for leaf in leaves(thing) if isinstance(leaf, Signal)}
    return list(found.values())


def run_with(
    function: Any, args: Any, options: Any, stand_ins: dict[int, Tensor], constant: Map
) -> Any:
    """A function with other tensors in the place of signals and of constants that hold numbers."""

    def changed(thing: Any) -> Any:
        if isinstance(thing, Signal):
            return stand_ins[id(thing)]
        if isinstance(thing, Tensor) and thing.is_floating_point():
            return constant(thing)
        if type(thing) in (tuple, list):
            return type(thing)(changed(part) for part in thing)
        if isinstance(thing, dict):
            return {k: changed(v) for k, v in thing.items()}
        return thing

    return function(*changed(args), **changed(options))


def source_of(signal: Signal) -> tuple[int, Shape, Tensor] | None:
    """Of a value that only picks entries of one other: the place of that, its shape and which."""
    operation = signal.operation
    if not isinstance(operation, Picks) or len(operation.inputs) != 1:
        return None
    if operation.constant is not None:
        return None
    return signal.operands[0], operation.inputs[0], operation.sources[0]
