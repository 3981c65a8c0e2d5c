"""`snakemake report_so_far`: the rules of the report over the runs that exist; what is not there with its reason."""

import hashlib
import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
from tests.support.fault_chain import without_figures, workflow_copy
from tests.support.job_status import leave_status
from tests.support.loaded import snakemake
from tests.support.report_text import whole_report
from tests.support.stored_campaign import (
    CAMPAIGN,
    MODEL,
    fill_store,
    point_to_store,
    write_campaign,
)

from kveval.measure.status import status_path

pytestmark = pytest.mark.workflow
LEVELS = (1, 50, 100)
CAUSE = "the tier asks for 18 GiB of 16"
WHOLE, LACKING = f"{MODEL}/no-offload/0", f"{MODEL}/native-offload/500"


def run(folder: Path, *arguments: str) -> str:
    """Run snakemake for the campaign, and return what it prints."""
    return snakemake(folder, *arguments, "--configfile", CAMPAIGN)


@pytest.fixture(scope="module")
def workflow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of two cells, measured; nothing is made of them."""
    folder = workflow_copy(tmp_path_factory.mktemp("half") / "repository")
    write_campaign(folder, LEVELS, runs=2)
    fill_store(folder, LEVELS, tmp_path_factory.mktemp("scratch"))
    point_to_store(folder)
    return folder


@pytest.fixture(scope="module")
def results(workflow: Path) -> Path:
    """The report with one run gone and its job's status saying why, and another run damaged."""
    results = workflow / "results" / "campaigns" / "stored"
    gone = results / LACKING / "run-1"
    shutil.rmtree(gone)
    leave_status(log_of(workflow), state="failed", message=CAUSE)
    assert "Measuring" not in run(workflow, "report_so_far")
    return results


def log_of(workflow: Path) -> Path:
    """Return the log of the run that is gone."""
    return workflow / "logs" / "stored" / "benchmark" / LACKING / "run-1.log"


def missing(results: Path) -> str:
    text = (results / "so-far" / "REPORT.md").read_text(encoding="utf-8")
    return text.split("## Missing")[1].split("\n## ")[0]


def test_what_lacks_is_named_with_its_reason_and_nothing_is_measured(
    results: Path,
) -> None:
    assert re.search(rf"\b1 of 2 runs\b.*: {CAUSE}", missing(results))
    assert not (results / LACKING / "run-1" / "measurement.json").exists()
    assert not (results / "REPORT.md").exists()


def test_the_report_names_only_files_that_are_there(results: Path) -> None:
    text = whole_report(results / "so-far")
    named = re.findall(
        r"`(analysis/\w+\.csv|report\.json)`|!\[[^\]]*\]\(([^)]+)\)", text
    )
    assert len(named) > 20
    assert [
        path
        for pair in named
        for path in pair
        if path and not (results / "so-far" / path).exists()
    ] == []
    levels = pd.read_csv(results / "so-far" / "analysis" / "complete_metrics.csv")
    assert set(zip(levels["scenario"], levels["run"], strict=True)) == {
        ("no-offload", 1),
        ("no-offload", 2),
        ("native-offload", 2),
    }


def test_it_is_made_anew_only_where_something_changed(
    workflow: Path, results: Path
) -> None:
    assert "Nothing to be done" in run(workflow, "-n", "report_so_far")
    leave_status(log_of(workflow), state="failed", message="another reason")
    run(workflow, "report_so_far")
    assert "failed: another reason" in missing(results)


def test_it_can_be_asked_for_while_the_campaign_is_measured(
    workflow: Path, results: Path
) -> None:
    """It asks for no file that a snakemake in the same folder is to make."""
    table = run(workflow, "--detailed-summary", "report_so_far")
    rows = [
        line.split("\t") for line in table.splitlines() if line.startswith("results/")
    ]
    files = {
        file for row in rows for column in (0, 4) for file in row[column].split(",")
    }
    inside = {file for file in files if file.startswith("results/")}
    assert len(inside) > 20
    assert {
        file
        for file in inside
        if not file.startswith("results/campaigns/stored/so-far/")
    } == set()


def test_a_measurement_that_runs_is_named_as_running(
    workflow: Path, results: Path
) -> None:
    path = status_path(log_of(workflow))
    before = path.read_bytes()
    leave_status(log_of(workflow), line="50 streams (level 2 of 3)")
    run(workflow, "report_so_far")
    path.write_bytes(before)
    assert re.search(
        r"\b1 of 2 runs; running: 50 streams \(level 2 of 3\)", missing(results)
    )


def test_damaged_runs_and_cells_without_a_peak_do_not_keep_the_others_out(
    workflow: Path, results: Path
) -> None:
    without_figures(workflow)
    pointer = results / LACKING / "run-2" / "measurement.json"
    place = workflow / re.findall(r'"path": "([^"]+)"', pointer.read_text())[0]
    description = place / "run.json"
    before = description.read_bytes()
    description.write_text('{"schema": 1, "measurem')
    try:
        run(workflow, "report_so_far")
    finally:
        description.write_bytes(before)
    assert re.search(r"native-offload 500: failed: run-2 .*run\.json", missing(results))
    described = json.loads(before)
    described["levels"] = [
        level | {"status": "failed"} for level in described["levels"]
    ]
    sums = place / "SHA256SUMS"
    sealed = sums.read_text()
    description.write_text(json.dumps(described))
    digests = [
        hashlib.sha256(content).hexdigest()
        for content in (before, description.read_bytes())
    ]
    assert digests[0] in sealed
    sums.write_text(sealed.replace(*digests))
    # The report has its reason from there, as it had the other.
    peak = results / "so-far" / LACKING / "peak.csv"
    shutil.rmtree(peak.parent)
    try:
        run(workflow, str(peak.relative_to(workflow)))
    finally:
        description.write_bytes(before)
        sums.write_text(sealed)
    assert re.search(r"throughput", peak.read_text())


def test_before_the_first_run_is_finished_one_line_says_so(
    workflow: Path, tmp_path: Path
) -> None:
    shutil.copytree(
        workflow,
        tmp_path / "none",
        ignore=shutil.ignore_patterns("results", "logs", ".snakemake"),
    )
    with pytest.raises(AssertionError) as error:
        run(tmp_path / "none", "report_so_far")
    output = str(error.value)
    assert "campaign stored: no run is finished, there is nothing to report\n" in output
    assert not re.search("Traceback|Error|Exception", output.partition("assert")[0])


def test_without_any_run_there_is_nothing_to_report_and_why(
    workflow: Path, results: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "none"
    shutil.copytree(
        workflow, folder, ignore=shutil.ignore_patterns("results", ".snakemake")
    )
    leave_status(log_of(folder), state="failed", message=CAUSE)
    why = rf"nothing to report[\s\S]*native-offload/500: failed: {CAUSE}"
    with pytest.raises(AssertionError, match=why):
        run(folder, "report_so_far")
