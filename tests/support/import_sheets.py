"""Sheets of result trees, as `kveval import` writes them, and corrected as a user would."""

import csv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.support.config_files import CONFIG

from kveval.configuration.loading import load_catalogue, load_config
from kveval.plugins.imports.plan import import_plan
from kveval.plugins.imports.sheet import SheetUpdate, update_sheet
from kveval.workflow.elsewhere import RunsElsewhere

Row = dict[str, str]
Corrections = Mapping[str, object] | Callable[[Row], Mapping[str, object]]


def update(sheet: Path, *trees: Path) -> SheetUpdate:
    """Write the sheet of trees, or add to it."""
    return update_sheet(trees, sheet, load_catalogue(CONFIG))


def rows(sheet: Path) -> list[Row]:
    """The rows of a sheet as texts."""
    with sheet.open(newline="") as file:
        return list(csv.DictReader(file))


def correct(sheet: Path, corrections: Corrections) -> int:
    """Correct a sheet by hand, in every row or as a function of a row says; return how many values that took.

    A mapping fills in what is open, and what is empty.
    """
    content, changed = rows(sheet), 0
    for row in content:
        for name, value in _changes(row, corrections).items():
            changed += row[name] != str(value)
            row[name] = str(value)
    write_rows(sheet, content)
    return changed


def _changes(row: Row, corrections: Corrections) -> Mapping[str, object]:
    if callable(corrections):
        return corrections(row)
    return {
        name: value for name, value in corrections.items() if row[name] in ("", "?")
    }


def write_rows(sheet: Path, content: list[Row]) -> None:
    """Write a sheet."""
    with sheet.open("w", newline="") as file:
        writer = csv.DictWriter(file, content[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(content)


def campaign_plan(sheet: Path, **values: Any) -> RunsElsewhere:
    """Plan a campaign that imports a sheet."""
    config = load_config({"name": "test", "import": str(sheet), **values}, CONFIG)
    planned = import_plan(config)
    assert planned is not None
    return planned


def plan(
    *trees: Path, corrections: Corrections | None = None, **values: Any
) -> RunsElsewhere:
    """Plan the import of trees, whose sheet lies beside the first and is made anew."""
    sheet = trees[0].parent / "imports.csv"
    sheet.unlink(missing_ok=True)
    update(sheet, *trees)
    if corrections is not None:
        correct(sheet, corrections)
    return campaign_plan(sheet, **values)
