"""What is in the store was measured, whole and unchanged; everything else is set aside, never adopted, never lost."""

import json

import pytest

from kveval.store import Key, Store, StoreError, pointer, verify, write_json

KEY = Key("0123456789abcdef", 2, "aaaa")


def finished(store, key=KEY, payload=b"archive"):
    scratch = store.scratch(key)
    (scratch / "raw" / "pcp.tar.zst").write_bytes(payload)
    write_json(
        scratch / "run.json",
        {"measurement": key.measurement, "run": key.run, "hardware": {"fingerprint": key.hardware}},
    )
    return scratch


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "measurements")


def test_a_committed_run_is_found_again(store):
    assert store.find(KEY) is None
    place = store.commit(finished(store), KEY)
    assert place == store.root / KEY.measurement / "run-2"
    assert store.find(KEY) == place
    assert verify(place, KEY)["run"] == 2
    assert pointer(place, KEY)["path"] == place.as_posix()


def test_checksums_are_in_the_form_sha256sum_reads(store):
    place = store.commit(finished(store, payload=b""), KEY)
    assert (
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  raw/pcp.tar.zst"
        in (place / "SHA256SUMS").read_text().splitlines()
    )


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda place: (place / "raw" / "pcp.tar.zst").write_bytes(b"archivE"), "checksum differs"),
        (lambda place: (place / "raw" / "pcp.tar.zst").unlink(), "not readable"),
        (lambda place: (place / "SHA256SUMS").unlink(), "no readable SHA256SUMS"),
        (lambda place: (place / "SHA256SUMS").write_text(""), "does not list run.json"),
        (lambda place: (place / "run.json").write_text("{}"), "checksum differs"),
    ],
)
def test_a_damaged_run_is_set_aside_with_its_reason(store, damage, reason):
    place = store.commit(finished(store), KEY)
    damage(place)
    with pytest.raises(StoreError, match=reason):
        verify(place, KEY)
    assert store.find(KEY) is None
    assert not place.exists()
    (aside,) = (store.root / "damaged").iterdir()
    assert reason in (aside / "REASON").read_text()
    assert store.commit(finished(store), KEY) == place


def test_a_run_of_another_id_or_number_is_not_taken_for_this_one(store):
    place = store.commit(finished(store), KEY)
    with pytest.raises(StoreError, match="expected"):
        verify(place, Key(KEY.measurement, 3, KEY.hardware))


def test_other_hardware_gets_a_place_of_its_own_and_both_stay(store):
    place = store.commit(finished(store), KEY)
    elsewhere = Key(KEY.measurement, KEY.run, "bbbb")
    assert store.find(elsewhere) is None
    other = store.commit(finished(store, elsewhere), elsewhere)
    assert other.name == "run-2@bbbb"
    assert store.find(KEY) == place
    assert store.find(elsewhere) == other


def test_an_unsound_run_is_refused_at_commit_and_kept_as_failed(store):
    scratch = finished(store)
    (scratch / "run.json").write_text(
        json.dumps({"measurement": "other", "run": 2, "hardware": {"fingerprint": "aaaa"}})
    )
    with pytest.raises(StoreError):
        store.commit(scratch, KEY)
    kept = store.keep_failed(scratch, KEY)
    assert (kept / "raw" / "pcp.tar.zst").exists()
    assert store.find(KEY) is None


def test_unfinished_runs_are_listed(store):
    scratch = store.scratch(KEY)
    assert store.partial() == [scratch]
