"""What outlives a job, and who else is on a node: lifetimes, credentials, silent nodes, neighbours; on stand-ins."""

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kubernetes import client
from tests.support.cluster_run import SITE, run_context
from tests.support.fake_cluster import Call, FakeTransport, Objects, made, ok, status

from kveval.engines.kubernetes import lifetime, neighbours
from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.errors import (
    ClusterError,
    NodeNotReady,
    Refused,
    Unreachable,
)
from kveval.engines.kubernetes.api.kinds import CONFIG_MAP, POD
from kveval.engines.kubernetes.api.names import labels
from kveval.engines.kubernetes.api.transport import KubernetesTransport, Query, Reply
from kveval.engines.kubernetes.manifests.lifetime import owner_job
from kveval.engines.kubernetes.neighbours import NODES_ANNOTATION, earlier, is_busy
from kveval.engines.kubernetes.teardown import remove
from kveval.workflow.doctor.doctor import lasts

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
RUN = labels("spring", "m/native-offload/1", 1, "ab", "model-server")
FORBIDDEN = (
    'pods is forbidden: User "system:serviceaccount:kveval:kveval-workflow" cannot list resource "pods" in API group ""'
    ' in the namespace "bench"'
)


def test_a_credential_that_ended_and_a_right_that_is_missing_are_told_apart() -> None:
    for reply, code in (
        (status(401, "Unauthorized"), "credential_refused"),
        (Reply(403, {}, b"denied destination"), "refused"),
        (status(403, "Forbidden", FORBIDDEN), "right_missing"),
    ):
        with pytest.raises(Refused) as error:
            Api(FakeTransport(lambda call: reply), outage_s=0).list(POD, "bench")  # noqa: B023
        assert error.value.code == code
    facts = error.value.facts
    assert (facts["verb"], facts["resource"], facts["namespace"]) == (
        "list",
        "pods",
        "bench",
    )


# Lifetimes


class Applied:
    """An API server that keeps what is applied, and what is merged into it."""

    def __init__(self, *present: dict[str, Any]) -> None:
        self.objects = {found["metadata"]["name"]: found for found in present}
        self.merged: list[Any] = []

    def __call__(self, call: Call) -> Reply:
        name = call.path.rpartition("/")[2]
        if call.method == "DELETE":
            return ok(self.objects.pop(name))
        if call.method == "PATCH" and call.content == "apply":
            stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            metadata = {
                **call.body["metadata"],
                "uid": f"uid-{name}-{len(self.objects)}",
                "creationTimestamp": stamp,
            }
            self.objects[name] = {**call.body, "metadata": metadata}
        elif call.method == "PATCH":
            self.merged.append(call.body)
        return (
            ok(self.objects[name]) if name in self.objects else status(404, "NotFound")
        )


def life() -> dict[str, Any]:
    return owner_job(SITE, "bench", "life", RUN)


def owners(document: dict[str, Any]) -> list[str]:
    return [owner["name"] for owner in document["metadata"].get("ownerReferences", [])]


def test_what_is_of_a_run_belongs_to_its_lifetime_and_what_is_shared_does_not() -> None:
    server = Applied()
    api = Api(FakeTransport(server), outage_s=0)
    lease = made("Lease", "the-lease", RUN, version="coordination.k8s.io/v1")
    job = lifetime.ensure_owner_job(api, life(), lease)
    assert owners(job) == ["the-lease"]
    assert (job["spec"]["parallelism"], job["spec"]["ttlSecondsAfterFinished"]) == (
        0,
        0,
    )
    own, shared = (
        made("Service", "own", RUN),
        made("Service", "shared", labels("spring", "", None, "", "results")),
    )
    elsewhere = made("Service", "elsewhere", RUN, namespace="other")
    applied = api.apply([own, shared, elsewhere])
    assert [owners(found) for found in applied] == [["life"], [], []]
    # OpenShift asks for a further right where an owner's deletion is held up.
    assert set(applied[0]["metadata"]["ownerReferences"][0]) == {
        "apiVersion",
        "kind",
        "name",
        "uid",
    }


def test_a_lifetime_is_prolonged_from_now_on() -> None:
    old = (datetime.now(UTC) - timedelta(seconds=3600)).strftime("%Y-%m-%dT%H:%M:%SZ")
    server = Applied(
        made(
            "Job", "life", RUN, version="batch/v1", metadata={"creationTimestamp": old}
        )
    )
    lifetime.ensure_owner_job(Api(FakeTransport(server), outage_s=0), life())
    [body] = server.merged
    assert 4499 <= body["spec"]["activeDeadlineSeconds"] <= 4503


@pytest.mark.parametrize(
    "state",
    [
        {"status": {"conditions": [{"type": "Failed", "status": "True"}]}},
        {"going": True},
    ],
)
def test_a_lifetime_that_is_over_is_made_anew(state: dict[str, Any]) -> None:
    going = (
        {"deletionTimestamp": "2026-01-01T00:00:00Z"}
        if state.pop("going", False)
        else {}
    )
    server = Applied(
        made(
            "Job",
            "life",
            RUN,
            version="batch/v1",
            metadata={"uid": "old", **going},
            **state,
        )
    )
    job = lifetime.ensure_owner_job(Api(FakeTransport(server), outage_s=0), life())
    assert job["metadata"]["uid"] != "old"


# Nodes that do not answer


def pod_on(node: str, name: str = "server", **parts: Any) -> dict[str, Any]:
    spec = {
        "nodeName": node,
        "containers": [{"name": "main", "resources": parts.pop("resources", {})}],
    }
    return made("Pod", name, parts.pop("labels", {}), spec=spec, **parts)


def a_node(name: str, ready: str) -> dict[str, Any]:
    said = {
        "reason": "NodeStatusUnknown",
        "message": "Kubelet stopped posting node status.",
    }
    return made(
        "Node",
        name,
        status={"conditions": [{"type": "Ready", "status": ready, **said}]},
    )


class SilentNode(FakeTransport):
    """A cluster that answers, but for what is asked of pods."""

    tried = 0

    def command(self, path: str, query: Query, timeout_s: float) -> Any:
        self.tried += 1
        raise Unreachable("timed out")


def test_a_pod_is_asked_on_while_its_node_has_been_silent_for_a_heartbeat_alone() -> (
    None
):
    node = a_node("gpu-1", "Unknown")
    [ready] = node["status"]["conditions"]
    ready["lastTransitionTime"] = datetime.now(UTC).isoformat()
    transport = SilentNode(Objects(pod_on("gpu-1"), node))
    with pytest.raises(ClusterError) as error:
        Api(transport, outage_s=0.3).exec("bench", "server", "main", ["true"])
    assert not isinstance(error.value, NodeNotReady)
    assert transport.tried > 1


@pytest.mark.parametrize("ready", ["Unknown", "False", "True"])
def test_a_pod_that_cannot_be_asked_is_told_by_its_node(ready: str) -> None:
    transport = SilentNode(Objects(pod_on("gpu-1"), a_node("gpu-1", ready)))
    api = Api(transport, outage_s=0.3)
    for _ in range(2):
        with pytest.raises(ClusterError) as error:
            api.exec("bench", "server", "main", ["true"])
        assert isinstance(error.value, NodeNotReady) == (ready != "True")
    if ready != "True":
        assert error.value.facts["node"] == "gpu-1"
        assert "Kubelet stopped posting node status." in str(error.value)
        # Once is enough to know it.
        assert transport.tried == 1


def test_a_teardown_leaves_what_waits_for_a_node_and_removes_what_appears_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kveval.engines.kubernetes.teardown._NODE_S", 0.0)
    monkeypatch.setattr("kveval.engines.kubernetes.teardown._POLL_S", 0.0)
    objects = Objects(pod_on("gpu-1", labels=RUN), a_node("gpu-1", "Unknown"))
    objects.stay = {"server"}
    objects.changes = [
        lambda state: None,
        lambda state: state.present.append(made("ConfigMap", "late", RUN)),
    ]
    api = Api(FakeTransport(objects), outage_s=0)
    result = remove(api, {"bench": ""}, kinds=[POD, CONFIG_MAP])
    assert result.removed == ["ConfigMap bench/late"]
    assert ["node gpu-1" in name for name in result.kept] == [True]


# Neighbours


@pytest.mark.parametrize(
    ("pod", "busy"),
    [
        (pod_on("gpu-1", resources={"requests": {"nvidia.com/gpu": "1"}}), True),
        (pod_on("gpu-1", resources={"requests": {"cpu": "1500m"}}), True),
        (pod_on("gpu-1", resources={"requests": {"cpu": "100m"}}), False),
        (pod_on("gpu-1"), False),
        (
            pod_on(
                "gpu-1",
                resources={"requests": {"cpu": "4"}},
                owner=made("DaemonSet", "agent", version="apps/v1"),
            ),
            False,
        ),
    ],
)
def test_neighbours_are_pods_that_may_disturb(pod: dict[str, Any], busy: bool) -> None:
    assert is_busy(pod, "nvidia.com/gpu") is busy


def lease_of(campaign: str, nodes: str, made_at: int) -> dict[str, Any]:
    about = {
        "annotations": {NODES_ANNOTATION: nodes},
        "creationTimestamp": f"2026-03-01T12:00:{made_at:02d}Z",
    }
    found = labels(campaign, "m/none/0", 1, "ab", "nodes")
    return made(
        "Lease",
        f"{campaign}-{made_at}",
        found,
        version="coordination.k8s.io/v1",
        metadata=about,
    )


def test_of_two_campaigns_on_a_node_the_later_one_waits() -> None:
    own = lease_of("spring", "gpu-1,gpu-2", 10)
    others = [
        lease_of("autumn", "gpu-2", 9),
        lease_of("autumn", "gpu-2", 11),
        lease_of("autumn", "gpu-3", 1),
        lease_of("spring", "gpu-1", 1),
        own,
    ]
    assert earlier(others, own, ["gpu-1", "gpu-2"]) == others[:1]
    # Whoever of the two asks, one goes first.
    assert bool(earlier([own], others[0], ["gpu-2"])) is False


GPU = {"requests": {"nvidia.com/gpu": "1"}}


@pytest.mark.parametrize("sees_all", [True, False])
def test_pods_of_others_on_the_nodes_are_facts_of_the_run(sees_all: bool) -> None:
    own = run_context(FakeTransport()).labels("model-server")
    objects = Objects(
        pod_on("gpu-1", "mine", labels=own, resources=GPU),
        pod_on(
            "gpu-1",
            "beside",
            labels=own | {"kveval.dev/cell": "another"},
            resources=GPU,
        ),
        pod_on("gpu-1", "trainer", namespace="team-b", resources=GPU),
        pod_on("gpu-2", "far", namespace="team-b", resources=GPU),
    )

    def answer(call: Call) -> Reply:
        if call.path == "/api/v1/pods" and not sees_all:
            return status(403, "Forbidden")
        reply = objects(call)
        node = (
            str(call.query["fieldSelector"])
            .split(",")[0]
            .removeprefix("spec.nodeName=")
        )
        return ok(
            {
                "items": [
                    pod
                    for pod in reply.json()["items"]
                    if pod["spec"]["nodeName"] == node
                ],
                "metadata": {},
            }
        )

    found = neighbours.Neighbours(run_context(FakeTransport(answer)), ["gpu-1"])
    found.look()
    assert found.facts() == {
        "neighbours": ["gpu-1: bench/beside", "gpu-1: team-b/trainer"][
            : 2 if sees_all else 1
        ],
        "neighbours_of": "cluster" if sees_all else "namespace",
    }


# Credentials


def token(claims: dict[str, Any]) -> str:
    parts = (
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
        for part in ({"alg": "x"}, claims)
    )
    return ".".join([*parts, "signature"])


@pytest.mark.parametrize(
    ("bearer", "ends"),
    [
        (token({"exp": NOW.timestamp()}), NOW),
        (token({"sub": "me"}), None),
        ("ya29.opaque", None),
        ("", None),
    ],
)
def test_the_end_of_a_token_is_read_where_it_is_told(
    bearer: str, ends: datetime | None
) -> None:
    configuration = client.Configuration()
    configuration.api_key = {"authorization": f"Bearer {bearer}"} if bearer else {}
    assert KubernetesTransport(configuration).credential_ends() == ends


@pytest.mark.parametrize(
    ("left_h", "level"), [(48, "warning"), (60, "ok"), (-1, "warning")]
)
def test_a_token_shorter_than_the_campaign_is_warned_of(
    left_h: float, level: str
) -> None:
    [found] = lasts(NOW + timedelta(hours=left_h), NOW, 55 * 3600)
    assert (found.check, found.level) == ("credential", level)
    assert found.facts["needed_s"] == 55 * 3600
    assert lasts(None, NOW, 55 * 3600) == []
