"""The files of a report, and a summary of it, in a module without a table library, because planning needs the names."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

MAIN, PAGE, NUMBERS, FOLDER = "REPORT.md", "report.html", "report.json", "appendix"
APPENDICES = tuple(
    f"{FOLDER}/{name}.md"
    for name in (
        *("configuration", "comparisons", "results", "caches"),
        *("system", "checks", "not-assessed", "reading"),
    )
)


def summary_lines(folder: Path) -> list[str]:
    """Return a summary of the report in `folder` in three lines: the answer, the next step, and the report's path.

    Only the path if report.json has no answer; nothing if there is no report.
    """
    if not (folder / MAIN).exists():
        return []
    numbers = folder / NUMBERS
    answer = (
        json.loads(numbers.read_text(encoding="utf-8")).get("answer")
        if numbers.exists()
        else None
    )
    lines = [f"Answer: {answer['sentences'][0]}"] if answer else []
    lines += [f"Next: {step}" for step in answer["next_steps"][:1]] if answer else []
    return [*lines, f"Report: {folder / MAIN}"]


class _Cell(msgspec.Struct):
    model: str
    scenario: str
    cpu_blocks: int
    runs: list[str]


class _Numbers(msgspec.Struct):
    cells: list[_Cell]


def reported_measurements(
    numbers: Path,
) -> dict[tuple[str, str, int], list[str]] | None:
    """Return model, scenario and cpu_blocks of each cell of a report.json -> the ids of its runs, sorted.

    None if there is no such file or it cannot be read.
    """
    try:
        report = msgspec.json.decode(numbers.read_bytes(), type=_Numbers)
    except (OSError, msgspec.DecodeError):
        return None
    measurements = {}
    for cell in report.cells:
        ids = sorted(run.partition("/")[0] for run in cell.runs)
        measurements[cell.model, cell.scenario, cell.cpu_blocks] = ids
    return measurements
