"""A finished campaign that was copied, moved, aged or thinned out, mostly without Snakemake's records in .snakemake.

However its files came where they are: what the store holds is not measured again, and a follow-up measures what is new.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tests.support.fault_chain import without_figures, workflow_copy
from tests.support.loaded import snakemake
from tests.support.planning import job_counts
from tests.support.report_text import whole_report
from tests.support.stored_campaign import (
    CAMPAIGN,
    MODEL,
    fill_store,
    point_to_store,
    write_campaign,
)
from tests.support.stored_runs import HOST

from kveval.configuration.loading import load_config
from kveval.report.figures.names import FAMILIES
from kveval.workflow.planning.order import planned_runs
from kveval.workflow.planning.plan import make_plan
from kveval.workflow.planning.stored import StoreIndex, read_pointers

pytestmark = pytest.mark.workflow
LEVELS = (1, 50, 100)
RESULTS = Path("results/campaigns/stored")
BASELINE, ARM, NEW = (
    f"{MODEL}/{cell}"
    for cell in ("no-offload/0", "native-offload/500", "native-offload/1000")
)
CODE = ("Snakefile", "config", "rules", "scripts", "profiles", "envs", "manifests")
# What the workflow makes of each other, in this order.
MADE = (
    "measurements/*/*",
    "measurement.json",
    "pcp.parquet",
    "requests.parquet",
    "levels.csv",
    "peak.csv",
    "analysis/*",
)
State = dict[tuple[str, int], str]


def run(folder: Path, *arguments: str) -> str:
    """Run snakemake for the campaign, and return what it prints."""
    return snakemake(folder, *arguments, "--configfile", CAMPAIGN)


def dry_run(folder: Path, target: str = "report") -> State:
    """Return (cell, run) -> measure or adopt, as the jobs of a dry run are named."""
    found = re.findall(
        r": (Measuring|Adopting) (\S+), run (\d+)$",
        run(folder, "-n", target),
        flags=re.MULTILINE,
    )
    states = {"Measuring": "measure", "Adopting": "adopt"}
    return {(cell, int(run)): states[verb] for verb, cell, run in found}


def planned(folder: Path) -> State:
    """Return the same as `kveval plan` has it."""
    config = load_config(folder / CAMPAIGN, folder / "config")
    pointers = read_pointers(folder / RESULTS, planned_runs(config))
    plan = make_plan(
        config,
        pointers,
        StoreIndex.read(folder / "results/measurements"),
        str(HOST["fingerprint"]),
    )
    return {
        (run.cell.path, run.run): run.state for run in plan.runs if run.state != "there"
    }


def change(folder: Path, old: str, new: str) -> None:
    path = folder / CAMPAIGN
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def add_size(folder: Path) -> None:
    change(folder, "  - 500\n", "  - 500\n  - 1000\n")


def add_run(folder: Path) -> None:
    change(folder, "runs: 2\n", "runs: 3\n")


def add_argument(folder: Path) -> None:
    path = folder / "config" / "scenarios.yaml"
    scenarios = yaml.safe_load(path.read_text())
    scenarios["native-offload"]["connector_config"] = {"eviction_policy": "arc"}
    path.write_text(yaml.safe_dump(scenarios))


def copied_workflow(folder: Path) -> Path:
    return without_figures(workflow_copy(folder))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of two cells, measured and reported."""
    folder = copied_workflow(tmp_path_factory.mktemp("finished") / "repository")
    write_campaign(folder, LEVELS, runs=2)
    fill_store(folder, LEVELS, tmp_path_factory.mktemp("scratch"))
    run(folder, "report")
    assert dry_run(folder) == planned(folder) == {}
    return folder


def copied(finished: Path, folder: Path, how: str) -> Path:
    subprocess.run(["cp", how, finished, folder], check=True)
    return folder


def without_records(finished: Path, folder: Path) -> Path:
    shutil.rmtree(copied(finished, folder, "-a") / ".snakemake")
    return folder


def copied_anew(finished: Path, folder: Path) -> Path:
    shutil.rmtree(copied(finished, folder, "-r") / ".snakemake")
    return folder


def copied_with_records(finished: Path, folder: Path) -> Path:
    return copied(finished, folder, "-a")


def set_times(folder: Path, parts: tuple[str, ...], time_s: float) -> None:
    for part in parts:
        for path in [folder / part, *(folder / part).rglob("*")]:
            os.utime(path, (time_s, time_s))


def newer_code(finished: Path, folder: Path) -> Path:
    without_records(finished, folder)
    set_times(folder, CODE, (folder / RESULTS / "REPORT.md").stat().st_mtime + 100)
    return folder


def older_code(finished: Path, folder: Path) -> Path:
    without_records(finished, folder)
    set_times(folder, CODE, 1_000_000_000)
    return folder


def aged(folder: Path, step_s: int) -> Path:
    """Give files that are made of others times after these, or before with a negative step."""
    for path in folder.joinpath("results").rglob("*"):
        places = [place for place, name in enumerate(MADE) if path.match(name)]
        time_s = 1_700_000_000 + step_s * (places[-1] if places else len(MADE))
        os.utime(path, (time_s, time_s))
    return folder


def touched(finished: Path, folder: Path) -> Path:
    return aged(without_records(finished, folder), 10)


def touched_backwards(finished: Path, folder: Path) -> Path:
    return aged(without_records(finished, folder), -10)


def touched_with_records(finished: Path, folder: Path) -> Path:
    return aged(copied(finished, folder, "-a"), 10)


def moved(finished: Path, folder: Path) -> Path:
    copied(finished, folder.with_name("first"), "-a").rename(folder)
    return folder


def restored_in_a_clone(finished: Path, folder: Path) -> Path:
    copied_workflow(folder)
    shutil.copy2(finished / CAMPAIGN, folder)
    shutil.copytree(
        finished / "results", folder / "results", copy_function=shutil.copyfile
    )
    return folder


def from_an_archive(finished: Path, folder: Path) -> Path:
    folder.mkdir()
    archive = folder.with_suffix(".tar")
    subprocess.run(
        ["tar", "-C", finished, "--exclude=.snakemake", "-cf", archive, "."], check=True
    )
    subprocess.run(["tar", "-C", folder, "-xf", archive], check=True)
    return folder


def peak_deleted(finished: Path, folder: Path) -> Path:
    (touched(finished, folder) / RESULTS / ARM / "peak.csv").unlink()
    return folder


def pointer_deleted(finished: Path, folder: Path) -> Path:
    (touched(finished, folder) / RESULTS / ARM / "run-2" / "measurement.json").unlink()
    return folder


def run_deleted(finished: Path, folder: Path) -> Path:
    shutil.rmtree(touched(finished, folder) / RESULTS / BASELINE / "run-1")
    return folder


Way = Callable[[Path, Path], Path]
WAYS: dict[Way, State] = {
    without_records: {},
    copied_anew: {},
    copied_with_records: {},
    newer_code: {},
    older_code: {},
    touched: {},
    touched_backwards: {},
    touched_with_records: {},
    moved: {},
    restored_in_a_clone: {},
    from_an_archive: {},
    peak_deleted: {},
    pointer_deleted: {(ARM, 2): "adopt"},
    run_deleted: {(BASELINE, 1): "adopt"},
}
"""The ways in which a finished campaign came where it is, and the runs whose pointer that loses."""


@pytest.mark.parametrize(
    ("way", "lost"), WAYS.items(), ids=lambda value: getattr(value, "__name__", "")
)
def test_nothing_is_measured_again_and_a_further_size_is(
    finished: Path, tmp_path: Path, way: Way, lost: State
) -> None:
    folder = way(finished, tmp_path / "moved")
    assert planned(folder) == lost
    add_size(folder)
    assert (
        dry_run(folder)
        == planned(folder)
        == lost | {(NEW, 1): "measure", (NEW, 2): "measure"}
    )


def test_a_changed_argument_measures_its_arm_and_a_further_run_is_one_of_every_cell(
    finished: Path, tmp_path: Path
) -> None:
    folder = touched(finished, tmp_path / "moved")
    add_argument(folder)
    assert planned(folder) == {(ARM, 1): "measure", (ARM, 2): "measure"}
    add_run(folder)
    further = {(cell, 3): "measure" for cell in (BASELINE, ARM)}
    assert (
        dry_run(folder)
        == planned(folder)
        == {(ARM, 1): "measure", (ARM, 2): "measure"} | further
    )


def test_a_single_cell_asked_for_by_its_table_is_judged_alike(
    finished: Path, tmp_path: Path
) -> None:
    folder = touched(finished, tmp_path / "moved")
    for cell in (BASELINE, ARM):
        (folder / RESULTS / cell / "run-1" / "measurement.json").unlink()
    assert dry_run(folder, f"{RESULTS}/{ARM}/peak.csv") == {(ARM, 1): "adopt"}


def test_runs_that_were_measured_before_the_move_enter_the_report_after_it(
    finished: Path, tmp_path: Path
) -> None:
    """Measured, and stopped before anything was made of it; then every table is newer than every run."""
    folder = without_records(finished, tmp_path / "moved")
    add_size(folder)
    add_run(folder)
    shutil.rmtree(folder / "results" / "measurements")
    fill_store(folder, LEVELS, tmp_path)
    point_to_store(folder)
    aged(folder, 10)
    assert dry_run(folder) == planned(folder) == {}
    run(folder, "report")
    report = whole_report(folder / RESULTS)
    assert "3 of 3" in report
    assert "native-offload 1K" in report
    assert "Nothing to be done" in run(folder, "-n", "report")


ANALYSED = dict.fromkeys(
    [
        *("collect_metrics", "compare_scenarios", "summarise_campaign"),
        "predict_campaign",
        *("export_benchmark_reports", "write_report", "report"),
        *(f"plot_{family}" for family in FAMILIES),
    ],
    1,
)
"""The jobs that make all of a report of the tables of its cells."""


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five runs of three cells, measured and reported."""
    folder = copied_workflow(tmp_path_factory.mktemp("five") / "repository")
    write_campaign(folder, LEVELS, runs=5)
    add_size(folder)
    fill_store(folder, LEVELS, tmp_path_factory.mktemp("scratch-of-five"))
    run(folder, "report")
    return folder


def fewer_runs(folder: Path) -> None:
    change(folder, "runs: 5\n", "runs: 3\n")


def fewer_cells(folder: Path) -> None:
    change(folder, "  - 1000\n", "")


def jobs(folder: Path) -> dict[str, int]:
    """Return rule -> number of jobs that a report takes."""
    printed = run(folder, "-n", "report")
    return {} if "Nothing to be done" in printed else job_counts(printed)


def reported(folder: Path) -> dict[str, list[str]]:
    """Return cell -> runs that the report has, as MEASUREMENT/run-N."""
    report = json.loads((folder / RESULTS / "report.json").read_text())
    return {
        f"{cell['model']}/{cell['scenario']}/{cell['cpu_blocks']}": cell["runs"]
        for cell in report["cells"]
    }


def asked(folder: Path) -> dict[str, list[str]]:
    """Return the same as the campaign has it."""
    config = load_config(folder / CAMPAIGN, folder / "config")
    return {
        cell.path: [
            f"{config.measurement_id(cell)}/run-{number}"
            for number in config.runs_of(cell)
        ]
        for cell in config.cells
    }


def require_report(folder: Path, planned_jobs: dict[str, int]) -> None:
    """Hold what a report takes, and that it is of the campaign as it stands, whole."""
    assert jobs(folder) == planned_jobs
    run(folder, "report")
    assert reported(folder) == asked(folder)
    assert jobs(folder) == {}


COPIES = (copied_with_records, without_records)


@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize(
    ("smaller", "planned_jobs"),
    [
        (fewer_runs, {"extract_peak": 3, "predict_hits": 3, **ANALYSED}),
        (fewer_cells, ANALYSED),
    ],
)
def test_a_smaller_campaign_is_reported_without_what_was_taken_out(
    five: Path,
    tmp_path: Path,
    copy: Way,
    smaller: Callable[[Path], None],
    planned_jobs: dict[str, int],
) -> None:
    folder = copy(five, tmp_path / "moved")
    smaller(folder)
    assert planned(folder) == {}
    require_report(folder, planned_jobs)


@pytest.mark.parametrize("copy", COPIES)
def test_campaigns_that_take_turns_in_a_folder_are_reported_as_they_stand(
    finished: Path, tmp_path: Path, copy: Way
) -> None:
    """One arm of the other campaign has another argument, and in the same folder its runs have the same paths."""
    folder = copy(finished, tmp_path / "moved")
    files = [folder / CAMPAIGN, folder / "config" / "scenarios.yaml"]
    first = [path.read_text() for path in files]
    change(folder, "name: stored\n", "name: other\n")
    add_argument(folder)
    other = [path.read_text() for path in files]
    store_runs(folder, tmp_path / "scratch")
    adopted = {
        "benchmark": 2,
        "convert_pcp": 2,
        "extract_peak": 1,
        "predict_hits": 1,
        **ANALYSED,
    }
    for name, texts in (("other", other), ("stored", first)):
        for path, text in zip(files, texts, strict=True):
            path.write_text(text)
        assert planned(folder) == {(ARM, 1): "adopt", (ARM, 2): "adopt"}
        require_report(folder, adopted)
        report = json.loads((folder / RESULTS / "report.json").read_text())
        assert report["campaign"]["name"] == name


def store_runs(folder: Path, scratch: Path) -> None:
    """Put those runs of the campaign into the store that it does not have."""
    shutil.copytree(folder / "config", scratch / "config")
    shutil.copy2(folder / CAMPAIGN, scratch)
    fill_store(scratch, LEVELS, scratch / "recording")
    store = folder / "results" / "measurements"
    for entry in (scratch / "results" / "measurements").iterdir():
        if not (store / entry.name).exists():
            shutil.copytree(entry, store / entry.name)
