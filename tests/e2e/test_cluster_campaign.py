"""The whole chain on a cluster for real: vLLM, GuideLLM and PCP in pods, from a campaign file to REPORT.md.

The API server is real; its node runs pods as processes of this machine (see cluster_chain.py).
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from tests.support.cluster_chain import (
    CLUSTER,
    SHIMS,
    Cluster,
    needs_cluster,
    running_cluster,
)
from tests.support.fault_chain import (
    ADOPTED,
    REPOSITORY,
    without_figures,
    workflow_copy,
)
from tests.support.loaded import snakemake_command
from tests.support.report_text import whole_report

from pcp_parquet.parquet.reading import describe, series

ENVIRONMENT = REPOSITORY / ".server-venv"
RESULTS = "results/campaigns/cluster-smoke"
CELL = "Qwen3-0.6B/native-offload/10000"
# An eighth of the smoke campaign's prefixes, of which the device holds eight.
PREFIXES = {"prefix_tokens": 500, "prefix_count": 20}
SERVER = {"device_blocks": 280, "max_model_len": 4096}
needs_server = pytest.mark.skipif(
    not (ENVIRONMENT / "bin" / "guidellm").exists(),
    reason="no server environment: bash scripts/setup.sh server",
)
pytestmark = [pytest.mark.e2e, pytest.mark.cluster, needs_cluster, needs_server]


@dataclass(frozen=True)
class Finished:
    """A copy of the workflow in which a cell was measured on `cluster`, and what snakemake said."""

    folder: Path
    cluster: Cluster
    said: str

    def snakemake(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return snakemake(self.folder, self.cluster, *arguments)

    @property
    def run(self) -> dict[str, Any]:
        pointer = json.loads(
            (self.folder / RESULTS / CELL / "run-1" / "measurement.json").read_text()
        )
        run: dict[str, Any] = json.loads(
            (self.folder / pointer["path"] / "run.json").read_text()
        )
        return run


def snakemake(
    folder: Path, cluster: Cluster, *arguments: str
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [
            *snakemake_command(),
            *("--cores", "2", *arguments, "--configfile", "campaign.yaml"),
        ],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": "",
            "KUBECONFIG": str(cluster.testbed.kubeconfig),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1200,
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    """The smoke campaign's native-offload cell, measured on a cluster."""
    folder = without_figures(
        workflow_copy(tmp_path_factory.mktemp("e2e") / "repository")
    )
    campaign = yaml.safe_load(
        (REPOSITORY / "config" / "campaigns" / "smoke.yaml").read_text()
    )
    campaign |= {
        "name": "cluster-smoke",
        "results": RESULTS,
        "engine": "kubernetes",
        "hardware": "a test node",
    }
    campaign["server"] |= {"release": "llm-d-0.8.0", **SERVER}
    campaign["workloads"]["smoke"] |= PREFIXES
    # The next level's prompts would take the measured server's two cores.
    campaign["cluster"] = {**CLUSTER, "rollout_timeout_s": 600, "prompts_ahead": False}
    model, scenario, blocks = CELL.split("/")
    campaign["matrix"] = [
        {"models": [model], "scenarios": [scenario], "cpu_blocks": [int(blocks)]}
    ]
    (folder / "campaign.yaml").write_text(yaml.safe_dump(campaign))
    with running_cluster(
        tmp_path_factory.mktemp("cluster") / "state", shims()
    ) as cluster:
        done = snakemake(folder, cluster, "report")
        assert done.returncode == 0, done.stdout[-8000:]
        yield Finished(folder, cluster, done.stdout)


def shims() -> Path:
    """The real programs, where pods see them: they have a /tmp of their own."""
    return SHIMS / "bin"


def test_nothing_of_ours_is_left_on_the_cluster(finished: Finished) -> None:
    assert finished.cluster.gone(5) == []
    assert list((finished.folder / "results" / "measurements").glob("partial/*/")) == []


def test_the_server_was_vllm_with_exactly_the_arms_arguments(
    finished: Finished,
) -> None:
    run = finished.run
    assert run["versions"]["vllm"].startswith("0.32.0")
    argv = run["server"]["argv"]
    connector = json.loads(argv[argv.index("--kv-transfer-config") + 1])
    assert (
        connector["kv_connector_extra_config"]["cpu_bytes_to_use"] == 10000 * 16 * 1024
    )
    assert run["server"]["facts"]["kv_cache_tokens"] == 280 * 16
    assert run["budget"]["reported_bytes"] == 10000 * 16 * 1024
    assert run["cluster"]["images"].keys() >= {"server", "load", "pmcd"}
    assert run["cluster"]["nodes"] == ["fake-0"]


def test_the_offload_was_really_exercised_and_caches_were_reset(
    finished: Finished,
) -> None:
    run = finished.run
    assert run["exercised"]["exercised"] is True
    hits = [
        level["counters"]["vllm:external_prefix_cache_hits_total"]["delta"]
        for level in run["levels"]
    ]
    assert max(hits) > 1000
    for level in run["levels"]:
        assert level["counters"]["vllm:kv_offload_store_bytes_total"]["delta"] > 0


def test_what_guidellm_received_is_what_vllm_generated(finished: Finished) -> None:
    levels = pd.read_csv(finished.folder / RESULTS / CELL / "levels.csv")
    assert list(levels["level"]) == [1, 4]
    assert (levels["requests_completed"] >= 2).all()
    assert (levels["requests_errored"] == 0).all()
    assert levels["throughput_server_difference"].abs().max() < 0.25


def test_the_recording_covers_the_levels_under_the_usual_names(
    finished: Finished,
) -> None:
    pcp = finished.folder / RESULTS / CELL / "run-1" / "pcp.parquet"
    level = finished.run["levels"][-1]
    window = {
        "start_ns": int(level["start"] * 1e9),
        "finish_ns": int(level["end"] * 1e9),
    }
    running = series(pcp, "openmetrics.vllm.vllm.num_requests_running", **window)
    # One sample a second, however much of the level the generator measured.
    assert len(running) >= 0.8 * (level["end"] - level["start"]) > 3
    assert running["value"].max() >= 2
    assert describe(pcp)["mem.util.available"].units == "Kbyte"
    peak = pd.read_csv(finished.folder / RESULTS / CELL / "peak.csv").iloc[0]
    assert 1 < peak["kv_cache_usage_percent"] <= 100
    assert peak["engine"] == "kubernetes"


def test_the_cluster_costs_less_than_five_seconds_between_levels(
    finished: Finished, record_property: Any
) -> None:
    times = finished.run["times"]
    for name, seconds in {**times, **finished.run["phases"]}.items():
        record_property(name, seconds)
    assert max(times["between_levels_s"]) < 5


def test_the_report_is_there_and_a_second_run_has_nothing_to_do(
    finished: Finished,
) -> None:
    report = whole_report(finished.folder / RESULTS)
    for part in ("miniature", "| vLLM | 0.32.0 |", "native-offload"):
        assert part in report
    assert "Nothing to be done" in finished.snakemake("-n", "report").stdout


def test_a_lost_pointer_is_adopted_and_nothing_is_deployed(finished: Finished) -> None:
    pointer = finished.folder / RESULTS / CELL / "run-1" / "measurement.json"
    before = pointer.read_text()
    pointer.unlink()
    done = finished.snakemake(str(pointer.relative_to(finished.folder)))
    assert done.returncode == 0, done.stdout[-4000:]
    assert pointer.read_text() == before
    assert ADOPTED in done.stdout
    assert "starting the server" not in done.stdout
    shutil.rmtree(finished.folder / ".snakemake" / "incomplete", ignore_errors=True)
