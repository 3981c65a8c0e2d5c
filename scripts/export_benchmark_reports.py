"""Write the peak of every cell as a benchmark report in llm-d-benchmark's format."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kveval.report.data.reading import make_plan, read_measured
from kveval.report.export.llmd import write_peak_reports


def main(given: Mapping[str, Any], plan: Mapping[str, Any], output: str) -> None:
    """`given`: the campaign's tables and runs; `output`: the file, in analysis/, that lists the reports."""
    tables = [Path(given[name]) for name in ("levels", "peaks", "comparison")]
    measured = read_measured(*tables, Path(given["runs"]))
    known = make_plan(plan, {})
    files = {
        cell: Path(output).parents[1].joinpath(*map(str, cell), "benchmark_report_v0.2.yaml") for cell in known.cells
    }
    write_peak_reports(measured, known.name, files)
    Path(output).write_text("".join(f"{file}\n" for file in files.values()))


if __name__ == "__main__":
    main(dict(snakemake.input.items()), snakemake.params.plan, snakemake.output[0])
