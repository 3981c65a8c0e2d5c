"""The status of a run's job: status.json beside its log, which the job writes and every other program reads.

The job renews its file every ten seconds. A job whose file says that it is at work is dead once its process is gone,
where that can be seen: on its host, outside of other containers. From elsewhere it is dead after three missed beats, by
the clock of the file system. Logs are for people: no state is read from their words.
"""

import contextlib
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from kveval.host.errors import code_of
from kveval.host.files import fresh_file_time_s
from kveval.host.sessions import ProcessIdentity
from kveval.store.run_file import time_text

BEAT_S = 10.0
# The third beat after the last may be late by half of its interval.
_DEAD_AFTER_S = 3.5 * BEAT_S

State = Literal["starting", "measuring", "adopted", "measured", "failed", "stopped"]
_AT_WORK = ("starting", "measuring")
NOT_STARTED = "not_started"
"""Code of a run that was not started, because all runs before it failed alike."""
_ASK_S = 10.0
TIME_LIMIT = "time_limit"
"""Code of a run whose SLURM job has used up its time."""
_FAILED_AT_LEAST = 3


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The record that a job keeps of itself in status.json; docs/faults.md describes it.

    `began`, `beat`: when the job began and when it last wrote this, UTC by its host's clock. `phase`: a name among the
    `phases` of run.json; `level`: the last level; `line`: what the job last said. `files`: where the
    attempt's files are. `code` and `message`: why it failed or was stopped.
    """

    schema: Literal[1] = 1
    process: ProcessIdentity
    began: str
    beat: str
    state: State = "starting"
    phase: str = ""
    level: int | None = None
    line: str = ""
    files: str = ""
    code: str = ""
    message: str = ""


def slurm_end_s() -> float:
    """Return when SLURM's time limit ends this process's job, epoch seconds; infinity without one that it tells."""
    if end_s := os.environ.get("SLURM_JOB_END_TIME"):
        return float(end_s)
    # Releases before 23.02 do not set it.
    try:
        command = ["scontrol", "show", "job", os.environ["SLURM_JOB_ID"]]
        shown = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_S)
        end = shown.stdout.partition("EndTime=")[2].split()[0]
        return datetime.fromisoformat(end).timestamp()
    except (LookupError, OSError, subprocess.SubprocessError, ValueError):
        return math.inf


def status_path(log: Path) -> Path:
    """Return the path of the status of the job that writes `log`."""
    return log.with_suffix(".status.json")


class StatusFile:
    """The status of this process's job and its file; safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        now = time_text(time.time())
        self.status = Status(
            process=ProcessIdentity.of_this_process(), began=now, beat=now
        )
        self._lock = threading.Lock()
        self._warned = False

    def update(self, **changes: Any) -> bool:
        """Change fields of the status and write it; return whether it could be written.

        That it could not is said once, on standard error: a job goes on without its status.
        """
        texts = {
            name: _encodable(value) if isinstance(value, str) else value
            for name, value in changes.items()
        }
        with self._lock:
            self.status = msgspec.structs.replace(
                self.status, **texts, beat=time_text(time.time())
            )
            document = msgspec.json.encode(self.status)
            content = msgspec.json.format(document, indent=1) + b"\n"
            try:
                _write(self.path, content)
            except OSError as error:
                self._warn(error)
                return False
        return True

    def _warn(self, error: OSError) -> None:
        if self._warned:
            return
        self._warned = True
        with contextlib.suppress(OSError):
            print(
                f"{self.path} cannot be written ({error.strerror}): reports so far will not know how this job ends",
                file=sys.stderr,
                flush=True,
            )


@contextlib.contextmanager
def keep_status(log: Path) -> Iterator[StatusFile]:
    """Keep the status of this process's job beside its log, renewed every BEAT_S seconds while the body runs.

    An exception that leaves the body while the job is at work becomes its end.
    """
    file = StatusFile(status_path(log))
    if not file.update():
        # What an earlier job has left is not to be taken for this one's.
        with contextlib.suppress(OSError):
            file.path.unlink()
    over = threading.Event()

    def beat() -> None:
        while not over.wait(BEAT_S):
            file.update()

    heart = threading.Thread(target=beat, name="heartbeat", daemon=True)
    heart.start()
    try:
        yield file
    except BaseException as error:
        if file.status.state in _AT_WORK:
            state, message = "failed", f"{type(error).__name__}: {error}"
            if not isinstance(error, Exception):
                state, message = "stopped", f"stopped by {error}"
            file.update(state=state, code=code_of(error), message=message)
        raise
    finally:
        over.set()
        heart.join(BEAT_S)


def _encodable(text: str) -> str:
    """Return a text that UTF-8 can encode: names of files may have bytes that are none."""
    return text.encode(errors="replace").decode()


def _write(path: Path, content: bytes) -> None:
    """Write a file so that readers see the old one or the new one; in place where there is no room for another file.

    It is not synced: a beat that a crash of the host loses was the last one anyway.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(content)
        partial.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()
        with path.open("r+b") as file:
            file.write(content)
            file.truncate()


@dataclass(frozen=True)
class Absence:
    """Why a run has no result, from the status of its job.

    `state`: "unknown" where the job left no status that can be read. `reason`: a clause, "" if a job that runs has not
    said anything yet.
    """

    state: Literal["running", "failed", "stopped", "unknown"]
    reason: str
    log: Path

    def __str__(self) -> str:
        """Return what a report says of the run."""
        match self.state:
            case "running":
                return f"running: {self.reason}" if self.reason else "running"
            case "failed":
                return f"failed: {self.reason}"
            case "stopped":
                return self.reason
            case "unknown":
                return f"{self.reason}: see {self.log}"


def absence_of(log: Path, *, jobs_ended: bool = False) -> Absence | None:
    """Return why the run of a job's log has no result; None if no job ran, or if the job says that there is one.

    `jobs_ended`: the caller knows that no job is at work any more, so that beats are not waited for.
    """
    # Before the status is read: a new file in its folder ends what an NFS client keeps of that.
    try:
        now_s, clock = fresh_file_time_s(log.parent), ""
    except OSError:
        now_s, clock = time.time(), " by this host's clock"
    try:
        status, beat_s = read_status(status_path(log))
    except FileNotFoundError:
        return Absence("unknown", "no status was left", log) if log.exists() else None
    except (OSError, ValueError, RecursionError) as error:
        return Absence("unknown", f"its status cannot be read ({error})", log)
    match status.state:
        case "adopted" | "measured":
            return None
        case "failed" | "stopped" as state:
            return Absence(state, status.message, log)
    last_beat = f"{datetime.fromtimestamp(beat_s, UTC):%Y-%m-%d %H:%M:%S} UTC{clock}"
    return _of_job_at_work(status, log, now_s - beat_s, last_beat, jobs_ended)


def _of_job_at_work(
    status: Status, log: Path, silent_s: float, last_beat: str, jobs_ended: bool
) -> Absence:
    """Judge a job that is at work by its own word: by its process, where that can be seen, else by its beats."""
    lives, silent = status.process.lives(), silent_s >= _DEAD_AFTER_S
    by_beats = lives is None and not jobs_ended
    if lives and silent:
        silence = f"has not written its status for {silent_s:.0f} s"
        reason = f"{status.line}; its process is there, but {silence}"
        return Absence("running", reason, log)
    if lives or (by_beats and not silent):
        return Absence("running", status.line, log)
    end = "its job was killed"
    if by_beats:
        job = f"its job on {status.process.host}"
        end = f"{job} has given no sign of life since {last_beat}"
    return Absence("failed", f"{end}; its last line was: {status.line}", log)


def read_status(path: Path) -> tuple[Status, float]:
    """Return a job's status, and when it was written by the clock of its file system, epoch seconds.

    Raises OSError, ValueError or RecursionError if it is absent or no status.
    """
    with path.open("rb") as file:
        status = msgspec.json.decode(file.read(), type=Status)
        return status, os.fstat(file.fileno()).st_mtime


def absences(
    pointers: Iterable[Path],
    results: Path,
    logs: Path,
    *,
    since: float = 0.0,
    jobs_ended: bool = False,
) -> dict[str, Absence]:
    """Return MODEL/SCENARIO/BLOCKS/run-N, and why it has no result, of every run that was tried and has none.

    `pointers`: the campaign's measurement.json files below `results`; `logs`: its folder of logs; `since`: only jobs
    that wrote their log after this time, epoch seconds; `jobs_ended`: see `absence_of`.
    """
    absences_by_run = {}
    for pointer in pointers:
        run = pointer.parent.relative_to(results)
        log = job_log(logs, run)
        if pointer.exists() or not _changed_since(log, since):
            continue
        absence = absence_of(log, jobs_ended=jobs_ended)
        if absence is not None:
            absences_by_run[run.as_posix()] = absence
    return absences_by_run


def common_failure(
    own: Path, pointers: Iterable[Path], results: Path, logs: Path, since: float
) -> Status | None:
    """Return the status of a failed run if nothing that was requested can be expected to succeed; else None.

    That is so once every cell has a failed run, of `_FAILED_AT_LEAST` in all, with one kind of failure, and no run has
    a result or is at work. `own`: the pointer of the run that is about to start; `pointers`, `results`, `logs`, `since`:
    as for `absences`, of the runs of one snakemake.
    """
    cells, failed = set(), []
    for pointer in pointers:
        run = pointer.parent.relative_to(results)
        log = job_log(logs, run)
        cells.add(run.parent)
        if pointer == own or not _changed_since(log, since):
            continue
        try:
            status = read_status(status_path(log))[0]
        except (OSError, ValueError, RecursionError):
            return None
        if status.code == NOT_STARTED:
            continue
        if status.state != "failed":
            return None
        failed.append((run.parent, status))
    kinds = {status.code for _, status in failed}
    everywhere = {cell for cell, _ in failed} == cells
    if len(failed) >= _FAILED_AT_LEAST and len(kinds) == 1 and everywhere:
        return failed[0][1]
    return None


def job_log(logs: Path, run: Path) -> Path:
    """Return the log of the job of `run`, MODEL/SCENARIO/BLOCKS/run-N, below a campaign's folder of logs."""
    return logs / "benchmark" / run.with_name(run.name + ".log")


def _changed_since(log: Path, since: float) -> bool:
    for path in (log, status_path(log)):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime >= since:
                return True
    return False
