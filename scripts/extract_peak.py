"""Read the load reports of a cell's runs, join load and system metrics level by level, and extract the cell's peak."""

import argparse
import json
from pathlib import Path

import yaml

from kveval.store.run_file import described_run, stored_run
from kveval.tables.peaks import cell_tables, tables_of_runs
from kveval.workflow.failed_tables import write_failure_to

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for option, number in (
        ("--measurements", "+"),
        ("--conditions", "+"),
        ("--pcp", "+"),
        ("--metrics", None),
        ("--requests", None),
    ):
        parser.add_argument(option, type=Path, nargs=number, required=True)
    parser.add_argument(
        "--required",
        type=json.loads,
        required=True,
        help="JSON: the counters that the arm requires; null for those in each run.json",
    )
    parser.add_argument(
        "--min-samples", type=int, required=True, help="fewest samples in a window"
    )
    parser.add_argument(
        "--goodput",
        type=json.loads,
        help="JSON: limits on a request's latencies; null for none",
    )
    parser.add_argument(
        "--output",
        type=Path,
        nargs=2,
        required=True,
        help="the table of levels and that of the peak",
    )
    parser.add_argument(
        "--lenient",
        action="store_true",
        help="write why there is no peak instead of failing",
    )
    options = parser.parse_args()
    runs = [*map(described_run, options.measurements, options.conditions)]
    places = map(stored_run, options.measurements)
    requests, levels = tables_of_runs(runs, places, options.required, options.goodput)
    requests.to_parquet(options.requests, index=False)
    with write_failure_to(options.output if options.lenient else []):
        metrics = yaml.load(options.metrics.read_bytes(), Loader=yaml.CSafeLoader)
        conditions = [run.described for run in runs]
        tables = cell_tables(
            levels, options.pcp, conditions, metrics, options.min_samples
        )
        for table, path in zip(tables, options.output, strict=True):
            table.to_csv(path, index=False)
