r"""LaTeX commands and the characters they stand for."""

from __future__ import annotations


def words(text: str) -> frozenset[str]:
    """The words of a text, as a set."""
    return frozenset(text.split())


def pairs(text: str) -> dict[str, str]:
    """Words two by two: what stands for what."""
    first, second = text.split()[::2], text.split()[1::2]
    return dict(zip(first, second, strict=True))


# Written with a space on either side.
RELATIONS = pairs(r"""
    \le ≤ \leq ≤ \leqslant ≤ \ge ≥ \geq ≥ \geqslant ≥ \ll ≪ \gg ≫ \ne ≠ \neq ≠ \lesssim ≲ \gtrsim ≳
    \approx ≈ \simeq ≃ \cong ≅ \equiv ≡ \sim ∼ \propto ∝ \asymp ≍ \doteq ≐ \in ∈ \notin ∉ \ni ∋
    \subset ⊂ \subseteq ⊆ \supset ⊃ \supseteq ⊇ \preceq ⪯ \succeq ⪰ \prec ≺ \succ ≻ \perp ⊥
    \parallel ∥ \mid | \models ⊨ \vdash ⊢ \coloneqq ≔ \trianglelefteq ⊴
    \to → \rightarrow → \longrightarrow ⟶ \leftarrow ← \gets ← \mapsto ↦ \longmapsto ⟼
    \hookrightarrow ↪ \Rightarrow ⇒ \implies ⇒ \Longrightarrow ⇒ \Leftarrow ⇐ \iff ⇔
    \Leftrightarrow ⇔ \leftrightarrow ↔ \uparrow ↑ \downarrow ↓ \rightharpoonup ⇀
    \pm ± \mp ∓ \cdot · \times × \div ÷ \cup ∪ \cap ∩ \setminus ∖ \wedge ∧ \land ∧ \vee ∨ \lor ∨
    \oplus ⊕ \ominus ⊖ \otimes ⊗ \odot ⊙ \sqcup ⊔ \uplus ⊎
""")

# Written as they are.
SYMBOLS = pairs(r"""
    \alpha α \beta β \gamma γ \delta δ \epsilon ε \varepsilon ε \zeta ζ \eta η \theta θ \vartheta ϑ
    \iota ι \kappa κ \lambda λ \mu μ \nu ν \xi ξ \omicron ο \pi π \varpi ϖ \rho ρ \varrho ϱ \sigma σ
    \varsigma ς \tau τ \upsilon υ \phi φ \varphi φ \chi χ \psi ψ \omega ω \Gamma Γ \Delta Δ \Theta Θ
    \Lambda Λ \Xi Ξ \Pi Π \Sigma Σ \Upsilon Υ \Phi Φ \Psi Ψ \Omega Ω
    \ell ℓ \infty ∞ \partial ∂ \nabla ∇ \forall ∀ \exists ∃ \nexists ∄ \emptyset ∅ \varnothing ∅
    \neg ¬ \lnot ¬ \top ⊤ \bot ⊥ \bullet • \circ ∘ \ast * \star ⋆ \ldots … \dots … \dotsc … \dotsb …
    \cdots ⋯ \vdots ⋮ \ddots ⋱ \prime ′ \dagger † \hbar ℏ \Re Re \Im Im \aleph ℵ \degree ° \angle ∠
    \triangle △ \square □ \Box □ \blacksquare ∎ \checkmark ✓ \intercal ᵀ \imath ı \jmath ȷ \sharp ♯
    \flat ♭ \colon : \langle ⟨ \rangle ⟩ \lceil ⌈ \rceil ⌉ \lfloor ⌊ \rfloor ⌋ \lvert | \rvert |
    \vert | \lVert ‖ \rVert ‖ \Vert ‖ \| ‖ \lbrace { \rbrace } \{ { \} } \% % \# # \& & \$ $ \_ _
    \backslash ∖
""")

# With limits, and kept apart from what follows.
LARGE = pairs(r"""
    \sum ∑ \prod ∏ \coprod ∐ \int ∫ \iint ∬ \oint ∮ \bigcup ⋃ \bigcap ⋂ \bigoplus ⨁ \bigotimes ⨂
    \bigwedge ⋀ \bigvee ⋁ \bigsqcup ⨆
""")
FUNCTIONS = {
    "\\" + name: name
    for name in words("""
        arg arccos arcsin arctan cos cosh cot coth csc deg det dim exp gcd hom inf ker lg lim ln log
        max min Pr sec sin sinh sup tan tanh tr rank diag sign sgn erf span conv softmax argmin
        argmax
    """)
} | {r"\liminf": "lim inf", r"\limsup": "lim sup"}

SPACES = words(r"\, \: \; \> ~ \quad \qquad \enspace \space") | {"\\ "}
NOTHING = words(r"""
    \left \right \middle \big \Big \bigg \Bigg \bigl \bigr \Bigl \Bigr \biggl \biggr \Biggl \Biggr
    \bigm \Bigm \displaystyle \textstyle \scriptstyle \limits \nolimits \! \nonumber \notag \mathrel
    \mathbin \mathord \hfill \strut \noindent
""")
TEXT = words(r"\text \textrm \textit \textbf \texttt \textsf \mbox \hbox")
NAMED = words(r"\operatorname \operatorname* \mathop")
FONTS = words(r"""
    \mathrm \mathbf \mathit \mathsf \mathtt \mathfrak \boldsymbol \bm \pmb \mathnormal \smash \boxed
    \ensuremath \underline
""")
FRACTIONS = words(r"\frac \tfrac \dfrac \cfrac \nicefrac")
VULGAR = pairs("1/2 ½ 1/3 ⅓ 2/3 ⅔ 1/4 ¼ 3/4 ¾ 1/8 ⅛")

# No space after these, nor before those.
TIGHT = words(r"\partial \nabla \forall \exists \neg \lVert \lvert \langle")
CLOSING = words(r"\right \rVert \rvert \rangle")

DOUBLE = pairs("C ℂ H ℍ N ℕ P ℙ Q ℚ R ℝ Z ℤ E 𝔼 1 𝟙 k 𝕜 T 𝕋")
SCRIPT = pairs("B ℬ E ℰ F ℱ H ℋ I ℐ L ℒ M ℳ R ℛ")
NEGATED = pairs("= ≠ ∈ ∉ ≤ ≰ ≥ ≱ < ≮ > ≯ ⊂ ⊄ ≡ ≢ ∼ ≁")

# A combining mark for one letter, a name for more.
ACCENTS = {
    r"\hat": ("\u0302", "hat"),
    r"\widehat": ("\u0302", "hat"),
    r"\bar": ("\u0304", "mean"),
    r"\overline": ("\u0304", "bar"),
    r"\tilde": ("\u0303", "tilde"),
    r"\widetilde": ("\u0303", "tilde"),
    r"\dot": ("\u0307", "dot"),
    r"\ddot": ("\u0308", "ddot"),
    r"\vec": ("\u20d7", "vec"),
    r"\check": ("\u030c", "check"),
    r"\breve": ("\u0306", "breve"),
    r"\mathring": ("\u030a", "ring"),
}

SUPERSCRIPT = dict(
    zip(
        "0123456789+-−=()abcdefghijklmnoprstuvwxyzABDEGHIJKLMNOPRTUVWαβγδεθ′⊤*∗ ",
        "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁼⁽⁾ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻᴬᴮᴰᴱᴳᴴᴵᴶᴷᴸᴹᴺᴼᴾᴿᵀᵁⱽᵂᵅᵝᵞᵟᵋᶿ′ᵀ** ",
        strict=True,
    )
)
SUBSCRIPT = dict(
    zip(
        "0123456789+-−=()aehijklmnoprstuvxβγρφχ ",
        "₀₁₂₃₄₅₆₇₈₉₊₋₋₌₍₎ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓᵦᵧᵨᵩᵪ ",
        strict=True,
    )
)

# Brackets of an environment.
BRACKETS = {
    "pmatrix": ("(", ")"),
    "bmatrix": ("[", "]"),
    "Bmatrix": ("{", "}"),
    "vmatrix": ("|", "|"),
    "Vmatrix": ("‖", "‖"),
    "matrix": ("[", "]"),
    "smallmatrix": ("[", "]"),
    "array": ("[", "]"),
    "cases": ("{", "}"),
}
