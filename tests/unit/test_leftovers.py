"""What tests find that a program has left on the host."""

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

from tests.support.leftovers import Trace
from tests.support.testbed import wait_until


def test_a_trace_follows_what_outlives_its_program_and_ends_with_it(
    tmp_path: Path,
) -> None:
    program = "sleep 600 & echo $!; wait"
    with subprocess.Popen(["sh", "-c", program], stdout=subprocess.PIPE) as root:
        assert root.stdout is not None
        outlives = int(root.stdout.readline())
        trace = Trace(root.pid, tmp_path, interval_s=0.02)
        wait_until(lambda: "sleep 600" in trace.seen(), "the first look")
        root.kill()
    try:
        assert trace.left() == [f"process {outlives}: sleep 600"]
        assert trace.follows()
    finally:
        os.kill(outlives, signal.SIGKILL)
    wait_until(lambda: not trace.follows(), "the end of the trace")
    assert trace.left() == []


def test_a_trace_names_the_shared_memory_of_a_process_that_has_ended(
    tmp_path: Path,
) -> None:
    name = f"/dev/shm/kveval-test-{uuid.uuid4().hex}"
    program = f"""if True:
        import mmap, sys
        sys.stdin.readline()
        with open({name!r}, "wb+") as segment:
            segment.truncate(mmap.PAGESIZE)
            mapped = mmap.mmap(segment.fileno(), mmap.PAGESIZE)
        print("mapped", flush=True)
        sys.stdin.readline()
    """
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        trace = Trace(process.pid, tmp_path, interval_s=0.05)
        # By now the trace has looked more often than it does after a new segment.
        time.sleep(1.0)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "mapped\n"
        time.sleep(1.0)
        process.kill()
    trace.end()
    try:
        assert trace.left() == [name]
    finally:
        Path(name).unlink()
    assert trace.left() == []
