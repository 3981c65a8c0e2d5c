"""Read one run's load reports into one row a level and one row a request."""

import argparse
import json
from pathlib import Path

from kveval.analysis.levels.tables import run_tables
from kveval.store.run_file import scenario_name, stored_run


def main(measurement: str, required: str, levels: str, requests: str) -> None:
    """`measurement` points into the store; `required`: the counters that prove the arm active, as JSON."""
    pointer = Path(measurement)
    level_rows, request_rows = run_tables(stored_run(pointer), json.loads(required), scenario_name(pointer))
    level_rows.to_parquet(levels, index=False)
    request_rows.to_parquet(requests, index=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("measurement")
    for option in ("--required", "--levels", "--requests"):
        parser.add_argument(option, required=True)
    main(**vars(parser.parse_args()))
