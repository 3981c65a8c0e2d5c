"""Tests whether nodes can pull a campaign's images, with one pod per image that ends at once and is removed.

Only nodes have the cluster's mirrors, credentials and network. An image that does not exist, or may not be read, is
refused within seconds; a large one may still be being pulled at the time limit, and is reported as such.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from kveval.engines.kubernetes.api.kinds import condition
from kveval.engines.kubernetes.api.names import labels, selector
from kveval.engines.kubernetes.api.probe import Answer, Bounds, Probe, map_concurrently
from kveval.engines.kubernetes.deployment import on_nodes
from kveval.engines.kubernetes.manifests.recorder import COMPONENT as RECORDER
from kveval.engines.kubernetes.manifests.recorder import UNCONFINED
from kveval.engines.kubernetes.manifests.requirements import (
    PodNeed,
    node_of,
    pod_needs,
)
from kveval.workflow.doctor.capacity import SERVER, takers
from kveval.workflow.doctor.documents import CampaignDocuments

COMPONENT = "doctor"
_POLL_S = 0.5
_REFUSALS = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
)
_AFTER_PULL = (
    "CreateContainerError",
    "CreateContainerConfigError",
    "RunContainerError",
    "CrashLoopBackOff",
)

Outcome = Literal["pulled", "pulling", "refused", "unplaced", "rejected"]


@dataclass(frozen=True)
class ImageTrial:
    """The outcome of the test of an image.

    Attributes:
        outcome: pulled; pulling, not refused within the time; refused by the registry or the node; unplaced, no node
            accepted the pod; rejected, the API server did not accept it.
        message: the cluster's own words.
        node_ahead: how far the node's clock was ahead of the API server's, seconds; None if no node has started it.
    """

    image: str
    used_by: str
    outcome: Outcome
    message: str = ""
    node: str = ""
    seconds: float = 0.0
    node_ahead: Bounds | None = None


def try_images(
    probe: Probe, plan: CampaignDocuments, nodes: Answer, limit_s: float
) -> list[ImageTrial]:
    """Try every image of a campaign, all at once, for `limit_s` seconds at most; `nodes`: the list of them."""
    users: dict[str, PodNeed] = {}
    for need in pod_needs(plan.documents):
        for image in need.images:
            users.setdefault(image, need)
    pods = {
        image: trial_pod(image, need, plan, limit_s) for image, need in users.items()
    }
    unplaced = []
    for image, names in _places(plan, users, nodes).items():
        if names:
            pods[image]["spec"]["affinity"] = on_nodes(names)
        else:
            del pods[image]
            said = "no node that is there has what it asks for"
            unplaced.append(ImageTrial(image, users[image].owner, "unplaced", said))
    path = f"/api/v1/namespaces/{plan.site.namespace}/pods"
    # Those of a killed doctor.
    _remove(probe, path, plan.name)
    try:
        made = dict(
            zip(
                pods,
                map_concurrently(
                    pods.values(), lambda pod: probe.request("POST", path, {}, pod)
                ),
                strict=True,
            )
        )
        rejected = [
            ImageTrial(image, users[image].owner, "rejected", answer.message)
            for image, answer in made.items()
            if not answer.ok
        ]
        waiting = {
            answer.body["metadata"]["name"]: image
            for image, answer in made.items()
            if answer.ok
        }
        watched = _watched(probe, path, plan.name, waiting, users, limit_s)
        return [*unplaced, *rejected, *watched]
    finally:
        _remove(probe, path, plan.name)


def _places(
    plan: CampaignDocuments, users: Mapping[str, PodNeed], nodes: Answer
) -> dict[str, list[str]]:
    """Return image -> the nodes that its pod would run on: a trial asks for less, and would run on others, too."""
    if not nodes.ok:
        return {}
    there = [node_of(entry) for entry in nodes.body["items"]]
    servers = [need for need in pod_needs(plan.documents) if need.component == SERVER]
    places = {}
    for image, need in users.items():
        # The recorder is where a server is.
        like = servers if need.component == RECORDER else [need]
        chosen = {node.name for one in like for node in takers(one, there)}
        places[image] = sorted(chosen)
    return places


def trial_pod(
    image: str, need: PodNeed, plan: CampaignDocuments, limit_s: float
) -> dict[str, Any]:
    """Return the pod that tries an image for `need`, without its GPUs, volumes and privileges."""
    site = plan.site
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        # Ends it even when the doctor is killed; the next teardown removes it by its labels.
        "activeDeadlineSeconds": int(limit_s) + 60,
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            **({} if site.user_id is None else {"runAsUser": site.user_id}),
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": "trial",
                "image": image,
                "command": ["true"],
                "resources": {
                    "requests": {"cpu": "10m", "memory": "16Mi"},
                    "limits": {"cpu": "100m", "memory": "64Mi"},
                },
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                },
            }
        ],
    }
    spec |= {
        key: need.spec[key]
        for key in (
            "nodeSelector",
            "tolerations",
            "imagePullSecrets",
            "priorityClassName",
        )
        if key in need.spec
    }
    marks = {**site.labels, **labels(plan.name, "", None, "", COMPONENT)}
    pod = pod_like(need, site.namespace, marks, spec)
    # It names a container that the trial has not, and a privilege.
    annotations = pod["metadata"]["annotations"].items()
    own = {name: value for name, value in annotations if name not in UNCONFINED}
    pod["metadata"]["annotations"] = own
    return pod


def pod_like(
    need: PodNeed, namespace: str, marks: Mapping[str, str], spec: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a pod with these labels and the annotations of another."""
    annotations = need.template.get("metadata", {}).get("annotations", {})
    metadata = {
        "generateName": "kveval-doctor-",
        "namespace": namespace,
        "labels": marks,
        "annotations": annotations,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def outcome_of(pod: Mapping[str, Any]) -> tuple[Outcome | None, str]:
    """Return the outcome that a test pod shows for its image, and the cluster's message; None while undecided."""
    status = pod.get("status", {})
    for container in status.get("containerStatuses", []):
        state = container.get("state", {})
        waiting = state.get("waiting", {})
        if (
            "running" in state
            or "terminated" in state
            or waiting.get("reason") in _AFTER_PULL
        ):
            return "pulled", ""
        if waiting.get("reason") in _REFUSALS:
            return (
                "refused",
                f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": "),
            )
    if (
        status.get("phase") in ("Succeeded", "Failed")
        and status.get("reason") != "DeadlineExceeded"
    ):
        return "pulled", ""
    return None, ""


def unschedulable(pod: Mapping[str, Any]) -> str:
    """Return why no node accepts the pod; empty if one did, or the scheduler has not tried yet."""
    found = condition(pod, "PodScheduled")
    said = f"{found.get('reason', '')}: {found.get('message', '')}".strip(": ")
    return said if found.get("status") == "False" else ""


def node_ahead(pod: Mapping[str, Any], seen: float) -> Bounds | None:
    """Bound how far a node's clock is ahead of the API server's, from a pod's times, which are cut to whole seconds.

    The node noted its start between the pod's creation and the moment it was `seen`, both by the API server's clock.
    """
    start, creation = (
        pod.get("status", {}).get("startTime"),
        pod["metadata"].get("creationTimestamp"),
    )
    if start is None or creation is None:
        return None
    started, created = (
        datetime.fromisoformat(text).timestamp() for text in (start, creation)
    )
    return Bounds(started - seen, started + 1 - created)


def _watched(
    probe: Probe,
    path: str,
    campaign: str,
    waiting: dict[str, str],
    users: Mapping[str, PodNeed],
    limit_s: float,
) -> Iterator[ImageTrial]:
    """Yield each trial as soon as its pod shows the outcome; at the time limit, what is known of the others."""
    begin = time.monotonic()
    clocks: dict[str, Bounds] = {}
    last: dict[str, Mapping[str, Any]] = {}

    def trial(name: str, outcome: Outcome, message: str) -> ImageTrial:
        image, node = (
            waiting.pop(name),
            str(last.get(name, {}).get("spec", {}).get("nodeName", "")),
        )
        said, seconds = " ".join(message.split()), time.monotonic() - begin
        return ImageTrial(
            image, users[image].owner, outcome, said, node, seconds, clocks.get(name)
        )

    while waiting and time.monotonic() - begin < limit_s:
        time.sleep(_POLL_S)
        found = probe.get(
            path, labelSelector=selector(campaign=campaign, component=COMPONENT)
        )
        # The server's clock now is at most this.
        seen = time.time() - (probe.ahead.low if probe.ahead else 0.0)
        for pod in found.body.get("items", []):
            name = pod["metadata"]["name"]
            if name not in waiting:
                continue
            last[name] = pod
            bounds = node_ahead(pod, seen)
            if bounds is not None:
                clocks[name] = (
                    bounds if name not in clocks else clocks[name].and_(bounds)
                )
            outcome, message = outcome_of(pod)
            if outcome is not None:
                yield trial(name, outcome, message)
    for name in list(waiting):
        pod = last.get(name, {})
        yield trial(
            name,
            "pulling" if pod.get("spec", {}).get("nodeName") else "unplaced",
            unschedulable(pod),
        )


def _remove(probe: Probe, path: str, campaign: str) -> None:
    found: Answer = probe.get(
        path, labelSelector=selector(campaign=campaign, component=COMPONENT)
    )
    names: Sequence[str] = [
        pod["metadata"]["name"] for pod in found.body.get("items", [])
    ]
    map_concurrently(
        names,
        lambda name: probe.request(
            "DELETE", f"{path}/{name}", {"gracePeriodSeconds": 0}
        ),
    )
