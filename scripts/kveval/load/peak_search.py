"""Find the level of peak throughput with few levels: climb in steps of a constant ratio, then close in on the best.

Pure and without a state of its own: what to try next follows from what was tried, so that a search that was interrupted
goes on where it stopped, and the same results always lead to the same levels. The refinement is the golden-section
search (Kiefer 1953) on the logarithm of the level, because what matters of a level is its ratio to the next one.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

_GOLDEN = (3 - math.sqrt(5)) / 2
# The share of the budget that the climb may take.
_CLIMBING_SHARE = 0.5
_LEAST_RATIO = 2.0

Ending = Literal["resolution", "budget", "unfinished"]


@dataclass(frozen=True)
class Search:
    """The range of a search: whole levels from `start` to `stop`, at most `budget` of them.

    `resolution`: how close to the peak its tried neighbours have to be, as a ratio minus one (0.1: 10 %); `noise`: the
    relative difference of throughputs that counts as none, so that the lowest level of a plateau is the peak.
    """

    start: int
    stop: int
    resolution: float
    budget: int
    noise: float = 0.02

    def __post_init__(self) -> None:
        """Refuse what could never end or never find anything. Raises ValueError."""
        if not 1 <= self.start < self.stop:
            raise ValueError(f"a search goes from a level of at least 1 up, not from {self.start} to {self.stop}")
        if self.resolution <= 0:
            raise ValueError(f"resolution {self.resolution} is not above 0")
        if self.budget < 3:
            raise ValueError(f"a budget of {self.budget} levels cannot bracket a peak, which takes 3")
        if not 0 <= self.noise < 1:
            raise ValueError(f"noise {self.noise} is not from 0 to below 1")

    @property
    def ratio(self) -> float:
        """Ratio of one level of the climb to the one before."""
        steps = max(1, math.floor(self.budget * _CLIMBING_SHARE))
        return max(_LEAST_RATIO, math.pow(self.stop / self.start, 1 / steps))


@dataclass(frozen=True)
class SearchResult:
    """The findings of a search: the peak's level, the tried ones on its sides (None: there is none), and why it ended.

    The peak is bracketed when a higher level was tried and did not deliver more; a peak at `start` has nothing below.
    """

    peak: int
    below: int | None
    above: int | None
    ending: Ending

    @property
    def bracketed(self) -> bool:
        """Whether a level above the peak was tried."""
        return self.above is not None


def next_level(search: Search, throughput_tok_s: Mapping[int, float]) -> int | None:
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
        return min(search.stop, max(top + 1, round(top * search.ratio)))
    gaps = [gap for gap in ((below, peak), (peak, above)) if _open(search, gap)]
    if not gaps:
        return None
    low, high = max(gaps, key=_width)
    assert low is not None and high is not None
    # Nearer to the peak, so that what is left on either side keeps its proportion.
    share = _GOLDEN if low == peak else 1 - _GOLDEN
    return min(high - 1, max(low + 1, round(low * math.pow(high / low, share))))


def outcome(search: Search, throughput_tok_s: Mapping[int, float]) -> SearchResult:
    """Return what is known after these levels. Raises ValueError when none was tried."""
    if not throughput_tok_s:
        raise ValueError("nothing was tried")
    peak, below, above = _around(search, throughput_tok_s)
    ending: Ending = "unfinished"
    if next_level(search, throughput_tok_s) is None:
        closed = not any(_open(search, gap) for gap in ((below, peak), (peak, above)))
        ending = "resolution" if closed and (above is not None or peak == search.stop) else "budget"
    return SearchResult(peak, below, above, ending)


def levels_to_freeze(search: Search, throughput_tok_s: Mapping[int, float], keep: int) -> tuple[int, ...]:
    """Choose from the levels that were tried those at which every arm is measured, at most `keep` (at least 3).

    The peak and its neighbours, the ends, then what splits the widest remaining ratio: so an arm that moves the
    peak, up or down, is seen to do so.
    """
    found = outcome(search, throughput_tok_s)
    tried = sorted(throughput_tok_s)
    wanted = dict.fromkeys(
        level for level in (found.peak, found.above, found.below, tried[0], tried[-1]) if level is not None
    )
    chosen = list(wanted)[: max(keep, 3)]
    while len(chosen) < min(keep, len(tried)):
        left = [level for level in tried if level not in chosen]
        chosen.append(max(left, key=lambda level: _clearance(level, chosen)))
    return tuple(sorted(chosen))


def _around(search: Search, throughput_tok_s: Mapping[int, float]) -> tuple[int, int | None, int | None]:
    """The lowest level as good as the best, and the tried ones below and above it."""
    best = max(throughput_tok_s.values())
    tried = sorted(throughput_tok_s)
    place = next(i for i, level in enumerate(tried) if throughput_tok_s[level] >= best * (1 - search.noise))
    below = tried[place - 1] if place > 0 else None
    above = tried[place + 1] if place + 1 < len(tried) else None
    return tried[place], below, above


def _open(search: Search, gap: tuple[int | None, int | None]) -> bool:
    """Whether a whole level lies in the gap, and the gap is wider than what is asked for."""
    low, high = gap
    return low is not None and high is not None and high - low > 1 and high / low > 1 + search.resolution


def _width(gap: tuple[int | None, int | None]) -> float:
    low, high = gap
    assert low is not None and high is not None
    return high / low


def _clearance(level: int, chosen: Iterable[int]) -> float:
    return min(abs(math.log(level / other)) for other in chosen)
