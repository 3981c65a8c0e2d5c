"""Tables of REPORT.md can be printed from report.json alone."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.report_text import whole_report
from tests.unit.report.test_report_claims import CAMPAIGNS
from tests.unit.report.test_tables_predicted import PREDICTED

from kveval.report.data.campaign import Table
from kveval.report.markdown import markdown_table
from kveval.report.parts.blocks import split_wide, tables_by_model
from kveval.report.report import write_report
from kveval.report.result.model import CampaignResult, read_result
from kveval.report.tables.results import (
    arms_table,
    comparison_table,
    completed_table,
    guide_table,
    peak_table,
    strategy_table,
)
from kveval.report.tables.reuse import predicted_table


def tables_of(result: CampaignResult) -> Iterator[Table]:
    """The tables that are made of a result alone."""
    for model in result.common_levels:
        yield arms_table(result, model)
        yield comparison_table(result, model)
        yield peak_table(result, model)
    across = completed_table(result), guide_table(result), predicted_table(result)
    for table in across:
        yield from (part for _, part in tables_by_model(table))
    if len(result.common_levels) > 1:
        yield strategy_table(result)


@pytest.mark.parametrize("name", ["contrasts", "failing", "one run", "mechanism"])
def test_a_reader_of_report_json_prints_the_same_tables(
    name: str, tmp_path: Path
) -> None:
    plan, measured = CAMPAIGNS[name]()
    if name == "mechanism":
        predicted = PREDICTED.assign(model="Qwen3-0.6B", cpu_blocks=10_000)
        measured = dataclasses.replace(measured, predicted=predicted)
    write_report(plan, measured, [], tmp_path / "REPORT.md")
    report = whole_report(tmp_path)
    result = read_result(tmp_path / "report.json")
    tables = [*tables_of(result)]
    assert len(result.predictions) == (name == "mechanism")
    printed = [markdown_table(part) for table in tables for part in split_wide(table)]
    assert len(printed) >= len(tables) > 3
    assert [text for text in printed if text not in report] == []
