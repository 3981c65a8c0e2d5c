"""What the host does to a run: kills it, fills its disk, sets its clock; and what a run must not do to the host.

The whole job runs, on stand-ins for vLLM and GuideLLM, with a real recording (see fault_chain.py).
"""

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import zstandard
from tests.support.fault_chain import (
    NOTICED,
    PATIENCE_S,
    STAND_INS,
    Chain,
    in_level,
    needs_pcp,
)
from tests.support.paths import SCRIPTS

from kveval.measure.status import absence_of, read_status, status_path

pytestmark = pytest.mark.workflow
_UNSHARE = ["unshare", "--mount", *(["--map-root-user"] if os.getuid() else [])]


def mounted(place: Path, size: str) -> list[str]:
    """Start a program with a file system of its own, in memory, on `place`; it is gone with the program."""
    script = f'mount -t tmpfs -o size={size} tmpfs "{place}" && exec "$@"'
    return [*_UNSHARE, "sh", "-c", script, "sh"]


def _mounts_problem() -> str:
    try:
        done = subprocess.run(
            [*mounted(Path("/mnt"), "1m"), "true"], capture_output=True, text=True
        )
    except OSError as error:
        return str(error)
    return (
        ""
        if done.returncode == 0
        else f"no file system of its own for a process here: {done.stderr.strip()}"
    )


MOUNTS_PROBLEM = _mounts_problem()
needs_mounts = pytest.mark.skipif(
    bool(MOUNTS_PROBLEM), reason=MOUNTS_PROBLEM or "mounting works"
)


def long_level(chain: Chain) -> None:
    chain.configure(workloads={"short": {"seconds": 30}})


def short_level(chain: Chain) -> None:
    chain.configure(workloads={"short": {"seconds": 3}})


# Killed


@needs_pcp
def test_a_killed_job_leaves_nothing_running_and_a_rerun_completes(
    chain: Chain,
) -> None:
    long_level(chain)
    job = chain.start()
    in_level(job)
    assert absence_of(chain.log).state == "running"
    job.process.kill()
    job.end()
    killed = (
        r"failed: its job was killed; its last line was: 2 streams \(level 1 of 1\)"
    )
    assert re.match(killed, str(absence_of(chain.log)))
    # The guardian, not the next run, ends what the job had started.
    assert chain.left(20, noted=False) == []
    (unfinished,) = chain.store.glob("partial/*")
    short_level(chain)
    again = chain.start()
    assert again.end(PATIENCE_S) == 0
    assert f"left unfinished: {unfinished.name}" in again.log_text()
    assert list(chain.store.glob("partial/*")) == []


@needs_pcp
def test_shared_memory_of_processes_killed_with_their_guardian_is_removed_by_the_next_run(
    chain: Chain,
) -> None:
    """What a kernel short of memory does, or a user with killall -9: nobody is left to tidy up."""
    long_level(chain)
    job = chain.start()
    in_level(job)
    job.wait_until(lambda: "psm_" in chain.registry(), PATIENCE_S)
    everything = psutil.Process(job.process.pid).children(recursive=True)
    for process in [psutil.Process(job.process.pid), *everything]:
        with contextlib.suppress(psutil.Error):
            process.suspend()
    for process in [psutil.Process(job.process.pid), *everything]:
        with contextlib.suppress(psutil.Error):
            process.kill()
    job.end()
    left = [
        thing
        for thing in chain.left(5, noted=False)
        if thing.startswith("/dev/shm/psm_")
    ]
    assert len(left) == 1
    foreign = Path("/dev/shm") / f"kveval-test-{os.getpid()}"
    foreign.touch()
    try:
        short_level(chain)
        again = chain.start()
        assert again.end(PATIENCE_S) == 0
        assert f"left running: {left[0]}" in again.log_text()
        assert foreign.exists()
    finally:
        foreign.unlink()


@needs_pcp
def test_without_its_guardian_a_job_starts_nothing_more(chain: Chain) -> None:
    # The generators of the first two start with the server, that of the third after them.
    chain.configure(workloads={"short": {"levels": [2, 3, 4]}})
    job = chain.start()
    in_level(job, count=3)
    job.child(r"-m kveval\.host\.processes").kill()
    job.wait_for(
        NOTICED
        + r"the guardian process \d+, which would clean up after this job, is gone",
        PATIENCE_S,
    )
    assert job.end(PATIENCE_S) == 1


# The clock


@needs_pcp
def test_a_level_over_a_step_of_the_wall_clock_is_no_measurement(
    chain: Chain, record_fault: Callable[..., None]
) -> None:
    """The job's clock is stepped, not the host's, by a program that starts the job under a clock of its own."""
    long_level(chain)
    stepped = chain.folder / "stepped"
    job = chain.start(
        [sys.executable, str(STAND_INS / "stepped_clock.py"), str(stepped)]
    )
    in_level(job)
    stepped.write_text("-3600")
    cause = r"the wall clock was set by -3600\.\d s during the measurement"
    record_fault("clock stepped in a level", job.wait_for(NOTICED + cause, 5), 5)
    assert job.end(PATIENCE_S) == 1


# Disk and shared memory, each on a file system of its own that only the job sees


@needs_pcp
@needs_mounts
def test_a_full_disk_is_found_before_anything_starts(chain: Chain) -> None:
    chain.store.mkdir()
    job = chain.start(mounted(chain.store, "40m"))
    assert job.end(PATIENCE_S) == 1
    assert re.search(r"FAILED: no room\b.*\b40 MiB free\b.*\b\d+ MiB\b", job.log_text())
    assert "starting the server" not in job.log_text()


@needs_pcp
@needs_mounts
def test_a_disk_that_fills_up_in_a_level_ends_it(
    chain: Chain, record_fault: Callable[..., None]
) -> None:
    long_level(chain)
    chain.store.mkdir()
    job = chain.start(mounted(chain.store, "400m"))
    in_level(job)
    filler = Path(f"/proc/{job.process.pid}/root{chain.store}/filler")
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(2**20))
    cause = r"no room on the disk of \S+: \d+ MiB free, stopping in order takes 32 MiB"
    record_fault("disk filled in a level", job.wait_for(NOTICED + cause, 5), 5)
    assert job.end(PATIENCE_S) == 1


FULL_DISK = """
import sys
from pathlib import Path
from kveval.measure.status import absence_of, keep_status

log = Path(sys.argv[1])
with keep_status(log) as file:
    file.update(line="starting the server")
    try:
        with (log.parent / "filler").open("wb", buffering=0) as filler:
            while filler.write(bytes(4096)):
                pass
    except OSError as error:
        assert file.update(state="failed", message=str(error))
print(absence_of(log), sorted(path.name for path in log.parent.iterdir()))
"""


@needs_mounts
def test_on_a_full_disk_a_job_still_tells_how_it_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path / "run-1.log")]
    done = subprocess.run(
        [*mounted(tmp_path, "64k"), *command],
        cwd=SCRIPTS,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "failed: [Errno 28] No space left on device ['filler', 'run-1.status.json']\n"
    )
    assert done.stderr == ""


BUSY = """
import sys, time
from pathlib import Path
from kveval.measure.status import keep_status

with keep_status(Path(sys.argv[1])) as file:
    file.update(line="2 streams")
    print(flush=True)
    time.sleep(600)
"""


@needs_mounts
def test_a_job_in_a_container_of_this_host_is_judged_by_its_beats(
    tmp_path: Path,
) -> None:
    """The container numbers its processes itself: this job's number is that of another process here."""
    log = tmp_path / "run-1.log"
    container = [*_UNSHARE, "--pid", "--fork", "--mount-proc"]
    job = subprocess.Popen(
        [*container, sys.executable, "-c", BUSY, str(log)],
        cwd=SCRIPTS,
        stdout=subprocess.PIPE,
    )
    assert job.stdout is not None
    job.stdout.readline()
    (inside,) = psutil.Process(job.pid).children()
    try:
        assert read_status(status_path(log))[0].process.pid == 1
        assert str(absence_of(log)) == "running: 2 streams"
    finally:
        inside.kill()
        job.wait()
    assert str(absence_of(log)) == "running: 2 streams"
    long_ago = time.time() - 60
    os.utime(status_path(log), (long_ago, long_ago))
    assert "given no sign of life" in str(absence_of(log))


@needs_pcp
@needs_mounts
def test_shared_memory_that_is_too_small_is_found_before_anything_starts(
    chain: Chain,
) -> None:
    job = chain.start(mounted(Path("/dev/shm"), "64m"))
    assert job.end(PATIENCE_S) == 1
    assert re.search(r"FAILED: /dev/shm\b.*\b64 MiB\b.*\b400 MiB\b", job.log_text())
    assert "starting the server" not in job.log_text()


# Secrets


@needs_pcp
@pytest.mark.parametrize(
    "fault", ["prints its environment", "prints its secret and dies"]
)
def test_a_secret_reaches_no_file_no_log_and_no_command_line(
    chain: Chain, fault: str
) -> None:
    secret = "hf_" + "marker" * 5
    chain.env |= {"HF_TOKEN": secret + "1", "KVEVAL_TEST_SECRET": secret + '2"\\ü'}
    chain.configure(
        secrets=["HF_TOKEN", "KVEVAL_TEST_SECRET"], server={"env": {"FAULT": fault}}
    )
    job = chain.start()
    died = fault.endswith("dies")
    assert job.end(PATIENCE_S) == (1 if died else 0)
    assert holding(secret, chain.folder) == []
    assert not any(secret in line for trace in chain.traces for line in trace.seen())
    if died:
        assert re.search(
            r"FAILED: .*\(exit code 1\): ValueError: .*\[KVEVAL_TEST_SECRET\]",
            job.log_text(),
        )
    else:
        # It was handed over, printed, and taken out.
        (log,) = chain.store.glob("*/run-1/raw/server.log.zst")
        assert "'KVEVAL_TEST_SECRET': '[KVEVAL_TEST_SECRET]'" in unpacked(log).decode()
        # A miniature is not told the token of the model hub, which it does not need.
        assert "HF_TOKEN" not in unpacked(log).decode()


def test_a_secret_in_the_configuration_stops_the_run(chain: Chain) -> None:
    chain.env |= {"HF_TOKEN": "hf_marker"}
    chain.configure(server={"args": ["--api-key", "hf_marker"]})
    job = chain.start()
    assert job.end(PATIENCE_S) == 1
    assert re.search(r"FAILED: .*\bHF_TOKEN in clear", job.log_text())


def holding(secret: str, folder: Path) -> list[str]:
    """Return the files below `folder`, packed or not, that hold the secret."""
    found = []
    for path in folder.rglob("*"):
        if path.is_file():
            content = path.read_bytes() + (
                unpacked(path) if path.suffix == ".zst" else b""
            )
            if secret.encode() in content:
                found.append(str(path))
    return found


def unpacked(path: Path) -> bytes:
    content: bytes = (
        zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read()
    )
    return content
