"""waterfall.csv: a cell's prompt tokens, from those that came before to those that caches delivered, and the leak.

Each stage is at most the one before it. `offered`: tokens that came before in the requests that were sent; `held`: what
the caches of all servers can hold of them, by their sizes; `routed`: what the server that a request went to can hold,
where there are several; `found`: what its caches found; `delivered`: what they delivered in place of computing;
`saved`: the seconds of prefill that this saved. All are of a whole level, warm-up included, means over runs, at the
level at which a model's cells are compared. The first three are computed by `hits`, the next two are counted by the
servers. The leak is the stage at which most is lost; what is said of it follows from its code, one of LEAKS.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from kveval.campaign.cell import CELL_COLUMNS, Cell
from kveval.campaign.types import BLOCK_TOKENS
from kveval.load.levels import streams_at
from kveval.load.workload import workload_of
from kveval.report.data.hits import TOLERANCE_POINTS, Leak, read_curve
from kveval.store.run_file import LevelRun, Run
from kveval.tables.cells import THROUGHPUT, common_level, rows_of, tables_by_cell
from kveval.tables.levels.server_counters import found_tokens, server_delta
from kveval.tables.one_request import one_request_times
from kveval.tables.system.ceilings import request_means
from kveval.tables.system.failed_transfers import failed_transfers
from kveval.verdict.verdict_words import VERDICTS

STAGES = ("prompts", "offered", "held", "routed", "found", "delivered", "saved")
_COMPARED = STAGES[:6]
COUNTED, COMPUTED, UNKNOWN = "counted", "computed from requests", "unknown"
TIMED, RATED = "single requests", "prefill rate"
_TIMED = ("ttft_ms_median", "prompt_tokens", "served_tokens")
SOURCES: Mapping[str, str] = {
    COUNTED: "the servers' own counters over the level",
    COMPUTED: "the requests that were sent, the sizes of the caches and how requests are routed",
    TIMED: "the times of one request, computed and from a cache: what loading takes is subtracted",
    RATED: "the rate at which the model's prompts are computed, one request at a time: loading is not subtracted",
    UNKNOWN: "nothing says it",
}
"""Where the number of a stage is from -> what that is."""
LEAKS: Mapping[str, str] = {
    "unknown": "what was offered, or what the servers found of it, is not known",
    "contradiction": "a stage has more than the one before it, so that one of the two is wrong",
    "nothing_offered": "next to none of the prompt tokens came before",
    "no_tier": "the device's cache is too small, and nothing is behind it",
    "tier_mirrors_device": "the tier is no larger than the device's cache, of which it has a copy",
    "caches_too_small": "device and tier together hold too little",
    "no_size_helps": "no size of this tier would serve more: it serves whole chunks, from a prompt's beginning on",
    "routing": "requests went to servers other than the one that holds their prompts",
    "tier_idle": "the tier should have served tokens and served none",
    "transfers_failed": "fewer tokens were found, or delivered, than held, and transfers failed or were left out",
    "not_found": "fewer tokens were found than held, and no failed transfer was counted",
    "not_delivered": "fewer tokens were delivered than found, and no failed transfer was counted",
    "device_serves_all": "the device's cache alone holds what was offered",
    "loading_slower": "loading a prompt from the tier takes as long as computing it, or longer",
    "decoding": "the hits were delivered, throughput hardly rose, and decoding takes nearly all of a request's time",
    "none": "what was offered was delivered",
}
"""Code of a leak -> when a cell has it; of several losses the largest counts."""
LEAST_POINTS = 5.0
"""Percentage points of the prompt tokens that must be lost at a stage for the loss to be named."""
COLUMNS = (
    *(*CELL_COLUMNS, "level", "runs", "stage", "place", "tokens", "seconds"),
    *("percent_of_prompts", "percent_of_offered", "source", "excess_points"),
    *("leak", "facts"),
)
# Of complete_metrics.csv, which has some hundred columns, and of which every cell takes its rows.
_LEVEL_COLUMNS = (
    *(*CELL_COLUMNS, "run", "level", "device_tokens", "concurrency_mean"),
    *("request_prompt_tokens", "ttft_ms_mean", "e2e_ms_mean"),
    *("predicted_prompt_tokens", "predicted_offered_ratio", "predicted_pooled_ratio"),
    *("predicted_ratio_high", "predicted_device_ratio", "predicted_tier_blocks"),
    *("predicted_curve", "predicted_not"),
)
# The share of the lost tokens that a larger tier is to serve.
_RECOVERED = 0.9
# Percent: throughput that rose by less hardly rose; a part of the time that is larger is nearly all of it.
_HARDLY, _NEARLY_ALL = 10.0, 80.0
_IDLE_PERCENT = 0.5


@dataclass(frozen=True)
class Stages:
    """The prompt tokens of a cell by stage, means over runs; NaN for what is not known.

    Attributes:
        tokens: by stage, `saved` left out; `routed` is there only with several servers.
        places: of the tokens found and delivered, those of the "device", of the "tier" behind it, and, of what was
            found, of the "store" behind that; stages whose places are not known are left out.
        sources: by stage, one of SOURCES.
        tolerance_points: percentage points of the prompt tokens by which a stage may have more than the one before:
            what is computed is that exact, and requests in progress as the level ends were found and not delivered.
    """

    tokens: Mapping[str, float]
    places: Mapping[str, Mapping[str, float]]
    sources: Mapping[str, str]
    tolerance_points: float = TOLERANCE_POINTS

    def percent(self, stage: str) -> float:
        """Return a stage in per cent of the prompt tokens; NaN if it is not known or left out."""
        return _percent(self.tokens.get(stage, math.nan), self.tokens["prompts"])

    @property
    def known(self) -> list[str]:
        """The stages from `prompts` to `delivered` whose tokens are known."""
        return [name for name in _COMPARED if not math.isnan(self.percent(name))]

    def losses(self) -> dict[str, float]:
        """Return the percentage points that each known stage lacks of the known one before it; negative if it has more."""
        known = self.known
        return {
            name: self.percent(before) - self.percent(name)
            for before, name in itertools.pairwise(known)
        }

    def excess(self) -> dict[str, float]:
        """Return the percentage points by which stages exceed the one before, beyond the tolerance."""
        return {
            name: -loss
            for name, loss in self.losses().items()
            if -loss > self.tolerance_points
        }


@dataclass(frozen=True)
class CellFacts:
    """Facts that a leak is judged by, beside the stages of a cell; NaN for what is not known.

    Attributes:
        has_tier: whether anything is behind the device.
        device_tokens, tier_tokens: sizes of one server's caches; an unbounded tier is infinite.
        servers: number of servers.
        device_percent: of the prompt tokens, what the device alone holds, as computed.
        largest_percent: what device and a tier of any size would serve.
        needed_blocks, needed_bytes: size of the tier that would serve nine tenths of what is lost for want of room.
        throughput_percent: change of throughput against the baseline, where it has a verdict.
        decoding_percent: share of a request's time after its first token.
        tier_saves: seconds that a token from the tier saves.
        failed: FAILED_TRANSFERS -> their number, those that happened.
        reason: why nothing was computed.
    """

    has_tier: bool
    device_tokens: float = math.nan
    tier_tokens: float = math.nan
    servers: int = 1
    device_percent: float = math.nan
    largest_percent: float = math.nan
    needed_blocks: float = math.nan
    needed_bytes: float = math.nan
    throughput_percent: float = math.nan
    decoding_percent: float = math.nan
    tier_saves: float = math.nan
    failed: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""


def leak_of(stages: Stages, facts: CellFacts) -> Leak:
    """Return the leak of a cell."""
    known = stages.known
    excess = stages.excess()
    if excess:
        stage = max(excess, key=excess.__getitem__)
        before = known[known.index(stage) - 1]
        percents = {
            "percent": stages.percent(stage),
            "before_percent": stages.percent(before),
        }
        return Leak("contradiction", stage, {"before": before, **percents})
    if "offered" not in known or "held" not in known:
        return Leak("unknown", "offered", {"reason": facts.reason})
    offered = {"offered_percent": stages.percent("offered")}
    if stages.percent("offered") < LEAST_POINTS:
        return Leak("nothing_offered", "offered", offered)
    losses = {
        name: loss
        for name, loss in stages.losses().items()
        if name in _LOST_AT and loss >= _least_points(stages, name)
    }
    if losses:
        stage = max(losses, key=losses.__getitem__)
        code, more = _LOST_AT[stage](stages, facts)
        lost = {"percent": stages.percent(stage), "lost_points": losses[stage]}
        return Leak(code, stage, {**offered, **lost, **more})
    if "found" not in known:
        return Leak("unknown", "found", {"reason": ""})
    return _without_loss(stages, facts, offered)


def _least_points(stages: Stages, name: str) -> float:
    """Return the loss from which a stage is named: of counted ones, more than requests in progress can make."""
    counted = name in ("found", "delivered")
    return max(LEAST_POINTS, stages.tolerance_points if counted else 0.0)


def _without_loss(
    stages: Stages, facts: CellFacts, offered: Mapping[str, float]
) -> Leak:
    """Return the leak of a cell of which no stage loses much."""
    last = stages.known[-1]
    hits = {**offered, "percent": stages.percent(last)}
    if stages.percent("offered") - facts.device_percent < LEAST_POINTS:
        return Leak(
            "device_serves_all", last, {**hits, "device_percent": facts.device_percent}
        )
    if facts.tier_saves <= 0:
        return Leak("loading_slower", "saved", hits)
    hardly = abs(facts.throughput_percent) < _HARDLY
    if hardly and facts.decoding_percent >= _NEARLY_ALL:
        seen = {
            "throughput_percent": facts.throughput_percent,
            "decoding_percent": facts.decoding_percent,
        }
        return Leak("decoding", "saved", {**hits, **seen})
    return Leak("none", last, hits)


def _lost_for_want_of_room(
    stages: Stages, facts: CellFacts
) -> tuple[str, dict[str, Any]]:
    sizes = {"device_tokens": facts.device_tokens, "tier_tokens": facts.tier_tokens}
    if not facts.has_tier:
        return "no_tier", {"device_tokens": facts.device_tokens}
    if facts.largest_percent - stages.percent("held") < LEAST_POINTS:
        return "no_size_helps", {"largest_percent": facts.largest_percent}
    needed = {"needed_blocks": facts.needed_blocks, "needed_bytes": facts.needed_bytes}
    if facts.tier_tokens <= facts.device_tokens:
        return "tier_mirrors_device", {**sizes, **needed}
    return "caches_too_small", {**sizes, **needed}


def _lost_by_routing(_: Stages, facts: CellFacts) -> tuple[str, dict[str, Any]]:
    return "routing", {"servers": facts.servers}


def _lost_in_lookups(stages: Stages, facts: CellFacts) -> tuple[str, dict[str, Any]]:
    found = stages.places.get("found", {}).get("tier", math.nan)
    behind_percent = _percent(found, stages.tokens["prompts"])
    expected_points = stages.percent("held") - facts.device_percent
    expected = facts.has_tier and expected_points >= LEAST_POINTS
    if expected and behind_percent < _IDLE_PERCENT:
        return "tier_idle", {"expected_points": expected_points}
    if facts.failed:
        return "transfers_failed", {"failed": dict(facts.failed)}
    return "not_found", {}


def _lost_in_loads(_: Stages, facts: CellFacts) -> tuple[str, dict[str, Any]]:
    if facts.failed:
        return "transfers_failed", {"failed": dict(facts.failed)}
    return "not_delivered", {}


_LOST_AT = {
    "held": _lost_for_want_of_room,
    "routed": _lost_by_routing,
    "found": _lost_in_lookups,
    "delivered": _lost_in_loads,
}


def waterfall(
    runs: Sequence[Run],
    levels: pd.DataFrame,
    peaks: pd.DataFrame,
    comparison: pd.DataFrame,
) -> pd.DataFrame:
    """Return a table with COLUMNS: a row per cell, stage and place, at the level at which its model is compared.

    `levels`: complete_metrics.csv. `place` is "" for all caches together. `excess_points`: percentage points by which a
    stage has more than the one before, beyond the tolerance, else empty. `leak` is in one row of each cell, that of the
    stage which lacks the tokens, with its facts as JSON.
    """
    # Where no request of a source was timed, there are empty columns and no numbers.
    times = one_request_times(runs).astype(dict.fromkeys(_TIMED, float))
    rows: list[dict[str, Any]] = []
    by_cell: dict[Cell, list[Run]] = {}
    for run in runs:
        by_cell.setdefault(run.cell, []).append(run)
    # What is infinite was not measured.
    levels = levels[[name for name in _LEVEL_COLUMNS if name in levels]].replace(
        [np.inf, -np.inf], np.nan
    )
    rows_of_levels, rows_of_times, rows_of_comparison = map(
        tables_by_cell, (levels, times, comparison)
    )
    level_of = cache(lambda model: common_level(comparison, peaks, model))
    rate_of = cache(lambda model: _prefill_tok_s(runs, levels, times, model))
    for cell, of_cell in by_cell.items():
        level = level_of(cell.model)
        of_level = [
            (run, entry)
            for run in of_cell
            for entry in run.levels
            if entry.level == level and entry.status == "ok"
        ]
        if level is None or not of_level:
            continue
        table = _tokens_of_runs(of_level, rows_of_levels.get(cell, levels.iloc[:0]))
        stages = _stages(table, of_cell)
        its_times = rows_of_times.get(cell, times.iloc[:0])
        saved = _saved_s(stages, its_times, rate_of(cell.model))
        compared = rows_of_comparison.get(cell, comparison.iloc[:0])
        facts = _facts(table, of_level, compared[compared["level"] == level], saved)
        head = {**cell.row, "level": level, "runs": len(table)}
        rows += [
            {**head, **row} for row in _rows(stages, saved, leak_of(stages, facts))
        ]
    return pd.DataFrame(rows, columns=[*COLUMNS])


def _tokens_of_runs(
    of_level: Sequence[tuple[Run, LevelRun]], levels: pd.DataFrame
) -> pd.DataFrame:
    """Return a row per run of a cell: the columns of its level, and what its servers counted, tokens.

    Of the runs for which both counters and a prediction are known, if there are any, so that all stages are of the same
    requests.
    """
    counted = pd.DataFrame([_counted(run, entry) for run, entry in of_level])
    rows = counted.merge(
        levels, on=["run", "level"], how="left", suffixes=("", "_of_level")
    )
    known = [rows["prompts"], rows["device"], _column(rows, "predicted_offered_ratio")]
    complete = pd.concat(known, axis=1).notna().all(axis=1)
    return rows[complete] if complete.any() else rows


def _counted(run: Run, entry: LevelRun) -> dict[str, Any]:
    counted = entry.counted
    found = found_tokens(counted)
    return {
        "run": run.run,
        "level": entry.level,
        "prompts": found.prompts,
        "device": found.device,
        "behind": found.behind,
        "store": server_delta(counted, "store_hit_tokens"),
        "delivered_device": server_delta(counted, "delivered_device_tokens"),
        "delivered_behind": server_delta(counted, "delivered_external_tokens"),
    }


def _stages(rows: pd.DataFrame, runs: Sequence[Run]) -> Stages:
    """Return the stages of a cell, means over its rows."""
    prompts = rows["prompts"]
    source = COUNTED
    if prompts.isna().all():
        prompts, source = _column(rows, "predicted_prompt_tokens"), COMPUTED
    behind, delivered_behind = rows["behind"], rows["delivered_behind"]
    has_tier = _has_tier(rows, runs[0])
    if not has_tier:
        behind, delivered_behind = behind.fillna(0.0), delivered_behind.fillna(0.0)
    series = {
        "prompts": prompts,
        "offered": prompts * _column(rows, "predicted_offered_ratio"),
        "held": prompts * _column(rows, "predicted_pooled_ratio"),
        "routed": prompts * _column(rows, "predicted_ratio_high"),
        "found": rows["device"] + behind,
        "delivered": rows["delivered_device"] + delivered_behind,
    }
    if runs[0].replicas == 1:
        del series["routed"]
    tokens = {name: float(values.mean()) for name, values in series.items()}
    sources = dict.fromkeys(("found", "delivered"), COUNTED)
    sources |= dict.fromkeys(("offered", "held", "routed"), COMPUTED)
    sources["prompts"] = source
    store = rows["store"]
    found = {
        "device": rows["device"],
        "tier": behind - store.fillna(0.0),
        "store": store.dropna(),
    }
    delivered = {"device": rows["delivered_device"], "tier": delivered_behind}
    if not has_tier:
        found, delivered = ({"device": of["device"]} for of in (found, delivered))
    in_flight = _column(rows, "request_prompt_tokens") * _column(
        rows, "concurrency_mean"
    )
    in_flight_points = float((100 * in_flight / prompts).mean())
    tolerance = max(TOLERANCE_POINTS, np.nan_to_num(in_flight_points))
    for name, value in tokens.items():
        sources[name] = UNKNOWN if math.isnan(value) else sources[name]
    places = {"found": _means(found), "delivered": _means(delivered)}
    return Stages(tokens, places, sources, float(tolerance))


def _means(by_place: Mapping[str, pd.Series[float]]) -> dict[str, float]:
    """Return the mean by place; a place that no run counts is left out."""
    return {
        place: float(tokens.mean()) for place, tokens in by_place.items() if len(tokens)
    }


def _has_tier(rows: pd.DataFrame, run: Run) -> bool:
    """Return whether a cell has a tier; without a prediction, an arm that requires counters counts as one that has."""
    tier_blocks = float(_column(rows, "predicted_tier_blocks").mean())
    return _may_have_tier(run) if math.isnan(tier_blocks) else tier_blocks > 0


def _may_have_tier(run: Run) -> bool:
    return bool(run.cell.cpu_blocks or run.required_counters)


def _column(rows: pd.DataFrame, name: str) -> pd.Series[float]:
    if name in rows:
        return rows[name].astype(float)
    return pd.Series(np.nan, index=rows.index)


@dataclass(frozen=True)
class _Saved:
    """Seconds of prefill that the delivered tokens saved, the same of one token from the tier, and where from."""

    seconds: float = math.nan
    of_tier_token: float = math.nan
    source: str = UNKNOWN


def _saved_s(stages: Stages, times: pd.DataFrame, prefill_tok_s: float) -> _Saved:
    """Return what delivered tokens saved, from the times of single requests, else from the rate of computing."""
    tokens = stages.places["delivered"]
    by_source = {row["source"]: row for row in times.to_dict("records")}
    saves = {
        place: _saved_per_token(by_source.get("cold"), by_source.get(place))
        for place in ("device", "tier")
    }
    if math.isnan(stages.tokens["delivered"]):
        return _Saved(of_tier_token=saves["tier"])
    timed = sum(count * saves[place] for place, count in tokens.items() if count > 0)
    if not math.isnan(timed):
        return _Saved(timed, saves["tier"], TIMED)
    rated = stages.tokens["delivered"] / prefill_tok_s
    return _Saved(rated, saves["tier"], UNKNOWN if math.isnan(rated) else RATED)


def _saved_per_token(
    cold: Mapping[Any, Any] | None, cached: Mapping[Any, Any] | None
) -> float:
    """Return the seconds that a token of a prompt from a cache saves; NaN where a time is missing."""
    if cold is None or cached is None or not cached["served_tokens"] > 0:
        return math.nan
    saved_ms = cold["ttft_ms_median"] - cached["ttft_ms_median"]
    return float(saved_ms / 1000 / cached["served_tokens"])


def _prefill_tok_s(
    runs: Sequence[Run], levels: pd.DataFrame, times: pd.DataFrame, model: str
) -> float:
    """Return the rate at which a model's prompts are computed; NaN if unknown.

    From single requests of any of its cells, else from the lowest level of one without a tier, if that has one request
    at a time.
    """
    cold = times[(times["model"] == model) & (times["source"] == "cold")]
    rate = float((1000 * cold["prompt_tokens"] / cold["ttft_ms_median"]).mean())
    if not math.isnan(rate):
        return rate
    of_model = (run for run in runs if run.cell.model == model)
    without = [run for run in of_model if not _may_have_tier(run)]
    for cell in dict.fromkeys(run.cell for run in without):
        of_cell = [run for run in without if run.cell == cell]
        level = min((entry.level for entry in of_cell[0].levels), default=None)
        workload = workload_of(of_cell[0].workload)
        if level is not None and streams_at(workload, level) == 1:
            rows = rows_of(levels, cell)
            rows = rows[rows["level"] == level]
            return request_means(of_cell, rows, level).prefill_tok_s
    return math.nan


def _facts(
    rows: pd.DataFrame,
    of_level: Sequence[tuple[Run, LevelRun]],
    compared: pd.DataFrame,
    saved: _Saved,
) -> CellFacts:
    """Return what a cell's leak is judged by; `rows`: of its runs; `compared`: its comparisons at the level."""
    runs = [run for run, _ in of_level]
    tier_blocks = float(_column(rows, "predicted_tier_blocks").mean())
    curve = next(filter(len, map(read_curve, _texts(rows, "predicted_curve"))), None)
    largest, needed = math.nan, math.nan
    if curve is not None and not math.isnan(tier_blocks):
        largest, needed = _room(curve, tier_blocks)
    per_block = runs[0].cell.cpu_blocks / tier_blocks if tier_blocks else math.nan
    needed_blocks = np.ceil(needed * per_block)
    token_bytes = runs[0].kv_bytes_per_token or math.nan
    ttft_ms, e2e_ms = (_column(rows, name) for name in ("ttft_ms_mean", "e2e_ms_mean"))
    return CellFacts(
        has_tier=_has_tier(rows, runs[0]),
        device_tokens=float(_column(rows, "device_tokens").mean()),
        tier_tokens=tier_blocks * BLOCK_TOKENS,
        servers=runs[0].replicas,
        device_percent=100 * float(_column(rows, "predicted_device_ratio").mean()),
        largest_percent=100 * largest,
        needed_blocks=needed_blocks,
        needed_bytes=needed_blocks * BLOCK_TOKENS * token_bytes,
        throughput_percent=_throughput_percent(compared),
        decoding_percent=100 * float((1 - ttft_ms / e2e_ms).mean()),
        tier_saves=saved.of_tier_token,
        failed=failed_transfers([entry for _, entry in of_level]),
        reason=next(iter(_texts(rows, "predicted_not")), ""),
    )


def _texts(rows: pd.DataFrame, name: str) -> list[str]:
    if name not in rows:
        return []
    return [text for text in rows[name] if isinstance(text, str) and text]


def _room(curve: pd.DataFrame, tier_blocks: float) -> tuple[float, float]:
    """Return the share that a tier of any size serves, and the size, in blocks of tokens, with most of what is lost."""
    largest = float(curve["low"].max())
    held = float(np.interp(tier_blocks, curve.index, curve["low"]))
    enough = curve.index[curve["low"] >= held + _RECOVERED * (largest - held)]
    return largest, float(enough[0])


def _throughput_percent(compared: pd.DataFrame) -> float:
    """Return the change of throughput against the baseline, per cent; NaN without a verdict."""
    rows = compared[
        (compared["metric"] == THROUGHPUT) & compared["verdict"].isin(VERDICTS)
    ]
    return float(rows["effect_percent"].iloc[0]) if len(rows) else math.nan


def _rows(stages: Stages, saved: _Saved, leak: Leak) -> Iterator[dict[str, Any]]:
    """Yield the rows of a cell, without the columns that name it."""
    excess = stages.excess()
    for stage in stages.tokens:
        row = {
            **_shares(stages, stages.tokens[stage]),
            "stage": stage,
            "place": "",
            "source": stages.sources[stage],
            "excess_points": excess.get(stage, math.nan),
        }
        yield row | _leak_columns(leak, stage)
        for place, tokens in stages.places.get(stage, {}).items():
            source = UNKNOWN if math.isnan(tokens) else COUNTED
            part = {"stage": stage, "place": place, "source": source}
            yield {**_shares(stages, tokens), **part}
    row = {
        "stage": "saved",
        "place": "",
        "seconds": saved.seconds,
        "source": saved.source,
    }
    yield row | _leak_columns(leak, "saved")


def _shares(stages: Stages, tokens: float) -> dict[str, float]:
    return {
        "tokens": tokens,
        "percent_of_prompts": _percent(tokens, stages.tokens["prompts"]),
        "percent_of_offered": _percent(tokens, stages.tokens["offered"]),
    }


def _leak_columns(leak: Leak, stage: str) -> dict[str, str]:
    if leak.stage != stage:
        return {}
    facts = {name: _plain(value) for name, value in leak.facts.items()}
    return {"leak": leak.code, "facts": json.dumps(facts)}


def _plain(value: Any) -> Any:
    """Return a fact as JSON has it: a number that is not finite as null, an infinite one as a word."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "unbounded"
    return value


def _percent(part: float, whole: float) -> float:
    return 100 * part / whole if whole > 0 else math.nan
