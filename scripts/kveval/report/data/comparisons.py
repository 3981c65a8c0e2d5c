"""Comparisons: rows of comparison.csv and contrasts.csv, for any two cells of a model, and their facts as text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from kveval.campaign.cell import Cell
from kveval.estimators.intervals import percent
from kveval.report.data import numbers as numerals
from kveval.report.data.arm_links import arm_link
from kveval.report.data.campaign import (
    Measured,
    ReportPlan,
    text_or_blank,
)
from kveval.report.data.vocabulary import verdict_words
from kveval.tables.cells import THROUGHPUT
from kveval.verdict import verdict_words as words
from kveval.verdict.codes import CODES
from kveval.verdict.exclusions import Side
from kveval.verdict.findings import (
    ground_codes,
    read_exclusions,
    records_json,
)
from kveval.verdict.wording import SideNames

UNDECLARED = "undeclared"
"""The ground of two cells that the campaign does not declare as a contrast, and so does not compare."""
_MIRRORED = {
    words.BETTER: words.WORSE,
    words.WORSE: words.BETTER,
    "at least": "at most",
    "at most": "at least",
}
# A qualifier of comparison.csv -> how the report words it.
_QUALIFIERS = {"idle": "its tier served next to nothing"}
# Per cent.
_TWICE = 100.0
_OTHER_SIDE: Mapping[Side, Side] = {"arm": "reference", "reference": "arm"}
# Verdict -> the style of its cell on a page.
_STYLES = {word: word for word in (words.BETTER, words.WORSE, words.PARITY)}
_STYLES[words.WORSE_IDLE] = words.WORSE
# What an idle arm costs is no gain of the cell that it is compared with.
_MIRRORED |= dict.fromkeys((words.WORSE_IDLE, words.IDLE), words.NOT_EXERCISED)


def comparison_of(
    measured: Measured, cell: Cell, reference: Cell, metric: str = THROUGHPUT
) -> dict[str, Any]:
    """Return the comparison of `cell` with `reference`, made in either direction, as a row of comparison.csv.

    Cells that were not compared have an effect without an interval, no verdict, and the ground UNDECLARED.
    """
    row = _compared(measured, cell, reference, metric)
    if row is None and (opposite := _compared(measured, reference, cell, metric)):
        row = _mirrored(opposite)
    if row is not None and math.isfinite(row["level"]):
        level: int | None = int(row["level"])
    else:
        level = measured.common_level(cell.model)
    if row is None:
        row = {
            "verdict": words.NOT_ASSESSED,
            "reason": CODES[UNDECLARED].why,
            "grounds": UNDECLARED,
            "low_percent": math.nan,
            "high_percent": math.nan,
        }
        row |= _described(measured, cell, reference, level, metric)
    return row | {
        **cell.row,
        "baseline": reference.path,
        "metric": metric,
        "level": level,
    }


def comparison_from(cell: Cell, row: Mapping[Any, Any]) -> Mapping[Any, Any] | None:
    """Return a row of comparison.csv as a comparison of `cell` with the other cell, None if `cell` is neither of them."""
    other = Cell.from_row(row)
    if other == cell:
        return row
    if row["baseline"] != cell.path:
        return None
    return {**_mirrored(row), **cell.row, "baseline": other.path}


def _mirrored(row: Mapping[str, Any]) -> dict[str, Any]:
    """A comparison as it is from the other side: of the reference with the cell."""
    mirrored = dict(row)
    for end, opposite_end in (("effect", "effect"), ("low", "high"), ("high", "low")):
        ratio = 1 + row[f"{opposite_end}_percent"] / 100
        mirrored[f"{end}_percent"] = 100 * (1 / ratio - 1)
    for name in ("verdict", "indication", "bound"):
        word = text_or_blank(row.get(name))
        mirrored[name] = _MIRRORED.get(word, word)
    for name in ("mean", "runs_kept"):
        mirrored[name] = row.get(f"baseline_{name}")
        mirrored[f"baseline_{name}"] = row.get(name)
    mirrored["exclusions"] = records_json(
        replace(run, side=_OTHER_SIDE[run.side]) for run in read_exclusions(row)
    )
    return mirrored


def _compared(
    measured: Measured, cell: Cell, reference: Cell, metric: str
) -> dict[str, Any] | None:
    rows = measured.comparisons_of(cell)
    matches = rows[(rows["baseline"] == reference.path) & (rows["metric"] == metric)]
    return (
        {str(name): value for name, value in matches.iloc[0].items()}
        if len(matches)
        else None
    )


def _described(
    measured: Measured,
    cell: Cell,
    reference: Cell,
    level: int | None,
    metric: str,
) -> dict[str, Any]:
    """The geometric means over the runs both have, and their difference in per cent of the other cell."""
    of_runs = [
        measured.levels_of(side, level).drop_duplicates("run").set_index("run")[metric]
        for side in (cell, reference)
    ]
    both = pd.concat(of_runs, axis=1, join="inner").astype(float)
    values = both[((both > 0) & np.isfinite(both)).all(axis=1)]
    if values.empty:
        return {"effect_percent": math.nan}
    ours, theirs = np.log(values.to_numpy()).mean(axis=0)
    runs = ";".join(str(run) for run in values.index)
    row: dict[str, Any] = {
        "effect_percent": percent(float(ours - theirs)),
        "runs_kept": runs,
    }
    return row | {
        "baseline_runs_kept": runs,
        "mean": math.exp(ours),
        "baseline_mean": math.exp(theirs),
    }


def baseline_comparisons(
    plan: ReportPlan, table: pd.DataFrame, metric: str
) -> list[dict[Any, Any]]:
    """Return the comparisons of arms with their baselines in a metric, in the order of every table."""
    rows = table[table["metric"] == metric].to_dict("records") if len(table) else []
    order = {cell: place for place, cell in enumerate(plan.ordered_cells)}
    mine = [row for row in rows if is_against_baseline(plan, row)]
    return sorted(mine, key=lambda row: order.get(Cell.from_row(row), len(order)))


def is_against_baseline(plan: ReportPlan, row: Mapping[Any, Any]) -> bool:
    """Return whether a row compares an arm with its baseline, and not with another arm."""
    against = str(row["baseline"]).split("/")
    return len(against) != 3 or against[1] == plan.baseline_of.get(str(row["scenario"]))


def baseline_link(row: Mapping[Any, Any]) -> str:
    """Return the baseline in a row of a comparison with a link to its runs, "" if there is none."""
    return arm_link(Cell.from_path(row["baseline"])) if row["baseline"] else ""


def naming_of(row: Mapping[Any, Any]) -> SideNames:
    """Return the names of both cells of a comparison with links to their runs, for sentences on what is found of it."""
    arm = arm_link(Cell.from_row(row))
    return SideNames((arm, baseline_link(row) or arm))


def effect_text(row: Mapping[Any, Any]) -> str:
    """Return the effect of a comparison with its interval: a factor above twice as much, which is easier to read, else
    in per cent; "at least" where it can only be larger.
    """
    effect = change_text(
        row["effect_percent"],
        row["low_percent"],
        row["high_percent"],
        row.get("interval_percent", 95.0),
    )
    bound = text_or_blank(row.get("bound"))
    return f"{bound} {effect}" if bound else effect


def change_text(value: float, low: float, high: float, confidence: float = 95.0) -> str:
    """Return a change in per cent with its interval, in the form of `effect_text`.

    >>> change_text(13.26, 10.6, 16.08), change_text(310.6, 299.2, 322.4)
    ('+13.3 % (+10.6 to +16.1)', '4.1 times (4.0 to 4.2)')
    """
    if value > _TWICE:
        return numerals.factor(value, low, high)
    return numerals.effect(value, low, high, confidence)


def is_large(row: Mapping[Any, Any]) -> bool:
    """Return whether an effect is shown as a factor."""
    return bool(row["effect_percent"] > _TWICE)


def verdict_cell(row: Mapping[Any, Any]) -> str:
    """Return the verdict of a comparison for a table: in bold if it is decided, with what makes it only indicative and
    with the qualifier, and with the mark of its style; "" for cells that the campaign does not compare.
    """
    if UNDECLARED in ground_codes(row):
        return ""
    stated = verdict_words(row)
    word = f"**{stated}**" if row["verdict"] in words.DECIDED else stated
    causes = words.indicated_by(ground_codes(row))
    text = ", ".join(filter(None, (word, *causes, qualifier(row))))
    style = _STYLES.get(row["verdict"])
    return f"{text} {{.{style}}}" if style else text


def qualifier(row: Mapping[Any, Any]) -> str:
    """Return the qualifier of a verdict, "" if it has none."""
    stated = row["verdict"] in words.VERDICTS or text_or_blank(row.get("indication"))
    text = text_or_blank(row.get("qualifier")) if stated else ""
    return _QUALIFIERS.get(text, text)
