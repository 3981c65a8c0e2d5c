"""Restores what was in service before, once snakemake has ended, however it ends, if any of its jobs has switched.

No job knows that it is the last, and a killed snakemake can do nothing any more. So snakemake starts a guardian before
its first job, a process in a session of its own, which waits until its standard input closes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from kveval.engines.switching import CommandError, Switches, run_command
from kveval.host.lock import host_lock
from kveval.host.redaction import Redactor

if TYPE_CHECKING:
    # The guardian needs nothing of it, and it takes half a second to import.
    from kveval.campaign.campaign_file import Campaign

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Restore:
    """A command that restores a campaign's servers; `secrets`: environment variables whose values are in no file."""

    campaign: str
    command: str
    limit_s: float
    secrets: tuple[str, ...]

    @property
    def log(self) -> Path:
        """The file with the output of the command, and of those before it."""
        return Path("logs", self.campaign, "restore.log")

    def message(self, error: CommandError | OSError | None, seconds: float) -> str:
        """Return what to tell of a command that has ended."""
        if error is None:
            return f"Restored what was in service before, by {self.command} ({seconds:.0f} s; output: {self.log})"
        what = f"NOT RESTORED: the command that restores what was in service before {error}"
        return f"{what}\nRun it by hand: {self.command}"


class Restoring:
    """The guardian of one snakemake; without a command to restore by, or a job that measures, there is none."""

    def __init__(self, campaign: Campaign) -> None:
        self._restore: Restore | None = None
        if campaign.restore is not None:
            secrets = (*campaign.secrets, *campaign.keys)
            self._restore = Restore(
                campaign.name, campaign.restore, campaign.restore_limit_s, secrets
            )
        self._guardian: subprocess.Popen[str] | None = None

    def begin(self, measured: Sequence[Path]) -> None:
        """Start the guardian; `measured`: the pointers of the measurements that snakemake will start."""
        if self._restore is None or not measured:
            return
        library = str(Path(__file__).resolve().parents[2])
        self._guardian = subprocess.Popen(
            [sys.executable, "-m", __name__, json.dumps(asdict(self._restore))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": library},
        )

    def finish(self) -> tuple[bool, list[str]]:
        """Have it restore now, when all jobs have ended; return whether nothing is left to do, and lines to print."""
        if self._restore is None or self._guardian is None:
            return True, []
        switches = Switches.of_campaign(self._restore.campaign)
        if switches:
            limit = f"at most {self._restore.limit_s:g} s"
            _print(f"Restoring: {self._restore.command} ({limit})", sys.stderr)
        message, _ = self._guardian.communicate("all jobs have ended\n")
        status = self._guardian.returncode
        if not message and switches:
            ended = CommandError(f"was not run: its guardian has ended ({status})")
            message = self._restore.message(ended, 0.0)
            return False, message.splitlines()
        return status == 0, message.splitlines()


def guard(restore: Restore, snakemake: TextIO) -> int:
    """Body of the guardian: restore once snakemake says that its jobs have ended, or has ended; return the exit status.

    As long as any measurement runs on this host, perhaps of a job that has not noticed yet that its snakemake was
    killed, nothing is restored. If snakemake has ended, standard error gets the message, which is its terminal.
    """
    ordinary = snakemake.read()
    output = sys.stdout if ordinary else sys.stderr
    switches = Switches.of_campaign(restore.campaign)
    if ordinary and not switches:
        return 0
    with host_lock(f"restoring {restore.campaign}", waiting=_print_to_stderr):
        if not switches:
            return 0
        switches.end_unfinished()
        began, error = time.monotonic(), None
        try:
            restore.log.parent.mkdir(parents=True, exist_ok=True)
            with restore.log.open("a") as log:
                log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {restore.command}\n")
            run_command(restore.command, restore.limit_s, restore.log)
        except (CommandError, OSError) as failure:
            error = failure
        message = restore.message(error, time.monotonic() - began)
        switches.forget()
        if restore.log.exists():
            Redactor.of(restore.secrets).file(restore.log)
    _print(message, output)
    return 0 if error is None else 1


def _print(message: str, output: TextIO) -> None:
    """Print to `output`, or to standard error where that has no reader any more."""
    try:
        print(message, file=output, flush=True)
    except OSError:
        # Python would try once more at its end, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())
        if output is not sys.stderr:
            _print(message, sys.stderr)


def _print_to_stderr(message: str) -> None:
    _print(message, sys.stderr)


if __name__ == "__main__":
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    fields = json.loads(sys.argv[1])
    fields["secrets"] = tuple(fields["secrets"])
    sys.exit(guard(Restore(**fields), sys.stdin))
