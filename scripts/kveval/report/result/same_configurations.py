"""Cells that ran the same configuration under different names, as the result of a campaign lists them."""

from __future__ import annotations

import json
from collections.abc import Iterable

from kveval.campaign.cell import Cell
from kveval.report.result.model import ReportedCellName, named_cells
from kveval.store.run_file import Run


def same_configurations(runs: Iterable[Run]) -> list[list[ReportedCellName]]:
    """Return the groups of cells of one model that ran the same configuration."""
    cells_by_configuration: dict[tuple[str, str], dict[Cell, None]] = {}
    for run in runs:
        settings = {
            name: value for name, value in run.specification.items() if name != "cell"
        }
        # An equal workload alone does not make the servers equal.
        if set(settings) - {"workload"}:
            text = json.dumps(settings, sort_keys=True, default=str)
            cells = cells_by_configuration.setdefault((run.cell.model, text), {})
            cells[run.cell] = None
    return [
        named_cells(cells)
        for cells in cells_by_configuration.values()
        if len(cells) > 1
    ]
