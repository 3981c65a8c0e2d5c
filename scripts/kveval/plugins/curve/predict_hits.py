"""Predict, from the requests that a cell's runs sent, the share of their tokens that its caches serve."""

import argparse
from pathlib import Path

import pandas as pd

from kveval.plugins.curve.predicted.hits import predicted_hits
from kveval.store.derived import readable
from kveval.store.run_file import described_run, stored_run

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measurements", type=Path, nargs="+", required=True)
    parser.add_argument("--conditions", type=Path, nargs="+", required=True)
    parser.add_argument("--requests", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    with readable(options.requests):
        requests = pd.read_parquet(options.requests)
    runs = map(described_run, options.measurements, options.conditions)
    table = predicted_hits(runs, map(stored_run, options.measurements), requests)
    table.to_csv(options.output, index=False)
