"""Labs: experiments with a verdict, registered by name.

A lab is a function of a `Run` and typed keyword parameters:

```python
@lab("perceptron-novikoff", room="neurons", covers=["N-06", "N-07", "N-08"],
     title="The perceptron makes at most R²/γ² updates", full={"n": 2000}, least={"n": 20})
def perceptron_novikoff(run: Run, n: int = 200, margin: float = 0.1) -> None:
    '''What is claimed, what is done, what to look at.'''
```

The defaults of the signature are the `quick` preset (a few seconds); `full` lists what the
source's own sizes change; `least`, `most` and `items` say what the lab takes. The sections of the
docstring that teach are read by `torchtheory.core.teaching`.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import re
import shlex
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

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
from torchtheory.core.teaching import Teaching, cut_sections, read_teaching
from torchtheory.labs.engine.parameters import Limits, Parameter, can_parse
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
        """The lab's docstring, without the sections that teach and the parameters' meanings."""
        return _read_docstring(self.function).description

    @property
    def teaching(self) -> Teaching:
        """What the docstring says of theorem, symbols, idea, changes to try and exercises."""
        return _read_docstring(self.function).teaching

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
    least: Mapping[str, float] | None = None,
    most: Mapping[str, float] | None = None,
    items: Mapping[str, int] | None = None,
) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Register an experiment.

    Args:
        name: lower-case words and hyphens; what `torchtheory lab run` takes.
        room: the room it belongs to.
        covers: catalogue ids it exercises. A run fails unless each appears in one of its claims.
        title: one line for people.
        errata: keys of the source's errors it refutes. A run fails unless it refutes each.
        full: parameter values of the `full` preset where they differ from the signature's.
        least, most: the ends of a parameter's range, or of each item's of a list, themselves taken.
        items: the least number of items of a list.
    """
    check_name(name, "lab")
    one_of(room, "room", catalogue.ROOMS)
    if not isinstance(title, str) or not title.strip():
        raise InvalidInput(f"lab {name}: title must be a line for people, not {described(title)}")
    if isinstance(covers, str) or not isinstance(covers, Sequence) or not covers:
        raise InvalidInput(f"lab {name}: covers must list catalogue ids such as ['N-08'], not {described(covers)}")
    ids = tuple(catalogue.entry(i).id for i in covers)
    limits = Limits(dict(least or {}), dict(most or {}), dict(items or {}))

    def register(function: Callable[..., object]) -> Callable[..., object]:
        as_function(function, f"lab {name}")
        if _is_taken(name, function):
            raise InvalidInput(f"two labs are named {name!r}")
        try:
            parameters = _parameters(function, dict(full or {}), limits)
        except InvalidInput as error:
            raise InvalidInput(f"lab {name}: {error}") from None
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


def _parameters(function: Callable[..., object], full: dict[str, Any], limits: Limits) -> dict[str, Parameter]:
    first, *rest = inspect.signature(function).parameters.values() or (None,)
    if first is None:
        raise InvalidInput("its function takes the run as its first argument")
    annotated = {p.name: p.annotation for p in rest if p.annotation is not p.empty}
    hints = typing.get_type_hints(
        types.SimpleNamespace(__annotations__=annotated), inspect.unwrap(function).__globals__
    )
    given = {"full": full, "least": limits.least, "most": limits.most, "items": limits.items}
    for word, names in given.items():
        if unknown := set(names) - {p.name for p in rest}:
            raise InvalidInput(f"{word} sets {sorted(unknown)}, which are no parameters")
    text = _read_docstring(function)
    found = {}
    for p in rest:
        if p.default is inspect.Parameter.empty or p.name not in hints:
            raise InvalidInput(f"parameter {p.name} needs a type and a default")
        if not can_parse(hints[p.name]):
            raise InvalidInput(
                f"parameter {p.name} cannot be of type {hints[p.name]}; use int, "
                "float, bool, str, Literal, or tuples, lists and unions of them"
            )
        meaning = text.meanings.get(p.name) or _sentence_about(p.name, text.description)
        presets = p.default, full.get(p.name, p.default)
        found[p.name] = Parameter.of(p.name, hints[p.name], *presets, meaning, limits)
    return found


@dataclass(frozen=True, slots=True)
class _Docstring:
    """A docstring in parts: its abstract and details, what teaches, what each parameter means."""

    description: str
    teaching: Teaching
    meanings: Mapping[str, str]


@cache
def _read_docstring(function: Callable[..., object]) -> _Docstring:
    description, sections = cut_sections(inspect.getdoc(function) or "")
    items = re.findall(r"(?m)^(\w+):[ \t]*(.*(?:\n[ \t]+.*)*)", sections.get("Args", ""))
    meanings = {name: " ".join(words.split()) for name, words in items}
    return _Docstring(description, read_teaching(sections), meanings)


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
