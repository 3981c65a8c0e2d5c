import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.report_text import Table, part_of, result_of, tables_in
from tests.unit.report.test_report_claims import CAMPAIGNS

from kveval.campaign.cell import Cell
from kveval.report.data.arm_links import arm_link, runs_title
from kveval.report.data.campaign import Measured, ReportPlan
from kveval.report.data.run_facts import run_places
from kveval.report.html.page import addresses_of
from kveval.report.render import Rendering
from kveval.report.report import write_report
from kveval.report.result.model import read_result

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


def text_of_runs(plan: ReportPlan, measured: Measured) -> str:
    """The runs on the page of a campaign."""
    addresses = addresses_of(run_places(measured.runs), HERE)
    return Rendering(result_of(plan, measured), addresses).text("runs.md.j2")


def arm_table(text: str, cell: Cell) -> Table:
    """The table of a cell's runs."""
    return tables_in(part_of(text, runs_title(cell)))[0]


def test_each_comparison_stands_with_the_values_of_its_runs(
    campaign: tuple[ReportPlan, Measured],
) -> None:
    plan, measured = campaign
    table = arm_table(text_of_runs(plan, placed(measured)), CELL)
    compared = measured.comparisons_of(CELL)
    assert len(table.rows) == len(compared)
    assert [text.split("**")[1] for text in table.column("verdict")] == list(
        compared["verdict"]
    )
    assert set(table.column("against")) == {
        arm_link(Cell("Qwen3-14B", "no-offload", 0))
    }
    values = table.column("its runs")[0].split("), ")
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
    baseline = Cell("Qwen3-14B", "no-offload", 0)
    table = arm_table(text_of_runs(plan, placed(measured)), baseline)
    assert "verdict" not in table.header
    assert len(table.rows) > 1
    assert all("/run-1@f00d/>)" in runs for runs in table.column("its runs"))


def test_runs_that_are_not_on_this_machine_have_no_links(
    campaign: tuple[ReportPlan, Measured],
) -> None:
    assert "](<" not in text_of_runs(*campaign)


def test_a_cell_without_runs_says_why(campaign: tuple[ReportPlan, Measured]) -> None:
    plan, measured = campaign
    without = {
        "runs": [run for run in measured.runs if run.cell != CELL],
        "peaks": measured.peaks[[*map(is_other, measured.peaks.to_dict("records"))]],
    }
    text = text_of_runs(plan, dataclasses.replace(measured, **without))
    assert part_of(text, runs_title(CELL)).strip() == "No runs: not measured."


def test_a_comparison_without_a_level_names_its_runs_alone() -> None:
    text = text_of_runs(*CAMPAIGNS["subset"]())
    table = arm_table(text, Cell("Qwen3-8B", "native-offload", 10_000))
    assert set(table.column("its runs")) == {"run 1, run 2, run 3"}


def test_a_reader_of_report_json_shows_the_same_runs_and_adds_their_places(
    campaign: tuple[ReportPlan, Measured], tmp_path: Path
) -> None:
    plan, measured = campaign[0], placed(campaign[1])
    write_report(plan, measured, [], tmp_path / "REPORT.md")
    numbers = tmp_path / "report.json"
    assert "results/measurements" not in numbers.read_text()
    addresses = addresses_of(run_places(measured.runs), HERE)
    text = Rendering(read_result(numbers), addresses).text("runs.md.j2")
    assert text == text_of_runs(plan, measured)
    assert "@f00d/>)" in arm_table(text, CELL).column("its runs")[0]
