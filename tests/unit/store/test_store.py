"""What is in the store was measured, whole and unchanged; everything else is set aside, never adopted, never lost."""

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.paths import REPOSITORY
from tests.support.stored_runs import KEY, filled, finished

from kveval.store import lock as store_lock
from kveval.store.entries import size_text
from kveval.store.store import Key, Store, StoreError, pointer, verify


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "measurements", settled_s=0)


def test_a_committed_run_is_found_again(store: Store) -> None:
    assert store.find(KEY) is None
    place = store.commit(finished(store), KEY)
    assert place == store.root / KEY.measurement / "run-2"
    assert store.find(KEY) == place
    assert verify(place, KEY)["run"] == 2
    assert pointer(place, KEY)["path"] == place.as_posix()


def test_checksums_are_in_the_form_sha256sum_reads(store: Store) -> None:
    place = store.commit(finished(store, payload=b""), KEY)
    assert (
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  raw/pcp.tar.zst"
        in (place / "SHA256SUMS").read_text().splitlines()
    )


DAMAGE = [
    (
        lambda place: (place / "raw" / "pcp.tar.zst").write_bytes(b"archivE"),
        "differs",
        "pcp.tar.zst",
    ),
    (lambda place: (place / "raw" / "pcp.tar.zst").unlink(), "missing", "pcp.tar.zst"),
    (lambda place: (place / "SHA256SUMS").write_text(""), "run_unlisted", "SHA256SUMS"),
    (
        lambda place: (place / "SHA256SUMS").write_bytes(b"\xff\xfe"),
        "no_checksums",
        "SHA256SUMS",
    ),
    (lambda place: (place / "run.json").write_text("{}"), "differs", "run.json"),
]


@pytest.mark.parametrize(("damage", "code", "file"), DAMAGE)
def test_a_damaged_run_is_set_aside_with_its_reason(
    store: Store, damage, code: str, file: str
) -> None:
    place = store.commit(finished(store), KEY)
    damage(place)
    with pytest.raises(StoreError) as error:
        verify(place, KEY)
    assert (error.value.code, error.value.path.name) == (code, file)
    assert store.find(KEY) is None
    assert not place.exists()
    (aside,) = (store.root / "damaged").iterdir()
    assert (aside / "REASON").read_text().strip() == str(error.value)
    assert store.commit(finished(store), KEY) == place


@pytest.mark.parametrize("damage", [damage for damage, *_ in DAMAGE])
def test_a_run_that_changed_a_moment_ago_may_be_arriving_and_is_left_alone(
    tmp_path: Path, damage
) -> None:
    store = Store(tmp_path / "measurements")
    place = store.commit(finished(store), KEY)
    damage(place)
    assert store.find(KEY) is None
    assert place.exists()
    beside = store.commit(finished(store), KEY)
    assert beside == place.with_name("run-2@aaaa")
    assert store.find(KEY) == beside


def test_a_run_without_checksums_is_never_adopted_and_never_moved(store: Store) -> None:
    place = store.commit(finished(store), KEY)
    sums = (place / "SHA256SUMS").read_bytes()
    (place / "SHA256SUMS").unlink()
    assert store.find(KEY) is None
    (place / "SHA256SUMS").write_bytes(sums)
    assert store.find(KEY) == place


def test_a_run_of_another_id_or_number_is_not_taken_for_this_one(store: Store) -> None:
    place = store.commit(finished(store), KEY)
    with pytest.raises(StoreError) as error:
        verify(place, Key(KEY.measurement, 3, KEY.hardware))
    assert (error.value.defect, error.value.code) == ("wrong", "other_run")
    assert f"run 2 of measurement {KEY.measurement}" in str(error.value)
    assert "Key(" not in str(error.value)


def test_other_hardware_gets_a_place_of_its_own_and_both_stay(store: Store) -> None:
    place = store.commit(finished(store), KEY)
    elsewhere = Key(KEY.measurement, KEY.run, "bbbb")
    assert store.find(elsewhere) is None
    other = store.commit(finished(store, elsewhere), elsewhere)
    assert other.name == "run-2@bbbb"
    assert store.find(KEY) == place
    assert store.find(elsewhere) == other


def test_an_unsound_run_is_refused_at_commit_and_kept_as_failed(store: Store) -> None:
    scratch = finished(store)
    (scratch / "run.json").write_text(
        json.dumps(
            {"measurement": "other", "run": 2, "hardware": {"fingerprint": "aaaa"}}
        )
    )
    with pytest.raises(StoreError):
        store.commit(scratch, KEY)
    kept = store.keep_failed(scratch, KEY)
    assert (kept / "raw" / "pcp.tar.zst").exists()
    assert store.find(KEY) is None


def test_what_this_user_cannot_read_is_said_instead_of_measured_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = store.commit(finished(store), KEY)

    def refused(path: Path) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("kveval.store.store.sha256_file", refused)
    with pytest.raises(StoreError) as error:
        store.find(KEY)
    assert error.value.defect == "unreadable"
    assert place.exists()


# Who was first


def test_of_two_writers_the_first_wins_and_the_second_is_kept_beside(
    store: Store,
) -> None:
    one, two = Store(store.root), Store(store.root)
    first, second = (
        finished(one, payload=b"first"),
        finished_elsewhere(two, payload=b"second"),
    )
    assert one.commit(first, KEY) == two.commit(second, KEY)
    folder = store.root / KEY.measurement
    assert (folder / "run-2" / "raw" / "pcp.tar.zst").read_bytes() == b"first"
    assert (folder / "run-2@aaaa" / "raw" / "pcp.tar.zst").read_bytes() == b"second"
    three = finished(store, payload=b"third")
    assert store.commit(three, KEY).name == "run-2"
    assert (folder / "run-2@aaaa-2" / "raw" / "pcp.tar.zst").read_bytes() == b"third"


def test_a_run_that_is_not_agreed_to_is_left_and_another_gets_the_next_place(
    store: Store,
) -> None:
    """As of two stacks that ran already on one machine: the one that answers now is not that of the first run."""
    first = store.commit(finished(store, payload=b"first"), KEY)

    def accept(place: Path) -> bool:
        return place != first

    assert store.find(KEY, accept) is None
    second = store.commit(finished(store, payload=b"second"), KEY, accept=accept)
    assert second.name == "run-2@aaaa"
    assert (store.find(KEY), store.find(KEY, accept)) == (first, second)


def test_the_second_stands_in_for_a_first_that_is_damaged(store: Store) -> None:
    store.commit(finished(store, payload=b"first"), KEY)
    store.commit(finished(store, payload=b"second"), KEY)
    (store.root / KEY.measurement / "run-2" / "raw" / "pcp.tar.zst").write_bytes(
        b"f1rst"
    )
    found = store.find(KEY)
    assert found is not None
    assert found.name == "run-2@aaaa"


def test_an_equal_run_of_two_writers_is_adopted_as_equal(store: Store) -> None:
    assert store.commit(finished(store), KEY) == store.commit(finished(store), KEY)
    assert [path.name for path in (store.root / KEY.measurement).iterdir()] == ["run-2"]


def test_a_rename_that_comes_too_late_finds_the_next_place(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look and the rename another host's run arrives."""
    scratch = finished(store, payload=b"second")
    rename = Path.rename

    def beaten(self: Path, target: Path) -> Path:
        if target.name == "run-2":
            monkeypatch.setattr(Path, "rename", rename)
            other = Store(store.root)
            other.commit(finished_elsewhere(other, payload=b"first"), KEY)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", beaten)
    place = store.commit(scratch, KEY)
    assert (place.name, (place / "raw" / "pcp.tar.zst").read_bytes()) == (
        "run-2",
        b"first",
    )
    assert (
        place.with_name("run-2@aaaa") / "raw" / "pcp.tar.zst"
    ).read_bytes() == b"second"


def test_a_rename_that_a_file_server_answers_twice_is_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is lost, the request repeated, and then there is nothing to rename any more."""
    scratch = finished(store)
    rename = Path.rename

    def repeated(self: Path, target: Path) -> Path:
        rename(self, target)
        raise FileNotFoundError(2, "No such file or directory", str(self))

    monkeypatch.setattr(Path, "rename", repeated)
    assert store.commit(scratch, KEY).name == "run-2"


@pytest.mark.parametrize("another", [False, True])
def test_a_run_that_is_lost_on_its_way_is_not_taken_for_another_one(
    another: bool, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = finished(store, payload=b"mine")
    rename = Path.rename

    def lost(self: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "rename", rename)
        shutil.rmtree(self)
        if another:
            other = Store(store.root)
            other.commit(finished_elsewhere(other, payload=b"other"), KEY)
        raise FileNotFoundError(2, "No such file or directory", str(self))

    monkeypatch.setattr(Path, "rename", lost)
    with pytest.raises(StoreError, match="gone before it was in place"):
        store.commit(scratch, KEY)


def test_an_id_whose_folder_is_deleted_meanwhile_gets_another(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = finished(store)
    rename = Path.rename

    def deleted(self: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "rename", rename)
        target.parent.rmdir()
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", deleted)
    assert store.commit(scratch, KEY).name == "run-2"


# Runs in progress


def test_runs_in_progress_are_left_to_whoever_is_at_them(store: Store) -> None:
    scratch = store.scratch(KEY)
    assert store.partial() == []
    another_host = scratch.with_name(f"{KEY.measurement}-run-2-elsewhere-1-1")
    another_host.mkdir()
    assert store.partial() == []


def left_by_a_killed_process(root: Path, *, sealed: bool) -> Path:
    """Have another process make a run and be killed before it moves it into place."""
    program = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom tests.support.stored_runs import KEY, finished\n"
        "from kveval.store.store import Store\n"
        "store = Store(Path(sys.argv[1]))\nscratch = finished(store)\nprint(scratch, flush=True)\n"
        "Path.rename = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"{'store.commit(scratch, KEY)' if sealed else 'os.kill(os.getpid(), signal.SIGKILL)'}\n"
    )
    repository = REPOSITORY
    environment = {**os.environ, "PYTHONPATH": f"{repository}:{repository}/scripts"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(root)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert done.returncode == -9
    return Path(done.stdout.strip())


def test_what_a_killed_process_left_unfinished_is_listed(store: Store) -> None:
    left = left_by_a_killed_process(store.root, sealed=False)
    assert store.partial() == [left]
    assert store.find(KEY) is None
    assert left.exists()


def test_a_run_that_was_sealed_when_its_process_was_killed_is_not_lost(
    store: Store,
) -> None:
    left = left_by_a_killed_process(store.root, sealed=True)
    assert (left / "SHA256SUMS").exists()
    place = store.find(KEY)
    assert place == store.root / KEY.measurement / "run-2"
    assert not left.exists()


def test_a_sealed_run_that_is_not_whole_is_not_taken(store: Store) -> None:
    left = left_by_a_killed_process(store.root, sealed=True)
    (left / "raw" / "pcp.tar.zst").write_bytes(b"archivE")
    assert store.find(KEY) is None
    assert store.partial() == [left]


def test_a_process_number_that_was_given_out_again_is_not_the_owner(
    store: Store,
) -> None:
    scratch = store.scratch(KEY)
    name, _, _ = scratch.name.rpartition("-")
    (scratch.parent / f"{name}-1").mkdir()
    assert store.partial() == [scratch.parent / f"{name}-1"]


def test_a_lock_shows_an_owner_whose_process_cannot_be_seen(store: Store) -> None:
    folder = (
        store.root
        / "partial"
        / f"{KEY.measurement}-run-2-{store_lock.owner().rpartition('-')[0]}-1"
    )
    folder.mkdir(parents=True)
    held = store_lock.hold(folder)
    assert store.partial() == []
    os.close(held)
    assert store.partial() == [folder]


# Sharing


@pytest.mark.parametrize(
    ("mode", "file_mode"), [(0o2775, 0o664), (0o755, 0o644), (0o700, 0o600)]
)
def test_whom_the_store_is_open_to_its_runs_are_open_to(
    tmp_path: Path, mode: int, file_mode: int
) -> None:
    store = Store(tmp_path / "measurements")
    store.root.mkdir()
    store.root.chmod(mode)
    before = os.umask(0o077)
    try:
        place = store.commit(finished(store), KEY)
        kept = store.keep_failed(finished(store), KEY)
        with store.no_deletions():
            pass
    finally:
        os.umask(before)
    for folder in (
        place.parent,
        place,
        place / "raw",
        kept.parent,
        kept,
        store.root / "partial",
    ):
        assert stat.S_IMODE(folder.stat().st_mode) == mode, folder
    for path in (
        place / "run.json",
        place / "SHA256SUMS",
        place / "raw" / "pcp.tar.zst",
        kept / "run.json",
        store.root / store_lock.LOCK,
    ):
        assert stat.S_IMODE(path.stat().st_mode) == file_mode, path


def test_what_deletes_waits_for_those_who_adopt_and_says_so(store: Store) -> None:
    store.commit(finished(store), KEY)
    with (
        store.no_deletions(),
        store.no_deletions(),
        pytest.raises(store_lock.StoreInUse),
        store_lock.store_lock(store.root, exclusive=True, patience_s=0.3),
    ):
        raise AssertionError("both at once")
    with store_lock.store_lock(store.root, exclusive=True, patience_s=0):
        pass


def finished_elsewhere(store: Store, payload: bytes) -> Path:
    """Make a finished run as another host would: in a folder of its own."""
    folder = store.root / "partial" / f"{KEY.measurement}-run-2-elsewhere-1-1"
    (folder / "raw").mkdir(parents=True)
    return filled(folder, payload=payload)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2e9, "2 GB"), (4.25e13, "42.5 TB")],
)
def test_a_size_is_told_in_its_unit(size: float, text: str) -> None:
    assert size_text(size) == text
