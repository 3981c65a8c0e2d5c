"""report.json: the numbers of the report for programs, unrounded; `schemas/report.json` describes them.

Unknown values are null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import pandas as pd

from kveval.analysis.cells import THROUGHPUT, parse_runs, rows_of
from kveval.analysis.one_request import one_request_times
from kveval.analysis.statistics.findings import ground_codes, read_exclusions
from kveval.campaign.cell import CELL_COLUMNS, Cell
from kveval.report.answer import answer_of
from kveval.report.data.campaign import Measured, ReportPlan, Table, text_or_blank
from kveval.report.data.run_facts import (
    distinct_workloads,
    machines,
    tiers_of,
    versions_by_tool,
)
from kveval.report.figures.names import find_figure
from kveval.report.tables.configuration import method_hash_of

Part = dict[str, Any]


def report_content(
    plan: ReportPlan,
    measured: Measured,
    figures: Mapping[str, str],
    empty: Mapping[str, str],
    gaps: Table,
) -> Part:
    """Return the content as plain values; `figures`: name -> path beside the report, `empty`: name -> reason."""
    answer = answer_of(plan, measured)
    return {
        "report_schema": 1,
        "answer": {
            name: getattr(answer, name)
            for name in ("question", "sentences", "next_steps")
        },
        "campaign": {
            name: getattr(plan, name)
            for name in ("name", "title", "runs", "margin", "alpha", "primary")
        },
        "engine": measured.runs[0].engine,
        "weights": measured.runs[0].weights,
        "hardware": list(machines(measured.runs).values()),
        "software": {
            tool: list(versions)
            for tool, versions in sorted(versions_by_tool(measured.runs).items())
        },
        "workloads": distinct_workloads(measured.runs),
        "level_unit": measured.level_unit.axis,
        "method_hash": method_hash_of(measured),
        "common_levels": {
            model: measured.common_level(model) for model in plan.models_by_size
        },
        "cells": [_cell(plan, measured, cell) for cell in plan.ordered_cells],
        "comparisons": [
            _comparison(row) for row in measured.all_comparisons.to_dict("records")
        ],
        "one_request": [
            _source_times(row)
            for row in one_request_times(measured.runs).to_dict("records")
        ],
        "averages": [_average(row) for row in measured.averages.to_dict("records")],
        "not_assessed": [
            dict(zip(("what", "why", "settled_by"), row, strict=True))
            for row in gaps.rows
        ],
        "figures": _figures(plan, figures, empty),
    }


def _figures(
    plan: ReportPlan, figures: Mapping[str, str], empty: Mapping[str, str]
) -> list[Part]:
    """The campaign's figures; files that are none of them are left out."""
    models = [cell.model for cell in plan.cells]
    parts = []
    for name, path in figures.items():
        figure = find_figure(name, models)
        if figure is not None:
            reason = empty.get(name)
            parts.append(
                {"name": name, "title": figure.title, "path": path, "empty": reason}
            )
    return parts


def _cell(plan: ReportPlan, measured: Measured, cell: Cell) -> Part:
    runs, peaks = measured.runs_of(cell), rows_of(measured.peaks, cell)
    tiers = tiers_of(runs[0]) if runs else None
    return {
        **cell.row,
        "runs": [
            f"{run.measurement}/run-{run.run}" for run in runs if run.cell == cell
        ],
        "peak": _peak(plan, peaks.iloc[0]) if len(peaks) else None,
        "missing": None if runs else measured.failures.get(cell, "not measured"),
        "device_cache_tokens": _number(tiers.device) if tiers else None,
        "cpu_tier_tokens": _number(tiers.cpu) if tiers else None,
        "working_set_tokens": {
            str(level): tokens for level, tokens in tiers.working_set.items()
        }
        if tiers
        else {},
    }


def _peak(plan: ReportPlan, peak: pd.Series[Any]) -> Part:
    return {
        "level": int(peak["level"]),
        "bracketed": bool(peak["bracketed"]),
        "plateau": [int(level) for level in _parts(peak["plateau"])],
        "runs": int(peak["runs"]),
        "throughput_tok_s": _interval(
            peak, THROUGHPUT, "throughput_low_tok_s", "throughput_high_tok_s"
        ),
        "throughput_crossfit_tok_s": _number(peak["throughput_crossfit_tok_s"]),
        "latency_ms": {
            name: _latency(peak, name) for name in ("ttft", "tpot", "itl", "e2e")
        },
        "requests": {
            state: int(peak[f"requests_{state}"])
            for state in ("completed", "incomplete", "errored")
        },
        "system": {name: _number(peak[name]) for name in plan.metrics if name in peak},
        "checks_failed": _parts(peak["checks_failed"]),
    }


def _latency(peak: pd.Series[Any], name: str) -> Part:
    statistics = ("mean", "p50", "p90", "p99")
    return {key: _number(peak[f"{name}_ms_{key}"]) for key in statistics}


def _comparison(row: Mapping[Any, Any]) -> Part:
    return {
        **{name: row[name] for name in (*CELL_COLUMNS, "metric", "family", "verdict")},
        "against": Cell.from_path(row["baseline"]).row if row["baseline"] else None,
        "effect_percent": _effect(row),
        "cost_percent": _number(row.get("cost_percent")),
        "reason": text_or_blank(row["reason"]),
        "grounds": ground_codes(row),
        "exclusions": list(map(asdict, read_exclusions(row))),
        **{
            name: text_or_blank(row.get(name)) or None
            for name in ("bound", "qualifier", "indication")
        },
        **{name: _number(row[name]) for name in ("interval_percent", "p_holm")},
        **{name: _number(row.get(name)) for name in ("mean", "baseline_mean")},
        **{
            name: parse_runs(row.get(name))
            for name in ("runs_kept", "baseline_runs_kept")
        },
        **{name: _whole(row[name]) for name in ("level", "runs", "runs_to_resolve")},
    }


def _source_times(row: Mapping[Any, Any]) -> Part:
    """Return the times of one request from one source, in a cell."""
    named = ("model", "scenario", "cpu_blocks", "source", "runs", "requests")
    ends = ("median", "least", "most")
    return {
        **{name: row[name] for name in named},
        "ttft_ms": {name: _number(row[f"ttft_ms_{name}"]) for name in ends},
        **{name: _whole(row[name]) for name in ("prompt_tokens", "served_tokens")},
        **{name: row[name] or None for name in ("through", "reason")},
    }


def _average(row: Mapping[Any, Any]) -> Part:
    named = {name: row[name] for name in ("scenario", "cpu_blocks", "metric")}
    return {
        **named,
        "effect_percent": _effect(row),
        "models": _parts(row["panel"]),
        "missing": _parts(row["missing"]),
    }


def _effect(row: Mapping[Any, Any]) -> Part:
    return _interval(row, "effect_percent", "low_percent", "high_percent")


def _interval(
    row: Mapping[Any, Any] | pd.Series[Any], value: str, low: str, high: str
) -> Part:
    return {
        "value": _number(row[value]),
        "low": _number(row[low]),
        "high": _number(row[high]),
    }


def _parts(joined: Any) -> list[str]:
    return (
        [part for part in str(joined).split(";") if part]
        if isinstance(joined, str)
        else []
    )


def _whole(value: Any) -> int | None:
    return None if pd.isna(value) else int(value)


def _number(value: Any) -> float | None:
    return None if pd.isna(value) or not math.isfinite(value) else float(value)


def to_json(report: Part) -> str:
    """Return a report as JSON text."""
    return json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
