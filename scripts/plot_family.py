"""Draw those figures of a family that have data into a folder, with a list of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kveval.report.data.reading import figure_data, make_plan, read_measured, read_metrics
from kveval.report.figures.draw import write_family
from kveval.workflow.lacking import with_tables


def main(given: Mapping[str, Any], values: Mapping[str, Any], folder: Path) -> None:
    """`given`: the campaign's tables, runs and recordings; `values`: params; `folder`: named after the family."""
    tables = [Path(given[name]) for name in ("levels", "peaks", "comparison")]
    recordings = with_tables(map(Path, given["recordings"]), map(Path, given["cells"]))
    measured = read_measured(*tables, Path(given["runs"]), recordings)
    plan = make_plan(values["plan"], read_metrics(Path(values["metrics"])))
    write_family(folder.name, figure_data(plan, measured), folder)


if __name__ == "__main__":
    main(dict(snakemake.input.items()), dict(snakemake.params.items()), Path(snakemake.output[0]))
