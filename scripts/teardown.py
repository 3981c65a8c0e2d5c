"""Remove what a campaign left on its cluster, or what killed measurements left on this host."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kveval.host.errors import Failure
from kveval.spec.loading import load_config
from kveval.workflow.teardown import tear_down


def main(campaign: Mapping[str, Any], catalogues: Path, log: Path) -> None:
    """`campaign`: its complete values; messages go to stderr and to `log`."""
    with log.open("w") as file:

        def say(text: str) -> None:
            for stream in (file, sys.stderr):
                print(text, file=stream, flush=True)

        try:
            tear_down(load_config(campaign, catalogues), say)
        except Failure as failure:
            say(f"FAILED: {failure}")
            sys.exit(1)


if __name__ == "__main__":
    main(snakemake.params.campaign, Path(snakemake.params.catalogues), Path(snakemake.log[0]))
