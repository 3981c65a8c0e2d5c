"""Processes of a measurement: started in their own sessions, watched, and ended however the run ends.

Three mechanisms end what a run started: the context manager `supervised` on every ordinary exit; the guardian, a
small process that gets every session through a pipe and kills what is left when the pipe closes, as it does even
after SIGKILL of the job; and the registry on disk, read by the next run (`remove_leftovers`), in case the guardian
was killed too.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

from kveval.host.errors import Failure
from kveval.host.registry import (
    TEMPORARY_PREFIX,
    Registry,
    TemporaryFolder,
    Thing,
    mapped_by,
    remove_things,
    thing_of,
)
from kveval.host.sessions import (
    TERMINATION_GRACE_S,
    ProcessIdentity,
    Session,
    members_of,
)

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
WORKFLOW_VARIABLE = "KVEVAL_WORKFLOW_PROCESS"
"""The environment variable with the identity of the snakemake, or kveval, that a job belongs to, as JSON.

Ancestors do not tell an orphan: after the end of snakemake they are those of a job that was started by hand.
"""


class Terminated(BaseException):
    """The job was asked to stop; not an Exception, so that no handler of failures catches it."""


class GuardianError(Failure):
    """The guardian, which would clean up after a killed job, has ended."""


@dataclass
class Guardian:
    """The process that kills registered sessions however this process ends; safe to use from several threads."""

    process: "subprocess.Popen[str]"
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def watch(self, thing: Thing) -> None:
        """Register a thing to remove. Raises GuardianError if the guardian has ended: nothing may start without it."""
        pipe = self.process.stdin
        assert pipe is not None
        try:
            with self._lock:
                pipe.write(json.dumps(vars(thing)) + "\n")
                pipe.flush()
        except OSError as error:
            raise GuardianError(
                f"the guardian process {self.process.pid}, which would clean up after this job, is gone ({error})",
                pid=self.process.pid,
            ) from error


@contextlib.contextmanager
def guardian() -> Iterator[Guardian]:
    """Start a guardian; leaving the context closes its pipe, and it ends once it has removed what is left."""
    library = str(Path(__file__).resolve().parents[2])
    process = subprocess.Popen(
        [sys.executable, "-m", "kveval.host.processes"],
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
    """Body of the guardian: read entries until the pipe closes, then remove what is left of them."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    remove_things([thing_of(json.loads(line)) for line in lines])


@dataclass
class Supervisor:
    """Starts the processes of one run, and registers them with its guardian and its registry."""

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
        """Run `argv` in its own session and append its output to `log`; on leaving, end all processes of the session.

        Raises OSError if the program cannot be started.
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
        """Yield an empty folder and remove it afterwards; by default with a short path, for sockets and TMPDIR."""
        # A Unix socket's path has at most 107 bytes, so a long TMPDIR is not used.
        place = tempfile.gettempdir() if len(tempfile.gettempdir()) <= 40 else "/tmp"
        place = place if within is None else str(within)
        with contextlib.ExitStack() as stack:
            with signals_deferred():
                thing = TemporaryFolder(
                    tempfile.mkdtemp(prefix=TEMPORARY_PREFIX, dir=place)
                )
                stack.callback(self.registry.discard, thing)
                stack.callback(thing.remove)
                self.registry.add(thing)
                self.guardian.watch(thing)
            yield Path(thing.path)

    def note_shared_memory(self) -> None:
        """Register what the run's processes have mapped of /dev/shm, because killed processes cannot remove it."""
        mapped = mapped_by(
            process.pid for process in members_of(self.registry.sessions())
        )
        for segment in sorted(
            mapped - set(self.registry.segments()), key=lambda shared: shared.segment
        ):
            self.registry.add(segment)
            self.guardian.watch(segment)

    def _stop(
        self, session: Session, process: "subprocess.Popen[bytes]", grace_s: float
    ) -> None:
        with signals_deferred():
            with contextlib.suppress(GuardianError):
                self.note_shared_memory()
            session.kill(grace_s)
            process.wait()
            self.registry.discard(session)
            for segment in self.registry.segments():
                if segment.remove() or not segment.exists():
                    self.registry.discard(segment)


@contextlib.contextmanager
def supervisor(registry: Path) -> Iterator[Supervisor]:
    """Yield a Supervisor for one run, whose sessions are written to the file `registry`."""
    with guardian() as watching:
        noted = Registry(registry)
        try:
            yield Supervisor(watching, noted)
        finally:
            registry.unlink(missing_ok=True)


@contextlib.contextmanager
def signals_deferred() -> Iterator[None]:
    """Deliver stop signals only after the body, so that every start gets its teardown and no teardown is aborted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    try:
        with _handled_by(lambda number, _frame: arrived.append(number)):
            yield
    finally:
        if arrived:
            os.kill(os.getpid(), arrived[0])


@contextlib.contextmanager
def stop_signals_raise() -> Iterator[None]:
    """Turn SIGINT, SIGTERM and SIGHUP into `Terminated`, so that every open context manager tears down."""

    def stop(number: int, _frame: object) -> None:
        raise Terminated(signal.Signals(number).name)

    with _handled_by(stop):
        yield


@contextlib.contextmanager
def _handled_by(handler: Callable[[int, object], None]) -> Iterator[None]:
    previous = {number: signal.signal(number, handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)


def announce_workflow() -> None:
    """Tell the processes that this one starts from now on, by their environment, that they are jobs of it."""
    identity = asdict(ProcessIdentity.of_this_process())
    os.environ[WORKFLOW_VARIABLE] = json.dumps(identity)


def workflow_process() -> ProcessIdentity | None:
    """Return the process that this one is a job of, which may have ended; None for a job started by hand.

    That is a snakemake, or a `kveval check`. It is None as well where that one is on another host.
    """
    announced = os.environ.get(WORKFLOW_VARIABLE)
    if announced is None:
        return None
    identity = ProcessIdentity(**json.loads(announced))
    return None if identity.lives() is None else identity


@contextlib.contextmanager
def stop_when_orphaned(poll_s: float = 1.0) -> Iterator[None]:
    """Send this process SIGTERM once that which it is a job of has ended: after `kill -9` nothing else would stop it.

    Raises Terminated if it has ended already, as it may while a job starts.
    """
    workflow = workflow_process()
    over = threading.Event()

    def is_orphan() -> bool:
        return workflow is not None and workflow.lives() is False

    def watch() -> None:
        while not over.wait(poll_s):
            if is_orphan():
                os.kill(os.getpid(), signal.SIGTERM)
                return

    if is_orphan():
        raise Terminated(signal.SIGTERM.name)
    watcher = threading.Thread(target=watch, name="orphan-watch", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


if __name__ == "__main__":
    _guard(sys.stdin)
