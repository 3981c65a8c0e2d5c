"""The inputs of a comparison that follow from the rows of its levels."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from kveval.load.reports.vllm_bench import VLLM_BENCH
from kveval.store.conditions import CONDITIONS_COLUMN, NO_CONNECTOR_OF_ARM
from kveval.tables.cells import THROUGHPUT, parse_names
from kveval.tables.levels.activity import SWITCHED_OFF
from kveval.tables.levels.goodput import GOODPUT
from kveval.tables.levels.noise import QUANTILES
from kveval.tables.levels.outcomes import FINDINGS, outcomes_of
from kveval.tables.levels.records import LATENCIES
from kveval.verdict import host_speed
from kveval.verdict.comparability import (
    RULES,
    conditions_in,
    differences_of,
    distinct,
    is_declared,
    plain_name,
)
from kveval.verdict.findings import ComparisonFinding, new_finding
from kveval.verdict.sides import (
    Rows,
    Sides,
    declared_work,
    number,
    numbers,
)

_COUNTS = ("requests_completed", "requests_incomplete", "requests_errored")
COLUMNS = (
    *("workload", "strategy", "guidellm_version", "incomplete_share"),
    *(
        "request_prompt_tokens",
        "request_prompt_tokens_se",
        "request_output_tokens",
        "request_output_tokens_se",
    ),
    *_COUNTS,
    *(f"{name}_ms_{label}" for name in LATENCIES for label in QUANTILES),
    *(
        "server_build",
        "arm_settings",
        "device_tokens",
        "tier_tokens",
        "tier_reported_tokens",
        "activity",
    ),
    *(
        "first_visit_share",
        "unshared_share",
        "predicted_offered_ratio",
        "throughput_req_s",
        "duration_s",
        "latencies_unknown",
        "not_reached",
    ),
    "checks_warned",
    *(
        "gpus",
        "gpu_power_limit_w",
        "gpu_clock_limit_mhz",
        "gpu_clock_mhz",
        "gpu_throttled",
    ),
    *("prefix_hit_ratio", "external_hit_ratio", "offload_load_bytes"),
    *("requests_preempted", "reloaded_tokens", "preemptions"),
    *("checks_failed", FINDINGS),
    CONDITIONS_COLUMN,
    *host_speed.COLUMNS,
)
"""Columns of a level that the inputs are read from."""
# The check that fails if a tier does not have the cell's size.
TIER_CHECK = "tier_capacity"
# The check that warns if somebody else used a server that ran already.
OTHERS_CHECK = "others_on_server"
# The check that fails if a cache changes answers.
ANSWERS_CHECK = "answers"
_LIMITS = ("gpu_power_limit_w", "gpu_clock_limit_mhz")
_POWER_CAP = "sw_power_cap"
# Limits are set; clocks move a little with temperature and load.
_SAME_LIMIT = 0.01
_SAME_CLOCK = 0.02
# A GPU's load changes its clock as well; a difference beyond this is a setting.
_OTHER_CLOCK = 0.15
# Numbers of the declared work that make it another.
_DECLARED = (
    *("prompt_tokens", "output_tokens", "prompt_stdev", "output_stdev"),
    *("prefix_tokens", "prefix_count", "turns", "primed", "burst_factor"),
    *("document_tokens", "document_stdev", "pause_s", "pause_stdev_s", "prefix_zipf"),
)
# May depend on the level, and so differ between peaks at different levels.
_OF_LEVEL = ("prefix_tokens", "prefix_count")
# Token counts, and rates of open loops, that differ by less are the same work.
_MARGIN = 0.02
_RATE_MARGIN = 0.05
_ERRORS = 3.0
# Of more requests that were cut off, the others say nothing.
_MOST_CUT = 0.9
# Counts that may be off by more do not show that undeclared lengths are the same.
_VAGUE = 0.25
# Of the lookups behind the device's cache: more hits than these are a tier's.
_OWN_HITS_SHARE = 0.005
# Rates of requests that differ by more are another load, at which latencies are others; shares of first visits too.
_SAME_LOAD, _SAME_VISITS = 0.02, 0.05
# Below this share, and without a difference between the sides, failed requests do not qualify the verdict.
_WORTH_SAYING = 0.001
_ALPHA = 0.05
# Counters are read over the whole level: within the window a tier may have served more than its share of the level.
_WITHIN_WINDOW = 2.0
# Of a tier that served a larger share of the prompt tokens, no bound is given: it may shift the load as a whole.
_SMALL_SHARE = 0.1


Difference = dict[str, Any]
"""A quantity in which two sides differ, with both values."""


def findings_of_levels(sides: Sides) -> list[ComparisonFinding]:
    """Return what the levels say of the inputs; nothing if one of the sides has no level."""
    if not sides.reference or not sides.arm:
        return []
    return [finding for look in INPUTS if (finding := look(sides)) is not None]


def same_build(sides: Sides) -> ComparisonFinding:
    """Return whether both sides ran the same build of the server, or differ in nothing but the build."""
    ours, theirs = (
        _texts(sides.arm, "server_build"),
        _texts(sides.reference, "server_build"),
    )
    if not ours or not theirs:
        return new_finding("build_unknown")
    pairs = zip(sides.arm, sides.reference, strict=True)
    if all(
        arm.get("server_build") == other.get("server_build") for arm, other in pairs
    ):
        return new_finding("one_build")
    settings = _texts(sides.arm, "arm_settings")
    alike = len(settings) == 1 and settings == _texts(sides.reference, "arm_settings")
    if alike and len(ours) == len(theirs) == 1:
        return new_finding("builds_compared")
    return new_finding("other_build", arm=ours, reference=theirs)


def _plain(value: Any) -> Any:
    """A number of a table as Python's own."""
    return value.item() if isinstance(value, np.generic) else value


def _texts(rows: Rows, column: str) -> list[str]:
    return sorted({str(row.get(column) or "") for row in rows} - {"", "nan"})


def activity_known(sides: Sides) -> ComparisonFinding | None:
    """Return a problem if the activity of the arm or of the reference was not recorded; None if there is none."""
    for rows in (sides.arm, sides.reference):
        states = {str(row.get("activity") or "") for row in rows}
        if "not shown" in states and not states & {"shown", "none"}:
            return new_finding("activity_not_shown")
    return None


def tier_size(sides: Sides) -> ComparisonFinding:
    """Return whether tiers have the sizes of their cells."""
    for row in (*sides.arm, *sides.reference):
        if TIER_CHECK in parse_names(row.get("checks_failed")):
            reported = number(row, "tier_reported_tokens")
            return new_finding(
                "other_tier_size",
                tokens=_or_none(number(row, "tier_tokens")),
                reported_tokens=reported if reported > 0 else None,
            )
    sizes = numbers(sides.arm, "tier_tokens")
    if np.isnan(sizes).any():
        return new_finding("tier_size_unknown")
    return new_finding("tier_as_declared" if sizes.any() else "no_tier")


def _or_none(value: float) -> float | None:
    """A number, None in place of NaN, which JSON does not have."""
    return None if math.isnan(value) else value


def undeclared_tier(sides: Sides) -> ComparisonFinding | None:
    """Return a problem if the server's counters show a tier at work in a baseline that has none; None otherwise."""
    rows = sides.reference
    without = [
        row
        for row in rows
        if not number(row, "cpu_blocks") > 0 and str(row.get("activity") or "") == ""
    ]
    served = [number(row, "external_hit_ratio") for row in without]
    active = sum(share > _OWN_HITS_SHARE for share in served)
    if not active:
        return None
    return new_finding(
        "undeclared_tier",
        share=float(np.nanmax(served)),
        active=active,
        runs=len(rows),
    )


def loading_switched_off(sides: Sides) -> ComparisonFinding | None:
    """Return on which side requests switched loading off on a server with a tier; None if on both, or on neither."""
    arm, reference = _switched_off(sides.arm), _switched_off(sides.reference)
    if arm == reference:
        return None
    return new_finding("both_store", side="arm" if arm else "reference")


def _switched_off(rows: Rows) -> bool:
    return any(row.get("activity") == SWITCHED_OFF for row in rows)


def same_definitions(sides: Sides) -> ComparisonFinding | None:
    """Return a problem if statistics of generators that define them differently are compared; None otherwise.

    Numbers that are computed from the requests have one definition, whichever program recorded them.
    """
    rows = (*sides.arm, *sides.reference)
    ours, theirs = _generators(sides.arm), _generators(sides.reference)
    if ours == theirs or not any(
        "aggregate_only" in parse_names(row.get("checks_warned")) for row in rows
    ):
        return None
    return new_finding("other_definitions", arm=ours, reference=theirs)


def _generators(rows: Rows) -> list[str]:
    """The load generators of these rows, sorted."""
    versions = {str(row.get("guidellm_version") or "") for row in rows}
    return sorted({_generation(version) for version in versions})


def _generation(version: str) -> str:
    """The load generators with the definitions of this version."""
    if version == VLLM_BENCH:
        return version
    numbers_of = re.match(r"(\d+)\.(\d+)", version)
    old = numbers_of is not None and (int(numbers_of[1]), int(numbers_of[2])) < (0, 4)
    return "GuideLLM up to 0.3" if old else "GuideLLM from 0.4 on"


def wrong_answers(rows: Rows) -> ComparisonFinding | None:
    """Return the first run whose caches changed answers, None if there is none.

    `rows`: of all runs of both sides. One such run refuses the verdict: it cannot be left out like one that was merely
    disturbed, because the cache that served it served the others as well.
    """
    for row in rows:
        if ANSWERS_CHECK in parse_names(row.get("checks_failed")):
            messages = [
                outcome.message
                for outcome in outcomes_of(row)
                if (outcome.code, outcome.severity) == (ANSWERS_CHECK, "fail")
            ]
            return new_finding(
                "wrong_answers",
                scenario=row.get("scenario"),
                run=_plain(row.get("run")),
                messages=messages or ["its caches changed greedy answers"],
            )
    return None


def same_clocks(sides: Sides) -> ComparisonFinding:
    """Return whether the GPUs of both sides had the same power limits and clocks."""
    everything = (*sides.arm, *sides.reference)
    if all(number(row, "gpus") == 0 for row in everything):
        return new_finding("no_gpu")
    if differing := [
        *_limit_differences(sides),
        *_clock_differences(sides, _OTHER_CLOCK),
    ]:
        return new_finding("other_limits", differences=differing)
    if differing := [*_clock_differences(sides, _SAME_CLOCK)]:
        return new_finding("other_clocks", differences=differing)
    if throttled := _throttled_otherwise(sides):
        return throttled
    if all(math.isnan(number(row, "gpu_power_limit_w")) for row in everything):
        return new_finding("clocks_unknown")
    return new_finding("equal_clocks")


def _throttled_otherwise(sides: Sides) -> ComparisonFinding | None:
    """Return what differs in the reasons for which GPUs were throttled; None if nothing does."""
    ours, theirs = _throttle_reasons(sides.arm), _throttle_reasons(sides.reference)
    if ours == theirs:
        return None
    limits_known = all(
        _known(rows, "gpu_power_limit_w") for rows in (sides.arm, sides.reference)
    )
    if limits_known and ours ^ theirs == {_POWER_CAP}:
        # What computes more draws more power. Under one limit that is an effect of the arm, not of the machine.
        side = "arm" if _POWER_CAP in ours else "reference"
        return new_finding("at_power_limit", side=side)
    return new_finding(
        "throttled_on_one_side",
        arm=sorted(ours - theirs),
        reference=sorted(theirs - ours),
    )


def _limit_differences(sides: Sides) -> Iterator[Difference]:
    """Limits that differ within pairs; what was set anew for both sides between two runs is no difference."""
    for column in _LIMITS:
        pairs = zip(
            numbers(sides.arm, column).tolist(),
            numbers(sides.reference, column).tolist(),
            strict=True,
        )
        unlike = [pair for pair in pairs if _is_unlike(*pair, _SAME_LIMIT)]
        if unlike:
            ours, theirs = map(list, zip(*unlike, strict=True))
            yield {"quantity": column, "arm": ours, "reference": theirs}


def _is_unlike(ours: float, theirs: float, tolerance: float) -> bool:
    """Whether both numbers are known and differ by more than a share."""
    return max(ours, theirs) > (1 + tolerance) * min(ours, theirs)


def _clock_differences(sides: Sides, limit: float) -> Iterator[Difference]:
    """Clocks that differ although the slower side is not known to have been throttled: it was set lower."""
    ours, theirs = (
        _known(sides.arm, "gpu_clock_mhz"),
        _known(sides.reference, "gpu_clock_mhz"),
    )
    if not ours or not theirs:
        return
    own_mhz, reference_mhz = float(np.mean(ours)), float(np.mean(theirs))
    slower = sides.arm if own_mhz < reference_mhz else sides.reference
    throttled = _throttle_reasons(slower) - {"applications_clocks_setting"}
    if abs(math.log(own_mhz / reference_mhz)) > limit and not throttled:
        yield {"quantity": "gpu_clock_mhz", "arm": own_mhz, "reference": reference_mhz}


def _throttle_reasons(rows: Rows) -> set[str]:
    """The reasons for which GPUs were throttled in any of the runs."""
    names = [parse_names(row.get("gpu_throttled")) for row in rows]
    return {*itertools.chain.from_iterable(names)}


def _known(rows: Rows, column: str) -> list[float]:
    return [value for value in numbers(rows, column).tolist() if not math.isnan(value)]


def same_work(sides: Sides) -> ComparisonFinding:
    """Return whether the work was the same; if not, what differs, with the values of both sides.

    Lengths are known if both sides declare them, or both counted them well enough. Answers of unknown length are not
    the same work; prompts of unknown length are said beside the verdict.
    """
    differing = [*_declared_differences(sides), *_observed_differences(sides)]
    if differing:
        return new_finding("other_work", differences=_each_once(differing))
    if not _known_on_both(sides, "output"):
        return new_finding("work_unknown")
    if not _known_on_both(sides, "prompt"):
        return new_finding("prompts_unknown")
    return new_finding("same_work")


def _each_once(differences: Iterable[Difference]) -> list[Difference]:
    return list({tuple(each.values()): each for each in differences}.values())


def _known_on_both(sides: Sides, name: str) -> bool:
    """Whether both sides declare the tokens of an answer (`name` output) or prompt, or counted them well enough."""
    if all(
        f"{name}_tokens" in declared_work(row) for row in (*sides.arm, *sides.reference)
    ):
        return True
    apart, limit = _token_difference(sides, name)
    return apart <= math.log1p(_MARGIN) or limit <= math.log1p(_VAGUE)


def _declared_differences(sides: Sides) -> Iterator[Difference]:
    """Differences in the declared work of paired runs, where both record it."""
    for theirs, ours in zip(sides.reference, sides.arm, strict=True):
        reference_work, own_work = declared_work(theirs), declared_work(ours)
        at_one_level = theirs.get("level") == ours.get("level")
        for name in _DECLARED:
            own, reference = own_work.get(name), reference_work.get(name)
            if (
                None not in (own, reference)
                and own != reference
                and (at_one_level or name not in _OF_LEVEL)
            ):
                yield {"quantity": name, "arm": own, "reference": reference}
        loads = [str(row.get("strategy") or "") for row in (ours, theirs)]
        if all(loads) and loads[0] != loads[1]:
            yield {"quantity": "load", "arm": loads[0], "reference": loads[1]}
        rates = [number(row, "rate_req_s") for row in (ours, theirs)]
        if (
            at_one_level
            and min(rates) > 0
            and abs(math.log(rates[0] / rates[1])) > _RATE_MARGIN
        ):
            yield {"quantity": "rate_req_s", "arm": rates[0], "reference": rates[1]}


def _observed_differences(sides: Sides) -> Iterator[Difference]:
    """Mean tokens of a request that differ by more than 2 % + 3 standard errors + the effect of cut-off requests.

    Long answers are cut off more often than short ones: if a share f is missing, the mean of the others is off by at
    most SD sqrt(f / (1 - f)) (Cauchy and Schwarz). Prompts are compared only if one version of GuideLLM counted both.
    """
    names = ["output"]
    one_level = all(
        a.get("level") == b.get("level")
        for a, b in zip(sides.arm, sides.reference, strict=True)
    )
    if (
        one_level
        and len(
            {str(row.get("guidellm_version")) for row in (*sides.arm, *sides.reference)}
        )
        == 1
    ):
        names.append("prompt")
    for name in names:
        apart, limit = _token_difference(sides, name)
        if apart > limit:
            ours, theirs = (
                _mean_tokens(rows, name)[0] for rows in (sides.arm, sides.reference)
            )
            column = f"request_{name}_tokens"
            yield {"quantity": column, "arm": ours, "reference": theirs}


def _token_difference(sides: Sides, name: str) -> tuple[float, float]:
    """By how much the ln of both sides' mean tokens differs, and by how much it may by chance; NaN if not counted."""
    (ours, our_error, our_loss), (theirs, their_error, their_loss) = (
        _mean_tokens(rows, name) for rows in (sides.arm, sides.reference)
    )
    limit = (
        math.log1p(_MARGIN)
        + _ERRORS * math.hypot(our_error, their_error)
        + our_loss
        + their_loss
    )
    return abs(math.log(ours / theirs)), limit


def _mean_tokens(rows: Rows, name: str) -> tuple[float, float, float]:
    """The mean tokens over runs, its relative standard error, and how far cut-off requests may have moved it.

    All are NaN where no run counted any. Runs without an error are left out where others have one; if none has, means
    are taken as they are, since an unknown error excuses no difference.
    """
    column = f"request_{name}_tokens"
    columns = (column, f"{column}_se", "requests_completed", "incomplete_share")
    means, errors, counts, cut = (numbers(rows, name) for name in columns)
    known = np.isfinite(means) & (means > 0)
    sure = known & np.isfinite(errors)
    used = sure if sure.any() else known
    if not used.any():
        return math.nan, math.nan, math.nan
    error = np.where(np.isfinite(errors[used]), errors[used], 0.0)
    share = np.clip(np.nan_to_num(cut[used]), 0, _MOST_CUT)
    lost = error * np.sqrt(np.nan_to_num(counts[used]) * share / (1 - share))
    return (
        float(means[used].mean()),
        float(np.sqrt((error**2).sum())) / len(error),
        float(lost.mean()),
    )


def tier_gain(sides: Sides) -> tuple[float, float] | None:
    """Return the share of the prompt tokens that the arm's tier served, and the most that it could gain, as ln.

    A closed loop that computes fewer prompt tokens delivers at most in proportion more, even if computing prompts is
    all of its work. An arm computes fewer by what its tier served, or by what its device finding beyond the reference's;
    preempted requests compute, or load, their tokens once more. None for latencies, whose quantiles may jump with few
    hits, between two levels, for a tier that served much, and where the counters do not tell.
    """
    at_one_level = all(
        a.get("level") == b.get("level")
        for a, b in zip(sides.arm, sides.reference, strict=True)
    )
    if sides.metric != THROUGHPUT or not sides.arm or not at_one_level:
        return None
    device = numbers(sides.arm, "prefix_hit_ratio")
    served = float(((1 - device) * numbers(sides.arm, "external_hit_ratio")).mean())
    computed = 1 - float(device.mean()) - served
    # A reference without such counters has no tier that serves tokens.
    behind = np.nan_to_num(numbers(sides.reference, "external_hit_ratio"))
    computed_there = float(
        ((1 - numbers(sides.reference, "prefix_hit_ratio")) * (1 - behind)).mean()
    )
    repeated = float(np.max([_repeated(sides.arm), _repeated(sides.reference)]))
    saved = max(served, computed_there - computed) + repeated
    if not computed > 0 or served > _SMALL_SHARE or math.isnan(computed_there + saved):
        return None
    return served, math.log1p(_WITHIN_WINDOW * saved / computed)


def _repeated(rows: Rows) -> float:
    """The most tokens computed or loaded again for preempted requests, as a share of a side's prompt tokens.

    0 where neither preempted requests nor loaded bytes were counted; NaN where only bytes were.
    """
    preempted = np.fmax(
        numbers(rows, "requests_preempted"), numbers(rows, "preemptions")
    )
    if np.isnan(preempted).any() and (numbers(rows, "offload_load_bytes") > 0).any():
        return math.nan
    reloaded = numbers(rows, "reloaded_tokens")
    if not np.nansum(preempted) and not np.nansum(reloaded):
        return 0.0
    prompt, output = (
        numbers(rows, "request_prompt_tokens"),
        numbers(rows, "request_output_tokens"),
    )
    tokens = np.fmax(preempted * (prompt + output), reloaded)
    return float(tokens.sum() / (numbers(rows, "requests_completed") * prompt).sum())


def same_rates(sides: Sides) -> ComparisonFinding | None:
    """Return whether open loops had the same rates of requests, on which latencies depend; None for other loads."""
    both = sides.arm, sides.reference
    if (
        sides.metric in (THROUGHPUT, GOODPUT)
        or not (numbers((*sides.arm, *sides.reference), "rate_req_s") > 0).all()
    ):
        return None
    for column, words in (("rate_req_s", "sent"), ("throughput_req_s", "answered")):
        ours, theirs = (float(numbers(rows, column).mean()) for rows in both)
        if ours > 0 and theirs > 0 and abs(ours / theirs - 1) > _SAME_LOAD:
            return new_finding("other_rates", counted=words, arm=ours, reference=theirs)
    return new_finding("one_rate")


def others_on_server(sides: Sides) -> ComparisonFinding | None:
    """Return what is said of others who used a server that ran already, of the first run in which they did."""
    for row in (*sides.arm, *sides.reference):
        for outcome in outcomes_of(row):
            if (outcome.code, outcome.severity) == (OTHERS_CHECK, "warn"):
                run = _plain(row.get("run"))
                return new_finding(
                    "others_on_server",
                    scenario=row.get("scenario"),
                    run=run,
                    message=outcome.message,
                )
    return None


def same_first_visits(sides: Sides) -> ComparisonFinding | None:
    """Return whether as large a part of the prompts was visited for the first time; None where it is not known."""
    ours, theirs = (
        float(np.mean(numbers(rows, "first_visit_share")))
        for rows in (sides.arm, sides.reference)
    )
    if math.isnan(ours) or math.isnan(theirs):
        return None
    if abs(ours - theirs) <= _SAME_VISITS:
        return new_finding("same_visits")
    return new_finding("other_visits", arm=ours, reference=theirs)


def failed_requests(sides: Sides) -> ComparisonFinding:
    """Return how many requests failed on each side, and whether more did on one (Fisher's exact test)."""
    (failed, total), (failed_there, total_there) = (
        _failed_and_total(sides.arm),
        _failed_and_total(sides.reference),
    )
    if not failed and not failed_there:
        return new_finding("no_errors")
    # Imported here because it is slow, and requests rarely fail.
    from scipy.stats import fisher_exact  # noqa: PLC0415

    table = [[failed, total - failed], [failed_there, total_there - failed_there]]
    unlike = float(fisher_exact(table).pvalue) < _ALPHA
    few = max(failed / total, failed_there / total_there) < _WORTH_SAYING
    return new_finding(
        "few_errors" if few and not unlike else "errors",
        failed=failed,
        requests=total,
        failed_share=failed / total,
        reference_share=failed_there / total_there,
        reference_failed=failed_there,
        reference_requests=total_there,
        bars_parity=unlike,
    )


def failed_requests_bounds(sides: Sides) -> tuple[float, float]:
    """Return how far the true difference of ln may lie below and above the measured one because of failed requests.

    Throughput: by their share at most, to either side. Latencies: failed requests count as the slowest of all, so the
    quantile q of the others is the quantile q (1 - share) of all; ln latency is interpolated between known quantiles.
    Goodput: not at all, as failed requests are among those that it counts as missing the limits.
    """
    (failed, total), (failed_there, total_there) = (
        _failed_and_total(sides.arm),
        _failed_and_total(sides.reference),
    )
    if sides.metric == GOODPUT or (not failed and not failed_there):
        return 0.0, 0.0
    ours, theirs = failed / total, failed_there / total_there
    if sides.metric == THROUGHPUT:
        either = -math.log1p(-ours) - math.log1p(-theirs)
        return either, either
    return _rise_if_failed(sides.reference, sides.metric, theirs), _rise_if_failed(
        sides.arm, sides.metric, ours
    )


def _rise_if_failed(rows: Rows, metric: str, share: float) -> float:
    """The rise of ln of a quantile if a further `share` of requests were beyond it; the mean over runs."""
    name, label = metric.split("_ms_")
    at = QUANTILES[label]
    rises = []
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
            rises.append((second - first) / (high - low) * (at / (1 - share) - at))
    return float(np.mean(rises)) if rises else 0.0


def _failed_and_total(rows: Rows) -> tuple[int, int]:
    """The number of failed requests and of all, at least 1, over runs."""
    counts = [float(np.nansum(numbers(rows, name))) for name in _COUNTS]
    return round(counts[-1]), max(1, round(sum(counts)))


def same_conditions(sides: Sides) -> ComparisonFinding:
    """Return whether the servers of both sides differ in anything that is not the arm's own; if so, in what.

    The two runs of each pair are compared: what changed for both between runs is no difference.
    """
    pairs = zip(sides.arm, sides.reference, strict=True)
    differences = dict.fromkeys(
        difference for pair in pairs for difference in differences_of(*pair)
    )
    left = [each for each in differences if not is_declared(each, sides.differs)]
    for severity, code in (
        ("refuses", "other_server"),
        ("qualifies", "other_settings"),
    ):
        named = [each for each in left if RULES[each.kind].severity == severity]
        if named:
            settings = [plain_name(each.name) for each in distinct(named)]
            facts = [each.facts for each in distinct(named)]
            return new_finding(code, differences=facts, settings=settings)
    if any(each.kind == "unknown" for each in left):
        return new_finding("settings_unknown")
    return new_finding("same_settings")


def other_connector(sides: Sides) -> ComparisonFinding | None:
    """Return which connector ran on a side, if it is not one of those that its arm is called after."""
    for side, rows in (("arm", sides.arm), ("reference", sides.reference)):
        for row in rows:
            ran = conditions_in(row).get(NO_CONNECTOR_OF_ARM)
            if ran:
                return new_finding("other_connector", side=side, connector=ran)
    return None


Input = Callable[[Sides], ComparisonFinding | None]
INPUTS: tuple[Input, ...] = (
    *(
        same_work,
        same_definitions,
        activity_known,
        same_build,
        same_clocks,
        tier_size,
        undeclared_tier,
        loading_switched_off,
    ),
    *(failed_requests, same_rates, others_on_server, same_first_visits),
    *(same_conditions, other_connector, host_speed.host_speeds),
)
"""The functions that give the inputs of every comparison from its levels."""
