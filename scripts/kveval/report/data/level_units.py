"""Units of a campaign's levels, in words: people read "at 300 concurrent" or "at 600 requests/min"."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kveval.load.levels import axis_title, level_unit
from kveval.load.workload import PerLevel, Workload


@dataclass(frozen=True)
class LevelUnit:
    """The words for a level: `phrase` and `sentence` have a place for the level, `axis` is the title of an axis."""

    phrase: str = "{} concurrent"
    sentence: str = "{} concurrent requests"
    axis: str = "concurrent requests"

    @property
    def heading(self) -> str:
        """The title of a table's column of levels."""
        return f"at {self.label('N')}"

    def label(self, level: object) -> str:
        """Name a level in few words."""
        return self.phrase.format(level)

    def in_sentence(self, levels: Iterable[int]) -> str:
        """Name levels in a sentence."""
        return self.sentence.format(", ".join(map(str, levels)))


STREAMS = LevelUnit()
# The levels of a sweep are its strategies, in the order of their load; rates differ between servers.
_SWEEP = LevelUnit(
    "strategy {}", "strategy {} of the sweep", "strategy of the sweep, by load"
)
_MIXED = LevelUnit("level {}", "level {}", "level")


def unit_of(workloads: Iterable[Workload]) -> LevelUnit:
    """Return the unit of these workloads' levels; neutral words if their units differ."""
    units = list(dict.fromkeys(_unit(workload) for workload in workloads))
    if not units:
        return STREAMS
    return units[0] if len(units) == 1 else _MIXED


# The most levels that are named one by one.
_NAMED = 3


def load_in_few_words(workload: Workload) -> str:
    """Return the levels of a load, and its shared prefixes times their tokens, as they were declared.

    "4, 8 concurrent requests, 16 prefixes x 1,024 tokens"; "" for a load without given levels or prefixes.
    """
    given = [f"{level:,}" for level in workload.given_levels]
    few = len(given) <= _NAMED
    levels = ", ".join(given) if few else f"{given[0]} to {given[-1]}"
    at = _unit(workload).sentence.format(levels) if levels else ""
    return ", ".join(filter(None, (at, _prefixes(workload))))


def _prefixes(workload: Workload) -> str:
    """The shared prefixes of a load, and their tokens where the level is not these; "" without prefixes."""
    count, tokens = workload.prefix_count, workload.prefix_tokens
    each = f" x {tokens:,} tokens" if tokens else ""
    if isinstance(count, int):
        return f"{count:,} prefixes{each}" if count else ""
    if isinstance(count, PerLevel):
        return f"{count.per_level:,} times as many prefixes{each}"
    return f"prefixes{each}, {count.tokens:,} tokens together"


def _unit(workload: Workload) -> LevelUnit:
    if workload.profile == "sweep":
        return _SWEEP
    unit = level_unit(workload)
    return (
        STREAMS
        if unit == "streams"
        else LevelUnit(f"{{}} {unit}", f"{{}} {unit}", axis_title(workload))
    )
