"""Checks and bisections resampled from real runs: how often slowed builds are found, and identical ones called slower.

usage: python benchmarks/bench_check.py CAMPAIGN.yaml BASE CANDIDATE [BLOCKS [CHECKS]]

CAMPAIGN.yaml is a measured campaign in which the scenarios BASE and CANDIDATE, at one size, have runs with the same
numbers; start this in the folder that has its results. A check draws blocks (pairs of runs with one number) with
replacement, and judges throughput and cold prompts with the code of `kveval check`. Identical builds are made from
the real runs in two ways: the same pairs without their mean difference; and neighbouring runs of BASE, in random order,
which also differ in their requests. A bisection has 16 builds: identical ones up to a random build, slowed ones after.
"""

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from kveval.analysis.estimators.sequential import Design
from kveval.campaign.cell import Cell
from kveval.configuration.config import Config
from kveval.configuration.loading import load_config
from kveval.workflow.check.bisect import BLOCKS, Side, search, step_design
from kveval.workflow.check.judging import (
    FIRST_LOOK,
    BuildClaim,
    Evaluation,
    evaluate_claims,
    verdict_of,
)
from kveval.workflow.check.measuring import COLD, Values, values_of

BUILDS = 16
_QUANTITIES = ("throughput_tok_s", COLD)
Pairs = npt.NDArray[np.float64]
"""ln values: pair, base or candidate, quantity; NaN where a run lacks one."""


def main(
    campaign: str, base: str, candidate: str, budget: int = 6, checks: int = 2000
) -> None:
    """Print the share of every verdict and the mean number of blocks, then how bisections ended."""
    config = load_config(Path(campaign), Path(__file__).resolve().parents[1] / "config")
    first, second = (
        next(cell for cell in config.cells if cell.scenario == name)
        for name in (base, candidate)
    )
    level = config.workload.given_levels[0]
    claims = [
        BuildClaim(base, name, ((first, second, level),), True) for name in _QUANTITIES
    ]
    runs = {cell: ln_values(config, cell, level) for cell in (first, second)}
    there = sorted(runs[first].keys() & runs[second].keys())
    slowed = np.array([[runs[first][run], runs[second][run]] for run in there])
    centred = slowed.copy()
    centred[:, 1] -= np.nanmean(slowed[:, 1] - slowed[:, 0], axis=0)
    neighbours = np.array(
        [
            [runs[first][run], runs[first][run + 1]]
            for run in there
            if run + 1 in runs[first]
        ]
    )
    neighbours = np.concatenate([neighbours, neighbours[:, ::-1]])
    generator = np.random.default_rng(1)
    print(
        f"{len(there)} runs of {base} and {candidate}; {checks} checks of each kind, {budget} blocks at most"
    )
    design = Design(FIRST_LOOK, budget, comparisons=len(claims))
    kinds = {
        candidate: slowed,
        f"{candidate} without its effect": centred,
        f"neighbours of {base}": neighbours,
    }
    for name, pairs in kinds.items():
        counted: Counter[str] = Counter()
        for _ in range(checks):
            looks, verdict = checked(claims, pairs, design, generator)
            counted[verdict] += 1
            counted["blocks"] += len(looks)
        shares = ", ".join(
            f"{verdict} {n / checks:.1%}"
            for verdict, n in counted.items()
            if verdict != "blocks"
        )
        print(
            f"{name}: {spread(pairs)}: {shares}; {counted['blocks'] / checks:.1f} blocks on average"
        )
    ended: Counter[str] = Counter()
    for _ in range(checks // 4):
        ended.update(bisected(claims, slowed, centred, generator))
    blocks = ended.pop("blocks") / (checks // 4)
    print(
        f"{checks // 4} bisections over {BUILDS} builds, {blocks:.0f} blocks on average: {dict(ended.most_common())}"
    )


def ln_values(config: Config, cell: Cell, level: int) -> dict[int, list[float]]:
    """Return run -> ln of the quantities at a level."""
    found = {
        run: values_of(config, cell, run)[0]
        for run in range(1, config.campaign.runs + 1)
    }
    return {
        run: [
            float(np.log(values.get((cell, level, name), np.nan)))
            for name in _QUANTITIES
        ]
        for run, values in found.items()
        if values
    }


def checked(
    claims: list[BuildClaim],
    pairs: Pairs,
    design: Design,
    generator: np.random.Generator,
) -> tuple[list[list[Evaluation]], str]:
    """Draw blocks until the verdict is clear; return the evaluations after each block, and the verdict."""
    blocks: list[Values] = []
    looks: list[list[Evaluation]] = []
    verdict = "not enough"
    while len(blocks) < design.budget and verdict == "not enough":
        drawn = pairs[generator.integers(len(pairs))]
        block: Values = {}
        for number, name in enumerate(_QUANTITIES):
            for side, value in zip(
                claims[0].pairs[0][:2], np.exp(drawn[:, number]), strict=True
            ):
                if not np.isnan(value):
                    block[side, claims[0].pairs[0][2], name] = float(value)
        blocks.append(block)
        looks.append(evaluate_claims(claims, blocks, design))
        verdict = verdict_of(looks[-1], len(blocks), design)
    return looks, verdict


def bisected(
    claims: list[BuildClaim],
    slowed: Pairs,
    identical: Pairs,
    generator: np.random.Generator,
) -> dict[str, int]:
    """Bisect as `kveval bisect` does; return counts of the outcome, of builds and of blocks measured."""
    first = int(generator.integers(1, BUILDS))
    whole = Design(FIRST_LOOK, BLOCKS, comparisons=len(claims))
    looks, verdict = checked(claims, slowed, whole, generator)
    if verdict != "regression":
        return {"bad build not shown to be slower": 1}
    worst = min(
        (each for each in looks[-1] if each.look.answer == "worse"),
        key=lambda each: each.look.effect,
    )
    only = step_design(worst.look.effect, BUILDS, BLOCKS, whole.alpha)
    measured, blocks = 2, len(looks)

    def side(number: int) -> Side:
        nonlocal measured, blocks
        measured += 1
        looks, _ = checked(
            [worst.claim], slowed if number >= first else identical, only, generator
        )
        blocks += len(looks)
        answer = looks[-1][0].look.answer
        return "open" if answer == "open" else "bad" if answer == "worse" else "good"

    good, bad = search(BUILDS, side)
    how = (
        "found"
        if (good, bad) == (first - 1, first)
        else "left a range"
        if good < first <= bad
        else "wrong"
    )
    return {how: 1, f"{how}, {measured} builds measured": 1, "blocks": blocks}


def spread(pairs: Pairs) -> str:
    """Return mean and standard deviation of the pairs' differences of each quantity."""
    differences = pairs[:, 1] - pairs[:, 0]
    means, deviations = (
        np.expm1(np.nanmean(differences, axis=0)),
        np.nanstd(differences, axis=0, ddof=1),
    )
    return "; ".join(
        f"{name} {100 * mean:+.1f} %, SD {deviation:.1%}"
        for name, mean, deviation in zip(_QUANTITIES, means, deviations, strict=True)
    )


if __name__ == "__main__":
    main(*sys.argv[1:4], *map(int, sys.argv[4:]))
