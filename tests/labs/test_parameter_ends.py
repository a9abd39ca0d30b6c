"""Labs at the ends of what they take: refused outside, never raising inside."""

from __future__ import annotations

import zlib
from typing import Literal

import pytest
from typer import Typer
from typer.testing import CliRunner

from torchtheory.core.claim import Verdict
from torchtheory.core.errors import InvalidInput
from torchtheory.labs.engine.ends import cases, end_faults, ends, least_of_all, main
from torchtheory.labs.engine.parameters import Limits, Parameter
from torchtheory.labs.engine.registry import Lab, find_lab, lab, labs, listed_labs
from torchtheory.labs.engine.run import Run, run_lab
from torchtheory.labs.manifest import lab_sources

#: One module in so many is tried here; `python -m torchtheory.labs.engine.ends` tries all of them.
ONE_IN = 12
# by its text, so that a module that is changed may be drawn, and the day plays no part
SAMPLE = {m for m, text in lab_sources() if zlib.crc32((text or "").encode()) % ONE_IN == 0}


@pytest.mark.parametrize("name", [n for n, one in listed_labs().items() if one.module in SAMPLE])
def test_a_lab_does_not_raise_where_everything_is_at_its_least(name: str) -> None:
    found = find_lab(name)
    run_lab(found, settings=least_of_all(found))


@pytest.mark.parametrize(
    ("name", "parameter", "value"),
    [
        ("dense-blocks", "layers", 1),
        ("receptive-fields", "draws", 10),
        ("moment-rules", "depth", 1),
        ("moment-rules", "depth", 9),
        ("primer-derivatives", "size", 3),
        ("primer-norms", "trials", 2),
        ("primer-smoothness", "dim", 1),
        ("empirical-risk", "samples", 1),
        ("label-smoothing", "smoothing", 0.0),
        ("trainer", "samples", 1),
        ("mlp-from-scratch", "rate", 4.5),
        ("sawtooth", "times", 1),
        ("algorithmic-robustness", "delta", 1.0),
    ],
)
def test_sizes_without_power_are_refused(name: str, parameter: str, value: object) -> None:
    sentence = f"^parameter {parameter} must lie in the range .* not "
    with pytest.raises(InvalidInput, match=sentence):
        run_lab(name, settings={parameter: value})


@pytest.mark.parametrize(
    ("name", "settings", "why"),
    [
        ("double-descent", {"samples": 90}, "800 features are not ten times the 90 samples"),
        ("receptive-fields", {"channels": 8}, "draws of 8 channels"),
        ("perceptron-novikoff", {"separable": False}, "no hyperplane separates the sample"),
        ("wide-network-convergence", {"widths": (4, 8, 16)}, "4 units are not many for 6 samples"),
        ("linear-memorization", {"features": 50}, "50 features leave no direction free"),
    ],
)
def test_what_several_parameters_cannot_be_together_is_not_applicable(
    name: str, settings: dict[str, object], why: str
) -> None:
    found = run_lab(name, settings=settings)
    assert found.problems == []
    assert found.claims[-1].verdict is Verdict.NOT_APPLICABLE
    assert why in found.claims[-1].reason


def test_a_stride_that_does_not_divide_the_ring_has_nothing_to_say() -> None:
    found = run_lab("shift-equivariance", settings={"size": 9, "inputs": 2})
    assert not found.problems
    (idle,) = [c for c in found.claims if c.verdict is Verdict.NOT_APPLICABLE]
    assert "does not divide a ring of 9" in idle.reason


def test_every_number_of_a_lab_has_a_range() -> None:
    open_ended = {
        f"{name}.{p.name}"
        for name, one in labs().items()
        for p in one.parameters.values()
        if isinstance(p.quick, float) and None in (p.least, p.most)
    }
    assert open_ended == set()


def test_a_range_is_declared_said_and_kept() -> None:
    limits = Limits({"size": 4, "widths": 8}, {"size": 64}, {"widths": 2})
    size = Parameter.of("size", int, 16, 32, limits=limits)
    widths = Parameter.of("widths", tuple[int, ...], (16, 32), (16, 64), limits=limits)
    assert (size.range, widths.range) == ("4 to 64", "2 or more, each 8 or more")
    assert (size.check(4), size.parse("64")) == (4, 64)
    for value in (3, 65):
        with pytest.raises(InvalidInput, match=f"size must lie in the range 4 to 64, not {value}"):
            size.check(value)
    with pytest.raises(InvalidInput, match="widths must have 2 items or more, not"):
        widths.parse("16")
    with pytest.raises(InvalidInput, match="widths must lie in the range 8 to 640,000, not 7"):
        widths.check((7, 16))
    with pytest.raises(InvalidInput, match="size must lie in the range 4 to 64, not 128"):
        Parameter.of("size", int, 16, 128, limits=limits)
    with pytest.raises(InvalidInput, match="which contains nothing"):
        Parameter.of("size", int, 5, 5, limits=Limits({"size": 6}, {"size": 4}))


def ending(
    run: Run, size: int = 16, widths: tuple[int, ...] = (4, 8, 16), kind: Literal["a", "b"] = "a"
) -> None:
    """A lab.

    Args:
        size: must not be 7.
        widths: any.
        kind: of it.
    """
    run.assumes(kind == "a", "it is about a")
    if size == 7:
        raise ZeroDivisionError("of seven")
    says = run.states("N-08", "x")
    says.at_most(size, 30)
    says.fails("none", 31)


@pytest.fixture
def at_its_ends(own_registry: None) -> Lab:
    lab(
        "zz-ends", room="neurons", covers=["N-08"], title="A test",
        least={"size": 7, "widths": 2}, most={"size": 40}, items={"widths": 2},
    )(ending)  # fmt: skip
    return find_lab("zz-ends")


def test_the_ends_of_a_lab_are_tried(at_its_ends: Lab) -> None:
    assert list(cases(at_its_ends)) == [
        {"size": 7},
        {"size": 40},
        {"widths": (4, 8)},
        {"widths": (2, 8, 16)},
        {"kind": "b"},
        {"size": 7, "widths": (4, 8), "kind": "b"},
    ]
    assert end_faults(at_its_ends, {"size": 7}) == ["raises ZeroDivisionError: of seven"]
    assert "is violated" in end_faults(at_its_ends, {"size": 40})[0]
    assert end_faults(at_its_ends, {"size": 99})[0].startswith("refused inside of the range")
    assert end_faults(at_its_ends, {"kind": "b"}) == []
    # a switch between numbers takes nothing else, whatever the least of a count is
    assert ends(Parameter("cube", Literal[3, 4], 4, 4, least=1)) == [3]
    # more samples than a few times the preset's cost time and show nothing new
    assert ends(Parameter("samples", int, 10, 20, least=10, most=1000)) == []


@pytest.mark.usefixtures("at_its_ends")
def test_the_command_names_what_raises_or_fails() -> None:
    app = Typer()
    app.command()(main)
    outcome = CliRunner().invoke(app, ["zz-ends", "--seed", "1"])
    assert outcome.exit_code == 1
    assert "zz-ends --set size=7: raises ZeroDivisionError: of seven\n" in outcome.output
    assert "6 runs of 1 labs, 2 of them raise or fail" in outcome.output


@pytest.mark.usefixtures("own_registry")
def test_limits_are_of_parameters_that_exist() -> None:
    with pytest.raises(InvalidInput, match=r"lab zz-ends: least sets \['sizes'\], which are no"):
        lab("zz-ends", room="neurons", covers=["N-08"], title="t", least={"sizes": 2})(ending)
    with pytest.raises(InvalidInput, match="lab zz-ends: parameter size must lie in the range"):
        lab("zz-ends", room="neurons", covers=["N-08"], title="t", least={"size": 20})(ending)
