"""Imports go one way, and importing the package costs little."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import torchtheory
from torchtheory.core.catalogue import ROOMS

PACKAGE = Path(torchtheory.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
#: What may import what: a part may use those on its line, and itself.
ALLOWED = {
    "core": {"core", "catalogue"},
    "catalogue": set[str](),
    "data": {"core"},
    "report": {"core", "audit", "labs", "data", *ROOMS},
    "labs": {"core", "data", *ROOMS},
    "audit": {"core", "data", *ROOMS},
    **{room: {"core", "data", *ROOMS} for room in ROOMS},
}
#: The one exception: results know how to show themselves, and load the renderer when asked to.
LAZY = {(f"core/{name}.py", "report") for name in ("run", "audit", "comparison")}


def imports(path: Path) -> set[tuple[str, bool]]:
    """Modules a file imports, and whether at the top rather than inside a function."""
    tree = ast.parse(path.read_text("utf-8"))
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    found = set()
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [str(node.module)]
            if node.module == "torchtheory":
                names = [f"torchtheory.{alias.name}" for alias in node.names]
        found |= {(name, id(node) not in inside) for name in names}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_imports_go_one_way(path: Path) -> None:
    place = path.relative_to(PACKAGE)
    part = place.parts[0]
    if part in ("cli.py", "__init__.py"):
        return
    for name, at_top in imports(path):
        if name == "torchtheory.__version__":
            continue
        if name.startswith("torchtheory."):
            other = name.split(".")[1]
            if (place.as_posix(), other) in LAZY and not at_top:
                continue
            assert other == part or other in ALLOWED[part], f"{place} imports {name}"
        if part not in ("report", "labs", "audit") and place.as_posix() != "core/figure.py":
            assert name.split(".")[0] != "matplotlib", f"{place} imports {name}"


def test_importing_the_package_is_light() -> None:
    heavy = ["matplotlib", "sklearn", "scipy", "rich", "typer", "networkx", "torch"]
    code = f"import sys, torchtheory; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_loads() -> None:
    for name in torchtheory.__all__:
        assert getattr(torchtheory, name) is not None
    assert set(torchtheory.__all__) <= set(dir(torchtheory))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        torchtheory.nonsense  # noqa: B018
