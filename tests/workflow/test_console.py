"""Where on the console stands what a finished run has to say, and how runs are counted.

Snakemake is real; the measurements are adopted, so that nothing is measured.
"""

import re
from pathlib import Path

import pytest
from tests.support.fault_chain import ADOPTED
from tests.support.loaded import run_snakemake as snakemake
from tests.support.tree import workflow_copy
from tests.workflow.test_reruns import fill_store

pytestmark = pytest.mark.workflow
CELL = "results/Qwen3-0.6B/native-offload/500"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = workflow_copy(tmp_path_factory.mktemp("console") / "repository")
    fill_store(made)
    return made


@pytest.fixture(scope="module")
def adopted(folder: Path) -> tuple[list[str], str]:
    """The runs of a cell, asked for by path, and what snakemake said while it adopted them."""
    pointers = [f"{CELL}/run-{run}/measurement.json" for run in (1, 2, 3)]
    code, output = snakemake(folder, *pointers)
    assert code == 0, output
    return pointers, output


def last_words(output: str) -> str:
    """What stands behind the last line of Snakemake's own."""
    return re.split(
        r"^(?:Elapsed time|WorkflowError|At least one job|Nothing to be done).*\n",
        output,
        flags=re.M,
    )[-1]


def test_a_cell_asked_for_by_path_counts_its_own_runs_and_is_named_at_the_end(
    folder: Path, adopted: tuple[list[str], str]
) -> None:
    pointers, output = adopted
    assert [line.split()[1] for line in output.splitlines() if ADOPTED in line] == [
        "[1/3]",
        "[2/3]",
        "[3/3]",
    ]
    assert last_words(output).split() == pointers
    output = snakemake(folder, *pointers)[1]
    assert "Nothing to be done" in output
    assert last_words(output).split() == pointers


def test_snakemake_itself_says_little_and_its_log_file_all(
    adopted: tuple[list[str], str],
) -> None:
    output = adopted[1]
    lines = output.removesuffix(last_words(output)).splitlines()
    own = [line for line in lines if not re.match(r"\d\d:\d\d:\d\d ", line)]
    assert len(own) <= 10, own
    begun = [line for line in lines if " jobs done)" in line]
    assert [line.partition("(")[2] for line in begun] == [
        "0 of 3 jobs done)",
        "1 of 3 jobs done)",
        "2 of 3 jobs done)",
    ]
    (log,) = re.findall(r"^Complete log\(s\): (\S+)", output, flags=re.M)
    assert "3 of 3 steps (100%) done" in Path(log).read_text()


def test_what_programs_read_stays_as_it_is(folder: Path) -> None:
    assert (
        snakemake(folder, f"{CELL}/run-1/measurement.json", "--rulegraph")[1]
        .rstrip()
        .endswith("}")
    )
    assert (
        snakemake(folder, "-n", "peaks")[1]
        .rstrip()
        .endswith("does not reflect the order of execution.")
    )
