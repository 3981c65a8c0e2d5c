"""Differences from the baseline: intervals with the margin, and an overview of all models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from kveval.campaign.cell import Cell
from kveval.report.data.figures import FigureData
from kveval.report.data.metric_titles import METRIC_TITLES
from kveval.report.data.vocabulary import verdict_of
from kveval.report.figures.axes import (
    GREY,
    PALE,
    NothingToDraw,
    cell_axis,
    cell_name,
    draw_heatmap,
    mark_ends_beyond,
    model_rows,
    panels,
)
from kveval.report.figures.names import figure
from kveval.tables.cells import baseline_of, rows_of
from kveval.verdict import verdict_words as words
from kveval.verdict.verdicts import METRICS

VERDICT_COLOURS = {
    words.BETTER: "#0072B2",
    words.WORSE: "#D55E00",
    words.PARITY: "#009E73",
}
# Verdicts on what idle arms cost; they have squares, and are in the key where there are any.
_IDLE_COLOURS = {words.WORSE_IDLE: "#D55E00", words.IDLE: "#CC79A7"}
_SHOWN = ("throughput_tok_s", "ttft_ms_p50", "e2e_ms_p50")
_NO_COMPARISON = "no comparison: the campaign has no arm with a baseline"


@figure(
    title="How far is each arm from its baseline, and how sure is it?",
    section="across models",
    useful="wide",
    narrow=True,
    caption=(
        "Effects relative to the baseline of the same model; the grey band is the "
        "margin within which a difference does not matter. Where an interval extends "
        "beyond the panel, an arrow stands at its edge. Where there is no verdict, "
        "the comparison table has the reason."
    ),
)
def effect_plot(data: FigureData) -> Figure:
    """The effect of every arm against its baseline, with interval and margin; hollow where there is no verdict."""
    metrics = [name for name in _SHOWN if name in set(data.comparison["metric"])]
    if not metrics:
        raise NothingToDraw(_NO_COMPARISON)
    arms = {model: _arms_of(data, model) for model in data.models}
    tables = {metric: _against_baselines(data, metric) for metric in metrics}
    shown = pd.concat(tables.values())
    shown = shown[np.isfinite(shown["effect_percent"])]
    handles = _key(shown)
    if np.isfinite(shown["low_percent"]).any():
        handles.append(Line2D([], [], color=PALE, label="interval over runs"))
    figure, grid = model_rows(
        data, len(metrics), cells=lambda model: arms[model], handles=handles
    )
    for column, (metric, table) in zip(grid.T, tables.items(), strict=True):
        widest = _widest(table, data.margin)
        for axes, model in zip(column, data.models, strict=True):
            cells = arms[model]
            axes.axvspan(
                -100 * data.margin,
                100 * data.margin,
                color="#000000",
                alpha=0.07,
                linewidth=0,
            )
            axes.axvline(0, color=GREY, linewidth=0.9)
            axes.set_xlim(-widest, widest)
            for place, cell in enumerate(cells):
                rows = rows_of(table, cell)
                if len(rows) and np.isfinite(rows.iloc[0]["effect_percent"]):
                    _effect(axes, place, rows.iloc[0])
            cell_axis(axes, cells, labels=data.narrow or metric == metrics[0])
            axes.set_title(
                f"{model}, {data.level_unit.label(data.common_level(model))}"
                if metric == metrics[0]
                else ""
            )
            if data.narrow or model == data.models[-1]:
                better = "right" if METRICS[metric] else "left"
                axes.set_xlabel(
                    f"{METRIC_TITLES[metric]}: effect,\n% of baseline (better: {better})"
                )
    return figure


def _widest(table: pd.DataFrame, margin: float) -> float:
    """Half the width of an axis that shows every effect of a table, in per cent; the same for all models.

    Very wide intervals may extend beyond the axis.
    """
    effects = float(table["effect_percent"].abs().max())
    intervals = float(
        np.nanmax(
            table[["low_percent", "high_percent"]].abs().to_numpy(dtype=float),
            initial=0.0,
        )
    )
    return float(
        np.nanmax(
            [
                250 * margin,
                1.05 * effects,
                min(1.05 * intervals, max(2.5 * effects, 100)),
            ]
        )
    )


def _against_baselines(data: FigureData, metric: str) -> pd.DataFrame:
    """The comparisons of arms with baselines, without those of arms with each other."""
    table = data.comparison[data.comparison["metric"] == metric]
    baselines = [baseline_of(row) for row in table.to_dict("records")]
    return table[
        [cell is None or cell.scenario in data.baselines for cell in baselines]
    ]


def _is_arm(data: FigureData, cell: Cell) -> bool:
    return (
        cell.scenario not in data.baselines
        or cell.scenario in data.intermediate_baselines
    )


def _arms_of(data: FigureData, model: str) -> list[Cell]:
    return [cell for cell in data.cells_of(model) if _is_arm(data, cell)]


def _key(shown: pd.DataFrame) -> list[Line2D]:
    """The entries of the legend for the verdicts of these rows."""
    verdicts = set(shown["verdict"])
    named = {
        **{verdict: verdict_of({"verdict": verdict}) for verdict in VERDICT_COLOURS},
        words.INCONCLUSIVE: verdict_of({"verdict": words.INCONCLUSIVE}),
        **{verdict: verdict for verdict in _IDLE_COLOURS},
    }
    handles = [
        Line2D([], [], label=label, linestyle="", **_mark(verdict))
        for verdict, label in named.items()
        if verdict in verdicts
    ]
    if verdicts - named.keys():
        style = _mark(words.NOT_ASSESSED)
        handles.append(Line2D([], [], label="no verdict", linestyle="", **style))
    return handles


def _mark(verdict: str) -> dict[str, Any]:
    """The mark of an effect: a square for an idle arm, hollow where there is no verdict."""
    colours = VERDICT_COLOURS | _IDLE_COLOURS
    colour = colours.get(verdict, PALE)
    stated = verdict in (*colours, words.INCONCLUSIVE)
    return {
        "color": colour,
        "marker": "s" if verdict in _IDLE_COLOURS else "o",
        "markerfacecolor": colour if stated else "white",
    }


def _effect(axes: Axes, place: int, row: pd.Series[float]) -> None:
    mark = _mark(str(row["verdict"]))
    interval = (row["low_percent"], row["high_percent"])
    if np.isfinite(interval[0]):
        axes.plot(
            # A line to an infinite end would not be drawn at all.
            np.clip(interval, *axes.get_xlim()),
            [place, place],
            color=mark["color"],
            linewidth=1.8,
        )
        mark_ends_beyond(axes, place, interval, mark["color"])
    axes.plot(row["effect_percent"], place, **mark)


@figure(
    title="Which arm pays for which model?",
    section="across models",
    useful="wide",
    narrow=True,
    caption=(
        "Difference from the baseline in per cent of the baseline, at the level where "
        "the model's cells are compared. Coloured: the difference has a verdict. A "
        "number on grey describes these runs only. Where there is no number, nothing "
        "was compared."
    ),
)
def performance_delta_heatmap_all(data: FigureData) -> Figure:
    """The effect of every arm on every model, coloured where it has a verdict; a number alone where it has none."""
    metrics = [name for name in _SHOWN if name in set(data.comparison["metric"])]
    cells = [cell for cell in data.arms if _is_arm(data, cell)]
    if not metrics or not cells:
        raise NothingToDraw(_NO_COMPARISON)
    shown = {metric: _effects(data, metric, cells) for metric in metrics}
    if not any(decided.any() for _, decided in shown.values()):
        raise NothingToDraw("no comparison has a verdict")
    figure, grid = panels(data, (1, len(metrics)), 0.3 * len(cells) + 1.1)
    for axes, metric in zip(grid[0], metrics, strict=True):
        value, decided = shown[metric]
        text = np.vectorize(_signed, otypes=[object])(value)
        labelled = data.narrow or metric == metrics[0]
        draw_heatmap(
            axes,
            np.where(decided, value, np.nan),
            text,
            (data.models, [cell_name(cell) if labelled else "" for cell in cells]),
            widest=max(float(np.nanmax(np.abs(value))), 200 * data.margin),
            # Blue is better: colour-blind readers could not distinguish red from green.
            cmap="RdBu" if METRICS[metric] else "RdBu_r",
        )
        axes.set_title(METRIC_TITLES[metric])
        axes.set_xlabel("% of baseline (blue: better)")
    return figure


def _signed(value: float) -> str:
    """A percentage as a whole number with its sign; nothing for NaN."""
    if np.isnan(value):
        return ""
    return f"{value:+.0f}" if np.isfinite(value) and round(value) else "0"


def _effects(
    data: FigureData, metric: str, cells: Sequence[Cell]
) -> tuple[np.ndarray, np.ndarray]:
    """Effects in per cent, cells x models, and whether each has a verdict."""
    table = _against_baselines(data, metric)
    rows = {Cell.from_row(row): row for row in table.to_dict("records")}
    shape = len(cells), len(data.models)
    effects, decided = np.full(shape, np.nan), np.zeros(shape, dtype=bool)
    for place, cell in enumerate(cells):
        for at, model in enumerate(data.models):
            row = rows.get(cell.on(model))
            if row is not None:
                effects[place, at] = row["effect_percent"]
                decided[place, at] = row["verdict"] in words.DECIDED
    return effects, decided
