"""Imports go one way, and importing the package costs little."""

from __future__ import annotations

import ast
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import networkx as nx
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
    ["labs"],
    ["audit"],
    ["cli"],
]
FLOOR = {part: height for height, parts in enumerate(FLOORS) for part in parts}


# Parsing every file takes seconds, cutting the statements out of them tenths of one.
STATEMENT = re.compile(
    r"^[ \t]*(?:from[ \t]+(?P<module>[\w.]+)[ \t]+import[ \t]+(?P<names>\([^)]*\)|[^\n#]+)"
    r"|import[ \t]+(?P<modules>[\w.]+(?:[ \t]+as[ \t]+\w+)?(?:,[^\n#]+)?))",
    re.MULTILINE,
)
FOR_TYPES = re.compile(r"^if TYPE_CHECKING:\n(?:[ \t]+.*\n|[ \t]*\n)+", re.MULTILINE)


def statements(text: str) -> Iterator[tuple[str, str | None]]:
    """What a text imports: `from module import name`, or a module and no name."""
    for found in STATEMENT.finditer(text):
        if found["module"]:
            listed = re.sub(r"#.*", "", found["names"]).strip("() \t\n").split(",")
            for name in filter(None, (n.split(" as ")[0].strip() for n in listed)):
                yield found["module"], name
        else:
            for module in found["modules"].split(","):
                yield module.split(" as ")[0].strip(), None


def imports(path: Path) -> set[str]:
    """Every module a file imports, at its top or inside a function."""
    found: set[str] = set()
    for module, name in statements(path.read_text("utf-8")):
        assert not module.startswith("."), f"{path}: relative import"
        found.add(f"{module}.{name}" if module == "torchtheory" and name else module)
    return found


def test_import_statements_are_read_as_python_reads_them() -> None:
    for path in random.Random(0).sample(FILES, 40):
        text = path.read_text("utf-8")
        read: set[tuple[str, str | None]] = set()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                read |= {(alias.name, None) for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                read |= {(str(node.module), alias.name) for alias in node.names}
        assert read <= set(statements(text)), path


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


def imported_files(path: Path) -> set[Path]:
    """The files of the package that a file imports when it runs, at its top or in a function."""
    found = set()
    for module, name in statements(FOR_TYPES.sub("", path.read_text("utf-8"))):
        if module.split(".")[0] == "torchtheory":
            place = PACKAGE.joinpath(*module.split(".")[1:])
            inner = place / (name or "")
            files = (inner.with_suffix(".py"), inner / "__init__.py", place.with_suffix(".py"))
            found.add(next((f for f in files if f.exists()), place / "__init__.py"))
    return found


def test_no_import_goes_round_in_a_circle() -> None:
    graph = nx.DiGraph((path, other) for path in FILES for other in imported_files(path))
    circles = [c for c in nx.strongly_connected_components(graph) if len(c) > 1]
    assert [sorted(path.relative_to(PACKAGE).as_posix() for path in c) for c in circles] == []


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
