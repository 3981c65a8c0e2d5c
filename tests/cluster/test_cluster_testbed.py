"""The client against a real API server: objects, commands, files and teardowns."""

import base64
import hashlib
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.pod_waits import wait_for_pod
from tests.support.testbed import (
    a_deployment,
    a_job,
    a_pod,
    labelled,
    listed_kinds,
    pod_template,
    shell,
    through_proxy,
    wait_until,
)

from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.download import TransferError, collect
from kveval.engines.kubernetes.api.errors import ClusterError, Refused, Unreachable
from kveval.engines.kubernetes.api.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    NODE,
    POD,
    Kind,
    described,
)
from kveval.engines.kubernetes.api.transport import Frames, Query
from kveval.engines.kubernetes.teardown import KINDS, TeardownError, remove
from kveval.engines.kubernetes.wait.rollout import (
    wait_for_daemonset,
    wait_for_deployment,
    wait_for_job,
)

pytestmark = pytest.mark.cluster
MEBI = 1024 * 1024


def a_map(namespace: str, name: str, **data: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": labelled(namespace, name),
        "data": data,
    }


# --- objects


def test_what_is_applied_is_there_and_applied_again_is_the_same(
    cluster_api: Api, namespace: str
) -> None:
    first = cluster_api.apply([a_map(namespace, "plan", level="4")])[0]
    again = cluster_api.apply([a_map(namespace, "plan", level="4")])[0]
    assert first["metadata"]["resourceVersion"] == again["metadata"]["resourceVersion"]
    assert first["metadata"]["managedFields"][0]["manager"] == "kveval"
    [listed] = cluster_api.list(CONFIG_MAP, namespace, "app=plan")
    assert (listed["kind"], listed["data"]) == ("ConfigMap", {"level": "4"})
    assert (
        cluster_api.list(CONFIG_MAP, namespace, "app=plan", "metadata.name=other") == []
    )


def test_fields_that_others_took_are_taken_back_and_others_kept(
    cluster_api: Api, namespace: str
) -> None:
    cluster_api.apply([a_map(namespace, "plan", level="4")])
    cluster_api.apply(
        [a_map(namespace, "plan", level="8", note="x")], field_manager="someone"
    )
    [taken] = cluster_api.apply([a_map(namespace, "plan", level="4")])
    assert taken["data"] == {"level": "4", "note": "x"}


def test_a_mistake_is_named(cluster_api: Api, namespace: str) -> None:
    wrong = a_deployment(namespace, "server", pod_template("serve"))
    wrong["spec"]["selector"] = {"matchLabels": {"app": "another"}}
    with pytest.raises(
        ClusterError, match=rf"^Deployment {namespace}/server: .*selector"
    ) as failure:
        cluster_api.apply([wrong])
    assert (failure.value.status, failure.value.reason) == (422, "Invalid")
    with pytest.raises(
        ClusterError, match=r"has no InferencePool .*CustomResourceDefinition"
    ):
        cluster_api.apply(
            [
                {
                    "apiVersion": "x.example.test/v1",
                    "kind": "InferencePool",
                    "metadata": {"name": "p"},
                }
            ]
        )


def test_permissions_are_asked_for_by_a_review(cluster_api: Api) -> None:
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {
            "resourceAttributes": {
                "verb": "create",
                "resource": "pods",
                "namespace": "default",
            }
        },
    }
    assert cluster_api.create(review)["status"]["allowed"] is True
    assert cluster_api.get("/version")["major"]
    assert abs((cluster_api.now() - cluster_api.now()).total_seconds()) < 1


# --- workloads


def test_workloads_come_up_and_a_job_ends(cluster_api: Api, namespace: str) -> None:
    job = a_job(namespace, "load", pod_template("exec", "echo measured; sleep 1"))
    daemon = a_deployment(namespace, "recorder", pod_template("serve"))
    daemon["kind"] = "DaemonSet"
    del daemon["spec"]["replicas"]
    cluster_api.apply(
        [a_deployment(namespace, "server", pod_template("serve"), 2), job, daemon]
    )
    assert len(wait_for_deployment(cluster_api, namespace, "server", 60.0)) == 2
    [node] = {str(node["metadata"]["name"]) for node in cluster_api.list(NODE)}
    assert (
        len(wait_for_daemonset(cluster_api, namespace, "recorder", {node}, 60.0)) == 1
    )
    [pod] = wait_for_job(cluster_api, namespace, "load", 60.0)
    assert cluster_api.logs(namespace, pod["metadata"]["name"], "main") == "measured\n"
    events = cluster_api.events(cluster_api.read(DEPLOYMENT, "server", namespace) or {})
    assert "ScalingReplicaSet" in {event["reason"] for event in events}


# --- commands and files


@pytest.fixture
def pod(cluster_api: Api, namespace: str) -> str:
    cluster_api.apply([a_pod(namespace, "collector", pod_template("serve"))])
    wait_for_pod(cluster_api, namespace, "collector", 60.0)
    return "collector"


def test_a_command_is_heard_to_its_end(
    cluster_api: Api, namespace: str, pod: str
) -> None:
    done = cluster_api.exec(
        namespace, pod, "main", ["sh", "-c", "echo out; echo err >&2; exit 7"]
    )
    assert (done.text, done.stderr, done.returncode) == ("out", b"err\n", 7)
    many = cluster_api.exec(
        namespace, pod, "main", ["sh", "-c", "seq 300000"]
    ).text.split()
    assert many == [str(number) for number in range(1, 300_001)]
    every = cluster_api.exec(
        namespace,
        pod,
        "main",
        [
            "sh",
            "-c",
            f"echo {base64.b64encode(bytes(range(256))).decode()} | base64 -d",
        ],
    )
    assert every.stdout == bytes(range(256))


def test_a_command_in_a_pod_that_is_not_there_is_an_error_at_once(
    cluster_api: Api, namespace: str
) -> None:
    with pytest.raises(ClusterError, match=r"`ls` .*/gone") as failure:
        cluster_api.exec(namespace, "gone", "main", ["ls"])
    assert failure.value.status == 404


def made_file(api: Api, namespace: str, pod: str, size: int) -> str:
    """Make a file of random bytes in a pod and return its sum, as the pod's own tools say."""
    text = 'mkdir -p /results && head -c "$1" /dev/urandom >/results/big.bin && sha256sum </results/big.bin'
    return shell(api, namespace, pod, text, str(size)).split()[0]


def test_a_hundred_mebibytes_arrive_whole_though_the_connection_is_cut_twice(
    cluster_api: Api,
    namespace: str,
    pod: str,
    kubeconfig: Path,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    expected = made_file(cluster_api, namespace, pod, 100 * MEBI)
    here = tmp_path / "big.bin"
    cuts = (30 * MEBI, 40 * MEBI)
    with through_proxy(cluster_api, kubeconfig, tmp_path, *cuts) as (api, proxy):
        began = time.monotonic()
        found = collect(api, namespace, pod, "main", "/results/big.bin", here)
        seconds = time.monotonic() - began
        assert proxy.done == 2
    assert found.cuts == 2
    assert here.stat().st_size == 100 * MEBI
    assert hashlib.sha256(here.read_bytes()).hexdigest() == expected
    # What had arrived before a cut was kept: little more than the file itself came through.
    assert found.received == 100 * MEBI
    record_property("mebibytes_per_second", round(100 / seconds, 1))
    print(f"100 MiB in {seconds:.2f} s with two cuts")


class Dropped:
    """Frames of a connection that is dropped after some of them."""

    def __init__(self, frames: Frames, count: int) -> None:
        self._frames, self._left = frames, count

    def receive(self, timeout_s: float) -> bytes | None:
        self._left -= 1
        if self._left < 0:
            self._frames.close()
            raise Unreachable("the WebSocket was killed")
        return self._frames.receive(timeout_s)

    def close(self) -> None:
        self._frames.close()


def test_a_killed_websocket_costs_nothing_but_time(
    cluster_api: Api, namespace: str, pod: str, kubeconfig: Path, tmp_path: Path
) -> None:
    expected = made_file(cluster_api, namespace, pod, 12 * MEBI + 5)
    api = Api.connect(kubeconfig, outage_s=30.0)
    start, counts = api.transport.command, iter([10**9, 20, 1, 30])

    def command(path: str, query: Query, timeout_s: float) -> Frames:
        return Dropped(start(path, query, timeout_s), next(counts, 10**9))

    api.transport.command = command  # type: ignore[method-assign]
    here = tmp_path / "big.bin"
    assert collect(api, namespace, pod, "main", "/results/big.bin", here).cuts == 3
    assert hashlib.sha256(here.read_bytes()).hexdigest() == expected


def test_a_folder_is_collected(
    cluster_api: Api, namespace: str, pod: str, tmp_path: Path
) -> None:
    text = "mkdir -p /results/a/b && for i in $(seq 40); do seq $i >/results/a/b/$i.txt; done; : >/results/empty"
    shell(cluster_api, namespace, pod, text)
    collect(cluster_api, namespace, pod, "main", "/results", tmp_path / "here")
    assert sum(path.is_file() for path in (tmp_path / "here").rglob("*")) == 41
    assert (tmp_path / "here/a/b/7.txt").read_text() == "1\n2\n3\n4\n5\n6\n7\n"
    assert (tmp_path / "here/empty").read_bytes() == b""


def test_a_file_that_is_not_there_is_named(
    cluster_api: Api, namespace: str, pod: str, tmp_path: Path
) -> None:
    with pytest.raises(TransferError, match=r"report\.json.*No such file"):
        shell(cluster_api, namespace, pod, "mkdir -p /results")
        collect(
            cluster_api,
            namespace,
            pod,
            "main",
            "/results/report.json",
            tmp_path / "report.json",
        )


# --- teardown


@pytest.fixture
def pool(cluster_api: Api) -> Iterator[Kind]:
    """A custom kind as the inference gateway's, with a schema that takes anything."""
    kind = Kind("inference.example.test/v1", "InferencePool")
    name = f"inferencepools.{kind.group}"
    schema = {
        "openAPIV3Schema": {
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": True,
        }
    }
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": name},
        "spec": {
            "group": kind.group,
            "scope": "Namespaced",
            "names": {
                "plural": "inferencepools",
                "singular": "inferencepool",
                "kind": kind.kind,
            },
            "versions": [
                {"name": "v1", "served": True, "storage": True, "schema": schema}
            ],
        },
    }
    cluster_api.apply([definition])
    wait_until(lambda: cluster_api.serves(kind), "the custom kind")
    yield kind
    cluster_api.delete(
        Kind("apiextensions.k8s.io/v1", "CustomResourceDefinition"), name
    )


def everything(api: Api, namespace: str) -> list[str]:
    """Name all that is in a namespace, but for its history."""
    kinds = listed_kinds(api, namespaced=True)
    found = itertools.chain.from_iterable(api.list(kind, namespace) for kind in kinds)
    return sorted(
        {described(document) for document in found if document["kind"] != "Event"}
    )


def test_a_teardown_takes_all_of_ours_of_any_kind_and_nothing_else(
    cluster_api: Api, namespace: str, pool: Kind
) -> None:
    before = everything(cluster_api, namespace)
    theirs = a_map(namespace, "theirs", key="value")
    theirs["metadata"]["labels"] = {
        "app.kubernetes.io/managed-by": "helm",
        "app": "server",
    }
    bare = a_pod(namespace, "bare-theirs", pod_template("serve"))
    bare["metadata"]["labels"] = {"app": "server"}
    cluster_api.apply([theirs, bare])
    kept = everything(cluster_api, namespace)
    claim = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
    }
    service = {
        "selector": {"app": "server"},
        "ports": [{"port": 8000, "protocol": "TCP"}],
    }
    ours = [
        a_deployment(namespace, "server", pod_template("serve"), 2),
        a_job(namespace, "load", pod_template("exec", "sleep 600")),
        a_map(namespace, "plan", level="4"),
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": labelled(namespace, "server"),
            "spec": service,
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": labelled(namespace, "results"),
            "spec": claim,
        },
        {
            "apiVersion": pool.api_version,
            "kind": pool.kind,
            "metadata": labelled(namespace, "pool"),
            "spec": {"x": 1},
        },
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": labelled(namespace, "epp"),
        },
    ]
    cluster_api.apply(ours)
    wait_for_deployment(cluster_api, namespace, "server", 60.0)
    found = remove(cluster_api, {namespace: ""}, kinds=[*KINDS, pool], timeout_s=60.0)
    assert set(everything(cluster_api, namespace)) == set(kept)
    assert {
        f"InferencePool {namespace}/pool",
        f"PersistentVolumeClaim {namespace}/results",
    } <= set(found.removed)
    assert set(before) <= set(everything(cluster_api, namespace))


def test_a_teardown_of_one_cell_leaves_the_other_cells(
    cluster_api: Api, namespace: str
) -> None:
    cells = {}
    for cell in ("a", "b"):
        cells[cell] = a_deployment(namespace, f"server-{cell}", pod_template("serve"))
        for metadata in (
            cells[cell]["metadata"],
            cells[cell]["spec"]["template"]["metadata"],
        ):
            metadata["labels"]["kveval.dev/cell"] = cell
    cluster_api.apply(cells.values())
    wait_for_deployment(cluster_api, namespace, "server-b", 60.0)
    remove(
        cluster_api,
        {namespace: "kveval.dev/cell=a"},
        kinds=[DEPLOYMENT, POD],
        timeout_s=60.0,
    )
    assert [
        found["metadata"]["name"] for found in cluster_api.list(DEPLOYMENT, namespace)
    ] == ["server-b"]
    assert len(cluster_api.list(POD, namespace)) == 1


def test_a_finalizer_is_waited_for_and_named_when_it_is_never_taken_away(
    cluster_api: Api, namespace: str
) -> None:
    held = a_map(namespace, "held", key="value")
    held["metadata"]["finalizers"] = ["kveval.dev/test"]
    cluster_api.apply([held])
    with pytest.raises(
        TeardownError, match=rf"ConfigMap {namespace}/held .*finalizer kveval\.dev/test"
    ):
        remove(cluster_api, {namespace: ""}, timeout_s=2.0)
    cluster_api.patch(CONFIG_MAP, "held", namespace, {"metadata": {"finalizers": None}})
    assert remove(cluster_api, {namespace: ""}, timeout_s=60.0).removed in (
        [],
        [f"ConfigMap {namespace}/held"],
    )
    assert cluster_api.read(CONFIG_MAP, "held", namespace) is None


def test_an_unknown_path_is_refused(cluster_api: Api) -> None:
    with pytest.raises(Refused, match="404"):
        cluster_api.get("/apis/none.example.test/v1")
