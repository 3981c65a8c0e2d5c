"""Typed reading of run.json: what was measured, where and how, as the analysis needs it."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import zstandard

from kveval.campaign.cell import Cell
from kveval.host.errors import FileFailure
from kveval.store.conditions import Change, RunConditions, read_conditions

SCHEMA = 1
IMPORTED = "imported"
"""Engine of a run that was measured elsewhere and whose files were imported."""
POINTER = "measurement.json"
"""Name of the file below the results that points to a run in the store."""
BESIDE = "beside"
"""Key of a pointer that does not name a place in the store: the folder beside it that has the run's files."""


class RunFileError(FileFailure):
    """A measurement's run.json is missing, damaged or of another schema."""


class HostWork(msgspec.Struct, frozen=True):
    """The processor time of `host.work` on the server's cores before and after a level, ms; None where it failed.

    `version`: of the work.
    """

    version: int
    before_ms: float | None = None
    after_ms: float | None = None


class LevelRun(msgspec.Struct, frozen=True):
    """One level of a run; `start` and `end` are the load generator's measured window, epoch seconds UTC.

    `benchmark` is the number of the level's benchmark in a report that holds several; `throughput_tok_s` the
    throughput as computed just after the level, by which a search chose the next one; `primed`: how many prefixes were
    sent once before the level, and in how many seconds; `seconds`: the time of a level that had to last longer than
    the workload says for a request to be answered; `others_cpu_percent`: of the time of all processors of the server's
    host, what processes took that are not the run's; known of runs on this host. `host_work`: how fast that host was;
    known of servers that compute on the CPU of this host.
    """

    level: int
    status: str = "ok"
    start: float | None = None
    end: float | None = None
    report: str | None = None
    error: str | None = None
    counters: dict[str, Change] = {}
    command: list[str] = []
    benchmark: int | None = None
    throughput_tok_s: float | None = None
    primed: dict[str, float] = {}
    seconds: float | None = None
    others_cpu_percent: float | None = None
    host_work: HostWork | None = None
    # The counters by term, see `RunConditions.counters`; run.json has none, `with_conditions` adds them.
    terms: dict[str, Change] | None = None

    @property
    def counted(self) -> Mapping[str, Change]:
        """Counters by term. Raises RunFileError where counters were read and no conditions."""
        if self.terms is None and self.counters:
            message = f"level {self.level}: its counters are known by their names alone"
            raise RunFileError(Path("run.json"), message, code="no_conditions")
        return self.terms or {}


class RequiredCounter(msgspec.Struct, frozen=True):
    """A counter that has to rise for an arm to count as active, under the name that the server's release gives it.

    `at_least`: the least increase that counts, in `unit`: tokens, bytes, chunks or keys that were loaded or hit.
    """

    counter: str
    at_least: float = 1.0
    unit: str = ""


class SidecarRecord(msgspec.Struct, frozen=True):
    """A program beside the server (LMCache's server, a store, the endpoint picker) and the version it reported."""

    name: str
    version: str = ""
    argv: list[str] = []


class Repeat(msgspec.Struct, frozen=True):
    """An attempt at a run that a known defect of released software ended, so that the run was measured again.

    `title`, `link` and `effect` are the catalogue's; `attempt`: what is kept of it, a folder of the store;
    `ended`: time UTC.
    """

    defect: str
    title: str
    link: str
    effect: str
    attempt: str
    ended: str


class AnswerDifference(msgspec.Struct, frozen=True):
    """The first difference between two answers to a prompt; `prompt` and `token` are numbered from 0.

    `cold`, `again`: the tokens' numbers; `margin_nats`: their difference in log-probability, None if one was not among
    the likeliest; if it is within the tolerance, `near_tie`, another order of additions is enough to cause it.
    """

    prompt: int
    token: int
    cold: str
    again: str
    margin_nats: float | None
    near_tie: bool


class Answers(msgspec.Struct, frozen=True):
    """How greedy answers to `prompts` prompts, `tokens` tokens each, compare: cold, and served from a cache.

    `same`, `near_ties` and `changed` add up to `prompts`; `served_from`: "tier", "device" for an arm without a tier, or
    "none"; `served_tokens`: of all `prompt_tokens`, those that the cache had. `unchecked`: why this shows nothing.
    `device`: of an arm with a tier, the same comparison with the device's own cache; None without one.
    """

    prompts: int = 0
    tokens: int = 0
    same: int = 0
    near_ties: int = 0
    changed: int = 0
    served_from: str = "none"
    prompt_tokens: int = 0
    served_tokens: int = 0
    tolerance_nats: float = 0.0
    first_difference: AnswerDifference | None = None
    unchecked: str = ""
    device: "Answers | None" = None

    @property
    def by_source(self) -> "dict[str, Answers]":
        """The comparisons, by what was to serve the repeated prompts: "tier" or "device"."""
        if self.device is None:
            return {"device": self}
        return {"tier": self, "device": self.device}

    @property
    def wrong(self) -> bool:
        """Whether a cache that served prompts changed answers, by more than numerics can."""
        return self.changed > 0 and (
            self.served_tokens > 0 or self.served_from != "none"
        )


class RequestTime(msgspec.Struct, frozen=True):
    """The time to the first token of a request, ms, and how many of its prompt's tokens caches served.

    By the monotonic clock of the process that sent it; HTTP, and what it passes on its way, included.
    """

    ttft_ms: float
    prompt_tokens: int
    served_tokens: int


class RequestTimes(msgspec.Struct, frozen=True):
    """Requests, sent one at a time, whose prompts came from one source; `reason`: why there is none."""

    requests: list[RequestTime] = []
    reason: str = ""


class OneRequest(msgspec.Struct, frozen=True):
    """Times of one request: its prompt computed, served by the device's cache, and served by the tier behind it.

    `tier`: None for an arm without one; `through`: what requests pass on their way, whose time counts, "" for nothing.
    """

    cold: RequestTimes
    device: RequestTimes
    tier: RequestTimes | None = None
    through: str = ""

    @property
    def by_source(self) -> dict[str, RequestTimes]:
        """The times by where the prompts came from: "cold", "device", and "tier" for an arm that has one."""
        sources = {"cold": self.cold, "device": self.device}
        return sources if self.tier is None else {**sources, "tier": self.tier}


class GpuConditions(msgspec.Struct, frozen=True):
    """Clocks, power and heat of a GPU during the levels, over the samples in which it worked.

    `clock_limit_mhz`: of the streaming multiprocessors, by the hardware; `power_limit_w`: as enforced;
    `throttle_reasons`: what held its clocks down, each with its share of the samples in `throttle_shares`.
    What the driver does not report is None.
    """

    index: int
    name: str
    samples: int
    clock_mhz_mean: float | None = None
    clock_limit_mhz: float | None = None
    power_limit_w: float | None = None
    power_w_mean: float | None = None
    temperature_c_max: float | None = None
    throttle_reasons: list[str] = []
    throttle_shares: dict[str, float] = {}


class CopyBandwidth(msgspec.Struct, frozen=True):
    """The rates at which this host copies large buffers, GB/s of payload, by a probe outside the levels.

    `host_gb_s`: within host memory, on the server's cores; `host_to_device_gb_s`, `device_to_host_gb_s`: between
    pinned host memory and the first GPU, None without one.
    """

    host_gb_s: float
    host_to_device_gb_s: float | None = None
    device_to_host_gb_s: float | None = None


class Run(msgspec.Struct, frozen=True):
    """One run of one cell; `specification` is everything that defined it, as it was hashed into `measurement`."""

    schema: int
    measurement: str
    run: int
    cell: Cell
    specification: dict[str, Any]
    engine: str
    weights: str
    started: str
    finished: str
    levels: list[LevelRun]
    hardware: dict[str, Any] = {}
    versions: dict[str, str] = {}
    server: dict[str, Any] = {}
    companions: list[SidecarRecord] = []
    budget: dict[str, Any] = {}
    phases: dict[str, float] = {}
    # Its folder in the store, in a list of collected runs; "" where that is not on the machine that reads the list.
    place: str = ""
    # The recording's clock minus the load generator's.
    clock_offset_s: float = 0.0
    # Whether the arm was active, for people who read run.json; `tables.levels.activity` decides it from the levels.
    exercised: dict[str, Any] = {}
    repeats: list[Repeat] = []
    # Of an imported run, what its names say.
    declared: dict[str, Any] = {}
    # None for imports.
    answers: Answers | None = None
    # None for imports, and for runs that were measured before a request was timed.
    one_request: OneRequest | None = None
    gpu_conditions: list[GpuConditions] = []
    # None for runs on a cluster, and for imports.
    copy_bandwidth: CopyBandwidth | None = None
    recording: dict[str, Any] = {}
    # The build that the arm names in place of what is installed; see docs/builds.md.
    build: dict[str, Any] = {}
    # What was left out of the server's environment, and the host's packages in it; empty for a complete one.
    reduced_environment: dict[str, Any] = {}
    # What only a cluster has: images, nodes, whose pods were on them.
    cluster: dict[str, Any] = {}
    # Of a server that ran already: whether its caches were emptied before each level, and what it said of its stack.
    attached: dict[str, Any] = {}
    # What ran in neutral terms; run.json has none, `with_conditions` adds them.
    conditions: RunConditions | None = None

    @property
    def described(self) -> RunConditions:
        """Its conditions. Raises RunFileError for a run that was read without them."""
        if self.conditions is None:
            message = "its conditions were not read with it"
            raise RunFileError(Path("run.json"), message, code="no_conditions")
        return self.conditions

    @property
    def software(self) -> dict[str, str]:
        """Version by tool, programs beside the server included."""
        return self.versions | {
            beside.name: beside.version for beside in self.companions if beside.version
        }

    @property
    def required_counters(self) -> list[RequiredCounter]:
        """The counters that the arm required when the run was measured; none for a baseline."""
        entries = self.exercised.get("required", [])
        return msgspec.convert(entries, list[RequiredCounter])

    @property
    def recorded_by_exporters(self) -> bool:
        """Whether the recording was made without Performance Co-Pilot."""
        return str(self.recording.get("archive", "")).endswith(".parquet")

    @property
    def replicas(self) -> int:
        """How many servers shared the load: as deployed on a cluster, or as an import's names say; else 1."""
        deployment = self.specification.get("deployment") or {}
        return int(deployment.get("replicas") or self.declared.get("replicas") or 1)

    @property
    def kv_bytes_per_token(self) -> int | None:
        """Bytes of KV cache of a token of the model as served, over all ranks; None where nothing says it."""
        size_bytes = self.specification.get("model", {}).get("kv_bytes_per_token")
        return None if size_bytes is None else int(size_bytes)

    @property
    def others_percent(self) -> float:
        """The most that other programs took of the host's processors during a level, %; 0 where it is not known."""
        shares = (level.others_cpu_percent for level in self.levels)
        return max((share for share in shares if share is not None), default=0.0)

    @property
    def workload(self) -> dict[str, Any]:
        """The workload as it was asked for."""
        workload: dict[str, Any] = self.specification.get("workload", {})
        return workload


def recorded_cell(facts: Mapping[str, Any]) -> Cell | None:
    """Return the cell that a run's description names; None where it names none."""
    try:
        return msgspec.convert(facts.get("cell"), Cell)
    except msgspec.ValidationError:
        return None


def time_text(epoch_s: float) -> str:
    """Return a time as run.json has it: UTC, in ISO 8601 to the microsecond."""
    return (
        datetime.fromtimestamp(epoch_s, UTC)
        .isoformat(timespec="microseconds")
        .replace("+00:00", "Z")
    )


# Made before any thread reads: msgspec crashes where several threads prepare the same type at once.
_RUN = msgspec.json.Decoder(Run)


def read_run(directory: Path) -> Run:
    """Read `directory`/run.json. Raises RunFileError when it is missing, not JSON, incomplete or of another schema."""
    path = directory / "run.json"
    try:
        content = path.read_bytes()
    except OSError as error:
        problem = f"no readable description of the run ({error.strerror})"
        raise RunFileError(path, problem, code="unreadable") from error
    try:
        run = _RUN.decode(content)
    except msgspec.DecodeError as error:
        problem = f"not the description of a run ({error})"
        raise RunFileError(path, problem, code="no_description") from error
    if run.schema != SCHEMA:
        problem = f"schema {run.schema}, this version reads schema {SCHEMA}"
        raise RunFileError(path, problem, code="other_schema")
    return run


def pointer_of(results: str | Path, cell: Cell, run: int) -> Path:
    """Return the file that points from a campaign's results to a run in the measurement store."""
    return Path(results, cell.path, f"run-{run}", POINTER)


def pointed_run(pointer: Path) -> Run:
    """Read the run that a measurement.json points to, under the scenario's name given there. Raises RunFileError."""
    place, scenario = _pointed(pointer)
    return renamed(read_run(place), scenario)


def with_conditions(run: Run, conditions: RunConditions) -> Run:
    """Return a run with its conditions, its levels with their counters by term."""
    levels = [
        msgspec.structs.replace(
            level, terms=conditions.counters.get(str(level.level), {})
        )
        for level in run.levels
    ]
    # Its counters stand in the levels.
    kept = msgspec.structs.replace(conditions, counters={})
    return msgspec.structs.replace(run, levels=levels, conditions=kept)


def described_run(pointer: Path, conditions: Path) -> Run:
    """Read the run that a measurement.json points to, with its conditions.json.

    Raises RunFileError, ConditionsError.
    """
    return with_conditions(pointed_run(pointer), read_conditions(conditions))


def collect_runs(
    pointers: Iterable[Path], conditions: Iterable[Path], output: Path
) -> None:
    """Write the runs that these measurement.json point to into one file, one line of JSON per run.

    `conditions`: conditions.json of each, in the same order. Raises RunFileError, ConditionsError.

    Who reads all runs then needs one file, not the measurement store. It is compressed with zstd.
    """

    def line(pointer: Path, conditions: Path) -> bytes:
        place = stored_run(pointer)
        beside = place.parent == pointer.parent
        run = msgspec.structs.replace(
            described_run(pointer, conditions),
            place="" if beside else place.as_posix(),
        )
        return msgspec.json.encode(run) + b"\n"

    lines = b"".join(map(line, pointers, conditions))
    # In one call, so that the file contains its size: only then is a truncated file detected.
    output.write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(lines))


def collected_runs(path: Path) -> list[Run]:
    """Read what `collect_runs` wrote, in its order. Raises RunFileError."""
    try:
        lines = zstandard.ZstdDecompressor().decompress(path.read_bytes())
        return msgspec.json.Decoder(Run).decode_lines(lines)
    except (OSError, zstandard.ZstdError, msgspec.DecodeError) as error:
        problem = f"no readable list of runs ({error})"
        raise RunFileError(path, problem, code="no_list") from error


def renamed(run: Run, scenario: str | None) -> Run:
    """Return a run under another scenario's name, unchanged for None."""
    if scenario is None:
        return run
    return msgspec.structs.replace(run, cell=replace(run.cell, scenario=scenario))


def scenario_name(pointer: Path) -> str | None:
    """Return the name that a measurement.json gives the scenario, None where it is the measurement's own."""
    return _pointed(pointer)[1]


def stored_run(pointer: Path) -> Path:
    """Return the folder that a measurement.json points to, in the measurement store. Raises RunFileError."""
    return _pointed(pointer)[0]


def _pointed(pointer: Path) -> tuple[Path, str | None]:
    """The folder and the scenario's name that a measurement.json gives. Raises RunFileError."""
    try:
        content = json.loads(pointer.read_text())
        name = content.get("scenario")
        place = (
            pointer.with_name(content[BESIDE])
            if BESIDE in content
            else Path(content["path"])
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        problem = f"not a pointer to a measurement ({error})"
        raise RunFileError(pointer, problem, code="no_pointer") from error
    return place, None if name is None else str(name)
