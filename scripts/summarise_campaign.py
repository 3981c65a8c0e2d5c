"""Summarise the campaign: rows per cell, rows per level, means over models; costs, and the predicted gain of tiers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kveval.analysis.cell_benefits import predicted_benefits
from kveval.analysis.costs import costs
from kveval.analysis.peaks import read_table
from kveval.analysis.summaries import summary_tables
from kveval.report.data.reading import make_plan
from kveval.store.run_file import collected_runs


def main(given: Mapping[str, Any], plan: Mapping[str, Any], made: Mapping[str, Any]) -> None:
    """`given`: the campaign's tables and runs; `made`: the summaries, and `costs` where prices are declared."""
    complete, peaks, comparison = (read_table(Path(given[name])) for name in ("complete", "peaks", "comparison"))
    known = make_plan(plan, {})
    tables = summary_tables(complete, peaks, comparison, known.baseline_of, known.parameters)
    runs, requests = collected_runs(Path(given["runs"])), [Path(path) for path in given["requests"]]
    tables["predicted"] = predicted_benefits(runs, complete, peaks, comparison, requests, known.baseline_of)
    if "costs" in made:
        tables["costs"] = costs(complete, peaks, comparison, runs, known.prices, known.stores)
    for name, path in made.items():
        tables[name].to_csv(path, index=False)


if __name__ == "__main__":
    main(dict(snakemake.input.items()), snakemake.params.plan, dict(snakemake.output.items()))
