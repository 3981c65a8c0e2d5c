"""REPORT.md and its appendices from the templates in `templates`.

A template is Markdown. Its lines may be broken anywhere: those of a paragraph, an item or a row of a table become one.
Two things are for report.html alone, and `without_marks` takes them out: links from the name of an arm to its runs, and
marks such as `{.better}`, the style of what stands before.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import compress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jinja2

from kveval.campaign.cell import Cell
from kveval.host.errors import Failure
from kveval.report.data.arm_links import anchor_of, plain_text
from kveval.report.figures.names import FigureName, figures_of, find_figure
from kveval.report.files import APPENDICES, MAIN, REST
from kveval.report.filters import FILTERS, FUNCTIONS, TESTS
from kveval.report.result.model import CampaignResult

TEMPLATES = Path(__file__).with_name("templates")
MOST_SENTENCES = 5
WIDEST = 8
"""The most columns that fit on a page."""
# Between the cells of a row, and of a header, in templates.
_BETWEEN = "¦"
_FENCE = "```"
_BLANKS = re.compile(r"(?<=[^|\s])\s{2,}(?=[^|\s])")
_MARK = re.compile(r" ?\{\.\w+\}")
_TO_SECTION = re.compile(r"\]\(#([\w-]+)\)")
_HEADING = re.compile(r"^#+ (.*)$|^<details><summary>(.*)</summary>$", re.MULTILINE)


class Pictures:
    """The figures that are not empty, each to be placed in the report once."""

    def __init__(self, result: CampaignResult) -> None:
        """Collect the figures of a result."""
        paths = {
            figure.name: figure.path for figure in result.figures if not figure.empty
        }
        figures = figures_of([*result.common_levels])
        self._left = {each.name: each for each in figures if each.name in paths}
        self._paths = paths

    def take(self, *names: str) -> str:
        """Return figures with their captions, without those that are not there or placed already."""
        chosen = [self._left.pop(name) for name in names if name in self._left]
        return "\n\n".join(map(self._picture, chosen))

    def take_section(self, section: str, model: str | None = None) -> str:
        """Return the figures of a section that are not placed yet, or only those of one model."""
        names = [
            each.name
            for each in self._left.values()
            if each.entry.section == section and model in (None, each.model)
        ]
        return self.take(*names)

    def take_rest(self) -> str:
        """Return the figures that are not placed yet."""
        return self.take(*self._left)

    def _picture(self, figure: FigureName) -> str:
        path = self._paths[figure.name]
        return f"![{figure.title}]({path})\n\n{figure.caption}"


@dataclass(frozen=True)
class Rendering:
    """Renders the templates of a result; `addresses`: cell and run -> what a link to the run's folder has."""

    result: CampaignResult
    addresses: Mapping[Any, str] = field(default_factory=dict)

    def text(self, template: str, **more: Any) -> str:
        """Return a template as Markdown with marks."""
        rendered = environment().get_template(template).render(self._variables, **more)
        return laid_out(rendered)

    def section(self, template: Path, folder: Path) -> str:
        """Return the section of a plug-in; `rows_of(PATH)` gives it the rows of a CSV in the folder of results, and
        `rows_by_cell(PATH)` those of a CSV with a row for each cell.
        """

        def rows_of(path: str) -> list[dict[str, str]]:
            if not (folder / path).exists():
                return []
            with (folder / path).open(encoding="utf-8", newline="") as file:
                return [*csv.DictReader(file)]

        def rows_by_cell(path: str) -> dict[Cell, dict[str, str]]:
            return {Cell.from_row(row): row for row in rows_of(path)}

        tables = {"rows_of": rows_of, "rows_by_cell": rows_by_cell}
        return filled(template, **self._variables, **tables)

    def sentences(self, template: str) -> list[str]:
        """Return the items of the list that a template is."""
        lines = self.text(template).splitlines()
        return [line.removeprefix("- ") for line in lines if line]

    def answer(self) -> list[str]:
        """Return the answer in at most MOST_SENTENCES sentences; the last one says what the others rest on."""
        *sentences, basis = self.sentences("answer.md.j2")
        return [*sentences[: MOST_SENTENCES - 1], basis]

    @property
    def plain_answer(self) -> list[str]:
        """The answer without marks, for what is no page."""
        return [*map(without_marks, self.answer())]

    def plain_sentences(self, template: str) -> list[str]:
        """Return the same as `sentences`, without marks."""
        return [*map(without_marks, self.sentences(template))]

    def _figure_title(self, name: str) -> str:
        figure = find_figure(name, self.result.common_levels)
        return figure.title if figure else name

    @property
    def _variables(self) -> dict[str, Any]:
        return {
            "result": self.result,
            "level_unit": FUNCTIONS["level_unit_of"](self.result),
            "sentences": self.sentences,
            "answer_sentences": self.answer,
            "figure_title": self._figure_title,
            "addresses": self.addresses,
        }


def filled(template: Path, **variables: Any) -> str:
    """Return a template that lies elsewhere as Markdown with marks."""
    text = template.read_text(encoding="utf-8")
    return laid_out(environment().from_string(text).render(variables))


def render_report(
    result: CampaignResult,
    beside: Mapping[Path, str] = MappingProxyType({}),
    folder: Path = Path(),
) -> dict[str, str]:
    """Return the files of a report as path relative to it -> Markdown with marks, the report itself first.

    `beside`: templates of sections that plug-ins add -> the part after which each stands; they read their tables in
    `folder`, that of the results. Raises Failure for one after a part that the report has not.
    """
    rendering, pictures = Rendering(result), Pictures(result)
    sections: dict[str, list[str]] = {}
    for template, part in beside.items():
        sections.setdefault(part, []).append(rendering.section(template, folder))
    figures = {
        "picture": pictures.take,
        "pictures_of": pictures.take_section,
        "pictures_left": pictures.take_rest,
    }
    # Figures that no other part takes are in the results.
    after = {"sections_after": lambda part: sections.pop(part, ())}
    files = {MAIN: rendering.text("report.md.j2", **after, **figures)}
    if sections:
        lost = ", ".join(
            f"{name} after {part!r}"
            for name, part in beside.items()
            if part in sections
        )
        raise Failure(
            f"a plug-in's section has no place in report.md.j2, which has no such part: {lost}",
            code="no_part",
        )
    in_turn = sorted(APPENDICES, key=lambda file: file == REST)
    parts = {file: rendering.text(f"{file}.j2", **figures) for file in in_turn}
    return files | {file: parts[file] for file in APPENDICES}


def written_files(files: Mapping[str, str]) -> dict[str, str]:
    """Return the files as they are written: without marks, with a list of the appendices, links that lead into others."""
    home = {
        anchor_of(heading[1] or heading[2]): file
        for file, text in files.items()
        for heading in _HEADING.finditer(text)
    }
    appendices = [
        f"- [{text.partition(chr(10))[0].removeprefix('# ')}]({file})"
        for file, text in files.items()
        if file != MAIN
    ]
    listed = "\n".join(["", "## Appendices", "", *appendices, ""])
    return {
        file: _linked(without_marks(text), file, home)
        + (listed if file == MAIN else "")
        for file, text in files.items()
    }


def without_marks(text: str) -> str:
    """Return Markdown without marks and without links to the runs of arms."""
    return _MARK.sub("", plain_text(text))


def _linked(text: str, file: str, home: Mapping[str, str]) -> str:
    """Return `text` with links to sections and figures as they are from its file; `home`: anchor -> file."""

    def target(match: re.Match[str]) -> str:
        target_file = home.get(match[1], MAIN)
        up = "" if file == MAIN else "../"
        return match[0] if target_file == file else f"]({up}{target_file}#{match[1]})"

    linked = _TO_SECTION.sub(target, text)
    return (
        linked
        if file == MAIN
        else re.sub(r"^(!\[.*\]\()", r"\1../", linked, flags=re.M)
    )


def laid_out(text: str) -> str:
    """Return Markdown with one line for each paragraph, item and row of a table, and one empty line between blocks.

    Items that follow each other are one list. Code stays as it is.
    """
    blocks: list[list[str]] = [[]]
    in_code = False
    for raw in text.splitlines():
        line = raw.strip()
        block = blocks[-1]
        if line.startswith(_FENCE):
            in_code = not in_code
            if in_code:
                blocks.append([line])
            else:
                block.append(line)
                blocks.append([])
        elif in_code:
            block.append(raw)
        elif not line:
            blocks.append([])
        elif not block and line.startswith("- ") and _is_list(blocks):
            del blocks[-1]
            while not blocks[-1]:
                del blocks[-1]
            blocks[-1].append(line)
        elif not block or line.startswith(("- ", "|")):
            block.append(line)
        elif block[0].startswith("> "):
            block[-1] += f" {line.removeprefix('> ')}"
        else:
            block[-1] += f" {line}"
        if not in_code and blocks[-1]:
            # Within a sentence, {% if %} may leave several blanks; a blank cell is two of them.
            blocks[-1][-1] = _BLANKS.sub(" ", blocks[-1][-1])
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _is_list(blocks: Sequence[Sequence[str]]) -> bool:
    last = next((block for block in reversed(blocks) if block), [""])
    return last[0].startswith("- ")


def code_block(text: str) -> str:
    """Return literal text, such as a command line; "" for none."""
    return f"{_FENCE}\n{text}\n{_FENCE}" if text else ""


def table(
    rows: Iterable[Any],
    header: str | Sequence[str],
    caller: Callable[[Any], str] | None = None,
    *,
    by_model: bool = False,
    drop_blank: bool = False,
    keys: int = 1,
) -> str:
    """Return a table in Markdown, nothing without rows.

    `header`: titles, those of numbers end in a colon; in a template as one text, as the cells of a row are. `caller`: what
    writes the cells of a row, in templates the body of {% call %}; without it, `rows` are cells. `by_model`: the first
    column is the model, and each has a table of its own, with its name above it where there are several. `drop_blank`:
    columns that are blank in all rows are left out. `keys`: first columns that identify a row, without the model, and
    that each part of a table of more than WIDEST columns repeats; one with few rows has them as columns instead.
    """
    titles = header.split(_BETWEEN) if isinstance(header, str) else header
    columns = [" ".join(title.split()) for title in titles]
    cells = [_cells(caller(row) if caller else row) for row in rows]
    if any(len(row) != len(columns) for row in cells):
        raise ValueError(
            f"a row of the table {columns} has not one cell for each title"
        )
    if drop_blank and cells:
        filled = [any(column) for column in zip(*cells, strict=True)]
        columns, *cells = ([*compress(row, filled)] for row in (columns, *cells))
    if not by_model:
        return _blocks(_fitted(columns, cells, keys) if cells else [])
    models: dict[str, list[Sequence[str]]] = {}
    for model, *rest in cells:
        models.setdefault(model, []).append(rest)
    parts = []
    for model, of_model in models.items():
        parts += [f"**{model or 'The campaign'}**"] if len(models) > 1 else []
        parts += _fitted(columns[1:], of_model, keys)
    return _blocks(parts)


def _blocks(parts: Sequence[str]) -> str:
    """Parts with empty lines around them: a template's line after {% endcall %} would belong to the last row."""
    return "".join(f"\n\n{part}\n\n" for part in parts)


def _cells(row: str | Sequence[str]) -> list[str]:
    cells = row.split(_BETWEEN) if isinstance(row, str) else row
    return [" ".join(cell.split()) for cell in cells]


def _fitted(
    columns: Sequence[str], rows: Sequence[Sequence[str]], keys: int
) -> list[str]:
    """One or more tables of at most WIDEST columns."""
    if len(columns) <= WIDEST:
        return [_markdown(columns, rows)]
    if len(rows) < WIDEST:
        first, *others = zip(columns, *rows, strict=True)
        titles = [first[0].removesuffix(":"), *(f"{name}:" for name in first[1:])]
        return [
            _markdown(titles, [[row[0].removesuffix(":"), *row[1:]] for row in others])
        ]
    room = WIDEST - keys
    parts = []
    for start in range(keys, len(columns), room):
        part = slice(start, start + room)
        titles, *of_part = ([*row[:keys], *row[part]] for row in (columns, *rows))
        parts.append(_markdown(titles, of_part))
    return parts


def _markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    titles = [column.removesuffix(":") for column in columns]
    rule = ["---:" if column.endswith(":") else "---" for column in columns]
    lines = (titles, rule, *rows)
    return "\n".join(f"| {' | '.join(map(_escaped, line))} |" for line in lines)


def _escaped(cell: str) -> str:
    return " ".join(cell.split()).replace("|", "\\|")


@cache
def environment() -> jinja2.Environment:
    """Return the environment of the templates."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_output,
    )
    made.filters |= FILTERS
    made.tests |= TESTS
    made.globals |= FUNCTIONS | {"table": table, "code_block": code_block}
    return made


def _output(value: Any) -> Any:
    """The text of an expression: nothing for None; what separates cells is no part of a value."""
    if value is None:
        return ""
    return value.replace(_BETWEEN, "|") if isinstance(value, str) else value
