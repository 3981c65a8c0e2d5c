"""The interface between a measurement and an engine, which this host and a cluster each implement.

An Engine stands for one run before anything has started; its RunSession stands for the run in progress: the server,
the recording, the load generator.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from kveval.engines.servers.server import Server
from kveval.engines.watchdog import Check
from kveval.load.guidellm import Level, Primed
from kveval.store.store import Store

Log = Callable[[str], None]
Watch = Callable[[float], None]
"""Called about twice a second with the seconds that a level has lasted; raises any Failure that must end it."""
Event = Callable[[], None]


@dataclass(frozen=True)
class LoadResult:
    """A load generator that has ended: its command line, and its times.

    `began`: its start in epoch seconds, by its own machine's clock; `started` and `ended`: seconds of this process's
    monotonic clock; `primed`: how the caches were primed before, None if they were not.
    """

    argv: list[str]
    began: float
    started: float
    ended: float
    primed: Primed | None = None


class ServerHandle(Protocol):
    """The run's server: one deployment at a time."""

    @property
    def server(self) -> Server:
        """The deployment in service. Raises DeploymentError when there is none."""

    def start(self) -> Server:
        """Deploy and wait until it answers as declared, warm and with empty caches."""

    def refresh(self, *, restart: bool) -> None:
        """Give the next level empty caches, by the server's own endpoint or by a new server."""

    def close(self) -> None:
        """Tear down; may be called again."""


class Recorder(Protocol):
    """A recording in progress."""

    @property
    def archives(self) -> Sequence[Path]:
        """Base paths, on this host, of the PCP archives of all recorded hosts, once the recording has stopped.

        The first includes the server's metrics. The last folder of each path names the host; a .parquet file was
        recorded without PCP.
        """

    def check_alive(self) -> None:
        """Raise RecordingError unless every part of the recording works."""

    def require_running(self) -> None:
        """Check the same, as far as that takes no time."""

    def stop(self) -> None:
        """Stop recording and complete the archives; may be called again."""


class RunSession(Protocol):
    """One run in progress.

    `own_clock`: whether windows and recording have their times from this host's clock, which then must not be set.
    """

    own_clock: bool

    @property
    def handle(self) -> ServerHandle:
        """The run's server."""

    @property
    def checks(self) -> Sequence[Check]:
        """Further functions to call at intervals while a level runs: checks and sampling."""

    @property
    def pcp_version(self) -> str:
        """The release of the recording PCP."""

    def recording(self) -> AbstractContextManager[Recorder]:
        """Record while the body runs; it starts once the first values are recorded."""

    def expect(self, levels: Sequence[Level]) -> None:
        """Take note of the levels to come, in order, so that they can be prepared."""

    def generate(
        self, level: Level, report: Path, watch: Watch, sending: Event
    ) -> LoadResult:
        """Prime the caches if the workload declares it, and run the load generator until its report is at `report`.

        `sending` is called after the priming, before the load is sent. Raises LoadError.
        """

    def require_room(self) -> None:
        """Raise DiskFullError if the disk has less free than an orderly stop needs."""

    def anonymous(self, text: str) -> str:
        """Return `text` for publication: without this host's paths and this run's names."""

    def facts(self) -> dict[str, Any]:
        """Return the entries of run.json that only this engine has."""


class Engine(Protocol):
    """One run, before anything has started."""

    def hardware(self) -> Mapping[str, Any]:
        """Describe the hardware; measurements with equal `fingerprint` may be adopted for each other.

        If it is known only after the run, `fingerprints` has all possible ones, and the session's facts the actual one.
        """

    def exclusive_host(self, say: Log) -> AbstractContextManager[None]:
        """Exclude, while the body runs, every other measurement that this one would disturb."""

    def remove_leftovers(self, say: Log) -> None:
        """Remove what killed runs left behind, and report it with `say`; call it inside `exclusive_host`."""

    def require_possible(self, store: Store) -> None:
        """Raise a Failure, before anything starts, if this engine cannot measure the run here or lacks room for it."""

    def session(self, scratch: Path, say: Log) -> AbstractContextManager[RunSession]:
        """Begin the run; on leaving, remove everything that it started."""
