"""Summarise the campaign: rows per cell and level, means over models, times of one request."""

from pathlib import Path

from kveval.report.data.reading import read_report_plan
from kveval.store.run_file import collected_runs
from kveval.tables.csv_files import read_table
from kveval.tables.one_request import one_request_times
from kveval.tables.summaries import summary_tables

if __name__ == "__main__":
    inputs, made, plan = (
        snakemake.input,
        dict(snakemake.output.items()),
        read_report_plan(snakemake.params.plan, {}),
    )
    judged = [
        read_table(Path(path))
        for path in (inputs.complete, inputs.peaks, inputs.comparison)
    ]
    tables = summary_tables(*judged, plan.baseline_of, plan.parameters)
    tables["one_request"] = one_request_times(collected_runs(Path(inputs.runs)))
    for name, path in made.items():
        tables[name].to_csv(path, index=False)
