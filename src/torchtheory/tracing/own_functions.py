"""Functions of a user's own that are one operation: subclasses of `torch.autograd.Function`.

torch does not say when one is applied, so that a network that uses it is recorded as what its
`forward` is made of. One that was given a rule is seen as a whole where that rule is asked for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


@contextmanager
def own_functions_seen(
    seen: Callable[[str, Any, tuple[Any, ...]], Any], *, every: bool = False
) -> Iterator[None]:
    """Inside, applying a known function goes through `seen(name, apply, args)`.

    Args:
        seen: what is called instead.
        every: whether functions go through it that were given no rule as well.
    """
    with _APPLYING:
        if every:
            with _all_through(seen):
                yield
            return
        before = [(own, vars(own).get("apply")) for own in _KNOWN.values()]
        try:
            for name, own in _KNOWN.items():
                setattr(own, "apply", staticmethod(_through(seen, name, own.apply)))  # noqa: B010
            yield
        finally:
            for own, apply in before:
                delattr(own, "apply") if apply is None else setattr(own, "apply", apply)


def _through(
    seen: Callable[[str, Any, tuple[Any, ...]], Any], name: str, apply: Callable[..., Any]
) -> Callable[..., Any]:
    return lambda *args: seen(name, apply, args)


@contextmanager
def _all_through(seen: Callable[[str, Any, tuple[Any, ...]], Any]) -> Iterator[None]:
    function: Any = torch.autograd.Function
    before, here = vars(function)["apply"], threading.get_ident()

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        own = before.__get__(None, cls)
        if kwargs or threading.get_ident() != here:
            return own(*args, **kwargs)
        return seen(cls.__name__, own, args)

    function.apply = classmethod(apply)
    try:
        yield
    finally:
        function.apply = before
