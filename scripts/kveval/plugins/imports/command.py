"""`kveval import`: the sheet of results that were measured elsewhere, and what its user has to correct in it."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from kveval.campaign.import_sheet import UNKNOWN
from kveval.configuration.loading import load_catalogue
from kveval.host.errors import Failure
from kveval.host.findings import pluralize
from kveval.plugins.imports.sheet import SheetUpdate, update_sheet
from kveval.workflow.command.campaign import OptionError
from kveval.workflow.command.checkout import Checkout
from kveval.workflow.command.output import Output

# The most lines that are printed of one kind.
_SHOWN = 12
_READ = (
    "read are reports of GuideLLM in JSON or YAML and results of vllm bench serve in JSON, plain or packed by zstd, gzip,"
    " xz or bzip2"
)


class NoResults(Failure):
    """Nothing in the folders is a result."""


class UnreadableTree(Failure):
    """A folder of results cannot be read."""


def write_sheet(folders: Sequence[Path], path: Path, *, as_json: bool) -> None:
    """Write the sheet of folders, or add to it what it lacks; print what was added and what has to be corrected.

    Raises OptionError for what is no folder, ConfigError for a sheet with mistakes, UnreadableTree, NoResults.
    """
    for folder in folders:
        if not folder.is_dir():
            raise OptionError(f"{folder} is not a folder of results", code="no_folder")
    catalogue = load_catalogue(Checkout.from_folders(Path.cwd()).relative().catalogues)
    output = Output(as_json, io.StringIO())
    with output.ended_by_signals():
        try:
            update = update_sheet(folders, path, catalogue)
        except OSError as error:
            message = f"{error.filename}: cannot be read ({error.strerror})"
            raise UnreadableTree(message) from error
    if not update.added and not update.known:
        found = (
            _some("What is there instead:", _others(update)) if update.others else ()
        )
        message = "\n".join(
            [f"{' '.join(map(str, folders))}: no results; {_READ}", *found]
        )
        raise NoResults(message, code="no_results")
    for line in _lines(update):
        output.line(line)
    output.document(_document(update))


def _document(update: SheetUpdate) -> dict[str, object]:
    return {
        "sheet": str(update.path),
        "added": [{"line": line, **row} for line, row in update.added.items()],
        "known": update.known,
        "readable": list(update.readable),
        "others": dict(update.others),
        "published": {report: asdict(row) for report, row in update.published.items()},
    }


def _lines(update: SheetUpdate) -> Iterator[str]:
    rows = update.added
    known = (
        f"; {pluralize(update.known, 'level')} there already" if update.known else ""
    )
    where = f" (lines {min(rows)} to {max(rows)})" if rows else ""
    yield f"{update.path}: {pluralize(len(rows), 'row')} added{where}{known}"
    if rows:
        counts = Counter(_use(row) for row in rows.values())
        yield "  " + ", ".join(
            f"{count} {use}" for use, count in sorted(counts.items())
        )
    yield from _open(update)
    yield from _some(
        "Left out, in `remarks` why:",
        [
            f"line {line}: {row['report']}"
            for line, row in rows.items()
            if row["use"] == "no"
        ],
    )
    yield from _some("No results:", _others(update))
    if update.readable:
        numbers = ", ".join(map(str, update.readable))
        yield f"\nCan be read, though `problem` says that they failed: lines {numbers}."
        yield "If that is not on purpose, delete them and run this again."
    yield from _some(
        "As they were published:",
        [f"{report}: {row}" for report, row in update.published.items()],
    )
    yield f"\nIn a campaign's file:\n\nname: NAME\nimport: {update.path}"
    yield "\nNext\n  kveval plan CAMPAIGN\n      what of the sheet is imported, and what is wrong in it"


def _others(update: SheetUpdate) -> list[str]:
    return [f"{place}: {why}" for place, why in update.others.items()]


def _use(row: dict[str, str]) -> str:
    if row["use"] == "no":
        return "left out"
    if UNKNOWN in row.values():
        return f"with {UNKNOWN}, not imported until it is corrected"
    return "failed levels" if row["problem"] else "to import"


def _open(update: SheetUpdate) -> Iterator[str]:
    """Yield what has to be corrected: columns, how many rows, and why, by the remarks; and what had better be known."""
    groups: dict[tuple[str, str], list[int]] = {}
    without_release = 0
    for line, row in update.added.items():
        if row["use"] == "no":
            continue
        without_release += not row["vllm"]
        columns = [column for column, value in row.items() if value == UNKNOWN]
        if columns:
            groups.setdefault((", ".join(columns), row["remarks"]), []).append(line)
    yield from _some(
        "To correct:",
        [
            f"{columns} in {pluralize(len(lines), 'row')}, from line {lines[0]} on: {remarks}"
            for (columns, remarks), lines in groups.items()
        ],
    )
    if without_release:
        rows = pluralize(without_release, "row")
        yield f"\nBetter filled in: vllm in {rows}, on which the names of its metrics depend."


def _some(title: str, lines: Sequence[str]) -> Iterator[str]:
    if not lines:
        return
    yield f"\n{title}"
    for line in lines[:_SHOWN]:
        yield f"  {line}"
    if len(lines) > _SHOWN:
        yield f"  and {len(lines) - _SHOWN} more"
