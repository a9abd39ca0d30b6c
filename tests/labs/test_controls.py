"""Controls as they are written: one that is the measurement times a number shows nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchtheory import labs

VERBS = ("equal", "at_most", "at_least", "below", "above", "mean", "slope", "share")
LABS = Path(labs.__file__).parent
MODULES = [p for p in sorted(LABS.rglob("*.py")) if "engine" not in p.relative_to(LABS).parts]


def multiples(source: str) -> Iterator[str]:
    """Controls `says.fails("...", 40 * x)` of a check of `x`, or of what it was compared with."""
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        calls = [
            c
            for c in ast.walk(function)
            if isinstance(c, ast.Call)
            and isinstance(c.func, ast.Attribute)
            and c.func.attr in (*VERBS, "fails")
        ]
        checked: set[str] = set()
        for call in sorted(calls, key=lambda c: (c.lineno, c.col_offset)):
            assert isinstance(call.func, ast.Attribute)
            if call.func.attr in VERBS:
                checked = {ast.unparse(a) for a in call.args[:2]}
            elif any(_scaled(a) in checked for a in call.args[1:]):
                yield ast.unparse(call)


def _scaled(argument: ast.expr) -> str | None:
    """What is multiplied by, or divided by, a plain number."""
    if not isinstance(argument, ast.BinOp) or not isinstance(argument.op, ast.Mult | ast.Div):
        return None
    left, right = argument.left, argument.right
    if isinstance(right, ast.Constant):
        return ast.unparse(left)
    return ast.unparse(right) if isinstance(left, ast.Constant) else None


def test_a_multiple_is_found() -> None:
    lab = "def f(run, x):\n    says.{}\n    says.fails('b', {})\n"
    for check, control in (
        ("equal(x, 1)", "40 * x"),
        ("equal(x, 1)", "x / 2"),
        ("at_most(f(x), y)", "2 * f(x)"),
        ("at_most(f(x), y)", "3 * y"),
        ("slope(n, x, 1)", "n, 40 * x"),
    ):
        assert list(multiples(lab.format(check, control))), (check, control)
    for check, control in (("equal(x, 1)", "f(2 * x)"), ("equal(f(x), 1)", "40 * x")):
        assert not list(multiples(lab.format(check, control))), (check, control)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: "/".join(p.parts[-2:]))
def test_no_control_is_a_multiple_of_the_measurement(path: Path) -> None:
    assert list(multiples(path.read_text(encoding="utf-8"))) == []
