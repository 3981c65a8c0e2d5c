"""The files of a history: added once, joined, refused when they are something else."""

import json
import multiprocessing
import re
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.synthetic_history import history

from kveval.plugins.builds.history_files import (
    COLUMNS,
    SCHEMA,
    HistoryError,
    add_to_history,
    read_history,
)


def add(folder: Path, seed: int) -> None:
    add_to_history(folder, history([100, 90], seed=seed))


def test_rows_come_back_and_the_file_names_its_schema(tmp_path: Path) -> None:
    rows = history([100, 90, 95])
    path = add_to_history(tmp_path, rows)
    assert path is not None
    # By another name, rows that are in a history would be added to it once more.
    assert re.fullmatch("[0-9a-f]{16}", path.stem)
    pd.testing.assert_frame_equal(read_history([tmp_path]), rows[COLUMNS.names])
    assert (
        json.loads(pq.read_schema(path).metadata[b"kveval.history"])["schema"] == SCHEMA
    )


def test_the_same_rows_are_added_once(tmp_path: Path) -> None:
    assert add_to_history(tmp_path, history([100])) is not None
    assert add_to_history(tmp_path, history([100])) is None
    assert len(list(tmp_path.iterdir())) == 1


def test_folders_join_and_a_run_that_is_in_several_counts_once_as_written_last(
    tmp_path: Path,
) -> None:
    early, late = datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 2, tzinfo=UTC)
    rows = history([100, 90])
    again = rows.assign(value=rows["value"] * 2, level=16)
    add_to_history(tmp_path / "a", again, late)
    add_to_history(tmp_path / "b", rows, early)
    add_to_history(tmp_path / "b", history([100, 90, 80]).iloc[-1:], early)
    found = read_history([tmp_path / "a", tmp_path / "b"])
    assert len(found) == len(rows) + 1
    assert set(found["value"]) >= set(again["value"])


def test_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [
        context.Process(target=add, args=(tmp_path, seed)) for seed in (1, 1, 2, 3)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0] * 4
    assert len(list(tmp_path.iterdir())) == 3
    read_history([tmp_path])


def test_an_empty_folder_is_an_empty_history(tmp_path: Path) -> None:
    assert list(read_history([tmp_path]).columns) == COLUMNS.names


def test_what_is_no_history_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(HistoryError) as missing:
        read_history([tmp_path / "none"])
    assert missing.value.code == "no_folder"
    path = add_to_history(tmp_path, history([100]))
    assert path is not None
    whole = path.read_bytes()
    table = pq.read_table(path)
    for code, write in (
        ("damaged", lambda: path.write_bytes(whole[:-20])),
        (
            "other_schema",
            lambda: pq.write_table(table.replace_schema_metadata({}), path),
        ),
        (
            "other_schema",
            lambda: pq.write_table(
                _said(table, {"schema": SCHEMA + 1, "written": ""}), path
            ),
        ),
        (
            "damaged",
            lambda: pq.write_table(
                _said(table, {"schema": SCHEMA, "written": ""}).drop(["value"]), path
            ),
        ),
    ):
        write()
        with pytest.raises(HistoryError) as wrong:
            read_history([tmp_path])
        assert (wrong.value.code, wrong.value.facts["path"]) == (code, path)


def _said(table: pa.Table, about: dict[str, object]) -> pa.Table:
    return table.replace_schema_metadata(
        {b"kveval.history": json.dumps(about).encode()}
    )
