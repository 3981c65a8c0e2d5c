"""A cell's peak as llm-d-benchmark's benchmark report, for tools that read those."""

from __future__ import annotations

import hashlib
import json
import math
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import yaml

from kveval.analysis.cells import THROUGHPUT, CellKey
from kveval.host.errors import Failure
from kveval.load.levels import prefix_count_at, prefix_tokens_at, streams_at
from kveval.load.workload import workload_of
from kveval.report.data.campaign import Measured, cell_label, rows_of
from kveval.report.data.run_facts import key_of
from kveval.report.export import llmd_schema as report
from kveval.store.run_file import Run

Kind = TypeVar("Kind", bound=report.LlmdStatistics)

# Namespace of the ids, so that the same run of the same level always has the same one.
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "kveval.benchmark-report")
_ENGINE, _ARM = "vllm-0", "kv-cache-arm"
# Field of the observability section -> type, unit and column of complete_metrics.csv.
_OBSERVED: dict[str, tuple[type[report.LlmdStatistics], str, str]] = {
    "kv_cache_usage": (report.Portion, "percent", "kv_cache_usage_percent"),
    "cache_hit_rate": (report.Portion, "percent", "prefix_cache_hit_percent"),
    "gpu_memory_usage": (report.Memory, "GiB", "gpu_memory_used_gib"),
    "cpu_memory_usage": (report.Memory, "GiB", "server_rss_gib"),
    "gpu_utilization": (report.Portion, "percent", "gpu_utilisation_percent"),
    "cpu_utilization": (report.Portion, "percent", "cpu_utilisation_percent"),
    "power_consumption": (report.Power, "Watts", "gpu_power_w"),
    "running_requests": (report.Quantity, "count", "requests_running"),
    "waiting_requests": (report.Quantity, "count", "requests_waiting"),
    "preemptions": (report.Quantity, "count", "preemptions"),
}


class ExportError(Failure):
    """There is nothing to export."""


def peak_report(measured: Measured, cell: CellKey, campaign: str) -> report.BenchmarkReport | None:
    """Return the report of a cell's peak level, None if the cell has no peak.

    A benchmark report is about one run: of several the one with the median throughput at that level is taken.
    """
    peaks = rows_of(measured.peaks, cell)
    if peaks.empty:
        return None
    at = measured.levels_of(cell, peaks.iloc[0]["level"])
    at = at[at[THROUGHPUT] > 0].sort_values([THROUGHPUT, "run"])
    row = {str(name): value for name, value in at.iloc[(len(at) - 1) // 2].items()}
    run = next(run for run in measured.runs_of(cell) if run.run == row["run"])
    return level_report(row, run, campaign, len(at))


def level_report(row: Mapping[str, Any], run: Run, campaign: str, runs: int = 1) -> report.BenchmarkReport:
    """Return the report of one level of one run from its row of complete_metrics.csv; `runs`: how many there are."""
    return report.BenchmarkReport(
        run=_identity(row, run, campaign, runs),
        scenario=report.LlmdScenario(stack=_stack(run), load=_load(row, run)),
        results=report.Results(
            request_performance=report.RequestPerformance(aggregate=_aggregate(row)),
            observability=report.Observability(
                components=[report.ComponentObservability(component_label=_ENGINE, aggregate=_observed(row))]
            ),
        ),
    )


def _identity(row: Mapping[str, Any], run: Run, campaign: str, runs: int) -> report.RunIdentity:
    start, end = (pd.Timestamp(row[name]) for name in ("window_start", "window_end"))
    of_run = f"{run.measurement}/{run.run}/{row['level']}"
    which = f"run {run.run}, the median of {runs} by throughput" if runs > 1 else f"run {run.run}"
    return report.RunIdentity(
        uid=str(uuid.uuid5(_NAMESPACE, of_run)),
        eid=str(uuid.uuid5(_NAMESPACE, f"{campaign}/{'/'.join(map(str, key_of(run)))}")),
        cid=str(run.hardware.get("fingerprint", "unknown")),
        time=report.RunTime(
            start=start.to_pydatetime(), end=end.to_pydatetime(), duration=f"PT{(end - start).total_seconds():g}S"
        ),
        description=f"{run.cell.model} [{campaign}: {cell_label(key_of(run))}], {row['level']} concurrent, {which}",
        keywords=["kveval", campaign, run.cell.scenario, run.weights],
    )


def _stack(run: Run) -> list[report.Component]:
    model, facts = run.specification.get("model", {}), run.hardware
    gpus = [str(gpu.get("name", "unknown")) for gpu in facts.get("gpus", ())]
    ranks = int(model.get("tensor_parallel_size", 1))
    engine = report.LlmdEngine(
        tool="vllm",
        tool_version=run.versions.get("vllm", "unknown"),
        replicas=int(run.specification.get("replicas", 1)),
        model=report.LlmdServedModel(name=_served_name(run)),
        accelerator=report.Accelerator(
            model=gpus[0] if gpus else str(facts.get("cpu_model", "unknown")),
            count=ranks if gpus else 1,
            parallelism=report.Parallelism(tp=ranks),
        ),
    )
    server = run.server
    native = report.Native(args=_arguments(server.get("argv", ())), envars=dict(server.get("env", {})))
    arm = report.Generic.model_validate(
        {
            **{"tool": run.cell.scenario, "tool_version": run.versions.get("kveval", "unknown")},
            **{"cpu_blocks_of_16_tokens": run.cell.cpu_blocks, "weights": run.weights},
            **{name: value for name, value in run.budget.items() if value is not None and name != "cpu_blocks"},
        }
    )
    return [
        _component(_ENGINE, run.measurement, engine, native),
        _component(_ARM, _hash([run.cell.scenario, run.cell.cpu_blocks]), arm, report.Native()),
    ]


def _component(
    label: str, configuration: str, standardized: report.LlmdEngine | report.Generic, native: report.Native
) -> report.Component:
    metadata = report.LlmdMetadata(label=label, cfg_id=configuration)
    return report.Component(metadata=metadata, standardized=standardized, native=native)


def _served_name(run: Run) -> str:
    """The name a miniature is served under says that it is one; a real model goes by its id."""
    model = run.specification.get("model", {})
    known = model.get("served_name" if run.weights == "miniature" else "hf_id")
    return str(known or run.cell.model)


def _arguments(argv: Sequence[str]) -> dict[str, Any]:
    """Return a command line as option -> value, None for a switch; what is no option is under `positional`."""
    options: dict[str, Any] = {}
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


def _load(row: Mapping[str, Any], run: Run) -> report.Load:
    load, level = workload_of(run.workload), int(row["level"])
    levels = [int(entry.level) for entry in run.levels]
    prefixes, prefix = prefix_count_at(load, level), prefix_tokens_at(load, level)
    command = next((entry.command for entry in run.levels if entry.level == level), [])
    return report.Load(
        metadata=report.LoadMetadata(cfg_id=_hash(run.workload), description=run.workload.get("title") or None),
        standardized=report.LoadStandardized(
            tool_version=run.versions.get("guidellm", "unknown"),
            source="random" if load.prompt_tokens else "unknown",
            stage=levels.index(level) if level in levels else 0,
            input_seq_len=report.Length(value=load.prompt_tokens),
            output_seq_len=report.Length(value=load.output_tokens),
            prefix=report.Prefix(prefix_len=report.Length(value=prefix), num_prefixes=prefixes) if prefixes else None,
            multi_turn=report.Turns(max_turns=report.Length(value=load.turns)) if load.turns > 1 else None,
            # Where requests come at a rate of their own, as many as were in flight on average.
            concurrency=streams_at(load, level) or max(1, round(row["concurrency_mean"])),
        ),
        native=report.Native(args=_arguments(command), config=dict(run.workload)),
    )


def _aggregate(row: Mapping[str, Any]) -> report.LlmdAggregate:
    counts = {state: int(row[f"requests_{state}"]) for state in ("completed", "incomplete", "errored")}
    total = row.get("total_tok_s", math.nan)
    return report.LlmdAggregate(
        requests=report.LlmdRequests(
            total=sum(counts.values()), failures=counts["errored"], incomplete=counts["incomplete"]
        ),
        latency=report.LlmdLatency(
            time_to_first_token=_distribution(row, "ttft", report.Duration, "ms"),
            normalized_time_per_output_token=_distribution(row, "tpot", report.TokenLatency, "ms/token"),
            inter_token_latency=_distribution(row, "itl", report.TokenLatency, "ms/token"),
            request_latency=_distribution(row, "e2e", report.Duration, "ms"),
        ),
        throughput=report.Throughput(
            output_token_rate=report.TokenRate(units="tokens/s", mean=row[THROUGHPUT]),
            total_token_rate=report.TokenRate(units="tokens/s", mean=total) if math.isfinite(total) else None,
            request_rate=report.RequestRate(
                units="queries/s", mean=counts["completed"] / float(row["duration_s"]) if row["duration_s"] else 0.0
            ),
        ),
    )


def _distribution(row: Mapping[str, Any], name: str, kind: type[Kind], unit: str) -> Kind | None:
    """Mean and quantiles of a latency of the row, None where it was not observed."""
    found = {statistic: row.get(f"{name}_ms_{statistic}", math.nan) for statistic in ("mean", "p50", "p90", "p99")}
    if not math.isfinite(found["mean"]):
        return None
    return kind(units=unit, **{statistic: value for statistic, value in found.items() if math.isfinite(value)})


def _observed(row: Mapping[str, Any]) -> report.ResourceMetrics:
    values = {name: (kind, unit, row.get(column, math.nan)) for name, (kind, unit, column) in _OBSERVED.items()}
    known = {name: kind(units=unit, mean=value) for name, (kind, unit, value) in values.items() if math.isfinite(value)}
    return report.ResourceMetrics.model_validate(known)


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def write_peak_reports(measured: Measured, campaign: str, files: Mapping[CellKey, Path]) -> None:
    """Write the report of every cell's peak as YAML. Raises ExportError for a cell without a peak."""
    for cell, path in files.items():
        content = peak_report(measured, cell, campaign)
        if content is None:
            raise ExportError(f"{'/'.join(map(str, cell))}: it has no peak to export")
        path.write_text(yaml.safe_dump(content.content(), sort_keys=False, allow_unicode=True), encoding="utf-8")
