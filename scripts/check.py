"""Compare builds: `check` two, `bisect_builds` many; exits with 1 if the check fails or there is nothing to bisect."""

from pathlib import Path

from kveval.workflow.check.bisect import run_bisect
from kveval.workflow.check.check import run_check
from kveval.workflow.check.measuring import Places
from kveval.workflow.said import write_said

TARGETS = {"check": run_check, "bisect_builds": run_bisect}

if __name__ == "__main__":
    params = snakemake.params
    places = Places(**{name: Path(path) for name, path in params.places.items()})
    target = TARGETS[snakemake.rule]
    write_said(
        snakemake.log[0],
        lambda: target(params.asked, params.options, params.files, places),
    )
