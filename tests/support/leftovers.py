"""What a program could leave on the host, traced while it runs: only what is its own counts, whatever else goes on.

Its own are the processes below it, those of the sessions it has noted, and those that have the home it was given.
"""

import contextlib
import json
import os
import threading
from pathlib import Path

import psutil

from kveval.host.registry import (
    SHARED_MEMORY,
    SharedMemory,
    TemporaryFolder,
    mapped_by,
    thing_of,
)
from kveval.host.sessions import Session, members_of

# Whoever makes a segment maps it at once. The lists of what a process has mapped are long: reading them at every look
# took more than all the rest.
_LOOKS_AFTER_A_NEW_SEGMENT = 4


class Trace:
    """Follows a process and everything below it, and what the registry files of a home note.

    It ends with the last of these processes, or with `end`.
    """

    def __init__(self, pid: int, home: Path, interval_s: float = 0.5) -> None:
        self._interval_s = interval_s
        self._roots = [psutil.Process(pid)]
        self._home = home
        self._processes: dict[psutil.Process, str] = {}
        self._segments: set[SharedMemory] = set()
        self._looks_at: dict[tuple[str, int], int] = {}
        self._folders: set[TemporaryFolder] = set()
        self._system_v = _system_v()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        while not self._over.wait(self._interval_s):
            self.look()
            if not any(map(runs, [*self._roots, *self._processes])):
                return

    def look(self) -> None:
        """Note what there is now."""
        processes = set(self._roots)
        for root in self._roots:
            with contextlib.suppress(psutil.Error):
                processes.update(root.children(recursive=True))
        things = []
        for path in (self._home / ".cache" / "kveval").glob("*.json"):
            with contextlib.suppress(OSError, ValueError):
                things += [thing_of(entry) for entry in json.loads(path.read_text())]
        self._folders.update(
            thing for thing in things if isinstance(thing, TemporaryFolder)
        )
        processes.update(
            members_of(thing for thing in things if isinstance(thing, Session))
        )
        for process in processes:
            with contextlib.suppress(psutil.Error):
                self._processes[process] = " ".join(process.cmdline()) or process.name()
        with os.scandir(SHARED_MEMORY) as entries:
            there = [(entry.name, entry.inode()) for entry in entries]
        self._looks_at = {entry: self._looks_at.get(entry, 0) + 1 for entry in there}
        if any(n <= _LOOKS_AFTER_A_NEW_SEGMENT for n in self._looks_at.values()):
            self._segments |= mapped_by(process.pid for process in processes)

    def follows(self) -> bool:
        """Tell whether it still looks."""
        return self._thread.is_alive()

    def end(self) -> None:
        """Stop following."""
        self._over.set()
        self._thread.join()

    def seen(self) -> list[str]:
        """The command lines of all processes that were there."""
        return list(self._processes.values())

    def left(self) -> list[str]:
        """Name what of it is still there."""
        running = {
            process: line for process, line in self._processes.items() if runs(process)
        }
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("HOME") == str(self._home) and runs(process):
                    running[process] = " ".join(process.cmdline())
        remains = [
            f"process {process.pid}: {line}" for process, line in running.items()
        ]
        remains += [
            f"/dev/shm/{segment.segment}"
            for segment in self._segments
            if segment.exists()
        ]
        remains += [
            folder.path for folder in self._folders if Path(folder.path).exists()
        ]
        for process in running:
            remains += [f"port {port}" for port in _ports(process)]
        remains += [f"System V {entry}" for entry in self._system_v_left()]
        remains += [str(path) for path in (self._home / ".cache" / "kveval").glob("*")]
        return sorted(remains)

    def _system_v_left(self) -> set[str]:
        """Segments and queues of the processes that were there, whoever made the newer ones besides."""
        pids = {process.pid for process in self._processes}
        return {
            entry
            for entry, makers in _system_v().items()
            if entry not in self._system_v and makers & pids
        }


def runs(process: psutil.Process) -> bool:
    """Tell whether a process has not ended; one that nobody has waited for yet has."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _ports(process: psutil.Process) -> list[int]:
    """The ports on which a process listens."""
    with contextlib.suppress(psutil.Error):
        sockets = process.net_connections("tcp")
        return [s.laddr.port for s in sockets if s.status == psutil.CONN_LISTEN]
    return []


def _system_v() -> dict[str, frozenset[int]]:
    """System V shared memory and message queues -> the processes that the kernel names with each."""
    processes = {}
    for kind, columns in (("shm", slice(4, 6)), ("msg", slice(5, 7))):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/sysvipc/{kind}").read_text().splitlines()[1:]:
                words = line.split()
                processes[f"{kind} {words[1]}"] = frozenset(map(int, words[columns]))
    return processes
