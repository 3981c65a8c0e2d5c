"""Averages over models: geometric means of ratios to the baseline, over models that have every arm.

A mean over all cells that exist would compare different models: an arm without one large model would look faster.
Every average names the missing cells.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from kveval.campaign.cell import Cell
from kveval.estimators.intervals import mean_interval, percent

ARM = ("scenario", "cpu_blocks")
_COLUMNS = [
    *ARM,
    "metric",
    "effect_percent",
    "low_percent",
    "high_percent",
    "models",
    "panel",
    "missing",
]


def averages(comparison: pd.DataFrame, alpha: float = 0.05) -> pd.DataFrame:
    """Return one row per arm and metric over the balanced panel: the models in which every arm was compared.

    `comparison`: rows of comparison.csv. `effect_percent` is the geometric mean of the models' ratios; its interval is
    Student's t over models on the ln scale: it shows how much models differ, not the error of each; NaN for one model.
    `panel` lists the models, `missing` the cells without a usable comparison, as MODEL/SCENARIO/CPU_BLOCKS.
    """
    rows = []
    for metric, table in comparison.groupby("metric", sort=False):
        effects = _effects(table)
        panel = effects.dropna(axis="columns")
        missing = [
            Cell(str(model), str(scenario), int(blocks)).path
            for model in effects
            for scenario, blocks in effects.index[effects[model].isna()]
        ]
        for arm, values in panel.iterrows():
            logs = values.to_numpy(dtype=np.float64)
            low, high = (100 * (ratio - 1) for ratio in mean_interval(logs, 1 - alpha))
            scenario, blocks = arm if isinstance(arm, tuple) else (arm, 0)
            rows.append(
                {
                    **{"scenario": scenario, "cpu_blocks": blocks, "metric": metric},
                    "effect_percent": percent(logs.mean()) if len(logs) else np.nan,
                    **{"low_percent": low, "high_percent": high, "models": len(logs)},
                    "panel": ";".join(map(str, panel.columns)),
                    "missing": ";".join(missing),
                }
            )
    return pd.DataFrame(rows, columns=_COLUMNS)


def _effects(table: pd.DataFrame) -> pd.DataFrame:
    """Return ln of the ratio to the baseline, arms x models; NaN where there is none that passed its checks.

    Raises ValueError when a cell is compared twice.
    """
    usable = (table["verdict"] != "not assessed") | table["replicate"]
    twice = table[table.duplicated(["model", *ARM])]
    if len(twice):
        raise ValueError(
            f"cells are compared twice: {sorted(set(twice['model'] + '/' + twice['scenario']))}"
        )
    logs = table.assign(log=np.log1p(table["effect_percent"].where(usable) / 100))
    arms, models = table[list(ARM)].drop_duplicates(), table["model"].unique()
    return logs.pivot(index=list(ARM), columns="model", values="log").reindex(
        index=pd.MultiIndex.from_frame(arms), columns=models
    )
