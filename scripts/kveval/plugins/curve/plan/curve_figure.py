"""The figure of `kveval curve`."""

from collections.abc import Iterable
from pathlib import Path

from kveval.configuration.config import Config
from kveval.load import levels as workloads
from kveval.plugins.curve.plan.curve_panels import CurvePanel, draw_curves
from kveval.plugins.curve.plan.curves import LevelCurves
from kveval.report.figures.draw import write_single_figure


def write_curve_figure(
    config: Config, curves: Iterable[LevelCurves], figure: Path
) -> None:
    """Draw a panel for each level of each model into a file."""
    panels = [curve_panel(config, level) for level in curves]
    title = "What does a tier of each size serve?"
    write_single_figure(title, lambda: draw_curves(panels), figure)


def curve_panel(config: Config, curves: LevelCurves) -> CurvePanel:
    """Return the panel of a level in the figure."""
    found, unit = curves.widest, workloads.level_unit(config.workload.definition)
    specifications = [config.specification(cell) for cell in curves.cells]
    return CurvePanel(
        title=f"{curves.model}, {curves.level} {unit}",
        curve=found.tier or found.device,
        device=found.device_hit_share,
        campaign_sizes=[
            specification.budget.size
            for specification in specifications
            if specification.cell.cpu_blocks
        ],
        kv_bytes_per_token=specifications[0].model.kv_bytes_per_token,
    )
