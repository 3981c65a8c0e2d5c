"""A SLURM of the test's own, by the scripts in the folder that KVEVAL_SLURM_TESTBED names."""

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

VARIABLE = "KVEVAL_SLURM_TESTBED"
# Its ports and /etc/slurm are the host's.
_LOCK = Path(tempfile.gettempdir()) / "kveval-slurm-testbed.lock"


def missing() -> str | None:
    """Why no SLURM can be started here, None where one can."""
    folder = os.environ.get(VARIABLE)
    if folder is None:
        return f"{VARIABLE} names no folder with start.sh and stop.sh"
    if os.geteuid() != 0:
        return "a SLURM of one's own needs root"
    absent = [
        name
        for name in ("slurmctld", "slurmd", "munged", "sbatch")
        if shutil.which(name) is None
    ]
    return f"no {', '.join(absent)} (packages slurm-wlm and munge)" if absent else None


@contextmanager
def slurm(state: Path) -> Iterator[None]:
    """Run a SLURM with its state in `state`; it answers when the block begins. Waits for another one's end."""
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with _running(state):
            yield


@contextmanager
def _running(state: Path) -> Iterator[None]:
    scripts = Path(os.environ[VARIABLE])
    try:
        with (state.parent / "slurm-start.log").open("wb") as log:
            subprocess.run(
                ["bash", scripts / "start.sh", state],
                stdout=log,
                stderr=log,
                check=True,
                timeout=60,
            )
        answer = subprocess.run(
            ["sinfo", "--noheader", "--format", "%T"],
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert answer.stdout.split() == ["idle"], answer.stdout + answer.stderr
        yield
    finally:
        subprocess.run(["scancel", "--user", "root"], timeout=30)
        subprocess.run(["bash", scripts / "stop.sh", state], check=True, timeout=60)


def finished_jobs(state: Path) -> int:
    """How many jobs this SLURM was given and has done, by its controller's log."""
    return len(
        re.findall(
            r"_job_complete: JobId=\d+ done",
            (state / "log" / "slurmctld.log").read_text(),
        )
    )
