"""The questions that a measurement has for an engine, and that this host and a cluster each answer in their own way.

An Engine stands for one run before anything has started; its RunSession for the run in progress: the server, the
recording, the load generator.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from kveval.host.errors import Failure
from kveval.load.guidellm import Level, Primed
from kveval.store.run_file import Answers, SidecarRecord
from kveval.store.store import Key, Store

Say = Callable[[str], None]
Check = tuple[Callable[[], None], float]
"""What raises a Failure when something is wrong, and every how many seconds it is to be asked."""


class DeploymentError(Failure):
    """The server did not come up as declared, or stopped serving."""


class ServerDied(DeploymentError):
    """A process of the server is gone; the message has the telling line of its log.

    Facts: `log`, where it is on this host, and `offset`, where this deployment begins in it, bytes.
    """


@dataclass(frozen=True)
class LoadResult:
    """A load generator that has ended.

    `began`: epoch seconds, by its own clock, when it was started; `started` and `ended`: this process's steady clock;
    `primed`: how the caches were primed before, None where they were not.
    """

    began: float
    started: float
    ended: float
    primed: Primed | None = None

    @property
    def wall_s(self) -> float:
        """Its wall seconds."""
        return self.ended - self.started


class Server(Protocol):
    """A server that answers, and has the declared version and model."""

    version: str
    startup_s: float
    facts: dict[str, Any]

    @property
    def argv(self) -> Sequence[str]:
        """Its command line."""

    @property
    def env(self) -> Mapping[str, str]:
        """Its environment, without secrets."""

    @property
    def sidecar_facts(self) -> Sequence[SidecarRecord]:
        """The servers that its arm needs."""

    def require_alive(self) -> None:
        """Raise a Failure, ServerDied where it is one, when a process of it or of a sidecar is gone."""

    def counters(self) -> dict[str, float]:
        """Read the counters of the server and of what stands beside it, summed over replicas."""

    def check_answers(self, *, tier: bool, longest: int) -> Answers:
        """Compare its answers cold and from its cache, see kveval.engines.servers.answers; leaves caches filled."""

    def stall_checks(self, limit_s: float, idle_s: float, loaded_s: float) -> Sequence[Check]:
        """Return the watches that find it hanging; see kveval.engines.watchdog.StallWatch for the three times."""


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

        The first has the server's metrics, too. The last folder of each path tells them apart; a .parquet is
        recorded without PCP.
        """

    def alive(self) -> None:
        """Raise RecordingError unless everything that records does so."""

    def require_running(self) -> None:
        """The same at a glance."""

    def stop(self) -> None:
        """Complete the archive; may be called again."""


class RunSession(Protocol):
    """One run in progress.

    `own_clock`: whether this host's clock is the one that windows and recording go by, so that it must not be set.
    """

    own_clock: bool

    @property
    def handle(self) -> ServerHandle:
        """Where the server is."""

    @property
    def checks(self) -> Sequence[Check]:
        """Checks of what else is to be watched, or done, while a level runs."""

    @property
    def pcp_version(self) -> str:
        """The release of what records."""

    def recording(self) -> AbstractContextManager[Recorder]:
        """Record from now on; the body starts when the first values are there."""

    def expect(self, levels: Sequence[Level]) -> None:
        """Learn which levels will be asked for, in order, so that they can be prepared."""

    def command(self, level: Level, report: Path) -> list[str]:
        """Return the load generator's command line; the report will come to lie at `report`."""

    def generate(
        self,
        level: Level,
        argv: list[str],
        report: Path,
        watch: Callable[[float], None],
        sending: Callable[[], None],
    ) -> LoadResult:
        """Prime the caches where the workload asks for it, and run the load generator until its report is at `report`.

        `watch(elapsed_s)` is called about twice a second and raises what must end the level; `sending` before the load
        is sent, after the priming. Raises LoadError.
        """

    def require_room(self) -> None:
        """Raise DiskFullError when there is no room to stop in order."""

    def anonymous(self, text: str) -> str:
        """Take this host's paths and this run's names out of what is published."""

    def facts(self) -> dict[str, Any]:
        """Return what run.json says of this engine alone."""


class Engine(Protocol):
    """One run, before anything has started."""

    def hardware(self) -> Mapping[str, Any]:
        """Describe what is measured on; `fingerprint` is equal where measurements may stand for each other.

        Where that is known afterwards alone, `fingerprints` has those that it may be, and the session's facts say it.
        """

    def alone(self, say: Say) -> AbstractContextManager[None]:
        """Keep away, for as long as the body runs, every other measurement that this one would disturb."""

    def remove_leftovers(self, store: Store, key: Key, say: Say) -> None:
        """Remove what killed runs left, saying what; inside `alone`."""

    def require_possible(self, store: Store) -> None:
        """Raise a Failure for what this engine cannot measure here, or has no room for, before anything starts."""

    def scratch(self, store: Store, key: Key) -> Path:
        """Make the absolute path of an empty folder, with `raw` in it, for what is written meanwhile."""

    def session(self, scratch: Path, say: Say) -> AbstractContextManager[RunSession]:
        """Offer the run in progress; on leaving, nothing that it started is left."""
