"""A cell's path and row, made and read in one place."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveval.campaign.cell import COLUMNS, Cell, CellError

NAMES = st.text(string.ascii_letters + string.digits + "._+-", min_size=1)
CELLS = st.builds(Cell, NAMES, NAMES, st.integers(0, 10**9))


@given(CELLS)
def test_a_cell_is_what_its_path_and_its_row_say(cell: Cell) -> None:
    assert Cell.from_path(cell.path) == cell
    assert Cell.from_row(cell.row) == cell
    assert hash(Cell.from_path(cell.path)) == hash(cell)
    assert tuple(cell.row) == COLUMNS


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("", "no_path"),
        ("model", "no_path"),
        ("model/arm", "no_path"),
        ("model//10", "no_path"),
        ("/arm/10", "no_path"),
        ("model/arm/", "no_path"),
        ("model/arm/10/run-1", "no_path"),
        ("model/arm/ten", "no_number"),
        ("model/arm/-1", "no_number"),
        ("model/arm/010", "no_number"),
    ],
)
def test_what_is_no_path_of_a_cell_is_refused(path: str, code: str) -> None:
    with pytest.raises(CellError) as error:
        Cell.from_path(path)
    assert (error.value.code, error.value.facts) == (code, {"path": path})
