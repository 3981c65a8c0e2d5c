"""Remove what a campaign left on its cluster, or what killed measurements left on this host."""

import sys
from pathlib import Path

from kveval.campaign.loading import load_config
from kveval.host.errors import Failure
from kveval.workflow.teardown import tear_down

if __name__ == "__main__":
    with Path(snakemake.log[0]).open("w") as file:

        def say(text: str) -> None:
            """Print a line at once, and write it into the log."""
            for stream in (file, sys.stderr):
                print(text, file=stream, flush=True)

        try:
            tear_down(
                load_config(
                    snakemake.params.campaign, Path(snakemake.params.catalogues)
                ),
                say,
            )
        except Failure as failure:
            say(f"FAILED: {failure}")
            sys.exit(1)
