"""Checks resampled from real runs: how often slowed builds are found, and identical ones called slower.

usage: python benchmarks/bench_check.py CAMPAIGN.yaml BASE CANDIDATE [BLOCKS [CHECKS]]

CAMPAIGN.yaml is a measured campaign in which the scenarios BASE and CANDIDATE, at one size, have runs with the same
numbers; start this in the folder that has its results. A check draws blocks (pairs of runs with one number) with
replacement, and judges throughput and cold prompts with the code of `kveval check`. Identical builds are made from
the real runs in two ways: the same pairs without their mean difference; and neighbouring runs of BASE, in random order,
which also differ in their requests.
"""

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from kveval.campaign.cell import Cell
from kveval.configuration.config import Config
from kveval.configuration.loading import load_config
from kveval.estimators.sequential import Design
from kveval.plugins.builds.judging import (
    FIRST_LOOK,
    BuildClaim,
    evaluate_claims,
    verdict_of,
)
from kveval.plugins.builds.measuring import COLD, Values, values_of

_QUANTITIES = ("throughput_tok_s", COLD)
Pairs = npt.NDArray[np.float64]
"""ln values: pair, base or candidate, quantity; NaN where a run lacks one."""


def main(
    campaign: str, base: str, candidate: str, budget: int = 6, checks: int = 2000
) -> None:
    """Print the share of every verdict and the mean number of blocks."""
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
            blocks, verdict = checked(claims, pairs, design, generator)
            counted[verdict] += 1
            counted["blocks"] += blocks
        shares = ", ".join(
            f"{verdict} {n / checks:.1%}"
            for verdict, n in counted.items()
            if verdict != "blocks"
        )
        print(
            f"{name}: {spread(pairs)}: {shares}; {counted['blocks'] / checks:.1f} blocks on average"
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
) -> tuple[int, str]:
    """Draw blocks until the verdict is clear; return their number, and the verdict."""
    blocks: list[Values] = []
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
        evaluations = evaluate_claims(claims, blocks, design)
        verdict = verdict_of(evaluations, len(blocks), design)
    return len(blocks), verdict


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
