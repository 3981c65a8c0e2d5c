"""Recording a run: one pmlogger per run, connected to the campaign's PCP, on every node that the servers run on.

The recorder's pods are started once per campaign. A run's metrics endpoints are added to one pod only, so that nothing
is counted twice, under names that end in the run's mark, so that concurrent runs do not collide; in the archives that
are copied here they have the names that every recording uses, and the host is the node's name.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kveval.campaign.site import Cluster
from kveval.engines.kubernetes import leases, lifetime
from kveval.engines.kubernetes import recorder_scripts as scripts
from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.download import collect
from kveval.engines.kubernetes.api.errors import (
    NO_ANSWER,
    ClusterError,
    NodeNotReady,
    Refused,
)
from kveval.engines.kubernetes.api.exec import Executed
from kveval.engines.kubernetes.api.kinds import (
    CONFIG_MAP,
    DAEMON_SET,
    JOB,
    LEASE,
    POD,
    Document,
    described,
)
from kveval.engines.kubernetes.api.names import labels, object_name
from kveval.engines.kubernetes.deployment import RUN_KINDS
from kveval.engines.kubernetes.installed_recorder import (
    InstalledRecorder,
    installed_pods,
    outdated,
)
from kveval.engines.kubernetes.manifests.context import RunContext
from kveval.engines.kubernetes.manifests.recorder import (
    COMPONENT,
    CONTAINER,
    STATE,
    campaign_selectors,
    full_name,
    recorder_name,
    recorder_selector,
    recording_documents,
)
from kveval.engines.kubernetes.teardown import remove_made
from kveval.engines.kubernetes.wait.diagnosis import is_ready
from kveval.engines.kubernetes.wait.rollout import (
    RolloutError,
    require_unchanged,
    wait_for_daemonset,
)
from kveval.engines.protocol import Log, MachineClock
from kveval.host.processes import signals_deferred
from kveval.pcp.archive_tools import archive_files, rewrite_archive
from kveval.pcp.installation import ONCE_METRICS, RecordingError, process_block
from kveval.pcp.recording import dead_agents

ROOT = f"{STATE}/runs"
ARCHIVE = "archive"
"""Folder of a recording's archive, in its own."""
_ENDED = 3
_START_S = 600.0
_READY_S = 60.0
_POLL_S = 0.3
_RECORDER_KINDS = (JOB, DAEMON_SET, POD, CONFIG_MAP)
_REMOVAL = "recorder-removal"
_OUTAGE_S = 10.0


class NodeRecording:
    """A run's recording in the recorder's pod `pod`, copied to a folder in `directory` when it stops.

    `sources`: the run's metrics endpoints by name, as the node sees them, several URLs separated by spaces; `shared`:
    names of the endpoints that are recorded for every run; `archive`: base path of the archive on this host, once the
    recording was collected.
    """

    def __init__(
        self, context: RunContext, pod: Document, mark: str, directory: Path = Path()
    ) -> None:
        self.context, self.pod, self.mark = context, pod, mark
        self.name, self.node = (
            str(pod["metadata"]["name"]),
            str(pod["spec"]["nodeName"]),
        )
        self.folder = f"{ROOT}/{mark}"
        self.archive = directory / self.node / "pcp"
        self._installed = (
            InstalledRecorder(context, pod, mark)
            if context.site.recorder.installed
            else None
        )
        self.sources: Mapping[str, str] = {}
        self.shared: Sequence[str] = ()

    def tell(self, sources: Mapping[str, str]) -> None:
        """Set these endpoints; they replace those with the same names. Raises RecordingError."""
        self.sources = sources
        pairs = [
            word for name, url in sources.items() for word in (self._own(name), url)
        ]
        self._require(self.run(scripts.SOURCES, *pairs), "cannot set its sources")

    def start(self, processes: Sequence[int]) -> None:
        """Start pmlogger once every endpoint can be read; return once values are logged. Raises RecordingError."""
        self.tell(self.sources)
        deadline = time.monotonic() + _READY_S
        own = [self._own(name) for name in self.sources]
        while missing := self.run(scripts.MISSING, *own).text.split():
            # pmlogger never logs an endpoint that does not answer when it starts.
            if time.monotonic() > deadline:
                urls = ", ".join(
                    f"{name} ({url})"
                    for name, url in self.sources.items()
                    if self._own(name) in missing
                )
                raise RecordingError(
                    f"the recorder's pod {self.name} has no metrics within {_READY_S:.0f} s: {urls}"
                )
            time.sleep(_POLL_S)
        groups = {self._own(name): name for name in self.sources} | {
            name: name for name in self.shared
        }
        logged = [word for pair in groups.items() for word in pair]
        interval = f"{self.context.site.recorder.interval_s * 1000:.0f}"
        argv = [process_block(processes), interval, *logged]
        self._require(self.run(scripts.START, *argv), "cannot start pmlogger")
        while (begun := self.run(scripts.BEGUN, ONCE_METRICS[0])).returncode:
            if begun.returncode == _ENDED:
                self._require(begun, "records nothing")
            if time.monotonic() > deadline:
                raise RecordingError(
                    f"pmlogger in pod {self.name} logged nothing within {_READY_S:.0f} s"
                )
            time.sleep(_POLL_S)

    def check_alive(self) -> None:
        """Raise RecordingError unless pmlogger, pmcd and every agent run."""
        result = self.run(scripts.ALIVE)
        self._require(
            result, "does not answer: pmcd, or an agent that it waits for, is silent"
        )
        for name in dead_agents(result.text):
            raise RecordingError(f"PCP's {name} agent died in pod {self.name}")

    def stop(self) -> None:
        """Stop pmlogger. Raises RecordingError."""
        self._require(self.run(scripts.STOP), "has a pmlogger that does not end")

    def collect(self) -> None:
        """Copy the archive here and remove it in the pod. Raises RecordingError."""
        brought = self.archive.parent / "brought"
        api, namespace = self.context.api, self.context.site.pcp_namespace
        try:
            if self._installed is not None:
                self._installed.bring(ARCHIVE, brought)
            else:
                archive = f"{self.folder}/{ARCHIVE}"
                collect(api, namespace, self.name, CONTAINER, archive, brought)
        except ClusterError as error:
            raise RecordingError(f"the archive cannot be copied: {error}") from error
        if not archive_files(brought / "pcp"):
            raise RecordingError(f"pmlogger in pod {self.name} left no archive")
        renamed = {
            f"openmetrics.{self._own(name)}": f"openmetrics.{name}"
            for name in self.sources
        }
        rewrite_archive(brought / "pcp", self.archive, renamed, self.node)
        self.release()

    def release(self) -> None:
        """End the recording and remove its files in the pod, ignoring errors; may be called again."""
        # A pod that does not answer is gone, or is removed with the campaign; the next run tries again.
        with signals_deferred(), contextlib.suppress(RecordingError):
            self.run(scripts.REMOVE)

    def clock(self) -> MachineClock:
        """Return the node's clock. Raises RecordingError."""
        return clock_of(self.node, lambda: self.run(scripts.CLOCK).text)[0]

    def run(self, script: str, *arguments: str) -> Executed:
        """Run a script in the pod and return its result, whatever its exit code. Raises RecordingError."""
        argv = ["sh", "-c", script, self.folder, *arguments]
        try:
            if self._installed is not None:
                return self._installed.run(script, arguments)
            return self.context.api.exec(
                self.context.site.pcp_namespace, self.name, CONTAINER, argv
            )
        except ClusterError as error:
            message = f"the recorder's pod {self.name} cannot be asked: {error}"
            # Those errors name the cause already.
            named = error.code == NO_ANSWER or isinstance(error, NodeNotReady)
            raise RecordingError(
                message if named else self._end() or message
            ) from error

    def _end(self) -> str:
        """Return how the pod has ended or why it cannot continue, "" if it runs."""
        namespace = self.context.site.pcp_namespace
        if self.context.api.lacks_namespace(namespace):
            return f"namespace {namespace} was deleted, and with it the recorder"
        try:
            require_unchanged(self.context.api, [self.pod])
        except RolloutError as error:
            if error.cause == "PodDeleted":
                return f"the recorder's pod {self.name} was deleted"
            return f"the recorder died: {error}"
        except ClusterError:
            return ""
        return ""

    def _own(self, name: str) -> str:
        return f"{name}_{self.mark}"

    def _require(self, done: Executed, what: str) -> None:
        if done.returncode == _ENDED:
            raise RecordingError(
                f"pmlogger ended in pod {self.name}: {' '.join(done.text.split())}"
            )
        if done.returncode:
            reason = done.error_text or f"exit code {done.returncode}"
            raise RecordingError(f"the recorder's pod {self.name} {what}: {reason}")


@dataclass
class ClusterRecording:
    """A run's recordings, one per node of its servers; the first includes the run's metrics endpoints."""

    nodes: Sequence[NodeRecording]
    _stopped: bool = False

    @property
    def archives(self) -> list[Path]:
        """Base paths of the archives on this host, once the recordings were stopped."""
        return [node.archive for node in self.nodes]

    def check_alive(self) -> None:
        """Raise RecordingError unless pmlogger, pmcd and every agent run on every node."""
        for node in self.nodes:
            node.check_alive()

    def require_running(self) -> None:
        """Do nothing: a check would need requests to the pods, which `check_alive` makes every few seconds."""

    def stop(self) -> None:
        """Stop all recordings, then copy the archives here; may be called again. Raises RecordingError."""
        if self._stopped:
            return
        self._stopped = True
        for node in self.nodes:
            node.stop()
        for node in self.nodes:
            node.collect()

    def release(self) -> None:
        """End the recordings and remove their files in the pods, ignoring errors; may be called again."""
        for node in self.nodes:
            node.release()


def clock_of(node: str, ask: Callable[[], str]) -> tuple[MachineClock, float]:
    """Return a node's clock, and the time there when it was asked, epoch seconds.

    `ask`: runs `date +%s.%N` there; a `date` that does not know %N prints it unchanged.
    """
    begin = time.time()
    whole, _, fraction = ask().split(maxsplit=1)[0].partition(".")
    half_s = (time.time() - begin) / 2
    there = float(f"{whole}.{fraction if fraction.isdigit() else 0}")
    return MachineClock(node, there - begin - half_s, half_s), there


def deploy(context: RunContext, nodes: Sequence[str], say: Log) -> list[Document]:
    """Start the campaign's recorder unless it runs; return its ready pods on `nodes`, in the order of `nodes`."""
    if context.site.recorder.installed:
        return installed_pods(context, nodes, _START_S, say)
    context.api.apply(recording_documents(context.campaign, context.site))
    namespace, name = (
        context.site.pcp_namespace,
        recorder_name(context.campaign, context.site),
    )
    pods = wait_for_daemonset(
        context.api, namespace, name, nodes, _START_S, say, context.patience
    )
    return sorted(pods, key=lambda pod: nodes.index(pod["spec"]["nodeName"]))


def installed_fault(context: RunContext, pod: Document) -> str:
    """Return why an installed recorder's pod cannot record this site's runs, "" if it answers that it can."""
    if not is_ready(pod):
        return "it is not ready"
    if why := outdated(context.site, pod):
        return why
    try:
        NodeRecording(context, pod, "none").check_alive()
    except RecordingError as error:
        return str(error)
    return ""


def mark_of(context: RunContext) -> str:
    """Return the name of this run's recording in a recorder's pod: letters and digits, for this run alone."""
    name = full_name(context.campaign, context.site)
    return "r" + object_name(context.cell, context.run, COMPONENT, name)[-8:]


def start_recording(
    context: RunContext,
    pods: Sequence[Document],
    directory: Path,
    sources: Mapping[str, str],
    beside: Sequence[Document],
) -> ClusterRecording:
    """Start recording in the recorder's pods `pods`; the first reads the endpoints `sources`. Raises RecordingError.

    `beside`: pods whose processes are recorded as well.
    """
    recording = ClusterRecording(
        [NodeRecording(context, pod, mark_of(context), directory) for pod in pods]
    )
    recording.release()
    first = recording.nodes[0]
    first.sources = sources
    try:
        for node in recording.nodes:
            # An endpoint with one address for all nodes is recorded on one of them.
            urls = context.site.recorder.sources.items()
            node.shared = [
                name for name, url in urls if node is first or "{host}" in url
            ]
            uids = [
                str(pod["metadata"]["uid"])
                for pod in beside
                if pod["spec"].get("nodeName") == node.node
            ]
            node.start(
                [int(word) for word in node.run(scripts.PROCESSES, *uids).text.split()]
            )
    except BaseException:
        recording.release()
        raise
    return recording


def version(context: RunContext, pod: Document) -> str:
    """Return PCP's release in a recorder's pod."""
    return (
        NodeRecording(context, pod, mark_of(context)).run(scripts.VERSION).text.strip()
    )


def reaches(context: RunContext, pod: Document, urls: Sequence[str]) -> bool:
    """Tell whether a recorder's pod, whose image must have Python, can read all of these URLs."""
    with contextlib.suppress(RecordingError):
        done = NodeRecording(context, pod, "none").run(scripts.REACH, *urls)
        return done.returncode == 0
    return False


def remove_stale(context: RunContext, say: Log) -> None:
    """End the recordings that killed runs left.

    A recorder that an administrator has installed, which other campaigns use as well, ends them itself.
    """
    if context.site.recorder.installed:
        return
    chosen = recorder_selector(context.campaign, context.site)
    # Another run may just be starting others.
    for pod in filter(
        is_ready, context.api.list(POD, context.site.pcp_namespace, chosen)
    ):
        marks = NodeRecording(context, pod, "none").run(scripts.RECORDINGS).text.split()
        # Only now: none of these is of a run that begins after this.
        living = leases.living_leases(context.api, context.namespace, context.campaign)
        for mark in sorted({*marks} - {*map(leases.mark_of, living)}):
            NodeRecording(context, pod, mark).release()
            say(
                f"ended the recording {mark} that a killed run left in pod {pod['metadata']['name']}"
            )


def release_recorder(
    site: Cluster, campaign: str, say: Log, api: Api | None = None
) -> None:
    """Remove the campaign's recorder, which its runs share, unless one of them is being measured.

    The model cache stays, because it takes hours to fill. A failure is reported, not raised, because the measured data
    is still valid. `api`: None if the workflow's end calls this, because its last runs failed and did not: then what
    killed jobs have left goes, too. A recorder that an administrator has installed stays.
    """
    ended = api is None
    if site.recorder.installed and not ended:
        return
    try:
        api = api or Api.connect(site.kubeconfig, site.context, outage_s=_OUTAGE_S)
        with _removal_alone(api, site, campaign, say), signals_deferred():
            living = leases.living_leases(api, site.namespace, campaign)
            if not living and not site.recorder.installed:
                _remove_recorder(api, site, campaign, say)
            if ended and living:
                say(
                    f"what {', '.join(map(leases.holder_of, living))} has on the cluster was left: it measures for campaign"
                    f" {campaign}, or was killed in the last {leases.LIVING_S / 60:.0f} minutes. Of a killed one:"
                    f" {lifetime.how_it_goes()}"
                )
            elif ended:
                # All else of a run goes with its Jobs.
                chosen = campaign_selectors(campaign, site)
                of_runs = site.namespace, chosen[site.namespace]
                names = remove_made(api, *of_runs, RUN_KINDS, say)
                for namespace, selected in chosen.items():
                    if api.lacks_namespace(namespace):
                        continue
                    for lease in api.list(LEASE, namespace, selected):
                        # A run may begin now, and have made its own.
                        if leases.gone(leases.holder_of(lease)):
                            about = lease["metadata"]
                            api.delete(
                                LEASE, about["name"], namespace, uid=about["uid"]
                            )
                            names.append(described(lease))
                if names:
                    said = "removed from the cluster what a killed job had left"
                    say(f"{said}: {', '.join(names)}")
    except ClusterError as error:
        what = "what the campaign's jobs left" if ended else "the campaign's recorder"
        say(f"{what} was not removed ({error.aside}). {lifetime.how_it_goes(error)}")


def await_removal(context: RunContext, say: Log) -> None:
    """Wait until nobody removes the campaign's recorder. Raises ClusterError.

    Called by a run that holds its Lease: whoever begins to remove the recorder afterwards sees that the run lives.
    """
    if context.site.recorder.installed:
        return
    with _removal_alone(context.api, context.site, context.campaign, say, begins=True):
        chosen = recorder_selector(context.campaign, context.site)
        there = context.api.list(DAEMON_SET, context.site.pcp_namespace, chosen)
        # A job that was killed meanwhile has begun it: what is applied to such an object would go with it.
        if any(daemon_set["metadata"].get("deletionTimestamp") for daemon_set in there):
            _remove_recorder(context.api, context.site, context.campaign, say)


def removal_metadata(campaign: str, site: Cluster) -> Document:
    """Return the metadata of the Lease of whoever removes the campaign's recorder."""
    name = full_name(campaign, site)
    return {
        "name": object_name("", None, _REMOVAL, name),
        "namespace": site.pcp_namespace,
        "labels": {**site.labels, **labels(name, "", None, "", _REMOVAL)},
    }


@contextlib.contextmanager
def _removal_alone(
    api: Api, site: Cluster, campaign: str, say: Log, *, begins: bool = False
) -> Iterator[None]:
    """Hold the Lease of whoever looks for the campaign's living runs and removes their recorder if there are none.

    `begins`: a run begins that needs the recorder. Raises ClusterError.
    """
    metadata = removal_metadata(campaign, site)
    awaited = "the campaign's recorder: {holder} is removing it"
    hold = functools.partial(leases.hold, api, metadata, awaited, say)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(hold())
        except Refused as error:
            # Without its namespace there is no recorder; the account may be one that makes the namespace.
            if not api.lacks_namespace(site.pcp_namespace):
                if error.status != 404:
                    raise
                # Another run has just made it.
                stack.enter_context(hold())
            elif error.status != 404 and begins:
                message = f"there is no namespace {site.pcp_namespace}, or it is being deleted: docs/cluster.md makes it"
                raise ClusterError(message, code="no_namespace") from error
        yield


def _remove_recorder(api: Api, site: Cluster, campaign: str, say: Log) -> None:
    # With its namespace the recorder goes, and so do the rights there.
    if not api.lacks_namespace(site.pcp_namespace):
        chosen = site.pcp_namespace, recorder_selector(campaign, site)
        remove_made(api, *chosen, _RECORDER_KINDS, say)
