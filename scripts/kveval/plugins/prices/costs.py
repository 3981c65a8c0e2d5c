"""Costs: what tokens and requests cost at declared prices, and up to which price of memory a tier pays.

Every cost is computed from the throughput at the level where the cells of a model are compared. Its interval is that of
the throughput; prices are taken as exact.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from kveval.campaign.cell import CELL_COLUMNS, Cell
from kveval.campaign.types import on_cpu
from kveval.estimators.intervals import mean_interval
from kveval.store.run_file import Run, collected_runs
from kveval.tables.cells import THROUGHPUT, common_level, kept_runs, tables_by_cell
from kveval.tables.csv_files import read_table
from kveval.verdict.verdict_words import VERDICTS, is_of_idle_arm

GIB = 2**30
TOKENS, REQUESTS = "usd_per_million_tokens", "device_s_per_1000_requests"
CHANGE = ("change_percent", "change_low_percent", "change_high_percent")
BREAK_EVEN = ("break_even_usd_per_gib_hour", "break_even_low", "break_even_high")
_COLUMNS = [
    *(*CELL_COLUMNS, "level", "servers", "gpus", "tier_gib", "usd_per_hour"),
    *(f"{name}{end}" for name in (TOKENS, REQUESTS) for end in ("", "_low", "_high")),
    *("baseline", *CHANGE, *BREAK_EVEN),
]


@dataclass(frozen=True)
class ServersPaid:
    """GPUs, and GiB of host memory for tiers, that all servers of a run use together; NaN for what is not known."""

    servers: int
    gpus: float
    tier_gib: float

    @classmethod
    def from_run(cls, run: Run, *, store: bool) -> ServersPaid:
        """Return what a run used. `store`: whether its arm has a store, whose memory limit counts as used."""
        specification = run.specification
        deployment, model = (
            specification.get("deployment") or {},
            specification.get("model") or {},
        )
        gpus = deployment.get("gpus", model.get("tensor_parallel_size", np.nan))
        tier = run.budget.get("tier_bytes", np.nan) if run.cell.cpu_blocks else 0
        store_bytes = (
            sum(map(_limit_bytes, specification.get("companions", ()))) if store else 0
        )
        return cls(
            run.replicas,
            0.0 if on_cpu(specification.get("build")) else float(run.replicas * gpus),
            (run.replicas * tier + (store_bytes or np.nan if store else 0)) / GIB,
        )

    def usd_per_hour(
        self, prices: Mapping[str, float], *, memory: bool = True
    ) -> float:
        """Return USD per hour; with `memory`, including that of the tiers if it has a price. NaN without prices."""
        price = self.servers * prices.get("host_hour_usd", 0.0)
        price += self.gpus * prices["gpu_hour_usd"] if "gpu_hour_usd" in prices else 0.0
        if not price > 0:
            return np.nan
        memory_price = (
            self.tier_gib * prices["host_gib_hour_usd"]
            if memory and "host_gib_hour_usd" in prices
            else 0.0
        )
        return price + memory_price


def _limit_bytes(beside: Any) -> float:
    """The limit on the memory of a store beside the server, bytes; 0 for a program without a limit."""
    argv = list(beside.get("argv", ())) if isinstance(beside, Mapping) else []
    return float(argv[argv.index("--maxmemory") + 1]) if "--maxmemory" in argv else 0.0


def costs(
    levels: pd.DataFrame,
    peaks: pd.DataFrame,
    comparison: pd.DataFrame,
    runs: Sequence[Run],
    prices: Mapping[str, float],
    stores: Collection[str] = (),
) -> pd.DataFrame:
    """Return costs.csv: a row per cell that was measured, at the level where its model's cells are compared.

    `prices`: USD per hour, the campaign's key `prices`; `stores`: scenarios whose arm has a store. Runs that failed a
    check at the level, or that the verdict does not rest on, are left out. Only comparisons with a verdict have a
    change, and a price of memory up to which the tier pays.
    """
    took: dict[Cell, ServersPaid] = {}
    for run in runs:
        took.setdefault(
            run.cell, ServersPaid.from_run(run, store=run.cell.scenario in stores)
        )
    throughput = comparison[comparison["metric"] == THROUGHPUT]
    compared = {Cell.from_row(row): row for row in throughput.to_dict("records")}
    kept = kept_runs(throughput[throughput["verdict"].isin(VERDICTS)])
    rows = []
    for cell, of_cell in tables_by_cell(levels).items():
        level = common_level(comparison, peaks, cell.model)
        sound = of_cell[
            (of_cell["level"] == level) & (of_cell["checks_failed"].fillna("") == "")
        ]
        if of_verdict := kept[cell, THROUGHPUT].runs:
            sound = sound[sound["run"].isin(of_verdict)]
        row = {**cell.row, "level": level, "baseline": ""}
        if cell in took:
            row |= _costs(sound, took[cell], prices) | _against(
                compared.get(cell), took, prices
            )
        rows.append(row)
    return pd.DataFrame(rows, columns=_COLUMNS)


def _costs(
    rows: pd.DataFrame, took: ServersPaid, prices: Mapping[str, float]
) -> dict[str, Any]:
    """The costs of a cell from its own runs at one level; intervals over runs."""
    hour = took.usd_per_hour(prices)
    devices = took.gpus or float(took.servers)
    return {
        **{
            "servers": took.servers,
            "gpus": took.gpus,
            "tier_gib": took.tier_gib,
            "usd_per_hour": hour,
        },
        **_inverse(TOKENS, hour / 3600 * 1e6, rows[THROUGHPUT]),
        **_inverse(REQUESTS, devices * 1000, rows["throughput_req_s"]),
    }


def _inverse(name: str, factor: float, rates: pd.Series[float]) -> dict[str, float]:
    """`factor` divided by the geometric mean of the rates, with its 95 % interval over runs."""
    known = rates.to_numpy(dtype=np.float64)
    known = known[known > 0]
    low, high = mean_interval(np.log(known)) if len(known) else (np.nan, np.nan)
    mean = float(np.exp(np.log(known).mean())) if len(known) else np.nan
    return {
        name: factor / mean,
        f"{name}_low": factor / high,
        f"{name}_high": factor / low,
    }


def _against(
    row: Mapping[Any, Any] | None,
    took: Mapping[Cell, ServersPaid],
    prices: Mapping[str, float],
) -> dict[str, Any]:
    """The cost per token against that of the baseline, and the price of memory at which both are equal.

    r: throughput over the baseline's; A, B: cost per hour of arm and baseline. The cost per token is A / (r B) of the
    baseline's. With a tier of M GiB, both are equal at (r B - A) / M per GiB-hour, A without the tier's memory.
    """
    if row is None or row["verdict"] not in VERDICTS:
        return {}
    arm, base = (
        took[Cell.from_row(row)],
        took[Cell.from_path(row["baseline"])].usd_per_hour(prices),
    )
    ratio, low, high = (
        1 + float(row[name]) / 100
        for name in ("effect_percent", "low_percent", "high_percent")
    )
    relative = arm.usd_per_hour(prices) / base
    columns = {"baseline": row["baseline"]}
    columns |= dict(
        zip(
            CHANGE,
            (100 * (relative / times - 1) for times in (ratio, high, low)),
            strict=True,
        )
    )
    # A tier that served next to nothing does not pay, whatever chance made of the throughput.
    if arm.tier_gib > 0 and not is_of_idle_arm(row):
        without = arm.usd_per_hour(prices, memory=False)
        break_even = [
            (times * base - without) / arm.tier_gib for times in (ratio, low, high)
        ]
        columns |= dict(zip(BREAK_EVEN, break_even, strict=True))
    return columns


if __name__ == "__main__":
    settings, *paths = sys.argv[1:]
    *judged, of_runs, output = map(Path, paths)
    complete, peak, compared = map(read_table, judged)
    read = complete, peak, compared, collected_runs(of_runs)
    costs(*read, **json.loads(settings)).to_csv(output, index=False)
