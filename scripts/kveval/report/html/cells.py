"""A report's text as HTML: inline Markdown, and the keys by which table columns are sorted."""

from __future__ import annotations

import math
import re

from markdown_it import MarkdownIt
from markupsafe import Markup, escape

from kveval.report.data.campaign import StyledText
from kveval.report.data.numbers import NumberText

_MARKDOWN = MarkdownIt("commonmark", {"html": False})
_MARKS = re.compile(r"[*_`\[\\&<]")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_DIGITS = re.compile(r"\d+")
# Of a number within a text: those of arms, levels and tokens, most of them grouped by commas.
_DIGITS_OF_KEYS = 7
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
    """Return the sort key of a cell: the number of a value, else the text in natural order; `number`: in a column of
    numbers.

    "" is the key of a value that is not known, and of a word in a column of numbers; they are sorted last.

    >>> sort_key(NumberText("1,190 (1,150 to 1,240)", 1191.4), True), sort_key("never", True)
    ('1191.4', '')
    >>> sort_key("native-offload 5K", False) < sort_key("native-offload 10K", False)
    True
    """
    if isinstance(text, NumberText):
        return f"{text.number:.9g}" if math.isfinite(text.number) else ""
    shown = _shown(text)
    if shown.isdecimal():
        return shown
    if number and not shown[:1].isdecimal():
        return ""
    return _DIGITS.sub(lambda match: match[0].zfill(_DIGITS_OF_KEYS), shown.casefold())


def cell_attributes(text: str, number: bool) -> Markup:
    """Return the HTML attributes of a table's cell: its class, and its sort key if that is not its text.

    >>> cell_attributes(StyledText("**better**", "better"), False), cell_attributes(NumberText("1,190", 1190), True)
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
