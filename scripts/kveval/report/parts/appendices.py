"""The appendices: details behind the answer, each in its own file beside REPORT.md."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kveval.report.data.campaign import Measured, ReportPlan
from kveval.report.parts.blocks import (
    LONG,
    Pictures,
    section_unless_empty,
    split_by_model,
    split_wide,
)
from kveval.report.parts.words import FILES, WORDS
from kveval.report.result.model import CampaignResult
from kveval.report.sections import Block, Code, Paragraph, Section
from kveval.report.tables.caches import (
    activity_table,
    blocks_table,
    budget_table,
    failed_transfers_table,
    lookups_table,
    tiers_table,
)
from kveval.report.tables.configuration import (
    campaign_table,
    command_lines,
    hardware_table,
    search_table,
    software_table,
    workload_table,
)
from kveval.report.tables.guidance import guidance_numbers
from kveval.report.tables.not_assessed import gap_table
from kveval.report.tables.results import (
    baseline_links,
    basis_table,
    comparison_table,
    completed_table,
    guide_table,
    peak_table,
)
from kveval.report.tables.reuse import reuse_table
from kveval.report.tables.system import (
    average_table,
    check_tables,
    provenance_table,
    system_tables,
    time_table,
)


def appendices(
    plan: ReportPlan, measured: Measured, result: CampaignResult, pictures: Pictures
) -> Iterator[Section]:
    """Yield the appendices in their order."""
    yield _configuration(plan, measured, result)
    yield _comparisons(result)
    # These take figures; the results take those that are left.
    caches, system = (
        _caches(plan, measured, result, pictures),
        _system(plan, measured, pictures),
    )
    yield _results(result, pictures)
    yield from (caches, system, _checks(result))
    gaps = gap_table(result.not_assessed)
    summary = (
        "What has no verdict, why, and what would settle it."
        if gaps.rows
        else "What was asked for has a verdict."
    )
    yield Section(
        "Not assessed", [Paragraph(summary), *split_wide(gaps)], appendix="not-assessed"
    )
    reading: list[Block] = [
        Paragraph("The words, and the files with the numbers."),
        *split_wide(WORDS),
    ]
    reading += [
        Section("Files", [*split_wide(FILES)]),
        *section_unless_empty("Where the time went", split_wide(time_table(result))),
    ]
    reading.append(Section("The runs", [*split_by_model(provenance_table(result))]))
    yield Section("How to read this report", reading, appendix="reading")


def _configuration(
    plan: ReportPlan, measured: Measured, result: CampaignResult
) -> Section:
    tables = [
        campaign_table(result),
        hardware_table(result),
        software_table(result),
    ]
    blocks: list[Block] = [
        Paragraph(
            "As it ran: versions as the software reported them, hardware as it was probed."
        )
    ]
    blocks += [
        part
        for table in (*tables, workload_table(result))
        for part in split_wide(table)
    ]
    searched = split_wide(search_table(measured.pilots))
    blocks += [Paragraph(_SEARCHED), *searched] if searched else []
    for cell, lines in command_lines(plan, measured).items():
        blocks.append(
            Section(
                f"Command lines of {cell}", [Code(line) for line in lines], folded=True
            )
        )
    return Section("Configuration", blocks, appendix="configuration")


_SEARCHED = (
    "The levels were searched: a pilot on the baseline climbed until throughput no longer rose, then closed in on"
    " the peak. Its throughputs chose the levels and nothing else; they are in no other table."
)


_COMPARED = (
    "Each arm against its baseline and each declared pair, in every quantity; effects in per cent of the cell that an"
    " arm is compared with."
)
_BASIS = (
    "Comparisons of throughput; for other quantities see the columns `basis_...` of `analysis/comparison.csv`. Inputs"
    " in **bold** prevent a verdict; those in *italics* make it indicative, or are stated beside it. What was not"
    " recorded may differ."
)


def _comparisons(result: CampaignResult) -> Section:
    blocks: list[Block] = [Paragraph(_COMPARED)]
    for model in result.common_levels:
        table = comparison_table(result, model)
        baselines = " or ".join(baseline_links(result, model))
        text = f"Against {baselines} where no other cell is named." if baselines else ""
        compared = section_unless_empty(f"{model}, compared", split_wide(table), text)
        folded = len(table.rows) > LONG
        blocks += [replace(section, folded=folded) for section in compared]
    blocks += section_unless_empty(
        "What each verdict rests on",
        split_by_model(basis_table(result)),
        _BASIS,
    )
    means = "Throughput, over the models that have each of the arms; the interval says how far models differ."
    blocks += section_unless_empty(
        "Averaged over models", split_wide(average_table(result)), means
    )
    return Section("Comparisons", blocks, appendix="comparisons")


_PEAKS = (
    "Intervals are over runs. The peak is the level with the highest mean; choosing the highest of several noisy "
    'levels favours it, so compare arms by the comparison, not by the peaks. "or": levels whose distance from the'
    ' peak is within the spread of the runs. "edge": the peak lies on the first or last level measured, so that '
    "the true one may lie outside the levels measured."
)
_COMPLETED = (
    "Summed over the runs of a cell. A rate that counts only completed requests is too low when few complete; it "
    "is shown for comparison with reports that count this way."
)


def _results(result: CampaignResult, pictures: Pictures) -> Section:
    peaks: list[Block] = [Paragraph(_PEAKS)]
    for model in result.common_levels:
        peaks += [Paragraph(f"**{model}**"), *split_wide(peak_table(result, model))]
    guide = (
        "Means over runs, in the form of llm-d's guide to offloading the prefix cache."
    )
    blocks: list[Block] = [
        Paragraph("Peaks, what completed, latencies, and figures across models."),
        Section("Peaks", peaks),
        *section_unless_empty(
            "Requests completed at the peak",
            split_by_model(completed_table(result)),
            _COMPLETED,
        ),
        *section_unless_empty(
            "Mean and P90 latencies at the common level",
            split_by_model(guide_table(result)),
            guide,
        ),
        *pictures.take(*pictures.names),
    ]
    return Section("Results in detail", blocks, appendix="results")


_ACTIVE = (
    "The change of the server's own counters during each level, warm-up included. An arm whose counters did not "
    "move never used its tier, and its numbers say nothing about it. Tokens, and their bytes, have to be 0.5 % of "
    "the prompt tokens: less has no measurable effect."
)
_WORK = (
    'Means over runs of the servers\' own counters over each level, warm-up included. "Behind the device" is any '
    'tier of the arm; "only in the store" is what LMCache\'s tier in host memory had dropped and its store still '
    "had. Bytes of a store are those of its connection, protocol included. Blank: the software does not count it."
)
_REUSE = (
    "Shares of the prompt tokens that came from caches: computed from the requests that were sent and the sizes of the"
    " caches, and found by the servers' own counters, both over the whole level, warm-up included. The interval is over"
    " runs, each of which has its own requests. A difference without a listed cause is a finding about the server."
)
_LOOKUPS = (
    "By the servers' counters over each level, of all runs together. A chunk is what the tier stores as one. Delays are"
    " the ends of the servers' buckets: how long a lookup held up the scheduler, and, where it was put off because the"
    " tier had not answered yet, how long until the answer."
)
_WEIGHTS = (
    "From the models' geometry: keys and values of the layers; quantised weights change nothing here. GB are powers "
    "of ten, GiB of two."
)


def _caches(
    plan: ReportPlan, measured: Measured, result: CampaignResult, pictures: Pictures
) -> Section:
    blocks: list[Block] = [
        Paragraph("What the tiers hold, and what they did."),
        *section_unless_empty(
            "Was the arm active?",
            split_by_model(activity_table(result)),
            _ACTIVE,
        ),
        *section_unless_empty(
            "What the tiers did, level by level",
            split_by_model(tiers_table(result), keys=2),
            _WORK,
        ),
        *section_unless_empty(
            "Reuse, computed and found, level by level",
            split_by_model(reuse_table(result), keys=2),
            _REUSE,
        ),
        *section_unless_empty(
            "Lookups in the tiers",
            split_by_model(lookups_table(plan, measured), keys=3),
            _LOOKUPS,
        ),
        *section_unless_empty(
            "Transfers that failed or were left out",
            split_by_model(failed_transfers_table(plan, measured)),
        ),
        *section_unless_empty(
            "Sizes of KV blocks", split_wide(blocks_table(result)), _WEIGHTS
        ),
        *section_unless_empty(
            "What the caches hold", split_by_model(budget_table(result))
        ),
        *section_unless_empty(
            "The numbers behind the guidance",
            split_by_model(guidance_numbers(result)),
        ),
        *(*pictures.of_section("offload"), *pictures.of_section("tiers")),
    ]
    return Section("Caches", blocks, appendix="caches")


def _system(plan: ReportPlan, measured: Measured, pictures: Pictures) -> Section:
    tables = system_tables(plan, measured)
    text = "Means over runs of the recording in the peak level's window. n/a: not recorded, or too few samples."
    blocks: list[Block] = [
        Paragraph(
            text if tables else "There is no recording of the system for these levels."
        )
    ]
    for title, table in tables.items():
        blocks += section_unless_empty(title, split_by_model(table, keys=2))
    return Section(
        "The system", [*blocks, *pictures.of_section("system")], appendix="system"
    )


def _checks(result: CampaignResult) -> Section:
    failed, noted = check_tables(result)
    text = "A level of a run that failed a check enters no verdict; the other runs of its cell do."
    blocks: list[Block] = [
        Paragraph(text if failed.rows else "No level failed a check."),
        *split_by_model(failed),
    ]
    return Section(
        "Checks",
        [*blocks, *section_unless_empty("Warnings and notes", split_wide(noted))],
        appendix="checks",
    )
