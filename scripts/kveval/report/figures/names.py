"""The names of the figures, apart from the drawing: a plan needs the names and should not load a plotting library.

A family is drawn in one job, because starting Python and loading a plotting library takes longer than drawing. Its
figures are functions in `kveval/figures_FAMILY.py`. A name with `{model}` stands for one figure per model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# Beside report.py and not here: the report prints them, and no figure is drawn anew for their words.
CAPTIONS = Path(__file__).parents[1] / "captions"

FAMILIES: dict[str, dict[str, str]] = {
    "throughput": {
        "peak_throughput_all_scenarios": "Peak throughput",
        "throughput_curve_{model}_all": "Throughput against load, {model}",
        "benchmark_results": "Throughput and latency against load",
    },
    "latency": {
        "latency_comparison_all": "Latency at the common level",
    },
    "effects": {
        "effect_plot": "Effect of the arms against their baseline",
        "performance_delta_heatmap_all": "Difference from the baseline by model and arm",
    },
    "caches": {
        "working_set": "Working set against the capacity of the tiers",
        "pcp_kv_cache_usage": "KV-cache usage of the device",
        "pcp_prefix_cache_hits": "Prefix-cache hits",
        "pcp_offload_traffic": "Offload traffic",
        "pcp_lmcache": "LMCache's own counters",
    },
    "system": {
        "pcp_request_queues": "Requests in the server",
        "pcp_memory_usage": "Memory",
        "pcp_gpu_vs_throughput": "Device utilisation and throughput",
        "pcp_correlation_heatmap": "System metrics and throughput, within a model",
    },
    "recordings": {
        "percpu_saturation": "Load of the single CPUs",
        "timeseries_{model}": "A level second by second, {model}",
    },
}


@dataclass(frozen=True)
class FigureName:
    """A figure's name taken apart. `template` is its entry in FAMILIES, `model` the model it is about, if one."""

    name: str
    family: str
    template: str
    model: str | None

    @property
    def title(self) -> str:
        """What the figure is called."""
        return FAMILIES[self.family][self.template].format(model=self.model)

    @property
    def caption(self) -> str:
        """What its reader should know: the text of report/captions/TEMPLATE.rst on one line."""
        return _caption(caption_file(self.template))


def figure_names(models: Iterable[str], family: str | None = None) -> list[str]:
    """Return the names of a campaign's figures, of one family if asked; a model named twice counts once."""
    return [figure.name for figure in figures_of(list(dict.fromkeys(models)), family)]


def figures_of(models: Sequence[str], family: str | None = None) -> list[FigureName]:
    """Return all figures of a campaign with these models in the order of FAMILIES."""
    found = []
    for group, templates in FAMILIES.items():
        if family not in (None, group):
            continue
        for template in templates:
            about = models if "{model}" in template else (None,)
            found += [FigureName(template.format(model=model), group, template, model) for model in about]
    return found


def find_figure(name: str, models: Iterable[str]) -> FigureName | None:
    """Return the figure of that name, None if a campaign with these models has none."""
    return next((figure for figure in figures_of(list(dict.fromkeys(models))) if figure.name == name), None)


def caption_file(template: str) -> Path:
    """Return the file with the caption of the figure of that name in FAMILIES."""
    return CAPTIONS / f"{template.replace('_{model}', '')}.rst"


@cache
def _caption(path: Path) -> str:
    return " ".join(path.read_text(encoding="utf-8").split())
