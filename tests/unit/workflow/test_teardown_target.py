"""Removing what killed measurements have left on this host."""

import fcntl
import subprocess
import sys
import time

import psutil
import pytest
from tests.support.config_files import CONFIG

from kveval.configuration.loading import load_config
from kveval.host.registry import Registry
from kveval.host.sessions import Session
from kveval.workflow import teardown
from kveval.workflow.teardown import StillMeasuring, tear_down

LOCAL = load_config(CONFIG / "config.yaml", CONFIG)


@pytest.fixture
def said(monkeypatch, tmp_path):
    """A registry and a lock of the test's own; what is said goes into the list."""
    monkeypatch.setattr(teardown, "registry_path", lambda: tmp_path / "processes.json")
    monkeypatch.setattr(teardown, "LOCK", tmp_path / "lock")
    return []


def test_what_a_killed_measurement_noted_is_ended(said, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
    )
    Registry(tmp_path / "processes.json").add(Session.led_by(process.pid, "server"))
    tear_down(LOCAL, said.append)
    assert said == [f"removed server (session {process.pid})"]
    process.wait(10)
    assert not psutil.pid_exists(process.pid)
    said.clear()
    tear_down(LOCAL, said.append)
    assert said == ["no killed measurement has left anything on this host"]


def test_a_measurement_that_runs_is_left_alone(said, tmp_path):
    lock = tmp_path / "lock"
    lock.write_text("process 7: somebody's run 2\n")
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
    )
    try:
        Registry(tmp_path / "processes.json").add(Session.led_by(process.pid, "server"))
        with lock.open() as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            with pytest.raises(StillMeasuring) as error:
                tear_down(LOCAL, said.append)
            assert error.value.facts == {"holders": [lock.read_text().strip()]}
        time.sleep(0.1)
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
