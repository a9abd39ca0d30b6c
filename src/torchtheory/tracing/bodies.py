"""The bodies of `torch.nn.functional`, for modes that watch what such a function does inside."""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import cache
from typing import Any


def has_body(func: Any) -> bool:
    """Whether a function of torch is written in Python, out of other functions of torch."""
    return isinstance(func, types.FunctionType) and func.__module__ == "torch.nn.functional"


@cache
def body(func: Any) -> Callable[..., Any]:
    """A function of `torch.nn.functional` that does not hand itself to the mode once more.

    Such functions ask first whether somebody overrides them. To watch what attention, say, does
    inside, its body runs with that question answered by no.
    """

    def no(*_: Any) -> bool:
        return False

    names = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    made = types.FunctionType(
        func.__code__,
        {**func.__globals__, **dict.fromkeys(names, no)},
        func.__name__,
        func.__defaults__,
        func.__closure__,
    )
    made.__kwdefaults__ = func.__kwdefaults__
    return made
