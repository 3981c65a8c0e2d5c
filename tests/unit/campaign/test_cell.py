"""A cell's path and row, made and read in one place."""

import ast
import re
import string
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.paths import SCRIPTS

from kveval.campaign.cell import CELL_COLUMNS, Cell, CellError

NAMES = st.text(string.ascii_letters + string.digits + "._+-", min_size=1)
CELLS = st.builds(Cell, NAMES, NAMES, st.integers(0, 10**9))


@given(CELLS)
def test_a_cell_is_what_its_path_and_its_row_say(cell: Cell) -> None:
    assert Cell.from_path(cell.path) == cell
    assert Cell.from_arm(cell.model, cell.arm) == cell
    assert Cell.from_row(cell.row) == cell
    assert hash(Cell.from_path(cell.path)) == hash(cell)
    assert tuple(cell.row) == CELL_COLUMNS


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


_OTHER_FORMS = (
    # A cell as a tuple.
    re.compile(r"tuple\[str, str, int\]"),
    # A path that is put together: {model}/{scenario}/{...}, and one that is taken apart.
    re.compile(r"\{[^{}]*model[^{}]*\}/\{[^{}]*scenario[^{}]*\}/\{"),
    re.compile(r"\w+, (scenario|arm), \w*blocks = .*split\("),
    re.compile(r"Cell\(\*[^)]*split\("),
)


def other_forms(tree: ast.AST) -> Iterator[str]:
    """Yield what a module says of cells other than by their class; an expression within another is in its text."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, ast.Subscript | ast.JoinedStr | ast.Assign | ast.Call):
            yield from other_forms(node)
            continue
        text = ast.unparse(node)
        if any(form.search(text) for form in _OTHER_FORMS):
            yield text


def test_a_cell_has_one_form_in_the_library() -> None:
    # The cell itself, whose key is a row's values.
    own = SCRIPTS / "kveval" / "campaign" / "cell.py"
    others = {
        str(path.relative_to(SCRIPTS)): forms
        for path in SCRIPTS.rglob("*.py")
        if path != own and (forms := [*other_forms(ast.parse(path.read_text()))])
    }
    assert others == {}
    assert [*other_forms(ast.parse(own.read_text()))]


@pytest.mark.parametrize(
    "code",
    [
        "def f() -> dict[tuple[str, str, int], Path]: ...",
        'f"{folder}/{row.model}/{row.scenario}/{row.cpu_blocks}"',
        'model, scenario, blocks = path.split("/")',
        'Cell(*path.split("/"))',
        'paths = [len(open(f"{folder}/{row.model}/{row.scenario}/{row.cpu_blocks}"))]',
        "read(lambda: Cell(*path.split('/')))",
    ],
)
def test_another_form_of_a_cell_is_found(code: str) -> None:
    assert [*other_forms(ast.parse(code))]
