"""GuideLLM: one process per level, so that a crash loses one level."""

import contextlib
import json
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kveval.host.errors import Failure
from kveval.host.http import DIRECT_LOOPBACK
from kveval.host.logs import exit_words, last_words
from kveval.host.processes import Supervisor
from kveval.load import levels as workloads
from kveval.load import peak_search, traces
from kveval.load.idle import Idle
from kveval.load.loadside import sitecustomize
from kveval.load.workload import Pause, Workload

# Writing the prefixes takes the generator about 55 CPU s for 8 M tokens; measured with GuideLLM 0.8.1.
PREFIX_TOKENS_PER_S = 145_000
# Priming fails if the server computes prompts more slowly than this.
PRIMED_TOKENS_PER_S_AT_LEAST = 200
_START_ALLOWANCE_S = 120.0
RELEASE_THAT_WAITS = "0.8."
"""The releases of GuideLLM that kveval.load.loadside can make wait."""
# For the report to be written.
_END_ALLOWANCE_S = 30.0


class LoadError(Failure):
    """The load generator failed, stalled or measured nothing."""


@dataclass(frozen=True)
class Level:
    """One level of the load, with the seed of its prompts; what `streams` counts depends on the profile.

    See `kveval.load.levels`: concurrent conversations, requests per minute, or tokens of the prefix.
    `longer`: it lasts so many times the workload's seconds.
    """

    streams: int
    index: int
    seed: int
    longer: int = 1

    @property
    def report_name(self) -> str:
        """The file name of its report."""
        return f"guidellm-{self.streams:04d}.json"


@dataclass(frozen=True)
class LoadTarget:
    """The server as the load generator sees it; `body`: what the body of each request has in addition."""

    url: str
    model: str
    tokenizer: Path | str
    body: Mapping[str, Any] = field(default_factory=dict)

    @property
    def backend_argument(self) -> str:
        """GuideLLM's `--backend` value."""
        fields: dict[str, Any] = {
            "kind": "openai_http",
            "target": self.url,
            "model": self.model,
        }
        if self.body:
            return _json(fields | {"extras": {"body": self.body}})
        return ",".join(f"{key}={value}" for key, value in fields.items())


@dataclass(frozen=True)
class Primed:
    """The priming before the load: how many prefixes were sent once, and the seconds that it took."""

    prefixes: int
    seconds: float


@dataclass(frozen=True)
class ReportFacts:
    """The measured window of one level, epoch seconds UTC."""

    start: float
    end: float


def levels_of(workload: Workload, run: int) -> list[Level]:
    """Return the workload's levels for one run, those that are given; none if they are searched.

    Seeds differ by run and level - the same prompts again would find a warm cache - and are shared by all arms,
    so that the arms of a block get the same requests.
    """
    given = () if workload.searched else workload.given_levels
    return [
        _level(workload, run, index, streams) for index, streams in enumerate(given)
    ]


def levels_known_ahead(workload: Workload, run: int) -> list[Level]:
    """Return the levels that are known before any was measured: all, or the first one of a search."""
    first = next_level(workload, run, {})
    return levels_of(workload, run) or ([] if first is None else [first])


def next_level(
    workload: Workload, run: int, throughput_tok_s: Mapping[int, float]
) -> Level | None:
    """Return the level after those that were measured, None after the last.

    `throughput_tok_s`: what the levels so far delivered, in the order in which they were measured.
    """
    index = len(throughput_tok_s)
    search = workload.searched
    if search is None:
        return next(iter(levels_of(workload, run)[index:]), None)
    streams = peak_search.next_level(search, throughput_tok_s)
    return None if streams is None else _level(workload, run, index, streams)


def _level(workload: Workload, run: int, index: int, streams: int) -> Level:
    return Level(
        streams=streams, index=index, seed=workload.seed + 100_000 * run + index
    )


def lasting(workload: Workload, level: Level) -> Workload:
    """Return the workload with the seconds that a level lasts."""
    return workload.replace(seconds=workload.seconds * level.longer)


def data_argument(workload: Workload, level: int) -> str:
    """Build GuideLLM's `--data` value for a synthetic workload with shared prefixes, turns and varying lengths."""
    fields: dict[str, Any] = {
        "kind": "synthetic_text",
        "prompt_tokens": workload.prompt_tokens,
        "output_tokens": workload.output_tokens,
        "turns": workload.turns,
    }
    for name, spread in (
        ("prompt", workload.prompt_spread),
        ("output", workload.output_spread),
    ):
        if spread is not None:
            fields |= {f"{name}_tokens_{key}": value for key, value in spread}
    if workload.document_tokens:
        fields |= _first_prompt(workload)
    if prefix_tokens := workloads.prefix_tokens_at(workload, level):
        count = workloads.prefix_count_at(workload, level)
        if workload.prefix_zipf:
            return _json(fields | _buckets(prefix_tokens, count, workload.prefix_zipf))
        fields |= {"prefix_tokens": prefix_tokens, "prefix_count": count}
    return ",".join(f"{key}={value}" for key, value in fields.items())


def _buckets(tokens: int, count: int, zipf: float) -> dict[str, Any]:
    """Return the field of prefixes of unequal popularity: groups, each with the sum of its prefixes' weights."""
    groups = [
        {
            "bucket_weight": weight * number,
            "prefix_count": number,
            "prefix_tokens": tokens,
        }
        for weight, number in workloads.popularity(count, zipf)
    ]
    return {"prefix_buckets": groups}


def _first_prompt(workload: Workload) -> dict[str, int]:
    """Return the fields of a first prompt: a user's own document and a question, whose spreads add up."""
    fields = {"first_prompt_tokens": workload.document_tokens + workload.prompt_tokens}
    documents, questions = workload.document_spread, workload.prompt_spread
    if documents is None and questions is None:
        return fields
    none = {"stdev": 0, "min": 0, "max": 0}
    spreads = [
        (tokens, none if spread is None else dict(spread))
        for tokens, spread in (
            (workload.document_tokens, documents),
            (workload.prompt_tokens, questions),
        )
    ]
    fields["first_prompt_tokens_stdev"] = round(
        math.hypot(*(spread["stdev"] for _, spread in spreads))
    )
    for key in ("min", "max"):
        fields[f"first_prompt_tokens_{key}"] = sum(
            spread[key] or tokens for tokens, spread in spreads
        )
    return fields


def trace_file(report: Path) -> Path:
    """Return the path of the trace that the level with this report replays."""
    return report.with_suffix(".trace.jsonl")


def write_data(workload: Workload, level: Level, report: Path) -> Path | None:
    """Write the trace that a level replays next to its report; return its path, None if the level replays none."""
    if workload.profile not in workloads.REPLAYS:
        return None
    traces.write(workload, level.streams, level.seed, trace_file(report))
    return trace_file(report)


def _trace_argument(workload: Workload, level: Level, report: Path) -> str:
    source = {"kind": "json_file", "path": str(trace_file(report))}
    block = traces.block_tokens(workload, level.streams)
    return _json({"kind": "mooncake", "source": source, "hash_id_block_size": block})


def profile_argument(workload: Workload, level: int) -> str:
    """Build GuideLLM's `--profile` value for one level."""
    rate = {"rate": [workloads.rate_req_s_at(workload, level)]}
    profiles: dict[str, dict[str, Any]] = {
        "concurrent": {"kind": "concurrent", "streams": [level]},
        "users": {"kind": "concurrent", "streams": [level]},
        "constant": {"kind": "constant", **rate},
        "poisson": {"kind": "poisson", **rate},
        # At the trace's times, whether or not earlier requests were answered.
        **{
            name: {"kind": "replay", "schedule_turn": "timestamp"}
            for name in ("bursts", "trace")
        },
        "trace-streams": {"kind": "concurrent", "streams": [level]},
        "prefix-length": {"kind": "synchronous"},
    }
    profile = profiles[workload.profile]
    if workload.arrival_s:
        profile["rampup_duration"] = workload.arrival_s
    if workload.warmup_s:
        profile["warmup"] = {"value": workload.warmup_s, "mode": "duration"}
    return _json(profile)


def command(
    guidellm: str,
    workload: Workload,
    level: Level,
    target: LoadTarget,
    report: Path,
) -> list[str]:
    """Build the command line of GuideLLM 0.8 for one level: fixed time, every request's record kept.

    A level that replays a trace finds it beside its report, see `write_data`.
    """
    replays = workload.profile in workloads.REPLAYS
    options = {
        "backend": target.backend_argument,
        "profile": profile_argument(workload, level.streams),
        "constraint": f"kind=max_duration,seconds={lasting(workload, level).seconds:g}",
        "seed": f"kind=static,value={level.seed}",
        "data": _trace_argument(workload, level, report)
        if replays
        else data_argument(workload, level.streams),
        "tokenizer": f"kind=hf_auto,model={target.tokenizer}",
        "output": f"kind=json,path={report}",
        "metrics": "kind=generative,sample_size=0",
    }
    given = [word for name, value in options.items() for word in (f"--{name}", value)]
    return [guidellm, "run", *given, "--disable-console", "--disable-progress"]


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))


def time_limit_s(workload: Workload, level: int) -> float:
    """Return the seconds after which a level's process counts as stuck.

    The sum of its time, its start-up and its last requests.
    """
    return (
        workload.seconds
        + start_allowance_s(workload, level)
        + workload.request_timeout_s
    )


def sending_limit_s(workload: Workload) -> float:
    """Return the seconds after which a generator that was told to send counts as stuck: GuideLLM 0.8.1 may hang."""
    return workload.seconds + workload.request_timeout_s + _END_ALLOWANCE_S


def unanswered_s(workload: Workload, level: int) -> float:
    """Return how many seconds before its limits an idle generator already counts as stuck.

    Streams give up unanswered requests at the end of their time; in an open loop they are waited for.
    """
    return workload.request_timeout_s if loaded_s(workload, level) else 0.0


def start_allowance_s(workload: Workload, level: int) -> float:
    """Return the seconds within which the generator must have sent its first request: its start, its prefixes."""
    tokens = workloads.working_set_tokens_at(workload, level)
    priming_s = tokens / PRIMED_TOKENS_PER_S_AT_LEAST if workload.prime else 0.0
    return 2 * tokens / PREFIX_TOKENS_PER_S + priming_s + _START_ALLOWANCE_S


def loaded_s(workload: Workload, level: int) -> float:
    """Return the seconds in which a request is always in flight; 0 in an open loop, and where all users may pause."""
    if workloads.streams_at(workload, level) is None or workloads.has_pauses(workload):
        return 0.0
    return workload.seconds


def worker_processes(cpus: int, workload: Workload | None = None) -> int:
    """Return how many worker processes the generator gets; each costs seconds of start-up and about one core in use.

    One for Poisson arrivals: every worker draws the gaps between requests from the same seed, so that several would
    repeat each gap and send in clumps.
    """
    if workload is not None and workload.profile == "poisson":
        return 1
    return min(10, max(1, cpus // 4))


@dataclass(frozen=True)
class Generator:
    """A load generator that was started for one level; its output in `log` begins at byte `offset`.

    `go`: the file that it waits for once it is ready to send; None if it sends as soon as it can.
    """

    process: "subprocess.Popen[bytes]"
    log: Path
    offset: int
    go: Path | None

    @property
    def is_running(self) -> bool:
        """Whether it has not ended; a suspended one counts."""
        return self.process.poll() is None

    def suspend(self) -> None:
        """Stop all its processes where they are: until `resume` it takes no processor time at all."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let its processes go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self.is_running:
            # It leads a session, and so a group of processes, in which those that it starts stay.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)


@contextlib.contextmanager
def running_generator(
    supervisor: Supervisor,
    argv: list[str],
    report: Path,
    log: Path,
    *,
    env: Mapping[str, str],
    go: Path | None = None,
) -> Iterator[Generator]:
    """Start the load generator for one level and end it on leaving; `go`: a file in an empty folder, see `Generator`."""
    # The report of an earlier attempt must not be mistaken for this one's.
    report.unlink(missing_ok=True)
    offset = log.stat().st_size if log.exists() else 0
    # Its own folder to work in: it reads a file .env there and writes a log.
    with (
        supervisor.temporary_folder() as scratch,
        supervisor.supervised(
            "guidellm",
            argv,
            env={**env, "TMPDIR": str(scratch)},
            log=log,
            cwd=scratch,
            grace_s=5.0,
        ) as process,
    ):
        yield Generator(process, log, offset, go)


def run_level(
    supervisor: Supervisor,
    argv: list[str],
    report: Path,
    log: Path,
    *,
    limit_s: float,
    sending_limit_s: float,
    env: Mapping[str, str],
    watch: Callable[[float], None],
    sending: Callable[[], None],
    go: Path | None = None,
    idle_before_s: float = 0.0,
) -> tuple[float, Primed | None]:
    """Start the load generator for one level and wait for its report, see `running_generator` and `await_report`.

    Without `go`, `sending` is called before it starts.
    """
    if go is None:
        sending()
    with running_generator(supervisor, argv, report, log, env=env, go=go) as generator:
        return await_report(
            generator,
            limit_s=limit_s,
            sending_limit_s=sending_limit_s,
            watch=watch,
            sending=sending,
            idle_before_s=idle_before_s,
        )


def await_report(
    generator: Generator,
    *,
    limit_s: float,
    sending_limit_s: float,
    watch: Callable[[float], None],
    sending: Callable[[], None],
    idle_before_s: float = 0.0,
) -> tuple[float, Primed | None]:
    """Have a load generator send its level's load; return the seconds until it ended, and how caches were primed if so.

    It counts as stuck after `limit_s`, or `sending_limit_s` after it was told to send; in the last `idle_before_s`
    before either, also if it uses no processor time.
    `watch(elapsed_s)` is called about twice a second and raises when the server or the recording has died: a
    level whose server is gone must not run to its end. `sending` is called when the load is about to be sent, once a
    generator that waits is ready. Raises LoadError with a one-line cause that names the log.
    """
    process, log, go = generator.process, generator.log, generator.go
    primed: Primed | None = None
    held = go is not None
    if go is not None:
        sitecustomize.prime_file(go).touch()
    begin = time.monotonic()
    generator.resume()
    idle = Idle(process.pid)
    while True:
        try:
            code = process.wait(timeout=0.5)
            break
        except subprocess.TimeoutExpired:
            if held and go is not None and sitecustomize.ready_file(go).exists():
                primed, held = (
                    primed_facts(sitecustomize.ready_file(go).read_text()),
                    False,
                )
                sending()
                go.touch()
                limit_s = time.monotonic() - begin + sending_limit_s
            elapsed = time.monotonic() - begin
            stuck = idle.lasts(elapsed) and elapsed > limit_s - idle_before_s
            if stuck or elapsed > limit_s:
                idly = ", idle," if stuck else ""
                raise LoadError(
                    f"GuideLLM was still running{idly} after {elapsed:.0f} s{last_words(log, generator.offset)}; see {log}",
                    code="still_running",
                    limit_s=limit_s,
                    idle=stuck,
                ) from None
            watch(elapsed)
    if code != 0:
        message = f"GuideLLM failed ({exit_words(code)}){last_words(log, generator.offset)}; see {log}"
        raise LoadError(message, code="generator_failed", exit_code=code, log=log)
    if held:
        raise LoadError(
            f"GuideLLM ended before it was told to send; see {log}",
            code="did_not_wait",
            log=log,
        )
    return time.monotonic() - begin, primed


def primed_facts(text: str) -> Primed | None:
    """Read the facts on priming from the file that a held generator writes once it is ready; None without priming."""
    facts = json.loads(text or "{}")
    return Primed(int(facts["prefixes"]), float(facts["seconds"])) if facts else None


def priming_environment(
    workload: Workload, level: Level, target: LoadTarget
) -> dict[str, str]:
    """Return the environment that makes a held generator prime the caches, if the workload asks for it.

    kveval.load.loadside, which holds it, must be on its PYTHONPATH.
    """
    if not workload.prime:
        return {}
    prime: dict[str, Any] = {
        "url": target.url,
        "model": target.model,
        "prefixes": workloads.prefix_count_at(workload, level.streams),
        "streams": workloads.streams_at(workload, level.streams) or 1,
    }
    if target.body:
        prime["body"] = target.body
    return {"KVEVAL_PRIME": _json(prime)}


def can_wait(version: str) -> bool:
    """Whether this release of GuideLLM can be made to wait, once it is ready to send."""
    return version.startswith(RELEASE_THAT_WAITS)


def waiting_environment(go: Path) -> dict[str, str]:
    """Return the environment that makes the generator wait for the file `go` once it is ready to send.

    kveval.load.loadside, which does it, must be on its PYTHONPATH.
    """
    return {"KVEVAL_GO": str(go)}


def environment_ahead(after: Path | None) -> dict[str, str]:
    """Return what a generator is told in addition that starts before its server does, and after the file `after` exists."""
    told = {"KVEVAL_BEFORE_SERVER": "1"}
    return told if after is None else told | {"KVEVAL_AFTER": str(after)}


def users_environment(workload: Workload, level: Level) -> dict[str, str]:
    """Return the environment that makes streams users with pauses, if the workload has users.

    kveval.load.loadside, which does it, must be on the generator's PYTHONPATH.
    """
    if workload.profile != "users":
        return {}
    users = {
        "users": level.streams,
        "turns": workload.turns,
        "seed": level.seed,
        "pause": pauses_of(workload),
    }
    return {"KVEVAL_USERS": _json(users)}


def pauses_of(workload: Workload) -> dict[str, Any]:
    """Return the pauses of a workload as `kveval.load.loadside` takes them."""
    pause = workload.pause_s
    return dict(pause) if isinstance(pause, Pause) else {"mean": pause}


def report_facts(report: Path, version: str) -> ReportFacts:
    """Read the measured window from a fresh report, and refuse one that measured nothing or is of another version.

    Raises LoadError, "too_short" if requests were in flight and none was completed.

    GuideLLM exits with 0 even when every request failed.
    """
    try:
        content = json.loads(report.read_text())
        benchmark = content["benchmarks"][0]
        totals = benchmark["metrics"]["request_totals"]
        completed, errored, unanswered = (
            int(totals[name]) for name in ("successful", "errored", "incomplete")
        )
        facts = ReportFacts(
            float(benchmark["start_time"]), float(benchmark["end_time"])
        )
        found = str(content["metadata"]["guidellm_version"])
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise LoadError(
            f"GuideLLM left no usable report {report.name} ({error!r}); see its log beside it",
            code="no_usable_report",
        ) from error
    if found != version:
        raise LoadError(
            f"the load generator is GuideLLM {found}, the campaign declares {version}",
            code="other_version",
            found=found,
            declared=version,
        )
    if completed == errored == 0 < unanswered:
        raise LoadError(
            f"none of {unanswered} requests was answered within {facts.end - facts.start:.0f} s",
            code="too_short",
            unanswered=unanswered,
        )
    if completed == 0:
        raise LoadError(
            f"no request completed ({errored} failed); see {report.stem}.log and server.log in {report.parent}",
            code="nothing_completed",
            errored=errored,
        )
    return facts


def environment(cpus: int, workload: Workload | None = None) -> dict[str, str]:
    """Return the load generator's environment: offline, and no more worker processes than the host can feed."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": os.environ.get("HOME", "/"),
        "LANG": "C.UTF-8",
        **DIRECT_LOOPBACK,
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "GUIDELLM__MAX_WORKER_PROCESSES": str(worker_processes(cpus, workload)),
    }
