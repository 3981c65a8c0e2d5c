"""Write the peak of every cell as a benchmark report in llm-d-benchmark's form."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kveval.campaign_data import make_plan, read_measured
from kveval.llmd_export import write_peak_reports


def main(given: Mapping[str, Any], plan: Mapping[str, Any], outputs: Sequence[str]) -> None:
    """`given`: the campaign's tables and pointers; `outputs`: one file per cell, in the plan's order."""
    tables = [Path(given[name]) for name in ("levels", "peaks", "comparison")]
    measured = read_measured(*tables, [Path(path) for path in given["measurements"]])
    known = make_plan(plan, {})
    write_peak_reports(measured, known.name, dict(zip(known.cells, map(Path, outputs), strict=True)))


if __name__ == "__main__":
    main(dict(snakemake.input.items()), snakemake.params.plan, list(snakemake.output))
