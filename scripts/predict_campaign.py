"""Join the predicted hits of all cells, set them beside the counted ones, and predict the gains from tiers."""

from pathlib import Path

import pandas as pd

from kveval.plugins.curve.predicted.cell_benefits import predicted_benefits
from kveval.plugins.curve.predicted.hits import served_shares, served_table, with_hits
from kveval.plugins.curve.predicted.waterfall import waterfall
from kveval.report.data.reading import read_report_plan
from kveval.store.run_file import collected_runs
from kveval.tables.csv_files import read_table

if __name__ == "__main__":
    inputs, made = snakemake.input, dict(snakemake.output.items())
    plan = read_report_plan(snakemake.params.plan, {})
    complete, peaks, comparison = (
        read_table(Path(path))
        for path in (inputs.complete, inputs.peaks, inputs.comparison)
    )
    runs = collected_runs(Path(inputs.runs))
    hits = pd.concat([read_table(Path(path)) for path in inputs.hits])
    levels = with_hits(complete, hits)
    tables = {
        "predicted_hits": hits,
        "hits": served_table(served_shares(levels, runs)),
        "waterfall": waterfall(runs, levels, peaks, comparison),
        "predicted": predicted_benefits(
            *(runs, complete, peaks, comparison),
            [Path(path) for path in inputs.requests],
            plan.baseline_of,
        ),
    }
    for name, path in made.items():
        tables[name].to_csv(path, index=False)
