"""Every lab passes in quick; errata and labs name each other."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from torchtheory.core import catalogue
from torchtheory.labs.engine import debts
from torchtheory.labs.engine.debts import outstanding, paid
from torchtheory.labs.engine.registry import lab, labs, listed_labs
from torchtheory.labs.engine.run import Run, run_lab
from torchtheory.labs.engine.teaching import run_faults, undefined_letters
from torchtheory.labs.manifest import lab_sources

DEBTS = debts.read_debts()


@pytest.mark.parametrize("name", list(listed_labs()))
def test_lab_passes(name: str) -> None:
    run = run_lab(name)
    assert run.problems == []
    assert outstanding(run, DEBTS) == [], "these checks are weak; see labs/engine/debts.py"
    assert paid(run, DEBTS) == [], "remove these lines from debts.toml"
    assert run.applies
    assert run_faults(run) == [], "a reader would stumble over these"
    assert undefined_letters(run) == [], "define them in Symbols"


def test_commands_do_not_run_into_the_next_piece_of_a_string() -> None:
    for module, text in lab_sources():
        assert text is not None
        assert not re.search(r"[\x00-\x09\x0b-\x1f]", text), module
        glued = re.search(r'\\[A-Za-z]+"\s*\n\s*[rf]{0,2}"[A-Za-z]', text)
        assert glued is None, f"{module}: {glued}"


def test_debts_are_of_labs_that_exist_and_in_the_order_they_are_written(tmp_path: Path) -> None:
    labs_with_debts = {name for table in DEBTS.values() for name in table}
    assert labs_with_debts <= set(listed_labs())
    for table in DEBTS.values():
        assert all(len(set(keys)) == len(keys) > 0 for keys in table.values())
        assert list(table) == [name for name in listed_labs() if name in table]
    copy = tmp_path / "debts.toml"
    copy.write_bytes(debts.PATH.read_bytes())
    debts.write_debts(DEBTS, copy)
    assert copy.read_bytes() == debts.PATH.read_bytes()


@pytest.mark.draws
@pytest.mark.parametrize("name", ["threshold-neuron", "perceptron-novikoff", "cover-dichotomies"])
def test_same_seed_same_claims(name: str) -> None:
    first, second = run_lab(name, seed=1), run_lab(name, seed=1)
    assert first.claims == second.claims
    assert first.errata == second.errata
    assert first.tables == second.tables
    assert first.figures == second.figures


def test_every_erratum_is_refuted_by_exactly_one_lab() -> None:
    declared = Counter(key for lab in listed_labs().values() for key in lab.errata)
    assert {key for key, times in declared.items() if times > 1} == set()
    assert set(declared) == set(catalogue.errata())


def test_the_list_says_what_the_labs_say_and_imports_none() -> None:
    code = (
        "import sys; from torchtheory.labs.engine.registry import listed_labs; listed_labs(); "
        "print(*(m for m in sys.modules if m.count('.') == 3 and m.startswith('torchtheory.labs.')"
        " and '.engine.' not in m))"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert made.stdout.split() == []
    assert {name: lab.listed for name, lab in labs().items()} == dict(listed_labs())
    assert list(labs()) == list(listed_labs())


def test_labs_are_described_and_in_a_room_of_the_library() -> None:
    for found in labs().values():
        assert found.room in catalogue.ROOMS
        assert found.title
        assert found.description
        assert found.covers


@pytest.mark.usefixtures("own_registry")
def test_a_broken_figure_fails_its_lab_though_figures_are_not_saved_here() -> None:
    def function(run: Run, good: bool = True) -> None:
        run.figure("f", lambda axes: axes.plot([0, 1], [0, 1] if good else [0, 1, 2]))

    lab("zz-figure", room="nets", covers=["N-08"], title="A test")(function)
    assert run_lab("zz-figure").figures[0].png == b""
    with pytest.raises(ValueError, match="must have same first dimension"):
        run_lab("zz-figure", settings={"good": False})
