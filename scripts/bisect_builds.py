"""Find the first slower build between a good and a bad one; exits with 1 if the bad one is not shown to be slower."""

import sys
from pathlib import Path
from typing import Any

from kveval.host.errors import Failure
from kveval.workflow.check.bisect import run_bisect
from kveval.workflow.check.measuring import Places


def main(log: Path, places: dict[str, str], **asked: Any) -> None:
    """`asked`: what `run_bisect` takes besides `places`, which is text here."""
    try:
        found, lines = run_bisect(**asked, places=Places.of(places))
    except Failure as failure:
        log.write_text(f"FAILED: {failure}\n")
        sys.exit(1)
    log.write_text("\n".join([*lines, ""]))
    sys.exit(not found)


if __name__ == "__main__":
    main(Path(snakemake.log[0]), **dict(snakemake.params.items()))
