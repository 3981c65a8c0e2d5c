"""The time and the numbers that results need at least: what plans and warnings expect is what the analysis demands."""

from collections.abc import Mapping

MIN_RUNS = 3
"""Runs of a cell that a verdict needs."""
MOST_FAILED = 0.25
"""The largest share of a cell's runs that may fail where the others are still judged in its favour."""
MIN_TOKENS = 2500
"""Output tokens that make the noise within a run small compared with the usual spread of runs."""
SUFFICIENT: Mapping[str, int] = {"p50": 50, "p90": 200, "p99": 1000}
"""Observed values that a quantile needs."""
WARMUP_S, WARMUP_SHARE = 30.0, 0.25
"""A level settles within so many seconds or the p90 of request latency; its warm-up is at most this share of it."""


def window_s(seconds: float, warmup_s: float) -> float:
    """Return how much of a level's `seconds` is measured: less the warm-up, `warmup_s` or what the analysis cuts."""
    return seconds - max(warmup_s, min(WARMUP_S, WARMUP_SHARE * seconds))
