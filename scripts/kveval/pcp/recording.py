"""Recording a host with a private Performance Co-Pilot (PCP): pmcd, its agents and pmlogger for one run.

No system service is touched, root is not needed, and nothing is written outside the given directory (but for
a symbolic link in the supervisor's temporary folder where the directory's path is unfit for a Unix socket).
"""

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from kveval.host.http import HttpError, fetch
from kveval.host.processes import Supervisor
from kveval.pcp.archive_tools import archive_files, has_metric
from kveval.pcp.installation import (
    ONCE_METRICS,
    Pcp,
    RecordingError,
    check_endpoint,
    find_pcp,
    has_nvidia,
    instance_environment,
    pmlogger_conf,
    user_name,
    write_instance,
)

_SOCKET_PATH_MAX = 107  # bytes, unix(7)
_LONGEST_SOCKET = "run/pmlogger.4194304.socket"
_POLL_S = 0.05
_CLIENT_TIMEOUT_S = 15.0


@dataclass(frozen=True)
class RecordingSettings:
    """The subjects of a recording.

    Attributes:
        interval_s: sampling interval, seconds.
        openmetrics: source name to URL, as in ``{"vllm": "http://127.0.0.1:8000/metrics"}``; the metric
            ``vllm:num_requests_running`` is then called ``openmetrics.vllm.vllm.num_requests_running``.
        processes: process ids whose memory, CPU and I/O are recorded, those of the server for instance.
    """

    interval_s: float = 1.0
    openmetrics: Mapping[str, str] = field(default_factory=dict)
    processes: Sequence[int] = ()


class Recording:
    """A running recording, made by ``recording``."""

    def __init__(
        self,
        directory: Path,
        root: Path,
        pcp: Pcp,
        supervisor: Supervisor,
        started: contextlib.ExitStack,
    ) -> None:
        self.archive: Path = directory / "archive" / "pcp"
        """Base path of the archive: its files have .0, .meta and .index added."""
        self.archives = [self.archive]
        self._logs = directory / "log"
        self._root = root
        self._pcp = pcp
        self._supervisor = supervisor
        self._started = started
        self._nvidia = has_nvidia(pcp)
        self._environment = instance_environment(pcp, root)
        self._pmcd: subprocess.Popen[bytes] | None = None
        self._pmlogger: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def check_alive(self) -> None:
        """Return if pmcd, pmlogger and every agent run; else RecordingError naming the one that died.

        An agent that crashed and that pmcd restarted, which it does at the next sample, counts as running;
        pmlogger may survive that or end, depending on what it asked for meanwhile.
        """
        self.require_running()
        result = self._pminfo("-f", "pmcd.agent.status")
        if result is None or result.returncode != 0:
            answer = (
                f"nothing within {_CLIENT_TIMEOUT_S:g} s"
                if result is None
                else result.stderr.strip()
            )
            raise RecordingError(
                f"pmcd does not answer ({answer}): it, or an agent that it waits for, is silent;"
                f" see {self._logs / 'pmcd.log'}"
            )
        for name in dead_agents(result.stdout):
            raise RecordingError(f"PCP's {name} agent died; {self._cause(name)}")

    def require_running(self) -> None:
        """Return if pmcd and pmlogger run, without asking them anything; else RecordingError."""
        for name, process in (("pmcd", self._pmcd), ("pmlogger", self._pmlogger)):
            if process is not None and process.poll() is not None:
                message = (
                    f"{name} ended (status {process.returncode}); {self._cause(name)}"
                )
                raise RecordingError(
                    message, code="ended", program=name, status=process.returncode
                )

    def stop(self) -> None:
        """Stop pmlogger, so that its archive is complete, then pmcd and the agents; may be called again.

        RecordingError when pmlogger or pmcd had ended before or had to be killed: the archive is incomplete.
        """
        if self._stopped:
            return
        self._stopped = True
        problem = None
        try:
            self.require_running()
        except RecordingError as error:
            problem = error
        # The stack unwinds in reverse order of start: pmlogger ends first, then pmcd.
        self._started.close()
        for name, process in (("pmlogger", self._pmlogger), ("pmcd", self._pmcd)):
            if process is not None and process.returncode == -signal.SIGKILL:
                problem = problem or RecordingError(
                    f"{name} had to be killed; {self._cause(name)}"
                )
        if problem is not None:
            raise problem

    def start_pmcd(self, settings: RecordingSettings, deadline: float) -> None:
        """Start pmcd and its agents; return when every endpoint's metrics are known to it."""
        write_instance(
            self._pcp, self._root, endpoints=settings.openmetrics, nvidia=self._nvidia
        )
        root = self._root
        command = [
            self._pcp.program("pmcd"),
            "-f",
            "-A",
            "-U",
            user_name(),
            "-n",
            f"{root}/var/pmns/root",
        ]
        command += [
            "-c",
            f"{root}/pmcd.conf",
            "-i",
            "127.0.0.1",
            "-s",
            f"{root}/run/pmcd.socket",
        ]
        # pmcd ends an agent that is late, which costs samples; for busy hosts, agents get more than
        # the usual 3 s to start (-q) and 5 s to answer (-t).
        command += [
            "-q",
            "30",
            "-t",
            "30",
            "-l",
            f"{root}/log/pmcd.log",
            "-x",
            f"{root}/log/pmcd.fatal",
        ]
        self._pmcd = self._start(command, "pmcd")
        self._wait(
            lambda: self._knows("pmcd.version"), deadline, "pmcd", "did not answer"
        )
        for name, url in settings.openmetrics.items():
            what = f"has no metrics of {name} from {url}"
            self._wait(
                partial(self._knows, f"openmetrics.{name}"),
                deadline,
                "openmetrics",
                what,
            )

    def start_pmlogger(self, settings: RecordingSettings, deadline: float) -> None:
        """Start pmlogger; return when the archive has its first values."""
        configuration = self._root / "pmlogger.conf"
        configuration.write_text(pmlogger_conf(settings.processes, nvidia=self._nvidia))
        self.archive.parent.mkdir(exist_ok=True)
        command = [
            self._pcp.program("pmlogger"),
            "-c",
            str(configuration),
            "-h",
            "unix:",
            "-V",
            "3",
        ]
        command += [
            "-t",
            f"{settings.interval_s * 1000:.0f}msec",
            "-l",
            f"{self._root}/log/pmlogger.log",
        ]
        self._pmlogger = self._start(
            [*command, f"{self._root}/archive/pcp"], "pmlogger"
        )
        first = ONCE_METRICS[0]
        self._wait(
            lambda: has_metric(self._pcp, self.archive, first),
            deadline,
            "pmlogger",
            "logged nothing",
        )

    def _start(self, command: Sequence[str], name: str) -> subprocess.Popen[bytes]:
        output = self._logs / f"{name}.out"
        return self._started.enter_context(
            self._supervisor.supervised(
                name,
                command,
                env=self._environment,
                log=output,
                cwd=self._root,
                grace_s=10.0,
            )
        )

    def _wait(
        self, ready: Callable[[], bool], deadline: float, name: str, what: str
    ) -> None:
        while not ready():
            self.require_running()
            if time.monotonic() > deadline:
                message = f"{name} {what} within the time limit; {self._cause(name)}"
                raise RecordingError(message, code="start_timed_out", program=name)
            time.sleep(_POLL_S)

    def _cause(self, name: str) -> str:
        """Last line that a program or agent wrote, and where to read the rest."""
        log = self._logs / f"{name}.log"
        lines = []
        for file in (log, self._logs / f"{name}.out"):
            with contextlib.suppress(OSError):
                lines += [
                    line
                    for line in file.read_text(errors="replace").splitlines()
                    if line.strip()
                ]
        lines = [line for line in lines if not line.startswith("Log finished")]
        return f"see {log}" + (f", which ends: {lines[-1]}" if lines else "")

    def _knows(self, metric: str) -> bool:
        result = self._pminfo(metric)
        return result is not None and result.returncode == 0 and metric in result.stdout

    def _pminfo(self, *arguments: str) -> subprocess.CompletedProcess[str] | None:
        # "unix:", not "local:", which falls back to a TCP port and thus perhaps to another pmcd
        command = [self._pcp.program("pminfo"), "-h", "unix:", *arguments]
        try:
            return subprocess.run(
                command,
                env=self._environment,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_CLIENT_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            return None


@contextlib.contextmanager
def recording(
    directory: Path,
    settings: RecordingSettings,
    supervisor: Supervisor,
    *,
    ready_timeout_s: float = 30,
) -> Iterator[Recording]:
    """Record this host into ``directory`` for as long as the body runs.

    The body starts when every endpoint is scraped and the first values are logged, within ``ready_timeout_s``
    seconds. On every exit path the archive is completed and all processes are ended.

    Args:
        directory: work directory, made if need be; archive in ``archive/``, logs in ``log/``.
        settings: what is recorded.
        supervisor: starts PCP's processes, and ends them whatever happens.
        ready_timeout_s: time limit for the start, seconds.

    Raises:
        RecordingError: PCP is missing, an endpoint does not answer, or a process did not start or ended early.
            An error of the body takes precedence; the recording's own is then added to it as a note.
    """
    if not settings.interval_s >= 0.1:
        raise RecordingError(
            f"sampling interval {settings.interval_s} s: at least 0.1 s is possible"
        )
    for name, url in settings.openmetrics.items():
        check_endpoint(name, url)
    pcp = find_pcp()
    directory = directory.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    if archive_files(directory / "archive" / "pcp"):
        message = f"{directory / 'archive'} holds an archive already; record into a new directory"
        raise RecordingError(message, code="archive_exists")
    deadline = time.monotonic() + ready_timeout_s
    for name, url in settings.openmetrics.items():
        _wait_for_endpoint(name, url, deadline, ready_timeout_s)
    with contextlib.ExitStack() as stack:
        root = directory
        if not _fits(directory):
            root = stack.enter_context(supervisor.temporary_folder()) / "d"
            root.symlink_to(directory, target_is_directory=True)
        running = Recording(
            directory,
            root,
            pcp,
            supervisor,
            stack.enter_context(contextlib.ExitStack()),
        )
        running.start_pmcd(settings, deadline)
        running.start_pmlogger(settings, deadline)
        try:
            yield running
        except BaseException as error:
            try:
                running.stop()
            except RecordingError as problem:
                error.add_note(f"the recording: {problem}")
            raise
        running.stop()


def dead_agents(status: str) -> list[str]:
    """Names of the agents that pmcd has lost, read from ``pminfo -f pmcd.agent.status`` (0: running)."""
    return [
        name
        for name, value in re.findall(r'inst \[\d+ or "(\w+)"\] value (-?\d+)', status)
        if value != "0"
    ]


def _fits(directory: Path) -> bool:
    """Tell whether a path is short enough for sockets and has no character that pmcd.conf cannot hold."""
    short = len(os.fsencode(directory / _LONGEST_SOCKET)) <= _SOCKET_PATH_MAX
    return short and re.fullmatch(r"[A-Za-z0-9_./+-]+", str(directory)) is not None


def _wait_for_endpoint(name: str, url: str, deadline: float, limit_s: float) -> None:
    """Wait until ``url`` answers: an endpoint that is silent when pmlogger starts is never logged."""
    while True:
        left = deadline - time.monotonic()
        try:
            fetch(url, timeout_s=max(0.1, min(5.0, left)))
            return
        except (HttpError, ValueError) as error:
            if isinstance(error, ValueError) or deadline - time.monotonic() <= 0:
                raise RecordingError(
                    f"the metrics endpoint {name}, {url}, did not answer within {limit_s:g} s: {error}",
                    code="endpoint_silent",
                    endpoint=name,
                    limit_s=limit_s,
                ) from error
        time.sleep(_POLL_S)
