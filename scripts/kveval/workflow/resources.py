"""The resources a job asks of a batch system, where that grows with the campaign. Measured: see docs/execution.md."""

import math
from collections.abc import Callable


def growing(least: float, per_run: float, runs: int) -> Callable[[object, int], int]:
    """Return a resource for Snakemake: `least`, `per_run` for each of a campaign's `runs`, as much again at a retry.

    For rules with one job a campaign only: Snakemake asks the function once for every job that it plans.
    """
    first = math.ceil(least + per_run * runs)

    def asked(wildcards: object, attempt: int) -> int:
        return first * attempt

    return asked
