"""Convert one run's PCP archive to Parquet, and write the conditions under which the run was measured."""

import argparse
from pathlib import Path

from kveval.store.run_file import stored_run
from kveval.tables.conditions import write_conditions
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
    write_conditions(options.measurement, options.conditions)
    convert_recording(
        stored_run(options.measurement), options.output, options.converter
    )
