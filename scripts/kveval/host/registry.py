"""A file of everything that a run has started and created, so that the next run finds what a killed one left."""

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

import psutil

from kveval.host.files import write_json
from kveval.host.sessions import Session

TEMPORARY_PREFIX = "kveval-run-"
SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class TemporaryFolder:
    """A run's folder among the system's temporary files, outside the run's own folder."""

    path: str

    def remove(self) -> bool:
        """Remove the folder with its content; return whether it existed."""
        folder = Path(self.path)
        # The path may come from a file, so only folders with the prefix of `temporary_folder` are removed.
        if (
            not folder.name.startswith(TEMPORARY_PREFIX)
            or not folder.is_dir()
            or folder.is_symlink()
        ):
            return False
        shutil.rmtree(folder, ignore_errors=True)
        return True


@dataclass(frozen=True)
class SharedMemory:
    """A POSIX shared-memory segment or semaphore that a process of a run had mapped: a file in /dev/shm."""

    segment: str
    inode: int

    def exists(self) -> bool:
        """Tell whether the segment still exists, with the same inode."""
        try:
            return (SHARED_MEMORY / self.segment).stat().st_ino == self.inode
        except OSError:
            return False

    def remove(self) -> bool:
        """Remove the segment unless it is gone, replaced by another, or still mapped; return whether it was removed."""
        path = SHARED_MEMORY / self.segment
        if (
            path.parent != SHARED_MEMORY
            or not self.exists()
            or self in mapped_by(psutil.pids())
        ):
            return False
        try:
            path.unlink()
        except OSError:
            return False
        return True


Thing = Session | TemporaryFolder | SharedMemory


def thing_of(entry: dict[str, Any]) -> Thing:
    """Return the thing whose `vars` are `entry`. Raises TypeError for an entry of another form."""
    if "path" in entry:
        return TemporaryFolder(**entry)
    return SharedMemory(**entry) if "segment" in entry else Session(**entry)


def mapped_by(pids: Iterable[int]) -> set[SharedMemory]:
    """Return the segments of /dev/shm that these processes have mapped, as far as this user may read that."""
    segments = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in (
                Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
            ):
                place = line.partition(f" {SHARED_MEMORY}/")[2]
                if place and not place.endswith(" (deleted)"):
                    segments.add(SharedMemory(place, int(line.split(maxsplit=5)[4])))
    return segments


class Registry:
    """The things of the run in progress, in memory and in a file; safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._things: list[Thing] = []
        self._lock = threading.Lock()

    def add(self, thing: Thing) -> None:
        """Add a thing, as soon as it exists."""
        with self._lock:
            self._things.append(thing)
            self._write()

    def discard(self, thing: Thing) -> None:
        """Remove a thing that no longer exists from the registry."""
        with self._lock:
            self._things = [other for other in self._things if other != thing]
            self._write()

    def sessions(self) -> list[Session]:
        """Return the registered sessions."""
        with self._lock:
            return [thing for thing in self._things if isinstance(thing, Session)]

    def segments(self) -> list[SharedMemory]:
        """Return the registered shared memory."""
        with self._lock:
            return [thing for thing in self._things if isinstance(thing, SharedMemory)]

    def _write(self) -> None:
        write_json(self.path, [vars(thing) for thing in self._things])


def registry_path() -> Path:
    """Return the path of the registry of this user's measurements on this host.

    Outside any result tree, because the measurement lock is one per host, too; with the host's name, because home
    folders may be shared by hosts.
    """
    return (
        Path.home()
        / ".cache"
        / "kveval"
        / f"processes-{platform.node() or 'host'}.json"
    )


def remove_things(things: Iterable[Thing], grace_s: float = 5.0) -> list[str]:
    """End and remove these things; return the names of those that were still there.

    Processes first, because they could create files again, and a segment in use is not removed.
    """
    ordered = list(things)
    living = [
        thing for thing in ordered if isinstance(thing, Session) and thing.members()
    ]
    noted = {thing for thing in ordered if isinstance(thing, SharedMemory)}
    mapped = mapped_by(member.pid for session in living for member in session.members())
    with ThreadPoolExecutor() as together:
        list(together.map(lambda session: session.kill(grace_s), living))
    removed = [f"{session.name} (session {session.sid})" for session in living]
    for folder in (thing for thing in ordered if isinstance(thing, TemporaryFolder)):
        if folder.remove():
            removed.append(folder.path)
    for segment in sorted(noted | mapped, key=lambda segment: segment.segment):
        if segment.remove():
            removed.append(str(SHARED_MEMORY / segment.segment))
    return removed


def remove_leftovers(path: Path) -> list[str]:
    """Remove what a killed run listed in the registry file `path`; return the names of what was still there.

    Call it while holding the host lock, so that the entries belong to no living run.
    """
    for interrupted in path.parent.glob(f".{path.name}.*"):
        interrupted.unlink(
            missing_ok=True
        )  # the run was killed while it wrote the registry
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
