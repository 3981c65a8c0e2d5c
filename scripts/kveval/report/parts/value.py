"""The sections on goodput, within declared latency limits, and on costs, at declared prices."""

from __future__ import annotations

from collections.abc import Iterator

from kveval.analysis.levels.goodput import GOODPUT, in_words
from kveval.load.levels import OPEN_LOOP
from kveval.report.data.campaign import Measured, ReportPlan
from kveval.report.parts.blocks import Pictures, of_models
from kveval.report.sections import Block, Paragraph, Section
from kveval.report.tables.costs import cost_table
from kveval.report.tables.goodput import goodput_level, goodput_table
from kveval.report.tables.shape import fitted

_UNITS = {
    "requests": "A request counts when it completes within them; one that fails, or takes longer, misses them.",
    "sessions": "A session counts when all its turns complete within them, and misses with the first that does not.",
}
_CUT = "Requests that the window's end cut off before their outcome was known are not counted."
_SENT = "At a level all arms were sent the same number of requests a second, answered or not."
_COSTS = (
    "At the level where the model's arms are compared, for all servers together. Intervals are those of the throughput."
    " A change, and the price of memory below which a token costs less with the tier than without, are shown where the"
    " throughput has a verdict. The numbers are in `analysis/costs.csv`."
)
_PRICED = {
    "gpu_hour_usd": "a GPU hour ${:g}",
    "host_hour_usd": "an hour of a server's host ${:g}",
    "host_gib_hour_usd": "a GiB of host memory ${:g} an hour",
}


def value(plan: ReportPlan, measured: Measured, pictures: Pictures) -> Iterator[Section]:
    """Yield the section on goodput if the campaign declares limits, and that on costs if it declares prices."""
    if plan.goodput and GOODPUT in measured.levels:
        yield _goodput(plan, measured, pictures)
    table = cost_table(plan, measured)
    if table.rows:
        priced = ", ".join(text.format(plan.prices[name]) for name, text in _PRICED.items() if name in plan.prices)
        memory = "" if "host_gib_hour_usd" in plan.prices else " Host memory has no price of its own in these costs."
        yield Section("What it costs", [Paragraph(f"Priced: {priced}. {_COSTS}{memory}"), *of_models(table)])


def _goodput(plan: ReportPlan, measured: Measured, pictures: Pictures) -> Section:
    sent = _SENT if any(run.workload.get("profile") in OPEN_LOOP for run in measured.runs) else ""
    said = [f"Limits: {in_words(plan.goodput)}.", _UNITS[plan.goodput["of"]], _CUT, sent]
    blocks: list[Block] = [Paragraph(" ".join(filter(None, said)))]
    for model in plan.models_by_size:
        level = goodput_level(plan, measured, model)
        at = "no level has any" if level is None else f"compared at {measured.unit.said([level])}"
        blocks += [Paragraph(f"**{model}**, {at}:"), *fitted(goodput_table(plan, measured, model))]
    return Section("Goodput", [*blocks, *pictures.take("goodput")])
