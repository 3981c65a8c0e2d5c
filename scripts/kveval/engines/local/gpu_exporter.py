"""The exporter of GPU metrics during a run."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from kveval.engines.protocol import Log
from kveval.host.gpus import exporter
from kveval.host.http import HttpError, fetch, free_port
from kveval.host.processes import Supervisor

SOURCE = "nvml"
"""Name of its metrics in the recording: openmetrics.nvml."""
_READY_S = 15.0
_POLL_S = 0.1


@contextlib.contextmanager
def gpu_exporter(
    supervisor: Supervisor,
    python: Path,
    logs: Path,
    chosen: str,
    env: Mapping[str, str],
    say: Log,
) -> Iterator[dict[str, str]]:
    """Serve the GPUs' metrics while the body runs; yields {source: URL}, or {} if they cannot be served.

    `python`: one with nvidia-ml-py; `chosen`: GPUs by index or UUID, "" for all. A failure does not end the run.
    """
    port = free_port()
    url = f"http://127.0.0.1:{port}/metrics"
    argv = [
        str(python),
        str(Path(exporter.__file__).resolve()),
        str(port),
        *([chosen] if chosen else []),
    ]
    log, urls = logs / "gpu-exporter.log", dict[str, str]()
    with supervisor.supervised("gpu-exporter", argv, env=env, log=log) as process:
        deadline = time.monotonic() + _READY_S
        while not urls and process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(HttpError):
                fetch(url, timeout_s=5.0)
                urls = {SOURCE: url}
            time.sleep(_POLL_S)
        if not urls:
            lines = log.read_text(errors="replace").splitlines() if log.exists() else []
            say(
                f"no metrics of the GPUs: {lines[-1] if lines else 'their exporter does not answer'}"
            )
        yield urls
