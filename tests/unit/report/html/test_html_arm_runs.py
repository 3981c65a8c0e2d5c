import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.report_text import result_of
from tests.unit.report.test_report_claims import CAMPAIGNS

from kveval.campaign.cell import Cell
from kveval.report.data.arm_links import arm_link, runs_title
from kveval.report.data.campaign import Measured, ReportPlan, Table
from kveval.report.data.run_facts import run_places
from kveval.report.html.arm_runs import runs_section
from kveval.report.report import write_report
from kveval.report.result.model import read_result
from kveval.report.sections import Paragraph, Section

HERE = Path("results/so-far")
CELL = Cell("Qwen3-14B", "native-offload", 10_000)


@pytest.fixture(scope="module")
def campaign() -> tuple[ReportPlan, Measured]:
    return CAMPAIGNS["contrasts"]()


def placed(measured: Measured) -> Measured:
    """The campaign with the runs' folders, as a list of collected runs has them."""
    runs = [
        msgspec.structs.replace(
            run, place=f"results/measurements/{run.measurement}/run-{run.run}@f00d"
        )
        for run in measured.runs
    ]
    return dataclasses.replace(measured, runs=runs)


def is_other(row: dict[str, Any]) -> bool:
    return Cell.from_row(row) != CELL


def section_of(plan: ReportPlan, measured: Measured) -> Section:
    """The runs on the page of a campaign."""
    return runs_section(result_of(plan, measured), run_places(measured.runs), HERE)


def arm_tables(root: Section) -> dict[str, Table]:
    return {
        arm.title: next(block for block in arm.blocks if isinstance(block, Table))
        for model in root.sections
        for arm in model.sections
    }


def column(table: Table, title: str) -> list[str]:
    return [row[list(table.header).index(title)] for row in table.rows]


def test_each_comparison_stands_with_the_values_of_its_runs(
    campaign: tuple[ReportPlan, Measured],
) -> None:
    plan, measured = campaign
    table = arm_tables(section_of(plan, placed(measured)))[runs_title(CELL)]
    compared = measured.comparisons_of(CELL)
    assert len(table.rows) == len(compared)
    assert [text.strip("*") for text in column(table, "verdict")] == list(
        compared["verdict"]
    )
    assert set(column(table, "against")) == {
        arm_link(Cell("Qwen3-14B", "no-offload", 0))
    }
    values = column(table, "its runs")[0].split("), ")
    assert len(values) == len(measured.runs_of(CELL))
    level = compared.iloc[0]["level"]
    known = dict(
        measured.levels_of(CELL, level)[["run", "throughput_tok_s"]].itertuples(
            index=False
        )
    )
    for run, value in zip(measured.runs_of(CELL), values, strict=True):
        shown, target = value.strip("[)").split("](")
        assert float(shown.replace(",", "")) == pytest.approx(known[run.run], rel=0.01)
        assert target == f"<../measurements/{run.measurement}/run-{run.run}@f00d/>"


def test_a_baseline_has_its_runs_without_a_verdict(
    campaign: tuple[ReportPlan, Measured],
) -> None:
    plan, measured = campaign
    tables = arm_tables(section_of(plan, placed(measured)))
    table = tables[runs_title(Cell("Qwen3-14B", "no-offload", 0))]
    assert "verdict" not in table.header
    assert len(table.rows) > 1
    assert all("/run-1@f00d/>)" in runs for runs in column(table, "its runs"))


def test_runs_that_are_not_on_this_machine_have_no_links(
    campaign: tuple[ReportPlan, Measured],
) -> None:
    tables = arm_tables(section_of(*campaign))
    assert "](<" not in "".join(
        text for table in tables.values() for row in table.rows for text in row
    )


def test_a_cell_without_runs_says_why(campaign: tuple[ReportPlan, Measured]) -> None:
    plan, measured = campaign
    without = {
        "runs": [run for run in measured.runs if run.cell != CELL],
        "peaks": measured.peaks[[*map(is_other, measured.peaks.to_dict("records"))]],
    }
    section = section_of(plan, dataclasses.replace(measured, **without))
    (missing,) = [arm for arm in section.tree() if arm.title == runs_title(CELL)]
    assert missing.blocks == [Paragraph("No runs: not measured.")]


def test_a_comparison_without_a_level_names_its_runs_alone() -> None:
    tables = arm_tables(section_of(*CAMPAIGNS["subset"]()))
    table = tables[runs_title(Cell("Qwen3-8B", "native-offload", 10_000))]
    assert set(column(table, "its runs")) == {"run 1, run 2, run 3"}


def test_a_reader_of_report_json_shows_the_same_runs_and_adds_their_places(
    campaign: tuple[ReportPlan, Measured], tmp_path: Path
) -> None:
    plan, measured = campaign[0], placed(campaign[1])
    write_report(plan, measured, [], tmp_path / "REPORT.md")
    numbers = tmp_path / "report.json"
    assert "results/measurements" not in numbers.read_text()
    places = run_places(measured.runs)
    made = runs_section(read_result(numbers), places, HERE)
    assert made == section_of(plan, measured)
    assert "@f00d/>)" in column(arm_tables(made)[runs_title(CELL)], "its runs")[0]
