"""The report held to its own rules: what its sentences may rest on, and what they claim beyond that."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.document_checks import Document, Percentage, judge_document
from tests.support.markdown import fixed_fragments, parts_of
from tests.support.report_text import plain_table, result_of

from kveval.report import next_steps, parts
from kveval.report.data import numbers as numerals
from kveval.report.data.arm_links import plain_text
from kveval.report.data.campaign import Measured, ReportPlan, Table
from kveval.report.data.vocabulary import NO_RELEVANT_DIFFERENCE
from kveval.report.parts import body
from kveval.report.parts.limitations import missing_sentences
from kveval.report.sections import Picture, Section
from kveval.report.tables.caches import tier_text
from kveval.report.tables.guidance import HIGH_HITS, HITS, LOW_HITS, guidance_numbers
from kveval.report.tables.not_assessed import gap_table, gaps_of
from kveval.report.tiles import validity_sentence
from kveval.tables.levels.outcomes import Outcome
from kveval.tables.system.tier_activity import tier_activity
from kveval.verdict.verdict_words import (
    IDLE,
    PARITY,
    VERDICTS,
    WITHOUT_VERDICT,
)


def judge_report(
    plan: ReportPlan, measured: Measured, root: Section, text: str, folder: Path
) -> list[Outcome]:
    """Return what a rendered report claims beyond what it was made from; nothing, if all is well.

    `root` is what `text`, the report with its appendices, was rendered from; it lies in `folder`, beside the files it
    names.
    """
    return judge_document(document_of(plan, measured, root, text, folder))


def document_of(
    plan: ReportPlan, measured: Measured, root: Section, text: str, folder: Path
) -> Document:
    """Return a rendered report with everything that its sentences may rest on."""
    result = result_of(plan, measured)
    guidance, gaps = (
        plain_table(body.guidance_table(result)),
        plain_table(gap_table(gaps_of(plan, measured, {}))),
    )
    rows = measured.all_comparisons.to_dict("records")
    shown = [
        *result.answer.sentences,
        *(row[-1] for row in guidance.rows if row[1] == "which arm"),
    ]
    quoted = [sentence for line in shown for sentence in parts_of(line).sentences]
    reasons = {
        str(row["reason"]): {str(row["verdict"])}
        for row in rows
        if isinstance(row["reason"], str)
    }
    return Document(
        text=text,
        folder=folder,
        content=text.encode(),
        # The campaign's own title and description are its author's; what failed is quoted from logs.
        fixed=[
            *fixed_words(),
            *(
                words
                for figure in pictures(root)
                for words in (figure.caption, figure.title)
            ),
            *(
                plan.title,
                *_sentences(
                    plan.description,
                    *map(plain_text, missing_sentences(result)),
                    *measured.failures.values(),
                    validity_sentence(result),
                ),
            ),
        ],
        # Why something is not assessed is quoted from the comparison's own table.
        answers=[row[-1] for row in guidance.rows] + [row[-1] for row in gaps.rows],
        verdicts={**reasons, **{line: _verdicts_in(line) for line in quoted}},
        percentages=[
            *_percentages(rows),
            *_hit_rates(guidance_numbers(result)),
            *_tier_hits(plan, measured),
        ],
        numbers=[
            f"{100 * plan.margin:g}",
            "95",
            str(LOW_HITS),
            str(HIGH_HITS),
            *_counts(measured),
            *_multiples(rows),
            *_prompt_shares(measured),
        ],
        counts={"cells": len(plan.cells)},
        models=[*plan.models, *_hub_ids(plan), *measured.levels["model"].unique()],
    )


def _prompt_shares(measured: Measured) -> list[str]:
    """The shares of the prompt tokens, per cent, that sentences on lost hits have from waterfall.csv."""
    table = measured.waterfall.reindex(columns=["percent_of_prompts"])
    percents = table["percent_of_prompts"].dropna()
    return [f"{percent:.{digits}f}" for percent in percents for digits in (0, 1)]


def fixed_words() -> list[str]:
    """The sentences of the report that hold no data: the texts in the modules that write it."""
    sentences = []
    for module in (
        *Path(parts.__file__).parent.glob("*.py"),
        Path(next_steps.__file__),
    ):
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                sentences += [
                    *parts_of(node.value).sentences,
                    *fixed_fragments(node.value),
                ]
    return sentences


def pictures(section: Section) -> Iterator[Picture]:
    """Yield the figures of a tree."""
    for block in section.blocks:
        if isinstance(block, Picture):
            yield block
        elif isinstance(block, Section):
            yield from pictures(block)


def _counts(measured: Measured) -> Iterator[str]:
    """How many comparisons of a quantity have each verdict, and there are; how many names a list leaves out."""
    for _, table in measured.comparison.groupby("metric"):
        yield from map(
            str,
            (
                len(table),
                *table["verdict"].value_counts(),
                (~table["verdict"].isin(VERDICTS)).sum(),
            ),
        )
    edge = int((~measured.peaks["bracketed"].astype(bool)).sum())
    yield from (str(edge - 2), str(edge - 3))


def _multiples(rows: list[dict[Any, Any]]) -> Iterator[str]:
    """Effects above +100 % and the ends of their intervals as multiples, to the digits a report may use."""
    for row in rows:
        if row["effect_percent"] > 100:
            ends = (row[f"{name}_percent"] for name in ("effect", "low", "high"))
            for times in (1 + end / 100 for end in ends):
                yield from (f"{times:.{digits}f}" for digits in (0, 1))


def _tier_hits(plan: ReportPlan, measured: Measured) -> Iterator[Percentage]:
    """The shares of prompt tokens that tiers served, as the answer quotes them."""
    activity = tier_activity(measured.runs)
    for _, rows in activity.groupby(["model", "scenario", "cpu_blocks", "level"]):
        shown = tier_text(rows["external_hit_percent"].mean())
        yield Percentage(shown, "tier", "prompt tokens")


def _sentences(*texts: str) -> list[str]:
    return [sentence for text in texts for sentence in parts_of(text).sentences]


def _verdicts_in(line: str) -> set[str]:
    """The verdicts that a sentence of the summary states; "indicative" does not state the one it points to."""
    verdicts = {
        verdict
        for verdict in (*VERDICTS, *WITHOUT_VERDICT)
        if re.search(rf"\b{re.escape(verdict)}", line)
    }
    verdicts |= {PARITY} if NO_RELEVANT_DIFFERENCE in line else set()
    return (
        verdicts - set(VERDICTS)
        if any(verdict in WITHOUT_VERDICT for verdict in verdicts)
        else verdicts
    )


def _percentages(rows: list[dict[Any, Any]]) -> Iterator[Percentage]:
    """Every effect of the comparison as the report prints it, with what it compares."""
    for row in rows:
        shown = numerals.effect(
            *(row[f"{name}_percent"] for name in ("effect", "low", "high", "interval"))
        )
        cell = f"{row['model']}/{row['scenario']}/{row['cpu_blocks']}"
        if " %" in shown:
            yield Percentage(shown.partition(" %")[0], cell, str(row["baseline"]))
        if row["verdict"] == IDLE:
            most = numerals.end_of_effect(
                row["cost_percent"], row["low_percent"], row["high_percent"]
            )
            yield Percentage(most, cell, str(row["baseline"]))


def _hit_rates(table: Table) -> Iterator[Percentage]:
    """The shares of prompt tokens that the guidance quotes."""
    at = table.header.index(HITS)
    for row in table.rows:
        yield from (
            Percentage(shown, row[0], "prompt tokens")
            for shown in row[at].split("; ")
            if shown
        )


def _hub_ids(plan: ReportPlan) -> list[str]:
    return [str(facts["hf_id"]) for facts in plan.models.values() if "hf_id" in facts]
