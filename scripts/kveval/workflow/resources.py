"""Resources that a job requests from a batch system and that grow with the campaign: docs/execution.md."""

import math
from collections.abc import Callable


def growing(least: float, per_run: float, runs: int) -> Callable[[object, int], int]:
    """Return a resource function for Snakemake: (least + per_run x runs), rounded up, times the number of the attempt.

    Only for rules with one job per campaign, because Snakemake calls the function once for every planned job.
    """
    first = math.ceil(least + per_run * runs)

    def asked(wildcards: object, attempt: int) -> int:
        return first * attempt

    return asked
