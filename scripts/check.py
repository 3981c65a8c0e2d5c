"""Measure two builds until it is clear whether the candidate is slower; exits with 1 for a regression."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kveval.host.errors import Failure
from kveval.workflow.check.check import FAILING, run_check


def main(campaign: Mapping[str, Any], options: Mapping[str, Any], places: Mapping[str, str], log: Path) -> None:
    """`campaign`: its complete values; `places`: of benchmark.py, the catalogues, the store, the server."""
    try:
        verdict, lines = run_check(campaign, options, **{name: Path(place) for name, place in places.items()})
    except Failure as failure:
        log.write_text(f"FAILED: {failure}\n")
        sys.exit(1)
    log.write_text("\n".join([*lines, ""]))
    sys.exit(verdict in FAILING)


if __name__ == "__main__":
    main(**dict(snakemake.params.items()), log=Path(snakemake.log[0]))
