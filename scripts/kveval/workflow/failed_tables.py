"""Tables that could not be made, in a report on the runs that exist: their files hold the reason instead."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from kveval.campaign.cell import Cell
from kveval.host.errors import Failure

_MARK = "FAILED: "


@contextlib.contextmanager
def write_failure_to(outputs: Sequence[Path]) -> Iterator[None]:
    """Write the message of a Failure in the body into `outputs`, instead of tables; without outputs raise it."""
    try:
        yield
    except Failure as failure:
        if not outputs:
            raise
        for output in outputs:
            output.write_text(f"{_MARK}{failure}\n", encoding="utf-8")


def reason_in(table: Path) -> str | None:
    """Return why a cell's table was not made, None where it was."""
    with table.open("rb") as file:
        failed = file.read(len(_MARK)) == _MARK.encode()
    return (
        table.read_text(encoding="utf-8").removeprefix(_MARK).strip()
        if failed
        else None
    )


def with_tables(files: Iterable[Path], peaks: Iterable[Path]) -> list[Path]:
    """Return `files` without those of cells whose peak.csv, one of `peaks`, has a reason instead of a table.

    Raises Failure with the reasons if no cell has a table.
    """
    reason_of = {peak.parent: reason_in(peak) for peak in peaks}
    lacking = {folder for folder, reason in reason_of.items() if reason is not None}
    if reason_of and lacking == reason_of.keys():
        raise Failure(
            f"no cell has a peak: {'; '.join(map(str, reason_of.values()))}",
            code="no_peak",
        )
    return [
        file
        for file in files
        if not lacking.intersection((file.parent, file.parent.parent))
    ]


def reasons(peaks: Iterable[Path]) -> dict[Cell, str]:
    """Return cell -> reason, for cells whose .../MODEL/SCENARIO/CPU_BLOCKS/peak.csv has one instead of a table."""
    reason_of: dict[Cell, str] = {}
    for peak in peaks:
        if (reason := reason_in(peak)) is not None:
            reason_of[Cell.from_folder(peak.parent)] = f"failed: {reason}"
    return reason_of
