"""`kveval history`: adds a campaign's results to the history, and says at which builds metrics change."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from kveval.analysis.history import (
    FEWEST_BUILDS,
    BuildChange,
    build_changes,
    build_series,
    history_rows,
)
from kveval.analysis.tables import read_table
from kveval.campaign.cell import Cell
from kveval.report.figures.history import write_history
from kveval.store.history import add_to_history, read_history
from kveval.store.run_file import collected_runs

_TABLES = ("complete_metrics", "comparison", "peak_throughput_all")


def update_history(
    analysis: Path, campaign: str, folders: Sequence[Path], words: Sequence[str]
) -> str:
    """Add a campaign's tables, if all exist, to the first of the folders; return a line that says what was done.

    `words`: those that name the campaign in a command line of snakemake.
    """
    tables = [analysis / f"{name}.csv" for name in _TABLES]
    runs = analysis / "runs.jsonl.zst"
    lacking = [path for path in (*tables, runs) if not path.exists()]
    folders[0].mkdir(parents=True, exist_ok=True)
    if lacking:
        command = f"snakemake --cores 4 {shlex.join(['report', *words])}"
        return f"Nothing of {campaign} is added: {lacking[0]} is missing; `{command}` makes it."
    complete, comparison, peaks = map(read_table, tables)
    rows = history_rows(complete, comparison, peaks, collected_runs(runs), campaign)
    added = add_to_history(folders[0], rows)
    return (
        f"Added to the history: {added}, {len(rows)} values."
        if added
        else f"The history has {campaign} already."
    )


def show_history(
    folders: Sequence[Path], program: str | None, output: Path
) -> Iterator[str]:
    """Write OUTPUT/changes.csv and a figure for each metric, and yield their content as lines of text.

    `program`: the program whose versions are the builds, None for the server.
    """
    series = build_series(read_history(folders), program)
    changes = build_changes(series)
    short = sum(len(entry.builds) < FEWEST_BUILDS for entry in series)
    yield f"{len(series)} series (a metric of a cell at its level, on one kind of hardware), {len(changes)} changes."
    if short:
        yield f"  {short} of them have fewer than {FEWEST_BUILDS} builds, too few to detect a change."
    yield from map(_change_line, changes)
    if not series:
        yield f"  No sound run{f' with {program}' if program else ''} is in {', '.join(map(str, folders))}."
        return
    figures = write_history(series, output)
    pd.DataFrame(changes, columns=BuildChange._fields).to_csv(
        output / "changes.csv", index=False
    )
    yield from (
        "",
        f"Table: {output / 'changes.csv'}",
        *(f"Figure: {path}" for path in figures),
    )


def _change_line(change: BuildChange) -> str:
    cell = f"{Cell.from_row(change._asdict()).path}, level {change.level}"
    size = f"{change.change_percent:+.1f} % [{change.low_percent:+.1f}, {change.high_percent:+.1f}]"
    places = f"between {change.last_before} and {change.first_after}"
    if change.earliest != change.latest:
        places += f" (95 %: first in {change.earliest} to {change.latest})"
    also = f"; also changed: {change.also_changed}" if change.also_changed else ""
    return f"  {'better' if change.better else 'WORSE'}: {cell}: {change.metric} {size} {places}{also}"
