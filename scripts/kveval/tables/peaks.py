"""The levels of a cell's runs, and its peak."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from kveval.campaign.cell import CELL_COLUMNS
from kveval.estimators.intervals import mean_interval
from kveval.host.errors import Failure
from kveval.store.conditions import RunConditions
from kveval.store.derived import readable
from kveval.store.run_file import Run
from kveval.tables.cells import THROUGHPUT
from kveval.tables.csv_files import SAMPLES
from kveval.tables.level_selection import (
    cross_fit,
    highest_level,
    log_table,
    plateau,
)
from kveval.tables.levels.goodput import GOODPUT, nonzero_goodput
from kveval.tables.levels.noise import QUANTILES
from kveval.tables.levels.records import LATENCIES
from kveval.tables.levels.rows import run_tables
from kveval.tables.system.metrics import MIN_SAMPLES, with_system_metrics

LATENCY_COLUMNS = tuple(
    f"{name}_ms_{statistic}" for name in LATENCIES for statistic in ("mean", *QUANTILES)
)
_SERVER_COLUMNS = (
    *("prefix_hit_ratio", "external_hit_ratio", "external_hit_tokens"),
    *("offload_load_bytes", "offload_store_bytes"),
)
_COUNTS = ("requests_completed", "requests_incomplete", "requests_errored")


class PeaksError(Failure):
    """A cell's tables have no level that could be its peak."""


def tables_of_runs(
    runs: Sequence[Run],
    places: Iterable[Path],
    required: Sequence[Mapping[str, Any]],
    limits: Mapping[str, Any] | None = None,
) -> tuple[pd.DataFrame, list[pd.DataFrame]]:
    """Return the requests of all runs of a cell, and the levels of each run, see `run_tables`.

    `places`: the runs' folders in the store, in the same order; `required`: the counters that the arm requires;
    `limits`: the campaign's latency limits for goodput, None if it has none.
    """
    levels_of_runs, all_requests = [], []
    for run, place in zip(runs, places, strict=True):
        levels, requests = run_tables(run, place, required, limits)
        levels_of_runs.append(levels)
        all_requests.append(requests)
    return pd.concat(all_requests, ignore_index=True), levels_of_runs


def cell_tables(
    levels: Sequence[pd.DataFrame],
    recordings: Sequence[Path],
    conditions: Sequence[RunConditions],
    catalogue: Mapping[str, Any],
    min_samples: int = MIN_SAMPLES,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return levels.csv and peak.csv of one cell.

    `levels` are the levels of the cell's runs, see `run_tables`, `recordings` their pcp.parquet and `conditions` their
    conditions, in the same order; `catalogue` is the content of config/metrics.yaml; a metric with fewer than
    `min_samples` samples in a window is NaN. Raises PeaksError when no level of the cell was measured, DamagedTable for
    a recording that cannot be read.
    """
    parts = []
    for table, recording, ran in zip(levels, recordings, conditions, strict=True):
        with readable(recording):
            parts.append(
                with_system_metrics(table, recording, catalogue, ran, min_samples)
            )
    table = pd.concat(parts, ignore_index=True).sort_values(
        ["run", "level"], ignore_index=True
    )
    return table, pd.DataFrame([peak_row(table, list(catalogue))])


def peak_row(levels: pd.DataFrame, metrics: Sequence[str] = ()) -> dict[str, Any]:
    """Return the row of peak.csv: the level with the largest mean of ln throughput over the cell's runs.

    Only levels with a value in all runs but a few are compared, over the runs with all of them. With several runs the
    interval is Student's t on ln throughput over runs, 95 %, at the selected level. It ignores the bias of selecting
    the highest of several noisy levels, which `throughput_crossfit_tok_s` does not have, see `cross_fit`. `bracketed`
    is False when the peak is the first or last level of the grid; `plateau` lists the levels as good as the peak.
    Raises PeaksError without any level.
    """
    logs = log_table(levels, THROUGHPUT)
    if logs.empty:
        cell = "/".join(str(levels[key].iloc[0]) for key in CELL_COLUMNS)
        raise PeaksError(
            f"{cell}: no level with a throughput that all runs have; see checks_failed in its levels.csv"
        )
    level = highest_level(logs)
    at = levels[(levels["level"] == level) & levels["run"].isin(logs.index)]
    low, high = mean_interval(logs[level].to_numpy())
    active = at["exercised"].dropna().astype(bool)
    numeric = [
        name
        for name in (*LATENCY_COLUMNS, *_SERVER_COLUMNS, *metrics)
        if name in levels
    ]
    return {
        **{key: at[key].iloc[0] for key in (*CELL_COLUMNS, "engine", "weights")},
        "level": level,
        "bracketed": min(levels["level"]) < level < max(levels["level"]),
        "levels_measured": levels["level"].nunique(),
        "selection": "cross-fitted"
        if len(logs) > 1
        else "selected by the single run itself",
        "runs": len(at),
        THROUGHPUT: at[THROUGHPUT].mean(),
        "throughput_low_tok_s": low,
        "throughput_high_tok_s": high,
        "throughput_crossfit_tok_s": cross_fit(logs),
        "plateau": ";".join(str(member) for member in plateau(logs)),
        **{name: at[name].mean() for name in numeric},
        "concurrency_mean": at["concurrency_mean"].mean(),
        **{name: int(at[name].replace(np.inf, np.nan).sum()) for name in _COUNTS},
        SAMPLES: at[SAMPLES].min() if SAMPLES in at else np.nan,
        "exercised": bool(active.all()) if len(active) else pd.NA,
        "checks_failed": ";".join(
            sorted({*";".join(at["checks_failed"].dropna()).split(";")} - {""})
        ),
        "measurement": at["measurement"].iloc[0],
        **(_best_goodput(levels) if GOODPUT in levels else {}),
    }


def _best_goodput(levels: pd.DataFrame) -> dict[str, Any]:
    """The level with the largest mean of ln goodput, and the goodput there over the runs.

    If nothing met the limits at any level, the level is NaN and goodput 0. Unknown goodput is NaN.
    """
    logs = log_table(levels.assign(**{GOODPUT: nonzero_goodput(levels)}), GOODPUT)
    some = bool((levels[GOODPUT] > 0).any())
    level = highest_level(logs) if some and not logs.empty else None
    at = levels if level is None else levels[levels["level"] == level]
    values = at[GOODPUT].to_numpy(dtype=np.float64)
    low, high = (
        mean_interval(np.log(values)) if (values > 0).all() else (np.nan, np.nan)
    )
    settled = at["goodput_settled"].sum()
    return {
        "goodput_level": np.nan if level is None else level,
        GOODPUT: values.mean(),
        "goodput_low_per_s": low,
        "goodput_high_per_s": high,
        "goodput_share": at["goodput_met"].sum() / settled if settled > 0 else np.nan,
        "goodput_limits": levels["goodput_limits"].iloc[0],
    }
