"""The progress of a measurement while it runs: cell, level, time left; on the terminal and in the job's log."""

import contextlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kveval.load.workload import WorkloadSpec

# Seconds beside the levels of a run that was never seen: server, recording, collecting, and the generator's
# start per level. Replaced by what finished runs took as soon as there is one.
_UNSEEN_RUN_S = 45.0
_UNSEEN_LEVEL_S = 12.0
_REPEAT_S = 10.0


def minutes(seconds: float) -> str:
    """Format a duration as m:ss."""
    whole = max(0, round(seconds))
    return f"{whole // 60}:{whole % 60:02d}"


def expected_run_s(workload: WorkloadSpec) -> float:
    """Estimate one run's wall seconds from its workload alone."""
    return _UNSEEN_RUN_S + workload.level_count * (workload.seconds + _UNSEEN_LEVEL_S)


@dataclass
class Progress:
    """Lines of one run. `campaign` lists the pointer files of all runs of the campaign, in any order."""

    label: str
    expected_s: float
    log: Path
    campaign: Sequence[Path] = ()
    seen_s: Sequence[float] = ()
    begin: float = field(default_factory=time.monotonic)
    redact: Callable[[str], str] = str
    _repeated: float = 0.0

    def say(self, text: str) -> None:
        """Print one line, without secrets, and append it to the log; a full disk must not keep it from being said."""
        line = f"{time.strftime('%H:%M:%S')} {self._position()}{self.label} · {self.redact(' '.join(text.split()))}"
        for sink in (self._print, self._append):
            with contextlib.suppress(OSError):
                sink(line)

    @staticmethod
    def _print(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def _append(self, line: str) -> None:
        with self.log.open("a") as file:
            file.write(line + "\n")

    def level(self, streams: int, number: int, count: int, elapsed_s: float, seconds: float) -> None:
        """Report a level in progress, at most every ten seconds."""
        now = time.monotonic()
        if now - self._repeated < _REPEAT_S:
            return
        self._repeated = now
        expected = seconds + _UNSEEN_LEVEL_S
        self.say(f"level {streams} ({number} of {count}) · {elapsed_s:.0f} s of about {expected:.0f} s · {self.left()}")

    def left(self) -> str:
        """Say how long this run and the campaign still take, judged by the runs already finished."""
        typical = statistics.median(self.seen_s) if self.seen_s else self.expected_s
        own = max(0.0, typical - (time.monotonic() - self.begin))
        text = f"this run {minutes(own)} left"
        waiting = sum(not path.exists() for path in self.campaign)
        if waiting:
            text += f", campaign about {minutes(own + (waiting - 1) * typical)}"
        return text

    def _position(self) -> str:
        if not self.campaign:
            return ""
        done = sum(path.exists() for path in self.campaign)
        return f"[{min(done + 1, len(self.campaign))}/{len(self.campaign)}] "


def campaign_progress(
    label: str, workload: WorkloadSpec, pointers: Sequence[Path], log: Path, redact: Callable[[str], str] = str
) -> Progress:
    """Set up the progress of one run within its campaign, `pointers` being the pointer files of all its runs.

    What finished runs took comes from their run.json; what cannot be read is left out, for this is only an estimate.
    """
    seen = []
    for path in pointers:
        try:
            stored = Path(json.loads(path.read_text())["path"])
            seen.append(sum(json.loads((stored / "run.json").read_text())["phases"].values()))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    log.parent.mkdir(parents=True, exist_ok=True)
    return Progress(label, expected_run_s(workload), log, pointers, seen, redact=redact)
