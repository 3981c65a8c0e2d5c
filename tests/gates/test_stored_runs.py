"""Runs that somebody has measured stay theirs: a store and results as an earlier version wrote them.

fixture/measured.tar.xz was measured with version 0.1.0 by jobs as a user starts them, on stand-ins for the server and the
load generator: arms without and with a tier, twice each, levels that a pilot found, and a replayed trace. It is never
made again: whoever has results of that version may have them in that form. The verdicts that its runs get are in verdicts/
(test_held_verdicts.py).
"""

import json
import os
import re
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest
from tests.gates.campaigns import FIXTURE as MEASURED
from tests.gates.library import defining_id
from tests.support.paths import copy_parts, unpack

SHA256 = "4ed5d7cc8b48694f687617a88d5e24e13d37b689b06d3b3285cd9c7c7ecb7387"
HOST = Path(__file__).parent / "host"
CAMPAIGNS = {"gate-arms": 8, "gate-pilot": 3, "gate-trace": 2}
"""Runs of each campaign, a pilot among them."""
PARTS = ("Snakefile", "config", "manifests", "rules", "scripts", "profiles", "envs")
BEFORE_RESULTS = 1_700_000_000
MEASURING = re.compile(
    r"^(benchmark|pilot) +\d+$|: (Measuring|Searching) ", re.MULTILINE
)

pytestmark = pytest.mark.workflow


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the workflow with the store and the results, and nothing that could serve."""
    copy_parts(tmp_path, PARTS)
    # Snakemake takes a script that is younger than what it made for a changed one.
    inputs = ("Snakefile", "config/**/*", "rules/*", "scripts/*.py")
    for path in (path for pattern in inputs for path in tmp_path.glob(pattern)):
        os.utime(path, (0, BEFORE_RESULTS))
    unpack(MEASURED, tmp_path)
    return tmp_path


def snakemake(folder: Path, *arguments: str, campaign: str) -> str:
    """Return what snakemake prints on the host that has measured the runs."""
    configured = ("--configfile", f"campaigns/{campaign}.yaml")
    return printed(folder, "snakemake", "--cores", "2", *arguments, *configured)


def printed(folder: Path, *command: str) -> str:
    """Return what a command prints on that host; its library is the folder's."""
    path = os.pathsep.join([str(HOST), str(folder / "scripts")])
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    return done.stdout


def pointers(folder: Path, campaign: str) -> dict[str, str]:
    """Return path -> content of all that points into the store, of what the pilot found too."""
    results = folder / "results" / "campaigns" / campaign
    found = [*results.rglob("measurement.json"), *results.rglob("pilot/levels.json")]
    return {
        path.relative_to(folder).as_posix(): json.loads(path.read_text())
        for path in found
    }


def test_the_fixture_stays_as_it_is() -> None:
    assert sha256(MEASURED.read_bytes()).hexdigest() == SHA256


@pytest.mark.parametrize("campaign", CAMPAIGNS)
def test_nothing_is_measured_again(folder: Path, campaign: str) -> None:
    output = snakemake(folder, "-n", "report", campaign=campaign)
    assert not MEASURING.search(output), output


def test_fresh_results_are_to_adopt_every_run(folder: Path) -> None:
    shutil.rmtree(folder / "results" / "campaigns")
    output = snakemake(folder, "-n", "report", campaign="gate-arms")
    assert output.count(": Adopting ") == CAMPAIGNS["gate-arms"]
    assert ": Measuring " not in output


@pytest.mark.parametrize("campaign", ["gate-pilot", "gate-trace"])
def test_fresh_results_adopt_every_run(folder: Path, campaign: str) -> None:
    before = pointers(folder, campaign)
    shutil.rmtree(folder / "results" / "campaigns")
    output = snakemake(folder, "report", "--until", "benchmark", campaign=campaign)
    assert output.count("adopted the stored measurement") == CAMPAIGNS[campaign]
    assert pointers(folder, campaign) == before
    runs = [path for path in before if path.endswith("measurement.json")]
    assert len(runs) == CAMPAIGNS[campaign]


@pytest.mark.parametrize("campaign", CAMPAIGNS)
def test_a_report_on_fresh_results_measures_nothing(
    results: Path, campaign: str
) -> None:
    printed = (results / f"{campaign}.log").read_text(encoding="utf-8")
    assert printed.count("adopted the stored measurement") == CAMPAIGNS[campaign]
    assert not re.search(r": (Measuring|Searching) ", printed)


def test_the_store_is_found_in_order_and_its_runs_are_read(folder: Path) -> None:
    kveval = (sys.executable, "-m", "kveval")
    printed(folder, *kveval, "verify", "campaigns/gate-arms.yaml")
    runs = sorted(folder.glob("results/measurements/*/run-*"))
    assert len(runs) == sum(CAMPAIGNS.values())
    assert [defining_id(place) for place in runs] == [one.parent.name for one in runs]
