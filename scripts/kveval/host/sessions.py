"""Process sessions: a started program and all its descendants, which can be found and ended together."""

import contextlib
import functools
import os
import platform
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

TERMINATION_GRACE_S = 20.0
_TRACKER_GRACE_S = 3.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Both readings of a leader's start come from the same kernel value; the tolerance is for rounding only.
_SAME_START_S = 2 / _TICKS_PER_S


@functools.cache
def boot_id() -> str:
    """Return the unique id of this boot of the host, "" if unknown; PIDs are only unique within a boot."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


@dataclass(frozen=True)
class _Stat:
    """One line of /proc/PID/stat; `started`: seconds since boot, independent of the wall clock."""

    pid: int
    state: str
    sid: int
    started: float


def _stat(pid: int) -> _Stat | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return _Stat(pid, fields[0], int(fields[3]), int(fields[19]) / _TICKS_PER_S)


@dataclass(frozen=True)
class Session:
    """A process session: every process whose session id is `sid`, provided its leader started at `started`.

    `started`: seconds since the boot with id `boot`, so that neither a step of the wall clock nor a reboot can make
    another program's processes look like this one's.
    """

    sid: int
    started: float
    name: str
    boot: str = field(default_factory=boot_id)

    @classmethod
    def led_by(cls, pid: int, name: str) -> "Session":
        """Return the session that the process `pid` leads. Raises ProcessLookupError if there is no such process."""
        stat = _stat(pid)
        if stat is None:
            raise ProcessLookupError(f"no process {pid} to lead the session of {name}")
        return cls(pid, stat.started, name)

    def members(self) -> list[psutil.Process]:
        """Return the live processes of the session; none if a later process has reused its session id."""
        return members_of([self])

    def kill(self, grace_s: float = TERMINATION_GRACE_S) -> int:
        """Send SIGTERM to the leader, kill what is left of the session after `grace_s`; return how many were killed.

        Python's resource trackers come last: once the processes that they serve have ended, they remove the semaphores
        and shared memory that those left in /dev/shm, and end by themselves.
        """
        for process in self.members():
            with contextlib.suppress(psutil.Error):
                if process.pid == self.sid:
                    process.terminate()
                # A stopped process can neither handle SIGTERM nor, if it is a resource tracker, clean up.
                process.send_signal(signal.SIGCONT)
        self._wait(grace_s, lambda: not self.members())
        killed = self._kill_all(lambda process: not _is_resource_tracker(process))
        self._wait(_TRACKER_GRACE_S, lambda: not self.members())
        return killed + self._kill_all(lambda process: True)

    def _kill_all(self, chosen: Callable[[psutil.Process], bool]) -> int:
        """Kill the chosen members until there are none, because one may fork between the listing and the kill."""
        killed = 0
        while members := [process for process in self.members() if chosen(process)]:
            for process in members:
                with contextlib.suppress(psutil.Error):
                    process.kill()
                    killed += 1
            time.sleep(0.05)
        return killed

    @staticmethod
    def _wait(seconds: float, over: Callable[[], bool]) -> None:
        deadline = time.monotonic() + seconds
        while not over() and time.monotonic() < deadline:
            time.sleep(0.05)


def members_of(sessions: Iterable[Session]) -> list[psutil.Process]:
    """Return the live processes of all these sessions, in one pass over the host's processes."""
    by_sid = {session.sid: session for session in sessions if session.boot == boot_id()}
    if not by_sid:
        return []
    stats_by_sid: dict[int, list[_Stat]] = {sid: [] for sid in by_sid}
    for pid in psutil.pids():
        stat = _stat(pid)
        if stat is not None and stat.sid in by_sid:
            stats_by_sid[stat.sid].append(stat)
    members = []
    for sid, stats in stats_by_sid.items():
        if any(_is_anothers(stat, by_sid[sid]) for stat in stats):
            continue
        for stat in stats:
            if stat.state not in "ZX":
                with contextlib.suppress(psutil.Error):
                    members.append(psutil.Process(stat.pid))
    return members


def process_start(pid: int) -> int | None:
    """Return the start of a living process, clock ticks since boot; None if there is no such process."""
    stat = _stat(pid)
    return (
        None
        if stat is None or stat.state in "ZX"
        else round(stat.started * _TICKS_PER_S)
    )


@dataclass(frozen=True)
class ProcessIdentity:
    """The identity of a process among those of all hosts and times.

    A process id is unique within one namespace of one boot until it is used again; `start`: clock ticks since boot.
    """

    host: str
    boot: str
    pid_namespace: str
    pid: int
    start: int

    @classmethod
    def of_this_process(cls) -> "ProcessIdentity":
        """Return the identity of the calling process."""
        pid = os.getpid()
        return cls(
            platform.node(), boot_id(), _pid_namespace(), pid, process_start(pid) or 0
        )

    def lives(self) -> bool | None:
        """Tell whether the process lives; None if it cannot be seen: on another host, in another container."""
        here = (boot_id(), _pid_namespace())
        if not all(here) or (self.boot, self.pid_namespace) != here:
            return None
        start = process_start(self.pid)
        return None if start is None and _is_hidden(self.pid) else start == self.start


def _pid_namespace() -> str:
    """Return the namespace in which this process's id is unique, "" if unknown."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _is_hidden(pid: int) -> bool:
    """Tell whether a process exists of which /proc says nothing: another user's, where it is mounted with hidepid."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def lives(process: psutil.Process) -> bool:
    """Tell whether a process still exists and is not a zombie."""
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def title_of(process: psutil.Process) -> str:
    """Return a process's title, "" if unknown; vLLM's are VLLM::EngineCore, VLLM::Worker_TP0 and so on."""
    try:
        return (process.cmdline() or [process.name()])[0]
    except psutil.Error:
        return ""


def _is_anothers(stat: _Stat, session: Session) -> bool:
    """Tell whether a process proves that another program has reused the session id."""
    if stat.pid == session.sid:
        return abs(stat.started - session.started) > _SAME_START_S
    return stat.started < session.started - _SAME_START_S


def _is_resource_tracker(process: psutil.Process) -> bool:
    try:
        return any(
            "multiprocessing.resource_tracker" in word for word in process.cmdline()
        )
    except psutil.Error:
        return False
