"""The progress of a measurement while it runs: cell, level, time left; on the terminal, in the job's log and status."""

import contextlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kveval.load.workload import Workload
from kveval.measure.status import StatusFile

# Estimated seconds of a run besides its levels (server, recording, collecting), and of the generator's start
# per level. Replaced by the times of finished runs as soon as there is one.
_UNSEEN_RUN_S = 45.0
_UNSEEN_LEVEL_S = 12.0
_REPEAT_S = 10.0


def minutes(seconds: float) -> str:
    """Format a duration as m:ss."""
    whole = max(0, round(seconds))
    return f"{whole // 60}:{whole % 60:02d}"


@dataclass
class Progress:
    """The progress lines of one run, which typically takes `typical_s`.

    `loads_left_s`: how long its loads still take at least, from the beginning of the next or present level on.
    `requested`: the pointer files of all runs that are measured together, in any order; those written `since`, epoch
    seconds, are done. `status`: that of the run's job, if it is one of a campaign.
    """

    label: str
    typical_s: float
    log: Path
    requested: Sequence[Path] = ()
    since: float = 0.0
    begin: float = field(default_factory=time.monotonic)
    redact: Callable[[str], str] = str
    status: StatusFile | None = None
    loads_left_s: float = 0.0
    _repeated: float = 0.0
    _place: str = field(init=False)

    def __post_init__(self) -> None:
        """Take the number of the next run, which stays the same when this run is done."""
        count = len(self.requested)
        self._place = f"[{min(self._done() + 1, count)}/{count}] " if count else ""

    def say(self, text: str) -> None:
        """Print one line, without secrets, and append it to the log; a full disk must not prevent either."""
        message = self._shown(text)
        line = f"{time.strftime('%H:%M:%S')} {self._place}{self.label} · {message}"
        with contextlib.suppress(OSError):
            print(line, file=sys.stderr, flush=True)
        with contextlib.suppress(OSError), self.log.open("a") as file:
            file.write(line + "\n")
        self.note(line=message)

    def note(self, **changes: Any) -> None:
        """Change fields of the job's status, if the run is a job's."""
        if self.status is not None:
            self.status.update(**changes)

    def fail(self, message: str, code: str) -> None:
        """Say why the run failed, and end the job's status with it; `code`: that of a Failure."""
        self.note(state="failed", code=code, message=self._shown(message))
        self.say(f"FAILED: {message}")

    def stop(self, signal_name: str) -> None:
        """Say that the run was stopped by a signal, which is no failure, and end the job's status with it."""
        message = f"stopped by {signal_name}; everything it had started is gone"
        self.note(state="stopped", code=signal_name, message=message)
        self.say(message)

    def _shown(self, text: str) -> str:
        """Return a text in one line and without secrets."""
        return self.redact(" ".join(text.split()))

    def begin_level(self, title: str, levels_left: int, seconds: float) -> None:
        """Say that a level begins, of which with this one `levels_left` are to be measured, `seconds` each."""
        self.loads_left_s = levels_left * (seconds + _UNSEEN_LEVEL_S)
        self.say(f"{title} · {self.left()}")

    def level(self, title: str, elapsed_s: float, seconds: float) -> None:
        """Report a level whose load has been sent for `elapsed_s`, at most every ten seconds."""
        expected = seconds + _UNSEEN_LEVEL_S
        text = f"{elapsed_s:.0f} s of about {expected:.0f} s"
        self._repeat(title, text, elapsed_s)

    def priming(self, title: str, elapsed_s: float) -> None:
        """Report a level whose caches have been primed for `elapsed_s`; how long that takes is the server's affair."""
        self._repeat(title, f"priming the caches, {elapsed_s:.0f} s so far")

    def _repeat(self, title: str, text: str, loaded_s: float = 0.0) -> None:
        now = time.monotonic()
        if now - self._repeated < _REPEAT_S:
            return
        self._repeated = now
        self.say(f"{title} · {text} · {self.left(loaded_s)}")

    def left(self, loaded_s: float = 0.0) -> str:
        """Say how long this run and all that was requested still take, judged by the runs already finished.

        `loaded_s`: for how long the present level's load has been sent. A run that is slower than those before, and the
        runs after it, take as long as its loads need.
        """
        taken_s = time.monotonic() - self.begin
        own_s = max(0.0, self.typical_s - taken_s, self.loads_left_s - loaded_s)
        run_s = max(self.typical_s, taken_s + own_s)
        text = f"this run {minutes(own_s)} left"
        if own_s == 0:
            text = f"this run takes longer than the {minutes(self.typical_s)} expected"
        waiting = len(self.requested) - self._done()
        if waiting > 1:
            text += f", all {len(self.requested)} in about {minutes(own_s + (waiting - 1) * run_s)}"
        return text

    def _done(self) -> int:
        return sum(_written(path, self.since) for path in self.requested)


def _written(path: Path, since: float) -> bool:
    try:
        return path.stat().st_mtime >= since
    except OSError:
        return False


def write_requested(path: Path, pointers: Sequence[Path]) -> None:
    """Write which runs are to be measured, by their pointer files; the file's time is their start."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([pointer.as_posix() for pointer in pointers]))


def requested_with(pointer: Path, path: Path) -> tuple[list[Path], float] | None:
    """Return the runs that `write_requested` wrote and when, epoch seconds; None where `pointer` is none of them."""
    try:
        pointers, since = (
            [Path(name) for name in json.loads(path.read_text())],
            path.stat().st_mtime,
        )
    except (OSError, ValueError, TypeError):
        return None
    return (pointers, since) if pointer in pointers else None


def campaign_progress(
    label: str,
    workload: Workload,
    pointers: Sequence[Path],
    log: Path,
    redact: Callable[[str], str] = str,
    requested: tuple[Sequence[Path], float] | None = None,
    status: StatusFile | None = None,
) -> Progress:
    """Set up the progress of one run, `pointers` being the pointer files of all runs of its campaign.

    `requested`: see `requested_with`; without it the whole campaign is measured. The times of finished runs come from
    their run.json; those that cannot be read are left out, since this is only an estimate.
    """
    together, since = (pointers, 0.0) if requested is None else requested
    seen = []
    for path in dict.fromkeys([*pointers, *together]):
        try:
            stored = Path(json.loads(path.read_text())["path"])
            seen.append(
                sum(json.loads((stored / "run.json").read_text())["phases"].values())
            )
        except (OSError, ValueError, KeyError, TypeError):
            continue
    log.parent.mkdir(parents=True, exist_ok=True)
    loads_s = workload.level_count * (workload.seconds + _UNSEEN_LEVEL_S)
    return Progress(
        label,
        statistics.median(seen) if seen else _UNSEEN_RUN_S + loads_s,
        log,
        together,
        since,
        redact=redact,
        status=status,
        # A search may need fewer levels than it may try.
        loads_left_s=0.0 if workload.searched else loads_s,
    )
