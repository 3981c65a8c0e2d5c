"""Compare every cell with its baseline: effect, interval, verdict."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kveval.peaks import read_table
from kveval.stats import Settings, compare


def main(complete: str, comparison: Mapping[str, Any], output: str) -> None:
    """`comparison`: the campaign's settings, and each scenario's baseline."""
    settings = Settings(**comparison["settings"])
    compare(read_table(Path(complete)), comparison["baselines"], settings).to_csv(output, index=False)


if __name__ == "__main__":
    main(snakemake.input.complete, snakemake.params.comparison, snakemake.output[0])
