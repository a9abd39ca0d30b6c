"""Labs: registration, parameters from Python and from the command line."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest

from torchtheory.core.errors import InvalidInput, TorchTheoryError, UnknownName
from torchtheory.labs.engine.parameters import Parameter, type_name
from torchtheory.labs.engine.registry import Lab, find_lab, lab, listed_labs
from torchtheory.labs.engine.run import Run
from torchtheory.labs.manifest import ListedLab, read_decorators

pytestmark = pytest.mark.usefixtures("own_registry")


def register(function: Callable[..., object], **more: Any) -> Lab:
    name = more.pop("name", "zz-test-lab")
    lab(name, **({"room": "nets", "covers": ["N-08"], "title": "A test"} | more))(function)
    return find_lab(name)


def every_type(
    run: Run,
    whole: int = 3,
    real: float = 0.5,
    flag: bool = False,
    word: str = "x",
    choice: Literal["a", "b", 3] = "a",
    maybe: int | None = None,
    many: tuple[int, ...] = (1, 2),
    listed: list[float] = [0.5],  # noqa: B006
    pair: tuple[int, float] = (1, 0.5),
    either: int | str = 1,
    signed: int = -3,
) -> None:
    """What is claimed."""


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("whole", "12", 12),
        ("signed", "-12", -12),
        ("whole", "1e3", 1000),
        ("signed", "12345678901234567890123", 12345678901234567890123),
        ("real", "1e-3", 0.001),
        ("real", "2", 2.0),
        ("flag", "true", True),
        ("flag", "No", False),
        ("flag", "1", True),
        ("word", "a=b, c", "a=b, c"),
        ("choice", "b", "b"),
        ("choice", "3", 3),
        ("maybe", "none", None),
        ("maybe", "5", 5),
        ("many", "3,4, 5", (3, 4, 5)),
        ("many", "[3]", (3,)),
        ("many", "(3, 4)", (3, 4)),
        ("listed", "1,2.5", [1.0, 2.5]),
        ("pair", "2,0.25", (2, 0.25)),
        ("either", "7", 7),
        ("either", "seven", "seven"),
    ],
)
def test_text_is_parsed_by_type(name: str, text: str, value: object) -> None:
    found = register(every_type).configure("quick", {name: text})[name]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("whole", "1.5"),
        ("whole", "abc"),
        ("whole", ""),
        ("whole", "nan"),
        ("whole", "inf"),
        ("real", "x"),
        ("real", "nan"),
        ("real", "-inf"),
        ("flag", "perhaps"),
        ("choice", "c"),
        ("maybe", "x"),
        ("many", "1,x"),
        ("pair", "1,2,3"),
        ("pair", "0.5,0.5"),
    ],
)
def test_bad_text_is_refused_with_the_parameters_name(name: str, text: str) -> None:
    with pytest.raises(InvalidInput, match=f"parameter {name} must be"):
        register(every_type).configure("quick", {name: text})


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("whole", np.int64(4), 4),
        ("real", 2, 2.0),
        ("real", np.float32(0.5), 0.5),
        ("many", [1, 2, 3], (1, 2, 3)),
        ("maybe", None, None),
        ("flag", True, True),
        ("choice", 3, 3),
    ],
)
def test_values_from_python(name: str, value: object, kept: object) -> None:
    found = register(every_type).configure("quick", {name: value})[name]
    assert found == kept
    assert type(found) is type(kept)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("whole", 2.5),
        ("whole", True),
        ("whole", None),
        ("real", math.nan),
        ("real", True),
        ("flag", 1),
        ("word", 3),
        ("choice", 4),
        ("many", 3),
        ("many", (1, 2.5)),
        ("pair", (1,)),
    ],
)
def test_values_of_another_type_are_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidInput, match=f"parameter {name} must be"):
        register(every_type).configure("quick", {name: value})


def test_unknown_parameter_and_preset() -> None:
    made = register(every_type)
    with pytest.raises(UnknownName, match="did you mean 'whole'"):
        made.configure("quick", {"hole": 1})
    with pytest.raises(InvalidInput, match="quick or full"):
        made.configure("medium", {})  # type: ignore[arg-type]


def test_full_preset_changes_what_it_lists() -> None:
    def function(run: Run, n: int = 3, m: int = 4) -> None: ...

    made = register(function, full={"n": 300})
    assert made.configure("quick", {}) == {"n": 3, "m": 4}
    assert made.configure("full", {}) == {"n": 300, "m": 4}
    assert made.configure("full", {"n": "7"}) == {"n": 7, "m": 4}
    with pytest.raises(InvalidInput, match="which are no parameters"):
        register(function, name="zz-another", full={"k": 1})


def test_registration_is_checked() -> None:
    def no_default(run: Run, n: int) -> None: ...

    def no_type(run: Run, n=3) -> None: ...  # type: ignore[no-untyped-def]

    def odd_type(run: Run, n: dict[str, int] | None = None) -> None: ...

    for function in (no_default, no_type):
        with pytest.raises(InvalidInput, match="needs a type and a default"):
            register(function)
    with pytest.raises(InvalidInput, match="cannot be of type"):
        register(odd_type)
    with pytest.raises(InvalidInput, match="lower-case words"):
        register(every_type, name="Not A Name")
    with pytest.raises(UnknownName, match="catalogue entry"):
        register(every_type, covers=["X-1"])
    assert "zz-test-lab" not in listed_labs()


def test_two_labs_of_one_name_are_refused_but_a_cell_may_run_twice() -> None:
    def other(run: Run) -> None: ...

    def define() -> Callable[..., object]:
        def again(run: Run) -> None: ...

        return again

    register(every_type)
    with pytest.raises(InvalidInput, match="two labs are named 'zz-test-lab'"):
        register(other)
    register(define(), name="zz-again")
    second = define()
    assert register(second, name="zz-again").function is second


def test_unknown_lab_names_the_closest_and_survives_a_process_boundary() -> None:
    with pytest.raises(UnknownName, match="did you mean 'perceptron-novikoff'") as caught:
        find_lab("perceptron-novikof")
    copied = pickle.loads(pickle.dumps(caught.value))
    assert str(copied) == str(caught.value)
    assert type(copied) is UnknownName


def test_description_and_type_names() -> None:
    made = register(every_type)
    assert made.description == "What is claimed."
    words = {p.name: type_name(p.type) for p in made.parameters.values()}
    assert words["whole"] == "a whole number"
    assert words["many"] == "whole numbers separated by commas"
    assert words["pair"] == "a whole number and a number, separated by a comma"
    assert words["maybe"] == "a whole number or none"
    assert words["choice"] == "one of a, b, 3"
    assert isinstance(made.parameters["whole"], Parameter)


def test_a_shipped_lab_is_imported_when_it_is_looked_for_and_no_other() -> None:
    code = (
        "import sys; from torchtheory.labs.engine.registry import find_lab\n"
        "print(find_lab('perceptron-novikoff').room)\n"
        "print(*(m for m in sys.modules if m.startswith('torchtheory.labs.neurons.')))"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert made.stdout.split() == ["neurons", "torchtheory.labs.neurons.perceptron"]


def test_registered_labs_are_listed_and_cannot_take_the_name_of_a_shipped_one() -> None:
    register(every_type)
    listed = listed_labs()["zz-test-lab"]
    assert (listed.room, listed.covers, listed.module) == ("nets", ("N-08",), __name__)
    with pytest.raises(InvalidInput, match="two labs are named 'threshold-neuron'"):
        register(every_type, name="threshold-neuron")


@pytest.mark.parametrize(
    ("covers", "listed"),
    [
        ('["N-08", "N-06"]', ("N-08", "N-06")),
        ("[f'N-0{i}' for i in (6, 8)]", None),
        ("[*IDS]", None),
    ],
)
def test_decorators_are_read_or_left_to_the_module(
    covers: str, listed: tuple[str, ...] | None
) -> None:
    text = (
        '"""About @lab("nothing").\n"""\nIDS = ["N-08"]\n\n'
        f'@lab(\n    "a-lab",\n    room="nets",\n    covers={covers},  # why (both)\n'
        '    title="A bracket (\\")\\")",\n    full={"n": len(IDS)},\n)\n'
        "def a_lab(run: Run, n: int = 3) -> None:\n    pass\n"
    )
    found = read_decorators("some.module", text)
    if listed is None:
        assert found is None
    else:
        assert found == [ListedLab("a-lab", "nets", 'A bracket (")")', listed, (), "some.module")]


def nothing(run: Run) -> None:
    pass


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"room": "nope"}, "no room is named 'nope'"),
        ({"room": 3}, "room must be one of"),
        ({"covers": []}, "covers must list catalogue ids such as"),
        ({"covers": "N-08"}, "covers must list catalogue ids such as"),
        ({"covers": 5}, "covers must list catalogue ids such as"),
        ({"covers": ["N-9999"]}, "N-9999"),
        ({"title": 3}, "title must be a line for people, not 3"),
        ({"title": " "}, "title must be a line for people"),
    ],
)
def test_what_cannot_be_registered(given: dict[str, Any], sentence: str) -> None:
    good: dict[str, Any] = {"room": "nets", "covers": ["N-08"], "title": "t"}
    with pytest.raises(TorchTheoryError, match=sentence):
        lab("zz-refused", **(good | given))(nothing)


@pytest.mark.parametrize("function", [3, "f", lambda: None])
def test_what_is_no_lab(function: Any) -> None:
    with pytest.raises(TorchTheoryError, match=r"lab zz-refused.*function"):
        lab("zz-refused", room="nets", covers=["N-08"], title="t")(function)


def test_a_count_has_a_range() -> None:
    made = register(every_type)
    for value in (0, -5, 10**9):
        with pytest.raises(InvalidInput, match=r"whole must lie in the range 1 to 30,000, not"):
            made.configure("quick", {"whole": value})
        with pytest.raises(InvalidInput, match=r"whole must lie in the range 1 to 30,000, not"):
            made.configure("quick", {"whole": str(value)})
    with pytest.raises(InvalidInput, match=r"many must lie in the range 0 to 20,000, not -1"):
        made.configure("quick", {"many": "3,-1"})
    assert made.configure("quick", {"signed": "-5", "real": "-1e9"})["signed"] == -5


def test_a_lab_is_found_by_its_name() -> None:
    with pytest.raises(InvalidInput, match="a lab is named by lower-case words and hyphens, not 3"):
        lab(3, room="nets", covers=["N-08"], title="t")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="settings must be a dictionary of parameters, not 3"):
        register(nothing).configure("quick", 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a lab is found by its name, not by 3"):
        find_lab(3)  # type: ignore[arg-type]
