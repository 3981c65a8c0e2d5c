"""Measure two builds until it is clear whether the candidate is slower; exits with 1 if it is, or fails."""

import sys
from pathlib import Path
from typing import Any

from kveval.host.errors import Failure
from kveval.workflow.check.check import run_check
from kveval.workflow.check.judging import FAILING
from kveval.workflow.check.measuring import Places


def main(log: Path, places: dict[str, str], **asked: Any) -> None:
    """`asked`: what `run_check` takes besides `places`, which is text here."""
    try:
        verdict, lines = run_check(**asked, places=Places.of(places))
    except Failure as failure:
        log.write_text(f"FAILED: {failure}\n")
        sys.exit(1)
    log.write_text("\n".join([*lines, ""]))
    sys.exit(verdict in FAILING)


if __name__ == "__main__":
    main(Path(snakemake.log[0]), **dict(snakemake.params.items()))
