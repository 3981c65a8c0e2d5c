"""The data behind each verdict: an arm's comparisons with the value of every run, linked to that run's files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kveval.campaign.cell import Cell
from kveval.report.data import numbers as numerals
from kveval.report.data.arm_links import anchor_of, arm_link, runs_title
from kveval.report.data.campaign import Table
from kveval.report.data.comparisons import effect_text, verdict_cell
from kveval.report.data.metric_titles import METRIC_TITLES
from kveval.report.result.model import (
    CampaignResult,
    ReportedCell,
    ReportedComparison,
    or_nan,
)
from kveval.report.sections import Bullets, Paragraph, Section
from kveval.report.tables.results import level_unit_of, whole_number
from kveval.tables.cells import THROUGHPUT
from kveval.tables.levels.goodput import GOODPUT

TITLE = "The runs behind each arm"
_ABOUT = (
    "Every comparison with the values of the single runs at the level where they were compared. Each value links to "
    "the files of its run, if the measurements are stored beside this page."
)


def runs_section(
    result: CampaignResult, places: Mapping[tuple[Cell, int], Path], folder: Path
) -> Section:
    """Return the runs by model and arm, each arm in a section whose title is `runs_title`.

    `places`: cell and run -> the run's folder, of those that are on this machine; `folder`: that of the page, to which
    the links are relative.
    """
    addresses = {
        run: Path(os.path.relpath(place, folder)).as_posix()
        for run, place in places.items()
    }
    runs, compared = _Runs(result, addresses), _comparisons_by_cell(result)
    models = []
    for model in result.common_levels:
        arms = [
            _arm(runs, cell, compared.get(cell.cell, ()))
            for cell in result.cells_of(model)
        ]
        models.append(Section(f"Runs on {model}", arms, folded=True))
    return Section(TITLE, [Paragraph(_ABOUT), *models])


def _comparisons_by_cell(
    result: CampaignResult,
) -> dict[Cell, list[ReportedComparison]]:
    by_cell: dict[Cell, list[ReportedComparison]] = {}
    for comparison in result.comparisons:
        by_cell.setdefault(comparison.cell, []).append(comparison)
    return by_cell


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


@dataclass(frozen=True)
class _Runs:
    """The runs of a campaign; `addresses`: cell and run -> what a link to the run's folder has, of those that have one."""

    result: CampaignResult
    addresses: Mapping[tuple[Cell, int], str]

    def values(
        self, cell: Cell, level: int | None, metric: str, kept: Sequence[int] = ()
    ) -> str:
        """The values of a cell's runs, each with a link to its run; those that a comparison which kept some left out are
        named.
        """
        at = self.result.by_cell[cell].at(level)
        known = at.by_run_of(metric) if at else {}
        links = []
        for run in self.result.runs_by_cell.get(cell, ()):
            value = known.get(run.run)
            shown = (
                f"run {run.run}" if value is None else numerals.significant(value, 3)
            )
            address = self.addresses.get((cell, run.run))
            linked = f"[{shown}](<{address}/>)" if address else shown
            left_out = " (left out)" if kept and run.run not in kept else ""
            links.append(f"{linked}{left_out}")
        return ", ".join(links)


def _arm(
    runs: _Runs, cell: ReportedCell, compared: Sequence[ReportedComparison]
) -> Section:
    """The runs of one cell: a row per comparison, or per metric if it is not compared; why it has none if it has none."""
    if not cell.runs:
        missing = Paragraph(f"No runs: {cell.missing}.")
        return Section(runs_title(cell), [missing])
    rows = [_compared(runs, comparison) for comparison in compared]
    header = [
        "quantity",
        "verdict",
        "effect, % (95 %)",
        "its runs",
        "against",
        "runs of that",
        level_unit_of(runs.result).heading,
    ]
    table = Table(header, rows or _alone(runs, cell), frozenset({2, 6}))
    return Section(runs_title(cell), [table.without_blank_columns()])


def _compared(runs: _Runs, comparison: ReportedComparison) -> list[str]:
    """The row of a comparison."""
    metric, level, row = comparison.metric, comparison.level, comparison.row
    against, of_against = "", ""
    if comparison.against:
        against, other = arm_link(comparison.against), comparison.against.cell
        of_against = runs.values(other, level, metric, comparison.baseline_runs_kept)
    return [
        _quantity(metric),
        verdict_cell(row),
        effect_text(row),
        runs.values(comparison.cell, level, metric, comparison.runs_kept),
        against,
        of_against,
        whole_number(or_nan(level)),
    ]


def _alone(runs: _Runs, cell: ReportedCell) -> list[list[str]]:
    """The rows of a cell without comparisons; what a comparison would have is blank."""
    result = runs.result
    level = result.common_levels[cell.model]
    if level is None:
        return []
    return [
        [
            _quantity(metric),
            "",
            "",
            runs.values(cell.cell, level, metric),
            "",
            "",
            f"{level}",
        ]
        for metric in METRIC_TITLES
        if metric != GOODPUT or result.goodput_levels
    ]


def _quantity(metric: str) -> str:
    unit = {THROUGHPUT: "output tok/s", GOODPUT: "a second"}.get(metric, "ms")
    return f"{METRIC_TITLES.get(metric, metric)}, {unit}"
