r"""What of a formula cannot be set, and what of a text was meant to be one.

A page shows whatever it is given. These say beforehand what a reader would stumble over: brackets
that do not close, commands nobody defined, and LaTeX that stands outside of dollars.
"""

from __future__ import annotations

import re

from latex2mathml.converter import convert_to_element

from torchtheory.report.plain_math import formula_spans

# what \text{…} sets in words may open a bracket that a formula closes
_WORDS = re.compile(r"\\(?:text|textrm|textit|textbf|mbox)\s*\{([^{}]*)\}")
# \{ and \left are tokens, and so is a bracket
_TOKENS = re.compile(r"\\(?:begin|end)\s*\{\w+\*?\}|\\[A-Za-z]+|\\.|[{}()\[\]]")
_PAIRS = {
    "{": "}",
    "(": ")",
    "[": "]",
    r"\{": r"\}",
    r"\lbrace": r"\rbrace",
    r"\langle": r"\rangle",
    r"\lfloor": r"\rfloor",
    r"\lceil": r"\rceil",
    r"\lvert": r"\rvert",
    r"\lVert": r"\rVert",
}
_CLOSING = {closing: opening for opening, closing in _PAIRS.items()}
_BIG = re.compile(r"\\(?:big|Big|bigg|Bigg)([lr])$")
# An interval may be half open.
_ALIKE = {"(": "(", "[": "("}

# A command, a power, a subscript in braces, a letter with a subscript, a dollar that opens nothing.
_RAW = re.compile(r"\\[A-Za-z]+|\^\S|_\{|\b[A-Za-z]_[A-Za-z0-9]\b|(?<!\\)\$(?!\d)")


def formula_faults(latex: str) -> list[str]:
    r"""What is wrong with a LaTeX formula; empty where it can be set.

    >>> formula_faults(r"\left(\frac{a}{b}\right)^2 \in [0, 1)")
    []
    >>> formula_faults(r"\sqrt{a (b}"), formula_faults(r"\alpah")
    (["'(' is closed by '}'"], ['nobody defined \\alpah'])
    """
    found = [] if latex.isprintable() else [f"characters nobody sees: {latex!r}"]
    found += _unbalanced(_WORDS.sub(r" \1 ", latex))
    try:
        tree = convert_to_element(latex)
    except Exception as error:  # latex2mathml raises whatever its parser stumbles over
        return [*found, f"it cannot be read: {type(error).__name__} {error}".rstrip()]
    for node in tree.iter():
        undefined = re.match(r"\\[A-Za-z]+", node.text or "") if node.tag == "mi" else None
        if undefined and undefined[0] != r"\arg":  # which is set as a name all the same
            found.append(f"nobody defined {undefined[0]}")
    return found


def prose_faults(text: str) -> list[str]:
    r"""What of a text would reach a reader as LaTeX, and what is wrong with its `$formulas$`.

    >>> prose_faults(r"steps $x^{k+1}$ of `x_k`"), prose_faults(r"steps x^{k+1} of size \alpha")
    ([], ["'^{' stands outside of dollars", "'\\\\alpha' stands outside of dollars"])
    """
    found = []
    for is_formula, piece in formula_spans(text):
        if is_formula:
            found += formula_faults(piece)
        else:
            words = re.sub(r"``.+?``|`[^`\n]+`", " ", piece)
            found += [f"{raw!r} stands outside of dollars" for raw in _RAW.findall(words)]
    return found


def _unbalanced(latex: str) -> list[str]:
    tokens = _TOKENS.findall(latex)
    found = []
    for one, other in ((r"\left", r"\right"), ("l", "r")):
        opened, closed = (sum(_BIG.sub(r"\1", t) == end for t in tokens) for end in (one, other))
        if opened != closed:
            name = (r"\left", r"\right") if one == r"\left" else (r"\bigl", r"\bigr")
            found.append(f"{opened} {name[0]} and {closed} {name[1]}")
    begun = [t.partition("{")[2] for t in tokens if t.startswith(r"\begin")]
    ended = [t.partition("{")[2] for t in tokens if t.startswith(r"\end")]
    if sorted(begun) != sorted(ended):
        found.append(r"\begin and \end do not match")
    return found + _unclosed(tokens)


def _unclosed(tokens: list[str]) -> list[str]:
    """Brackets that do not nest; those of \\left and \\right are counted as such."""
    open_ones: list[str] = []
    before = ""
    for token in tokens:
        sized = before in (r"\left", r"\right")
        before = token
        if sized and token not in "{}":
            continue
        if token in _PAIRS:
            open_ones.append(token)
        elif token in _CLOSING:
            wanted = _CLOSING[token]
            if not open_ones:
                return [f"{token!r} closes nothing"]
            last = open_ones.pop()
            if _ALIKE.get(last, last) != _ALIKE.get(wanted, wanted):
                return [f"{last!r} is closed by {token!r}"]
    return [f"{open_ones[-1]!r} is not closed"] if open_ones else []
