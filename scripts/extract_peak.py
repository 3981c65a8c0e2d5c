"""Read the load reports of a cell's runs, put load and system together level by level, and extract the cell's peak."""

import argparse
import json
from pathlib import Path

import pandas as pd
import yaml

from kveval.analysis.levels.tables import run_tables
from kveval.analysis.peaks import cell_tables
from kveval.host.errors import Failure
from kveval.store.run_file import scenario_name, stored_run
from kveval.workflow.lacking import write_reason

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for option, number in (("--measurements", "+"), ("--pcp", "+"), ("--metrics", None), ("--requests", None)):
        parser.add_argument(option, type=Path, nargs=number, required=True)
    parser.add_argument("--required", type=json.loads, required=True, help="JSON: counters that prove the arm active")
    parser.add_argument("--release", required=True, help="of the server, for metrics whose names changed")
    parser.add_argument("--min-samples", type=int, required=True, help="of a window")
    parser.add_argument("--output", type=Path, nargs=2, required=True, help="the table of levels and that of the peak")
    parser.add_argument("--lenient", action="store_true", help="write why there is no peak instead of failing")
    given = parser.parse_args()
    runs = [run_tables(stored_run(run), given.required, scenario_name(run)) for run in given.measurements]
    pd.concat([requests for _, requests in runs], ignore_index=True).to_parquet(given.requests, index=False)
    try:
        metrics = yaml.safe_load(given.metrics.read_text())
        levels = [table for table, _ in runs]
        tables = cell_tables(levels, given.pcp, metrics, given.release, given.min_samples)
        for table, path in zip(tables, given.output, strict=True):
            table.to_csv(path, index=False)
    except Failure as failure:
        if not given.lenient:
            raise
        write_reason(failure, given.output)
