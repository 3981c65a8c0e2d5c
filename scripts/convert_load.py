"""Read one run's load reports into one row a level and one row a request."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kveval.levels import run_tables
from kveval.runfile import stored_run


def main(measurement: str, required: Sequence[Mapping[str, Any]], levels: str, requests: str) -> None:
    """`measurement` points into the store; `required`: the counters that prove the arm active."""
    level_rows, request_rows = run_tables(stored_run(Path(measurement)), required)
    level_rows.to_parquet(levels, index=False)
    request_rows.to_parquet(requests, index=False)


if __name__ == "__main__":
    made = snakemake.output
    main(snakemake.input.measurement, snakemake.params.required, made.levels, made.requests)
