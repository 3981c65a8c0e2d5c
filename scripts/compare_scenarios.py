"""Compare cells with their baselines, declared pairs, and neighbouring sizes of an arm: effect, interval, verdict, checks."""

from pathlib import Path

import pandas as pd

from kveval.campaign.campaign_file import Comparison
from kveval.campaign.cell import Cell
from kveval.tables.csv_files import read_table
from kveval.verdict.verdict_tables import verdict_tables, with_offered

if __name__ == "__main__":
    complete, peaks = (
        read_table(Path(path))
        for path in (snakemake.input.complete, snakemake.input.peaks)
    )
    if snakemake.input.predicted:
        predicted = map(read_table, map(Path, snakemake.input.predicted))
        complete = with_offered(complete, pd.concat(predicted))
    declared = snakemake.params.comparison
    requested_runs = {
        Cell.from_path(path): runs for path, runs in declared["runs"].items()
    }
    tables = verdict_tables(
        complete,
        peaks,
        declared["baselines"],
        Comparison(**declared["settings"]),
        requested_runs,
    )
    for name, path in snakemake.output.items():
        tables[name].to_csv(path, index=False)
