"""The report as a tree of sections with paragraphs, tables and figures, from which Markdown and HTML are written.

Text is inline Markdown: `code`, **bold**, *emphasis*, [text](target). A target that begins with # is the `anchor` of a
section, in any file of the report; links to the runs of a cell (`arm_links`) are in report.html alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kveval.report.data.arm_links import anchor_of
from kveval.report.data.campaign import Table


@dataclass(frozen=True)
class Paragraph:
    """Running text; a `note` is highlighted, `small` facts are printed small."""

    text: str
    note: bool = False
    small: bool = False


@dataclass(frozen=True)
class Bullets:
    """A list."""

    items: Sequence[str]


@dataclass(frozen=True)
class Code:
    """Literal text: command lines."""

    text: str


@dataclass(frozen=True)
class Tile:
    """One figure of the answer, printed large: what it is, its value, and lines that say what it rests on.

    `style`: a class of page.css, such as "better"; "" for none.
    """

    title: str
    value: str
    lines: Sequence[str] = ()
    style: str = ""


@dataclass(frozen=True)
class Tiles:
    """Tiles side by side."""

    tiles: Sequence[Tile]


@dataclass(frozen=True)
class Picture:
    """A figure: its name, its path relative to the report, its title, which it shows itself, and its caption."""

    name: str
    path: str
    title: str
    caption: str


@dataclass(frozen=True)
class Section:
    """A titled part. `folded`: shown closed; `appendix`: the name of its own Markdown file, "" if it has none."""

    title: str
    blocks: Sequence[Block]
    folded: bool = False
    appendix: str = ""

    @property
    def anchor(self) -> str:
        """The target of links to the section: the anchor that GitHub gives its heading."""
        return anchor_of(self.title)

    @property
    def sections(self) -> Iterator[Section]:
        """The direct subsections."""
        return (block for block in self.blocks if isinstance(block, Section))

    def tree(self) -> Iterator[Section]:
        """Yield the section, then all that are below it, in the order of the page."""
        yield self
        for section in self.sections:
            yield from section.tree()


Block = Paragraph | Bullets | Code | Tiles | Picture | Table | Section
