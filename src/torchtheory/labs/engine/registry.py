"""Labs: experiments with a verdict, registered by name.

A lab is a function of a `Run` and typed keyword parameters:

```python
@lab("perceptron-novikoff", room="neurons", covers=["N-06", "N-07", "N-08"],
     title="The perceptron makes at most R²/γ² updates", full={"n": 2000})
def perceptron_novikoff(run: Run, n: int = 200, margin: float = 0.1) -> None:
    '''What is claimed, what is done, what to look at.'''
```

The defaults of the signature are the `quick` preset (a few seconds); `full` lists what the
source's own sizes change.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import math
import numbers
import re
import shlex
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from torchtheory.core import catalogue
from torchtheory.core.checks import as_function, described, one_of
from torchtheory.core.errors import (
    FileProblem,
    InvalidInput,
    InvalidType,
    TorchTheoryError,
    UnknownName,
)
from torchtheory.core.foreign_text import one_line
from torchtheory.core.naming import check_name, same_function
from torchtheory.labs.manifest import (
    PACKAGE,
    ListedLab,
    lab_modules,
    lab_sources,
    read_decorators,
)

Preset = Literal["quick", "full"]
PRESETS: tuple[Preset, ...] = ("quick", "full")

#: Modules made of a user's file have this name, and a digest of the file's place.
FILE_MODULE = "torchtheory_labs_of_"

#: A count may be so many times as large as in either preset; what is larger is a slip of the keys.
LARGEST_COUNT = 10_000


@dataclass(frozen=True, slots=True)
class Parameter:
    """A lab's parameter: its type, its value in either preset, and what its docstring says of it."""

    name: str
    type: Any
    quick: Any
    full: Any
    meaning: str = ""

    @property
    def kind(self) -> str:
        """What it takes, as a user would say it."""
        return type_name(self.type)

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
        """A value given in Python, if it is of the parameter's type."""
        try:
            value = _checked(self.type, value)
        except ValueError:
            raise InvalidInput(
                f"parameter {self.name} must be {type_name(self.type)}, and {described(value)} is not"
            ) from None
        return self._in_range(value)

    @property
    def range(self) -> tuple[int, int] | None:
        """The least and largest count it takes; None where it does not count things.

        Whole numbers that are 2 or more in both presets are sizes, and a size of 0 is none.

        >>> Parameter("samples", int, 200, 2000).range, Parameter("margin", float, 0.1, 0.1).range
        ((1, 20000000), None)
        """
        presets = [*_whole_numbers(self.quick), *_whole_numbers(self.full)]
        if not presets or min(presets) < 0:
            return None
        return (1 if min(presets) > 1 else 0), LARGEST_COUNT * max(1, *presets)

    def _in_range(self, value: Any) -> Any:
        if self.range is not None:
            least, most = self.range
            for number in _whole_numbers(value):
                if not least <= number <= most:
                    raise InvalidInput(f"parameter {self.name} must lie in {least}..{most}, not {described(number)}")
        return value


@dataclass(frozen=True, slots=True)
class Lab:
    """A registered experiment."""

    name: str
    room: str
    title: str
    covers: tuple[str, ...]
    errata: tuple[str, ...]
    parameters: Mapping[str, Parameter]
    function: Callable[..., object]

    @property
    def listed(self) -> ListedLab:
        """What a list of labs says of it."""
        module = self.function.__module__
        return ListedLab(self.name, self.room, self.title, self.covers, self.errata, module)

    @property
    def description(self) -> str:
        """The lab's docstring, without the parameters' meanings."""
        return _read_docstring(self.function)[0]

    @property
    def place(self) -> str | Path | None:
        """What to import for it to be known: a user's module or file; None if it ships or has none.

        The script being run and modules made of a file have names that mean nothing elsewhere.
        """
        module = self.function.__module__
        if module.startswith(f"{PACKAGE}."):
            return None
        if module != "__main__" and not module.startswith(FILE_MODULE):
            return module
        file = getattr(sys.modules.get(module), "__file__", None)
        return Path(file).resolve() if file else None

    @property
    def address(self) -> str | None:
        """What `torchtheory lab run` takes to find it; None for a lab of a notebook."""
        name = shlex.quote(self.name)
        if self.function.__module__.startswith(f"{PACKAGE}."):
            return name
        if self.place is None:
            return None
        module = self.place.name if isinstance(self.place, Path) else self.place
        return f"{name} --module {shlex.quote(module)}"

    def configure(self, preset: Preset, settings: Mapping[str, Any]) -> dict[str, Any]:
        """All parameters: the preset's values, then `settings` (text is parsed)."""
        if preset not in PRESETS:
            raise InvalidInput(f"preset must be quick or full, not {described(preset)}")
        if not isinstance(settings, Mapping):
            raise InvalidType(f"settings must be a dictionary of parameters, not {described(settings)}")
        values = {p.name: getattr(p, preset) for p in self.parameters.values()}
        for key, value in settings.items():
            if key not in self.parameters:
                raise UnknownName(f"parameter of lab {self.name}", key, self.parameters)
            parameter = self.parameters[key]
            text = isinstance(value, str)
            values[key] = parameter.parse(value) if text else parameter.check(value)
        return values


_LABS: dict[str, Lab] = {}


def lab(
    name: str,
    *,
    room: str,
    covers: Sequence[str],
    title: str,
    errata: Sequence[str] = (),
    full: Mapping[str, Any] | None = None,
) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Register an experiment.

    Args:
        name: lower-case words and hyphens; what `torchtheory lab run` takes.
        room: the room it belongs to.
        covers: catalogue ids it exercises. A run fails unless each appears in one of its claims.
        title: one line for people.
        errata: keys of the source's errors it refutes. A run fails unless it refutes each.
        full: parameter values of the `full` preset where they differ from the signature's.
    """
    check_name(name, "lab")
    one_of(room, "room", catalogue.ROOMS)
    if not isinstance(title, str) or not title.strip():
        raise InvalidInput(f"lab {name}: title must be a line for people, not {described(title)}")
    if isinstance(covers, str) or not isinstance(covers, Sequence) or not covers:
        raise InvalidInput(f"lab {name}: covers must list catalogue ids such as ['N-08'], not {described(covers)}")
    ids = tuple(catalogue.entry(i).id for i in covers)

    def register(function: Callable[..., object]) -> Callable[..., object]:
        as_function(function, f"lab {name}")
        if _is_taken(name, function):
            raise InvalidInput(f"two labs are named {name!r}")
        parameters = _parameters(function, dict(full or {}), name)
        _LABS[name] = Lab(name, room, title, ids, tuple(errata), parameters, function)
        return function

    return register


def listed_labs() -> Mapping[str, ListedLab]:
    """Every lab that ships with torchtheory and every one registered so far, by name.

    This imports no lab: it says what there is to run, and `find_lab` gets it. The labs are in the
    order of their rooms' names, then of their own.

    >>> "N-08" in listed_labs()["perceptron-novikoff"].covers
    True
    """
    known = {**_shipped(), **{name: found.listed for name, found in _LABS.items()}}
    return dict(sorted(known.items(), key=lambda item: (item[1].room, item[0])))


def labs() -> Mapping[str, Lab]:
    """The labs themselves, by name: imports all of them, which takes much longer than a list."""
    for module in lab_modules():
        importlib.import_module(module)
    return dict(sorted(_LABS.items(), key=lambda item: (item[1].room, item[0])))


def take_up(place: str | Path) -> None:
    """Import a user's module, so that the labs it registers are known by name.

    Args:
        place: a Python file, or the name of a module; the current directory is searched first, as
            Python does for a script.
    """
    try:
        if isinstance(place, Path) or place.endswith(".py"):
            _import_file(Path(place))
            return
        if (here := str(Path.cwd())) not in sys.path:
            sys.path.insert(0, here)
        importlib.import_module(place)
    except TorchTheoryError:
        raise
    except (Exception, SystemExit) as error:  # a script may end itself when it is imported
        raise FileProblem(f"cannot import {place}: {type(error).__name__}: {one_line(str(error))[:300]}") from error


def _import_file(path: Path) -> None:
    """Run a file as a module of its own, once."""
    name = f"{FILE_MODULE}{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return
    if not path.is_file():
        raise FileProblem(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def find_lab(name: str) -> Lab:
    """The lab of that name, or an error that names the closest ones; imports that lab only."""
    if not isinstance(name, str):
        raise InvalidType(f"a lab is found by its name, not by {described(name)}")
    if name not in _LABS and name in _shipped():
        importlib.import_module(_shipped()[name].module)
    if name not in _LABS:
        raise UnknownName("lab", name, listed_labs())
    return _LABS[name]


@cache
def _shipped() -> Mapping[str, ListedLab]:
    """What the package contains, as its files say it."""
    found: dict[str, ListedLab] = {}
    for module, text in lab_sources():
        listed = read_decorators(module, text) if text is not None else None
        if listed is None:  # only the module itself can tell
            importlib.import_module(module)
            listed = [lab.listed for lab in _LABS.values() if lab.function.__module__ == module]
        for one in listed:
            if one.name in found:
                raise InvalidInput(f"two labs are named {one.name!r}")
            found[one.name] = one
    return found


def _is_taken(name: str, function: Callable[..., object]) -> bool:
    """Whether another lab has that name, one that ships and is not imported yet included."""
    if name in _LABS:
        return not same_function(_LABS[name].function, function)
    # shipped labs do not ask: the list of them is made from their files, and a clash is seen there
    return not function.__module__.startswith(f"{PACKAGE}.") and name in _shipped()


def _parameters(function: Callable[..., object], full: dict[str, Any], name: str) -> dict[str, Parameter]:
    first, *rest = inspect.signature(function).parameters.values() or (None,)
    if first is None:
        raise InvalidInput(f"lab {name}: its function takes the run as its first argument")
    annotated = {p.name: p.annotation for p in rest if p.annotation is not p.empty}
    hints = typing.get_type_hints(
        types.SimpleNamespace(__annotations__=annotated), inspect.unwrap(function).__globals__
    )
    unknown = set(full) - {p.name for p in rest}
    if unknown:
        raise InvalidInput(f"lab {name}: full sets {sorted(unknown)}, which are no parameters")
    description, meanings = _read_docstring(function)
    found = {}
    for p in rest:
        if p.default is inspect.Parameter.empty or p.name not in hints:
            raise InvalidInput(f"lab {name}: parameter {p.name} needs a type and a default")
        if not _can_parse(hints[p.name]):
            raise InvalidInput(
                f"lab {name}: parameter {p.name} cannot be of type {hints[p.name]}; use int, "
                "float, bool, str, Literal, or tuples, lists and unions of them"
            )
        meaning = meanings.get(p.name) or _sentence_about(p.name, description)
        found[p.name] = Parameter(p.name, hints[p.name], p.default, full.get(p.name, p.default), meaning)
    return found


def _read_docstring(function: Callable[..., object]) -> tuple[str, dict[str, str]]:
    """A docstring without its section `Args`, and what that section says of each parameter."""
    text = inspect.getdoc(function) or ""
    section = re.search(r"(?m)^Args:[ \t]*\n((?:[ \t]+.*(?:\n|\Z)|[ \t]*\n)*)", text)
    if section is None:
        return text, {}
    lines = inspect.cleandoc("\n" + section[1])
    items = re.findall(r"(?m)^(\w+):[ \t]*(.*(?:\n[ \t]+.*)*)", lines)
    rest = f"{text[: section.start()]}{text[section.end() :]}".strip()
    return rest, {name: " ".join(words.split()) for name, words in items}


def _sentence_about(name: str, description: str) -> str:
    """The first sentence of a description that names a parameter in backticks; empty if none does.

    >>> _sentence_about("gap", "Points are drawn. A plane separates them by `gap`: see Fig. 1. Done.")
    'A plane separates them by `gap`: see Fig. 1.'
    """
    for paragraph in re.split(r"\n\s*\n", description):
        for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z])", " ".join(paragraph.split())):
            if f"`{name}`" in sentence:
                return sentence
    return ""


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


def _whole_numbers(value: Any) -> list[int]:
    """The counts in a parameter's value: it itself, or the items of a list."""
    items = value if isinstance(value, tuple | list) else (value,)
    return [v for v in items if isinstance(v, int) and not isinstance(v, bool)]


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise ValueError(number)
    return number


def _can_parse(wanted: Any) -> bool:
    if get_origin(wanted) is Literal or wanted in (int, float, bool, str):
        return True
    arguments = [a for a in get_args(wanted) if a is not type(None) and a is not Ellipsis]
    known = (types.UnionType, typing.Union, tuple, list)
    return get_origin(wanted) in known and all(_can_parse(a) for a in arguments)


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
