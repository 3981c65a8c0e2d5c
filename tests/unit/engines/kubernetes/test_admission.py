"""What a run asks of nodes before it starts: where weights are fetched, who may connect to servers, what is refused."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.cluster_cells import FULL_SITE
from tests.support.cluster_run import run_context
from tests.support.fake_cluster import Call, FakeTransport, made, ok, status

from kveval.campaign.site import Cluster
from kveval.engines.job import MeasurementError
from kveval.engines.kubernetes import deployment, engine
from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.errors import ClusterError
from kveval.engines.kubernetes.api.transport import Reply
from kveval.engines.kubernetes.deployment import ClusterDeployer
from kveval.store.store import Store

ON_ONE_NODE = {"model_cache": {"size": "1Gi", "access": "ReadWriteOnce"}}


def node(name: str, gpus: int = 0, **labels: str) -> dict[str, Any]:
    capacity = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    address = {"type": "InternalIP", "address": f"192.0.2.{len(name)}"}
    return made(
        "Node", name, labels, status={"capacity": capacity, "addresses": [address]}
    )


class Nodes:
    """An API server that has nodes, and keeps what is applied."""

    def __init__(self, *nodes: dict[str, Any]) -> None:
        self.nodes, self.applied = nodes, dict[str, Any]()

    def __call__(self, call: Call) -> Reply:
        if call.path == "/api/v1/nodes":
            return ok({"items": self.nodes, "metadata": {}})
        if call.content == "apply":
            self.applied[call.path.rpartition("/")[2]] = call.body
            return ok(call.body)
        return status(404, "NotFound")

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [body for body in self.applied.values() if body["kind"] == kind]


class Over(Exception):
    """The test has seen enough."""


def begin(
    nodes: Nodes, folder: Path, monkeypatch: pytest.MonkeyPatch, **site: Any
) -> None:
    """Start servers as far as their download."""

    def stop(*_given: object) -> None:
        raise Over

    monkeypatch.setattr(deployment, "wait_for_job", stop)
    whole = Cluster.model_validate({**FULL_SITE, "node_selector": {}, **site})
    context = run_context(FakeTransport(nodes), whole)
    lease: Any = SimpleNamespace(other=lambda: "")
    with pytest.raises(Over):
        ClusterDeployer(context, lease, folder, print).start()


def bound_to(nodes: Nodes) -> list[str]:
    (job,) = nodes.of_kind("Job")
    affinity = job["spec"]["template"]["spec"].get("affinity", {})
    required = affinity.get("nodeAffinity", {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution", {}
    )
    return [
        value
        for term in required.get("nodeSelectorTerms", [])
        for value in term["matchFields"][0]["values"]
    ]


def test_a_download_holds_no_gpu_and_is_where_servers_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = Nodes(node("cpu"), node("gpu-0", 8), node("gpu-1", 4))
    begin(nodes, tmp_path, monkeypatch, **ON_ONE_NODE)
    assert bound_to(nodes) == ["gpu-0", "gpu-1"]
    (job,) = nodes.of_kind("Job")
    pod = job["spec"]["template"]["spec"]
    assert "podAffinity" in pod["affinity"]
    assert "nvidia.com/gpu" not in json.dumps(pod["containers"])
    shared = Nodes(node("cpu"), node("gpu-0", 8))
    begin(shared, tmp_path, monkeypatch)
    assert bound_to(shared) == []


def test_a_cache_of_one_node_is_filled_where_no_server_is_only_if_the_site_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scaled = Nodes(node("cpu"))
    chosen = {"node_selector": {"pool": "gpus"}}
    begin(scaled, tmp_path, monkeypatch, **ON_ONE_NODE, **chosen)
    assert bound_to(scaled) == []
    with pytest.raises(ClusterError) as error:
        unplaced = Cluster.model_validate(
            {**FULL_SITE, "node_selector": {}, **ON_ONE_NODE}
        )
        context = run_context(FakeTransport(scaled), unplaced)
        lease: Any = SimpleNamespace(other=lambda: "")
        ClusterDeployer(context, lease, tmp_path, print).start()
    assert error.value.code == "no_node_for_cache"


def test_the_nodes_of_api_servers_and_of_the_servers_may_connect(
    tmp_path: Path,
) -> None:
    nodes = Nodes(
        node("control", **{"node-role.kubernetes.io/control-plane": ""}),
        node("served", 8),
        node("neither", 8),
    )
    site = Cluster.model_validate(FULL_SITE)
    context = run_context(FakeTransport(nodes), site)
    lease: Any = SimpleNamespace(other=lambda: "")
    deployer = ClusterDeployer(context, lease, tmp_path, print)
    for names, admitted in (((), ["control"]), (("served",), ["control", "served"])):
        assert set(deployer._admit(names)) == {"control", "served", "neither"}
        (policy,) = nodes.of_kind("NetworkPolicy")
        blocks = [
            peer["ipBlock"]["cidr"]
            for peer in policy["spec"]["ingress"][0]["from"]
            if "ipBlock" in peer
        ]
        assert blocks == [f"192.0.2.{len(name)}/32" for name in admitted]


def require_possible(
    folder: Path, nodes: Sequence[dict[str, Any]], site: Cluster
) -> None:
    api = Api(FakeTransport(Nodes(*nodes)), outage_s=0)
    context = run_context(FakeTransport(Nodes(*nodes)), site)
    job = SimpleNamespace(specification=context.specification)
    run = object.__new__(engine.ClusterEngine)
    vars(run).update(_job=job, _context=context, _site=site, _api=api)
    run.require_possible(Store(folder / "store"))


def test_ranks_on_parts_of_gpus_are_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "require_pcp", lambda: None)
    site = Cluster.model_validate({**FULL_SITE, "node_selector": {}})
    part, whole = (
        node(name, 7, **{"nvidia.com/gpu.product": product})
        for name, product in (("a", "NVIDIA-A100-MIG-1g.5gb"), ("b", "NVIDIA-A100"))
    )
    with pytest.raises(MeasurementError, match="MIG"):
        require_possible(tmp_path, [part], site)
    require_possible(tmp_path, [part, whole], site)
    require_possible(tmp_path, [], site)


def test_a_gateway_of_gke_needs_the_subnet_of_its_proxies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "require_pcp", lambda: None)
    gateway = {"name": "g", "class": "gke-l7-rilb"}
    given = {**FULL_SITE, "gateway": gateway, "address": "gateway"}
    with pytest.raises(MeasurementError, match=r"cluster\.network_peers"):
        require_possible(tmp_path, [], Cluster.model_validate(given))
    for peers in ([{"cidr": "10.129.0.0/23"}], None):
        site = Cluster.model_validate({**given, "network_peers": peers})
        require_possible(tmp_path, [], site)
