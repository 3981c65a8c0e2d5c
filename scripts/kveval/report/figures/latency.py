"""Latency at the level where a model's cells are compared."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from kveval.report.data.figures import FigureData
from kveval.report.figures.axes import cell_axis, logarithmic, model_rows, seconds_or_ms, thousands
from kveval.report.figures.level_axes import geometric_interval

_QUANTITIES = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "end-to-end latency"}


def latency_comparison_all(data: FigureData) -> Figure:
    """TTFT, TPOT and end-to-end latency of every cell at its model's common level."""
    handles = [
        Line2D([], [], color="#444444", marker="o", label="median"),
        Line2D([], [], color="#444444", marker="o", markerfacecolor="white", label="P90"),
    ]
    figure, grid = model_rows(data, len(_QUANTITIES), width=3.4, cells=data.cells_of, handles=handles)
    for column_of_axes, (name, title) in zip(grid.T, _QUANTITIES.items(), strict=True):
        at = [_at_common_level(data, model) for model in data.models]
        unit, size = seconds_or_ms(max(table[f"{name}_ms_p90"].max() for table in at))
        for axes, model, table in zip(column_of_axes, data.models, at, strict=True):
            cells, shown = data.cells_of(model), []
            for place, cell in enumerate(cells):
                rows, colour = data.rows(table, model, cell), data.look(cell).colour
                for quantile, aside, face in (("p50", -0.16, colour), ("p90", 0.16, "white")):
                    column = f"{name}_ms_{quantile}"
                    value = rows[column].mean() / size
                    for _, low, high in geometric_interval(rows, column).itertuples():
                        axes.plot([low / size, high / size], [place + aside] * 2, color=colour, linewidth=1.3)
                    axes.plot(value, place + aside, "o", color=colour, markerfacecolor=face, markersize=4)
                    shown += list(rows[column] / size)
            _latency_axis(axes, shown)
            cell_axis(axes, cells, labels=name == "ttft")
            axes.set_title(f"{model}, {data.unit.at(data.common_level(model))}" if name == "ttft" else " ")
            axes.set_xlabel(f"{title}, {unit}" if model == data.models[-1] else "")
    return figure


def _at_common_level(data: FigureData, model: str) -> pd.DataFrame:
    return data.levels[(data.levels["model"] == model) & (data.levels["level"] == data.common_level(model))]


def _latency_axis(axes: Axes, values: Sequence[float]) -> None:
    """Start at zero, or use a logarithmic axis where the runs span more than a decade and a half.

    Intervals of few, scattered runs may leave the panel.
    """
    observed = [value for value in values if np.isfinite(value) and value > 0]
    if not observed:
        # Reports that keep no such latency leave their panel empty.
        axes.set_xlim(0, 1)
    elif max(observed) > 30 * min(observed):
        logarithmic(axes.xaxis)
        axes.set_xlim(min(observed) / 1.5, 1.5 * max(observed))
    else:
        axes.set_xlim(0, min(1.05 * axes.dataLim.x1, 1.5 * max(observed)))
        thousands(axes.xaxis)
