"""The report's tables of the system: metrics at the peak, means over models, checks, time, provenance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from kveval.analysis.cells import THROUGHPUT
from kveval.analysis.levels.outcomes import outcomes_of
from kveval.analysis.system.metrics import BY_INSTANCE
from kveval.campaign.cell import Cell, arm_label
from kveval.report.data import numbers as numerals
from kveval.report.data.campaign import (
    Measured,
    ReportPlan,
    Table,
    with_cell_labels,
)
from kveval.report.data.comparisons import effect_text
from kveval.report.tables.results import whole_number


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
                cell.label,
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
            rows.append([cell.model, cell.label, f"{peak['level']}", gpu, *means])
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


def average_table(measured: Measured) -> Table:
    """Return effects on throughput averaged over the models that have every arm; no rows for a single model."""
    header = [
        "arm",
        "over the models",
        "effect, % of the baseline, geometric mean (95 % over models)",
        "without",
    ]
    rows = []
    if {"metric", "models"} <= set(measured.averages):
        table = measured.averages
        for row in table[
            (table["metric"] == THROUGHPUT) & (table["models"] > 1)
        ].to_dict("records"):
            cell = arm_label(str(row["scenario"]), int(row["cpu_blocks"]))
            without = [
                _named(Cell.from_path(name))
                for name in str(row["missing"]).split(";")
                if "/" in name
            ]
            rows.append(
                [
                    cell,
                    str(row["panel"]).replace(";", ", "),
                    effect_text(row),
                    "; ".join(without),
                ]
            )
    return Table(header, rows, frozenset({2}))


def check_tables(measured: Measured) -> tuple[Table, Table]:
    """Return failed checks, a row per check and cell; and warnings and notes with their counts.

    Checks of the campaign's tables have no level. Every single outcome is in checks.csv.
    """
    rows = [*_failures_of_levels(measured)]
    # Severity, check, and what its outcomes are counted of -> messages.
    remarks: dict[tuple[str, str, str], list[str]] = {}
    of_levels = f" of {len(measured.levels)}"
    for row in measured.levels.to_dict("records"):
        for outcome in outcomes_of(row):
            if outcome.severity != "fail":
                key = (outcome.severity, outcome.name, of_levels)
                remarks.setdefault(key, []).append(outcome.message)
    of_campaign = (
        measured.checks[measured.checks["level"].isna()]
        if len(measured.checks)
        else measured.checks
    )
    for row in of_campaign.to_dict("records"):
        about = (
            f"{_named(Cell.from_row(row))}: " if isinstance(row["model"], str) else ""
        )
        message = f"{about}{with_cell_labels(str(row['message']))}"
        if row["severity"] == "fail":
            rows.append(["", "", "", "", f"`{row['check']}`", message])
        else:
            key = (row["severity"], row["check"], ", of the tables")
            remarks.setdefault(key, []).append(message)
    header = ["model", "arm", "runs", measured.level_unit.heading, "check", "finding"]
    return Table(header, rows, frozenset({2, 3})), _remark_table(remarks)


def _failures_of_levels(measured: Measured) -> Iterator[list[str]]:
    """Yield a row per cell and check that some of its levels failed, with the first message."""
    failures: dict[tuple[Cell, str], list[tuple[int, int, str]]] = {}
    for row in measured.levels.to_dict("records"):
        for outcome in outcomes_of(row):
            if outcome.severity == "fail":
                failure = (int(row["run"]), int(row["level"]), outcome.message)
                failures.setdefault((Cell.from_row(row), outcome.name), []).append(
                    failure
                )
    for (cell, check), of_check in failures.items():
        runs = sorted({run for run, _, _ in of_check})
        levels = sorted({level for _, level, _ in of_check})
        messages = list(dict.fromkeys(message for _, _, message in of_check))
        more = f" (and {len(messages) - 1} alike)" if len(messages) > 1 else ""
        yield [
            cell.model,
            cell.label,
            ", ".join(map(str, runs)),
            ", ".join(map(str, levels)),
            f"`{check}`",
            f"{with_cell_labels(messages[0])}{more}",
        ]


def _remark_table(remarks: Mapping[tuple[str, str, str], Sequence[str]]) -> Table:
    """Return warnings and notes with their number, and the first message of each."""
    weights = {"warn": "warning", "note": "note"}
    rows = []
    for (severity, check, counted_of), messages in sorted(
        remarks.items(), reverse=True
    ):
        count = f"{len(messages)}{counted_of}"
        example = with_cell_labels(messages[0])
        rows.append([f"`{check}`", weights[severity], count, example])
    return Table(["check", "weight", "levels", "for example"], rows)


def _named(cell: Cell) -> str:
    return f"{cell.model}, {cell.label}"


def time_table(measured: Measured) -> Table:
    """Return the time of each phase of measuring, over all runs."""
    phases = pd.DataFrame([run.phases for run in measured.runs])
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


def provenance_table(measured: Measured) -> Table:
    """Return the measurements that the report rests on."""
    rows = [
        [
            *(
                run.cell.model,
                run.cell.label,
                f"{run.run}",
                f"`{run.measurement}`",
            ),
            run.started[:19].replace("T", " "),
            str(run.hardware.get("fingerprint", numerals.MISSING)),
            ", ".join(run.hardware.get("nodes", ())),
        ]
        for run in sorted(measured.runs, key=lambda run: run.started)
    ]
    header = ["model", "arm", "run", "measurement", "started (UTC)", "hardware", "node"]
    return Table(header, rows, frozenset({2})).without_blank_columns()
