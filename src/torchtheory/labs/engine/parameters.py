"""Parameters of a lab: their types, the values of either preset, and the range they take.

A whole number that is 2 or more in both presets counts things, so it takes no 0, and nothing that
only a slip of the keys could mean. What a lab needs beyond that it declares: the least and the most
of a number or of each number of a list, and the least number of items of a list. A parameter of a
`Literal` type takes one of its choices.
"""

from __future__ import annotations

import math
import numbers
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin

from torchtheory.core.checks import described
from torchtheory.core.errors import InvalidInput

#: A count may be so many times as large as in either preset; what is larger is a slip of the keys.
LARGEST_COUNT = 10_000


@dataclass(frozen=True, slots=True)
class Limits:
    """What a lab declares of its parameters, by their names; nothing of most of them."""

    least: Mapping[str, float] = field(default_factory=dict)
    most: Mapping[str, float] = field(default_factory=dict)
    items: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A lab's parameter.

    Attributes:
        name: what `--set` calls it.
        type: what its annotation says.
        quick, full: its value in either preset.
        meaning: what the lab's docstring says of it.
        least, most: the ends of its range, or of each item's; None where there is none.
        items: the least number of items of a list.
    """

    name: str
    type: Any
    quick: Any
    full: Any
    meaning: str = ""
    least: float | None = None
    most: float | None = None
    items: int = 0

    @classmethod
    def of(
        cls, name: str, type: Any, quick: Any, full: Any, meaning: str = "", limits: Limits | None = None
    ) -> Parameter:
        """A parameter with what is declared of it, and where nothing is, what its presets show.

        >>> Parameter.of("samples", int, 200, 2000).range
        '1 or more'
        """
        limits = limits or Limits()
        least, most = _counted_range(quick, full)
        made = cls(
            name,
            type,
            quick,
            full,
            meaning,
            limits.least.get(name, least),
            limits.most.get(name, most),
            limits.items.get(name, _fewest_items(type, quick, full)),
        )
        if name in limits.most and made.least is not None and made.least > limits.most[name]:
            raise InvalidInput(f"parameter {name} has the range {made.range}, which contains nothing")
        for value in (quick, full):
            made.check(value)
        return made

    @property
    def kind(self) -> str:
        """What it takes, as a user would say it."""
        return type_name(self.type)

    @property
    def choices(self) -> tuple[Any, ...]:
        """All that it takes, where that is a few values.

        >>> Parameter("order", Literal["random", "cyclic"], "random", "random").choices
        ('random', 'cyclic')
        """
        if self.type is bool:
            return (False, True)
        return get_args(self.type) if get_origin(self.type) is Literal else ()

    @property
    def range(self) -> str:
        """Its range in words; empty where it takes any value of its type.

        >>> Parameter("widths", tuple[int, ...], (16, 64), (16, 64), least=16, items=3).range
        '3 or more, each 16 or more'
        """
        guessed = _counted_range(self.quick, self.full)[1]
        ends = _between(self.least, None if self.most == guessed else self.most)
        if self.items > 1:
            return f"{self.items} or more" + (f", each {ends}" if ends else "")
        return f"each {ends}" if ends and isinstance(self.quick, tuple | list) else ends

    def parse(self, text: str) -> Any:
        """The value a command line gives as text."""
        try:
            value = _parse(self.type, text)
        except ValueError:
            raise InvalidInput(
                f"parameter {self.name} must be {type_name(self.type)}, and {described(text)} is not"
            ) from None
        return self._in_range(value)

    def check(self, value: Any) -> Any:
        """A value given in Python, if it is of the parameter's type and in its range."""
        try:
            value = _checked(self.type, value)
        except ValueError:
            raise InvalidInput(
                f"parameter {self.name} must be {type_name(self.type)}, and {described(value)} is not"
            ) from None
        return self._in_range(value)

    def _in_range(self, value: Any) -> Any:
        if isinstance(value, tuple | list) and len(value) < self.items:
            raise InvalidInput(f"parameter {self.name} must have {self.items} items or more, not {described(value)}")
        for number in _numbers(value):
            below = self.least is not None and number < self.least
            if below or (self.most is not None and number > self.most):
                raise InvalidInput(
                    f"parameter {self.name} must lie in the range {_between(self.least, self.most)}, "
                    f"not {described(number)}"
                )
        return value


def _between(least: float | None, most: float | None) -> str:
    match least, most:
        case None, None:
            return ""
        case _, None:
            return f"{least:,} or more"
        case None, _:
            return f"{most:,} or less"
    return f"{least:,} to {most:,}"


def _counted_range(quick: Any, full: Any) -> tuple[int | None, int | None]:
    """The least and the largest count, where presets count things: a size of 0 is none."""
    presets = [v for v in (*_numbers(quick), *_numbers(full)) if isinstance(v, int)]
    if not presets or min(presets) < 0:
        return None, None
    return (1 if min(presets) > 1 else 0), LARGEST_COUNT * max(1, *presets)


def _numbers(value: Any) -> list[float]:
    """The numbers of a parameter's value: it itself, or the items of a list."""
    items = value if isinstance(value, tuple | list) else (value,)
    return [v for v in items if isinstance(v, int | float) and not isinstance(v, bool)]


def _fewest_items(wanted: Any, quick: Any, full: Any) -> int:
    """How many items a list has at least: one, unless a preset is empty, or as many as its type says."""
    arguments = get_args(wanted)
    if get_origin(wanted) is tuple and arguments[-1] is not Ellipsis:
        return len(arguments)
    lists = [value for value in (quick, full) if isinstance(value, tuple | list)]
    return min(1, *map(len, lists)) if lists else 0


def _parse(wanted: Any, text: str) -> Any:
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin is Literal:
        for choice in arguments:
            if str(choice) == text:
                return choice
        raise ValueError(text)
    if origin in (types.UnionType, typing.Union):
        if type(None) in arguments and text.lower() in ("none", ""):
            return None
        for option in arguments:
            if option is not type(None):
                try:
                    return _parse(option, text)
                except ValueError:
                    continue
        raise ValueError(text)
    if origin in (tuple, list):
        parts = [t.strip() for t in text.strip("[]() ").split(",") if t.strip()]
        types_of = _item_types(wanted, len(parts))
        items = [_parse(t, part) for t, part in zip(types_of, parts, strict=True)]
        return tuple(items) if origin is tuple else items
    if wanted is bool:
        if text.lower() in ("true", "yes", "1"):
            return True
        if text.lower() in ("false", "no", "0"):
            return False
        raise ValueError(text)
    if wanted is int:
        number = _finite(float(text))
        if number != int(number):
            raise ValueError(text)
        return int(text) if text.lstrip("+-").isdigit() else int(number)
    return _finite(float(text)) if wanted is float else text


def _checked(wanted: Any, value: Any) -> Any:
    """The value as `wanted`, or ValueError."""
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin is Literal and value in arguments:
        return value
    if origin in (types.UnionType, typing.Union):
        for option in arguments:
            try:
                return _checked(option, value)
            except ValueError:
                continue
    if origin in (tuple, list) and isinstance(value, tuple | list):
        types_of = _item_types(wanted, len(value))
        items = [_checked(t, v) for t, v in zip(types_of, value, strict=True)]
        return tuple(items) if origin is tuple else items
    if wanted is type(None) and value is None:
        return None
    if wanted in (bool, str) and isinstance(value, wanted):
        return value
    if isinstance(value, bool):  # Python counts it among the integers
        raise ValueError(value)
    if wanted is int and isinstance(value, numbers.Integral):
        return int(value)
    if wanted is float and isinstance(value, numbers.Real):
        return _finite(float(value))
    raise ValueError(value)


def _item_types(wanted: Any, count: int) -> list[Any]:
    """The types of `count` items of `list[t]`, `tuple[t, ...]` or `tuple[t, u]`."""
    arguments = get_args(wanted)
    if get_origin(wanted) is list or arguments[-1] is Ellipsis:
        return [arguments[0]] * count
    if len(arguments) != count:
        raise ValueError(f"{count} items")
    return list(arguments)


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise ValueError(number)
    return number


def can_parse(wanted: Any) -> bool:
    """Whether a parameter can be of this type."""
    if get_origin(wanted) is Literal or wanted in (int, float, bool, str):
        return True
    arguments = [a for a in get_args(wanted) if a is not type(None) and a is not Ellipsis]
    known = (types.UnionType, typing.Union, tuple, list)
    return get_origin(wanted) in known and all(can_parse(a) for a in arguments)


def type_name(wanted: Any) -> str:
    """A type as a user would say it."""
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin is Literal:
        return "one of " + ", ".join(str(a) for a in arguments)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return " and ".join(type_name(a) for a in arguments) + ", separated by a comma"
    if origin in (tuple, list):
        one = type_name(arguments[0])
        plural = f"{one.removeprefix('a ')}s" if one.startswith("a ") else one
        return f"{plural} separated by commas"
    if origin in (types.UnionType, typing.Union):
        return " or ".join("none" if a is type(None) else type_name(a) for a in arguments)
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return names.get(wanted, str(wanted))
