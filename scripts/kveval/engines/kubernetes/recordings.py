"""Recording a cell: one pmlogger of its own against the campaign's PCP, on the node that serves the cell.

The recorder's pods are started once per campaign. The metrics endpoints of a cell are made known to the one on its
node, under names that end in the run's mark, so that cells that run at once keep apart; in the archive that is brought
here they have the names that every recording uses.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kveval.engines.kubernetes import merge_metrics
from kveval.engines.kubernetes import recorder_scripts as scripts
from kveval.engines.kubernetes.api.download import collect_folder
from kveval.engines.kubernetes.api.errors import ClusterError
from kveval.engines.kubernetes.api.exec import Executed
from kveval.engines.kubernetes.api.kinds import DAEMON_SET, POD, Document, kind_of
from kveval.engines.kubernetes.api.names import selector
from kveval.engines.kubernetes.manifests.recorder import COMPONENT, CONFIGURATION, CONTAINER, STATE, recording_documents
from kveval.engines.kubernetes.run_place import RunContext
from kveval.engines.kubernetes.wait.diagnosis import is_ready
from kveval.engines.kubernetes.wait.rollout import wait_for_daemonset
from kveval.engines.protocol import Say
from kveval.host.processes import signals_deferred
from kveval.pcp.archive_tools import archive_files, rename_metrics
from kveval.pcp.installation import ONCE_METRICS, RecordingError, process_block
from kveval.pcp.recording import dead_agents

ROOT = f"{STATE}/runs"
_ENDED = 3
_START_S = 600.0
_READY_S = 60.0
_POLL_S = 0.3


@dataclass
class ClusterRecording:
    """A run's recording in the recorder's pod `pod`, brought to the folder `directory` when it stops.

    `sources`: the cell's metrics endpoints as the node sees them, by name, several URLs of one with spaces between;
    `groups`: the group of what is logged for
    each of them, and for those that every cell shares.
    """

    place: RunContext
    pod: Document
    mark: str
    directory: Path = Path()
    sources: Mapping[str, str] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)
    _stopped: bool = False

    @property
    def archive(self) -> Path:
        """Base path of the archive, here, once it was stopped."""
        return self.directory / "archive" / "pcp"

    @property
    def folder(self) -> str:
        """Where it is in the pod."""
        return f"{ROOT}/{self.mark}"

    @property
    def name(self) -> str:
        """The pod's name."""
        return str(self.pod["metadata"]["name"])

    def tell(self, sources: Mapping[str, str]) -> None:
        """Have these endpoints read, in place of those that had their names."""
        self.sources = sources
        pairs = [word for name, url in sources.items() for word in (self._own(name), url)]
        program = Path(merge_metrics.__file__).read_text(encoding="utf-8")
        self._require(self.run(scripts.SOURCES, program, *pairs), "takes no sources")

    def start(self, processes: Sequence[int]) -> None:
        """Start pmlogger once every endpoint is read, and return when the first values are logged."""
        self.tell(self.sources)
        deadline = time.monotonic() + _READY_S
        own = [self._own(name) for name in self.sources]
        while missing := self.run(scripts.MISSING, *own).text.split():
            # What does not answer when pmlogger starts is never logged.
            if time.monotonic() > deadline:
                urls = ", ".join(
                    f"{name} ({self.sources[name]})" for name in self.sources if self._own(name) in missing
                )
                raise RecordingError(
                    f"the recorder's pod {self.name} gets no metrics within {_READY_S:.0f} s of {urls}"
                )
            time.sleep(_POLL_S)
        logged = [word for name, group in self.groups.items() for word in (self._logged(name), group)]
        interval = f"{self.place.site.recorder.interval_s * 1000:.0f}"
        argv = [CONFIGURATION, process_block(processes), interval, *logged]
        self._require(self.run(scripts.START, *argv), "cannot start pmlogger")
        while (begun := self.run(scripts.BEGUN, ONCE_METRICS[0])).returncode:
            self._require_not_ended(begun)
            if time.monotonic() > deadline:
                raise RecordingError(f"pmlogger in pod {self.name} logged nothing within {_READY_S:.0f} s")
            time.sleep(_POLL_S)

    def alive(self) -> None:
        """Return if pmlogger, pmcd and every agent run; else RecordingError."""
        found = self.run(scripts.ALIVE)
        self._require_not_ended(found)
        self._require(found, "does not answer: pmcd, or an agent that it waits for, is silent")
        for name in dead_agents(found.text):
            raise RecordingError(f"PCP's {name} agent died in pod {self.name}")

    def require_running(self) -> None:
        """Nothing can be told without asking the pod; `alive` does, every few seconds."""

    def stop(self) -> None:
        """Stop pmlogger, bring the archive here and remove it there; may be called again. Raises RecordingError."""
        if self._stopped:
            return
        self._stopped = True
        found = self.run(scripts.STOP)
        self._require_not_ended(found)
        self._require(found, "has a pmlogger that does not end")
        brought = self.directory / "brought"
        try:
            namespace = self.place.site.pcp_namespace
            collect_folder(self.place.api, namespace, self.name, CONTAINER, self.folder, brought)
        except ClusterError as error:
            raise RecordingError(f"the archive cannot be brought here: {error}") from error
        if not archive_files(brought / "archive" / "pcp"):
            raise RecordingError(f"pmlogger in pod {self.name} left no archive")
        self.archive.parent.mkdir(parents=True, exist_ok=True)
        renamed = {f"openmetrics.{self._own(name)}": f"openmetrics.{name}" for name in self.sources}
        rename_metrics(brought / "archive" / "pcp", self.archive, renamed)
        self.release()

    def release(self) -> None:
        """End and remove what is in the pod, without judging it; may be called again."""
        with signals_deferred():
            try:
                self.run(scripts.REMOVE)
            except RecordingError:
                # A pod that cannot be asked is gone, or goes with the campaign; the next run looks again.
                return

    def clock(self) -> float:
        """Return the pod's time, epoch seconds."""
        return float(self.run(scripts.CLOCK).text.replace(".%N", "").replace(".N", ""))

    def run(self, script: str, *arguments: str) -> Executed:
        """Run a script in the pod. Raises RecordingError when that is not possible."""
        argv = ["sh", "-c", script, self.folder, *arguments]
        try:
            return self.place.api.exec(self.place.site.pcp_namespace, self.name, CONTAINER, argv)
        except ClusterError as error:
            raise RecordingError(f"the recorder's pod {self.name} cannot be asked: {error}") from error

    def _own(self, name: str) -> str:
        return f"{name}_{self.mark}"

    def _logged(self, name: str) -> str:
        return self._own(name) if name in self.sources else name

    def _require(self, done: Executed, what: str) -> None:
        if done.returncode:
            said = " ".join((done.stderr.decode(errors="replace") or done.text).split())
            raise RecordingError(f"the recorder's pod {self.name} {what}: {said or f'exit code {done.returncode}'}")

    def _require_not_ended(self, done: Executed) -> None:
        if done.returncode == _ENDED:
            raise RecordingError(f"pmlogger ended in pod {self.name}: {' '.join(done.text.split())}")


def recorder_pods(place: RunContext) -> list[Document]:
    """Return the recorder's pods of the campaign that are ready; another run may just be starting them."""
    chosen = selector(place.campaign, component=COMPONENT)
    return [pod for pod in place.api.list(POD, place.site.pcp_namespace, chosen) if is_ready(pod)]


def deploy(place: RunContext, say: Say) -> list[Document]:
    """Start the campaign's recorder unless it runs, and return its pods when all are ready."""
    documents = recording_documents(place.campaign, place.site, {})
    place.api.apply(documents)
    names = [document["metadata"]["name"] for document in documents if kind_of(document) == DAEMON_SET]
    return [
        pod for name in names for pod in wait_for_daemonset(place.api, place.site.pcp_namespace, name, _START_S, say)
    ]


def mark_of(place: RunContext) -> str:
    """Return what tells this run's recording from others in a recorder's pod: letters and digits."""
    return "r" + place.name(COMPONENT)[-8:]


def begin(
    place: RunContext, pod: Document, directory: Path, sources: Mapping[str, str], uids: Sequence[str]
) -> ClusterRecording:
    """Record from now on, in the recorder's pod `pod`; `uids`: of the pods whose processes are recorded, too."""
    groups = {name: name for name in (*sources, *place.site.recorder.sources)}
    recording = ClusterRecording(place, pod, mark_of(place), directory, sources, groups)
    recording.release()
    processes = [int(word) for word in recording.run(scripts.PROCESSES, *uids).text.split()]
    try:
        recording.start(processes)
    except BaseException:
        recording.release()
        raise
    return recording


def version(place: RunContext, pod: Document) -> str:
    """Return PCP's release in a recorder's pod."""
    return ClusterRecording(place, pod, mark_of(place)).run(scripts.VERSION).text.strip()


def remove_stale(place: RunContext, living: Sequence[str], say: Say) -> None:
    """End the recordings of runs that nobody measures any more; `living`: the marks of those that are measured."""
    for pod in recorder_pods(place):
        for mark in ClusterRecording(place, pod, "none").run(scripts.LIST).text.split():
            if mark not in living:
                ClusterRecording(place, pod, mark).release()
                say(f"ended the recording {mark} that a killed run left in pod {pod['metadata']['name']}")
