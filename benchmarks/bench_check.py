"""Checks and bisections resampled from real runs: how often is a slowed build found, an identical one called slower?

usage: python benchmarks/bench_check.py CAMPAIGN.yaml BASE CANDIDATE [BLOCKS [CHECKS]]

A measured campaign whose BASE and CANDIDATE, scenarios at one size, have runs of the same numbers; run it in the
folder that has its results. A check draws blocks, pairs of runs of one number, with replacement, and judges
throughput and cold prompts by the code of `snakemake check`. The identical build is BASE itself: pairs of its
neighbouring runs, in random order. The bisection is over 16 builds, with the slowed pairs from a random build on and
identical ones before it.
"""

import math
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from kveval.analysis.estimators.sequential import Design
from kveval.config.campaign import Cell
from kveval.spec.loading import load_config
from kveval.workflow.check.bisect import search, step_design
from kveval.workflow.check.judging import FIRST_LOOK, BuildClaim, Judged, judged, verdict_of
from kveval.workflow.check.measuring import COLD, Values, values_of

BUILDS = 16
_QUANTITIES = ("throughput_tok_s", COLD)
Draw = Callable[[], Values]


def main(campaign: str, base: str, candidate: str, budget: int = 6, checks: int = 2000) -> None:
    """Print the share of every verdict and the mean number of blocks, then how bisections ended."""
    config = load_config(Path(campaign), Path(__file__).resolve().parents[1] / "config")
    (first,) = (cell for cell in config.cells if cell.scenario == base)
    (second,) = (cell for cell in config.cells if cell.scenario == candidate)
    level = config.workload.fixed_levels[0]
    claims = [BuildClaim(base, name, ((first, second, level),), True) for name in _QUANTITIES]
    runs = range(1, config.campaign.runs + 1)
    found = {
        cell: {run: values for run in runs if (values := values_of(config, cell, run)[0])} for cell in (first, second)
    }
    generator = np.random.default_rng(1)

    def drawn(own: Cell, apart: int) -> Draw:
        pairs = [(found[first][run], found[own][run + apart]) for run in found[first] if run + apart in found[own]]

        def draw() -> Values:
            pair = pairs[generator.integers(len(pairs))]
            if apart and generator.integers(2):
                pair = pair[::-1]
            return {
                (cell, level, name): one[own if cell == second and not apart else first, level, name]
                for cell, one in zip((first, second), pair, strict=True)
                for name in _QUANTITIES
            }

        return draw

    slowed, identical = drawn(second, 0), drawn(first, 1)
    print(f"{len(found[first])} runs of {base}, {len(found[second])} of {candidate}; {checks} checks of each")
    design = Design(FIRST_LOOK, budget, comparisons=len(claims))
    for name, draw in ((candidate, slowed), ("identical", identical)):
        counted: Counter[str] = Counter()
        for _ in range(checks):
            looks, verdict = checked(claims, draw, design)
            counted[verdict] += 1
            counted["blocks"] += len(looks)
        shares = ", ".join(f"{verdict} {n / checks:.1%}" for verdict, n in counted.items() if verdict != "blocks")
        print(f"{name}: {spread(claims, draw)}: {shares}; {counted['blocks'] / checks:.1f} blocks on average")
    ended: Counter[str] = Counter()
    for _ in range(checks // 4):
        ended.update(bisected(claims, slowed, identical, design, int(generator.integers(1, BUILDS))))
    print(f"{checks // 4} bisections over {BUILDS} builds: {dict(ended)}")


def checked(claims: list[BuildClaim], draw: Draw, design: Design) -> tuple[list[list[Judged]], str]:
    """Draw blocks until the verdict is clear; return the looks, and the verdict."""
    blocks: list[Values] = []
    looks: list[list[Judged]] = []
    while len(blocks) < design.budget:
        blocks.append(draw())
        looks.append(judged(claims, blocks, design))
        if (verdict := verdict_of(looks[-1], len(blocks), design)) != "not enough":
            return looks, verdict
    return looks, "not enough"


def bisected(claims: list[BuildClaim], slowed: Draw, identical: Draw, design: Design, first: int) -> dict[str, int]:
    """Bisect as `snakemake bisect_builds` does; return how it ended, and how many builds were measured."""
    looks, verdict = checked(claims, slowed, Design(design.first, 8, comparisons=len(claims)))
    if verdict != "regression":
        return {"bad build not found slower": 1}
    worst = min((each for each in looks[-1] if each.look.answer == "worse"), key=lambda each: each.look.effect)
    only = step_design(worst.look.effect, BUILDS, 8, design.alpha)
    measured = 2

    def side(number: int) -> str:
        nonlocal measured
        measured += 1
        looks, _ = checked([worst.claim], slowed if number >= first else identical, only)
        answer = looks[-1][0].look.answer
        return "open" if answer == "open" else "bad" if answer == "worse" else "good"

    good, bad = search(BUILDS, side)
    how = "found" if (good, bad) == (first - 1, first) else "left a range" if good < first <= bad else "wrong"
    return {how: 1, f"{measured} builds measured": 1}


def spread(claims: list[BuildClaim], draw: Draw) -> str:
    """Return mean and standard deviation of the pairs' differences of each quantity."""
    parts = []
    for claim in claims:
        ((base, candidate, level),) = claim.pairs
        blocks = [draw() for _ in range(4000)]
        name = claim.quantity
        differences = [math.log(one[candidate, level, name] / one[base, level, name]) for one in blocks]
        parts.append(f"{name} {100 * math.expm1(np.mean(differences)):+.1f} %, SD {np.std(differences):.1%}")
    return "; ".join(parts)


if __name__ == "__main__":
    main(*sys.argv[1:4], *map(int, sys.argv[4:]))
