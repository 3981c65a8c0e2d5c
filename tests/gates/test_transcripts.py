"""What commands print stays the same, and what users read who made a mistake: transcripts/ has it, masked.

KVEVAL_UPDATE_GOLDEN=1 holds what is printed now.
"""

import os
from pathlib import Path

import pytest
from tests.gates import golden
from tests.gates.cases import NAMES

pytestmark = pytest.mark.workflow
HELD = Path(__file__).resolve().parent / "transcripts"


@pytest.mark.parametrize("name", NAMES)
def test_a_command_prints_what_it_did(name: str, transcripts: Path) -> None:
    printed = (transcripts / f"{name}.txt").read_text(encoding="utf-8")
    path = HELD / f"{name}.txt"
    if os.environ.get("KVEVAL_UPDATE_GOLDEN"):
        HELD.mkdir(exist_ok=True)
        path.write_text(printed, encoding="utf-8")
    held = {path.name: path.read_text(encoding="utf-8") if path.exists() else ""}
    if said := golden.difference(held, {path.name: printed}):
        pytest.fail(said, pytrace=False)


def test_no_text_is_held_that_nobody_compares() -> None:
    assert {path.stem for path in HELD.glob("*.txt")} == {*NAMES}
