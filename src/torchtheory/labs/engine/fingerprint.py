"""What a lab's numbers follow from: the modules of torchtheory that it imports, and theirs.

The import statements are read from the source, so that nothing is imported to find out and a
module that some other lab has loaded does not count. Where a statement leaves open what is used
(`import torchtheory as tt`, a package whose names load lazily), all that it may mean is taken: a
run is made again for nothing now and then, but never taken up by code that gives other numbers.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torchtheory

ROOT = Path(torchtheory.__file__).resolve().parent
_PACKAGE = torchtheory.__name__

# How results are shown changes no number. The page is part of the kept run, as it was made then:
# `--force` makes it anew. The catalogue and the templates are no modules, and stay out as well.
_SHOWN_ONLY = f"{_PACKAGE}.report"

# Parsing every file takes seconds, so only the statements are cut out and parsed; a file in which
# one is cut wrongly (a bracket in a comment, prose that reads like an import) is parsed whole.
_STATEMENT = re.compile(
    rf"^[ \t]*(?:from[ \t]+(?:{_PACKAGE}|\.)[.\w]*[ \t]+import[ \t]+(?:\([^)]*\)|[^\n(]+)"
    rf"|import[ \t]+{_PACKAGE}[^\n]*)",
    re.MULTILINE,
)
_FOR_TYPES = re.compile(r"^if (?:typing\.)?TYPE_CHECKING:\n(?:[ \t]+.*\n|[ \t]*\n)+", re.MULTILINE)


class _Import(NamedTuple):
    """`from module import name`, or `import module` where there is no name."""

    module: str
    name: str | None


@dataclass(frozen=True, slots=True)
class _Source:
    """A module as its file has it.

    Attributes:
        digest: of the file's bytes.
        imports: what it imports when it or one of its functions runs.
        lazy: names that a package loads on first use, with the modules they come from; None for
            a package or module that has all its names at once.
        text: the file.
    """

    digest: str
    imports: tuple[_Import, ...]
    lazy: dict[str, str] | None
    text: str


@cache
def module_fingerprint(module: str, root: Path = ROOT) -> str:
    """A digest of the module's source and of all that it imports from torchtheory.

    Files are read once in a process: what was edited since then is not what runs.

    >>> module_fingerprint("torchtheory.labs.neurons.perceptron") == package_fingerprint()
    False
    """
    return _digest(import_closure([module], root), root)


def text_fingerprint(text: str, root: Path = ROOT) -> str:
    """The same for a file outside of the package, such as a user's lab.

    >>> text_fingerprint("from torchtheory.core.errors import InvalidInput") == text_fingerprint("")
    False
    """
    used = _meant_by(_imports(text, "", is_package=False), root)
    return _digest(import_closure(used, root), root, text.encode())


@cache
def package_fingerprint(root: Path = ROOT) -> str:
    """A digest of the whole package, for code of which nobody knows what it imports."""
    return _digest(import_closure(_below(_PACKAGE, root), root), root)


def import_closure(modules: Iterable[str], root: Path = ROOT) -> set[str]:
    """The modules of torchtheory that run when these are imported, themselves included.

    >>> "torchtheory.core.errors" in import_closure(["torchtheory.core.naming"])
    True
    """
    found: set[str] = set()
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        if module in found or f"{module}.".startswith(f"{_SHOWN_ONLY}."):
            continue
        source = _source(module, root)
        if source is None:
            continue
        found.add(module)
        waiting += _meant_by(source.imports, root)
        if "." in module:  # a package's __init__ runs before its modules
            waiting.append(module.rpartition(".")[0])
    return found


def _meant_by(imports: Iterable[_Import], root: Path) -> list[str]:
    """The modules that import statements bring in."""
    found = []
    for module, name in imports:
        inside = f"{module}.{name}"
        if name is None or name == "*":
            found += _as_object(module, root)
        elif _source(inside, root) is not None:
            found += _as_object(inside, root)
        else:
            found.append(module)
            package = _source(module, root)
            if package is not None and package.lazy is not None:
                found += _lazily(module, name, package, root)
    return found


def _as_object(module: str, root: Path) -> list[str]:
    """A module, with all that its attributes may load if it is a package with lazy names."""
    source = _source(module, root)
    lazy = source is not None and source.lazy is not None
    return _below(module, root) if lazy else [module]


def _lazily(package: str, name: str, source: _Source, root: Path) -> list[str]:
    assert source.lazy is not None
    if name in source.lazy:
        return [source.lazy[name]]
    if re.search(rf"^(?:def |class )?{re.escape(name)}\b", source.text, re.MULTILINE):
        return []  # the package defines it itself
    return _below(package, root)


def _below(module: str, root: Path) -> list[str]:
    """A module and, if it is a package, all that is inside."""
    directory = root.joinpath(*module.split(".")[1:])
    inside = (p.relative_to(directory).with_suffix("") for p in directory.rglob("*.py"))
    names = (".".join([module, *p.parts]).removesuffix(".__init__") for p in inside)
    return [module, *sorted(names)]


@cache
def _source(module: str, root: Path) -> _Source | None:
    if module.split(".")[0] != _PACKAGE:
        return None
    base = root.joinpath(*module.split(".")[1:])
    package, path = base / "__init__.py", base.parent / f"{base.name}.py"
    is_package = package.is_file()
    if not is_package and not path.is_file():
        return None
    content = (package if is_package else path).read_bytes()
    text = content.decode()
    imports = _imports(_FOR_TYPES.sub("", text), module, is_package=is_package)
    lazy = None
    stub = base / "__init__.pyi"
    if is_package and (stub.is_file() or "def __getattr__" in text):
        # what the type checker is told: a stub, or the block that only it reads
        told = stub.read_text("utf-8") if stub.is_file() else "".join(_FOR_TYPES.findall(text))
        shown = _imports(told, module, is_package=True)
        lazy = {i.name: i.module for i in shown if i.name is not None}
    return _Source(hashlib.sha256(content).hexdigest(), tuple(imports), lazy, text)


def _imports(text: str, module: str, *, is_package: bool) -> list[_Import]:
    """What a text imports from torchtheory, `module` being where relative names start."""
    try:
        cut = [s for m in _STATEMENT.finditer(text) for s in ast.parse(m[0].strip()).body]
    except SyntaxError:
        cut = list(_statements(ast.parse(text)))
    here = module.split(".") if is_package else module.split(".")[:-1]
    found = []
    for statement in cut:
        if isinstance(statement, ast.Import):
            found += [_Import(a.name, None) for a in statement.names]
        elif isinstance(statement, ast.ImportFrom):
            origin = statement.module or ""
            if statement.level:
                above = here[: len(here) - statement.level + 1]
                origin = ".".join([*above, *filter(None, [origin])])
            found += [_Import(origin, a.name) for a in statement.names]
    return [i for i in found if i.module.split(".")[0] == _PACKAGE]


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    return (s for s in ast.walk(tree) if isinstance(s, ast.Import | ast.ImportFrom))


def _digest(modules: Iterable[str], root: Path, more: bytes = b"") -> str:
    digest = hashlib.sha256(torchtheory.__version__.encode())
    for module in sorted(modules):
        source = _source(module, root)
        assert source is not None
        digest.update(f"\n{module} {source.digest}".encode())
    digest.update(b"\n" + more)
    return digest.hexdigest()[:16]
