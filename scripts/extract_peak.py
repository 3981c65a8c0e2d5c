"""Put a cell's runs together - load and system, level by level - and extract its peak."""

import argparse
from pathlib import Path

import yaml

from kveval.analysis.peaks import cell_tables
from kveval.host.errors import Failure
from kveval.workflow.lacking import write_reason

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for option, number in (("--levels", "+"), ("--pcp", "+"), ("--metrics", None)):
        parser.add_argument(option, type=Path, nargs=number, required=True)
    parser.add_argument("--release", required=True, help="of the server, for metrics whose names changed")
    parser.add_argument("--min-samples", type=int, required=True, help="of a window")
    parser.add_argument("--output", type=Path, nargs=2, required=True, help="the table of levels and that of the peak")
    parser.add_argument("--lenient", action="store_true", help="write why there is no peak instead of failing")
    given = parser.parse_args()
    try:
        metrics = yaml.safe_load(given.metrics.read_text())
        tables = cell_tables(given.levels, given.pcp, metrics, given.release, given.min_samples)
        for table, path in zip(tables, given.output, strict=True):
            table.to_csv(path, index=False)
    except Failure as failure:
        if not given.lenient:
            raise
        write_reason(failure, given.output)
