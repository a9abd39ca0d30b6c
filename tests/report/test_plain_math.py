"""LaTeX to text, formula by formula."""

from __future__ import annotations

import pytest

from torchtheory.report.plain_math import formula_spans, plain, plain_prose

FORMULAS = [
    (r"t \le R^2/\gamma^2", "t ≤ R²/γ²"),
    (r"a\leq b\ne c\in\mathbb R", "a ≤ b ≠ c ∈ ℝ"),
    (r"\frac{a}{b}", "a/b"),
    (r"\frac{a+b}{2n}", "(a+b)/(2n)"),
    (r"\frac{R^2}{\gamma^2}", "R²/γ²"),
    (r"\tfrac{1}{2}\sigma^2", "½σ²"),
    (r"c\frac{1}{n}x", "c 1/n x"),
    (r"\frac{\partial L}{\partial w}", "∂L/∂w"),
    (r"\sqrt{x}", "√(x)"),
    (r"\sqrt[3]{x} + \sqrt[n]{y}", "∛(x) + ⁿ√(y)"),
    (r"x_i^2 + x_{ij} + w_{t+1}", "xᵢ² + xᵢⱼ + wₜ₊₁"),
    (r"W_{\text{out}} x^{(k)}", "Wₒᵤₜ x⁽ᵏ⁾"),
    (r"L_{\mathrm{test}} W_F e^{-\lambda t}", "L_test W_F e^(-λ t)"),
    (r"\Theta^{(\ell+1)}", "Θ^(ℓ+1)"),
    (r"A^\top B^{*} f'", "Aᵀ B* f′"),
    (r"\|x\| + \lVert y \rVert_2", "‖x‖ + ‖y‖₂"),
    (r"\left\lfloor \frac{a}{b} \right\rfloor + 1", "⌊a/b⌋ + 1"),
    (r"\|\cdot\| a \cdot b", "‖·‖ a · b"),
    (r"\left. x \right|_0", "x|₀"),
    (r"\hat R_n \bar{x} \tilde\theta \widehat{AB}", "R̂ₙ x̄ θ̃ hat(AB)"),
    (r"\mathcal L \mathcal{D} \mathbb{E} \mathbf w", "ℒ D 𝔼 w"),
    (r"\text{rank}(A) \text{ for all } x", "rank(A) for all x"),
    (r"\text{a $x^2$ b}", "a x² b"),
    (r"\operatorname{sign}(x)", "sign(x)"),
    (r"\operatorname*{ess\,sup}_x f", "ess supₓ f"),
    (r"\log\frac{1}{\delta}", "log(1/δ)"),
    (r"n\log n + \sin\theta", "n log n + sin θ"),
    (r"\max_{x \in X} f(x)", "max_(x∈X) f(x)"),
    (r"\sum_{i=1}^n x_i", "∑ᵢ₌₁ⁿ xᵢ"),
    (r"\prod\limits_{\ell=1}^{L} W_\ell", "∏_(ℓ=1)ᴸ W_ℓ"),
    (r"\lim_{n\to\infty} a_n", "lim_(n→∞) aₙ"),
    (r"\binom{n}{k}", "(n choose k)"),
    (r"x \not\in A \not= B", "x ∉ A ≠ B"),
    (r"X \xrightarrow{d} Y \overset{d}{=} Z", "X →ᵈ Y =ᵈ Z"),
    (r"\underset{x}{\arg\min}\ f", "arg minₓ f"),
    (r"\underbrace{a+b}_{\text{bias}}", "a+b [bias]"),
    (r"\begin{cases} a & x<0 \\ b & \text{else} \end{cases}", "{a, x < 0; b, else}"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", "(1, 2; 3, 4)"),
    (r"\begin{aligned}a&=b\\c&=d\end{aligned}", "a = b; c = d"),
    (r"f\colon X \to Y", "f: X → Y"),
    (r"100\% \# \{a\} \$", "100% # {a} $"),
    (r"\color{red}{x}", "x"),
    (r"\unknown{x} \foo y", "unknown(x) foo y"),
    (r"90^\circ", "90°"),
    (r"\text{a 99 \% interval, ``all'' of x\_1}", "a 99 % interval, “all” of x_1"),
]


@pytest.mark.parametrize(("latex", "text"), FORMULAS)
def test_plain(latex: str, text: str) -> None:
    assert plain(latex) == text


@pytest.mark.parametrize(
    "latex",
    ["", "\\", "^", "_", "}", "{", r"\frac", r"\frac{", r"\sqrt[", r"\begin", r"\begin{x", r"\left",
     r"\text", r"\hat", r"\end{x}", "{" * 5000, "x" + "_{" * 50, r"\not", r"\color"],
)  # fmt: skip
def test_nothing_is_refused(latex: str) -> None:
    assert isinstance(plain(latex), str)


def test_every_statement_keeps_its_words() -> None:
    assert "\\" not in plain(r"\alpha \undefined \frac{\a}{\b} \text{x}")


def test_prose() -> None:
    assert plain_prose(r"at $\gamma$ or $$x^2$$, for $5 and $6") == "at γ or x², for $5 and $6"
    assert plain_prose(r"a \$x\$ b") == r"a \$x\$ b"


def test_spans_cover_the_text() -> None:
    text = "a $x$ b $y$"
    assert formula_spans(text) == [(False, "a "), (True, "x"), (False, " b "), (True, "y")]
    assert formula_spans("") == []
