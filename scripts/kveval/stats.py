"""Is a scenario better, worse, at parity, or can this campaign not tell?

Every comparison is a difference of logarithms between an arm and its baseline at one common level, over runs as
blocks: all cells were measured once per block, in random order within it. One comparison is one row; a row without a
verdict says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from kveval.checks import MIN_TOKENS, SUFFICIENT
from kveval.intervals import contrasts, holm, runs_to_resolve
from kveval.levels import KEYS
from kveval.peaks import THROUGHPUT, peak_level

Cell = tuple[str, str, int]
# Columns baseline and arm, indexed by run.
Pair = pd.DataFrame

MIN_RUNS = 3
# Metric -> True if more is better.
METRICS: dict[str, bool] = {
    THROUGHPUT: True,
    "ttft_ms_p50": False,
    "ttft_ms_p90": False,
    "tpot_ms_p50": False,
    "e2e_ms_p50": False,
    "e2e_ms_p90": False,
}
BETTER, WORSE, PARITY, INCONCLUSIVE = "better", "worse", "parity", "inconclusive"
NOT_ASSESSED, NOT_EXERCISED = "not assessed", "not exercised"


@dataclass(frozen=True)
class Settings:
    """How to compare: `margin` 0.05 means 5 %; `level` is streams, or "baseline peak"."""

    margin: float = 0.05
    alpha: float = 0.05
    level: int | str = "baseline peak"


def compare(
    complete: pd.DataFrame,
    baselines: Mapping[str, str | None],
    settings: Settings | None = None,
    metrics: Mapping[str, bool] = METRICS,
) -> pd.DataFrame:
    """Compare every cell with its baseline and return one row per cell and metric (comparison.csv).

    `complete`: the rows of complete_metrics.csv. `baselines`: scenario -> the scenario it is compared with, None for
    a baseline itself. The baseline's cell is that of the same model with the same cpu_blocks, else the only one.
    Effects are per cent of the baseline; `p_holm` is adjusted over the scenarios of one model and metric.
    """
    settings = settings or Settings()
    rows: list[dict[str, Any]] = []
    for model in dict.fromkeys(complete["model"]):
        table = complete[complete["model"] == model]
        cells: list[Cell] = list(dict.fromkeys(map(_cell, table[list(KEYS)].itertuples(index=False))))
        families: dict[Cell, list[Cell]] = {}
        for cell in cells:
            if baselines.get(cell[1]) is None:
                continue
            families.setdefault(_baseline(cell, cells, baselines[cell[1]]) or cell, []).append(cell)
        for metric, more_is_better in metrics.items():
            family = []
            for baseline, arms in families.items():
                family += _compare_family(table, baseline, arms, metric, settings)
            rows += _with_verdicts(family, more_is_better, settings)
    return pd.DataFrame(rows, columns=_COLUMNS)


_COLUMNS = [
    *KEYS,
    "metric",
    "level",
    "baseline",
    "effect_percent",
    "low_percent",
    "high_percent",
    "p_value",
    "p_holm",
    "p_parity_holm",
    "verdict",
    "reason",
    "runs",
    "sd_percent",
    "runs_to_resolve",
    "margin_percent",
    "method",
]


def _cell(row: Any) -> Cell:
    return str(row.model), str(row.scenario), int(row.cpu_blocks)


def _baseline(cell: Cell, cells: Sequence[Cell], scenario: str | None) -> Cell | None:
    """Return the cell a cell is compared with, None if it is missing or not unique."""
    candidates = [other for other in cells if other[1] == scenario]
    same = [other for other in candidates if other[2] == cell[2]]
    chosen = same or candidates
    return chosen[0] if len(chosen) == 1 else None


def _compare_family(
    table: pd.DataFrame, baseline: Cell, arms: Sequence[Cell], metric: str, settings: Settings
) -> list[dict[str, Any]]:
    """Return the rows of arms that share a baseline, without verdicts; `reason` is what keeps one from a verdict."""
    reference = _of(table, baseline)
    level = settings.level if isinstance(settings.level, int) else peak_level(reference)
    rows: list[dict[str, Any]] = [
        {
            **dict(zip(KEYS, arm, strict=True)),
            "metric": metric,
            "level": level,
            "baseline": "/".join(map(str, baseline)) if baseline != arm else "",
            "margin_percent": 100 * settings.margin,
            "left_out": "",
        }
        for arm in arms
    ]
    if baseline in arms:
        return [{**row, "runs": 0, "obstacle": "its baseline was not measured, or is not unique"} for row in rows]
    at = table[table["level"] == level]
    complete: list[tuple[dict[str, Any], Pair]] = []
    for row, arm in zip(rows, arms, strict=True):
        pair, row["obstacle"], row["left_out"] = _pair(_of(at, baseline), _of(at, arm), metric)
        row["runs"], row["exercised"] = len(pair), _exercised(_of(at, arm))
        if len(pair) >= 2:
            complete.append((row, pair))
        elif len(pair) == 1:
            row["effect_percent"] = 100 * np.expm1(float((pair["arm"] - pair["baseline"]).iloc[0]))
    _estimate(complete, settings)
    return rows


def _pair(reference: pd.DataFrame, arm: pd.DataFrame, metric: str) -> tuple[Pair, str, str]:
    """Return ln of the metric by run in baseline and arm, why that allows no verdict, and which runs are left out.

    Levels that failed a check are left out. If too few runs remain for a verdict, all are kept to describe the effect.
    """
    unfit = {int(run): reason for rows in (arm, reference) for run, reason in _unfit(rows, metric).items()}
    everything = pd.DataFrame({"baseline": _logs(reference, metric), "arm": _logs(arm, metric)}).dropna()
    fit = everything.drop(index=[run for run in unfit if run in everything.index])
    left_out = "; ".join(f"run {run}: {reason}" for run, reason in sorted(unfit.items()))
    if len(fit) >= MIN_RUNS:
        return fit, "", left_out
    if not len(everything):
        return everything, "the level was not measured in both cells", ""
    if unfit:
        return everything, f"{len(fit)} usable common runs, {MIN_RUNS} needed ({left_out})", ""
    return everything, "single run" if len(fit) == 1 else f"{len(fit)} common runs, {MIN_RUNS} needed", ""


def _estimate(arms: Sequence[tuple[dict[str, Any], Pair]], settings: Settings) -> None:
    """Fill in effect, interval and p values; arms with the same runs share s2, those with failed levels apart."""
    groups: dict[tuple[tuple[int, ...], bool], list[tuple[dict[str, Any], Pair]]] = {}
    for row, pair in arms:
        groups.setdefault((tuple(sorted(pair.index)), bool(row["obstacle"])), []).append((row, pair))
    for (shared, _), members in groups.items():
        runs = list(shared)
        columns = [members[0][1]["baseline"].loc[runs], *(pair["arm"].loc[runs] for _, pair in members)]
        for (row, _), contrast in zip(members, contrasts(np.column_stack(columns)), strict=True):
            low, high = contrast.interval(1 - settings.alpha)
            sd = contrast.se * np.sqrt(len(shared) / 2)
            row |= {
                "effect_percent": 100 * np.expm1(contrast.theta),
                "low_percent": 100 * np.expm1(low),
                "high_percent": 100 * np.expm1(high),
                "p_value": contrast.p_difference(),
                "p_parity": contrast.p_equivalence(settings.margin),
                "sd_percent": 100 * sd,
                "runs_to_resolve": runs_to_resolve(sd, settings.margin, len(members) + 1, settings.alpha),
                "method": contrast.method,
            }


def _of(table: pd.DataFrame, cell: Cell) -> pd.DataFrame:
    mask = (table["scenario"] == cell[1]) & (table["cpu_blocks"] == cell[2])
    return table[mask]


def _logs(rows: pd.DataFrame, metric: str) -> pd.Series[float]:
    """Return ln of the metric by run, where it was observed."""
    observed = rows[rows[metric] > 0].drop_duplicates("run").set_index("run")[metric].astype(float)
    return observed.map(np.log)


def _exercised(rows: pd.DataFrame) -> bool | None:
    known = rows["exercised"].dropna()
    return None if known.empty else bool(known.astype(bool).any())


def _unfit(rows: pd.DataFrame, metric: str) -> dict[int, str]:
    """Return the runs whose level may not enter a verdict on a metric, each with its reason."""
    counted, needed = "output_tokens", MIN_TOKENS
    if metric != THROUGHPUT:
        counted = "ttft_count" if metric.startswith("ttft") else "requests_completed"
        needed = SUFFICIENT[metric.rsplit("_", 1)[1]]
    unfit = {}
    for row in rows.to_dict("records"):
        if row["checks_failed"]:
            unfit[int(row["run"])] = f"failed {row['checks_failed'].replace(';', ', ')}"
        elif not row[counted] >= needed:
            what = "tokens delivered" if metric == THROUGHPUT else "latencies observed"
            unfit[int(row["run"])] = f"{row[counted]:.0f} {what}, {needed} needed"
    return unfit


def _with_verdicts(rows: list[dict[str, Any]], more_is_better: bool, settings: Settings) -> list[dict[str, Any]]:
    """Adjust the p values over the rows that can have a verdict, and give every row its verdict."""
    judged = [row for row in rows if not row["obstacle"] and row["exercised"] is not False]
    for source, target in (("p_value", "p_holm"), ("p_parity", "p_parity_holm")):
        for row, adjusted in zip(judged, holm([row[source] for row in judged]), strict=True):
            row[target] = adjusted
    for row in rows:
        row["verdict"], reason = _verdict(row, more_is_better, settings)
        left_out = f"without {row['left_out']}" if row["left_out"] else ""
        row["reason"] = "; ".join(part for part in (reason, left_out) if part)
    return rows


def _verdict(row: Mapping[str, Any], more_is_better: bool, settings: Settings) -> tuple[str, str]:
    if row.get("exercised") is False:
        return NOT_EXERCISED, "the arm's own counters did not move at this level"
    if row["obstacle"]:
        return NOT_ASSESSED, row["obstacle"]
    if row["p_parity_holm"] < settings.alpha:
        return PARITY, f"within +-{100 * settings.margin:g} % (TOST)"
    if row["p_holm"] < settings.alpha:
        return (BETTER if (row["effect_percent"] > 0) == more_is_better else WORSE), ""
    needed, margin = row["runs_to_resolve"], f"{100 * settings.margin:g} %"
    if needed is not None and needed <= row["runs"]:
        return INCONCLUSIVE, f"the effect lies between none and {margin}; a narrower interval is needed to place it"
    how_many = "more than 1,000" if needed is None else str(needed)
    return INCONCLUSIVE, f"{how_many} runs would resolve {margin} at this spread"
