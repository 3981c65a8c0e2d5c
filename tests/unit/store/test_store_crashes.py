"""Whatever is done to a store, killed or out of disk at each of its changes: nothing is lost, nothing half adopted."""

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.interrupted import fill, interrupted, kill
from tests.support.stored_runs import CELL, HOST, finished, measured, pointed

from kveval.configuration.config import measurement_id
from kveval.store.store import Key, Store
from kveval.workflow.upkeep import prune as store_prune
from kveval.workflow.upkeep.prune import KINDS, Workflow, prune
from kveval.workflow.upkeep.references import References
from kveval.workflow.upkeep.verify import verify_store

EARLIER = {"cell": CELL, "engine": "local", "seconds": 60}
NEW = {"cell": CELL, "engine": "local", "seconds": 61}
OLD = {"cell": CELL, "engine": "local", "seconds": 62}
KEY = Key(measurement_id(NEW), 1, HOST["fingerprint"])
RESULTS = Path("results")
WANTED = References(
    {(measurement_id(each), 1): ["a campaign"] for each in (EARLIER, NEW)}
)


def store() -> Store:
    return Store(RESULTS / "measurements", settled_s=0)


def measure() -> None:
    """What a job does to the store, without what it measures."""
    place = store().find(KEY) or measured(store(), NEW)
    pointed(RESULTS, place, NEW, run=2)


def fail() -> None:
    store().keep_failed(finished(store(), KEY), KEY)


def take_in() -> None:
    verify()
    measure()


def verify() -> None:
    verify_store(store(), Path(), WANTED, threads=1)


def tidy() -> None:
    prune(store(), [Workflow(Path(), WANTED)], KINDS, grace_s=0)


def arrived() -> None:
    """A copy of the run that is wanted, made on another machine, in the folder for copies."""
    other = Store(Path("other"))
    measured(other, NEW)
    shutil.copytree(
        other.root,
        store().root / "incoming",
        ignore=lambda _, names: {"partial", "failed", ".lock"} & set(names),
    )


def damaged() -> None:
    place = measured(store(), NEW)
    pointed(RESULTS, place, NEW, run=2)
    (place / "raw" / "pcp.tar.zst").write_bytes(b"archivE")


def unwanted() -> None:
    measured(store(), OLD)
    store().set_aside(measured(store(), OLD, run=2), "a bit flipped")


def checksums(specification: dict[str, object]) -> dict[str, str]:
    place = store().root / measurement_id(specification) / "run-1"
    return {
        path.relative_to(place).as_posix(): hashlib.sha256(
            path.read_bytes()
        ).hexdigest()
        for path in place.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("action", [kill, fill], ids=["killed", "disk full"])
@pytest.mark.parametrize(
    ("prepare", "work"),
    [
        (lambda: None, measure),
        (lambda: None, fail),
        (damaged, measure),
        (damaged, verify),
        (arrived, take_in),
        (unwanted, tidy),
    ],
    ids=[
        "measure",
        "fail",
        "measure in place of damaged",
        "verify damaged",
        "take in",
        "prune",
    ],
)
def test_at_every_change_nothing_is_lost(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    action: Callable[[], None],
    prepare: Callable[[], object],
    work: Callable[[], object],
) -> None:
    monkeypatch.setattr(store_prune, "_YOUNG_S", -1.0)
    prepared = tmp_path / "prepared"
    prepared.mkdir()
    monkeypatch.chdir(prepared)
    pointed(RESULTS, measured(store(), EARLIER), EARLIER)
    before = checksums(EARLIER)
    prepare()
    was, count = True, 0
    while was:
        count += 1
        assert count < 300, "the work does not come to its end"
        folder = tmp_path / str(count)
        shutil.copytree(prepared, folder)
        monkeypatch.chdir(folder)
        was = interrupted(work, folder, count, action)
        assert checksums(EARLIER) == before
        found = store().find(KEY)
        if found is not None:
            assert (found / "raw" / "pcp.tar.zst").read_bytes() == b"archive"
        # The same again, undisturbed, comes to its end, and so does everything else.
        work()
        measure()
        verify()
        tidy()
        checked = verify_store(store(), Path(), WANTED, threads=1)
        assert checked.sound, checked.text()
        assert checked.again == []
        assert checksums(EARLIER) == before
        assert (RESULTS / "Qwen3-0.6B/no-offload/0/run-2/measurement.json").exists()
        assert {path.name for path in store().root.iterdir()} <= {
            *(measurement_id(each) for each in (EARLIER, NEW)),
            *("partial", "failed", "damaged", "incoming", ".lock"),
        }
        assert list((store().root / "partial").iterdir()) == []
        shutil.rmtree(folder)
    assert count > 3
