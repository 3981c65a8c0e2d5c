"""The recorder of a run on a cluster: the campaign's PCP on the servers' nodes, and the metrics of all servers."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kveval.engines.kubernetes import lifetime, neighbours, recordings
from kveval.engines.kubernetes.api.errors import ClusterError
from kveval.engines.kubernetes.api.kinds import NAMESPACE, kind_of
from kveval.engines.kubernetes.deployment import ClusterDeployer
from kveval.engines.kubernetes.installed_recorder import require_installed
from kveval.engines.kubernetes.leases import HeldLease
from kveval.engines.kubernetes.manifests.context import RunContext
from kveval.engines.kubernetes.manifests.recorder import (
    recorder_lifetime,
    recording_documents,
)
from kveval.engines.kubernetes.pods import images_of, nodes_of
from kveval.engines.kubernetes.routes import exporters_of, sources_of
from kveval.engines.protocol import Log, MachineClock, Recorder
from kveval.engines.watchdog import Check
from kveval.host.gpu_conditions import INTERVAL_S, GpuWatch


class ClusterRecorder(Recorder):
    """Records the nodes and the metrics of what `deployer` has started.

    `lease`: the run's; `scratch`: folder of the run.
    """

    own_clock = False
    _recording: recordings.ClusterRecording

    def __init__(
        self,
        context: RunContext,
        deployer: ClusterDeployer,
        lease: HeldLease,
        scratch: Path,
        say: Log,
    ) -> None:
        self._context = context
        self._deployer = deployer
        self._lease = lease
        self._scratch = scratch
        self._say = say
        self._pcp_version = ""
        self._neighbours = neighbours.Neighbours(context, ())
        self._gpus = GpuWatch(
            lambda arguments: deployer.server.in_every(["nvidia-smi", *arguments])
        )

    def prepare(self) -> None:
        """Create the campaign's recorder, unless one is installed: its image is pulled while the server starts."""
        context = self._context
        documents = recording_documents(context.campaign, context.site)
        if not documents:
            # Told before servers hold GPUs.
            require_installed(context)
            return
        context.api.apply(
            document for document in documents if kind_of(document) == NAMESPACE
        )
        job = recorder_lifetime(context.campaign, context.site)
        self._lease.keep_alive(lifetime.ensure_owner_job(context.api, job))
        context.api.apply(documents)

    @property
    def pcp_version(self) -> str:
        """The release of the PCP in the recorder's pods."""
        return self._pcp_version

    @contextlib.contextmanager
    def recording(self) -> Iterator[recordings.ClusterRecording]:
        """Record the servers' nodes and the metrics of all servers."""
        deployer, context = self._deployer, self._context
        server, nodes = deployer.server, deployer.nodes
        with neighbours.announce(
            context, nodes_of(server.watched), self._say
        ) as self._neighbours:
            # Only these nodes must have a ready recorder; others do not matter.
            pods = recordings.deploy(context, list(nodes), self._say)
            self._pcp_version = recordings.version(context, pods[0])
            beside = exporters_of(context, nodes, pods[0], self._say)
            sources = sources_of(context, server) | beside
            self._recording = recorder = recordings.start_recording(
                context, pods, self._scratch / "pcp", sources, server.watched
            )
            deployer.on_restart = lambda started: recorder.nodes[0].tell(
                sources_of(context, started) | beside
            )
            try:
                yield recorder
            finally:
                deployer.on_restart = None
                # A job that has taken this run over records under the same mark. If that cannot be asked, the
                # recording is left: the next run ends it.
                with contextlib.suppress(ClusterError):
                    if not self._lease.other():
                        recorder.release()

    @property
    def checks(self) -> Sequence[Check]:
        """Sample the GPUs, if servers have some."""
        gpus = self._context.specification.on_cluster.gpus
        return [(self._gpus.sample, INTERVAL_S)] if gpus else []

    def clock(self) -> MachineClock:
        """Return the clock of the node whose archive has the servers' metrics."""
        return self._recording.nodes[0].clock()

    def facts(self) -> dict[str, Any]:
        """Return the recorder's images, the neighbours of the servers, and the GPUs' conditions."""
        pods = [node.pod for node in self._recording.nodes]
        gpus = self._gpus.conditions()
        return {
            "cluster": {"images": images_of(pods), **self._neighbours.facts()},
            **({"gpu_conditions": gpus} if gpus else {}),
        }
