"""Latencies that are in a report although nobody observed them: 0 ms, or other than the report's own times allow.

Every report measured so far agrees with itself: its latencies are those between the times of its requests, and TTFT
plus the gaps between tokens is E2E, within 0.1 %. One that does not was written in another unit, or with zeros in place
of what was not measured. Its latency is NaN and gets no verdict; throughput needs the times alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from kveval.estimators.spreads import Array
from kveval.load.reports import Aggregate, LevelReport
from kveval.tables.levels.requests import Requests

TITLES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "E2E"}
# Requests with a latency of 0, or with another than their times say: of more than these shares, it is unknown. Tokens
# may arrive together, so that single answers have no gap between them.
_FEW, _FEW_TOGETHER = 0.01, 0.5
# Latency and times of a request differ if they do by this share, and by more than times are rounded.
_APART, _ROUNDED_MS = 0.1, 0.1
# TTFT, ITL and E2E of statistics: a difference that weights may make, and one that they do not explain; of logarithms.
_WEIGHTS, _NEVER = 0.01, math.log(1.5)
# What a latency in ms is of its true value if it is in fact in this unit.
_UNITS = {1e-3: "seconds", 1e3: "microseconds", 1e6: "nanoseconds"}


def unknown_latencies(report: LevelReport) -> dict[str, str]:
    """Return the latencies of a level that were not observed, and why; `ttft`, `tpot`, `itl` or `e2e`."""
    unknown = dict(_unknown_by_requests(Requests(report.requests)))
    return (
        unknown
        if not report.requests_missing
        else dict(_unknown_by_statistics(report.aggregate)) | unknown
    )


def reasons_text(unknown: Mapping[str, str]) -> str:
    """Return unknown latencies as a cell of levels.csv."""
    return ";".join(f"{name}={why}" for name, why in unknown.items())


def parse_reasons(text: object) -> dict[str, str]:
    """Return the unknown latencies that a cell made by `reasons_text` names."""
    parts = text.split(";") if isinstance(text, str) and text else []
    return dict(part.split("=", 1) for part in parts)


def _unknown_by_requests(requests: Requests) -> Iterator[tuple[str, str]]:
    """Yield the latencies of completed requests that are 0, or contradict the requests' own times."""
    done, tokens = requests.has_status("completed"), requests.column("output_tokens")
    start, first, last, end = (
        requests.column(name) for name in ("start", "first_token", "last_token", "end")
    )
    several = np.where(tokens > 1, tokens - 1, np.nan)
    own = {"ttft": first - start, "itl": (last - first) / several, "e2e": end - start}
    for name in TITLES:
        reported = np.where(done, requests.column(f"{name}_ms"), np.nan)
        if name == "itl":
            reported = np.where(tokens > 1, reported, np.nan)
        known = np.isfinite(reported)
        nothing = int((reported[known] <= 0).sum())
        if nothing > (_FEW_TOGETHER if name == "itl" else _FEW) * known.sum():
            yield name, f"0 ms or less in {nothing:,} of {int(known.sum()):,} requests"
        elif name in own and (why := _contradiction(reported, 1000 * own[name])):
            yield name, why


def _contradiction(reported: Array, own: Array) -> str:
    """Why a latency, in ms, is not the one between the requests' own times; "" if it is."""
    both = np.isfinite(reported) & np.isfinite(own)
    apart = np.abs(reported - own)[both] > np.maximum(
        _APART * np.abs(own[both]), _ROUNDED_MS
    )
    if not apart.sum() > _FEW * both.sum():
        return ""
    ours, theirs = (float(np.median(values[both][apart])) for values in (reported, own))
    return f"{ours:,.3g} ms, though the requests' own times say {theirs:,.3g} ms{_likely_unit(ours, theirs)}"


def _likely_unit(reported: float, right: float) -> str:
    """The unit in which a latency seems to be, "" if none explains it."""
    if not (reported > 0 and right > 0):
        return ""
    units = (
        unit
        for factor, unit in _UNITS.items()
        if abs(math.log(reported / right / factor)) < math.log(2)
    )
    unit = next(units, "")
    return f": likely in {unit}" if unit else ""


def _unknown_by_statistics(aggregate: Aggregate) -> Iterator[tuple[str, str]]:
    """Yield the latencies of a report without its requests that are 0, or that do not add up."""
    means: dict[str, float] = {}
    for name in TITLES:
        statistics = getattr(aggregate, f"{name}_ms").completed
        if statistics is None:
            continue
        lowest = min(
            value
            for value in (
                statistics.mean,
                statistics.p50,
                statistics.p90,
                statistics.p99,
            )
            if value is not None
        )
        if lowest <= 0:
            yield name, "0 ms or less in the report's statistics"
        else:
            means[name] = statistics.mean
    tokens = aggregate.output_tokens.completed
    if tokens is None or "e2e" not in means:
        return
    if {"ttft", "itl"} <= means.keys() and tokens.mean > 1:
        yield from _unknown_by_sum(
            means["ttft"], means["itl"], tokens.mean - 1, means["e2e"]
        )
    e2e_per_token = means["e2e"] / tokens.mean
    if (
        "tpot" in means
        and aggregate.tpot_includes_first_token
        and abs(math.log(means["tpot"] / e2e_per_token)) > _APART
    ):
        message = f"{means['tpot']:,.3g} ms, though E2E over its tokens is {e2e_per_token:,.3g} ms"
        yield "tpot", f"{message}{_likely_unit(means['tpot'], e2e_per_token)}"


def _unknown_by_sum(
    ttft: float, itl: float, gaps: float, e2e: float
) -> Iterator[tuple[str, str]]:
    """Yield what is unknown if TTFT plus the gaps between tokens is not E2E: the one whose unit explains it, or all."""
    off = abs(math.log((ttft + itl * gaps) / e2e))
    if off <= _WEIGHTS:
        return
    explained = {}
    for factor, unit in _UNITS.items():
        explained["ttft", unit] = ttft / factor + itl * gaps
        explained["itl", unit] = ttft + itl / factor * gaps
        explained["", unit] = (ttft + itl * gaps) / factor
    name, unit = min(
        explained, key=lambda change: abs(math.log(explained[change] / e2e))
    )
    fits = abs(math.log(explained[name, unit] / e2e)) <= max(_WEIGHTS, _APART * off)
    if fits and name == "ttft":
        yield (
            name,
            f"{ttft:,.3g} ms, though E2E and ITL leave {e2e - itl * gaps:,.3g} ms: likely in {unit}",
        )
    elif fits and name == "itl":
        yield (
            name,
            f"{itl:,.3g} ms, though E2E and TTFT leave {(e2e - ttft) / gaps:,.3g} ms: likely in {unit}",
        )
    elif fits or off > _NEVER:
        likely = (
            f": likely TTFT and ITL in {unit}, or E2E in another unit" if fits else ""
        )
        message = f"TTFT and the gaps between tokens add up to {ttft + itl * gaps:,.4g} ms, E2E is {e2e:,.4g} ms{likely}"
        yield from ((latency, message) for latency in ("ttft", "itl", "e2e"))
