"""A campaign of existing results, through Snakemake: a report of its cells, all else listed, nothing measured."""

import csv
import os
import re
import shutil
from pathlib import Path

import pytest
import yaml
from tests.support.guidellm_reports import START, Story
from tests.support.report_text import whole_report
from tests.support.result_trees import (
    HOUR,
    folder_name,
    write_campaign_tree,
    write_level,
    write_report,
)
from tests.workflow.test_reruns import PARTS, REPOSITORY, snakemake

from kveval.analysis.verdict import METRICS

pytestmark = pytest.mark.workflow
MODEL = "Qwen3-0.6B"
CAMPAIGN = {
    "name": "old-results",
    "results": "results/campaigns/old-results",
    "import": [{"path": "tree"}],
}
RESULTS = Path("results/campaigns/old-results")


@pytest.fixture(scope="module")
def workflow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the workflow with a tree of three repetitions, a damaged and an unknown result."""
    folder: Path = tmp_path_factory.mktemp("imports") / "repository"
    for part in PARTS:
        source = REPOSITORY / part
        if source.is_dir():
            shutil.copytree(
                source, folder / part, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            folder.mkdir(exist_ok=True)
            shutil.copy2(source, folder / part)
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
    return folder


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
    assert re.search(
        r"\b14 results\b.*\b12 imported\b.*\b6 runs\b.*\b2 cells\b.*\b1 damaged\b.*\b1 unknown\b",
        report,
    )
    assert "unknown model 'Qwen9-1B'" in report
    listed = {
        row["result"]: row
        for row in rows(workflow / RESULTS / "analysis" / "imported.csv")
    }
    assert len(listed) == 14
    damaged = listed[f"repetition-1/{folder_name(MODEL, 'no-offload', 16)}"]
    assert (damaged["status"], "zstd" in damaged["reason"]) == ("damaged", True)
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


def test_only_what_changed_is_imported_again(workflow: Path) -> None:
    run(workflow, "report", "--until", "import_run")
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


def test_a_report_over_what_is_there_so_far(workflow: Path) -> None:
    run(workflow, "report", "--until", "import_run")
    assert "so-far/REPORT.md" in run(workflow, "report_so_far")
    assert (
        "native-offload 10K"
        in (workflow / RESULTS / "so-far" / "REPORT.md").read_text()
    )


def test_a_cell_that_was_not_found_is_not_measured(workflow: Path) -> None:
    with pytest.raises(
        AssertionError, match=r"not among the imported results\b.*\bold-results\b"
    ):
        run(workflow, "-n", f"{RESULTS}/{MODEL}/native-offload/20000/peak.csv")


def test_a_mistake_ends_the_plan(workflow: Path) -> None:
    (workflow / "wrong.yaml").write_text(
        yaml.safe_dump(
            {
                **CAMPAIGN,
                "matrix": [],
                "import": [{"path": "nowhere"}, {"path": "tree", "pattern": "x"}],
            }
        )
    )
    with pytest.raises(AssertionError) as caught:
        snakemake(workflow, "-n", "report", "--configfile", "wrong.yaml")
    assert "wrong.yaml: import[0].path: nowhere" in str(caught.value)
    assert "import[1].pattern: 'x': {arm}" in str(caught.value)


@pytest.mark.skipif(
    "KVEVAL_TEST_DATA" not in os.environ, reason="KVEVAL_TEST_DATA is not set"
)
def test_the_published_sweep_gets_no_verdict_and_the_report_says_why(
    workflow: Path,
) -> None:
    campaign = {
        "name": "october",
        "results": "results/campaigns/october",
        "import": [
            {
                "path": f"{os.environ['KVEVAL_TEST_DATA']}/guidellm",
                "pattern": "oct2025-{model}-{arm}.json",
                "scenarios": {
                    "default": "no-offload",
                    "offload": "native-offload",
                    "lmcache": "lmcache-local",
                },
                "cpu_blocks": {"native-offload": 20000, "lmcache-local": 20000},
                "vllm": "0.11.0",
            }
        ],
    }
    (workflow / "october.yaml").write_text(yaml.safe_dump(campaign))
    snakemake(workflow, "report", "--configfile", "october.yaml")
    report = whole_report(workflow / "results" / "campaigns" / "october")
    for said in (
        "41 % of 1258 requests",
        "saturated open loop",
        "single run",
        "nothing can be reused",
    ):
        assert said in report, said
    comparison = rows(
        workflow / "results" / "campaigns" / "october" / "analysis" / "comparison.csv"
    )
    # Two arms against the one without offload, in every quantity, and no verdict on any.
    assert len(comparison) == 2 * len(METRICS)
    assert all(row["verdict"].startswith("not ") for row in comparison)
