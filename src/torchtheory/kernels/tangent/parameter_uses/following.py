"""Where and how the parameters enter a computation.

The operations of a model are recorded (`torchtheory.tracing`), so that a weight is seen whether a
layer of `torch.nn`, an archive or the user's own code uses it, once or many times; each use that
is understood (`rules`) becomes an object that knows its Jacobian (`jacobians`), and a parameter
that goes anywhere else is listed as unknown, for the caller to differentiate as a whole.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchtheory.kernels.tangent.parameter_uses.jacobians import Role, Use
from torchtheory.kernels.tangent.parameter_uses.rules import ALIASES, CUTS, RULES, Found
from torchtheory.tracing.network import Network, Operation, Value, leaves, mapped


class ShapesDiffer(Exception):
    """An operation makes something of another shape than it did when it was recorded."""


class ParameterUses:
    """The uses of some of the parameters of a recorded network.

    Args:
        network: what `record_function` made of one sample.
        followed: names of the parameters to follow.

    Attributes:
        uses: one entry an operation, in the order of the computation.
        shapes: of the output of each of them.
        unknown: names of parameters that go into something else.
    """

    def __init__(self, network: Network, followed: Collection[str]) -> None:
        self.network = network
        self.uses: list[Use] = []
        self.shapes: list[torch.Size] = []
        self.unknown: set[str] = set()
        self._roles = {
            value: Role(name) for name, value in network.parameters.items() if name in followed
        }
        self._tensors = {value: network.tensors[value] for value in self._roles}
        # of an operation: the number of its use, and where among its arguments is what goes in
        self._places: dict[int, tuple[int, tuple[int, ...], Found]] = {}
        for op in network:
            self._see(op)

    def role(self, value: Any) -> Role | None:
        return self._roles.get(value) if isinstance(value, Value) else None

    def tensor(self, value: Value) -> Tensor:
        """Of a parameter, or of another form of one."""
        return self._tensors[value]

    def _see(self, op: Operation) -> None:
        touched = [value for value in op.inputs if value in self._roles]
        if not touched:
            return
        if op.name in ALIASES and len(op.inputs) == len(op.outputs) == 1:
            role = ALIASES[op.name](self, op, touched[0], lambda: self._made(op))
            if role is not None:
                self._roles[op.outputs[0]] = role
                self._tensors[op.outputs[0]] = self._made(op)
                return
        found = RULES[op.name](self, op) if op.name in RULES else None
        # each followed value must have found a place: a weight times a weight has none
        if found is not None and len(list(found.use.roles())) == len(touched):
            given = leaves((op.args, op.kwargs))
            wanted = found.taken if found.computed is None else (*found.taken, found.computed[1])
            places = tuple(
                next(k for k, leaf in enumerate(given) if leaf is value) for value in wanted
            )
            self._places[op.number] = len(self.uses), places, found
            self.uses.append(found.use)
            self.shapes.append(torch.Size(op.outputs[0].shape))  # type: ignore[arg-type]
        elif op.name not in CUTS and op.outputs:
            self.unknown.update(self._roles[value].name for value in touched)

    def _made(self, op: Operation) -> Tensor:
        """An operation on a parameter alone."""
        made: Tensor = op.function(*mapped(op.args, self._own), **mapped(op.kwargs, self._own))
        return made

    def _own(self, leaf: Any) -> Any:
        return self._tensors[leaf] if isinstance(leaf, Value) else leaf

    def outputs(
        self,
        x: Tensor,
        perturbations: Sequence[Tensor],
        parameters: Mapping[str, Tensor],
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """What the network makes of inputs `[1, ...]`, and what goes into each of the uses.

        Args:
            x: one sample.
            perturbations: what to add to the output of each use (zeros to differentiate by).
            parameters: other values of parameters.

        Raises:
            ShapesDiffer: if the output of a use has another shape than its perturbation.
        """
        inputs: list[Tensor] = []

        def step(op: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            place = self._places.get(op.number)
            if place is None:
                return op.function(*args, **kwargs)
            number, where, found = place
            given = leaves((args, kwargs))
            taken = [given[k] for k in where]
            if found.computed is None:
                made: Tensor = op.function(*args, **kwargs)
            else:
                made = found.computed[0](*taken)
            if made.shape != perturbations[number].shape:
                raise ShapesDiffer
            inputs.append(taken[0] if found.made is None else found.made(*taken))
            return made + perturbations[number]

        own = {self.network.parameters[k]: p for k, p in parameters.items()}
        made = self.network.evaluate([x], 1, step, own)
        return made, tuple(inputs)
