"""The reference: a page for each package that has a front, and an index of every documented name.

The front of a package is its stub `__init__.pyi`, where comments at the left margin are headings of
the imports below them and `from . import topic` names a package below. Without a stub it is what
`__init__.py` imports and lists in `__all__`, grouped by module. A name is documented in full on the
page of the innermost package that shows it; every other documented name stands with its line under
its module, and all of them stand in the index.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from torchtheory.core.catalogue import ROOMS

PACKAGE = "torchtheory"

#: The packages in the order of the import graph, with what the page of some is called.
PACKAGES = {
    "core": "core: claims, statements, intervals",
    "linalg": "linalg: matrix-free linear algebra",
    "models": "models: your network as a function",
    "tracing": "tracing: a network as a list of operations",
    "report": "report: results as pages and text",
    "data": "data: data sets",
    **{room: room for room in ROOMS},
    "labs": "labs: experiments with a verdict",
    "audit": "audit: what theory says about your network",
}

INDEX = "api/index.md"


@dataclass(frozen=True, slots=True)
class Group:
    """Names under one heading, as full paths."""

    heading: str
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Module:
    """A module: what it says of itself, and the first words of each name that it documents."""

    path: str
    line: str
    names: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Library:
    """The pages of the reference, and where it has what.

    Attributes:
        pages: title and Markdown by address, in the order of the navigation.
        places: a page, or an anchor on one, by the path of a name, a module or a package; a name
            of a front has the path of its package as well.
        lines: the first words of each documented name, by its full path.
        topics: the first words of each package and module.
        shown: names that stand in a front, by full path: the innermost package that shows them.
    """

    pages: dict[str, tuple[str, str]] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    lines: dict[str, str] = field(default_factory=dict)
    topics: dict[str, str] = field(default_factory=dict)
    shown: dict[str, str] = field(default_factory=dict)


def library(source: Path) -> Library:
    """The whole reference of the packages below a source directory."""
    made = Library()
    addresses = _addresses(source)
    modules = list(documented(source))
    fronts = {path: front(_directory(source, path), path) for path in addresses}
    for module in modules:
        page = addresses[_innermost(module.path, addresses)]
        made.topics[module.path] = module.line
        made.places[module.path] = f"{page}#{module.path}"
        for name, line in module.names.items():
            path = f"{module.path}.{name}"
            made.lines[path], made.places[path] = line, f"{page}#{path}"
    for package in {module.path.rpartition(".")[0] for module in modules} - {PACKAGE}:
        made.places[package] = addresses[_innermost(package, addresses)]
    for package, address in addresses.items():
        made.places[package] = address
        made.topics[package] = _first_words(introduction(_directory(source, package)))
    for package in sorted(fronts, key=lambda path: path.count(".")):  # the innermost come last
        for path in (path for group in fronts[package] for path in group.paths):
            if path not in made.topics:
                made.shown[path] = package
                made.places[path] = f"{addresses[package]}#{path}"
    for package, groups in fronts.items():
        for path in (path for group in groups for path in group.paths):
            made.places[f"{package}.{_name(path)}"] = made.places[path]
    made.pages[INDEX] = ("Every function", index_page(made))
    for package, address in addresses.items():
        inside = [m for m in modules if _innermost(m.path, addresses) == package]
        said = introduction(_directory(source, package))
        text = api_page(package, said, fronts[package], inside, made)
        made.pages[address] = (_name(package), text)
    return made


def navigation(pages: Mapping[str, tuple[str, str]]) -> list[dict[str, object]]:
    """The pages as mkdocs takes them, topics below their rooms."""
    found: list[dict[str, object]] = []
    for address, (title, _) in pages.items():
        is_room = address.endswith("/index.md") and address != INDEX
        if address.count("/") == 1:
            found.append({title: address})
        elif is_room:
            topics: list[object] = [address]
            found.append({title: topics})
        else:
            topics.append({title: address})
    return found


def front(directory: Path, package: str | None = None) -> list[Group]:
    """The groups of a package's front; topics are paths of packages."""
    package = package or f"{PACKAGE}.{directory.name}"
    stub, module = directory / "__init__.pyi", directory / "__init__.py"
    found: dict[str, list[str]] = {}
    if stub.exists():
        text = stub.read_text("utf-8")
        headings = _headings(text)
        for line, _, path in _imports(text, package):
            heading = next((words for at, words in reversed(headings) if at < line), "")
            found.setdefault(heading, []).append(path)
    else:
        text = module.read_text("utf-8")
        listed = _listed(text)
        for _, name, path in _imports(text, package):
            if name in listed:
                place = path.rpartition(".")[0].removeprefix(f"{package}.")
                found.setdefault(_words(place), []).append(path)
    return [Group(heading, tuple(paths)) for heading, paths in found.items()]


def documented(source: Path) -> Iterator[Module]:
    """Every module of the library, with its functions and classes that have a docstring.

    Experiments have pages of their own, and commands are not called from Python.
    """
    for name in PACKAGES:
        directory = source / PACKAGE / name
        for file in sorted(directory.rglob("*.py")):
            parts = file.relative_to(source).with_suffix("").parts
            experiment = name == "labs" and parts[2] in ROOMS
            if experiment or any(part.startswith("_") for part in parts):
                continue
            tree = ast.parse(file.read_text("utf-8"))
            names = {
                node.name: _first_words(said)
                for node in tree.body
                if isinstance(node, ast.FunctionDef | ast.ClassDef)
                and not node.name.startswith("_")
                and (said := ast.get_docstring(node))
            }
            yield Module(".".join(parts), _first_words(ast.get_docstring(tree) or ""), names)


def introduction(directory: Path) -> str:
    """The docstring of a package."""
    for name in ("__init__.py", "__init__.pyi"):
        path = directory / name
        if path.exists() and (found := ast.get_docstring(ast.parse(path.read_text("utf-8")))):
            return found
    return ""


def api_page(
    package: str, said: str, groups: Sequence[Group], modules: Sequence[Module], made: Library
) -> str:
    """The Markdown of a package's page: its front in full, then its modules line by line."""
    here = made.places[package]
    name = package.removeprefix(f"{PACKAGE}.")
    lines = [f"# {PACKAGES.get(name, name)}", "", said, ""]
    if groups:
        lines += [f"Import what stands here from `{package}`.", ""]
    for group in groups:
        if group.heading:
            lines += [f"## {group.heading}", ""]
        for path in group.paths:
            if made.shown.get(path) == package:
                lines += ["", f"::: {path}", ""]
            else:
                lines += [_row(path, here, made)]
        lines += [""]
    if modules:
        lines += ["## Modules", ""]
    for module in modules:
        address = module.path.removeprefix(f"{PACKAGE}.")
        lines += [f"### `{address}` {{#{module.path}}}", "", module.line, ""]
        lines += [_row(f"{module.path}.{n}", here, made) for n in module.names]
        lines += [""]
    return "\n".join(lines)


def index_page(made: Library) -> str:
    """Every documented name in the order of the alphabet, with its module and its first words."""
    lines = [
        "# Every function",
        "",
        f"All {len(made.lines):,} documented functions and classes. What a package shows first, "
        "with everything said about it, stands on the page of the package.",
        "",
    ]
    letter = ""
    for path in sorted(made.lines, key=lambda path: (_name(path).lower(), path)):
        if _name(path)[0].upper() != letter:
            letter = _name(path)[0].upper()
            lines += ["", f"## {letter}", ""]
        module = path.rpartition(".")[0].removeprefix(f"{PACKAGE}.")
        link = f"[`{_name(path)}`]({_relative(made.places[path], INDEX)})"
        lines += [f"- {link} in `{module}`: {made.lines[path]}"]
    return "\n".join(lines)


def linked(markdown: str, made: Library, page: str) -> str:
    """A page written by hand, with links to the reference where it names the library in code.

    A name is meant by its full path, by an end of it that is the end of no other path
    (`depth.narrow`, `measure_equivariance`), or as a name of a front (`graphs.GCN`). A single word
    is taken for a name only if it looks like one; what stands in a front is meant first.
    """

    def link(found: re.Match[str]) -> str:
        place = find_place(found["name"], made)
        return found[0] if place is None else f"[{found[0]}]({_relative(place, page)})"

    parts = re.split(r"(?ms)(^```.*?^```$)", markdown)  # code stays as it is
    for number in range(0, len(parts), 2):
        parts[number] = re.sub(
            r"(?<![`\[])`(?P<name>[A-Za-z_][\w.]*)(?:\([^`\n]*\))?`(?!`)", link, parts[number]
        )
    return "".join(parts)


def find_place(name: str, made: Library) -> str | None:
    """Where the reference has what a text calls by this name; None where that is not clear."""
    given = re.sub(r"^tt\.", f"{PACKAGE}.", name)
    if given in made.places:
        return made.places[given]
    if (full := f"{PACKAGE}.{name}") in made.places and "." in name:
        return made.places[full]
    paths = _by_end(tuple(made.places)).get(name, ())
    in_fronts = {made.places[path] for path in paths if path in made.shown}
    if "." in name or "_" in name or re.search(r"[a-z][A-Z]|[A-Z]{2}", name):
        meant = {made.places[path] for path in paths}
        if len(in_fronts or meant) == 1:
            return (in_fronts or meant).pop()
        kind, _, method = name.rpartition(".")  # perhaps a method of a class
        return find_place(kind, made) if kind[:1].isupper() and method else None
    return in_fronts.pop() if name[:1].isupper() and len(in_fronts) == 1 else None


@cache
def _by_end(paths: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """The paths that end with each sequence of names."""
    found: dict[str, tuple[str, ...]] = {}
    for path in paths:
        parts = path.split(".")
        for start in range(1, len(parts)):
            end = ".".join(parts[start:])
            found[end] = (*found.get(end, ()), path)
    return found


def _addresses(source: Path) -> dict[str, str]:
    """The page of each package that has one, by its full path, topics after their rooms."""
    found = {}
    for name in PACKAGES:
        directory = source / PACKAGE / name
        if not (directory / "__init__.py").exists():
            continue
        below = sorted(stub.parent for stub in directory.rglob("*/__init__.pyi"))
        found[f"{PACKAGE}.{name}"] = f"api/{name}/index.md" if below else f"api/{name}.md"
        for topic in below:
            parts = topic.relative_to(source).parts
            found[".".join(parts)] = f"api/{name}/{'.'.join(parts[2:])}.md"
    return found


def _directory(source: Path, package: str) -> Path:
    return source.joinpath(*package.split("."))


def _innermost(module: str, packages: Mapping[str, str]) -> str:
    """The innermost package with a page that a module is in."""
    while module not in packages:
        module = module.rpartition(".")[0]
    return module


def _row(path: str, here: str, made: Library) -> str:
    """A name in a line: with a link to its place, or as that place."""
    line = made.lines.get(path) or made.topics.get(path, "")
    place = made.places[path]
    if path in made.shown or path in made.topics or not place.startswith(f"{here}#"):
        return f"- [`{_name(path)}`]({_relative(place, here)}): {line}"
    return f'- <span id="{path}"></span>`{_name(path)}`: {line}'


def _relative(place: str, page: str) -> str:
    """A place as a page links to it."""
    address, hash, anchor = place.partition("#")
    start = posixpath.dirname(page)
    return f"{posixpath.relpath(address, start or '.')}{hash}{anchor}"


def _name(path: str) -> str:
    return path.rpartition(".")[2]


def _first_words(docstring: str) -> str:
    """The first paragraph of a docstring in a line, without a display formula in it."""
    words = " ".join(docstring.partition("\n\n")[0].split())
    return words.partition(" $$")[0].rstrip(":")


def _headings(text: str) -> list[tuple[int, str]]:
    """Comments at the left margin with the line they end at; several lines are one comment."""
    found: list[tuple[int, str]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not (comment := re.match(r"#\s*(.+)", line)):
            continue
        words = comment[1].strip()
        if found and found[-1][0] == number - 1:
            found[-1] = (number, f"{found[-1][1]} {words}")
        else:
            found.append((number, words))
    return [(at, words[:1].upper() + words[1:]) for at, words in found]


def _imports(text: str, package: str) -> Iterator[tuple[int, str, str]]:
    """Line, name and full path of whatever the package imports from inside itself."""
    for node in ast.parse(text).body:
        if not isinstance(node, ast.ImportFrom):
            continue
        module = node.module or ""
        if node.level == 1:
            module = f"{package}.{module}".rstrip(".")
        if module == package or module.startswith(f"{package}."):
            for alias in node.names:
                yield node.lineno, alias.asname or alias.name, f"{module}.{alias.name}"


def _listed(text: str) -> list[str]:
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    return []


def _words(module: str) -> str:
    """The path of a module as a heading: `landscape.low_loss_paths` is "Low loss paths"."""
    words = module.rpartition(".")[2].replace("_", " ")
    return words[:1].upper() + words[1:]
