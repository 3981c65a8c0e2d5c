"""The campaign's tables of levels, peaks and comparisons as files: one read with its types, those of all cells joined.

Jobs that only read or join tables import nothing of what made them, which takes longer than the reading.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from kveval.campaign.cell import CELL_COLUMNS
from kveval.host.errors import Failure

SAMPLES, NOTES = "pcp_samples", "pcp_notes"
"""Columns of a level: samples of the recording in its window; what is to be known about its system metrics."""
BY_INSTANCE = "_by_instance"
"""End of the names of columns with the values of a metric's instances, as text."""
PREDICTED_TEXTS = ("predicted_curve", "predicted_not")
"""Columns of a level: the predicted hit share by tier size, see `report.data.hits.read_curve`; why there is no prediction."""
_TEXT = (
    *(
        "checks_failed",
        "checks_warned",
        "checks_noted",
        "checks_findings",
        NOTES,
        "baseline",
        "reason",
        "grounds",
        "findings",
        "exclusions",
        "measurement",
    ),
    *(
        "plateau",
        "selection",
        "not_reached",
        "configuration",
        "run_started",
        "run_finished",
    ),
    *(
        "hardware",
        "guidellm_version",
        "indication",
        "levels_compared",
        "method_hash",
        "verdict",
        "panel",
        "place",
    ),
    *(
        "missing",
        "bound",
        "goodput_limits",
        "gpu_throttled",
        "workload",
        "activity",
        "server_build",
        "arm_settings",
        "conditions",
    ),
    *(
        "qualifier",
        "family",
        "runs_kept",
        "baseline_runs_kept",
        "latencies_unknown",
        *PREDICTED_TEXTS,
    ),
)


class TablesError(Failure):
    """Tables of cells that do not belong together."""


def read_table(path: Path) -> pd.DataFrame:
    """Read a CSV of levels, peaks or verdicts with its types: checks as text, exercised as True, False or missing."""
    header = pd.read_csv(path, nrows=0).columns
    text = [
        name
        for name in header
        if name in _TEXT or name.endswith(BY_INSTANCE) or name.startswith("basis_")
    ]
    table = pd.read_csv(path, dtype=dict.fromkeys(text, "str"))
    table[text] = table[text].fillna("")
    if "exercised" in table:
        table["exercised"] = table["exercised"].astype("boolean")
    for name in ("window_start", "window_end"):
        if name in table:
            table[name] = pd.to_datetime(table[name], utc=True, format="ISO8601")
    # A copy in one block: pandas warns about tables that grew column by column.
    return table.copy()


def collect_tables(
    levels: Sequence[Path], peaks: Sequence[Path], catalogue: Mapping[str, Any]
) -> dict[str, pd.DataFrame]:
    """Return the tables over all cells: complete_metrics, peak_throughput_all, pcp_metrics_peak.

    Rows are in the cells' order. Raises TablesError when a cell appears twice.
    """
    complete = pd.concat([read_table(path) for path in levels], ignore_index=True)
    peak = pd.concat([read_table(path) for path in peaks], ignore_index=True)
    twice = peak[peak.duplicated(list(CELL_COLUMNS))]
    if len(twice):
        raise TablesError(
            f"cells appear twice: {sorted(set(map(tuple, twice[list(CELL_COLUMNS)].to_numpy().tolist())))}"
        )
    metrics = [name for name in catalogue if name in complete]
    return {
        "complete_metrics": complete,
        "peak_throughput_all": peak,
        "pcp_metrics_peak": peak[[*CELL_COLUMNS, "level", "runs", *metrics, SAMPLES]],
    }
