"""Notes on disk of what a run has started and made, so that the next run finds what a killed one left."""

import contextlib
import json
import platform
import shutil
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kveval.host.files import write_json
from kveval.host.sessions import Session

TEMPORARY_PREFIX = "kveval-run-"
SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class TemporaryFolder:
    """A run's folder in the system's place for temporary files, outside the run's own."""

    path: str

    def remove(self) -> bool:
        """Remove the folder with what is in it; tell whether it was there."""
        folder = Path(self.path)
        # The path may come from a file: nothing but what `temporary_folder` makes is ever removed.
        if not folder.name.startswith(TEMPORARY_PREFIX) or not folder.is_dir() or folder.is_symlink():
            return False
        shutil.rmtree(folder, ignore_errors=True)
        return True


@dataclass(frozen=True)
class SharedMemory:
    """A POSIX shared-memory segment or semaphore that a run's process had mapped: a file of /dev/shm."""

    segment: str
    inode: int

    def exists(self) -> bool:
        """Tell whether the segment is still there, and still the same one."""
        try:
            return (SHARED_MEMORY / self.segment).stat().st_ino == self.inode
        except OSError:
            return False

    def remove(self) -> bool:
        """Remove the segment unless it is gone, another one by now, or still in some process's use."""
        path = SHARED_MEMORY / self.segment
        if path.parent != SHARED_MEMORY or not self.exists() or self in mapped_by(_all_pids()):
            return False
        try:
            path.unlink()
        except OSError:
            return False
        return True


Thing = Session | TemporaryFolder | SharedMemory


def thing_of(entry: dict[str, Any]) -> Thing:
    """Rebuild what `vars` gave of a thing. Raises TypeError for what is none."""
    if "path" in entry:
        return TemporaryFolder(**entry)
    return SharedMemory(**entry) if "segment" in entry else Session(**entry)


def mapped_by(pids: Iterable[int]) -> set[SharedMemory]:
    """Return the segments of /dev/shm that these processes have mapped, as far as this user may look."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
                place = line.partition(f" {SHARED_MEMORY}/")[2]
                if place and not place.endswith(" (deleted)"):
                    found.add(SharedMemory(place, int(line.split(maxsplit=5)[4])))
    return found


def _all_pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


class Registry:
    """The things of the run in progress, in memory and in a file; threads may share it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._things: list[Thing] = []
        self._lock = threading.Lock()

    def add(self, thing: Thing) -> None:
        """Note something before anything can go wrong with it."""
        with self._lock:
            self._things.append(thing)
            self._write()

    def discard(self, thing: Thing) -> None:
        """Forget something that is gone."""
        with self._lock:
            self._things = [other for other in self._things if other != thing]
            self._write()

    def sessions(self) -> list[Session]:
        """Return the sessions noted now."""
        with self._lock:
            return [thing for thing in self._things if isinstance(thing, Session)]

    def segments(self) -> list[SharedMemory]:
        """Return the shared memory noted now."""
        with self._lock:
            return [thing for thing in self._things if isinstance(thing, SharedMemory)]

    def _write(self) -> None:
        write_json(self.path, [vars(thing) for thing in self._things])


def registry_path() -> Path:
    """Return where this user's measurements on this host are noted.

    Outside any results tree, because the lock that orders measurements is the host's, too; by host, because homes are
    shared.
    """
    return Path.home() / ".cache" / "kveval" / f"processes-{platform.node() or 'host'}.json"


def remove_things(things: Iterable[Thing], grace_s: float = 5.0) -> list[str]:
    """End and remove these things; return the names of those that were still there.

    Processes first: alive they would make files anew, and a segment in use is left alone.
    """
    ordered = list(things)
    living = [thing for thing in ordered if isinstance(thing, Session) and thing.members()]
    with ThreadPoolExecutor() as together:
        list(together.map(lambda session: session.kill(grace_s), living))
    removed = [f"{session.name} (session {session.sid})" for session in living]
    for folder in (thing for thing in ordered if isinstance(thing, TemporaryFolder)):
        if folder.remove():
            removed.append(folder.path)
    for segment in (thing for thing in ordered if isinstance(thing, SharedMemory)):
        if segment.remove():
            removed.append(str(SHARED_MEMORY / segment.segment))
    return removed


def remove_leftovers(path: Path) -> list[str]:
    """Remove what a killed run noted in the registry file `path`; return the names of what was still there.

    Call it under the host lock: what is noted then belongs to no living run.
    """
    try:
        noted = [thing_of(entry) for entry in json.loads(path.read_text())]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError):
        path.unlink()
        return []
    removed = remove_things(noted)
    path.unlink(missing_ok=True)
    return removed
