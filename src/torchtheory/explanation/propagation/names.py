"""Functions of torch by plain names, which say neither how one is spelled nor that it writes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_ALIASES = {
    "concat": "cat", "concatenate": "cat", "multiply": "mul", "subtract": "sub", "divide": "div",
    "true_divide": "div", "__truediv__": "div", "negative": "neg", "__rsub__": "rsub",
    "__rdiv__": "rdiv", "__rtruediv__": "rdiv", "clip": "clamp", "arctan": "atan",
    "absolute": "abs", "__add__": "add", "__radd__": "add", "__mul__": "mul", "__rmul__": "mul",
    "__sub__": "sub", "__neg__": "neg", "__matmul__": "matmul", "mm": "matmul", "bmm": "matmul",
    "mv": "matmul", "dot": "matmul", "special_expit": "sigmoid", "expit": "sigmoid",
    "__pow__": "pow", "arcsinh": "asinh", "special_softmax": "softmax", "_softmax": "softmax",
    "special_log_softmax": "log_softmax", "moveaxis": "movedim", "swapaxes": "transpose",
    "swapdims": "transpose", "special_expm1": "expm1", "special_erf": "erf",
    "special_log1p": "log1p", "log_sigmoid": "logsigmoid", "row_stack": "vstack",
    "linalg_multi_dot": "multi_dot",
}  # fmt: skip
_IN_PLACE = {"add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "pow": "pow"}


@cache
def plain_name(func: Any) -> tuple[str, bool]:
    """Name of a function without what says that it writes to its input, and whether it does."""
    if func is F.unfold:  # not the method of this name, which moves windows along one dimension
        return "windows", False
    name = str(getattr(func, "__name__", func))
    if name == "__get__":
        return f"get {getattr(getattr(func, '__self__', None), '__name__', '')}", False
    if name.startswith("__i") and name.endswith("__") and name[3:-2] in _IN_PLACE:
        return _IN_PLACE[name[3:-2]], True
    writes = name.endswith("_") and not name.endswith("__")
    name = name.rstrip("_") if writes else name
    return _ALIASES.get(name, name), writes


@cache
def parameters(func: Any) -> frozenset[str]:
    """Names of a function's arguments."""
    return frozenset(inspect.signature(func).parameters)


def function_named(name: str) -> Callable[..., Any]:
    """The function of torch with this plain name, which does not write to its input."""
    for home in (Tensor, torch, F, torch.special, torch._C._nn):
        if hasattr(home, name):
            found: Callable[..., Any] = getattr(home, name)
            return found
    raise AttributeError(name)
