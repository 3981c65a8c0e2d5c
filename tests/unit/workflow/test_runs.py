"""One record for every run of a campaign, and for those of other cells that are requested by path."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from snakemake.exceptions import WorkflowError
from tests.support.job_status import leave_status
from tests.support.paths import REPOSITORY

from kveval.configuration.loading import load_config
from kveval.workflow.invocation import Invocation, limit_of
from kveval.workflow.runs import (
    PILOT,
    SO_FAR,
    ComparedSource,
    ExistingSource,
    MeasuredSource,
    Runs,
)

CONFIG = REPOSITORY / "config"
CAMPAIGN = CONFIG / "campaigns" / "feb-2026.yaml"
SEARCHED = CONFIG / "campaigns" / "laptop-peak-search.yaml"
COMPARED = CONFIG / "campaigns" / "llm-d-0.4-to-0.8.yaml"
RESULTS = "results/campaigns/feb-2026"


def runs_of(campaign: Any = CAMPAIGN, *, jobs_share_folder: bool = True) -> Runs:
    config = load_config(campaign, CONFIG)
    return Runs.of(config, jobs_share_folder=jobs_share_folder)


def wildcards(
    cell: str = "Qwen3-14B/native-offload/10000", run: str = "", so_far: str = ""
) -> SimpleNamespace:
    """What Snakemake gives to a function; without `run` to that of a cell's job."""
    model, scenario, cpu_blocks = cell.split("/")
    of_run = {"run": run} if run else {}
    return SimpleNamespace(
        model=model, scenario=scenario, cpu_blocks=cpu_blocks, so_far=so_far, **of_run
    )


def point(pointer: str, measurement: str) -> None:
    Path(pointer).parent.mkdir(parents=True, exist_ok=True)
    Path(pointer).write_text(json.dumps({"measurement": measurement}))


def test_a_measured_runs_record_is_what_the_campaign_defines() -> None:
    runs, config = runs_of(), load_config(CAMPAIGN, CONFIG)
    cell = config.cell("Qwen3-14B/native-offload/10000")
    run = runs.run_of(wildcards(run="2"))
    assert run.id == config.measurement_id(cell)
    assert (run.cell, run.name, run.number) == (cell, "run-2", 2)
    assert run.pointer == f"{RESULTS}/{cell.path}/run-2/measurement.json"
    counters = [dict(counter) for counter in config.required_counters(cell)]
    assert json.loads(run.required) == counters
    assert run.source == MeasuredSource()
    assert runs.measurement(run) == run.id


def test_a_cells_job_is_about_the_cells_first_run() -> None:
    runs = runs_of()
    assert runs.run_of(wildcards()) == runs.run_of(wildcards(run="1"))


def test_runs_of_a_block_come_before_those_of_the_next() -> None:
    runs = runs_of()
    first, second = (
        [
            runs.run_of(wildcards(cell.path, name.removeprefix("run-"))).priority
            for cell, name in runs.planned
            if name == block
        ]
        for block in ("run-1", "run-2")
    )
    assert min(first) > max(second)


def test_every_run_is_planned_once_and_in_its_cells_names() -> None:
    runs, config = runs_of(), load_config(CAMPAIGN, CONFIG)
    assert runs.cells == list(config.cells)
    planned = {
        (cell, f"run-{run}") for cell in config.cells for run in config.runs_of(cell)
    }
    assert set(runs.planned) == planned
    assert len(runs.pointers) == len(runs.planned) == len(planned)
    for cell in runs.cells:
        names = [name for other, name in runs.planned if other == cell]
        assert list(runs.names(wildcards(cell.path))) == names


def test_any_cell_of_the_catalogues_has_a_record() -> None:
    other = wildcards("Qwen3-14B/native-offload/777", run="1")
    run = runs_of().run_of(other)
    assert run.cell.cpu_blocks == 777
    assert run.id != runs_of().run_of(wildcards()).id


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
        runs_of().run_of(wildcards(cell))


def test_a_run_that_is_absent_or_of_another_measurement_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = runs_of()
    names = runs.names(wildcards())
    records = [runs.run_of(wildcards(), name) for name in names]
    assert runs.due(wildcards()) == [run.pointer for run in records]
    point(records[0].pointer, records[0].id)
    point(records[1].pointer, "another")
    assert runs.due(wildcards()) == [run.pointer for run in records[1:]]
    assert runs.due(wildcards(so_far=SO_FAR)) == []


def test_a_searched_run_has_its_id_before_its_levels_and_its_measurement_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runs, config = runs_of(SEARCHED), load_config(SEARCHED, CONFIG)
    baseline, native = config.cells
    run, pilot = (
        runs.run_of(wildcards(native.path, run="1")),
        runs.run_of(wildcards(baseline.path), PILOT),
    )
    assert isinstance(run.source, MeasuredSource)
    assert [run.source.levels] == runs.pilots
    assert runs.measurement(run) is None
    assert pilot.id == config.pilot_specification(baseline).measurement_id != run.id
    assert pilot.priority > run.priority
    (levels,) = runs.pilots
    assert runs.due_pilot(wildcards(baseline.path)) == [levels, pilot.pointer]
    Path(levels).parent.mkdir(parents=True)
    found = {
        "cell": baseline.path,
        "measurement": pilot.id,
        "settings": {},
        "tried": [],
    }
    shape = {"levels": [4, 15], "peak": 15, "below": 4, "above": None, "ending": ""}
    Path(levels).write_text(json.dumps(found | shape))
    assert runs.due_pilot(wildcards(baseline.path)) == []
    assert runs.measurement(run) == config.measurement_id(native, (4, 15))
    assert runs.run_of(wildcards(native.path, run="1")).id == run.id


def test_so_far_a_runs_source_is_the_run_that_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = runs_of()
    planned = runs.run_of(wildcards(run="1"))
    point(planned.pointer, "whichever")
    run = runs.run_of(wildcards(run="1", so_far=SO_FAR))
    assert isinstance(run.source, ExistingSource)
    assert run.source.pointer == planned.pointer
    assert run.source.content == {"measurement": "whichever"}
    assert run.source.inputs == ()
    assert (run.id, run.required) == (
        planned.id,
        planned.required,
    )


def test_without_a_run_there_is_nothing_to_report_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = runs_of()
    log = Path("logs/feb-2026/benchmark", runs.cells[0].path, "run-1.log")
    leave_status(log, state="failed", message="no memory")
    with pytest.raises(WorkflowError, match=rf"{runs.cells[0].path}: .*no memory"):
        _ = runs.so_far
    with pytest.raises(SystemExit, match="no memory"):
        runs.require_something_so_far()


def test_a_compared_runs_source_is_the_other_campaigns_pointer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = runs_of(COMPARED)
    cell, name = runs.planned[0]
    run = runs.run_of(wildcards(cell.path, run=name.removeprefix("run-")))
    assert isinstance(run.source, ComparedSource)
    assert run.id == ""
    assert json.loads(run.required) == runs.required_counters(cell)
    with pytest.raises(WorkflowError, match="is not measured yet"):
        _ = run.source.inputs
    point(run.source.pointer, "theirs")
    assert run.source.inputs == (run.source.pointer,)
    assert runs.measurement(run) == "theirs"
    assert run.pointer in runs.due(wildcards(cell.path))
    point(run.pointer, "theirs")
    assert run.pointer not in runs.due(wildcards(cell.path))


def test_a_run_that_was_not_found_elsewhere_is_an_error() -> None:
    with pytest.raises(WorkflowError, match=r"\bi7\b"):
        runs_of().run_of(wildcards(run="i7"))


def test_where_jobs_see_no_folder_of_this_machine_nothing_can_be_compared() -> None:
    assert runs_of(COMPARED).elsewhere.runs
    with pytest.raises(
        WorkflowError, match=load_config(COMPARED, CONFIG).campaign.name
    ):
        runs_of(COMPARED, jobs_share_folder=False)


def snakemakes(**limits: Any) -> SimpleNamespace:
    """What of Snakemake's object of a workflow is asked for."""
    made = SimpleNamespace(
        overwrite_configfiles=["campaign.yaml"],
        resource_settings=SimpleNamespace(
            cores=None, overwrite_resources={"benchmark": {}}
        ),
        storage_settings=SimpleNamespace(default_storage_provider=None),
        global_resources=dict(limits),
    )
    made.register_resource = made.global_resources.__setitem__
    return made


def test_how_snakemake_was_called() -> None:
    assert Invocation.of(snakemakes()) == Invocation(
        (Path("campaign.yaml"),), 1, True, frozenset({"benchmark"})
    )


def test_a_limit_is_that_of_the_command_else_the_campaigns() -> None:
    mine = snakemakes()
    assert limit_of(mine, "slot", 3) == mine.global_resources["slot"] == 3
    assert limit_of(snakemakes(slot=SimpleNamespace(value=2)), "slot", 3) == 2
