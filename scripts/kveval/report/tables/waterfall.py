"""The report's waterfall of hits: what came before, what the caches hold, find and deliver, and where most is lost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kveval.campaign.size import Size
from kveval.report.data import numbers as numerals
from kveval.report.data.arm_links import arm_link
from kveval.report.data.campaign import Table
from kveval.report.data.hits import Leak
from kveval.report.result.model import CampaignResult, ReportedLeak, ReportedStage
from kveval.report.tables.reuse import likely_cause
from kveval.tables.system.failed_transfers import FAILED_TRANSFERS

_STAGES: Mapping[str, str] = {
    "offered": "came before, %",
    "held": "caches can hold, %",
    "routed": "on the server asked, %",
    "found": "found, %",
    "delivered": "delivered, %",
}
STAGE_WORDS: Mapping[str, str] = {
    "prompts": "all prompt tokens",
    "offered": "what came before",
    "held": "what the caches can hold",
    "routed": "what the server asked can hold",
    "found": "what was found",
    "delivered": "what was delivered",
}
_SAVED = "prefill saved, s a run"


def waterfall_table(result: CampaignResult) -> Table:
    """Return a row per cell: its stages in per cent of the prompt tokens, and the seconds saved.

    No rows where nothing is known of any cell but what was found.
    """
    header = ["model", "arm", *_STAGES.values(), _SAVED]
    rows = []
    for leak in _leaks(result):
        stages = [_percent_text(leak.stages.get(name)) for name in _STAGES]
        seconds = _seconds_text(leak.saved_s)
        rows.append([leak.model, arm_link(leak), *stages, seconds])
    if not rows:
        return Table(header, [])
    numbers = frozenset(range(2, len(header)))
    return Table(header, rows, numbers).without_blank_columns()


def leak_sentences(result: CampaignResult) -> Iterator[str]:
    """Yield a sentence per cell that has a row: where most of its hits are lost, and what to do."""
    several = len(result.common_levels) > 1
    for each in _leaks(result):
        arm = arm_link(each)
        name = f"{each.model}, {arm}" if several else arm
        leak = Leak(each.code, each.stage, each.facts)
        yield f"{name}: {leak_sentence(leak, each.clues)}."


def _leaks(result: CampaignResult) -> list[ReportedLeak]:
    """The leaks in the order of every table; none where no more is known than what was found."""
    if all(leak.code == "unknown" for leak in result.leaks):
        return []
    leaks = {leak.cell: leak for leak in result.leaks}
    return [leaks[cell] for cell in result.by_cell if cell in leaks]


def _percent_text(stage: ReportedStage | None) -> str:
    """Return a stage in per cent; "" where it is not known, in bold where it has more than the stage before."""
    if stage is None or stage.percent_of_prompts is None:
        return ""
    text = f"{stage.percent_of_prompts:.1f}"
    return text if stage.excess_points is None else f"**{text}**"


def _seconds_text(seconds: float | None) -> str:
    return "" if seconds is None else numerals.significant(seconds, 3)


# See `clues_to`; None where nothing was computed.
Clues = Mapping[str, float] | None


def leak_sentence(leak: Leak, clues: Clues = None) -> str:
    """Return where a cell loses most of its hits, and the remedy; `clues`: what may explain what was not found."""
    facts = {
        name: value if isinstance(value, (str, dict)) else _number(value)
        for name, value in leak.facts.items()
    }
    return _SENTENCES[leak.code](leak, facts, clues)


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


Facts = Mapping[str, Any]
# What the most frequent failed transfer asks for.
_ROOM = "a larger tier in host memory has room for them"
_REMEDIES = {
    "stores_dropped": "a faster tier behind host memory takes them",
    "stores_skipped": "store at the first request, not after several",
    "store_allocations_failed": _ROOM,
    "promotion_allocations_failed": _ROOM,
    "lmcache_mp_l1_allocation_failure_chunks_total": _ROOM,
}


def _unknown(leak: Leak, facts: Facts, _: Clues) -> str:
    if leak.stage == "found":
        return "not known: what the servers found was not counted"
    reason = facts["reason"] or "what came before was not computed"
    return f"not known: {reason}"


def _contradiction(leak: Leak, facts: Facts, clues: Clues) -> str:
    before = STAGE_WORDS[str(facts["before"])]
    text = (
        f"{STAGE_WORDS[leak.stage]}, {facts['percent']:.0f} %, is more than {before}, {facts['before_percent']:.0f} %:"
        " one of the two is wrong"
    )
    cause = "" if clues is None else f"; counted: {likely_cause(clues)}"
    return f"{text}{cause}"


def _nothing_offered(_: Leak, facts: Facts, __: Clues) -> str:
    offered = facts["offered_percent"]
    return f"only {offered:.1f} % of the prompt tokens came before: no cache can help this load"


def _no_tier(_: Leak, facts: Facts, __: Clues) -> str:
    return (
        f"the device's cache, {_tokens(facts['device_tokens'])}, holds {_part(facts)}:"
        " the rest needs a tier behind it"
    )


def _mirrors(_: Leak, facts: Facts, __: Clues) -> str:
    larger = _needed(facts)
    advice = f": make it {larger}" if larger else ": make it larger than that"
    return (
        f"the tier, {_tokens(facts['tier_tokens'])}, mirrors the device's cache, {_tokens(facts['device_tokens'])}"
        f"{advice}"
    )


def _too_small(_: Leak, facts: Facts, __: Clues) -> str:
    larger = _needed(facts)
    advice = (
        f"; a tier of {larger} would hold nine tenths of the rest" if larger else ""
    )
    return f"device and tier hold {_part(facts)}{advice}"


def _no_size(_: Leak, facts: Facts, __: Clues) -> str:
    return (
        f"device and tier hold {_part(facts)}, and no size of the tier adds to it: it serves whole chunks of a prompt,"
        " smaller ones would serve more"
    )


def _routing(_: Leak, facts: Facts, __: Clues) -> str:
    return (
        f"{facts['lost_points']:.0f} points are in the cache of another of the {facts['servers']:.0f} servers:"
        " route requests by their prefix or session"
    )


def _idle(_: Leak, facts: Facts, __: Clues) -> str:
    return (
        f"the tier should add {facts['expected_points']:.0f} points and served nothing:"
        " see [whether it was active](#was-the-arm-active)"
    )


def _failed(leak: Leak, facts: Facts, _: Clues) -> str:
    counts = facts["failed"]
    listed = "; ".join(
        f"{count:,.0f} {FAILED_TRANSFERS[name]}" for name, count in counts.items()
    )
    remedy = _REMEDIES.get(max(counts, key=counts.get), "the server's log has why")
    return f"{facts['lost_points']:.0f} points were lost before they were {leak.stage}, with {listed}: {remedy}"


def _not_found(_: Leak, facts: Facts, clues: Clues) -> str:
    cause = "" if clues is None else f": {likely_cause(clues)}"
    return f"{facts['lost_points']:.0f} points should have been held and were not found{cause}"


def _not_delivered(_: Leak, facts: Facts, __: Clues) -> str:
    return (
        f"{facts['lost_points']:.0f} points were found and not delivered:"
        " the server's log has the loads that it gave up"
    )


def _device_serves_all(_: Leak, facts: Facts, __: Clues) -> str:
    return (
        f"the device's cache alone holds {facts['device_percent']:.0f} of the {facts['offered_percent']:.0f} %"
        " that came before: a tier has nothing to add"
    )


def _loading_slower(_: Leak, facts: Facts, __: Clues) -> str:
    return (
        f"{facts['percent']:.1f} % of the prompt tokens were hits, and a prompt takes as long from the tier as computed:"
        " only a faster tier or longer prompts gain"
    )


def _decoding(_: Leak, facts: Facts, __: Clues) -> str:
    return (
        f"{facts['percent']:.1f} % of the prompt tokens were hits, with {facts['throughput_percent']:+.0f} % of"
        " throughput: decoding is"
        f" {facts['decoding_percent']:.0f} % of a request's time, which no cache shortens"
    )


def _none(_: Leak, facts: Facts, __: Clues) -> str:
    return f"nothing: {facts['percent']:.0f} of the {facts['offered_percent']:.0f} % that came before were served"


_SENTENCES: Mapping[str, Callable[[Leak, Facts, Clues], str]] = {
    "unknown": _unknown,
    "contradiction": _contradiction,
    "nothing_offered": _nothing_offered,
    "no_tier": _no_tier,
    "tier_mirrors_device": _mirrors,
    "caches_too_small": _too_small,
    "no_size_helps": _no_size,
    "routing": _routing,
    "tier_idle": _idle,
    "transfers_failed": _failed,
    "not_found": _not_found,
    "not_delivered": _not_delivered,
    "device_serves_all": _device_serves_all,
    "loading_slower": _loading_slower,
    "decoding": _decoding,
    "none": _none,
}


def _part(facts: Facts) -> str:
    return f"{facts['percent']:.0f} of the {facts['offered_percent']:.0f} % that came before"


def _tokens(tokens: Any) -> str:
    return f"{tokens:,.0f} tokens"


def _needed(facts: Facts) -> str:
    """Return the size of a tier that would serve most of what is lost; "" where it is not known."""
    blocks, size_bytes = facts["needed_blocks"], facts["needed_bytes"]
    if math.isnan(blocks):
        return ""
    if math.isnan(size_bytes):
        return f"{blocks:,.0f} blocks"
    return str(Size(round(blocks), round(size_bytes)))
