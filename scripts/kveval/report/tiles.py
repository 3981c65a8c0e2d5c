"""The answer at a glance: what the best arm gains, how soon it answers, how large its tier is, and what was checked.

Of one model as tiles, of several as a table with a row for each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kveval.analysis.statistics import verdict_words as words
from kveval.campaign.cell import Cell
from kveval.campaign.size import GIB, Size
from kveval.host.findings import pluralize
from kveval.report.data.campaign import Measured, ReportPlan, StyledText, Table
from kveval.report.data.comparisons import (
    baseline_comparisons,
    baseline_label,
    comparison_from,
    effect_text,
    gain_text,
    qualifier,
    values_text,
)
from kveval.report.data.metric_titles import METRIC_TITLES
from kveval.report.data.vocabulary import verdict_text
from kveval.report.result.check_counts import check_counts
from kveval.report.sections import Tile

TTFT = "ttft_ms_p50"
# A row of comparison.csv.
Row = Mapping[Any, Any]
_UNITS = {"throughput_tok_s": "output tok/s"}
_NONE_BETTER = "no arm is better"


def best_row(rows: Sequence[Row]) -> Row | None:
    """Return the comparison with the largest gain of those that are better; None if none is."""
    better = [row for row in rows if row["verdict"] == words.BETTER]
    return max(better, key=lambda row: abs(row["effect_percent"]), default=None)


def smaller_sizes(measured: Measured, best: Row) -> dict[int, Row]:
    """Return the smaller tiers of an arm, in blocks, that are at parity with its best one; if none is, those that are
    not shown to differ from it.

    Each has its comparison: of the best one with it.
    """
    cell = Cell.from_row(best)
    of_verdict: dict[str, dict[int, Row]] = {words.PARITY: {}, words.INCONCLUSIVE: {}}
    for contrast in measured.contrasts.to_dict("records"):
        row = comparison_from(cell, contrast)
        if row is None or row["metric"] != best["metric"]:
            continue
        other = Cell.from_path(row["baseline"])
        smaller = 0 < other.cpu_blocks < cell.cpu_blocks
        if other.scenario == cell.scenario and smaller and row["verdict"] in of_verdict:
            of_verdict[row["verdict"]][other.cpu_blocks] = row
    return of_verdict[words.PARITY] or of_verdict[words.INCONCLUSIVE]


def model_tiles(
    plan: ReportPlan, measured: Measured, rows: Sequence[Row]
) -> tuple[Tile, ...]:
    """Return the tiles of a campaign with one model. `rows`: its comparisons with a baseline, of the answer's metric."""
    tiles = [_validity(plan, measured)]
    if rows:
        best = best_row(rows)
        tiles = [
            _gain(measured, rows, best),
            *_first_token(plan, measured, best),
            *_tier(measured, rows, best),
            *tiles,
        ]
    return tuple(tiles)


def models_table(plan: ReportPlan, measured: Measured, rows: Sequence[Row]) -> Table:
    """Return a row per model: its best arm, what that gains, its TTFT before and after, and the tier that is needed.

    `rows`: the comparisons with a baseline of the answer's metric.
    """
    header = ["model", "best arm", "gain (95 %)", "median TTFT, ms: before to after"]
    header += ["tier needed, computed", "tier, as measured"]
    body = []
    for model in plan.models_by_size:
        of_model = [row for row in rows if row["model"] == model]
        best = best_row(of_model)
        if best is None:
            said = _NONE_BETTER if _judged(of_model) else "no verdict"
            body.append([model, said, "", "", _computed(measured, model), ""])
            continue
        latency = _of_cell(plan, measured, best)
        times = " to ".join(reversed(values_text(measured, latency))) if latency else ""
        body.append(
            [
                *(model, Cell.from_row(best).label),
                StyledText(gain_text(best), words.BETTER),
                *(times, _computed(measured, model)),
                _measured_size(measured, best),
            ]
        )
    return Table(header, body).without_blank_columns()


def validity_sentence(plan: ReportPlan, measured: Measured) -> str:
    """Return how many runs there are, and what their checks found, in one sentence."""
    tile = _validity(plan, measured)
    return f"**{tile.value}**: {'; '.join(tile.lines)}."


def _judged(rows: Sequence[Row]) -> bool:
    return any(row["verdict"] in words.VERDICTS for row in rows)


def _gain(measured: Measured, rows: Sequence[Row], best: Row | None) -> Tile:
    title = METRIC_TITLES[rows[0]["metric"]]
    if best is None:
        value = _NONE_BETTER if _judged(rows) else "no verdict yet"
        lines = [f"{Cell.from_row(row).label}: {verdict_text(row)}" for row in rows]
        return Tile(title, value, [*lines[:3], *(["..."] if lines[3:] else [])])
    value, other = values_text(measured, best)
    unit = _UNITS.get(best["metric"], "ms")
    values = f"{title[0].lower()}{title[1:]}: {value} against {other} {unit}"
    lines = [values, qualifier(best), "in brackets: 95 % interval, over runs"]
    return Tile(
        f"{Cell.from_row(best).label} against {baseline_label(best)}",
        gain_text(best),
        [*filter(None, lines)],
        words.BETTER,
    )


def _of_cell(plan: ReportPlan, measured: Measured, best: Row) -> Row | None:
    """The comparison of the median TTFT of the arm of another comparison, None without a number."""
    for row in baseline_comparisons(plan, measured.comparison, TTFT):
        same = Cell.from_row(row) == Cell.from_row(best) and row["baseline"]
        if same and math.isfinite(row["effect_percent"]):
            return row
    return None


def _first_token(
    plan: ReportPlan, measured: Measured, best: Row | None
) -> Iterator[Tile]:
    row = _of_cell(plan, measured, best) if best is not None else None
    if row is None:
        return
    value, other = values_text(measured, row)
    verdict = ", ".join(filter(None, (verdict_text(row), qualifier(row))))
    style = row["verdict"] if row["verdict"] in (words.BETTER, words.WORSE) else ""
    yield Tile(
        f"median TTFT, {baseline_label(row)} to {Cell.from_row(row).label}",
        f"{other} to {value} ms",
        [f"{verdict}: {effect_text(row)}"],
        style,
    )


def _tier(measured: Measured, rows: Sequence[Row], best: Row | None) -> Iterator[Tile]:
    computed = _computed(measured, rows[0]["model"])
    enough = "" if best is None else _measured_size(measured, best)
    as_good = "the smallest measured that is as good as the best"
    if computed:
        lines = ["computed: for 90 % of the hits that a tier without a limit adds"]
        lines += [f"{as_good}: {enough}"] if enough else []
    else:
        lines = [as_good]
    idle = [Cell.from_row(row).label for row in rows if words.is_of_idle_arm(row)]
    if idle:
        lines.append(f"idle, no hits from the tier: {', '.join(idle)}")
    if computed or enough:
        yield Tile("tier needed, in host memory", computed or enough, lines)


def _computed(measured: Measured, model: str) -> str:
    """The size for 90 % of the hits that a tier without a limit adds, "" if that was not computed."""
    if "enough_blocks" not in measured.predicted:
        return ""
    table = measured.predicted
    known = table[(table["model"] == model) & table["enough_blocks"].notna()]
    if known.empty:
        return ""
    row = known.iloc[0]
    return str(Size(int(row["enough_blocks"]), round(row["enough_gib"] * GIB)))


def _measured_size(measured: Measured, best: Row) -> str:
    """The smallest tier of the best arm that is at parity with its best one, "" without a tier in host memory."""
    cell = Cell.from_row(best)
    at_parity = (
        blocks
        for blocks, row in smaller_sizes(measured, best).items()
        if row["verdict"] == words.PARITY
    )
    smallest = replace(cell, cpu_blocks=min(at_parity, default=cell.cpu_blocks))
    return str(measured.tier_sizes(cell.model).get(smallest, ""))


def _validity(plan: ReportPlan, measured: Measured) -> Tile:
    counts = check_counts(plan, measured)
    measured_runs = (len(measured.runs_of(cell)) for cell in plan.cells)
    numbers = sorted({number for number in measured_runs if number})
    count = " to ".join(map(str, dict.fromkeys((numbers[0], numbers[-1]))))
    absent = sum(not measured.runs_of(cell) for cell in plan.cells)
    missing = f"{absent} of {pluralize(len(plan.cells), 'cell')} not measured"
    lines = [counts.in_words, *counts.remarks(), *([missing] if absent else [])]
    style = words.WORSE if counts.failed or absent else ""
    return Tile(
        "runs and checks", f"{count} run{'s' * (count != '1')} each", lines, style
    )
