"""The engine for a cluster: measures one run of a cell, beside other runs, through the API server."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kveval.engines.job import Job, MeasurementError
from kveval.engines.kubernetes import leases, lifetime, recordings
from kveval.engines.kubernetes import nodes as machines
from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.errors import ClusterError
from kveval.engines.kubernetes.api.kinds import (
    DAEMON_SET,
    NODE,
    described,
)
from kveval.engines.kubernetes.deployment import ClusterDeployer, remove_run
from kveval.engines.kubernetes.load_jobs import LoadJobs
from kveval.engines.kubernetes.manifests.context import RunContext
from kveval.engines.kubernetes.manifests.lifetime import run_lifetime
from kveval.engines.kubernetes.manifests.recorder import recorder_selector
from kveval.engines.kubernetes.manifests.rendering import PORTS
from kveval.engines.kubernetes.recorder import ClusterRecorder
from kveval.engines.kubernetes.routes import await_route, with_controller
from kveval.engines.kubernetes.wait.rollout import RolloutError
from kveval.engines.preflight import disk_bytes
from kveval.engines.protocol import Log, RunSession
from kveval.engines.watchdog import require_free
from kveval.host.errors import Failure
from kveval.host.http import free_port
from kveval.host.processes import Terminated
from kveval.pcp.installation import require_pcp
from kveval.store.store import Store


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

    def may_adopt(self, stored: Path, say: Log) -> bool:
        """Return True: what defines a run is what the workflow starts."""
        return True

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
            # The last but one removes it, too: whoever adopts the last run would not, and a failed run has no pointer.
            to_come = sum(not pointer.exists() for pointer in self._job.pointers) > 1
            if over or not to_come:
                recordings.release_recorder(
                    self._site, self._job.campaign, say, self._api
                )

    def remove_leftovers(self, say: Log) -> None:
        """Remove what killed jobs left: this run's objects, found by label, and recordings."""
        for name in remove_run(self._context, say):
            say(f"removed an object that a killed run left: {name}")
        recordings.remove_stale(self._context, say)

    def wait_until_quiet(self, say: Log) -> None:
        """Wait for nothing: this host only asks and waits."""

    def require_possible(self, store: Store) -> None:
        """Raise a Failure, before anything starts, if the run cannot be measured here or lacks room for it."""
        require_pcp()
        specification = self._job.specification
        if self._site.shared_network and specification.on_cluster.replicas > 1:
            raise MeasurementError(
                "each replica needs its own address; on a shared network there can be only one"
            )
        nodes = machines.fitting(self._api.list(NODE), self._site, gpus=True)
        gpus = specification.on_cluster.gpus
        if gpus > 1 and nodes and all(map(machines.has_parts_of_gpus, nodes)):
            raise MeasurementError(
                f"{gpus} ranks cannot share parts of a GPU (MIG), and no node has whole ones:"
                " server.tensor_parallel_size: 1, or other nodes (cluster.node_selector)"
            )
        if self._context.provider == "gke" and self._site.network_peers == ():
            raise MeasurementError(
                "GKE's Gateway sends from the proxy-only subnet, which the servers' NetworkPolicy has to admit:"
                " cluster.network_peers: [{cidr: SUBNET}], or null to admit every pod"
            )
        store.root.mkdir(parents=True, exist_ok=True)
        needed = disk_bytes(specification.workload, self._site.load.as_host_cpus)
        require_free(store.root, needed, "a run of this workload")

    @contextlib.contextmanager
    def session(self, scratch: Path, say: Log) -> Iterator[RunSession]:
        """Begin the run; on leaving, remove every object of it, unless another job has taken it over."""
        context, lease = self._context, self._lease
        required = self._job.required_names
        deployer = ClusterDeployer(context, lease, scratch / "raw", say, required)
        load = LoadJobs(
            context,
            lambda: await_route(context, deployer.server),
            self._site.load.as_host_cpus,
            say,
        )
        recorder = ClusterRecorder(context, deployer, lease, scratch, say)
        # Kubernetes removes what is applied from now on when this job no longer prolongs its lifetime.
        job = run_lifetime(context)
        lease.keep_alive(lifetime.ensure_owner_job(context.api, job, lease.document))
        recorder.prepare()
        failure: Failure | None = None
        try:
            yield RunSession(deployer, load, recorder, scratch)
        except Failure as error:
            failure = error
            raise
        finally:
            deployer.close()
            if failure is not None:
                said = str(failure)
                if isinstance(failure, RolloutError):
                    said = failure.keep_evidence(scratch / "raw")
                # The last line of the job's log has the failure and what is left on the cluster.
                parts = [namespace_deleted(context), said, deployer.left]
                failure.args = ("; ".join(filter(None, parts)),)
            elif deployer.left:
                say(deployer.left)


def own_ports() -> dict[str, int]:
    """Choose a free port of this host for every server; for pods that share the host's network."""
    free: set[int] = set()
    while len(free) < len(PORTS):
        free.add(free_port())
    return dict(zip(PORTS, free, strict=True))


def namespace_deleted(context: RunContext) -> str:
    """Return that the run's namespace is being or was deleted, and what remains in the recorder's; else ""."""
    if not context.api.lacks_namespace(context.namespace):
        return ""
    message = f"namespace {context.namespace} was deleted, and with it the servers and the load of this run"
    with contextlib.suppress(ClusterError):
        kept = context.api.list(
            DAEMON_SET,
            context.site.pcp_namespace,
            recorder_selector(context.campaign, context.site),
        )
        if kept:
            names = ", ".join(map(described, kept))
            message += f"; {names} remains. {lifetime.how_it_goes()}, with another kubeconfig if this account was there"
    return message
