"""Reads a campaign's results from its files, for the report and the figures."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from kveval.campaign.cell import Cell
from kveval.campaign.types import on_cpu
from kveval.report.data.campaign import Measured, ReportPlan
from kveval.report.data.figures import FigureData
from kveval.report.data.run_facts import footer, tiers_of
from kveval.store.run_file import collected_runs
from kveval.tables.csv_files import read_table
from kveval.tables.levels.pilot import read_pilot

_FURTHER = (
    *("contrasts", "averages", "checks", "peak_comparison"),
    *("predicted", "predicted_hits", "hits", "waterfall"),
)


def read_report_plan(
    values: Mapping[str, Any], metrics: Mapping[str, Any]
) -> ReportPlan:
    """Build the plan from the workflow's plain values; cells come as their paths."""
    cells = [Cell.from_path(path) for path in values["cells"]]
    return ReportPlan(**{**values, "cells": cells, "metrics": metrics})


def read_measured(
    levels: Path,
    peaks: Path,
    comparison: Path,
    runs: Path,
    beside: Iterable[Path] = (),
    recordings: Sequence[Path] = (),
    pilots: Sequence[Path] = (),
) -> Measured:
    """Read what was measured: the campaign's tables and runs (`kveval.store.run_file.collect_runs`).

    `beside`: files that may be further tables: no others are read, as a job may be writing them. `recordings`: every
    run's pcp.parquet in the order of the runs, or none; `pilots`: results of searches for levels (levels.json).
    """
    stored_runs = collected_runs(runs)
    recorded = (
        {
            (run.cell, run.run): path
            for run, path in zip(stored_runs, recordings, strict=True)
        }
        if recordings
        else {}
    )
    further_tables = {
        path.stem: read_table(path)
        for path in beside
        if path.suffix == ".csv" and path.stem in _FURTHER
    }
    tables = read_table(levels), read_table(peaks), read_table(comparison)
    return Measured(
        stored_runs,
        *tables,
        {},
        recorded,
        **further_tables,
        pilots=[read_pilot(path) for path in pilots],
    )


def figure_data(plan: ReportPlan, measured: Measured) -> FigureData:
    """Return what the figures are drawn from."""
    return FigureData(
        levels=measured.levels,
        peaks=measured.peaks,
        comparison=measured.comparison,
        footer=footer(measured.runs, plan.name),
        runs=measured.runs,
        parameters=plan.parameters,
        baselines=plan.baselines,
        intermediate_baselines=plan.intermediate_baselines,
        margin=plan.margin,
        device="CPU"
        if measured.runs
        and all(on_cpu(run.specification.get("build")) for run in measured.runs)
        else "GPU",
        level_unit=measured.level_unit,
        tiers={run.cell: tiers_of(run) for run in reversed(measured.runs)},
        recordings=measured.recordings,
        predicted_hits=measured.predicted_hits,
        hits=measured.hits,
        waterfall=measured.waterfall,
        metrics=plan.metrics,
        goodput_unit=plan.goodput.get("of", "requests"),
    )


def read_metrics(path: Path) -> dict[str, Any]:
    """Read config/metrics.yaml."""
    content: dict[str, Any] = yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader)
    return content
