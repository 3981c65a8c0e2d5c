"""Stops snakemake at once, and the measurement that it runs, on SIGINT and where the reader of its output has gone.

By itself Snakemake starts no more jobs then and waits for those that run, which with a measurement can take an hour.
After SIGTERM that is what it is to do, and it is left to Snakemake.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from logging import ERROR, Handler, LogRecord
from pathlib import Path
from typing import Any

import psutil

from kveval.workflow.invocation import holds_lock, is_planning

INTERRUPTED = 128 + signal.SIGINT
"""Exit status of a snakemake that was stopped."""
DRAINED = 128 + signal.SIGTERM
"""Exit status of a snakemake that has waited for its running jobs and started no more."""
_OUTPUTS = (1, 2)
_LOOK_S = 0.2
_TEARDOWN_S = 60.0


@dataclass
class Stopping:
    """The end of this snakemake before its work is done. `reason`: why it is being stopped, "" while it is not."""

    workflow: Any
    handlers: Iterable[Handler]
    reason: str = ""
    _raised: bool = False
    _over: threading.Event = field(default_factory=threading.Event)
    _closed: set[int] = field(default_factory=set)
    _ending: threading.Thread | None = None
    _alive: list[psutil.Process] = field(default_factory=list)

    @classmethod
    def watch(cls, workflow: Any, handlers: Iterable[Handler]) -> Stopping:
        """Watch for what stops a snakemake, unless this process runs a job of one; `handlers`: those of its log."""
        console = (sys.stdout, sys.stderr)
        stopping = cls(
            workflow,
            [
                handler
                for handler in handlers
                if getattr(handler, "stream", None) in console
            ],
        )
        if (
            workflow.is_main_process
            and threading.current_thread() is threading.main_thread()
        ):
            signal.signal(signal.SIGINT, stopping._interrupted)
            for handler in stopping.handlers:
                handler.emit = _unless_closed(handler.emit)  # type: ignore[method-assign, assignment]
            threading.Thread(
                target=stopping._watch_outputs, name="output-watch", daemon=True
            ).start()
        return stopping

    def finish(self) -> str:
        """Wait until the jobs of this host have ended, at most a minute longer than Snakemake does, and say so."""
        self._over.set()
        if self._ending is not None:
            self._ending.join()
        if self._alive:
            return f"still running: {', '.join(f'process {job.pid}' for job in self._alive)}"
        return "the jobs on this host have ended; what they had started, here or on a cluster, is gone, or their logs name it"

    @property
    def output(self) -> Any:
        """The stream for the last lines: standard output unless its reader has gone."""
        return sys.stderr if sys.stdout.fileno() in self._closed else sys.stdout

    def _interrupted(self, _number: int, frame: Any) -> None:
        """Handle SIGINT; a second one changes nothing."""
        self.reason = self.reason or "SIGINT"
        if is_planning(self.workflow):
            self._end_planning()
        if self._ending is None:
            for handler in self.handlers:
                handler.addFilter(_no_error)
            self._ending = threading.Thread(
                target=self._end_jobs, name="stop", daemon=True
            )
            self._ending.start()
        # Snakemake's log ignores an exception that is raised while it writes: the thread sends the signal again.
        if not self._raised and all(code != "emit" for code in _functions(frame)):
            self._raised = True
            raise SystemExit(INTERRUPTED)

    def _end_planning(self) -> None:
        """Exit, before any job was started; where Snakemake holds no lock, at once: it takes errors for its rules'."""
        if not self._closed:
            print("\nStopped before anything was started.", file=sys.stderr, flush=True)
        if holds_lock(self.workflow):
            raise SystemExit(INTERRUPTED)
        os._exit(INTERRUPTED)

    def _end_jobs(self) -> None:
        """Send SIGTERM to every job of this host once, also to those that just start, until Snakemake has ended."""
        signalled: set[psutil.Process] = set()
        while True:
            for job in jobs_below(psutil.Process()):
                if job not in signalled:
                    signalled.add(job)
                    with contextlib.suppress(psutil.Error):
                        job.terminate()
            if self._over.wait(_LOOK_S):
                break
            if not self._raised:
                os.kill(os.getpid(), signal.SIGINT)
        _, self._alive = psutil.wait_procs(signalled, timeout=_TEARDOWN_S)

    def _watch_outputs(self) -> None:
        """Stop snakemake when a pipe that it writes to has lost its reader."""
        looked = select.poll()
        for number in _OUTPUTS:
            with contextlib.suppress(OSError):
                mode = os.fstat(number).st_mode
                if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
                    looked.register(number, 0)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        while not self._over.is_set():
            for number, _ in looked.poll(1000):
                looked.unregister(number)
                os.dup2(nowhere, number)
                self._closed.add(number)
                self.reason = self.reason or "the reader of its output has gone"
                os.kill(os.getpid(), signal.SIGINT)


def jobs_below(snakemake: psutil.Process) -> list[psutil.Process]:
    """Return the scripts that run as jobs of a snakemake; of a job that measures with another script, that one.

    What a measurement started is in sessions of its own, and ended by it.
    """
    session = os.getsid(snakemake.pid)

    def below(parent: psutil.Process) -> Iterator[psutil.Process]:
        with contextlib.suppress(psutil.Error, OSError):
            for child in parent.children():
                if os.getsid(child.pid) != session:
                    continue
                inner = list(below(child))
                if inner:
                    yield from inner
                elif _is_script(child):
                    yield child

    return list(below(snakemake))


def _is_script(process: psutil.Process) -> bool:
    words = [Path(word) for word in process.cmdline()[:3]]
    return any(word.parent.name == "scripts" and word.suffix == ".py" for word in words)


def _functions(frame: Any) -> Iterator[str]:
    while frame is not None:
        yield frame.f_code.co_name
        frame = frame.f_back


def _unless_closed(emit: Callable[[LogRecord], None]) -> Callable[[LogRecord], None]:
    def write(record: LogRecord) -> None:
        with contextlib.suppress(BrokenPipeError):
            emit(record)

    return write


def _no_error(record: LogRecord) -> bool:
    """Keep the errors of jobs that are ended, with all of their command lines, from the last lines."""
    return record.levelno < ERROR
