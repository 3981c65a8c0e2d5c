"""Collect the levels and peaks of all cells into the campaign's tables."""

from pathlib import Path

import yaml

from kveval.store.run_file import collect_runs
from kveval.tables.csv_files import collect_tables
from kveval.workflow.failed_tables import with_tables

if __name__ == "__main__":
    inputs, cells = snakemake.input, [*map(Path, snakemake.input.peaks)]
    levels, peaks, runs, conditions = (
        with_tables(map(Path, files), cells)
        for files in (inputs.levels, cells, inputs.measurements, inputs.conditions)
    )
    metrics = Path(snakemake.params.metrics).read_bytes()
    tables = collect_tables(levels, peaks, yaml.load(metrics, Loader=yaml.CSafeLoader))
    for name, path in snakemake.output.items():
        if name == "runs":
            collect_runs(runs, conditions, Path(path))
        else:
            tables[name].to_csv(path, index=False)
