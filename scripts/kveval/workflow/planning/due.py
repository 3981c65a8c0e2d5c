"""Tables that have to be made again although Snakemake's records and the times of files may not say so.

Snakemake has recorded in .snakemake what each file was made from. In a copy of the folder without these records it goes
by times alone, which a copy may change, and does not make an absent file of which everything is there that needs it.
The ids in pointers, tables and the report depend on neither.
"""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from kveval.campaign.cell import Cell
from kveval.report.files import NUMBERS, reported_measurements


def due_tables(
    results: str, planned: Mapping[Cell, Sequence[str | None]], collected: str
) -> list[str]:
    """Return what has to be made again for a report of the planned runs: the table of all runs, and peaks of cells.

    Nothing if the report in `results` is of these runs already, whatever else is in it. `planned`: cell -> the ids of
    its runs, None for one that is not known yet; `collected`: the table of all runs.
    """
    wanted = {cell: sorted(map(str, ids)) for cell, ids in planned.items()}
    reported = reported_measurements(Path(results, NUMBERS))
    if reported is None:
        return [collected]
    if reported == wanted:
        return []
    folders = {
        f"{results}/{cell.path}": ids
        for cell, ids in wanted.items()
        if reported.get(cell) != ids
    }
    return [
        collected,
        *(
            f"{folder}/peak.csv"
            for folder, ids in folders.items()
            if _of_others(folder, ids)
        ),
    ]


def _of_others(folder: str, wanted: Sequence[str]) -> bool:
    """Tell whether a cell's tables are there and of other measurements, or of more or fewer runs."""
    try:
        with Path(folder, "levels.csv").open(newline="", encoding="utf-8") as file:
            runs = {
                (row.get("run"), row.get("measurement")) for row in csv.DictReader(file)
            }
    except FileNotFoundError:
        return False
    return sorted(str(measurement) for _, measurement in runs) != list(wanted)
