"""Failed requests and their possible effect on a comparison: they take time, deliver little, and have no latency."""

from __future__ import annotations

import math

import numpy as np

from kveval.analysis.cells import THROUGHPUT
from kveval.analysis.levels.goodput import GOODPUT
from kveval.analysis.levels.noise import QUANTILES
from kveval.analysis.statistics.evidence import Evidence, Rows, Sides, number

_COUNTS = ("requests_completed", "requests_incomplete", "requests_errored")
COLUMNS = (*_COUNTS, *(f"{name}_ms_{label}" for name in ("ttft", "tpot", "itl", "e2e") for label in QUANTILES))
"""Columns of a level with the number of failed requests and the quantiles of latencies."""
# Below this share, and without a difference between the sides, failed requests do not qualify the verdict.
_WORTH_SAYING = 0.001
_ALPHA = 0.05


def failed_requests(sides: Sides) -> Evidence:
    """Return how many requests failed on each side, and whether more did on one (Fisher's exact test)."""
    (failed, total), (failed_there, total_there) = _counts(sides.arm), _counts(sides.reference)
    if not failed and not failed_there:
        return Evidence("errors", "none")
    said = f"{_share(failed, total)} of requests failed against {_share(failed_there, total_there)}"
    unlike = _unlike(failed, total, failed_there, total_there)
    if not unlike and max(failed / total, failed_there / total_there) < _WORTH_SAYING:
        return Evidence("errors", said)
    reason = (
        f"errors: {failed} of {total:,} requests failed, {failed_there} of {total_there:,} in the cell it is compared"
        " with: see the servers' logs"
    )
    return Evidence("errors", said, "qualifies", reason, bars_parity=unlike)


def bounds(sides: Sides) -> tuple[float, float]:
    """Return how far the true difference of ln may lie below and above the measured one because of failed requests.

    Throughput: by their share at most, to either side. Latencies: failed requests count as the slowest of all, so the
    quantile q of the others is the quantile q (1 - share) of all; ln latency is interpolated between known quantiles.
    Goodput: not at all, as failed requests are among those that it counts as missing the limits.
    """
    (failed, total), (failed_there, total_there) = _counts(sides.arm), _counts(sides.reference)
    if sides.metric == GOODPUT or (not failed and not failed_there):
        return 0.0, 0.0
    ours, theirs = failed / total, failed_there / total_there
    if sides.metric == THROUGHPUT:
        either = -math.log1p(-ours) - math.log1p(-theirs)
        return either, either
    return _rise(sides.reference, sides.metric, theirs), _rise(sides.arm, sides.metric, ours)


def _rise(rows: Rows, metric: str, share: float) -> float:
    """The rise of ln of a quantile if a further `share` of requests were beyond it; the mean over runs."""
    name, label = metric.split("_ms_")
    at = QUANTILES[label]
    found = []
    for row in rows:
        known = [
            (where, math.log(value))
            for which, where in QUANTILES.items()
            if (value := number(row, f"{name}_ms_{which}")) > 0
        ]
        above = [(where, log) for where, log in known if where >= at]
        # For the last known quantile, extrapolate the step that leads to it.
        segment = above[:2] if len(above) > 1 else known[-2:]
        if len(segment) == 2:
            (low, first), (high, second) = segment
            found.append((second - first) / (high - low) * (at / (1 - share) - at))
    return float(np.mean(found)) if found else 0.0


def _unlike(failed: int, total: int, failed_there: int, total_there: int) -> bool:
    # Imported here because it is slow, and requests rarely fail.
    from scipy.stats import fisher_exact  # noqa: PLC0415

    table = [[failed, total - failed], [failed_there, total_there - failed_there]]
    return float(fisher_exact(table).pvalue) < _ALPHA


def _counts(rows: Rows) -> tuple[int, int]:
    """The number of failed requests and of all, at least 1, over runs."""
    counts = [[count for row in rows if not math.isnan(count := number(row, name))] for name in _COUNTS]
    return round(sum(counts[-1])), max(1, round(sum(map(sum, counts))))


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2g} %" if part else "none"
