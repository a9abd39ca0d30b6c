"""Arguments of a function of torch by name, however the call was written.

`x.view(2, 3)`, `torch.reshape(x, (2, 3))` and `aten.view.default(x, [2, 3])` give one `size`;
`F.batch_norm` and `torch.batch_norm`, which take the same things in two orders, give the same.
"""

from __future__ import annotations

import inspect
import types
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.tracing.names import plain_name

#: Names that torch gives to the same thing in different functions.
_RENAMED = {"self": "input", "shape": "size", "axis": "dim"}

#: Functions of Python's own protocols, which no schema describes.
_PROTOCOLS = {
    "getitem": ("input", "index"),
    "setitem": ("input", "index", "value"),
    "rsub": ("input", "other"),
    "rdiv": ("input", "other"),
    "rpow": ("input", "other"),
    "rmatmul": ("input", "other"),
    "T": ("input",),
    "mT": ("input",),
    "H": ("input",),
    "mH": ("input",),
    **dict.fromkeys(("float", "double", "half", "bfloat16", "int", "long", "bool"), ("input",)),
    "put": ("input", "part", "view_args", "view_kwargs"),
}

#: Methods that take a list of sizes or dimensions one by one as well.
_SPREAD = frozenset(
    """
    view reshape permute expand repeat tile flip new_zeros new_ones new_empty zeros ones empty rand
    randn
    """.split()
)
_LISTS = ("List[int]", "List[SymInt]")

Schema = tuple[tuple[str, str, Any, bool], ...]


def bind(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name, those that were not given with their default values.

    Args:
        function: any spelling of a function of torch.
        args, kwargs: what it is called with; anything may stand in the place of a tensor.

    >>> x = torch.zeros(6)
    >>> bind(Tensor.view, (x, 2, 3), {})["size"], bind(torch.reshape, (x, (2, 3)), {})["size"]
    ([2, 3], (2, 3))
    >>> bind(Tensor.sum, (x, 0), {})["keepdim"]
    False
    """
    function = getattr(function, "spelling", function)  # where it stands for another one
    name, _ = plain_name(function)
    if name == "einsum":
        if not args:  # archives give everything by name
            return {"equation": kwargs["equation"], "operands": list(kwargs["tensors"])}
        operands = args[1] if len(args) == 2 and isinstance(args[1], list | tuple) else args[1:]
        return {"equation": args[0], "operands": list(operands)}
    if function is Tensor.where and len(args) > 1:  # a method whose own tensor comes second
        args = (args[1], args[0], *args[2:])
    if name in _PROTOCOLS:
        return dict(zip(_PROTOCOLS[name], args, strict=False)) | kwargs
    signature = _signature(function)
    if signature is not None:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return _renamed(dict(bound.arguments))
    for schema in _schemas(function):
        found = _matched(name, schema, args, kwargs, is_it=hasattr(function, "_schema"))
        if found is not None:
            return found
    return {f"argument_{k}": a for k, a in enumerate(args)} | kwargs


def _renamed(arguments: dict[str, Any]) -> dict[str, Any]:
    return {_RENAMED.get(k, k): v for k, v in arguments.items()}


@cache
def _signature(function: Any) -> inspect.Signature | None:
    """Of a function that is written in Python."""
    if not isinstance(function, types.FunctionType):
        return None
    # pooling that returns where its maxima are is one function with pooling that does not
    function = getattr(F, f"{plain_name(function)[0]}_with_indices", function)
    try:
        signature = inspect.signature(function)
    except ValueError:  # a wrapper around a function written in C, such as Tensor.__pow__
        return None
    kinds = {p.kind for p in signature.parameters.values()}
    return None if inspect.Parameter.VAR_POSITIONAL in kinds else signature


@cache
def _schemas(function: Any) -> tuple[Schema, ...]:
    """What ATen says about the overloads of a function, plain ones first."""
    own = getattr(function, "_schema", None)
    if own is not None:
        found = [own]
    else:
        plain, _ = plain_name(function)
        spelled = str(getattr(function, "__name__", plain))
        found = []
        for name in dict.fromkeys((spelled, spelled.strip("_"), plain)):
            found += torch._C._jit_get_schemas_for_operator(f"aten::{name}")
    ordered = sorted(found, key=lambda s: "out" in s.overload_name)
    return tuple(
        tuple(
            (
                _RENAMED.get(a.name, a.name),
                str(a.type),
                a.default_value if a.has_default_value() else inspect.Parameter.empty,
                a.kwarg_only,
            )
            for a in schema.arguments
        )
        for schema in ordered
    )


def _matched(
    name: str, schema: Schema, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_it: bool
) -> dict[str, Any] | None:
    """The arguments by the names of one overload, if it is (or must be) the one that was called."""
    positional = [a for a in schema if not a[3]]
    given = {_RENAMED.get(k, k): v for k, v in kwargs.items()}
    args = _packed(name, positional, args)
    if len(args) > len(positional):
        return None
    for (key, _, _, _), value in zip(positional, args, strict=False):
        if key in given:
            return None
        given[key] = value
    bound = {}
    for key, kind, default, _ in schema:
        if key in given:
            value = given.pop(key)
            if not is_it and not _fits(kind, value):  # aten.mul.Tensor takes numbers as well
                return None
            bound[key] = value
        elif default is inspect.Parameter.empty:
            return None
        else:
            bound[key] = default
    return None if given else bound


def _packed(name: str, positional: list[Any], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Sizes that a method takes one after the other, as the one list that they are."""
    place = next((k for k, p in enumerate(positional) if p[1] in _LISTS), None)
    if name not in _SPREAD or place is None or not all(map(_is_size, args[place:])):
        return args
    return (*args[:place], list(args[place:])) if len(args) > place else args


def _is_size(value: Any) -> bool:
    return (isinstance(value, int) and not isinstance(value, bool)) or hasattr(value, "times")


def _fits(kind: str, value: Any) -> bool:
    """Whether a value can be an argument of a type of ATen's; what stands for a tensor is one."""
    kind = (
        kind.removesuffix("]").removeprefix("Optional[") if kind.startswith("Optional[") else kind
    )
    if value is None:
        return True
    several = isinstance(value, list | tuple)
    if kind.startswith("List["):
        inner = kind.removeprefix("List[").removesuffix("]")
        if not several:
            return inner in ("int", "SymInt") and _is_size(value)
        return all(_fits(inner, v) for v in value)
    if several:
        return False
    if kind == "Tensor":
        return not isinstance(
            value, int | float | bool | complex | str | torch.dtype
        ) and not _is_size(value)
    if kind in ("int", "SymInt"):
        return _is_size(value) or isinstance(
            value, torch.dtype | torch.layout | torch.memory_format
        )
    if kind in ("float", "number", "Scalar"):
        return (
            isinstance(value, int | float | complex)
            or _is_size(value)
            or (isinstance(value, Tensor) and value.ndim == 0)
        )
    if kind == "bool":
        return isinstance(value, bool)
    if kind == "str":
        return isinstance(value, str)
    return not isinstance(value, Tensor)
