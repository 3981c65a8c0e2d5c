"""The cells of a campaign: their names, and the order of models, arms and sizes in every table and figure.

No table library is imported here, because planning a campaign needs the order of the models and should start fast.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kveval.campaign.arm_kinds import ARM_KINDS
from kveval.campaign.cell import CELL_COLUMNS, Cell

if TYPE_CHECKING:
    import pandas as pd

KNOWN_ARMS = tuple(name for kind in ARM_KINDS.values() for name in kind.arms)
"""The arms in the order of tables and figures; arms derived from one of them are placed next to it."""

THROUGHPUT = "throughput_tok_s"


def tables_by_cell(table: pd.DataFrame) -> dict[Cell, pd.DataFrame]:
    """Return the rows of each cell of a table that names cells in CELL_COLUMNS, in its order."""
    if table.empty:
        return {}
    return {
        Cell.from_row(dict(zip(CELL_COLUMNS, key, strict=True))): rows
        for key, rows in table.groupby([*CELL_COLUMNS], sort=False)
    }


def rows_of(table: pd.DataFrame, cell: Cell) -> pd.DataFrame:
    """Return the rows of a cell in any table that names cells in CELL_COLUMNS."""
    mask = (
        (table["model"] == cell.model)
        & (table["scenario"] == cell.scenario)
        & (table["cpu_blocks"] == cell.cpu_blocks)
    )
    return table[mask]


def baseline_of(row: Mapping[Any, Any]) -> Cell | None:
    """Return the cell that a row of a comparison has as its baseline, None where it lacks one."""
    path = row["baseline"]
    return Cell.from_path(path) if isinstance(path, str) and path else None


def partner(cell: Cell, candidates: Sequence[Cell]) -> Cell | None:
    """Return the candidate to compare a cell with: the one of the same size, else the only one; None otherwise."""
    same = [
        other for other in candidates if other.cpu_blocks == cell.cpu_blocks
    ] or candidates
    return same[0] if len(same) == 1 else None


def common_level(
    comparison: pd.DataFrame, peaks: pd.DataFrame, model: str
) -> int | None:
    """Return the level at which most of a model's cells were compared, else the most frequent peak level."""
    for table in (comparison, peaks):
        levels: pd.Series[Any] = table[table["model"] == model]["level"].dropna()
        if len(levels):
            return int(levels.mode().iloc[0])
    return None


def parse_names(joined: Any) -> list[str]:
    """Return the names that a cell of a table lists, such as "errors;steadiness"; none for an empty cell."""
    if not isinstance(joined, str):
        return []
    return [name for name in joined.split(";") if name]


def parse_runs(joined: Any) -> list[int]:
    """Return the runs that a cell of a table lists, such as "1;2;4"; none for an empty cell."""
    return [int(run) for run in parse_names(joined)]


# The runs that comparisons rest on, with the mean over them as text -> that mean, once for each of these comparisons.
_MeansByRuns = dict[tuple[tuple[int, ...], str], list[float]]
# By cell and metric.
_MeansByCell = dict[tuple[Cell, str], _MeansByRuns]
_KEPT_COLUMNS = [*CELL_COLUMNS, "baseline", "metric"] + [
    f"{side}{name}" for side in ("", "baseline_") for name in ("runs_kept", "mean")
]


@dataclass(frozen=True)
class KeptRuns:
    """The runs of a cell that a comparison rests on, and the geometric mean of its metric over them."""

    runs: tuple[int, ...] = ()
    mean: float = math.nan


class KeptRunsOfCells(dict[tuple[Cell, str], KeptRuns]):
    """(cell, metric) -> the runs that its comparison rests on; none of those that were not compared."""

    def __missing__(self, key: tuple[Cell, str]) -> KeptRuns:
        return KeptRuns()


def kept_runs(comparison: pd.DataFrame) -> KeptRunsOfCells:
    """Return the runs of each cell that its comparison with its baseline rests on; of a baseline, those with its arms.

    If arms are compared with different runs of their baseline: those that most of them are compared with.
    """
    kept = KeptRunsOfCells()
    if comparison.empty:
        return kept
    as_arm: _MeansByCell = {}
    as_baseline: _MeansByCell = {}
    for row in comparison[_KEPT_COLUMNS].to_dict("records"):
        _note_kept(as_arm, Cell.from_row(row), row, "")
        baseline = baseline_of(row)
        if baseline is not None:
            _note_kept(as_baseline, baseline, row, "baseline_")
    for key, means_by_runs in (as_baseline | as_arm).items():
        kept[key] = _most_kept(means_by_runs)
    return kept


def _note_kept(
    means: _MeansByCell, cell: Cell, row: Mapping[Any, Any], side: str
) -> None:
    """Note the runs of a cell on one side of a comparison, and their mean."""
    means_by_runs = means.setdefault((cell, row["metric"]), {})
    mean = row[f"{side}mean"]
    if runs := tuple(parse_runs(row[f"{side}runs_kept"])):
        # Of the same runs, a baseline may have been compared at several levels.
        means_by_runs.setdefault((runs, f"{mean:.9g}"), []).append(float(mean))


def _most_kept(means_by_runs: _MeansByRuns) -> KeptRuns:
    if not means_by_runs:
        return KeptRuns()
    most = max(means_by_runs, key=lambda key: (len(means_by_runs[key]), len(key[0])))
    return KeptRuns(most[0], means_by_runs[most][0])


def rank_of(scenario: str) -> tuple[int, str]:
    """Return the sort key of scenarios in every figure and table: the known arms in their order, then by name."""
    root = known_arm(scenario)
    return (KNOWN_ARMS.index(root) if root else len(KNOWN_ARMS), scenario)


def models_by_size(models: Sequence[str], parameters: Mapping[str, int]) -> list[str]:
    """Return the models, each once, by their number of parameters, then by name; those of unknown size last."""
    return sorted(
        dict.fromkeys(models),
        key=lambda model: (parameters.get(model, math.inf), model),
    )


def known_arm(scenario: str) -> str | None:
    """Return the known arm whose name the scenario has, or begins with; the longest of several, None without any."""
    found = [
        name
        for name in KNOWN_ARMS
        if scenario == name or scenario.startswith(f"{name}-")
    ]
    return max(found, key=len, default=None)
