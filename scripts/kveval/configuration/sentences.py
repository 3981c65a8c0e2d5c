"""The words of the findings on a campaign: by code what will not show what it seems to, and what is to be changed."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kveval.campaign.sizing import memory_text
from kveval.host.findings import Finding

Facts = Mapping[str, Any]


class Words(NamedTuple):
    """A finding in words: what was found, and what is to be changed, "" for nothing."""

    what: str
    fix: str = ""


def words_of(finding: Finding) -> Words:
    """Return the words of a finding on a campaign. Raises KeyError for a code without words."""
    facts = finding.facts
    if finding.code in _NOTES:
        return Words(_filled(_NOTES[finding.code], facts))
    if finding.code in _IDLE:
        return _idle(finding)
    arms = ", ".join(facts["arms"])
    what, fix = (_filled(words, facts) for words in _UNSERVED[finding.code])
    return Words(
        f"the tier of {arms} stores and never loads with {facts['model']}: {what}", fix
    )


def sentence(finding: Finding) -> str:
    """Return a finding on a campaign as one line, with what is to be changed."""
    what, fix = words_of(finding)
    return f"{what}; {fix}" if fix else what


# A text with places for facts, or a function of them.
_Template = str | Callable[[Facts], str]


def _filled(words: _Template, facts: Facts) -> str:
    return words(facts) if callable(words) else words.format_map(facts)


def _configured_alike(facts: Facts) -> str:
    cells = " and ".join(facts["cells"])
    return f"{cells} are configured alike: a difference is noise"


def _other_image(facts: Facts) -> str:
    own, baseline = facts["images"]
    return f"{facts['cell']} runs {own}, its baseline {baseline}: their comparison is confounded"


_NOTES: Mapping[str, _Template] = {
    "working_set_grows": (
        "workload {workload}: the working set grows with the level, so levels differ in two ways"
    ),
    "few_samples": (
        "workload {workload}: a window of {window_s:g} s holds fewer than min_samples ({min_samples}) of the recording"
        " at one a second: its system metrics will be n/a"
    ),
    "baseline_unlisted": "{scenario} is compared with {baseline}, which the matrix does not list",
    "blocks_uneven": (
        "cpu_blocks {cpu_blocks} are not a whole number of server blocks of {block_tokens} tokens; the rest stays unused"
    ),
    "few_runs": "runs is {runs}: a verdict needs {needed_runs} or more, five to show parity",
    "configured_alike": _configured_alike,
    "other_image": _other_image,
    "one_replica": "{scenario} routes between replicas, and there is one: it cannot differ from its baseline",
    "connections_spread": (
        "{scenario} has {replicas} replicas behind a Service, which spreads connections, not requests: use address:"
        " router"
    ),
    "tier_too_large": "{model}: one server has a tier of {size} in host memory: more than servers have",
}


def _idle(finding: Finding) -> Words:
    """Return the words for arms whose tier can save next to nothing."""
    facts = finding.facts
    if "device_tokens" in facts:
        facts = {**facts, "device": _device(facts)}
    what, fix = (_filled(words, facts) for words in _IDLE[finding.code])
    pair = f"{', '.join(facts['scenarios'])} and {facts['baseline']} on {', '.join(facts['models'])}"
    aside = " (preempted requests aside)" if facts["overflows"] else ""
    return Words(
        f"this campaign cannot show a difference between {pair}, apart from what the tier costs: {what}{aside}",
        fix,
    )


def _device(facts: Facts) -> str:
    """The size of the device's cache in words."""
    if facts["device_known"]:
        return f"the device's {facts['device_tokens']:,}"
    return f"the {facts['device_tokens']:,} that the device holds at least"


def _more_prefixes(facts: Facts) -> str:
    fix = f"raise prefix_count to at least {facts['needed_prefixes']}"
    if facts["device_known"]:
        fix += f" or lower device_blocks to {facts['needed_device_blocks']}"
    return fix


# Of each code what is wrong, where `device` is the size of the device's cache in words, and what is to be changed.
_IDLE: Mapping[str, tuple[_Template, _Template]] = {
    "no_reuse": (
        "no prompt repeats anything of an earlier one",
        "give the workload prefix_tokens and prefix_count, or turns",
    ),
    "turns_fit": (
        "the {in_use_tokens:,} tokens of all conversations at once fit {device}",
        "higher levels or longer conversations",
    ),
    "prefixes_fit": (
        "the {working_set_tokens:,} tokens of all prefixes fit {device}",
        _more_prefixes,
    ),
    "tier_below_device": (
        "the tier's {tier_tokens:,} tokens are a copy of a part of {device}",
        "raise cpu_blocks above {device_blocks}; {working_set_blocks} hold all prefixes",
    ),
    "tier_adds_little": (
        "the tier's {tier_tokens:,} of the {working_set_tokens:,} tokens of all prefixes are little more than {device}",
        "raise cpu_blocks, {working_set_blocks} hold all prefixes, or lower prefix_count",
    ),
}


def _memory_for_rows(facts: Facts) -> str:
    return f"at least {memory_text(facts['needed_bytes'])}"


_UNSERVED: Mapping[str, tuple[_Template, _Template]] = {
    "rows_too_few": (
        "its {rows:,} rows are fewer than the {needed_rows:,} of one conversation",
        _memory_for_rows,
    ),
    "prefix_below_block": (
        "a shared prefix of {prefix_tokens:,} tokens is shorter than a block of {block_tokens:,} ({issue})",
        "longer prefixes, or {argument}",
    ),
    "windows_at_the_end": (
        "of {prefix_tokens:,} shared tokens it keeps windows or states at the end of each prompt alone ({issue})",
        "server.args: [{argument}, '{interval_tokens}']",
    ),
}

WORKLOAD_CODES = frozenset({*_IDLE, *_UNSERVED})
"""The codes of findings on arms that can have no effect with the workload."""
CODES = WORKLOAD_CODES | frozenset(_NOTES)
"""The codes of all findings on a campaign."""
