"""The files of a report, in a module without a table library, because planning needs the names."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from kveval.campaign.cell import Cell

MAIN, PAGE, NUMBERS, FOLDER = "REPORT.md", "report.html", "report.json", "appendix"
COMMAND_VARIABLE = "KVEVAL_REPORT_COMMAND"
"""Environment variable of jobs: the command that makes the campaign's report, as snakemake was started."""
_DEFAULT_COMMAND = "snakemake --cores 4 report"
APPENDICES = tuple(
    f"{FOLDER}/{name}.md"
    for name in (
        *("configuration", "comparisons", "results", "caches"),
        *("system", "checks", "not-assessed", "reading"),
    )
)

REST = f"{FOLDER}/results.md"
"""The appendix with the figures that no other part of the report has."""


def so_far_command() -> str:
    """Return the command that makes a report on what exists of the campaign that snakemake was started with."""
    command = os.environ.get(COMMAND_VARIABLE, _DEFAULT_COMMAND)
    return command.replace(" report", " report_so_far", 1)


class _Reported(msgspec.Struct):
    model: str
    scenario: str
    cpu_blocks: int
    runs: list[str]


class _Numbers(msgspec.Struct):
    cells: list[_Reported]


def reported_measurements(numbers: Path) -> dict[Cell, list[str]] | None:
    """Return each cell of a report.json -> the ids of its runs, sorted.

    None if there is no such file or it cannot be read.
    """
    try:
        report = msgspec.json.decode(numbers.read_bytes(), type=_Numbers)
    except (OSError, msgspec.DecodeError):
        return None
    measurements = {}
    for entry in report.cells:
        cell = Cell(entry.model, entry.scenario, entry.cpu_blocks)
        measurements[cell] = sorted(run.partition("/")[0] for run in entry.runs)
    return measurements
