"""Tables and figures as blocks of a section."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kveval.report.data.campaign import Table
from kveval.report.figures.names import FigureName, figures_of
from kveval.report.sections import Block, Paragraph, Picture
from kveval.report.tables.shape import by_model, fitted


def of_models(table: Table, keys: int = 1) -> Iterator[Block]:
    """Yield a table whose first column names a model as one table per model, titled with it if there are several.

    `keys`: as in `fitted`, without that column.
    """
    parts = by_model(table)
    for model, part in parts:
        if len(parts) > 1:
            yield Paragraph(f"**{model or 'The campaign'}**")
        yield from fitted(part, keys)


def under(title: str, *blocks: Block) -> list[Block]:
    """Return blocks below a line with a title; nothing if there is no block."""
    return [Paragraph(f"**{title}**"), *blocks] if blocks else []


class Pictures:
    """The figures that are not empty, each to be placed in the report once."""

    def __init__(self, models: list[str], paths: Mapping[str, str], empty: Mapping[str, str]) -> None:
        """Collect the figures; `paths`: name -> path relative to the report; `empty`: those with nothing to show."""
        found = [figure for figure in figures_of(models) if figure.name in paths and figure.name not in empty]
        self._left = {figure.name: figure for figure in found}
        self._paths = paths

    @property
    def names(self) -> list[str]:
        """The names of the figures that are not placed yet."""
        return list(self._left)

    def take(self, name: str) -> list[Block]:
        """Return the figure of that name; nothing if there is none, or it is placed already."""
        return [self._picture(self._left.pop(name))] if name in self._left else []

    def of_section(self, section: str, model: str | None = None) -> list[Block]:
        """Return the figures of a section that are not placed yet, or only those of one model."""
        chosen = [f.name for f in self._left.values() if f.entry.section == section and model in (None, f.model)]
        return [block for name in chosen for block in self.take(name)]

    def rest(self) -> list[Block]:
        """Return the figures that are not placed yet."""
        return [block for name in self.names for block in self.take(name)]

    def _picture(self, figure: FigureName) -> Picture:
        return Picture(figure.name, self._paths[figure.name], figure.title, figure.caption)
