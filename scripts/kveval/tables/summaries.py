"""The campaign as short tables for spreadsheets: a row per cell, a row per level, and means over comparable models.

Column names are those of earlier published evaluations, with correct meanings: throughput counts every token delivered,
means are over the observed requests, TPOT is TPOT, and shares are in per cent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from kveval.campaign.cell import CELL_COLUMNS, Cell
from kveval.tables.cells import (
    THROUGHPUT,
    common_level,
    models_by_size,
    partner,
    rank_of,
)

_COMPARED = {
    THROUGHPUT: "throughput",
    "ttft_ms_p50": "ttft_p50",
    "tpot_ms_p50": "tpot_p50",
}
# Statistic of a latency -> the prefix of its column in the older evaluation.
_STATISTICS = {
    **{"mean": "avg", "p50": "p50", "p90": "p90", "p99": "p99"},
    **{"p99_low": "p99_low", "p99_high": "p99_high"},
}
_DETAILS = {
    "level": "concurrency",
    THROUGHPUT: "output_tps",
    "throughput_completed_tok_s": "completed_only_output_tps",
    "total_tok_s": "total_tps",
    "throughput_req_s": "requests_per_s",
    **{
        f"{name}_ms_{statistic}": f"{label}_{name}_ms"
        for name in ("ttft", "tpot", "itl", "e2e")
        for statistic, label in _STATISTICS.items()
    },
    "requests_completed": "completed",
    "requests_incomplete": "incomplete",
    "requests_errored": "errored",
    "duration_s": "window_s",
}
# Column of complete_metrics.csv -> column of the means over models.
_SYSTEM = {
    "gpu_utilisation_percent": "avg_gpu_util_pct",
    "cpu_utilisation_percent": "avg_cpu_util_pct",
    "kv_cache_usage_percent": "avg_kv_cache_pct",
    "prefix_cache_hit_percent": "avg_prefix_hit_pct",
    "requests_running": "avg_running",
    "requests_waiting": "avg_waiting",
    "server_rss_gib": "avg_rss_gib",
}


def summary_tables(
    complete: pd.DataFrame,
    peaks: pd.DataFrame,
    comparison: pd.DataFrame,
    baseline_of: Mapping[str, str | None],
    parameters: Mapping[str, int],
) -> dict[str, pd.DataFrame]:
    """Return summary, detailed and pcp_summary_stats, by the names of their files.

    `baseline_of`: scenario -> its baseline, None for a baseline itself; `parameters`: model -> its size, for the order.
    """
    return {
        "summary": summary_table(peaks, comparison, parameters),
        "detailed": detailed_table(complete, parameters),
        "pcp_summary_stats": system_summary(
            complete, comparison, peaks, baseline_of, parameters
        ),
    }


def sort_cells(table: pd.DataFrame, parameters: Mapping[str, int]) -> pd.DataFrame:
    """Return a table of cells in the order of every figure: models by size, arms in their order, tiers rising."""
    models = models_by_size(list(table["model"]), parameters)
    keys = [
        (models.index(model), rank_of(scenario), blocks)
        for model, scenario, blocks in table[list(CELL_COLUMNS)].itertuples(
            index=False, name=None
        )
    ]
    return table.iloc[sorted(range(len(keys)), key=keys.__getitem__)].reset_index(
        drop=True
    )


def summary_table(
    peaks: pd.DataFrame, comparison: pd.DataFrame, parameters: Mapping[str, int]
) -> pd.DataFrame:
    """Return one row per cell: its peak, and its differences from the baseline at the model's common level.

    Means are over requests, then over runs, at the peak level (`optimal_concurrency`, the level with the highest mean;
    `bracketed` says whether it lies inside the grid). `..._pct` are per cent of the baseline, each beside its verdict.
    """
    rows = []
    for peak in sort_cells(peaks, parameters).to_dict("records"):
        row = {
            **{
                "model": peak["model"],
                "config": peak["scenario"],
                "cpu_blocks": peak["cpu_blocks"],
            },
            **{"runs": peak["runs"], "max_output_tps": peak[THROUGHPUT]},
            "max_output_tps_low": peak["throughput_low_tok_s"],
            "max_output_tps_high": peak["throughput_high_tok_s"],
            **{"optimal_concurrency": peak["level"], "bracketed": peak["bracketed"]},
            **{
                f"avg_{name}_ms": peak[f"{name}_ms_mean"]
                for name in ("ttft", "tpot", "itl", "e2e")
            },
            "total_completed": peak["requests_completed"],
            "total_incomplete": peak["requests_incomplete"],
            "total_errored": peak["requests_errored"],
        }
        rows.append(row | _differences(comparison, peak))
    return pd.DataFrame(rows)


def _differences(comparison: pd.DataFrame, cell: Mapping[Any, Any]) -> dict[str, Any]:
    same = (comparison[list(CELL_COLUMNS)] == [cell[key] for key in CELL_COLUMNS]).all(
        axis=1
    )
    columns: dict[str, Any] = {"baseline": "", "compared_at": np.nan}
    for metric, name in _COMPARED.items():
        columns |= {f"{name}_pct": np.nan, f"{name}_verdict": ""}
        # The first row of a cell and metric is the one against its baseline.
        for row in (
            comparison[same & (comparison["metric"] == metric)]
            .head(1)
            .to_dict("records")
        ):
            columns |= {"baseline": row["baseline"], "compared_at": row["level"]}
            columns |= {
                f"{name}_pct": row["effect_percent"],
                f"{name}_verdict": row["verdict"],
            }
    return columns


def detailed_table(
    complete: pd.DataFrame, parameters: Mapping[str, int]
) -> pd.DataFrame:
    """Return one row per level and run, with the older evaluation's column names; tps is output tokens per second."""
    table = sort_cells(
        complete.sort_values(["run", "level"], kind="stable"), parameters
    )
    columns = {"scenario": "config", **_DETAILS}
    kept = [
        "model",
        "scenario",
        "cpu_blocks",
        "run",
        *(name for name in _DETAILS if name in table),
        "checks_failed",
    ]
    return table[kept].rename(columns=columns)


def system_summary(
    complete: pd.DataFrame,
    comparison: pd.DataFrame,
    peaks: pd.DataFrame,
    baseline_of: Mapping[str, str | None],
    parameters: Mapping[str, int],
) -> pd.DataFrame:
    """Return means over models, one row per arm and panel; each model at the level where its cells are compared.

    All rows of a panel are means over the same models. For an arm that was measured for fewer models, a further panel
    has these models and all arms that were measured for them. Throughput is given as the geometric mean over models,
    and as that of the ratios to the baseline (`baseline_of`: scenario -> its baseline, None for a baseline itself),
    because the fastest, smallest model would dominate a plain mean; the rest are plain means. `models_missing` lists
    the campaign's models that the panel lacks.
    """
    means = _at_common_levels(complete, comparison, peaks)
    all_models = models_by_size(list(complete["model"]), parameters)
    # The cell of its first model stands for an arm and size.
    by_arm = {
        Cell.from_row(rows.iloc[0].to_dict()): rows.set_index("model").sort_index()
        for _, rows in means.groupby(["scenario", "cpu_blocks"])
    }
    models_of = {arm: frozenset(rows.index) for arm, rows in by_arm.items()}
    rows = []
    for panel in sorted(
        set(models_of.values()), key=lambda models: (-len(models), sorted(models))
    ):
        inside = {
            arm: by_arm[arm].loc[sorted(panel)]
            for arm, models in models_of.items()
            if panel <= models
        }
        missing = [model for model in all_models if model not in panel]
        for arm in sorted(
            inside, key=lambda arm: (rank_of(arm.scenario), arm.cpu_blocks)
        ):
            rows.append(
                {
                    "models": ";".join(models_by_size(list(panel), parameters)),
                    **_means_over_models(inside, arm, baseline_of),
                    "models_missing": ";".join(missing),
                }
            )
    return pd.DataFrame(rows)


def _means_over_models(
    panel: Mapping[Cell, pd.DataFrame],
    arm: Cell,
    baseline_of: Mapping[str, str | None],
) -> dict[str, Any]:
    """The columns of one arm of a panel, whose tables have a row per model."""
    table = panel[arm]
    baseline = baseline_of.get(arm.scenario) or arm.scenario
    match = partner(arm, [other for other in panel if other.scenario == baseline])
    reference = np.nan if match is None else panel[match][THROUGHPUT]
    means = {
        name: table[column].mean(skipna=False)
        for column, name in _SYSTEM.items()
        if column in table
    }
    return {
        "scenario": arm.scenario,
        "cpu_blocks": arm.cpu_blocks,
        "geomean_tps": _geometric_mean(table[THROUGHPUT]),
        "geomean_ratio_to_baseline": _geometric_mean(table[THROUGHPUT] / reference),
        **means,
    }


def _at_common_levels(
    complete: pd.DataFrame, comparison: pd.DataFrame, peaks: pd.DataFrame
) -> pd.DataFrame:
    """Means over runs of every cell at its model's common level; cells without a throughput there are left out."""
    parts = []
    numbers = [THROUGHPUT, *(column for column in _SYSTEM if column in complete)]
    for model, rows in complete.groupby("model", sort=False):
        at = rows[rows["level"] == common_level(comparison, peaks, str(model))]
        parts.append(
            at.groupby(list(CELL_COLUMNS), sort=False)[numbers]
            .mean()
            .dropna(subset=[THROUGHPUT])
            .reset_index()
        )
    return pd.concat(parts, ignore_index=True)


def _geometric_mean(values: pd.Series[float]) -> float:
    return float(np.exp(np.log(np.asarray(values, dtype=float)).mean()))
