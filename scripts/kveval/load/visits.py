"""How many of a load's prefixes are drawn in so many visits."""

import math
from collections.abc import Iterator

from kveval.load.levels import popularity


def visited(prefixes: int, visits: float, zipf: float = 0.0) -> float:
    """Return the expected number of distinct prefixes in so many visits, each drawn at random, see `popularity`."""
    if prefixes < 2:
        return min(visits, float(prefixes))
    return sum(
        number * among for _, number, among in visited_groups(prefixes, visits, zipf)
    )


def visited_groups(
    prefixes: int, visits: float, zipf: float
) -> Iterator[tuple[float, int, float]]:
    """Yield of prefixes that are equally popular: the chance of one at each visit, how many, the chance of any visit."""
    groups = popularity(prefixes, zipf)
    total = sum(weight * number for weight, number in groups)
    for weight, number in groups:
        chance = weight / total
        yield chance, number, -math.expm1(visits * math.log1p(-chance))
