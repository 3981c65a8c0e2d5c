"""The report held to its own rules: what its sentences may rest on, and what they claim beyond that."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.support.document_checks import Document, Percentage, judge_document
from tests.support.markdown import fixed_fragments, parts_of

from kveval.analysis.levels.outcomes import Outcome
from kveval.analysis.statistics.verdicts import VERDICTS, WITHOUT_VERDICT
from kveval.report.data import numbers as numerals
from kveval.report.data.campaign import Measured, ReportPlan, Table
from kveval.report.tables.guidance import HIGH_HITS, HITS, LOW_HITS


def judge_report(
    plan: ReportPlan, measured: Measured, context: Mapping[str, Any], template: str, text: str, folder: Path
) -> list[Outcome]:
    """Return what a rendered report claims beyond what it was made from; nothing, if all is well.

    `context` and `template` are what `text` was rendered from; it will lie in `folder`, beside the files it names.
    """
    return judge_document(document_of(plan, measured, context, template, text, folder))


def document_of(
    plan: ReportPlan, measured: Measured, context: Mapping[str, Any], template: str, text: str, folder: Path
) -> Document:
    """Return a rendered report with everything that its sentences may rest on."""
    guidance, gaps = context["guidance"], context["gaps"]
    figures = context["figures"]
    rows = measured.compared.to_dict("records")
    lines = [line for entry in context["summary"] for line in entry["verdicts"]]
    quoted = [*lines, *(row[-1] for row in guidance.rows if row[1] == "which arm")]
    reasons = {str(row["reason"]): {str(row["verdict"])} for row in rows if isinstance(row["reason"], str)}
    return Document(
        text=text,
        folder=folder,
        content=text.encode(),
        # The campaign's own title and description are its author's; what failed is quoted from logs.
        fixed=[
            *fixed_fragments(template),
            *(words for figure in figures for words in (figure["caption"], figure["title"])),
            *(plan.title, *_sentences(plan.description, *context["missing"], *measured.failures.values())),
        ],
        # Why something is not assessed is quoted from the comparison's own table.
        answers=[row[-1] for row in guidance.rows] + [row[-1] for row in gaps.rows],
        verdicts={**reasons, **{line: _verdicts_in(line) for line in quoted}},
        percentages=[*_percentages(rows), *_hit_rates(context["guidance_numbers"])],
        numbers=[f"{100 * plan.margin:g}", str(LOW_HITS), str(HIGH_HITS)],
        counts={"cells": len(plan.cells)},
        models=[*plan.models, *_hub_ids(plan), *measured.levels["model"].unique()],
    )


def _sentences(*texts: str) -> list[str]:
    return [sentence for text in texts for sentence in parts_of(text).sentences]


def _verdicts_in(line: str) -> set[str]:
    """The verdicts that a sentence of the summary states; "indicative" does not state the one it points to."""
    said = {verdict for verdict in (*VERDICTS, *WITHOUT_VERDICT) if re.search(rf"\b{re.escape(verdict)}", line)}
    return said - set(VERDICTS) if any(verdict in WITHOUT_VERDICT for verdict in said) else said


def _percentages(rows: list[dict[Any, Any]]) -> Iterator[Percentage]:
    """Every effect of the comparison as the report prints it, with what it compares."""
    for row in rows:
        shown = numerals.effect(row["effect_percent"], row["low_percent"], row["high_percent"])
        cell = f"{row['model']}/{row['scenario']}/{row['cpu_blocks']}"
        if " %" in shown:
            yield Percentage(shown.partition(" %")[0], cell, str(row["baseline"]))


def _hit_rates(table: Table) -> Iterator[Percentage]:
    """The shares of prompt tokens that the guidance quotes."""
    at = table.header.index(HITS)
    for row in table.rows:
        yield from (Percentage(shown, row[0], "prompt tokens") for shown in row[at].split("; ") if shown)


def _hub_ids(plan: ReportPlan) -> list[str]:
    return [str(facts["hf_id"]) for facts in plan.models.values() if "hf_id" in facts]
