r"""The letters of a formula: what a reader must have been told.

A letter is a Latin or Greek one with its accent or its font: `x`, `\gamma`, `\hat R`, `\mathcal F`.
Its subscripts and powers are letters of their own, so that $R_S(f)$ has $R$, $S$ and $f$. Words,
names of functions, numbers and signs are none. What every first course uses alike needs no
definition:
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from torchtheory.report.plain_math import formula_spans

#: Common notation, and what it stands for.
COMMON = {
    r"\mathbb R": "the real numbers",
    r"\mathbb N": "the natural numbers",
    r"\mathbb Z": "the integers",
    r"\mathbb Q": "the rational numbers",
    r"\mathbb C": "the complex numbers",
    r"\mathbb E": "the expected value",
    r"\mathbb P": "the probability",
    r"\mathbb 1": "1 where a condition holds, else 0",
    r"\mathcal N": "the normal distribution",
    r"\mathcal O": "a constant times, at most",
    r"\pi": "the number 3.14159…",
    "e": "the number 2.71828…",
    "i": "an index",
    "j": "an index",
    "k": "an index",
    "I": "the identity matrix",
    "O": "a constant times, at most",
    "o": "vanishing against",
}

#: What bounds a sum or counts layers, where it stands in a subscript or a power.
INDICES = frozenset(["n", "l", r"\ell", "t", "m"])

_GREEK = frozenset(
    "\\" + name
    for name in """
        alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi
        pi varpi rho varrho sigma varsigma tau upsilon phi varphi chi psi omega Gamma Delta Theta
        Lambda Xi Pi Sigma Upsilon Phi Psi Omega ell
    """.split()
)
_FONTS = {r"\mathbb", r"\mathcal", r"\mathfrak", r"\mathscr"}
# Drawn upright or bold, a letter is the same letter.
_PLAIN_FONTS = {r"\mathbf", r"\boldsymbol", r"\bm", r"\mathit", r"\mathsf", r"\mathtt"}
_ACCENTS = {
    r"\hat", r"\widehat", r"\bar", r"\overline", r"\tilde", r"\widetilde", r"\dot", r"\ddot",
    r"\vec", r"\check", r"\breve", r"\mathring", r"\underline",
}  # fmt: skip
_SAME_ACCENT = {r"\widehat": r"\hat", r"\overline": r"\bar", r"\widetilde": r"\tilde"}
# Their argument is words: \text{if}, \operatorname{sgn}, \mathrm{KL}.
_WORDS = re.compile(
    r"\\(?:text|textrm|textit|textbf|texttt|mbox|operatorname\*?|mathrm|mathop|begin|end)"
    r"(?![A-Za-z])\s*(?:\{[^{}]*\}|[A-Za-z])"
)
_SCRIPT = re.compile(r"[_^]\s*(\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}|\\[A-Za-z]+|.)", re.DOTALL)
# The d of a derivative or an integral: dx after a space, d/dt.
_DIFFERENTIAL = re.compile(
    r"(?<=\\[,;:])\s*d(?=\s*\\?[A-Za-z])|\\[td]?frac\s*\{?d\}?\s*\{?d(?=[A-Za-z\\])"
)
# The name of a norm, which a page defines by itself: \|A\|_F, \lVert A\rVert_F.
_FROBENIUS = re.compile(r"(?<=\\\|)_F|(?<=Vert)_F")
_TOKEN = re.compile(r"\\[A-Za-z]+|[A-Za-z]|[{}]|1")


def letters(latex: str) -> set[str]:
    r"""The letters of a formula, common notation left out.

    >>> sorted(letters(r"\mathbb E[R_S(\hat f)]\le\sqrt{\log(2/\delta)/(2n)}\text{ on a sample}"))
    ['R', 'S', '\\delta', '\\hat f', 'n']
    >>> letters(r"\sum_{i=1}^n e^{-i}")
    set()
    """
    text = latex
    for silent in (_WORDS, _FROBENIUS, _DIFFERENTIAL):
        text = silent.sub(" ", text)
    found = set(_read(_SCRIPT.sub(" ", text))) - set(COMMON)
    for script in _scripts(text):
        found |= letters(script) - INDICES
    return found


def defined_letters(symbols: Iterable[tuple[str, str]]) -> set[str]:
    r"""What a list of symbols and meanings defines.

    That is every letter of the symbols, and in a meaning every letter that stands alone between
    dollars, its scripts aside, as in `$x_i$: samples; $n$ of them`.

    >>> sorted(defined_letters([("$x_i$", "samples; $n$ of them, in $K+X^d$")]))
    ['i', 'n', 'x']
    """
    found: set[str] = set()
    for symbol, meaning in symbols:
        for is_formula, piece in formula_spans(symbol):
            found |= set(_read(_WORDS.sub(" ", piece))) if is_formula else set()
        for is_formula, piece in formula_spans(meaning):
            bare = _SCRIPT.sub(" ", _WORDS.sub(" ", piece))
            alone = list(_read(bare)) if is_formula else []
            found |= set(alone) if len(alone) == 1 else set()
    return found


def _scripts(latex: str) -> Iterator[str]:
    for found in _SCRIPT.finditer(latex):
        inside = found[1]
        yield inside[1:-1] if inside.startswith("{") else inside


def _read(latex: str) -> Iterator[str]:
    """Letters with their fonts and accents, from the left."""
    mark = ""
    for token in _TOKEN.findall(latex):
        if token in ("{", "}"):
            continue
        if token in _FONTS or token in _ACCENTS:
            mark = f"{_SAME_ACCENT.get(token, token)} "
        elif token in _PLAIN_FONTS:
            continue
        elif token in _GREEK or (token.isalpha() and len(token) == 1) or mark == r"\mathbb ":
            yield mark + token
            mark = ""
        else:
            mark = ""
