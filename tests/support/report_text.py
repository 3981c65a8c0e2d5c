"""What a report says: its result without figures; REPORT.md with its appendices, as if they were one file; its tables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.support import synthetic_campaign

from kveval.report.build import campaign_result
from kveval.report.data.campaign import Measured, ReportPlan
from kveval.report.files import APPENDICES, MAIN
from kveval.report.render import (
    Rendering,
    environment,
    render_report,
    without_marks,
    written_files,
)
from kveval.report.result.model import CampaignResult, Remedy


def result_of(
    plan: ReportPlan, measured: Measured, figures: Sequence[str] = ()
) -> CampaignResult:
    """Return what a campaign found, as a report with these figures has it."""
    paths = {name: f"figures/{name}.png" for name in figures}
    return campaign_result(plan, measured, paths, {})


@cache
def result_of_whole() -> CampaignResult:
    """Return what the whole made-up campaign found; its tests share it and change it nowhere."""
    return result_of(synthetic_campaign.plan(), synthetic_campaign.whole())


@dataclass(frozen=True)
class Answer:
    """The first screen of a report: the question, the answer, what would make it more certain, and what to paste."""

    question: str
    sentences: Sequence[str]
    next_steps: Sequence[str]
    command: str


def answer_in(result: CampaignResult) -> Answer:
    """Return the answer of a result."""
    rendering = Rendering(result)
    return Answer(
        rendering.plain_sentences("question.md.j2")[0],
        rendering.plain_answer,
        rendering.plain_sentences("steps.md.j2"),
        result.steps[0].command if result.steps else "",
    )


def answer_of(plan: ReportPlan, measured: Measured) -> Answer:
    """Return the answer of a campaign."""
    return answer_in(result_of(plan, measured))


def remedies_text(remedies: Sequence[Remedy]) -> str:
    """Return what would give a verdict, as a report says it."""
    words: Any = environment().get_template("remedies.md.j2").module
    return str(words.in_words(remedies))


def whole_report(folder: Path) -> str:
    """Return the text of the report in `folder`; links to figures are relative to it."""
    texts = [
        (folder / name).read_text(encoding="utf-8") for name in (MAIN, *APPENDICES)
    ]
    return "\n".join(text.replace("](../", "](") for text in texts)


def text_of(result: CampaignResult) -> str:
    """Return REPORT.md with its appendices of a result, one after the other."""
    return "\n".join(written_files(render_report(result)).values())


@dataclass(frozen=True)
class Table:
    """A table of a report: its titles, its rows, and the titles of columns of numbers."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: frozenset[str] = frozenset()

    def column(self, title: str) -> list[str]:
        """Return the cells of a column."""
        place = list(self.header).index(title)
        return [row[place] for row in self.rows]

    @property
    def records(self) -> list[Mapping[str, str]]:
        """The rows by title; of two columns of one title the last one."""
        return [dict(zip(self.header, row, strict=True)) for row in self.rows]


def part_of(text: str, title: str) -> str:
    """Return a part of a report below its heading, or below a line with this title in bold; "" if there is none.

    It ends with the next heading of its depth, or a bold line, whatever is first.
    """
    begin = re.search(
        rf"^(?:(#+) {re.escape(title)}|\*\*{re.escape(title)}\*\*|"
        rf"<details><summary>{re.escape(title)}</summary>)$",
        text,
        re.MULTILINE,
    )
    if begin is None:
        return ""
    depth = len(begin[1]) if begin[1] else 0
    ends = rf"^#{{1,{depth}}} " if depth else r"^(?:#+ |\*\*[^*|]+\*\*$|</details>)"
    rest = text[begin.end() :]
    end = re.search(ends, rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def tables_in(text: str) -> list[Table]:
    """Return the tables in a part of a report."""
    tables = []
    for block in text.split("\n\n"):
        lines = block.strip().splitlines()
        if len(lines) > 1 and re.fullmatch(r"\|( ---:? \|)+", lines[1]):
            header, rule, *rows = map(_cells, lines)
            numbers = {
                title for title, sort in zip(header, rule, strict=True) if ":" in sort
            }
            tables.append(Table(header, rows, frozenset(numbers)))
    return tables


def _cells(line: str) -> list[str]:
    cells = re.split(r"(?<!\\)\|", line.strip()[1:-1])
    return [cell.strip().replace("\\|", "|") for cell in cells]


def table_of(result: CampaignResult, title: str, number: int = 0) -> Table:
    """Return a table of a result's report: that of this number in the part with this title."""
    return tables_in(part_of(text_of(result), title))[number]


def tables_by_model(part: str) -> dict[str, Table]:
    """Return the table of each model in a part of a report of several models."""
    _, *names_and_texts = re.split(r"^\*\*([^*|]+)\*\*$", part, flags=re.MULTILINE)
    models, texts = names_and_texts[::2], names_and_texts[1::2]
    return {
        model: tables_in(text)[0] for model, text in zip(models, texts, strict=True)
    }


def text_of_template(result: CampaignResult, template: str) -> str:
    """Return a template without figures; `result` may lack what it does not show."""
    figures = dict.fromkeys(("picture", "pictures_of", "pictures_left"), _no_figure)
    return without_marks(Rendering(result).text(template, **figures))


def _no_figure(*_: str) -> str:
    return ""


def said_by(template: str, macro: str, *values: Any) -> str:
    """Return what a macro of a template says of these values."""
    module = environment().get_template(template).module
    return " ".join(getattr(module, macro)(*values).split())
