"""Shared memory that a run's processes had mapped is found, removed when nobody uses it, and never another's."""

import json
import os
import sys
from multiprocessing import resource_tracker, shared_memory

import psutil
import pytest

from kveval.host.processes import GuardianError, supervisor
from kveval.host.registry import (
    SHARED_MEMORY,
    Registry,
    SharedMemory,
    mapped_by,
    remove_leftovers,
    remove_things,
)


@pytest.fixture
def segment():
    made = shared_memory.SharedMemory(create=True, size=4096)
    # Removed by hand below, or by what is tested.
    resource_tracker.unregister(made._name, "shared_memory")
    path = SHARED_MEMORY / made.name
    yield made
    made.close()
    path.unlink(missing_ok=True)


def test_what_a_process_has_mapped_is_seen(segment):
    path = SHARED_MEMORY / segment.name
    assert SharedMemory(segment.name, path.stat().st_ino) in mapped_by([os.getpid()])
    assert mapped_by([2**22 + 1]) == set()


def test_a_segment_in_use_stays_and_one_that_nobody_uses_goes(segment):
    path = SHARED_MEMORY / segment.name
    noted = SharedMemory(segment.name, path.stat().st_ino)
    assert not noted.remove()
    assert path.exists()
    segment.close()
    assert remove_things([noted]) == [str(path)]
    assert not path.exists()
    assert not noted.remove()


def test_another_segment_of_the_same_name_stays(segment):
    path = SHARED_MEMORY / segment.name
    segment.close()
    assert not SharedMemory(segment.name, path.stat().st_ino + 1).remove()
    assert not SharedMemory(
        f"../{path.parent.name}/{segment.name}", path.stat().st_ino
    ).remove()
    assert path.exists()


def test_a_segment_noted_by_a_killed_run_is_removed_by_the_next(tmp_path, segment):
    path = SHARED_MEMORY / segment.name
    registry = Registry(tmp_path / "registry.json")
    registry.add(SharedMemory(segment.name, path.stat().st_ino))
    segment.close()
    assert remove_leftovers(tmp_path / "registry.json") == [str(path)]
    assert not path.exists()


def test_a_registry_that_was_being_written_when_its_run_was_killed_is_removed(tmp_path):
    (tmp_path / ".registry.json.4711").write_text("[{")
    assert remove_leftovers(tmp_path / "registry.json") == []
    assert list(tmp_path.iterdir()) == []


def test_the_supervisor_notes_what_its_processes_map_and_removes_what_they_left(
    tmp_path,
):
    """The process forgets its segment: nothing but the note knows of it."""
    program = (
        "import pathlib, sys, time\n"
        "from multiprocessing import resource_tracker, shared_memory\n"
        "made = shared_memory.SharedMemory(create=True, size=4096)\n"
        "resource_tracker.unregister(made._name, 'shared_memory')\n"
        "pathlib.Path(sys.argv[1]).write_text(made.name)\n"
        "time.sleep(100)\n"
    )
    said = tmp_path / "name"
    with supervisor(tmp_path / "registry.json") as processes:
        with processes.supervised(
            "holder",
            [sys.executable, "-c", program, str(said)],
            env=os.environ,
            log=tmp_path / "log",
            grace_s=0.2,
        ):
            while not (said.exists() and said.read_text()):
                pass
            processes.note_shared_memory()
            path = SHARED_MEMORY / said.read_text()
            assert path.exists()
            assert {"segment": path.name, "inode": path.stat().st_ino} in json.loads(
                (tmp_path / "registry.json").read_text()
            )
        assert not path.exists()


def test_a_guardian_that_is_gone_is_told_before_anything_starts(tmp_path):
    with supervisor(tmp_path / "registry.json") as processes:
        processes.guardian.process.kill()
        processes.guardian.process.wait()
        with (
            pytest.raises(GuardianError) as error,
            processes.supervised(
                "sleep", ["sleep", "300"], env=os.environ, log=tmp_path / "log"
            ),
        ):
            pytest.fail("started all the same")
        assert error.value.facts == {"pid": processes.guardian.process.pid}
    assert not [
        child for child in psutil.Process().children() if "300" in child.cmdline()
    ]
