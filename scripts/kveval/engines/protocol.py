"""The interface between a measurement and an engine.

An engine is a composition of three parts: a Deployer, which starts what answers or attaches to it, a LoadRunner and a
Recorder. They are combined in a RunSession, the run in progress; an Engine stands for one run before anything has
started, and makes its session. What is here, on a cluster or elsewhere is each part's own choice.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from kveval.engines.servers.server import Server
from kveval.engines.watchdog import DISK_RESERVE_BYTES, Check, require_free
from kveval.load.guidellm import Level, Primed
from kveval.store.store import Store

Log = Callable[[str], None]
Watch = Callable[[float], None]
"""Called about twice a second with the seconds that a level has lasted; raises any Failure that must end it."""
Event = Callable[[], None]
ServerT_co = TypeVar("ServerT_co", bound=Server, covariant=True)


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


@dataclass(frozen=True)
class MachineClock:
    """The clock of a machine: `ahead_s` seconds ahead of this process's, known to within `doubt_s`."""

    machine: str
    ahead_s: float
    doubt_s: float


THIS_CLOCK = MachineClock("this host", 0.0, 0.0)


class AddressedServer(Server):
    """A server with one address that this host reaches, for load runner and recorder of this host."""

    url: str

    @property
    @abstractmethod
    def metrics_urls(self) -> Mapping[str, str]:
        """Every Prometheus endpoint of the deployment, by program."""

    @property
    @abstractmethod
    def process_ids(self) -> Sequence[int]:
        """The deployment's processes on this host, to be recorded."""


class EnginePart:
    """A part of an engine: its entries of run.json and its checks of a level, of which it may have none."""

    @property
    def checks(self) -> Sequence[Check]:
        """Functions to call at intervals while a level runs: checks and sampling."""
        return ()

    @property
    def placeholders(self) -> Mapping[str, str]:
        """Paths and names that are not for publication, and what stands for each in run.json."""
        return {}

    def facts(self) -> Mapping[str, Any]:
        """Return the entries of run.json that only this part has, once its work is over."""
        return {}


class Deployer(EnginePart, ABC, Generic[ServerT_co]):
    """Starts what answers the run's requests, or attaches to it: one deployment at a time.

    `beginning`: its start, in words of the job's log.
    """

    beginning = "starting the server"

    @property
    @abstractmethod
    def server(self) -> ServerT_co:
        """The deployment in service. Raises DeploymentError when there is none."""

    def expected_url(self) -> str | None:
        """Return the address that the server will have once it is started; None if that is not known before."""
        return None

    @abstractmethod
    def start(self) -> ServerT_co:
        """Deploy or attach, and wait until it answers as declared, warm and with empty caches."""

    @abstractmethod
    def refresh(self, *, restart: bool) -> None:
        """Give the next level empty caches, by the server's own endpoint or by a new server."""

    @abstractmethod
    def close(self) -> None:
        """Tear down what it started; may be called again."""


class LoadRunner(EnginePart, ABC):
    """Sends the levels' loads to what answers.

    `own_clock`: whether the windows of levels are told by this host's clock, which then must not be set.
    """

    own_clock = True

    def preparing(self, levels: Sequence[Level]) -> AbstractContextManager[None]:
        """Prepare the first of these levels, if possible, while the body starts the server.

        Nothing of that goes on after the body, because something may be measured then.
        """
        return nullcontext()

    @abstractmethod
    def expect(self, levels: Sequence[Level]) -> None:
        """Take note of the levels to come, in order, so that they can be prepared."""

    @abstractmethod
    def generate(
        self, level: Level, report: Path, watch: Watch, sending: Event
    ) -> LoadResult:
        """Prime the caches if the workload declares it, and run the load generator until its report is at `report`.

        `sending` is called after the priming, before the load is sent. Raises LoadError.
        """

    def clock(self) -> MachineClock:
        """Return the clock that the windows of the levels so far are told by."""
        return THIS_CLOCK


class RunningRecording(Protocol):
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


class Recorder(EnginePart, ABC):
    """Records the deployment and the hosts that it runs on.

    `own_clock`: whether samples have their times from this host's clock, which then must not be set.
    """

    own_clock = True

    @property
    @abstractmethod
    def pcp_version(self) -> str:
        """The release of the PCP that records, known once it does."""

    @abstractmethod
    def recording(self) -> AbstractContextManager[RunningRecording]:
        """Record while the body runs; it starts once the first values are recorded."""

    def clock(self) -> MachineClock:
        """Return the clock that samples have their times from."""
        return THIS_CLOCK


@dataclass(frozen=True)
class RunSession:
    """One run in progress, by the three parts of its engine.

    `scratch`: the run's folder; `folders`: others on this host that the run writes to.
    """

    deployer: Deployer[Server]
    load: LoadRunner
    recorder: Recorder
    scratch: Path
    folders: Sequence[Path] = ()

    @property
    def own_clock(self) -> bool:
        """Whether a step of this host's clock would shift levels against the recording."""
        return self.load.own_clock or self.recorder.own_clock

    @property
    def checks(self) -> Sequence[Check]:
        """The checks and the sampling of all parts while a level runs."""
        return [*self.deployer.checks, *self.load.checks, *self.recorder.checks]

    def require_room(self) -> None:
        """Raise DiskFullError if a disk that the run writes to has less free than an orderly stop needs."""
        for folder in (self.scratch, *self.folders):
            require_free(folder, DISK_RESERVE_BYTES, "stopping in order")

    def anonymous(self, text: str) -> str:
        """Return `text` for publication: without this host's paths and this run's names."""
        for name, placeholder in (
            (str(self.scratch), "{scratch}"),
            *self.deployer.placeholders.items(),
            *self.load.placeholders.items(),
            *self.recorder.placeholders.items(),
        ):
            text = text.replace(name, placeholder)
        return text

    def facts(self) -> dict[str, Any]:
        """Return the entries of run.json that depend on the engine."""
        facts: dict[str, Any] = {"clock_offset_s": self.clock_offset_s()}
        for part in (self.deployer, self.load, self.recorder):
            facts = _joined(facts, part.facts())
        return facts

    def clock_offset_s(self) -> float:
        """Return the recorder's clock minus the load runner's, seconds; 0 if that is within the error of both."""
        samples, windows = self.recorder.clock(), self.load.clock()
        if samples.machine == windows.machine:
            return 0.0
        offset_s = samples.ahead_s - windows.ahead_s
        known = abs(offset_s) > samples.doubt_s + windows.doubt_s
        return round(offset_s, 3) if known else 0.0


class Engine(Protocol):
    """One run, before anything has started."""

    def hardware(self) -> Mapping[str, Any]:
        """Describe the hardware; measurements with equal `fingerprint` may be adopted for each other.

        If it is known only after the run, `fingerprints` has all possible ones, and the session's facts the actual one.
        """

    def may_adopt(self, stored: Path, say: Log) -> bool:
        """Tell whether a stored run of this measurement and hardware may stand for this one; why not goes to `say`."""

    def exclusive_host(self, say: Log) -> AbstractContextManager[None]:
        """Exclude, while the body runs, every other measurement that this one would disturb."""

    def remove_leftovers(self, say: Log) -> None:
        """Remove what killed runs left behind, and report it with `say`; call it inside `exclusive_host`."""

    def require_possible(self, store: Store) -> None:
        """Raise a Failure, before anything starts, if this engine cannot measure the run here or lacks room for it."""

    def wait_until_quiet(self, say: Log) -> None:
        """Wait, as long as this machine's user allows, until others leave its processors to a run that serves here."""

    def session(self, scratch: Path, say: Log) -> AbstractContextManager[RunSession]:
        """Begin the run; on leaving, remove everything that it started."""


def _joined(facts: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Return `facts` with `others`; mappings that both have are joined in the same way."""
    result = dict(facts)
    for name, value in others.items():
        present = result.get(name)
        if isinstance(present, Mapping) and isinstance(value, Mapping):
            result[name] = _joined(present, value)
        else:
            result[name] = value
    return result
