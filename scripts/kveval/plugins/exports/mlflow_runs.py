"""A campaign's results as runs of MLflow: one for every measured run, and in each experiment one for the report.

What runs are called and hold is decided here; `mlflow_server` logs them. Only what a measured run itself holds
is logged of it, so that it is the same from every campaign that shares it.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from kveval.campaign.cell import CELL_COLUMNS, blocks_label
from kveval.host.errors import Failure
from kveval.load.workload import workload_of
from kveval.report.data.level_units import unit_of
from kveval.report.data.run_facts import (
    gpus_of,
    machine_descriptions,
    tier_size,
    tier_size_text,
)
from kveval.report.render import Rendering
from kveval.report.result.model import CampaignResult, read_result
from kveval.stacks.registry import IMPORTED_SERVER, find_server, server_version
from kveval.store.run_file import Run, collected_runs
from kveval.tables.cells import THROUGHPUT, tables_by_cell
from kveval.tables.csv_files import read_table
from kveval.tables.peaks import LATENCY_COLUMNS

MEASUREMENT, REPORT = "kveval.measurement", "kveval.report"
"""Tags by which a logged run is known: of a measured run `ID/run-N`, of a report the hash of its report.json."""
_CURVES = (THROUGHPUT, *LATENCY_COLUMNS, "prefix_hit_ratio", "external_hit_ratio")
_SOURCES = (
    "report.json",
    *("analysis/complete_metrics.csv", "analysis/peak_throughput_all.csv"),
    "analysis/runs.jsonl.zst",
)
_FILES = (
    *("REPORT.md", "report.html", "report.json", "appendix/*.md"),
    *("figures/*/*.png", "figures/*/*.svg"),
)
# What MLflow takes in the name of a parameter.
_NOT_IN_NAMES = re.compile(r"[^/\w.\- :]")


class MlflowExportError(Failure):
    """The results cannot be exported, or MLflow refuses them."""


@dataclass(frozen=True)
class Value:
    """A value of a metric, at a time in ms since the epoch; `step`: the level, 0 where that is no dimension."""

    metric: str
    value: float
    time_ms: int
    step: int = 0


@dataclass(frozen=True)
class MlflowRun:
    """A run as MLflow is to have it; `tag` identifies it, times are in ms since the epoch.

    `files`: each with the folder that it has in the run's artifacts, "" for the topmost.
    """

    experiment: str
    name: str
    tag: tuple[str, str]
    start_ms: int
    end_ms: int
    further_tags: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    metrics: Sequence[Value] = ()
    files: Sequence[tuple[Path, str]] = ()


def read_mlflow_runs(results: Path) -> list[MlflowRun]:
    """Return what is to be logged of a folder that a report was written into: a campaign's results, or so-far in it.

    Measured runs without a level that succeeded are left out. Raises MlflowExportError, ResultError,
    RunFileError.
    """
    missing = [name for name in _SOURCES if not (results / name).is_file()]
    if missing:
        raise MlflowExportError(
            f"{results} has no {' and no '.join(missing)}: name the folder of a campaign's results, or so-far in it,"
            " after `snakemake report` or `snakemake report_so_far`",
            code="no_results",
        )
    report, levels, peaks, runs = (results / name for name in _SOURCES)
    result = read_result(report)
    measured = list(
        _measured_runs(
            collected_runs(runs),
            read_table(levels),
            read_table(peaks),
            {"kveval.campaign": result.campaign.name},
        )
    )
    digest = hashlib.sha256(report.read_bytes()).hexdigest()[:16]
    return [*_report_runs(result, digest, results, measured), *measured]


def _measured_runs(
    runs: Sequence[Run],
    levels: pd.DataFrame,
    peaks: pd.DataFrame,
    tags: Mapping[str, str],
) -> Iterator[MlflowRun]:
    """Yield the runs with a level that succeeded; their numbers are those that a level and a peak have in common."""
    numbers = levels.select_dtypes("number").columns
    columns = [name for name in numbers if name in peaks and name not in CELL_COLUMNS]
    by_cell = tables_by_cell(levels[levels[THROUGHPUT] > 0])
    for run in runs:
        rows = by_cell.get(run.cell, levels.iloc[:0])
        rows = rows[rows["run"] == run.run].sort_values("level")
        if len(rows):
            yield _measured_run(run, rows, columns, tags)


def _measured_run(
    run: Run, rows: pd.DataFrame, columns: Sequence[str], tags: Mapping[str, str]
) -> MlflowRun:
    cell = run.cell
    size = [blocks_label(cell.cpu_blocks)] if cell.cpu_blocks else []
    peak = rows.loc[[rows[THROUGHPUT].idxmax()]]
    return MlflowRun(
        experiment=_experiment(run),
        name="_".join([cell.model, cell.scenario, *size, f"r{run.run}"]),
        tag=(MEASUREMENT, f"{run.measurement}/run-{run.run}"),
        start_ms=_milliseconds(run.started),
        end_ms=_milliseconds(run.finished),
        further_tags=tags,
        parameters=_parameters(run),
        metrics=[
            *_values(peak, "peak", columns),
            *_values(rows, "level", [name for name in _CURVES if name in rows]),
        ],
    )


def _experiment(run: Run) -> str:
    """HARDWARE/SOFTWARE; the hardware is the GPUs, or the whole machine where no GPU was probed."""
    hardware = gpus_of(run.hardware) or machine_descriptions([run])[0]
    deployment = run.specification.get("deployment") or {}
    release = deployment.get("release") or run.declared.get("software")
    title = (find_server(run.versions) or IMPORTED_SERVER).title
    server = f"{title} {server_version(run.versions, 'of an unknown version')}"
    return f"{hardware}/{', '.join(filter(None, (release, server)))}"


def _parameters(run: Run) -> dict[str, str]:
    """Return what defined the run, by path in its specification, and what it ran on and with."""
    facts = {
        **run.cell.row,
        "run": run.run,
        "tier": tier_size_text(run.cell.cpu_blocks, tier_size(run)),
        "level_unit": unit_of([workload_of(run.workload)]).axis,
        "machine": machine_descriptions([run])[0],
        "machine_fingerprint": run.hardware.get("fingerprint"),
        "software": run.software,
        "declared": run.declared,
    }
    definition = {key: part for key, part in run.specification.items() if key != "cell"}
    return {
        _NOT_IN_NAMES.sub("_", name): text for name, text in _flat(definition | facts)
    }


def _flat(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Yield what nested values hold as text, under the path of keys; nothing for what is unknown or empty."""
    for key, value in values.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}.")
        elif isinstance(value, list) and all(isinstance(one, str) for one in value):
            if value:
                yield name, shlex.join(value)
        elif isinstance(value, list):
            yield name, json.dumps(value)
        elif value is not None and value != "":
            yield name, str(value)


def _values(rows: pd.DataFrame, group: str, columns: Sequence[str]) -> Iterator[Value]:
    """Yield the finite numbers of each row; those of levels have the level as their step."""
    for row in rows.to_dict("records"):
        time_ms, level = _milliseconds(row["window_end"]), int(row["level"])
        for name in columns:
            if math.isfinite(row[name]):
                step = level if group == "level" else 0
                yield Value(f"{group}/{name}", float(row[name]), time_ms, step)


def _milliseconds(time: str | pd.Timestamp) -> int:
    return int(pd.Timestamp(time).timestamp() * 1000)


def _report_runs(
    result: CampaignResult,
    digest: str,
    results: Path,
    measured: Sequence[MlflowRun],
) -> Iterator[MlflowRun]:
    """Yield a run with the report for each experiment, as its runs may be of several versions or machines."""
    campaign, rendering = result.campaign, Rendering(result)
    question = rendering.plain_sentences("question.md.j2")
    files = [
        (path, path.parent.relative_to(results).as_posix().strip("."))
        for pattern in _FILES
        for path in sorted(results.glob(pattern))
    ]
    for experiment in dict.fromkeys(run.experiment for run in measured):
        runs = [run for run in measured if run.experiment == experiment]
        yield MlflowRun(
            experiment=experiment,
            name=f"report_{campaign.name}",
            tag=(REPORT, digest),
            start_ms=min(run.start_ms for run in runs),
            end_ms=max(run.end_ms for run in runs),
            further_tags={
                "kveval.campaign": campaign.name,
                # MLflow shows this as the run's description.
                "mlflow.note.content": "\n\n".join(
                    [*question, *rendering.plain_answer]
                ),
            },
            parameters=dict(_flat(campaign.model_dump())),
            files=files,
        )
