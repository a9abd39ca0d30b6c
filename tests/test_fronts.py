"""The fronts of packages: few names in groups, all of them within reach by attribute."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

import torchtheory as tt

PACKAGE = Path(tt.__file__).parent
STUBS = sorted(PACKAGE.glob("*/**/__init__.pyi"))

#: Names that users call; more would not be read.
MOST = 30


def path_of(stub: Path) -> str:
    return ".".join(stub.parent.relative_to(PACKAGE.parent).parts)


@pytest.mark.parametrize("stub", STUBS, ids=path_of)
def test_a_front_is_short_and_all_of_it_can_be_reached(stub: Path) -> None:
    package = importlib.import_module(path_of(stub))
    text = stub.read_text("utf-8")
    imports = [node for node in ast.parse(text).body if isinstance(node, ast.ImportFrom)]
    shown = {alias.name for node in imports if node.module for alias in node.names}
    below = {alias.name for node in imports if not node.module for alias in node.names}
    assert 0 < len(shown) <= MOST
    assert shown | below == set(package.__all__) <= set(dir(package))
    for name in package.__all__:
        assert getattr(package, name) is not None
    # every name stands in a group with a heading
    for group in re.split(r"\n\n+", text.strip()):
        assert re.match(r"(?:# .+\n)+from \.", group), group
    # packages that have a front are named in the front above them
    inner = {child.parent.name for child in STUBS if child.parent.parent == stub.parent}
    assert inner <= below


def test_every_package_of_the_library_has_a_front() -> None:
    packages = {path.parent for path in PACKAGE.glob("*/__init__.py")}
    without = {path.name for path in packages if not (path / "__init__.pyi").exists()}
    # data, commands, and a package that is called like a function and lists its names itself
    assert without == {"catalogue", "cli", "audit"}
    assert packages - {PACKAGE / "catalogue", PACKAGE / "cli"} == {
        PACKAGE / name for name in tt.__all__ if (PACKAGE / name).is_dir()
    }


def test_names_at_the_end_of_a_dot() -> None:
    assert tt.graphs.GCN is importlib.import_module("torchtheory.graphs.convolutions").GCN
    assert callable(tt.linalg.top_eigenpairs)
    assert callable(tt.core.claim)
    assert callable(tt.generalization.pac_bayes.risk_certificate)
    assert callable(tt.robustness.attacks.PGD)
    assert isinstance(tt.models.Problem, type)
    with pytest.raises(AttributeError, match="graphs"):
        tt.graphs.nonsense  # noqa: B018
