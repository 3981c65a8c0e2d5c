"""Whether this machine is quiet: what other programs take of its processors now, and waiting until they have ended."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable

from kveval.host.cpu_time import CpuTime
from kveval.host.errors import Failure
from kveval.host.processes import workflow_process

DISTURBED_PERCENT = 10.0
"""Share of the processors' time, %: if others take more, a server is not as fast as it is alone.

On a quiet host of two cores it is 0.4, with 16 streams; beside tests at idle priority it was 29 to 52.
"""
QUIET_WAIT = "KVEVAL_QUIET_WAIT_S"
"""The environment variable with the most seconds that a run waits for a quiet machine; 0: it does not look either."""
DEFAULT_QUIET_WAIT_S = 300.0
# A machine that was busy is quiet once it was for so long: compilers and test runners pause between programs.
_LOOK_S, _SETTLED_S = 1.0, 5.0
_REMIND_S = 60.0
Look = Callable[[float], float]
"""Returns the share of all processors that others take for so many seconds from now on, %."""


class QuietWaitError(Failure):
    """The environment variable has no number of seconds."""


def quiet_wait_s() -> float:
    """Return for how many seconds at most a run waits for a quiet machine. Raises QuietWaitError."""
    text = os.environ.get(QUIET_WAIT, "").strip()
    if not text:
        return DEFAULT_QUIET_WAIT_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise QuietWaitError(
            f"{QUIET_WAIT}={text}: write the seconds that a run may wait for a quiet machine, such as 300, or 0"
        )
    return seconds


def others_percent(seconds: float) -> float:
    """Return the share of all processors that other programs than this workflow take in the next seconds, %.

    Its other jobs, which analyse what was measured before, are soon over, and no reason to wait.
    """
    workflow = workflow_process()
    own = [] if workflow is None else [workflow.pid]
    before = CpuTime.now(own)
    time.sleep(seconds)
    return CpuTime.now(own).others_percent(before) or 0.0


def describe_now(limit_s: float, look: Look = others_percent) -> tuple[str, bool]:
    """Return what others take of the processors now and what it means, and whether the machine is quiet.

    `limit_s`: seconds that each run will wait for a quiet machine at most.
    """
    share = look(_LOOK_S)
    now = f"Other programs take {share:.0f} % of this machine's processors now"
    if share <= DISTURBED_PERCENT:
        return f"{now}: quiet enough to measure.", True
    return (
        f"{now}: wait until they have ended, or expect wide intervals. Each run waits until they take at most"
        f" {DISTURBED_PERCENT:.0f} %, for {limit_s:g} s at most ({QUIET_WAIT})."
    ), False


def wait_until_quiet(
    say: Callable[[str], None],
    limit_s: float,
    look: Look = others_percent,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Return once other programs leave this machine's processors to this one, or after `limit_s` seconds.

    A wait is reported with `say`: why, each minute, and how it ended. With a limit of 0 nothing is looked at.
    """
    if limit_s <= 0:
        return
    begin = reported = clock()
    share = look(_LOOK_S)
    if share <= DISTURBED_PERCENT:
        return
    say(
        f"waiting for a quiet machine, {limit_s:g} s at most: other programs take {share:.0f} % of its processors;"
        f" {QUIET_WAIT}=0 does not wait"
    )
    while share > DISTURBED_PERCENT and clock() - begin < limit_s:
        share = look(_SETTLED_S)
        if clock() - reported >= _REMIND_S:
            reported = clock()
            say(f"still waiting: other programs take {share:.0f} %")
    waited_s = clock() - begin
    if share <= DISTURBED_PERCENT:
        say(f"the machine is quiet after {waited_s:.0f} s")
    else:
        say(
            f"other programs still take {share:.0f} % after {waited_s:.0f} s: measuring beside them; levels that they"
            " disturb are named"
        )
