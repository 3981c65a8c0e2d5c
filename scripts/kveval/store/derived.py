"""Tables that are derived from the store: whether they can be read completely, and what is derived from them."""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kveval.host.errors import Failure

_OF_RUNS, _OF_CELLS = ("pcp.parquet",), ("requests.parquet",)
# Made by the same job, of the same runs.
_FURTHER = ("levels.csv", "peak.csv")


class DamagedTable(Failure):
    """A table that is made from the store cannot be read; the message says how to have it made again."""


@contextlib.contextmanager
def readable(*tables: Path) -> Iterator[None]:
    """Raise DamagedTable in place of a failure of the body if one of these tables is damaged."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        for path in tables:
            if damage := damage_in(path):
                raise DamagedTable(
                    f"{path} is damaged ({damage}): `kveval verify` removes it, the next run makes it again"
                ) from error
        raise


def derived_files(pointers: Iterable[Path]) -> list[Path]:
    """Return the existing tables beside these pointers (measurement.json), and those of their cells."""
    runs = [pointer.parent for pointer in pointers]
    cells = dict.fromkeys(run.parent for run in runs)
    paths = [run / name for run in runs for name in _OF_RUNS]
    paths += [cell / name for cell in cells for name in _OF_CELLS]
    return [path for path in paths if path.exists()]


def damage_in(path: Path) -> str | None:
    """Return why a Parquet file cannot be read in full, None when it can: every page is decoded."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for number in range(file.metadata.num_row_groups):
                file.read_row_group(number, use_threads=False)
    except (pa.ArrowException, OSError, ValueError) as error:
        return str(error).splitlines()[0]
    return None


def remove_derived(path: Path) -> list[Path]:
    """Remove a damaged table, and those of its cell that may be derived from it; return the removed files.

    What depends on the cell's tables is made again with them.
    """
    cell = path.parent if path.name in _OF_CELLS else path.parent.parent
    tables = [path, *(cell / name for name in _FURTHER)]
    removed = [table for table in tables if table.exists()]
    for file in removed:
        file.unlink()
    return removed
