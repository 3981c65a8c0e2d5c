"""A campaign's results read back from its files: what the report and the figures are made from, whole or so far."""

import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from kveval import report
from kveval.figure_names import figure_names
from kveval.figures import write_figure
from kveval.levels import run_tables
from kveval.peaks import cell_tables, collect, read_table
from kveval.plotting import FigureData
from kveval.recorded import convert_recording
from kveval.report_tables import CellKey, Measured, Plan
from kveval.runfile import Run, read_run, stored_run
from kveval.stats import Settings, compare


def make_plan(values: Mapping[str, Any], metrics: Mapping[str, Any]) -> Plan:
    """Build the plan from the workflow's plain values; cells come as lists."""
    cells = [(str(model), str(scenario), int(blocks)) for model, scenario, blocks in values["cells"]]
    return Plan(**{**values, "cells": cells, "metrics": metrics})


def read_measured(
    levels: Path, peaks: Path, comparison: Path, pointers: Sequence[Path], failures: Mapping[CellKey, str] | None = None
) -> Measured:
    """Read what was measured: the campaign's tables, and the runs that `pointers` (measurement.json) name."""
    runs = [read_run(stored_run(pointer)) for pointer in pointers]
    return Measured(runs, read_table(levels), read_table(peaks), read_table(comparison), failures or {})


def figure_data(plan: Plan, measured: Measured) -> FigureData:
    """Return what the figures are drawn from."""
    line = report.footer(measured.runs, plan.name)
    return FigureData(
        measured.levels, measured.peaks, measured.comparison, line, baselines=plan.baselines, margin=plan.margin
    )


def report_so_far(
    plan: Plan, results: Path, logs: Path, version: str, comparison: Mapping[str, Any], output: Path
) -> None:
    """Write a report over the runs that exist, with its own figures beside it; what failed is listed with its reason.

    `version`: vLLM's; `comparison`: settings and baselines as in the full report. Raises ReportError when nothing was
    measured.
    """
    pointers = {cell: _pointers(results, cell, plan.runs) for cell in plan.cells}
    measured_cells = [cell for cell in plan.cells if pointers[cell]]
    tables: list[tuple[pd.DataFrame, pd.DataFrame]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for cell in measured_cells:
            required = plan.scenarios[cell[1]].get("exercised")
            converted = [_converted(pointer, Path(scratch), required) for pointer in pointers[cell]]
            tables.append(cell_tables([c[0] for c in converted], [c[1] for c in converted], plan.metrics, version))
        paths = [_write_pair(pair, Path(scratch) / str(number)) for number, pair in enumerate(tables)]
        runs: list[Run] = [read_run(stored_run(path)) for cell in measured_cells for path in pointers[cell]]
        if not runs:
            raise report.ReportError(f"campaign {plan.name}: no run was measured, there is nothing to report")
        collected = collect([pair[0] for pair in paths], [pair[1] for pair in paths], plan.metrics)
    complete, peaks = collected["complete_metrics"], collected["peak_throughput_all"]
    compared = compare(complete, comparison["baselines"], Settings(**comparison["settings"]))
    measured = Measured(runs, complete, peaks, compared, failures(plan, pointers, logs))
    output.parent.mkdir(parents=True, exist_ok=True)
    folder = output.parent / "figures"
    folder.mkdir(exist_ok=True)
    figures = [folder / f"{name}.png" for name in figure_names([cell[0] for cell in measured_cells])]
    for path in figures:
        write_figure(path.stem, figure_data(plan, measured), [path])
    report.write_report(plan, measured, figures, output)


def failures(plan: Plan, pointers: Mapping[CellKey, Sequence[Path]], logs: Path) -> dict[CellKey, str]:
    """Return, for every cell without a run, the last cause its jobs' logs name."""
    found = {}
    for cell in plan.cells:
        if pointers[cell]:
            continue
        for log in sorted((logs / "benchmark").joinpath(*map(str, cell)).glob("run-*.log")):
            causes = re.findall(r"FAILED: (.*)", log.read_text(errors="replace"))
            if causes:
                found[cell] = f"failed: {causes[-1]}"
    return found


def read_metrics(path: Path) -> dict[str, Any]:
    """Read config/metrics.yaml as it stands."""
    content: dict[str, Any] = yaml.safe_load(path.read_text())
    return content


def _pointers(results: Path, cell: CellKey, runs: int) -> list[Path]:
    folder = results.joinpath(*map(str, cell))
    paths = [folder / f"run-{kind}{run}" / "measurement.json" for kind in ("", "i") for run in range(1, runs + 1)]
    return [path for path in paths if path.exists()]


def _converted(pointer: Path, scratch: Path, required: Sequence[Mapping[str, Any]] | None) -> tuple[Path, Path]:
    """Return a run's levels.parquet and pcp.parquet: the workflow's where it has made them, else made now."""
    levels, pcp = pointer.with_name("levels.parquet"), pointer.with_name("pcp.parquet")
    if levels.exists() and pcp.exists():
        return levels, pcp
    stored = stored_run(pointer)
    folder = Path(tempfile.mkdtemp(dir=scratch))
    run_tables(stored, required)[0].to_parquet(folder / "levels.parquet", index=False)
    convert_recording(stored, folder / "pcp.parquet")
    return folder / "levels.parquet", folder / "pcp.parquet"


def _write_pair(pair: tuple[pd.DataFrame, pd.DataFrame], folder: Path) -> tuple[Path, Path]:
    folder.mkdir()
    levels, peak = folder / "levels.csv", folder / "peak.csv"
    pair[0].to_csv(levels, index=False)
    pair[1].to_csv(peak, index=False)
    return levels, peak
