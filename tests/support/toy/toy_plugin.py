"""A plug-in of another distribution: a command, a rule with a table and a figure, and a section of the report."""

import csv
import sys
from collections.abc import Iterator
from pathlib import Path

import typer

from kveval.report.sections import Paragraph, Picture, Section
from kveval.workflow.plugin import Plugin

TABLE, FIGURE = "analysis/toy.csv", "figures/toy/levels.png"


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


def sections(results: Path) -> Iterator[Section]:
    """Yield what the report says of the table."""
    table = results / TABLE
    if table.exists():
        arms = len(table.read_text().splitlines()) - 1
        picture = Picture("levels", FIGURE, "How many levels?", "Levels of each arm.")
        yield Section("Toys", [Paragraph(f"Levels of {arms} arms."), picture])


RULES = Path(__file__).with_name("toy.smk")
PLUGIN = Plugin("toy", add_commands, RULES, sections)

if __name__ == "__main__":
    make(*map(Path, sys.argv[1:]))
