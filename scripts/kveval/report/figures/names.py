"""The names of a campaign's figures, and which were drawn, in a module without plotting, which planning needs.

A figure is a function with `figure` above it, in the module of its family. What is said there is read from the text of
these modules: importing them takes seconds. A family is drawn in one job, because starting Python and loading a
plotting library takes longer than drawing.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from kveval.host.errors import Failure

# The modules with figures, in the order of the report.
FAMILIES = ("arms", "effects", "throughput", "caches", "system", "recordings")
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

    `key` is its function, in the module `family`. `title` is the question that it answers. `section` is the section of
    the report that shows it, in the order of FIGURES, with the `caption`. `useful`: at "few" levels (one or two), at
    "several" (more), then or with several models ("wide"), with limits for goodput ("limited"), or "always". `narrow`:
    whether it is drawn once more for the screen of a phone; this suits panels that can lie below each other.
    """

    key: str
    family: str
    template: str
    title: str
    section: str
    caption: str
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


Drawing = TypeVar("Drawing", bound=Callable[..., Any])


def figure(**declared: Any) -> Callable[[Drawing], Drawing]:
    """Make a function of FigureData a figure of every campaign: decorate it with the fields of its FigureEntry.

    They are literals, because `declared_figures` reads them without running them. `template`: by default the function's
    name. A figure of one model is a function of the data and the model, and has `{model}` in its template.
    """

    def declare(function: Drawing) -> Drawing:
        # For the error that names a field which is not one.
        _entry(function.__name__, "", declared)
        return function

    return declare


def declared_figures(module: Path) -> Iterator[FigureEntry]:
    """Yield the figures of a module with a family's figures, in their order, from its text."""
    for node in ast.parse(module.read_bytes()).body:
        if isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call):
                    fields = {
                        str(field.arg): ast.literal_eval(field.value)
                        for field in decorator.keywords
                    }
                    yield _entry(node.name, module.stem, fields)


def _entry(key: str, family: str, fields: dict[str, Any]) -> FigureEntry:
    return FigureEntry(**{"key": key, "family": family, "template": key, **fields})


FIGURES = tuple(
    entry
    for family in FAMILIES
    for entry in declared_figures(Path(__file__).with_name(f"{family}.py"))
)


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
        """The caption."""
        return self.entry.caption


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
