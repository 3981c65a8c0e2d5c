"""What the doctor says of a cluster, from facts alone."""

import dataclasses

import pytest
from tests.support.cluster_plans import (
    FACTS,
    GPU,
    claim,
    deployment,
    gateway,
    listed,
    node,
    plan,
    refused,
    specification,
)
from tests.support.config_files import load, on_cluster
from tests.support.fault_chain import merged

from kveval.engines.kubernetes.api.kinds import Kind
from kveval.engines.kubernetes.api.probe import Answer, Bounds
from kveval.engines.kubernetes.manifests.permissions import permissions
from kveval.engines.kubernetes.manifests.requirements import pod_needs
from kveval.host.findings import worst
from kveval.workflow.doctor.cluster import examine
from kveval.workflow.doctor.cluster_facts import Denied, InstalledFacts, Trial
from kveval.workflow.doctor.documents import planned
from kveval.workflow.doctor.image_pulls import ImageTrial

GRANT = "python scripts/print_permissions.py first.yaml | kubectl apply -f -"
CACHE = {"model_cache": {"claim": "weights"}, "token_secret": {"name": "hub"}}
BOUND = Answer(
    200,
    {
        "status": {"phase": "Bound", "capacity": {"storage": "200Gi"}},
        "spec": {"accessModes": ["ReadWriteMany"]},
    },
)
SECRET = Answer(200, {"data": {"token": ""}})


def examined(made=None, **changes):
    return examine(made or plan(), dataclasses.replace(FACTS, **changes), GRANT)


def only(found, check, level=None):
    (finding,) = [
        one for one in found if one.check == check and level in (None, one.level)
    ]
    return finding


def accepted(what="Deployment kv/server", pod=False, namespace="kv", warnings=()):
    return Trial(what, namespace, pod, Answer(200, {}, tuple(warnings)))


def test_a_cluster_that_fits_gets_no_complaint():
    trials = (accepted(), accepted("pod of DaemonSet kv-pcp/recorder", True, "kv-pcp"))
    found = examined(
        plan(site=CACHE), claims={"weights": BOUND}, secret=SECRET, trials=trials
    )
    assert worst(found) == "ok", [one for one in found if one.level != "ok"]
    assert only(found, "API server").facts == {
        "version": "v1.34.1-gke.100",
        "user": "ada",
    }
    assert only(found, "GPUs").facts == {
        "nodes": {"n1": 8},
        "cell": "M/native-offload/10000",
        "asked": 2,
        "slots": 1,
    }


@pytest.mark.parametrize(
    ("version", "level"),
    [
        ("v1.20.2", "warning"),
        ("v1.25.0", "ok"),
        ("v1.37.9+k3s1", "ok"),
        ("", "warning"),
    ],
)
def test_the_servers_release(version, level):
    assert only(examined(version=version), "API server").level == level


def test_a_missing_permission_is_named_with_the_command_that_grants_it():
    made = plan(site=CACHE)
    jobs = next(one for one in permissions(made.site) if one.resource == "jobs")
    secrets = next(one for one in permissions(made.site) if one.resource == "secrets")
    denied = (
        Denied(jobs, "create", "kv"),
        Denied(jobs, "delete", "kv"),
        Denied(secrets, "get", "kv"),
    )
    found = examined(
        made, denied=denied, claims={"weights": BOUND}, secret=refused(403, "no")
    )
    lacking = only(found, "permissions", "error")
    assert (lacking.facts["verbs"], lacking.facts["resource"]) == (
        ["create", "delete"],
        "jobs.batch",
    )
    assert lacking.fix == GRANT
    # Only the doctor itself reads the secret.
    secret = only(found, "permissions", "warning").facts
    assert (secret["verbs"], secret["resource"], [*secret["names"]]) == (
        ["get"],
        "secrets",
        ["hub"],
    )
    assert (only(found, "token").level, only(found, "token").code) == (
        "warning",
        "hidden",
    )


@pytest.mark.parametrize(
    ("name", "may_make", "level"),
    [("kv", True, "error"), ("kv-pcp", True, "ok"), ("kv-pcp", False, "error")],
)
def test_a_namespace_that_is_not_there(name, may_make, level):
    namespaces = {**FACTS.namespaces, name: refused(404, "not found")}
    found = [
        one
        for one in examined(namespaces=namespaces, may_make_namespaces=may_make)
        if one.check == "namespace"
    ]
    assert [one.level for one in found if name in one.what.split()] == [level]


def test_a_kind_that_is_not_served_is_named_with_what_installs_it():
    pool = Kind("inference.networking.k8s.io/v1", "InferencePool")
    found = examined(
        served={**FACTS.served, pool: False}, versions={pool.group: ["v1alpha2"]}
    )
    assert only(found, "kinds").facts == {
        "kinds": ["InferencePool"],
        "wanted": pool.api_version,
        "served": "v1alpha2",
    }
    # The release that this one of llm-d was shipped with: newer ones have lost kinds.
    assert (
        "gateway-api-inference-extension/releases/download/v1.5.0/"
        in only(found, "kinds").fix
    )
    route = Kind("gateway.networking.k8s.io/v1", "HTTPRoute")
    found = examined(served={**FACTS.served, route: False}, versions={})
    assert "gateway-api/releases/download/v1.5.1/" in only(found, "kinds").fix


@pytest.mark.parametrize("address", ["gateway", "router"])
@pytest.mark.parametrize(
    ("release", "kinds"),
    [
        ("llm-d-0.4.0", {"InferencePool", "HTTPRoute", "InferenceObjective"}),
        ("llm-d-0.8.0", {"InferencePool", "HTTPRoute"}),
    ],
)
def test_the_kinds_that_a_release_needs_behind_a_gateway(
    release, kinds, address, tmp_path
):
    """The oldest picker does not start without InferenceObjectives, of which nothing is ever made."""
    config = load(
        tmp_path,
        on_cluster(
            release, [(["Qwen3-8B"], ["no-offload"], [0])], site={"address": address}
        ),
    )
    needed = {
        kind.kind for kind in planned(config).kinds if ".networking." in kind.group
    }
    assert needed == (
        kinds if address == "gateway" or release == "llm-d-0.4.0" else set()
    )


def test_jobs_without_pods_are_tried_as_documents_and_their_image_is_not(tmp_path):
    entries = [(["Qwen3-8B"], ["no-offload"], [0])]
    site = {"pause_image": "mirror/pause:3"}
    made = planned(load(tmp_path, on_cluster("llm-d-0.8.0", entries, site=site)))
    lives = [one for one in made.documents if "mirror/pause:3" in str(one)]
    assert [one["metadata"]["namespace"] for one in lives] == ["kveval-pcp", "bench"]
    assert not [need for need in pod_needs(made.documents) if "pause" in need.images[0]]


def test_a_gateway_that_nothing_goes_through_is_not_looked_at():
    aside = plan(("M/no-offload/0", specification(route="standalone"), ()), site=THERE)
    assert not [
        one
        for one in examined(aside, gateway=refused(404, ""))
        if one.check == "Gateway"
    ]


THERE = {"gateway": {"name": "gw", "namespace": "istio"}}
NEW = {"gateway": {"name": "gw", "class": "istio", "create": True}}


@pytest.mark.parametrize(
    ("site", "answer", "level", "code"),
    [
        (THERE, gateway(), "ok", "programmed"),
        (THERE, gateway(programmed="False"), "error", "not_programmed"),
        (THERE, gateway(addresses=()), "warning", "no_address"),
        (THERE, refused(404, "not found"), "error", "absent"),
        (THERE, refused(403, "forbidden"), "warning", "hidden"),
        (NEW, refused(404, "not found"), "ok", "to_be_made"),
    ],
)
def test_the_gateway(site, answer, level, code):
    accepted_class = Answer(
        200, {"status": {"conditions": [{"type": "Accepted", "status": "True"}]}}
    )
    finding = only(
        examined(plan(site=site), gateway=answer, gateway_class=accepted_class),
        "Gateway",
    )
    told = {"programmed": {"addresses": "10.0.0.1"}, "not_programmed": {"why": "why"}}
    told["to_be_made"] = {"gateway_class": "istio"}
    assert (finding.level, finding.code, finding.facts) == (
        level,
        code,
        told.get(code, {}),
    )


def test_a_gateway_that_takes_only_routes_of_its_own_namespace():
    finding = only(
        examined(plan(site=THERE), gateway=gateway(routes="Same")), "Gateway", "error"
    )
    assert (finding.code, finding.facts) == ("own_routes_only", {"namespace": "kv"})
    assert "allowedRoutes" in finding.fix


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (refused(404, ""), "no_class"),
        (
            Answer(
                200,
                {"status": {"conditions": [{"type": "Accepted", "status": "Unknown"}]}},
            ),
            "class_not_accepted",
        ),
    ],
)
def test_a_gateway_class_that_nobody_serves(answer, code):
    found = examined(plan(site=NEW), gateway=refused(404, ""), gateway_class=answer)
    assert only(found, "Gateway", "error").code == code


def test_no_gpus_that_the_servers_can_get():
    finding = only(examined(nodes=listed(node(gpus=0))), "GPUs")
    assert (finding.level, finding.code) == ("warning", "none_offered")
    tainted = node(taints=[{"key": "pool", "effect": "NoSchedule"}])
    finding = only(examined(nodes=listed(tainted, node("n2", gpus=0))), "GPUs")
    assert (finding.code, finding.facts) == ("not_taken", {"nodes": {"n1": 8, "n2": 0}})
    assert "cluster.tolerations" in finding.fix
    # An autoscaler may add what is not there.
    assert "autoscaler" in finding.fix


def test_a_cell_that_no_node_has_room_for_is_named_with_what_is_short():
    found = examined(nodes=listed(node(gpus=1), node("n2", gpus=1)))
    finding = only(found, "GPUs")
    assert (finding.level, finding.code) == ("warning", "no_room")
    assert "cpu_blocks" in finding.fix
    assert finding.facts["owner"] == "Deployment kv/server"
    assert finding.facts["requests"] == {GPU: 2, "memory": 65 * 2**30, "cpu": 2}
    offered = finding.facts["nodes"]["n1"]
    assert (offered[GPU], offered["memory"], offered["cpu"]) == (1, 512 * 2**30, 64)


def test_every_cell_needs_a_node_and_not_only_the_one_with_most_gpus():
    def of(**server):
        return specification(10), (deployment(**server),)

    most = ("M/native-offload/1", *of(gpus=4))
    memory = ("M/native-offload/2", *of(gpus=2, memory="600Gi"))
    elsewhere = ("M/native-offload/3", *of(gpus=2, nodeSelector={"pool": "b"}))
    replicas = ("M/native-offload/4", *of(gpus=1, replicas=9))
    assert (
        only(examined(plan(memory, most)), "GPUs").facts["requests"]["memory"]
        == 601 * 2**30
    )
    assert only(examined(plan(most, elsewhere)), "GPUs").code == "not_taken"
    assert (
        only(examined(plan(most, replicas)), "GPUs").facts["cell"]
        == "M/native-offload/4"
    )
    pool = listed(node(), node("n2", labels={"pool": "b"}))
    found = examined(plan(memory, most, elsewhere, replicas), nodes=pool)
    assert [one.code for one in found if one.check == "GPUs"] == ["no_room"]
    assert (
        only(examined(plan(elsewhere, most), nodes=pool), "GPUs").facts["cell"]
        == "M/native-offload/1"
    )


def test_more_slots_than_there_are_gpus_for():
    finding = only(
        examined(plan(site={"slots": 3}), nodes=listed(node(gpus=5))), "GPUs"
    )
    assert (finding.level, finding.code, finding.facts["slots"]) == (
        "warning",
        "too_few",
        3,
    )
    assert (
        only(
            examined(plan(site={"slots": 2}), nodes=listed(node(gpus=5))), "GPUs"
        ).level
        == "ok"
    )


def test_a_pod_of_the_load_that_no_node_takes():
    load = {
        "containers": [
            {"name": "load", "image": "g:1", "resources": {"requests": {"cpu": "3"}}}
        ]
    }
    labels = {"kveval.dev/component": "load"}
    template = {"metadata": {"labels": labels}, "spec": load}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "load-0", "namespace": "kv"},
    }
    made = plan(documents=({**job, "spec": {"template": template}},))
    tainted = node(taints=[{"key": GPU, "effect": "NoSchedule"}])
    finding = only(examined(made, nodes=listed(tainted, node("n2", cpus=2))), "nodes")
    assert (finding.level, finding.code, finding.facts["owner"]) == (
        "warning",
        "no_room",
        "Job kv/load-0",
    )
    assert "cluster.load" in finding.fix
    assert list(finding.facts["nodes"]) == ["n2"]
    assert "cluster.load" in finding.fix
    assert not [
        one
        for one in examined(made, nodes=listed(tainted, node("n2", cpus=4)))
        if one.check == "nodes"
    ]


def test_every_pod_of_a_kind_needs_a_node_and_not_only_the_last():
    def redis(memory):
        pod = {
            "containers": [
                {
                    "name": "redis",
                    "image": "r:1",
                    "resources": {"requests": {"memory": memory}},
                }
            ]
        }
        template = {
            "metadata": {"labels": {"kveval.dev/component": "redis"}},
            "spec": pod,
        }
        metadata = {"name": "redis", "namespace": "kv"}
        return {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata,
            "spec": {"template": template},
        }

    cells = [
        (f"M/redis/{memory}", specification(10), (deployment(), redis(memory)))
        for memory in ("600Gi", "9Gi")
    ]
    for several in (cells, cells[::-1], cells * 2):
        finding = only(examined(plan(*several)), "nodes")
        assert (finding.code, finding.facts["requests"]["memory"]) == (
            "no_room",
            600 * 2**30,
        )


def test_gpus_that_others_hold_now():
    other = {
        "metadata": {"name": "train", "namespace": "ml"},
        "spec": {
            "nodeName": "n1",
            "containers": [{"image": "a", "resources": {"limits": {GPU: "7"}}}],
        },
    }
    finding = only(examined(pods=listed(other)), "GPUs")
    assert (finding.level, finding.code) == ("warning", "held_by_others")
    assert finding.facts == {"held": {"n1": 7}, "owners": ["ml"]}
    own = {
        **other,
        "metadata": {
            **other["metadata"],
            "labels": {"app.kubernetes.io/managed-by": "kveval"},
        },
    }
    assert only(examined(pods=listed(own)), "GPUs").level == "ok"
    assert only(examined(pods=refused(403, "no")), "GPUs").code == "held_unknown"


def test_nodes_of_several_kinds_are_told_of():
    def of(product, name):
        made = node(name=name, labels={"nvidia.com/gpu.product": product})
        return merged(made, {"status": {"capacity": made["status"]["allocatable"]}})

    alike = [of("L40S", "n1"), of("L40S", "n2")]
    assert only(examined(nodes=listed(*alike)), "hardware").level == "ok"
    mixed = [*alike, of("H100", "n3")]
    finding = only(examined(nodes=listed(*mixed)), "hardware")
    assert (finding.level, finding.code, finding.facts["nodes"]) == (
        "warning",
        "several_kinds",
        ["n1", "n3"],
    )
    chosen = plan(site={"node_selector": {"nvidia.com/gpu.product": "H100"}})
    assert only(examined(chosen, nodes=listed(*mixed)), "hardware").facts == {
        "nodes": 1
    }


def tainted(name, taint, gpus=8, cpus=64):
    """A node with a taint, written as kubectl writes it."""
    mark, _, effect = taint.partition(":")
    key, _, value = mark.partition("=")
    made = node(
        name=name,
        gpus=gpus,
        cpus=cpus,
        taints=[{"key": key, "value": value, "effect": effect}],
    )
    return merged(made, {"status": {"capacity": made["status"]["allocatable"]}})


@pytest.mark.parametrize(
    "taint",
    ["dedicated=ml:NoSchedule", "dedicated=ml:NoExecute", "dedicated:NoSchedule"],
)
def test_a_node_behind_a_taint_does_not_fit_and_the_taint_is_named(taint):
    plain = [tainted(name, "soft=1:PreferNoSchedule") for name in ("n1", "n2")]
    nodes = listed(*plain, tainted("n3", taint, cpus=128))
    finding = only(examined(nodes=nodes), "hardware")
    assert (finding.level, finding.facts) == ("ok", {"nodes": 2})
    assert (
        finding.what
        == f"the 2 nodes that fit are of one kind; not tolerated: taint {taint} of n3"
    )
    tolerant = plan(site={"tolerations": [{"key": "dedicated"}]})
    finding = only(examined(tolerant, nodes=nodes), "hardware")
    assert (finding.code, finding.facts["nodes"]) == ("several_kinds", ["n1", "n3"])
    assert "taint" not in finding.what


def test_servers_without_gpus_that_no_node_takes_are_told_the_taint():
    cell = ("M/no-offload/0", specification(), (deployment(gpus=0),))
    there = [
        tainted("n1", "dedicated=ml:NoSchedule", gpus=0),
        tainted("n2", "maintenance:NoExecute", gpus=0),
    ]
    finding = only(examined(plan(cell), nodes=listed(*there)), "nodes")
    assert (finding.level, finding.code) == ("warning", "no_room")
    assert (
        "taint dedicated=ml:NoSchedule of n1; not tolerated: taint maintenance:NoExecute of n2"
        in finding.what
    )
    finding = only(examined(plan(cell), nodes=listed(there[0], node(gpus=0))), "nodes")
    assert finding.what.startswith(
        "1 nodes take the servers, which ask for no nvidia.com/gpu; not tolerated: taint"
    )


def test_gpus_behind_a_taint_are_told_the_taint():
    finding = only(
        examined(nodes=listed(tainted("n1", "nvidia.com/gpu=present:NoSchedule"))),
        "GPUs",
    )
    assert (finding.level, finding.code) == ("warning", "not_taken")
    assert finding.what.endswith(
        "takes the servers; not tolerated: taint nvidia.com/gpu=present:NoSchedule of n1"
    )


@pytest.mark.parametrize(
    ("tier_gib", "slots", "level", "share"),
    [
        (100, 1, "ok", 0.5),
        (100, 2, "error", 1.0),
        (80, 2, "warning", 0.8),
        (60, 2, "ok", 0.6),
    ],
)
def test_host_memory_for_the_tier(tier_gib, slots, level, share):
    cell = (
        "M/native-offload/9",
        specification(tier_gib, vllm="0.27.0"),
        (deployment(memory="1Gi", shm="8Gi"),),
    )
    found = examined(
        plan(cell, site={"slots": slots}), nodes=listed(node(memory_gib=200))
    )
    finding = only(found, "host memory")
    assert finding.facts["share"] == pytest.approx(share, abs=0.005)
    assert finding.level == ("warning" if level == "error" else level)


def test_a_tier_larger_than_the_node_is_an_error():
    cell = (
        "M/native-offload/9",
        specification(300, vllm="0.27.0"),
        (deployment(memory="1Gi"),),
    )
    finding = only(
        examined(plan(cell), nodes=listed(node(memory_gib=200))), "host memory"
    )
    assert (finding.level, round(finding.facts["share"], 2)) == ("error", 1.5)
    assert "fewer cpu_blocks" in finding.fix


def test_a_tier_that_is_pinned_counts_as_it_is_rounded_up():
    cell = (
        "M/native-offload/9",
        specification(70, ranks=1),
        (deployment(memory="1Gi"),),
    )
    finding = only(
        examined(plan(cell), nodes=listed(node(memory_gib=200))), "host memory"
    )
    assert (finding.level, round(finding.facts["share"], 2)) == ("ok", 0.64)
    killed = (
        "M/native-offload/9",
        specification(70, ranks=1),
        (deployment(memory="100Gi"),),
    )
    assert (
        only(examined(plan(killed)), "memory limit", "error").facts["limit_bytes"]
        == 101 * 2**30
    )


def test_shared_memory_and_the_limit_of_the_pod():
    # From 0.27 on the tier of a GPU server is a file in /dev/shm.
    small = (
        "M/native-offload/9",
        specification(10, vllm="0.32.0"),
        (deployment(shm="8Gi"),),
    )
    finding = only(examined(plan(small)), "/dev/shm")
    assert (finding.level, finding.facts["cell"]) == ("error", "M/native-offload/9")
    assert round(finding.facts["needed_bytes"] / 2**30, 1) == 10.6
    none = ("M/no-offload/0", specification(0), (deployment(shm=None),))
    assert (
        only(examined(plan(none)), "/dev/shm", "error").facts["there_bytes"]
        == 64 * 2**20
    )
    unlimited = (
        "M/native-offload/9",
        specification(10, vllm="0.32.0"),
        (deployment(shm="0"),),
    )
    assert only(examined(plan(unlimited)), "/dev/shm").level == "ok"
    killed = ("M/native-offload/9", specification(100), (deployment(memory="80Gi"),))
    assert (
        only(examined(plan(killed)), "memory limit", "error").facts["limit_bytes"]
        == 81 * 2**30
    )


def test_nodes_that_may_not_be_seen():
    found = examined(nodes=refused(403, "nodes is forbidden"))
    assert only(found, "nodes").level == "warning"
    assert not [one for one in found if one.check == "GPUs"]


STORAGE = [
    ((claim(),), None, "ok", "to_be_made"),
    ((claim(modes=["ReadWriteMany"]),), None, "error", "one_node_only"),
    ((claim(storage_class="nfs"),), None, "error", "no_such_class"),
    ((claim(),), listed(), "error", "no_default_class"),
    ((claim(),), refused(403, "forbidden"), "warning", "hidden"),
]


@pytest.mark.parametrize(("documents", "classes", "level", "code"), STORAGE)
def test_storage(documents, classes, level, code):
    absent = {one["metadata"]["name"]: refused(404, "not found") for one in documents}
    found = examined(
        plan(documents=documents),
        claims=absent,
        storage_classes=classes or FACTS.storage_classes,
    )
    finding = only(found, "storage")
    assert (finding.level, finding.code) == (level, code)
    if code == "to_be_made":
        assert (finding.facts["storage_class"], finding.facts["provisioner"]) == (
            "fast",
            "ebs.csi.aws.com",
        )
        assert [*finding.facts["modes"]] == ["ReadWriteOnce"]


@pytest.mark.parametrize(
    "provisioner", ["ebs.csi.aws.com", "openshift-storage.rbd.csi.ceph.com"]
)
def test_block_devices_are_not_shared(provisioner):
    classes = listed({"metadata": {"name": "block"}, "provisioner": provisioner})
    asked = claim(storage_class="block", modes=["ReadWriteMany"])
    found = examined(
        plan(documents=(asked,)),
        claims={"results": refused(404, "")},
        storage_classes=classes,
    )
    assert only(found, "storage").code == "one_node_only"


def test_a_volume_for_one_node_and_several_servers():
    cache = {"model_cache": {"size": "1Gi", "access": "ReadWriteOnce"}}
    assert only(examined(plan(site=cache | {"slots": 2})), "storage").facts == {
        "slots": 2,
        "replicas": 1,
    }
    assert not [one for one in examined(plan(site=cache)) if one.check == "storage"]


def test_claims_that_are_there_already():
    shared = claim(modes=["ReadWriteMany"])
    found = examined(
        plan(documents=(shared,)), claims={"results": BOUND}, storage_classes=listed()
    )
    there = {
        "claim": "claim kv/results",
        "phase": "Bound",
        "size_gib": 200.0,
        "modes": ["ReadWriteMany"],
    }
    assert (only(found, "storage").code, only(found, "storage").facts) == (
        "there",
        there,
    )
    found = examined(
        plan(documents=(claim(),)), claims={"results": BOUND}, storage_classes=listed()
    )
    assert (only(found, "storage").level, only(found, "storage").code) == (
        "error",
        "other_mode",
    )
    lost = Answer(200, {"status": {"phase": "Lost"}})
    assert (
        only(
            examined(plan(documents=(claim(),)), claims={"results": lost}), "storage"
        ).level
        == "error"
    )


@pytest.mark.parametrize(
    ("named", "mode", "level", "code"),
    [
        ({"storageClassName": "fast"}, "WaitForFirstConsumer", "ok", "there"),
        ({"storageClassName": "fast"}, "Immediate", "error", "unbound"),
        # Without a name it is the cluster's default; the empty one is no class.
        ({}, "WaitForFirstConsumer", "ok", "there"),
        ({}, "Immediate", "error", "unbound"),
        ({"storageClassName": ""}, "WaitForFirstConsumer", "error", "unbound"),
    ],
)
def test_a_claim_without_a_volume_waits_for_its_first_pod_or_for_ever(
    named, mode, level, code
):
    default = {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}
    classes = listed(
        {"metadata": {"name": "slow"}, "provisioner": "x"},
        {
            "metadata": {"name": "fast", **default},
            "provisioner": "x",
            "volumeBindingMode": mode,
        },
    )
    pending = Answer(200, {"status": {"phase": "Pending"}, "spec": named})
    found = examined(
        plan(documents=(claim(),)), claims={"results": pending}, storage_classes=classes
    )
    assert (only(found, "storage").level, only(found, "storage").code) == (level, code)


def test_the_model_cache():
    assert only(examined(), "model cache").level == "warning"
    missing = {"weights": refused(404, "not found")}
    assert (
        only(
            examined(plan(site=CACHE), claims=missing, secret=SECRET), "model cache"
        ).level
        == "error"
    )


def test_the_token_and_never_its_value():
    assert only(examined(), "token").level == "warning"
    made = plan(site=CACHE)
    found = examined(made, claims={"weights": BOUND}, secret=refused(404, "not found"))
    assert (
        only(found, "token").fix
        == "kubectl -n kv create secret generic hub --from-file=token=FILE"
    )
    found = examined(
        made, claims={"weights": BOUND}, secret=Answer(200, {"data": {"HF_TOKEN": ""}})
    )
    assert only(found, "token").code == "no_such_key"
    assert only(found, "token").facts == {"key": "token", "keys": ["HF_TOKEN"]}


IMAGES = (
    ImageTrial(
        "a:1",
        "Deployment kv/a",
        "pulled",
        node="n1",
        seconds=4.2,
        node_ahead=Bounds(-1, 1),
    ),
    ImageTrial("b:1", "Deployment kv/b", "pulling", node="n2", seconds=60),
    ImageTrial(
        "c:1", "Deployment kv/c", "refused", "ErrImagePull: not found", node="n1"
    ),
    ImageTrial("d:1", "Deployment kv/d", "unplaced", "Unschedulable: 0/1 nodes"),
    ImageTrial("e:1", "Deployment kv/e", "rejected", "exceeded quota: tenant"),
)


def test_images():
    found = examined(images=IMAGES)
    assert only(found, "images").facts == {
        "pulled": 1,
        "tried": 5,
        "slowest_s": 4.2,
        "nodes": ["n1"],
    }
    wrong = [one for one in found if one.check == "image" and one.level != "ok"]
    # The node for an image may be one that an autoscaler has yet to add.
    assert [(one.facts["image"], one.code, one.level) for one in wrong] == [
        *(
            ("c:1", "refused", "error"),
            ("d:1", "unplaced", "warning"),
            ("e:1", "rejected", "error"),
        )
    ]
    assert "server.images" in wrong[0].fix
    assert "autoscaler" in wrong[1].fix
    assert "describe quota" in wrong[2].fix
    assert only(found, "image", "ok").code == "pulling"
    assert only(found, "image", "ok").facts == {"image": "b:1", "node": "n2"}


@pytest.mark.parametrize(
    ("pods", "code", "fix"),
    [
        (refused(403, "no"), "not_listed", "the right to list pods"),
        (listed(), "none_there", "an exporter"),
    ],
)
def test_gpu_metrics_that_would_not_be_recorded(pods, code, fix):
    finding = only(examined(pods=pods), "GPU metrics")
    assert (finding.level, finding.code) == ("warning", code)
    assert fix in finding.fix and "cluster.recorder.sources: {dcgm: URL}" in finding.fix
    named = plan(site={"recorder": {"sources": {"dcgm": "http://{host}:9400/metrics"}}})
    found = examined(named, pods=pods)
    assert not [one for one in found if one.check == "GPU metrics"]


def test_metrics_of_a_gateway_that_the_account_may_not_look_for():
    made = plan(site={"gateway": {"name": "g", "namespace": "istio"}})
    found = examined(made, gateway_pods=refused(403, "no"))
    finding = only(found, "Gateway metrics", "warning")
    assert "cluster.recorder.sources: {gateway: URL}" in finding.fix
    direct = examined(gateway_pods=refused(403, "no"))
    assert not [one for one in direct if one.check == "Gateway metrics"]


RESTRICTED = 'pods "x" is forbidden: violates PodSecurity "baseline:latest": privileged'
OPENSHIFT = (
    'pods "x" is forbidden: unable to validate against any security context constraint'
)
NO_PRIORITY = 'pods "x" is forbidden: no PriorityClass with name batch was found'


def test_a_priority_class_that_is_missing_is_named_by_its_key():
    pod = Trial("pod of Deployment kv/a", "kv", True, refused(403, NO_PRIORITY))
    image = ImageTrial("a:1", "Deployment kv/a", "rejected", NO_PRIORITY)
    found = examined(trials=(pod,), images=(image,))
    for check in ("dry run", "image"):
        fix = only(found, check, "error").fix
        assert fix == "cluster.priority_class: one of `kubectl get priorityclass`"


@pytest.mark.parametrize(
    ("message", "fix"),
    [
        (RESTRICTED, "kubectl label"),
        (
            'pods "x" is forbidden: exceeded quota: q',
            "kubectl -n kv-pcp describe quota",
        ),
        (OPENSHIFT, "oc adm policy add-scc-to-user privileged"),
        (NO_PRIORITY, "cluster.priority_class: one of `kubectl get priorityclass`"),
    ],
)
def test_a_recorder_that_would_be_refused(message, fix):
    found = examined(
        trials=(
            Trial(
                "pod of DaemonSet kv-pcp/recorder",
                "kv-pcp",
                True,
                refused(403, message),
            ),
        )
    )
    assert only(found, "recorder").level == "error"
    assert fix in only(found, "recorder").fix
    assert not [one for one in found if one.check == "dry run"]


def test_an_administrator_of_openshift_is_told_that_a_dry_run_shows_less():
    trials = (accepted("pod of Deployment kv/server", True),)
    for above, codes in ((True, ["administrator", ""]), (False, [""])):
        found = [
            one
            for one in examined(trials=trials, above_constraints=above)
            if one.check == "dry run"
        ]
        assert [one.code for one in found] == codes


def test_a_namespace_that_forbids_the_recorder():
    label = {"pod-security.kubernetes.io/enforce": "restricted"}
    namespaces = {
        **FACTS.namespaces,
        "kv-pcp": Answer(200, {"metadata": {"labels": label}}),
    }
    found = examined(
        namespaces=namespaces,
        trials=(accepted("pod of DaemonSet kv-pcp/recorder", True, "kv-pcp"),),
    )
    assert (only(found, "recorder").level, only(found, "recorder").code) == (
        "error",
        "forbidden",
    )
    assert only(found, "recorder").facts == {"enforced": "restricted"}


def test_dry_runs():
    trials = (
        accepted(warnings=["would violate PodSecurity"]),
        accepted("pod of Deployment kv/server", True),
        Trial(
            "ConfigMap kv/a",
            "kv",
            False,
            refused(400, 'webhook "x" does not support dry run'),
        ),
        Trial(
            "Service kv/a",
            "kv",
            False,
            refused(422, 'Service "a" is invalid: spec.ports'),
        ),
        Trial(
            "Service kv/b",
            "kv",
            False,
            refused(422, 'Service "b" is invalid: spec.ports'),
        ),
    )
    found = [one for one in examined(trials=trials) if one.check == "dry run"]
    assert [
        (one.level, one.code, one.facts["document"], one.facts["documents"])
        for one in found
    ] == [
        ("warning", "untried", "ConfigMap kv/a", 1),
        ("error", "refused", "Service kv/a", 2),
        ("warning", "warned", "Deployment kv/server", 1),
    ]
    assert [one.facts["message"] for one in found[1:]] == [
        trials[3].answer.message,
        "would violate PodSecurity",
    ]
    found = examined(trials=(accepted(), accepted("pod of Deployment kv/server", True)))
    assert only(found, "dry run").facts == {"documents": 1, "pods": 1}


def test_what_the_account_may_not_do_is_said_once():
    jobs = next(one for one in permissions(plan().site) if one.resource == "jobs")
    trial = Trial(
        "Job kv/load",
        "kv",
        False,
        refused(403, 'User "ada" cannot patch resource "jobs" in API group'),
    )
    new = Trial(
        "Job kv/load", "kv", False, refused(403, 'jobs.batch "load" is forbidden: ')
    )
    handed = "is forbidden: attempting to grant RBAC permissions not currently held: {}"
    role = Trial("Role kv/epp", "kv", False, refused(403, handed))
    found = examined(denied=(Denied(jobs, "patch", "kv"),), trials=(trial, new, role))
    assert [one.check for one in found if one.level == "error"] == ["permissions"]
    # Were it not in the table, it would be.
    assert only(examined(trials=(trial,)), "dry run").level == "error"


def test_clocks():
    assert only(examined(), "clocks").level == "ok"
    assert only(examined(), "clocks").facts == {"low_s": -0.1, "high_s": 0.2}
    assert only(examined(ahead=Bounds(2.0, 2.5)), "clocks").code == "host_ahead"
    assert only(examined(ahead=Bounds(0.5, -0.5)), "clocks").code == "servers_disagree"
    late = dataclasses.replace(IMAGES[0], node_ahead=Bounds(-60, -58))
    finding = only(examined(images=(late,)), "clocks")
    assert (finding.code, finding.facts) == (
        "node_ahead",
        {"node": "n1", "low_s": -60, "high_s": -58},
    )


@pytest.mark.parametrize(
    ("facts", "nodes", "level", "code"),
    [
        (InstalledFacts("", {"n1": "", "other": "not ready"}), ["n1"], "ok", ""),
        (InstalledFacts("", {"n1": ""}), ["n1", "n2"], "error", "not_usable"),
        (InstalledFacts("", {"n1": "its configuration is"}), [], "error", "not_usable"),
        (InstalledFacts("there is no Secret", {}), ["n1"], "error", "not_asked"),
        (InstalledFacts("", {}), ["n1"], "error", "not_usable"),
        (InstalledFacts("", {}), [], "warning", "not_seen"),
    ],
    ids=["fine", "a node without", "outdated", "no key", "absent", "no node yet"],
)
def test_an_installed_recorder_has_to_record_wherever_a_server_may_be(
    facts, nodes, level, code
):
    made = plan(site={"recorder": {"installed": True}})
    there = listed(*(with_capacity(node(name)) for name in nodes))
    finding = only(examined(made, recorder=facts, nodes=there), "recorder")
    assert (finding.level, finding.code) == (level, code)
    assert level == "ok" or "site=FILE recorder | kubectl apply" in finding.fix


def with_capacity(thing):
    """Give a node what it can hold, with what of it is in use."""
    thing["status"]["capacity"] = thing["status"]["allocatable"]
    return thing
