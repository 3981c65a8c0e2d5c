"""The sentences of comparisons, made from codes and facts where a table is written; nothing reads them.

Of a finding there are two: a summary of a few words, for tables and beside the verdict, and, where it is not sound, what
is wrong and how to avoid it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import Any

from kveval.analysis.estimators.intervals import percent
from kveval.analysis.statistics.comparability import plain_name
from kveval.analysis.statistics.exclusions import REASONS, SIDES, Exclusion
from kveval.analysis.statistics.failed_checks import failures_text
from kveval.analysis.statistics.findings import ComparisonFinding
from kveval.load.sample_sizes import MIN_RUNS, MOST_FAILED

_LONGEST_ERROR, _LONGEST_SETTING = 120, 60
_WHOSE = {"arm": "the arm", "reference": "the cell it is compared with"}
_IN_BOTH = f"both cells, {MIN_RUNS} needed"
_QUANTITIES = {
    "prompt_tokens": "prompt tokens",
    "output_tokens": "output tokens",
    "prompt_stdev": "standard deviation of prompt tokens",
    "output_stdev": "standard deviation of output tokens",
    "prefix_tokens": "tokens of a prefix",
    "prefix_count": "prefixes",
    "turns": "turns",
    "primed": "primed prefixes",
    "burst_factor": "rate within bursts over the mean",
    "document_tokens": "tokens of a user's document",
    "document_stdev": "standard deviation of a document's tokens",
    "pause_s": "seconds of a user's pause",
    "pause_stdev_s": "standard deviation of pauses",
    "prefix_zipf": "Zipf's exponent of the prefixes' popularity",
    "load": "load",
    "rate_req_s": "requests/s sent",
    "request_output_tokens": "output tokens of a request",
    "request_prompt_tokens": "prompt tokens of a request",
    "gpu_power_limit_w": "power limits:",
    "gpu_clock_limit_mhz": "clock limits:",
    "gpu_clock_mhz": "clocks:",
}
"""A quantity in which two sides may differ -> its name in sentences."""
_FORMATS = {
    "rate_req_s": "{:.3g}",
    "request_output_tokens": "{:,.4g}",
    "request_prompt_tokens": "{:,.4g}",
    "gpu_clock_mhz": "{:,.0f}",
}
_UNITS = {
    "gpu_power_limit_w": " W",
    "gpu_clock_limit_mhz": " MHz",
    "gpu_clock_mhz": " MHz",
}


@dataclass(frozen=True)
class SideNames:
    """The names of arm and reference, and the runs that are left out, in words."""

    labels: tuple[str, str] = ("", "")
    left_out: str = ""

    def label(self, side: str) -> str:
        """Return the name of a side."""
        return self.labels[SIDES.index("arm" if side == "arm" else "reference")]


Facts = Mapping[str, Any]
Words = str | Callable[[Facts, SideNames], str]


def _differences(facts: Facts) -> str:
    """The quantities that differ, each with the values of both sides."""
    texts = dict.fromkeys(map(_difference, facts["differences"]))
    return "; ".join(texts)


def _difference(facts: Facts) -> str:
    quantity = facts["quantity"]
    form = _FORMATS.get(quantity, "{}")
    arm, reference = (
        _range(facts[side])
        if isinstance(facts[side], list)
        else form.format(facts[side])
        for side in SIDES
    )
    unit = _UNITS.get(quantity, "")
    return f"{_QUANTITIES[quantity]} {arm} against {reference}{unit}"


def _range(values: Sequence[float]) -> str:
    return " to ".join(f"{value:,.0f}" for value in sorted({min(values), max(values)}))


def _and(names: Iterable[str]) -> str:
    return " and ".join(names)


def _other_work(facts: Facts, _: SideNames) -> str:
    return (
        f"not the same work: {_differences(facts)} in the cell it is compared with; "
        "measure both with one workload"
    )


def _definitions(facts: Facts, _: SideNames) -> str:
    return f"statistics of {_and(facts['arm'])} against {_and(facts['reference'])}"


def _other_definitions(facts: Facts, names: SideNames) -> str:
    return (
        f"{_definitions(facts, names)}, which define them differently: compare reports "
        "that keep all requests"
    )


def _other_build(facts: Facts, _: SideNames) -> str:
    ran = f"{_and(facts['arm'])}, against {_and(facts['reference'])}"
    return f"the effect is that of arm and build together: it ran {ran}"


def _other_settings(facts: Facts, _: SideNames) -> str:
    """The settings that differ, each with the values of both sides."""
    return "; ".join(_setting(difference) for difference in facts["differences"])


def _setting(difference: Facts) -> str:
    arm, reference = (
        shorten(str(difference[side]), _LONGEST_SETTING, placeholder="...")
        for side in SIDES
    )
    return f"{difference['quantity']} {arm} against {reference}"


def _other_server(facts: Facts, names: SideNames) -> str:
    settings = [
        plain_name(difference["quantity"]) for difference in facts["differences"]
    ]
    return (
        f"the servers differ in more than the arm: {_other_settings(facts, names)} in the "
        "cell it is compared with; measure both alike, or declare the pair under "
        f"`comparison.contrasts` with `differs: [{', '.join(settings)}]`"
    )


def _in_runs(facts: Facts) -> str:
    """In how many of the runs something is, "" for all of them."""
    return (
        f" in {facts['unlike']} of {facts['pairs']} runs"
        if facts["unlike"] < facts["pairs"]
        else ""
    )


def _throttled(facts: Facts, _: SideNames) -> str:
    parts = [
        f"{', '.join(facts[side])} in {_WHOSE[side]} only"
        for side in SIDES
        if facts[side]
    ]
    return f"GPUs throttled: {'; '.join(parts)}"


def _host_speed(facts: Facts, names: SideNames) -> str:
    return (
        f"by a fixed piece of work before and after the levels, the host was up to {facts['ratio']:.2f} times as fast in "
        f"{_runs(facts['runs'])} of {names.label(facts['side'])} as in the other side's, which is more than the "
        "difference: measure more runs, or on a quieter machine"
    )


def _tier_size(facts: Facts, _: SideNames) -> str:
    if facts["reported_tokens"] is None:
        return "other than asked for"
    return f"{facts['reported_tokens']:,.0f} tokens for {_tokens(facts['tokens'])}"


def _tokens(value: float | None) -> str:
    return "an unknown number" if value is None else f"{value:,.0f} tokens"


def _other_tier_size(facts: Facts, names: SideNames) -> str:
    return (
        f"a tier of another size ({_tier_size(facts, names)}): see the check, and "
        "measure with a tier of the size asked for"
    )


def _leftover_hits(facts: Facts, _: SideNames) -> str:
    return (
        f"the caches of {_WHOSE[facts['side']]} were not empty: in run {facts['run']} they served "
        f"{100 * facts['served']:.0f} % of the prompt tokens, of which {100 * facts['offered']:.0f} % had come before "
        "in the level; empty them before each level (`reset_caches: restart`), or restart the server"
    )


_UNDECLARED = "a tier at work in the cell it is compared with"


def _runs_left_out(facts: Facts, names: SideNames) -> str:
    return ", ".join(
        f"{count['runs']} of {facts['blocks']} runs of {names.label(count['side'])} "
        f"{REASONS[count['code']].summary}"
        for count in facts["counts"]
    )


def _errors(facts: Facts, _: SideNames) -> str:
    shares = (
        (facts["failed"], facts["requests"]),
        (facts["reference_failed"], facts["reference_requests"]),
    )
    here, there = (
        f"{100 * failed / requests:.2g} %" if failed else "none"
        for failed, requests in shares
    )
    return f"{here} of requests failed against {there}"


def _rates(facts: Facts, _: SideNames) -> str:
    return (
        f"requests/s {facts['counted']} {facts['arm']:.3g} against "
        f"{facts['reference']:.3g}"
    )


def _other_rates(facts: Facts, names: SideNames) -> str:
    return (
        f"{_rates(facts, names)} in the cell it is compared with: the latencies are "
        "those of different loads"
    )


def _visits(facts: Facts, _: SideNames) -> str:
    return (
        f"first visits {100 * facts['arm']:.0f} against {100 * facts['reference']:.0f} % "
        "of the prompt tokens"
    )


def _other_visits(facts: Facts, names: SideNames) -> str:
    return (
        f"{_visits(facts, names)} in the cell it is compared with, which no cache can "
        "hold: the effect is in part that of cold caches; prime the prefixes, or use a "
        "longer warm-up"
    )


def _unknown_latencies(facts: Facts, _: SideNames) -> str:
    cause = Exclusion(**facts["first"])
    text = exclusion_words(cause)
    if cause.code == "not_reached":
        text = (
            f"{cause.facts['latency']} is longer than anything observed: too many "
            "requests were cut off"
        )
    many = f"{facts['unknown']} of {facts['pairs']} runs"
    return f"in {_WHOSE[cause.side]}, {text} ({many})"


def _wrong_answers(facts: Facts, _: SideNames) -> str:
    messages = "; ".join(facts["messages"]) or "its caches changed greedy answers"
    return (
        f"wrong answers, whose speed is no result: {facts['scenario']}, "
        f"run {facts['run']}: {messages}"
    )


def _not_active(facts: Facts, _: SideNames) -> str:
    return (
        f"by its own counters {_WHOSE[facts['side']]} served next to nothing at this "
        "level"
    )


def _few_active(facts: Facts, _: SideNames) -> str:
    return (
        f"{_WHOSE[facts['side']]}'s own counters rose in {facts['active']} of "
        f"{facts['known']} runs at this level, {MIN_RUNS} needed"
    )


_ACTIVE = "active in {active} of {known} runs"


def _share(facts: Facts) -> str:
    return f"{100 * facts['served']:.2g} % of the prompt tokens"


def _beyond_the_tier(facts: Facts, _: SideNames) -> str:
    return (
        f"its tier served {_share(facts)}, which cannot gain more than "
        f"{percent(facts['most_ln']):.2g} %: see what else differs"
    )


def _few_runs(facts: Facts, names: SideNames) -> str:
    if not names.left_out:
        return f"{facts['usable']} runs of {_IN_BOTH}"
    return (
        f"{facts['usable']} of {facts['blocks']} runs usable in {_IN_BOTH}: "
        f"{names.left_out}"
    )


def _starved(facts: Facts, _: SideNames) -> str:
    parts = [
        f"{100 * facts[side]:.0f} % in {_WHOSE[side]}" for side in SIDES if facts[side]
    ]
    return f"fewer requests in flight than asked for, by {_and(parts)}"


def _none_met(facts: Facts, _: SideNames) -> str:
    parts = [
        f"{_WHOSE[side]} in {facts[side]} of {facts['runs']} runs"
        for side in SIDES
        if facts[side]
    ]
    return (
        f"nothing met the limits in {' and in '.join(parts)}, which counts as half a "
        "request"
    )


def _unsteady_windows(facts: Facts, names: SideNames) -> str:
    parts = [
        f"{window['change_percent']:+.0f} % in run {window['run']} of {names.label(window['side'])}"
        for window in facts["windows"]
    ]
    return (
        f"within a window the rate of tokens changed ({', '.join(parts)}), so that the difference may be off by "
        f"{percent(facts['bound_ln']):.2g} %, which is as much as it is: measure with longer `seconds:`, or on a quieter "
        "machine"
    )


def _more_runs(facts: Facts, _: SideNames) -> str:
    many = "more than 1,000" if facts["runs"] is None else str(facts["runs"])
    shown = "the measured difference"
    if facts["shows"] == "equality":
        shown = f"a difference below {100 * facts['margin']:g} %"
    return f"{many} runs would show {shown} at this spread"


SUMMARIES: Mapping[str, Words] = {
    "same_work": "the same",
    "prompts_unknown": "lengths of prompts not known",
    "work_unknown": "not known",
    "other_work": lambda facts, _: _differences(facts),
    "other_definitions": _definitions,
    "active": _ACTIVE,
    "never_active": "not active",
    "beyond_the_tier": lambda facts, _: (
        f"the tier alone cannot be why (it served {_share(facts)})"
    ),
    "activity_not_shown": "activity not shown",
    "few_active": _ACTIVE,
    "not_active": "not active",
    "one_build": "one build",
    "builds_compared": "builds compared",
    "build_unknown": "build not recorded",
    "other_build": "other build",
    "one_machine": "one machine",
    "one_machine_in_each_run": "one machine in each run",
    "machine_unknown": "machine not recorded",
    "other_machine_in_some_runs": lambda facts, _: f"other hardware{_in_runs(facts)}",
    "other_machine": "other hardware",
    "no_gpu": "no GPU",
    "equal_clocks": "equal clocks",
    "at_power_limit": lambda facts, _: (
        f"equal limits, {_WHOSE['arm' if facts['arm'] else 'reference']} alone at the power limit"
    ),
    "clocks_unknown": "clocks not recorded",
    "other_clocks": "other GPU clocks",
    "throttled_on_one_side": "GPU throttled on one side",
    "host_speed_differs": "other host speed",
    "other_limits": lambda facts, _: f"other {_differences(facts)}",
    "no_tier": "none",
    "tier_as_declared": "as asked for",
    "tier_size_unknown": "size not recorded",
    "both_store": "loading alone: both sides store",
    "other_tier_size": _tier_size,
    "undeclared_tier": _UNDECLARED,
    "leftover_hits": "caches not empty at the start",
    "runs_left_out": _runs_left_out,
    "shared_blocks": "shared blocks",
    "another_time": "measured at another time",
    "order_varied": "varied",
    "order_unknown": "not known",
    "fixed_order": "fixed order",
    "no_errors": "none",
    "few_errors": _errors,
    "errors": _errors,
    "copies_alike": "copies alike",
    "copies_differ": "replicates differ by {percent:.1f} %",
    "one_rate": "one rate",
    "other_rates": _rates,
    "others_on_server": "somebody else used a server",
    "same_visits": "first visits alike",
    "other_visits": _visits,
    "latencies_unknown": "not known",
    "wrong_answers": "wrong answers",
    "same_settings": "alike",
    "settings_unknown": "not recorded",
    "other_settings": lambda facts, names: f"other {_other_settings(facts, names)}",
    "other_connector": "{connector} ran",
    "other_server": lambda facts, names: f"other {_other_settings(facts, names)}",
}
"""Code of a finding of an input -> a few words, for tables and beside the verdict."""
EXPLANATIONS: Mapping[str, Words] = {
    "work_unknown": (
        "whether both did the same work is not known: the lengths of answers were not "
        "recorded on both sides, or for too few requests; import results that have them, "
        "of more requests"
    ),
    "other_work": _other_work,
    "other_definitions": _other_definitions,
    "beyond_the_tier": _beyond_the_tier,
    "activity_not_shown": (
        "no counter of the server was recorded that shows the arm active: record the "
        "server's metrics"
    ),
    "few_active": _few_active,
    "not_active": _not_active,
    "other_build": _other_build,
    "other_machine": lambda facts, _: (
        f"measured on other hardware than its baseline{_in_runs(facts)}"
    ),
    "other_clocks": lambda facts, _: (
        f"the GPUs of the two cells ran at different {_differences(facts)}"
    ),
    "throttled_on_one_side": _throttled,
    "host_speed_differs": _host_speed,
    "other_limits": lambda facts, _: (
        f"the GPUs of the two cells differ in {_differences(facts)}: set both to the "
        "same (nvidia-smi -pl, -lgc)"
    ),
    "both_store": lambda facts, _: (
        f"loading alone is compared: {_WHOSE[facts['side']]} has a server with the tier, too, whose requests switched "
        "loading off; it goes on storing, so what storing costs is not in the difference: measure it against a server "
        "without a tier"
    ),
    "other_tier_size": _other_tier_size,
    "leftover_hits": _leftover_hits,
    "undeclared_tier": lambda facts, _: (
        f"{_UNDECLARED}, which has none: up to {100 * facts['share']:.2g} % of the "
        f"lookups behind the device were hits, in {facts['active']} of {facts['runs']} runs"
    ),
    "another_time": (
        "measured at another time than its baseline, since when the machine may have "
        "changed: measure both again, together (both cells under `bridges`)"
    ),
    "fixed_order": (
        "every block was measured in the same order, so a drift of the machine looks like "
        "an effect of the arm: the interval allows for the runs' trend, {percent:.1f} % "
        "between the two cells; measure in random order"
    ),
    "errors": (
        "errors: {failed} of {requests:,} requests failed, {reference_failed} of "
        "{reference_requests:,} in the cell it is compared with: see the servers' logs"
    ),
    "copies_differ": (
        "cells that ran the same configuration differ by {percent:.1f} %, more than by "
        "chance, so smaller differences get no verdict"
    ),
    "other_rates": _other_rates,
    "others_on_server": "{scenario}, run {run}: {message}",
    "other_visits": _other_visits,
    "latencies_unknown": _unknown_latencies,
    "wrong_answers": _wrong_answers,
    "other_server": _other_server,
    "other_settings": lambda facts, names: (
        f"the servers differ in {_other_settings(facts, names)} in the cell it is "
        "compared with: the effect may be that of both"
    ),
    "other_connector": lambda facts, _: (
        f"{_WHOSE[facts['side']]} is called after another connector than {facts['connector']}, which ran"
    ),
    "no_baseline": "its baseline was not measured, or is not unique",
    "single_run": "single run",
    "spread_unknown": "the spread between runs is unknown",
    "few_runs": _few_runs,
    "no_common_value": lambda _, names: (
        f"no run has a value in both cells: {names.left_out}"
    ),
    "no_common_level": "the level was not measured in both cells",
    "past_the_peak": (
        "fewer requests were in flight than asked for, at a level above the cell's peak, "
        "where fewer deliver more: compare at a lower level, or give the load generator "
        "more processors"
    ),
    "goodput_unknown": (
        "goodput is unknown for one of the two: it was not measured, or its report kept no "
        "requests"
    ),
    "limits_never_met": (
        "nothing met the limits in either: use looser limits or a lower level"
    ),
    "replicate": (
        "same configuration as the cell it is compared with: a replicate, its difference "
        "is noise"
    ),
    "undeclared": "not declared as a contrast",
    "unsteady_windows": _unsteady_windows,
    "peaks_not_judged": "peaks at levels that differ are described, not judged",
    "within_margin": lambda facts, _: f"within +-{100 * facts['margin']:g} % (TOST)",
    "more_runs": _more_runs,
    "missing_load": (
        "the missing load may matter more than the difference: neither a difference nor "
        "equality is shown"
    ),
    "not_shown": "{what} is not shown",
    "many_failed": (
        f"more than {100 * MOST_FAILED:g} % of the runs failed, and the others speak too "
        "well of their cell"
    ),
    "other_inputs": lambda facts, _: (
        f"equality is not shown where {_and(facts['inputs'])} differ"
    ),
    "idle": lambda _, names: _not_active({"side": "arm"}, names),
    "better_though_idle": (
        "it measured better, but the tier cannot be why: see what else differs"
    ),
    "no_cost": "what it costs has no verdict",
    "starved": _starved,
    "none_met": _none_met,
}
"""Code of a finding -> what is wrong and how to avoid it, or why a verdict is what it is."""
_ANNOUNCING = frozenset({"no_cost", "not_shown"})


def summary(finding: ComparisonFinding, names: SideNames = SideNames()) -> str:
    """Return a finding of an input in a few words."""
    return _written(SUMMARIES[finding.code], finding, names)


def explanation(finding: ComparisonFinding, names: SideNames = SideNames()) -> str:
    """Return what is wrong and how to avoid it, or why a verdict is what it is; "" if there is nothing to say."""
    return _written(EXPLANATIONS.get(finding.code, ""), finding, names)


def _written(words: Words, finding: ComparisonFinding, names: SideNames) -> str:
    if callable(words):
        return words(finding.facts, names)
    return words.format_map(finding.facts)


def reasons_text(grounds: Iterable[ComparisonFinding], names: SideNames) -> str:
    """Return the grounds of a verdict as one text."""
    text = ""
    for finding in grounds:
        words = explanation(finding, names)
        ending = ": " if finding.code in _ANNOUNCING else "; "
        text += f"{words}{ending}" if words else ""
    return text.removesuffix("; ").removesuffix(": ")


def exclusion_words(exclusion: Exclusion) -> str:
    """Return why a run is left out, "" where the reason of another run says it."""
    return REASONS[exclusion.code].words.format_map(_as_text(exclusion.facts))


def _as_text(facts: Facts) -> dict[str, Any]:
    """Return facts for a template, with failed checks and errors in words."""
    errors = (f" ({shorten(text, _LONGEST_ERROR)})" for text in facts.get("errors", ()))
    checks = failures_text(facts.get("checks", ()))
    return {**facts, "checks": checks, "errors": "".join(errors)}


def exclusions_text(
    exclusions: Iterable[Exclusion],
    labels: tuple[str, str],
    of_both: Collection[int] = (),
) -> str:
    """Return which runs are left out and why; those `of_both` have a value in both cells, and name none.

    `labels`: names of arm and reference.
    """
    words = [(exclusion, exclusion_words(exclusion)) for exclusion in exclusions]
    late: dict[str, dict[int, None]] = {}
    both: dict[tuple[int, str], None] = {}
    sided: dict[tuple[str, str], list[int]] = {}
    for exclusion, text in words:
        if not text:
            continue
        if exclusion.code == "other_time":
            late.setdefault(text, {})[exclusion.run] = None
        elif exclusion.run in of_both:
            both[exclusion.run, text] = None
        else:
            label = labels[SIDES.index(exclusion.side)]
            sided.setdefault((label, text), []).append(exclusion.run)
    parts = [f"run {run}: {text}" for run, text in sorted(both)]
    parts += [
        f"{_runs(numbers)} of {label}: {text}"
        for (label, text), numbers in sided.items()
    ]
    parts += [f"{_runs(numbers)}: {text}" for text, numbers in late.items()]
    return "; ".join(parts)


def _runs(numbers: Collection[int]) -> str:
    return f"run{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
