"""A report's text as HTML: its few marks, and what a column of a table is sorted by."""

from __future__ import annotations

import re

from markdown_it import MarkdownIt
from markupsafe import Markup, escape

from kveval.analysis.statistics import verdicts as words

_MARKDOWN = MarkdownIt("commonmark", {"html": False})
_MARKS = re.compile(r"[*_`\[\\&<]")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_NUMBER = re.compile(r"[+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
_DIGITS = re.compile(r"\d+")
# The longest cell that is kept on one line, characters: an arm, a model, a verdict.
_SHORT = 28


def inline(text: object) -> Markup:
    """Return inline Markdown as HTML; HTML in it is shown as text.

    >>> inline("**no** <b> `x`")
    Markup('<strong>no</strong> &lt;b&gt; <code>x</code>')
    """
    plain = str(text)
    # Most cells have no marks, and there are tens of thousands.
    return Markup(_MARKDOWN.renderInline(plain)) if _MARKS.search(plain) else escape(plain)


def sort_key(text: str, number: bool) -> str:
    """Return what a cell is sorted by: the first number of one with numbers, text with its numbers in their order.

    Of a value with an interval that is the value; "" comes last, and stands for what is no number.

    >>> sort_key("1,190 (1,150 to 1,240)", True), sort_key("+13.3 % (+10.6 to +16.1)", True), sort_key("n/a", True)
    ('1190', '+13.3', '')
    >>> sort_key("native-offload 5K", False) < sort_key("native-offload 10K", False)
    True
    """
    shown = _shown(text)
    if not number:
        return _DIGITS.sub(lambda found: found[0].zfill(12), shown.casefold())
    found = _NUMBER.search(shown)
    return found[0].replace(",", "") if found else ""


def cell_attributes(text: str, number: bool) -> Markup:
    """Return the attributes of a table's cell: how it is set, and what it is sorted by where its text does not tell.

    >>> cell_attributes("**better**", False), cell_attributes("1,190 (1,150 to 1,240)", True)
    (Markup(' class="better"'), Markup(' class="number" data-sort="1190"'))
    """
    shown, key = _shown(text), sort_key(text, number)
    word = shown.partition(",")[0]
    kind = word if word in words.DECIDED else "number" if number else "short" if len(shown) <= _SHORT else "prose"
    sorting = Markup(' data-sort="{}"').format(key) if key != shown.casefold() else Markup()
    return Markup(' class="{}"{}').format(kind, sorting)


def _shown(text: str) -> str:
    """A cell without its marks."""
    return _LINK.sub(r"\1", text).replace("*", "").replace("`", "")
