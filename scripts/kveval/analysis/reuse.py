"""The hit share predicted from the requests that were sent, and the hit share measured.

Both are over a whole level, from its first request to its last, with warm-up, without priming, because the servers'
counters are read before and after it. `kveval.curve` models what device and tier hold and evict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from kveval.campaign.cell import CELL_COLUMNS, Cell
from kveval.campaign.specification import Specification, SpecificationError
from kveval.campaign.types import BLOCK_TOKENS
from kveval.curve.cells import (
    CellCurves,
    curves_of_prompts,
    pooled_shares,
    prompts_of,
)
from kveval.curve.curve import ReuseCurve
from kveval.curve.prompts import Prompts
from kveval.estimators.intervals import half_width
from kveval.host.errors import Failure
from kveval.load import levels as workloads
from kveval.load import traces
from kveval.load.guidellm import trace_file
from kveval.load.trace_file import TraceRow
from kveval.store.run_file import IMPORTED, LevelRun, Run, read_run
from kveval.tables.csv_files import PREDICTED_TEXTS
from kveval.tables.levels.server_counters import found_tokens, server_delta
from kveval.tables.system.tier_activity import tier_activity

NUMBERS = (
    "predicted_device_ratio",
    "predicted_ratio_low",
    "predicted_ratio_high",
    "predicted_prompt_tokens",
    "predicted_tier_blocks",
    "predicted_offered_ratio",
    "predicted_pooled_ratio",
)
"""Columns of a level: predicted hit share of the device alone, least and most of device and tier together; tokens of
these prompts; one server's tier in cpu_blocks, 0 without one, infinite if unlimited; the share that came before, which
a cache of any size could serve; the most that the caches of all servers can serve together, however requests are
routed."""
TOLERANCE_POINTS = 3.0
"""Percentage points by which measured and predicted hit share may differ before that is a finding."""
# The GuideLLM version whose way of drawing prefixes is known.
_GENERATOR = "0.8."
# Limits on the blocks of a level's requests, which take a microsecond and 75 bytes each. Above the first, prefixes are
# cut into longer blocks, up to a fortieth of a prefix, which loses some tenths of a point of what turns share.
_ENOUGH_BLOCKS, _MOST_BLOCKS = 200_000, 5_000_000
_PART_OF_PREFIX = 40
_POINTS = 40


class NotPredictable(Failure):
    """The requests that were sent, or the caches, are not known well enough for a prediction."""


def with_predictions(
    levels: pd.DataFrame, requests: pd.DataFrame, directory: Path
) -> pd.DataFrame:
    """Return the levels of a run, see `run_tables`, with NUMBERS and PREDICTED_TEXTS; `directory`: its stored folder."""
    run = read_run(directory)
    sent = requests[requests["start"].notna()]
    entries = {entry.level: entry for entry in run.levels}
    rows = [
        _prediction(run, entries[level], sent[sent["level"] == level], directory)
        for level in levels["level"]
    ]
    columns: dict[str, list[Any]] = {}
    for name in NUMBERS:
        columns[name] = [row.get(name, np.nan) for row in rows]
    for name in PREDICTED_TEXTS:
        columns[name] = [row.get(name, "") for row in rows]
    return levels.assign(**columns)


def _prediction(
    run: Run, level: LevelRun, sent: pd.DataFrame, directory: Path
) -> dict[str, Any]:
    try:
        curves, pooled, prompt_tokens = _curves(run, level, sent, directory)
    except NotPredictable as why:
        return {"predicted_not": str(why)}
    low, high = curves.hit_share_range or (np.nan, np.nan)
    offered, held = pooled
    return {
        "predicted_device_ratio": curves.device_hit_share,
        "predicted_ratio_low": low,
        "predicted_ratio_high": high,
        "predicted_prompt_tokens": prompt_tokens,
        "predicted_tier_blocks": curves.tier_tokens / BLOCK_TOKENS,
        "predicted_offered_ratio": offered,
        "predicted_pooled_ratio": np.nan if held is None else held,
        "predicted_curve": _curve_text(curves) if curves.tier_tokens else "",
    }


def _curves(
    run: Run, level: LevelRun, sent: pd.DataFrame, directory: Path
) -> tuple[CellCurves, tuple[float, float | None], int]:
    """Return the curves of the requests that a level sent, their `pooled_shares`, and their prompt tokens.

    Raises NotPredictable.
    """
    if run.engine == IMPORTED:
        raise NotPredictable("imported: the requests that were sent are not known")
    if sent.empty or level.report is None:
        raise NotPredictable("no request was sent")
    try:
        specification = Specification.from_json(run.specification)
    except SpecificationError as error:
        raise NotPredictable(f"its description is {error}") from None
    device = specification.budget.device_tokens or run.server.get("facts", {}).get(
        "kv_cache_tokens"
    )
    if not device:
        raise NotPredictable("no server reported the size of its device's cache")
    if specification.workload.profile in workloads.REPLAYS:
        # The trace is beside the report, which may have been compressed since.
        trace = trace_file(Path(str(directory / level.report).removesuffix(".zst")))
        prompts = _replayed_prompts(specification, level, len(sent), trace)
    else:
        specification = _with_longer_blocks(specification, level.level, len(sent))
        prompts = _drawn_prompts(specification, run, level, sent)
    prompts = _looked_up(prompts, found_tokens(level.counters).prompts)
    curves = curves_of_prompts(specification, prompts, int(device))
    pooled = pooled_shares(specification, prompts, curves)
    return curves, pooled, prompts.counted_tokens


def _looked_up(prompts: Prompts, tokens: float) -> Prompts:
    """Leave out the last requests, which were still waiting at the end: the server looked up only `tokens` tokens."""
    if np.isnan(tokens):
        return prompts
    # Tokens that a chat template adds to the prompts may add one request at most.
    looked_up = np.cumsum(np.where(prompts.counted, prompts.input_tokens, 0))
    return prompts.subset(
        np.arange(len(looked_up)) <= np.argmin(np.abs(looked_up - tokens))
    )


def _replayed_prompts(
    specification: Specification, level: LevelRun, sent: int, trace: Path
) -> Prompts:
    try:
        rows = msgspec.json.Decoder(TraceRow).decode_lines(trace.read_bytes())
    except (OSError, msgspec.DecodeError):
        raise NotPredictable(
            "the trace that was sent is not with the measurement"
        ) from None
    rows = rows[:sent]
    _require_few(
        sum(row.input_length + row.output_length for row in rows)
        / specification.block_size
    )
    return Prompts.of_rows(
        rows, traces.block_tokens(specification.workload, level.level)
    )


def _drawn_prompts(
    specification: Specification, run: Run, level: LevelRun, sent: pd.DataFrame
) -> Prompts:
    workload, generator = specification.workload, str(run.versions.get("guidellm", ""))
    if workload.profile == "sweep" or level.level not in workload.given_levels:
        raise NotPredictable("the requests of a sweep follow from its answers")
    if not generator.startswith(_GENERATOR):
        raise NotPredictable(
            f"how GuideLLM {generator or 'of an unknown version'} draws prefixes is not known"
        )
    if workload.turns > 1 and workloads.streams_at(workload, level.level) is None:
        raise NotPredictable(
            "turns with a rate of their own come in an order that depends on the answers"
        )
    order = _order_sent(sent) if workload.profile == "users" else None
    return prompts_of(
        workload,
        level.level,
        run.run,
        specification.block_size,
        len(sent),
        order,
    )


def _order_sent(sent: pd.DataFrame) -> list[tuple[int, int]]:
    """Conversations, numbered as they began, and their turns, in the order in which requests were sent."""
    in_order = sent.sort_values("start", kind="stable")
    numbers = pd.factorize(in_order["conversation"])[0].tolist()
    return list(zip(numbers, in_order["turn"].astype(int).tolist(), strict=True))


def _with_longer_blocks(
    specification: Specification, level: int, sent: int
) -> Specification:
    """Return a specification with longer blocks, which divide a prefix, if the blocks would be too many."""
    workload, block = specification.workload, specification.block_size
    prefix = workloads.prefix_tokens_at(workload, level)
    blocks = (
        sent
        * (
            prefix
            + workload.document_tokens
            + workload.turns * (workload.prompt_tokens + workload.output_tokens)
        )
        / block
    )
    longest = max(1, prefix // (_PART_OF_PREFIX * block))
    fitting = [times for times in range(1, longest + 1) if prefix // block % times == 0]
    times = next(
        (times for times in fitting if blocks / times <= _ENOUGH_BLOCKS), fitting[-1]
    )
    _require_few(blocks / times)
    return msgspec.structs.replace(specification, block_size=block * times)


def _require_few(blocks: float) -> None:
    if blocks > _MOST_BLOCKS:
        raise NotPredictable(
            f"more than {_MOST_BLOCKS / 1e6:g} million blocks: kveval curve computes it"
        )


def _curve_text(curves: CellCurves) -> str:
    """Write the hit share of device and tier by the tier's size, as cpu_blocks=least:most;..., see `read_curve`."""
    tier = curves.tier
    if tier is None or not len(tier.sizes):
        return ""
    low, high = curves.usable
    grid = np.geomspace(
        float(tier.sizes[0]) / high, float(tier.sizes[-1]) / low, _POINTS
    )
    blocks = np.unique(np.concatenate(([0], np.ceil(grid / BLOCK_TOKENS)))).astype(
        np.int64
    )
    return ";".join(
        f"{size}={_shares(tier, size * BLOCK_TOKENS, curves.usable)}"
        for size in blocks.tolist()
    )


def _shares(tier: ReuseCurve, tokens: float, usable: tuple[float, float]) -> str:
    low, high = (f"{tier.share(tokens * part):.4f}" for part in usable)
    return low if low == high else f"{low}:{high}"


def read_curve(text: str) -> pd.DataFrame:
    """Return a `predicted_curve` as a table: `low` and `high` of the hit share (0 to 1), indexed by cpu_blocks."""
    shares_by_size: dict[int, tuple[float, float]] = {}
    for part in filter(None, text.split(";")):
        size, _, shares = part.partition("=")
        low, _, high = shares.partition(":")
        shares_by_size[int(size)] = float(low), float(high or low)
    return pd.DataFrame.from_dict(
        shares_by_size, orient="index", columns=["low", "high"], dtype=float
    )


@dataclass(frozen=True)
class ServedShare:
    """Predicted and measured hit share of a cell's caches at a level, % of the prompt tokens, means over runs.

    Attributes:
        cell: model, scenario and cpu_blocks.
        level: of the load.
        runs: number of runs for which both are known.
        tier_blocks: size of the tier that the prediction is for, 0 without one.
        device_predicted: predicted for the device alone.
        device_measured: on the device.
        predicted: least and most, predicted for device and tier together.
        measured: for both together.
        difference: measured less predicted, points, 0 within the predicted range; the mean of the differences within
            each run, whose two sides have the same requests.
        half_width: half the 95 % t interval of the difference; NaN for a single run.
        clues: means over runs of what may explain the difference, see `_CLUES`; NaN where nothing counts it.
        lengths_vary: whether lengths are drawn at random, while the prediction uses their means.
    """

    cell: Cell
    level: int
    runs: int
    tier_blocks: float
    device_predicted: float
    device_measured: float
    predicted: tuple[float, float]
    measured: float
    difference: float
    half_width: float
    clues: Mapping[str, float]
    lengths_vary: bool

    @property
    def is_finding(self) -> bool:
        """Whether measured and predicted hit share differ by more than TOLERANCE_POINTS."""
        return abs(self.difference) > TOLERANCE_POINTS


def served_shares(levels: pd.DataFrame, runs: Sequence[Run]) -> list[ServedShare]:
    """Return the hit shares of each cell and level with a prediction, in run order; `levels`: complete_metrics.csv."""
    if not {*NUMBERS[:5]} <= {*levels.columns}:
        return []
    keys = [*CELL_COLUMNS, "run", "level"]
    table = tier_activity(runs).merge(levels, on=keys, suffixes=("", "_of_window"))
    counted = pd.DataFrame(
        [_counter_row(run, level) for run in runs for level in run.levels]
    )
    table = table.merge(counted, on=keys) if len(counted) else table[:0]
    table = table.dropna(subset=[*NUMBERS[:3], "device_hit_percent"])
    if table.empty:
        return []
    served = table["device_hit_percent"] + table["external_hit_percent"].fillna(0.0)
    low, high = 100 * table["predicted_ratio_low"], 100 * table["predicted_ratio_high"]
    table = table.assign(
        served=served, low=low, high=high, difference=served - served.clip(low, high)
    )
    table = table.assign(**_clues(table))
    return [
        _served_share(rows)
        for _, rows in table.groupby([*CELL_COLUMNS, "level"], sort=False)
    ]


def _served_share(rows: pd.DataFrame) -> ServedShare:
    first = rows.iloc[0].to_dict()
    names = [
        "predicted_device_ratio",
        "device_hit_percent",
        "low",
        "high",
        "served",
        "difference",
        *_CLUES,
    ]
    mean = rows[names].astype(float).mean()
    return ServedShare(
        cell=Cell.from_row(first),
        level=int(first["level"]),
        runs=len(rows),
        tier_blocks=float(first["predicted_tier_blocks"]),
        device_predicted=100 * float(mean["predicted_device_ratio"]),
        device_measured=float(mean["device_hit_percent"]),
        predicted=(float(mean["low"]), float(mean["high"])),
        measured=float(mean["served"]),
        difference=float(mean["difference"]),
        half_width=half_width(rows["difference"].to_numpy(dtype=np.float64)),
        clues={name: float(mean[name]) for name in _CLUES},
        lengths_vary=bool(first["varied"]),
    )


_CLUES = (
    *("preempted", "failed", "unfinished", "evicted"),
    *(
        "not_stored_percent",
        "in_progress_percent",
        "one_request_points",
        "asked_percent",
    ),
)
"""Requests that were preempted; transfers that failed; stores of LMCache not finished when the level ended; chunks that
LMCache evicted; tokens computed but not stored in the tier, % of the prompt tokens; the share of the device's cache
that requests in progress need at most; the percentage points of one request; the prompt tokens that the device was
asked for, % of those sent."""


def _clues(rows: pd.DataFrame) -> dict[str, pd.Series[float]]:
    """Return those of _CLUES that are not counted but computed."""
    prompts, request = rows["prompt_tokens"], rows["request_prompt_tokens"]
    hits = (rows["device_hit_percent"] + rows["external_hit_percent"]) / 100
    computed = prompts * (1 - hits) + rows["generated"]
    in_progress = rows["concurrency_mean"] * (request + rows["request_output_tokens"])
    return {
        "preempted": rows["requests_preempted"],
        "not_stored_percent": 100
        * (computed - rows["stored_mb"] * 1e6 / rows["token_bytes"])
        / prompts,
        "in_progress_percent": 100 * in_progress / rows["device_tokens"],
        "one_request_points": 100 * request / prompts,
        "asked_percent": 100 * prompts / rows["predicted_prompt_tokens"],
    }


def _counter_row(run: Run, level: LevelRun) -> dict[str, Any]:
    """Return what `tier_activity` lacks: counts of a level, the bytes of a token, and whether lengths are drawn."""
    moved = {name: change.delta for name, change in level.counters.items()}
    submitted, finished, evicted = (
        moved.get(f"lmcache_mp_{name}_total", np.nan)
        for name in ("num_submitted_stores", "num_finished_stores", "l1_evicted_chunks")
    )
    return {
        **run.cell.row,
        **{
            "run": run.run,
            "level": level.level,
            "unfinished": submitted - finished,
            "evicted": evicted,
        },
        # Names with labels are parts of totals that are counted already.
        "failed": sum(
            delta for name, delta in moved.items() if "fail" in name and "{" not in name
        ),
        "generated": server_delta(level.counters, "generation_tokens"),
        "token_bytes": run.kv_bytes_per_token or np.nan,
        "varied": any(
            run.workload.get(name) for name in ("prompt_spread", "output_spread")
        ),
    }
