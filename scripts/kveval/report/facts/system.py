"""System metrics in the window of each cell's peak level, means over runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kveval.report.data import numbers as numerals
from kveval.report.data.arm_links import arm_link
from kveval.report.facts.caches import Columns
from kveval.report.result.model import CampaignResult, Peak, ReportedCell


@dataclass(frozen=True)
class SystemTable:
    """A table of system metrics: its title, the titles of its metrics, a row for each cell with a peak."""

    title: str
    titles: Sequence[str]
    rows: Sequence[Sequence[str]]


def system_tables(result: CampaignResult) -> list[SystemTable]:
    """Return the metrics by their table, those that were recorded anywhere, without empty tables."""
    names: dict[str, list[str]] = {}
    for name, metric in result.metrics.items():
        if metric.recorded:
            names.setdefault(metric.table, []).append(name)
    tables = []
    for title, of_table in names.items():
        rows = []
        for cell, peak in _peaks(result):
            values = [
                numerals.mean_of(peak.system_by_run.get(name, [])) for name in of_table
            ]
            samples = "" if peak.samples is None else f"{peak.samples:.0f}"
            rows.append([*_names(cell, peak), *values, samples])
        tables.append(SystemTable(title, _titles(result, of_table), rows))
    return tables


def gpu_metrics(result: CampaignResult) -> Columns:
    """Return the metrics of each GPU, for cells with several."""
    names = [name for name, metric in result.metrics.items() if metric.by_gpu]
    rows = []
    for cell, peak in _peaks(result):
        for gpu, values in peak.gpus.items():
            means = [numerals.mean_of(values.get(name, [])) for name in names]
            rows.append([*_names(cell, peak), gpu, *means])
    return Columns(_titles(result, names), rows)


def _peaks(result: CampaignResult) -> list[tuple[ReportedCell, Peak]]:
    return [(cell, cell.peak) for cell in result.cells if cell.peak]


def _names(cell: ReportedCell, peak: Peak) -> list[str]:
    return [cell.model, arm_link(cell), f"{peak.level}"]


def _titles(result: CampaignResult, names: Sequence[str]) -> list[str]:
    metrics = [result.metrics[name] for name in names]
    return [f"{metric.title}, {metric.unit}:" for metric in metrics]
