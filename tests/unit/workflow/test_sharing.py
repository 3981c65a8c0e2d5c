"""Runs and results on their way to and from jobs that see none of this machine's folders."""

import json

import pytest
from tests.support.described import collect_described
from tests.support.stored_runs import CELL, measured, pointed

from kveval.store.run_file import (
    RunFileError,
    collected_runs,
    pointed_run,
    scenario_name,
    stored_run,
)
from kveval.store.store import Store, StoreError
from kveval.workflow.upkeep.sharing import bring, share_run

SPECIFICATION = {"cell": CELL, "workload": {"levels": [2]}}


@pytest.fixture
def pointer(tmp_path):
    """A pointer to a stored run."""
    place = measured(
        Store(tmp_path / "store"), SPECIFICATION, payload=b"what was measured"
    )
    return pointed(tmp_path / "results", place, SPECIFICATION)


@pytest.fixture
def outputs(tmp_path):
    """What a run is shared as: a pointer, run.json and the raw files, in another folder."""
    folder = tmp_path / "elsewhere"
    (folder / "stored").mkdir(parents=True)
    return (
        folder / "shared.json",
        folder / "stored" / "run.json",
        folder / "stored" / "raw",
    )


def test_a_shared_run_is_read_without_the_store(pointer, outputs, tmp_path):
    before = pointed_run(pointer)
    share_run(pointer, *outputs)
    (tmp_path / "store").rename(tmp_path / "gone")
    moved = (tmp_path / "elsewhere").rename(tmp_path / "in a pod") / "shared.json"
    assert pointed_run(moved) == before
    assert (
        stored_run(moved) / before.levels[0].report
    ).read_bytes() == b"what was measured"


def test_a_shared_run_in_a_list_has_no_place_that_others_could_open(
    pointer, outputs, tmp_path
):
    share_run(pointer, *outputs)
    collect_described([outputs[0], pointer], tmp_path / "runs.jsonl.zst")
    assert [run.place for run in collected_runs(tmp_path / "runs.jsonl.zst")] == [
        "",
        str(stored_run(pointer)),
    ]


def test_a_shared_run_keeps_the_name_of_its_scenario(pointer, outputs):
    pointer.write_text(
        json.dumps(json.loads(pointer.read_text()) | {"scenario": "here"})
    )
    share_run(pointer, *outputs)
    assert scenario_name(outputs[0]) == "here"
    assert pointed_run(outputs[0]).cell.scenario == "here"


def test_a_damaged_run_is_not_shared(pointer, outputs):
    (stored_run(pointer) / "raw" / "pcp.tar.zst").write_bytes(b"other")
    with pytest.raises(StoreError) as error:
        share_run(pointer, *outputs)
    assert (error.value.defect, error.value.path.name) == ("differs", "pcp.tar.zst")
    assert not any(path.exists() for path in outputs)


def test_a_run_that_is_gone_is_named(pointer, outputs):
    place = stored_run(pointer)
    place.rename(place.with_name("elsewhere"))
    with pytest.raises(StoreError) as error:
        share_run(pointer, *outputs)
    assert (error.value.code, error.value.path) == (
        "no_description",
        place / "run.json",
    )


def test_a_pointer_of_neither_kind_is_refused(tmp_path):
    (tmp_path / "shared.json").write_text('{"measurement": "0123456789abcdef"}')
    with pytest.raises(RunFileError) as error:
        stored_run(tmp_path / "shared.json")
    assert (error.value.code, error.value.facts) == (
        "no_pointer",
        {"path": tmp_path / "shared.json"},
    )


def test_what_is_brought_is_listed(tmp_path):
    files = [tmp_path / "bucket" / name for name in ("REPORT.md", "figures/a.png")]
    places = [tmp_path / "results" / name for name in ("REPORT.md", "figures/a.png")]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(file.name)
    places[0].parent.mkdir()
    places[0].write_text("an older one")
    drawn, place = (
        tmp_path / "bucket" / "figures" / "arms",
        tmp_path / "results" / "figures" / "arms",
    )
    for folder, name in ((drawn, "new.png"), (place, "old.png")):
        folder.mkdir(parents=True)
        (folder / name).touch()
    bring([*files, drawn], [*places, place], tmp_path / "brought.txt")
    assert [found.name for found in place.iterdir()] == ["new.png"]
    places.append(place)
    assert [place.read_text() for place in places if place.is_file()] == [
        "REPORT.md",
        "a.png",
    ]
    assert (tmp_path / "brought.txt").read_text().splitlines() == [
        str(place) for place in places
    ]
