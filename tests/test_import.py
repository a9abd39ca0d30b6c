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

#: The house from the ground up. A part may import what stands below it; parts that share a floor
#: do not know each other, except for the rooms, of which each may import those before it.
FLOORS: list[list[str]] = [
    ["core", "catalogue"],
    ["linalg"],
    ["models"],
    ["tracing"],
    ["report", "data"],
    *([room] for room in ROOMS),
    ["labs", "audit"],
    ["cli"],
]
FLOOR = {part: height for height, parts in enumerate(FLOORS) for part in parts}


def imports(path: Path) -> set[str]:
    """Every module a file imports, at its top or inside a function."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [str(node.module)]
            if node.module == "torchtheory":
                names = [f"torchtheory.{alias.name}" for alias in node.names]
            found |= set(names)
    return found


def test_imports_go_one_way() -> None:
    wrong = []
    for path in FILES:
        place = path.relative_to(PACKAGE)
        part = place.parts[0]
        if part in ("__init__.py", "__main__.py"):
            continue
        for name in imports(path) - {"torchtheory.__version__"}:
            if name.startswith("torchtheory."):
                other = name.split(".")[1]
                if other != part and FLOOR[other] >= FLOOR[part]:
                    wrong.append(f"{place} imports {name}")
            drawing = part in ("report", "labs", "audit") or place.as_posix() == "core/figure.py"
            if not drawing and name.split(".")[0] == "matplotlib":
                wrong.append(f"{place} imports {name}")
    assert wrong == []


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
