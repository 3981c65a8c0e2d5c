"""Whether both sides of a comparison did the same work, by the declared workload and by the observed requests."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from kveval.analysis.statistics.evidence import Evidence, Rows, Sides, number

COLUMNS = (
    *("workload", "strategy", "guidellm_version", "incomplete_share"),
    *("request_prompt_tokens", "request_prompt_tokens_se", "request_output_tokens", "request_output_tokens_se"),
)
"""Columns of a level that describe its work, besides counts of requests and their rate."""
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
            _mean(rows, f"request_{name}_tokens") for rows in (sides.arm, sides.reference)
        )
        limit = math.log1p(_MARGIN) + _ERRORS * math.hypot(our_error, their_error) + our_loss + their_loss
        if ours > 0 and theirs > 0 and abs(math.log(ours / theirs)) > limit:
            yield f"{words} of a request {ours:,.4g} against {theirs:,.4g}"


def _mean(rows: Rows, column: str) -> tuple[float, float, float]:
    """The mean over runs, its relative standard error, and how far cut-off requests may have moved it."""
    means, errors = (np.array([number(row, name) for row in rows]) for name in (column, f"{column}_se"))
    counts, cut = (np.array([number(row, name) for row in rows]) for name in ("requests_completed", "incomplete_share"))
    spread = errors * np.sqrt(counts)
    with np.errstate(divide="ignore", invalid="ignore"):
        lost = np.where(spread > 0, spread * np.sqrt(cut / (1 - cut)), 0.0 * spread)
    return float(means.mean()), float(np.sqrt((errors**2).sum())) / len(rows), float(lost.mean())
