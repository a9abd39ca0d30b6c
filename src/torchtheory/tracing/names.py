"""Functions of torch by plain names, which say neither how one is spelled nor that it writes.

`F.relu`, `torch.relu_`, `x.relu()` and `aten.relu.default` are all "relu".
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_ALIASES = {
    "__add__": "add", "__radd__": "add", "__sub__": "sub", "subtract": "sub", "__rsub__": "rsub",
    "__mul__": "mul", "__rmul__": "mul", "multiply": "mul", "__neg__": "neg", "negative": "neg",
    "__truediv__": "div", "__div__": "div", "divide": "div", "true_divide": "div",
    "__rtruediv__": "rdiv", "__rdiv__": "rdiv", "__matmul__": "matmul", "__rmatmul__": "rmatmul",
    "mm": "matmul", "bmm": "matmul", "mv": "matmul", "dot": "matmul", "linalg_matmul": "matmul",
    "inner": "inner", "__pow__": "pow", "float_power": "pow", "__rpow__": "rpow", "__abs__": "abs",
    "absolute": "abs", "clip": "clamp", "concat": "cat", "concatenate": "cat",
    "special_expit": "sigmoid", "expit": "sigmoid", "special_softmax": "softmax",
    "_softmax": "softmax", "special_log_softmax": "log_softmax", "_log_softmax": "log_softmax",
    "special_expm1": "expm1", "special_erf": "erf", "special_log1p": "log1p",
    "log_sigmoid": "logsigmoid", "arctan": "atan", "arcsinh": "asinh", "arctanh": "atanh",
    "arccosh": "acosh", "arcsin": "asin", "arccos": "acos", "arctan2": "atan2",
    "moveaxis": "movedim", "swapaxes": "transpose", "swapdims": "transpose", "row_stack": "vstack",
    "linalg_multi_dot": "multi_dot", "__getitem__": "getitem", "__setitem__": "setitem",
    "_unsafe_view": "view", "__eq__": "eq", "__ne__": "ne", "__lt__": "lt", "__le__": "le",
    "__gt__": "gt", "__ge__": "ge", "equal_": "eq", "greater": "gt", "less": "lt",
    "greater_equal": "ge", "less_equal": "le", "not_equal": "ne", "__and__": "bitwise_and",
    "__or__": "bitwise_or", "__xor__": "bitwise_xor", "__invert__": "bitwise_not",
    "__rand__": "bitwise_and", "__ror__": "bitwise_or", "__floordiv__": "floor_divide",
    "__rfloordiv__": "rfloor_divide", "__mod__": "remainder", "_threshold": "threshold",
    "_prelu_kernel": "prelu", "get T": "T", "numpy_T": "T", "get mT": "mT", "get H": "H",
    "get mH": "mH", "matrix_H": "mH",
    "get data": "detach", "get real": "real", "get imag": "imag", "fmax": "maximum",
    "fmin": "minimum", "swish": "silu", "_to_copy": "to", "_reshape_alias": "view",
    "_upsample_nearest_exact2d": "upsample_nearest2d", "__reversed__": "reversed",
    "max_pool1d_with_indices": "max_pool1d", "max_pool2d_with_indices": "max_pool2d",
    "max_pool3d_with_indices": "max_pool3d", "_adaptive_avg_pool2d": "adaptive_avg_pool2d",
    "_adaptive_avg_pool3d": "adaptive_avg_pool3d", "linalg_norm": "norm",
    "linalg_vector_norm": "vector_norm",
}  # fmt: skip
_IN_PLACE = {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "div": "div", "pow": "pow",
    "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "floordiv": "floor_divide",
    "mod": "remainder", "matmul": "matmul",
}  # fmt: skip


@cache
def plain_name(func: Any) -> tuple[str, bool]:
    """Name of a function without what says that it writes to its input, and whether it does.

    >>> plain_name(torch.relu_), plain_name(Tensor.__iadd__), plain_name(torch.ops.aten.mm.default)
    (('relu', True), ('add', True), ('matmul', False))
    """
    if func is F.unfold:  # not the method of this name, which moves windows along one dimension
        return "windows", False
    name = str(getattr(func, "__name__", func)).partition(".")[0]
    if name == "__get__":
        name = f"get {getattr(getattr(func, '__self__', None), '__name__', '')}"
        return _ALIASES.get(name, name), False
    if name.startswith("__i") and name.endswith("__") and name[3:-2] in _IN_PLACE:
        return _IN_PLACE[name[3:-2]], True
    if name == "__setitem__":
        return "setitem", True
    writes = name.endswith("_") and not name.endswith("__")
    name = name.rstrip("_") if writes else name
    return _ALIASES.get(name, name), writes


@cache
def parameters(func: Any) -> frozenset[str]:
    """Names of a function's arguments; of one written in C, none."""
    try:
        return frozenset(inspect.signature(func).parameters)
    except (TypeError, ValueError):
        return frozenset()


#: Where functions of torch live.
_HOMES = (torch, Tensor, F, torch.special, torch._C._nn, torch.linalg)


@cache
def function_named(name: str) -> Callable[..., Any] | None:
    """The function of torch with this plain name, which does not write to its input.

    >>> function_named("relu") is torch.relu, function_named("nothing_of_the_sort")
    (True, None)
    """
    for home in _HOMES:
        found: Callable[..., Any] | None = getattr(home, name, None)
        if callable(found):
            return found
    return None
