"""The server's counters around each level, from the recording: for imported runs the server itself was not asked."""

import re
import tempfile
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from kveval.plugins.imports.describe import ReadLevel
from kveval.plugins.imports.facts import LevelFacts
from kveval.stacks.registry import IMPORTED_SERVER
from pcp_parquet.archive.problems import ArchiveError
from pcp_parquet.conversion.conversion import convert
from pcp_parquet.parquet.rates import PreparedCounter
from pcp_parquet.parquet.reading import describe, series

_TOKENS = "generation_tokens"
_METRICS = (
    _TOKENS,
    *(
        "prefix_cache_hits",
        "prefix_cache_queries",
        "external_prefix_cache_hits",
        "external_prefix_cache_queries",
    ),
    *("offload_load_bytes", "offload_store_bytes"),
)
# Seconds around a level, to include its first and last tokens; at most half the way to a neighbouring level.
_MARGIN_S = 30.0

Counters = dict[str, dict[str, float]]


def counters_of(
    levels: Sequence[ReadLevel],
    required: Sequence[Mapping[str, Any]],
    sources: Sequence[Path],
    window_s: tuple[float, float],
) -> tuple[dict[int, Counters], list[str]]:
    """Return what the recording says of the server's counters: level -> counter -> before, after, delta; and remarks.

    `required`: the counters that the arm requires; `window_s`: the part of the recording that is needed, epoch seconds.
    Empty if the server was not recorded.
    """
    if not sources:
        return {}, ["no recording was found with the results"]
    imported_names = [
        name for metric in _METRICS for name in IMPORTED_SERVER.metrics[metric].values()
    ]
    names = list(
        dict.fromkeys([*imported_names, *(str(entry["counter"]) for entry in required)])
    )
    patterns = sorted({_pattern(name) for name in names})
    start_ns, finish_ns = (round(second * 1e9) for second in window_s)
    with tempfile.TemporaryDirectory(prefix="kveval-import-") as folder:
        parquet = Path(folder) / "counters.parquet"
        try:
            summary = convert(
                sources,
                parquet,
                metrics=patterns,
                start_ns=start_ns,
                finish_ns=finish_ns,
            )
        except ArchiveError as error:
            return {}, [f"the recording cannot be read ({error})"]
        damage = [str(problem) for problem in summary.problems if problem.damage]
        remarks = [f"the recording is damaged ({damage[0]})"] if damage else []
        recorded = _recorded(parquet, names)
    windows = {
        level.plan.level: level.facts for level in levels if level.facts is not None
    }
    counters_by_level = {
        level: counters
        for level, facts in windows.items()
        if (counters := _level_counters(recorded, facts, list(windows.values())))
    }
    return counters_by_level, remarks if counters_by_level else [
        *remarks,
        "the server's counters were not recorded",
    ]


def _recorded(parquet: Path, names: Sequence[str]) -> dict[str, list[PreparedCounter]]:
    """Return the samples of every counter, separately for each endpoint that was recorded."""
    metrics = [
        name
        for name, info in describe(parquet).items()
        if info.samples and info.semantics == "counter"
    ]
    recorded = {}
    for name in names:
        labels = dict(re.findall(r'(\w+)="([^"]*)"', name.partition("{")[2])) or None
        own = [metric for metric in metrics if fnmatchcase(metric, _pattern(name))]
        recorded[name] = [
            PreparedCounter(series(parquet, metric, labels=labels)) for metric in own
        ]
    return recorded


def _level_counters(
    recorded: Mapping[str, Sequence[PreparedCounter]],
    level: LevelFacts,
    levels: Sequence[LevelFacts],
) -> Counters:
    # What lies before and after it; at most half of that is the level's own.
    pauses = [
        (level.start - other.end) / 2 for other in levels if other.end <= level.start
    ]
    before_s = min([_MARGIN_S, *pauses])
    pauses = [
        (other.start - level.end) / 2 for other in levels if other.start >= level.end
    ]
    after_s = min([_MARGIN_S, *pauses])
    window_ns = (
        round((level.start - before_s) * 1e9),
        round((level.end + after_s) * 1e9),
    )
    tokens = IMPORTED_SERVER.metrics[_TOKENS].values()
    counters: Counters = {}
    for name, endpoints in recorded.items():
        parts = [part for counter in endpoints if (part := counter.gained(*window_ns))]
        if not parts:
            continue
        first, gained = (
            sum(part.first for part in parts),
            sum(part.increase for part in parts),
        )
        if name in tokens and max(part.interval_s for part in parts) > 2 * min(
            before_s, after_s
        ):
            # Samples are too far apart to separate this level's tokens from its neighbours'.
            continue
        counters[name] = {"before": first, "after": first + gained, "delta": gained}
    return counters


def _pattern(counter: str) -> str:
    """Return the pattern of a counter's PCP metrics, whatever its endpoint is called there."""
    name = counter.partition("{")[0]
    return f"openmetrics.*.{name.replace(':', '.', 1)}"
