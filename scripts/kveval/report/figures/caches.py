"""Figures of the caches: working set, usage, hits, traffic."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from kveval.campaign.cell import Cell
from kveval.campaign.size import Size
from kveval.estimators.correlations import recorded_columns
from kveval.report.data.figures import FigureData
from kveval.report.data.hits import ServedShare, read_curve, read_served
from kveval.report.data.level_units import LevelUnit
from kveval.report.data.run_facts import Tiers, tier_sizes
from kveval.report.figures.axes import (
    BOX,
    GREY,
    Array,
    NothingToDraw,
    cell_axis,
    level_axis,
    lines_over_levels,
    make_logarithmic,
    model_panels,
    model_rows,
    tier_size_axis,
    write_not_recorded,
)
from kveval.report.figures.names import figure
from kveval.tables.cells import rows_of

_DEVICE, _TIER = "#0072B2", "#A34700"
# What became of a prompt token; hatched, to be distinguishable without colour, by straight lines: a pattern of dots makes
# a drawing ten times as large. After those that were served, the stages at which others were lost, the last one first.
_SOURCES: dict[str, dict[str, Any]] = {
    "device cache": {"facecolor": _DEVICE},
    "CPU tier": {"facecolor": "#E69F00", "hatch": "///"},
    "store behind it": {"facecolor": "#009E73", "hatch": "|||"},
}
_LOST: dict[str, dict[str, Any]] = {
    "found, not delivered": {"facecolor": "#333333", "hatch": "+++"},
    "held, not found": {"facecolor": "#D55E00", "hatch": "xxx"},
    "held by another server": {"facecolor": "#CC79A7", "hatch": "---"},
    "came before, not held": {"facecolor": "#A6A6A6", "hatch": "\\\\\\"},
    "new": {"facecolor": "#EDEDED"},
}
# What is lost between a stage and the next one, with one server and with several.
_LOST_FROM = {
    "found": "found, not delivered",
    "held": "held, not found",
    "offered": "came before, not held",
}
_LOST_ON_ROUTES = {
    "found": "found, not delivered",
    "routed": "held, not found",
    "held": "held by another server",
    "offered": "came before, not held",
}
# Where nothing says why a token was computed.
_COMPUTED: dict[str, dict[str, Any]] = {"computed": {"facecolor": "#D9D9D9"}}
_PARTS = {
    name: {"edgecolor": "white", "linewidth": 0, **style}
    for name, style in (_SOURCES | _LOST | _COMPUTED).items()
}


@figure(
    title="Where do the prompt tokens come from, and where are hits lost?",
    section="offload",
    narrow=True,
    caption=(
        "What became of the prompt tokens at the level where cells are compared, "
        "means over a cell's runs. Where a part came before and was not held, the "
        "caches are too small for it, as computed from the requests that were sent. "
        "Where the software does not distinguish hits from the CPU tier's, they count "
        "as its hits. A tier helps where it replaces computing, not where it replaces "
        "hits on the device."
    ),
)
def hit_rates_by_tier(data: FigureData) -> Figure:
    """Shares of the prompt tokens by where they came from, or else where they were lost, at the level where a model's
    cells are compared.

    From the servers' own counters over whole levels, means over runs; where no run has them, from the recording.
    """
    table = data.waterfall
    counted = len(table) and bool(
        table[table["stage"] == "found"]["tokens"].notna().any()
    )
    if not counted and not recorded_columns(data.levels, ["prefix_cache_hit_percent"]):
        raise NothingToDraw("neither counted nor recorded: hits of the prefix cache")
    shares = {
        cell: _counted_parts(rows_of(table, cell))
        if counted
        else _recorded_parts(data.levels_of(cell), data.common_level(model))
        for model in data.models
        for cell in data.cells_of(model)
    }
    drawn = {name for parts in shares.values() for name in parts if parts[name] > 0}
    handles = [
        Patch(**style, label=name) for name, style in _PARTS.items() if name in drawn
    ]
    figure, grid = model_rows(data, 1, cells=data.cells_of, handles=handles)
    for axes, model in zip(grid[:, 0], data.models, strict=True):
        cells, level = data.cells_of(model), data.common_level(model)
        for place, cell in enumerate(cells):
            if shares[cell]:
                _stack(axes, place, shares[cell])
            else:
                axes.text(1, place, "not recorded", va="center", fontsize=8, color=GREY)
        cell_axis(axes, cells)
        axes.set_xlim(0, 100)
        axes.set_title(f"{model}, {data.level_unit.label(level)}")
    basis = (
        "of the whole level, warm-up included"
        if counted
        else "in the measurement window"
    )
    grid[-1, 0].set_xlabel(f"% of prompt tokens {basis}")
    return figure


def _counted_parts(rows: pd.DataFrame) -> dict[str, float]:
    """Return the parts of a cell's bar from its stages, per cent; none where hits were not counted.

    Hits that nothing distinguishes from the CPU tier's count as its hits. Losses are left out where a stage is not
    known, or has more than the one before.
    """
    percents = {
        (row["stage"], row["place"]): float(row["percent_of_prompts"])
        for row in rows.to_dict("records")
    }
    known = {place: value for place, value in percents.items() if not np.isnan(value)}
    if ("found", "") not in known:
        return {}
    served = known.get(("delivered", ""), known["found", ""])
    device = known.get(("delivered", "device"), known["found", "device"])
    behind = served - device
    store = min(known.get(("found", "store"), 0.0), behind)
    parts = {
        "device cache": device,
        "CPU tier": behind - store,
        "store behind it": store,
    }
    lost_from = _LOST_ON_ROUTES if ("routed", "") in percents else _LOST_FROM
    explained = all((stage, "") in known for stage in lost_from)
    if not explained or rows["excess_points"].notna().any():
        return parts | {"computed": 100 - served}
    reached = served
    for stage, name in lost_from.items():
        # Within the tolerance a stage may have more than the one before it.
        above = max(reached, known[stage, ""])
        parts[name] = above - reached
        reached = above
    return parts | {"new": 100 - reached}


def _recorded_parts(levels: pd.DataFrame, level: int | None) -> dict[str, float]:
    """Return the parts of a cell's bar from the recording of a level; none where it has no hits."""
    at = levels[levels["level"] == level]
    # Hits behind the device are % of the tokens that the device lacked.
    device = at["prefix_cache_hit_percent"]
    behind = at["external_cache_hit_percent"].fillna(0.0) * (100 - device) / 100
    if device.isna().all():
        return {}
    means = {"device cache": float(device.mean()), "CPU tier": float(behind.mean())}
    return means | {"store behind it": 0.0, "computed": 100 - sum(means.values())}


def _stack(axes: Axes, place: int, parts: Mapping[str, float]) -> None:
    left = 0.0
    for name, percent in parts.items():
        share = max(percent, 0.0)
        axes.barh(place, share, left=left, height=0.7, **_PARTS[name])
        if share >= 3:
            axes.text(
                left + share / 2,
                place,
                f"{share:.0f}",
                ha="center",
                va="center",
                fontsize=7.5,
                bbox=BOX,
            )
        left += share


@figure(
    title="Does a tier of each size serve what it should?",
    section="reuse",
    caption=(
        "Share of the prompt tokens that device and tier serve together, at the level "
        "where cells are compared, against the size of the tier. Lines are computed "
        "from the requests that were sent, means over an arm's sizes and runs, "
        "crosses for a size's own runs, which differ in how many requests they sent. "
        "Where a line is a band, it is the range for software that evicts blocks "
        "before the tier is full. Markers are what the servers counted, means over a "
        "cell's runs; where there are several, their bars are the 95 % intervals of "
        "the difference from the computed share of the same requests."
    ),
)
def reuse_by_tier_size(data: FigureData) -> Figure:
    """Hit share of device and tier against the tier's size, predicted and measured."""
    levels = {model: data.common_level(model) for model in data.models}
    shares = [
        share
        for share in read_served(data.hits)
        if share.level == levels[share.cell.model]
    ]
    sized = [share for share in shares if 0 < share.tier_blocks < np.inf]
    if not sized:
        reasons = (
            data.predicted_hits.get("predicted_not", pd.Series(dtype=str))
            .replace("", np.nan)
            .dropna()
            .mode()
        )
        raise NothingToDraw(
            f"not computed: {reasons.iloc[0] if len(reasons) else 'shares of tiers of known size'}"
        )
    sized_arms = {share.cell.arm for share in sized}
    cells = [cell for cell in data.arms if cell.arm in sized_arms]
    handles = [
        Line2D([], [], color=GREY, linestyle="--", label="device alone, computed")
    ]
    figure, shown = model_panels(data, 3.1, handles=handles, legend=cells)
    for panel in shown:
        of_model = [share for share in sized if share.cell.model == panel.model]
        if of_model:
            _sizes_axis(panel.axes, data, of_model)
            _computed(panel.axes, data, of_model)
            _counted_shares(panel.axes, data, of_model)
            panel.axes.axhline(
                fmean(share.device_predicted for share in of_model),
                color=GREY,
                linestyle="--",
            )
        else:
            write_not_recorded(panel.axes)
        panel.axes.set_ylim(0, 103)
        panel.axes.set_title(
            f"{panel.model}, {data.level_unit.label(levels[panel.model])}"
        )
        panel.axes.set_ylabel("% of prompt tokens\nfrom caches" if panel.left else "")
    return figure


def _computed(axes: Axes, data: FigureData, shares: Sequence[ServedShare]) -> None:
    """One line per scenario: the mean over its cells and runs, which differ in how many requests they sent."""
    for scenario in dict.fromkeys(share.cell.scenario for share in shares):
        cells = [share for share in shares if share.cell.scenario == scenario]
        rows = pd.concat([rows_of(data.predicted_hits, share.cell) for share in cells])
        curves = [
            read_curve(text)
            for text in rows[rows["level"] == cells[0].level]["predicted_curve"]
            if text
        ]
        curves = [curve for curve in curves if len(curve)]
        if not curves:
            continue
        sizes = np.unique(
            np.concatenate([axes.get_xlim(), *(curve.index for curve in curves)])
        )
        low, high = (_mean_curve(curves, end, sizes) for end in ("low", "high"))
        colour = data.style_of(cells[0].cell).colour
        axes.plot(sizes, (low + high) / 2, color=colour, linewidth=1.2)
        axes.fill_between(sizes, low, high, color=colour, alpha=0.25, linewidth=0)


def _mean_curve(curves: Sequence[pd.DataFrame], end: str, sizes: Array) -> Array:
    """The mean over curves of one end of their hit shares, in per cent, interpolated at sizes in cpu_blocks."""
    values = [np.interp(sizes, curve.index, curve[end]) for curve in curves]
    mean: Array = 100 * np.mean(values, axis=0)
    return mean


def _counted_shares(
    axes: Axes, data: FigureData, shares: Sequence[ServedShare]
) -> None:
    for share in shares:
        style = data.style_of(share.cell).line_style() | {"linestyle": "none"}
        axes.plot(
            share.tier_blocks,
            fmean(share.predicted),
            "x",
            color=style["color"],
            zorder=2,
            clip_on=False,
        )
        half = None if np.isnan(share.half_width) else share.half_width
        axes.errorbar(
            share.tier_blocks,
            share.measured,
            yerr=half,
            capsize=3,
            zorder=3,
            clip_on=False,
            **style,
        )


def _sizes_axis(axes: Axes, data: FigureData, shares: Sequence[ServedShare]) -> None:
    """Sizes of tiers, from a quarter of the smallest one to 2.5 times the largest."""
    sizes = [share.tier_blocks for share in shares]
    axes.set_xscale("log")
    axes.set_xlim(min(sizes) / 4, 2.5 * max(sizes))
    run = next(run for run in data.runs if run.cell.model == shares[0].cell.model)
    tier_size_axis(axes, run.kv_bytes_per_token)


@figure(
    title="Do the prefixes fit into the caches?",
    section="tiers",
    useful="several",
    caption=(
        "Tokens of the distinct prefixes of the workload at each level, against the "
        "tokens that the device's KV cache and, where there is one, the CPU tier "
        "hold. Where the prefixes fit the device, a tier has nothing to add; a tier "
        "smaller than the device's cache holds little that the device does not."
    ),
)
def working_set(data: FigureData) -> Figure:
    """Tokens of the distinct prefixes at each level against what the device and the CPU tiers hold."""
    capacities = [
        size for tiers in data.tiers.values() for size in (tiers.device, tiers.cpu)
    ]
    if not any(size > 0 for size in capacities):
        raise NothingToDraw("the runs do not say what their caches hold")
    if not any(
        tokens > 0
        for tiers in data.tiers.values()
        for tokens in tiers.working_set.values()
    ):
        raise NothingToDraw(
            "the workload has no shared prefixes, or the runs do not say how many"
        )
    handles = [
        Line2D([], [], color="#333333", marker="o", label="distinct prefixes"),
    ]
    if any(tiers.device > 0 for tiers in data.tiers.values()):
        handles.append(Line2D([], [], color=_DEVICE, linewidth=2, label="device cache"))
    if any(tiers.cpu > 0 for tiers in data.tiers.values()):
        label = "CPU tier (by its blocks)"
        handles.append(Line2D([], [], color=_TIER, linestyle="--", label=label))
    figure, shown = model_panels(data, 2.6, handles=handles)
    sizes = tier_sizes(data.runs)
    for panel in shown:
        of_model = {
            cell: tiers
            for cell, tiers in data.tiers.items()
            if cell.model == panel.model
        }
        _capacities(panel.axes, of_model, sizes, data.level_unit)
        panel.axes.set_title(panel.model)
        panel.axes.set_ylabel("tokens" if panel.left else "")
    low, high = (
        min(panel.axes.dataLim.y0 for panel in shown),
        max(panel.axes.dataLim.y1 for panel in shown),
    )
    for panel in shown:
        make_logarithmic(panel.axes.yaxis)
        panel.axes.set_ylim(low / 1.6, high * 1.8)
    return figure


def _capacities(
    axes: Axes,
    cells: Mapping[Cell, Tiers],
    sizes: Mapping[Cell, Size],
    unit: LevelUnit,
) -> None:
    sets = {
        level: tokens
        for tiers in cells.values()
        for level, tokens in tiers.working_set.items()
    }
    levels = sorted(sets)
    axes.set_yscale("log")
    if any(sets.values()):
        axes.plot(levels, [sets[level] for level in levels], "o-", color="#333333")
        _label(
            axes,
            0.01,
            sets[levels[0]],
            f"prefixes: {sets[levels[0]]:,.0f}",
            "#333333",
            ha="left",
        )
    if levels:
        level_axis(axes, levels, unit.axis)
    held = sorted(
        {
            (tiers.cpu, str(sizes.get(cell, f"{cell.cpu_blocks:,} blocks")))
            for cell, tiers in cells.items()
            if tiers.cpu > 0
        }
    )
    devices = [tiers.device for tiers in cells.values() if tiers.device > 0]
    shown = {min(devices, default=0), max(devices, default=0)} - {0}
    lines = {*shown, *(tokens for tokens, _ in held)}
    for rank, (tokens, size) in enumerate(held):
        axes.axhline(
            tokens, color=_TIER, linestyle=("--", ":", "-.")[rank % 3], linewidth=1.4
        )
        _label(axes, 0.6, tokens, f"{size}: {tokens:,.0f}", _TIER, lines)
    for device in sorted(shown):
        axes.axhline(device, color=_DEVICE, linewidth=2)
        _label(axes, 0.99, device, f"device: {device:,.0f}", _DEVICE, lines)


def _label(
    axes: Axes,
    at: float,
    tokens: float,
    text: str,
    colour: str,
    lines: Collection[float] = (),
    *,
    ha: str = "right",
) -> None:
    """Write `text` above a horizontal line, or below it where another one of `lines` is close above.

    `at` is a share of the axis's width.
    """
    crowded = any(1 < other / tokens < 1.5 for other in lines)
    axes.annotate(
        text,
        (at, tokens),
        xycoords=("axes fraction", "data"),
        xytext=(0, -3 if crowded else 3),
        textcoords="offset points",
        ha=ha,
        va="top" if crowded else "bottom",
        fontsize=7.5,
        color=colour,
        bbox=BOX,
    )


@figure(
    title="How full is the device's KV cache?",
    section="system",
    useful="several",
    caption=(
        "Share of the device's KV blocks in use by requests, mean over the level's "
        "window; blocks that only wait to be reused do not count. Values are means "
        "over a cell's runs; where there are several, upright bars span them."
    ),
)
def pcp_kv_cache_usage(data: FigureData) -> Figure:
    """KV-cache usage of the device against concurrency."""
    return lines_over_levels(
        data, {"kv_cache_usage_percent": "KV cache in use, %"}, limits=(0, 105)
    )


@figure(
    title="How do hit rates change with load?",
    section="offload",
    useful="several",
    caption=(
        "Device: share of prompt tokens found in its prefix cache. External: of the "
        "tokens that the device did not have, the share found in the tier behind it. "
        "Values are means over a cell's runs; where there are several, upright bars "
        "span them."
    ),
)
def pcp_prefix_cache_hits(data: FigureData) -> Figure:
    """Hit shares of the device's prefix cache and of the tier behind it against concurrency."""
    columns = {
        "prefix_cache_hit_percent": "device hits, % of\nprompt tokens",
        "external_cache_hit_percent": "external hits, % of\ntokens asked for there",
    }
    return lines_over_levels(data, columns, limits=(0, 105))


@figure(
    title="How much KV cache moves to and from the tier?",
    section="offload",
    useful="several",
    caption=(
        "KV cache stored to and loaded from the CPU tier, means over the level's "
        "window. Stores without loads cost time and give nothing back. Values are "
        "means over a cell's runs; where there are several, upright bars span them."
    ),
)
def pcp_offload_traffic(data: FigureData) -> Figure:
    """KV cache moved between the device and the CPU tier against concurrency."""
    columns = {
        "offload_store_mb_s": "stored to the tier, MB/s",
        "offload_load_mb_s": "loaded from the tier, MB/s",
    }
    return lines_over_levels(data, columns)


@figure(
    title="What does LMCache count itself?",
    section="offload",
    useful="several",
    caption=(
        "LMCache's own counters, means over the level's window. Values are means over "
        "a cell's runs; where there are several, upright bars span them."
    ),
)
def pcp_lmcache(data: FigureData) -> Figure:
    """LMCache's own counters as far as recorded: the entries of metrics.yaml that begin with lmcache_."""
    columns = {
        name: textwrap.fill(f"{entry['title']}, {entry['unit']}", 26)
        for name, entry in data.metrics.items()
        if name.startswith("lmcache_")
    }
    if not columns:
        raise NothingToDraw("not recorded: LMCache's counters")
    return lines_over_levels(data, columns)
