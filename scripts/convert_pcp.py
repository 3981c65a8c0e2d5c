"""Convert one run's PCP archive to Parquet, and write the conditions under which the run was measured."""

import argparse
from pathlib import Path

from kveval.conditions.facts import conditions_of
from kveval.store.conditions import write_conditions
from kveval.store.run_file import pointed_run, stored_run
from kveval.tables.levels.recording import convert_recording

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "measurement", type=Path, help="the pointer to the run in the store"
    )
    parser.add_argument("--converter", required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--conditions", type=Path, required=True)
    options = parser.parse_args()
    run = pointed_run(options.measurement)
    write_conditions(conditions_of(run), options.conditions)
    convert_recording(
        stored_run(options.measurement), options.output, options.converter
    )
