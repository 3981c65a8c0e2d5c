"""System metrics of a level: every entry of config/metrics.yaml reduced over the level's window of the recording.

A metric that was not recorded is NaN and named in the notes, never 0; so is one with too few samples or an implausible
value. Units come from the recording; where PCP has none, the catalogue's `scale` says what one unit is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pydantic import ValidationError

from kveval.catalogue import Metric, name_for
from kveval.errors import Failure
from kveval.guidellm import CLOSED_LOOP
from kveval.outcomes import Outcome, add_outcomes
from kveval.pcparchive import describe, increase, series

# Fewer samples in a window say little about it. (A published figure should rest on 30; the count is in pcp_samples.)
MIN_SAMPLES = 10
SAMPLES = "pcp_samples"
NOTES = "pcp_notes"

# (PCP's unit, unit of the column) -> factor. For a rate the column's unit is per second and PCP's is the counter's.
UNIT_FACTORS: dict[tuple[str, str], float] = {
    ("byte", "GiB"): 2**-30,
    ("Kbyte", "GiB"): 2**-20,
    ("Mbyte", "GiB"): 2**-10,
    ("byte", "MB/s"): 1e-6,
    ("Kbyte", "MB/s"): 1024e-6,
}


class MetricsError(Failure):
    """config/metrics.yaml asks for something that cannot be computed."""


class _Unavailable(Exception):
    """This metric has no value in this window; the message says why."""


@dataclass(frozen=True)
class _Window:
    parquet: Path
    units: Mapping[str, str]
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class Reduced:
    """The metrics of one window: column -> value, how many samples it holds, and why values are missing."""

    values: dict[str, float]
    samples: int
    notes: list[str]


def parse_metrics(catalogue: Mapping[str, Any]) -> dict[str, Metric]:
    """Turn the content of config/metrics.yaml into typed entries. Raises MetricsError naming entry and mistake."""
    metrics = {}
    for key, entry in catalogue.items():
        try:
            metrics[key] = Metric.model_validate(entry)
        except ValidationError as error:
            raise MetricsError(f"metric {key}: {error}") from error
    return metrics


def reduce_window(parquet: Path, metrics: Mapping[str, Metric], version: str, start_ns: int, end_ns: int) -> Reduced:
    """Reduce every metric over the closed window [start_ns, end_ns] (ns since 1970, UTC) of a pcp.parquet.

    `version` is vLLM's, for the names that changed. Raises ValueError when the file is no recording.
    """
    window = _Window(parquet, {name: info.units for name, info in describe(parquet).items()}, start_ns, end_ns)
    values: dict[str, float] = {}
    counts, absent, notes = [0], [], []
    for key, metric in metrics.items():
        values[key] = np.nan
        try:
            value, samples = _value(window, metric, version)
        except KeyError:
            absent.append(key)
            continue
        except _Unavailable as reason:
            notes.append(f"{key}: {reason}")
            continue
        counts.append(samples)
        low, high = _bounds(metric)
        if not low <= value <= high:
            notes.append(f"{key}: {value:g} {metric.unit} refused, outside the plausible {low:g}..{high:g}")
        else:
            values[key] = value
    if absent:
        notes.insert(0, f"not recorded: {', '.join(absent)}")
    return Reduced(values, max(counts), notes)


def _value(window: _Window, metric: Metric, version: str) -> tuple[float, int]:
    """Return one metric's value in its unit and its number of samples. KeyError: not recorded."""
    if metric.reduction == "ratio":
        part, samples = _increase(window, _names(metric.numerator, version))
        whole, _ = _increase(window, _names(metric.denominator, version))
        if not whole > 0:
            raise _Unavailable("its denominator did not move")
        return metric.scale * part / whole, samples
    names = _names(metric.pcp, version)
    factor = _factor(window, names, metric)
    if metric.reduction in ("rate", "increase"):
        total, samples = _increase(window, names)
        seconds = (window.end_ns - window.start_ns) / 1e9 if metric.reduction == "rate" else 1.0
        return factor * total / seconds, samples
    parts = [_samples(window, name, metric.instances) for name in names]
    values = pd.concat(parts, axis=1).sum(axis=1, min_count=len(parts)).dropna()
    _require(len(values))
    reduced = values.iloc[-1] if metric.reduction == "last" else values.agg(metric.reduction)
    return factor * float(reduced), len(values)


def _bounds(metric: Metric) -> tuple[float, float]:
    low, high = metric.plausible or (None, None)
    return -np.inf if low is None else low, np.inf if high is None else high


def _names(by_version: Mapping[str, str] | None, version: str) -> list[str]:
    expression = name_for(by_version or {}, version)
    if expression is None:
        raise KeyError(version)
    return [name.strip() for name in expression.split("+")]


def _factor(window: _Window, names: Sequence[str], metric: Metric) -> float:
    """Return the factor from the recording's unit to the metric's; a unit that cannot be converted is refused."""
    factors = set()
    for name in names:
        unit = window.units[name]
        if unit in ("", "count"):
            factors.add(metric.scale)
        elif (unit, metric.unit) in UNIT_FACTORS:
            factors.add(UNIT_FACTORS[unit, metric.unit])
        else:
            raise _Unavailable(f"recorded in {unit}, which cannot be turned into {metric.unit}")
    if len(factors) != 1:
        raise _Unavailable(f"adds up metrics of different units: {', '.join(names)}")
    return factors.pop()


def _increase(window: _Window, names: Sequence[str]) -> tuple[float, int]:
    """Return the increase of counters over the window, summed over names and instances, and the number of samples.

    The samples cover the window but for up to one interval at each edge; the increase is scaled to the whole window.
    """
    total, samples = 0.0, []
    for name in names:
        table = increase(window.parquet, name, window.start_ns, window.end_ns)
        _require(int(table["samples"].max()) if len(table) else 0)
        covered = float(table["seconds"].max())
        seconds = (window.end_ns - window.start_ns) / 1e9
        if covered < 0.5 * seconds:
            raise _Unavailable(f"its samples cover {covered:.0f} s of the window's {seconds:.0f} s")
        total += float(table["increase"].sum()) * seconds / covered
        samples.append(int(table["samples"].max()))
    return total, min(samples)


def _samples(window: _Window, name: str, instances: str) -> pd.Series[float]:
    """Return a gauge over time, its instances aggregated at each moment."""
    table = series(window.parquet, name, start_ns=window.start_ns, finish_ns=window.end_ns)
    aggregated: pd.Series[float] = table.groupby("timestamp")["value"].agg(instances)
    return aggregated


def _require(samples: int) -> None:
    if samples < MIN_SAMPLES:
        raise _Unavailable(f"{samples} samples in the window, {MIN_SAMPLES} needed")


def with_system_metrics(
    levels: pd.DataFrame, recordings: Mapping[int, Path], catalogue: Mapping[str, Any], version: str
) -> pd.DataFrame:
    """Add the system metrics of every level's window to a table of levels, with pcp_samples and pcp_notes.

    `recordings`: run -> its pcp.parquet; a run without one gets NaN and a note. Checks that need the recording are
    judged here and join the row's other checks.
    """
    metrics = parse_metrics(catalogue)
    rows: list[dict[str, Any]] = []
    for _, level in levels.iterrows():
        parquet = recordings.get(int(level["run"]))
        if parquet is None or pd.isna(level["window_start"]):
            reason = "no recording of this run" if parquet is None else "the level has no window"
            reduced = Reduced(dict.fromkeys(metrics, np.nan), 0, [reason])
        else:
            reduced = reduce_window(parquet, metrics, version, level["window_start"].value, level["window_end"].value)
        rows.append({**reduced.values, SAMPLES: reduced.samples, NOTES: " | ".join(reduced.notes)})
    added = pd.DataFrame(rows, index=levels.index)
    table = pd.concat([levels, added], axis=1)
    return add_outcomes(table, [[found] if (found := _queue_check(row)) else [] for _, row in table.iterrows()])


def _queue_check(row: pd.Series[Any]) -> Outcome | None:
    """No more requests in the server than were sent: else the samples are of another time or another server."""
    if row.get("strategy", "concurrent") not in CLOSED_LOOP:
        return None
    inside = row.get("requests_running", np.nan) + row.get("requests_waiting", np.nan)
    if not inside > 1.05 * row["level"]:
        return None
    return Outcome(
        "queues", "fail", f"{inside:.1f} requests running and waiting on average, only {row['level']} were in flight"
    )
