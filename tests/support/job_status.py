"""Statuses of jobs that were never started, or of jobs on other hosts, for those who read them."""

import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from kveval.host.sessions import ProcessIdentity, process_start
from kveval.measure.status import Status, status_path

NOW = "2026-01-01T00:00:00.000000Z"
HERE = ProcessIdentity.of_this_process()
"""A process that lives."""
ELSEWHERE = ProcessIdentity("node7", "another boot", "pid:[1]", HERE.pid, HERE.start)
"""A process that cannot be seen from here."""


def leave_status(log: Path, *, silent_s: float = 0.0, **values: Any) -> Status:
    """Write a job's status beside its log, `silent_s` seconds ago; by default that of this process, starting."""
    status = Status(**{"process": HERE, "began": NOW, "beat": NOW} | values)
    path = status_path(log)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(status))
    written = time.time() - silent_s
    os.utime(path, (written, written))
    return status


def killed_process() -> ProcessIdentity:
    """Return the identity of a process of this host that is gone."""
    process = subprocess.Popen(["sleep", "600"])
    start = process_start(process.pid)
    process.kill()
    process.wait()
    assert start is not None
    return replace(HERE, pid=process.pid, start=start)
