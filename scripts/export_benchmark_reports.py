"""Write the peak of every cell as a benchmark report in llm-d-benchmark's form."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kveval.campaign_data import make_plan, read_measured
from kveval.llmd_export import write_peak_reports


def main(given: Mapping[str, Any], plan: Mapping[str, Any], results: str, output: str) -> None:
    """`given`: the campaign's tables and pointers; `results`: its folder; `output`: the list of the cells' files."""
    tables = [Path(given[name]) for name in ("levels", "peaks", "comparison")]
    measured = read_measured(*tables, [Path(path) for path in given["measurements"]])
    known = make_plan(plan, {})
    files = {cell: Path(results).joinpath(*map(str, cell), "benchmark_report_v0.2.yaml") for cell in known.cells}
    write_peak_reports(measured, known.name, files)
    Path(output).write_text("".join(f"{file}\n" for file in files.values()))


if __name__ == "__main__":
    given = snakemake.params
    main(dict(snakemake.input.items()), given.plan, given.results, snakemake.output[0])
