"""The report held to its own rules: what its sentences may rest on, and what they claim beyond that."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.document_checks import Document, Percentage, judge_document
from tests.support.markdown import fixed_fragments, parts_of
from tests.support.report_text import answer_in, part_of, remedies_text, tables_in

from kveval.report.data import numbers as numerals
from kveval.report.data.campaign import Measured, ReportPlan
from kveval.report.data.comparisons import change_text
from kveval.report.data.vocabulary import NO_RELEVANT_DIFFERENCE
from kveval.report.facts.answer import answer_comparisons
from kveval.report.facts.caches import three_digits, tier_guides
from kveval.report.facts.levels import effects_elsewhere
from kveval.report.figures.names import figures_of
from kveval.report.render import TEMPLATES, environment
from kveval.report.result.model import CampaignResult
from kveval.tables.levels.outcomes import Outcome
from kveval.tables.system.tier_activity import tier_activity
from kveval.verdict.verdict_words import (
    IDLE,
    PARITY,
    VERDICTS,
    WITHOUT_VERDICT,
)

# What says how many runs and checks there are, of several models: it quotes what checks found.
_RUNS_AND_CHECKS = re.compile(r"^\*\*[\d to]+ runs? each\*\*: .*$", re.MULTILINE)


def judge_report(
    plan: ReportPlan,
    measured: Measured,
    result: CampaignResult,
    text: str,
    folder: Path,
) -> list[Outcome]:
    """Return what a rendered report claims beyond what it was made from; nothing, if all is well.

    `text`: the report of the result with its appendices; it lies in `folder`, beside the files it names.
    """
    guidance = [
        row
        for table in tables_in(part_of(text, "Deployment guidance"))
        for row in table.rows
    ]
    rows = measured.all_comparisons.to_dict("records")
    shown = [
        *answer_in(result).sentences,
        *(answer for question, answer in guidance if question == "which arm"),
    ]
    quoted = _sentences(*shown)
    reasons = {
        str(row["reason"]): {str(row["verdict"])}
        for row in rows
        if isinstance(row["reason"], str)
    }
    figures = figures_of([*result.common_levels])
    document = Document(
        text=text,
        folder=folder,
        content=text.encode(),
        # The campaign's own title and description are its author's; what failed is quoted from logs.
        fixed=[
            *fixed_words(),
            *(figure.caption for figure in figures),
            *(figure.title for figure in figures),
            plan.title,
            *_sentences(
                plan.description,
                *part_of(text, "Missing").splitlines(),
                *measured.failures.values(),
                *_RUNS_AND_CHECKS.findall(text),
            ),
        ],
        # Why something is not assessed is quoted from the comparison's own table.
        answers=[
            *(answer for _, answer in guidance),
            *(remedies_text(gap.remedies) for gap in result.not_assessed),
        ],
        verdicts={**reasons, **{line: _verdicts_in(line) for line in quoted}},
        percentages=[
            *_percentages(rows),
            *_hit_rates(result),
            *_tier_hits(plan, measured),
            *_other_levels(result),
        ],
        numbers=[
            f"{100 * plan.margin:g}",
            "95",
            *_counts(measured),
            *_multiples(rows),
            *_prompt_shares(measured),
        ],
        counts={"cells": len(plan.cells)},
        models=[*plan.models, *_hub_ids(plan), *measured.levels["model"].unique()],
    )
    return judge_document(document)


def _prompt_shares(measured: Measured) -> list[str]:
    """The shares of the prompt tokens, per cent, that sentences on lost hits have from waterfall.csv."""
    table = measured.waterfall.reindex(columns=["percent_of_prompts"])
    percents = table["percent_of_prompts"].dropna()
    return [f"{percent:.{digits}f}" for percent in percents for digits in (0, 1)]


def fixed_words() -> list[str]:
    """The words of the report that hold no data: the texts in its templates."""
    words = []
    for template in TEMPLATES.rglob("*.j2"):
        source = template.read_text(encoding="utf-8")
        for _, kind, text in environment().lex(source):
            if kind in ("data", "string"):
                fixed = text.strip("\"'")
                words += [*_sentences(fixed), *fixed_fragments(fixed)]
    return words


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
        shown = three_digits(rows["external_hit_percent"].mean())
        yield Percentage(shown, "tier", "prompt tokens")


def _other_levels(result: CampaignResult) -> Iterator[Percentage]:
    """The effects at levels that say something else than the compared one."""
    for effect in effects_elsewhere(result, answer_comparisons(result)):
        shown = change_text(*effect.effect_percent.numbers)
        cell, against = effect.comparison.cell.path, effect.comparison.against
        if " %" in shown:
            yield Percentage(shown.partition(" %")[0], cell, against.cell.path)


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


def _hit_rates(result: CampaignResult) -> Iterator[Percentage]:
    """The shares of prompt tokens that the guidance quotes."""
    for guide in tier_guides(result):
        for _, shares in guide.hits:
            yield Percentage(numerals.mean_of(shares), guide.model, "prompt tokens")


def _hub_ids(plan: ReportPlan) -> list[str]:
    return [str(facts["hf_id"]) for facts in plan.models.values() if "hf_id" in facts]
