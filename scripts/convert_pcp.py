"""Convert one run's PCP archive to Parquet."""

from pathlib import Path

from kveval.recorded import convert_recording
from kveval.runfile import stored_run


def main(measurement: str, converter: str, output: str) -> None:
    """`measurement` points into the store."""
    convert_recording(stored_run(Path(measurement)), Path(output), converter)


if __name__ == "__main__":
    main(snakemake.input.measurement, snakemake.params.converter, snakemake.output[0])
