r"""LaTeX formulas as text a terminal can show.

A formula keeps its reading order, so what cannot be set in Unicode is still understood:
`\frac{a+b}{2n}` becomes `(a+b)/(2n)`, `W_{\text{out}}` becomes `W_out` where no small
letters exist for it. Nothing is ever refused: an unknown command loses its backslash and stays.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from torchtheory.report import symbols

_TOKEN = re.compile(r"\\[A-Za-z]+\*?|\\.|\s+|.", re.DOTALL)

_MATH = re.compile(r"(?<!\\)\$\$\s*([^$]+?)\s*\$\$|(?<!\\)\$(?=\S)([^$]+?)(?<=\S)\$")
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
    """Text whose `$...$` and `$$...$$` are formulas, as plain text.

    >>> plain_prose(r"a margin of $\\gamma$ costs $5 or less")
    'a margin of γ costs $5 or less'
    """
    return _MATH.sub(lambda found: plain(found[1] or found[2]), text)


def text_mode(text: str) -> str:
    r"""The inside of a LaTeX `\text{}`: its escapes and quotes resolved.

    >>> text_mode(r"``all'' of 99 \%")
    '“all” of 99 %'
    """
    text = re.sub(r"\\([%_&#])", r"\1", text)
    return text.replace("``", "“").replace("''", "”")


def formula_spans(text: str) -> list[tuple[bool, str]]:
    """Text cut into formulas (True) and the words between them (False).

    >>> formula_spans("at most $n^2$ steps")
    [(False, 'at most '), (True, 'n^2'), (False, ' steps')]
    """
    spans, end = [], 0
    for found in _MATH.finditer(text):
        spans += [(False, text[end : found.start()]), (True, found[1] or found[2])]
        end = found.end()
    spans.append((False, text[end:]))
    return [(is_formula, piece) for is_formula, piece in spans if piece]


def as_statement(text: str) -> str:
    r"""Words with `$formulas$` in them as one LaTeX formula.

    >>> as_statement("At most $n^2$ steps, in 99 % of cases")
    '\\text{At most }n^2\\text{ steps, in 99 \\% of cases}'
    """
    pieces = []
    for is_formula, piece in formula_spans(text):
        words = re.sub(r"([%_&#{}])", r"\\\1", piece)
        pieces.append(piece if is_formula else rf"\text{{{words}}}")
    return "".join(pieces)


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
        """Everything up to `end`, which is consumed, or up to the last token."""
        pieces: list[str] = []
        while (token := self.peek()) is not None:
            if token == end:
                self.position += 1
                break
            if token in symbols.CLOSING:
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
        for table, pattern in ((symbols.RELATIONS, " {} "), (symbols.SYMBOLS, "{}")):
            if token in table:
                if token in symbols.TIGHT:
                    self.skip_space()
                return pattern.format(table[token])
        if token in symbols.LARGE:
            return self._operator(symbols.LARGE[token], before)
        if token in symbols.FUNCTIONS:
            return self._operator(symbols.FUNCTIONS[token], before, function=True)
        if token in symbols.NAMED:
            return self._operator(_tidy(self.argument()), before, function=True)
        if token in symbols.FRACTIONS:
            return self._fraction(before)
        return self._command(token)

    def _mark(self, token: str) -> str:
        match token:
            case "{":
                return self.sequence("}")
            case "^":
                return _script("^", self.argument(), symbols.SUPERSCRIPT)
            case "_":
                return _script("_", self.argument(), symbols.SUBSCRIPT)
            case "'":
                return "′"
            case "&":
                return " "
        return ""

    def _fraction(self, before: str) -> str:
        text = _fraction(self.argument(), self.argument())
        if text in symbols.VULGAR:
            return symbols.VULGAR[text]
        space = " " if before[-1:].isalnum() or before[-1:] == ")" else ""
        follows = (self.peek() or ")")[0]
        return space + text + (" " if follows.isalnum() or follows in "\\{(" else "")

    def _operator(self, name: str, before: str, *, function: bool = False) -> str:
        """A function or a large operator with its limits, kept apart from its neighbors."""
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
        if function and follows in symbols.FRACTIONS:
            self.take()
            return f"{space}{name}({self._fraction('').strip()})"
        apart = follows is not None and follows not in ("(", "[", ")", "]", "}", ",", r"\left", "|")
        return space + name + (" " if apart else "")

    def _command(self, token: str) -> str:
        if token in symbols.SPACES:
            return " "
        if token in symbols.NOTHING:
            return self._delimiter(token) if token in (r"\left", r"\right") else ""
        if token in symbols.TEXT:
            return plain_prose(text_mode(self.raw_argument()))
        if token in symbols.FONTS:
            return self.argument()
        if token in symbols.ACCENTS:
            return _accent(self.argument(), *symbols.ACCENTS[token])
        if token == r"\mathbb" or token == r"\mathds":
            return "".join(symbols.DOUBLE.get(c, c) for c in self.argument())
        if token in (r"\mathcal", r"\mathscr"):
            return "".join(symbols.SCRIPT.get(c, c) for c in self.argument())
        if token in (r"\binom", r"\tbinom", r"\dbinom"):
            return f"({_tidy(self.argument())} choose {_tidy(self.argument())})"
        if token == r"\sqrt":
            return self._root()
        if token == r"\not":
            negated = self.argument()
            return f" {symbols.NEGATED.get(negated, '¬' + negated)} "
        if token in (r"\overset", r"\stackrel"):
            over = self.argument()
            return f" {self.argument().strip()}{_script('^', over, symbols.SUPERSCRIPT)} "
        if token == r"\underset":
            under = self.argument()
            return f" {self.argument().strip()}{_script('_', under, symbols.SUBSCRIPT)} "
        if token in (r"\xrightarrow", r"\xlongrightarrow"):
            return f" →{_script('^', self.argument(), symbols.SUPERSCRIPT)} "
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
            raised = _raised(degree, symbols.SUPERSCRIPT)
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
        opening, closing = symbols.BRACKETS.get(name, ("", ""))
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
