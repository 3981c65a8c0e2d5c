"""A command in a pod, over the frames of a WebSocket: channel 1 is its stdout, 2 its stderr, 3 its exit status."""

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from kveval.engines.kubernetes.api.errors import ClusterError, Interrupted, Unreachable
from kveval.engines.kubernetes.api.transport import Frames

_OUTPUT, _ERRORS, _END, _CLOSED = 1, 2, 3, 255
# Bytes of a command's stderr that are kept; the rest is dropped.
_ERRORS_KEPT = 64 * 1024


class Executed(NamedTuple):
    """A command's output and exit code."""

    stdout: bytes
    stderr: bytes
    returncode: int

    @property
    def text(self) -> str:
        """Its stdout as text, without the line break at its end."""
        return self.stdout.decode(errors="replace").rstrip("\n")

    @property
    def error_text(self) -> str:
        """Its stderr, or its stdout if stderr is empty, in one line."""
        return " ".join((self.stderr.decode(errors="replace") or self.text).split())


class Execution:
    """A running command. Iterate over `output`, then ask for `returncode` and `stderr`.

    Raises Interrupted if the connection ends before the API server has sent the command's exit status: without it, the
    output may be incomplete.
    """

    def __init__(self, frames: Frames, what: str) -> None:
        self._frames, self._what = frames, what
        self._errors = bytearray()
        self.returncode: int | None = None

    @property
    def stderr(self) -> bytes:
        """Everything that the command has written to stderr so far."""
        return bytes(self._errors)

    def output(self, stall_s: float, deadline: float = float("inf")) -> Iterator[bytes]:
        """Yield stdout as it arrives; `stall_s`: longest silence; `deadline`: time.monotonic(). Raises Interrupted."""
        while True:
            wait = min(stall_s, deadline - time.monotonic())
            try:
                frame = self._frames.receive(max(wait, 0.01))
            except TimeoutError as error:
                late = time.monotonic() >= deadline
                why = (
                    "did not end in the time given to it"
                    if late
                    else f"was silent for {stall_s:.0f} s"
                )
                raise Interrupted(f"{self._what} {why}") from error
            except Unreachable as error:
                raise Interrupted(f"{self._what} was cut off: {error}") from error
            if frame is None:
                if self.returncode is None:
                    raise Interrupted(
                        f"{self._what} was cut off: the API server closed the connection before its end"
                    )
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
        raise ClusterError(
            f"{self._what} could not be run: {message}",
            reason=reason,
            code="not_run",
            said=message,
        )

    def close(self) -> None:
        """Close the connection without waiting for the command's end."""
        self._frames.close()

    def result(self, timeout_s: float) -> Executed:
        """Wait up to `timeout_s` seconds for the command's end and return its result. Raises Interrupted."""
        with contextlib.closing(self):
            output = b"".join(self.output(timeout_s, time.monotonic() + timeout_s))
        assert self.returncode is not None
        return Executed(output, self.stderr, self.returncode)
