r"""LaTeX formulas as text a terminal can show.

A formula keeps its reading order, so what cannot be set in Unicode is still understood:
``\frac{a+b}{2n}`` becomes ``(a+b)/(2n)``, ``W_{\text{out}}`` becomes ``W_out`` where no small
letters exist for it. Nothing is ever refused: an unknown command loses its backslash and stays.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

_TOKEN = re.compile(r"\\[A-Za-z]+\*?|\\.|\s+|.", re.DOTALL)

# Written with a space on either side.
_RELATIONS = dict(
    pair.split(":")
    for pair in [
        r"\le:≤",
        r"\leq:≤",
        r"\leqslant:≤",
        r"\ge:≥",
        r"\geq:≥",
        r"\geqslant:≥",
        r"\ll:≪",
        r"\gg:≫",
        r"\ne:≠",
        r"\neq:≠",
        r"\lesssim:≲",
        r"\gtrsim:≳",
        r"\approx:≈",
        r"\simeq:≃",
        r"\cong:≅",
        r"\equiv:≡",
        r"\sim:∼",
        r"\propto:∝",
        r"\asymp:≍",
        r"\doteq:≐",
        r"\in:∈",
        r"\notin:∉",
        r"\ni:∋",
        r"\subset:⊂",
        r"\subseteq:⊆",
        r"\supset:⊃",
        r"\supseteq:⊇",
        r"\preceq:⪯",
        r"\succeq:⪰",
        r"\prec:≺",
        r"\succ:≻",
        r"\perp:⊥",
        r"\parallel:∥",
        r"\mid:|",
        r"\models:⊨",
        r"\vdash:⊢",
        r"\coloneqq:≔",
        r"\to:→",
        r"\rightarrow:→",
        r"\longrightarrow:⟶",
        r"\leftarrow:←",
        r"\gets:←",
        r"\mapsto:↦",
        r"\longmapsto:⟼",
        r"\hookrightarrow:↪",
        r"\Rightarrow:⇒",
        r"\implies:⇒",
        r"\Longrightarrow:⇒",
        r"\Leftarrow:⇐",
        r"\iff:⇔",
        r"\Leftrightarrow:⇔",
        r"\leftrightarrow:↔",
        r"\uparrow:↑",
        r"\downarrow:↓",
        r"\rightharpoonup:⇀",
    ]
)
_SPACED = dict(
    pair.split(":")
    for pair in [
        r"\pm:±",
        r"\mp:∓",
        r"\cdot:·",
        r"\times:×",
        r"\div:÷",
        r"\cup:∪",
        r"\cap:∩",
        r"\setminus:∖",
        r"\wedge:∧",
        r"\land:∧",
        r"\vee:∨",
        r"\lor:∨",
        r"\oplus:⊕",
        r"\ominus:⊖",
        r"\otimes:⊗",
        r"\odot:⊙",
        r"\sqcup:⊔",
        r"\uplus:⊎",
    ]
)
_SYMBOLS = dict(
    pair.split(":")
    for pair in [
        r"\alpha:α",
        r"\beta:β",
        r"\gamma:γ",
        r"\delta:δ",
        r"\epsilon:ε",
        r"\varepsilon:ε",
        r"\zeta:ζ",
        r"\eta:η",
        r"\theta:θ",
        r"\vartheta:ϑ",
        r"\iota:ι",
        r"\kappa:κ",
        r"\lambda:λ",
        r"\mu:μ",
        r"\nu:ν",
        r"\xi:ξ",
        r"\omicron:ο",
        r"\pi:π",
        r"\varpi:ϖ",
        r"\rho:ρ",
        r"\varrho:ϱ",
        r"\sigma:σ",
        r"\varsigma:ς",
        r"\tau:τ",
        r"\upsilon:υ",
        r"\phi:φ",
        r"\varphi:φ",
        r"\chi:χ",
        r"\psi:ψ",
        r"\omega:ω",
        r"\Gamma:Γ",
        r"\Delta:Δ",
        r"\Theta:Θ",
        r"\Lambda:Λ",
        r"\Xi:Ξ",
        r"\Pi:Π",
        r"\Sigma:Σ",
        r"\Upsilon:Υ",
        r"\Phi:Φ",
        r"\Psi:Ψ",
        r"\Omega:Ω",
        r"\ell:ℓ",
        r"\infty:∞",
        r"\partial:∂",
        r"\nabla:∇",
        r"\forall:∀",
        r"\exists:∃",
        r"\nexists:∄",
        r"\emptyset:∅",
        r"\varnothing:∅",
        r"\neg:¬",
        r"\lnot:¬",
        r"\top:⊤",
        r"\bot:⊥",
        r"\bullet:•",
        r"\circ:∘",
        r"\ast:*",
        r"\star:⋆",
        r"\ldots:…",
        r"\dots:…",
        r"\dotsc:…",
        r"\dotsb:…",
        r"\cdots:⋯",
        r"\vdots:⋮",
        r"\ddots:⋱",
        r"\prime:′",
        r"\dagger:†",
        r"\hbar:ℏ",
        r"\Re:Re",
        r"\Im:Im",
        r"\aleph:ℵ",
        r"\degree:°",
        r"\angle:∠",
        r"\triangle:△",
        r"\square:□",
        r"\Box:□",
        r"\blacksquare:∎",
        r"\checkmark:✓",
        r"\langle:⟨",
        r"\rangle:⟩",
        r"\lceil:⌈",
        r"\rceil:⌉",
        r"\lfloor:⌊",
        r"\rfloor:⌋",
        r"\lvert:|",
        r"\rvert:|",
        r"\vert:|",
        r"\lVert:‖",
        r"\rVert:‖",
        r"\Vert:‖",
        r"\|:‖",
        r"\lbrace:{",
        r"\rbrace:}",
        r"\{:{",
        r"\}:}",
        r"\%:%",
        r"\#:#",
        r"\&:&",
        r"\$:$",
        r"\_:_",
        r"\backslash:∖",
        r"\intercal:ᵀ",
        r"\imath:ı",
        r"\jmath:ȷ",
        r"\sharp:♯",
        r"\flat:♭",
        r"\trianglelefteq:⊴",
    ]
) | {r"\colon": ":"}
_LARGE = dict(
    pair.split(":")
    for pair in [
        r"\sum:∑",
        r"\prod:∏",
        r"\coprod:∐",
        r"\int:∫",
        r"\iint:∬",
        r"\oint:∮",
        r"\bigcup:⋃",
        r"\bigcap:⋂",
        r"\bigoplus:⨁",
        r"\bigotimes:⨂",
        r"\bigwedge:⋀",
        r"\bigvee:⋁",
        r"\bigsqcup:⨆",
    ]
)
_FUNCTIONS = {
    "\\" + name: name
    for name in [
        "arg",
        "arccos",
        "arcsin",
        "arctan",
        "cos",
        "cosh",
        "cot",
        "coth",
        "csc",
        "deg",
        "det",
        "dim",
        "exp",
        "gcd",
        "hom",
        "inf",
        "ker",
        "lg",
        "lim",
        "ln",
        "log",
        "max",
        "min",
        "Pr",
        "sec",
        "sin",
        "sinh",
        "sup",
        "tan",
        "tanh",
        "tr",
        "rank",
        "diag",
        "sign",
        "sgn",
        "erf",
        "span",
        "conv",
        "softmax",
    ]
} | {
    r"\argmin": "argmin",
    r"\argmax": "argmax",
    r"\liminf": "lim inf",
    r"\limsup": "lim sup",
}
_SPACES = {r"\,", r"\:", r"\;", r"\ ", r"\>", "~", r"\quad", r"\qquad", r"\enspace", r"\space"}
_NOTHING = {
    *(
        [
            r"\left",
            r"\right",
            r"\middle",
            r"\big",
            r"\Big",
            r"\bigg",
            r"\Bigg",
            r"\bigl",
            r"\bigr",
            r"\Bigl",
            r"\Bigr",
            r"\biggl",
            r"\biggr",
        ]
    ),
    *(
        [
            r"\Biggl",
            r"\Biggr",
            r"\bigm",
            r"\Bigm",
            r"\displaystyle",
            r"\textstyle",
            r"\scriptstyle",
            r"\limits",
            r"\nolimits",
        ]
    ),
    *(
        [
            r"\!",
            r"\nonumber",
            r"\notag",
            r"\mathop",
            r"\mathrel",
            r"\mathbin",
            r"\mathord",
            r"\hfill",
            r"\strut",
            r"\noindent",
        ]
    ),
}
# No space after these, nor before those.
_TIGHT = {r"\partial", r"\nabla", r"\forall", r"\exists", r"\neg", r"\lVert", r"\lvert", r"\langle"}
_CLOSING = {r"\right", r"\rVert", r"\rvert", r"\rangle"}
_TEXT = {r"\text", r"\textrm", r"\textit", r"\textbf", r"\texttt", r"\textsf", r"\mbox", r"\hbox"}
_FONTS = {
    *(
        [
            r"\mathrm",
            r"\mathbf",
            r"\mathit",
            r"\mathsf",
            r"\mathtt",
            r"\mathfrak",
            r"\boldsymbol",
            r"\bm",
            r"\pmb",
            r"\mathnormal",
        ]
    ),
    *([r"\mathstrut", r"\smash", r"\boxed", r"\ensuremath", r"\underline"]),
}
_NAMED = {r"\operatorname", r"\operatorname*", r"\mathop"}
_DOUBLE = dict(zip("CHNPQRZE1kT", "ℂℍℕℙℚℝℤ𝔼𝟙𝕜𝕋", strict=True))
_SCRIPT = dict(zip("BEFHILMR", "ℬℰℱℋℐℒℳℛ", strict=True))
_ACCENTS = {
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
_SUPERSCRIPT = dict(
    zip(
        "0123456789+-−=()abcdefghijklmnoprstuvwxyzABDEGHIJKLMNOPRTUVWαβγδεθ′⊤*∗ ",
        "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁼⁽⁾ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻᴬᴮᴰᴱᴳᴴᴵᴶᴷᴸᴹᴺᴼᴾᴿᵀᵁⱽᵂᵅᵝᵞᵟᵋᶿ′ᵀ** ",
        strict=True,
    )
)
_SUBSCRIPT = dict(
    zip(
        "0123456789+-−=()aehijklmnoprstuvxβγρφχ ",
        "₀₁₂₃₄₅₆₇₈₉₊₋₋₌₍₎ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓᵦᵧᵨᵩᵪ ",
        strict=True,
    )
)
_FRACTIONS = {r"\frac", r"\tfrac", r"\dfrac", r"\cfrac", r"\nicefrac"}
_VULGAR = {"1/2": "½", "1/3": "⅓", "2/3": "⅔", "1/4": "¼", "3/4": "¾", "1/8": "⅛"}
_NEGATED = {
    "=": "≠",
    "∈": "∉",
    "≤": "≰",
    "≥": "≱",
    "<": "≮",
    ">": "≯",
    "⊂": "⊄",
    "≡": "≢",
    "∼": "≁",
}
_BRACKETS = {
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
_MATHS = re.compile(r"(?<!\\)\$(?=\S)([^$]+?)(?<=\S)\$|:math:`([^`]+)`")
# A script of more letters than this is a word, and words in tiny letters cannot be read.
_LONGEST_LETTERS = 3


@lru_cache(maxsize=4096)
def plain(latex: str) -> str:
    r"""A LaTeX formula (without dollars) as one line of Unicode text.

    >>> plain(r"t \le \frac{R^2}{\gamma^2}")
    't ≤ R²/γ²'
    >>> plain(r"\hat R_n(h) \le R(h) + \sqrt{\frac{\log(2/\delta)}{2n}}")
    'R̂ₙ(h) ≤ R(h) + √(log(2/δ)/(2n))'
    >>> plain(r"\|f\|_{\mathcal F} = \mathbb{E}_{x \sim p}[\, f(x) \,]")
    '‖f‖_ℱ = 𝔼_(x∼p)[f(x)]'
    """
    try:
        return _tidy(_Reader(_TOKEN.findall(latex)).sequence(None))
    except RecursionError:  # braces nested beyond all reading
        return latex


def plain_prose(text: str) -> str:
    """Text whose ``$...$`` are formulas, as plain text.

    >>> plain_prose(r"a margin of $\\gamma$ costs $5 or less")
    'a margin of γ costs $5 or less'
    """
    return _MATHS.sub(lambda found: plain(found[1] or found[2]), text)


def formula_spans(text: str) -> list[tuple[bool, str]]:
    """Text cut into formulas (True) and the words between them (False).

    >>> formula_spans("at most $n^2$ steps")
    [(False, 'at most '), (True, 'n^2'), (False, ' steps')]
    """
    spans, end = [], 0
    for found in _MATHS.finditer(text):
        spans += [(False, text[end : found.start()]), (True, found[1] or found[2])]
        end = found.end()
    spans.append((False, text[end:]))
    return [(is_formula, piece) for is_formula, piece in spans if piece]


class _Reader:
    """Reads tokens from the left; every method returns text."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.position = 0

    def peek(self) -> str | None:
        return self.tokens[self.position] if self.position < len(self.tokens) else None

    def take(self) -> str:
        token = self.tokens[self.position]
        self.position += 1
        return token

    def skip_space(self) -> None:
        while (token := self.peek()) is not None and token.isspace():
            self.position += 1

    def sequence(self, end: str | None) -> str:
        """Everything up to ``end``, which is consumed, or up to the last token."""
        pieces: list[str] = []
        while (token := self.peek()) is not None:
            if token == end:
                self.position += 1
                break
            if token in _CLOSING:
                while pieces and pieces[-1].isspace():
                    pieces.pop()
            pieces.append(self.piece(self.take(), "".join(pieces[-1:])))
        return "".join(pieces)

    def argument(self) -> str:
        """The next braced group or single token."""
        self.skip_space()
        token = self.peek()
        if token is None or token == "}":
            return ""
        self.position += 1
        return self.sequence("}") if token == "{" else self.piece(token, "").strip()

    def raw_argument(self) -> str:
        """The next braced group as it stands, for text and names of environments."""
        self.skip_space()
        if self.peek() != "{":
            return self.take() if self.peek() is not None else ""
        self.position += 1
        depth, taken = 1, []
        while (token := self.peek()) is not None:
            self.position += 1
            depth += (token == "{") - (token == "}")
            if depth == 0:
                break
            taken.append(token)
        return "".join(taken)

    def option(self) -> str | None:
        """An argument in square brackets, where there is one."""
        if self.peek() != "[":
            return None
        self.position += 1
        return self.sequence("]")

    def piece(self, token: str, before: str) -> str:
        if token.isspace():
            return " "
        if token in "{}" or token in ("^", "_", "'", "&"):
            return self._mark(token)
        if token in ("=", "<", ">"):
            return f" {token} "
        if not token.startswith("\\"):
            return token
        for table, pattern in ((_RELATIONS, " {} "), (_SPACED, " {} "), (_SYMBOLS, "{}")):
            if token in table:
                if token in _TIGHT:
                    self.skip_space()
                return pattern.format(table[token])
        if token in _LARGE:
            return self._operator(_LARGE[token], before)
        if token in _FUNCTIONS:
            return self._operator(_FUNCTIONS[token], before, function=True)
        if token in _NAMED:
            return self._operator(_tidy(self.argument()), before, function=True)
        if token in _FRACTIONS:
            return self._fraction(before)
        return self._command(token)

    def _mark(self, token: str) -> str:
        match token:
            case "{":
                return self.sequence("}")
            case "^":
                return _script("^", self.argument(), _SUPERSCRIPT)
            case "_":
                return _script("_", self.argument(), _SUBSCRIPT)
            case "'":
                return "′"
            case "&":
                return " "
        return ""

    def _fraction(self, before: str) -> str:
        text = _fraction(self.argument(), self.argument())
        if text in _VULGAR:
            return _VULGAR[text]
        space = " " if before[-1:].isalnum() or before[-1:] == ")" else ""
        follows = (self.peek() or ")")[0]
        return space + text + (" " if follows.isalnum() or follows in "\\{(" else "")

    def _operator(self, name: str, before: str, *, function: bool = False) -> str:
        """A function or a large operator with its limits, kept apart from its neighbours."""
        space = " " if before[-1:].isalnum() or before[-1:] in (")", "′") else ""
        while True:
            self.skip_space()
            if self.peek() in (r"\limits", r"\nolimits"):
                self.take()
            elif self.peek() in ("^", "_"):
                name += self._mark(self.take())
            else:
                break
        follows = self.peek()
        if function and follows in _FRACTIONS:
            self.take()
            return f"{space}{name}({self._fraction('').strip()})"
        apart = follows is not None and follows not in ("(", "[", ")", "]", "}", ",", r"\left", "|")
        return space + name + (" " if apart else "")

    def _command(self, token: str) -> str:
        if token in _SPACES:
            return " "
        if token in _NOTHING:
            return self._delimiter(token) if token in (r"\left", r"\right") else ""
        if token in _TEXT:
            return plain_prose(self.raw_argument())
        if token in _FONTS:
            return self.argument()
        if token in _ACCENTS:
            return _accent(self.argument(), *_ACCENTS[token])
        if token == r"\mathbb" or token == r"\mathds":
            return "".join(_DOUBLE.get(c, c) for c in self.argument())
        if token in (r"\mathcal", r"\mathscr"):
            return "".join(_SCRIPT.get(c, c) for c in self.argument())
        if token in (r"\binom", r"\tbinom", r"\dbinom"):
            return f"({_tidy(self.argument())} choose {_tidy(self.argument())})"
        if token == r"\sqrt":
            return self._root()
        if token == r"\not":
            negated = self.argument()
            return f" {_NEGATED.get(negated, '¬' + negated)} "
        if token in (r"\overset", r"\stackrel"):
            over = self.argument()
            return f" {self.argument().strip()}{_script('^', over, _SUPERSCRIPT)} "
        if token == r"\underset":
            under = self.argument()
            return f" {self.argument().strip()}{_script('_', under, _SUBSCRIPT)} "
        if token in (r"\xrightarrow", r"\xlongrightarrow"):
            return f" →{_script('^', self.argument(), _SUPERSCRIPT)} "
        if token in (r"\underbrace", r"\overbrace"):
            return self._brace()
        if token in (r"\color", r"\textcolor", r"\tag", r"\label"):
            self.raw_argument()
            return ""
        if token in (r"\pmod", r"\bmod", r"\mod"):
            return " mod " + (self.argument() if token != r"\bmod" else "")
        if token == r"\substack":
            return self.argument().replace("; ", ", ")
        if token == r"\\":
            self.option()
            return "; "
        if token == r"\begin":
            return self._environment()
        if token == r"\end":
            self.raw_argument()
            return ""
        name = token[1:].rstrip("*")
        return f"{name}({self.argument()})" if self.peek() == "{" else name

    def _delimiter(self, side: str) -> str:
        """The bracket that follows, without the space on its inner side."""
        self.skip_space()
        if self.peek() is None:
            return ""
        token = self.take()
        text = "" if token == "." else self.piece(token, "").strip()
        if side == r"\left":
            self.skip_space()
        return text

    def _root(self) -> str:
        degree = _tidy(self.option() or "")
        sign = {"": "√", "2": "√", "3": "∛", "4": "∜"}.get(degree)
        if sign is None:
            raised = _raised(degree, _SUPERSCRIPT)
            sign = raised + "√" if raised else f"({degree})√"
        return f"{sign}({_tidy(self.argument())})"

    def _brace(self) -> str:
        body = self.argument()
        if self.peek() in ("_", "^"):
            self.take()
            return f"{body} [{_tidy(self.argument())}]"
        return body

    def _environment(self) -> str:
        name = self.raw_argument().rstrip("*")
        if name in ("array", "tabular"):
            self.raw_argument()
        start = self.position
        depth = 1
        while (token := self.peek()) is not None:
            if token == r"\begin":
                depth += 1
            elif token == r"\end":
                depth -= 1
                if depth == 0:
                    break
            self.position += 1
        inside = self.tokens[start : self.position]
        if self.peek() is not None:
            self.take()
            self.raw_argument()
        opening, closing = _BRACKETS.get(name, ("", ""))
        rows = [_Reader(row).cells() for row in _split(inside, r"\\")]
        between = ", " if opening else " "
        text = "; ".join(between.join(c for c in row if c) for row in rows if any(row))
        return f"{opening}{text}{closing}"

    def cells(self) -> list[str]:
        return [_tidy(_Reader(cell).sequence(None)) for cell in _split(self.tokens, "&")]


def _split(tokens: list[str], separator: str) -> list[list[str]]:
    """Cut at separators that stand outside every group and environment."""
    parts: list[list[str]] = [[]]
    depth = 0
    for token in tokens:
        depth += (token in ("{", r"\begin")) - (token in ("}", r"\end"))
        if token == separator and depth == 0:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _tidy(text: str) -> str:
    text = re.sub(r"\s+", " ", text).strip()
    text = re.sub(r" ([,;.)\]⟩⌉⌋])", r"\1", text)
    text = re.sub(r"([(\[⟨⌈⌊]) ", r"\1", text)
    return re.sub(r"([‖|]) · ([‖|])", r"\1·\2", text)


def _is_atom(text: str) -> bool:
    """A number, a name with its scripts and accents, or something already in brackets."""
    if re.fullmatch(r"[\d.,]+", text) or re.fullmatch(r"√?\([^()]*\)|‖[^‖ ]*‖[²³₂]?", text):
        return True
    letters = [c for c in text if unicodedata.category(c) not in ("Mn", "Lm", "No", "Sk")]
    letters = [c for c in letters if c != "∂"]
    return len(letters) <= 1 or bool(re.fullmatch(r"[^\W\d_](_\w+)?[²³]?", text))


def _fraction(top: str, bottom: str) -> str:
    top, bottom = _tidy(top), _tidy(bottom)
    if re.search(r"[+\-−±=≤≥<>, ]", re.sub(r"\([^()]*\)|\[[^\[\]]*\]", "", top)):
        top = f"({top})"
    if not _is_atom(bottom):
        bottom = f"({bottom})"
    return f"{top}/{bottom}"


def _raised(text: str, alphabet: dict[str, str]) -> str | None:
    letters = sum(c.isalpha() for c in text)
    if text and letters <= _LONGEST_LETTERS and all(c in alphabet for c in text):
        return "".join(alphabet[c] for c in text if c != " ")
    return None


def _script(mark: str, text: str, alphabet: dict[str, str]) -> str:
    text = _tidy(text)
    small = _raised(text, alphabet)
    if small is not None:
        return small
    if text in ("", "∘"):
        return "°" if text else ""
    text = re.sub(r" ([=≤≥<>→∈∼≠]) ", r"\1", text)
    return mark + (text if re.fullmatch(r"[\w.]+|[^\w\s]|\([^()]*\)", text) else f"({text})")


def _accent(text: str, mark: str, name: str) -> str:
    text = _tidy(text)
    first = text[:1]
    if first and len([c for c in text if not unicodedata.combining(c)]) == 1:
        return unicodedata.normalize("NFC", text + mark)
    return f"{name}({text})"
