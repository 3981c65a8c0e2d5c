"""Remove what a campaign has left on its cluster, or killed measurements on this host."""

import sys
from pathlib import Path

from kveval.host.errors import Failure
from kveval.spec.loading import load_config
from kveval.workflow.teardown import tear_down


def main(campaign: Path, log: Path) -> None:
    """`campaign`: the campaign's file; what is said goes to `log` as well."""
    with log.open("w") as file:

        def say(text: str) -> None:
            for stream in (file, sys.stderr):
                print(text, file=stream, flush=True)

        try:
            tear_down(load_config(campaign, Path("config")), say)
        except Failure as failure:
            say(f"FAILED: {failure}")
            sys.exit(1)


if __name__ == "__main__":
    main(Path(snakemake.params.campaign), Path(snakemake.log[0]))
