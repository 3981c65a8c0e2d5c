"""Write REPORT.md and report.html."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kveval.report.data.reading import make_plan, read_measured, read_metrics
from kveval.report.figures.names import drawn_figures
from kveval.report.files import PAGE
from kveval.report.html.page import write_page
from kveval.report.report import write_report
from kveval.workflow.lacking import reasons


def main(given: Mapping[str, Any], values: Mapping[str, Any], output: str) -> None:
    """`given`: the campaign's tables, runs, and folders of figures; `values`: params."""
    tables = [Path(given[name]) for name in ("levels", "peaks", "comparison")]
    pilots = [Path(path) for path in (*given["pilots"], *values["pilots"])]
    failures = {(model, scenario, blocks): reason for model, scenario, blocks, reason in values["failures"]}
    measured = read_measured(*tables, Path(given["runs"]), pilots=pilots)
    measured = replace(measured, failures=failures | reasons(map(Path, given["cells"])))
    figures, lacking = drawn_figures(map(Path, given["figures"]))
    plan = make_plan(values["plan"], read_metrics(Path(values["metrics"])))
    root = write_report(plan, measured, figures, Path(output), lacking)
    write_page(plan, measured, root, figures, Path(output).with_name(PAGE))


if __name__ == "__main__":
    main(dict(snakemake.input.items()), dict(snakemake.params.items()), snakemake.output[0])
