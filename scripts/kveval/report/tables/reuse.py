"""The report's tables of what was computed beside what was measured: hit shares, and the gain from tiers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from kveval.report.data import numbers as numerals
from kveval.report.data.arm_links import arm_link
from kveval.report.data.campaign import Table
from kveval.report.data.comparisons import effect_text
from kveval.report.data.hits import TOLERANCE_POINTS
from kveval.report.result.model import CampaignResult, ReportedReuse
from kveval.report.tables.results import level_unit_of
from kveval.tables.cells import THROUGHPUT

_FINDING = f"beyond {TOLERANCE_POINTS:g} points: what the counters show"
# Ranges narrower than this are shown as one number.
_ALIKE = 0.05


def reuse_table(result: CampaignResult) -> Table:
    """Return a row per cell and level with a prediction, means over runs."""
    rows = []
    for shares in result.reuse:
        row = [shares.model, arm_link(shares), f"{shares.level}"]
        row += [text(shares) for text in _COLUMNS.values()]
        rows.append([*row, likely_cause(shares.clues) if shares.is_finding else ""])
    header = [
        "model",
        "arm",
        level_unit_of(result).heading,
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


def likely_cause(clues: Mapping[str, float]) -> str:
    """Return the clues of `clues_to` in words, or that there are none."""
    texts = [_CLUES[name].format(number) for name, number in clues.items()]
    if not texts:
        return "nothing that was counted explains it: a finding about the server"
    return "; ".join(texts)


def _range(low: float, high: float) -> str:
    return f"{high:.1f}" if high - low < _ALIKE else f"{low:.1f} to {high:.1f}"


_COLUMNS: Mapping[str, Callable[[ReportedReuse], str]] = {
    "device, computed %": lambda one: f"{one.device_computed_percent:.1f}",
    "device, found %": lambda one: f"{one.device_found_percent:.1f}",
    "device and tier, computed %": lambda one: (
        _range(one.computed_percent_low, one.computed_percent_high)
        if one.has_tier
        else ""
    ),
    "device and tier, found %": lambda one: (
        f"{one.found_percent:.1f}" if one.has_tier else ""
    ),
    "found minus computed, points": lambda one: numerals.points(
        *one.difference_points.numbers
    ),
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
                *(gain.model, arm_link(gain)),
                numerals.effect(*gain.throughput_percent.numbers),
                effect_text(comparison.row) if comparison else numerals.MISSING,
                numerals.with_interval(*gain.ttft_ms_mean.numbers),
                numerals.mean_of(ttft_ms),
            ]
        )
    return Table(_HEADER, rows, frozenset(range(2, 6)))


def size_of_named(result: CampaignResult, model: str) -> str:
    """Return the tier needed for a model's load in GiB of the named model; "" where that is what was served."""
    needed = result.tiers_needed.get(model)
    token_bytes = result.kv_bytes_per_token.get(model)
    if needed is None or token_bytes is None:
        return ""
    named, served = token_bytes.named, token_bytes.served
    if not named or not served or named == served:
        return ""
    return f"{numerals.significant(needed.size.gib * named / served, 3)} GiB"


def memory_sentences(result: CampaignResult) -> Iterator[str]:
    """Yield a sentence per model on the host memory that a tier needs for this load."""
    for model, needed in result.tiers_needed.items():
        at = level_unit_of(result).in_sentence([needed.level])
        named = size_of_named(result, model)
        itself = (
            f" That is the miniature's; of {model} itself it is {named}."
            if named
            else ""
        )
        yield (
            f"{model}: at {at}, {needed.size} of host memory add 90 % of what a tier of any size adds.{itself}"
        )
