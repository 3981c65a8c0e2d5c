"""Join the predicted hits of all cells, set them beside the counted ones, and predict the gains from tiers."""

from pathlib import Path

import pandas as pd

from kveval.plugins.curve.predicted.cell_benefits import predicted_benefits
from kveval.plugins.curve.predicted.hits import served_shares, served_table, with_hits
from kveval.plugins.curve.predicted.waterfall import waterfall
from kveval.store.run_file import collected_runs
from kveval.tables.csv_files import read_table

if __name__ == "__main__":
    inputs, baselines = snakemake.input, snakemake.params.baselines
    complete, peaks, comparison = (read_table(Path(path)) for path in inputs.judged)
    runs = collected_runs(Path(inputs.runs))
    hits = pd.concat([read_table(Path(path)) for path in inputs.hits])
    levels = with_hits(complete, hits)
    requests = [Path(path) for path in inputs.requests]
    tables = (
        hits,
        served_table(served_shares(levels, runs)),
        waterfall(runs, levels, peaks, comparison),
        predicted_benefits(runs, complete, peaks, comparison, requests, baselines),
    )
    for table, path in zip(tables, snakemake.output, strict=True):
        table.to_csv(path, index=False)
