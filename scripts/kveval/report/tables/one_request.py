"""The report's table of one request: what it takes computed, from the device's cache, and from the tier."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from kveval.analysis.one_request import one_request_times
from kveval.campaign.cell import Cell
from kveval.report.data import numbers as numerals
from kveval.report.data.campaign import Measured, ReportPlan, Table

Row = Mapping[Any, Any]
_FROM = {
    "cold": "computed",
    "device": "from the device's cache",
    "tier": "from the tier",
}
_HEADER = (
    *("model", "arm", "prompt, tokens", "cold, ms", "from the device, ms"),
    *("from the tier, ms", "tokens from the tier", "cold / tier"),
)
_NOT_TIMED = "not timed"


def one_request_table(plan: ReportPlan, measured: Measured) -> Table:
    """Return a row per cell that was measured: medians with the least and the most; no rows if no run has times."""
    by_cell = _rows_by_cell(measured)
    if not by_cell:
        return Table(_HEADER, [])
    rows = []
    for cell in plan.ordered_cells:
        if not measured.runs_of(cell):
            continue
        if cell not in by_cell:
            rows.append([cell.model, cell.label, "", _NOT_TIMED, *[""] * 4])
            continue
        by_source = by_cell[cell]
        tier = by_source.get("tier", {})
        rows.append(
            [
                *(cell.model, cell.label, _tokens(by_source["cold"], "prompt_tokens")),
                *(_time(by_source.get(source)) for source in _FROM),
                _tokens(tier, "served_tokens"),
                _factor(by_source["cold"], tier),
            ]
        )
    return Table(_HEADER, rows, frozenset(range(2, 8))).without_blank_columns()


def one_request_sentences(plan: ReportPlan, measured: Measured) -> Iterator[str]:
    """Yield a sentence for each arm whose tier does not save time, and one for each time that is missing."""
    by_cell = _rows_by_cell(measured)
    for cell in plan.ordered_cells:
        by_source = by_cell.get(cell, {})
        name = _name(plan, cell)
        if "tier" in by_source:
            yield from _slow_tier(name, by_source["cold"], by_source["tier"])
        for source, row in by_source.items():
            if row["reason"]:
                yield f"{name}, {_FROM[source]}: {row['reason']}."


def waypoints(measured: Measured) -> str:
    """Return what the requests went through, "" for nothing: its time is in theirs."""
    times = one_request_times(measured.runs)
    return next((through for through in times["through"] if through), "")


def _rows_by_cell(measured: Measured) -> dict[Cell, dict[str, Row]]:
    """Return the rows of one_request.csv by cell and source."""
    by_cell: dict[Cell, dict[str, Row]] = {}
    for row in one_request_times(measured.runs).to_dict("records"):
        by_cell.setdefault(Cell.from_row(row), {})[row["source"]] = row
    return by_cell


def _name(plan: ReportPlan, cell: Cell) -> str:
    """Return the name of a cell, with the model if there are several."""
    several = len(plan.models_by_size) > 1
    return f"{cell.model}, {cell.label}" if several else cell.label


def _slow_tier(name: str, cold: Row, tier: Row) -> Iterator[str]:
    """Yield that loading takes longer than computing, or is not shown to take less time."""
    if pd.isna(cold["ttft_ms_median"]) or pd.isna(tier["ttft_ms_median"]):
        return
    tokens = f"{tier['served_tokens']:,.0f} tokens"
    if tier["ttft_ms_least"] > cold["ttft_ms_most"]:
        yield f"{name}: loading {tokens} from the tier takes longer than computing them."
    elif tier["ttft_ms_median"] >= cold["ttft_ms_median"]:
        yield f"{name}: loading {tokens} from the tier was not faster than computing them."


def _time(row: Row | None) -> str:
    """Return a time to the first token with the least and the most; blank for an arm without the source."""
    if row is None:
        return ""
    ends = (row[f"ttft_ms_{name}"] for name in ("median", "least", "most"))
    return numerals.with_interval(*ends)


def _tokens(row: Row, name: str) -> str:
    tokens = row.get(name)
    return "" if tokens is None or pd.isna(tokens) else numerals.count(tokens)


def _factor(cold: Row, tier: Row) -> str:
    """Return how many times as long computing takes as loading; blank where one of the times is missing."""
    ratio = cold["ttft_ms_median"] / tier.get("ttft_ms_median", float("nan"))
    return "" if pd.isna(ratio) else numerals.significant(ratio)
