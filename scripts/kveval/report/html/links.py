"""Links from the sentences and tables of a report to the runs behind them: every name of an arm becomes a link."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from kveval.campaign.cell import Cell
from kveval.report.data.campaign import StyledText, Table
from kveval.report.html.arm_runs import TITLE, runs_title
from kveval.report.sections import Block, Bullets, Paragraph, Section, anchor_of


class ClaimLinks:
    """The arms of a campaign that have runs, by model."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        """Prepare the links; `cells`: those with a section of their runs."""
        self._anchors: dict[str, dict[str, str]] = {}
        for cell in cells:
            self._anchors.setdefault(cell.model, {})[cell.label] = anchor_of(
                runs_title(cell)
            )
        names = sorted(
            {*self._anchors, *(arm for arms in self._anchors.values() for arm in arms)},
            key=len,
            reverse=True,
        )
        self._names = re.compile(
            rf"(?<![\w+/-])({'|'.join(map(re.escape, names))})(?![\w/-])"
        )

    def link_section(self, section: Section, model: str = "") -> Section:
        """Return a section with the arms in its lists and tables as links.

        `model`: the model that the section is about, "" if not known yet.
        """
        blocks: list[Block] = []
        at = model or (next(iter(self._anchors)) if len(self._anchors) == 1 else "")
        for block in section.blocks:
            match block:
                case Section():
                    blocks.append(
                        self.link_section(block, self._named(block.title) or at)
                    )
                case Table():
                    blocks.append(self._table(block, at))
                case Bullets():
                    blocks.append(
                        Bullets([self.link_sentence(item, at) for item in block.items])
                    )
                case _:
                    at = (
                        isinstance(block, Paragraph) and self._named(block.text)
                    ) or at
                    blocks.append(block)
        return replace(section, blocks=blocks)

    def link_report(self, root: Section) -> Section:
        """Return a whole report with its arms as links; each sentence of the answer, the first list, gets a link."""
        section = self.link_section(root)
        first = next(
            (block for block in section.blocks if isinstance(block, Bullets)),
            Bullets([]),
        )
        lead = f" [The runs](#{anchor_of(TITLE)})"
        answer = Bullets(
            [item if "](" in item else f"{item}{lead}" for item in first.items]
        )
        return replace(
            section,
            blocks=[answer if block is first else block for block in section.blocks],
        )

    def link_sentence(self, text: str, model: str = "") -> str:
        """Return a sentence with its arms as links; an arm belongs to the model that was named last."""
        at = model

        def link(match: re.Match[str]) -> str:
            nonlocal at
            at = match[1] if match[1] in self._anchors else at
            return self._link(match[1], at)

        return (
            self._names.sub(link, text)
            if "](" not in text and "`" not in text
            else text
        )

    def _linked(self, cell: str, model: str) -> str:
        """The text of a table's cell with its arms as links, in the style that it has."""
        text = self.link_sentence(cell, model)
        return cell.with_text(text) if isinstance(cell, StyledText) else text

    def _named(self, text: str) -> str:
        """The model that a text names; "" unless it is exactly one."""
        models = {name for name in self._names.findall(text) if name in self._anchors}
        return models.pop() if len(models) == 1 else ""

    def _link(self, name: str, model: str) -> str:
        anchor = self._anchors.get(model, {}).get(name)
        return f"[{name}](#{anchor})" if anchor else name

    def _table(self, table: Table, model: str) -> Table:
        """A table with the arms in its text cells as links; an arm belongs to the model of its row."""
        rows = []
        for row in table.rows:
            at = next((cell for cell in row if cell in self._anchors), model)
            rows.append(
                [
                    cell if number in table.numbers else self._linked(cell, at)
                    for number, cell in enumerate(row)
                ]
            )
        return replace(
            table,
            header=[self._link(title, model) for title in table.header],
            rows=rows,
        )
