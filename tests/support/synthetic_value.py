"""Goodput for made-up campaigns: levels in which a known share of the requests met the limits."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from kveval.tables.levels.goodput import limits_text

LIMITS: dict[str, Any] = {"ttft_ms": 500.0, "itl_ms": 50.0, "of": "requests"}


def with_goodput(
    levels: pd.DataFrame,
    share: Callable[[str, int], float],
    limits: dict[str, Any] = LIMITS,
    seed: int = 3,
) -> pd.DataFrame:
    """Return a table of levels with the columns of goodput: so many of the completed as chance would let meet them.

    `share`: of the requests that meet the limits, by scenario and level.
    """
    generator = np.random.default_rng(seed)
    settled = levels["requests_completed"].to_numpy()
    shares = [
        share(scenario, level)
        for scenario, level in zip(levels["scenario"], levels["level"], strict=True)
    ]
    met = generator.binomial(settled, shares)
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.where(met > 0, np.sqrt((1 - met / settled) / met), np.nan)
    return levels.assign(
        goodput_per_s=met / levels["duration_s"],
        goodput_per_s_se=error,
        goodput_cut=0.0,
        goodput_met=met,
        goodput_settled=settled,
        goodput_share=met / settled,
        goodput_limits=limits_text(limits),
        throughput_req_s=settled / levels["duration_s"],
        concurrency_shortfall=0.0,
    )
