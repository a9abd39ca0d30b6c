"""Labs state their theorem, or stand on the list of those that owe it, which only shrinks."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchtheory.core.errors import FileProblem, InvalidInput
from torchtheory.labs.engine import teaching as module
from torchtheory.labs.engine.registry import Lab, find_lab, lab, labs, listed_labs
from torchtheory.labs.engine.run import Run, run_lab
from torchtheory.labs.engine.teaching import (
    debt_faults,
    read_owing,
    run_faults,
    solves,
    text_faults,
    undefined_letters,
    write_owing,
)

OWING = set(read_owing())
TEACHING = [name for name in listed_labs() if name not in OWING]


def test_every_lab_teaches_or_owes_it() -> None:
    found = {name: debt_faults(one, OWING) for name, one in labs().items()}
    assert {name: faults for name, faults in found.items() if faults} == {}
    assert set(listed_labs()) >= OWING


def test_what_a_lab_says_can_be_read() -> None:
    found = {name: text_faults(one) for name, one in labs().items()}
    assert {name: faults for name, faults in found.items() if faults} == {}


@pytest.mark.parametrize("name", TEACHING)
def test_an_exercise_has_the_answer_it_gives(name: str) -> None:
    for exercise in find_lab(name).teaching.exercises:
        assert bool(exercise.answer) <= bool(exercise.check), "an answer is checked"
        if exercise.answer:
            assert solves(exercise)


def theorem(run: Run, size: int = 3) -> None:
    r"""A lab that teaches.

    Theorem:
        $a\le b$.

    Symbols:
        $a, b$: two numbers.

    Idea:
        Count.

    Try:
        size=5: more.
        size=9: most.

    Exercise:
        Find $a$.
        check: a == 1
        answer: a = 1

    Args:
        size: of it.
    """
    says = run.states("N-08", r"a\le b+c")
    says.at_most(1, 1, where="with x^{k}")
    says.fails("no reason", 2)


@pytest.fixture
def taught(own_registry: None) -> Lab:
    lab("zz-taught", room="neurons", covers=["N-08"], title="A test", most={"size": 8})(theorem)
    return find_lab("zz-taught")


def test_debts_agree_with_sections(taught: Lab) -> None:
    assert debt_faults(taught, ()) == []
    assert "take it out" in debt_faults(taught, {"zz-taught"})[0]
    owing = find_lab(min(OWING))
    assert debt_faults(owing, OWING) == []
    assert "has no section" in debt_faults(owing, ())[0]


def test_faults_of_what_is_said_are_seen(taught: Lab) -> None:
    assert text_faults(taught) == ["Try: parameter size must lie in the range 1 to 8, not 9"]
    run = run_lab(taught)
    assert undefined_letters(run) == ["c"]
    assert run_faults(run) == ["'^{' stands outside of dollars: with x^{k}"]
    assert solves(taught.teaching.exercises[0])


@pytest.mark.usefixtures("own_registry")
def test_a_section_that_cannot_be_read_is_refused_with_the_labs_name() -> None:
    def function(run: Run) -> None:
        """A lab.

        Symbols:
            x is an input
        """

    with pytest.raises(InvalidInput, match="lab zz-odd: Symbols: 'x is an input' must read"):
        lab("zz-odd", room="neurons", covers=["N-08"], title="A test")(function)


def test_the_list_is_written_as_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "owing.toml"
    write_owing(["b", "a"], path)
    assert read_owing(path) == ("a", "b")
    copy = tmp_path / "copy.toml"
    write_owing(read_owing(), copy)
    assert copy.read_bytes() == module.PATH.read_bytes()
    for text in ("labs = 3", "labs = [3]", "labs", ""):
        path.write_text(text)
        with pytest.raises(FileProblem, match=r"owing\.toml"):
            read_owing(path)
