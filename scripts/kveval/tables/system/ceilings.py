"""Limits of a tier: how fast it loads, how fast copies and prefills are, and from which prefix length loading pays.

Load rates are from the servers' own counters over a level, warm-up included; times are those of the requests in its
window. Prefill rates need levels with one request at a time, since with several the TTFT includes waiting.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from kveval.campaign.types import on_cpu
from kveval.store.run_file import Run
from kveval.tables.levels.server_counters import found_tokens, server_delta

_COUNTERS = ("offload_load_bytes", "offload_load_seconds")


@dataclass(frozen=True)
class RequestMeans:
    """Means over a cell's requests at a level, over its runs; NaN for what is not known."""

    ttft_s: float
    computed_tokens: float
    loaded_tokens: float
    load_gb_s: float
    kv_bytes_per_token: float

    @property
    def load_tok_s(self) -> float:
        """Tokens of KV cache that the tier loads per second."""
        return self.load_gb_s * 1e9 / self.kv_bytes_per_token

    @property
    def prefill_tok_s(self) -> float:
        """Prompt tokens computed per second of TTFT; valid if requests were sent one at a time."""
        return _ratio(self.computed_tokens, self.ttft_s)


def request_means(runs: Sequence[Run], rows: pd.DataFrame, level: int) -> RequestMeans:
    """Return the means over these runs of one cell at a level; `rows`: the level's rows of complete_metrics.csv.

    The counters are divided among requests by their prompts' share of the tokens looked up in the device's cache.
    """
    counted = [
        entry.counted for run in runs for entry in run.levels if entry.level == level
    ]
    sums = {}
    for name in _COUNTERS:
        sums[name] = sum(server_delta(counters, name) for counters in counted)
    found = [found_tokens(counters) for counters in counted]
    looked_up = sum(one.prompts for one in found)
    behind = sum(one.behind for one in found)
    hits = sum(one.device for one in found) + (0.0 if math.isnan(behind) else behind)
    per_token = float(runs[0].kv_bytes_per_token or math.nan) if runs else math.nan
    prompt_tokens, ttft_ms = (
        _mean(rows, name) for name in ("request_prompt_tokens", "ttft_ms_mean")
    )
    return RequestMeans(
        ttft_s=ttft_ms / 1000,
        computed_tokens=prompt_tokens * _ratio(looked_up - hits, looked_up),
        loaded_tokens=prompt_tokens
        * _ratio(sums["offload_load_bytes"] / per_token, looked_up),
        load_gb_s=_ratio(
            sums["offload_load_bytes"] / 1e9, sums["offload_load_seconds"]
        ),
        kv_bytes_per_token=per_token,
    )


def _mean(rows: pd.DataFrame, name: str) -> float:
    return float(rows[name].mean()) if name in rows else math.nan


def copy_gb_s(runs: Sequence[Run]) -> float:
    """Return the machine's copy bandwidth for what a tier loads, GB/s, a mean over runs; NaN where not probed.

    From pinned host memory to the GPU, or within host memory where the CPU is the device.
    """
    measured = (
        probed.host_gb_s
        if on_cpu(str(run.specification.get("build", "")))
        else probed.host_to_device_gb_s
        for run in runs
        if (probed := run.copy_bandwidth) is not None
    )
    rates = [rate for rate in measured if rate is not None]
    return sum(rates) / len(rates) if rates else math.nan


def overhead_s(arm: RequestMeans, baseline: RequestMeans) -> float:
    """Return the part of an arm's TTFT that is neither computing nor copying, seconds, at least 0.

    Computing is assumed to be as fast as in the baseline. Both sides must be levels with one request at a time.
    """
    # max() would return 0 for a missing value.
    left = (
        arm.ttft_s
        - arm.computed_tokens / baseline.prefill_tok_s
        - arm.loaded_tokens / arm.load_tok_s
    )
    return left if math.isnan(left) else max(0.0, left)


def break_even_tokens(
    prefill_tok_s: float, load_tok_s: float, overhead: float
) -> float:
    """Return the length in tokens from which loading a prefix is faster than computing it; infinite if it never is.

    The n at which n / prefill_tok_s = overhead + n / load_tok_s; `overhead` in seconds.
    """
    saved_s = 1 / prefill_tok_s - 1 / load_tok_s
    if math.isnan(saved_s) or math.isnan(overhead):
        return math.nan
    return overhead / saved_s if saved_s > 0 else math.inf


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else math.nan
