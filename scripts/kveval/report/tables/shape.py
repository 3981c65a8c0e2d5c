"""Fits tables to a page: at most eight columns, and a title instead of a column for the model."""

from __future__ import annotations

from collections.abc import Sequence

from kveval.report.data.campaign import Table

WIDEST = 8
"""The most columns that fit on a page."""


def fitted(table: Table, keys: int = 1) -> list[Table]:
    """Return a table as one or more tables of at most WIDEST columns; none for a table without rows.

    `keys`: number of first columns, which identify a row. A wide table with few rows is transposed; any other is split,
    and each part repeats the keys.
    """
    if not table.rows:
        return []
    if len(table.header) <= WIDEST:
        return [table]
    if len(table.rows) < WIDEST:
        return [_turned(table)]
    room = WIDEST - keys
    starts = range(keys, len(table.header), room)
    return [_columns(table, [*range(keys), *range(start, min(start + room, len(table.header)))]) for start in starts]


def _turned(table: Table) -> Table:
    rows = [[title, *(row[at] for row in table.rows)] for at, title in enumerate(table.header)]
    return Table(rows[0], rows[1:], frozenset(range(1, len(rows[0]))))


def _columns(table: Table, chosen: Sequence[int]) -> Table:
    numbers = frozenset(place for place, at in enumerate(chosen) if at in table.numbers)
    return Table([table.header[at] for at in chosen], [[row[at] for at in chosen] for row in table.rows], numbers)


def by_model(table: Table) -> list[tuple[str, Table]]:
    """Return a table whose first column names a model as one table per model, without that column."""
    found: dict[str, list[Sequence[str]]] = {}
    for row in table.rows:
        found.setdefault(row[0], []).append(row)
    rest = range(1, len(table.header))
    return [(model, _columns(Table(table.header, rows, table.numbers), rest)) for model, rows in found.items()]
