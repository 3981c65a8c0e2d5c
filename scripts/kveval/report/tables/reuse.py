"""The report's tables of what was computed beside what was measured: hit shares, and the gain from tiers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from kveval.analysis.cells import THROUGHPUT
from kveval.analysis.reuse import TOLERANCE_POINTS, ServedShare, served_shares
from kveval.campaign.cell import Cell
from kveval.report.data import numbers as numerals
from kveval.report.data.campaign import Measured, ReportPlan, Table
from kveval.report.data.comparisons import effect_text
from kveval.report.result.model import CampaignResult
from kveval.report.tables.results import level_unit_of

_FINDING = f"beyond {TOLERANCE_POINTS:g} points: what the counters show"
# Ranges narrower than the first are shown as one number; counts beyond the others are mentioned.
_ALIKE = 0.05
_MUCH_IN_PROGRESS = 25.0
_SAME_TOKENS = 2.0


def reuse_table(plan: ReportPlan, measured: Measured) -> Table:
    """Return a row per cell and level with a prediction, means over runs."""
    shares: dict[Cell, list[ServedShare]] = {}
    for share in served_shares(measured.levels, measured.runs):
        shares.setdefault(share.cell, []).append(share)
    rows = []
    for cell in plan.ordered_cells:
        for share in sorted(shares.get(cell, ()), key=lambda share: share.level):
            row = [cell.model, cell.label, f"{share.level}"]
            row += [text(share) for text in _COLUMNS.values()]
            cause = likely_cause(clues_to(share)) if share.is_finding else ""
            rows.append([*row, cause])
    header = [
        "model",
        "arm",
        measured.level_unit.heading,
        *_COLUMNS,
        _FINDING,
    ]
    numbers = frozenset(range(len(header) - 1 - len(_COLUMNS), len(header) - 1))
    return Table(header, rows, numbers).without_blank_columns()


# The name of a clue -> its words.
_CLUES: Mapping[str, str] = {
    "preempted": "{:,.0f} preempted requests, which looked up their tokens again",
    "failed": "{:,.0f} stores or loads failed",
    "unfinished": "{:,.0f} stores unfinished at the level's end",
    "not_stored_percent": "{:.0f} % of the number of prompt tokens was computed but not stored",
    "evicted": "LMCache dropped {:,.0f} chunks",
    "in_progress_percent": "requests in progress took up to {:.0f} % of the device",
    "one_request_points": "few requests: each is {:.1f} points",
    "asked_percent": "the caches were asked for {:.0f} % of the tokens sent",
    "lengths_vary": "lengths vary, and the computation uses their means",
}


def clues_to(share: ServedShare) -> dict[str, float]:
    """Return what may explain the difference between computed and found tokens, a name of `share.clues` -> its number.

    `lengths_vary`, which has no number, is 1.
    """
    counted = {**share.clues, "lengths_vary": 1.0}
    counted["in_progress_percent"] = min(counted["in_progress_percent"], 100.0)
    few_requests = max(TOLERANCE_POINTS, abs(share.difference) / 2)
    not_stored = counted["not_stored_percent"] > TOLERANCE_POINTS
    explains = {
        "preempted": counted["preempted"] > 0,
        "failed": counted["failed"] > 0,
        "unfinished": counted["unfinished"] > 0,
        "not_stored_percent": bool(share.tier_blocks) and not_stored,
        "evicted": counted["evicted"] > 0,
        "in_progress_percent": counted["in_progress_percent"] > _MUCH_IN_PROGRESS,
        "one_request_points": counted["one_request_points"] > few_requests,
        "asked_percent": abs(counted["asked_percent"] - 100) > _SAME_TOKENS,
        "lengths_vary": share.lengths_vary,
    }
    return {name: counted[name] for name, does in explains.items() if does}


def likely_cause(clues: Mapping[str, float]) -> str:
    """Return the clues of `clues_to` in words, or that there are none."""
    texts = [_CLUES[name].format(number) for name, number in clues.items()]
    if not texts:
        return "nothing that was counted explains it: a finding about the server"
    return "; ".join(texts)


def _range(low: float, high: float) -> str:
    return f"{high:.1f}" if high - low < _ALIKE else f"{low:.1f} to {high:.1f}"


def _difference(share: ServedShare) -> str:
    return numerals.points(
        share.difference,
        share.difference - share.half_width,
        share.difference + share.half_width,
    )


_COLUMNS: Mapping[str, Callable[[ServedShare], str]] = {
    "device, computed %": lambda one: f"{one.device_predicted:.1f}",
    "device, found %": lambda one: f"{one.device_measured:.1f}",
    "device and tier, computed %": lambda one: (
        _range(*one.predicted) if one.tier_blocks else ""
    ),
    "device and tier, found %": lambda one: (
        f"{one.measured:.1f}" if one.tier_blocks else ""
    ),
    "found minus computed, points": _difference,
}


_HEADER = (
    *(
        "model",
        "arm",
        "throughput, predicted change (9 of 10 simulations)",
        "measured change (95 %)",
    ),
    *("mean TTFT, predicted, ms (9 of 10)", "measured, ms"),
)


def predicted_table(result: CampaignResult) -> Table:
    """Return a row for each cell with a tier whose gain was predicted, at the level where its model is compared."""
    compared = result.with_baselines(THROUGHPUT)
    rows = []
    for gain in result.predictions:
        comparison = compared.get(gain.cell)
        ttft_ms = result.by_cell[gain.cell].values(gain.level, "ttft_ms_mean")
        rows.append(
            [
                *(gain.model, gain.label),
                numerals.effect(*gain.throughput_percent.numbers),
                effect_text(comparison.row) if comparison else numerals.MISSING,
                numerals.with_interval(*gain.ttft_ms_mean.numbers),
                numerals.mean_of(ttft_ms),
            ]
        )
    return Table(_HEADER, rows, frozenset(range(2, 6)))


def memory_sentences(result: CampaignResult) -> Iterator[str]:
    """Yield a sentence per model on the host memory that a tier needs for this load."""
    for model, needed in result.tiers_needed.items():
        at = level_unit_of(result).in_sentence([needed.level])
        yield f"{model}: at {at}, {needed.size} of host memory add 90 % of what a tier of any size adds."
