"""The body of report.html from the Markdown of a report: sections with ids, tables that can be sorted, tiles, figures."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import jinja2
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup, escape

from kveval.report.data.arm_links import anchor_of
from kveval.report.html.cells import cell_attributes, inline, split_mark

# Blocks alone: what stands in them is parsed where it is written.
_BLOCKS = MarkdownIt("commonmark", {"html": False}).enable("table").disable("inline")
_FOLDED = re.compile(r"<details><summary>(.*)</summary>")
_END_OF_FOLDED = "</details>"
_PICTURE = re.compile(r"!\[(.*)\]\((.*)\)")
# A table with more rows has a scroll bar of its own.
_TALL = 25
_TO_ALL_RUNS = ' <a class="to-runs" href="#{}">The runs</a>'


@dataclass
class Body:
    """A page's body while it is written.

    Attributes:
        picture: returns a figure's HTML from its path, its title and its caption.
        runs: the anchor of the part with all runs, to which sentences of the answer lead that name no arm.
        parts: the HTML.
        contents: anchor and title of each part of the page.
    """

    picture: Callable[[str, str, str], str]
    runs: str
    parts: list[str] = field(default_factory=list)
    contents: list[tuple[str, Markup]] = field(default_factory=list)
    _seen: dict[str, int] = field(default_factory=dict)
    # What is open: the tag, and the depth of its heading, 0 for what <details> folds.
    _open: list[tuple[str, int]] = field(default_factory=list)
    _first_screen: bool = True
    _answered: bool = False

    def write(self, markdown: str, *, shift: int = 0, folded: bool = False) -> None:
        """Write a file of the report.

        `shift`: by how much its headings are deeper on the page; `folded`: whether its first heading folds the rest.
        """
        tokens = _BLOCKS.parse(markdown)
        at = 0
        while at < len(tokens):
            end = _end_of(tokens, at)
            block = tokens[at : end + 1]
            at = end + 1
            kind = block[0].type
            if kind == "heading_open":
                depth = int(block[0].tag[1]) + shift
                self._heading(block[1].content, depth, folded and depth == 1 + shift)
            elif kind == "paragraph_open":
                caption = tokens[at + 1].content if at + 1 < len(tokens) else ""
                at += 3 * self._paragraph(block[1].content, caption)
            elif kind == "bullet_list_open":
                self._list(block)
            elif kind == "blockquote_open":
                self._write(
                    f'<div class="note"><p>{inline(block[2].content)}</p></div>'
                )
            elif kind == "table_open":
                self._table(block)
            else:
                self._write(
                    f'<pre tabindex="0"><code>{escape(block[0].content)}</code></pre>'
                )
        self._close(0)

    def _write(self, html: str) -> None:
        self.parts.append(html)

    def _anchor(self, title: str) -> str:
        """The id of a part: its anchor, with a number if an earlier one has the same."""
        anchor = anchor_of(title)
        times = self._seen[anchor] = self._seen.get(anchor, -1) + 1
        return f"{anchor}-{times}" if times else anchor

    def _heading(self, title: str, depth: int, folds: bool) -> None:
        self._close(depth)
        if depth == 1:
            self._write(f"<h1>{inline(title)}</h1>")
            return
        self._first_screen = False
        anchor = self._anchor(title)
        if depth == 2:
            self.contents.append((anchor, inline(title)))
        if folds:
            self._write(f'<details id="{anchor}"><summary>{inline(title)}</summary>')
            self._open.append(("details", depth))
        else:
            self._write(f'<section id="{anchor}"><h{depth}>{inline(title)}</h{depth}>')
            self._open.append(("section", depth))

    def _close(self, depth: int) -> None:
        """Close what is open of this depth or deeper; what <details> folds ends itself, and all of it at depth 0."""
        while self._open and (depth == 0 or self._open[-1][1] >= depth):
            self._write(f"</{self._open.pop()[0]}>")

    def _paragraph(self, text: str, caption: str) -> bool:
        """Write a paragraph; return whether the next one, the caption of a figure, was written with it."""
        if folded := _FOLDED.fullmatch(text):
            anchor = self._anchor(folded[1])
            self._write(
                f'<details id="{anchor}"><summary>{inline(folded[1])}</summary>'
            )
            self._open.append(("details", 0))
        elif text == _END_OF_FOLDED:
            while self._open and self._open[-1][1]:
                self._write(f"</{self._open.pop()[0]}>")
            if self._open:
                self._write(f"</{self._open.pop()[0]}>")
        elif picture := _PICTURE.fullmatch(text):
            self._write(self.picture(picture[2], picture[1], caption))
            return True
        else:
            self._write(f"<p>{inline(text)}</p>")
        return False

    def _list(self, block: Sequence[Token]) -> None:
        items = [inline(token.content) for token in block if token.type == "inline"]
        if self._first_screen and not self._answered:
            # Of the answer, so that each sentence leads to what is behind it.
            self._answered = True
            lead = Markup(_TO_ALL_RUNS).format(self.runs)
            items = [item if "<a " in item else item + lead for item in items]
        self._write(f"<ul>{''.join(f'<li>{item}</li>' for item in items)}</ul>")

    def _table(self, block: Sequence[Token]) -> None:
        header, *rows = _rows(block)
        if self._first_screen and not any(header):
            self._write(_macro("tiles")(rows))
            return
        numbers = [_is_number(token) for token in block if token.type == "th_open"]
        tall = len(rows) > _TALL
        written = _macro("table")(header, rows, numbers, self._first_screen, tall)
        self._write(written)


def _end_of(tokens: Sequence[Token], start: int) -> int:
    """The place of the token that ends the block which begins at `start`."""
    depth = 0
    for at in range(start, len(tokens)):
        depth += tokens[at].nesting
        if depth == 0:
            return at
    return len(tokens) - 1


def _rows(block: Sequence[Token]) -> list[list[str]]:
    rows: list[list[str]] = []
    for token in block:
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline":
            rows[-1].append(token.content)
    return rows


def _is_number(title: Token) -> bool:
    return "right" in str(title.attrGet("style"))


def picture(name: str, title: str, caption: str, image: str, narrow: str) -> str:
    """Return a figure: its image, one for narrow screens where there is one, and its caption."""
    return _macro("picture")(name, title, caption, image, narrow)


@cache
def _macro(name: str) -> Callable[..., str]:
    """Return a macro of blocks.html.j2."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=True,
    )
    environment.filters |= {
        "inline": inline,
        "cell_attributes": cell_attributes,
        "split_mark": split_mark,
    }
    macro: Callable[..., str] = getattr(
        environment.get_template("blocks.html.j2").module, name
    )
    return macro
