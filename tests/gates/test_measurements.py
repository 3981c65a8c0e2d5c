"""What the workflow measures never changes by itself: ids, command lines, environments and manifests of every cell.

measurements/ has them as they were when measurements were made that somebody has in a store: another id disowns those.
After a change that is meant to alter something else of them: KVEVAL_UPDATE_GOLDEN=1 pytest tests/gates/test_measurements.py,
and read the difference before it is committed. An id is not written again: whoever means to change one removes its file.
"""

import json
import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from tests.gates.cells import groups, make_builds
from tests.gates.library import CATALOGUES, REPOSITORY, measurements

GOLDEN = Path(__file__).with_name("measurements")
CAMPAIGNS = sorted([CATALOGUES / "config.yaml", *CATALOGUES.glob("campaigns/*.yaml")])
GROUPS = tuple(groups(Path()))
IDS = "0b5167c34e37a818"
"""Digest of all ids below measurements/."""
Measurements = Mapping[str, Any]


def ids(found: Measurements) -> dict[str, Any]:
    """Return what identifies measurements, by cell."""
    return {
        f"{cell} {key}": value
        for cell, facts in found.items()
        if isinstance(facts, Mapping)
        for key, value in facts.items()
        if key in ("id", "pilot") or cell.startswith("compared")
    }


def require(found: Measurements, golden: Path, *, update: bool) -> None:
    """Hold what is measured against its golden file, which is written first if `update`, but with the same ids only."""
    before = json.loads(golden.read_text(encoding="utf-8")) if golden.exists() else {}
    known = ids(before)
    assert {name: value for name, value in ids(found).items() if name in known} == known
    if update:
        text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
        golden.write_text(text, encoding="utf-8")
        before = found
    assert found == before


def golden_of(name: str) -> Path:
    return GOLDEN / f"{name}.json"


def updating() -> bool:
    return bool(os.environ.get("KVEVAL_UPDATE_GOLDEN"))


@pytest.mark.parametrize("path", CAMPAIGNS, ids=lambda path: path.stem)
def test_a_campaign_that_ships_measures_what_it_did(path: Path) -> None:
    require(measurements(path), golden_of(path.stem), update=updating())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    scratch = tmp_path_factory.mktemp("builds")
    make_builds(scratch)
    return groups(scratch)


@pytest.mark.parametrize("name", GROUPS)
def test_a_cell_by_its_path_is_measured_as_it_was(
    name: str, made: dict[str, Any]
) -> None:
    require(measurements(*made[name]), golden_of(name), update=updating())


def test_ids_do_not_change_silently() -> None:
    every = {path.stem: json.loads(path.read_text()) for path in GOLDEN.glob("*.json")}
    assert every.keys() == {path.stem for path in CAMPAIGNS} | set(GROUPS)
    text = json.dumps({name: ids(one) for name, one in every.items()}, sort_keys=True)
    assert sha256(text.encode()).hexdigest()[:16] == IDS


def test_an_update_leaves_ids_alone(tmp_path: Path) -> None:
    golden = tmp_path / "golden.json"
    one, other, moved = (
        {"m/a/0": {"id": key, "argv": argv}, "load": ["l"]}
        for key, argv in (("1", "-a"), ("1", "-b"), ("2", "-b"))
    )
    require(one, golden, update=True)
    with pytest.raises(AssertionError):
        require(other, golden, update=False)
    require(other, golden, update=True)
    for found in (moved, {}):
        with pytest.raises(AssertionError):
            require(found, golden, update=True)
    require({**other, "m/b/0": {"id": "3"}}, golden, update=True)
    assert list(json.loads(golden.read_text())) == ["m/a/0", "load", "m/b/0"]


def test_no_golden_file_knows_this_host() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in GOLDEN.glob("*.json"))
    assert str(REPOSITORY) not in text
    assert str(Path.home()) not in text
