"""Read one run's load reports into one row a level and one row a request."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kveval.levels import run_tables
from kveval.runfile import scenario_name, stored_run


def main(measurement: str, required: Sequence[Mapping[str, Any]], levels: str, requests: str) -> None:
    """`measurement` points into the store; `required`: the counters that prove the arm active."""
    pointer = Path(measurement)
    level_rows, request_rows = run_tables(stored_run(pointer), required, scenario_name(pointer))
    level_rows.to_parquet(levels, index=False)
    request_rows.to_parquet(requests, index=False)


if __name__ == "__main__":
    made = snakemake.output
    main(snakemake.input.measurement, snakemake.params.required, made.levels, made.requests)
