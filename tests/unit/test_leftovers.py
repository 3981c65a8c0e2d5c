"""What tests find that a program has left on the host."""

import os
import signal
import subprocess
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
