"""The files and the text of `snakemake curve`: the share of a load that caches of every size serve, and the gain."""

import csv
from pathlib import Path

from kveval.report.figures.draw import write_alone
from kveval.report.figures.reuse import draw_curves
from kveval.spec.config import Config
from kveval.workflow.planning.benefit import level_benefits
from kveval.workflow.planning.benefit_text import benefit_lines
from kveval.workflow.planning.curves import CurveRow, curve_lines, curve_panel, curve_rows, level_curves
from kveval.workflow.planning.stored import StoreIndex

_PREDICTED = tuple(f"{name}{end}" for name in ("throughput_percent", "ttft_ms_p50") for end in ("", "_low", "_high"))


def write_curve_files(config: Config, store: Path, table: Path, figure: Path) -> str:
    """Write a row for each cell and level into `table` (CSV) and the curves into `figure`; return what to print."""
    stored = StoreIndex.read(store)
    curves = list(level_curves(config, stored))
    bought = level_benefits(config, curves, stored)
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(CurveRow._fields + _PREDICTED)
        for one, benefits in zip(curves, bought, strict=True):
            for cell, row in zip(one.cells, curve_rows(config, one), strict=True):
                found = None if benefits is None else benefits.cells.get(cell)
                predicted = (
                    ("",) * len(_PREDICTED) if found is None else (*found.throughput_percent, *found.ttft_ms_p50)
                )
                writer.writerow((*row, *predicted))
    panels = [curve_panel(config, one) for one in curves]
    write_alone("What does a tier of each size serve?", lambda: draw_curves(panels), figure)
    notes = [benefit_lines(config, *both) for both in zip(curves, bought, strict=True)]
    return "\n".join([*curve_lines(config, curves, notes), "", f"Table: {table}", f"Figure: {figure}", ""])
