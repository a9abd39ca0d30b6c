"""Formulas that cannot be set, LaTeX outside of dollars, letters that nobody defined."""

from __future__ import annotations

import pytest

from torchtheory.report.faults import formula_faults, prose_faults
from torchtheory.report.letters import COMMON, defined_letters, letters


@pytest.mark.parametrize(
    "latex",
    [
        r"\bigl\|\arg\max_x f\bigr\|\le 1\text{ in 9 \% of cases}",
        r"x\in[0,1)\cup(2,3]",
        r"\left\{x:\|x\|\le1\right.",
        r"\left.\frac{d}{dt}f\right|_{t=0}",
        r"\begin{pmatrix}a&b\\c&d\end{pmatrix}",
        r"\text{ with mean (here }\mu)",
        r"\mathrm{KL}(Q\|P)\ge\langle u,v\rangle-\lfloor x\rfloor",
    ],
)
def test_a_formula_without_faults(latex: str) -> None:
    assert formula_faults(latex) == []


@pytest.mark.parametrize(
    ("latex", "fault"),
    [
        ("\text{of a string that is not raw}", "characters nobody sees"),
        (r"a\leb", r"nobody defined \leb"),
        (r"\sqrt{(a}", "'(' is closed by '}'"),
        (r"f(x", "'(' is not closed"),
        (r"f(x))", "')' closes nothing"),
        (r"\langle u,v)", r"'\\langle' is closed by ')'"),
        (r"\left(x)", r"1 \left and 0 \right"),
        (r"\bigl(x)", r"1 \bigl and 0 \bigr"),
        (r"\begin{pmatrix}a", r"\begin and \end do not match"),
        (r"x^2^3", "it cannot be read"),
    ],
)
def test_what_is_wrong_with_a_formula_is_said(latex: str, fault: str) -> None:
    assert any(fault in found for found in formula_faults(latex)), formula_faults(latex)


@pytest.mark.parametrize(
    "text", ["at most $n^2$ of `x_i`, $5 or R²", r"$\alpha$ and ``a^{2}``", "snake_case, 2·10⁻³"]
)
def test_a_text_without_faults(text: str) -> None:
    assert prose_faults(text) == []


@pytest.mark.parametrize(
    "text", ["steps x^{k+1}", r"of size \alpha", "x_i for all i", "2^n pieces", "an $ alone"]
)
def test_latex_outside_of_dollars_is_seen(text: str) -> None:
    assert "stands outside of dollars" in prose_faults(text)[0]


@pytest.mark.parametrize(
    ("latex", "found"),
    [
        (r"t\le R^2/\gamma^2", {"t", "R", r"\gamma"}),
        (r"\mathbb E_{x\sim\mathcal D}[\ell(f(x),y)]", {"x", r"\mathcal D", r"\ell", "f", "y"}),
        (r"\widehat R_S(h)=\hat R_S(h)", {r"\hat R", "S", "h"}),
        (r"\textstyle\sum_{i=1}^n a_i=O(1)", {"a"}),
        (r"\frac1n\sum_{i=1}^n\log n", {"n"}),
        (r"\int_0^1f(s)\,ds", {"f", "s"}),
        (r"\operatorname{sgn}(w^\top x)\text{ for all }j", {"w", "x"}),
        (r"\|\boldsymbol\theta\|_{\mathcal H}", {r"\theta", r"\mathcal H"}),
    ],
)
def test_letters_of_a_formula(latex: str, found: set[str]) -> None:
    assert letters(latex) == found


def test_symbols_define_what_stands_in_them() -> None:
    known = defined_letters(
        [(r"$x_i$, $\hat R$", r"samples, $n$ of them; $\mathbb R^d$ is not a definition of d")]
    )
    assert known >= {"x", r"\hat R", "n"}
    assert "d" not in known
    assert all(meaning for meaning in COMMON.values())
