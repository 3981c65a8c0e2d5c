"""The servers of a cell on a cluster: what can only be asked of pods."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from kveval.campaign.specification import Specification
from kveval.engines.kubernetes.api.errors import ClusterError
from kveval.engines.kubernetes.api.kinds import Document
from kveval.engines.kubernetes.api.pod_logs import Follower
from kveval.engines.kubernetes.api.probe import map_concurrently
from kveval.engines.kubernetes.manifests.context import RunContext, component_of
from kveval.engines.kubernetes.pods import command_line, environment
from kveval.engines.kubernetes.wait.rollout import RolloutError, require_unchanged
from kveval.engines.servers.endpoint import Endpoint
from kveval.engines.servers.errors import DeploymentError, ServerDied
from kveval.engines.servers.server import Server
from kveval.host.logs import last_words
from kveval.stacks.sidecar import Sidecar, SidecarError
from kveval.stacks.versions import same_release

T = TypeVar("T")
SERVER = "server"
_LOOK_S = 2.0
_LMCACHE = "from importlib.metadata import version; print(version('lmcache'))"
_FILES = 'find "$0" -name "*.bin" -printf "%s\\n" | awk \'{n++; s+=$1} END {print n+0, s+0}\''


_TITLES = {
    "epp": "the endpoint picker",
    "envoy-proxy": "the router's proxy",
    "vllm-render": "the router's tokenizer",
}


@dataclass(frozen=True)
class Replica:
    """One model server: its pod, what is asked of it, the copy of its log on this host."""

    pod: Document
    endpoint: Endpoint
    follower: Follower

    @property
    def name(self) -> str:
        """The pod's name."""
        return str(self.pod["metadata"]["name"])


class ClusterServer(Server):
    """A cell's servers in pods.

    `watched`: every pod that must keep running, as it was when all were ready; `file_tier`: folder of the arm's file
    tier in each server's container; `followers`: the copies of the logs of what is beside the servers.
    """

    def __init__(
        self,
        context: RunContext,
        replicas: Sequence[Replica],
        sidecars: Sequence[Sidecar],
        watched: Sequence[Document],
        file_tier: str | None = None,
        followers: Sequence[Follower] = (),
    ) -> None:
        pod = replicas[0].pod
        endpoints = [replica.endpoint for replica in replicas]
        super().__init__(
            endpoints, sidecars, command_line(pod, SERVER), environment(pod, SERVER)
        )
        self.context, self.replicas, self.watched, self.file_tier = (
            context,
            replicas,
            watched,
            file_tier,
        )
        self.followers = followers
        self._looked_at = float("-inf")
        self._death: ServerDied | SidecarError | None = None
        self._lock = threading.Lock()

    def map_endpoints(self, do: Callable[[Endpoint], T]) -> list[T]:
        """Call `do` with every server concurrently and return the results in order."""
        return map_concurrently(self.endpoints, do)

    def startup_log(self, endpoint: Endpoint) -> str:
        """Return a server's whole log; the copy on this host may not have all of it yet."""
        return self.context.api.logs(
            self.context.namespace, self.replicas[endpoint.number].name, SERVER
        )

    def require_alive(self) -> None:
        """Raise ServerDied or SidecarError if a pod is gone, restarted, or cannot continue.

        Checked at most every two seconds.
        """
        with self._lock:
            # Whoever asks next is told the same, with one entry in the log of events.
            if self._death is not None:
                raise self._death
            if time.monotonic() - self._looked_at < _LOOK_S:
                return
            try:
                require_unchanged(self.context.api, self.watched)
            except RolloutError as error:
                self._death = self._died(error)
                raise self._death from error
            self._looked_at = time.monotonic()

    def require_declared(self, specification: Specification) -> None:
        """Also require that the LMCache package in the server's image has the declared version, if the arm uses it."""
        if specification.on_cluster.lmcache_form == "process":
            declared = specification.versions.get("lmcache", "")
            version = self._run(self.replicas[0], ["python3", "-c", _LMCACHE]).strip()
            if not same_release(version, declared):
                message = f"the server's image has LMCache {version}, the campaign declares {declared}"
                raise DeploymentError(
                    f"{message}: correct server.lmcache",
                    code="other_version",
                    found=version,
                    declared=declared,
                )
        for sidecar in self.sidecars:
            sidecar.identify(specification.versions)
        super().require_declared(specification)

    def file_counters(self) -> dict[str, float]:
        """Return the number and the bytes of the files in the arm's file tier; empty without one."""
        if self.file_tier is None:
            return {}
        # On a shared volume, any replica sees the files of all.
        shared = self.context.site.file_volume.access == "ReadWriteMany"
        replicas = self.replicas[:1] if shared else self.replicas
        counts = [
            self._run(replica, ["sh", "-c", _FILES, self.file_tier]).split()
            for replica in replicas
        ]
        return {
            "file_tier_files": float(sum(int(files) for files, _ in counts)),
            "file_tier_bytes": float(sum(int(size) for _, size in counts)),
        }

    def empty_files(self) -> None:
        """Empty the arm's file tier, if it has one."""
        if self.file_tier is not None:
            emptying = ["find", self.file_tier, "-mindepth", "1", "-delete"]
            map_concurrently(
                self.replicas, lambda replica: self._run(replica, emptying)
            )

    def in_every(self, argv: Sequence[str]) -> str | None:
        """Run a command in every replica's container and return their output, None if it fails in one of them."""
        try:
            return "\n".join(
                map_concurrently(
                    self.replicas, lambda replica: self._run(replica, argv)
                )
            )
        except (ClusterError, DeploymentError):
            return None

    def _died(self, error: RolloutError) -> ServerDied | SidecarError:
        """Return an error that says which server or sidecar died, with the decisive line of its own log."""
        folder = self.replicas[0].follower.log.parent
        replica = next(
            (candidate for candidate in self.replicas if candidate.name == error.pod),
            None,
        )
        container = str(error.facts.get("container", ""))
        if replica is not None and container in ("", SERVER):
            log, offset = _log(error, replica.follower)
            words = last_words(log, offset, form=self.program.log_form)
            return ServerDied(
                f"the server died: {error.keep_evidence(folder, words, log)}",
                log=log,
                offset=offset,
            )
        components = {
            str(pod["metadata"]["name"]): component_of(pod) for pod in self.watched
        }
        name = container or components[error.pod]
        follower = next(
            (
                follower
                for follower in self.followers
                if (follower.pod, follower.container) == (error.pod, name)
            ),
            None,
        )
        if follower is None:
            kept, facts = error.keep_evidence(folder), {}
        else:
            log, offset = _log(error, follower)
            kept = error.keep_evidence(folder, last_words(log, offset), log)
            facts = {"log": str(log)}
        message = f"{_TITLES.get(name, name)} died: {kept}"
        return SidecarError(message, code="died", program=name, **facts)

    def _run(self, replica: Replica, argv: Sequence[str]) -> str:
        done = self.context.api.exec(self.context.namespace, replica.name, SERVER, argv)
        if done.returncode:
            raise DeploymentError(
                f"{argv[0]} failed in pod {replica.name}: {done.error_text}; see {replica.follower.log}"
            )
        return done.text


def _log(error: RolloutError, follower: Follower) -> tuple[Path, int]:
    """Return the log of the container that died, and the byte at which the container's output begins in it."""
    before = follower.before_restart() if error.facts.get("previous") else None
    return (follower.log, follower.offset) if before is None else (before, 0)
