"""Add a campaign's results to the history, and print and draw the builds at which metrics change."""

import sys
from pathlib import Path

from kveval.host.errors import Failure
from kveval.workflow.history import show_history, update_history


def main(campaign: str, analysis: str, folders: list[str], program: str | None, output: str, log: Path) -> None:
    """`folders`: the history; the first gets the results; `program`: its versions are the builds, None: the server."""
    histories = [Path(folder) for folder in folders]
    try:
        lines = [update_history(Path(analysis), campaign, histories), *show_history(histories, program, Path(output))]
    except Failure as failure:
        log.write_text(f"FAILED: {failure}\n")
        sys.exit(1)
    log.write_text("\n".join([*lines, ""]))


if __name__ == "__main__":
    main(**dict(snakemake.params.items()), log=Path(snakemake.log[0]))
