"""The data behind each verdict: an arm's comparisons with the value of every run, linked to that run's files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from kveval.analysis.cells import THROUGHPUT, parse_runs
from kveval.analysis.levels.goodput import GOODPUT
from kveval.campaign.cell import Cell
from kveval.report.data import numbers as numerals
from kveval.report.data.arm_links import anchor_of, runs_title
from kveval.report.data.campaign import Measured, ReportPlan, Table
from kveval.report.data.comparisons import baseline_link, effect_text, verdict_cell
from kveval.report.data.metric_titles import METRIC_TITLES
from kveval.report.sections import Bullets, Paragraph, Section
from kveval.report.tables.results import whole_number

TITLE = "The runs behind each arm"
_SAID = (
    "Every comparison with the values of the single runs at the level where they were compared. Each value links to "
    "the files of its run, if the measurements are stored beside this page."
)


def runs_section(plan: ReportPlan, measured: Measured, folder: Path) -> Section:
    """Return the runs by model and arm, each arm in a section whose title is `runs_title`.

    `folder`: the folder of the page, to which links to the runs' folders are relative.
    """
    models = []
    for model in plan.models_by_size:
        arms = [_arm(measured, cell, folder) for cell in plan.cells_of(model)]
        models.append(Section(f"Runs on {model}", arms, folded=True))
    return Section(TITLE, [Paragraph(_SAID), *models])


def lead_answer_to_runs(root: Section) -> Section:
    """Return a report in which each sentence of the answer, its first list, has a link: one that names no arm to all
    runs.
    """
    first = next((block for block in root.blocks if isinstance(block, Bullets)), None)
    if first is None:
        return root
    lead = f" [The runs](#{anchor_of(TITLE)})"
    answer = Bullets(
        [item if "](" in item else f"{item}{lead}" for item in first.items]
    )
    blocks = [answer if block is first else block for block in root.blocks]
    return replace(root, blocks=blocks)


def _arm(measured: Measured, cell: Cell, folder: Path) -> Section:
    """The runs of one cell: a row per comparison, or per metric if it is not compared; why it has none if it has none."""
    if not measured.runs_of(cell):
        missing = Paragraph(f"No runs: {measured.why_missing(cell)}.")
        return Section(runs_title(cell), [missing])
    level, compared = measured.common_level(cell.model), measured.comparisons_of(cell)
    alone = [
        {"metric": metric, "level": level}
        for metric in METRIC_TITLES
        if metric in measured.levels
    ]
    alone = alone if level is not None else []
    rows = [
        _row(measured, cell, row, folder)
        for row in compared.to_dict("records") or alone
    ]
    header = [
        "quantity",
        "verdict",
        "effect, % (95 %)",
        "its runs",
        "against",
        "runs of that",
        measured.level_unit.heading,
    ]
    return Section(
        runs_title(cell),
        [Table(header, rows, frozenset({2, 6})).without_blank_columns()],
    )


def _row(
    measured: Measured, cell: Cell, row: Mapping[Any, Any], folder: Path
) -> list[str]:
    """One row of `_arm`; columns of the comparison are blank without one."""
    metric = str(row["metric"])
    unit = {THROUGHPUT: "output tok/s", GOODPUT: "a second"}.get(metric, "ms")
    title = f"{METRIC_TITLES.get(metric, metric)}, {unit}"
    arm_values, at = (
        _values(measured, cell, row, "runs_kept", folder),
        whole_number(row["level"]),
    )
    if "verdict" not in row:
        return [title, "", "", arm_values, "", "", at]
    against = Cell.from_path(row["baseline"]) if row["baseline"] else None
    baseline_values = (
        _values(measured, against, row, "baseline_runs_kept", folder) if against else ""
    )
    return [
        title,
        verdict_cell(row),
        effect_text(row),
        arm_values,
        baseline_link(row),
        baseline_values,
        at,
    ]


def _values(
    measured: Measured,
    cell: Cell,
    row: Mapping[Any, Any],
    kept_column: str,
    folder: Path,
) -> str:
    """The values of a cell's runs, each with a link to its run; those that the comparison `row` left out are named."""
    metric, at, kept = (
        str(row["metric"]),
        measured.levels_of(cell, row["level"]),
        parse_runs(row.get(kept_column)),
    )
    known = dict(zip(at["run"], at[metric], strict=True)) if metric in at else {}
    links = []
    for run in measured.runs_of(cell):
        value = known.get(run.run)
        shown = (
            f"run {run.run}"
            if value is None or pd.isna(value)
            else numerals.significant(float(value), 3)
        )
        target = (
            Path(os.path.relpath(run.place, folder)).as_posix() if run.place else ""
        )
        left_out = " (left out)" if kept and run.run not in kept else ""
        links.append(
            f"[{shown}](<{target}/>){left_out}" if target else f"{shown}{left_out}"
        )
    return ", ".join(links)
