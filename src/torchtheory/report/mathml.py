r"""Formulas and prose as HTML: LaTeX becomes MathML, everything else is escaped.

latex2mathml passes some of its input through as markup (`\text{<b>}`, `\href`, `\style`), so
its tree, not its string, is used here: the elements and attributes of MathML Core that a formula
needs are written out, each value checked, each text escaped, and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from xml.etree.ElementTree import Element

from latex2mathml.converter import convert_to_element
from latex2mathml.symbols_parser import convert_symbol
from markupsafe import Markup, escape

from torchtheory.report.plain_math import formula_spans, text_mode
from torchtheory.report.symbols import pairs, words

_ELEMENTS = words("""
    mi mn mo ms mtext mspace mrow mfrac msqrt mroot msub msup msubsup munder mover munderover
    mmultiscripts mprescripts mtable mtr mtd mstyle mpadded mphantom
""")
_ATTRIBUTES = words("""
    stretchy fence form separator lspace rspace width height depth accent accentunder linethickness
    displaystyle scriptlevel minsize maxsize movablelimits largeop symmetric columnspan rowspan
""")
_VALUE = re.compile(r"[\w.+ %-]{0,32}")
_REFERENCE = re.compile(r"&#x([0-9A-Fa-f]{1,6});")
_ROMAN = re.compile(r"&#x000[4-7][0-9A-F];")
_MACRO = re.compile(r"\\(re)?newcommand|\\def\b|\\let\b|\\Declare")
_LONGEST = 4000

# A formula may be broken before these, and after a comma, outside brackets.
_BREAK_BEFORE = frozenset("=<>≤≥≪≫≠≈≃≅≡∼∝≲≳∈∉⊂⊆⊃⊇→⟶⟹⇒⇔⟺↦⟼≔⪯⪰")
_BREAK_WHEN_LONG = frozenset("+−-±·×∪∩⊕⊗")
_LONG_PIECE = 3
_LIMITS_BELOW = words("lim sup inf max min")
_SCRIPTED = words("msub msup msubsup munder munderover")
_OPENING, _CLOSING = frozenset("([{⟨⌊⌈"), frozenset(")]}⟩⌋⌉")

# First letters of the styled alphabets of Unicode: capitals, small letters, digits.
_ALPHABETS = {
    "bold": (0x1D400, 0x1D41A, 0x1D7CE),
    "bold-italic": (0x1D468, 0x1D482, 0x1D7CE),
    "sans-serif": (0x1D5A0, 0x1D5BA, 0x1D7E2),
    "monospace": (0x1D670, 0x1D68A, 0x1D7F6),
    "double-struck": (0x1D538, 0x1D552, 0x1D7D8),
    "script": (0x1D49C, 0x1D4B6, ord("0")),
    "fraktur": (0x1D504, 0x1D51E, ord("0")),
}
# Letters that Unicode had before it had their alphabets.
_OLDER = {
    "double-struck": pairs("C ℂ H ℍ N ℕ P ℙ Q ℚ R ℝ Z ℤ"),
    "script": pairs("B ℬ E ℰ F ℱ H ℋ I ℐ L ℒ M ℳ R ℛ e ℯ g ℊ o ℴ"),
    "fraktur": pairs("C ℭ H ℌ I ℑ R ℜ Z ℨ"),
}
_GREEK = {"bold": (0x1D6A8, 0x1D6C2), "bold-italic": (0x1D71C, 0x1D736)}


@lru_cache(maxsize=4096)
def formula(latex: str, *, display: bool = False) -> Markup:
    r"""A LaTeX formula (without dollars) as MathML that may break across lines.

    What cannot be parsed is shown as it was written.

    >>> formula(r"a \le b")
    Markup('<math><mi>a</mi></math><wbr><math><mo form="infix">≤</mo><mi>b</mi></math>')
    >>> formula(r"\frac{a}{")
    Markup('<code class="tex">\\frac{a}{</code>')
    """
    try:
        if _MACRO.search(latex) or len(latex) > _LONGEST:
            raise ValueError("macros and whole pages are shown, not set")
        tree = convert_to_element(latex, display="block" if display else "inline")
        if display:
            _limits_below(tree)
        pieces = _pieces(tree)
    except Exception:  # latex2mathml raises whatever its parser stumbles over
        return Markup('<code class="tex">{}</code>').format(latex)
    opening = '<math displaystyle="true">' if display else "<math>"
    made = [p if p.startswith("<span") else f"{opening}{p}</math>" for p in pieces]
    return Markup("<wbr>".join(made))


def prose(text: str) -> Markup:
    """Plain text with `$formulas$` and ```code```, escaped.

    >>> prose("a <b> and `x`")
    Markup('a &lt;b&gt; and <code>x</code>')
    """
    pieces = []
    for is_formula, piece in formula_spans(text):
        pieces.append(formula(piece) if is_formula else _words(piece))
    return Markup("").join(pieces)


def paragraphs(text: str) -> Markup:
    """A docstring: paragraphs at blank lines, lists where lines begin with a hyphen or a star."""
    blocks = []
    for block in re.split(r"\n\s*\n", text.strip()):
        items = re.split(r"(?m)^\s*[-*] ", block)
        if items[0].strip():
            blocks.append(Markup("<p>{}</p>").format(prose(_one_line(items[0]))))
        if len(items) > 1:
            rows = Markup("").join(
                Markup("<li>{}</li>").format(prose(_one_line(item))) for item in items[1:]
            )
            blocks.append(Markup("<ul>{}</ul>").format(rows))
    return Markup("\n").join(blocks)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _words(text: str) -> Markup:
    parts = re.split(r"``(.+?)``|`([^`\n]+)`", text)
    pieces = []
    for i in range(0, len(parts), 3):
        pieces.append(escape(parts[i]))
        if i + 1 < len(parts):
            pieces.append(Markup("<code>{}</code>").format(parts[i + 1] or parts[i + 2]))
    return Markup("").join(pieces)


def _pieces(root: Element) -> list[str]:
    """The top level of a formula, cut where a line may end.

    Browsers do not break inside one formula, so each piece is a formula of its own, and words
    stand between them as words.
    """
    children = list(root)
    while len(children) == 1 and children[0].tag == "mrow":
        children = list(children[0])
    if not children:
        raise ValueError("an empty formula")
    pieces: list[str] = []
    current: list[str] = []
    depth = 0

    def close() -> None:
        if current:
            pieces.append("".join(current))
            current.clear()

    for i, child in enumerate(children):
        text = _text(child)
        operator = child.tag == "mo"
        if child.tag == "mtext" and " " in text.replace("\xa0", " ").strip():
            close()
            spaced = text.replace("\xa0", " ")
            pieces.append(f'<span class="words">{escape(spaced)}</span>')
            continue
        if operator and depth == 0 and current:
            long = len(current) >= _LONG_PIECE and text in _BREAK_WHEN_LONG
            if text in _BREAK_BEFORE or long:
                close()
                child.set("form", "infix")
        current.append(_write_beside(child, children[i - 1] if i and current else None))
        if operator and text in _OPENING:
            depth += 1
        elif operator and text in _CLOSING:
            depth = max(depth - 1, 0)
        elif depth == 0 and (text == "," or child.get("width") in ("1em", "2em")):
            close()
    close()
    return pieces


def _limits_below(tree: Element) -> None:
    for node in tree.iter("msub"):
        if len(node) and node[0].tag == "mo" and _text(node[0]) in _LIMITS_BELOW:
            node.tag = "munder"


def _with_left(nodes: Iterable[Element]) -> Iterator[tuple[Element | None, Element]]:
    left = None
    for node in nodes:
        yield left, node
        left = node


def _write_beside(node: Element, left: Element | None) -> str:
    """A node with the thin space TeX puts between the name of a function and its neighbors."""
    if left is None or left.tag == "mspace" or node.tag == "mspace":
        return _write(node)
    operator = node.tag == "mo" and not _is_name(node) and _text(node) not in ("|", "‖")
    after_name = _is_name(left) and not operator and not _fenced(node)
    before_name = _is_name(node) and (left.tag != "mo" or _text(left) in _CLOSING)
    space = '<mspace width="0.17em"></mspace>' if after_name or before_name else ""
    return space + _write(node)


def _is_name(node: Element) -> bool:
    """log, \\max_x, \\operatorname{erf}: letters that are one word."""
    while node.tag in _SCRIPTED and len(node):
        node = node[0]
    text = _text(node)
    return node.tag in ("mi", "mo") and len(text) > 1 and text.replace("\u2009", "").isalpha()


def _fenced(node: Element) -> bool:
    return node.tag == "mrow" and len(node) > 0 and _text(node[0]) in _OPENING


def _write(node: Element) -> str:
    tag = node.tag if node.tag in _ELEMENTS else "mrow"
    if tag == "mo" and _is_name(node):
        tag = "mi"  # an operator would get the spaces of a relation
    elif tag == "mi" and _text(node) == ":":
        tag = "mo"  # and this is one
        node.set("form", "infix")
    elif tag == "mo" and _text(node) in ("|", "‖") and not node.get("lspace"):
        node.attrib |= {"lspace": "0", "rspace": "0"}  # a bar between two letters is no relation
    text, variant = _text(node), node.get("mathvariant", "")
    if tag == "mi" and re.fullmatch(r"\\[A-Za-z]+\*?", text):
        text = text.strip("\\*")  # a command nobody defined: its name
    attributes = "".join(
        f' {name}="{value}"'
        for name, value in node.attrib.items()
        if name in _ATTRIBUTES and _VALUE.fullmatch(value)
    )
    # latex2mathml writes the single letter of \mathrm{d} as a reference, and no other letter
    upright = variant == "normal" or _ROMAN.fullmatch(node.text or "")
    if upright and tag == "mi":
        attributes += ' mathvariant="normal"'
    elif variant in _ALPHABETS:
        text = "".join(_styled(c, variant) for c in text)
    if node.get("columnalign") in ("left", "right") and tag == "mtd":
        attributes += f' style="text-align:{node.get("columnalign")}"'
    if tag == "mrow":
        inside = "".join(_write_beside(child, left) for left, child in _with_left(node))
    else:
        inside = str(escape(text)) + "".join(_write(child) for child in node)
    return f"<{tag}{attributes}>{inside}</{tag}>"


def _text(node: Element) -> str:
    """The text of a node, with the character references latex2mathml writes resolved."""
    text = _REFERENCE.sub(lambda found: chr(int(found[1], 16)), node.text or "")
    if node.tag == "mo" and text.startswith("\\"):
        # the brackets of \bigl and \Bigr are left as they were written
        code = convert_symbol(text)
        text = chr(int(code, 16)) if code else text.lstrip("\\")
    return text_mode(text) if node.tag == "mtext" else text


def _styled(character: str, variant: str) -> str:
    if character in _OLDER.get(variant, ()):
        return _OLDER[variant][character]
    capital, small, digit = _ALPHABETS[variant]
    for first, start, size in (("A", capital, 26), ("a", small, 26), ("0", digit, 10)):
        if 0 <= ord(character) - ord(first) < size:
            return chr(start + ord(character) - ord(first))
    if variant in _GREEK:
        for first, start in zip("Αα", _GREEK[variant], strict=True):
            if 0 <= ord(character) - ord(first) < 25:
                return chr(start + ord(character) - ord(first))
    return character
