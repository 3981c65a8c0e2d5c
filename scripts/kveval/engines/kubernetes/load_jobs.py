"""The load generator in the cluster: a Job per level, its pod made ahead and waiting, its report on a volume.

The pod of the next level is scheduled, has its image and its volume, while a level runs; it starts GuideLLM when it is
told to.
"""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kveval.engines.kubernetes.api.download import collect
from kveval.engines.kubernetes.api.errors import ClusterError, Interrupted
from kveval.engines.kubernetes.api.kinds import JOB, POD, Document
from kveval.engines.kubernetes.api.pod_logs import Follower
from kveval.engines.kubernetes.api.upload import upload
from kveval.engines.kubernetes.manifests.context import MODEL_FOLDER, RESULTS_FOLDER
from kveval.engines.kubernetes.manifests.rendering import collector_pod, load_job
from kveval.engines.kubernetes.recordings import ClusterRecording
from kveval.engines.kubernetes.run_place import RunContext
from kveval.engines.kubernetes.wait.diagnosis import alive
from kveval.engines.kubernetes.wait.rollout import wait_for_pod
from kveval.engines.kubernetes.wait.wait import WaitTarget
from kveval.engines.protocol import LoadResult, Say
from kveval.host.http import DIRECT_LOOPBACK
from kveval.host.logs import exit_words, last_words
from kveval.load import guidellm as load
from kveval.load.guidellm import Level, LoadError
from kveval.load.loadside import sitecustomize

CONTAINER, COLLECTOR = "load", "collector"
# What GuideLLM is told beside its arguments; its path, home, locale and proxies are its image's.
_OF_THE_IMAGE = ("PATH", "HOME", "LANG", *DIRECT_LOOPBACK)
_POLL_S = 0.5
_READY_S = 600.0
_TELLINGS = 3
# Waits for the file $0, in a folder of its own: GuideLLM reads a file .env where it is started, and writes a log.
_WAITING = """
cd "$(mktemp -d)" || exit 1
: > "$0.ready"
until [ -e "$0" ]; do sleep 0.1; done
exec "$@"
"""
# The same, with everything made ahead that GuideLLM makes before it sends, if its Python takes up what holds it then.
_AHEAD = """
cd "$(mktemp -d)" || exit 1
KVEVAL_PROBE="$0.probe" "$1" --version >/dev/null 2>&1
if [ -e "$0.probe" ]; then KVEVAL_GO="$0" exec "$@"; fi
: > "$0.ready"
until [ -e "$0" ]; do sleep 0.1; done
exec "$@"
"""
# For a level that primes the caches before: what does it must be held. It starts when it is told to.
_PRIMING = """
cd "$(mktemp -d)" || exit 1
until [ -e "$0.prime" ]; do sleep 0.1; done
KVEVAL_PROBE="$0.probe" "$1" --version >/dev/null 2>&1
if [ -e "$0.probe" ]; then KVEVAL_GO="$0" exec "$@"; fi
echo "the image's Python does not import what primes the caches (PYTHONPATH=$PYTHONPATH)" >&2
exit 1
"""
_IS_READY = '[ -e "$0.ready" ]'
_PRIME = 'date +%s.%N; : > "$0.prime"'
_SAID = 'cat "$0.ready"'
_GO = 'date +%s.%N; : > "$0"'
# The releases of GuideLLM that kveval.load.loadside knows how to hold.
_HELD = "0.8."


@dataclass(frozen=True)
class Prepared:
    """A level's Job, whose pod waits for the file `go`."""

    level: Level
    job: str
    go: str


class LoadJobs:
    """The levels' Jobs of one run.

    `target`: URL that the load goes to, as pods see it; `cpus`: that a generator has.
    """

    def __init__(self, place: RunContext, target: str, cpus: int, say: Say) -> None:
        self._place = place
        self._target = target
        self._cpus = cpus
        self._say = say
        self._levels: Sequence[Level] = ()
        self._prepared: dict[int, Prepared] = {}
        self._attempts = 0
        self.collector: Document | None = None
        self.pods: list[Document] = []
        """The generators' pods, as they ended."""
        self._told: list[tuple[float, float]] = []

    @property
    def _known(self) -> bool:
        return self._place.specification.versions["guidellm"].startswith(_HELD)

    @property
    def _primes(self) -> bool:
        return self._place.specification.workload.prime

    @property
    def _ahead(self) -> bool:
        """Whether pods make their prompts ahead: what asks a server that is being restarted would fail."""
        known, endpoint = self._known, self._place.specification.reset_caches == "endpoint"
        return self._place.site.prompts_ahead and known and endpoint and not self._primes

    @property
    def _held(self) -> bool:
        """Whether GuideLLM itself waits, and not the shell before it."""
        return self._ahead or self._primes

    @property
    def folder(self) -> str:
        """The run's folder on the results volume."""
        return f"{RESULTS_FOLDER}/{self._place.name('load')}"

    def expect(self, levels: Sequence[Level]) -> None:
        """Start what reads the results volume, empty the run's folder, and prepare the first level."""
        place, self._levels = self._place, levels
        if self._primes and not self._known:
            version = place.specification.versions["guidellm"]
            raise LoadError(f"the workload has its caches primed, which needs GuideLLM {_HELD}x, not {version}")
        document = collector_pod(place)
        name = document["metadata"]["name"]
        place.api.apply([document])
        self.collector = wait_for_pod(place.api, place.namespace, name, _READY_S, self._say)
        self._in_collector(["sh", "-c", 'rm -rf "$0" && mkdir -p "$0"', self.folder])
        if self._held:
            made = Path(sitecustomize.__file__)
            target = f"{self.folder}/ahead/{made.name}"
            upload(place.api, place.namespace, self._collector_name(), COLLECTOR, made, target)
        self._prepare(levels[0])

    def command(self, level: Level) -> list[str]:
        """Return GuideLLM's command line, with paths as its pod has them."""
        report = Path(f"{self.folder}/guidellm-{level.streams:04d}.json")
        return load.command("guidellm", self._place.specification.workload, level, self._load_target(), report)

    def _load_target(self) -> load.LoadTarget:
        specification = self._place.specification
        tokenizer = Path(MODEL_FOLDER) if specification.miniature else specification.model.hf_id
        return load.LoadTarget(self._target, specification.model.served_name, tokenizer)

    def generate(
        self, level: Level, report: Path, watch: Callable[[float], None], sending: Callable[[], None]
    ) -> LoadResult:
        """Run the level's generator and bring its report and its log here. Raises LoadError."""
        prepared = self._prepared.pop(level.index, None) or self._made(level)
        log = report.with_suffix(".log")
        pod = self._running(prepared, log)
        report.unlink(missing_ok=True)
        self._bring_data(level, report)
        follower = Follower(self._place.api, pod, CONTAINER, log)
        try:
            primed: load.Primed | None = None
            if self._primes:
                began, begin = self._tell(pod, _PRIME, prepared.go), time.monotonic()
                self._until_ready(pod, prepared.go, level, watch)
                primed = load.primed_facts(self._in_pod(pod, _SAID, prepared.go))
                sending()
                self._tell(pod, _GO, prepared.go)
            else:
                self._until_ready(pod, prepared.go, level, watch)
                sending()
                began, begin = self._tell(pod, _GO, prepared.go), time.monotonic()
            told = time.monotonic()
            for later in [entry for entry in self._levels if entry.index > level.index][:1]:
                self._prepare(later)
            ended = self._until_ended(pod, level, told, watch, follower)
            end = time.monotonic()
            self.pods.append(ended)
        finally:
            follower.complete()
        if exit_code(ended) != 0:
            raise LoadError(f"GuideLLM {failed(ended)}{last_words(log, follower.offset)}; see {log}")
        self._collect(f"guidellm-{level.streams:04d}.json", report)
        self._place.api.delete(JOB, prepared.job, self._place.namespace)
        return LoadResult(began, begin, end, primed)

    def _prepare(self, level: Level) -> None:
        """Have a level's pod made, if it is not; that it runs is waited for when it is needed."""
        if level.index not in self._prepared:
            self._prepared[level.index] = self._made(level)

    def _made(self, level: Level) -> Prepared:
        """Make a level's Job, anew where there was one."""
        place = self._place
        self._attempts += 1
        go = f"{self.folder}/go-{level.streams:04d}-{self._attempts}"
        waiting = _PRIMING if self._primes else _AHEAD if self._ahead else _WAITING
        argv = ["sh", "-c", waiting, go, *self.command(level)]
        env, deadline_s = self._environment(level), self._deadline_s(level)
        document = load_job(place, level.index, argv, env, deadline_s)
        name = document["metadata"]["name"]
        if place.api.delete(JOB, name, place.namespace, propagation="Foreground", grace_s=0):
            self._until_gone(name)
        place.api.apply([document])
        return Prepared(level, name, go)

    def _deadline_s(self, level: Level) -> float:
        """Return the seconds after which the cluster ends a level's Job: its wait for the one before, its own."""
        workload = self._place.specification.workload
        longest = max(load.time_limit_s(workload, known.streams) for known in (*self._levels, level))
        return 2 * longest + self._place.site.rollout_timeout_s + _READY_S

    def _running(self, prepared: Prepared, log: Path) -> Document:
        """Return a level's pod once it runs. Raises LoadError when it has ended already."""
        place, name = self._place, prepared.job
        target = WaitTarget(place.api, JOB, place.namespace, name)
        deadline = time.monotonic() + _READY_S
        while True:
            pods = alive(place.api.list(POD, place.namespace, f"job-name={name}"))
            running = [pod for pod in pods if pod["status"].get("phase") == "Running"]
            if running:
                return running[0]
            ended = [pod for pod in pods if pod["status"].get("phase") in ("Succeeded", "Failed")]
            if ended:
                with contextlib.suppress(ClusterError):
                    log.write_text(place.api.logs(place.namespace, ended[0]["metadata"]["name"], CONTAINER))
                raise LoadError(f"GuideLLM {failed(ended[0])} before it had sent anything{last_words(log)}; see {log}")
            target.read()
            target.check(pods)
            if time.monotonic() > deadline:
                raise LoadError(f"the load generator's pod of Job {name} was not running after {_READY_S:.0f} s")
            time.sleep(_POLL_S)

    def _until_ready(self, pod: Document, go: str, level: Level, watch: Callable[[float], None]) -> None:
        """Wait until there is nothing left to do in a pod but to send."""
        place, name, begin = self._place, pod["metadata"]["name"], time.monotonic()
        limit_s = load.start_allowance_s(place.specification.workload, level.streams)
        while not self._is_ready(name, go):
            elapsed_s = time.monotonic() - begin
            if elapsed_s > limit_s:
                raise LoadError(f"the load generator in pod {name} was not ready to send after {limit_s:.0f} s")
            watch(elapsed_s)
            time.sleep(_POLL_S)

    def _is_ready(self, pod: str, go: str) -> bool:
        try:
            done = self._place.api.exec(self._place.namespace, pod, CONTAINER, ["sh", "-c", _IS_READY, go])
        except Interrupted:
            return False
        return done.returncode == 0

    def _in_pod(self, pod: Document, script: str, go: str) -> str:
        """Run a script that may run twice in a generator's pod and return what it prints. Raises LoadError."""
        name = pod["metadata"]["name"]
        for left in reversed(range(_TELLINGS)):
            try:
                done = self._place.api.exec(self._place.namespace, name, CONTAINER, ["sh", "-c", script, go])
                break
            except Interrupted:
                if not left:
                    raise
        if done.returncode:
            raise LoadError(f"pod {name} cannot be told to begin: {done.stderr.decode(errors='replace').strip()}")
        return str(done.text)

    def _tell(self, pod: Document, script: str, go: str) -> float:
        """Tell a pod to go on; return the time there, epoch seconds."""
        asked = time.time()
        there, spent_s = _seconds(self._in_pod(pod, script, go)), time.time() - asked
        self._told.append((there - asked - spent_s / 2, spent_s / 2))
        return there

    def clock_offset_s(self, recorder: ClusterRecording) -> float:
        """Return the recorder's clock minus the generators', seconds; 0 where the difference is within the doubt."""
        nodes = {pod["spec"].get("nodeName") for pod in self.pods}
        if nodes == {recorder.pod["spec"].get("nodeName")}:
            return 0.0
        asked = time.time()
        there, spent_s = recorder.clock(), time.time() - asked
        ahead_s, doubt_s = min(self._told, key=lambda told: told[1])
        offset_s = there - asked - spent_s / 2 - ahead_s
        return round(offset_s, 3) if abs(offset_s) > doubt_s + spent_s / 2 else 0.0

    def _until_ended(
        self,
        pod: Document,
        level: Level,
        begin: float,
        watch: Callable[[float], None],
        follower: Follower,
    ) -> Document:
        workload = self._place.specification.workload
        limit_s = load.sending_limit_s(workload) if self._held else load.time_limit_s(workload, level.streams)
        name, uid, log = pod["metadata"]["name"], pod["metadata"]["uid"], follower.log
        while True:
            found = self._place.api.read(POD, name, self._place.namespace)
            if found is None or found["metadata"]["uid"] != uid or found["metadata"].get("deletionTimestamp"):
                raise LoadError(f"the load generator's pod {name} was deleted while it ran; see {log}")
            if found["status"].get("phase") in ("Succeeded", "Failed"):
                return found
            elapsed_s = time.monotonic() - begin
            if elapsed_s > limit_s:
                words = last_words(log, follower.offset)
                raise LoadError(f"GuideLLM was still running after {limit_s:.0f} s{words}; see {log}")
            watch(elapsed_s)
            time.sleep(_POLL_S)

    def _bring_data(self, level: Level, report: Path) -> None:
        """Write what a level reads beside its arguments, here as evidence and on the volume for the generator."""
        made = load.write_data(self._place.specification.workload, level, report)
        if made is not None:
            pod = self._collector_name()
            upload(self._place.api, self._place.namespace, pod, COLLECTOR, made, f"{self.folder}/{made.name}")

    def _collect(self, name: str, to: Path) -> None:
        place, pod = self._place, self._collector_name()
        try:
            collect(place.api, place.namespace, pod, COLLECTOR, f"{self.folder}/{name}", to, say=self._say)
        except ClusterError as error:
            raise LoadError(f"GuideLLM's report {name} cannot be brought here: {error}") from error

    def _in_collector(self, argv: Sequence[str]) -> None:
        place, pod = self._place, self._collector_name()
        done = place.api.exec(place.namespace, pod, COLLECTOR, argv)
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip()
            raise ClusterError(f"the results volume cannot be written in pod {pod}: {said}")

    def _collector_name(self) -> str:
        if self.collector is None:
            raise ClusterError("the results volume is not open: no level was announced")
        return str(self.collector["metadata"]["name"])

    def _environment(self, level: Level) -> dict[str, str]:
        found = load.environment(self._cpus, self._place.specification.workload)
        if not self._place.specification.miniature:
            # The tokenizer comes from the hub, or from the cache of weights.
            found.pop("HF_HUB_OFFLINE", None)
        if self._held:
            found["PYTHONPATH"] = f"{self.folder}/ahead"
            found |= load.priming_environment(self._place.specification.workload, level, self._load_target())
        return {name: value for name, value in found.items() if name not in _OF_THE_IMAGE}

    def _until_gone(self, job: str) -> None:
        deadline = time.monotonic() + _READY_S
        while self._place.api.read(JOB, job, self._place.namespace) is not None:
            if time.monotonic() > deadline:
                raise ClusterError(f"Job {job} of an earlier attempt does not go away")
            time.sleep(_POLL_S)


def exit_code(pod: Mapping[str, Any]) -> int:
    """Return how the load generator of a pod that has ended did so."""
    status = pod["status"]
    ends = [
        (entry.get("state") or {}).get("terminated") or {}
        for entry in status.get("containerStatuses") or []
        if entry["name"] == CONTAINER
    ]
    codes = [int(end["exitCode"]) for end in ends if "exitCode" in end]
    return codes[0] if codes else (0 if status.get("phase") == "Succeeded" else 1)


def failed(pod: Mapping[str, Any]) -> str:
    """Say how the load generator of a pod that has ended failed."""
    code = exit_code(pod)
    return f"failed ({exit_words(code if code < 128 else 128 - code)})"


def _seconds(text: str) -> float:
    # A date without %N prints it as it stands.
    whole, _, fraction = text.split(maxsplit=1)[0].partition(".")
    return float(f"{whole}.{fraction if fraction.isdigit() else 0}")
