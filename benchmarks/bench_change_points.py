"""How reliably the history finds changes: simulated histories with known changes; a test runs a few of them.

    python benchmarks/bench_change_points.py [HISTORIES]

A history has 200 commits with a standard deviation of 2 % and steps of 5 %: down, up and down again, or none. A step
counts as found if a change point is at most 3 commits away; every other change point is false.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from kveval.analysis.estimators.change_points import change_points

COMMITS, STEP, SD, NEAR = 200, 0.05, 0.02, 3
STEPS = (-1, 1, -1)
# Fewest commits between steps, before the first and after the last.
APART = 20


@dataclass(frozen=True)
class Outcome:
    """The result for one history: steps found, steps missed, false change points, intervals that contain their step."""

    found: int
    missed: int
    false: int
    held: int


def simulate(seed: int, steps: Sequence[int] = STEPS) -> Outcome:
    """Return the result for a simulated history with steps at random places."""
    random = np.random.default_rng(seed)
    free = np.sort(random.integers(0, COMMITS - APART * (len(steps) + 1), len(steps)))
    places = free + APART * np.arange(1, len(steps) + 1)
    level = np.zeros(COMMITS)
    for place, step in zip(places, steps, strict=True):
        level[place:] += step * np.log1p(STEP)
    points = change_points(level + random.normal(0, SD, COMMITS), seed)
    near = [
        [point for point in points if abs(point.index - place) <= NEAR]
        for place in places
    ]
    found = sum(map(bool, near))
    held = sum(
        any(p.earliest <= place <= p.latest for p in each)
        for place, each in zip(places, near, strict=True)
    )
    return Outcome(found, len(places) - found, len(points) - found, held)


def main(histories: int = 200) -> None:
    """Print the shares over `histories` histories with three steps, and as many without any."""
    for steps in (STEPS, ()):
        began = time.process_time()
        outcomes = [simulate(seed, steps) for seed in range(histories)]
        whole = sum(not each.missed for each in outcomes)
        found, false = (
            sum(each.found for each in outcomes),
            [each.false for each in outcomes],
        )
        print(
            f"{histories} histories with {len(steps)} steps, {time.process_time() - began:.0f} s of CPU time"
        )
        if steps:
            print(
                f"  steps found within {NEAR} commits: {found} of {histories * len(steps)}"
            )
            print(
                f"  histories with all found: {whole}; both bars met: "
                f"{sum(not each.missed and each.false <= 1 for each in outcomes)}"
            )
            print(
                f"  of these, those inside the stretch said to hold them: {sum(each.held for each in outcomes)}"
            )
        print(f"  false change points: {sum(false)}, at most {max(false)} in a history")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
