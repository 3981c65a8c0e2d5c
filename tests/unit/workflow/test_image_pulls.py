"""Trying images with pods that end at once: what is made of their states, and that none stays."""

import json
from datetime import UTC, datetime
from email.utils import formatdate
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.cluster_plans import deployment, listed, node, plan, refused

from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.errors import ClusterError, Unreachable
from kveval.engines.kubernetes.api.probe import Bounds, Probe, _warnings
from kveval.engines.kubernetes.api.transport import Reply
from kveval.engines.kubernetes.manifests.recorder import recording_documents
from kveval.engines.kubernetes.manifests.requirements import pod_needs
from kveval.workflow.doctor import image_pulls as image_trials
from kveval.workflow.doctor.image_pulls import node_ahead, outcome_of, try_images

PODS = "/api/v1/namespaces/kv/pods"


class Cluster:
    """An API server that keeps pods; `states`: container states by image, in the order in which they are seen."""

    server = "https://stand-in"

    def __init__(self, states, refuse=()):
        self.states = {image: list(seen) for image, seen in states.items()}
        self.refuse = refuse
        self.pods = {}
        self.made = []
        self.now = 1_700_000_000.0

    def request(self, method, path, query, body, content, timeout_s):
        headers = {"Date": formatdate(self.now, usegmt=True)}
        if method == "POST":
            image = body["spec"]["containers"][0]["image"]
            if image in self.refuse:
                return Reply(
                    403, headers, json.dumps({"message": "exceeded quota"}).encode()
                )
            name = f"{body['metadata']['generateName']}{len(self.made)}"
            pod = {**body, "metadata": {**body["metadata"], "name": name}}
            self.pods[name] = pod
            self.made.append(pod)
            return Reply(201, headers, json.dumps(pod).encode())
        if method == "DELETE":
            del self.pods[path.rsplit("/", 1)[1]]
            return Reply(200, headers, b"{}")
        for pod in self.pods.values():
            seen = self.states[pod["spec"]["containers"][0]["image"]]
            pod.update(seen.pop(0) if len(seen) > 1 else seen[0])
        return Reply(
            200, headers, json.dumps({"items": list(self.pods.values())}).encode()
        )


def state(**container):
    return {"status": {"phase": "Pending", "containerStatuses": [{"state": container}]}}


def waiting(reason, message=""):
    return state(waiting={"reason": reason, "message": message})


HIDDEN = refused(403, "nodes is forbidden")
PLACED = {
    "spec": {"nodeName": "n1", "containers": [{"image": "side:1"}]},
    **waiting("ContainerCreating"),
}
UNPLACED = {
    "status": {
        "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        ]
    }
}


@pytest.fixture(autouse=True)
def _fast(monkeypatch):
    monkeypatch.setattr(image_trials, "_POLL_S", 0.01)


def tried(cluster, limit_s=0.3, nodes=HIDDEN):
    made = plan(("M/a/0", {"weights": "full"}, (deployment(),)))
    trials = try_images(Probe(Api(cluster)), made, nodes, limit_s)
    return {trial.image: trial for trial in trials}


def test_every_image_gets_its_outcome_and_no_pod_stays():
    states = {
        "vllm:1": [waiting("ContainerCreating"), state(terminated={"exitCode": 0})],
        "busybox": [
            waiting("ErrImagePull", "manifest unknown"),
            waiting("ImagePullBackOff"),
        ],
        "side:1": [PLACED],
    }
    cluster = Cluster(states, refuse=["pcp:1"])
    found = tried(cluster)
    assert {image: trial.outcome for image, trial in found.items()} == {
        "vllm:1": "pulled",
        "busybox": "refused",
        "side:1": "pulling",
        "pcp:1": "rejected",
    }
    assert found["busybox"].message == "ErrImagePull: manifest unknown"
    assert found["pcp:1"].message == "exceeded quota"
    assert found["side:1"].node == "n1"
    assert cluster.pods == {}


def test_a_pod_that_no_node_takes():
    states = {key: [state(running={})] for key in ["vllm:1", "busybox", "pcp:1"]} | {
        "side:1": [UNPLACED]
    }
    assert tried(Cluster(states))["side:1"].outcome == "unplaced"


def test_an_image_is_tried_where_its_pod_would_run():
    cluster = Cluster({"vllm:1": [state(running={})], "busybox": [state(running={})]})
    cluster.states |= {"side:1": [state(running={})], "pcp:1": [state(running={})]}
    there = listed(node("cpu-0", gpus=0), node("gpu-0"), node("gpu-1", gpus=1))
    tried(cluster, nodes=there)
    placed = {
        pod["spec"]["containers"][0]["image"]: [
            term["matchFields"][0]["values"]
            for term in pod["spec"]["affinity"]["nodeAffinity"][
                "requiredDuringSchedulingIgnoredDuringExecution"
            ]["nodeSelectorTerms"]
        ]
        for pod in cluster.made
    }
    # The servers ask for two GPUs, and the recorder is where they are.
    assert placed == {image: [["gpu-0"]] for image in cluster.states}


def test_an_image_whose_pod_no_node_could_take_is_not_pulled_elsewhere():
    cluster = Cluster({})
    found = tried(cluster, nodes=listed(node("cpu-0", gpus=0)))
    assert {trial.outcome for trial in found.values()} == {"unplaced"}
    assert cluster.made == []


def test_pods_are_removed_when_the_doctor_is_stopped():
    class Stopped(Cluster):
        def request(self, method, path, query, body, content, timeout_s):
            if method == "GET" and len(self.made) == 4 and not self.asked:
                self.asked = True
                raise KeyboardInterrupt
            return super().request(method, path, query, body, content, timeout_s)

        asked = False

    cluster = Stopped(
        {key: [state(running={})] for key in ["vllm:1", "busybox", "pcp:1", "side:1"]}
    )
    with pytest.raises(KeyboardInterrupt):
        tried(cluster)
    assert cluster.made
    assert cluster.pods == {}


def test_the_trials_pod_is_harmless():
    # What a policy of the cluster may ask of every pod is asked of these, too.
    made = plan(site={"user_id": 1234, "labels": {"team": "kv"}})
    placed = {"nodeSelector": {"gpu": "h100"}, "tolerations": [{"operator": "Exists"}]}
    (need,) = pod_needs([deployment(priorityClassName="batch", **placed)])
    pod = image_trials.trial_pod("vllm:1", need, made, 60)
    (container,) = pod["spec"]["containers"]
    assert "nvidia.com/gpu" not in json.dumps(container["resources"])
    assert "volumes" not in pod["spec"]
    assert pod["spec"]["nodeSelector"] == {"gpu": "h100"}
    assert pod["spec"]["tolerations"] == [{"operator": "Exists"}]
    assert pod["spec"]["securityContext"]["runAsUser"] == 1234
    assert pod["spec"]["activeDeadlineSeconds"] == 120
    (recorder,) = pod_needs([recording_documents("first", made.site)[-1]])
    # The recorder's image is tried without what its own pod may do.
    tried = image_trials.trial_pod("pcp:1", recorder, made, 60)
    assert tried["metadata"]["annotations"] == {}
    assert pod["spec"]["priorityClassName"] == "batch"
    labels = {"kveval.dev/campaign": "first", "team": "kv"}
    assert pod["metadata"]["labels"].items() >= labels.items()


@pytest.mark.parametrize(
    ("pod", "outcome"),
    [
        ({}, None),
        (waiting("ContainerCreating"), None),
        (waiting("InvalidImageName"), "refused"),
        (waiting("CreateContainerConfigError", "image will run as root"), "pulled"),
        (state(running={}), "pulled"),
        ({"status": {"phase": "Failed", "reason": "DeadlineExceeded"}}, None),
        ({"status": {"phase": "Succeeded"}}, "pulled"),
    ],
)
def test_states(pod, outcome):
    assert outcome_of(pod)[0] == outcome


@given(
    ahead=st.floats(-100, 100),
    creation=st.floats(0, 1),
    start=st.floats(0, 5),
    seen=st.floats(0, 5),
    at=st.floats(0, 1),
)
def test_the_nodes_clock_is_bounded_by_what_was_seen(ahead, creation, start, seen, at):
    created = 1_700_000_000.0 + at
    started = created + creation + start
    pod = {
        "metadata": {"creationTimestamp": _whole(created)},
        "status": {"startTime": _whole(started + ahead)},
    }
    bounds = node_ahead(pod, started + seen)
    assert bounds.low <= ahead + 1e-6
    assert ahead <= bounds.high + 1e-6


def _whole(seconds):
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def test_the_servers_clock_is_narrowed_by_every_answer(monkeypatch):
    cluster = Cluster({})
    clock = iter([1000.9, 1001.0, 1001.3, 1001.35])
    # The module's own clock: that of everything else goes on.
    own = SimpleNamespace(time=lambda: next(clock))
    monkeypatch.setattr("kveval.engines.kubernetes.api.probe.time", own)
    probe = Probe(Api(cluster))
    # The server is 0.5 s behind: it answered at 1000.45 and 1000.82, by its own clock.
    cluster.now = 1000.0
    probe.get("/version")
    assert (probe.ahead.low, probe.ahead.high) == pytest.approx((-0.1, 1.0))
    probe.get("/version")
    assert (probe.ahead.low, probe.ahead.high) == pytest.approx((0.3, 1.0))
    assert not probe.ahead.beyond(1.0)
    assert Bounds(1.1, 2).beyond(1.0)
    assert Bounds(-3, -1.1).beyond(1.0)


def test_a_busy_server_is_asked_again():
    answers = iter([429, Unreachable("timed out"), 200, *[503] * 9])

    class Busy(Cluster):
        def request(self, *arguments):
            answer = next(answers, Unreachable("refused"))
            if isinstance(answer, Unreachable):
                raise answer
            return Reply(answer, {}, b"{}")

    probe = Probe(Api(Busy({}), outage_s=0.8))
    assert probe.get("/version").ok
    assert probe.get("/version").status == 503
    list(answers)
    with pytest.raises(ClusterError):
        Probe(Api(Busy({}), outage_s=0.0)).get("/version")


@pytest.mark.parametrize(
    ("header", "texts"),
    [
        ("", ()),
        ('299 - "one"', ("one",)),
        (
            '299 - "would violate \\"restricted:latest\\": a, b", 299 - "two"',
            ('would violate "restricted:latest": a, b', "two"),
        ),
    ],
)
def test_warnings_of_the_server(header, texts):
    assert _warnings(header) == texts
