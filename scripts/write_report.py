"""Write REPORT.md and report.html."""

import os
from dataclasses import replace
from pathlib import Path

from kveval.campaign.cell import Cell
from kveval.host.shipped import library_commit
from kveval.report.data.reading import read_measured, read_metrics, read_report_plan
from kveval.report.data.run_facts import run_places
from kveval.report.figures.names import drawn_figures
from kveval.report.files import COMMAND_VARIABLE, PAGE
from kveval.report.html.page import write_page
from kveval.report.report import write_report
from kveval.workflow.failed_tables import reasons
from kveval.workflow.plugin import sections_beside

if __name__ == "__main__":
    inputs, params, output = (
        snakemake.input,
        snakemake.params,
        Path(snakemake.output[0]),
    )
    # What was measured, and why what is missing was not.
    measured = read_measured(
        Path(inputs.levels),
        Path(inputs.peaks),
        Path(inputs.comparison),
        Path(inputs.runs),
        map(Path, (*inputs.beside, *inputs.of_plugins)),
        pilots=[Path(path) for path in (*inputs.pilots, *params.pilots)],
    )
    failures = {
        Cell.from_path(path): reason for path, reason in params.failures.items()
    }
    failures |= reasons(map(Path, inputs.cells))
    measured = replace(measured, failures=failures)

    # What was asked for.
    settings = {
        **params.plan,
        "measures": params.measures,
        "command": os.environ.get(COMMAND_VARIABLE, ""),
        "workflow_commit": library_commit(),
    }
    plan = read_report_plan(settings, read_metrics(Path(params.metrics)))

    # REPORT.md with its appendices and report.json, then report.html of the same Markdown.
    figures, lacking = drawn_figures(map(Path, inputs.figures))
    files, result = write_report(
        plan, measured, figures, output, lacking, sections_beside()
    )
    write_page(files, result, run_places(measured.runs), output.with_name(PAGE))
