"""Facts about a cluster for the doctor's checks; only the test pods of images change anything there."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kveval.campaign.site import Cluster
from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.errors import ClusterError
from kveval.engines.kubernetes.api.kinds import Kind, described, kind_of
from kveval.engines.kubernetes.api.probe import Answer, Bounds, Probe, map_concurrently
from kveval.engines.kubernetes.installed_recorder import key_of, listed_pods
from kveval.engines.kubernetes.manifests.context import RunContext
from kveval.engines.kubernetes.manifests.permissions import (
    GATEWAY_GROUP,
    Permission,
    namespace_of,
    permissions,
)
from kveval.engines.kubernetes.manifests.rendering import PORTS
from kveval.engines.kubernetes.manifests.requirements import PodNeed, claims, pod_needs
from kveval.engines.kubernetes.recordings import installed_fault
from kveval.workflow.doctor.documents import CampaignDocuments
from kveval.workflow.doctor.image_pulls import ImageTrial, pod_like, try_images

_CONSTRAINTS = Kind("security.openshift.io/v1", "SecurityContextConstraints")
_REVIEW = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_DRY_RUN: Mapping[str, str] = {
    "dryRun": "All",
    "fieldManager": "kveval",
    "fieldValidation": "Strict",
}


@dataclass(frozen=True)
class Denied:
    """A verb of the permissions table that the account lacks; `namespace` is empty for resources outside namespaces."""

    permission: Permission
    verb: str
    namespace: str


@dataclass(frozen=True)
class Trial:
    """A document sent to the API server as a dry run; `pod`: whether a pod made from it was sent instead."""

    what: str
    namespace: str
    pod: bool
    answer: Answer


@dataclass(frozen=True)
class InstalledFacts:
    """The answers of a recorder that an administrator has installed.

    Attributes:
        refusal: why the account cannot ask it; empty if it can.
        faults: for each node with a pod of it, why that cannot record the campaign's runs; empty if it can.
    """

    refusal: str
    faults: Mapping[str, str]


@dataclass(frozen=True)
class ClusterFacts:
    """The answers of a cluster. What the account may not see is an Answer that says so.

    Attributes:
        ahead: how far this host's clock is ahead of the API server's, seconds.
        user: the account's name on the server; empty if not known.
        served: for each kind of the campaign, whether it is served.
        versions: for the API groups of kinds that are not served, the versions that are.
        secret: the token's Secret, keys only, without values.
        recorder: the one that is installed; None where the campaign makes its own.
        claims: those of volumes that the site names or that an earlier run made.
        above_constraints: OpenShift accepts any pod of this account. It checks who creates a pod and the pod's own
        account, and controllers create most of them.
    """

    server: str
    version: str
    ahead: Bounds | None
    user: str
    denied: Sequence[Denied]
    may_make_namespaces: bool
    namespaces: Mapping[str, Answer]
    served: Mapping[Kind, bool]
    versions: Mapping[str, Sequence[str]]
    gateway: Answer | None
    gateway_class: Answer | None
    gateway_pods: Answer | None
    nodes: Answer
    pods: Answer
    storage_classes: Answer
    claims: Mapping[str, Answer]
    secret: Answer | None
    trials: Sequence[Trial]
    images: Sequence[ImageTrial] = field(default_factory=tuple)
    above_constraints: bool = False
    recorder: InstalledFacts | None = None


def collect(api: Api, plan: CampaignDocuments, image_limit_s: float) -> ClusterFacts:
    """Query a cluster. Raises ClusterError if it cannot be reached, or does not accept the credentials.

    `image_limit_s`: longest wait for images, seconds; 0 tries none.
    """
    probe, site, gateway = Probe(api), plan.site, plan.site.gateway
    path, in_gateways = f"/apis/{GATEWAY_GROUP}/v1", namespace_of("gateway", site)
    privileged = {
        "verb": "use",
        "namespace": site.namespace,
        "group": _CONSTRAINTS.group,
        "name": "privileged",
    }
    privileged |= {"resource": "securitycontextconstraints"}
    version = api.get("/version")
    served = {kind: api.serves(kind) for kind in plan.kinds}
    namespaces = {
        name: probe.get(f"/api/v1/namespaces/{name}")
        for name in (site.namespace, site.pcp_namespace)
    }
    nodes = probe.get("/api/v1/nodes")
    there = {name for name, answer in namespaces.items() if answer.status != 404}
    return ClusterFacts(
        server=api.server,
        version=str(version.get("gitVersion", "")),
        user=_user(probe),
        denied=_denied(probe, site),
        may_make_namespaces=_allowed(
            probe, {"verb": "create", "resource": "namespaces"}
        ),
        namespaces=namespaces,
        served=served,
        versions={
            kind.group: _versions(probe, kind.group)
            for kind, found in served.items()
            if not found
        },
        gateway=probe.get(f"{path}/namespaces/{in_gateways}/gateways/{gateway.name}")
        if gateway
        else None,
        gateway_pods=probe.get(f"/api/v1/namespaces/{in_gateways}/pods", limit="1")
        if gateway
        else None,
        gateway_class=probe.get(f"{path}/gatewayclasses/{gateway.class_name}")
        if gateway and gateway.create
        else None,
        nodes=nodes,
        pods=probe.get(
            "/api/v1/pods", fieldSelector="status.phase!=Succeeded,status.phase!=Failed"
        ),
        storage_classes=probe.get("/apis/storage.k8s.io/v1/storageclasses"),
        claims=_claims(probe, plan),
        secret=_secret(probe, site),
        trials=_trials(probe, plan, served, there),
        images=try_images(probe, plan, nodes, image_limit_s)
        if image_limit_s and site.namespace in there
        else (),
        ahead=probe.ahead,
        above_constraints=api.serves(_CONSTRAINTS) and _allowed(probe, privileged),
        recorder=_installed(api, plan) if site.recorder.installed else None,
    )


def _installed(api: Api, plan: CampaignDocuments) -> InstalledFacts:
    """Ask every pod of the recorder that is installed, as a run of the campaign would."""
    specification, run = plan.cells[0].specification, (1, plan.name, PORTS, "")
    context = RunContext(specification, plan.site, *run, api=api)
    try:
        key_of(context)
        pods = listed_pods(context)
    except ClusterError as error:
        return InstalledFacts(str(error), {})
    faults = map_concurrently(pods, functools.partial(installed_fault, context))
    nodes = (str(pod["spec"].get("nodeName", "")) for pod in pods)
    return InstalledFacts("", dict(zip(nodes, faults, strict=True)))


def _user(probe: Probe) -> str:
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    answer = probe.request(
        "POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {}, review
    )
    return (
        str(answer.body.get("status", {}).get("userInfo", {}).get("username", ""))
        if answer.ok
        else ""
    )


def _allowed(probe: Probe, attributes: Mapping[str, str]) -> bool:
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": dict(attributes)},
    }
    return bool(
        probe.request("POST", _REVIEW, {}, review)
        .body.get("status", {})
        .get("allowed", False)
    )


def _denied(probe: Probe, site: Cluster) -> list[Denied]:
    """Return the verbs of the permissions table that the account lacks."""
    wanted = [
        (Denied(permission, verb, namespace_of(permission.place, site)), name)
        for permission in permissions(site)
        for verb in permission.verbs
        for name in permission.names or ("",)
    ]

    def missing(question: tuple[Denied, str]) -> bool:
        entry, name = question
        resource, _, subresource = entry.permission.resource.partition("/")
        attributes = {
            "namespace": entry.namespace,
            "verb": entry.verb,
            "group": entry.permission.group,
        }
        attributes |= {"resource": resource, "subresource": subresource, "name": name}
        return not _allowed(
            probe, {key: value for key, value in attributes.items() if value}
        )

    answers = zip(wanted, map_concurrently(wanted, missing), strict=True)
    return list(dict.fromkeys(entry for (entry, _), lacks in answers if lacks))


def _versions(probe: Probe, group: str) -> list[str]:
    if not group:
        return ["v1"]
    found = probe.get(f"/apis/{group}").body.get("versions", [])
    return [str(entry["version"]) for entry in found]


def _claims(probe: Probe, plan: CampaignDocuments) -> dict[str, Answer]:
    names = {claim.name for claim in claims(plan.documents)}
    if plan.site.model_cache is not None and plan.site.model_cache.claim is not None:
        names.add(plan.site.model_cache.claim)
    path = f"/api/v1/namespaces/{plan.site.namespace}/persistentvolumeclaims"
    return {name: probe.get(f"{path}/{name}") for name in sorted(names)}


def _secret(probe: Probe, site: Cluster) -> Answer | None:
    if site.token_secret is None:
        return None
    answer = probe.get(
        f"/api/v1/namespaces/{site.namespace}/secrets/{site.token_secret.name}"
    )
    if not answer.ok:
        return answer
    return Answer(
        answer.status, {"data": dict.fromkeys(answer.body.get("data") or {}, "")}
    )


def _trials(
    probe: Probe,
    plan: CampaignDocuments,
    served: Mapping[Kind, bool],
    namespaces: set[str],
) -> list[Trial]:
    """Send every document, and every pod of one, as a dry run: admission and validation answer as they would later."""
    accounts = {
        one["metadata"]["name"]
        for one in plan.documents
        if one["kind"] == "ServiceAccount"
    }
    within = [
        one
        for one in plan.documents
        if one["metadata"].get("namespace", "") in namespaces
    ]

    def document(one: Mapping[str, Any]) -> Trial | None:
        # Binding a role requires having its rights, and a dry run makes no role that the API server could check.
        if not served[kind_of(one)] or one["kind"] == "RoleBinding":
            return None
        namespace = one["metadata"].get("namespace", "")
        path = kind_of(one).path(namespace, one["metadata"]["name"])
        answer = probe.request(
            "PATCH", path, {**_DRY_RUN, "force": "true"}, one, "apply"
        )
        return Trial(described(one), namespace, False, answer)

    def pod(need: PodNeed) -> Trial:
        path = f"/api/v1/namespaces/{need.namespace}/pods"
        answer = probe.request("POST", path, _DRY_RUN, _pod(need, accounts))
        return Trial(f"pod of {need.owner}", need.namespace, True, answer)

    found = [trial for trial in map_concurrently(within, document) if trial is not None]
    # The server accepts a DaemonSet with a warning even if its pods would be refused, so pods are sent as well.
    return found + map_concurrently(
        [need for need in pod_needs(within) if need.owner.split()[0] != "Pod"], pod
    )


def _pod(need: PodNeed, accounts: set[str]) -> dict[str, Any]:
    """Return one pod of a document; with the default account if its own is one that the campaign has yet to make."""
    spec = dict(need.spec)
    if spec.get("serviceAccountName") in accounts:
        del spec["serviceAccountName"]
    # What the controllers would fill in.
    spec.setdefault("restartPolicy", "Always")
    return pod_like(
        need, need.namespace, need.template.get("metadata", {}).get("labels", {}), spec
    )
