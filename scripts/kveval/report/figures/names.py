"""The names of a campaign's figures, and which were drawn, in a module without plotting, because planning needs only
their families.

A figure is an entry of FIGURES, the function `key` in the module of its family, and `captions/KEY.rst`. A family is
drawn in one job, because starting Python and loading a plotting library takes longer than drawing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from kveval.host.errors import Failure

# Not in this folder, because the report prints the captions: figures are not drawn again when a caption changes.
CAPTIONS = Path(__file__).parents[1] / "captions"
# The file in a folder of figures that lists those drawn, and the others with the reason.
MANIFEST = "figures.json"


class NotDrawnError(Failure):
    """A figure has nothing to show in this campaign."""


class Extent(NamedTuple):
    """The size of a campaign: numbers of levels and models; `limits`: whether it declares limits for goodput."""

    levels: int
    models: int
    limits: bool = False


@dataclass(frozen=True)
class FigureEntry:
    """A figure of a campaign. A `template` with `{model}` stands for one figure per model.

    `title` is the question that it answers. `family` is the module that draws it, `section` the section of the report
    that shows it, in the order of FIGURES. `useful`: at "few" levels (one or two), at "several" (more), then or with
    several models ("wide"), with limits for goodput ("limited"), or "always". `narrow`: whether it is drawn once more for
    the screen of a phone; this suits panels that can lie below each other.
    """

    template: str
    family: str
    section: str
    title: str
    useful: str = "always"
    narrow: bool = False

    def is_useful_for(self, extent: Extent) -> bool:
        """Whether the figure is useful for a campaign of this extent."""
        several = extent.levels > 2
        wide = several or extent.models > 1
        useful = {
            "always": True,
            "few": not several,
            "several": several,
            "wide": wide,
            "limited": extent.limits,
        }
        return useful[self.useful]

    @property
    def key(self) -> str:
        """The name of its function and of its caption's file."""
        return self.template.replace("_{model}", "")


FIGURES = (
    FigureEntry(
        "throughput_by_arm",
        "arms",
        "across models",
        "How much does each arm deliver?",
        "few",
        narrow=True,
    ),
    FigureEntry(
        "ttft_by_arm",
        "arms",
        "across models",
        "How long does the first token take with each arm?",
        "few",
        narrow=True,
    ),
    FigureEntry(
        "peak_throughput_all_scenarios",
        "arms",
        "across models",
        "How much does each arm deliver at most?",
        "several",
        narrow=True,
    ),
    FigureEntry(
        "throughput_curve_{model}_all",
        "throughput",
        "model",
        "How does throughput grow with load? {model}",
        "several",
    ),
    FigureEntry(
        "effect_plot",
        "effects",
        "across models",
        "How far is each arm from its baseline, and how sure is it?",
        "wide",
        narrow=True,
    ),
    FigureEntry(
        "performance_delta_heatmap_all",
        "effects",
        "across models",
        "Which arm pays for which model?",
        "wide",
        narrow=True,
    ),
    FigureEntry(
        "latency_comparison_all",
        "arms",
        "across models",
        "How long do requests take?",
        "several",
        narrow=True,
    ),
    FigureEntry(
        "benchmark_results",
        "throughput",
        "across models",
        "What does throughput cost in latency?",
        "several",
        narrow=True,
    ),
    FigureEntry(
        "goodput",
        "throughput",
        "across models",
        "How much meets the limits?",
        "limited",
    ),
    FigureEntry(
        "hit_rates_by_tier",
        "caches",
        "offload",
        "Where do the prompt tokens come from, and where are hits lost?",
        narrow=True,
    ),
    FigureEntry(
        "reuse_by_tier_size",
        "caches",
        "reuse",
        "Does a tier of each size serve what it should?",
    ),
    FigureEntry(
        "pcp_prefix_cache_hits",
        "caches",
        "offload",
        "How do hit rates change with load?",
        "several",
    ),
    FigureEntry(
        "pcp_offload_traffic",
        "caches",
        "offload",
        "How much KV cache moves to and from the tier?",
        "several",
    ),
    FigureEntry(
        "pcp_lmcache", "caches", "offload", "What does LMCache count itself?", "several"
    ),
    FigureEntry(
        "working_set",
        "caches",
        "tiers",
        "Do the prefixes fit into the caches?",
        "several",
    ),
    FigureEntry(
        "pcp_kv_cache_usage",
        "caches",
        "system",
        "How full is the device's KV cache?",
        "several",
    ),
    FigureEntry(
        "pcp_request_queues",
        "system",
        "system",
        "Do requests wait in the server?",
        "several",
    ),
    FigureEntry(
        "pcp_memory_usage",
        "system",
        "system",
        "How much memory does each arm take?",
        "several",
    ),
    FigureEntry(
        "pcp_gpu_vs_throughput", "system", "system", "Is the device busy?", "several"
    ),
    FigureEntry(
        "pcp_correlation_heatmap",
        "system",
        "system",
        "What is correlated with throughput?",
        "several",
    ),
    FigureEntry(
        "level_timeline_{model}",
        "recordings",
        "system",
        "What happens during a level? {model}",
    ),
)
FAMILIES = tuple(dict.fromkeys(entry.family for entry in FIGURES))


@dataclass(frozen=True)
class FigureName:
    """A figure of one campaign: its entry, and its model if it is about one."""

    entry: FigureEntry
    model: str | None

    @property
    def name(self) -> str:
        """The figure's name, and the stem of its files."""
        return self.entry.template.format(model=self.model)

    @property
    def family(self) -> str:
        """The family it is drawn with."""
        return self.entry.family

    @property
    def title(self) -> str:
        """The figure's title."""
        return self.entry.title.format(model=self.model)

    @property
    def caption(self) -> str:
        """The caption: the text of report/captions/KEY.rst on one line."""
        return " ".join(
            (CAPTIONS / f"{self.entry.key}.rst").read_text(encoding="utf-8").split()
        )


def figure_names(models: Iterable[str]) -> list[str]:
    """Return the names of a campaign's figures."""
    return [figure.name for figure in figures_of(models)]


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


def families_of(extent: Extent) -> list[str]:
    """Return the families with a figure that is useful for a campaign of this extent."""
    return list(
        dict.fromkeys(entry.family for entry in FIGURES if entry.is_useful_for(extent))
    )


def narrow_file(figure: Path) -> Path:
    """Return where a figure for narrow screens lies, from the path of the figure's PNG or SVG."""
    return figure.with_suffix(".narrow.svg")


def drawn_figures(folders: Iterable[Path]) -> tuple[list[Path], dict[str, str]]:
    """Return the figures (PNG) in the folders of families, and name -> missing data of those that were not drawn."""
    listed = {folder: _listed(folder) for folder in folders}
    drawn = [
        folder / f"{name}.png" for folder, of in listed.items() for name in of["drawn"]
    ]
    return drawn, {
        name: lacking
        for of in listed.values()
        for name, lacking in of["lacking"].items()
    }


def drawn_figure(folder: Path, file: str) -> Path:
    """Return a family's figure by the name of its file. Raises NotDrawnError, with the reason, where there is none."""
    listed, name = _listed(folder), Path(file).stem
    if name not in listed["drawn"]:
        reason = (
            listed["lacking"].get(name)
            or listed["left_out"].get(name)
            or "nothing of its model was measured"
        )
        raise NotDrawnError(
            f"{file}: not drawn: {reason}; drawn with it: {', '.join(listed['drawn']) or 'nothing'}",
            code="not_drawn",
            figure=name,
            reason=reason,
        )
    return folder / file


def _listed(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(
        (folder / MANIFEST).read_text(encoding="utf-8")
    )
    return content
