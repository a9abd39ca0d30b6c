"""LaTeX to MathML: nothing gets through, nothing raises."""

from __future__ import annotations

import pytest

from torchtheory.report.mathml import formula, paragraphs, prose

from .examples import Page


@pytest.mark.parametrize(
    "latex",
    [
        "",
        " ",
        "{",
        "}",
        "\\",
        r"\frac{a}{",
        r"\left( x",
        r"\begin{cases}",
        "a_b_c",
        "{" * 3000,
        "&",
    ],
)
def test_what_cannot_be_parsed_is_shown_as_written(latex: str) -> None:
    page = Page(formula(latex))
    assert "code" in page.tags or "math" in page.tags


def test_macros_are_not_expanded() -> None:
    bomb = r"\newcommand{\a}{xx}" + "".join(
        rf"\newcommand{{\{chr(98 + i)}}}{{\{chr(97 + i)}\{chr(97 + i)}}}" for i in range(24)
    )
    assert formula(bomb + r"\y").startswith("<code")


def test_markup_inside_text_is_text() -> None:
    page = Page(formula(r"\text{<b>x</b> & y}"))
    assert page.words() == "<b>x</b> & y"


@pytest.mark.parametrize("command", ["href", "style", "class", "color"])
def test_commands_that_write_attributes_write_none(command: str) -> None:
    page = Page(formula(rf"\{command}{{javascript:x}}{{y}}"))
    assert not any("javascript" in value for _, _, value in page.attributes)


def test_a_long_formula_has_places_to_break() -> None:
    text = formula(r"a = b + c + d + e + f \le g, \quad (x, y) \in Z", display=True)
    assert text.count("<wbr>") >= 4
    assert 'displaystyle="true"' in text
    assert formula("f(a, b)").count("<wbr>") == 0, "not inside brackets"


def test_words_wrap_outside_the_formula() -> None:
    text = formula(r"R \le 1 \text{ with probability at least } 1-\delta")
    assert '<span class="words"> with probability at least </span>' in text


def test_escapes_and_quotes_of_text_are_resolved() -> None:
    page = Page(formula(r"\text{99 \% of ``all'' \& more} \le \text{5\_3}"))
    assert page.words() == "99 % of “all” & more≤5_3"


def test_styled_letters_are_characters() -> None:
    assert "𝐱" in formula(r"\mathbf{x}")
    assert "𝟏" in formula(r"\mathbf{1}")
    assert "𝜽" in formula(r"\boldsymbol{\theta}")
    assert "mathvariant" not in formula(r"\mathbf{x}")
    assert 'mathvariant="normal"' in formula(r"\mathrm{d}")


def test_an_unknown_command_shows_its_name() -> None:
    assert "<mi>rank</mi>" in formula(r"\rank A")


def test_names_of_functions_keep_their_distance() -> None:
    thin = '<mspace width="0.17em"></mspace>'
    assert f"<mi>c</mi>{thin}<mi>ln</mi>{thin}<mi>n</mi>" in formula(r"c\ln n")
    assert "<mi>erf</mi><mo" in formula(r"\operatorname{erf}(x)")
    assert thin not in formula(r"-\max(0, x)")
    assert '<mo form="infix">:</mo>' in formula("f: X")


def test_limits_stand_below_in_display() -> None:
    assert "<munder>" in formula(r"\sup_x f", display=True)
    assert "<munder>" not in formula(r"\sup_x f")


def test_columns_keep_their_side() -> None:
    assert 'style="text-align:left"' in formula(r"\begin{cases} a & b \\ c & d \end{cases}")


def test_prose_keeps_money_and_sets_formulas() -> None:
    assert prose("it costs $5 and $6") == "it costs $5 and $6"
    assert "<math>" in prose("a $x$ b")
    assert "<math>" in prose("a $$x$$ b")
    assert prose("``a<b`` `c`") == "<code>a&lt;b</code> <code>c</code>"


def test_paragraphs_and_lists() -> None:
    text = paragraphs("One\nline.\n\nThen:\n- first\n  item\n- second")
    assert "<p>One line.</p>" in text
    assert "<p>Then:</p>" in text
    assert "<ul><li>first item</li><li>second</li></ul>" in text


def test_brackets_of_a_given_size() -> None:
    assert ">‖<" in formula(r"\bigl\|x\bigr\|")
    assert ">⟨<" in formula(r"\Bigl\langle x\Bigr\rangle")
    assert ">{<" in formula(r"\bigl\{x\bigr\}")
    assert "\\" not in formula(r"\bigl\lfloor x\bigr\rfloor")


@pytest.mark.parametrize(
    ("latex", "letter"),
    [
        (r"\mathbb R", "ℝ"), (r"\mathbb{E}", "𝔼"), (r"\mathbb E", "𝔼"), (r"\mathcal F", "ℱ"),
        (r"\mathcal A", "𝒜"), (r"\mathcal{A}", "𝒜"), (r"\mathfrak g", "𝔤"), (r"\mathbb 1", "𝟙"),
    ],
)  # fmt: skip
def test_a_font_is_kept_with_and_without_braces(latex: str, letter: str) -> None:
    assert f">{letter}<" in str(formula(latex))
