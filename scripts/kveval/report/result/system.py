"""System metrics of the peaks, and command lines, as a campaign's result lists them."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence

import pandas as pd

from kveval.report.data.campaign import Measured, ReportPlan
from kveval.report.result.model import ReportedMetric
from kveval.store.run_file import Run
from kveval.tables.csv_files import BY_INSTANCE


def metric_results(plan: ReportPlan, measured: Measured) -> dict[str, ReportedMetric]:
    """Return the metrics that a table of the report has, by their column."""
    peaks, levels = measured.peaks, measured.levels
    return {
        name: ReportedMetric(
            title=entry["title"],
            unit=entry["unit"],
            table=entry["table"],
            recorded=name in peaks and bool(peaks[name].notna().any()),
            by_gpu=bool(entry.get("breakdown")) and f"{name}{BY_INSTANCE}" in levels,
        )
        for name, entry in plan.metrics.items()
        if "table" in entry
    }


def values_by_run(plan: ReportPlan, rows: pd.DataFrame) -> dict[str, list[float]]:
    """Return metric -> the values of runs, of the metrics with a table that `rows`, those of a cell's peak, have."""
    values = {
        name: [*filter(math.isfinite, rows[name])]
        for name, entry in plan.metrics.items()
        if "table" in entry and name in rows
    }
    return {name: of_runs for name, of_runs in values.items() if of_runs}


def values_by_gpu(
    plan: ReportPlan, rows: pd.DataFrame
) -> dict[str, dict[str, list[float]]]:
    """Return the GPU -> metric -> the values of runs, of servers with several GPUs; `rows`: those of a cell's peak."""
    by_gpu: dict[str, dict[str, list[float]]] = {}
    for name, entry in plan.metrics.items():
        column = f"{name}{BY_INSTANCE}"
        if "table" in entry and entry.get("breakdown") and column in rows:
            for joined in rows[column]:
                for gpu, value in _instances(joined).items():
                    by_gpu.setdefault(gpu, {}).setdefault(name, []).append(value)
    return by_gpu if len(by_gpu) > 1 else {}


def _instances(joined: object) -> dict[str, float]:
    """Parse `name=value;...`."""
    if not isinstance(joined, str):
        return {}
    pairs = (part.rpartition("=") for part in joined.split(";"))
    return {name: float(value) for name, _, value in pairs if name}


def command_lines(runs: Sequence[Run]) -> list[str]:
    """Return the command lines of a cell's first run, as they ran: the server's, with its environment, those of the
    programs beside it, and the last one of the load.
    """
    if not runs:
        return []
    run = runs[0]
    environment = [
        f"{name}={shlex.quote(str(value))}"
        for name, value in sorted(run.server.get("env", {}).items())
    ]
    server = " ".join([*environment, *map(shlex.quote, run.server.get("argv", ()))])
    # Replicas have the same programs beside each of them.
    beside = dict.fromkeys(shlex.join(sidecar.argv) for sidecar in run.companions)
    load = next(
        (shlex.join(level.command) for level in reversed(run.levels) if level.command),
        "",
    )
    return [line for line in (server, *beside, load) if line]
