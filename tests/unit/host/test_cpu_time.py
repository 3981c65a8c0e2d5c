"""What others take of the processors' time: all that is not idle, less this process and its descendants."""

import subprocess
import sys
import time

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveval.host.cpu_time import CpuTime

SPIN = "import time\nwhile time.process_time() < 0.4: pass"
SECONDS = st.floats(0, 1e6)


def test_work_of_this_process_and_of_ended_children_is_its_own() -> None:
    before = CpuTime.now()
    subprocess.run([sys.executable, "-c", SPIN], check=True)
    begin = time.process_time()
    while time.process_time() - begin < 0.2:
        pass
    after = CpuTime.now()
    assert 0.55 < after.own_s - before.own_s < 2.0
    assert after.busy_s - before.busy_s >= 0.5
    share = after.others_percent(before)
    assert share is not None
    assert 0 <= share <= 100


def test_a_child_that_still_works_is_counted() -> None:
    before = CpuTime.now()
    spin = SPIN.replace("0.4", "30")
    with subprocess.Popen([sys.executable, "-c", spin]) as child:
        try:
            deadline = time.monotonic() + 20
            while CpuTime.now().own_s - before.own_s < 0.3:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        finally:
            child.kill()


def test_a_process_that_somebody_else_started_is_own_if_it_is_said_to_be() -> None:
    spin = SPIN.replace("0.4", "30")
    # A grandchild whose parent has ended belongs to nobody here.
    start = (
        "import subprocess, sys\n"
        f"argv = [sys.executable, '-c', {spin!r}]\n"
        "print(subprocess.Popen(argv, stdout=subprocess.DEVNULL).pid)"
    )
    told = subprocess.run(
        [sys.executable, "-c", start], check=True, stdout=subprocess.PIPE
    )
    pid = int(told.stdout)
    try:
        before, alone = CpuTime.now([pid]), CpuTime.now()
        deadline = time.monotonic() + 20
        while CpuTime.now([pid]).own_s - before.own_s < 0.4:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert CpuTime.now().own_s - alone.own_s < 0.3
    finally:
        psutil.Process(pid).kill()


@given(SECONDS, SECONDS, SECONDS, st.floats(0.01, 100))
def test_the_share_lies_between_none_and_all(
    own_s: float, others_s: float, idle_s: float, since: float
) -> None:
    before = CpuTime(since, since, since)
    busy_s = own_s + others_s
    after = CpuTime(since + own_s, since + busy_s, since + busy_s + idle_s)
    share = after.others_percent(before)
    whole_s = after.all_s - before.all_s
    if whole_s <= 0:
        assert share is None
    else:
        expected = min(100.0, 100 * others_s / whole_s)
        assert share == pytest.approx(expected, rel=1e-3, abs=0.1)
