"""A Deployment that somebody else has on a cluster, switched by their own `kubectl apply -k` and measured where it answers.

The API server and kubectl are real, the Deployment's pods run the stand-in for vLLM as processes of this machine.
"""

import json
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.cluster_chain import Cluster, needs_cluster
from tests.support.fault_chain import CAMPAIGN, PATIENCE_S, merged
from tests.support.testbed import listed_kinds
from tests.support.tree import Tree

from kveval.engines.kubernetes.api.kinds import NAMESPACE, Kind
from kveval.host.http import free_port

pytestmark = [
    pytest.mark.workflow,
    pytest.mark.cluster,
    needs_cluster,
    pytest.mark.skipif(
        shutil.which("kubectl") is None, reason="no kubectl: it must be in PATH"
    ),
]
TEAM, NAME = "team", "decode"
TIER = ["--kv-transfer-config", "{}"]
ARMS = {"no-offload": (0, "plain"), "native-offload": (10000, "offload")}
Name = tuple[str, str, str]
OVERLAYS = {"production": ["--api-key", "x"], "plain": [], "offload": TIER}
# What the cluster writes of its own accord: signs of life, what is said of what happened, and addresses of pods.
RESTLESS = {"Event", "Lease", "Node", "Endpoints", "EndpointSlice", "ComponentStatus"}


def write_overlays(folder: Path, port: int) -> None:
    """Write kustomizations as llm-d's guide has them: one Deployment, and overlays with the arguments of each arm."""
    serve = ["vllm", "serve", "--port", str(port)]
    env = [
        {"name": name, "value": value}
        for name, value in CAMPAIGN["server"]["env"].items()
    ]
    probe = {"httpGet": {"path": "/health", "port": port}, "periodSeconds": 1}
    container = {
        "name": "modelserver",
        "image": "example.test/vllm:v1",
        "command": serve,
        "env": env,
        "readinessProbe": probe,
    }
    labels = {"team.example/role": NAME}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": NAME, "namespace": TEAM},
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "containers": [container],
                    "terminationGracePeriodSeconds": 1,
                },
            },
        },
    }
    write(folder / "base" / "deployment.yaml", deployment)
    write(folder / "base" / "kustomization.yaml", {"resources": ["deployment.yaml"]})
    for overlay, arguments in OVERLAYS.items():
        path = "/spec/template/spec/containers/0/args"
        patch = [{"op": "add", "path": path, "value": arguments}]
        target = {"kind": "Deployment", "name": NAME}
        patches = [{"target": target, "patch": json.dumps(patch)}]
        content = {"resources": ["../base"], "patches": patches}
        write(folder / overlay / "kustomization.yaml", content)


def write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(content))


def switch(overlay: str) -> str:
    return f"kubectl apply -k overlays/{overlay} && kubectl -n {TEAM} rollout status deployment/{NAME} --timeout=60s"


@pytest.fixture
def tree(tmp_path: Path, cluster: Cluster) -> Iterator[Tree]:
    port = free_port()
    address = {"url": f"http://127.0.0.1:{port}", "switch_limit_s": PATIENCE_S}
    changes = {
        "engine": "existing",
        "existing": {
            arm: {**address, "switch": switch(overlay)}
            for arm, (_, overlay) in ARMS.items()
        },
        "restore": switch("production"),
        "workloads": {"short": {"seconds": 2}},
        "matrix": [
            {"models": ["Qwen3-0.6B"], "scenarios": [arm], "cpu_blocks": [blocks]}
            for arm, (blocks, _) in ARMS.items()
        ],
    }
    lock = tmp_path / "lock"
    made = Tree(tmp_path / "repository", merged(CAMPAIGN, changes), lock=lock)
    made.env["KUBECONFIG"] = str(cluster.testbed.kubeconfig)
    write_overlays(made.folder / "overlays", port)
    cluster.make_namespace(TEAM)
    yield made
    assert made.left() == []
    cluster.api.delete(NAMESPACE, TEAM)


def calm_kinds(cluster: Cluster) -> list[Kind]:
    """Return every kind but those of which the cluster itself writes objects all the time."""
    return [kind for kind in listed_kinds(cluster.api) if kind.kind not in RESTLESS]


def objects(cluster: Cluster, kinds: Sequence[Kind]) -> dict[Name, Any]:
    """Return all objects of some kinds in all namespaces."""
    dump: dict[Name, Any] = {}
    for kind in kinds:
        for document in cluster.api.list(kind):
            metadata = document["metadata"]
            place = metadata.get("namespace", ""), metadata["name"]
            dump[(kind.kind, *place)] = document
    return dump


def names_of_others(dump: dict[Name, Any]) -> set[Name]:
    """Return which objects are neither the user's Deployment nor what the cluster makes of it."""
    of_deployment = {"Deployment", "ReplicaSet", "Pod"}
    return {
        (kind, namespace, name)
        for kind, namespace, name in dump
        if namespace != TEAM or kind not in of_deployment
    }


def test_overlays_that_kubectl_switches_are_measured_and_nothing_else_changes(
    tree: Tree, cluster: Cluster
) -> None:
    shell = ["sh", "-c", switch("production")]
    subprocess.run(shell, cwd=tree.folder, env=tree.env, check=True, timeout=PATIENCE_S)
    kinds = calm_kinds(cluster)
    before = objects(cluster, kinds)
    running = tree.start("report", "--until", "benchmark")
    while running.poll() is None:
        meanwhile = objects(cluster, kinds)
        assert names_of_others(meanwhile) == names_of_others(before)
        time.sleep(1.0)
    output, _ = running.communicate()
    assert running.returncode == 0, output
    assert "Restored what was in service before, by kubectl apply -k" in output
    for arm, (blocks, _) in ARMS.items():
        run = tree.run_json(f"Qwen3-0.6B/{arm}/{blocks}")
        assert run["levels"][0]["status"] == "ok"
        served_from = "tier" if arm == "native-offload" else "device"
        assert run["answers"]["served_from"] == served_from
    assert calm_kinds(cluster) == kinds
    after = objects(cluster, kinds)
    assert names_of_others(after) == names_of_others(before)
    for key in names_of_others(before):
        assert after[key] == before[key]
    key = ("Deployment", TEAM, NAME)
    assert after[key]["metadata"]["uid"] == before[key]["metadata"]["uid"]
    assert after[key]["spec"] == before[key]["spec"]
    assert cluster.ours() == []
    # Of the Deployment, too, nobody but the user and the cluster has written a field.
    managers = {entry["manager"] for entry in after[key]["metadata"]["managedFields"]}
    own = {name for name in managers if name.startswith("kube-controller-manager")}
    assert managers - own == {"kubectl-client-side-apply"}
