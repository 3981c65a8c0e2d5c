"""Predict, from the requests that a cell's runs sent, the share of their tokens that its caches serve."""

import argparse
from pathlib import Path

import pandas as pd

from kveval.analysis.reuse import predicted_hits

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measurements", type=Path, nargs="+", required=True)
    parser.add_argument("--requests", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    requests = pd.read_parquet(options.requests)
    predicted_hits(options.measurements, requests).to_csv(options.output, index=False)
