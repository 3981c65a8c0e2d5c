"""All runs of a campaign in one file."""

import json
from pathlib import Path

import msgspec
import pytest
from tests.support.described import collect_described, raw_run
from tests.support.stored_runs import CELL, measured, pointed

from kveval.campaign.cell import Cell
from kveval.store import run_file
from kveval.store.run_file import (
    RunFileError,
    collected_runs,
    pointed_run,
    pointer_of,
    stored_run,
)
from kveval.store.store import Store


def pointers(folder: Path) -> list[Path]:
    store, specification = (
        Store(folder / "store"),
        {"cell": CELL, "workload": {"levels": [2]}},
    )
    places = [measured(store, specification, run) for run in (1, 2)]
    return [
        pointed(folder / "results", place, specification, run)
        for run, place in enumerate(places, start=1)
    ]


def test_a_pointer_is_at_the_path_of_its_cell_and_run() -> None:
    pointer = pointer_of("results", Cell("Qwen3-0.6B", "native-offload", 500), 2)
    assert str(pointer) == (
        "results/Qwen3-0.6B/native-offload/500/run-2/measurement.json"
    )


def test_runs_come_back_in_their_order_and_whole(tmp_path: Path) -> None:
    given = pointers(tmp_path)
    collect_described(given[::-1], tmp_path / "runs.jsonl.zst")
    found = collected_runs(tmp_path / "runs.jsonl.zst")
    assert [msgspec.structs.replace(raw_run(run), place="") for run in found] == [
        pointed_run(pointer) for pointer in given[::-1]
    ]
    assert [Path(run.place) for run in found] == [
        stored_run(pointer) for pointer in given[::-1]
    ]
    assert [run.run for run in found] == [2, 1]


def test_a_run_goes_by_the_name_that_its_pointer_gives_it(tmp_path: Path) -> None:
    first, *_ = pointers(tmp_path)
    first.write_text(
        json.dumps({**json.loads(first.read_text()), "scenario": "baseline-of-june"})
    )
    collect_described([first], tmp_path / "runs.jsonl.zst")
    assert [
        run.cell.scenario for run in collected_runs(tmp_path / "runs.jsonl.zst")
    ] == ["baseline-of-june"]


@pytest.mark.parametrize(
    "damage", [lambda content: content[:-20], lambda content: b"{}", None]
)
def test_a_damaged_or_missing_file_is_named(tmp_path: Path, damage) -> None:
    path = tmp_path / "runs.jsonl.zst"
    collect_described(pointers(tmp_path), path)
    path.write_bytes(damage(path.read_bytes())) if damage else path.unlink()
    with pytest.raises(RunFileError) as error:
        collected_runs(path)
    assert (error.value.code, error.value.facts) == ("no_list", {"path": path})


def test_a_run_without_its_description_is_named(tmp_path: Path) -> None:
    first, second = pointers(tmp_path)
    lost = Path(json.loads(second.read_text())["path"], "run.json")
    lost.unlink()
    with pytest.raises(RunFileError) as error:
        collect_described([first, second], tmp_path / "runs.jsonl.zst")
    assert (error.value.code, error.value.facts) == ("unreadable", {"path": lost})


def test_one_server_has_the_load_unless_the_run_says_that_several_share_it(
    tmp_path: Path,
) -> None:
    run = pointed_run(pointers(tmp_path)[0])
    assert run.replicas == 1
    deployed = {**run.specification, "deployment": {"replicas": 3}}
    assert msgspec.structs.replace(run, specification=deployed).replicas == 3
    assert msgspec.structs.replace(run, declared={"replicas": 2}).replicas == 2


def test_nothing_that_is_read_of_a_run_can_be_changed() -> None:
    records = [
        entry
        for entry in vars(run_file).values()
        if isinstance(entry, type) and issubclass(entry, msgspec.Struct)
    ]
    assert len(records) > 10
    assert [each for each in records if not each.__struct_config__.frozen] == []
