"""The tree of a report as Markdown: REPORT.md, and a file for each appendix."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from kveval.report.data.arm_links import plain_text
from kveval.report.data.campaign import Table
from kveval.report.files import FOLDER, MAIN
from kveval.report.sections import (
    Block,
    Bullets,
    Code,
    Paragraph,
    Picture,
    Section,
    Tile,
    Tiles,
)

_TO_SECTION = re.compile(r"\]\(#([\w-]+)\)")


def render(root: Section) -> dict[str, str]:
    """Return the files as path relative to the report -> content, the report itself first."""
    parts = {
        f"{FOLDER}/{part.appendix}.md": part for part in root.tree() if part.appendix
    }
    home = {
        section.anchor: file for file, part in parts.items() for section in part.tree()
    }
    listed = [
        "## Appendices",
        "\n".join(f"- [{part.title}]({file})" for file, part in parts.items()),
    ]
    files = {MAIN: "\n\n".join([*_section(root, 1), *(listed if parts else [])])}
    files |= {file: "\n\n".join(_section(part, 1)) for file, part in parts.items()}
    return {file: f"{_linked(text, file, home)}\n" for file, text in files.items()}


def _linked(text: str, file: str, home: Mapping[str, str]) -> str:
    """Return `text` with links to sections in other files extended by the path of that file."""

    def target(match: re.Match[str]) -> str:
        target_file = home.get(match[1], MAIN)
        up = "" if file == MAIN else "../"
        return match[0] if target_file == file else f"]({up}{target_file}#{match[1]})"

    return _TO_SECTION.sub(target, text)


def _section(section: Section, depth: int) -> Iterator[str]:
    """Yield the lines of a section and its subsections, without appendices."""
    yield f"{'#' * depth} {section.title}"
    for block in section.blocks:
        if not isinstance(block, Section):
            yield _text(block, "../" if depth and section.appendix else "")
        elif block.folded:
            yield f"<details><summary>{block.title}</summary>"
            yield from list(_section(block, depth + 1))[1:]
            yield "</details>"
        elif not block.appendix:
            yield from _section(block, depth + 1)


def _text(block: Block, up: str) -> str:
    match block:
        case Paragraph():
            text = plain_text(block.text)
            return f"> {text}" if block.note else text
        case Bullets():
            return "\n".join(f"- {plain_text(item)}" for item in block.items)
        case Code():
            return f"```\n{block.text}\n```"
        case Picture():
            return f"![{block.title}]({up}{block.path})\n\n{block.caption}"
        case Tiles():
            return markdown_table(Table(["", ""], [*map(_tile, block.tiles)]))
        case Table():
            return markdown_table(block)
    raise TypeError(block)


def _tile(tile: Tile) -> list[str]:
    """A tile as a row: its title, then its value with what it rests on."""
    return [tile.title, "; ".join([f"**{tile.value}**", *tile.lines])]


def markdown_table(table: Table) -> str:
    """Return a table in Markdown; columns of numbers are right-aligned."""
    rule = [
        "---:" if number in table.numbers else "---"
        for number in range(len(table.header))
    ]
    return "\n".join(map(_line, [table.header, rule, *table.rows]))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_cell_text, cells))} |"


def _cell_text(text: str) -> str:
    return " ".join(plain_text(text).split()).replace("|", "\\|")
