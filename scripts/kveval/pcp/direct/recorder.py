"""Recording this host and some exporters without Performance Co-Pilot: a process that samples until it is stopped."""

import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from kveval.host.http import HttpError, fetch
from kveval.host.processes import Supervisor
from kveval.pcp.direct.host import host_samples
from kveval.pcp.direct.prometheus import Exporter
from kveval.pcp.direct.samples import DirectFile, DirectSample, moments
from kveval.pcp.installation import RecordingError, check_endpoint
from kveval.pcp.recording import RecordingSettings

NAME = "recorder"
EXPORTERS_ALONE = "not installed: the exporters alone recorded"
"""The text in run.json in place of PCP's version."""
_ANSWER_S = 5.0
_POLL_S = 0.05
# After the signal to stop, the rest of a long recording is still to be written.
_GRACE_S = 60.0


class DirectRecording:
    """A recording by the exporters alone, made by `direct_recording`."""

    def __init__(
        self,
        directory: Path,
        process: "subprocess.Popen[bytes]",
        ends: contextlib.ExitStack,
    ) -> None:
        self.archive = directory / "recording.parquet"
        """The Parquet file, there once the recording has stopped."""
        self.archives = [self.archive]
        self._log = directory / f"{NAME}.log"
        self._process = process
        self._ends = ends
        self._stopped = False

    def check_alive(self) -> None:
        """Return if the recorder runs; else RecordingError."""
        if self._process.poll() is not None:
            lines = (
                self._log.read_text(errors="replace").splitlines()
                if self._log.exists()
                else []
            )
            ended = f", which ends: {lines[-1]}" if lines else ""
            message = f"the recorder ended (status {self._process.returncode}); see {self._log}{ended}"
            raise RecordingError(
                message, code="ended", program=NAME, status=self._process.returncode
            )

    require_running = check_alive

    def stop(self) -> None:
        """Stop the recorder, which completes the file; may be called again. RecordingError if it had ended before."""
        if self._stopped:
            return
        self._stopped = True
        self.check_alive()
        self._ends.close()
        if not self.archive.exists():
            raise RecordingError(
                f"the recorder left no recording; see {self._log}", code="no_archive"
            )


@contextlib.contextmanager
def direct_recording(
    directory: Path,
    settings: RecordingSettings,
    supervisor: Supervisor,
    *,
    ready_timeout_s: float = 30,
) -> Iterator[DirectRecording]:
    """Record into `directory` while the body runs, which starts once every endpoint was read.

    Raises RecordingError if an endpoint does not answer within `ready_timeout_s`, or if the recorder ends early.
    """
    for name, url in settings.openmetrics.items():
        check_endpoint(name, url)
    directory = directory.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    settings_file = directory / "recorder.json"
    settings_file.write_text(
        json.dumps({**asdict(settings), "processes": list(settings.processes)})
    )
    argv = [sys.executable, "-m", "kveval.pcp.direct.recorder", str(settings_file)]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    with contextlib.ExitStack() as ends:
        log = directory / f"{NAME}.log"
        process = ends.enter_context(
            supervisor.supervised(NAME, argv, env=env, log=log, grace_s=_GRACE_S)
        )
        running = DirectRecording(directory, process, ends)
        deadline = time.monotonic() + ready_timeout_s
        while not (directory / "ready").exists():
            running.check_alive()
            if time.monotonic() > deadline:
                listed = ", ".join(
                    f"{name} ({url})" for name, url in settings.openmetrics.items()
                )
                message = f"not all metrics endpoints answered within {ready_timeout_s:g} s: {listed}; see {log}"
                raise RecordingError(
                    message, code="endpoint_silent", limit_s=ready_timeout_s
                )
            time.sleep(_POLL_S)
        yield running
        running.stop()


class _Stop(Exception):
    """The recorder was told to stop."""


def _stop(number: int, frame: FrameType | None) -> None:
    # A second signal must not interrupt the completion of the file.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Stop


def record(settings_file: Path) -> None:
    """Sample until SIGTERM as `settings_file` says, then leave recording.parquet beside it."""
    settings = RecordingSettings(**json.loads(settings_file.read_text()))
    exporters = {name: Exporter(name) for name in settings.openmetrics}
    file = DirectFile(settings_file.with_name("recording.parquet"), platform.node())
    signal.signal(signal.SIGTERM, _stop)
    seen: set[str] = set()
    with contextlib.suppress(_Stop):
        for moment_ns in moments(settings.interval_s):
            samples = list(host_samples(settings.processes))
            for name, url in settings.openmetrics.items():
                scraped = _scraped(exporters[name], url)
                seen |= {name} if scraped else set()
                samples += scraped
            file.add(moment_ns, samples)
            if len(seen) == len(exporters):
                settings_file.with_name("ready").touch()
    file.close()


def _scraped(exporter: Exporter, url: str) -> list[DirectSample]:
    """Return an exporter's current values; if it does not answer, log the error and return none."""
    try:
        return list(
            exporter.read(fetch(url, timeout_s=_ANSWER_S).decode(errors="replace"))
        )
    except (HttpError, ValueError) as error:
        print(f"{url}: {error}", flush=True)
        return []


if __name__ == "__main__":
    record(Path(sys.argv[1]))
