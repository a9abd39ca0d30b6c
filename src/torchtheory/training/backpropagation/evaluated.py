"""An operation at the tensors where it was evaluated: what a rule of backpropagation is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from torchtheory.tracing.interpret import Call
from torchtheory.tracing.network import Value, leaves, mapped
from torchtheory.training.backpropagation.slopes import SLOPES

#: What a rule gives: a mapping from names of arguments to the errors at them, of which one that
#: costs something is a function, called if it is wanted; NotImplemented for a form of its operation
#: that it does not know.
Errors = Any


@dataclass(eq=False)
class Evaluated(Call):
    """An operation with the tensors that it was given and made, and the error that arrived.

    Attributes:
        made: what it returned.
        delta: the error there, in the same structure; None where no error arrived.
        active: whether a value is differentiated.
    """

    made: Any = None
    delta: Any = None
    active: Callable[[Value], bool] = lambda value: value.follows

    def slope(self) -> Tensor | None:
        r"""$\phi'(z)$ of an operation on every entry by itself; None of any other."""
        rule = SLOPES.get(self.name)
        return None if rule is None else rule(self, self["input"], self.made)

    def again(self, change: Callable[[Any, Any], Any]) -> Any:
        """The operation once more, on something else in the place of some tensors.

        Args:
            change: from what stands in the network for an argument, and the argument, to another.
        """
        op = self.operation

        def changed(raw: Any, held: Any) -> Any:
            stands = iter(leaves(held))
            return mapped(raw, lambda leaf: change(leaf, next(stands)))

        return op.function(*changed(op.args, self.args), **changed(op.kwargs, self.kwargs))

    def on(self, x: Tensor) -> Tensor:
        """The operation on another input."""
        value = self.operation.arguments["input"]
        made: Tensor = self.again(lambda raw, held: x if raw is value else held)
        return made
