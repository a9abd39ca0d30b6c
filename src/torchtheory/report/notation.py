r"""The notation of statements that has one meaning wherever it stands, in words.

Letters are the source's and mean what it says there; `\|\cdot\|_2`, `\sim` and the like mean
different things in different statements. What is listed here does not, so that a page can define
it without knowing the statement.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Symbol:
    """A piece of notation: how it is recognized, a formula that shows it, and what it means."""

    pattern: re.Pattern[str]
    latex: str
    meaning: str


def _operator(names: str) -> str:
    r"""`\operatorname{name}`, `\mathrm{name}` or `\name`, for any of some names."""
    return rf"\\(operatorname\*?|mathrm|rm)\s*\{{?\s*({names})\b|\\({names})(?![A-Za-z])"


_MEANINGS = (
    (r"\\mathbb\s*\{?\s*E", r"\mathbb E", "expected value"),
    (r"\\Pr(?![A-Za-z])|\\mathbb\s*\{?\s*P", r"\Pr", "probability"),
    (_operator("[Vv]ar"), r"\operatorname{Var}", "variance"),
    (_operator("[Cc]ov"), r"\operatorname{Cov}", "covariance"),
    (_operator("Bin"), r"\mathrm{Bin}(n,p)", "binomial law"),
    (_operator("KL"), r"\mathrm{KL}(Q\|P)", "Kullback–Leibler divergence of Q from P"),
    (_operator("VCdim"), r"\mathrm{VCdim}", "Vapnik–Chervonenkis dimension"),
    (_operator("ReLU"), r"\mathrm{ReLU}(x)", "the larger of x and 0"),
    (r"\\nabla(?![A-Za-z]|\s*\^)", r"\nabla f", "gradient"),
    (r"\\nabla\s*\^\s*\{?\s*2", r"\nabla^2f", "Hessian: the matrix of second derivatives"),
    (r"\\partial(?![A-Za-z])", r"\partial", "partial derivative"),
    (r"\\lambda_\{?\s*\\max", r"\lambda_{\max}", "largest eigenvalue"),
    (r"\\lambda_\{?\s*\\min", r"\lambda_{\min}", "smallest eigenvalue"),
    (r"\\sigma_\{?\s*\\max", r"\sigma_{\max}", "largest singular value"),
    (r"\\sigma_\{?\s*\\min", r"\sigma_{\min}", "smallest singular value"),
    (r"\^\s*\{?\s*\\top", r"A^\top", "transpose"),
    (_operator("tr"), r"\operatorname{tr}", "trace"),
    (_operator("rank"), r"\operatorname{rank}", "rank"),
    (_operator("det"), r"\det", "determinant"),
    (_operator("ker"), r"\ker", "null space"),
    (_operator("span"), r"\operatorname{span}", "all linear combinations"),
    (
        r"(\\\||\\rVert|\\Vert)_\{?\s*(\\mathrm\{)?F",
        r"\|A\|_F",
        "Frobenius norm: the root of the sum of the squared entries",
    ),
    (r"\\odot(?![A-Za-z])", r"a\odot b", "product entry by entry"),
    (r"\\langle[^\\]*?,", r"\langle x,y\rangle", "inner product"),
    (_operator("sgn|sign"), r"\operatorname{sgn}", "sign"),
    (_operator("supp"), r"\operatorname{supp}", "support: where it is not 0"),
    (_operator("diam"), r"\operatorname{diam}", "diameter"),
    (_operator("erf"), r"\operatorname{erf}", "error function"),
    (r"\\lceil(?![A-Za-z])", r"\lceil x\rceil", "x rounded up"),
    (r"\\lfloor(?![A-Za-z])", r"\lfloor x\rfloor", "x rounded down"),
    (
        r"\\[td]?binom(?![A-Za-z])",
        r"\tbinom nk",
        "binomial coefficient: how many ways there are to choose k of n",
    ),
    (r"\\lesssim(?![A-Za-z])", r"\lesssim", "at most, up to a constant factor"),
    (r"\\gtrsim(?![A-Za-z])", r"\gtrsim", "at least, up to a constant factor"),
    (r"\\asymp(?![A-Za-z])", r"\asymp", "equal up to constant factors"),
    (r"\\propto(?![A-Za-z])", r"\propto", "proportional to"),
)
SYMBOLS = tuple(Symbol(re.compile(p), latex, meaning) for p, latex, meaning in _MEANINGS)


def notation(statements: Iterable[str]) -> list[Symbol]:
    r"""What some LaTeX statements use of the notation listed here, in the order of the list.

    >>> [s.meaning for s in notation([r"\mathbb E[x^\top y]\le\lambda_{\max}(A)"])]
    ['expected value', 'largest eigenvalue', 'transpose']
    >>> notation([r"\trivial + \text{Pr and rank}"])
    []
    """
    # words in a formula are words: "the rank of A" explains itself
    formulas = [re.sub(r"\\text\s*\{[^{}]*\}", " ", s) for s in statements]
    return [s for s in SYMBOLS if any(s.pattern.search(f) for f in formulas)]
