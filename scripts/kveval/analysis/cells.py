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
        Cell.from_row(rows.iloc[0].to_dict()): rows
        for _, rows in table.groupby([*CELL_COLUMNS], sort=False)
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


@dataclass(frozen=True)
class KeptRuns:
    """The runs of a cell that a comparison rests on, and the geometric mean of its metric over them."""

    runs: tuple[int, ...] = ()
    mean: float = math.nan


def kept_runs(comparison: pd.DataFrame, cell: Cell, metric: str) -> KeptRuns:
    """Return the runs of a cell that its comparison with its baseline rests on; of a baseline, those with its arms.

    If arms are compared with different runs of their baseline: those that most of them are compared with. No runs where
    a cell was not compared.
    """
    if "runs_kept" not in comparison:
        return KeptRuns()
    of_metric = comparison[comparison["metric"] == metric]
    rows, side = rows_of(of_metric, cell), ""
    if rows.empty:
        rows, side = of_metric[of_metric["baseline"] == cell.path], "baseline_"
    means_by_runs: dict[tuple[tuple[int, ...], str], list[float]] = {}
    for joined, mean in zip(rows[f"{side}runs_kept"], rows[f"{side}mean"], strict=True):
        if runs := tuple(parse_runs(joined)):
            # Of the same runs, a baseline may have been compared at several levels.
            means_by_runs.setdefault((runs, f"{mean:.9g}"), []).append(float(mean))
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
