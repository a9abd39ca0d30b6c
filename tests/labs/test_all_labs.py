"""Every lab passes in quick; errata and labs name each other."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from torchtheory.core import catalogue
from torchtheory.labs.engine.registry import lab, labs, listed_labs
from torchtheory.labs.engine.run import Run, run_lab


@pytest.mark.parametrize("name", list(listed_labs()))
def test_lab_passes(name: str) -> None:
    assert run_lab(name).problems == []


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
