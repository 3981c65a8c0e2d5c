"""A cell's peak as a benchmark report of llm-d-benchmark, version 0.2, for tools that read those.

A report is an object of llm-d-benchmark's own package, `llmd-benchmark-report`, which knows fields and units and refuses
what is wrong (its README section "v0.2.x Format Description": a report describes one stage of one run). Unknown values
are left out.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from llmd_benchmark_report import BenchmarkReportV02
from pydantic import ValidationError

from kveval.campaign.cell import Cell
from kveval.host.errors import Failure
from kveval.load.levels import prefix_count_at, prefix_tokens_at, streams_at
from kveval.load.workload import workload_of
from kveval.report.data.campaign import Measured
from kveval.report.data.level_units import unit_of
from kveval.stacks.registry import IMPORTED_SERVER, find_server, server_version
from kveval.store.run_file import Run, collected_runs
from kveval.tables.cells import THROUGHPUT, tables_by_cell
from kveval.tables.csv_files import read_table

# Namespace of the ids, so that a level of a run always has the same id.
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "kveval.benchmark-report")
_ARM = "kv-cache-arm"
# Field of the observability section -> unit and column of complete_metrics.csv.
_OBSERVED = {
    "kv_cache_usage": ("percent", "kv_cache_usage_percent"),
    "cache_hit_rate": ("percent", "prefix_cache_hit_percent"),
    "gpu_memory_usage": ("GiB", "gpu_memory_used_gib"),
    "cpu_memory_usage": ("GiB", "server_rss_gib"),
    "gpu_utilization": ("percent", "gpu_utilisation_percent"),
    "cpu_utilization": ("percent", "cpu_utilisation_percent"),
    "power_consumption": ("Watts", "gpu_power_w"),
    "running_requests": ("count", "requests_running"),
    "waiting_requests": ("count", "requests_waiting"),
    "preemptions": ("count", "preemptions"),
}
# Latency field -> unit and column; kveval's TPOT includes the first token, llm-d's does not.
_LATENCIES = {
    "time_to_first_token": ("ms", "ttft"),
    "normalized_time_per_output_token": ("ms/token", "tpot"),
    "inter_token_latency": ("ms/token", "itl"),
    "request_latency": ("ms", "e2e"),
}
Part = dict[str, Any]


class ExportError(Failure):
    """There is nothing to export, or nothing that a benchmark report can say."""


def peak_report(measured: Measured, cell: Cell, campaign: str) -> Part:
    """Return the report of a cell's peak level as plain values. Raises ExportError, as for a cell without a peak.

    A benchmark report is about one run: of several, the one with the median throughput at that level is used.
    """
    peak = measured.peak_of(cell)
    if peak is None:
        raise ExportError(f"{cell.path}: it has no peak to export")
    at = measured.levels_of(cell, peak["level"])
    at = at[at[THROUGHPUT] > 0].sort_values([THROUGHPUT, "run"])
    row = {str(name): value for name, value in at.iloc[(len(at) - 1) // 2].items()}
    run = next(run for run in measured.runs_of(cell) if run.run == row["run"])
    return level_report(row, run, campaign, len(at))


def level_report(
    row: Mapping[str, Any], run: Run, campaign: str, runs: int = 1
) -> Part:
    """Return the report of one level of one run from its row of complete_metrics.csv; `runs`: how many there are.

    Raises ExportError for what the package does not take.
    """
    observed = {
        name: _mean(unit, row.get(column, math.nan))
        for name, (unit, column) in _OBSERVED.items()
    }
    component = {"component_label": f"{_server(run)}-0", "aggregate": observed}
    content = {
        # No field of a later revision is used, and readers of earlier ones refuse its number.
        "version": "0.2",
        "run": _identity(row, run, campaign, runs),
        "scenario": {"stack": [_engine(run), _arm(run)], "load": _load(row, run)},
        "results": {
            "request_performance": {"aggregate": _aggregate(row)},
            "observability": {"components": [component]},
        },
    }
    try:
        report = BenchmarkReportV02.model_validate(content)
    except ValidationError as error:
        raise ExportError(
            f"{run.cell.path}: no benchmark report of llm-d-benchmark ({error})",
            code="not_valid",
        ) from error
    return report.model_dump(mode="json", exclude_unset=True, exclude_none=True)


def _identity(row: Mapping[str, Any], run: Run, campaign: str, runs: int) -> Part:
    start, end = (
        pd.Timestamp(row[name]).floor("us").to_pydatetime()
        for name in ("window_start", "window_end")
    )
    of_run = f"{run.measurement}/{run.run}/{row['level']}"
    at = unit_of([workload_of(run.workload)]).label(row["level"])
    which = (
        f"run {run.run}, the median of {runs} by throughput"
        if runs > 1
        else f"run {run.run}"
    )
    return {
        "uid": str(uuid.uuid5(_NAMESPACE, of_run)),
        "eid": str(uuid.uuid5(_NAMESPACE, f"{campaign}/{run.cell.path}")),
        "cid": str(run.hardware.get("fingerprint", "unknown")),
        "time": {
            "start": start,
            "end": end,
            "duration": f"PT{(end - start).total_seconds():g}S",
        },
        "description": f"{run.cell.model} [{campaign}: {run.cell.label}], {at}, {which}",
        "keywords": ["kveval", campaign, run.cell.scenario, run.weights],
    }


def _server(run: Run) -> str:
    """Return the name of the server software; only imported results may not have it."""
    return (find_server(run.versions) or IMPORTED_SERVER).name


def _engine(run: Run) -> Part:
    """The server that answers."""
    model, facts, server = run.specification.get("model", {}), run.hardware, run.server
    gpus = [str(gpu.get("name", "unknown")) for gpu in facts.get("gpus", ())]
    ranks = int(model.get("tensor_parallel_size", 1))
    # Random weights are served under a name that says so; a real model has its id on the hub.
    name = (
        model.get("hf_id" if run.weights == "full" else "served_name") or run.cell.model
    )
    engine = {
        "kind": "inference_engine",
        "tool": _server(run),
        "tool_version": server_version(run.versions, "unknown"),
        "role": "replica",
        "replicas": run.replicas,
        "model": {"name": str(name)},
        "accelerator": {
            "model": gpus[0] if gpus else str(facts.get("cpu_model", "unknown")),
            "count": ranks if gpus else 1,
            "parallelism": {"tp": ranks},
        },
    }
    native = {
        "args": _arguments(server.get("argv", ())),
        "envars": dict(server.get("env", {})),
    }
    return {
        "metadata": _metadata(run.measurement, label=f"{_server(run)}-0"),
        "standardized": engine,
        "native": native,
    }


def _arm(run: Run) -> Part:
    """The arm, as a part of the stack that llm-d's schema calls generic."""
    budget = {name: value for name, value in run.budget.items() if name != "cpu_blocks"}
    arm = {
        "kind": "generic",
        "tool": run.cell.scenario,
        "tool_version": run.versions.get("kveval", "unknown"),
        "cpu_blocks_of_16_tokens": run.cell.cpu_blocks,
        "weights": run.weights,
        **budget,
    }
    return {
        "metadata": _metadata(
            _hash([run.cell.scenario, run.cell.cpu_blocks]), label=_ARM
        ),
        "standardized": arm,
        "native": {},
    }


def _metadata(configuration: str, **named: str | None) -> Part:
    return {
        "schema_version": "0.0.1",
        "cfg_id": configuration,
        **named,
    }


def _arguments(argv: Sequence[str]) -> Part:
    """Return a command line as option -> value, None for a switch; other arguments are under `positional`."""
    options: Part = {}
    positional: list[str] = []
    waiting = ""
    for argument in argv:
        if argument.startswith("--"):
            waiting, _, value = argument.partition("=")
            options[waiting] = value or None
        elif waiting and options[waiting] is None:
            options[waiting] = argument
        else:
            positional.append(argument)
    return {"positional": positional, **options} if positional else options


def _load(row: Mapping[str, Any], run: Run) -> Part:
    load, level = workload_of(run.workload), int(row["level"])
    levels = [int(entry.level) for entry in run.levels]
    prefixes = prefix_count_at(load, level)
    prefix = {
        "prefix_len": _length(prefix_tokens_at(load, level)),
        "num_groups": 1,
        "num_users_per_group": 1,
    }
    standardized = {
        "tool": "guidellm",
        "tool_version": run.versions.get("guidellm", "unknown"),
        "source": "random" if load.prompt_tokens else "unknown",
        "stage": levels.index(level) if level in levels else 0,
        "input_seq_len": _length(load.prompt_tokens),
        "output_seq_len": _length(load.output_tokens),
        "prefix": {**prefix, "num_prefixes": prefixes} if prefixes else None,
        "multi_turn": {"enabled": True, "max_turns": _length(load.turns)}
        if load.turns > 1
        else None,
        # In an open loop, the mean number of requests in flight; the schema wants 1 at least, also where it is unknown.
        "concurrency": streams_at(load, level)
        or max(1, round(np.nan_to_num(row["concurrency_mean"]))),
    }
    command = next((entry.command for entry in run.levels if entry.level == level), [])
    return {
        "metadata": _metadata(
            _hash(run.workload), description=run.workload.get("title") or None
        ),
        "standardized": standardized,
        "native": {"args": _arguments(command), "config": dict(run.workload)},
    }


def _length(value: int) -> Part:
    return {"distribution": "fixed", "value": value}


def _aggregate(row: Mapping[str, Any]) -> Part:
    counts = {
        state: int(row[f"requests_{state}"])
        for state in ("completed", "incomplete", "errored")
    }
    rate = counts["completed"] / float(row["duration_s"]) if row["duration_s"] else 0.0
    requests = {
        "total": sum(counts.values()),
        "failures": counts["errored"],
        "incomplete": counts["incomplete"],
    }
    throughput = {
        "output_token_rate": _mean("tokens/s", row[THROUGHPUT]),
        "total_token_rate": _mean("tokens/s", row.get("total_tok_s", math.nan)),
        "request_rate": _mean("queries/s", rate),
    }
    latency = {
        name: _latency(row, unit, column) for name, (unit, column) in _LATENCIES.items()
    }
    return {"requests": requests, "latency": latency, "throughput": throughput}


def _mean(unit: str, value: float) -> Part | None:
    return {"units": unit, "mean": float(value)} if math.isfinite(value) else None


def _latency(row: Mapping[str, Any], unit: str, name: str) -> Part | None:
    """Mean and quantiles of a latency of the row, None where it was not observed."""
    mean = _mean(unit, row.get(f"{name}_ms_mean", math.nan))
    quantiles = {
        label: float(row.get(f"{name}_ms_{label}", math.nan))
        for label in ("p50", "p90", "p99")
    }
    finite = {
        label: value for label, value in quantiles.items() if math.isfinite(value)
    }
    return mean and mean | finite


def _hash(value: Any) -> str:
    return hashlib.sha256(
        json.dumps(value, sort_keys=True, default=str).encode()
    ).hexdigest()[:16]


def write_peak_reports(measured: Measured, campaign: str, listed: Path) -> None:
    """Write the report of every cell's peak as YAML among its tables, and a list of these files.

    Raises ExportError, as for a cell without a peak.
    """
    files = []
    for cell in tables_by_cell(measured.levels):
        content = yaml.safe_dump(
            peak_report(measured, cell, campaign), sort_keys=False, allow_unicode=True
        )
        files.append(listed.parents[1] / cell.path / "benchmark_report_v0.2.yaml")
        files[-1].write_text(content, encoding="utf-8")
    listed.write_text("".join(f"{file}\n" for file in files))


if __name__ == "__main__":
    campaign, *paths = sys.argv[1:]
    levels, peaks, runs, listed = map(Path, paths)
    tables = read_table(levels), read_table(peaks), pd.DataFrame()
    write_peak_reports(Measured(collected_runs(runs), *tables), campaign, listed)
