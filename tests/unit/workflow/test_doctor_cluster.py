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

from kveval.engines.kubernetes.api.kinds import Kind
from kveval.engines.kubernetes.api.probe import Answer, Bounds
from kveval.engines.kubernetes.manifests.permissions import permissions
from kveval.host.findings import worst
from kveval.workflow.doctor.cluster import examine
from kveval.workflow.doctor.cluster_facts import Denied, Trial
from kveval.workflow.doctor.image_pulls import ImageTrial

GRANT = "python scripts/print_permissions.py first.yaml | kubectl apply -f -"
CACHE = {"model_cache": {"claim": "weights"}, "token_secret": {"name": "hub"}}
BOUND = Answer(
    200, {"status": {"phase": "Bound", "capacity": {"storage": "200Gi"}}, "spec": {"accessModes": ["ReadWriteMany"]}}
)
SECRET = Answer(200, {"data": {"token": ""}})


def examined(made=None, **changes):
    return examine(made or plan(), dataclasses.replace(FACTS, **changes), GRANT)


def only(found, check, level=None):
    (finding,) = [one for one in found if one.check == check and level in (None, one.level)]
    return finding


def accepted(what="Deployment kv/server", pod=False, namespace="kv", warnings=()):
    return Trial(what, namespace, pod, Answer(200, {}, tuple(warnings)))


def test_a_cluster_that_fits_gets_no_complaint():
    trials = (accepted(), accepted("pod of DaemonSet kv-pcp/recorder", True, "kv-pcp"))
    found = examined(plan(site=CACHE), claims={"weights": BOUND}, secret=SECRET, trials=trials)
    assert worst(found) == "ok", [one for one in found if one.level != "ok"]
    assert "Kubernetes v1.34.1-gke.100, as ada" in only(found, "API server").what
    assert "n1: 8 of nvidia.com/gpu; M/native-offload/10000 takes 2, 1 at once" in only(found, "GPUs").what


@pytest.mark.parametrize(
    ("version", "level"), [("v1.20.2", "warning"), ("v1.25.0", "ok"), ("v1.37.9+k3s1", "ok"), ("", "warning")]
)
def test_the_servers_release(version, level):
    assert only(examined(version=version), "API server").level == level


def test_a_missing_permission_is_named_with_the_command_that_grants_it():
    made = plan(site=CACHE)
    jobs = next(one for one in permissions(made.site) if one.resource == "jobs")
    secrets = next(one for one in permissions(made.site) if one.resource == "secrets")
    denied = (Denied(jobs, "create", "kv"), Denied(jobs, "delete", "kv"), Denied(secrets, "get", "kv"))
    found = examined(made, denied=denied, claims={"weights": BOUND}, secret=refused(403, "no"))
    assert only(found, "permissions", "error").what.startswith(
        "may not create, delete jobs.batch in namespace kv: the load"
    )
    assert only(found, "permissions", "error").fix == GRANT
    # Only the doctor itself reads the secret.
    assert "may not get secrets hub" in only(found, "permissions", "warning").what
    assert only(found, "token").level == "warning"


@pytest.mark.parametrize(
    ("name", "may_make", "level"), [("kv", True, "error"), ("kv-pcp", True, "ok"), ("kv-pcp", False, "error")]
)
def test_a_namespace_that_is_not_there(name, may_make, level):
    namespaces = {**FACTS.namespaces, name: refused(404, "not found")}
    found = [one for one in examined(namespaces=namespaces, may_make_namespaces=may_make) if one.check == "namespace"]
    assert [one.level for one in found if name in one.what.split()] == [level]


def test_a_kind_that_is_not_served_is_named_with_what_installs_it():
    pool = Kind("inference.networking.k8s.io/v1", "InferencePool")
    found = examined(served={**FACTS.served, pool: None}, versions={pool.group: ["v1alpha2"]})
    assert only(found, "kinds").what == (
        "the cluster has no InferencePool of inference.networking.k8s.io/v1, only v1alpha2"
    )
    assert "gateway-api-inference-extension" in only(found, "kinds").fix


THERE = {"gateway": {"name": "gw", "namespace": "istio"}}
NEW = {"gateway": {"name": "gw", "class": "istio", "create": True}}


@pytest.mark.parametrize(
    ("site", "answer", "level", "words"),
    [
        (THERE, gateway(), "ok", "istio/gw is programmed, at 10.0.0.1"),
        (THERE, gateway(programmed="False"), "error", "not programmed: why"),
        (THERE, gateway(addresses=()), "warning", "no address"),
        (THERE, refused(404, "not found"), "error", "there is no istio/gw"),
        (THERE, refused(403, "forbidden"), "warning", "cannot be looked at: forbidden"),
        (NEW, refused(404, "not found"), "ok", "will be made with class istio"),
    ],
)
def test_the_gateway(site, answer, level, words):
    accepted_class = Answer(200, {"status": {"conditions": [{"type": "Accepted", "status": "True"}]}})
    finding = only(examined(plan(site=site), gateway=answer, gateway_class=accepted_class), "Gateway")
    assert (finding.level, words in finding.what) == (level, True)


def test_a_gateway_that_takes_only_routes_of_its_own_namespace():
    finding = only(examined(plan(site=THERE), gateway=gateway(routes="Same")), "Gateway", "error")
    assert "the campaign's is kv" in finding.what
    assert "allowedRoutes" in finding.fix


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (refused(404, ""), "no GatewayClass"),
        (
            Answer(200, {"status": {"conditions": [{"type": "Accepted", "status": "Unknown"}]}}),
            "no controller has accepted",
        ),
    ],
)
def test_a_gateway_class_that_nobody_serves(answer, words):
    found = examined(plan(site=NEW), gateway=refused(404, ""), gateway_class=answer)
    assert words in only(found, "Gateway", "error").what


def test_no_gpus_that_the_servers_can_get():
    finding = only(examined(nodes=listed(node(gpus=0))), "GPUs")
    assert (finding.level, "none offers nvidia.com/gpu" in finding.what) == ("error", True)
    tainted = node(taints=[{"key": "pool", "effect": "NoSchedule"}])
    finding = only(examined(nodes=listed(tainted, node("n2", gpus=0))), "GPUs")
    assert "n1: 8, n2: 0 of nvidia.com/gpu, but no such node takes the servers" in finding.what
    assert "cluster.tolerations" in finding.fix


def test_a_cell_that_no_node_has_room_for_is_named_with_what_is_short():
    found = examined(nodes=listed(node(gpus=1), node("n2", gpus=1)))
    finding = only(found, "GPUs")
    assert finding.level == "error"
    assert "Deployment kv/server asks for 2 nvidia.com/gpu, 65 GiB, 2 CPUs each" in finding.what
    assert "n1 has 1 nvidia.com/gpu, 512 GiB, 64 CPUs" in finding.what


def test_more_slots_than_there_is_room_for():
    finding = only(examined(plan(site={"slots": 4}), nodes=listed(node(gpus=5))), "GPUs")
    assert (finding.level, finding.fix) == ("error", "cluster.slots: 2")


def test_gpus_that_others_hold_now():
    other = {
        "metadata": {"name": "train", "namespace": "ml"},
        "spec": {
            "nodeName": "n1",
            "containers": [{"image": "a", "resources": {"limits": {GPU: "7"}}}],
        },
    }
    finding = only(examined(pods=listed(other)), "GPUs")
    assert (finding.level, "others hold n1: 7: pods of ml" in finding.what) == ("warning", True)
    own = {**other, "metadata": {**other["metadata"], "labels": {"app.kubernetes.io/managed-by": "kveval"}}}
    assert only(examined(pods=listed(own)), "GPUs").level == "ok"
    assert "is not known" in only(examined(pods=refused(403, "no")), "GPUs").what


@pytest.mark.parametrize(
    ("tier_gib", "slots", "level", "share"),
    [(100, 1, "ok", "50%"), (100, 2, "error", "100%"), (80, 2, "warning", "80%"), (60, 2, "ok", "60%")],
)
def test_host_memory_for_the_tier(tier_gib, slots, level, share):
    cell = ("M/native-offload/9", specification(tier_gib), (deployment(memory="1Gi", shm="8Gi"),))
    found = examined(plan(cell, site={"slots": slots}), nodes=listed(node(memory_gib=200)))
    finding = only(found, "host memory")
    assert share in finding.what
    assert finding.level == ("warning" if level == "error" else level)


def test_a_tier_larger_than_the_node_is_an_error():
    cell = ("M/native-offload/9", specification(300), (deployment(memory="1Gi"),))
    finding = only(examined(plan(cell), nodes=listed(node(memory_gib=200))), "host memory")
    assert (finding.level, "150%" in finding.what) == ("error", True)
    assert "fewer cpu_blocks" in finding.fix


def test_shared_memory_and_the_limit_of_the_pod():
    # From 0.32 on the tier of a GPU server is a file in /dev/shm.
    small = ("M/native-offload/9", specification(10, vllm="0.32.0"), (deployment(shm="8Gi"),))
    assert "M/native-offload/9 allocates 10.6 GiB there" in only(examined(plan(small)), "/dev/shm").what
    none = ("M/no-offload/0", specification(0), (deployment(shm=None),))
    assert "has 0.1 GiB" in only(examined(plan(none)), "/dev/shm", "error").what
    unlimited = ("M/native-offload/9", specification(10, vllm="0.32.0"), (deployment(shm="0"),))
    assert only(examined(plan(unlimited)), "/dev/shm").level == "ok"
    killed = ("M/native-offload/9", specification(100), (deployment(memory="80Gi"),))
    assert "killed above 81.0 GiB" in only(examined(plan(killed)), "memory limit", "error").what


def test_nodes_that_may_not_be_seen():
    found = examined(nodes=refused(403, "nodes is forbidden"))
    assert only(found, "nodes").level == "warning"
    assert not [one for one in found if one.check == "GPUs"]


STORAGE = [
    ((claim(),), None, "ok", "class fast (ebs.csi.aws.com) for ReadWriteOnce"),
    ((claim(modes=["ReadWriteMany"]),), None, "error", "for one node at a time"),
    ((claim(storage_class="nfs"),), None, "error", "there is no storage class nfs"),
    ((claim(),), listed(), "error", "no default storage class"),
    ((claim(),), refused(403, "forbidden"), "warning", "cannot be looked at: forbidden"),
]


@pytest.mark.parametrize(("documents", "classes", "level", "words"), STORAGE)
def test_storage(documents, classes, level, words):
    absent = {one["metadata"]["name"]: refused(404, "not found") for one in documents}
    found = examined(plan(documents=documents), claims=absent, storage_classes=classes or FACTS.storage_classes)
    finding = only(found, "storage")
    assert (finding.level, words in finding.what) == (level, True)


def test_a_volume_for_one_node_and_cells_on_several():
    absent = {"results": refused(404, "not found")}
    found = examined(plan(documents=(claim(),), site={"slots": 2}), claims=absent)
    assert "results can be on one node at a time, and 2 cells" in only(found, "storage", "warning").what


def test_claims_that_are_there_already():
    found = examined(plan(documents=(claim(),)), claims={"results": BOUND}, storage_classes=listed())
    assert "claim kv/results is Bound, 200 GiB, ReadWriteMany" in only(found, "storage").what
    lost = Answer(200, {"status": {"phase": "Lost"}})
    assert only(examined(plan(documents=(claim(),)), claims={"results": lost}), "storage").level == "error"


def test_the_model_cache():
    assert only(examined(), "model cache").level == "warning"
    one_node = Answer(200, {**BOUND.body, "spec": {"accessModes": ["ReadWriteOnce"]}})
    made = plan(site=CACHE | {"slots": 2})
    assert only(examined(made, claims={"weights": one_node}, secret=SECRET), "model cache").level == "warning"
    missing = {"weights": refused(404, "not found")}
    assert only(examined(plan(site=CACHE), claims=missing, secret=SECRET), "model cache").level == "error"


def test_the_token_and_never_its_value():
    assert only(examined(), "token").level == "warning"
    made = plan(site=CACHE)
    found = examined(made, claims={"weights": BOUND}, secret=refused(404, "not found"))
    assert only(found, "token").fix == "kubectl -n kv create secret generic hub --from-file=token=FILE"
    found = examined(made, claims={"weights": BOUND}, secret=Answer(200, {"data": {"HF_TOKEN": ""}}))
    assert "has no key token; its keys: HF_TOKEN" in only(found, "token").what


IMAGES = (
    ImageTrial("a:1", "Deployment kv/a", "pulled", node="n1", seconds=4.2, node_ahead=Bounds(-1, 1)),
    ImageTrial("b:1", "Deployment kv/b", "pulling", node="n2", seconds=60),
    ImageTrial("c:1", "Deployment kv/c", "refused", "ErrImagePull: not found", node="n1"),
    ImageTrial("d:1", "Deployment kv/d", "unplaced", "Unschedulable: 0/1 nodes"),
    ImageTrial("e:1", "Deployment kv/e", "rejected", "exceeded quota"),
)


def test_images():
    found = examined(images=IMAGES)
    assert only(found, "images").what == "1 of 5 pulled within 4 s on n1"
    errors = [one for one in found if one.check == "image" and one.level == "error"]
    assert [one.what.split()[0] for one in errors] == ["c:1", "d:1", "e:1"]
    assert "server.images" in errors[0].fix
    assert "b:1 is on its way to n2" in only(found, "image", "ok").what


RESTRICTED = 'pods "x" is forbidden: violates PodSecurity "baseline:latest": privileged'
OPENSHIFT = 'pods "x" is forbidden: unable to validate against any security context constraint'


@pytest.mark.parametrize(
    ("message", "fix"), [(RESTRICTED, "kubectl label"), (OPENSHIFT, "oc adm policy add-scc-to-user privileged")]
)
def test_a_recorder_that_would_be_refused(message, fix):
    found = examined(trials=(Trial("pod of DaemonSet kv-pcp/recorder", "kv-pcp", True, refused(403, message)),))
    assert only(found, "recorder").level == "error"
    assert fix in only(found, "recorder").fix
    assert not [one for one in found if one.check == "dry run"]


def test_a_namespace_that_forbids_the_recorder():
    label = {"pod-security.kubernetes.io/enforce": "restricted"}
    namespaces = {**FACTS.namespaces, "kv-pcp": Answer(200, {"metadata": {"labels": label}})}
    found = examined(namespaces=namespaces, trials=(accepted("pod of DaemonSet kv-pcp/recorder", True, "kv-pcp"),))
    assert "enforces pod security restricted" in only(found, "recorder").what


def test_dry_runs():
    trials = (
        accepted(warnings=["would violate PodSecurity"]),
        accepted("pod of Deployment kv/server", True),
        Trial("ConfigMap kv/a", "kv", False, refused(400, 'webhook "x" does not support dry run')),
        Trial("Service kv/a", "kv", False, refused(422, 'Service "a" is invalid: spec.ports')),
        Trial("Service kv/b", "kv", False, refused(422, 'Service "b" is invalid: spec.ports')),
    )
    found = [one for one in examined(trials=trials) if one.check == "dry run"]
    assert [(one.level, one.what) for one in found] == [
        ("warning", 'ConfigMap kv/a: webhook "x" does not support dry run'),
        ("error", 'Service kv/a (and 1 more): Service "a" is invalid: spec.ports'),
        ("warning", "Deployment kv/server: would violate PodSecurity"),
    ]
    found = examined(trials=(accepted(), accepted("pod of Deployment kv/server", True)))
    assert only(found, "dry run").what == "the API server accepts 1 documents and 1 pods made of them"


def test_what_the_account_may_not_do_is_said_once():
    jobs = next(one for one in permissions(plan().site) if one.resource == "jobs")
    trial = Trial("Job kv/load", "kv", False, refused(403, 'User "ada" cannot patch resource "jobs" in API group'))
    new = Trial("Job kv/load", "kv", False, refused(403, 'jobs.batch "load" is forbidden: '))
    found = examined(denied=(Denied(jobs, "patch", "kv"),), trials=(trial, new))
    assert [one.check for one in found if one.level == "error"] == ["permissions"]
    # Were it not in the table, it would be.
    assert only(examined(trials=(trial,)), "dry run").level == "error"


def test_clocks():
    assert "agree, to -0.10 to +0.20 s" in only(examined(), "clocks").what
    assert only(examined(ahead=Bounds(2.0, 2.5)), "clocks").level == "warning"
    assert "disagree" in only(examined(ahead=Bounds(0.5, -0.5)), "clocks").what
    late = dataclasses.replace(IMAGES[0], node_ahead=Bounds(-60, -58))
    assert "node n1 is -60 to -58 s ahead" in only(examined(images=(late,)), "clocks").what
