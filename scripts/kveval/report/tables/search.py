"""The report's table of a pilot's search: the levels tried, their throughput, and the levels kept."""

from __future__ import annotations

from collections.abc import Sequence

from kveval.analysis.levels.pilot import Pilot
from kveval.report.data import numbers as numerals
from kveval.report.data.campaign import Table

_ENDINGS = {
    "resolution": "the peak's neighbours are as close as asked for",
    "budget": "the number of levels to try was reached",
    "unfinished": "the search was cut short",
}


def search_table(pilots: Sequence[Pilot]) -> Table:
    """Return every level that was tried, in the order of the search; no rows if levels were given."""
    rows = []
    for pilot in pilots:
        for order, (level, throughput_tok_s) in enumerate(pilot.tried, start=1):
            rows.append(
                [
                    pilot.cell,
                    str(order),
                    f"{level:,}",
                    numerals.significant(throughput_tok_s, 3),
                    _role(pilot, level),
                    "yes" if level in pilot.levels else "no",
                    _ENDINGS[pilot.ending] if order == len(pilot.tried) else "",
                ]
            )
    header = [
        "pilot",
        "tried",
        "concurrent requests",
        "output tok/s",
        "is",
        "all arms measured",
        "ended because",
    ]
    return Table(header, rows, frozenset({1, 2, 3}))


def _role(pilot: Pilot, level: int) -> str:
    if level == pilot.peak:
        return "the peak" if pilot.above is not None else "the highest, not bracketed"
    names = {pilot.below: "next below it", pilot.above: "next above it"}
    return names.get(level, "")
