"""Says from how many tokens on loading a prefix from each tier beats computing it, and what the rates rest on.

Rates are measured, from stored runs of the model; else probed on the host of such a run; else typical of the campaign's
GPU, as ranges. docs/tier-size.md has the sources of the typical ones.
"""

import shlex
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, TypeVar

from kveval.campaign.cell import Cell
from kveval.campaign.sizing import parameter_count
from kveval.campaign.specification import Specification
from kveval.conditions.facts import described
from kveval.configuration.config import Config
from kveval.plugins.curve.predicted.tier_copies import tier_copies
from kveval.plugins.curve.simulation.break_even import (
    ComputeTime,
    LoadTime,
    break_even,
    context_share,
)
from kveval.store.run_file import OneRequest, RequestTimes, Run
from kveval.workflow.planning.stored import StoreIndex

# Parts of the peak of dense BF16 operations that servers reach while they compute prompts.
_UTILIZATION = (0.4, 0.6)
# From host memory to a GPU, by PCIe generation, GB/s: 19.7 on an A10 (drkennetz/cuda_examples#1), 25.1 on an A100
# (NVIDIA/nvbandwidth#42); 35.2 and 52.8 on an H100 (NVIDIA/nvbandwidth#24).
_PCIE_GB_S = {4: (19.7, 25.1), 5: (35.2, 52.8)}
# LMCache from Redis: 0.28 with its Python client, 6 with its own (redis.io, "Throughput-optimizing Redis for L2 KV cache
# reuse"; docs.lmcache.ai, "RESP").
_STORE_GB_S = (0.28, 6.0)
# The interfaces of one disk: SATA at 6 Gb/s (8 bits in 10), and NVMe over four lanes of PCIe 4.0 (128 in 130).
_FILES_GB_S = (0.6, 7.9)
# From the end of a copy until the server takes the request, which is the end of the batch in progress: assumed.
_WAIT_S = (0.0, 0.02)
# A tier has served a prompt if it had this part of what the device had: it may hold whole chunks only.
_WHOLE = 0.9

T = TypeVar("T")


class Loading(NamedTuple):
    """Loading against computing for one tier of a model's servers.

    Attributes:
        tier: in words.
        tokens: from how many on loading beats computing, at least and at most; None for never.
        compute_s, load_s: the times for `longest` tokens, each at least and at most, seconds.
        longest: tokens of the load's longest conversation.
        compute_source, load_source: the rates in words, and what they rest on.
        measured: whether both are measured.
    """

    tier: str
    tokens: tuple[int | None, int | None]
    compute_s: tuple[float, float]
    load_s: tuple[float, float]
    longest: int
    compute_source: str
    load_source: str
    measured: bool

    @property
    def never_pays(self) -> bool:
        """Whether no prompt of the load is loaded sooner than it is computed, whatever the rates are within their ranges."""
        fewest = self.tokens[0]
        return fewest is None or fewest > self.longest


@dataclass(frozen=True)
class _Times(Generic[T]):
    """The fastest and the slowest times that are possible, their source in words, and whether they are measured."""

    fast: T
    slow: T
    source: str
    measured: bool


class _Timed(NamedTuple):
    """Single requests of a run: tokens that a cache served, and what they took to be computed and to be loaded, seconds.

    Both beyond what prompts take that the device holds, so without the request's way and the batch of its last tokens.
    """

    cell: Cell
    tokens: int
    compute_s: float
    load_s: float | None


def loadings(config: Config, model: str, store: StoreIndex) -> dict[str, list[Loading]]:
    """Return arm -> loading against computing for each of its tiers, as far as both rates are known."""
    cells = {
        cell.scenario: cell
        for cell in config.cells
        if cell.model == model and _tiers(config, cell)
    }
    found: dict[str, list[Loading]] = {}
    for arm, cell in cells.items():
        specification = config.specification(cell)
        _, of_arm, of_model = map(_of_one_machine, store.like(specification.to_json()))
        compute = _compute(config, specification, of_model)
        found[arm] = []
        if compute is not None:
            found[arm] = [
                _against(specification, tier, compute, load)
                for tier, load in _loads(config, specification, of_arm, of_model)
            ]
    return found


def compute_times(
    config: Config, cell: Cell, store: StoreIndex
) -> tuple[ComputeTime, ComputeTime, str] | None:
    """Return the least and the most that a cell's server takes to compute a prompt, and their source; None if not known."""
    specification = config.specification(cell)
    *_, of_model = store.like(specification.to_json())
    times = _compute(config, specification, _of_one_machine(of_model))
    return None if times is None else (times.fast, times.slow, times.source)


def loading_lines(
    config: Config, store: StoreIndex, words: Sequence[str]
) -> Iterator[str]:
    """Yield a line for each model and tier: from how many tokens on it beats computing; if unknown, what would tell.

    `words`: those that name the campaign in a command line of snakemake.
    """
    models = dict.fromkeys(cell.model for cell in config.cells)
    unknown: list[str] = []
    for model in models:
        by_arm = loadings(config, model, store)
        # Tiers by what is said of them: Redis and Valkey, for one, often share a line.
        tiers: dict[Loading, dict[str, None]] = {}
        for known in by_arm.values():
            for one in known:
                tiers.setdefault(one._replace(tier=""), {})[one.tier] = None
        of = f" of {model}" if len(models) > 1 else ""
        for one, names in tiers.items():
            rests = f"{one.load_source}, {one.compute_source}"
            yield f"  loading{of} from {' or '.join(names)} {_from(one)}; {rests}"
        if by_arm and not tiers:
            unknown.append(model)
    if unknown:
        tier = next(
            cell
            for cell in config.cells
            if cell.model == unknown[0] and _tiers(config, cell)
        )
        peak = f"{config.campaign.results}/{tier.path}/peak.csv"
        yield f"  from how many tokens on loading beats computing is not known of {', '.join(unknown)} until a run with a"
        yield f"  tier has timed single requests: snakemake --cores 4 {shlex.join([peak, *words])}"


def slower_than_computing(config: Config, model: str, store: StoreIndex) -> str:
    """Return the times in words if every tier of a model was measured, and none beats computing in this load; else ""."""
    by_arm = loadings(config, model, store)
    known = [one for tiers in by_arm.values() for one in tiers]
    slower = all(one.measured and one.never_pays for one in known)
    if not known or not slower or not all(by_arm.values()):
        return ""
    return _comparison(min(known, key=lambda one: one.load_s))


def _comparison(one: Loading) -> str:
    """Return the times for the load's longest conversation in words."""
    compute, load = (_milliseconds(times) for times in (one.compute_s, one.load_s))
    return (
        f"computing {one.longest:,} tokens takes {compute} ms, loading them {load} ms"
    )


def _from(one: Loading) -> str:
    low, high = one.tokens
    if one.never_pays:
        return f"never beats computing in this load: {_comparison(one)}"
    if high is None or high > one.longest:
        start = "the first token" if low == 1 else f"{low:,} tokens"
        return f"beats computing from {start} on, or never up to {one.longest:,}, this load's longest conversation"
    if high == 1:
        return "always beats computing"
    start = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return f"beats computing from {start} tokens on"


def _milliseconds(times: tuple[float, float]) -> str:
    return _span(1000 * times[0], 1000 * times[1])


def _span(low: float, high: float) -> str:
    """Return a range with two or three digits; one number where both ends read the same."""
    least, most = (
        f"{value:,.0f}" if value >= 100 else f"{value:.2g}" for value in (low, high)
    )
    return least if least == most else f"{least} to {most}"


def _against(
    specification: Specification,
    tier: str,
    compute: _Times[ComputeTime],
    load: _Times[LoadTime],
) -> Loading:
    longest = specification.workload.conversation_tokens
    return Loading(
        tier=tier,
        tokens=(
            break_even(compute.slow, load.fast),
            break_even(compute.fast, load.slow),
        ),
        compute_s=(compute.fast.seconds(longest), compute.slow.seconds(longest)),
        load_s=(load.fast.seconds(longest), load.slow.seconds(longest)),
        longest=longest,
        compute_source=compute.source,
        load_source=load.source,
        measured=compute.measured and load.measured,
    )


def _tiers(config: Config, cell: Cell) -> dict[str, Literal["host", "store", "files"]]:
    """Return the tiers of an arm in words, and where each keeps its blocks."""
    scenario = config.catalogue.scenarios[cell.scenario]
    parts = scenario.kind.parts
    tiers: dict[str, Literal["host", "store", "files"]] = {}
    if "native" in parts or ("files" in parts and scenario.cpu_tier):
        tiers["host memory"] = "host"
    if "lmcache" in parts:
        tiers["host memory by LMCache"] = "host"
        if scenario.store is not None:
            tiers[scenario.store.capitalize()] = "store"
    if "files" in parts:
        tiers["files"] = "files"
    return tiers


def _of_one_machine(runs: Sequence[Run]) -> list[Run]:
    """Return the runs of the first one's machine."""
    return [
        run
        for run in runs
        if run.hardware.get("fingerprint") == runs[0].hardware.get("fingerprint")
    ]


def _timed(runs: Sequence[Run]) -> list[_Timed]:
    found = []
    for run in runs:
        timed = run.one_request and _of_requests(run.cell, run.one_request)
        if timed:
            found.append(timed)
    return found


def _of_requests(cell: Cell, request: OneRequest) -> _Timed | None:
    cold_s, device_s = _median_s(request.cold), _median_s(request.device)
    if cold_s is None or device_s is None or cold_s <= device_s:
        return None
    tokens, load_s = _served_tokens(request.device), None
    if request.tier is not None and _served_tokens(request.tier) >= _WHOLE * tokens:
        tier_s = _median_s(request.tier)
        load_s = None if tier_s is None else max(0.0, tier_s - device_s)
    return _Timed(cell, tokens, cold_s - device_s, load_s) if tokens else None


def _served_tokens(times: RequestTimes) -> int:
    served = [one.served_tokens for one in times.requests]
    return statistics.median_low(served) if served else 0


def _median_s(times: RequestTimes) -> float | None:
    if not times.requests:
        return None
    return statistics.median(one.ttft_ms for one in times.requests) / 1000


def _compute(
    config: Config, specification: Specification, runs: Sequence[Run]
) -> _Times[ComputeTime] | None:
    """Return the time to compute a prefix: of single requests, else of the GPU's operations; None if neither is known."""
    model = specification.model
    share = context_share(model.geometry)
    timed = _timed(runs)
    if timed:
        each = [
            ComputeTime.from_prefix(one.tokens, one.compute_s, share) for one in timed
        ]
        rates = [one.tokens / one.compute_s for one in timed]
        source = f"computing at {_span(min(rates), max(rates))} tok/s ({_measured_in(timed)})"
        ordered = sorted(each, key=lambda one: one.token_s)
        return _Times(ordered[0], ordered[-1], source, True)
    name, gpu = config.gpu or ("", None)
    # The operations of a model with experts are not those of its weights, and windows shorten attention.
    uniform = model.geometry.parameters is None and not model.geometry.grouped
    if (
        gpu is None
        or gpu.dense_bf16_tflops is None
        or specification.on_cpu
        or not uniform
    ):
        return None
    peak = gpu.dense_bf16_tflops * 1e12 * model.tensor_parallel_size
    slow, fast = (
        ComputeTime(2 * parameter_count(model.geometry) / (peak * part), share)
        for part in _UTILIZATION
    )
    rate = _span(1 / slow.token_s, 1 / fast.token_s)
    parts = f"{100 * _UTILIZATION[0]:.0f} to {100 * _UTILIZATION[1]:.0f} %"
    source = f"computing at {rate} tok/s (typical: {parts} of the {gpu.dense_bf16_tflops:,.0f} TFLOPS of {name})"
    return _Times(fast, slow, source, False)


def _measured_in(timed: Sequence[_Timed]) -> str:
    cells = ", ".join(dict.fromkeys(one.cell.path for one in timed))
    return f"measured: single requests of {timed[0].tokens:,} tokens in {cells}"


def _loads(
    config: Config,
    specification: Specification,
    of_arm: Sequence[Run],
    of_model: Sequence[Run],
) -> Iterator[tuple[str, _Times[LoadTime]]]:
    """Yield the tiers of an arm with the time to load from each, as far as it is known."""
    tiers = _tiers(config, specification.cell)
    timed = [one for one in _timed(of_arm) if one.load_s is not None]
    if timed:
        # What a single request was loaded from is the arm's business: its tiers are timed together.
        seconds = sorted((one.load_s or 0.0) / one.tokens for one in timed)
        fast, slow = LoadTime(0.0, seconds[0]), LoadTime(0.0, seconds[-1])
        times = _span(1e6 * seconds[0], 1e6 * seconds[-1])
        source = f"loading in {times} us a token ({_measured_in(timed)})"
        yield " and ".join(tiers), _Times(fast, slow, source, True)
        return
    for tier, place in tiers.items():
        rates, source, measured = _rates(config, specification, place, of_arm, of_model)
        if not rates:
            continue
        bytes_ = specification.model.kv_bytes_per_token
        fast, slow = (
            LoadTime(wait_s, bytes_ / (1e9 * rate))
            for wait_s, rate in zip(_WAIT_S, (max(rates), min(rates)), strict=True)
        )
        wait_ms = _span(*(1000 * wait_s for wait_s in _WAIT_S))
        speed = f"{_span(min(rates), max(rates))} GB/s"
        text = f"loading at {speed} ({source}) after {wait_ms} ms (assumed)"
        yield tier, _Times(fast, slow, text, measured)


def _rates(
    config: Config,
    specification: Specification,
    place: Literal["host", "store", "files"],
    of_arm: Sequence[Run],
    of_model: Sequence[Run],
) -> tuple[Sequence[float], str, bool]:
    """Return GB/s to the device, where they are from, and whether they are measured; none if nothing is known."""
    if place == "store":
        return _STORE_GB_S, "typical: by the client", False
    if place == "files":
        return _FILES_GB_S, "typical: SATA to NVMe", False
    copies = tier_copies([*map(described, of_arm)])
    if copies.load_bytes_s:
        rates = [rate / 1e9 for rate in copies.load_bytes_s]
        return rates, f"measured: copies in {', '.join(copies.cells)}", True
    ranks = specification.model.tensor_parallel_size
    probes = [run.copy_bandwidth for run in of_model if run.copy_bandwidth is not None]
    copied = (
        one.host_gb_s if specification.on_cpu else one.host_to_device_gb_s
        for one in probes
    )
    probed = [ranks * rate for rate in copied if rate is not None]
    if probed:
        return probed, "probed: the most that this host copies", False
    gpu = None if config.gpu is None else config.gpu[1]
    if gpu is None or gpu.pcie not in _PCIE_GB_S or specification.on_cpu:
        return (), "", False
    typical = [ranks * rate for rate in _PCIE_GB_S[gpu.pcie]]
    each = f" for each of {ranks} GPUs" if ranks > 1 else ""
    return typical, f"typical: PCIe {gpu.pcie}.0{each}", False
