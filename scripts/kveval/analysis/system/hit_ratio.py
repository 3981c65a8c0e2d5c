"""The change of the hit share within a level's window, which shows whether the caches were still filling."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from kveval.analysis.levels.noise import batch_count, change_error
from kveval.analysis.system.windows import Window

COLUMNS = ("hit_ratio_drift", "hit_ratio_drift_se")
# Keys of config/metrics.yaml: the share of prompt tokens on the device, and the share of the rest in the tier.
DEVICE, TIER = "prefix_cache_hit_percent", "external_cache_hit_percent"


def drift(percent: Callable[[str, Window], float], window: Window, level: Mapping[str, Any]) -> dict[str, float]:
    """Return the change of the hit share (0 to 1) from the first to the last third, and its standard error, as COLUMNS.

    `percent` reads a key of config/metrics.yaml in a part of the window, NaN where it was not recorded. `level`: the
    row of levels.csv, whose mean latency sets the length of the batches. NaN where a part of the window is not known.
    """

    def parts(count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        edges = np.linspace(*window, count + 1).astype(np.int64).tolist()
        return np.array([_hit_ratio(percent, part) for part in pairwise(edges)])

    thirds = parts(3)
    batches = parts(batch_count((window[1] - window[0]) / 1e9, float(level.get("e2e_ms_mean", np.nan)) / 1000))
    error = change_error(batches) if not np.isnan(batches).any() else np.nan
    return dict(zip(COLUMNS, (float(thirds[2] - thirds[0]), error), strict=True))


def _hit_ratio(percent: Callable[[str, Window], float], part: Window) -> float:
    device = percent(DEVICE, part) / 100
    # The tier is asked only for what the device does not have; without a tier or a lookup it adds nothing.
    return device + (1 - device) * float(np.nan_to_num(percent(TIER, part))) / 100
