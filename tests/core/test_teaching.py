"""The sections of a docstring that teach are read as what they say, or refused in a sentence."""

from __future__ import annotations

from inspect import cleandoc

import pytest

from torchtheory.core.errors import InvalidInput
from torchtheory.core.teaching import (
    SECTIONS,
    Change,
    Definition,
    Exercise,
    Hypothesis,
    Teaching,
    Theorem,
    cut_sections,
    read_teaching,
)

PERCEPTRON = r"""Rosenblatt's rule errs at most $(R/\gamma)^2$ times.

    The rule is run on samples with a known margin.

    Theorem:
        Let $x_1,\dots,x_n\in\mathbb R^d$ have labels
        $y_i\in\{-1,1\}$.
        *Bounded*: $\|x_i\|\le R$ for all $i$.
        *Separable*: some unit vector $u$ has $y_i\,u^\top x_i\ge\gamma>0$
            for all $i$.
        Then the perceptron makes at most
        $(R/\gamma)^2$ updates.

        Every order of the samples will do.

    Symbols:
        $x_i, y_i$: samples and labels; $n$ of them, in $d$ dimensions.
        $R$, $\gamma$: the largest norm of a sample,
            and the margin.

    Idea:
        A line stays below
        a square root only so long.

    Try:
        margin=0.02 order="worst": the bound grows: 25 times.
        --preset full: the sizes of the source.

    Exercise:
        Find two samples on which the rule makes two updates.
        check: updates(x, y) == 2
        answer: x = 1
            y = 2

    The end.

    Args:
        margin: gamma.
    """


def taught() -> tuple[str, Teaching]:
    description, sections = cut_sections(cleandoc(PERCEPTRON))
    return description, read_teaching(sections)


def test_a_docstring_is_cut_into_what_it_says() -> None:
    description, said = taught()
    assert description.split("\n\n")[1:] == [
        "The rule is run on samples with a known margin.",
        "The end.",
    ]
    assert said.missing == ()
    first, second = said.theorems
    assert first == Theorem(
        r"Let $x_1,\dots,x_n\in\mathbb R^d$ have labels $y_i\in\{-1,1\}$.",
        (
            Hypothesis("Bounded", r"$\|x_i\|\le R$ for all $i$."),
            Hypothesis(
                "Separable",
                r"some unit vector $u$ has $y_i\,u^\top x_i\ge\gamma>0$ for all $i$.",
            ),
        ),
        r"Then the perceptron makes at most $(R/\gamma)^2$ updates.",
    )
    assert second == Theorem("", (), "Every order of the samples will do.")
    assert said.symbols[1] == Definition(
        r"$R$, $\gamma$", "the largest norm of a sample, and the margin."
    )
    assert said.idea == "A line stays below a square root only so long."
    assert said.changes == (
        Change(("margin=0.02", "order=worst"), "the bound grows: 25 times."),
        Change(("--preset", "full"), "the sizes of the source."),
    )
    assert said.changes[0].values == {"margin": "0.02", "order": "worst"}
    assert [c.options for c in said.changes] == [
        "--set margin=0.02 --set order=worst",
        "--preset full",
    ]
    assert said.exercises == (
        Exercise(
            "Find two samples on which the rule makes two updates.",
            "updates(x, y) == 2",
            "x = 1\ny = 2",
        ),
    )
    assert said.to_json()["changes"][0] == {
        "options": "--set margin=0.02 --set order=worst",
        "look": "the bound grows: 25 times.",
    }


def test_nothing_is_taught_where_nothing_is_written() -> None:
    assert not Teaching()
    assert Teaching().missing == SECTIONS
    assert taught()[1]
    one_change = read_teaching({"Try": "a=1: look."})
    assert "Try" in one_change.missing, "two changes at least"


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"Symbols": "x: an input"}, r"Symbols: 'x: an input' must read '\$symbol\$: what it"),
        ({"Try": "a larger margin"}, "Try: 'a larger margin' must read 'parameter=value: what"),
        ({"Theorem": "*Bounded*: by 1."}, "Theorem: say after the hypotheses what follows"),
        (
            {"Theorem": "*A*: a.\nThen b.\n*C*: c."},
            "hypothesis \\*C\\* stands after the conclusion",
        ),
        ({"Exercise": "check: 1 == 1"}, "Exercise: say what to do"),
        ({"Exercise": "Do it.\ncheck: 1 =="}, "Exercise: '1 ==' is no Python, which check is"),
        ({"Exercise": "Do it.\nanswer: x ="}, "Exercise: 'x =' is no Python, which answer is"),
    ],
)
def test_what_cannot_be_read_is_refused(sections: dict[str, str], sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        read_teaching(sections)
