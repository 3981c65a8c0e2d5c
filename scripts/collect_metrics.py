"""Collect the levels and peaks of all cells into the campaign's tables."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from kveval.peaks import collect


def main(levels: Sequence[str], peaks: Sequence[str], metrics: str, outputs: Mapping[str, str]) -> None:
    """`outputs`: table name -> CSV."""
    catalogue = yaml.safe_load(Path(metrics).read_text())
    tables = collect([Path(path) for path in levels], [Path(path) for path in peaks], catalogue)
    for name, path in outputs.items():
        tables[name].to_csv(path, index=False)


if __name__ == "__main__":
    given = snakemake.input
    main(given.levels, given.peaks, given.metrics, dict(snakemake.output.items()))
