"""The work of each cell's caches during its levels, from the servers' own counters; explains why arms win or lose.

Tokens are prompt tokens; a hit behind the device is one that the device's own cache did not have. The bytes of
LMCache's CPU tier are chunks times chunk size; those of a store are the traffic of its connection, with the protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd

from kveval.campaign.cell import CELL_COLUMNS
from kveval.store.run_file import LevelRun, Run
from kveval.tables.levels.server_counters import found_tokens, server_delta

COLUMNS = {
    "prompt_tokens": "prompt tokens that the device's cache was asked for",
    "device_hit_percent": "of these, found on the device",
    "external_hit_percent": "of these, found behind the device",
    "store_hit_percent": "of these, found by LMCache only in its store",
    "loaded_mb": "MB copied from the tier in host memory to the device",
    "stored_mb": "MB copied from the device to the tier in host memory",
    "requests_preempted": "requests that were preempted: their blocks on the device went to others",
    "reloaded_tokens": "tokens loaded beyond those found for prompts: what preempted requests had",
    "second_read_mb": "MB read from what stands behind that tier",
    "second_written_mb": "MB written to it",
    "second_entries": "keys or files in it at the end of the level",
}
"""Columns of `tier_activity` besides those of cell, level and run, with their meaning; 1 MB is a million bytes."""


def tier_activity(runs: Sequence[Run]) -> pd.DataFrame:
    """Return one row per run and level: model, scenario, cpu_blocks, run, level, and COLUMNS.

    A value is NaN where the software does not count it.
    """
    rows = [
        {
            **run.cell.row,
            "run": run.run,
            "level": level.level,
            **_row(level, run),
        }
        for run in runs
        for level in run.levels
        if level.counters
    ]
    return pd.DataFrame(rows, columns=[*CELL_COLUMNS, "run", "level", *COLUMNS])


def _row(level: LevelRun, run: Run) -> dict[str, float]:
    counted = level.counted
    served = partial(server_delta, counted)
    found, per_token = found_tokens(counted), run.kv_bytes_per_token or np.nan
    token_mb = per_token / 1e6
    loaded_tokens = served("offload_load_bytes") / per_token
    entries = counted.get("second_entries")
    return {
        "prompt_tokens": found.prompts,
        "device_hit_percent": _share(found.device, found.prompts),
        "external_hit_percent": _share(found.behind, found.prompts),
        "store_hit_percent": _share(served("store_hit_tokens"), found.prompts),
        "loaded_mb": _first(
            served("offload_load_bytes") / 1e6, served("tier_loaded_tokens") * token_mb
        ),
        "stored_mb": _first(
            served("offload_store_bytes") / 1e6, served("tier_stored_tokens") * token_mb
        ),
        "requests_preempted": served("requests_preempted"),
        # What the server loads again for a preempted request is not counted as a hit of its prompt.
        "reloaded_tokens": float(
            np.maximum(0, loaded_tokens - served("external_prefix_cache_hits"))
        ),
        "second_read_mb": _first(
            served("file_tier_read_bytes"), served("store_read_bytes")
        )
        / 1e6,
        "second_written_mb": _first(
            served("file_tier_written_bytes"), served("store_written_bytes")
        )
        / 1e6,
        "second_entries": np.nan if entries is None else entries.after,
    }


def _share(part: float, whole: float) -> float:
    return 100 * part / whole if whole > 0 else np.nan


def _first(*values: float) -> float:
    """Return the first value that is not NaN: an arm has only one kind of tier."""
    return next((value for value in values if not np.isnan(value)), np.nan)
