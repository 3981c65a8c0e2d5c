"""The figures of a campaign, apart from the drawing: a plan needs their names and should not load a plotting library.

A figure is an entry of FIGURES, the function of its `key` in the module of its family, and `captions/KEY.rst`. A family
is drawn in one job, because starting Python and loading a plotting library takes longer than drawing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# Beside report.py and not here: the report prints them, and no figure is drawn anew for their words.
CAPTIONS = Path(__file__).parents[1] / "captions"


@dataclass(frozen=True)
class FigureEntry:
    """A figure of every campaign. A `template` with `{model}` stands for one figure per model.

    `family` is the module that draws it, `section` the place in the report that shows it, in the order of FIGURES.
    """

    template: str
    family: str
    section: str
    title: str

    @property
    def key(self) -> str:
        """The name of its function and its caption."""
        return self.template.replace("_{model}", "")


FIGURES = (
    FigureEntry("peak_throughput_all_scenarios", "throughput", "across models", "Peak throughput"),
    FigureEntry("throughput_curve_{model}_all", "throughput", "model", "Throughput against load, {model}"),
    FigureEntry("effect_plot", "effects", "across models", "Effect of the arms against their baseline"),
    FigureEntry(
        "performance_delta_heatmap_all", "effects", "across models", "Difference from the baseline by model and arm"
    ),
    FigureEntry("latency_comparison_all", "latency", "across models", "Latency at the common level"),
    FigureEntry("benchmark_results", "throughput", "across models", "Throughput and latency against load"),
    FigureEntry("pcp_prefix_cache_hits", "caches", "offload", "Prefix-cache hits"),
    FigureEntry("pcp_offload_traffic", "caches", "offload", "Offload traffic"),
    FigureEntry("pcp_lmcache", "caches", "offload", "LMCache's own counters"),
    FigureEntry("working_set", "caches", "tiers", "Working set against the capacity of the tiers"),
    FigureEntry("pcp_kv_cache_usage", "caches", "system", "KV-cache usage of the device"),
    FigureEntry("pcp_request_queues", "system", "system", "Requests in the server"),
    FigureEntry("pcp_memory_usage", "system", "system", "Memory"),
    FigureEntry("pcp_gpu_vs_throughput", "system", "system", "Device utilisation and throughput"),
    FigureEntry("percpu_saturation", "recordings", "system", "Load of the single CPUs"),
    FigureEntry("pcp_correlation_heatmap", "system", "system", "System metrics and throughput, within a model"),
    FigureEntry("timeseries_{model}", "recordings", "system", "A level second by second, {model}"),
)
FAMILIES = {
    family: {entry.template: entry.title for entry in FIGURES if entry.family == family}
    for family in dict.fromkeys(entry.family for entry in FIGURES)
}


@dataclass(frozen=True)
class FigureName:
    """A figure of one campaign: its entry, and the model it is about, if one."""

    entry: FigureEntry
    model: str | None

    @property
    def name(self) -> str:
        """The figure's name, which is that of its files."""
        return self.entry.template.format(model=self.model)

    @property
    def family(self) -> str:
        """The family it is drawn with."""
        return self.entry.family

    @property
    def template(self) -> str:
        """Its entry in FAMILIES."""
        return self.entry.template

    @property
    def title(self) -> str:
        """The figure's title."""
        return self.entry.title.format(model=self.model)

    @property
    def caption(self) -> str:
        """The caption, with what its reader should know: the text of report/captions/KEY.rst on one line."""
        return _caption(caption_file(self.template))


def figure_names(models: Iterable[str], family: str | None = None) -> list[str]:
    """Return the names of a campaign's figures, of one family if asked."""
    return [figure.name for figure in figures_of(models, family)]


def figures_of(models: Iterable[str], family: str | None = None) -> list[FigureName]:
    """Return all figures of a campaign with these models in the order of FIGURES; a model named twice counts once."""
    named = list(dict.fromkeys(models))
    return [
        FigureName(entry, model)
        for entry in FIGURES
        if family in (None, entry.family)
        for model in (named if "{model}" in entry.template else (None,))
    ]


def find_figure(name: str, models: Iterable[str]) -> FigureName | None:
    """Return the figure of that name, None if a campaign with these models has none."""
    return next((figure for figure in figures_of(models) if figure.name == name), None)


def caption_file(template: str) -> Path:
    """Return the file with the caption of the figure of that template."""
    return CAPTIONS / f"{template.replace('_{model}', '')}.rst"


@cache
def _caption(path: Path) -> str:
    return " ".join(path.read_text(encoding="utf-8").split())
