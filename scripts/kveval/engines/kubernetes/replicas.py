"""The servers of a cell on a cluster behind one interface: requests go to every replica."""

import functools
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kveval.engines.counters import CounterError, parse_counters
from kveval.engines.kubernetes.api.errors import ClusterError
from kveval.engines.kubernetes.api.kinds import Document
from kveval.engines.kubernetes.api.pod_logs import Follower, keep_evidence
from kveval.engines.kubernetes.api.probe import every
from kveval.engines.kubernetes.pod_http import Reach
from kveval.engines.kubernetes.run_place import RunContext
from kveval.engines.kubernetes.sidecars import PodSidecar, command_line, environment
from kveval.engines.kubernetes.wait.rollout import require_unchanged
from kveval.engines.kubernetes.wait.wait import RolloutError
from kveval.engines.protocol import Check, DeploymentError, ServerDied
from kveval.engines.servers import answers, declared
from kveval.engines.servers.answers import Questioned
from kveval.engines.servers.protocol import ServerProgram
from kveval.engines.watchdog import StallWatch, Work, read_work
from kveval.host.http import HttpError
from kveval.host.logs import last_words
from kveval.store.run_file import Answers, SidecarRecord

SERVER = "server"
_LOOK_S = 2.0
_READING_S = 4.0
_LMCACHE = "from importlib.metadata import version; print(version('lmcache'))"


@dataclass(frozen=True)
class Replica:
    """One model server: its pod, its address, the copy of its log on this host."""

    pod: Document
    reach: Reach
    follower: Follower
    program: ServerProgram

    @property
    def name(self) -> str:
        """The pod's name."""
        return str(self.pod["metadata"]["name"])

    @property
    def log(self) -> Path:
        """The file that its log is copied to."""
        return self.follower.log

    def page(self, timeout_s: float = 10.0) -> str:
        """Return its page of metrics. Raises HttpError."""
        return self.reach.page(self.program.metrics_path, timeout_s=timeout_s).decode(errors="replace")


@dataclass
class ClusterServer:
    """A cell's servers, which answer and were checked to have the declared version and model."""

    place: RunContext
    replicas: Sequence[Replica]
    sidecars: Sequence[PodSidecar]
    watched: Sequence[Document]
    """Every pod that must keep running, as it was when all were ready."""
    file_tier: str | None = None
    """Folder of the arm's file tier in each server's container."""
    startup_s: float = 0.0
    version: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    _looked_at: float = float("-inf")
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def program(self) -> ServerProgram:
        """The server program; the same in every replica."""
        return self.replicas[0].program

    @property
    def argv(self) -> list[str]:
        """The command line of every server."""
        return command_line(self.replicas[0].pod, SERVER)

    @property
    def env(self) -> dict[str, str]:
        """The environment variables in the servers' pods."""
        return environment(self.replicas[0].pod, SERVER)

    @property
    def sidecar_facts(self) -> list[SidecarRecord]:
        """The sidecars, as run.json describes them."""
        return [SidecarRecord(found.name, found.version, found.argv) for found in self.sidecars]

    def require_alive(self) -> None:
        """Raise ServerDied if a pod is gone, restarted, or cannot continue; checked at most every two seconds."""
        with self._lock:
            if time.monotonic() - self._looked_at < _LOOK_S:
                return
            try:
                require_unchanged(self.place.api, self.watched)
            except RolloutError as error:
                log, offset = self._log(error)
                words = f"{last_words(log, offset, form=self.program.log_form)}; see {log}"
                cause = keep_evidence(error, log.parent, words)
                raise ServerDied(f"the server died: {cause}", log=log, offset=offset) from error
            self._looked_at = time.monotonic()

    def counters(self) -> dict[str, float]:
        """Return the counters of all replicas, summed, of the sidecars, and of the file tier. Raises a Failure."""
        found: dict[str, float] = {}
        for counters in every(self.replicas, _counters):
            for name, value in counters.items():
                found[name] = found.get(name, 0.0) + value
        for sidecar in self.sidecars:
            found |= sidecar.counters()
        if self.file_tier is not None:
            found |= self._file_counters(self.file_tier)
        return found

    def reset_caches(self, timeout_s: float = 20.0) -> None:
        """Empty every replica's own cache, then all tiers behind it, to which no server writes any more."""
        program = self.program
        every(self.replicas, lambda replica: declared.reset_caches(program, replica.reach.ask, replica.log, timeout_s))
        for sidecar in reversed(self.sidecars):
            sidecar.reset(timeout_s)
        if self.file_tier is not None:
            emptying = ["find", self.file_tier, "-mindepth", "1", "-delete"]
            every(self.replicas, lambda replica: self._run(replica, emptying))

    def warm_up(self, prompt_tokens: int) -> None:
        """Have every replica generate a few tokens, before anything is measured."""
        served_model = self.place.specification.model.served_name
        for replica in self.replicas:
            declared.warm_up(self.program, replica.reach.ask, served_model, prompt_tokens, replica.log)

    def check_answers(self, *, tier: bool, longest: int) -> Answers:
        """Compare every replica's answers with and without its cache; leaves caches filled.

        The requests go to the pods directly, because a router might send a prompt and its repetition to two replicas.
        """
        served_model = self.place.specification.model.served_name

        def asked(numbered: tuple[int, Replica]) -> Answers:
            number, replica = numbered
            ask, version = replica.reach.ask, self.version
            server = Questioned(self.program, ask, served_model, version, lambda: _counters(replica), replica.log)
            # Each replica has its own prompts, because a shared tier must not have them from another replica.
            return answers.check(server, tier=tier, longest=longest, seed=number)

        return answers.together(every(enumerate(self.replicas), asked))

    def require_declared(self) -> None:
        """Raise a Failure unless version, model and sizes of all replicas and sidecars are those of the campaign."""
        specification = self.place.specification
        budget, versions = specification.budget, specification.versions
        for replica in self.replicas:
            self.version = declared.require_declared(
                self.program, replica.reach.ask, specification.model.served_name, versions
            )
            facts = self.program.software.startup_facts(self.place.api.logs(self.place.namespace, replica.name, SERVER))
            declared.require_device_cache(facts.get("kv_cache_tokens"), budget.device_tokens, replica.log)
            self.facts = self.facts or facts
        if specification.on_cluster.lmcache_form == "process":
            self._require_lmcache(versions.get("lmcache", ""))
        beside = []
        for sidecar in self.sidecars:
            sidecar.identify(versions)
            reported = sidecar.reported_bytes()
            beside += [] if reported is None else [reported]
        declared.check_tiers(self.facts, beside, budget.host_bytes, budget.split, self.replicas[0].log)

    def _require_lmcache(self, wanted: str) -> None:
        """Raise DeploymentError unless the LMCache package in the server's image has the declared version."""
        found = self._run(self.replicas[0], ["python3", "-c", _LMCACHE]).strip()
        if not declared.same_release(found, wanted):
            said = f"the server's image has LMCache {found}, the campaign declares {wanted}: correct server.lmcache"
            raise DeploymentError(said, code="other_version", found=found, declared=wanted)

    def stall_checks(self, limit_s: float, idle_s: float, loaded_s: float) -> list[Check]:
        """Return the checks that detect a hanging replica, or that no replica gets requests.

        One of several replicas may rightly get no requests; if none gets any, the load generator has failed.
        """
        alone, software = len(self.replicas) == 1, self.program.software
        own_idle_s, own_loaded_s = (idle_s, loaded_s) if alone else (math.inf, 0.0)
        checks: list[Check] = []
        for replica in self.replicas:
            watch = StallWatch(str(replica.reach), software, limit_s, own_idle_s, replica.log, own_loaded_s)
            checks.append((functools.partial(_observe, watch, replica), watch.interval_s))
        if not alone:
            total = StallWatch("all replicas", software, limit_s, idle_s, self.replicas[0].log, loaded_s)
            checks.append((lambda: self._observe(total), total.interval_s))
        return checks

    def _observe(self, total: StallWatch) -> None:
        """Judge whether any replica generates tokens; a single hanging replica is detected by its own watch."""
        try:
            parts = [read_work(page, self.program.software) for page in every(self.replicas, Replica.page)]
        except (HttpError, ValueError):
            return
        total.observe(Work(sum(part.tokens for part in parts), requests=0))

    def _log(self, error: RolloutError) -> tuple[Path, int]:
        """Return the log of the container that died, and the byte at which the container's output begins in it."""
        replica = next((found for found in self.replicas if found.name == error.pod), self.replicas[0])
        follower = replica.follower
        before = follower.before_restart() if error.facts.get("previous") else None
        return (replica.log, follower.offset) if before is None else (before, 0)

    def _file_counters(self, folder: str) -> dict[str, float]:
        script = 'find "$0" -name "*.bin" -printf "%s\\n" | awk \'{n++; s+=$1} END {print n+0, s+0}\''
        # On a shared volume, any replica sees the files of all.
        shared = self.place.site.file_volume.access == "ReadWriteMany"
        asked = self.replicas[:1] if shared else self.replicas
        found = [self._run(replica, ["sh", "-c", script, folder]).split() for replica in asked]
        return {
            "file_tier_files": float(sum(int(files) for files, _ in found)),
            "file_tier_bytes": float(sum(int(size) for _, size in found)),
        }

    def in_every(self, argv: Sequence[str]) -> str | None:
        """Run a command in every replica's container and return their output, None if it fails in one of them."""
        try:
            return "\n".join(every(self.replicas, lambda replica: self._run(replica, argv)))
        except (ClusterError, DeploymentError):
            return None

    def _run(self, replica: Replica, argv: Sequence[str]) -> str:
        done = self.place.api.exec(self.place.namespace, replica.name, SERVER, argv)
        if done.returncode:
            raise DeploymentError(f"{argv[0]} failed in pod {replica.name}: {done.said}; see {replica.log}")
        return done.text


def _counters(replica: Replica) -> dict[str, float]:
    try:
        return parse_counters(replica.page(), replica.program.software.prefix)
    except HttpError as error:
        raise CounterError(f"pod {replica.name}: no metrics ({error}); see {replica.log}") from error


def _observe(watch: StallWatch, replica: Replica) -> None:
    work = None
    try:
        work = read_work(replica.page(min(_READING_S, watch.interval_s)), replica.program.software)
    except (HttpError, ValueError) as error:
        # If the API server does not answer, nothing is known about the pod; the main thread waits for the API server.
        if isinstance(error.__cause__, ClusterError) and error.__cause__.status is None:
            return
    watch.observe(work)
