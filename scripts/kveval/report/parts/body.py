"""The report without its appendices: the first screen, the arms by model, arms against each other, goodput, costs,
guidance, and limitations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kveval.campaign.arm_kinds import kinds_of
from kveval.load.levels import OPEN_LOOP
from kveval.report.answer import answer_figure, answer_sentences
from kveval.report.data.run_facts import tier_sizes_in_words
from kveval.report.next_steps import step_sentence
from kveval.report.parts.blocks import (
    Pictures,
    headed,
    section_unless_empty,
    split_by_model,
    split_wide,
)
from kveval.report.parts.limitations import (
    defect_sentences,
    limitation_sentences,
    missing_sentences,
)
from kveval.report.result.model import CampaignResult
from kveval.report.sections import Block, Bullets, Code, Paragraph, Section
from kveval.report.tables.caches import PREFILL, ceilings_table, tiers_table
from kveval.report.tables.configuration import facts_line, origin_table
from kveval.report.tables.guidance import guidance_table
from kveval.report.tables.one_request import (
    one_request_sentences,
    one_request_table,
    waypoints,
)
from kveval.report.tables.pairs import pair_table
from kveval.report.tables.results import (
    arms_table,
    baseline_links,
    level_unit_of,
    strategy_table,
)
from kveval.report.tables.reuse import memory_sentences, predicted_table
from kveval.report.tables.value import cost_table, goodput_table
from kveval.report.tables.waterfall import leak_sentences, waterfall_table
from kveval.report.tiles import at_a_glance
from kveval.tables.levels import goodput

NOTES = {
    "miniature": (
        "**A miniature was measured, not the named model:** random weights, few layers, the real server. It shows how"
        " the tiers of the KV cache act, not how fast the model is on a GPU."
    ),
    "random": (
        "**Random weights, full geometry:** prefills, KV cache and transfers have the named model's sizes, and nothing"
        " was downloaded. The content of the answers was not measured."
    ),
}
MACHINES = "**Measured on different machines:** a difference between arms may be one between machines."
HOW_TO_READ = (
    "Throughput is output tokens delivered per second in the measurement window. Better, worse and no "
    "relevant difference are verdicts of tests at the campaign's error rate; [what has none](#not-assessed) is listed with"
    " what would settle it. The words are explained in [how to read this report](#how-to-read-this-report)."
)
# Figures of the answer's metrics other than throughput.
OVERVIEW = ("ttft_by_arm", "hit_rates_by_tier")
INDEX = "An index of KV blocks helps to choose between replicas: with a single replica it can cost time, and cannot help."
TIERS = "What the tiers did there, by the server's counters over the level:"
CEILINGS = (
    "What limits loading, means over the runs: the rate of the tier's loads by the server's own counters, and the rate"
    " at which a probe copied large buffers on this machine."
)
LENGTHS = (
    " Prefill is the rate at which the baseline computes prompts; the other time is what a request with loads waits for"
    " beyond copying and computing. From these follows the length from which loading a prefix is faster than computing"
    " it again."
)
LOST = "Where most is lost, and what to do"
WATERFALL = (
    "Per cent of the prompt tokens, each stage at most the one before: computed from the requests that were sent and"
    " the sizes of the caches, then counted by the servers over the whole level, warm-up included. Blank: not known. In"
    " **bold**: more than the stage before, so that one of them is wrong."
)
ONE_REQUEST = (
    "What a hit buys a single request: the time to the first token of a prompt that nobody had sent (cold), sent again"
    " at once (from the device), and once more after the device's cache was emptied (from the tier). Medians with the"
    " least and the most, HTTP included, of requests sent one at a time before the levels; each counts only if the"
    " server's counters show where its tokens came from."
)
PREDICTED_GAIN = (
    "Predicted by simulating the server with the same requests: its speed is fitted to the runs without a tier, and the"
    " tiers copy at the rates measured here. The interval holds nine in ten simulations, each with a speed that agrees"
    " with those runs. A measured change outside it has reasons that the simulation does not model. n/a: the tier serves"
    " nothing beyond the device, and no copies show what it costs."
)
UNITS = {
    "requests": "A request counts when it completes within them; one that fails, or takes longer, misses them.",
    "sessions": "A session counts when all its turns complete within them, and misses with the first that does not.",
}
CUT_OFF = "Requests that the window's end cut off before their outcome was known are not counted."
EQUAL_RATES = "At a level all arms were sent the same number of requests a second, answered or not."
COSTS = (
    "At the level where the model's arms are compared, for all servers together. Intervals are those of the throughput."
    " A change, and the price of memory below which a token costs less with the tier than without, are shown where the"
    " throughput has a verdict. The numbers are in `analysis/costs.csv`."
)
PRICE_PHRASES = {
    "gpu_hour_usd": "a GPU hour ${:g}",
    "host_hour_usd": "an hour of a server's host ${:g}",
    "host_gib_hour_usd": "a GiB of host memory ${:g} an hour",
}
PAIRS = (
    "Throughput at the level where the model's arms are compared. Each size of a tier is compared with the next smaller"
    " one; of other pairs only those that were declared have a verdict."
)
GUIDANCE = (
    "A CPU tier belongs to the replica that filled it: where several serve a model, sticky or cache-aware routing"
    " brings a conversation back to its prefix.",
    (
        "The tier's host memory comes on top of the server's own; the limits on shared and on locked memory must "
        "allow both."
    ),
)


def first_screen(result: CampaignResult, pictures: Pictures) -> Iterator[Block]:
    """Yield the first screen: the question, the answer at a glance, one figure, the next command, and the rest of it."""
    answer = result.answer
    yield Paragraph(facts_line(result.campaign.name, result.origin), small=True)
    if note := NOTES.get(result.weights):
        yield Paragraph(note, note=True)
    if len(result.origin.machines) > 1:
        yield Paragraph(MACHINES, note=True)
    yield Paragraph(f"**{answer.question}**")
    yield from at_a_glance(result)
    steps = [step_sentence(result, step) for step in result.steps]
    yield from headed("Next", *_next(steps, answer.command))
    yield from pictures.take(answer_figure(result))
    *sentences, basis = answer_sentences(result)
    sizes = tier_sizes_in_words(result.tier_sizes())
    tiers = f" Tiers in host memory: {sizes}." if sizes else ""
    yield from headed("In words", Bullets([*sentences, f"{basis}{tiers}"]))
    further = [Bullets(steps[1:])] if steps[1:] else []
    yield from headed("What else would make the answer more certain", *further)
    yield from headed("About this campaign", *_description(result.campaign.description))


def _next(steps: Sequence[str], command: str) -> Iterator[Block]:
    """Yield what to do next, and the command for it, if one does it."""
    if steps:
        yield Paragraph(steps[0])
    if command:
        yield Code(command)


def _description(description: str) -> Iterator[Block]:
    """Yield what the campaign's author says of it, and a list of remarks on runs that were not measured for it."""
    lines = description.splitlines()
    items = [line.removeprefix("- ") for line in lines if line.startswith("- ")]
    rest = [line for line in lines if not line.startswith("- ")]
    if about := " ".join(" ".join(rest).split()):
        yield Paragraph(about)
    if items:
        yield Bullets(items)


def main_sections(result: CampaignResult, pictures: Pictures) -> Iterator[Section]:
    """Yield the sections between the first screen and the appendices."""
    overview = [*_overview(result), *pictures.take(*OVERVIEW)]
    yield Section("By model", [*overview, *_models(result, pictures)])
    yield from _one_request(result)
    stages = [*split_by_model(waterfall_table(result))]
    if stages:
        leaks = Bullets([*leak_sentences(result)])
        stages += [*headed(LOST, leaks), *pictures.of_section("reuse")]
    yield from section_unless_empty(
        "Where hits are lost",
        stages,
        WATERFALL,
    )
    bought = [*split_by_model(predicted_table(result))]
    if bought:
        bought.append(Bullets([*memory_sentences(result)]))
    yield from section_unless_empty(
        "Gain from tiers, predicted and measured", bought, PREDICTED_GAIN
    )
    if result.goodput_levels:
        yield _goodput(result, pictures)
    prices = result.campaign.prices
    priced = ", ".join(
        text.format(prices[name])
        for name, text in PRICE_PHRASES.items()
        if name in prices
    )
    memory = (
        ""
        if "host_gib_hour_usd" in prices
        else " Host memory has no price of its own in these costs."
    )
    yield from section_unless_empty(
        "What it costs",
        split_by_model(cost_table(result)),
        f"Priced: {priced}. {COSTS}{memory}",
    )
    yield from section_unless_empty(
        "Arms against each other", split_by_model(pair_table(result)), PAIRS
    )
    answers = [*split_by_model(guidance_table(result))]
    yield from section_unless_empty(
        "Deployment guidance", [*answers, Bullets(GUIDANCE)] if answers else []
    )
    lists = {
        "Missing": missing_sentences(result),
        "Measured again after a known defect": defect_sentences(result),
        "Limitations": [*limitation_sentences(result)],
    }
    yield from (
        Section(title, [Bullets(items)]) for title, items in lists.items() if items
    )
    yield Section(
        "Where this comes from", [origin_table(result.campaign.name, result.origin)]
    )


def _overview(result: CampaignResult) -> Iterator[Block]:
    yield Paragraph(HOW_TO_READ)
    table = strategy_table(result)
    if len(table.rows) > 1 and any(any(row[1:4]) for row in table.rows):
        yield table
    if any(cell.arm_kind in kinds_of("indexing") for cell in result.cells):
        yield Paragraph(INDEX)


def _models(result: CampaignResult, pictures: Pictures) -> Iterator[Section]:
    for model, level in result.common_levels.items():
        blocks: list[Block] = []
        if level is not None:
            baselines = ", ".join(baseline_links(result, model))
            against = f", against {baselines}" if baselines else ""
            at = f"At {level_unit_of(result).in_sentence([level])}"
            sizes = tier_sizes_in_words(result.tier_sizes(model))
            tiers = f"; tiers in host memory: {sizes}" if sizes else ""
            blocks.append(Paragraph(f"{at}{against}{tiers}."))
        blocks += split_wide(arms_table(result, model))
        work = tiers_table(result, model, level)
        if work.rows:
            blocks += [Paragraph(TIERS), *split_wide(work)]
        ceilings = ceilings_table(result, model)
        if ceilings.rows:
            lengths = LENGTHS if PREFILL in ceilings.header else ""
            blocks += [Paragraph(f"{CEILINGS}{lengths}"), *split_wide(ceilings)]
        yield Section(model, [*blocks, *pictures.of_section("model", model)])


def _one_request(result: CampaignResult) -> list[Section]:
    blocks = [*split_by_model(one_request_table(result))]
    sentences = [*one_request_sentences(result)]
    if blocks and sentences:
        blocks.append(Bullets(sentences))
    through = waypoints(result)
    way = f" They went through {through}, whose time is in all." if through else ""
    return section_unless_empty(
        "One request: cold, from the device, from the tier",
        blocks,
        f"{ONE_REQUEST}{way}",
    )


def _goodput(result: CampaignResult, pictures: Pictures) -> Section:
    limits = result.campaign.goodput
    open_loop = any(load.get("profile") in OPEN_LOOP for load in result.workloads)
    sentences = [
        f"Limits: {goodput.limits_text(limits)}.",
        UNITS[limits["of"]],
        CUT_OFF,
        EQUAL_RATES if open_loop else "",
    ]
    blocks: list[Block] = [Paragraph(" ".join(filter(None, sentences)))]
    for model, level in result.goodput_levels.items():
        at = (
            "no level has any"
            if level is None
            else f"compared at {level_unit_of(result).in_sentence([level])}"
        )
        blocks += [
            Paragraph(f"**{model}**, {at}:"),
            *split_wide(goodput_table(result, model)),
        ]
    return Section("Goodput", [*blocks, *pictures.take("goodput")])
