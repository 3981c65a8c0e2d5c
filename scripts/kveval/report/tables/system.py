"""The report's tables of the system: metrics at the peak, means over models, checks, time, provenance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from kveval.campaign.cell import Cell, arm_label
from kveval.report.data import numbers as numerals
from kveval.report.data.arm_links import arm_link
from kveval.report.data.campaign import (
    Measured,
    ReportPlan,
    Table,
)
from kveval.report.result.model import CampaignResult, CheckFinding
from kveval.report.tables.results import level_unit_of, whole_number
from kveval.tables.cells import THROUGHPUT
from kveval.tables.csv_files import BY_INSTANCE


def system_tables(plan: ReportPlan, measured: Measured) -> dict[str, Table]:
    """Return system metrics in the window of each cell's peak level, by their `table`, without empty tables.

    Means over runs; with several GPUs also for each GPU.
    """
    metrics: dict[str, list[str]] = {}
    for name, entry in plan.metrics.items():
        if "table" in entry:
            metrics.setdefault(entry["table"], []).append(name)
    tables = {
        title: _system_table(plan, measured, names) for title, names in metrics.items()
    }
    tables["Each GPU"] = _each_gpu(plan, measured)
    return {title: table for title, table in tables.items() if table.rows}


def _system_table(
    plan: ReportPlan, measured: Measured, candidates: Sequence[str]
) -> Table:
    peaks = measured.peaks
    names = [name for name in candidates if name in peaks and peaks[name].notna().any()]
    rows = []
    for cell, peak, at in measured.peaks_of(plan.ordered_cells):
        values = [numerals.mean_of(list(at[name])) for name in names]
        rows.append(
            [
                cell.model,
                arm_link(cell),
                f"{peak['level']}",
                *values,
                whole_number(peak.get("pcp_samples", np.nan)),
            ]
        )
    header = [
        "model",
        "arm",
        measured.level_unit.heading,
        *_titles(plan, names),
        "samples, least",
    ]
    return Table(header, rows if names else [], frozenset(range(2, len(header))))


def _each_gpu(plan: ReportPlan, measured: Measured) -> Table:
    """The metrics of each GPU, for cells with several."""
    broken_down = [
        name
        for name, entry in plan.metrics.items()
        if entry.get("breakdown") and "table" in entry
    ]
    names = [name for name in broken_down if f"{name}{BY_INSTANCE}" in measured.levels]
    rows = []
    for cell, peak, at in measured.peaks_of(plan.ordered_cells):
        # For each metric, the values of each run by GPU.
        values = [list(map(_instances, at[f"{name}{BY_INSTANCE}"])) for name in names]
        gpus = dict.fromkeys(gpu for runs in values for run in runs for gpu in run)
        for gpu in gpus if len(gpus) > 1 else ():
            means = [_mean_of_gpu(runs, gpu) for runs in values]
            rows.append([cell.model, arm_link(cell), f"{peak['level']}", gpu, *means])
    header = ["model", "arm", measured.level_unit.heading, "GPU", *_titles(plan, names)]
    return Table(header, rows, frozenset({2, *range(4, len(header))}))


def _mean_of_gpu(runs: Sequence[Mapping[str, float]], gpu: str) -> str:
    return numerals.mean_of([run[gpu] for run in runs if gpu in run])


def _titles(plan: ReportPlan, names: Sequence[str]) -> list[str]:
    return [
        f"{plan.metrics[name]['title']}, {plan.metrics[name]['unit']}" for name in names
    ]


def _instances(joined: object) -> dict[str, float]:
    """Parse `name=value;...`."""
    pairs = (
        [part.rpartition("=") for part in str(joined).split(";")]
        if isinstance(joined, str)
        else []
    )
    return {name: float(value) for name, _, value in pairs if name}


def average_table(result: CampaignResult) -> Table:
    """Return effects on throughput averaged over the models that have every arm; no rows for a single model."""
    header = [
        "arm",
        "over the models",
        "effect, % of the baseline, geometric mean (95 % over models)",
        "without",
    ]
    rows = []
    for average in result.averages:
        if average.metric == THROUGHPUT and len(average.models) > 1:
            without = [_named(Cell.from_path(path)) for path in average.missing]
            row = [
                arm_label(average.scenario, average.cpu_blocks),
                ", ".join(average.models),
                numerals.effect(*average.effect_percent.numbers),
                "; ".join(without),
            ]
            rows.append(row)
    return Table(header, rows, frozenset({2}))


def check_tables(result: CampaignResult) -> tuple[Table, Table]:
    """Return failed checks, a row per check and cell; and warnings and notes with their counts.

    Checks of the campaign's tables have no level. Every single outcome is in checks.csv.
    """
    failed = [check for check in result.checks if check.severity == "fail"]
    # Those of levels first.
    rows = [_failed_row(check) for check in failed if check.levels]
    rows += [_failed_row(check) for check in failed if not check.levels]
    level = level_unit_of(result).heading
    header = ["model", "arm", "runs", level, "check", "finding"]
    return Table(header, rows, frozenset({2, 3})), _remark_table(result)


def _failed_row(check: CheckFinding) -> list[str]:
    if not check.levels or check.cell is None:
        return ["", "", "", "", f"`{check.check}`", _finding(check)]
    more = f" (and {check.messages - 1} alike)" if check.messages > 1 else ""
    return [
        check.cell.model,
        arm_link(check.cell),
        ", ".join(map(str, check.runs)),
        ", ".join(map(str, check.levels)),
        f"`{check.check}`",
        f"{_finding(check)}{more}",
    ]


def _finding(check: CheckFinding) -> str:
    """The message of a check; of one of the campaign's tables with the cell that it is about."""
    if check.levels or check.cell is None:
        return check.message
    return f"{_named(check.cell.cell)}: {check.message}"


def _remark_table(result: CampaignResult) -> Table:
    """Return warnings and notes with their number, and the first message of each."""
    weights = {"warn": "warning", "note": "note"}
    of_levels = f" of {result.levels_of_runs}"
    remarks: dict[tuple[str, str, str], list[CheckFinding]] = {}
    for check in result.checks:
        counted_of = of_levels if check.levels else ", of the tables"
        if check.severity in weights:
            key = (check.severity, check.check, counted_of)
            remarks.setdefault(key, []).append(check)
    rows = []
    for (severity, name, counted_of), alike in sorted(
        remarks.items(), key=lambda item: item[0], reverse=True
    ):
        count = f"{sum(check.count for check in alike)}{counted_of}"
        rows.append([f"`{name}`", weights[severity], count, _finding(alike[0])])
    return Table(["check", "weight", "levels", "for example"], rows)


def _named(cell: Cell) -> str:
    return f"{cell.model}, {arm_link(cell)}"


def time_table(result: CampaignResult) -> Table:
    """Return the time of each phase of measuring, over all runs."""
    phases = pd.DataFrame([run.phases for run in result.runs])
    total = phases.sum().sum()
    rows = [
        [
            str(name).removesuffix("_s").replace("_", " "),
            *(
                numerals.minutes(seconds),
                f"{100 * seconds / total:.0f} %",
                f"{phases[name].mean():.0f} s",
            ),
        ]
        for name, seconds in phases.sum()
        .sort_values(ascending=False, kind="stable")
        .items()
        if total
    ]
    return Table(
        ["phase", "all runs", "share", "mean of a run"], rows, frozenset({1, 2, 3})
    )


def provenance_table(result: CampaignResult) -> Table:
    """Return the measurements that the report rests on."""
    rows = [
        [
            *(run.model, arm_link(run), f"{run.run}", f"`{run.measurement}`"),
            run.started[:19].replace("T", " "),
            numerals.MISSING if run.hardware is None else run.hardware,
            ", ".join(run.nodes),
        ]
        for run in sorted(result.runs, key=lambda run: run.started)
    ]
    header = ["model", "arm", "run", "measurement", "started (UTC)", "hardware", "node"]
    return Table(header, rows, frozenset({2})).without_blank_columns()
