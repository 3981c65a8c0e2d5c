"""The inputs of a comparison that follow from the rows of its levels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from kveval.analysis.cells import THROUGHPUT
from kveval.analysis.levels.goodput import GOODPUT
from kveval.analysis.levels.noise import QUANTILES
from kveval.analysis.levels.outcomes import MESSAGES, outcomes_of
from kveval.analysis.levels.records import LATENCIES
from kveval.analysis.statistics.evidence import Evidence, Rows, Sides, number, numbers

_COUNTS = ("requests_completed", "requests_incomplete", "requests_errored")
COLUMNS = (
    *("workload", "strategy", "guidellm_version", "incomplete_share"),
    *("request_prompt_tokens", "request_prompt_tokens_se", "request_output_tokens", "request_output_tokens_se"),
    *_COUNTS,
    *(f"{name}_ms_{label}" for name in LATENCIES for label in QUANTILES),
    *("server_build", "arm_settings", "tier_tokens", "tier_reported_tokens", "activity"),
    *("gpus", "gpu_power_limit_w", "gpu_clock_limit_mhz", "gpu_clock_mhz", "gpu_throttled"),
    *("checks_failed", MESSAGES),
)
"""Columns of a level that the inputs are read from."""
# The check that fails if a tier does not have the cell's size.
TIER_CHECK = "tier_capacity"
# The check that fails if a cache changes answers.
ANSWERS_CHECK = "answers"
NO_COUNTER = "no counter of the server was recorded that shows the arm active: record the server's metrics"
_LIMITS = {"gpu_power_limit_w": ("power limits", "W"), "gpu_clock_limit_mhz": ("clock limits", "MHz")}
# Limits are set; clocks move a little with temperature and load.
_SAME_LIMIT = 0.01
_SAME_CLOCK = 0.05
# A GPU's load changes its clock as well; a difference beyond this is a setting.
_OTHER_CLOCK = 0.15
_WORDS = {
    "prompt_tokens": "prompt tokens",
    "output_tokens": "output tokens",
    "prompt_stdev": "standard deviation of prompt tokens",
    "output_stdev": "standard deviation of output tokens",
    "prefix_tokens": "tokens of a prefix",
    "prefix_count": "prefixes",
    "turns": "turns",
    "primed": "primed prefixes",
    "burst_factor": "rate within bursts over the mean",
}
# May depend on the level, and so differ between peaks at different levels.
_OF_LEVEL = ("prefix_tokens", "prefix_count")
# Token counts, and rates of open loops, that differ by less are the same work.
_MARGIN = 0.02
_RATE_MARGIN = 0.05
_ERRORS = 3.0
# Below this share, and without a difference between the sides, failed requests do not qualify the verdict.
_WORTH_SAYING = 0.001
_ALPHA = 0.05


def of_levels(sides: Sides) -> list[Evidence]:
    """Return the inputs that the levels give; none if one of the sides has no level."""
    if not sides.reference or not sides.arm:
        return []
    return [found for look in INPUTS if (found := look(sides)) is not None]


def build(sides: Sides) -> Evidence:
    """Return whether both sides ran the same build of the server, or differ in nothing but the build."""
    ours, theirs = _texts(sides.arm, "server_build"), _texts(sides.reference, "server_build")
    if not ours or not theirs:
        return Evidence("build", "build not recorded", "unknown")
    if ours == theirs:
        return Evidence("build", "one build")
    settings = _texts(sides.arm, "arm_settings")
    if len(settings) == 1 and settings == _texts(sides.reference, "arm_settings"):
        return Evidence("build", "builds compared")
    ran = f"{' and '.join(ours)}, against {' and '.join(theirs)}"
    return Evidence("build", "other build", "qualifies", f"the effect is that of arm and build together: it ran {ran}")


def _texts(rows: Rows, column: str) -> list[str]:
    return sorted({str(row.get(column) or "") for row in rows} - {"", "nan"})


def activity(sides: Sides) -> Evidence | None:
    """Return a problem if the activity of the arm or of the reference was not recorded; None if there is none."""
    for rows in (sides.arm, sides.reference):
        found = {str(row.get("activity") or "") for row in rows}
        if "not shown" in found and not found & {"shown", "none"}:
            return Evidence("activity", "activity not shown", "indicates", NO_COUNTER)
    return None


def tier(sides: Sides) -> Evidence:
    """Return whether tiers have the sizes of their cells."""
    for row in (*sides.arm, *sides.reference):
        if TIER_CHECK in str(row.get("checks_failed") or "").split(";"):
            asked = f"{number(row, 'tier_tokens'):,.0f} tokens"
            has = number(row, "tier_reported_tokens")
            said = f"{has:,.0f} tokens for {asked}" if has > 0 else "other than asked for"
            reason = f"a tier of another size ({said}): see the check, and measure with a tier of the size asked for"
            return Evidence("tier", said, "refuses", reason)
    sizes = numbers(sides.arm, "tier_tokens")
    if np.isnan(sizes).any():
        return Evidence("tier", "size not recorded", "unknown")
    return Evidence("tier", "as asked for" if sizes.any() else "none")


def wrong_answers(rows: Rows) -> Evidence | None:
    """Return the first run whose caches changed answers, None if there is none.

    `rows`: of all runs of both sides. One such run refuses the verdict: it cannot be left out like one that was merely
    disturbed, because the cache that served it served the others as well.
    """
    for row in rows:
        if ANSWERS_CHECK in str(row.get("checks_failed") or "").split(";"):
            failed = [one for one in outcomes_of(row) if (one.name, one.severity) == (ANSWERS_CHECK, "fail")]
            said = "; ".join(one.message for one in failed) or "its caches changed greedy answers"
            run = f"{row.get('scenario')}, run {row.get('run')}"
            reason = f"wrong answers, whose speed is no result: {run}: {said}"
            return Evidence("answers", "wrong answers", "refuses", reason)
    return None


def clocks(sides: Sides) -> Evidence:
    """Return whether the GPUs of both sides had the same power limits and clocks."""
    everything = (*sides.arm, *sides.reference)
    if all(number(row, "gpus") == 0 for row in everything):
        return Evidence("clocks", "no GPU")
    if differing := [*_limits(sides), *_clock(sides, _OTHER_CLOCK)]:
        said = "; ".join(differing)
        reason = f"the GPUs of the two cells differ in {said}: set both to the same (nvidia-smi -pl, -lgc)"
        return Evidence("clocks", f"other {said}", "refuses", reason)
    if other := next(_clock(sides, _SAME_CLOCK), ""):
        reason = f"the GPUs of the two cells ran at different {other}"
        return Evidence("clocks", "other GPU clocks", "qualifies", reason)
    ours, theirs = _held_back(sides.arm), _held_back(sides.reference)
    if ours != theirs:
        only = {"in the arm only": ours - theirs, "in the cell it is compared with only": theirs - ours}
        said = "; ".join(f"{', '.join(sorted(reasons))} {where}" for where, reasons in only.items() if reasons)
        return Evidence("clocks", "GPU throttled on one side", "qualifies", f"GPUs throttled: {said}")
    if all(math.isnan(number(row, "gpu_power_limit_w")) for row in everything):
        return Evidence("clocks", "clocks not recorded", "unknown")
    return Evidence("clocks", "equal clocks")


def _limits(sides: Sides) -> Iterator[str]:
    for column, (words, unit) in _LIMITS.items():
        ours, theirs = _known(sides.arm, column), _known(sides.reference, column)
        both = [*ours, *theirs]
        if ours and theirs and max(both) > (1 + _SAME_LIMIT) * min(both):
            yield f"{words}: {_range(ours)} against {_range(theirs)} {unit}"


def _clock(sides: Sides, limit: float) -> Iterator[str]:
    """Clocks that differ although the slower side is not known to have been throttled: it was set lower."""
    ours, theirs = _known(sides.arm, "gpu_clock_mhz"), _known(sides.reference, "gpu_clock_mhz")
    if not ours or not theirs:
        return
    one, other = float(np.mean(ours)), float(np.mean(theirs))
    slower = sides.arm if one < other else sides.reference
    if abs(math.log(one / other)) > limit and not _held_back(slower) - {"applications_clocks_setting"}:
        yield f"clocks: {one:,.0f} against {other:,.0f} MHz"


def _held_back(rows: Rows) -> set[str]:
    """The reasons for which GPUs were throttled in any of the runs."""
    texts = [row.get("gpu_throttled") for row in rows]
    return {reason for text in texts if isinstance(text, str) for reason in text.split(";") if reason}


def _known(rows: Rows, column: str) -> list[float]:
    return [value for value in numbers(rows, column).tolist() if not math.isnan(value)]


def _range(values: list[float]) -> str:
    return " to ".join(f"{value:,.0f}" for value in sorted({min(values), max(values)}))


def same_work(sides: Sides) -> Evidence:
    """Return whether the work was the same; if not, what differs, with the values of both sides."""
    differing = list(dict.fromkeys([*_declared(sides), *_observed(sides)]))
    if differing:
        said = "; ".join(differing)
        reason = f"not the same work: {said} in the cell it is compared with; measure both with one workload"
        return Evidence("work", said, "refuses", reason)
    if any(_workload(row) or number(row, "request_output_tokens") > 0 for row in sides.arm):
        return Evidence("work", "the same")
    return Evidence("work", "not known", "unknown")


def _declared(sides: Sides) -> Iterator[str]:
    """Differences in the declared work of paired runs, where both record it."""
    for theirs, ours in zip(sides.reference, sides.arm, strict=True):
        wanted, given = _workload(theirs), _workload(ours)
        at_one_level = theirs.get("level") == ours.get("level")
        for name, words in _WORDS.items():
            one, other = given.get(name), wanted.get(name)
            if None not in (one, other) and one != other and (at_one_level or name not in _OF_LEVEL):
                yield f"{words} {one} against {other}"
        loads = [str(row.get("strategy") or "") for row in (ours, theirs)]
        if all(loads) and loads[0] != loads[1]:
            yield f"load {loads[0]} against {loads[1]}"
        rates = [number(row, "rate_req_s") for row in (ours, theirs)]
        if at_one_level and min(rates) > 0 and abs(math.log(rates[0] / rates[1])) > _RATE_MARGIN:
            yield f"requests/s sent {rates[0]:.3g} against {rates[1]:.3g}"


def _workload(row: Mapping[str, Any]) -> dict[str, str]:
    text = row.get("workload")
    return dict(part.split("=", 1) for part in text.split(";")) if isinstance(text, str) and text else {}


def _observed(sides: Sides) -> Iterator[str]:
    """Mean tokens of a request that differ by more than 2 % + 3 standard errors + the effect of cut-off requests.

    Long answers are cut off more often than short ones: if a share f is missing, the mean of the others is off by at
    most SD sqrt(f / (1 - f)) (Cauchy and Schwarz). Prompts are compared only if one version of GuideLLM counted both.
    """
    names = {"output": "output tokens"}
    one_level = all(a.get("level") == b.get("level") for a, b in zip(sides.arm, sides.reference, strict=True))
    if one_level and len({str(row.get("guidellm_version")) for row in (*sides.arm, *sides.reference)}) == 1:
        names["prompt"] = "prompt tokens"
    for name, words in names.items():
        (ours, our_error, our_loss), (theirs, their_error, their_loss) = (
            _mean_tokens(rows, f"request_{name}_tokens") for rows in (sides.arm, sides.reference)
        )
        limit = math.log1p(_MARGIN) + _ERRORS * math.hypot(our_error, their_error) + our_loss + their_loss
        if ours > 0 and theirs > 0 and abs(math.log(ours / theirs)) > limit:
            yield f"{words} of a request {ours:,.4g} against {theirs:,.4g}"


def _mean_tokens(rows: Rows, column: str) -> tuple[float, float, float]:
    """The mean over runs, its relative standard error, and how far cut-off requests may have moved it."""
    columns = (column, f"{column}_se", "requests_completed", "incomplete_share")
    means, errors, counts, cut = (numbers(rows, name) for name in columns)
    spread = errors * np.sqrt(counts)
    with np.errstate(divide="ignore", invalid="ignore"):
        lost = np.where(spread > 0, spread * np.sqrt(cut / (1 - cut)), 0.0 * spread)
    return float(means.mean()), float(np.sqrt((errors**2).sum())) / len(rows), float(lost.mean())


def failed_requests(sides: Sides) -> Evidence:
    """Return how many requests failed on each side, and whether more did on one (Fisher's exact test)."""
    (failed, total), (failed_there, total_there) = _counts(sides.arm), _counts(sides.reference)
    if not failed and not failed_there:
        return Evidence("errors", "none")
    here, there = (f"{100 * part:.2g} %" if part else "none" for part in (failed / total, failed_there / total_there))
    said = f"{here} of requests failed against {there}"
    # Imported here because it is slow, and requests rarely fail.
    from scipy.stats import fisher_exact  # noqa: PLC0415

    table = [[failed, total - failed], [failed_there, total_there - failed_there]]
    unlike = float(fisher_exact(table).pvalue) < _ALPHA
    if not unlike and max(failed / total, failed_there / total_there) < _WORTH_SAYING:
        return Evidence("errors", said)
    reason = (
        f"errors: {failed} of {total:,} requests failed, {failed_there} of {total_there:,} in the cell it is compared"
        " with: see the servers' logs"
    )
    return Evidence("errors", said, "qualifies", reason, bars_parity=unlike)


def failed_requests_bounds(sides: Sides) -> tuple[float, float]:
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
    return _rise_if_failed(sides.reference, sides.metric, theirs), _rise_if_failed(sides.arm, sides.metric, ours)


def _rise_if_failed(rows: Rows, metric: str, share: float) -> float:
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


def _counts(rows: Rows) -> tuple[int, int]:
    """The number of failed requests and of all, at least 1, over runs."""
    counts = [float(np.nansum(numbers(rows, name))) for name in _COUNTS]
    return round(counts[-1]), max(1, round(sum(counts)))


Input = Callable[[Sides], Evidence | None]
INPUTS: tuple[Input, ...] = (same_work, activity, build, clocks, tier, failed_requests)
"""The functions that give the inputs of every comparison from its levels."""
