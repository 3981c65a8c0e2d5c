"""A plug-in of another distribution: a command, a rule with a table and a figure, and a section of the report."""

import csv
import sys
from pathlib import Path

import typer

from kveval.workflow.plugin import Plugin


def add_commands(app: typer.Typer) -> None:
    """Add the command `toy`."""

    @app.command(rich_help_panel="Toys")
    def toy(name: str) -> None:
        """Greet a name."""
        print(f"hello {name}")


def make(levels: Path, table: Path, figure: Path) -> None:
    """Count the levels of each arm, as a table and as a figure."""
    from matplotlib.figure import Figure  # noqa: PLC0415  (slow, not for help)

    counts: dict[str, int] = {}
    with levels.open() as file:
        for row in csv.DictReader(file):
            counts[row["scenario"]] = counts.get(row["scenario"], 0) + 1
    lines = [f"{name},{count}" for name, count in counts.items()]
    table.write_text("\n".join(["arm,levels", *lines, ""]))
    drawing = Figure()
    drawing.subplots().bar([*counts], [*counts.values()])
    figure.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(figure)


RULES, SECTION = (Path(__file__).with_name(name) for name in ("toy.smk", "toy.md.j2"))
PLUGIN = Plugin("toy", add_commands, RULES, SECTION)

if __name__ == "__main__":
    make(*map(Path, sys.argv[1:]))
