"""A campaign of existing results, through `kveval import` and Snakemake: a report of its cells, nothing measured."""

import csv
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.support.fault_chain import without_figures
from tests.support.guidellm_reports import START, Story
from tests.support.import_sheets import Row, correct
from tests.support.loaded import snakemake
from tests.support.paths import copy_parts
from tests.support.report_text import whole_report
from tests.support.result_trees import (
    HOUR,
    folder_name,
    write_campaign_tree,
    write_level,
    write_report,
)
from tests.workflow.test_reruns import PARTS

from kveval.verdict.verdicts import METRICS

pytestmark = pytest.mark.workflow
MODEL = "Qwen3-0.6B"
CAMPAIGN = {
    "name": "old-results",
    "results": "results/campaigns/old-results",
    "import": "imports.csv",
}
RESULTS = Path("results/campaigns/old-results")


@pytest.fixture(scope="module")
def workflow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the workflow with a tree of three repetitions, a damaged and an unknown result."""
    folder: Path = tmp_path_factory.mktemp("imports") / "repository"
    without_figures(copy_parts(folder, PARTS))
    write_campaign_tree(folder / "tree", runs=3, rates=(4, 8))
    damaged = write_level(
        folder / "tree" / "repetition-1",
        MODEL,
        "no-offload",
        16,
        start=START + 50 * HOUR,
    )
    (damaged / "guidellm-results.json.zst").write_bytes(
        b"\x28\xb5\x2f\xfd half of a file"
    )
    unknown = folder_name("Qwen9-1B", "no-offload", 4)
    write_level(folder / "tree" / "repetition-1", MODEL, "no-offload", 4, name=unknown)
    (folder / "campaign.yaml").write_text(yaml.safe_dump(CAMPAIGN))
    kveval(folder, "import", "tree", "--sheet", "imports.csv")
    return folder


@pytest.fixture(scope="module")
def imported(workflow: Path) -> Path:
    """The same with every result imported."""
    run(workflow, "report", "--until", "import_run")
    return workflow


def kveval(folder: Path, *arguments: str) -> str:
    """Run the command in a copy of the workflow and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "kveval", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder / "scripts")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def run(folder: Path, *arguments: str) -> str:
    return snakemake(folder, *arguments, "--configfile", "campaign.yaml")


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_report_of_existing_results(workflow: Path) -> None:
    output = run(workflow, "report")
    assert "Measuring" not in output
    report = whole_report(workflow / RESULTS)
    for said in (
        "native-offload 10K",
        "3 of 3",
        "2 x L40S",
        "not probed",
        "0.5.3",
        "0.11.2",
    ):
        assert said in report, said
    assert "13 levels imported (6 runs of 2 cells), 1 open; `imports.csv`" in report
    assert "open: model: " in report
    assert "failed: " in report
    levels = rows(workflow / RESULTS / MODEL / "no-offload" / "0" / "levels.csv")
    assert [(row["run"], row["level"]) for row in levels] == [
        *(
            ("1", "4"),
            ("1", "8"),
            ("1", "16"),
            ("2", "4"),
            ("2", "8"),
            ("3", "4"),
            ("3", "8"),
        ),
    ]
    failed = [row for row in levels if row["checks_failed"] == "level_failed"]
    assert [row["level"] for row in failed] == ["16"]
    comparison = rows(workflow / RESULTS / "analysis" / "comparison.csv")
    assert {
        row["runs"] for row in comparison if row["metric"] == "throughput_tok_s"
    } == {"3"}
    assert "Nothing to be done" in run(workflow, "-n", "report")


def test_a_lost_run_is_imported_again_without_snakemakes_records(
    workflow: Path, tmp_path: Path
) -> None:
    folder = Path(
        shutil.copytree(
            workflow, tmp_path / "copy", ignore=shutil.ignore_patterns(".snakemake")
        )
    )
    (
        folder / RESULTS / MODEL / "no-offload" / "0" / "run-i2" / "measurement.json"
    ).unlink()
    planned = re.findall(r": Importing (\S+), run (\w+)", run(folder, "-n", "report"))
    assert planned == [(f"{MODEL}/no-offload/0", "i2")]


def test_only_what_changed_is_imported_again(imported: Path) -> None:
    workflow = imported
    report = (
        workflow
        / "tree"
        / "repetition-2"
        / folder_name(MODEL, "no-offload", 4)
        / "guidellm-results.json.zst"
    )
    planned = run(workflow, "-n", "report", "--until", "import_run")
    assert "Importing" not in planned
    write_report(report, [Story(streams=4, latency_s=2.2, start=START + 5000)])
    planned = run(workflow, "-n", "report", "--until", "import_run")
    assert planned.count("Importing") == 1
    assert f"Importing {MODEL}/no-offload/0, run i2" in planned


def test_a_report_over_what_is_there_so_far(imported: Path) -> None:
    assert "so-far/REPORT.md" in run(imported, "report_so_far")
    assert (
        "native-offload 10K"
        in (imported / RESULTS / "so-far" / "REPORT.md").read_text()
    )


def test_a_cell_that_was_not_found_is_not_measured(workflow: Path) -> None:
    with pytest.raises(
        AssertionError, match=r"not among the imported results\b.*\bold-results\b"
    ):
        run(workflow, "-n", f"{RESULTS}/{MODEL}/native-offload/20000/peak.csv")


def test_a_mistake_ends_the_plan(workflow: Path) -> None:
    shutil.copy(workflow / "imports.csv", workflow / "wrong.csv")
    correct(workflow / "wrong.csv", lambda row: {"cpu_blocks": "10k"})
    (workflow / "wrong.yaml").write_text(
        yaml.safe_dump({**CAMPAIGN, "matrix": [], "import": "wrong.csv"})
    )
    with pytest.raises(AssertionError) as caught:
        snakemake(workflow, "-n", "report", "--configfile", "wrong.yaml")
    assert "wrong.csv: line 2, column cpu_blocks: '10k'" in str(caught.value)


def test_a_corrected_row_is_imported_and_no_other(workflow: Path) -> None:
    run(workflow, "report", "--until", "import_run")
    shutil.copy(workflow / "imports.csv", workflow / "corrected.csv")
    unknown = folder_name("Qwen9-1B", "no-offload", 4)

    def corrections(row: Row) -> dict[str, str]:
        return {"model": "Qwen3-8B"} if unknown in row["report"] else {}

    assert correct(workflow / "corrected.csv", corrections) == 1
    (workflow / "corrected.yaml").write_text(
        yaml.safe_dump({**CAMPAIGN, "import": "corrected.csv"})
    )
    planned = snakemake(
        workflow,
        "-n",
        "report",
        "--until",
        "import_run",
        "--configfile",
        "corrected.yaml",
    )
    imported = re.findall(r": Importing (\S+), run (\w+)", planned)
    assert ("Qwen3-8B/no-offload/0", "i1") in imported


@pytest.mark.skipif(
    "KVEVAL_TEST_DATA" not in os.environ,
    reason="KVEVAL_TEST_DATA is not set: it names a folder with real measurements",
)
def test_the_published_sweep_gets_no_verdict_and_the_report_says_why(
    workflow: Path,
) -> None:
    data = f"{os.environ['KVEVAL_TEST_DATA']}/guidellm"
    printed = kveval(workflow, "import", data, "--sheet", "october.csv")
    # The rows of the publication, by which one sees that these are its files.
    for row in ("5031.2 tok/s", "4707.3 tok/s", "4947.0 tok/s"):
        assert row in printed

    def corrections(row: Row) -> dict[str, str]:
        if "oct2025" not in row["report"]:
            return {"use": "no"}
        return {"cpu_blocks": "20000"} if row["cpu_blocks"] == "?" else {}

    # The sizes of two tiers in ten levels each; two other reports lie in the folder.
    assert correct(workflow / "october.csv", corrections) == 20 + 2
    campaign = {
        "name": "october",
        "results": "results/campaigns/october",
        "import": "october.csv",
    }
    (workflow / "october.yaml").write_text(yaml.safe_dump(campaign))
    results = workflow / campaign["results"]
    snakemake(
        workflow, f"{campaign['results']}/REPORT.md", "--configfile", "october.yaml"
    )
    report = whole_report(results)
    for said in (
        "41 % of 1258 requests",
        "saturated open loop",
        "single run",
        "nothing can be reused",
    ):
        assert said in report, said
    comparison = rows(results / "analysis" / "comparison.csv")
    # Two arms against the one without offload, in every quantity, and no verdict on any.
    assert len(comparison) == 2 * len(METRICS)
    assert all(row["verdict"].startswith("not ") for row in comparison)
