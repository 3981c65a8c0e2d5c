"""The report's tables: each a function from the campaign's data to a header and rows of text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from kveval import numerals, stats
from kveval.report_data import Measured, Plan, Table, cell_label, rows_of
from kveval.run_facts import key_of, working_set
from kveval.runfile import Run

GIB = 2**30

_SYSTEM_COLUMNS = (
    "kv_cache_usage_percent",
    "prefix_cache_hit_percent",
    "external_cache_hit_percent",
    "requests_running",
    "requests_waiting",
    "preemptions",
    "offload_load_mb_s",
    "offload_store_mb_s",
    "cpu_utilisation_percent",
    "memory_used_gib",
    "server_rss_gib",
    "gpu_utilisation_percent",
    "gpu_memory_used_gib",
)


def peak_table(plan: Plan, measured: Measured) -> Table:
    """Every cell that was asked for, with its peak, or that it was not measured."""
    header = ["model", "cell", "runs", "throughput, tok/s (95 %)", "at N concurrent", "TTFT p50 / p90, ms"]
    header += ["TPOT p50, ms", "E2E p50 / p90, ms", "completed / unfinished / failed", "arm active", "failed checks"]
    rows = []
    for cell in plan.cells:
        peaks = rows_of(measured.peaks, cell)
        if peaks.empty:
            reason = measured.failures.get(cell, "not measured")
            rows.append([cell[0], cell_label(cell), f"0 of {plan.runs}", f"**{reason}**", *[""] * (len(header) - 4)])
            continue
        peak = peaks.iloc[0]
        at = measured.levels_of(cell, peak["level"])

        def latency(name: str, *quantiles: str, rows: pd.DataFrame = at) -> str:
            return " / ".join(numerals.mean_of(list(rows[f"{name}_ms_{quantile}"])) for quantile in quantiles)

        throughput = (peak[name] for name in ("throughput_tok_s", "throughput_low_tok_s", "throughput_high_tok_s"))
        rows.append(
            [
                cell[0],
                cell_label(cell),
                f"{peak['runs']:.0f} of {plan.runs}",
                numerals.with_interval(*throughput),
                _peak_level(peak),
                latency("ttft", "p50", "p90"),
                latency("tpot", "p50"),
                latency("e2e", "p50", "p90"),
                " / ".join(f"{peak[f'requests_{state}']:.0f}" for state in ("completed", "incomplete", "errored")),
                _yes_no(peak["exercised"]),
                str(peak["checks_failed"]).replace(";", ", ") or "none",
            ]
        )
    return Table(header, rows, frozenset({2, 3, 4, 5, 6, 7, 8}))


def _peak_level(peak: pd.Series[Any]) -> str:
    """The level of the peak; in brackets the levels that are as good, and whether it lies at the edge."""
    others = [level for level in str(peak["plateau"]).split(";") if level and int(level) != peak["level"]]
    remarks = [f"or {', '.join(others)}"] if others else []
    remarks += [] if peak["bracketed"] else ["edge"]
    return " ".join([f"{peak['level']:.0f}", *(f"({remark})" for remark in remarks)])


def _yes_no(value: Any) -> str:
    if pd.isna(value):
        return "nothing to prove"
    return "yes" if value else "**no**"


def comparison_tables(measured: Measured) -> dict[str, Table]:
    """Every comparison with its interval and verdict, one table per metric."""
    table = measured.comparison
    return {name: _comparison_table(table[table["metric"] == name]) for name in dict.fromkeys(table["metric"])}


def _comparison_table(comparison: pd.DataFrame) -> Table:
    header = ["model", "cell", "against", "at N", "effect (95 %)", "p (Holm)", "verdict", "why", "runs"]
    rows = []
    for row in comparison.to_dict("records"):
        against = str(row["baseline"]).split("/")
        rows.append(
            [
                row["model"],
                cell_label((row["model"], row["scenario"], row["cpu_blocks"])),
                cell_label((against[0], against[1], int(against[2]))) if len(against) == 3 else "",
                _count(row["level"]),
                numerals.effect(row["effect_percent"], row["low_percent"], row["high_percent"]),
                _p_value(row["p_holm"]),
                f"**{row['verdict']}**"
                if row["verdict"] in (stats.BETTER, stats.WORSE, stats.PARITY)
                else row["verdict"],
                row["reason"] if isinstance(row["reason"], str) else "",
                _count(row["runs"]),
            ]
        )
    return Table(header, rows, frozenset({3, 4, 5, 8}))


def _count(value: float) -> str:
    return "" if pd.isna(value) else f"{value:.0f}"


def _p_value(value: float) -> str:
    if pd.isna(value):
        return ""
    return "< 0.001" if value < 0.001 else f"{value:.2g}"


def activity_table(plan: Plan, measured: Measured) -> Table:
    """How much the counters that prove an arm active moved, level by level, over the runs."""
    header = ["model", "cell", "counter", "needed", "at N concurrent", "moved (least to most of the runs)", "active"]
    rows = []
    for cell in plan.cells:
        runs = measured.runs_of(cell)
        required = plan.scenarios[cell[1]].get("exercised", ())
        for entry in required:
            for level in sorted({level.level for run in runs for level in run.levels}):
                moved = list(_movements(runs, level, entry["counter"]))
                enough = [value >= entry.get("at_least", 1) for value in moved]
                verdict = "yes" if all(enough) else "in some runs" if any(enough) else "**no**"
                needed = f"{entry.get('at_least', 1):g} {entry.get('unit', '')}".strip()
                rows.append(
                    [
                        *(cell[0], cell_label(cell), f"`{entry['counter']}`", needed, str(level)),
                        f"{min(moved):,.0f} to {max(moved):,.0f}" if moved else numerals.MISSING,
                        verdict if moved else numerals.MISSING,
                    ]
                )
    return Table(header, rows, frozenset({4, 5}))


def _movements(runs: Sequence[Run], level: int, counter: str) -> Iterator[float]:
    for run in runs:
        for entry in run.levels:
            if entry.level == level and entry.status == "ok":
                yield entry.counters[counter].delta if counter in entry.counters else 0.0


def budget_table(plan: Plan, measured: Measured) -> Table:
    """What each cell's CPU tier holds, against the device's cache and the workload's prefixes."""
    header = [
        "model",
        "cell",
        "CPU tier, blocks",
        "tokens",
        "GiB",
        "device cache, tokens",
        "distinct prefixes, tokens",
        "note",
    ]
    rows = []
    for cell in plan.cells:
        runs = measured.runs_of(cell)
        if not runs:
            continue
        budget = runs[0].budget
        tier = float(budget.get("tokens", math.nan)) if cell[2] else 0.0
        device = float(budget.get("device_tokens") or math.nan)
        bytes_ = budget.get("tier_bytes", budget.get("requested_bytes"))
        working = sorted(set(working_set(runs[0].workload).values())) or [0]
        working = [working[0], working[-1]] if len(working) > 1 else working
        rows.append(
            [
                *(cell[0], cell_label(cell), f"{cell[2]:,}", numerals.rounded(tier, 0)),
                f"{bytes_ / GIB:.3g}" if bytes_ is not None else numerals.MISSING,
                numerals.rounded(device, 0),
                " to ".join(f"{size:,}" for size in working),
                "; ".join(_budget_notes(tier, device, working)),
            ]
        )
    return Table(header, rows, frozenset({2, 3, 4, 5, 6}))


def _budget_notes(tier: float, device: float, working: Sequence[int]) -> Iterator[str]:
    if len(working) > 1:
        yield "the working set grows with the level"
    if max(working) <= device:
        yield "the prefixes fit the device: a tier has nothing to add"
    elif tier:
        if tier < device:
            yield "the tier is smaller than the device's cache"
        if tier < max(working):
            yield "the tier does not hold all prefixes"


def check_tables(measured: Measured) -> tuple[Table, Table]:
    """Failed checks one by one, then warnings and notes summed up."""
    failed: list[list[str]] = []
    others: dict[tuple[str, str], list[str]] = {}
    for row in measured.levels.to_dict("records"):
        messages = dict(part.split(": ", 1) for part in str(row["checks_messages"]).split(" | ") if ": " in part)
        cell = (row["model"], row["scenario"], int(row["cpu_blocks"]))
        for name in filter(None, str(row["checks_failed"]).split(";")):
            failed.append(
                [*(cell[0], cell_label(cell), f"{row['run']}", f"{row['level']}", f"`{name}`"), messages.get(name, "")]
            )
        for severity in ("warned", "noted"):
            for name in filter(None, str(row[f"checks_{severity}"]).split(";")):
                others.setdefault((severity, name), []).append(messages.get(name, ""))
    total = len(measured.levels)
    summed = [
        [f"`{name}`", "warning" if severity == "warned" else "note", f"{len(found)} of {total}", found[0]]
        for (severity, name), found in sorted(others.items(), reverse=True)
    ]
    return (
        Table(["model", "cell", "run", "at N concurrent", "check", "what was found"], failed, frozenset({2, 3})),
        Table(["check", "weight", "levels", "for example"], summed, frozenset({2})),
    )


def system_table(plan: Plan, measured: Measured) -> Table:
    """System metrics in the window of each cell's peak level, means over runs; columns nobody recorded are left out."""
    peaks = measured.peaks
    names = [name for name in _SYSTEM_COLUMNS if name in peaks and name in plan.metrics and peaks[name].notna().any()]
    header = [
        "model",
        "cell",
        "at N",
        *(f"{plan.metrics[name]['title']}, {plan.metrics[name]['unit']}" for name in names),
    ]
    rows = []
    for peak in peaks.to_dict("records"):
        cell = (peak["model"], peak["scenario"], int(peak["cpu_blocks"]))
        at = measured.levels_of(cell, peak["level"])
        rows.append(
            [cell[0], cell_label(cell), f"{peak['level']}", *(numerals.mean_of(list(at[name])) for name in names)]
        )
    return Table([*header, "samples, least"], [[*row, _samples(peaks, row)] for row in rows], frozenset(range(2, 99)))


def _samples(peaks: pd.DataFrame, row: Sequence[str]) -> str:
    cells = peaks.apply(lambda peak: cell_label((peak["model"], peak["scenario"], peak["cpu_blocks"])), axis=1)
    value = peaks[(peaks["model"] == row[0]) & (cells == row[1])]["pcp_samples"].iloc[0]
    return _count(value)


def time_table(measured: Measured) -> Table:
    """Where the minutes of measuring went, over all runs."""
    phases: dict[str, list[float]] = {}
    for run in measured.runs:
        for name, seconds in run.phases.items():
            phases.setdefault(name, []).append(seconds)
    total = sum(map(sum, phases.values()))
    rows = [
        [
            name.removesuffix("_s").replace("_", " "),
            numerals.minutes(sum(seconds)),
            f"{100 * sum(seconds) / total:.0f} %",
            f"{np.mean(seconds):.0f} s",
        ]
        for name, seconds in sorted(phases.items(), key=lambda item: -sum(item[1]))
        if total
    ]
    return Table(["phase", "all runs", "share", "mean of a run"], rows, frozenset({1, 2, 3}))


def provenance_table(measured: Measured) -> Table:
    """Which measurements the report rests on."""
    rows = [
        [
            run.cell.model,
            cell_label(key_of(run)),
            str(run.run),
            f"`{run.measurement}`",
            run.started[:19].replace("T", " "),
            str(run.hardware.get("fingerprint", numerals.MISSING)),
        ]
        for run in sorted(measured.runs, key=lambda run: run.started)
    ]
    return Table(["model", "cell", "run", "measurement", "started (UTC)", "hardware"], rows, frozenset({2}))
