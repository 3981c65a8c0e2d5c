"""The answer at a glance: what the best arm gains, how soon it answers, how large its tier is, what was sent and checked.

Of one model as tiles, of several as a table with a row for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from kveval.host.findings import pluralize
from kveval.load.workload import workload_of
from kveval.report.best_arm import (
    answer_comparisons,
    best_of,
    latency_of,
    quickest_of,
    smaller_sizes,
)
from kveval.report.data.arm_links import arm_link
from kveval.report.data.campaign import StyledText, Table
from kveval.report.data.comparisons import effect_text, gain_text, qualifier
from kveval.report.data.level_units import load_in_few_words
from kveval.report.data.metric_titles import METRIC_TITLES
from kveval.report.data.vocabulary import verdict_text
from kveval.report.result.check_counts import check_counts
from kveval.report.result.model import CampaignResult, ReportedComparison, or_nan
from kveval.report.sections import Block, Paragraph, Tile, Tiles
from kveval.report.tables.results import values_text
from kveval.report.tables.reuse import size_of_named
from kveval.verdict import verdict_words as words

_UNITS = {"throughput_tok_s": "output tok/s"}
_NONE_BETTER, _NONE_MORE = "no arm is better", "no arm shown to deliver more"
_AS_GOOD = "the smallest measured that is as good as the best"


def at_a_glance(result: CampaignResult) -> Iterator[Block]:
    """Yield the tiles of a campaign with one model; of several a row each, and what was checked."""
    compared = answer_comparisons(result)
    if len({each.model for each in compared}) > 1:
        yield models_table(result)
        yield Paragraph(validity_sentence(result))
    else:
        yield Tiles(model_tiles(result))


def model_tiles(result: CampaignResult) -> tuple[Tile, ...]:
    """Return the tiles of a campaign with one model."""
    compared = answer_comparisons(result)
    if not compared:
        return (_validity(result),)
    best, quickest = best_of(compared), quickest_of(result, compared)
    latency = quickest if best is None else latency_of(result, best)
    return (
        _gain(result, compared, best),
        *_first_token(result, latency),
        *_tier(result, compared, best),
        _validity(result),
    )


def models_table(result: CampaignResult) -> Table:
    """Return a row per model: its best arm, what that gains, its TTFT before and after, and the tier that is needed."""
    header = ["model", "best arm", "gain (95 %)", "median TTFT, ms: before to after"]
    header += ["tier needed, computed", f"tier, {_AS_GOOD}"]
    compared = answer_comparisons(result)
    body = []
    for model in result.common_levels:
        of_model = [each for each in compared if each.model == model]
        best = best_of(of_model)
        if best is None:
            body.append(_row_without_gain(result, model, of_model))
            continue
        latency = latency_of(result, best)
        times = " to ".join(reversed(values_text(result, latency))) if latency else ""
        body.append(
            [
                *(model, arm_link(best)),
                StyledText(gain_text(best.row), words.BETTER),
                *(times, _size_by_model(result, model)),
                _measured_size(result, best),
            ]
        )
    return Table(header, body).without_blank_columns()


def _row_without_gain(
    result: CampaignResult, model: str, compared: Sequence[ReportedComparison]
) -> list[str]:
    """Return the row of a model of which no arm is better; one that answers sooner is named with its times."""
    size = _size_by_model(result, model)
    quickest = quickest_of(result, compared)
    if quickest is None:
        stated = _NONE_BETTER if _judged(compared) else "no verdict"
        return [model, stated, "", "", size, ""]
    times = " to ".join(reversed(values_text(result, quickest)))
    stated = f"none shown to deliver more; {arm_link(quickest)} answers sooner"
    return [model, stated, "", times, size, ""]


def validity_sentence(result: CampaignResult) -> str:
    """Return how many runs there are, of which load, and what their checks found, in one sentence."""
    tile = _validity(result)
    return f"**{tile.value}**: {'; '.join(tile.lines)}."


def _judged(compared: Sequence[ReportedComparison]) -> bool:
    return any(each.verdict in words.VERDICTS for each in compared)


def _gain(
    result: CampaignResult,
    compared: Sequence[ReportedComparison],
    best: ReportedComparison | None,
) -> Tile:
    title = METRIC_TITLES[compared[0].metric]
    if best is None:
        judged = _NONE_MORE if quickest_of(result, compared) else _NONE_BETTER
        value = judged if _judged(compared) else "no verdict yet"
        lines = [f"{each.label}: {verdict_text(each.row)}" for each in compared]
        return Tile(title, value, [*lines[:3], *(["..."] if lines[3:] else [])])
    value, other = values_text(result, best)
    unit = _UNITS.get(best.metric, "ms")
    values = f"{title[0].lower()}{title[1:]}: {value} against {other} {unit}"
    confidence = f"{or_nan(best.interval_percent):.3g} %"
    interval = f"in brackets: {confidence} interval, over runs"
    lines = [values, qualifier(best.row), interval]
    return Tile(
        f"{best.label} against {best.against_label}",
        gain_text(best.row),
        [*filter(None, lines)],
        words.BETTER,
    )


def _first_token(
    result: CampaignResult, latency: ReportedComparison | None
) -> Iterator[Tile]:
    if latency is None:
        return
    value, other = values_text(result, latency)
    stated = verdict_text(latency.row), qualifier(latency.row)
    verdict = ", ".join(filter(None, stated))
    decided = latency.verdict in (words.BETTER, words.WORSE)
    yield Tile(
        f"median TTFT, {latency.against_label} to {latency.label}",
        f"{other} to {value} ms",
        [f"{verdict}: {effect_text(latency.row)}"],
        latency.verdict if decided else "",
    )


def _tier(
    result: CampaignResult,
    compared: Sequence[ReportedComparison],
    best: ReportedComparison | None,
) -> Iterator[Tile]:
    computed = _computed_size(result, compared[0].model)
    enough = "" if best is None else _measured_size(result, best)
    if computed:
        lines = [*_of_named_model(result, compared[0].model)]
        lines.append("computed: for 90 % of the hits that a tier without a limit adds")
        lines += [f"{_AS_GOOD}: {enough}"] if enough else []
    else:
        lines = [_AS_GOOD]
    idle = [each.label for each in compared if words.is_of_idle_arm(each.row)]
    if idle:
        lines.append(f"idle, no hits from the tier: {', '.join(idle)}")
    if computed or enough:
        yield Tile("tier needed, in host memory", computed or enough, lines)


def _computed_size(result: CampaignResult, model: str) -> str:
    """The size for 90 % of the hits that a tier without a limit adds, "" if that was not computed."""
    needed = result.tiers_needed.get(model)
    return str(needed.size) if needed else ""


def _size_by_model(result: CampaignResult, model: str) -> str:
    """The computed size; of a miniature with that word, and with the size of the model that it stands for."""
    size, named = _computed_size(result, model), size_of_named(result, model)
    return f"{size} of the miniature, {named} of the model" if named else size


def _of_named_model(result: CampaignResult, model: str) -> Iterator[str]:
    """Yield, where a miniature was served, that a size is of it, and the size of as many tokens of the named model."""
    if named := size_of_named(result, model):
        yield f"of the miniature that was served; of {model} itself {named}"


def _measured_size(result: CampaignResult, best: ReportedComparison) -> str:
    """The smallest tier of the best arm that is at parity with its best one, "" without a tier in host memory."""
    at_parity = (
        blocks
        for blocks, row in smaller_sizes(result, best).items()
        if row["verdict"] == words.PARITY
    )
    smallest = min(at_parity, default=best.cpu_blocks)
    sizes = result.tier_sizes(best.model)
    return str(sizes.get(replace(best.cell, cpu_blocks=smallest), ""))


def _validity(result: CampaignResult) -> Tile:
    counts = check_counts(result)
    numbers = sorted({len(cell.runs) for cell in result.cells if cell.runs})
    count = " to ".join(map(str, dict.fromkeys((numbers[0], numbers[-1]))))
    absent = sum(not cell.runs for cell in result.cells)
    missing = f"{absent} of {pluralize(len(result.cells), 'cell')} not measured"
    lines = [*_loads(result), counts.in_words, *counts.remarks()]
    lines += [missing] if absent else []
    style = words.WORSE if counts.failed or absent else ""
    return Tile(
        "runs and checks", f"{count} run{'s' * (count != '1')} each", lines, style
    )


def _loads(result: CampaignResult) -> list[str]:
    """The load in a few words; of runs with different loads each of them."""
    loads = map(load_in_few_words, map(workload_of, result.workloads))
    known = dict.fromkeys(filter(None, loads))
    return [f"load: {'; or '.join(known)}"] if known else []
