"""Convert one run's PCP archive to Parquet."""

from pathlib import Path

from kveval.pcparchive import convert, from_pcp2arrow
from kveval.runfile import stored_run

CONVERTERS = {"kveval": convert, "pcp2arrow": from_pcp2arrow}


def main(measurement: str, converter: str, output: str) -> None:
    """`measurement` points into the store."""
    CONVERTERS[converter](stored_run(Path(measurement)) / "raw" / "pcp.tar.zst", Path(output))


if __name__ == "__main__":
    main(snakemake.input.measurement, snakemake.params.converter, snakemake.output[0])
