"""Which tables are made again because the report is not of the runs that are planned."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from kveval.campaign.cell import Cell
from kveval.workflow.planning.due import due_tables

ONE, OTHER = Cell("Qwen3-8B", "no-offload", 0), Cell("Qwen3-8B", "native-offload", 500)
ALL = "runs.jsonl.zst"
PLANNED: dict[Cell, Sequence[str | None]] = {ONE: ["aaaa", "aaaa"], OTHER: ["bbbb"]}


def write_report(folder: Path, runs: dict[Cell, Sequence[str]]) -> None:
    cells = [
        {
            "model": cell.model,
            "scenario": cell.scenario,
            "cpu_blocks": cell.cpu_blocks,
            "runs": names,
            "peak": None,
        }
        for cell, names in runs.items()
    ]
    (folder / "report.json").write_text(
        json.dumps({"report_schema": 1, "cells": cells})
    )


def write_levels(folder: Path, cell: Cell, *runs: str) -> None:
    place = folder / cell.path
    place.mkdir(parents=True)
    rows = [
        f"{number},{measurement},{level}"
        for number, measurement in enumerate(runs, 1)
        for level in (1, 50)
    ]
    (place / "levels.csv").write_text("\n".join(["run,measurement,level", *rows, ""]))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Two cells with their tables and the report of them."""
    write_report(tmp_path, {ONE: ["aaaa/run-1", "aaaa/run-2"], OTHER: ["bbbb/run-1"]})
    write_levels(tmp_path, ONE, "aaaa", "aaaa")
    write_levels(tmp_path, OTHER, "bbbb")
    return tmp_path


def test_nothing_while_the_report_is_of_the_planned_runs(results: Path) -> None:
    assert due_tables(str(results), PLANNED, ALL) == []


@pytest.mark.parametrize(
    "ids",
    [["cccc"], ["bbbb", "bbbb"], [None]],
    ids=["another measurement", "another run", "not known yet"],
)
def test_the_peak_of_a_cell_whose_table_is_of_other_runs(
    results: Path, ids: Sequence[str | None]
) -> None:
    assert due_tables(str(results), PLANNED | {OTHER: ids}, ALL) == [
        ALL,
        f"{results}/{OTHER.path}/peak.csv",
    ]


def test_only_the_table_of_all_runs_where_the_cells_own_is_right_or_absent(
    results: Path,
) -> None:
    write_report(results, {ONE: ["aaaa/run-1", "aaaa/run-2"], OTHER: []})
    new = Cell("Qwen3-8B", "native-offload", 1000)
    assert due_tables(str(results), PLANNED | {new: ["dddd"]}, ALL) == [ALL]


def test_a_cell_that_is_no_longer_planned_leaves_the_report(results: Path) -> None:
    assert due_tables(str(results), {ONE: PLANNED[ONE]}, ALL) == [ALL]


@pytest.mark.parametrize("content", [None, "", '{"cells": [{"model"'])
def test_a_report_that_cannot_be_read_is_of_nothing(
    results: Path, content: str | None
) -> None:
    (results / "report.json").unlink()
    if content is not None:
        (results / "report.json").write_text(content)
    assert due_tables(str(results), PLANNED, ALL) == [ALL]
