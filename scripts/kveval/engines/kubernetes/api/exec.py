"""A command in a pod, over the frames of a connection to it: channel 1 is its output, 2 its errors, 3 its end."""

import json
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from kveval.engines.kubernetes.api.errors import ClusterError, Interrupted, Unreachable
from kveval.engines.kubernetes.api.transport import Frames

_OUTPUT, _ERRORS, _END, _CLOSED = 1, 2, 3, 255
# Enough of what a command complains about; the rest of a flood is dropped.
_ERRORS_KEPT = 64 * 1024


class Executed(NamedTuple):
    """How a command ended, and all that it printed."""

    stdout: bytes
    stderr: bytes
    returncode: int

    @property
    def text(self) -> str:
        """The output as text, without the line break at its end."""
        return self.stdout.decode(errors="replace").rstrip("\n")

    @property
    def said(self) -> str:
        """Its complaint, else what it printed, in one line."""
        return " ".join((self.stderr.decode(errors="replace") or self.text).split())


class Execution:
    """A running command. Iterate over `output`, then ask for `returncode` and `stderr`.

    A connection that ends before the API server has said how the command ended raises Interrupted: the end of the
    output of a command, too, is known to be its end only then.
    """

    def __init__(self, frames: Frames, what: str) -> None:
        self._frames, self._what = frames, what
        self._errors = bytearray()
        self.returncode: int | None = None

    @property
    def stderr(self) -> bytes:
        """The errors that the command printed so far."""
        return bytes(self._errors)

    def output(self, stall_s: float, deadline: float = float("inf")) -> Iterator[bytes]:
        """Yield the output as it comes; `stall_s` is the longest silence, `deadline` a time.monotonic()."""
        while True:
            wait = min(stall_s, deadline - time.monotonic())
            try:
                frame = self._frames.receive(max(wait, 0.01))
            except TimeoutError as error:
                late = time.monotonic() >= deadline
                why = "did not end in the time given to it" if late else f"was silent for {stall_s:.0f} s"
                raise Interrupted(f"{self._what} {why}") from error
            except Unreachable as error:
                raise Interrupted(f"{self._what} was cut off: {error}") from error
            if frame is None:
                if self.returncode is None:
                    raise Interrupted(f"{self._what} was cut off: the API server closed the connection before its end")
                return
            channel, data = (frame[0], frame[1:]) if frame else (_OUTPUT, b"")
            if channel == _OUTPUT and data:
                yield data
            elif channel == _ERRORS:
                self._errors += data[: _ERRORS_KEPT - len(self._errors)]
            elif channel == _END and data:
                self.returncode = self._code(data)
                return

    def _code(self, data: bytes) -> int:
        status: dict[str, Any] = json.loads(data)
        if status.get("status") == "Success":
            return 0
        for cause in (status.get("details") or {}).get("causes") or []:
            if cause.get("reason") == "ExitCode":
                return int(cause["message"])
        message = " ".join(str(status.get("message", data)).split())
        reason = str(status.get("reason", ""))
        raise ClusterError(f"{self._what} could not be run: {message}", reason=reason, code="not_run", said=message)

    def close(self) -> None:
        """Drop the connection; a command that still runs is not waited for."""
        self._frames.close()


def run_to_end(execution: Execution, timeout_s: float) -> Executed:
    """Read a command to its end, within `timeout_s`. Raises Interrupted and ClusterError."""
    try:
        output = b"".join(execution.output(timeout_s, time.monotonic() + timeout_s))
    finally:
        execution.close()
    assert execution.returncode is not None
    return Executed(output, execution.stderr, execution.returncode)
