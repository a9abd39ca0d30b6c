"""Formulas of the site as MathML, made when it is built: no script and no network to read a page."""

from __future__ import annotations

import html
import re

from torchtheory.report.mathml import formula

# What pymdownx.arithmatex (generic) makes of $...$ and $$...$$, in pages and docstrings alike.
_MARKED = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">'
    r"(?:\\\((?P<inline>.*?)\\\)|\\\[(?P<display>.*?)\\\])</(?P=tag)>",
    re.DOTALL,
)


def set_formulas(page: str) -> str:
    r"""A page's HTML with every marked formula as MathML.

    >>> set_formulas('<span class="arithmatex">\\(a\\)</span>')
    '<span class="formula"><math><mi>a</mi></math></span>'
    """
    return _MARKED.sub(_set, page)


def unset_formulas(page: str) -> list[str]:
    """The formulas that could not be set, as they were written."""
    return [html.unescape(tex) for tex in re.findall(r'<code class="tex">(.*?)</code>', page, re.S)]


def _set(found: re.Match[str]) -> str:
    display = found["display"] is not None
    latex = html.unescape(found["display"] if display else found["inline"]).strip()
    tag = found["tag"]
    kind = "formula display" if display else "formula"
    return f'<{tag} class="{kind}">{formula(latex, display=display)}</{tag}>'
