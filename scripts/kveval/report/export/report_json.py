"""report.json: the numbers of the report for programs, unrounded, in a documented form.

`python -m kveval.report.export.report_json` prints the JSON schema, which lies in `schemas/report.json`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from kveval.analysis.cells import THROUGHPUT, CellKey, common_level
from kveval.report.data.campaign import Measured, ReportPlan, Table, rows_of
from kveval.report.data.run_facts import key_of, tiers_of
from kveval.report.figures.names import find_figure
from kveval.report.tables.configuration import method_of
from kveval.report.tables.results import cells_of, models_of, text

Number = Annotated[float, Field(allow_inf_nan=False)] | None
LatencyName = Literal["ttft", "tpot", "itl", "e2e"]
_LATENCIES: tuple[LatencyName, ...] = ("ttft", "tpot", "itl", "e2e")


class ReportPart(BaseModel):
    """Unknown keys are refused; what is not known is null."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ReportedCellName(ReportPart):
    """A cell; `cpu_blocks` are 16-token blocks of its CPU tier, 0 without one."""

    model: str
    scenario: str
    cpu_blocks: Annotated[int, Field(ge=0)]


class Interval(ReportPart):
    """A value with its 95 % interval over runs; no interval with a single run."""

    value: Number
    low: Number = None
    high: Number = None


class Latency(ReportPart):
    """A latency in ms: means over runs of the mean and the quantiles over requests."""

    mean: Number
    p50: Number
    p90: Number
    p99: Number


class Peak(ReportPart):
    """The level with the highest mean throughput of a cell, and what was measured there."""

    level: Annotated[int, Field(gt=0, description="counted in the report's `level_unit`")]
    bracketed: Annotated[bool, Field(description="whether it lies inside the levels measured")]
    plateau: Annotated[list[int], Field(description="levels as good as it within the spread of the runs")]
    runs: Annotated[int, Field(gt=0)]
    throughput_tok_s: Annotated[Interval, Field(description="output tokens delivered per second")]
    throughput_crossfit_tok_s: Annotated[Number, Field(description="without the bias of choosing the highest level")]
    latency_ms: dict[LatencyName, Latency]
    requests: Annotated[dict[Literal["completed", "incomplete", "errored"], int], Field(description="over all runs")]
    system: Annotated[dict[str, Number], Field(description="columns of config/metrics.yaml, units in their names")]
    checks_failed: list[str]


class ReportedCell(ReportedCellName):
    """A cell that was asked for: its runs and its peak, or why there is none."""

    runs: Annotated[list[str], Field(description="MEASUREMENT/run-N in the store")]
    peak: Peak | None
    missing: Annotated[str | None, Field(description="why nothing was measured")]
    device_cache_tokens: Number
    cpu_tier_tokens: Number
    working_set_tokens: Annotated[dict[str, int], Field(description="level -> tokens of the distinct prefixes")]


class ReportedComparison(ReportedCellName):
    """A cell against another one of its model, in one quantity, at one level."""

    metric: str
    against: ReportedCellName | None
    level: int | None
    effect_percent: Annotated[Interval, Field(description="per cent of the cell it is held against")]
    p_holm: Number
    verdict: str
    indication: Annotated[str | None, Field(description="the verdict it points to where it is only indicative")]
    reason: str
    runs: int | None
    runs_to_resolve: int | None


class Average(ReportPart):
    """An arm's effect averaged over the models that have all arms: the geometric mean of ratios."""

    scenario: str
    cpu_blocks: Annotated[int, Field(ge=0)]
    metric: str
    effect_percent: Annotated[Interval, Field(description="per cent of the baseline; the interval is over models")]
    models: list[str]
    missing: Annotated[list[str], Field(description="MODEL/SCENARIO/CPU_BLOCKS")]


class Figure(ReportPart):
    """A figure, and why it is empty if it is."""

    name: str
    title: str
    path: str
    empty: str | None


class Gap(ReportPart):
    """What was not assessed."""

    what: str
    why: str
    settled_by: str


class ReportedCampaign(ReportPart):
    """What was asked for."""

    name: str
    title: str
    runs: int
    margin: float
    alpha: float


class ReportJson(ReportPart):
    """Everything."""

    report_schema: Literal[1] = 1
    campaign: ReportedCampaign
    engine: str
    weights: str
    hardware: list[dict[str, Any]]
    software: dict[str, list[str]]
    workloads: list[dict[str, Any]]
    level_unit: Annotated[str, Field(description="what levels count, such as concurrent requests")]
    method_hash: Annotated[str | None, Field(description="changes with whatever may change a verdict on the same data")]
    common_levels: Annotated[dict[str, int | None], Field(description="model -> level at which its cells are compared")]
    cells: list[ReportedCell]
    comparisons: Annotated[
        list[ReportedComparison], Field(description="arms with their baselines, then declared pairs")
    ]
    averages: list[Average]
    not_assessed: list[Gap]
    figures: list[Figure]


def build(
    plan: ReportPlan, measured: Measured, figures: Mapping[str, str], empty: Mapping[str, str], gaps: Table
) -> ReportJson:
    """Return the report's content; `figures`: name -> path beside the report, `empty`: name -> reason."""
    return ReportJson(
        campaign=ReportedCampaign(
            name=plan.name, title=plan.title, runs=plan.runs, margin=plan.margin, alpha=plan.alpha
        ),
        engine=measured.runs[0].engine,
        weights=measured.runs[0].weights,
        hardware=list({str(run.hardware.get("fingerprint")): run.hardware for run in measured.runs}.values()),
        software=_software(measured),
        workloads=_distinct(run.workload for run in measured.runs),
        level_unit=measured.unit.axis,
        method_hash=method_of(measured),
        common_levels={model: common_level(measured.comparison, measured.peaks, model) for model in models_of(plan)},
        cells=[_cell(plan, measured, cell) for model in models_of(plan) for cell in cells_of(plan, model)],
        comparisons=[_comparison(row) for row in measured.compared.to_dict("records")],
        averages=[_average(row) for row in measured.averages.to_dict("records")],
        not_assessed=[Gap(what=row[0], why=row[1], settled_by=row[2]) for row in gaps.rows],
        figures=[
            Figure(name=name, title=figure.title, path=path, empty=empty.get(name))
            for name, path in figures.items()
            if (figure := find_figure(name, [cell[0] for cell in plan.cells]))
        ],
    )


def _software(measured: Measured) -> dict[str, list[str]]:
    found: dict[str, dict[str, None]] = {}
    for run in measured.runs:
        for tool, version in run.software.items():
            found.setdefault(tool, {})[version] = None
    return {tool: list(versions) for tool, versions in sorted(found.items())}


def _distinct(values: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({json.dumps(value, sort_keys=True, default=str): value for value in values}.values())


def _cell(plan: ReportPlan, measured: Measured, cell: CellKey) -> ReportedCell:
    runs, peaks = measured.runs_of(cell), rows_of(measured.peaks, cell)
    tiers = tiers_of(runs[0]) if runs else None
    return ReportedCell(
        model=cell[0],
        scenario=cell[1],
        cpu_blocks=cell[2],
        runs=[f"{run.measurement}/run-{run.run}" for run in runs if key_of(run) == cell],
        peak=_peak(plan, peaks.iloc[0]) if len(peaks) else None,
        missing=None if runs else measured.failures.get(cell, "not measured"),
        device_cache_tokens=_number(tiers.device) if tiers else None,
        cpu_tier_tokens=_number(tiers.cpu) if tiers else None,
        working_set_tokens={str(level): tokens for level, tokens in tiers.working_set.items()} if tiers else {},
    )


def _peak(plan: ReportPlan, peak: pd.Series[Any]) -> Peak:
    return Peak(
        level=int(peak["level"]),
        bracketed=bool(peak["bracketed"]),
        plateau=[int(level) for level in _parts(peak["plateau"])],
        runs=int(peak["runs"]),
        throughput_tok_s=Interval(
            value=_number(peak[THROUGHPUT]),
            low=_number(peak["throughput_low_tok_s"]),
            high=_number(peak["throughput_high_tok_s"]),
        ),
        throughput_crossfit_tok_s=_number(peak["throughput_crossfit_tok_s"]),
        latency_ms={
            name: Latency(**{key: _number(peak[f"{name}_ms_{key}"]) for key in ("mean", "p50", "p90", "p99")})
            for name in _LATENCIES
        },
        requests={state: int(peak[f"requests_{state}"]) for state in ("completed", "incomplete", "errored")},
        system={name: _number(peak[name]) for name in plan.metrics if name in peak},
        checks_failed=_parts(peak["checks_failed"]),
    )


def _comparison(row: Mapping[Any, Any]) -> ReportedComparison:
    against = str(row["baseline"]).split("/")
    other = (
        ReportedCellName(model=against[0], scenario=against[1], cpu_blocks=int(against[2]))
        if len(against) == 3
        else None
    )
    return ReportedComparison(
        **{name: row[name] for name in ("model", "scenario", "cpu_blocks", "metric", "verdict")},
        against=other,
        level=_whole(row["level"]),
        effect_percent=_effect(row),
        p_holm=_number(row["p_holm"]),
        indication=text(row.get("indication")) or None,
        reason=text(row["reason"]),
        runs=_whole(row["runs"]),
        runs_to_resolve=_whole(row["runs_to_resolve"]),
    )


def _average(row: Mapping[Any, Any]) -> Average:
    return Average(
        **{name: row[name] for name in ("scenario", "cpu_blocks", "metric")},
        effect_percent=_effect(row),
        models=_parts(row["panel"]),
        missing=_parts(row["missing"]),
    )


def _effect(row: Mapping[Any, Any]) -> Interval:
    return Interval(
        value=_number(row["effect_percent"]), low=_number(row["low_percent"]), high=_number(row["high_percent"])
    )


def _parts(joined: Any) -> list[str]:
    return [part for part in str(joined).split(";") if part] if isinstance(joined, str) else []


def _number(value: Any) -> float | None:
    return None if pd.isna(value) or not math.isfinite(value) else float(value)


def _whole(value: Any) -> int | None:
    return None if pd.isna(value) else int(value)


def dump(report: ReportJson) -> str:
    """Return a report as JSON text."""
    return json.dumps(report.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n"


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of report.json."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **ReportJson.model_json_schema()}


if __name__ == "__main__":
    print(json.dumps(json_schema(), indent=2))
