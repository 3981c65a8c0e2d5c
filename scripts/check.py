"""Compare builds: `check` two, `bisect_builds` many; exits with 1 if the check fails or there is nothing to bisect."""

import sys
from pathlib import Path
from typing import Any

from kveval.host.errors import Failure
from kveval.workflow.check.bisect import run_bisect
from kveval.workflow.check.check import run_check
from kveval.workflow.check.measuring import Places

TARGETS = {"check": run_check, "bisect_builds": run_bisect}


def main(rule: str, log: Path, places: dict[str, str], **asked: Any) -> None:
    """`asked`: the target's other arguments; `places`: the fields of Places as text."""
    try:
        good, lines = TARGETS[rule](**asked, places=Places.of(places))
    except Failure as failure:
        log.write_text(f"FAILED: {failure}\n")
        sys.exit(1)
    log.write_text("\n".join([*lines, ""]))
    sys.exit(not good)


if __name__ == "__main__":
    main(snakemake.rule, Path(snakemake.log[0]), **dict(snakemake.params.items()))
