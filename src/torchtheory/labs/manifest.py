"""What labs ship with torchtheory, read from their decorators without importing them.

The labs are text here, as the catalogue is, so that listing them takes hundredths of a second.
"""

from __future__ import annotations

import ast
import os
import pkgutil
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.abc import InspectLoader, PathEntryFinder
from typing import Any

#: By name: asking for the package itself would mean all that its front may load.
PACKAGE = "torchtheory.labs"

# The decorator of a function at the left margin, and nothing of the function's body: parsing whole
# files takes a second for each two hundred labs, parsing their decorators a few hundredths.
_DECORATOR = re.compile(r"^@lab\(.*?^def \w+", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class ListedLab:
    """What can be said of a lab before its module is imported.

    Attributes:
        name: what `torchtheory lab run` takes.
        room: the room it belongs to.
        title: one line for people.
        covers: catalogue ids it exercises.
        errata: keys of the source's errors it refutes.
        module: the module that defines it.
    """

    name: str
    room: str
    title: str
    covers: tuple[str, ...]
    errata: tuple[str, ...]
    module: str


def lab_modules() -> list[str]:
    """The modules that may define a lab: all of the package but its engine and this one."""
    return [name for name, _ in _modules()]


def _modules(path: Iterable[str] | None = None, package: str = PACKAGE) -> Iterator[tuple[str, Any]]:
    path = sys.modules[PACKAGE].__path__ if path is None else path
    for found in pkgutil.iter_modules(path, package + "."):
        if found.name in (f"{PACKAGE}.engine", __name__):
            continue
        if found.ispkg:
            inside = [os.path.join(place, found.name.rpartition(".")[2]) for place in path]
            yield from _modules(inside, found.name)
        else:
            yield found.name, found.module_finder


def lab_sources() -> Iterator[tuple[str, str | None]]:
    """Each lab module with its text, or None where only compiled code is installed."""
    for name, finder in _modules():
        assert isinstance(finder, PathEntryFinder)
        spec = finder.find_spec(name)
        loader = spec.loader if spec is not None else None
        yield name, loader.get_source(name) if isinstance(loader, InspectLoader) else None


def read_decorators(module: str, text: str) -> list[ListedLab] | None:
    """The labs of a module's text, or None if only running it can tell.

    >>> text = '@lab("a-name", room="nets", covers=["N-08"], title="A lab")\\ndef f(run): ...'
    >>> read_decorators("m", text)[0].covers
    ('N-08',)
    >>> read_decorators("m", text.replace('"A lab"', "TITLE")) is None
    True
    """
    try:
        return [_read(module, found[0]) for found in _DECORATOR.finditer(text)]
    except (ValueError, SyntaxError, KeyError, TypeError):
        return None


def _read(module: str, definition: str) -> ListedLab:
    """The decorator's arguments, or an error if one of them is not a literal."""
    function = ast.parse(definition + "(): ...").body[0]
    assert isinstance(function, ast.FunctionDef)
    decorator = function.decorator_list[0]
    assert isinstance(decorator, ast.Call)
    (name,) = map(ast.literal_eval, decorator.args)
    # presets and ranges may be computed: nothing of them is listed
    listed = ("room", "title", "covers", "errata")
    given = {k.arg: ast.literal_eval(k.value) for k in decorator.keywords if k.arg in listed}
    covers, errata = tuple(given["covers"]), tuple(given.get("errata", ()))
    return ListedLab(name, given["room"], given["title"], covers, errata, module)


@cache
def labs_by_id() -> dict[str, tuple[str, ...]]:
    """Names of the shipped labs that exercise each catalogue id.

    >>> "perceptron-novikoff" in labs_by_id()["N-08"]
    True
    """
    found: dict[str, tuple[str, ...]] = {}
    for module, text in lab_sources():
        for lab in read_decorators(module, text) or () if text is not None else ():
            for id in lab.covers:
                found[id] = (*found.get(id, ()), lab.name)
    return found
