"""Whether this machine is quiet: what other programs take of its processors now, and waiting until they have ended."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from kveval.host.cpu_time import CpuTime
from kveval.host.disturbance import DISTURBED_PERCENT
from kveval.host.errors import Failure
from kveval.host.files import write_json
from kveval.host.processes import workflow_process
from kveval.host.sessions import ProcessIdentity

QUIET_WAIT = "KVEVAL_QUIET_WAIT_S"
"""The environment variable with the most seconds that the runs of one snakemake wait for a quiet machine, all together.

With 0 they do not look either.
"""
DEFAULT_QUIET_WAIT_S = 300.0
# A machine that was busy is quiet once it was for so long: compilers and test runners pause between programs.
_LOOK_S, _SETTLED_S = 1.0, 5.0
_REMIND_S = 60.0
Look = Callable[[float], float]
"""Returns the share of all processors that others take for so many seconds from now on, %."""


class QuietWaitError(Failure):
    """The environment variable has no number of seconds."""


def quiet_wait_s() -> float:
    """Return for how many seconds at most the runs of one snakemake wait for a quiet machine. Raises QuietWaitError."""
    text = os.environ.get(QUIET_WAIT, "").strip()
    if not text:
        return DEFAULT_QUIET_WAIT_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise QuietWaitError(
            f"{QUIET_WAIT}={text}: write the seconds that runs may wait for a quiet machine, such as 300, or 0"
        )
    return seconds


@dataclass(frozen=True)
class WaitBudget:
    """The seconds that the runs of one snakemake may wait for a quiet machine, all together: `limit_s`.

    Its runs are processes of their own, one after the other, so the file `path` has what those before have waited.
    `workflow`: the process of that snakemake. Runs of another one, or on another host, have a budget of their own, and
    so has a run that was started by hand.
    """

    limit_s: float
    path: Path
    workflow: ProcessIdentity

    @classmethod
    def from_environment(cls, path: Path) -> Self:
        """Return the budget of the snakemake that this process is a job of. Raises QuietWaitError."""
        workflow = workflow_process() or ProcessIdentity.of_this_process()
        return cls(quiet_wait_s(), path, workflow)

    def left_s(self) -> float:
        """Return how many seconds are left."""
        return max(0.0, self.limit_s - self._waited_s())

    def spend(self, seconds: float) -> None:
        """Note that this run has waited for so long."""
        content = {
            "workflow": asdict(self.workflow),
            "waited_s": round(self._waited_s() + seconds, 1),
        }
        # Without it the next run waits as if none had, which is no reason to fail.
        with contextlib.suppress(OSError):
            write_json(self.path, content)

    def _waited_s(self) -> float:
        try:
            content = json.loads(self.path.read_text())
            if content["workflow"] == asdict(self.workflow):
                return float(content["waited_s"])
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return 0.0


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

    `limit_s`: seconds that all runs together will wait for a quiet machine at most.
    """
    share = look(_LOOK_S)
    now = f"Other programs take {share:.0f} % of this machine's processors now"
    if share <= DISTURBED_PERCENT:
        return f"{now}: quiet enough to measure.", True
    return (
        f"{now}: wait until they have ended, or expect wide intervals. Runs wait until they take at most"
        f" {DISTURBED_PERCENT:.0f} %, for {limit_s:g} s in all ({QUIET_WAIT})."
    ), False


def busy_remark(look: Look = others_percent) -> str:
    """Return a clause on what others take of the processors now, for the message of a run that has failed.

    "" on a quiet machine, and where runs do not look (a limit of 0 seconds).
    """
    with contextlib.suppress(QuietWaitError):
        if quiet_wait_s() == 0:
            return ""
    share = look(_LOOK_S)
    if share <= DISTURBED_PERCENT:
        return ""
    return (
        f"; other programs take {share:.0f} % of this machine's processors, which may be the reason: the same command, once"
        " they have ended, measures this run"
    )


def wait_until_quiet(
    say: Callable[[str], None],
    budget: WaitBudget,
    look: Look = others_percent,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Return once other programs leave this machine's processors to this one, or when the budget is used up.

    A busy machine is reported with `say`: why it is waited for, each minute, and how it ended. With a limit of 0 nothing
    is looked at.
    """
    if budget.limit_s <= 0:
        return
    begin = reported = clock()
    share = look(_LOOK_S)
    if share <= DISTURBED_PERCENT:
        return
    beside = "measuring beside them; levels that they disturb are named"
    left_s = budget.left_s()
    if left_s <= 0:
        say(
            f"other programs take {share:.0f} % of this machine's processors, and the {budget.limit_s:g} s of waiting for"
            f" them are used up: {beside}"
        )
        return
    say(
        f"waiting for a quiet machine, all runs together at most {left_s:.0f} s more: other programs take {share:.0f} %"
        f" of its processors; {QUIET_WAIT}=0 does not wait"
    )
    try:
        while share > DISTURBED_PERCENT and clock() - begin < left_s:
            share = look(_SETTLED_S)
            if clock() - reported >= _REMIND_S:
                reported = clock()
                say(f"still waiting: other programs take {share:.0f} %")
    finally:
        waited_s = clock() - begin
        budget.spend(waited_s)
    if share <= DISTURBED_PERCENT:
        say(f"the machine is quiet after {waited_s:.0f} s")
    else:
        say(f"other programs still take {share:.0f} % after {waited_s:.0f} s: {beside}")
