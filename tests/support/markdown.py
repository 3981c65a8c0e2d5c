"""A Markdown document taken apart: sentences of prose, cells of tables, links, code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_FENCE = re.compile(r"^\s*(```|~~~)")
_TABLE_LINE = re.compile(r"^\s*\|.*\|\s*$")
_RULE_LINE = re.compile(r"^[\s|:-]+$")
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"!?\[([^\]]*)\]\(([^)\s]+)\)")
_TAG = re.compile(r"</?[A-Za-z][^>]*>")
_BLOCK_START = re.compile(r"^\s*(#+|[-*+]|\d+\.|>)\s+")
_SENTENCE_END = re.compile(r"(?<=[.!?:;])\s+(?=[A-Z*(])")
# A sign counts where it is no hyphen; digits inside a word (Qwen3, p50, 10K, 0.8.1) are a name and no number.
NUMBER = re.compile(r"(?<![\w.,-])[+-]?\d+(?:,\d{3})*(?:\.\d+)?(?![\w]|\.\d|-\d)")


@dataclass(frozen=True)
class Parts:
    """What a document consists of; `sentences` are without code, links' targets and tags, in one line each."""

    sentences: Sequence[str]
    cells: Sequence[str]
    links: Sequence[str]
    code: Sequence[str]


def parts_of(markdown: str) -> Parts:
    """Take a Markdown document apart."""
    blocks, cells = _blocks(markdown)
    links = [
        target for block in (*blocks, *cells) for _, target in _LINK.findall(block)
    ]
    code = [span[1:-1] for block in (*blocks, *cells) for span in _CODE.findall(block)]
    sentences = [
        sentence
        for block in blocks
        for sentence in _SENTENCE_END.split(plain(block))
        if sentence
    ]
    return Parts(sentences, [plain(cell) for cell in cells], links, code)


def plain(text: str) -> str:
    """Return text without Markdown: no emphasis, code, link targets or tags; white space as single blanks."""
    text = _TAG.sub(" ", _CODE.sub(" ", _LINK.sub(r" \1 ", text)))
    return " ".join(re.sub(r"[*_]{1,3}(?=\S)|(?<=\S)[*_]{1,3}", "", text).split())


def numbers(text: str) -> list[str]:
    """Return the numbers that stand by themselves in a text, as written."""
    return NUMBER.findall(text)


def fixed_fragments(template: str) -> list[str]:
    """Return the words of a template that hold no data, plain: what stands between its placeholders and tags."""
    pieces = re.split(r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}", template, flags=re.DOTALL)
    return [
        fragment
        for piece in pieces
        for block in _blocks(piece)[0]
        if (fragment := plain(block))
    ]


def without(texts: Sequence[str], fragments: Sequence[str]) -> list[str]:
    """Return sentences without the fragments in them; those shorter than three words stay, they could be anywhere."""
    removed = [
        fragment
        for fragment in {plain(fragment) for fragment in fragments}
        if len(fragment.split()) >= 3
    ]
    removed.sort(key=len, reverse=True)
    sentences = []
    for text in texts:
        left = text
        for fragment in removed:
            left = left.replace(fragment, " \N{HORIZONTAL ELLIPSIS} ")
        sentences.append(" ".join(left.split()))
    return sentences


def _blocks(markdown: str) -> tuple[list[str], list[str]]:
    """Return paragraphs, list items and headings as one string each, and the cells of tables."""
    blocks: list[str] = []
    cells: list[str] = []
    current: list[str] = []
    for text in _outside_fences(markdown):
        of_table = _TABLE_LINE.match(text) is not None
        if of_table and not _RULE_LINE.match(text):
            cells += [
                cell.strip() for cell in re.split(r"(?<!\\)\|", text.strip()[1:-1])
            ]
        line = "" if of_table else text
        start = _BLOCK_START.match(line)
        if (start or not line.strip()) and current:
            blocks.append(" ".join(current))
            current = []
        if line.strip():
            current.append(line[start.end() :] if start else line)
    if current:
        blocks.append(" ".join(current))
    return blocks, cells


def _outside_fences(markdown: str) -> Iterator[str]:
    inside = False
    for line in markdown.splitlines():
        if _FENCE.match(line):
            inside = not inside
        elif not inside:
            yield line
    yield ""
