"""The cost of measuring: wall seconds, GPUs, disk; and how many requests a level will complete, by earlier runs.

A run is one start of the server, its levels and the time between them. Estimates use what was observed with the same
model, else a stated assumption.
"""

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from kveval.campaign.sizing import weight_bytes
from kveval.campaign.specification import Specification
from kveval.conditions.facts import terms_of
from kveval.engines.preflight import disk_bytes
from kveval.engines.watchdog import DISK_RESERVE_BYTES
from kveval.host.findings import pluralize
from kveval.load import levels as workloads
from kveval.load.guidellm import PREFIX_TOKENS_PER_S
from kveval.load.sample_sizes import MIN_TOKENS, SUFFICIENT, window_s
from kveval.load.workload import Workload, workload_of
from kveval.store.run_file import Run
from kveval.tables.levels.server_counters import server_delta
from kveval.workflow.planning.stored import StoreIndex

# Assumed until something was measured: start-up takes a base time plus the weights' bytes at a rate low enough to cover
# compilation and graph capture; a miniature takes less.
_START_S, _LOADED_BYTES_S = 90.0, 1e9
_MINIATURE_START_S = 30.0
# From one level's end to the next one's start, with the generator's own start, without the generation of prefixes.
_BETWEEN_LEVELS_S = 12.0
_AROUND_S = 15.0
_SIZES_READ = 5
# Number of runs that is enough for a typical value.
_ENOUGH = 20
_QUANTILES = {"p50": "median", "p90": "90th percentile"}
T = TypeVar("T")


@dataclass(frozen=True)
class Cost:
    """The cost of one run; `gpus`: those of all replicas. `basis`: where the times come from."""

    seconds: float
    gpus: int
    start_s: float
    basis: str

    @property
    def gpu_hours(self) -> float:
        """GPUs held, times hours."""
        return self.gpus * self.seconds / 3600


def cost(specification: Specification, store: StoreIndex) -> Cost:
    """Estimate the cost of one run from its levels and from the most similar earlier runs."""
    workload = specification.workload
    levels = workload.level_count
    start_s, basis = _start_seconds(specification, store)
    restarts = levels - 1 if specification.reset_caches == "restart" else 0
    seen = _nearest(specification, store, _rest_s, ("workload", "reset_caches"))
    if seen:
        rest = statistics.median(seen)
    else:
        prefixes = sum(
            workloads.working_set_tokens_at(workload, level)
            for level in workload.given_levels
        )
        rest = (
            _AROUND_S
            + levels * _BETWEEN_LEVELS_S
            + prefixes / PREFIX_TOKENS_PER_S
            + restarts * start_s
        )
    deployment = specification.deployment
    gpus = (
        deployment.gpus * deployment.replicas
        if deployment
        else specification.model.tensor_parallel_size
    )
    gpus = 0 if specification.on_cpu else gpus
    return Cost(start_s + levels * workload.seconds + rest, gpus, start_s, basis)


def _start_seconds(
    specification: Specification, store: StoreIndex
) -> tuple[float, str]:
    """Return the seconds that the server takes to start, and the source of this number."""
    seen = _nearest(
        specification, store, lambda facts: facts.phases.get("server_start_s")
    )
    if seen:
        return statistics.median(
            seen
        ), f"start-up as in {pluralize(len(seen), 'measurement')}"
    if specification.miniature:
        return _MINIATURE_START_S, "start-up assumed"
    model = specification.model
    size = weight_bytes(model.geometry, model.quantization, model.dtype)
    return _START_S + size / _LOADED_BYTES_S, "start-up assumed"


def disk(workload: Workload, store: StoreIndex, cpus: int) -> tuple[int, bool]:
    """Return the bytes that a run leaves in the store, and True if runs of this load show them; else an upper bound."""
    stored = workload.to_json()
    same = (
        facts for facts in store.all() if facts.specification.get("workload") == stored
    )
    sizes = [
        store.get(facts.measurement).bytes()
        for facts in itertools.islice(same, _SIZES_READ)
    ]
    if sizes:
        return int(statistics.median(sizes)), True
    return disk_bytes(workload, cpus) - DISK_RESERVE_BYTES, False


def _rest_s(facts: Run) -> float | None:
    """Return a run's seconds outside the server's start and the levels; None if they were not recorded."""
    if not {"server_start_s", "levels_s"} <= facts.phases.keys():
        return None
    workload = workload_of(facts.specification["workload"])
    levels = workload.level_count * workload.seconds
    return max(
        0.0, sum(facts.phases.values()) - facts.phases["server_start_s"] - levels
    )


def _nearest(
    specification: Specification,
    store: StoreIndex,
    told: Callable[[Run], T | None],
    equal: Sequence[str] = (),
) -> list[T]:
    """Return what the runs tell that are most similar to a specification and agree with it in the keys `equal`."""
    content = specification.to_json()

    def agrees(run: Run) -> bool:
        return all(run.specification.get(key) == content[key] for key in equal)

    for likely in store.like(content):
        values = (told(run) for run in likely if agrees(run))
        known = (value for value in values if value is not None)
        if first := list(itertools.islice(known, _ENOUGH)):
            return first
    return []


class Shortage(NamedTuple):
    """A level that will be too short for some metrics. `seconds`: the length that is enough, None if not known."""

    model: str
    level: int
    lacks: str
    seconds: float | None


def shortages(
    specifications: Iterable[Specification], store: StoreIndex
) -> tuple[list[Shortage], list[str]]:
    """Return levels that are too short for a verdict, and the models of which nothing is known yet."""
    found: dict[tuple[str, int], Shortage] = {}
    unknown: dict[str, None] = {}
    for specification in specifications:
        workload, model = specification.workload, specification.cell.model
        rates = {
            level: _rates(specification, level, store)
            for level in workload.given_levels
        }
        for level, known in rates.items():
            if (
                known is not None
                and (lacking := _lacking(workload, level, *known)) is not None
            ):
                found.setdefault((model, level), Shortage(model, level, *lacking))
        if not any(rates.values()):
            unknown[model] = None
    return list(found.values()), [*unknown]


def completed_req_s(
    specification: Specification, level: int, store: StoreIndex
) -> float | None:
    """Return the requests per second that a level is expected to complete; None if not known."""
    rates = _rates(specification, level, store)
    return None if rates is None else rates[0]


def reported_device(specification: Specification, store: StoreIndex) -> Run | None:
    """Return a run of the same model and memory settings whose server reported the size of its device's cache.

    None if there is none, or if the campaign itself gives the size.
    """
    if specification.budget.device_tokens is not None:
        return None
    seen = _nearest(
        specification,
        store,
        lambda facts: facts if device_tokens(facts) else None,
        ("model",),
    )
    return seen[0] if seen else None


def device_tokens(facts: Run | None) -> int | None:
    """Return the size of the device's cache in tokens, as a run's server reported it; None if it did not."""
    found = facts and facts.server.get("facts", {}).get("kv_cache_tokens")
    return int(found) if found else None


def _rates(
    specification: Specification, level: int, store: StoreIndex
) -> tuple[float, float] | None:
    """Return the expected completed requests and output tokens per second at a level; None if not known."""
    workload = specification.workload
    sent = workloads.rate_req_s_at(workload, level)
    if sent is not None:
        return sent, sent * workload.output_tokens
    shape = ("profile", "prompt_tokens", "output_tokens", "turns", "prefix_tokens")
    seen = []
    for facts in _nearest(
        specification, store, lambda facts: facts if facts.levels else None
    ):
        load = workload_of(facts.specification["workload"])
        if any(getattr(load, key) != getattr(workload, key) for key in shape):
            continue
        for measured in facts.levels:
            counted = terms_of(measured.counters)
            requests = server_delta(counted, "requests_completed")
            tokens = server_delta(counted, "generation_tokens")
            if measured.level == level and not math.isnan(requests + tokens):
                seen.append((requests / load.seconds, tokens / load.seconds))
    if not seen:
        return None
    return statistics.median(rate for rate, _ in seen), statistics.median(
        tokens for _, tokens in seen
    )


def _lacking(
    workload: Workload, level: int, requests_s: float, tokens_s: float
) -> tuple[str, float | None] | None:
    """Return what a level's window will be too short for, and the seconds that suffice; None if it is long enough."""
    window = window_s(workload.seconds, workload.warmup_s)
    requests, tokens = requests_s * window, tokens_s * window
    streams = workloads.streams_at(workload, level) or 0
    needs = [
        (SUFFICIENT[key], f"{SUFFICIENT[key]} requests for a {name}")
        for key, name in _QUANTILES.items()
    ]
    needs.append((5 * streams, f"{5 * streams} requests for its {streams} streams"))
    lacks = [text for count, text in needs if requests < count]
    lacks += (
        [f"{MIN_TOKENS} output tokens for its throughput"]
        if tokens < MIN_TOKENS
        else []
    )
    if not lacks:
        return None
    seconds = None
    if requests_s and tokens_s:
        most = max(MIN_TOKENS / tokens_s, *(count / requests_s for count, _ in needs))
        seconds = workload.seconds - window + most
    expected = f"about {requests:.0f} requests and {tokens:.0f} output tokens in {window:.0f} s"
    return f"{expected}; needs {', '.join(lacks)}", seconds
