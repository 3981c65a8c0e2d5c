"""What makes a measurement rerun and what must not, asked of Snakemake itself.

A copy of the workflow gets a store with an (empty, but sealed) entry for every run of the default campaign. So the
first run adopts all of them, and every question after it is a dry run that lists the planned benchmark jobs.
"""

import csv
import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from tests.support.command import kveval
from tests.support.fault_chain import ADOPTED
from tests.support.loaded import run_snakemake, snakemake
from tests.support.paths import copy_or_link, copy_parts

from kveval.configuration.loading import load_config
from kveval.host import hardware
from kveval.host.files import write_json
from kveval.store.run_file import SCHEMA
from kveval.store.store import Key, Store

pytestmark = pytest.mark.workflow
PARTS = ("Snakefile", "config", "rules", "scripts", "profiles", "envs")
NO_OFFLOAD = [("no-offload", "0")]
NATIVE = [("native-offload", "500"), ("native-offload", "10000")]


def planned(folder: Path, *arguments: str) -> list[tuple[str, str, str]]:
    """Return (scenario, cpu_blocks, run) of every benchmark job of a dry run."""
    output = snakemake(folder, "-n", *(arguments or ("report",)))
    return sorted(
        re.findall(r"(?:Measuring|Adopting) [^/]+/([^/]+)/(\d+), run (\d+)", output)
    )


def fill_store(folder: Path) -> None:
    """Seal an entry for every run of the campaign, so that benchmark jobs have something to adopt."""
    config = load_config(folder / "config" / "config.yaml", folder / "config")
    store = Store(folder / "results" / "measurements")
    host = hardware.probe()
    for cell in config.cells:
        for run in range(1, config.campaign.runs + 1):
            key = Key(config.measurement_id(cell), run, host["fingerprint"])
            scratch = store.scratch(key)
            specification = config.specification(cell).to_json()
            what = {name: specification[name] for name in ("cell", "engine", "weights")}
            what |= {
                "specification": specification,
                "started": "",
                "finished": "",
                "levels": [],
            }
            about = {
                "schema": SCHEMA,
                "measurement": key.measurement,
                "run": run,
                "hardware": host,
            }
            write_json(scratch / "run.json", about | what)
            store.commit(scratch, key)


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> Path:
    """A workflow whose measurements are all there."""
    folder = tmp_path_factory.mktemp("measured") / "repository"
    copy_parts(folder, PARTS)
    fill_store(folder)
    output = snakemake(folder, "report", "--until", "benchmark")
    assert output.count(ADOPTED) == 9
    assert planned(folder) == []
    return folder


@pytest.fixture
def workflow(measured, tmp_path) -> Path:
    """A copy to change, at another place: moving a repository is no reason to measure, either."""
    shutil.copytree(
        measured, tmp_path / "moved", symlinks=True, copy_function=copy_or_link
    )
    return tmp_path / "moved"


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text, f"{old!r} is not in {path.name}"
    path.write_text(text.replace(old, new))


def touch_everything(folder: Path) -> None:
    for path in folder.rglob("*"):
        if (
            path.is_file()
            and not path.is_relative_to(folder / "results")
            and ".snakemake" not in path.parts
        ):
            path.touch()


def comment_everything(folder: Path) -> None:
    for path in [
        folder / "Snakefile",
        *folder.rglob("*.smk"),
        *folder.rglob("*.py"),
        *(folder / "config").glob("*.yaml"),
    ]:
        path.write_text(path.read_text() + "\n# a comment\n")
    for path in folder.rglob("*.j2"):
        path.write_text(path.read_text() + "{# a comment #}\n")


def reformat_configuration(folder: Path) -> None:
    for path in (folder / "config").glob("*.yaml"):
        path.write_text(
            yaml.safe_dump(
                yaml.safe_load(path.read_text()), sort_keys=True, indent=4, width=40
            )
        )


def change_conda_environment(folder: Path) -> None:
    edit(folder / "envs" / "workflow.yaml", "- pip:", "- zlib\n  - pip:")


def retitle(folder: Path) -> None:
    edit(
        folder / "config" / "scenarios.yaml",
        "title: vLLM's native CPU offload\n",
        "title: Another title\n",
    )
    edit(folder / "config" / "config.yaml", "margin: 0.05", "margin: 0.04")


def declare_limits_and_prices(folder: Path) -> None:
    declared = "goodput: {ttft_ms: 500, itl_ms: 50}\nprices: {host_hour_usd: 0.4}\n\ncomparison:"
    edit(folder / "config" / "config.yaml", "comparison:", declared)


def add_larger_tier(folder: Path) -> None:
    edit(
        folder / "config" / "config.yaml",
        "cpu_blocks: [500, 10000]",
        "cpu_blocks: [500, 10000, 20000]",
    )


def add_run(folder: Path) -> None:
    edit(folder / "config" / "config.yaml", "runs: 3", "runs: 4")


def change_one_arm(folder: Path) -> None:
    edit(
        folder / "config" / "scenarios.yaml",
        "  title: vLLM's native CPU offload\n  arm: native\n",
        "  title: vLLM's native CPU offload\n  arm: native\n  connector_config: {eviction_policy: arc}\n",
    )


def change_other_arm(folder: Path) -> None:
    edit(
        folder / "config" / "scenarios.yaml",
        "  title: LMCache, CPU tier\n",
        "  title: LMCache\n  env: {A: 1}\n",
    )


def change_proof(folder: Path) -> None:
    edit(
        folder / "config" / "scenarios.yaml",
        "unit: tokens",
        "unit: tokens\n      at_least: 1024",
    )


def change_workload(folder: Path) -> None:
    edit(
        folder / "config" / "workloads.yaml",
        "  output_tokens: 16\n  turns: 1",
        "  output_tokens: 17\n  turns: 1",
    )


def change_other_workload(folder: Path) -> None:
    edit(folder / "config" / "workloads.yaml", "prefix_count: 800", "prefix_count: 801")


def change_version(folder: Path) -> None:
    edit(folder / "config" / "config.yaml", 'guidellm: "0.8.1"', 'guidellm: "0.8.0"')


def raise_protocol(folder: Path) -> None:
    path = folder / "scripts" / "kveval" / "configuration" / "config.py"
    path.write_text(
        re.sub(
            r"^PROTOCOL = (\d+)",
            r"PROTOCOL = 1\1",
            path.read_text(),
            flags=re.MULTILINE,
        )
    )


def runs_of(cells, runs=("1", "2", "3")):
    return sorted((scenario, blocks, run) for scenario, blocks in cells for run in runs)


# Those of a file's text come before those that write files anew.
HARMLESS = (
    retitle,
    declare_limits_and_prices,
    change_conda_environment,
    change_proof,
    change_other_arm,
    change_other_workload,
    reformat_configuration,
    comment_everything,
    touch_everything,
)


def test_changes_that_concern_no_measurement_plan_none(workflow):
    """Each gives Snakemake a reason of its own for a job or none: together they plan what any of them does."""
    for change in HARMLESS:
        change(workflow)
    assert planned(workflow) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (add_larger_tier, runs_of([("native-offload", "20000")])),
        (add_run, runs_of(NO_OFFLOAD + NATIVE, runs=("4",))),
        (change_one_arm, runs_of(NATIVE)),
        (change_workload, runs_of(NO_OFFLOAD + NATIVE)),
        (change_version, runs_of(NO_OFFLOAD + NATIVE)),
        (raise_protocol, runs_of(NO_OFFLOAD + NATIVE)),
    ],
    ids=lambda value: value.__name__ if callable(value) else f"{len(value)} runs",
)
def test_a_change_plans_exactly_the_measurements_it_touches(workflow, change, expected):
    change(workflow)
    assert planned(workflow) == expected


def lose_pointers(folder: Path) -> None:
    shutil.rmtree(folder / "results/Qwen3-0.6B/no-offload")


def change_some_of_everything(folder: Path) -> None:
    for change in (lose_pointers, change_one_arm, add_larger_tier, add_run):
        change(folder)


@pytest.mark.parametrize(
    ("change", "adopted", "reasons"),
    [
        (touch_everything, 0, set()),
        (lose_pointers, 3, {"in the store"}),
        (add_run, 0, {"another run"}),
        (change_workload, 0, {"changed: workload.output_tokens 16 -> 17"}),
        (
            change_some_of_everything,
            3,
            {
                "in the store",
                "new",
                "another run",
                "changed: argv.--kv-transfer-config.kv_connector_extra_config.eviction_policy null -> arc",
            },
        ),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_the_plan_lists_the_jobs_of_a_dry_run_and_what_they_would_adopt(
    workflow, change, adopted, reasons
):
    change(workflow)
    assert kveval(workflow, "plan")[0] == 0
    rows = list(csv.DictReader((workflow / "logs/laptop/plan.csv").open()))
    missing = [row for row in rows if row["state"] != "there"]
    assert sorted(
        (row["scenario"], row["cpu_blocks"], row["run"]) for row in missing
    ) == planned(workflow)
    assert sum(row["state"] == "adopt" for row in rows) == adopted
    assert {row["reason"] for row in missing} == reasons


def test_a_forced_benchmark_adopts_the_stored_measurement(workflow):
    pointer = (
        workflow / "results/Qwen3-0.6B/native-offload/10000/run-2/measurement.json"
    )
    before = json.loads(pointer.read_text())
    output = snakemake(
        workflow, "report", "--forcerun", "benchmark", "--until", "benchmark"
    )
    assert output.count(ADOPTED) == 9
    assert json.loads(pointer.read_text()) == before


def test_a_lost_pointer_is_found_again_in_the_store(workflow):
    shutil.rmtree(workflow / "results/Qwen3-0.6B/no-offload")
    assert planned(workflow) == runs_of(NO_OFFLOAD)
    output = snakemake(workflow, "report", "--until", "benchmark")
    assert output.count(ADOPTED) == 3


def test_any_cell_of_the_catalogues_can_be_asked_for_by_path(workflow):
    target = "results/Qwen3-32B-AWQ/lmcache-local/20000/peak.csv"
    assert planned(workflow, target) == runs_of([("lmcache-local", "20000")])


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("results/Qwen3-8B/native-offload/0/peak.csv", "has a CPU tier"),
        ("results/Qwen3-8B/no-offload/10000/peak.csv", "has no CPU tier"),
    ],
)
def test_a_cell_that_makes_no_sense_is_refused_before_anything_runs(
    workflow, target, reason
):
    code, output = run_snakemake(workflow, "-n", target)
    assert code != 0
    assert reason in output


def test_mistakes_in_the_configuration_are_reported_all_at_once(workflow):
    edit(workflow / "config" / "config.yaml", "runs: 3", "runs: three\nrunz: 3")
    edit(workflow / "config" / "scenarios.yaml", "  arm: native\n", "  arm: nativ\n")
    code, output = run_snakemake(workflow, "-n")
    assert code != 0
    for part in (
        "config/config.yaml",
        "runz",
        "runs",
        "config/scenarios.yaml",
        "native-offload.arm",
    ):
        assert part in output


def test_a_failed_job_points_to_the_report_over_what_there_is(workflow):
    target = "results/Qwen3-0.6B/no-offload/0/requests.parquet"
    code, output = run_snakemake(workflow, target)
    assert code != 0
    assert "report_so_far" in output
