"""The server's counters around each level, from the recording: for imported runs nobody asked the server itself."""

import re
import tempfile
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np

from kveval.importing.plan import LevelPlan, RunPlan
from kveval.pcparchive import ArchiveError, convert, describe, increase, series

_WANTED = (
    "vllm:generation_tokens_total",
    "vllm:prefix_cache_hits_total",
    "vllm:prefix_cache_queries_total",
    "vllm:external_prefix_cache_hits_total",
    "vllm:external_prefix_cache_queries_total",
    "vllm:kv_offload_load_bytes_total",
    "vllm:kv_offload_store_bytes_total",
    'vllm:kv_offload_total_bytes_total{transfer_type="CPU_to_GPU"}',
    'vllm:kv_offload_total_bytes_total{transfer_type="GPU_to_CPU"}',
)
# Around a level, for its first and its last tokens; half the way to a neighbouring level at most.
_MARGIN_S = 30.0

Counters = dict[str, dict[str, float]]


def counters_of(
    plan: RunPlan, sources: Sequence[Path], window_s: tuple[float, float]
) -> tuple[dict[int, Counters], list[str]]:
    """Return what the recording says of the server's counters: level -> counter -> before, after, delta; and remarks.

    `window_s`: what is needed of the recording, epoch seconds. Nothing where the server was not recorded.
    """
    if not sources:
        return {}, ["no recording was found with the results"]
    names = list(dict.fromkeys([*_WANTED, *(str(entry["counter"]) for entry in plan.required)]))
    patterns = sorted({_pattern(name) for name in names})
    start_ns, finish_ns = (round(second * 1e9) for second in window_s)
    with tempfile.TemporaryDirectory(prefix="kveval-import-") as folder:
        parquet = Path(folder) / "counters.parquet"
        try:
            summary = convert(sources, parquet, metrics=patterns, start_ns=start_ns, finish_ns=finish_ns)
        except ArchiveError as error:
            return {}, [f"the recording cannot be read ({error})"]
        damage = [str(problem) for problem in summary.problems if problem.damage]
        remarks = [f"the recording is damaged ({damage[0]})"] if damage else []
        recorded = [name for name, info in describe(parquet).items() if info.samples]
        found: dict[int, Counters] = {}
        for level in plan.levels:
            if level.report is not None:
                found[level.level] = _level_counters(parquet, recorded, names, level, plan.levels)
    found = {level: counters for level, counters in found.items() if counters}
    return found, remarks if found else [*remarks, "the server's counters were not recorded"]


def _level_counters(
    parquet: Path, recorded: Sequence[str], names: Sequence[str], level: LevelPlan, levels: Sequence[LevelPlan]
) -> Counters:
    if level.start is None or level.end is None:
        return {}
    before = [other.end for other in levels if other.end is not None and other.end <= level.start]
    after = [other.start for other in levels if other.start is not None and other.start >= level.end]
    begin = level.start - min([_MARGIN_S, *((level.start - end) / 2 for end in before)])
    finish = level.end + min([_MARGIN_S, *((start - level.end) / 2 for start in after)])
    found: Counters = {}
    for name in names:
        metrics = [metric for metric in recorded if fnmatchcase(metric, _pattern(name))]
        parts = [part for metric in metrics if (part := _gain(parquet, metric, _labels(name), begin, finish))]
        if not parts:
            continue
        first, gained, interval = (sum(part[n] for part in parts) for n in range(3))
        if name == "vllm:generation_tokens_total" and interval / len(parts) > 2 * min(
            level.start - begin, finish - level.end
        ):
            # Samples too rare to tell this level's tokens from its neighbours'.
            continue
        found[name] = {"before": first, "after": first + gained, "delta": gained}
    return found


def _gain(
    parquet: Path, metric: str, labels: Mapping[str, str], begin_s: float, finish_s: float
) -> tuple[float, float, float] | None:
    """Return a counter's first value in the window, its gain, and the seconds between samples; None without two."""
    start_ns, finish_ns = round(begin_s * 1e9), round(finish_s * 1e9)
    frame = series(parquet, metric, labels=labels or None, start_ns=start_ns, finish_ns=finish_ns)
    times = frame["timestamp"].drop_duplicates().sort_values()
    if len(times) < 2 or frame.attrs.get("semantics") != "counter":
        return None
    firsts = frame.drop_duplicates([key for key in ("host", "instance") if key in frame])
    interval = float(np.median(times.diff().dropna().dt.total_seconds()))
    return float(firsts["value"].sum()), float(increase(frame)["increase"].sum()), interval


def _pattern(counter: str) -> str:
    """Return the PCP metrics of a counter, whatever its endpoint was called there."""
    name = counter.partition("{")[0]
    return f"openmetrics.*.{name.replace(':', '.', 1)}"


def _labels(counter: str) -> dict[str, str]:
    return dict(re.findall(r'(\w+)="([^"]*)"', counter.partition("{")[2]))
