"""Put a cell's runs together - load and system, level by level - and extract its peak."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from kveval.peaks import cell_tables


def main(
    levels: Sequence[str], pcp: Sequence[str], metrics: str, settings: Mapping[str, Any], outputs: tuple[str, str]
) -> None:
    """`settings`: version of the server, for metrics whose names changed, and min_samples of a window."""
    catalogue = yaml.safe_load(Path(metrics).read_text())
    tables = cell_tables([Path(p) for p in levels], [Path(p) for p in pcp], catalogue, **settings)
    for table, output in zip(tables, outputs, strict=True):
        table.to_csv(output, index=False)


if __name__ == "__main__":
    given, params, made = snakemake.input, snakemake.params, snakemake.output
    settings = {"version": params.version, "min_samples": params.min_samples}
    main(given.levels, given.pcp, given.metrics, settings, (made.levels, made.peak))
