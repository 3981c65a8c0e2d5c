"""A report's text as HTML: inline Markdown, and the keys by which table columns are sorted."""

from __future__ import annotations

import re

from markdown_it import MarkdownIt
from markupsafe import Markup, escape

_MARKDOWN = MarkdownIt("commonmark", {"html": False})
_MARKS = re.compile(r"[*_`\[\\&<]")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_MARK = re.compile(r" ?\{\.([\w-]+)\}")
_NUMBER = re.compile(r"(?<![\w.])[+-]?\d[\d,]*(?:\.\d+)?")
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


def split_mark(text: str) -> tuple[str, str]:
    """Return a text without the mark of its style, and the style, "" for none.

    >>> split_mark("**better** {.better}")
    ('**better**', 'better')
    """
    mark = _MARK.search(text)
    return (_MARK.sub("", text), mark[1]) if mark else (text, "")


def sort_key(text: str, number: bool) -> str:
    """Return the sort key of a cell: its first number, else the text in natural order; `number`: in a column of numbers.

    "" is the key of a value that is not known, and of a word in a column of numbers; they are sorted last.

    >>> sort_key("1,190 (1,150 to 1,240)", True), sort_key("at least -4 %", True), sort_key("never", True)
    ('1190', '-4', '')
    >>> sort_key("native-offload 5K", False) < sort_key("native-offload 10K", False)
    True
    """
    shown = _shown(text)
    if number:
        first = _NUMBER.search(shown)
        if first is None:
            return ""
        value = first[0].replace(",", "").removeprefix("+")
        # Beside changes in per cent.
        of_factor = shown.startswith(" times", first.end())
        return f"{100 * (float(value) - 1):g}" if of_factor else value
    if shown.isdecimal():
        return shown
    return _DIGITS.sub(lambda match: match[0].zfill(_DIGITS_OF_KEYS), shown.casefold())


def cell_attributes(text: str, number: bool) -> Markup:
    """Return the HTML attributes of a table's cell: its class, and its sort key if that is not its text.

    >>> cell_attributes("**better** {.better}", False), cell_attributes("1,190", True)
    (Markup(' class="better"'), Markup(' class="number" data-sort="1190"'))
    """
    plain, style = split_mark(text)
    shown, key = _shown(plain), sort_key(plain, number)
    sorting = (
        Markup(' data-sort="{}"').format(key) if key != shown.casefold() else Markup()
    )
    style = style or _plain_style(shown, number)
    return Markup(' class="{}"{}').format(style, sorting)


def _plain_style(shown: str, number: bool) -> str:
    if number:
        return "number"
    return "short" if len(shown) <= _SHORT else "prose"


def _shown(text: str) -> str:
    """A cell's text without markup."""
    return _LINK.sub(r"\1", text).replace("*", "").replace("`", "")
