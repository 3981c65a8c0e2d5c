"""A report's text as HTML: inline Markdown, and the keys by which table columns are sorted."""

from __future__ import annotations

import re

from markdown_it import MarkdownIt
from markupsafe import Markup, escape

from kveval.report.data.campaign import StyledText

_MARKDOWN = MarkdownIt("commonmark", {"html": False})
_MARKS = re.compile(r"[*_`\[\\&<]")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_NUMBER = re.compile(r"[+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
_DIGITS = re.compile(r"\d+")
# The longest cell, in characters, that is kept on one line: an arm, a model, a verdict.
_SHORT = 28


def inline(text: object) -> Markup:
    """Return inline Markdown as HTML; HTML in it is shown as text.

    >>> inline("**no** <b> `x`")
    Markup('<strong>no</strong> &lt;b&gt; <code>x</code>')
    """
    plain = str(text)
    # Parsing only cells with markup: most have none, and there are tens of thousands.
    return (
        Markup(_MARKDOWN.renderInline(plain)) if _MARKS.search(plain) else escape(plain)
    )


def sort_key(text: str, number: bool) -> str:
    """Return the sort key of a cell: in a column of numbers, the first number; in others, the text in natural order.

    For a value with an interval this is the value; "" is the key of a cell without a number, which is sorted last.

    >>> sort_key("1,190 (1,150 to 1,240)", True), sort_key("+13.3 % (+10.6 to +16.1)", True), sort_key("n/a", True)
    ('1190', '+13.3', '')
    >>> sort_key("native-offload 5K", False) < sort_key("native-offload 10K", False)
    True
    """
    shown = _shown(text)
    if not number:
        return _DIGITS.sub(lambda match: match[0].zfill(12), shown.casefold())
    match = _NUMBER.search(shown)
    return match[0].replace(",", "") if match else ""


def cell_attributes(text: str, number: bool) -> Markup:
    """Return the HTML attributes of a table's cell: its class, and its sort key if that is not its text.

    >>> cell_attributes(StyledText("**better**", "better"), False), cell_attributes("1,190 (1,150 to 1,240)", True)
    (Markup(' class="better"'), Markup(' class="number" data-sort="1190"'))
    """
    shown, key = _shown(text), sort_key(text, number)
    sorting = (
        Markup(' data-sort="{}"').format(key) if key != shown.casefold() else Markup()
    )
    style = text.style if isinstance(text, StyledText) else _plain_style(shown, number)
    return Markup(' class="{}"{}').format(style, sorting)


def _plain_style(shown: str, number: bool) -> str:
    if number:
        return "number"
    return "short" if len(shown) <= _SHORT else "prose"


def _shown(text: str) -> str:
    """A cell's text without markup."""
    return _LINK.sub(r"\1", text).replace("*", "").replace("`", "")
