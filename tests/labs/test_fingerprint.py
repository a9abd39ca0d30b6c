"""A kept run is stale exactly when something changed that the lab imports."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from torchtheory.labs.engine import store as store_module
from torchtheory.labs.engine.fingerprint import (
    ROOT,
    import_closure,
    module_fingerprint,
    package_fingerprint,
    text_fingerprint,
)
from torchtheory.labs.engine.registry import Lab, find_lab
from torchtheory.labs.engine.run import run_lab
from torchtheory.labs.engine.store import RunStore

LAB = "torchtheory.labs.nets.a_lab"
FILES = {
    "__init__.py": (
        "from typing import TYPE_CHECKING\n"
        "__version__ = '1'\n"
        "if TYPE_CHECKING:\n"
        "    from torchtheory.unused import nothing as nothing\n"
        "    from torchtheory.named import shown as shown\n\n"
        "def __getattr__(name): ...\n"
    ),
    "unused.py": "nothing = 0\n",
    "named.py": "shown = 0\n",
    "labs/__init__.py": "",
    "labs/nets/__init__.py": "",
    "labs/nets/a_lab.py": (
        '"""A lab."""\n'
        "from torchtheory import __version__\n"
        "from torchtheory.near import (\n    one,  # (the first)\n    two,\n)\n"
        "from torchtheory.report.page import page\n"
        "from torchtheory.lazy import first\n\n"
        "def f():\n    from torchtheory.deep.inner import three\n"
    ),
    "near.py": "from torchtheory.deep import inner\nfrom .sibling import four\none = two = 1\n",
    "sibling.py": "four = 4\n",
    "deep/__init__.py": "from torchtheory.deep.eager import five\n",
    "deep/eager.py": "five = 5\n",
    "deep/inner.py": "three = 3\n",
    "deep/other.py": "six = 6\n",
    "lazy/__init__.py": "import lazy_loader\n",
    "lazy/__init__.pyi": "from .one import first as first\nfrom .two import second as second\n",
    "lazy/one.py": "first = 1\n",
    "lazy/two.py": "second = 2\n",
    "report/__init__.py": "",
    "report/page.py": "from torchtheory.unused import nothing\n",
}
USED = {
    "__init__.py", "labs/__init__.py", "labs/nets/__init__.py", "labs/nets/a_lab.py", "near.py",
    "sibling.py", "deep/__init__.py", "deep/eager.py", "deep/inner.py", "lazy/__init__.py",
    "lazy/one.py",
}  # fmt: skip


def make(root: Path, changed: str = "") -> Path:
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + ("# edited\n" if name == changed else ""), "utf-8")
    return root


def as_module(name: str) -> str:
    path = Path("torchtheory", name).with_suffix("")
    return ".".join(path.parts).removesuffix(".__init__")


@pytest.mark.parametrize("name", sorted(f for f in FILES if f.endswith(".py")))
def test_exactly_what_is_imported_counts(tmp_path: Path, name: str) -> None:
    before = module_fingerprint(LAB, make(tmp_path / "before"))
    after = module_fingerprint(LAB, make(tmp_path / "after", name))
    assert (after != before) == (name in USED)
    assert package_fingerprint(tmp_path / "before") != package_fingerprint(tmp_path / "after") or (
        name.startswith("report/")
    )


def test_the_closure_is_the_modules_that_run(tmp_path: Path) -> None:
    assert import_closure([LAB], make(tmp_path)) == {as_module(name) for name in USED}


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("from torchtheory import shown", ["named.py"]),
        ("from torchtheory import lazy", ["lazy/__init__.py", "lazy/one.py", "lazy/two.py"]),
        ("import torchtheory.lazy", ["lazy/__init__.py", "lazy/one.py", "lazy/two.py"]),
        ("from torchtheory.lazy import *", ["lazy/__init__.py", "lazy/one.py", "lazy/two.py"]),
        ("from torchtheory.lazy import two", ["lazy/__init__.py", "lazy/two.py"]),
        ("import torchtheory as tt", [n for n in FILES if "report" not in n and n[-1] == "y"]),
        ("from torchtheory.nowhere import x", []),
        ("import torchtheorems", []),
        (">>> from torchtheory.named import shown", []),
    ],
)
def test_what_a_statement_may_mean(tmp_path: Path, statement: str, found: list[str]) -> None:
    root = make(tmp_path)
    module = root / "near.py"
    module.write_text(f"'''{statement}'''\n" if statement[0] == ">" else f"{statement}\n", "utf-8")
    wanted = {as_module(n) for n in ["__init__.py", "near.py", *found]}
    assert import_closure(["torchtheory.near"], root) == wanted


def test_a_users_file_counts_with_what_it_imports(tmp_path: Path) -> None:
    before, after = make(tmp_path / "before"), make(tmp_path / "after", "named.py")
    near, named = "from torchtheory.near import one\n", "from torchtheory.named import shown\n"
    assert text_fingerprint(near, before) == text_fingerprint(near, after)
    assert text_fingerprint(named, before) != text_fingerprint(named, after)
    assert text_fingerprint(near, before) != text_fingerprint(near + "# edited\n", before)


@pytest.mark.parametrize("name", ["core/claim.py", "labs/engine/run.py", "nets/feedforward.py"])
def test_cut_out_statements_are_those_of_the_syntax_tree(name: str) -> None:
    module = as_module(name)
    tree = ast.parse((ROOT / name).read_text("utf-8"))
    named = {s.module for s in ast.walk(tree) if isinstance(s, ast.ImportFrom) and s.module}
    ours = {m for m in named if m.startswith("torchtheory.") and ".report" not in m}
    assert ours
    assert ours <= import_closure([module])


def test_a_run_is_taken_up_after_an_unrelated_edit_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, lab = RunStore(tmp_path / "runs"), find_lab("threshold-neuron")
    roots = {name: make(tmp_path / str(k), name) for k, name in enumerate(["", *FILES])}

    def edited(name: str) -> None:
        def fingerprint(found: Lab) -> str:
            return module_fingerprint(LAB, roots[name])

        monkeypatch.setattr(store_module, "code_fingerprint", fingerprint)

    edited("")
    store.save(run_lab(lab))
    edited("deep/other.py")
    assert store.load(lab, "quick", 0) is not None
    edited("deep/inner.py")
    assert store.load(lab, "quick", 0) is None


def test_every_lab_has_a_fingerprint_of_its_own_module() -> None:
    lab = find_lab("threshold-neuron")
    assert store_module.code_fingerprint(lab) == module_fingerprint(lab.function.__module__)
    assert lab.function.__module__ in import_closure([lab.function.__module__])
    assert "torchtheory.core.claim" in import_closure([lab.function.__module__])
    assert "torchtheory.cli" not in import_closure([lab.function.__module__])
