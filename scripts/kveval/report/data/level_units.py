"""Units of a campaign's levels, in words: people read "at 300 concurrent" or "at 600 requests/min"."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kveval.load.levels import axis_title, level_unit
from kveval.load.workload import Workload


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


def _unit(workload: Workload) -> LevelUnit:
    if workload.profile == "sweep":
        return _SWEEP
    unit = level_unit(workload)
    return (
        STREAMS
        if unit == "streams"
        else LevelUnit(f"{{}} {unit}", f"{{}} {unit}", axis_title(workload))
    )
