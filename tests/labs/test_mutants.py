"""Mutants: the places where a function can be wrong, and whether anybody notices."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from torchtheory.core.catalogue import ROOMS
from torchtheory.core.errors import InvalidInput
from torchtheory.labs.engine.mutants.hunt import (
    Bag,
    Settings,
    equivalent_mutants,
    find_tests,
    hunt,
)
from torchtheory.labs.engine.mutants.mutations import (
    Function,
    Mutant,
    changed,
    find_function,
    has_numbers,
    mutants_of,
    mutated,
    sites,
)
from torchtheory.labs.engine.mutants.trial import (
    Fate,
    Judges,
    in_own_process,
    try_mutant,
    watch_lab,
)
from torchtheory.labs.engine.registry import listed_labs

SOURCE = '''
from typing import overload

class Shape:
    @property
    def area(self):
        total = 0
        for side in (1, 2):
            total += side
        return total - 3

@overload
def f(x: int) -> int: ...
@overload
def f(x: float) -> float: ...
def f(x):
    """f(1) + 2 is no formula here."""
    if x + 1 < 0:
        raise ValueError("a" + "b")
    y = [x] + [x]
    return 2 * y[0 + 1] ** 2 + max(x, 1e-12 * x, key=lambda v: v + 5)
'''
F = Function("torchtheory.nets.f", "f")


def changes(qualname: str) -> list[str]:
    return [s.change for s in sites(find_function(ast.parse(SOURCE), qualname))]


def value(mutant: Mutant) -> float:
    names: dict[str, object] = {}
    exec(compile(mutated(SOURCE, mutant), "f.py", "exec"), names)
    return float(names["f"](3))  # type: ignore[operator]


def test_only_formulas_are_made_wrong() -> None:
    whole = "2 * y[0 + 1] ** 2 + max(x, 1e-12 * x, key=lambda v: v + 5)"
    assert changes("f") == [
        f"`{whole}` -> `2 * y[0 + 1] ** 2`",
        f"`{whole}` -> `max(x, 1e-12 * x, key=lambda v: v + 5)`",
        "`2 * y[0 + 1] ** 2` -> `1 * y[0 + 1] ** 2`",
        "`y[0 + 1] ** 2` -> `y[0 + 1] ** 1`",
    ]
    assert "`total += side` -> `pass`" in changes("Shape.area")
    assert "`total - 3` -> `-3`" in changes("Shape.area")


def test_each_mutant_computes_something_else() -> None:
    right = 2 * 3**2 + 3
    found = {m.change: value(m) for m in mutants_of(F, SOURCE, limit=20)}
    assert (found["halved"], found["doubled"], found["negated"]) == (10, 42, -right)  # whole
    assert found["`2 * y[0 + 1] ** 2` -> `1 * y[0 + 1] ** 2`"] == 12
    assert found["`y[0 + 1] ** 2` -> `y[0 + 1] ** 1`"] == 9
    assert len(found) == 7
    few = mutants_of(F, SOURCE, limit=4)
    assert [m.change for m in few][:2] == ["halved", "doubled"]
    assert len(few) == 4
    assert mutants_of(F, SOURCE, limit=4, seed=0) == few


def test_a_place_that_is_not_there() -> None:
    with pytest.raises(InvalidInput, match="no function g"):
        find_function(ast.parse(SOURCE), "g")
    with pytest.raises(InvalidInput, match="no place for the mutant"):
        mutated(SOURCE, Mutant(F, "`a` -> `b`"))


@dataclass(frozen=True, slots=True)
class Numbers:
    good: float
    word: str
    kept: bool

    def __post_init__(self) -> None:
        assert self.good > 0


def test_results_are_changed_in_every_number() -> None:
    assert changed(Numbers(4.0, "a", True), "negated").good == -4.0
    assert changed((Fraction(1, 2), {"a": 3}), "doubled") == (1, {"a": 6})
    assert changed(torch.tensor([2, 3]), "halved").tolist() == [1, 1]
    assert changed(np.array([2.0, 3.0]), "halved").tolist() == [1.0, 1.5]
    assert changed(torch.tensor([True]), "negated").tolist() == [True]
    plain = ("a", None, True, torch.tensor([True]), np.array(["a"]), torch.nn.ReLU())
    assert not any(has_numbers(v) for v in plain)
    assert has_numbers([Numbers(1.0, "a", True)])
    assert all(changed(v, "doubled") is v for v in plain)


def test_a_lab_is_watched() -> None:
    watched = watch_lab("threshold-neuron")
    assert watched.problem == ""
    assert watched.functions
    assert {f.room for f in watched.functions} <= set(ROOMS)
    assert sys.getprofile() is None


def test_what_is_loaded_before_a_mutant_has_no_room_in_it() -> None:
    code = (
        "import sys, torchtheory.labs.engine.mutants.hunt;"
        f"rooms = tuple(f'torchtheory.{{r}}.' for r in {ROOMS!r});"
        "print([m for m in sys.modules if m.startswith(rooms)])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def spin() -> None:
    while True:
        pass


def test_a_process_of_its_own_has_a_limit() -> None:
    assert in_own_process(abs, -2, limit=60) == (2, "")
    assert in_own_process(int, "x", limit=60)[1].startswith("ValueError")
    assert in_own_process(spin, limit=1) == (None, "timed out")


def test_a_mutant_reaches_names_that_are_imported_and_dies() -> None:
    function = Function("torchtheory.expressivity.hyperplanes", "zaslavsky_bound")
    judges = Judges(doctests=("zaslavsky_bound",))
    answer, problem = in_own_process(try_mutant, Mutant(function, "doubled"), judges, limit=120)
    assert (answer, problem) == (("killed by a test", "the doctest of zaslavsky_bound"), "")


def test_tests_are_found_by_name_and_by_helper(tmp_path: Path) -> None:
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "test_a.py").write_text(
        "from torchtheory.nets.f import f\n"
        "def helper(): return f(2)\n"
        "def test_direct(): assert f(1)\n"
        "def test_by_helper(): assert helper()\n"
        "def test_other(): pass\n"
    )
    (tmp_path / "nets" / "test_b.py").write_text("def test_b(): pass\n")
    found = [node.rpartition("::")[2] for node in find_tests(F, tmp_path)]
    assert found == ["test_direct", "test_by_helper"]


def test_the_score_leaves_out_what_nobody_can_notice(tmp_path: Path) -> None:
    a, b, c, d = (Mutant(F, change) for change in ("halved", "doubled", "negated", "`x` -> `y`"))
    fates = (
        Fate(a, "killed by a lab", "x"),
        Fate(b, "survived"),
        Fate(c, "survived"),
        Fate(d, "unreached"),
    )
    debts = tmp_path / "debts.toml"
    debts.write_text(f'[mutants]\n"{c.id}" = "f is even"\n')
    bag = Bag(fates, equivalent=equivalent_mutants(debts))
    assert [f.mutant for f in bag.survivors] == [b]
    assert bag.score == 0.5
    assert bag.counts["equivalent"] == 1
    assert equivalent_mutants(tmp_path / "none.toml") == {}
    json.dumps(bag.to_json())


def test_a_hunt_is_taken_up_again(tmp_path: Path) -> None:
    lab = listed_labs()["threshold-neuron"]
    settings = Settings(per_function=1, sample=2, tests=tmp_path / "none", out=tmp_path / "out")
    first = hunt([lab], settings)
    lines = (tmp_path / "out" / "finished.jsonl").read_text()
    assert len(first.fates) == 2
    assert not first.unfit
    assert hunt([lab], settings) == first
    assert (tmp_path / "out" / "finished.jsonl").read_text() == lines
    with pytest.raises(InvalidInput, match="sample must be a whole number >= 1"):
        Settings(sample=0)
