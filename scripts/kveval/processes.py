"""Processes of a measurement: started in sessions of their own, watched, and gone on every way out.

Three nets catch what a run starts: the context manager `supervised` on every ordinary exit; the guardian, a
tiny process that learns of every session through a pipe and kills what is left when the pipe closes, which even
SIGKILL of the job does; and the registry on disk, read by the next run (`remove_leftovers`), for what survives
a guardian that was killed too.
"""

import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil

TERMINATION_GRACE_S = 20.0
_TRACKER_GRACE_S = 3.0
_TEMPORARY_PREFIX = "kveval-run-"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Terminated(BaseException):
    """The job was asked to stop; not an Exception, so that no handler for failures swallows it."""


@dataclass(frozen=True)
class Session:
    """A process session.

    Every process whose session id is `sid`, provided its leader started at `started` (epoch s).
    """

    sid: int
    started: float
    name: str

    @classmethod
    def led_by(cls, pid: int, name: str) -> "Session":
        """Return the session that the living process `pid` leads."""
        return cls(pid, psutil.Process(pid).create_time(), name)

    def members(self) -> list[psutil.Process]:
        """Return the live processes of the session; none when its number was taken over by a later process."""
        found = []
        for process in psutil.process_iter():
            try:
                if os.getsid(process.pid) != self.sid or process.status() == psutil.STATUS_ZOMBIE:
                    continue
                if process.create_time() < self.started - 1.0:
                    return []
                found.append(process)
            except (psutil.Error, OSError):
                continue
        return found

    def kill(self, grace_s: float = TERMINATION_GRACE_S) -> int:
        """Ask the leader to stop, then kill what is left of the session after `grace_s`; return how many were killed.

        Python's resource trackers come last: once the processes they serve are gone they remove the semaphores and
        shared memory those left in /dev/shm, and end by themselves.
        """
        members = self.members()
        for process in members:
            if process.pid == self.sid:
                with contextlib.suppress(psutil.Error):
                    process.terminate()
        self._wait(grace_s, lambda: not self.members())
        killed = self._kill_all(lambda process: not _is_resource_tracker(process))
        self._wait(_TRACKER_GRACE_S, lambda: not self.members())
        return killed + self._kill_all(lambda process: True)

    def _kill_all(self, chosen: Callable[[psutil.Process], bool]) -> int:
        """Kill the chosen members until there are none: a process may fork between the listing and the kill."""
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


def _is_resource_tracker(process: psutil.Process) -> bool:
    try:
        return any("multiprocessing.resource_tracker" in word for word in process.cmdline())
    except psutil.Error:
        return False


@dataclass(frozen=True)
class TemporaryFolder:
    """A run's folder in the system's place for temporary files, outside the run's own."""

    path: str

    def remove(self) -> bool:
        """Remove the folder with what is in it; tell whether it was there."""
        folder = Path(self.path)
        # The path may come from a file: nothing but what `temporary_folder` makes is ever removed.
        if not folder.name.startswith(_TEMPORARY_PREFIX) or not folder.is_dir() or folder.is_symlink():
            return False
        shutil.rmtree(folder, ignore_errors=True)
        return True


Thing = Session | TemporaryFolder


def _thing(entry: dict[str, Any]) -> Thing:
    return TemporaryFolder(**entry) if "path" in entry else Session(**entry)


class Registry:
    """What the run in progress has started and made, in a file, so that a later run can find what a killed one left."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._things: list[Thing] = []

    def add(self, thing: Thing) -> None:
        """Note something before anything can go wrong with it."""
        self._things.append(thing)
        self._write()

    def discard(self, thing: Thing) -> None:
        """Forget something that is gone."""
        self._things = [other for other in self._things if other != thing]
        self._write()

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps([vars(thing) for thing in self._things]))
        partial.replace(self.path)


def registry_path() -> Path:
    """Return where this user's measurements on this host are noted.

    Outside any results tree, because the lock that orders measurements is the host's, too; by host, because homes are
    shared.
    """
    return Path.home() / ".cache" / "kveval" / f"processes-{platform.node() or 'host'}.json"


def remove_leftovers(path: Path) -> list[str]:
    """Remove what a killed run noted in the registry file `path`; return the names of what was still there.

    Call it under the host lock: what is noted then belongs to no living run.
    """
    try:
        noted = [_thing(entry) for entry in json.loads(path.read_text())]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError):
        path.unlink()
        return []
    removed = []
    for thing in noted:
        if isinstance(thing, TemporaryFolder):
            if thing.remove():
                removed.append(thing.path)
        elif thing.members():
            thing.kill(grace_s=5.0)
            removed.append(f"{thing.name} (session {thing.sid})")
    path.unlink(missing_ok=True)
    return removed


@dataclass
class Guardian:
    """The process that kills registered sessions when this one is gone, however it went."""

    process: "subprocess.Popen[str]"

    def watch(self, thing: Thing) -> None:
        """Hand something over."""
        pipe = self.process.stdin
        assert pipe is not None
        pipe.write(json.dumps(vars(thing)) + "\n")
        pipe.flush()


@contextlib.contextmanager
def guardian() -> Iterator[Guardian]:
    """Start a guardian; leaving the context closes its pipe, and it ends once it has found nothing left."""
    library = str(Path(__file__).resolve().parent.parent)
    process = subprocess.Popen(
        [sys.executable, "-m", "kveval.processes"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": library},
    )
    try:
        yield Guardian(process)
    finally:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.wait(timeout=TERMINATION_GRACE_S + 10)


def _guard(lines: IO[str]) -> None:
    """Body of the guardian: collect until the pipe closes, then remove what is left."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    for thing in [_thing(json.loads(line)) for line in lines]:
        if isinstance(thing, TemporaryFolder):
            thing.remove()
        else:
            thing.kill(grace_s=5.0)


@dataclass
class Supervisor:
    """Where processes are noted: the guardian and the registry of one run."""

    guardian: Guardian
    registry: Registry

    @contextlib.contextmanager
    def supervised(
        self,
        name: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        log: Path,
        cwd: Path | None = None,
        grace_s: float = TERMINATION_GRACE_S,
    ) -> Iterator["subprocess.Popen[bytes]"]:
        """Run `argv` in a session of its own, its output appended to `log`; on leaving, nothing of the session is left.

        Raises OSError when the program cannot be started.
        """
        with contextlib.ExitStack() as stack:
            with signals_deferred():
                with log.open("ab") as output:
                    process = subprocess.Popen(
                        argv,
                        env=dict(env),
                        cwd=cwd,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                        start_new_session=True,
                    )
                session = Session.led_by(process.pid, name)
                stack.callback(self._stop, session, process, grace_s)
                self.registry.add(session)
                self.guardian.watch(session)
            yield process

    @contextlib.contextmanager
    def temporary_folder(self, within: Path | None = None) -> Iterator[Path]:
        """Offer an empty folder, gone afterwards; by default with a short path, for sockets and TMPDIR."""
        # A Unix socket's path has 107 bytes, so a long TMPDIR would defeat the purpose.
        place = tempfile.gettempdir() if len(tempfile.gettempdir()) <= 40 else "/tmp"
        place = place if within is None else str(within)
        with contextlib.ExitStack() as stack:
            with signals_deferred():
                thing = TemporaryFolder(tempfile.mkdtemp(prefix=_TEMPORARY_PREFIX, dir=place))
                stack.callback(self.registry.discard, thing)
                stack.callback(thing.remove)
                self.registry.add(thing)
                self.guardian.watch(thing)
            yield Path(thing.path)

    def _stop(self, session: Session, process: "subprocess.Popen[bytes]", grace_s: float) -> None:
        with signals_deferred():
            session.kill(grace_s)
            process.wait()
            self.registry.discard(session)


@contextlib.contextmanager
def supervisor(registry: Path) -> Iterator[Supervisor]:
    """Offer supervised processes to one run, whose sessions are noted in the file `registry`."""
    with guardian() as watching:
        noted = Registry(registry)
        try:
            yield Supervisor(watching, noted)
        finally:
            registry.unlink(missing_ok=True)


@contextlib.contextmanager
def signals_deferred() -> Iterator[None]:
    """Deliver stop signals only after the body: a start must reach its teardown, and a teardown its end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    previous = {number: signal.signal(number, lambda received, _frame: arrived.append(received)) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        if arrived:
            os.kill(os.getpid(), arrived[0])


@contextlib.contextmanager
def stop_signals_raise() -> Iterator[None]:
    """Turn SIGINT, SIGTERM and SIGHUP into `Terminated`, so that every context manager on the way tears down."""

    def stop(number: int, _frame: object) -> None:
        raise Terminated(signal.Signals(number).name)

    previous = {number: signal.signal(number, stop) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def workflow_process() -> psutil.Process | None:
    """Return the nearest ancestor that is snakemake, or None when the job was started by hand."""
    for parent in psutil.Process().parents():
        with contextlib.suppress(psutil.Error):
            if any("snakemake" in Path(word).name for word in parent.cmdline()[:4]):
                return parent
    return None


@contextlib.contextmanager
def stop_when_orphaned(poll_s: float = 1.0) -> Iterator[None]:
    """Send this process SIGTERM once the snakemake above it is gone: after `kill -9` nobody else would stop it."""
    parent = workflow_process()
    over = threading.Event()

    def watch() -> None:
        while parent is not None and not over.wait(poll_s):
            if not parent.is_running() or parent.status() == psutil.STATUS_ZOMBIE:
                os.kill(os.getpid(), signal.SIGTERM)
                return

    watcher = threading.Thread(target=watch, name="orphan-watch", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


if __name__ == "__main__":
    _guard(sys.stdin)
