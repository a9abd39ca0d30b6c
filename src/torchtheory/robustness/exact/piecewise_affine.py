"""A network of affine operations and kinks as dense matrices, one cell at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from torchtheory.core.errors import UnsupportedModel
from torchtheory.robustness.bounds.graph import Affine, Bend, Graph, Largest, Picks, Sum
from torchtheory.robustness.bounds.relaxations import Kinked

Array: TypeAlias = np.ndarray[Any, Any]


class PiecewiseAffine:
    """A graph of affine operations and kinks, with dense matrices."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.bends = []
        for vertex in graph.vertices[1:]:
            operation = vertex.operation
            if isinstance(operation, Bend):
                if not isinstance(operation.activation, Kinked):
                    raise UnsupportedModel(
                        "exact distances are for networks of ReLUs and affine layers, and this "
                        f"one has another activation (in {vertex.name})"
                    )
                self.bends.append(vertex.place)
            elif isinstance(operation, Largest):
                raise UnsupportedModel(
                    f"exact distances are for ReLUs, and this network takes maxima (in "
                    f"{vertex.name})"
                )
        self.inputs = graph.vertices[0].entries
        self._matrices: dict[int, tuple[list[Array], Array]] = {}

    def matrices(self, place: int) -> tuple[list[Array], Array]:
        """The matrices and the shift of an affine operation, dense."""
        if place not in self._matrices:
            self._matrices[place] = self._dense(place)
        return self._matrices[place]

    def _dense(self, place: int) -> tuple[list[Array], Array]:
        vertex = self.graph.vertices[place]
        operation = vertex.operation
        shapes = [self.graph.vertices[k].shape for k in vertex.operands]
        zeros = [torch.zeros(1, *s, dtype=torch.float64) for s in shapes]

        def image(values: list[Tensor]) -> Tensor:
            if isinstance(operation, Affine):
                made = operation.linear(values[0])
                return made if operation.shift is None else made + operation.shift
            if isinstance(operation, Picks):
                return operation._moved(values)
            assert isinstance(operation, Sum)
            return values[0] + operation.sign * values[1]

        shift = image(zeros).reshape(-1)
        found = []
        for k, shape in enumerate(shapes):
            size = math.prod(shape)
            basis = torch.eye(size, dtype=torch.float64).reshape(size, *shape)
            given = [z.expand(size, *s) for z, s in zip(zeros, shapes, strict=True)]
            given[k] = basis
            found.append((image(given).reshape(size, -1) - shift).T.numpy())
        return found, shift.numpy()

    def slopes(self, place: int) -> tuple[Array, Array]:
        """Left and right slopes of every unit of a bend."""
        operation = self.graph.vertices[place].operation
        assert isinstance(operation, Bend)
        activation = operation.activation
        assert isinstance(activation, Kinked)
        shape = self.graph.vertices[place].shape

        def wide(slope: float | Tensor) -> Array:
            made: Array = torch.as_tensor(slope, dtype=torch.float64).expand(shape).numpy()
            return made.reshape(-1)

        return wide(activation.left), wide(activation.right)


@dataclass
class State:
    """The values of a network as affine functions of the input, as far as they are decided."""

    forms: dict[int, tuple[Array, Array]]
    next: int = 1

    @classmethod
    def start(cls, network: PiecewiseAffine) -> State:
        n = network.inputs
        return cls({0: (np.eye(n), np.zeros(n))})

    def advance(self, network: PiecewiseAffine) -> int | None:
        """Go on to the next bend; its place, or None at the end."""
        while self.next <= network.graph.output:
            place = self.next
            if place in network.bends:
                return place
            matrices, shift = network.matrices(place)
            operands = network.graph.vertices[place].operands
            form = sum(m @ self.forms[k][0] for m, k in zip(matrices, operands, strict=True))
            rest = sum(m @ self.forms[k][1] for m, k in zip(matrices, operands, strict=True))
            self.forms[place] = (np.asarray(form), np.asarray(rest) + shift)
            self.next += 1
        return None

    def decided(self, network: PiecewiseAffine, place: int, right: Array) -> State:
        """The state behind a bend whose units are on these sides."""
        left_slopes, right_slopes = network.slopes(place)
        slopes = np.where(right, right_slopes, left_slopes)
        forms, shifts = self.forms[network.graph.vertices[place].operands[0]]
        made = dict(self.forms)
        made[place] = (slopes[:, None] * forms, slopes * shifts)
        return State(made, place + 1)
