"""The recorder of this host: its own PCP, or without PCP the exporters alone."""

import contextlib
import os
import platform
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kveval.engines.job import Job
from kveval.engines.local.gpu_exporter import gpu_exporter
from kveval.engines.protocol import AddressedServer, Deployer, Log, Recorder
from kveval.engines.watchdog import Check
from kveval.host.gpu_conditions import INTERVAL_S, local_watch, visible_gpus
from kveval.host.processes import Supervisor
from kveval.pcp.direct.ranges import RANGES_FILE, read_ranges
from kveval.pcp.direct.recorder import (
    EXPORTERS_ALONE,
    DirectRecording,
    direct_recording,
)
from kveval.pcp.installation import installed_pcp
from kveval.pcp.recording import Recording, RecordingSettings, recording


class HostRecorder(Recorder):
    """Records this host, what `deployer` has started or found, and the conditions of this host's GPUs.

    `scratch`: folder of the run.
    """

    def __init__(
        self,
        job: Job,
        deployer: Deployer[AddressedServer],
        scratch: Path,
        processes: Supervisor,
        say: Log,
    ) -> None:
        self._job = job
        self._deployer = deployer
        self._scratch = scratch
        self._processes = processes
        self._say = say
        self._gpus = local_watch()
        self._span_s = (0.0, 0.0)
        self._pcp = installed_pcp()
        if self._pcp is None:
            say("Performance Co-Pilot is not installed: the exporters alone record")

    @property
    def pcp_version(self) -> str:
        """The release of this host's PCP, or that it has none."""
        return self._pcp or EXPORTERS_ALONE

    @contextlib.contextmanager
    def recording(self) -> Iterator[Recording | DirectRecording]:
        """Record this host and the processes of the deployment."""
        server = self._deployer.server
        with contextlib.ExitStack() as stack:
            endpoints = dict(server.metrics_urls)
            if not self._job.specification.on_cpu:
                endpoints |= stack.enter_context(self._gpu_exporter())
            settings = RecordingSettings(
                openmetrics=endpoints, processes=server.process_ids
            )
            folder = self._scratch / "pcp"
            began_s = time.time()
            if self._pcp is None:
                started = direct_recording(folder, settings, self._processes)
                yield stack.enter_context(started)
            else:
                yield stack.enter_context(recording(folder, settings, self._processes))
            self._span_s = began_s, time.time()

    @property
    def checks(self) -> Sequence[Check]:
        """Sample the GPUs."""
        return [] if self._gpus is None else [(self._gpus.sample, INTERVAL_S)]

    def facts(self) -> dict[str, Any]:
        """Return the GPUs' conditions, if this host has some, and what a Prometheus had of the recording's time."""
        conditions = [] if self._gpus is None else self._gpus.conditions()
        facts: dict[str, Any] = {"gpu_conditions": conditions} if conditions else {}
        return {**facts, **self._prometheus_facts()}

    def _prometheus_facts(self) -> dict[str, Any]:
        """Keep what the campaign's Prometheus has; what is missing is said, and ends nothing."""
        prometheus = self._job.prometheus
        if prometheus is None:
            return {}
        key = os.environ.get(prometheus.key or "", "")
        ranges = read_ranges(prometheus.url, prometheus.series, *self._span_s, key)
        for problem in ranges.problems:
            self._say(f"Prometheus: {problem}")
        if ranges.series:
            ranges.write(self._scratch / RANGES_FILE, platform.node())
        return {"prometheus": {"series": ranges.series, "problems": ranges.problems}}

    def _gpu_exporter(self) -> contextlib.AbstractContextManager[dict[str, str]]:
        python = self._job.server_environment / "bin" / "python"
        logs, env = self._scratch / "raw", dict(os.environ)
        return gpu_exporter(
            self._processes, python, logs, visible_gpus(), env, self._say
        )
