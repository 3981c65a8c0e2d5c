"""Predict from the baselines' runs what each tier buys, to be set beside what was measured."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from kveval.analysis.cell_benefits import predicted_benefits
from kveval.analysis.cells import CellKey, common_level
from kveval.analysis.peaks import read_table
from kveval.store.run_file import collected_runs


def main(given: Mapping[str, str], requests: Sequence[str], baselines: Mapping[str, str | None], output: str) -> None:
    """`given`: the campaign's tables and runs; `requests`: of each cell, in folders MODEL/SCENARIO/CPU_BLOCKS."""
    levels, peaks, comparison = (read_table(Path(given[name])) for name in ("levels", "peaks", "comparison"))
    files = {(*path.parts[-4:-2], int(path.parts[-2])): path for path in map(Path, requests)}

    def requests_of(cell: CellKey) -> pd.DataFrame | None:
        return pd.read_parquet(files[cell]) if cell in files else None

    at = {model: common_level(comparison, peaks, model) for model in peaks["model"].unique()}
    found = predicted_benefits(collected_runs(Path(given["runs"])), levels, requests_of, at, baselines)
    found.to_csv(output, index=False)


if __name__ == "__main__":
    given = dict(snakemake.input.items())
    main(given, given["requests"], snakemake.params.comparison["baselines"], snakemake.output[0])
