"""A campaign as the rules ask about it."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from snakemake.exceptions import WorkflowError
from tests.support.paths import REPOSITORY

from kveval.campaign.loading import load_config
from kveval.report.figures.names import FAMILIES
from kveval.workflow.campaign_plan import SO_FAR, WorkflowPlan
from kveval.workflow.invocation import Invocation, limit_of

CONFIG = REPOSITORY / "config"
CAMPAIGN = CONFIG / "campaigns" / "feb-2026.yaml"


def plan_of(
    campaign: Any = CAMPAIGN, *, jobs_share_folder: bool = True
) -> WorkflowPlan:
    return WorkflowPlan.of(
        campaign, CONFIG, Path("imports"), jobs_share_folder=jobs_share_folder
    )


def wildcards(
    cell: str = "Qwen3-14B/native-offload/10000", run: str = "1", so_far: str = ""
) -> SimpleNamespace:
    model, scenario, cpu_blocks = cell.split("/")
    return SimpleNamespace(
        model=model, scenario=scenario, cpu_blocks=cpu_blocks, run=run, so_far=so_far
    )


def test_cells_runs_and_their_files_are_the_campaigns() -> None:
    plan, config = plan_of(), load_config(CAMPAIGN, CONFIG)
    assert plan.cells == list(config.cells)
    assert (
        len(plan.pointers)
        == len(plan.runs)
        == sum(len(config.runs_of(cell)) for cell in config.cells)
    )
    assert plan.run_files("measurement.json")(wildcards()) == plan.pointers
    assert plan.cell_tables("peak.csv")(wildcards()) == [
        f"{folder}/peak.csv" for folder in plan.cell_folders
    ]
    assert plan.peaks_so_far(wildcards()) == []
    files = plan.files_of_cell("pcp.parquet")(wildcards())
    assert (
        files[0]
        == "results/campaigns/feb-2026/Qwen3-14B/native-offload/10000/run-1/pcp.parquet"
    )
    assert len(files) == config.campaign.runs
    cell = config.cell("Qwen3-14B", "native-offload", 10000)
    assert plan.measurement(wildcards()) == config.measurement_id(cell)
    assert (
        json.loads(plan.specification(wildcards()))
        == config.specification(cell).to_json()
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
    plan = plan_of(CONFIG / "campaigns" / f"{campaign}.yaml")
    assert {*FAMILIES} - {*plan.figure_families} == left_out


def test_what_the_report_is_told_is_of_plain_values_and_of_every_cell() -> None:
    plan = plan_of()
    asked = plan.asked
    assert json.loads(json.dumps(asked))["cells"] == [
        list(cell) for cell in asked["cells"]
    ]
    assert len(asked["cells"]) == len(asked["cell_runs"]) == len(plan.cells)
    assert [*asked["models"]] and set(asked["models"]) == set(plan.models)
    assert asked["scenarios"]["native-offload"]["exercised"]


def test_the_comparison_is_told_how_many_runs_each_cell_is_to_have() -> None:
    plan, config = plan_of(), load_config(CAMPAIGN, CONFIG)
    told = {
        tuple(cell): runs
        for *cell, runs in json.loads(json.dumps(plan.comparison))["runs"]
    }
    assert told == {cell.key: len(config.runs_of(cell)) for cell in config.cells}


def test_so_far_only_what_exists_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = plan_of()
    log = Path(plan.logs, "benchmark", plan.cells[0].path, "run-1.log")
    log.parent.mkdir(parents=True)
    log.write_text("12:00:00 FAILED: no memory\n")
    with pytest.raises(WorkflowError, match=rf"{plan.cells[0].path}: .*no memory"):
        plan.peaks_so_far(wildcards(so_far=SO_FAR))
    assert plan.failures(wildcards()) == plan.pilots_so_far(wildcards()) == []


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("Qwen3-8B/native-offload/0", "has a CPU tier"),
        ("Qwen3-8B/no-offload/500", "has no CPU tier"),
    ],
)
def test_a_cell_that_makes_no_sense_ends_the_plan_with_its_reason(
    cell: str, reason: str
) -> None:
    with pytest.raises(WorkflowError, match=reason):
        plan_of().measurement(wildcards(cell))


def test_a_mistake_in_the_campaign_ends_the_plan() -> None:
    with pytest.raises(WorkflowError, match="runz"):
        plan_of({"name": "x", "runz": 3})


def test_a_run_that_was_not_found_elsewhere_is_an_error() -> None:
    with pytest.raises(WorkflowError, match=r"\bi7\b"):
        plan_of().imported_run(wildcards(run="i7"))


def test_where_jobs_see_no_folder_of_this_machine_nothing_can_be_compared(
    tmp_path: Path,
) -> None:
    compared = CONFIG / "campaigns" / "llm-d-0.4-to-0.8.yaml"
    assert plan_of(compared).elsewhere.runs
    with pytest.raises(
        WorkflowError, match=load_config(compared, CONFIG).campaign.name
    ):
        plan_of(compared, jobs_share_folder=False)


def snakemakes(**limits: Any) -> SimpleNamespace:
    """What of Snakemake's object of a workflow is asked for."""
    made = SimpleNamespace(
        overwrite_configfiles=["campaign.yaml"],
        resource_settings=SimpleNamespace(
            cores=None, overwrite_resources={"benchmark": {}}
        ),
        storage_settings=SimpleNamespace(default_storage_provider=None),
        global_resources=dict(limits),
        config_settings=SimpleNamespace(config={"runs": 3}),
    )
    made.register_resource = made.global_resources.__setitem__
    return made


def test_how_snakemake_was_called() -> None:
    assert Invocation.of(snakemakes()) == Invocation(
        (Path("campaign.yaml"),), 1, True, frozenset({"benchmark"}), {"runs": 3}, None
    )
    assert Invocation.of(snakemakes(measurement_slot=2)).slots == 2


def test_a_limit_is_that_of_the_command_else_the_campaigns() -> None:
    mine = snakemakes()
    assert limit_of(mine, "slot", 3) == mine.global_resources["slot"] == 3
    assert limit_of(snakemakes(slot=SimpleNamespace(value=2)), "slot", 3) == 2
