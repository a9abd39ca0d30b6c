"""Arguments of a graph's nodes: how an archive writes them, and what a schema lets them be.

ATen trusts the numbers it is handed for a type or a memory format as far as to read tables at
them. Whatever stands in an archive is therefore compared with the schema of the operator it is
meant for (kind, range and length; `None` only where that is allowed), before any operator runs:
what the archive writes when it is opened, and what the graph computes when its sizes are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchtheory.core.errors import UnsupportedModel
from torchtheory.models.exported_archive import STRIDED, TYPES

Fits = Callable[[Any], bool]

#: Whole numbers beyond this are not sizes; a slice may still end at the largest one there is.
LARGEST_SIZE = 2**40
_LARGEST_NUMBER = 2**63 - 1
# Where a slice starts and ends may lie beyond every size.
_POSITIONS = ("start", "end")

_MEMORY_FORMATS = {
    1: torch.contiguous_format,
    2: torch.channels_last,
    3: torch.channels_last_3d,
    4: torch.preserve_format,
}


@dataclass(frozen=True)
class Named:
    """A value that the graph computes, by its name."""

    name: str


@dataclass(frozen=True)
class Precision:
    """A type of numbers, which another precision may stand in for."""

    dtype: torch.dtype


class Here:
    """The device of the inputs, not that of the exporter."""


@dataclass(frozen=True)
class Place:
    """Where and in which precision a graph runs, unlike where it was exported."""

    device: torch.device
    precision: dict[torch.dtype, torch.dtype]


# -- as an archive writes them ---------------------------------------------------------------------


def only(union: dict[str, Any]) -> tuple[str, Any]:
    """The one field that a value of a union type has."""
    ((kind, content),) = union.items()
    return kind, content


def names_in(argument: Any) -> list[str]:
    """The values that an argument, or an output, of a node speaks of."""
    kind, content = only(argument)
    if kind in ("as_tensor", "as_optional_tensor", "as_sym_int", "as_sym_float", "as_sym_bool"):
        content = content.get("as_tensor", content) if isinstance(content, dict) else {}
        found = content.get("name", content.get("as_name"))
        return [] if found is None else [found]
    if kind in ("as_tensors", "as_optional_tensors"):
        return [n for c in content for n in names_in(c if "as_tensor" in c else wrapped(c))]
    if kind in ("as_sym_ints", "as_sym_floats", "as_sym_bools"):
        return [n for c in content for n in names_in({"as_sym_int": c})]
    return []


def wrapped(content: dict[str, Any]) -> dict[str, Any]:
    """A part of a list of tensors as an argument of its own."""
    return {"as_none": True} if "as_none" in content else {"as_tensor": content}


def parsed(argument: Any) -> Any:
    """What an argument of a node is: constants as they are, values of the graph by name."""
    kind, content = only(argument)
    if kind == "as_none":
        return None
    if kind == "as_tensor":
        return Named(content["name"])
    if kind == "as_optional_tensor":
        return parsed(content)
    if kind in ("as_tensors", "as_optional_tensors"):
        return [parsed(c if "as_tensor" in c else wrapped(c)) for c in content]
    if kind in ("as_sym_int", "as_sym_float", "as_sym_bool"):
        inner, number = only(content)
        return Named(number) if inner == "as_name" else _number(number)
    if kind in ("as_sym_ints", "as_sym_floats", "as_sym_bools"):
        return [parsed({"as_sym_int": c}) for c in content]
    if kind == "as_float":
        return float(content)  # infinities are written as words
    if kind == "as_floats":
        return [float(number) for number in content]
    if kind in ("as_int", "as_bool"):
        return _number(content)
    if kind in ("as_ints", "as_bools"):
        return [_number(number) for number in content]
    if kind == "as_string" and isinstance(content, str):
        return content
    if kind == "as_scalar_type":
        return Precision(TYPES[content])
    if kind == "as_memory_format":
        return _MEMORY_FORMATS[content]
    if kind == "as_layout" and content == STRIDED:
        return torch.strided
    if kind == "as_device":
        return Here()
    if kind == "as_complex":
        return complex(content["real"], content["imag"])
    raise UnsupportedModel(f"the exported network has an argument of kind {kind[:40]}")


def _number(number: Any) -> int | float:
    if not isinstance(number, int | float):
        raise UnsupportedModel("the exported network has an argument that is not a number")
    return number


def value_of(argument: Any, values: dict[str, Any], place: Place) -> Any:
    """What an argument stands for in this run."""
    if isinstance(argument, Named):
        return values[argument.name]
    if isinstance(argument, list):
        return [value_of(a, values, place) for a in argument]
    if isinstance(argument, Precision):
        return place.precision.get(argument.dtype, argument.dtype)
    return place.device if isinstance(argument, Here) else argument


# -- as a schema wants them ------------------------------------------------------------------------


@dataclass(frozen=True)
class Schema:
    """What each argument of an operator may be, by name.

    Attributes:
        name: of the operator, for messages.
        fits: whether a value is one of an argument's.
        kinds: the same in the words of the schema.
        required: those without a default.
    """

    name: str
    fits: dict[str, Fits]
    kinds: dict[str, str]
    required: frozenset[str]

    @classmethod
    def of(cls, name: str, arguments: Iterable[torch._C.Argument]) -> Schema:
        """Read off the arguments of a function of ATen, which is called `name.overload`."""
        given = list(arguments)
        lengths: list[Any] = given  # of lists, which the stubs of torch leave out
        fits = {a.name: _fits(a.real_type, a.name, a.N) for a in lengths}
        # `x + 7` is written down as a sum of tensors
        if torch._C._should_allow_numbers_as_tensors(name.partition(".")[0]):
            tensors = (a.name for a in given if a.real_type.kind() == "TensorType")
            fits |= dict.fromkeys(tensors, lambda v: _is_number(v) or isinstance(v, Tensor))
        return cls(
            name,
            fits,
            {a.name: str(a.real_type) for a in given},
            frozenset(a.name for a in given if not a.has_default_value()),
        )

    def refuse_others(self, arguments: list[tuple[str, Any]]) -> None:
        """Refuse arguments that are not those of the schema, in one sentence.

        Values that the graph has yet to compute are looked at when they are.
        """
        names = [name for name, _ in arguments]
        unknown = sorted(set(names) - self.fits.keys())
        if unknown or len(set(names)) < len(names) or self.required - set(names):
            raise UnsupportedModel(
                f"the exported network calls {self.name} with the arguments "
                f"{', '.join(names)[:200]}, and it has {', '.join(self.fits)}"
            )
        for name, value in arguments:
            if not self.fits[name](value):
                raise UnsupportedModel(
                    f"the exported network calls {self.name} with {name} = {_shown(value)}, which "
                    f"is no {self.kinds[name]} that it takes"
                )


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        return "a tensor"
    return repr(value)[:60]


def _fits(kind: Any, name: str, length: int | None) -> Fits:
    """Whether a value is of a kind that a schema names; a single number may stand for a list."""
    word = kind.kind()
    if word == "OptionalType":
        inner = _fits(kind.getElementType(), name, length)
        return lambda value: value is None or inner(value)
    if word == "ListType":
        each = _fits(kind.getElementType(), name, None)
        lengths = None if length in (None, 1) else (0, 1, length)

        def are(value: Any) -> bool:
            if not isinstance(value, list):
                return length is not None and each(value)
            return (lengths is None or len(value) in lengths) and all(map(each, value))

        return are
    if word in ("IntType", "SymIntType"):
        largest = _LARGEST_NUMBER if name in _POSITIONS else LARGEST_SIZE
        return lambda value: type(value) is Named or (type(value) is int and abs(value) <= largest)
    return _KINDS[word]


def _is_number(value: Any) -> bool:
    if isinstance(value, int):
        return abs(value) <= _LARGEST_NUMBER
    return isinstance(value, float | complex | Named)


_KINDS: dict[str, Fits] = {
    "TensorType": lambda value: isinstance(value, Tensor | Named),
    "BoolType": lambda value: isinstance(value, bool | Named),
    "FloatType": lambda value: not isinstance(value, bool | complex) and _is_number(value),
    "NumberType": _is_number,
    "ComplexType": _is_number,
    "StringType": lambda value: isinstance(value, str),
    "ScalarTypeType": lambda value: isinstance(value, torch.dtype | Precision),
    "MemoryFormatType": lambda value: isinstance(value, torch.memory_format),
    "LayoutType": lambda value: value is torch.strided,
    "DeviceObjType": lambda value: isinstance(value, torch.device | Here),
    "GeneratorType": lambda value: False,  # an archive holds none: there is only the default
}
