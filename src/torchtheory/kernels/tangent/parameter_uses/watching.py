"""Where and how the parameters enter a computation.

`ParameterUses` watches a forward pass at the level of torch's functions, so it sees a weight
whether a layer of `torch.nn` or the user's own code uses it, once or many times; each use it
understands (`rules`) becomes an object that knows its Jacobian (`jacobians`), and a parameter that
goes anywhere else is listed as unknown, for the caller to differentiate as a whole.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from torchtheory.kernels.tangent.parameter_uses.jacobians import Role, Use
from torchtheory.kernels.tangent.parameter_uses.rules import ALIASES, CUTS, REWRITTEN, RULES
from torchtheory.tracing.bodies import body, has_body
from torchtheory.tracing.recurrent_steps import IN_STEPS


class ParameterUses(TorchFunctionMode):
    """Watches a forward pass of one sample and notes every use of the parameters it follows.

    Args:
        followed: the tensors to follow, by the name they have.
        perturbations: what to add to the output of each use (zeros to differentiate by); none to
            find out which there are.

    Attributes:
        uses: one entry an operation, in the order of the computation.
        inputs: what went into each of them.
        shapes: of the output of each of them.
        unknown: names of parameters that went into something else.
    """

    def __init__(
        self, followed: dict[str, Tensor], perturbations: tuple[Tensor, ...] | None = None
    ) -> None:
        super().__init__()
        self.uses: list[Use] = []
        self.inputs: list[Tensor] = []
        self.shapes: list[torch.Size] = []
        self.unknown: set[str] = set()
        self._perturbations = perturbations
        # aliases are kept alive with their role: another tensor could take over the id
        self._roles = {id(t): (Role(name), t) for name, t in followed.items()}

    def role(self, tensor: Any) -> Role | None:
        found = self._roles.get(id(tensor))
        return None if found is None else found[0]

    def alias(self, tensor: Tensor, role: Role) -> Tensor:
        self._roles[id(tensor)] = (role, tensor)
        return tensor

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in IN_STEPS:
            with self:
                return IN_STEPS[func](*args, **kwargs)
        touched = [role for t in _tensors(args, kwargs) if (role := self.role(t)) is not None]
        if not touched:
            return func(*args, **kwargs)
        if func in ALIASES and _takes(ALIASES[func], self, func, *args, **kwargs):
            made = ALIASES[func](self, func, *args, **kwargs)
            if made is not None:
                return made
        if func in REWRITTEN and _takes(REWRITTEN[func], self, *args, **kwargs):
            with self:
                product = REWRITTEN[func](self, *args, **kwargs)
            if product is not None:
                return product
        if func in RULES and _takes(RULES[func], self, *args, **kwargs):
            found = RULES[func](self, *args, **kwargs)
            # each followed tensor must have found a place: a weight times a weight has none
            if found is not None and len(list(found[0].roles())) == len(touched):
                return self._note(*found, func(*args, **kwargs))
        if has_body(func):
            with self:
                return body(func)(*args, **kwargs)
        result = func(*args, **kwargs)
        if func not in CUTS and any(True for _ in _tensors((result,), {})):
            self.unknown.update(role.name for role in touched)
        return result

    def _note(self, use: Use, a: Tensor, result: Tensor) -> Tensor:
        self.uses.append(use)
        self.inputs.append(a)
        self.shapes.append(result.shape)
        # other uses than the expected ones are noticed by the caller, who compares the lists
        if self._perturbations is None or len(self.uses) > len(self._perturbations):
            return result
        perturbation = self._perturbations[len(self.uses) - 1]
        return result + perturbation if perturbation.shape == result.shape else result


_signature = cache(inspect.signature)


def _takes(rule: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
    """Whether a rule knows the names by which torch's function was given its arguments."""
    try:
        _signature(rule).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _tensors(args: Any, kwargs: dict[str, Any]) -> Iterator[Tensor]:
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from (v for v in value if isinstance(v, Tensor))
