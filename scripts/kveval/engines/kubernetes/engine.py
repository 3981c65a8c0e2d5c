"""The engine for a cluster: measures one run of a cell, beside other runs, through the API server."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kveval.engines.job import Job, MeasurementError
from kveval.engines.kubernetes import leases, lifetime, neighbours, recordings
from kveval.engines.kubernetes import nodes as machines
from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.errors import ClusterError
from kveval.engines.kubernetes.api.kinds import (
    DAEMON_SET,
    NAMESPACE,
    NODE,
    Document,
    described,
    kind_of,
)
from kveval.engines.kubernetes.api.names import selector
from kveval.engines.kubernetes.deployment import ClusterServerHandle, remove_run
from kveval.engines.kubernetes.load_jobs import LoadJobs
from kveval.engines.kubernetes.manifests.context import LOAD_FOLDER, RunContext
from kveval.engines.kubernetes.manifests.recorder import (
    recorder_labels,
    recorder_name,
    recording_documents,
)
from kveval.engines.kubernetes.manifests.rendering import PORTS, target_url
from kveval.engines.kubernetes.replicas import ClusterServer
from kveval.engines.kubernetes.routes import (
    exporters_of,
    gateway_url,
    require_routed,
    sources_of,
    with_controller,
)
from kveval.engines.preflight import disk_bytes
from kveval.engines.protocol import Event, LoadResult, Log, Watch
from kveval.engines.watchdog import DISK_RESERVE_BYTES, Check, require_free
from kveval.host.errors import Failure
from kveval.host.gpu_conditions import INTERVAL_S, GpuWatch
from kveval.host.hardware import GPU_QUERY, parse_gpus
from kveval.host.http import free_port
from kveval.host.processes import Terminated
from kveval.load import guidellm as load
from kveval.pcp.installation import require_pcp
from kveval.store.store import Store

_LEASE_CHECK_S = 5.0
_NAMESPACE_S = 10.0


class ClusterEngine:
    """One run on a cluster, before anything has started."""

    _lease: leases.HeldLease

    def __init__(self, job: Job) -> None:
        if job.site is None:
            raise MeasurementError(
                "engine kubernetes needs the campaign's key cluster, which describes the cluster"
            )
        self._api = Api.connect(job.site.kubeconfig, job.site.context)
        self._job, self._site = job, with_controller(self._api, job.site)
        ports = own_ports() if job.site.shared_network else PORTS
        self._context = RunContext(
            job.specification,
            self._site,
            job.run,
            job.campaign,
            ports,
            job.measurement,
            api=self._api,
        )

    def hardware(self) -> Mapping[str, Any]:
        """Return the fingerprints of all nodes that the servers may run on; the actual ones are known after the run."""
        deployment = self._job.specification.on_cluster
        nodes = machines.fitting(
            self._api.list(NODE), self._site, gpus=deployment.gpus > 0
        )
        return {
            "fingerprints": machines.adoptable(
                nodes, self._site.gpu_resource, deployment.replicas
            )
        }

    @contextlib.contextmanager
    def exclusive_host(self, say: Log) -> Iterator[None]:
        """Hold this run's Lease; other runs may be measured meanwhile. The last of them removes the recorder."""
        self._api.say = say
        over = False
        try:
            mark = {leases.MARK_ANNOTATION: recordings.mark_of(self._context)}
            with leases.hold_for_run(self._context, say, mark) as self._lease:
                try:
                    recordings.await_removal(self._context, say)
                    yield
                except Terminated:
                    over = True
                    raise
        finally:
            # This run's own pointer is written later.
            to_come = sum(not pointer.exists() for pointer in self._job.pointers) > 1
            if over or not to_come:
                recordings.release_recorder(
                    self._site, self._job.campaign, say, self._api
                )

    def remove_leftovers(self, say: Log) -> None:
        """Remove what killed jobs left: this run's objects, found by label, and recordings."""
        for name in remove_run(self._context, say):
            say(f"removed an object that a killed run left: {name}")
        living_leases = leases.living_leases(
            self._api, self._site.namespace, self._job.campaign
        )
        recordings.remove_stale(
            self._context, [leases.mark_of(lease) for lease in living_leases], say
        )

    def require_possible(self, store: Store) -> None:
        """Raise a Failure, before anything starts, if the run cannot be measured here or lacks room for it."""
        require_pcp()
        specification = self._job.specification
        if self._site.shared_network and specification.on_cluster.replicas > 1:
            raise MeasurementError(
                "each replica needs its own address; on a shared network there can be only one"
            )
        store.root.mkdir(parents=True, exist_ok=True)
        needed = disk_bytes(specification.workload, self._site.load.as_host_cpus)
        require_free(store.root, needed, "a run of this workload")

    @contextlib.contextmanager
    def session(self, scratch: Path, say: Log) -> Iterator["ClusterSession"]:
        """Begin the run; on leaving, remove every object of it, unless another job has taken it over."""
        session = ClusterSession(self._job, self._context, self._lease, scratch, say)
        try:
            yield session
        except Failure as error:
            session.handle.failed = str(error)
            session.close()
            # The last line of the job's log has the failure and what is left on the cluster.
            parts = [session.namespace_deleted(), str(error), session.handle.left]
            error.args = ("; ".join(filter(None, parts)),)
            raise
        finally:
            session.close()


class ClusterSession:
    """One run in progress on a cluster."""

    own_clock = False
    _generator: LoadJobs
    _recording: recordings.ClusterRecording

    def __init__(
        self,
        job: Job,
        context: RunContext,
        lease: leases.HeldLease,
        scratch: Path,
        say: Log,
    ) -> None:
        self._job, self._context, self._lease, self._scratch, self._say = (
            job,
            context,
            lease,
            scratch,
            say,
        )
        self.handle = ClusterServerHandle(context, lease, scratch / "raw", say)
        self.pcp_version = ""
        self._nodes: dict[str, Document] = {}
        self._queried_gpus: list[dict[str, Any]] = []
        self._neighbours = neighbours.Neighbours(context, ())
        self._gpus = GpuWatch(
            lambda arguments: self.handle.server.in_every(["nvidia-smi", *arguments])
        )
        # Kubernetes removes what is applied from now on when this job no longer prolongs its lifetime.
        api, name, labels = (
            context.api,
            context.name(lifetime.COMPONENT),
            context.labels(lifetime.COMPONENT),
        )
        lease.keep_alive(
            lifetime.ensure_owner_job(
                api, context.namespace, name, labels, lease.document
            )
        )
        recorder = recording_documents(job.campaign, context.site)
        api.apply(document for document in recorder if kind_of(document) == NAMESPACE)
        name, labels = recorder_name(job.campaign), recorder_labels(job.campaign)
        lease.keep_alive(
            lifetime.ensure_owner_job(api, context.site.pcp_namespace, name, labels)
        )
        # Created now, so that its image is pulled while the server starts.
        api.apply(recorder)

    @property
    def checks(self) -> Sequence[Check]:
        """Check that this process still holds the run's Lease, and sample the GPUs."""
        watches = (
            [(self._gpus.sample, INTERVAL_S)]
            if self._job.specification.on_cluster.gpus
            else []
        )
        return [(self._lease.check, _LEASE_CHECK_S), *watches]

    @contextlib.contextmanager
    def recording(self) -> Iterator[recordings.ClusterRecording]:
        """Record the servers' nodes and the metrics of all servers."""
        server, context = self.handle.server, self._context
        self._note_nodes(server)
        with neighbours.announce(
            context, nodes_of(server.watched), self._say
        ) as self._neighbours:
            # Only these nodes must have a ready recorder; others do not matter.
            pods = recordings.deploy(context, list(self._nodes), self._say)
            self.pcp_version = recordings.version(context, pods[0])
            beside = exporters_of(
                context, self._nodes, str(pods[0]["metadata"]["name"])
            )
            sources = sources_of(context, server) | beside
            self._recording = recorder = recordings.start_recording(
                context, pods, self._scratch / "pcp", sources, server.watched
            )
            self.handle.on_restart = lambda started: recorder.nodes[0].tell(
                sources_of(context, started) | beside
            )
            try:
                yield recorder
            finally:
                self.handle.on_restart = None
                # A job that has taken this run over records under the same mark. If that cannot be asked, the
                # recording is left: the next run ends it.
                with contextlib.suppress(ClusterError):
                    if not self._lease.other():
                        recorder.release()

    def expect(self, levels: Sequence[load.Level]) -> None:
        """Wait until requests reach a server, and create the pod of the first level."""
        target = target_url(self._context) or gateway_url(self._context)
        require_routed(self._context, self.handle.server, target)
        self._generator = LoadJobs(
            self._context, target, self._context.site.load.as_host_cpus, self._say
        )
        self._generator.expect(levels)

    def generate(
        self, level: load.Level, report: Path, watch: Watch, sending: Event
    ) -> LoadResult:
        """Run GuideLLM in its pod."""
        return self._generator.generate(level, report, watch, sending)

    def require_room(self) -> None:
        """Raise DiskFullError if the disk that reports and the archive are copied to is full."""
        require_free(self._scratch, DISK_RESERVE_BYTES, "stopping in order")

    def anonymous(self, text: str) -> str:
        """Return `text` for publication: without this host's paths and this run's folder."""
        return text.replace(LOAD_FOLDER, "{results}").replace(
            str(self._scratch), "{scratch}"
        )

    def facts(self) -> dict[str, Any]:
        """Return a cluster's entries of run.json: images as pulled, nodes, its version, the clocks' difference."""
        server, recorder = self.handle.server, self._recording
        pods = [
            *server.watched,
            *(node.pod for node in recorder.nodes),
            *self._generator.pods,
        ]
        gpus = self._gpus.conditions()
        return {
            "hardware": self._hardware(),
            "cluster": {
                "kubernetes": str(
                    self._context.api.get("/version").get("gitVersion", "")
                ),
                "images": images_of(pods),
                "nodes": nodes_of(server.watched),
                "replicas": len(server.replicas),
                **self._neighbours.facts(),
            },
            "clock_offset_s": self._generator.clock_offset_s(recorder.nodes[0]),
            **({"gpu_conditions": gpus} if gpus else {}),
        }

    def close(self) -> None:
        """Remove everything of this run, unless another job has taken it over; may be called again."""
        self.handle.close()

    def namespace_deleted(self) -> str:
        """Return that the run's namespace is being or was deleted, and what remains in the recorder's; else ""."""
        context = self._context
        try:
            # Once: a cluster that does not answer was waited for already.
            namespace = context.api.once(
                "GET", NAMESPACE.path("", context.namespace), timeout_s=_NAMESPACE_S
            ).json()
            if not namespace["metadata"].get("deletionTimestamp"):
                return ""
        except ClusterError as error:
            if error.status != 404:
                return ""
        message = f"namespace {context.namespace} was deleted, and with it the servers and the load of this run"
        with contextlib.suppress(ClusterError):
            kept = context.api.list(
                DAEMON_SET, context.site.pcp_namespace, selector(context.campaign)
            )
            if kept:
                message += f"; {', '.join(map(described, kept))} remains until the campaign's last run, or kveval teardown"
        return message

    def _note_nodes(self, server: ClusterServer) -> None:
        """Store the nodes that the servers run on, in the order of the servers, and their GPUs."""
        nodes = {
            str(node["metadata"]["name"]): node for node in self._context.api.list(NODE)
        }
        names = (str(replica.pod["spec"]["nodeName"]) for replica in server.replicas)
        self._nodes = {name: nodes[name] for name in names}
        if self._job.specification.on_cluster.gpus:
            self._queried_gpus = parse_gpus(
                server.in_every(["nvidia-smi", *GPU_QUERY]) or ""
            )

    def _hardware(self) -> dict[str, Any]:
        """Describe the nodes that the servers ran on, and the servers' GPUs."""
        server, resource, nodes = (
            self.handle.server,
            self._context.site.gpu_resource,
            list(self._nodes.values()),
        )
        gpus_per_server = self._job.specification.on_cluster.gpus
        labelled = (
            [machines.labelled_gpu(nodes[0], resource)]
            * gpus_per_server
            * len(server.replicas)
        )
        return machines.describe(nodes, resource, self._queried_gpus or labelled)


def own_ports() -> dict[str, int]:
    """Choose a free port of this host for every server; for pods that share the host's network."""
    free: set[int] = set()
    while len(free) < len(PORTS):
        free.add(free_port())
    return dict(zip(PORTS, free, strict=True))


def images_of(pods: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the image of every container as it was pulled, including its digest, by the container's name."""
    return {
        str(status["name"]): str(status.get("imageID") or status.get("image") or "")
        for pod in pods
        for status in (pod.get("status") or {}).get("containerStatuses") or []
    }


def nodes_of(pods: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the nodes that pods run on."""
    return sorted({str(pod["spec"].get("nodeName", "")) for pod in pods})
