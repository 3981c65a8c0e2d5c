"""The first campaign as it ships, on three kinds of nodes: GPUs behind a taint, a small node, and one for the rest.

The control plane, its scheduler, quota and volumes are real; vLLM and GuideLLM are stand-ins. What is this cluster's
own is in a site's file, as a user of another cluster has one.
"""

import functools
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.cluster_cells import cells
from tests.support.cluster_chain import (
    NAMESPACE,
    Cluster,
    needs_cluster,
    stand_in_cluster,
)
from tests.support.config_files import CONFIG, RELEASES
from tests.support.fault_chain import merged, without_figures
from tests.support.testbed import a_pod, pod_template
from tests.support.tree import Tree

from kveval.campaign.inheritance import with_site
from kveval.campaign.site import Cluster as Site
from kveval.configuration.loading import load_config
from kveval.engines.kubernetes import recordings
from kveval.engines.kubernetes.api.kinds import EVENT, NODE, POD, Document
from kveval.engines.kubernetes.api.names import labels, selector
from kveval.engines.kubernetes.manifests.context import RunContext
from kveval.engines.kubernetes.manifests.recorder import recorder_selector
from kveval.engines.kubernetes.manifests.rendering import PORTS
from kveval.engines.kubernetes.nodes import fingerprint
from kveval.engines.kubernetes.teardown import remove
from kveval.pcp.archive_tools import pack_archives
from kveval.tables.levels.recording import convert_recording
from kveval.workflow.doctor.doctor import diagnose
from pcp_parquet.parquet.reading import archive_info, series

pytestmark = [pytest.mark.workflow, pytest.mark.cluster, needs_cluster]
NODES = (
    "gpu-0:gpus=1,cpu=16,memory=128Gi,label=nvidia.com/gpu.product=NVIDIA-L40S,taint=nvidia.com/gpu=present:NoSchedule"
    " rest-0:cpu=16,memory=64Gi small-0:cpu=2,memory=4Gi"
)
FIRST = yaml.safe_load((CONFIG / "campaigns" / "cluster-first.yaml").read_text())
SHORT = merged(
    FIRST, {"workloads": {"first": {"levels": [1, 2], "seconds": 2, "warmup_s": 0.5}}}
)
TOLERATED = [{"key": "nvidia.com/gpu"}]
SITE: dict[str, Any] = {
    "tolerations": TOLERATED,
    "node_selector": {"nvidia.com/gpu.product": "NVIDIA-L40S"},
    "storage_class": "rwo",
    # Its pods have the host's network: there are no Services that forward.
    "address": "http://127.0.0.1:{port}",
    "shared_network": True,
}
# Of a snakemake, on a machine that is busy with other things.
LIMIT_S = 1200
DEPLOY_ONE = ("deploy-one", "campaign.yaml", "--site", "ours.yaml")
QUOTA: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "tenant", "namespace": NAMESPACE},
    "spec": {
        "hard": {
            "requests.memory": "120Gi",
            "requests.nvidia.com/gpu": "1",
            "persistentvolumeclaims": "4",
        }
    },
}
# In place of the images' programs.
PROGRAMS = {
    "python3": 'case "$2" in *huggingface_hub*) exit ;; esac\nexec {python} "$@"',
    "vllm": "export STAND_IN_VERSION=0.23.0 STAND_IN_MODEL=Qwen/Qwen3-0.6B STAND_IN_TOKENS=60000\n"
    'exec {python} "$(dirname "$(readlink -f "$0")")/server.py" "$@"',
    "nvidia-smi": 'case "$1" in *memory.total*) echo "NVIDIA L40S, 46068, 570.86.15" ;; *) exit 1 ;; esac',
}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("nodes") / "state"
    with stand_in_cluster(folder, "AlwaysAllow", NODES) as running:
        python = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin")
        for name, text in PROGRAMS.items():
            (running.shims / name).write_text(
                f"#!/bin/sh\n{text.replace('{python}', str(python))}\n"
            )
            (running.shims / name).chmod(0o755)
        running.api.apply([QUOTA], field_manager="tests")
        yield running


@pytest.fixture
def tree(tmp_path: Path, nodes: Cluster) -> Tree:
    campaign = FIRST if os.environ.get("KVEVAL_WHOLE_CAMPAIGN") else SHORT
    made = Tree(tmp_path / "repository", campaign, lock=tmp_path / "lock")
    without_figures(made.folder)
    (made.folder / "ours.yaml").write_text(yaml.safe_dump(SITE))
    made.env["KUBECONFIG"] = str(nodes.testbed.kubeconfig)
    return made


def kinds_left(nodes: Cluster) -> set[str]:
    """The kinds of what bears our label once all that goes has gone; the cache of weights stays until teardown."""
    return {name.split()[0] for name in nodes.gone(15)}


def test_the_first_campaign_runs_with_a_sites_file_beside_it(
    tree: Tree, nodes: Cluster
) -> None:
    code, output = tree.run("report", "--config", "site=ours.yaml", limit_s=LIMIT_S)
    assert code == 0, output
    [gpu] = [
        node for node in nodes.api.list(NODE) if node["metadata"]["name"] == "gpu-0"
    ]
    for cell in ("no-offload/0", "native-offload/16000"):
        run = tree.run_json(f"Qwen3-0.6B-small-cache/{cell}")
        # Between the two the servers are started anew.
        assert [level["level"] for level in run["levels"]] == SHORT["workloads"][
            "first"
        ]["levels"]
        hardware = run["hardware"]
        assert hardware["nodes"] == ["gpu-0"]
        assert hardware["gpus"] == [
            {
                "name": "NVIDIA L40S",
                "memory_bytes": 46068 * 2**20,
                "driver": "570.86.15",
            }
        ]
        assert hardware["fingerprint"] == fingerprint([gpu], "nvidia.com/gpu")
    report = (tree.results / "REPORT.md").read_text()
    assert "NVIDIA L40S" in report
    assert "gpu-0" in "".join(
        path.read_text() for path in tree.results.rglob("appendix/*.md")
    )
    # A volume of one node is never asked for by a second.
    reasons = {event["reason"] for event in nodes.api.list(EVENT, NAMESPACE)}
    assert "SuccessfulAttachVolume" in reasons
    assert not reasons & {"FailedAttachVolume", "FailedMount"}
    assert kinds_left(nodes) <= {"PersistentVolumeClaim"}


@pytest.fixture
def without_claims(nodes: Cluster) -> Iterator[None]:
    """No claim of another test: each keeps its class and its access mode."""
    remove_all = functools.partial(
        remove, nodes.api, {NAMESPACE: selector(FIRST["name"])}
    )
    remove_all()
    yield
    remove_all()


@pytest.mark.usefixtures("without_claims")
@pytest.mark.parametrize(
    ("storage_class", "access"), [("rwo", "ReadWriteOnce"), ("rwx", "ReadWriteMany")]
)
def test_one_cell_is_deployed_asked_and_removed(
    tree: Tree, nodes: Cluster, storage_class: str, access: str
) -> None:
    own = {
        "storage_class": storage_class,
        "model_cache": {"size": "20Gi", "access": access},
    }
    (tree.folder / "ours.yaml").write_text(yaml.safe_dump({**SITE, **own}))
    cell = ("--cell", "Qwen3-0.6B-small-cache/no-offload/0")
    code, output = tree.kveval(*DEPLOY_ONE, *cell, limit_s=LIMIT_S)
    assert code == 0, output
    # The node of each component's pods, as the table at its end has it.
    found = {
        row[1]: row[2]
        for row in re.finditer(
            r"^\S+ +(\S+) +((?:gpu|rest|small)-\d) ", output, re.MULTILINE
        )
    }
    assert (found["model-server"], found["download"], found["recorder"]) == (
        "gpu-0",
        "gpu-0",
        "gpu-0",
    )
    assert found["load"] in ("rest-0", "small-0")
    assert kinds_left(nodes) <= {"PersistentVolumeClaim"}
    assert not list(tree.results.rglob("measurement.json"))


def test_what_keeps_a_cell_from_being_deployed_is_told(
    tree: Tree, nodes: Cluster
) -> None:
    never = {
        "tolerations": [],
        "model_cache": None,
        "schedule_timeout_s": 5,
        "rollout_timeout_s": 5,
    }
    (tree.folder / "ours.yaml").write_text(yaml.safe_dump({**SITE, **never}))
    code, output = tree.kveval(*DEPLOY_ONE, limit_s=LIMIT_S)
    assert code == 1, output
    assert re.search(r"model-server waits: FailedScheduling: .*taint", output)
    assert "FAILED: " in output
    assert kinds_left(nodes) <= {"PersistentVolumeClaim"}


def a_server(node: str) -> Document:
    """A pod that the recorder takes for a server of campaign two-nodes."""
    made = a_pod(NAMESPACE, f"server-{node}", pod_template("serve"))
    made["metadata"]["labels"] |= labels("two-nodes", "", None, "", "model-server")
    made["spec"]["nodeName"] = node
    made["spec"]["containers"][0]["resources"] = {"requests": {"memory": "1Mi"}}
    return made


def test_every_node_that_serves_is_recorded_as_a_host_of_its_own(
    nodes: Cluster, tmp_path: Path
) -> None:
    site = Site.model_validate(
        {
            "namespace": NAMESPACE,
            "pcp_namespace": "kveval-pcp-of-two",
            "tolerations": TOLERATED,
        }
    )
    specification = cells(RELEASES[0])[0]["Qwen3-0.6B/native-offload/10000"]
    context = RunContext(
        specification, site, 1, "two-nodes", PORTS, "0123456789abcdef", api=nodes.api
    )
    begin = time.time()
    try:
        nodes.api.apply(map(a_server, ("rest-0", "gpu-0")))
        pods = recordings.deploy(context, ["rest-0", "gpu-0"], print)
        # Where nothing serves, nothing with the recorder's privileges runs.
        placed = [
            pod["spec"].get("nodeName")
            for pod in nodes.api.list(POD, site.pcp_namespace)
        ]
        assert sorted(filter(None, placed)) == ["gpu-0", "rest-0"]
        recorder = recordings.start_recording(context, pods, tmp_path / "pcp", {}, [])
        time.sleep(4)
        recorder.check_alive()
        recorder.stop()
    finally:
        chosen = {
            NAMESPACE: selector("two-nodes"),
            site.pcp_namespace: recorder_selector("two-nodes", site),
        }
        remove(nodes.api, chosen)
    (tmp_path / "raw").mkdir()
    pack_archives(recorder.archives, tmp_path / "raw" / "pcp.tar.zst")
    (tmp_path / "run.json").write_text("{}")
    convert_recording(tmp_path, tmp_path / "pcp.parquet")
    info = archive_info(tmp_path / "pcp.parquet")
    assert info.hosts == ["gpu-0", "rest-0"]
    assert info.start_ns >= begin * 1e9
    used = series(tmp_path / "pcp.parquet", "mem.util.used")
    assert (used.groupby("host", observed=True)["value"].size() >= 3).all()


def found(
    nodes: Cluster, tmp_path: Path, level: str = "error", **site: Any
) -> dict[str, list[str]]:
    """The messages of the doctor's findings of a level, by check."""
    file = tmp_path / "ours.yaml"
    file.write_text(
        yaml.safe_dump({**SITE, "kubeconfig": str(nodes.testbed.kubeconfig), **site})
    )
    config = load_config(with_site(FIRST, file), CONFIG)
    findings = diagnose(
        config,
        "first.yaml",
        store=tmp_path,
        server_environment=tmp_path,
        at_once=1,
        say=print,
        image_limit_s=1.0,
    )
    errors: dict[str, list[str]] = {}
    for finding in findings:
        if finding.level == level:
            errors.setdefault(finding.check, []).append(finding.what)
    return errors


def test_the_doctor_finds_no_error_and_what_the_tenants_quota_refuses(
    nodes: Cluster, tmp_path: Path
) -> None:
    assert found(nodes, tmp_path) == {}
    less = merged(QUOTA, {"spec": {"hard": {"requests.memory": "40Gi"}}})
    nodes.api.apply([less], field_manager="tests")
    try:
        assert "exceeded quota: tenant" in "".join(found(nodes, tmp_path)["dry run"])
    finally:
        nodes.api.apply([QUOTA], field_manager="tests")


def test_gpus_behind_a_taint_that_is_not_tolerated_are_named(
    nodes: Cluster, tmp_path: Path
) -> None:
    [said] = found(nodes, tmp_path, "warning", tolerations=[])["GPUs"]
    assert "gpu-0" in said and "none of these nodes takes the servers" in said
