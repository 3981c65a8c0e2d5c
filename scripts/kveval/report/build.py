"""Makes a campaign's result from its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd

from kveval.campaign.cell import Cell
from kveval.campaign.size import GIB
from kveval.report.data.campaign import Measured, ReportPlan, text_or_blank
from kveval.report.data.comparisons import (
    comparison_of,
    is_against_baseline,
)
from kveval.report.data.run_facts import (
    distinct_workloads,
    machines,
    tiers_of,
    versions_by_tool,
)
from kveval.report.data.vocabulary import verdict_of
from kveval.report.facts.answer import answer_metric
from kveval.report.figures.names import find_figure
from kveval.report.result.basis import basis_of, findings_of
from kveval.report.result.caches import (
    counter_results,
    kv_bytes_of_models,
    pinned_bytes,
)
from kveval.report.result.ceilings import ceiling_results
from kveval.report.result.checks import check_findings, checks_made
from kveval.report.result.counters import (
    failed_transfer_results,
    lookup_results,
    tried_levels,
)
from kveval.report.result.defects import known_defects
from kveval.report.result.goodput import goodput_levels
from kveval.report.result.levels import level_results
from kveval.report.result.missing import missing_runs
from kveval.report.result.model import (
    Average,
    CampaignResult,
    Latency,
    Peak,
    ReportedCampaign,
    ReportedCell,
    ReportedComparison,
    ReportedExclusion,
    ReportedFigure,
    ReportedInterval,
    ReportedMean,
    ReportedTimes,
    TierNeeded,
    named_cells,
)
from kveval.report.result.next_steps import next_steps
from kveval.report.result.not_assessed import gaps_of, is_open
from kveval.report.result.origin import origin_of
from kveval.report.result.pairs import listed_pairs
from kveval.report.result.remedies import remedies_of
from kveval.report.result.reuse import leak_results, reuse_results
from kveval.report.result.runs import run_results
from kveval.report.result.same_configurations import same_configurations
from kveval.report.result.system import (
    command_lines,
    metric_results,
    values_by_gpu,
    values_by_run,
)
from kveval.store.run_file import Run
from kveval.tables.cells import (
    THROUGHPUT,
    KeptRunsOfCells,
    kept_runs,
    parse_runs,
    rows_of,
)
from kveval.tables.levels.goodput import GOODPUT
from kveval.tables.one_request import one_request_times
from kveval.tables.system.tier_activity import COLUMNS as ACTIVITY
from kveval.verdict.exclusions import is_active
from kveval.verdict.findings import ground_codes, read_exclusions

# A row of a table.
Row = Mapping[Any, Any]
# What a comparison of two arms has that the campaign does not declare as a contrast.
_UNDECLARED = {"family": "undeclared"}


def campaign_result(
    plan: ReportPlan,
    measured: Measured,
    figures: Mapping[str, str],
    empty: Mapping[str, str],
) -> CampaignResult:
    """Return what the campaign found.

    `figures`: name -> path beside the report, `empty`: name -> reason, of figures with nothing to show. There is at
    least one run.
    """
    versions = sorted(versions_by_tool(measured.runs).items())
    kept_means, kept_peak_means = (
        _kept_means(kept_runs(table))
        for table in (measured.comparison, measured.peak_comparison)
    )
    reuse = reuse_results(plan, measured)
    result = CampaignResult(
        steps=[],
        campaign=ReportedCampaign.model_validate(plan, from_attributes=True),
        origin=origin_of(plan, measured.runs),
        engine=measured.runs[0].engine,
        weights=measured.runs[0].weights,
        hardware=[dict(facts) for facts in machines(measured.runs).values()],
        software={tool: [*seen] for tool, seen in versions},
        workloads=[dict(workload) for workload in distinct_workloads(measured.runs)],
        level_unit=measured.level_unit.axis,
        method_hash=_method_hash(measured.all_comparisons),
        common_levels={
            model: measured.common_level(model) for model in plan.models_by_size
        },
        cells=[
            _cell(
                plan,
                measured,
                cell,
                kept_means.get(cell, {}),
                kept_peak_means.get(cell, {}),
            )
            for cell in plan.ordered_cells
        ],
        runs=run_results(plan, measured.runs),
        comparisons=comparison_results(plan, measured),
        peak_comparisons=[
            _comparison(plan, row)
            for row in measured.peak_comparison.to_dict("records")
        ],
        pairs=[
            _comparison(plan, _UNDECLARED | comparison_of(measured, *pair))
            for pair in listed_pairs(plan, measured)
        ],
        one_request=source_times(measured.runs),
        averages=[_average(row) for row in measured.averages.to_dict("records")],
        not_assessed=gaps_of(plan, measured, empty),
        figures=_figures(plan, figures, empty),
        checks=check_findings(measured),
        checks_made=checks_made(plan, measured),
        goodput_levels=goodput_levels(plan, measured),
        ceilings=[*ceiling_results(plan, measured)],
        tiers_needed=tiers_needed(measured),
        kv_bytes_per_token=kv_bytes_of_models(plan, measured),
        required_counters=[*counter_results(plan, measured)],
        reuse=reuse,
        leaks=leak_results(measured, reuse),
        missing_runs=[*missing_runs(plan, measured)],
        peaks_at_edge=named_cells(measured.peaks_at_edge),
        known_defects=[*known_defects(measured.runs)],
        same_configurations=same_configurations(measured.runs),
        metrics=metric_results(plan, measured),
        lookups=[*lookup_results(plan, measured)],
        failed_transfers=[*failed_transfer_results(plan, measured)],
        searches=[*tried_levels(measured.pilots)],
    )
    steps = next_steps(plan, measured, answer_metric(result))
    return result.model_copy(update={"steps": [*steps]})


def _method_hash(comparisons: pd.DataFrame) -> str | None:
    """The hash of everything that may change a verdict on the same data; None if nothing was compared."""
    return None if comparisons.empty else str(comparisons["method_hash"].iloc[0])


def comparison_results(
    plan: ReportPlan, measured: Measured
) -> list[ReportedComparison]:
    """Return every comparison: arms with their baselines, declared pairs of arms, neighbouring sizes."""
    rows = measured.all_comparisons.to_dict("records")
    return [_comparison(plan, row, with_basis=_is_of_throughput(row)) for row in rows]


def _is_of_throughput(row: Row) -> bool:
    return bool(row["metric"] == THROUGHPUT)


def tiers_needed(measured: Measured) -> dict[str, TierNeeded]:
    """Return the tier that each model needs for its load, of those for which it was computed."""
    if "enough_blocks" not in measured.predicted:
        return {}
    known = measured.predicted.dropna(subset=["enough_blocks"])
    return {
        str(row["model"]): TierNeeded(
            level=int(row["level"]),
            cpu_blocks=int(row["enough_blocks"]),
            size_bytes=round(row["enough_gib"] * GIB),
        )
        for row in known.drop_duplicates("model").to_dict("records")
    }


def _figures(
    plan: ReportPlan, figures: Mapping[str, str], empty: Mapping[str, str]
) -> list[ReportedFigure]:
    """The campaign's figures; files that are none of them are left out."""
    models = [cell.model for cell in plan.cells]
    parts = []
    for name, path in figures.items():
        if find_figure(name, models) is not None:
            part = ReportedFigure(name=name, path=path, empty=empty.get(name))
            parts.append(part)
    return parts


def _cell(
    plan: ReportPlan,
    measured: Measured,
    cell: Cell,
    kept_means: dict[str, ReportedMean],
    kept_peak_means: dict[str, ReportedMean],
) -> ReportedCell:
    runs, peaks = measured.runs_of(cell), rows_of(measured.peaks, cell)
    tiers = tiers_of(runs[0]) if runs else None
    working_set = tiers.working_set if tiers else {}
    peak = peaks.iloc[0] if len(peaks) else None
    size = measured.tier_sizes(cell.model).get(cell)
    levels = measured.levels_of(cell)
    resident = levels.get("server_rss_gib")
    return ReportedCell(
        **cell.row,
        runs=[f"{run.measurement}/run-{run.run}" for run in runs],
        runs_requested=plan.runs_of(cell),
        peak=None if peak is None else _peak(plan, measured, cell, peak),
        missing=measured.why_missing(cell) if peak is None else None,
        kept_means=kept_means,
        kept_peak_means=kept_peak_means,
        device_cache_tokens=tiers.device if tiers else None,
        cpu_tier_tokens=tiers.cpu if tiers else None,
        cpu_tier_bytes=size.size_bytes if size else None,
        cpu_tier_pinned_bytes=pinned_bytes(runs[0]) if runs else None,
        working_set_tokens={str(level): size for level, size in working_set.items()},
        tier_activity=means_by_level(rows_of(measured.activity, cell)),
        goodput_per_s=None if peak is None else peak.get(GOODPUT),
        goodput_level=None if peak is None else peak.get("goodput_level"),
        arm_kind=plan.scenarios[cell.scenario]["arm"],
        is_baseline=cell.scenario in plan.baselines - plan.intermediate_baselines,
        resident_gib=None if resident is None else resident.max(),
        levels=level_results(levels.to_dict("records")),
        command_lines=command_lines(runs),
    )


def means_by_level(activity: pd.DataFrame) -> dict[str, dict[str, float | None]]:
    """Return level -> the means over runs of what a cell's caches did, without what is not counted.

    `activity`: the cell's rows of `tier_activity`.
    """
    names = [*ACTIVITY]
    means: dict[str, dict[str, float | None]] = {}
    for level, rows in activity.groupby("level"):
        known = rows[names].mean().dropna()
        means[str(level)] = {str(name): float(mean) for name, mean in known.items()}
    return means


def _kept_means(kept: KeptRunsOfCells) -> dict[Cell, dict[str, ReportedMean]]:
    """Cell -> metric -> the runs that its comparisons with baselines rest on; without the metrics that have none."""
    means: dict[Cell, dict[str, ReportedMean]] = {}
    for (cell, metric), of_metric in kept.items():
        if of_metric.runs:
            mean = ReportedMean(runs=[*of_metric.runs], mean=of_metric.mean)
            means.setdefault(cell, {})[metric] = mean
    return means


def _peak(
    plan: ReportPlan, measured: Measured, cell: Cell, peak: pd.Series[Any]
) -> Peak:
    rows = measured.levels_of(cell, peak["level"])
    return Peak(
        level=int(peak["level"]),
        bracketed=bool(peak["bracketed"]),
        plateau=peak["plateau"],
        runs=int(peak["runs"]),
        active=is_active(peak),
        throughput_tok_s=ReportedInterval(
            value=peak[THROUGHPUT],
            low=peak["throughput_low_tok_s"],
            high=peak["throughput_high_tok_s"],
        ),
        throughput_crossfit_tok_s=peak["throughput_crossfit_tok_s"],
        latency_ms={
            "ttft": _latency(peak, "ttft"),
            "tpot": _latency(peak, "tpot"),
            "itl": _latency(peak, "itl"),
            "e2e": _latency(peak, "e2e"),
        },
        requests={
            "completed": int(peak["requests_completed"]),
            "incomplete": int(peak["requests_incomplete"]),
            "errored": int(peak["requests_errored"]),
        },
        system={name: peak[name] for name in plan.metrics if name in peak},
        system_by_run=values_by_run(plan, rows),
        gpus=values_by_gpu(plan, rows),
        samples=peak.get("pcp_samples"),
        checks_failed=peak["checks_failed"],
    )


def _latency(peak: pd.Series[Any], name: str) -> Latency:
    return Latency(**{key: peak[f"{name}_ms_{key}"] for key in Latency.model_fields})


def _comparison(
    plan: ReportPlan, row: Row, *, with_basis: bool = False
) -> ReportedComparison:
    columns = {name: row.get(name) for name in ReportedComparison.model_fields}
    texts = ("bound", "qualifier", "indication")
    against = Cell.from_path(row["baseline"]).row if row["baseline"] else None
    return ReportedComparison.model_validate(
        columns
        | {
            "against": against,
            "with_baseline": is_against_baseline(plan, row),
            "effect_percent": _effect(row),
            "reason": text_or_blank(row["reason"]),
            "shown_verdict": verdict_of(row),
            "remedies": remedies_of(plan, row) if is_open(row) else [],
            "grounds": ground_codes(row),
            "exclusions": [
                ReportedExclusion(**asdict(run)) for run in read_exclusions(row)
            ],
            "basis": basis_of(row) if with_basis else {},
            "findings": findings_of(row) if with_basis else [],
            **{name: text_or_blank(row.get(name)) or None for name in texts},
            "runs_kept": parse_runs(row.get("runs_kept")),
            "baseline_runs_kept": parse_runs(row.get("baseline_runs_kept")),
        }
    )


def source_times(runs: Sequence[Run]) -> list[ReportedTimes]:
    """Return the times of one request by cell and source, see `one_request_times`."""
    reported = []
    for row in one_request_times(runs).to_dict("records"):
        ttft_ms = {end: row[f"ttft_ms_{end}"] for end in ("median", "least", "most")}
        reported.append(ReportedTimes.model_validate({**row, "ttft_ms": ttft_ms}))
    return reported


def _average(row: Row) -> Average:
    return Average.model_validate(
        {**row, "effect_percent": _effect(row), "models": row["panel"]}
    )


def _effect(row: Row) -> ReportedInterval:
    return ReportedInterval(
        value=row["effect_percent"], low=row["low_percent"], high=row["high_percent"]
    )
