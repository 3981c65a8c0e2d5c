"""Reuse curves: the hit share against the size of a tier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from kveval.campaign.size import Size
from kveval.campaign.types import BLOCK_TOKENS
from kveval.plugins.curve.simulation.curve import ReuseCurve
from kveval.report.figures.axes import BOX, GREY, panels, tier_size_axis

_CURVE, _DEVICE = "#333333", "#0072B2"


@dataclass(frozen=True)
class CurvePanel:
    """One panel with a curve; hit shares 0 to 1.

    Attributes:
        title: the model and the level.
        curve: hit share by tier size behind the device, or by device size if the device's size is not known.
        device: hit share of the device alone; None if its size is not known.
        campaign_sizes: of the campaign's tiers.
        kv_bytes_per_token: of the model, all layers over all ranks.
    """

    title: str
    curve: ReuseCurve
    device: float | None
    campaign_sizes: Sequence[Size]
    kv_bytes_per_token: int


def draw_curves(curves: Sequence[CurvePanel]) -> Figure:
    """Return a figure with one panel per curve, all on the same scale."""
    handles = [
        Line2D([], [], color=_CURVE, label="computed from the requests"),
        Line2D([], [], color=_DEVICE, linestyle="--", label="device alone"),
        Line2D([], [], color=GREY, linestyle=":", label="sizes in the campaign"),
    ]
    columns = min(2, len(curves))
    figure, grid = panels(
        None, (-(-len(curves) // columns), columns), 2.9, handles=handles
    )
    for panel, axes in zip(curves, grid.flat, strict=False):
        _panel(axes, panel)
    top = max(panel.curve.ceiling for panel in curves)
    left, right = zip(
        *(axes.get_xlim() for axes in grid.flat[: len(curves)]), strict=True
    )
    for axes in grid.flat:
        axes.set_xlim(min(left), max(right))
        axes.set_ylim(0, min(103, 118 * top + 1))
    for axes in grid.flat[len(curves) :]:
        axes.set_axis_off()
    for axes in grid[:, 0]:
        axes.set_ylabel("% of prompt tokens served")
    return figure


def _panel(axes: Axes, panel: CurvePanel) -> None:
    blocks = panel.curve.sizes / BLOCK_TOKENS
    campaign_sizes = {size.cpu_blocks: size for size in panel.campaign_sizes}
    most = max([*campaign_sizes, float(blocks.max(initial=1)) * 1.5])
    least = min([*campaign_sizes, float(blocks.min(initial=most))]) / 2
    shares = 100 * panel.curve.served / max(1, panel.curve.prompt_tokens)
    axes.step(
        np.concatenate(([least], blocks, [most])),
        np.append(shares, shares[-1]),
        where="post",
        color=_CURVE,
    )
    axes.set_xscale("log")
    axes.set_xlim(least, most)
    tier_size_axis(axes, panel.kv_bytes_per_token)
    if panel.device is not None:
        axes.axhline(100 * panel.device, color=_DEVICE, linestyle="--")
    for cpu_blocks, size in campaign_sizes.items():
        share = 100 * panel.curve.share(cpu_blocks * BLOCK_TOKENS)
        axes.axvline(cpu_blocks, color=GREY, linestyle=":")
        axes.annotate(
            f"{size}: {share:.0f} %",
            (cpu_blocks, share),
            xytext=(-4, 5),
            textcoords="offset points",
            ha="right",
            fontsize=7.5,
            bbox=BOX,
        )
    axes.set_title(panel.title)
