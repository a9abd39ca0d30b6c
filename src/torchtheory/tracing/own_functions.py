"""Functions of a user's own that are one operation: subclasses of `torch.autograd.Function`.

torch does not say when one is applied, so that a network that uses it is recorded as what its
`forward` is made of. One that was given a rule is seen as a whole where that rule is asked for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from torchtheory.core.errors import InvalidInput, InvalidType
from torchtheory.tracing.kinds import KIND_OF

OwnFunction = type[torch.autograd.Function]

_KNOWN: dict[str, OwnFunction] = {}
_APPLYING = threading.RLock()


def own_function(function: OwnFunction) -> str:
    """Make a function of your own an operation, and say the name that it has from now on.

    >>> class Cube(torch.autograd.Function):
    ...     pass
    >>> own_function(Cube)
    'Cube'
    """
    if not (isinstance(function, type) and issubclass(function, torch.autograd.Function)):
        raise InvalidType(
            "a rule is for the name of an operation, or for a subclass of torch.autograd.Function, "
            f"not for {function!r}"
        )
    name = function.__name__
    if name in KIND_OF:
        raise InvalidInput(f"{name} is an operation of torch: give the function another name")
    _KNOWN[name] = function
    return name


def has_rule(function: OwnFunction) -> bool:
    """Whether some analysis was taught it, so that it is one operation."""
    return _KNOWN.get(function.__name__) is function


@contextmanager
def own_functions_seen(
    seen: Callable[[OwnFunction, Callable[..., Any], tuple[Any, ...]], Any],
) -> Iterator[None]:
    """Inside, what this thread applies goes through `seen(function, apply, args)`."""
    with _APPLYING:
        base: Any = torch.autograd.Function
        before, here = vars(base)["apply"], threading.get_ident()

        def apply(cls: OwnFunction, *args: Any, **kwargs: Any) -> Any:
            own = partial(before.__get__(None, cls), **kwargs)
            return seen(cls, own, args) if threading.get_ident() == here else own(*args)

        base.apply = classmethod(apply)
        try:
            yield
        finally:
            base.apply = before
