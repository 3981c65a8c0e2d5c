"""The hit share predicted from the requests that were sent, and the hit share measured.

Both are over a whole level, from its first request to its last, with warm-up, without priming, because the servers'
counters are read before and after it. `kveval.plugins.curve.simulation` models what device and tier hold and evict.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from kveval.campaign.cell import CELL_COLUMNS, Cell
from kveval.campaign.specification import Specification, SpecificationError
from kveval.campaign.types import BLOCK_TOKENS
from kveval.estimators.intervals import half_width
from kveval.host.errors import Failure
from kveval.load import levels as workloads
from kveval.load import traces
from kveval.load.guidellm import trace_file
from kveval.load.trace_file import TraceRow
from kveval.plugins.curve.simulation.cells import (
    CellCurves,
    curves_of_prompts,
    pooled_shares,
    prompts_of,
)
from kveval.plugins.curve.simulation.curve import ReuseCurve
from kveval.plugins.curve.simulation.prompts import Prompts
from kveval.report.data.hits import CLUES, SERVED_NUMBERS, ServedShare
from kveval.store.run_file import (
    IMPORTED,
    LevelRun,
    Run,
)
from kveval.tables.csv_files import PREDICTED_TEXTS
from kveval.tables.levels.server_counters import found_tokens, server_delta
from kveval.tables.system.tier_activity import tier_activity

KEYS = (*CELL_COLUMNS, "run", "level")
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
# The GuideLLM version whose way of drawing prefixes is known.
_GENERATOR = "0.8."
# Limits on the blocks of a level's requests, which take a microsecond and 75 bytes each. Above the first, prefixes are
# cut into longer blocks, up to a fortieth of a prefix, which loses some tenths of a point of what turns share.
_ENOUGH_BLOCKS, _MOST_BLOCKS = 200_000, 5_000_000
_PART_OF_PREFIX = 40
_POINTS = 40


class NotPredictable(Failure):
    """The requests that were sent, or the caches, are not known well enough for a prediction."""


def predicted_hits(
    runs: Iterable[Run], places: Iterable[Path], requests: pd.DataFrame
) -> pd.DataFrame:
    """Return a row per run and level of a cell: NUMBERS and PREDICTED_TEXTS.

    `places`: the runs' folders in the store, in the same order; `requests`: requests.parquet of the cell.
    """
    sent = requests[requests["start"].notna()]
    rows = []
    for run, directory in zip(runs, places, strict=True):
        of_run = sent[sent["run"] == run.run]
        for level in run.levels:
            at_level = of_run[of_run["level"] == level.level]
            rows.append(
                {
                    **{**run.cell.row, "run": run.run, "level": level.level},
                    **_prediction(run, level, at_level, directory),
                }
            )
    table = pd.DataFrame(rows, columns=[*KEYS, *NUMBERS, *PREDICTED_TEXTS])
    texts = [*PREDICTED_TEXTS]
    return table.assign(**{name: table[name].fillna("") for name in texts})


def with_hits(levels: pd.DataFrame, hits: pd.DataFrame) -> pd.DataFrame:
    """Return levels, complete_metrics.csv, with the columns of `predicted_hits`, empty where there is no such row."""
    return levels.merge(hits, on=[*KEYS], how="left")


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
    prompts = _looked_up(prompts, found_tokens(level.counted).prompts)
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


def served_shares(levels: pd.DataFrame, runs: Sequence[Run]) -> list[ServedShare]:
    """Return the hit shares of each cell and level with a prediction, in run order; `levels`: complete_metrics.csv."""
    if not {*NUMBERS[:5]} <= {*levels.columns}:
        return []
    keys = [*KEYS]
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
        *CLUES,
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
        clues={name: float(mean[name]) for name in CLUES},
        lengths_vary=bool(first["varied"]),
    )


def served_table(shares: Sequence[ServedShare]) -> pd.DataFrame:
    """Return hits.csv: hit shares as rows, which `report.data.hits.read_served` reads."""
    columns = [*CELL_COLUMNS, "level", "runs", *SERVED_NUMBERS]
    columns += ["predicted_low", "predicted_high", *CLUES, "lengths_vary"]
    return pd.DataFrame(map(_served_row, shares), columns=columns)


def _served_row(share: ServedShare) -> dict[str, Any]:
    low, high = share.predicted
    numbers = {name: getattr(share, name) for name in SERVED_NUMBERS}
    row = {"level": share.level, "runs": share.runs, **numbers, **share.clues}
    row |= {"predicted_low": low, "predicted_high": high}
    return {**share.cell.row, **row, "lengths_vary": share.lengths_vary}


def _clues(rows: pd.DataFrame) -> dict[str, pd.Series[float]]:
    """Return those of CLUES that are not counted but computed."""
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
        "generated": server_delta(level.counted, "generation_tokens"),
        "token_bytes": run.kv_bytes_per_token or np.nan,
        "varied": any(
            run.workload.get(name) for name in ("prompt_spread", "output_spread")
        ),
    }
