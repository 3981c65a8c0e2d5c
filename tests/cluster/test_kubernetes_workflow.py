"""Snakemake measuring on a cluster: cells at once, and what is left however it ends.

The cluster is real but for its node (see cluster_chain.py); vLLM and GuideLLM are stand-ins.
"""

import json
import os
import re
import signal
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest
import zstandard
from tests.support.cluster_chain import (
    CAMPAIGN,
    NAMESPACE,
    OWN_PCP_NAMESPACE,
    Cluster,
    needs_cluster,
)
from tests.support.fault_chain import CAMPAIGN as LOCAL
from tests.support.fault_chain import PATIENCE_S, merged
from tests.support.tree import Tree

from kveval.pcp.archive_tools import archive_files
from kveval.pcp.installation import base_environment, find_pcp

pytestmark = [pytest.mark.workflow, pytest.mark.cluster, needs_cluster]
CELLS = {"no-offload": 0, "native-offload": 10000}
TWO = merged(
    CAMPAIGN,
    {
        "name": "faults",
        "results": "results/faults",
        "cluster": {"slots": 2},
        "matrix": [
            {"models": ["Qwen3-0.6B"], "scenarios": [name], "cpu_blocks": [blocks]}
            for name, blocks in CELLS.items()
        ],
    },
)


class ClusterTree(Tree):
    """A copy of the workflow whose snakemakes measure on `cluster`."""

    def __init__(
        self, folder: Path, cluster: Cluster, campaign: dict[str, Any]
    ) -> None:
        super().__init__(folder, campaign, lock=folder / "lock")
        self.env["KUBECONFIG"] = str(cluster.testbed.kubeconfig)

    def log(self, scenario: str) -> Path:
        place = (
            self.folder
            / "logs"
            / "faults"
            / "benchmark"
            / "Qwen3-0.6B"
            / scenario
            / str(CELLS[scenario])
        )
        return place / "run-1.log"

    @staticmethod
    def jobs(snakemake: int) -> list[psutil.Process]:
        """The measuring jobs below a snakemake."""
        below = psutil.Process(snakemake).children(recursive=True)
        return [
            process for process in below if "scripts/benchmark.py" in process.cmdline()
        ]

    def stored(self, scenario: str) -> Path:
        pointer = (
            self.results
            / "Qwen3-0.6B"
            / scenario
            / str(CELLS[scenario])
            / "run-1"
            / "measurement.json"
        )
        return self.folder / json.loads(pointer.read_text())["path"]


@pytest.fixture
def tree(
    tmp_path: Path, cluster: Cluster
) -> Iterator[Callable[[dict[str, Any]], ClusterTree]]:
    made: list[ClusterTree] = []

    def make(campaign: dict[str, Any]) -> ClusterTree:
        made.append(ClusterTree(tmp_path / "repository", cluster, campaign))
        return made[-1]

    cluster.fault(None)
    yield make
    for one in made:
        assert one.left() == []


def test_cells_are_measured_at_once_and_apart(
    tree: Callable[[dict[str, Any]], ClusterTree], cluster: Cluster, tmp_path: Path
) -> None:
    made = tree(merged(TWO, {"workloads": {"short": {"seconds": 10}}}))
    code, output = made.run("report", "--until", "benchmark")
    assert code == 0, output
    runs = {
        name: json.loads((made.stored(name) / "run.json").read_text()) for name in CELLS
    }
    first, second = (run["levels"][0] for run in runs.values())
    assert first["start"] < second["end"]
    assert second["start"] < first["end"]
    for name in CELLS:
        # Each recording has its own server's metrics alone, under the usual name.
        folder = tmp_path / name
        folder.mkdir()
        unpack(made.stored(name) / "raw" / "pcp.tar.zst", folder)
        assert archive_files(folder / "pcp")
        assert sources(folder) == {"vllm"}
    assert cluster.ours() == []


@pytest.mark.parametrize("slots", [1, 2])
def test_two_snakemakes_of_a_campaign_in_two_folders_both_measure(
    cluster: Cluster, tmp_path: Path, slots: int
) -> None:
    cluster.fault(None)
    campaign = merged(TWO, merged(OWN_PCP_NAMESPACE, {"cluster": {"slots": slots}}))
    trees = [
        ClusterTree(tmp_path / name / "repository", cluster, campaign)
        for name in ("one", "other")
    ]
    running = [made.start("report", "--until", "benchmark") for made in trees]
    outputs = [one.communicate(timeout=6 * PATIENCE_S)[0] for one in running]
    assert [one.returncode for one in running] == [0, 0], "\n".join(outputs)
    for made in trees:
        assert made.measured() == set(CELLS)
        assert made.left() == []
    # Whoever waited has measured anew, into its own store.
    waited = [made.log(name).read_text() for made in trees for name in CELLS]
    assert any("waiting for this run" in text for text in waited)
    assert cluster.ours() == []


def unpack(archive: Path, folder: Path) -> None:
    with (
        archive.open("rb") as raw,
        zstandard.ZstdDecompressor().stream_reader(raw) as stream,
        tarfile.open(fileobj=stream, mode="r|") as tar,
    ):
        tar.extractall(folder)


def sources(folder: Path) -> set[str]:
    """Names of the OpenMetrics sources in an archive."""
    command = [find_pcp().program("pminfo"), "-a", "pcp", "openmetrics"]
    done = subprocess.run(
        command,
        cwd=folder,
        env=base_environment(os.environ),
        capture_output=True,
        text=True,
    )
    return {line.split(".")[1] for line in done.stdout.split()}


def test_results_have_the_form_of_the_local_engines(
    tree: Callable[[dict[str, Any]], ClusterTree], tmp_path: Path
) -> None:
    one = {"workloads": {"short": {"levels": [2, 3], "seconds": 4}}, "min_samples": 2}
    cell = [{"models": ["Qwen3-0.6B"], "scenarios": ["no-offload"], "cpu_blocks": [0]}]
    there = tree(merged(TWO, {**one, "matrix": cell, "cluster": {"slots": 1}}))
    here = Tree(tmp_path / "local", merged(LOCAL, one), lock=tmp_path / "lock")
    # They disturb each other no more than anything else on this machine.
    for running in [made.start("peaks") for made in (there, here)]:
        output, _ = running.communicate(timeout=3 * PATIENCE_S)
        assert running.returncode == 0, output
    assert here.left() == []
    found = [made.results / "Qwen3-0.6B" / "no-offload" / "0" for made in (there, here)]
    for table in ("peak.csv", "levels.csv"):
        columns = [list(pd.read_csv(folder / table).columns) for folder in found]
        assert columns[0] == columns[1]
    columns = [
        list(pd.read_parquet(folder / "requests.parquet").columns) for folder in found
    ]
    assert columns[0] == columns[1]
    peak = pd.read_csv(found[0] / "peak.csv").iloc[0]
    assert peak["engine"] == "kubernetes"
    # Read from the recording, of the server and of its node.
    assert peak["kv_cache_usage_percent"] == pytest.approx(50)
    assert peak["requests_running"] > 0
    runs = [
        json.loads((stored(made, folder) / "run.json").read_text())
        for made, folder in zip((there, here), found, strict=True)
    ]
    assert keys(runs[0]) - keys(runs[1]) == {
        "cluster",
        *(
            f"cluster.{name}"
            for name in (
                "images",
                "uid",
                "kubernetes",
                "neighbours",
                "neighbours_of",
                "nodes",
                "replicas",
            )
        ),
        *(
            "specification.images",
            "specification.deployment",
            "hardware.machines",
            "hardware.nodes",
        ),
    }
    beside = {"copy_bandwidth", "copy_bandwidth.host_gb_s"}
    assert keys(runs[1]) - keys(runs[0]) == {
        "cores",
        "cores.beside",
        "cores.server",
        *beside,
    }
    assert runs[0]["levels"][0].keys() == runs[1]["levels"][0].keys()
    assert (
        runs[0]["levels"][0]["counters"].keys()
        == runs[1]["levels"][0]["counters"].keys()
    )
    files = [
        sorted(path.name for path in (stored(made, folder) / "raw").iterdir())
        for made, folder in zip((there, here), found, strict=True)
    ]
    assert files[0] == files[1]


def stored(made: Tree, folder: Path) -> Path:
    return (
        made.folder
        / json.loads((folder / "run-1" / "measurement.json").read_text())["path"]
    )


def keys(run: dict[str, Any]) -> set[str]:
    """Names of what a run.json has, to the second level; not what an environment or a workload happens to hold."""
    inner = {
        f"{name}.{key}"
        for name, value in run.items()
        if isinstance(value, dict)
        for key in value
    }
    return run.keys() | inner


def test_after_kill_9_of_snakemake_nothing_is_left_and_a_rerun_completes(
    tree: Callable[[dict[str, Any]], ClusterTree], cluster: Cluster
) -> None:
    made = tree(
        merged(TWO, {**OWN_PCP_NAMESPACE, "workloads": {"short": {"seconds": 20}}})
    )
    running = made.start("report", "--until", "benchmark")
    for name in CELLS:
        made.wait_for(name, "2 streams", 2 * PATIENCE_S)
    assert cluster.ours() != []
    running.kill()
    running.wait()
    assert cluster.gone(2 * PATIENCE_S) == []
    for name in CELLS:
        made.wait_for(
            name, "stopped by SIGTERM; everything it had started is gone", PATIENCE_S
        )
    assert made.run("--unlock")[0] == 0
    made.configure(merged(TWO, OWN_PCP_NAMESPACE))
    code, output = made.run("report", "--until", "benchmark")
    assert code == 0, output
    assert made.measured() == set(CELLS)
    assert cluster.ours() == []


def kill_jobs(made: ClusterTree, snakemake: "subprocess.Popen[str]") -> None:
    for job in made.jobs(snakemake.pid):
        job.kill()


def ctrl_c(made: ClusterTree, snakemake: "subprocess.Popen[str]") -> None:
    """As a terminal does it: to snakemake and to its jobs."""
    for child in made.jobs(snakemake.pid):
        child.send_signal(signal.SIGINT)
    snakemake.send_signal(signal.SIGINT)


@pytest.mark.parametrize(
    ("interrupt", "code", "said"),
    [
        (
            kill_jobs,
            1,
            [
                rf"a killed job had left: .*(Deployment {NAMESPACE}/.*){{2}}",
                "job was killed",
            ],
        ),
        (ctrl_c, 130, [r"Stopped \(SIGINT\)", "Kept: 0 of 2 measurements"]),
    ],
)
def test_what_an_interrupted_workflow_had_started_is_removed(
    tree: Callable[[dict[str, Any]], ClusterTree],
    cluster: Cluster,
    interrupt: "Callable[[ClusterTree, subprocess.Popen[str]], None]",
    code: int,
    said: list[str],
) -> None:
    made = tree(
        merged(TWO, {**OWN_PCP_NAMESPACE, "workloads": {"short": {"seconds": 30}}})
    )
    running = made.start("report", "--until", "benchmark")
    for name in CELLS:
        made.wait_for(name, "2 streams", 2 * PATIENCE_S)
    interrupt(made, running)
    output, _ = running.communicate(timeout=3 * PATIENCE_S)
    assert running.returncode == code, output
    for pattern in said:
        assert re.search(pattern, output), output
    assert cluster.ours() == []


def test_when_every_run_fails_nothing_is_left_either(
    tree: Callable[[dict[str, Any]], ClusterTree], cluster: Cluster
) -> None:
    annotations = {"model-server": {"fakelet/mode": "imagepull"}}
    made = tree(
        merged(
            TWO,
            merged(
                OWN_PCP_NAMESPACE,
                {"cluster": {"slots": 1, "component_annotations": annotations}},
            ),
        )
    )
    code, output = made.run("report", "--until", "benchmark")
    assert code == 1
    assert output.count("ImagePullBackOff: ") >= 2
    assert cluster.ours() == []
