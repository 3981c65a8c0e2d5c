"""Draw those figures of a family that have data into a folder, with a list of them."""

from pathlib import Path

from kveval.report.data.reading import (
    figure_data,
    read_measured,
    read_metrics,
    read_report_plan,
)
from kveval.report.figures.draw import write_family
from kveval.workflow.failed_tables import with_tables

if __name__ == "__main__":
    inputs, params, folder = (
        snakemake.input,
        snakemake.params,
        Path(snakemake.output[0]),
    )
    recordings = with_tables(map(Path, inputs.recordings), map(Path, inputs.cells))
    tables = (Path(inputs.levels), Path(inputs.peaks), Path(inputs.comparison))
    beside = map(Path, (*inputs.beside, *inputs.of_plugins))
    measured = read_measured(*tables, Path(inputs.runs), beside, recordings)
    plan = read_report_plan(params.plan, read_metrics(Path(params.metrics)))
    write_family(folder.name, figure_data(plan, measured), folder)
