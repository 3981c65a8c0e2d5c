"""Everything that is found of a comparison: what each code means for the verdict, its words, and what would remove it.

Words are templates for the finding's facts, filled by `wording.write`, which explains the forms after the colons.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from kveval.load.sample_sizes import MIN_RUNS, MOST_FAILED

Severity = Literal["sound", "unknown", "qualifies", "indicates", "refuses"]
SEVERITIES: tuple[Severity, ...] = (
    "sound",
    "unknown",
    "qualifies",
    "indicates",
    "refuses",
)
"""From least to most severe: fine; not known; stated with the verdict; makes it only indicative; prevents a verdict."""
INPUTS = (
    *("work", "activity", "build", "hardware", "clocks", "tier"),
    *("runs", "blocks", "order", "errors", "replicates", "load"),
    *("visits", "latencies", "answers", "settings", "connector"),
)
"""The inputs of a verdict. The column of each in comparison.csv is `basis_INPUT`."""


class Meaning(NamedTuple):
    """The meaning of a code.

    Attributes:
        input: the input that it is found of, "" for none.
        severity: its effect on the verdict.
        summary: a few words, for tables and beside the verdict; of inputs alone.
        why: what is wrong, or why a verdict is what it is; "" if there is nothing to say.
        remedy: how to avoid it; "" where nothing is to be done, or nobody can.
    """

    input: str
    severity: Severity
    summary: str = ""
    why: str = ""
    remedy: str = ""


_OTHER = "in the cell it is compared with"
_ACTIVE = "active in {active} of {known} runs"
_SERVED = "{served:percent} of the prompt tokens"
_ERRORS = "{failed_share:percent} of requests failed against {reference_share:percent}"
_RATES = "requests/s {counted} {arm:.3g} against {reference:.3g}"
_VISITS = "first visits {arm:whole} against {reference:whole} % of the prompt tokens"
_IDLE = "by its own counters {side:whose} served next to nothing at this level"
_QUIETER = "longer levels (`seconds:`), or a quieter machine"

CODES: Mapping[str, Meaning] = {
    # Work.
    "same_work": Meaning("work", "sound", "the same"),
    "prompts_unknown": Meaning("work", "qualifies", "lengths of prompts not known"),
    "work_unknown": Meaning(
        "work",
        "refuses",
        "not known",
        "whether both did the same work is not known: the lengths of answers were not recorded on both sides, or for too"
        " few requests",
        "import results that have them, of more requests",
    ),
    "other_work": Meaning(
        "work",
        "refuses",
        "{differences:differences}",
        f"not the same work: {{differences:differences}} {_OTHER}",
        "measure both with one workload",
    ),
    "other_definitions": Meaning(
        "work",
        "refuses",
        "statistics of {arm:and} against {reference:and}",
        "statistics of {arm:and} against {reference:and}, which define them differently",
        "compare reports that keep all requests",
    ),
    # Activity.
    "active": Meaning("activity", "sound", _ACTIVE),
    "never_active": Meaning("activity", "sound", "not active"),
    "beyond_the_tier": Meaning(
        "activity",
        "qualifies",
        f"the tier alone cannot be why (it served {_SERVED})",
        f"its tier served {_SERVED}, which cannot gain more than {{most_ln:gain}}",
        "see what else differs",
    ),
    "activity_not_shown": Meaning(
        "activity",
        "indicates",
        "activity not shown",
        "no counter of the server was recorded that shows the arm active",
        "record the server's metrics",
    ),
    "few_active": Meaning(
        "activity",
        "refuses",
        _ACTIVE,
        f"{{side:whose}}'s own counters rose in {{active}} of {{known}} runs at this level, {MIN_RUNS} needed",
    ),
    "not_active": Meaning("activity", "refuses", "not active", _IDLE),
    # Build.
    "one_build": Meaning("build", "sound", "one build"),
    "builds_compared": Meaning("build", "sound", "builds compared"),
    "build_unknown": Meaning("build", "unknown", "build not recorded"),
    "other_build": Meaning(
        "build",
        "qualifies",
        "other build",
        "the effect is that of arm and build together: it ran {arm:and}, against {reference:and}",
    ),
    # Hardware.
    # A host's fingerprint is that of its kind: several may have it.
    "one_machine": Meaning("hardware", "sound", "one kind of machine"),
    "one_machine_in_each_run": Meaning(
        "hardware", "sound", "one kind of machine in each run"
    ),
    "machine_unknown": Meaning("hardware", "unknown", "machine not recorded"),
    "other_machine_in_some_runs": Meaning(
        "hardware", "qualifies", "other hardware in {unlike} of {pairs} runs"
    ),
    "other_machine": Meaning(
        "hardware",
        "refuses",
        "other hardware",
        "measured on other hardware than its baseline in {unlike} of {pairs} runs",
    ),
    # Clocks.
    "no_gpu": Meaning("clocks", "sound", "no GPU"),
    "equal_clocks": Meaning("clocks", "sound", "equal clocks"),
    "at_power_limit": Meaning(
        "clocks", "sound", "equal limits, {side:whose} alone at the power limit"
    ),
    "clocks_unknown": Meaning("clocks", "unknown", "clocks not recorded"),
    "other_clocks": Meaning(
        "clocks",
        "qualifies",
        "other GPU clocks",
        "the GPUs of the two cells ran at different {differences:differences}",
    ),
    "throttled_on_one_side": Meaning(
        "clocks",
        "qualifies",
        "GPU throttled on one side",
        f"GPUs throttled on one side only: {{arm:list}} in the arm, {{reference:list}} {_OTHER}",
    ),
    "host_speed_differs": Meaning(
        "clocks",
        "qualifies",
        "other host speed",
        "by a fixed piece of work before and after the levels, the host was up to {ratio:.2f} times as fast in runs"
        " {runs:list} of {side:label} as in the other side's, which is more than the difference",
        "measure more runs, or on a quieter machine",
    ),
    "other_limits": Meaning(
        "clocks",
        "refuses",
        "other {differences:differences}",
        "the GPUs of the two cells differ in {differences:differences}",
        "set both to the same (nvidia-smi -pl, -lgc)",
    ),
    # Tier.
    "no_tier": Meaning("tier", "sound", "none"),
    "tier_as_declared": Meaning("tier", "sound", "as asked for"),
    "tier_size_unknown": Meaning("tier", "unknown", "size not recorded"),
    "both_store": Meaning(
        "tier",
        "qualifies",
        "loading alone: both sides store",
        "loading alone is compared: {side:whose} has a server with the tier, too, whose requests switched loading off; it"
        " goes on storing, so what storing costs is not in the difference",
        "measure it against a server without a tier",
    ),
    "other_tier_size": Meaning(
        "tier",
        "refuses",
        "{reported_tokens:tokens} for {tokens:tokens}",
        "a tier of another size ({reported_tokens:tokens} for {tokens:tokens}): see the check",
        "measure with a tier of the size asked for",
    ),
    "undeclared_tier": Meaning(
        "tier",
        "refuses",
        f"a tier at work {_OTHER}",
        f"a tier at work {_OTHER}, which has none: up to {{share:percent}} of the lookups behind the device were hits, in"
        " {active} of {runs} runs",
    ),
    # Runs and when they were measured.
    "runs_left_out": Meaning("runs", "qualifies", "{counts:counts}"),
    "shared_blocks": Meaning("blocks", "sound", "shared blocks"),
    "another_time": Meaning(
        "blocks",
        "indicates",
        "measured at another time",
        "measured at another time than its baseline, since when the machine may have changed",
        "measure both again, together (both cells under `bridges`)",
    ),
    "order_varied": Meaning("order", "sound", "varied"),
    "order_unknown": Meaning("order", "unknown", "not known"),
    "fixed_order": Meaning(
        "order",
        "qualifies",
        "fixed order",
        "every block was measured in the same order, so a drift of the machine looks like an effect of the arm: the"
        " interval allows for the runs' trend, {percent:.1f} % between the two cells",
        "measure in random order",
    ),
    # Errors, replicates, load.
    "no_errors": Meaning("errors", "sound", "none"),
    "few_errors": Meaning("errors", "sound", _ERRORS),
    "errors": Meaning(
        "errors",
        "qualifies",
        _ERRORS,
        f"errors: {{failed}} of {{requests:,}} requests failed, {{reference_failed}} of {{reference_requests:,}} {_OTHER}",
        "see the servers' logs",
    ),
    "copies_alike": Meaning("replicates", "sound", "copies alike"),
    "copies_differ": Meaning(
        "replicates",
        "qualifies",
        "replicates differ by {percent:.1f} %",
        "cells that ran the same configuration differ by {percent:.1f} %, more than by chance, so smaller differences get"
        " no verdict",
    ),
    "one_rate": Meaning("load", "sound", "one rate"),
    "other_rates": Meaning(
        "load",
        "qualifies",
        _RATES,
        f"{_RATES} {_OTHER}: the latencies are those of different loads",
    ),
    "others_on_server": Meaning(
        "load",
        "qualifies",
        "somebody else used a server",
        "{scenario}, run {run}: {message}",
    ),
    "same_visits": Meaning("visits", "sound", "first visits alike"),
    "other_visits": Meaning(
        "visits",
        "qualifies",
        _VISITS,
        f"{_VISITS} {_OTHER}, which no cache can hold: the effect is in part that of cold caches",
        "prime the prefixes, or use a longer warm-up",
    ),
    "latencies_unknown": Meaning(
        "latencies",
        "refuses",
        "not known",
        "in {side:whose}, {first:cause} ({unknown} of {pairs} runs)",
    ),
    "wrong_answers": Meaning(
        "answers",
        "refuses",
        "wrong answers",
        "wrong answers, whose speed is no result: {scenario}, run {run}: {messages:list}",
    ),
    # Settings.
    "same_settings": Meaning("settings", "sound", "alike"),
    "settings_unknown": Meaning("settings", "unknown", "not recorded"),
    "other_settings": Meaning(
        "settings",
        "qualifies",
        "other {differences:differences}",
        f"the servers differ in {{differences:differences}} {_OTHER}: the effect may be that of both",
    ),
    "other_server": Meaning(
        "settings",
        "refuses",
        "other {differences:differences}",
        f"the servers differ in more than the arm: {{differences:differences}} {_OTHER}",
        "measure both alike, or declare the pair under `comparison.contrasts` with `differs: [{settings:list}]`",
    ),
    "other_connector": Meaning(
        "connector",
        "qualifies",
        "{connector} ran",
        "{side:whose} is called after another connector than {connector}, which ran",
    ),
    # What keeps from a verdict and is no input of it.
    "no_baseline": Meaning(
        "", "refuses", why="its baseline was not measured, or is not unique"
    ),
    "single_run": Meaning("", "refuses", why="single run"),
    "few_runs": Meaning(
        "",
        "refuses",
        why=f"{{usable}} of {{blocks}} runs usable in both cells, {MIN_RUNS} needed{{left_out:after}}",
    ),
    "no_common_value": Meaning(
        "", "refuses", why="no run has a value in both cells{left_out:after}"
    ),
    "no_common_level": Meaning(
        "", "refuses", why="the level was not measured in both cells"
    ),
    "past_the_peak": Meaning(
        "",
        "refuses",
        why="fewer requests were in flight than asked for, at a level above the cell's peak, where fewer deliver more",
        remedy="compare at a lower level, or give the load generator more processors",
    ),
    "goodput_unknown": Meaning(
        "",
        "refuses",
        why="goodput is unknown for one of the two: it was not measured, or its report kept no requests",
    ),
    "limits_never_met": Meaning(
        "",
        "refuses",
        why="nothing met the limits in either",
        remedy="use looser limits or a lower level",
    ),
    "replicate": Meaning(
        "",
        "refuses",
        why="same configuration as the cell it is compared with: a replicate, its difference is noise",
    ),
    "undeclared": Meaning("", "refuses", why="not declared as a contrast"),
    "unsteady_windows": Meaning(
        "",
        "refuses",
        why="within a window the rate of tokens changed ({windows:windows}), so that the difference may be off by"
        " {bound_ln:gain}, which is as much as it is",
        remedy=f"measure with {_QUIETER}",
    ),
    "peaks_not_judged": Meaning(
        "", "refuses", why="peaks at levels that differ are described, not judged"
    ),
    # The grounds of a verdict, or of none.
    "spread_unknown": Meaning("", "refuses", why="the spread between runs is unknown"),
    "within_margin": Meaning("", "sound", why="within +-{margin:percent} (TOST)"),
    "more_runs": Meaning(
        "", "unknown", why="{runs:runs} runs would show {shows:shows} at this spread"
    ),
    "missing_load": Meaning(
        "",
        "unknown",
        why="the missing load may matter more than the difference: neither a difference nor equality is shown",
    ),
    "not_shown": Meaning("", "refuses", why="{what} is not shown"),
    "many_failed": Meaning(
        "",
        "refuses",
        why=f"more than {100 * MOST_FAILED:g} % of the runs failed, and the others speak too well of their cell",
    ),
    "other_inputs": Meaning(
        "", "refuses", why="equality is not shown where {inputs:and} differ"
    ),
    "idle": Meaning(
        "",
        "sound",
        why="by its own counters the arm served next to nothing at this level",
    ),
    "better_though_idle": Meaning(
        "",
        "refuses",
        why="it measured better, but the tier cannot be why",
        remedy="see what else differs",
    ),
    "no_cost": Meaning("", "refuses", why="what it costs has no verdict"),
    "starved": Meaning(
        "",
        "qualifies",
        why=f"fewer requests in flight than asked for, by {{arm:percent}} in the arm, {{reference:percent}} {_OTHER}",
    ),
    "none_met": Meaning(
        "",
        "qualifies",
        why="nothing met the limits in {arm} of {runs} runs of the arm, and in {reference} of {runs} runs of the cell it"
        " is compared with, which counts as half a request",
    ),
}
"""Code -> what it means; all there are."""
