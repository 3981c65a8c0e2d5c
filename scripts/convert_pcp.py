"""Convert one run's PCP archive to Parquet."""

import argparse
from pathlib import Path

from kveval.analysis.levels.recording import convert_recording
from kveval.store.run_file import stored_run


def main(measurement: str, converter: str, output: str) -> None:
    """`measurement`: the pointer to the run in the store."""
    convert_recording(stored_run(Path(measurement)), Path(output), converter)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("measurement")
    for option in ("--converter", "--output"):
        parser.add_argument(option, required=True)
    main(**vars(parser.parse_args()))
