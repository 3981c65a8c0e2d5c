"""What documents ask of a cluster, and which pods its nodes take."""

import pytest
from tests.support.cluster_plans import GIB, GPU, deployment

from kveval.engines.kubernetes.manifests.requirements import (
    Node,
    accepts,
    claims,
    node_of,
    pod_needs,
    quantity,
)


def node(name="n1", gpus=8, memory=512, **changes):
    values = {"labels": {}, "taints": [], "schedulable": True}
    return Node(
        name=name,
        allocatable={GPU: gpus, "memory": memory * GIB, "cpu": 64},
        **values | changes,
    )


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1", 1),
        ("500m", 0.5),
        ("1Ki", 1024),
        ("2G", 2e9),
        ("1.5Gi", 1.5 * GIB),
        (3, 3),
        (None, 0),
    ],
)
def test_quantities(text, number):
    assert quantity(text) == number


def test_a_deployment_says_what_its_pods_need():
    (need,) = pod_needs([deployment(replicas=3)])
    assert (need.owner, need.component, need.copies) == (
        "Deployment kv/server",
        "model-server",
        3,
    )
    # A limit without a request is one; an init container needs its share only while nothing else runs.
    assert need.requests == {GPU: 2, "memory": 65 * GIB, "cpu": 2}
    assert need.memory_limit == 65 * GIB
    assert need.shared_memory == 8 * GIB
    assert need.images == ("busybox", "vllm:1", "side:1")


def test_other_kinds_and_what_has_no_pods():
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "s"},
        "spec": {"selector": {}},
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"containers": [{"image": "a"}]},
    }
    daemon = {**deployment(), "kind": "DaemonSet"}
    found = pod_needs([service, pod, daemon])
    assert [(need.owner, need.copies, need.shared_memory) for need in found] == [
        ("Pod p", 1, None),
        ("DaemonSet kv/server", 0, 8 * GIB),
    ]


def test_claims():
    claim = {
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "results", "namespace": "kv"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "20Gi"}},
        },
    }
    (found,) = claims([claim, deployment()])
    assert (found.name, found.size, found.storage_class, found.modes) == (
        "results",
        20 * GIB,
        None,
        ("ReadWriteOnce",),
    )


def test_a_node_that_is_not_ready_or_cordoned_takes_nothing():
    ready = {"type": "Ready", "status": "True"}
    thing = {
        "metadata": {"name": "n"},
        "status": {"conditions": [ready], "allocatable": {GPU: "8", "memory": "1Gi"}},
    }
    assert node_of(thing).schedulable
    assert node_of(thing).allocatable == {GPU: 8, "memory": GIB}
    assert not node_of({**thing, "spec": {"unschedulable": True}}).schedulable
    assert not node_of({**thing, "status": {"conditions": []}}).schedulable


@pytest.mark.parametrize(
    ("taint", "toleration", "accepted"),
    [
        ({"key": "nvidia.com/gpu", "effect": "NoSchedule"}, None, False),
        (
            {"key": "nvidia.com/gpu", "effect": "NoSchedule"},
            {"operator": "Exists"},
            True,
        ),
        (
            {"key": "nvidia.com/gpu", "effect": "NoSchedule"},
            {"key": "nvidia.com/gpu", "operator": "Exists"},
            True,
        ),
        (
            {"key": "pool", "value": "a", "effect": "NoSchedule"},
            {"key": "pool", "value": "a"},
            True,
        ),
        (
            {"key": "pool", "value": "a", "effect": "NoSchedule"},
            {"key": "pool", "value": "b"},
            False,
        ),
        (
            {"key": "pool", "effect": "NoExecute"},
            {"key": "pool", "operator": "Exists", "effect": "NoSchedule"},
            False,
        ),
    ],
)
def test_taints_and_tolerations(taint, toleration, accepted):
    assert (
        accepts(
            node(taints=[taint]), {"tolerations": [toleration] if toleration else None}
        )
        is accepted
    )


def test_a_selector_selects():
    assert accepts(
        node(labels={"gpu": "h100", "zone": "a"}), {"nodeSelector": {"gpu": "h100"}}
    )
    assert not accepts(node(), {"nodeSelector": {"gpu": "h100"}})
