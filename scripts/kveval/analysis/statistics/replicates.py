"""Cells that ran the same configuration under different names: their differences measure the noise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kveval.analysis.cells import CellKey
from kveval.analysis.statistics.comparison import CellRows, usable


@dataclass(frozen=True)
class Spread:
    """Standard deviation of one run on the ln scale, pooled over replicates, with its degrees of freedom."""

    sd: float
    df: int


def configurations(cells: Mapping[CellKey, CellRows]) -> dict[CellKey, str]:
    """Return the configuration that each cell ran, as a hash; "" if it is not known, or its runs differ."""
    found = {}
    for cell, rows in cells.items():
        names = {str(row.get("configuration") or "") for row in rows.values()}
        found[cell] = names.pop() if len(names) == 1 else ""
    return found


def replicate_groups(cells: Mapping[CellKey, CellRows]) -> list[list[CellKey]]:
    """Return the groups of two or more cells of one model that ran the same configuration."""
    groups: dict[tuple[str, str], list[CellKey]] = {}
    for cell, configuration in configurations(cells).items():
        if configuration and configuration != "nan":
            groups.setdefault((cell[0], configuration), []).append(cell)
    return [group for group in groups.values() if len(group) > 1]


def pooled_spread(
    cells: Mapping[CellKey, CellRows],
    groups: Iterable[Sequence[CellKey]],
    metric: str,
    levels: Mapping[str, int | None],
) -> Spread | None:
    """Return the spread of replicates about the mean of their group, run by run, at each model's compared level.

    Levels that failed a check are left out. None without any replicate. It is tested on a published case: 58.7, 60.6,
    64.5 and 66.3, 74.6 tok/s give 6.2 % on the ln scale with 3 degrees of freedom.
    """
    squares, freedom = 0.0, 0
    for group in groups:
        level = levels.get(group[0][0])
        by_run: dict[int, list[float]] = {}
        for cell in group:
            for (run, at), row in cells[cell].items():
                if at == level and usable(row, metric):
                    by_run.setdefault(run, []).append(float(np.log(row[metric])))
        for values in by_run.values():
            squares += float(np.var(values)) * len(values)
            freedom += len(values) - 1
    return Spread(float(np.sqrt(squares / freedom)), freedom) if freedom else None
