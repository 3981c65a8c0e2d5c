"""The workflow used from other folders and environments: results elsewhere, started elsewhere, as another's module."""

import os
import sys
from pathlib import Path

import pytest
import yaml
from tests.support.command import kveval
from tests.support.fault_chain import ADOPTED, without_figures, workflow_copy
from tests.support.loaded import run_snakemake
from tests.support.report_text import whole_report
from tests.support.stored_campaign import CAMPAIGN, fill_store, write_campaign

pytestmark = pytest.mark.workflow
# As found where the environment is not activated.
PROGRAMS = [
    folder
    for folder in os.get_exec_path()
    if Path(folder) != Path(sys.executable).parent
]
LEVELS = (1, 50, 100)
REPORT = Path("results/campaigns/stored/REPORT.md")
OTHERS = """
configfile: "theirs.yaml"

rule theirs:
    input:
        "results/campaigns/stored/Qwen3-0.6B/no-offload/0/peak.csv",
        "results/campaigns/stored/Qwen3-0.6B/native-offload/500/run-1/measurement.json",
    output: "theirs.txt"
    shell: "wc -l {input[0]} > {output}"

module offload:
    snakefile: "../repository/Snakefile"
    config: config["offload"]

use rule * from offload as offload_*
"""


def snakemake(folder: Path, *arguments: str) -> str:
    code, output = run_snakemake(
        folder, *arguments, env={"PATH": os.pathsep.join(PROGRAMS)}
    )
    assert code == 0, output[-5000:]
    return output


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = workflow_copy(tmp_path_factory.mktemp("elsewhere") / "repository")
    write_campaign(folder, LEVELS)
    return without_figures(folder)


def other(repository: Path, name: str, scratch: Path) -> Path:
    """A folder beside the repository with a store of its own, in which every run of the campaign is."""
    folder = repository.parent / name
    (folder / "config").mkdir(parents=True)
    for path in (
        CAMPAIGN,
        *(f"config/{file.name}" for file in (repository / "config").glob("*.yaml")),
    ):
        (folder / path).write_bytes((repository / path).read_bytes())
    scratch.mkdir(exist_ok=True)
    fill_store(folder, LEVELS, scratch)
    for path in (folder / "config").glob("*.yaml"):
        path.unlink()
    return folder


def untouched(repository: Path) -> bool:
    return not (repository / "results").exists() and not (repository / "logs").exists()


def test_results_go_into_another_folder_and_stay_valid_from_wherever_it_is_asked(
    repository: Path, tmp_path: Path
) -> None:
    folder = other(repository, "results-elsewhere", tmp_path / "scratch")
    snakemake(
        repository, "report", "--directory", str(folder), "--configfile", CAMPAIGN
    )
    assert "2 of 2" in whole_report((folder / REPORT).parent)
    assert untouched(repository)
    started = ("--snakefile", str(repository / "Snakefile"), "--configfile", CAMPAIGN)
    assert "Nothing to be done" in snakemake(folder, "-n", "report", *started)
    there = (CAMPAIGN, "--directory", str(folder))
    assert kveval(repository, "plan", *there)[0] == 0
    assert (folder / "logs/stored/plan.csv").read_text().count(",there,") == 2
    assert "2 of 2 entries" in kveval(repository, "verify", *there)[1]
    assert untouched(repository)


def test_the_default_campaign_is_planned_from_any_folder(
    repository: Path, tmp_path: Path
) -> None:
    output = snakemake(
        tmp_path, "-n", "report", "--snakefile", str(repository / "Snakefile")
    )
    assert output.count("Measuring Qwen3-0.6B") == 9


def test_another_workflow_uses_the_rules_as_a_module(
    repository: Path, tmp_path: Path
) -> None:
    folder = other(repository, "theirs", tmp_path / "scratch")
    (folder / "Snakefile").write_text(OTHERS)
    campaign = yaml.safe_load((folder / CAMPAIGN).read_text())
    (folder / "theirs.yaml").write_text(yaml.safe_dump({"offload": campaign}))
    output = snakemake(folder, "theirs")
    assert output.count(ADOPTED) == 2
    assert (folder / "theirs.txt").exists()
    assert "Nothing to be done" in snakemake(folder, "-n", "theirs")
    assert "write_report" in snakemake(folder, "-n", str(REPORT))
