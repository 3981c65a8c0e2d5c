"""Checks resampled from real runs: how often would `snakemake check` call one build slower than the other?

usage: python benchmarks/bench_check.py COMPLETE_METRICS.csv BASE CANDIDATE [BUDGET [CHECKS]]

BASE and CANDIDATE are scenarios with runs of the same numbers in the table. A check draws blocks, pairs of runs of one
number, with replacement. A slowed build should be found in 90 %, one that is identical be called slower in at most 5 %.
"""

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from kveval.analysis.cells import THROUGHPUT
from kveval.analysis.estimators.sequential import Design, look


def main(table: str, base: str, candidate: str, budget: int = 6, checks: int = 2000) -> None:
    """Print the share of every answer, and the mean number of blocks, for each size of tier and level."""
    levels = pd.read_csv(table)
    found = levels[levels["scenario"].isin([base, candidate])]
    design, generator = Design(3, budget), np.random.default_rng(1)
    for (blocks, level), rows in found.groupby(["cpu_blocks", "level"]):
        wide = np.log(rows.pivot_table(index="run", columns="scenario", values=THROUGHPUT)).dropna()
        pairs = wide[[base, candidate]].to_numpy()
        answers: Counter[str] = Counter()
        for _ in range(checks):
            drawn = pairs[generator.integers(len(pairs), size=budget)]
            looks = (look(drawn[:n, 0], drawn[:n, 1], design) for n in range(design.first, budget + 1))
            last = next((one for one in looks if one.answer != "open"), None)
            answers[last.answer if last else "open"] += 1
            answers["blocks"] += last.blocks if last else budget
        shares = ", ".join(f"{name} {answers[name] / checks:.1%}" for name in ("worse", "equal", "better", "open"))
        sd = float(np.std(pairs[:, 1] - pairs[:, 0], ddof=1))
        print(
            f"{blocks} blocks, level {level}: {len(pairs)} pairs, SD of their differences {sd:.1%}: {shares};"
            f" {answers['blocks'] / checks:.1f} blocks on average"
        )


if __name__ == "__main__":
    main(*sys.argv[1:4], *map(int, sys.argv[4:]))
