"""Deploying a cell on a cluster: apply the rendered documents, wait, check, warm up, and remove them at the end."""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from kveval.engines.kubernetes import nodes as machines
from kveval.engines.kubernetes.api.errors import ClusterError
from kveval.engines.kubernetes.api.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    JOB,
    NAMESPACE,
    NODE,
    POD,
    SERVICE,
    Document,
    kind_of,
    labels_of,
)
from kveval.engines.kubernetes.api.names import PREFIX
from kveval.engines.kubernetes.api.pod_logs import Follower, keep_logs
from kveval.engines.kubernetes.leases import HeldLease
from kveval.engines.kubernetes.lifetime import how_it_goes
from kveval.engines.kubernetes.manifests.context import (
    FILES_FOLDER,
    RunContext,
    component_of,
)
from kveval.engines.kubernetes.manifests.network import CONTROL_PLANE, network
from kveval.engines.kubernetes.manifests.recorder import campaign_selectors
from kveval.engines.kubernetes.manifests.rendering import download_job, serving, storage
from kveval.engines.kubernetes.pods import (
    fetch_from_pod,
    images_of,
    nodes_of,
    sidecar_container,
    waypoint,
)
from kveval.engines.kubernetes.replicas import SERVER, ClusterServer, Replica
from kveval.engines.kubernetes.teardown import remove_made
from kveval.engines.kubernetes.wait.rollout import (
    RolloutError,
    wait_for_deployment,
    wait_for_job,
)
from kveval.engines.protocol import Deployer, Log
from kveval.engines.servers.endpoint import Endpoint
from kveval.engines.servers.errors import DeploymentError
from kveval.engines.watchdog import Check
from kveval.host.hardware import GPU_QUERY, parse_gpus
from kveval.host.logs import PLAIN, last_words
from kveval.host.processes import signals_deferred
from kveval.stacks.registry import SIDECARS
from kveval.stacks.sidecar import Sidecar

RESTARTED = f"{PREFIX}/restarted"
"""Annotation of pods: how often the servers of the run were restarted."""
_LEASE_CHECK_S = 5.0
# Kinds that a run of any arm has; the rendered documents may add more.
RUN_KINDS = (DEPLOYMENT, JOB, POD, SERVICE, CONFIG_MAP)


class ClusterDeployer(Deployer[ClusterServer]):
    """The run's servers on a cluster: one deployment at a time, with the same names after a restart.

    `lease`: the run's; `logs`: folder to copy the pods' logs to; `required`: names of the counters that prove the arm
    active.
    """

    def __init__(
        self,
        context: RunContext,
        lease: HeldLease,
        logs: Path,
        say: Log,
        required: Sequence[str] = (),
    ) -> None:
        self._context = context
        self._required = required
        self._lease = lease
        self._serving = serving(context)
        # Sidecars first, in the order in which they are applied.
        self._deployments = [
            document for document in self._serving if kind_of(document) == DEPLOYMENT
        ]
        self._logs = logs
        self._say = say
        self._server: ClusterServer | None = None
        self.on_restart: Callable[[ClusterServer], None] | None = None
        """Called with the new servers after a restart, because they may have other addresses."""
        self._followers: list[Follower] = []
        self._open = True
        self.left = ""
        """Why not all objects of this run were removed; empty if they were."""
        self._restarts = 0
        self.nodes: dict[str, Document] = {}
        """The nodes that the servers run on, by name, in the order of the servers."""
        self._queried_gpus: list[dict[str, Any]] = []

    @property
    def server(self) -> ClusterServer:
        """The deployment in service. Raises DeploymentError if there is none."""
        if self._server is None:
            raise DeploymentError("the server was not started")
        return self._server

    def start(self) -> ClusterServer:
        """Deploy; return when every replica answers as declared, is warmed up and has empty caches."""
        begin = time.monotonic()
        self._context.api.apply(storage(self._context))
        self._download()
        self._context.api.apply(self._serving)
        self._admit(())
        server = self._ready(begin)
        self._note_nodes(server)
        return server

    def refresh(self, *, restart: bool) -> None:
        """Give the next level empty caches, by the servers' own endpoints or by new pods."""
        if not restart:
            self.server.reset_caches()
            return
        begin = time.monotonic()
        self._restarts += 1
        self._stop_following()
        for document in self._deployments:
            name, namespace = (
                document["metadata"]["name"],
                document["metadata"]["namespace"],
            )
            marked: dict[str, Any] = {
                "metadata": {"annotations": {RESTARTED: str(self._restarts)}}
            }
            if component_of(document) == "model-server":
                # All levels of a run must be served, and recorded, on the same nodes.
                marked["spec"] = {"affinity": on_nodes(self.nodes)}
            self._context.api.patch(
                DEPLOYMENT, name, namespace, {"spec": {"template": marked}}
            )
        server = self._ready(begin)
        if self.on_restart is not None:
            self.on_restart(server)

    def close(self) -> None:
        """Remove everything of this run, unless another job has taken it over; may be called again."""
        self._stop_following()
        if not self._open:
            return
        self._open = False
        try:
            with signals_deferred():
                # Its objects have the same names and labels.
                if other := self._lease.other():
                    self.left = f"{other} has taken this run over: what is on the cluster was left to it"
                else:
                    remove_run(self._context, self._say)
        except ClusterError as error:
            # Not raised, because the measured data is still valid. With its namespace all of the run goes.
            context = self._context
            if context.api.lacks_namespace(context.namespace):
                return
            chosen = campaign_selectors(context.campaign, context.site)
            recorder = chosen[context.site.pcp_namespace]
            self.left = (
                f"not all of this run was removed ({error.aside}). {how_it_goes(error)}, or kubectl -n"
                f" {context.namespace} delete lease,job,deployment,service,configmap,networkpolicy,pod -l"
                f" '{context.selector()}'; kubectl -n {context.site.pcp_namespace} delete"
                f" lease,job,daemonset,configmap,pod -l '{recorder}'"
            )

    @property
    def checks(self) -> Sequence[Check]:
        """Check that this process still holds the run's Lease."""
        return [(self._lease.check, _LEASE_CHECK_S)]

    def facts(self) -> dict[str, Any]:
        """Return the hardware that the servers ran on, the cluster and its version, images as pulled, and nodes."""
        api, server, namespace = self._context.api, self.server, None
        # What is measured by now is not lost for want of a right.
        with contextlib.suppress(ClusterError):
            namespace = api.read(NAMESPACE, self._context.namespace)
        metadata = (namespace or {}).get("metadata", {})
        return {
            "hardware": self._hardware(),
            "cluster": {
                # Of the namespace, which no other cluster has.
                "uid": str(metadata.get("uid", "")),
                "kubernetes": str(api.get("/version").get("gitVersion", "")),
                "images": images_of(server.watched),
                "nodes": nodes_of(server.watched),
                "replicas": len(server.replicas),
            },
        }

    def _note_nodes(self, server: ClusterServer) -> None:
        """Note the nodes that the servers run on, and their GPUs."""
        names = [str(replica.pod["spec"]["nodeName"]) for replica in server.replicas]
        nodes = self._admit(names)
        self.nodes = {name: nodes[name] for name in names}
        if self._context.specification.on_cluster.gpus:
            self._queried_gpus = parse_gpus(
                server.in_every(["nvidia-smi", *GPU_QUERY]) or ""
            )

    def _admit(self, names: Sequence[str]) -> dict[str, Document]:
        """Let the API servers' nodes and the nodes with these names connect to the servers; return all nodes by name."""
        nodes = {
            str(node["metadata"]["name"]): node for node in self._context.api.list(NODE)
        }
        admitted = [
            node
            for name, node in nodes.items()
            if name in names or CONTROL_PLANE in labels_of(node)
        ]
        self._context.api.apply(network(self._context, admitted))
        return nodes

    def _hardware(self) -> dict[str, Any]:
        """Describe the nodes that the servers ran on, and the servers' GPUs."""
        resource, nodes = self._context.site.gpu_resource, list(self.nodes.values())
        gpus = self._context.specification.on_cluster.gpus * len(self.server.replicas)
        labelled = [machines.labelled_gpu(nodes[0], resource)] * gpus
        return machines.describe(nodes, resource, self._queried_gpus or labelled)

    def _download(self) -> None:
        """Download the weights into the model cache, if the site has one; weights that it has are not loaded again."""
        context, specification = self._context, self._context.specification
        if context.site.model_cache is None or specification.miniature:
            return
        document = download_job(context)
        pod = document["spec"]["template"]["spec"]
        if nodes := self._nodes_of_cache():
            pod["affinity"] = {**pod.get("affinity", {}), **on_nodes(nodes)}
        name = document["metadata"]["name"]
        context.api.apply([document])
        wait_for_job(
            context.api,
            context.namespace,
            name,
            context.start_seconds,
            self._say,
            context.patience,
        )
        context.api.delete(JOB, name, context.namespace)

    def _nodes_of_cache(self) -> list[str]:
        """Return the nodes that a cache for one node at a time may be bound to by the download; [] for any node.

        The download holds no GPU, so that nothing else keeps it from a node, or a zone, in which no server can be.
        """
        context, site = self._context, self._context.site
        if context.cache_is_shared or not context.deployment.gpus:
            return []
        fitting = machines.fitting(context.api.list(NODE), site, gpus=True)
        if not fitting and not site.node_selector:
            message = (
                f"no node has {site.gpu_resource} now, and the model cache (ReadWriteOnce) is bound to where it is"
                " filled: set cluster.node_selector to the servers' nodes, or have one such node"
            )
            raise ClusterError(message, code="no_node_for_cache")
        return [str(node["metadata"]["name"]) for node in fitting]

    def _ready(self, begin: float) -> ClusterServer:
        context = self._context
        pods: list[Document] = []
        for document in self._deployments:
            name = document["metadata"]["name"]
            left = max(1.0, begin + context.start_seconds - time.monotonic())
            try:
                pods += wait_for_deployment(
                    context.api,
                    context.namespace,
                    name,
                    left,
                    self._say,
                    context.patience,
                )
            except RolloutError as error:
                raise self._explained(error) from error
        models = [pod for pod in pods if component_of(pod) == "model-server"]
        if not models:
            raise ClusterError("no rendered document has the component model-server")
        replicas = [
            self._replica(pod, number)
            for number, pod in enumerate(
                sorted(models, key=lambda pod: str(pod["metadata"]["name"]))
            )
        ]
        sidecars = [sidecar for pod in pods for sidecar in self._sidecars(pod)]
        files = FILES_FOLDER if context.specification.file_tier else None
        server = ClusterServer(
            context, replicas, sidecars, pods, files, self._followers
        )
        server.startup_s = time.monotonic() - begin
        server.require_declared(context.specification)
        server.warm_up(context.specification.workload.first_prompt_tokens)
        server.reset_caches()
        self._server = server
        return server

    def _replica(self, pod: Document, number: int) -> Replica:
        follower = self._follow(
            pod, SERVER, "server" if number == 0 else f"server-{number}"
        )
        context, port = self._context, self._context.ports["port"]
        endpoint = Endpoint(
            context.program,
            context.specification.model.served_name,
            fetch_from_pod(context, pod, port),
            follower.log,
            number=number,
            through=waypoint(context, port),
            required=self._required,
        )
        return Replica(pod, endpoint, follower)

    def _sidecars(self, pod: Document) -> Iterator[Sidecar]:
        """Yield the sidecars whose containers a pod has, and follow their logs."""
        for container in pod["spec"]["containers"]:
            name = container["name"]
            if name in SIDECARS:
                log = self._follow(pod, name, name).log
                yield SIDECARS[name].in_pod(
                    sidecar_container(self._context, pod, name, log)
                )

    def _explained(self, error: RolloutError) -> DeploymentError:
        """Return an error that says in one line, with the decisive log line, why pods do not run; save all evidence."""
        component = ""
        with contextlib.suppress(ClusterError):
            if error.pod and (
                pod := self._context.api.read(POD, error.pod, self._context.namespace)
            ):
                component = component_of(pod)
                keep_logs(self._context.api, pod, self._logs)
        usual = component if component in SIDECARS else SERVER
        container = str(error.facts.get("container") or usual)
        form = self._context.program.log_form if container == SERVER else PLAIN
        ended = error.facts.get("exit_code") is not None
        words = last_words(self._logs / f"{container}.log", form=form, only_line=ended)
        return DeploymentError(error.keep_evidence(self._logs, words))

    def _follow(self, pod: Document, container: str, name: str) -> Follower:
        follower = Follower(
            self._context.api, pod, container, self._logs / f"{name}.log"
        )
        self._followers.append(follower)
        return follower

    def _stop_following(self) -> None:
        for follower in self._followers:
            follower.complete()
        self._followers.clear()


def remove_run(context: RunContext, say: Callable[[str], None]) -> list[str]:
    """Remove every object of this run except its Lease, and wait until they are gone; return what was removed."""
    kinds = dict.fromkeys([*RUN_KINDS, *map(kind_of, serving(context))])
    chosen = context.namespace, context.selector()
    return remove_made(context.api, *chosen, kinds, say)


def on_nodes(names: Iterable[str]) -> dict[str, Any]:
    """Return the part of a pod's affinity that restricts it to the nodes with these names."""
    terms = [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}
        for name in sorted(names)
    ]
    required = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}
    }
    return {"nodeAffinity": required}
