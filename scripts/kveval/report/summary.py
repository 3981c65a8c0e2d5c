"""A report in three lines, for the console."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from kveval.report.files import MAIN, NUMBERS
from kveval.report.render import Rendering
from kveval.report.result.model import ResultError, read_result


def summary_lines(folder: Path) -> list[str]:
    """Return a summary of the report in `folder` in three lines: the answer, the next step, and the report's path.

    Only the path if there is no report.json, or one that cannot be read; nothing if there is no report.
    """
    if not (folder / MAIN).exists():
        return []
    lines = []
    with suppress(ResultError, FileNotFoundError):
        rendering = Rendering(read_result(folder / NUMBERS))
        lines.append(f"Answer: {rendering.plain_answer[0]}")
        lines += [
            f"Next: {step}" for step in rendering.plain_sentences("steps.md.j2")[:1]
        ]
    return [*lines, f"Report: {folder / MAIN}"]
