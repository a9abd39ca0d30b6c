"""Formulas as MathML, made when the site is built: a page needs no script and no network."""

from __future__ import annotations

import html
import re
from typing import Any

from markdown import Extension, Markdown
from markdown.inlinepatterns import InlineProcessor

from torchtheory.report.mathml import formula

_DISPLAY = r"(?<!\\)\$\$\s*([^$]+?)\s*\$\$"
_INLINE = r"(?<!\\)\$(?=\S)([^$]+?)(?<=\S)\$"
# After code (190) and before backslashes lose their meaning (180).
_PRIORITY = 189


class Formulas(Extension):
    """`$...$` and `$$...$$`, also in the middle of a paragraph.

    >>> from markdown import markdown
    >>> markdown("for $a$", extensions=[Formulas()])
    '<p>for <span class="formula"><math><mi>a</mi></math></span></p>'
    """

    def extendMarkdown(self, md: Markdown) -> None:
        md.inlinePatterns.register(_Formula(_DISPLAY, md, True), "display formula", _PRIORITY)
        md.inlinePatterns.register(_Formula(_INLINE, md, False), "formula", _PRIORITY - 1)


class _Formula(InlineProcessor):
    def __init__(self, pattern: str, md: Markdown, display: bool) -> None:
        super().__init__(pattern, md)
        self.display = display

    def handleMatch(self, m: re.Match[str], data: str) -> tuple[Any, int, int]:
        kind = "formula display" if self.display else "formula"
        latex = " ".join(m[1].split())
        made = f'<span class="{kind}">{formula(latex, display=self.display)}</span>'
        return self.md.htmlStash.store(made), m.start(0), m.end(0)


def unset_formulas(page: str) -> list[str]:
    """The formulas of a page's HTML that could not be set, as they were written."""
    found = re.findall(r'<code class="tex">(.*?)</code>', page, re.DOTALL)
    return [html.unescape(latex) for latex in found]
