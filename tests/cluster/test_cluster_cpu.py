"""The campaign for clusters without GPUs as it ships, on nodes behind a label and a taint, and one for the rest.

The control plane and its scheduler are real; vLLM and GuideLLM are stand-ins.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.cluster_chain import CAMPAIGN as STAND_INS
from tests.support.cluster_chain import Cluster, needs_cluster, stand_in_cluster
from tests.support.config_files import CONFIG
from tests.support.fault_chain import merged, without_figures
from tests.support.tree import Tree

from kveval.campaign.inheritance import with_site
from kveval.configuration.loading import load_config
from kveval.workflow.doctor.doctor import diagnose

pytestmark = [pytest.mark.workflow, pytest.mark.cluster, needs_cluster]
NODES = (
    "quiet-0:cpu=8,memory=32Gi,label=pool=quiet,taint=dedicated=kv:NoSchedule"
    " other-0:cpu=8,memory=32Gi,label=pool=quiet,taint=dedicated=ml:NoSchedule rest-0:cpu=8,memory=32Gi"
)
SITE: dict[str, Any] = {
    "node_selector": {"pool": "quiet"},
    "tolerations": [{"key": "dedicated", "operator": "Equal", "value": "kv"}],
    # Its pods have the host's network: there are no Services that forward.
    "address": "http://127.0.0.1:{port}",
    "shared_network": True,
}
SHIPPED = yaml.safe_load((CONFIG / "campaigns" / "cluster-cpu.yaml").read_text())
SHORT = merged(
    SHIPPED,
    {
        "server": {"env": STAND_INS["server"]["env"]},
        "workloads": {"first": {"levels": [1, 2], "seconds": 3, "warmup_s": 0.5}},
        "min_samples": 1,
    },
)
LIMIT_S = 1200


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with stand_in_cluster(
        tmp_path_factory.mktemp("cpus") / "state", "AlwaysAllow", NODES
    ) as running:
        yield running


@pytest.fixture
def tree(tmp_path: Path, nodes: Cluster) -> Tree:
    made = Tree(tmp_path / "repository", SHORT, lock=tmp_path / "lock")
    without_figures(made.folder)
    (made.folder / "ours.yaml").write_text(yaml.safe_dump(SITE))
    made.env["KUBECONFIG"] = str(nodes.testbed.kubeconfig)
    return made


def test_servers_and_recorder_are_on_the_nodes_of_the_site_and_the_load_is_not(
    tree: Tree, nodes: Cluster
) -> None:
    code, output = tree.kveval(
        "deploy-one", "campaign.yaml", "--site", "ours.yaml", limit_s=LIMIT_S
    )
    assert code == 0, output
    found = {
        row[1]: row[2]
        for row in re.finditer(r"^\S+ +(\S+) +(\w+-\d) ", output, re.MULTILINE)
    }
    assert found == {"model-server": "quiet-0", "recorder": "quiet-0", "load": "rest-0"}
    assert nodes.gone(15) == []


def test_it_is_measured_from_its_file_to_its_report(tree: Tree, nodes: Cluster) -> None:
    code, output = tree.run("report", "--config", "site=ours.yaml", limit_s=LIMIT_S)
    assert code == 0, output
    for cell in ("no-offload/0", "native-offload/10000"):
        assert tree.run_json(f"Qwen3-0.6B/{cell}")["hardware"]["nodes"] == ["quiet-0"]
    assert (tree.results / "REPORT.md").exists()
    assert nodes.gone(15) == []


def test_the_doctor_counts_the_nodes_whose_taints_are_tolerated(
    nodes: Cluster, tmp_path: Path
) -> None:
    site = tmp_path / "ours.yaml"
    site.write_text(
        yaml.safe_dump({**SITE, "kubeconfig": str(nodes.testbed.kubeconfig)})
    )
    findings = diagnose(
        load_config(with_site(SHIPPED, site), CONFIG),
        "cpu.yaml",
        store=tmp_path,
        server_environment=tmp_path,
        at_once=1,
        say=print,
        image_limit_s=1.0,
    )
    (hardware,) = [one.what for one in findings if one.check == "hardware"]
    assert (
        hardware
        == "the 1 nodes that fit are of one kind; not tolerated: taint dedicated=ml:NoSchedule of other-0"
    )
    assert not [one.what for one in findings if one.level == "error"]
