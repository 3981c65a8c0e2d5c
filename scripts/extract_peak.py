"""Put a cell's runs together - load and system, level by level - and extract its peak."""

from collections.abc import Sequence
from pathlib import Path

import yaml

from kveval.peaks import cell_tables


def main(levels: Sequence[str], pcp: Sequence[str], metrics: str, version: str, *, outputs: tuple[str, str]) -> None:
    """`version`: the server's, for metrics whose names changed."""
    catalogue = yaml.safe_load(Path(metrics).read_text())
    level_rows, peak_row = cell_tables([Path(p) for p in levels], [Path(p) for p in pcp], catalogue, version)
    level_rows.to_csv(outputs[0], index=False)
    peak_row.to_csv(outputs[1], index=False)


if __name__ == "__main__":
    given, made = snakemake.input, snakemake.output
    main(given.levels, given.pcp, given.metrics, snakemake.params.version, outputs=(made.levels, made.peak))
