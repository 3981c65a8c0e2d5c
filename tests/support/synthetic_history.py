"""Rows of a history with known means."""

import json
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from kveval.tables.cells import THROUGHPUT

CONDITIONS = {
    "engine": "local",
    "weights": "full",
    "hardware": "a1b2c3d4e5f6",
    "workload": "prompt_tokens=512;turns=1",
}


def nightly(number: int) -> str:
    """The version of the build that many commits after a release."""
    return f"0.33.1.dev{number}+g{number:07x}"


def history(
    means: Sequence[float],
    *,
    runs: int = 3,
    beside: Mapping[int, str] | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Rows of one cell over as many builds as means; `beside`: LMCache's version from a build on."""
    random = np.random.default_rng(seed)
    rows, lmcache = [], "0.5.5"
    for number, mean in enumerate(means):
        lmcache = (beside or {}).get(number, lmcache)
        for run in range(1, runs + 1):
            rows.append(
                {
                    **{
                        "campaign": f"week-{number}",
                        "model": "Qwen3-0.6B",
                        "scenario": "lmcache-local",
                    },
                    **{
                        "cpu_blocks": 5000,
                        "metric": THROUGHPUT,
                        "level": 8,
                        "run": run,
                        "checks_failed": "",
                    },
                    "value": mean * float(np.exp(random.normal(0, 0.01))),
                    "measurement": f"{number:016x}",
                    "run_started": f"2026-03-{1 + number % 28:02d}T0{run}:00:00Z",
                    "software": json.dumps(
                        {"vllm": nightly(number), "lmcache": lmcache}
                    ),
                    **CONDITIONS,
                }
            )
    return pd.DataFrame(rows)
