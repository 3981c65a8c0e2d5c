"""REPORT.md and its appendices can be printed from report.json alone."""

import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from tests.support.report_text import answer_in, result_of, tables_in
from tests.unit.plugins.curve.test_section_gain import PREDICTED
from tests.unit.report.test_report_claims import CAMPAIGNS
from tests.unit.report.test_value import campaign as value_campaign

from kveval.campaign.cell import Cell
from kveval.conditions.facts import described
from kveval.report.data.campaign import Measured, ReportPlan
from kveval.report.files import NUMBERS
from kveval.report.render import render_report, written_files
from kveval.report.report import write_report
from kveval.report.result.model import read_result
from kveval.store.conditions import Change
from kveval.store.run_file import Repeat, Run
from kveval.verdict.averages import averages

# A cell of the failing campaign that lacks one of three runs.
PARTIAL = Cell("Qwen3-8B", "native-offload", 10_000)


def campaign_of(name: str) -> tuple[ReportPlan, Measured]:
    """A made-up campaign; of the mechanism's, loads were timed and gains predicted as well; of the
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


# What the report of a campaign has, in its text, that those of the others lack.
OF_CAMPAIGN = {
    "contrasts": ["## Averaged over models"],
    "failing": [
        "- Qwen3-8B, native-offload 10K: 2 of 3 runs; failed: run-3: out of memory",
        "## Measured again after a known defect",
        "- [vllm-1](https://example.org/1): it dies. Measured again: no-offload:",
        " ran the same configuration: a difference between them is noise.",
    ],
    "mechanism": [
        "What limits loading, means over the runs",
        "## What the tiers did, level by level",
        "## Where hits are lost",
        "## Reuse, computed and found, level by level",
    ],
    "goodput": ["## Goodput", "- Within the limits"],
}


@pytest.mark.parametrize("name", [*CAMPAIGNS, "goodput"])
def test_a_reader_of_report_json_prints_the_same_report(
    name: str, tmp_path: Path
) -> None:
    write_report(*campaign_of(name), [], tmp_path / "REPORT.md")
    result = read_result(tmp_path / NUMBERS)
    files = written_files(render_report(result))
    for file, text in files.items():
        assert (tmp_path / file).read_text(encoding="utf-8") == text
    report = "\n".join(files.values())
    answer, body = answer_in(result), in_one_file(report)
    sentences = (answer.question, *answer.sentences, *answer.next_steps)
    assert [sentence for sentence in sentences if sentence not in body] == []
    for campaign, texts in OF_CAMPAIGN.items():
        assert [text in report for text in texts] == [campaign == name] * len(texts)
    for table in tables_in(report):
        assert table.rows
        assert {len(cells) for cells in table.rows} == {len(table.header)}


def in_one_file(text: str) -> str:
    """A report with its links to sections as they are where all are in one file."""
    return re.sub(r"\]\([^()#]+#", "](#", text)


# What is no sentence of a report: what users, logs and catalogues say, and findings, whose words stand beside their rules.
QUOTED = re.compile(
    r"campaign\.(title|description)|.*\bcommand|.*command_lines\.\*|cells\.\*\.missing|missing_runs\.\*\.reason"
    r"|known_defects\.\*\.\w+|metrics\.\w+\.title|(hardware|workloads)\..*|origin\.(machines|images)\.\*|figures\.\*\.empty"
    r"|one_request\.\*\.reason|leaks\.\*\.facts\.reason|checks\.\*\.(message|facts.*)|not_assessed\.\*\.reason"
    r"|(comparisons|peak_comparisons|pairs)\.\*\.(reason|qualifier|basis\.\w+|(findings|exclusions)\.\*\.facts.*)"
)


@pytest.mark.parametrize("name", [*CAMPAIGNS, "goodput"])
def test_report_json_has_no_sentence_of_the_report(name: str) -> None:
    result = result_of(*campaign_of(name)).model_dump(mode="json")
    long = {place: text for place, text in texts_in(result) if len(text.split()) > 8}
    assert {place for place in long if not QUOTED.fullmatch(place)} == set()


def texts_in(value: object, place: str = "") -> Iterator[tuple[str, str]]:
    """Yield the texts below a value of a JSON document with their place; `*` stands for the items of a list."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, dict):
        for name, part in value.items():
            yield from texts_in(part, f"{place}.{name}".strip("."))
    elif isinstance(value, list):
        for part in value:
            yield from texts_in(part, f"{place}.*")
