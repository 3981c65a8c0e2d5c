"""Collect the levels and peaks of all cells into the campaign's tables."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from kveval.analysis.peaks import collect
from kveval.store.run_file import collect_runs
from kveval.workflow.lacking import with_tables


def main(given: Mapping[str, Sequence[str]], metrics: str, outputs: Mapping[str, str]) -> None:
    """`given`: the tables of every cell, and pointers to the runs; `outputs`: `runs`, and table name -> CSV."""
    catalogue, cells = yaml.safe_load(Path(metrics).read_text()), [*map(Path, given["peaks"])]
    levels, peaks, measurements = (
        with_tables(map(Path, given[name]), cells) for name in ("levels", "peaks", "measurements")
    )
    tables = collect(levels, peaks, catalogue)
    for name, path in outputs.items():
        if name == "runs":
            collect_runs(measurements, Path(path))
        else:
            tables[name].to_csv(path, index=False)


if __name__ == "__main__":
    main(dict(snakemake.input.items()), snakemake.params.metrics, dict(snakemake.output.items()))
