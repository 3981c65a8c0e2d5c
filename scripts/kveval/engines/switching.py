"""Commands of the user's that change what is in service: to another arm, and back to what was there before.

A switch is noted in a file of the campaign before it begins, so that what was there before is restored once snakemake
has ended, see `kveval.workflow.restoring`.
"""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from kveval.host.errors import Failure
from kveval.host.processes import signals_deferred
from kveval.host.sessions import Session

_NAME = "switch"


class CommandError(Failure):
    """A command of the user's failed (code `failed`) or took too long (`stuck`); the message names its output."""


def run_command(
    command: str,
    limit_s: float,
    log: Path,
    begun: Callable[[int], None] = lambda process_id: None,
) -> None:
    """Run a command for /bin/sh, at most `limit_s` seconds, and append its output to `log`. Raises CommandError.

    `begun` gets the id of the shell's process. What the command has started stays if it ends by itself, and is killed
    if it takes too long or this process is to stop.
    """
    with contextlib.ExitStack() as stack:
        with signals_deferred():
            with log.open("ab") as output:
                process = subprocess.Popen(
                    ["/bin/sh", "-c", command],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            stack.callback(_end, process)
            begun(process.pid)
        try:
            status = process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired as error:
            message = f"took more than {limit_s:g} s; see {log}"
            raise CommandError(message, code="stuck") from error
    if status:
        message = f"failed (exit code {status}); see {log}"
        raise CommandError(message, code="failed", status=status)


class Switches:
    """The switches since something was restored, one line of JSON each in `file`."""

    def __init__(self, file: Path) -> None:
        self._file = file

    @classmethod
    def of_campaign(cls, name: str) -> "Switches":
        """Return those of a campaign, in the folder of its logs."""
        return cls(Path("logs", name, "switches.jsonl"))

    def note(self, process_id: int) -> None:
        """Note the command for the shell that has begun with this process."""
        # It may have ended already: what it changed has to be restored all the same.
        line = "{}"
        with contextlib.suppress(ProcessLookupError):
            line = json.dumps(asdict(Session.led_by(process_id, _NAME)))
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a") as file:
            file.write(line + "\n")

    def __bool__(self) -> bool:
        return self._file.exists()

    def end_unfinished(self) -> None:
        """Kill the commands that still run, as after `kill -9` of their job; what ended commands have started stays."""
        for session in self._sessions():
            leaders = [process.pid for process in session.members()]
            if session.sid in leaders:
                _kill_group(session.sid)

    def forget(self) -> None:
        """Remove the notes, because what was there before has been restored."""
        self._file.unlink(missing_ok=True)

    def _sessions(self) -> Iterator[Session]:
        for line in self._file.read_text().splitlines():
            # A line that was cut off is that of a command that was killed with its job.
            with contextlib.suppress(ValueError, TypeError):
                yield Session(**json.loads(line))


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Kill a command that still runs, with all that it has started, which would go on switching."""
    if process.poll() is None:
        _kill_group(process.pid)
        process.wait()


def _kill_group(process_id: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process_id, signal.SIGKILL)
