"""Tables and figures as blocks of a section, fitted to a page: at most eight columns, and models as titles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from kveval.report.data.campaign import Table
from kveval.report.figures.names import FigureName, figures_of
from kveval.report.sections import Block, Paragraph, Picture, Section

WIDEST = 8
"""The most columns that fit on a page."""
LONG = 25
"""More rows than this are shown closed."""


def split_wide(table: Table, keys: int = 1) -> list[Table]:
    """Return a table as one or more tables of at most WIDEST columns; none for a table without rows.

    `keys`: number of first columns, which identify a row. A wide table with few rows is transposed; any other is split,
    and each part repeats the keys.
    """
    if not table.rows:
        return []
    if len(table.header) <= WIDEST:
        return [table]
    if len(table.rows) < WIDEST:
        header, *rows = map(list, zip(table.header, *table.rows, strict=True))
        return [Table(header, rows, frozenset(range(1, len(header))))]
    room = WIDEST - keys
    starts = range(keys, len(table.header), room)
    return [
        table.columns(
            [*range(keys), *range(start, min(start + room, len(table.header)))]
        )
        for start in starts
    ]


def tables_by_model(table: Table) -> list[tuple[str, Table]]:
    """Return a table whose first column names a model as one table per model, without that column."""
    rows_by_model: dict[str, list[Sequence[str]]] = {}
    for row in table.rows:
        rows_by_model.setdefault(row[0], []).append(row)
    rest = range(1, len(table.header))
    return [
        (model, Table(table.header, rows, table.numbers).columns(rest))
        for model, rows in rows_by_model.items()
    ]


def split_by_model(table: Table, keys: int = 1) -> Iterator[Block]:
    """Yield a table whose first column names a model as one table per model, titled with it if there are several.

    `keys`: as in `split_wide`, without that column.
    """
    parts = tables_by_model(table)
    for model, part in parts:
        if len(parts) > 1:
            yield Paragraph(f"**{model or 'The campaign'}**")
        yield from split_wide(part, keys)


def headed(title: str, *blocks: Block) -> list[Block]:
    """Return blocks below a line with a title; nothing if there is no block."""
    return [Paragraph(f"**{title}**"), *blocks] if blocks else []


def section_unless_empty(
    title: str, blocks: Iterable[Block], text: str = ""
) -> list[Section]:
    """Return a section with blocks below a text; nothing if there is no block."""
    shown = [*blocks]
    if not shown:
        return []
    first = [Paragraph(text)] if text else []
    return [Section(title, [*first, *shown])]


class Pictures:
    """The figures that are not empty, each to be placed in the report once."""

    def __init__(
        self, models: list[str], paths: Mapping[str, str], empty: Mapping[str, str]
    ) -> None:
        """Collect the figures; `paths`: name -> path relative to the report; `empty`: those with nothing to show."""
        figures = [
            figure
            for figure in figures_of(models)
            if figure.name in paths and figure.name not in empty
        ]
        self._left = {figure.name: figure for figure in figures}
        self._paths = paths

    @property
    def names(self) -> list[str]:
        """The names of the figures that are not placed yet."""
        return list(self._left)

    def take(self, *names: str) -> list[Picture]:
        """Return the figures of these names, without those that are not there or placed already."""
        return [
            self._picture(self._left.pop(name)) for name in names if name in self._left
        ]

    def of_section(self, section: str, model: str | None = None) -> list[Picture]:
        """Return the figures of a section that are not placed yet, or only those of one model."""
        chosen = [
            f.name
            for f in self._left.values()
            if f.entry.section == section and model in (None, f.model)
        ]
        return self.take(*chosen)

    def _picture(self, figure: FigureName) -> Picture:
        return Picture(
            figure.name, self._paths[figure.name], figure.title, figure.caption
        )
