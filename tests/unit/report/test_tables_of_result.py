"""The body and tables of REPORT.md can be printed from report.json alone."""

import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from tests.support.report_text import whole_report
from tests.unit.report.test_report_claims import CAMPAIGNS
from tests.unit.report.test_tables_predicted import PREDICTED
from tests.unit.report.test_value import campaign as value_campaign

from kveval.campaign.cell import Cell
from kveval.conditions.facts import described
from kveval.report.data.arm_links import plain_text
from kveval.report.data.campaign import Measured, ReportPlan, Table
from kveval.report.files import MAIN
from kveval.report.markdown import markdown_table, render
from kveval.report.next_steps import step_sentence
from kveval.report.parts.blocks import Pictures, split_wide, tables_by_model
from kveval.report.parts.body import first_screen, main_sections
from kveval.report.parts.limitations import (
    defect_sentences,
    limitation_sentences,
    missing_sentences,
)
from kveval.report.report import write_report
from kveval.report.result.model import CampaignResult, read_result
from kveval.report.sections import Section
from kveval.report.tables.caches import (
    activity_table,
    blocks_table,
    budget_table,
    ceilings_table,
    tiers_table,
)
from kveval.report.tables.configuration import (
    campaign_table,
    hardware_table,
    software_table,
    workload_table,
)
from kveval.report.tables.guidance import guidance_numbers, guidance_table
from kveval.report.tables.one_request import (
    one_request_sentences,
    one_request_table,
    waypoints,
)
from kveval.report.tables.pairs import pair_table
from kveval.report.tables.results import (
    arms_table,
    basis_table,
    comparison_table,
    completed_table,
    guide_table,
    peak_table,
    strategy_table,
)
from kveval.report.tables.reuse import (
    memory_sentences,
    predicted_table,
    reuse_table,
)
from kveval.report.tables.system import (
    average_table,
    check_tables,
    provenance_table,
    time_table,
)
from kveval.report.tables.value import cost_table, goodput_table
from kveval.report.tables.waterfall import leak_sentences, waterfall_table
from kveval.store.conditions import Change
from kveval.store.run_file import Repeat, Run
from kveval.verdict.averages import averages

# A cell of the failing campaign that lacks one of three runs.
PARTIAL = Cell("Qwen3-8B", "native-offload", 10_000)


def tables_of(result: CampaignResult) -> Iterator[Table]:
    """The tables that are made of a result alone."""
    for model in result.common_levels:
        yield arms_table(result, model)
        yield comparison_table(result, model)
        yield peak_table(result, model)
        yield tiers_table(result, model, result.common_levels[model])
        yield ceilings_table(result, model)
    for model in result.goodput_levels:
        yield goodput_table(result, model)
    across = [completed_table(result), guide_table(result), predicted_table(result)]
    across += [tiers_table(result), pair_table(result)]
    across += [guidance_table(result), guidance_numbers(result)]
    across += [waterfall_table(result), cost_table(result)]
    across += [one_request_table(result), reuse_table(result)]
    across += [budget_table(result), activity_table(result), basis_table(result)]
    across += [provenance_table(result), check_tables(result)[0]]
    for table in across:
        yield from (part for _, part in tables_by_model(table))
    yield from (blocks_table(result), campaign_table(result))
    yield from (hardware_table(result), software_table(result), workload_table(result))
    yield from (time_table(result), check_tables(result)[1])
    yield average_table(result)
    if len(result.common_levels) > 1:
        yield strategy_table(result)


def campaign_of(name: str) -> tuple[ReportPlan, Measured]:
    """A made-up campaign; of the mechanism's, loads were timed and gains predicted as well; goodput's has prices; of the
    failing one the first run was measured again, two cells ran the same, and it is known why a run is missing. Effects of
    contrasts' are averaged over both models.
    """
    if name == "goodput":
        return value_campaign()
    plan, measured = CAMPAIGNS[name]()
    if name == "mechanism":
        predicted = PREDICTED.assign(model="Qwen3-0.6B", cpu_blocks=10_000)
        runs = [*map(with_timed_loads, measured.runs)]
        measured = dataclasses.replace(measured, predicted=predicted, runs=runs)
    if name == "contrasts":
        small = measured.comparison[measured.comparison["cpu_blocks"] <= 10_000]
        means = averages(small).assign(missing="Qwen3-8B/native-offload/20000")
        measured = dataclasses.replace(measured, averages=means)
    if name == "failing":
        runs = [with_a_repeat(measured.runs[0]), *measured.runs[1:]]
        runs[-1] = like_another_cell(runs[-1], runs)
        failures = {**measured.failures, PARTIAL: "failed: run-3: out of memory"}
        measured = dataclasses.replace(measured, runs=runs, failures=failures)
    return plan, measured


def with_timed_loads(run: Run) -> Run:
    """A run whose tier, if it has one, counted a gigabyte of loads in half a second at each level."""
    moved = {"bytes": 1e9, "time": 0.5} if run.cell.cpu_blocks else {}
    loads = {
        f"vllm:kv_offload_load_{name}_total": Change(before=0, after=rise, delta=rise)
        for name, rise in moved.items()
    }
    levels = [
        msgspec.structs.replace(level, counters={**level.counters, **loads})
        for level in run.levels
    ]
    return described(msgspec.structs.replace(run, levels=levels))


def with_a_repeat(run: Run) -> Run:
    """A run that a known defect ended at the first attempt."""
    known = ("vllm-1", "it dies", "https://example.org/1", "Slow loads are rare.")
    return msgspec.structs.replace(run, repeats=[Repeat(*known, "failed/1", "")])


def like_another_cell(run: Run, runs: Sequence[Run]) -> Run:
    """A run with the configuration of another cell of its model."""
    model = [each for each in runs if each.cell.model == run.cell.model]
    other = next(each for each in model if each.cell != run.cell)
    return msgspec.structs.replace(run, specification=other.specification)


@pytest.mark.parametrize(
    "name", ["contrasts", "failing", "one run", "mechanism", "goodput"]
)
def test_a_reader_of_report_json_prints_the_same_tables(
    name: str, tmp_path: Path
) -> None:
    plan, measured = campaign_of(name)
    write_report(plan, measured, [], tmp_path / "REPORT.md")
    report = in_one_file(whole_report(tmp_path))
    result = read_result(tmp_path / "report.json")
    tables = [table for table in tables_of(result) if table.rows]
    assert len(result.predictions) == (name == "mechanism")
    assert tiers_table(result).rows or name != "mechanism"
    assert bool(result.ceilings) == (name == "mechanism")
    assert bool(result.goodput_levels) == (name == "goodput")
    assert bool(cost_table(result).rows) == (name == "goodput")
    assert activity_table(result).rows and budget_table(result).rows
    # Of the mechanism's model no bytes of a token are known.
    assert bool(blocks_table(result).rows) == (name != "mechanism")
    assert pair_table(result).rows
    assert guidance_table(result).rows and guidance_numbers(result).rows
    assert len(provenance_table(result).rows) == len(result.runs) > 0
    assert time_table(result).rows
    assert hardware_table(result).rows and software_table(result).rows
    assert workload_table(result).rows
    assert basis_table(result).rows
    assert bool(average_table(result).rows) == (name == "contrasts")
    assert check_tables(result)[0].rows or name != "failing"
    assert bool(waterfall_table(result).rows) == (name == "mechanism")
    assert bool(reuse_table(result).rows) == (name == "mechanism")
    printed = [markdown_table(part) for table in tables for part in split_wide(table)]
    sentences = [*memory_sentences(result), *leak_sentences(result)]
    sentences += [*one_request_sentences(result), waypoints(result)]
    lists = [
        missing_sentences(result),
        defect_sentences(result),
        result.same_configurations,
    ]
    assert [bool(items) for items in lists] == [name == "failing"] * 3
    reasons = {each.cell: each.reason for each in result.missing_runs}
    assert reasons.get(PARTIAL, "") == measured.failures.get(PARTIAL, "")
    sentences += [*missing_sentences(result), *defect_sentences(result)]
    sentences += [*limitation_sentences(result)]
    printed += map(plain_text, sentences)
    assert len(printed) >= len(tables) > 3
    assert [text for text in printed if text not in report] == []


@pytest.mark.parametrize("name", [*CAMPAIGNS, "goodput"])
def test_a_reader_of_report_json_prints_the_same_body(
    name: str, tmp_path: Path
) -> None:
    plan, measured = campaign_of(name)
    write_report(plan, measured, [], tmp_path / "REPORT.md")
    result = read_result(tmp_path / "report.json")
    steps = [plain_text(step_sentence(result, step)) for step in result.steps]
    assert steps == result.answer.next_steps
    assert ("Within the limits" in result.answer.sentences[2]) == (name == "goodput")
    pictures = Pictures([], {}, {})
    blocks = [*first_screen(result, pictures), *main_sections(result, pictures)]
    (body,) = render(Section(result.campaign.title, blocks)).values()
    assert "## Limitations" in body
    assert in_one_file((tmp_path / MAIN).read_text()).startswith(in_one_file(body))


def in_one_file(text: str) -> str:
    """A report with its links to sections as they are where all sections are in one file."""
    return re.sub(r"\]\([^()#]+#", "](#", text)
