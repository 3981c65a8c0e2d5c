"""Add a campaign's results to the history, and print and draw the builds at which metrics change."""

from pathlib import Path

from kveval.workflow.history import show_history, update_history
from kveval.workflow.said import write_said


def main(
    campaign: str, analysis: str, folders: list[str], program: str | None, output: str
) -> tuple[bool, str]:
    """`folders`: the history; the first gets the results; `program`: its versions are the builds, None: the server."""
    histories = [Path(folder) for folder in folders]
    lines = [
        update_history(Path(analysis), campaign, histories),
        *show_history(histories, program, Path(output)),
    ]
    return True, "\n".join(lines)


if __name__ == "__main__":
    write_said(snakemake.log[0], lambda: main(**dict(snakemake.params.items())))
