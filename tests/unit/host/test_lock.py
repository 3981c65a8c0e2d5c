import os
import subprocess
import sys
import threading
import time

import pytest
from tests.support.paths import SCRIPTS

from kveval.host.lock import host_lock


def test_a_second_measurement_waits_and_says_for_whom(tmp_path):
    said = []
    order = []
    path = tmp_path / "lock"
    held = threading.Event()

    def first():
        with host_lock("cell A run 1", waiting=said.append, path=path):
            held.set()
            time.sleep(0.8)
            order.append("first done")

    holder = threading.Thread(target=first)
    holder.start()
    held.wait(5)
    with host_lock("cell B run 1", waiting=said.append, path=path):
        order.append("second in")
    holder.join()
    assert order == ["first done", "second in"]
    assert len(said) == 1
    assert "cell A run 1" in said[0]


def test_the_lock_of_a_killed_process_is_free(tmp_path):
    path = tmp_path / "lock"
    program = (
        "import time, pathlib\nfrom kveval.host.lock import host_lock\n"
        f"with host_lock('x', waiting=print, path=pathlib.Path({str(path)!r})):\n"
        "    print('held', flush=True)\n    time.sleep(100)\n"
    )
    job = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(SCRIPTS)},
    )
    assert job.stdout.readline() == b"held\n"
    job.kill()
    job.wait()
    waited = []
    with host_lock("y", waiting=waited.append, path=path):
        assert waited == []


def test_a_failed_measurement_leaves_no_name_behind(tmp_path):
    path = tmp_path / "lock"
    with pytest.raises(OSError, match="died"), host_lock("x", waiting=print, path=path):
        assert path.read_text()
        raise OSError("the server died")
    assert path.read_text() == ""


def test_the_lock_is_not_inherited_by_what_the_holder_starts(tmp_path):
    with host_lock("x", waiting=print, path=tmp_path / "lock"):
        child = subprocess.Popen(["sleep", "30"])
    try:
        waited = []
        with host_lock("y", waiting=waited.append, path=tmp_path / "lock"):
            assert waited == []
    finally:
        child.kill()
        child.wait()
