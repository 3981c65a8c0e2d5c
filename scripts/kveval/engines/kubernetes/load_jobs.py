"""The load generator in the cluster: a Job per level, whose pod is created ahead and waits.

The pod of the next level is scheduled and pulls its image while a level runs; it starts GuideLLM on a signal. A second
container keeps the pod running until the report is copied completely; the pod shares no volume with others.
"""

import base64
import contextlib
import functools
import gzip
import itertools
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kveval.engines.kubernetes.api.download import collect
from kveval.engines.kubernetes.api.errors import ClusterError, Interrupted
from kveval.engines.kubernetes.api.exec import Executed
from kveval.engines.kubernetes.api.kinds import CONFIG_MAP, JOB, POD, Document
from kveval.engines.kubernetes.api.pod_logs import Follower
from kveval.engines.kubernetes.manifests.context import (
    LOAD_FILES,
    LOAD_FOLDER,
    RenderContext,
    RunContext,
)
from kveval.engines.kubernetes.manifests.rendering import (
    load_command,
    load_job,
    load_target,
)
from kveval.engines.kubernetes.pods import images_of
from kveval.engines.kubernetes.recordings import clock_of
from kveval.engines.kubernetes.wait.diagnosis import exit_of, not_terminating
from kveval.engines.kubernetes.wait.rollout import WaitState, WaitTarget, wait
from kveval.engines.protocol import (
    Event,
    LoadResult,
    LoadRunner,
    Log,
    MachineClock,
    Watch,
)
from kveval.host.http import DIRECT_LOOPBACK
from kveval.host.logs import last_words
from kveval.load import guidellm as load
from kveval.load.guidellm import Level, LoadError
from kveval.load.loadside import sitecustomize

CONTAINER, KEEPER = "load", "report"
"""The containers of a generator's pod: GuideLLM, and one that keeps the report after GuideLLM has ended."""
# Environment variables of GuideLLM that come from its image: path, home, locale and proxies.
_OF_THE_IMAGE = ("PATH", "HOME", "LANG", *DIRECT_LOOPBACK)
_GO = f"{LOAD_FOLDER}/go"
_POLL_S = 0.5
_GONE_S = 600.0
_FETCH_S = 1800.0
_TELLINGS = 3
# Size of a ConfigMap, by the API server's limit on an object.
_FILES_BYTES = 1_000_000
# In a new folder, because GuideLLM reads a file .env in its working folder and writes a log there.
_BEGIN = f"""
cd "$(mktemp -d)" || exit 1
if [ -d {LOAD_FILES} ]; then python3 - <<'END' || exit 1
import gzip, pathlib
for packed in pathlib.Path("{LOAD_FILES}").glob("*.gz"):
    pathlib.Path("{LOAD_FOLDER}", packed.stem).write_bytes(gzip.decompress(packed.read_bytes()))
END
fi
"""
# Waits for the file $0.
_WAIT = """
: > "$0.ready"
until [ -e "$0" ]; do sleep 0.1; done
exec "$@"
"""
# Lets GuideLLM prepare everything before it sends, if its Python imports the code that makes it wait there.
_HOLD = """
KVEVAL_PROBE="$0.probe" "$1" --version >/dev/null 2>&1
if [ -e "$0.probe" ]; then KVEVAL_GO="$0" exec "$@"; fi
"""
# Streams that are no users would be another load, and nothing would tell.
_USERS = """
KVEVAL_PROBE="$0.probe" "$1" --version >/dev/null 2>&1
if [ ! -e "$0.probe" ]; then
echo "the image's Python does not import what makes streams users (PYTHONPATH=$PYTHONPATH)" >&2
exit 1
fi
"""
# For a level that primes the caches before: that needs the code that makes GuideLLM wait. It starts on a signal.
_PRIMING = f"""
until [ -e "$0.prime" ]; do sleep 0.1; done{_HOLD}
echo "the image's Python does not import what primes the caches (PYTHONPATH=$PYTHONPATH)" >&2
exit 1
"""
_IS_READY = '[ -e "$0.ready" ]'
_PRIME = 'date +%s.%N; : > "$0.prime"'
_SAID = 'cat "$0.ready"'
_TELL = 'date +%s.%N; : > "$0"'


@dataclass(frozen=True)
class Prepared:
    """A level's Job, whose pod waits; `made`: time.monotonic() of its creation."""

    job: str
    made: float


class LoadJobs(LoadRunner):
    """The levels' Jobs of one run.

    `await_route`: returns the URL that the load is sent to, as pods see it, once requests there reach a server;
    `cpus`: CPUs that a generator has.
    """

    own_clock = False

    def __init__(
        self,
        context: RunContext,
        await_route: Callable[[], str],
        cpus: int,
        say: Log,
    ) -> None:
        self._context = context
        self._await_route = await_route
        self._cpus = cpus
        self._say = say
        self._levels: Sequence[Level] = ()
        self._prepared: dict[int, Prepared] = {}
        self._pods: list[Document] = []
        """The generators' pods, as they ended."""
        self._clocks: list[MachineClock] = []
        self._workload = context.specification.workload
        self._primes = self._workload.prime
        self._users = self._workload.profile == "users"
        self._ahead = makes_prompts_ahead(context)

    @functools.cached_property
    def _target(self) -> str:
        return self._await_route()

    def expect(self, levels: Sequence[Level]) -> None:
        """Prepare the first level, once requests reach a server."""
        self._levels = levels
        version = self._context.specification.versions["guidellm"]
        if (self._primes or self._users) and not load.can_wait(version):
            what = "primes the caches" if self._primes else "has users with pauses"
            raise LoadError(
                f"the workload {what}, which needs GuideLLM {load.RELEASE_THAT_WAITS}x, not {version}"
            )
        self._prepare(levels[0])

    def generate(
        self, level: Level, report: Path, watch: Watch, sending: Event
    ) -> LoadResult:
        """Run the level's generator and copy its report and its log here. Raises LoadError."""
        self._prepare(level)
        prepared = self._prepared.pop(level.index)
        log = report.with_suffix(".log")
        pod = self._running(prepared, log)
        report.unlink(missing_ok=True)
        # The data that the pod was given is also kept here, as evidence.
        load.write_data(self._workload, level, report)
        follower = Follower(self._context.api, pod, CONTAINER, log)
        try:
            primed: load.Primed | None = None
            priming = self._told(pod, _PRIME) if self._primes else None
            self._until_ready(pod, level, watch)
            if priming:
                primed = load.primed_facts(self._in_pod(pod, _SAID))
            sending()
            sent = self._told(pod, _TELL)
            later = (entry for entry in self._levels if entry.index > level.index)
            for following in itertools.islice(later, 1):
                self._prepare(following)
            ended = self._until_ended(pod, level, sent[1], watch, follower)
            end = time.monotonic()
            self._pods.append(ended)
        finally:
            follower.complete()
        if code := exit_code(ended):
            raise LoadError(
                f"GuideLLM failed ({exit_of(code)}){last_words(log, follower.offset, only_line=True)}; see {log}"
            )
        self._fetch(ended, report)
        for kind in (JOB, CONFIG_MAP):
            self._context.api.delete(kind, prepared.job, self._context.namespace)
        command = load_command(self._context, level, self._target)
        return LoadResult(command, *(priming or sent), end, primed)

    def _prepare(self, level: Level) -> None:
        """Create a level's Job unless it exists, after deleting an older one; `_running` waits for its pod."""
        if level.index in self._prepared:
            return
        context = self._context
        begin = _BEGIN + _USERS if self._users else _BEGIN
        waiting = _HOLD + _WAIT if self._ahead else _WAIT
        script = begin + (_PRIMING if self._primes else waiting)
        argv = ["sh", "-c", script, _GO, *load_command(context, level, self._target)]
        files, deadline_s = self._files(level), self._deadline_s(level)
        documents = load_job(
            context, level.index, argv, self._environment(level), files, deadline_s
        )
        name = documents[-1]["metadata"]["name"]
        if context.api.delete(
            JOB, name, context.namespace, propagation="Foreground", grace_s=0
        ):
            self._until_gone(name)
        context.api.apply(documents)
        self._prepared[level.index] = Prepared(name, time.monotonic())

    def _files(self, level: Level) -> dict[str, str]:
        """Return a level's input files, compressed and in base64, for a ConfigMap. Raises LoadError."""
        packed = packed_files(self._context, level)
        size = sum(map(len, packed.values()))
        if size > _FILES_BYTES:
            message = f"the trace of level {level.streams} takes {size} bytes compressed, a ConfigMap holds {_FILES_BYTES}"
            raise LoadError(
                f"{message}: declare fewer seconds or requests",
                code="trace_too_large",
                bytes=size,
            )
        return {
            name: base64.b64encode(content).decode() for name, content in packed.items()
        }

    def _deadline_s(self, level: Level) -> float:
        """Return the seconds after which the cluster ends a level's Job, including its wait for the previous level."""
        limits = (
            load.time_limit_s(load.lasting(self._workload, entry), entry.streams)
            for entry in (*self._levels, level)
        )
        return 2 * (max(limits) + _FETCH_S + self._context.start_seconds)

    def _running(self, prepared: Prepared, log: Path) -> Document:
        """Return a level's pod once it runs. Raises LoadError if it has ended, RolloutError if it cannot run."""
        context, name = self._context, prepared.job
        # While a level runs, the pod of the next one may have no room, because the level's own pod takes it.
        usual, waited_s = context.patience, time.monotonic() - prepared.made
        patience = replace(
            usual,
            unschedulable_s=usual.unschedulable_s + waited_s,
            unseen_s=usual.unseen_s + waited_s,
        )
        target = WaitTarget(context.api, JOB, context.namespace, name, patience)

        def look() -> WaitState:
            pods = not_terminating(
                context.api.list(POD, context.namespace, f"job-name={name}")
            )
            for pod in pods:
                if (code := exit_code(pod)) is not None:
                    with contextlib.suppress(ClusterError):
                        log.write_text(
                            context.api.logs(
                                context.namespace, pod["metadata"]["name"], CONTAINER
                            )
                        )
                    ended = (
                        f"GuideLLM ended ({exit_of(code)}) before it had sent anything"
                    )
                    raise LoadError(
                        f"{ended}{last_words(log, only_line=True)}; see {log}"
                    )
            if running := [
                pod for pod in pods if pod["status"].get("phase") == "Running"
            ]:
                return WaitState(True, "its pod runs", running)
            job = target.read()
            if not pods and job is not None:
                target.require_creatable(job["metadata"].get("creationTimestamp"))
            target.check(pods)
            return WaitState(False, "its pod does not run yet", pods)

        return wait(target, look, context.start_seconds, None)[0]

    def _until_ready(self, pod: Document, level: Level, watch: Watch) -> None:
        """Wait until a pod is ready to send. Raises LoadError."""
        name, begin = pod["metadata"]["name"], time.monotonic()
        limit_s = load.start_allowance_s(self._workload, level.streams)
        while True:
            with contextlib.suppress(Interrupted):
                if self._run(name, _IS_READY).returncode == 0:
                    return
            elapsed_s = time.monotonic() - begin
            if elapsed_s > limit_s:
                raise LoadError(
                    f"the load generator in pod {name} was not ready to send after {limit_s:.0f} s"
                )
            watch(elapsed_s)
            time.sleep(_POLL_S)

    def _run(self, pod: str, script: str) -> Executed:
        return self._context.api.exec(
            self._context.namespace, pod, CONTAINER, ["sh", "-c", script, _GO]
        )

    def _in_pod(self, pod: Document, script: str) -> str:
        """Run a script, which may safely run twice, in a generator's pod; return what it prints. Raises LoadError."""
        name = pod["metadata"]["name"]
        for left in reversed(range(_TELLINGS)):
            try:
                done = self._run(name, script)
                break
            except Interrupted:
                if not left:
                    raise
        if done.returncode:
            raise LoadError(
                f"the load generator in pod {name} cannot be started: {done.error_text}"
            )
        return done.text

    def _told(self, pod: Document, script: str) -> tuple[float, float]:
        """Signal a pod to continue; return the time there, epoch seconds, and here, time.monotonic()."""
        node = str(pod["spec"].get("nodeName"))
        clock, there = clock_of(node, lambda: self._in_pod(pod, script))
        self._clocks.append(clock)
        return there, time.monotonic()

    @property
    def placeholders(self) -> Mapping[str, str]:
        """The folder of the reports in the generators' pods."""
        return {LOAD_FOLDER: "{results}"}

    def clock(self) -> MachineClock:
        """Return the generators' clock, as told best; that of several nodes has all their names."""
        nodes = {clock.machine for clock in self._clocks}
        best = min(self._clocks, key=lambda clock: clock.doubt_s)
        return replace(best, machine=", ".join(sorted(nodes)))

    def facts(self) -> dict[str, Any]:
        """Return the generators' images."""
        return {"cluster": {"images": images_of(self._pods)}}

    def _until_ended(
        self,
        pod: Document,
        level: Level,
        begin: float,
        watch: Watch,
        follower: Follower,
    ) -> Document:
        workload = load.lasting(self._workload, level)
        limit_s = load.time_limit_s(workload, level.streams)
        if self._ahead or self._primes:
            # GuideLLM itself waits, instead of the shell that starts it.
            limit_s = load.sending_limit_s(workload)
        name, uid, log = pod["metadata"]["name"], pod["metadata"]["uid"], follower.log
        while True:
            current = self._context.api.read(POD, name, self._context.namespace)
            if (
                current is None
                or current["metadata"]["uid"] != uid
                or current["metadata"].get("deletionTimestamp")
            ):
                raise LoadError(
                    f"the load generator's pod {name} was deleted while it ran; see {log}"
                )
            if exit_code(current) is not None:
                return current
            elapsed_s = time.monotonic() - begin
            if elapsed_s > limit_s:
                words = last_words(log, follower.offset)
                raise LoadError(
                    f"GuideLLM was still running after {limit_s:.0f} s{words}; see {log}"
                )
            watch(elapsed_s)
            time.sleep(_POLL_S)

    def _fetch(self, pod: Document, report: Path) -> None:
        """Copy the complete report of a generator that has ended. Raises LoadError."""
        context, name = self._context, pod["metadata"]["name"]
        try:
            collect(
                context.api,
                context.namespace,
                name,
                KEEPER,
                f"{LOAD_FOLDER}/{report.name}",
                report,
                say=self._say,
            )
        except ClusterError as error:
            raise LoadError(
                f"GuideLLM's report {report.name} cannot be copied: {error}"
            ) from error

    def _environment(self, level: Level) -> dict[str, str]:
        variables = load.environment(self._cpus, self._workload)
        if not self._context.specification.miniature:
            # The tokenizer comes from the Hugging Face hub, or from the model cache.
            variables.pop("HF_HUB_OFFLINE", None)
        if runs_code_of_ours(self._context):
            variables["PYTHONPATH"] = LOAD_FOLDER
            variables |= load.users_environment(self._workload, level)
            variables |= load.priming_environment(
                self._workload, level, load_target(self._context, self._target)
            )
        return {
            name: value
            for name, value in variables.items()
            if name not in _OF_THE_IMAGE
        }

    def _until_gone(self, job: str) -> None:
        deadline = time.monotonic() + _GONE_S
        while self._context.api.read(JOB, job, self._context.namespace) is not None:
            if time.monotonic() > deadline:
                raise ClusterError(f"Job {job} of an earlier attempt cannot be deleted")
            time.sleep(_POLL_S)


def makes_prompts_ahead(context: RenderContext) -> bool:
    """Tell whether pods make their prompts ahead; not while the server may be restarting: requests would fail."""
    specification = context.specification
    return (
        context.site.prompts_ahead
        and load.can_wait(specification.versions["guidellm"])
        and specification.reset_caches == "endpoint"
        and not specification.workload.prime
    )


def runs_code_of_ours(context: RenderContext) -> bool:
    """Tell whether code of ours runs inside GuideLLM: it waits, primes the caches, or has users with pauses."""
    workload = context.specification.workload
    return makes_prompts_ahead(context) or workload.prime or workload.profile == "users"


def packed_files(context: RenderContext, level: Level) -> dict[str, bytes]:
    """Return what the generator of a level reads beside its arguments, compressed, by name."""
    workload = context.specification.workload
    with tempfile.TemporaryDirectory() as folder:
        data = load.write_data(workload, level, Path(folder, level.report_name))
        paths = [
            *([Path(sitecustomize.__file__)] if runs_code_of_ours(context) else []),
            *([data] if data else []),
        ]
        return {
            f"{path.name}.gz": gzip.compress(path.read_bytes(), mtime=0)
            for path in paths
        }


def exit_code(pod: Mapping[str, Any]) -> int | None:
    """Return the exit code of a pod's load generator, None while it runs; the report's container may still run then."""
    for status in pod["status"].get("containerStatuses") or []:
        ended = (status.get("state") or {}).get("terminated")
        if status["name"] == CONTAINER and ended:
            return int(ended["exitCode"])
    return {"Succeeded": 0, "Failed": 1}.get(pod["status"].get("phase", ""))
