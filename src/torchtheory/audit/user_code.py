"""The source files that a name such as `package.module:factory` stands for.

Import statements are read, nothing is imported: the module, and what it imports from wherever the
user's own code lies, in functions too. Installed packages count by what they are called, unless the
name itself is in one. What code finds at run time (a file it opens, a module whose name it puts
together) cannot be known.
"""

from __future__ import annotations

import ast
import importlib
import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec
from pathlib import Path

import torchtheory

#: More modules than any project that is audited has; a limit for a search among strangers' files.
_MOST = 5000


def source_files(name: str) -> list[Path]:
    """The files behind `package.module:attribute`, in a fixed order; none if there are none."""
    start = name.partition(":")[0]
    found: dict[str, Path | None] = {}
    waiting = [start]
    while waiting and len(found) < _MOST:
        module = waiting.pop()
        if not module or module in found:
            continue
        found[module] = None
        if "." in module:  # a package's __init__ runs before its modules
            waiting.append(module.rpartition(".")[0])
        spec = _spec(module)
        if spec is None or spec.origin is None or not Path(spec.origin).is_file():
            continue
        if module.split(".")[0] != start.split(".")[0] and _is_installed(spec.origin):
            continue
        found[module] = Path(spec.origin)
        here = module if spec.submodule_search_locations else module.rpartition(".")[0]
        waiting += _imports(Path(spec.origin), here)
    return [path for _, path in sorted(found.items()) if path is not None]


def _spec(module: str) -> ModuleSpec | None:
    """Where a module would come from; packages above it are looked up, not run."""
    spec, places = None, None
    parts = module.split(".")
    with _current_folder_first():
        for k in range(len(parts)):
            whole = ".".join(parts[: k + 1])
            for finder in sys.meta_path:
                spec = None
                with suppress(Exception):  # a finder of somebody's
                    spec = finder.find_spec(whole, places)
                if spec is not None:
                    break
            if spec is None:
                return None
            places = spec.submodule_search_locations
            if places is None and k + 1 < len(parts):
                return None
    return spec


@contextmanager
def _current_folder_first() -> Iterator[None]:
    """As `named_object` imports: from the current folder before anything else."""
    before = list(sys.path)
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = before


def _is_installed(origin: str) -> bool:
    path = os.path.realpath(origin)
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    roots = [*(sysconfig.get_paths()[k] for k in kinds), str(Path(torchtheory.__file__).parent)]
    known = {"site-packages", "dist-packages"} & set(Path(path).parts)
    return bool(known) or any(Path(path).is_relative_to(os.path.realpath(r)) for r in roots)


def _imports(file: Path, package: str) -> Iterator[str]:
    """Names of modules that a file may import; names that are none are found out later."""
    if file.suffix != ".py":
        return
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return  # its content counts all the same
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")
            start = ".".join(above[: len(above) - node.level + 1]) if node.level else ""
            origin = ".".join(filter(None, [start, node.module or ""]))
            yield origin
            yield from (f"{origin}.{alias.name}" for alias in node.names if alias.name != "*")
        elif isinstance(node, ast.Call) and node.args:
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            name = node.args[0]
            if called in ("import_module", "__import__") and isinstance(name, ast.Constant):
                yield str(name.value)
