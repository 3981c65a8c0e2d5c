"""Find the level of peak throughput with few levels: climb in steps of a constant ratio, then close in on the best.

Pure and without a state of its own: what to try next follows from what was tried, so that a search that was interrupted
goes on where it stopped, and the same results always lead to the same levels. The refinement is the golden-section
search (Kiefer 1953) on the logarithm of the level, because what matters of a level is its ratio to the next one.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from kveval.load.workload import PeakSearch

_GOLDEN = (3 - math.sqrt(5)) / 2
# The share of the budget that the climb may take.
_CLIMBING_SHARE = 0.5
_LEAST_RATIO = 2.0

Ending = Literal["resolution", "budget", "unfinished"]


@dataclass(frozen=True)
class SearchResult:
    """The findings of a search: the peak's level, the tried ones on its sides (None: there is none), and why it ended.

    A peak at `start` has nothing below, one at `stop` nothing above.
    """

    peak: int
    below: int | None
    above: int | None
    ending: Ending


def next_level(search: PeakSearch, throughput_tok_s: Mapping[int, float]) -> int | None:
    """Return the level to try next, None when the search is over.

    `throughput_tok_s`: delivered throughput of every level tried so far, 0 where nothing was delivered.
    """
    if not throughput_tok_s:
        return search.start
    if len(throughput_tok_s) >= search.budget:
        return None
    peak, below, above = _around(search, throughput_tok_s)
    top = max(throughput_tok_s)
    if above is None and top < search.stop:
        return min(search.stop, max(top + 1, round(top * _ratio(search))))
    gaps = _open_gaps(search, below, peak, above)
    if not gaps:
        return None
    low, high = max(gaps, key=lambda gap: gap[1] / gap[0])
    # Nearer to the peak, so that what is left on either side keeps its proportion.
    share = _GOLDEN if low == peak else 1 - _GOLDEN
    return min(high - 1, max(low + 1, round(low * math.pow(high / low, share))))


def outcome(search: PeakSearch, throughput_tok_s: Mapping[int, float]) -> SearchResult:
    """Return what is known after these levels. Raises ValueError when none was tried."""
    if not throughput_tok_s:
        raise ValueError("nothing was tried")
    peak, below, above = _around(search, throughput_tok_s)
    ending: Ending = "unfinished"
    if next_level(search, throughput_tok_s) is None:
        closed = not _open_gaps(search, below, peak, above)
        ending = (
            "resolution"
            if closed and (above is not None or peak == search.stop)
            else "budget"
        )
    return SearchResult(peak, below, above, ending)


def levels_to_freeze(
    search: PeakSearch, throughput_tok_s: Mapping[int, float]
) -> tuple[int, ...]:
    """Choose from the levels that were tried those at which every arm is measured, at most the search's `keep`.

    The peak and its neighbours, the ends, then what splits the widest remaining ratio: so an arm that moves the
    peak, up or down, is seen to do so.
    """
    result = outcome(search, throughput_tok_s)
    tried = sorted(throughput_tok_s)
    preferred = dict.fromkeys(
        level
        for level in (result.peak, result.above, result.below, tried[0], tried[-1])
        if level is not None
    )
    chosen = list(preferred)[: search.keep]
    while len(chosen) < min(search.keep, len(tried)):
        left = [level for level in tried if level not in chosen]
        chosen.append(
            max(
                left,
                key=lambda level: min(abs(math.log(level / other)) for other in chosen),
            )
        )
    return tuple(sorted(chosen))


def _ratio(search: PeakSearch) -> float:
    """Ratio of one level of the climb to the one before."""
    steps = max(1, math.floor(search.budget * _CLIMBING_SHARE))
    return max(_LEAST_RATIO, math.pow(search.stop / search.start, 1 / steps))


def _around(
    search: PeakSearch, throughput_tok_s: Mapping[int, float]
) -> tuple[int, int | None, int | None]:
    """The lowest level as good as the best, and the tried ones below and above it."""
    best = max(throughput_tok_s.values())
    tried = sorted(throughput_tok_s)
    place = next(
        i
        for i, level in enumerate(tried)
        if throughput_tok_s[level] >= best * (1 - search.noise)
    )
    below = tried[place - 1] if place > 0 else None
    above = tried[place + 1] if place + 1 < len(tried) else None
    return tried[place], below, above


def _open_gaps(
    search: PeakSearch, below: int | None, peak: int, above: int | None
) -> list[tuple[int, int]]:
    """The gaps beside the peak in which a whole level lies, and that are wider than what is asked for."""
    gaps = ([(below, peak)] if below is not None else []) + (
        [(peak, above)] if above is not None else []
    )
    return [
        (low, high)
        for low, high in gaps
        if high - low > 1 and high / low > 1 + search.resolution
    ]
