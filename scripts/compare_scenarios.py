"""Compare every cell with its baseline, and the declared contrasts: effect, interval, verdict, checks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kveval.analysis.peaks import read_table
from kveval.analysis.verdict_tables import verdict_tables
from kveval.config.campaign import Comparison


def main(complete: str, peaks: str, comparison: Mapping[str, Any], outputs: Mapping[str, str]) -> None:
    """`comparison`: the campaign's settings, and each scenario's baseline; `outputs`: table name -> CSV."""
    settings = Comparison(**comparison["settings"])
    tables = verdict_tables(read_table(Path(complete)), read_table(Path(peaks)), comparison["baselines"], settings)
    for name, path in outputs.items():
        tables[name].to_csv(path, index=False)


if __name__ == "__main__":
    given = snakemake.input
    main(given.complete, given.peaks, snakemake.params.comparison, dict(snakemake.output.items()))
