"""Stores are copied between machines with ordinary programs: what is half there is neither adopted nor damaged."""

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.stored_runs import CELL, HOST, measured

from kveval.configuration.config import measurement_id
from kveval.store.store import Key, Store
from kveval.workflow.upkeep.references import References
from kveval.workflow.upkeep.verify import Checked, verify_store

SPECIFICATIONS = [
    {"cell": CELL, "engine": "local", "seconds": seconds} for seconds in (60, 61, 62)
]
KEYS = [Key(measurement_id(each), 1, HOST["fingerprint"]) for each in SPECIFICATIONS]
# As docs/store.md has it.
RSYNC = [
    "rsync",
    "-a",
    "--modify-window=-1",
    "--compare-dest=..",
    "--include=/????????????????/***",
    "--exclude=*",
]
needs_rsync = pytest.mark.skipif(
    shutil.which("rsync") is None, reason="no rsync (Debian's package)"
)


@pytest.fixture
def there(tmp_path: Path) -> Store:
    """Another machine's store, with three runs and what never travels."""
    store = Store(tmp_path / "there")
    for specification in SPECIFICATIONS:
        measured(store, specification, payload=b"report" * 1000)
    store.scratch(KEYS[0])
    return store


@pytest.fixture
def here(tmp_path: Path) -> Store:
    store = Store(tmp_path / "here")
    store.root.mkdir()
    return store


def checked(store: Store) -> Checked:
    return verify_store(store, store.root.parent / "workflow", References(), threads=1)


def steps(
    source: Path, target: Path, order: Callable[[list[Path]], list[Path]]
) -> Iterator[None]:
    """Copy a folder file by file, each in two pieces, as cp and others do; yield after every piece."""
    names = order(
        sorted(path.relative_to(source) for path in source.rglob("*") if path.is_file())
    )
    for name in names:
        content = (source / name).read_bytes()
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        for length in (0, len(content) // 2, len(content)):
            (target / name).write_bytes(content[:length])
            yield


def last(names: list[Path]) -> list[Path]:
    return sorted(names, key=lambda name: name.name == "SHA256SUMS")


def sound(store: Store) -> tuple[int, int]:
    """How many of the store's entries are sound, and how many there are."""
    facts = checked(store).findings[0].facts
    return facts["sound"], facts["entries"]


@pytest.mark.parametrize(
    "order",
    [sorted, last, lambda names: names[::-1]],
    ids=["by name", "checksums last", "by name, backwards"],
)
def test_while_a_run_arrives_it_is_neither_adopted_nor_damaged(
    there: Store, here: Store, order
) -> None:
    """Copied straight into the store, whatever the order."""
    key = KEYS[0]
    source, target = (
        there.root / key.measurement / "run-1",
        here.root / key.measurement / "run-1",
    )
    pieces = list(steps(source, target, order))
    shutil.rmtree(target)
    for number, _ in enumerate(steps(source, target, order), start=1):
        whole = number == len(pieces)
        assert here.find(key) == (target if whole else None)
        found = checked(here)
        assert found.sound, found.text()
        assert not (here.root / "damaged").exists()
        assert ("arriving" in {finding.code for finding in found.findings}) is not whole
    assert [finding.level for finding in checked(here).findings] == ["ok"]


@pytest.mark.parametrize("order", [sorted, last], ids=["by name", "checksums last"])
def test_what_arrives_beside_the_store_is_taken_in_once_it_is_whole(
    there: Store, here: Store, order
) -> None:
    key = KEYS[0]
    arriving = here.root / "incoming" / key.measurement / "run-1"
    for _ in steps(there.root / key.measurement / "run-1", arriving, order):
        assert here.find(key) is None
    assert arriving.exists()
    assert checked(here).sound
    assert not arriving.exists()
    assert here.find(key) == here.root / key.measurement / "run-1"


def test_what_arrives_beside_the_store_in_pieces_waits(
    there: Store, here: Store
) -> None:
    key = KEYS[0]
    arriving = here.root / "incoming" / key.measurement / "run-1"
    for _ in steps(there.root / key.measurement / "run-1", arriving, last):
        if not (arriving / "SHA256SUMS").exists():
            found = checked(here)
            assert found.sound
            assert ("not_whole" in {finding.code for finding in found.findings}) is any(
                path.stat().st_size for path in arriving.rglob("*") if path.is_file()
            )
            assert arriving.exists()


def test_a_run_that_both_machines_measured_is_kept_twice(
    there: Store, here: Store
) -> None:
    ours = measured(here, SPECIFICATIONS[0], payload=b"ours")
    before = (ours / "SHA256SUMS").read_bytes()
    shutil.copytree(
        there.root / KEYS[0].measurement, here.root / "incoming" / KEYS[0].measurement
    )
    assert checked(here).sound
    assert here.find(KEYS[0]) == ours
    assert (ours / "SHA256SUMS").read_bytes() == before
    beside = ours.with_name(f"run-1@{HOST['fingerprint']}")
    assert (beside / "raw" / "guidellm-0002.json.zst").read_bytes() == b"report" * 1000
    assert sound(here) == (2, 2)


@needs_rsync
def test_the_documented_command_brings_what_is_new_and_no_more(
    there: Store, here: Store
) -> None:
    measured(here, SPECIFICATIONS[0], payload=b"ours")
    copy = [*RSYNC, f"{there.root}/", f"{here.root}/incoming/"]
    subprocess.run(copy, check=True)
    assert checked(here).sound
    for key in KEYS:
        assert here.find(key) is not None
    assert sound(here) == (4, 4)
    # Once more: only what lies under another name here travels again, and is recognised.
    done = subprocess.run([*copy, "-v"], check=True, capture_output=True, text=True)
    assert f"{KEYS[1].measurement}/run-1/run.json" not in done.stdout
    assert checked(here).sound
    assert sound(here) == (4, 4)


@needs_rsync
def test_an_interrupted_rsync_is_resumed(there: Store, here: Store) -> None:
    large = {"cell": CELL, "engine": "local", "seconds": 63}
    measured(there, large, payload=bytes(range(256)) * 4000)
    copy = [*RSYNC, f"{there.root}/", f"{here.root}/incoming/"]
    for pause_s in (0.05, 0.3, 0.6):
        slow = subprocess.Popen([*copy, "--bwlimit=500"])
        time.sleep(pause_s)
        slow.kill()
        slow.wait()
        assert checked(here).sound
    subprocess.run(copy, check=True)
    assert checked(here).sound
    for specification in (*SPECIFICATIONS, large):
        assert (
            here.find(Key(measurement_id(specification), 1, HOST["fingerprint"]))
            is not None
        )


@needs_rsync
def test_rsync_straight_into_a_store_keeps_what_is_there(
    there: Store, here: Store
) -> None:
    """A mirror: nothing is measured into it."""
    subprocess.run(
        ["rsync", "-a", *RSYNC[4:], f"{there.root}/", f"{here.root}/"], check=True
    )
    assert sound(here) == (3, 3)
    assert all(here.find(key) for key in KEYS)
