"""The report's table of one request: what it takes computed, from the device's cache, and from the tier."""

from __future__ import annotations

import math
from collections.abc import Iterator

from kveval.campaign.cell import Cell
from kveval.report.data import numbers as numerals
from kveval.report.data.arm_links import arm_link
from kveval.report.data.campaign import Table
from kveval.report.result.model import CampaignResult, ReportedTimes, or_nan

_FROM = {
    "cold": "computed",
    "device": "from the device's cache",
    "tier": "from the tier",
}
_HEADER = (
    *("model", "arm", "prompt, tokens", "cold, ms", "from the device, ms"),
    *("from the tier, ms", "tokens from the tier", "cold / tier"),
)
_NOT_TIMED = "not timed"
# Of an arm without a tier: its tokens, and the factor.
_NONE = ("", "")


def one_request_table(result: CampaignResult) -> Table:
    """Return a row per cell that was measured: medians with the least and the most; no rows if no run has times."""
    by_cell = _times_by_cell(result)
    if not by_cell:
        return Table(_HEADER, [])
    rows = []
    for cell, reported in result.by_cell.items():
        if not reported.runs:
            continue
        if cell not in by_cell:
            rows.append([cell.model, arm_link(cell), "", _NOT_TIMED, *[""] * 4])
            continue
        by_source = by_cell[cell]
        cold, tier = by_source["cold"], by_source.get("tier")
        rows.append(
            [
                *(cell.model, arm_link(cell), _tokens(cold.prompt_tokens)),
                *(_time(by_source.get(source)) for source in _FROM),
                *(
                    [_tokens(tier.served_tokens), _factor(cold, tier)]
                    if tier
                    else _NONE
                ),
            ]
        )
    return Table(_HEADER, rows, frozenset(range(2, 8))).without_blank_columns()


def one_request_sentences(result: CampaignResult) -> Iterator[str]:
    """Yield a sentence for each arm whose tier does not save time, and one for each time that is missing."""
    by_cell = _times_by_cell(result)
    for cell in result.by_cell:
        by_source = by_cell.get(cell, {})
        name = _name(result, cell)
        if "tier" in by_source:
            yield from _slow_tier(name, by_source["cold"], by_source["tier"])
        for source, times in by_source.items():
            if times.reason:
                yield f"{name}, {_FROM[source]}: {times.reason}."


def waypoints(result: CampaignResult) -> str:
    """Return what the requests went through, "" for nothing: its time is in theirs."""
    return next((times.through for times in result.one_request if times.through), "")


def _times_by_cell(result: CampaignResult) -> dict[Cell, dict[str, ReportedTimes]]:
    """Return the times of one request by cell and source."""
    by_cell: dict[Cell, dict[str, ReportedTimes]] = {}
    for times in result.one_request:
        by_cell.setdefault(times.cell, {})[times.source] = times
    return by_cell


def _name(result: CampaignResult, cell: Cell) -> str:
    """Return the name of a cell, with the model if there are several."""
    several = len(result.common_levels) > 1
    return f"{cell.model}, {arm_link(cell)}" if several else arm_link(cell)


def _slow_tier(name: str, cold: ReportedTimes, tier: ReportedTimes) -> Iterator[str]:
    """Yield that loading takes longer than computing, or is not shown to take less time."""
    computed, _, most = _ends(cold)
    loaded, least, _ = _ends(tier)
    if math.isnan(computed) or math.isnan(loaded):
        return
    tokens = f"{_tokens(tier.served_tokens)} tokens"
    if least > most:
        yield f"{name}: loading {tokens} from the tier takes longer than computing them."
    elif loaded >= computed:
        yield f"{name}: loading {tokens} from the tier was not faster than computing them."


def _ends(times: ReportedTimes) -> tuple[float, float, float]:
    """The median, the least and the most of times to the first token, ms; NaN for what is not known."""
    of_ends = times.ttft_ms
    return or_nan(of_ends["median"]), or_nan(of_ends["least"]), or_nan(of_ends["most"])


def _time(times: ReportedTimes | None) -> str:
    """Return a time to the first token with the least and the most; blank for an arm without the source."""
    return "" if times is None else numerals.with_interval(*_ends(times))


def _tokens(tokens: int | None) -> str:
    return "" if tokens is None else numerals.count(tokens)


def _factor(cold: ReportedTimes, tier: ReportedTimes) -> str:
    """Return how many times as long computing takes as loading; blank where one of the times is missing."""
    ratio = _ends(cold)[0] / _ends(tier)[0]
    return "" if math.isnan(ratio) else numerals.significant(ratio)
