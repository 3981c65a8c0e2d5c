"""What the analysis and the report are told of a campaign."""

import json

import pytest
from tests.unit.workflow.test_runs import CONFIG, runs_of

from kveval.report.figures.names import FAMILIES
from kveval.workflow.report_settings import (
    campaign_models,
    comparison_settings,
    external_runs_summary,
    figure_families,
    report_settings,
)


@pytest.mark.parametrize(
    ("campaign", "left_out"),
    [
        ("feb-2026", set()),
        ("laptop-peak-search", set()),
        ("smoke", {"throughput", "system", "effects"}),
    ],
)
def test_families_of_figures_without_an_answer_are_not_asked_for(
    campaign: str, left_out: set[str]
) -> None:
    runs = runs_of(CONFIG / "campaigns" / f"{campaign}.yaml")
    assert {*FAMILIES} - {*figure_families(runs)} == left_out


def test_the_settings_are_plain_values_and_of_every_cell() -> None:
    runs = runs_of()
    settings = report_settings(runs)
    assert json.loads(json.dumps(settings)) == settings
    assert settings["cells"] == [cell.path for cell in runs.cells]
    assert len(settings["cell_runs"]) == len(runs.cells)
    assert [*settings["models"]] and set(settings["models"]) == set(
        campaign_models(runs)
    )
    assert settings["scenarios"]["native-offload"]["required"]


def test_the_comparison_is_told_how_many_runs_each_cell_is_to_have() -> None:
    runs = runs_of()
    settings = json.loads(json.dumps(comparison_settings(runs)))
    assert settings["runs"] == {
        cell.path: len(runs.config.runs_of(cell)) for cell in runs.cells
    }


def test_what_is_not_measured_is_counted() -> None:
    assert external_runs_summary(runs_of()) == ""
    compared = runs_of(CONFIG / "campaigns" / "llm-d-0.4-to-0.8.yaml")
    assert external_runs_summary(compared).endswith("compared; nothing is measured")
