"""The history of results: a folder of Parquet files, each added by one campaign, never changed: docs/history.md.

A file's name has the hash of its rows, so writers do not collide, adding twice adds nothing,
and folders can be merged by copying.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from kveval.host.errors import Failure
from kveval.host.files import replacing

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1
"""Version of the columns; raised when a reader of the older ones would misunderstand a file."""
COLUMNS = pa.schema(
    [
        *((name, pa.string()) for name in ("campaign", "model", "scenario")),
        ("cpu_blocks", pa.int64()),
        ("metric", pa.string()),
        ("level", pa.int64()),
        ("value", pa.float64()),
        ("measurement", pa.string()),
        ("run", pa.int64()),
        # Time UTC, ISO 8601; what ran, as JSON: version by program; the checks that failed, joined by `;`.
        *((name, pa.string()) for name in ("run_started", "software", "checks_failed")),
        # What has to be equal for values to be of one series.
        *(
            (name, pa.string())
            for name in ("engine", "weights", "hardware", "workload")
        ),
    ]
)
"""A row is the value that one metric had in one run of one cell, in the unit that the metric's name ends with."""
_ABOUT = b"kveval.history"
_ONE_VALUE = [
    "model",
    "scenario",
    "cpu_blocks",
    "metric",
    "measurement",
    "run",
    "run_started",
]


class HistoryError(Failure):
    """A file of the history cannot be read; the message names it and says what would be right."""


def add_to_history(
    folder: Path, rows: pd.DataFrame, written: datetime | None = None
) -> Path | None:
    """Add rows (COLUMNS) as one file and return it, None when the same rows are there; `written`: by default now."""
    table = pa.Table.from_pandas(rows[COLUMNS.names], COLUMNS, preserve_index=False)
    digest = hashlib.sha256(
        json.dumps(table.to_pylist(), sort_keys=True).encode()
    ).hexdigest()[:16]
    path = folder / f"{digest}.parquet"
    if path.exists():
        return None
    about = {"schema": SCHEMA, "written": (written or datetime.now(UTC)).isoformat()}
    with replacing(path) as partial:
        pq.write_table(
            table.replace_schema_metadata({_ABOUT: json.dumps(about)}),
            partial,
            compression="zstd",
        )
    return path


def read_history(folders: Iterable[Path]) -> pd.DataFrame:
    """Return the rows of all files of these folders, one for each cell, run and metric: that of the file written last.

    Raises HistoryError for a folder that is not there, a damaged file, one of a later schema, one of something else.
    """
    tables = []
    for folder in folders:
        if not folder.is_dir():
            raise HistoryError(
                f"{folder}: no such folder; a history is a folder of Parquet files",
                code="no_folder",
            )
        tables += [_read(path) for path in sorted(folder.glob("[!.]*.parquet"))]
    tables.sort(key=lambda read: read[0])
    rows: pd.DataFrame = pa.concat_tables(
        [COLUMNS.empty_table(), *(table for _, table in tables)]
    ).to_pandas()
    return rows.drop_duplicates(_ONE_VALUE, keep="last", ignore_index=True)


def _read(path: Path) -> tuple[str, pa.Table]:
    """Return when a file was written, and its rows."""
    try:
        table = pq.read_table(path, partitioning=None, page_checksum_verification=True)
        about: dict[str, Any] = json.loads(
            (table.schema.metadata or {}).get(_ABOUT, b"{}")
        )
    except (pa.ArrowException, OSError, ValueError) as error:
        message = f"{path}: not a readable file of a history ({str(error).splitlines()[0]}): remove it or copy it again"
        raise HistoryError(message, code="damaged", path=path) from error
    if about.get("schema") != SCHEMA:
        message = f"{path}: schema {about.get('schema', 'unknown')} of a history, this version reads schema {SCHEMA}"
        raise HistoryError(message, code="other_schema", path=path)
    try:
        return str(about["written"]), table.select(COLUMNS.names).cast(COLUMNS)
    except (KeyError, pa.ArrowException, ValueError) as error:
        raise HistoryError(
            f"{path}: lacks a column of a history ({error})", code="damaged", path=path
        ) from error
