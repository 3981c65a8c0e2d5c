"""Whether a cluster can run a campaign: findings from its facts, each with the command or the key that fixes it."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from kveval.engines.kubernetes.api.kinds import Document, Kind, condition
from kveval.engines.kubernetes.api.probe import Answer
from kveval.engines.kubernetes.installed_recorder import INSTALL
from kveval.engines.kubernetes.manifests.permissions import (
    GATEWAY_GROUP,
    OBJECTIVE_GROUPS,
    POOL_GROUP,
    namespace_of,
    permissions,
)
from kveval.engines.kubernetes.manifests.requirements import (
    accepts,
    node_of,
    untolerated,
)
from kveval.engines.kubernetes.nodes import fingerprint, fitting
from kveval.engines.kubernetes.routes import is_dcgm, unrecorded
from kveval.engines.kubernetes.wait.diagnosis import refusal_fix
from kveval.host.findings import FindingRow, error, ok, pluralize, warning
from kveval.workflow.doctor.capacity import SCALED, capacity, kept_out
from kveval.workflow.doctor.cluster_facts import (
    ClusterFacts,
    Denied,
    InstalledFacts,
    Trial,
)
from kveval.workflow.doctor.documents import CampaignDocuments
from kveval.workflow.doctor.image_pulls import ImageTrial
from kveval.workflow.doctor.volumes import volumes

OLDEST, NEWEST = (1, 25), (1, 37)
"""Releases of Kubernetes whose schemas the manifests are validated against."""
CLOCK_LIMIT_S = 1.0
_ENFORCE = "pod-security.kubernetes.io/enforce"
_CLOCKS = "synchronise both (chronyc tracking shows by how much): times of load and recording are compared"
_RELEASES = (
    "kubectl apply -f https://github.com/kubernetes-sigs/{}/releases/download/{}/{}"
)
_INSTALL = {
    "networking.istio.io": "install Istio; or cluster.gateway.class, of the existing Gateway",
    "networking.gke.io": "cluster.gateway.class, of the existing Gateway: this cluster is not GKE",
}


def examine(
    plan: CampaignDocuments, facts: ClusterFacts, grant: str
) -> list[FindingRow]:
    """Return the findings that follow from the facts; `grant`: the command that grants what the account needs."""
    return [
        _api(facts),
        *_permissions(plan, facts.denied, grant),
        *_namespaces(plan, facts, grant),
        *_kinds(plan, facts),
        *_gateway(plan, facts),
        *capacity(plan, facts.nodes, facts.pods),
        *_hardware(plan, facts.nodes),
        *volumes(plan, facts.storage_classes, facts.claims),
        *_secret(plan, facts.secret),
        *_images(facts.images, plan.site.namespace),
        *_exporters(plan, facts),
        *_recorder(plan, facts),
        *_trials(plan, facts),
        *_clocks(facts),
    ]


def _api(facts: ClusterFacts) -> FindingRow:
    said = f"{facts.server} answers: Kubernetes {facts.version}" + (
        f", as {facts.user}" if facts.user else ""
    )
    numbers = re.match(r"v?(\d+)\.(\d+)", facts.version)
    release = (int(numbers[1]), int(numbers[2])) if numbers else None
    if release is not None and OLDEST <= release <= NEWEST:
        return ok("API server", said, version=facts.version, user=facts.user)
    oldest, newest = (f"{major}.{minor}" for major, minor in (OLDEST, NEWEST))
    fix = f"use {oldest} to {newest}, which the manifests are validated for; or see the dry run below"
    return warning("API server", said, fix)


def _permissions(
    plan: CampaignDocuments, denied: Sequence[Denied], grant: str
) -> Iterator[FindingRow]:
    table = permissions(plan.site)
    if not denied:
        total = sum(len(permission.verbs) for permission in table)
        yield ok("permissions", f"all {total} verbs on {len(table)} resources")
        return
    for permission in table:
        verbs = [entry.verb for entry in denied if entry.permission == permission]
        if verbs:
            place = namespace_of(permission.place, plan.site)
            where = f"in namespace {place}" if place else "in the cluster"
            names = f" {', '.join(permission.names)}" if permission.names else ""
            said = f"may not {', '.join(verbs)} {permission.qualified}{names} {where}: {permission.why}"
            judged = warning if permission.advisory else error
            yield judged(
                "permissions",
                said,
                grant,
                verbs=verbs,
                resource=permission.qualified,
                names=permission.names,
            )


def _namespaces(
    plan: CampaignDocuments, facts: ClusterFacts, grant: str
) -> Iterator[FindingRow]:
    for name, answer in facts.namespaces.items():
        if (
            answer.status == 404
            and name == plan.site.pcp_namespace
            and facts.may_make_namespaces
        ):
            yield ok("namespace", f"{name} does not exist and will be created")
        elif answer.status == 404:
            fix = f"kubectl create namespace {name}   (or {grant})"
            yield error("namespace", f"{name} does not exist", fix)
        elif answer.ok and "deletionTimestamp" in answer.body.get("metadata", {}):
            yield error(
                "namespace",
                f"{name} is being deleted",
                f"wait: kubectl wait --for=delete namespace/{name}",
            )
        elif answer.ok:
            yield ok("namespace", f"{name} exists")
        else:
            yield warning(
                "namespace", f"{name} cannot be read: {answer.message}", grant
            )


def _install(plan: CampaignDocuments, group: str) -> str:
    """Return the command that installs the kinds of a group, in the release that the campaign's router needs."""
    for release in plan.releases:
        if group == GATEWAY_GROUP:
            command = _RELEASES.format(
                "gateway-api", release.router.gateway_api, "standard-install.yaml"
            )
            return f"{command}   (OpenShift has them: make a GatewayClass of its controller)"
        if group in (POOL_GROUP, *OBJECTIVE_GROUPS):
            extension = release.router.inference_extension
            return _RELEASES.format(
                "gateway-api-inference-extension", extension, "manifests.yaml"
            )
    return _INSTALL.get(group, "use a cluster that serves it")


def _kinds(plan: CampaignDocuments, facts: ClusterFacts) -> Iterator[FindingRow]:
    missing: dict[tuple[str, str], list[Kind]] = {}
    for kind, served in facts.served.items():
        if not served:
            missing.setdefault((kind.group, kind.api_version), []).append(kind)
    for (group, version), lacking in missing.items():
        names = ", ".join(kind.kind for kind in lacking)
        others = ", ".join(facts.versions.get(group, ()))
        said = f"the cluster has no {names} of {version}" + (
            f", only {others}" if others else ""
        )
        yield error(
            "kinds",
            said,
            _install(plan, group),
            kinds=[kind.kind for kind in lacking],
            wanted=version,
            served=others,
        )
    if not missing:
        custom = sorted(
            {
                kind.api_version
                for kind in facts.served
                if "." in kind.group and "k8s.io" in kind.group
            }
        )
        yield ok(
            "kinds",
            f"all {len(facts.served)} are served"
            + (f"; {', '.join(custom)}" if custom else ""),
        )


def _gateway(plan: CampaignDocuments, facts: ClusterFacts) -> Iterator[FindingRow]:
    site, answer = plan.site, facts.gateway
    used = any(one.specification.on_cluster.route == "gateway" for one in plan.cells)
    if site.gateway is None or answer is None or not used:
        return
    place = namespace_of("gateway", site)
    name, show = (
        f"{place}/{site.gateway.name}",
        f"kubectl -n {place} describe gateway {site.gateway.name}",
    )
    if answer.ok:
        yield from _gateway_state(name, answer, site.namespace, show)
    elif answer.denied:
        said = f"{name} cannot be read: {answer.message}"
        yield warning("Gateway", said, "an account that may get gateways", "hidden")
    elif not site.gateway.create:
        fix = "cluster.gateway.create: true with cluster.gateway.class; or name one of: kubectl get gateways -A"
        yield error("Gateway", f"there is no {name}", fix, "absent")
    else:
        yield from _gateway_class(str(site.gateway.class_name), facts.gateway_class)


def _gateway_class(name: str, answer: Answer | None) -> Iterator[FindingRow]:
    fix = "cluster.gateway.class; `kubectl get gatewayclasses` shows what there is"
    if answer is not None and answer.status == 404:
        yield error("Gateway", f"there is no GatewayClass {name}", fix, "no_class")
    elif answer is None or not answer.ok:
        yield warning("Gateway", f"GatewayClass {name} cannot be seen", fix, "no_class")
    elif condition(answer.body, "Accepted").get("status", "True") == "True":
        yield ok(
            "Gateway",
            f"will be made with class {name}",
            "to_be_made",
            gateway_class=name,
        )
    else:
        fix = f"kubectl describe gatewayclass {name}"
        yield error(
            "Gateway",
            f"no controller has accepted GatewayClass {name}",
            fix,
            "class_not_accepted",
        )


def _gateway_state(
    name: str, answer: Answer, namespace: str, show: str
) -> Iterator[FindingRow]:
    programmed = condition(answer.body, "Programmed")
    addresses = ", ".join(
        entry["value"] for entry in answer.body.get("status", {}).get("addresses", [])
    )
    if programmed.get("status") != "True":
        why = programmed.get("message") or "no controller has processed it"
        yield error(
            "Gateway",
            f"{name} is not programmed: {why}",
            show,
            "not_programmed",
            why=why,
        )
    elif not addresses:
        said = f"{name} is programmed and has no address"
        yield warning("Gateway", said, f"{show}; or cluster.gateway.url", "no_address")
    else:
        yield ok(
            "Gateway",
            f"{name} is programmed, at {addresses}",
            "programmed",
            addresses=addresses,
        )
    own = answer.body.get("metadata", {}).get("namespace")
    allowed = [
        listener.get("allowedRoutes", {}).get("namespaces", {}).get("from", "Same")
        for listener in answer.body.get("spec", {}).get("listeners", [])
    ]
    if own != namespace and allowed and not set(allowed) - {"Same"}:
        fix = f"kubectl edit gateway of {name}: listeners[].allowedRoutes.namespaces.from: All; or one in {namespace}"
        said = f"{name} accepts routes of its own namespace only, and the campaign's is {namespace}"
        yield error("Gateway", said, fix, "own_routes_only", namespace=namespace)


def _selected(
    plan: CampaignDocuments, nodes: Answer
) -> tuple[list[Document], dict[str, Any]]:
    """Return the nodes that the site selects for its servers, and its tolerations as a pod has them."""
    gpus = any(cell.specification.on_cluster.gpus for cell in plan.cells)
    there = nodes.body.get("items", []) if nodes.ok else []
    tolerations = [one.model_dump(exclude_none=True) for one in plan.site.tolerations]
    return fitting(there, plan.site, gpus=gpus), {"tolerations": tolerations}


def _hardware(plan: CampaignDocuments, nodes: Answer) -> Iterator[FindingRow]:
    """Report of how many kinds the nodes are on which a cell and its baseline may run."""
    site, (selected, tolerating) = plan.site, _selected(plan, nodes)
    there = [node for node in selected if not untolerated(node_of(node), tolerating)]
    taints = kept_out(map(node_of, selected), tolerating)
    kinds = {fingerprint([node], site.gpu_resource): node for node in reversed(there)}
    names = sorted(str(node["metadata"]["name"]) for node in kinds.values())
    if len(kinds) > 1:
        said = f"nodes of {len(kinds)} kinds fit, such as {', '.join(names)}: arms on different ones get no verdict"
        said += taints
        fix = "cluster.node_selector, with a label that those of one kind have: kubectl get nodes --show-labels"
        yield warning("hardware", said, fix, "several_kinds", nodes=names)
    elif kinds:
        yield ok(
            "hardware",
            f"the {len(there)} nodes that fit are of one kind{taints}",
            nodes=len(there),
        )


def _secret(plan: CampaignDocuments, answer: Answer | None) -> Iterator[FindingRow]:
    wanted = plan.site.token_secret
    full = any(not cell.specification.miniature for cell in plan.cells)
    if wanted is None:
        if full:
            said = "no cluster.token_secret: the hub refuses gated models and slows down downloads without a token"
            yield warning(
                "token",
                said,
                "cluster.token_secret: {name: ..., key: ...}",
                "none_named",
            )
        return
    name = f"{plan.site.namespace}/{wanted.name}"
    make = f"kubectl -n {plan.site.namespace} create secret generic {wanted.name} --from-file={wanted.key}=FILE"
    if answer is None or answer.denied:
        yield warning(
            "token", f"Secret {name} cannot be read", "the permission above", "hidden"
        )
    elif not answer.ok:
        yield error("token", f"there is no Secret {name}", make, "absent")
    elif wanted.key not in answer.body["data"]:
        keys = list(answer.body["data"])
        said = f"Secret {name} has no key {wanted.key}; its keys: {', '.join(keys) or 'none'}"
        yield error(
            "token",
            said,
            "cluster.token_secret.key",
            "no_such_key",
            key=wanted.key,
            keys=keys,
        )
    else:
        yield ok("token", f"Secret {name} has the key {wanted.key}")


def _exporters(plan: CampaignDocuments, facts: ClusterFacts) -> Iterator[FindingRow]:
    """Report the metrics of the cluster's own exporters that would not be recorded."""
    named = plan.site.recorder.sources
    deployments = [cell.specification.on_cluster for cell in plan.cells]
    proxied = any(one.route == "gateway" for one in deployments) and facts.gateway_pods
    if "gateway" not in named and proxied and proxied.denied:
        yield warning("Gateway metrics", *unrecorded("gateway"), "not_listed")
    if "dcgm" in named or not any(one.gpus for one in deployments):
        return
    pods = filter(is_dcgm, facts.pods.body.get("items", []))
    nodes = {str(pod["spec"].get("nodeName")) for pod in pods}
    if not facts.pods.ok:
        yield warning("GPU metrics", *unrecorded("dcgm"), "not_listed")
    elif not nodes:
        why = "no pod of NVIDIA's DCGM exporter is on the cluster"
        yield warning("GPU metrics", *unrecorded("dcgm", why), "none_there")
    else:
        said = f"DCGM's exporter is on {len(nodes)} nodes"
        yield ok("GPU metrics", said, nodes=len(nodes))


def _images(trials: Sequence[ImageTrial], namespace: str) -> Iterator[FindingRow]:
    fixes = {
        "refused": "server.images: {NAME: IMAGE}; for a private registry cluster.image_pull_secrets: [NAME]",
        "rejected": "what the API server says there; cluster.user_id, cluster.annotations",
        "unplaced": f"cluster.node_selector, cluster.tolerations: what the image is for has no node; {SCALED}",
    }
    for trial in trials:
        if trial.outcome in fixes:
            said = f"{trial.image} ({trial.used_by}) {trial.outcome}: {trial.message or 'no reason given'}"
            judged = warning if trial.outcome == "unplaced" else error
            fix = refusal_fix(trial.message, namespace) or fixes[trial.outcome]
            yield judged("image", said, fix, trial.outcome, image=trial.image)
    pulled = [trial for trial in trials if trial.outcome == "pulled"]
    if pulled:
        nodes = sorted({trial.node for trial in pulled if trial.node})
        slowest_s = max(trial.seconds for trial in pulled)
        where = f" on {', '.join(nodes)}" if nodes else ""
        said = f"{len(pulled)} of {len(trials)} pulled within {slowest_s:.0f} s{where}"
        yield ok(
            "images",
            said,
            pulled=len(pulled),
            tried=len(trials),
            slowest_s=slowest_s,
            nodes=nodes,
        )
    for trial in trials:
        if trial.outcome == "pulling":
            said = f"{trial.image} is still being pulled to {trial.node}: not refused in {trial.seconds:.0f} s"
            yield ok("image", said, trial.outcome, image=trial.image, node=trial.node)


def _installed(
    plan: CampaignDocuments, facts: InstalledFacts, nodes: Answer
) -> FindingRow:
    """Judge the recorder that an administrator has installed: it has to record wherever a server may be."""
    place = plan.site.pcp_namespace
    fix = f"an administrator installs and updates it by {INSTALL}; a new key is read by new pods"
    if facts.refusal:
        return error("recorder", facts.refusal, fix, "not_asked")
    selected, tolerating = _selected(plan, nodes)
    there = [node.name for node in map(node_of, selected) if accepts(node, tolerating)]
    faults = {
        node: facts.faults.get(node, "it has no pod there")
        for node in there or facts.faults
    }
    wrong = {node: fault for node, fault in faults.items() if fault}
    if wrong:
        where = "; ".join(f"on {node}, {fault}" for node, fault in wrong.items())
        said = f"the one that is installed in {place} cannot be used: {where}"
        return error("recorder", said, fix, "not_usable", nodes=wrong)
    if not faults:
        said = f"the one that is installed in {place} has no pod, and no node is there for servers"
        return warning("recorder", said, f"{fix}; {SCALED}", "not_seen")
    said = f"the one that is installed in {place} answers on {pluralize(len(faults), 'node')}, configured as here"
    return ok("recorder", said, nodes=len(faults))


def _recorder(plan: CampaignDocuments, facts: ClusterFacts) -> Iterator[FindingRow]:
    place = plan.site.pcp_namespace
    if facts.recorder is not None:
        yield _installed(plan, facts.recorder, facts.nodes)
        return
    space, tried = (
        facts.namespaces[place],
        [trial for trial in facts.trials if trial.pod and trial.namespace == place],
    )
    label = f"kubectl label --overwrite namespace {place} {_ENFORCE}=privileged"
    enforced = (space.body.get("metadata", {}).get("labels") or {}).get(_ENFORCE)
    refused = [trial for trial in tried if not trial.answer.ok]
    if refused:
        message = refused[0].answer.message
        said = f"its pods would be refused in {place}: {message}"
        fix = refusal_fix(message, place) or "what admission says there"
        if "security context constraint" in message:
            fix = f"oc adm policy add-scc-to-user privileged -z default -n {place}"
        elif "PodSecurity" in message:
            fix = label
        yield error("recorder", said, fix, "refused")
    elif enforced not in (None, "privileged"):
        said = f"{place} enforces pod security {enforced}; the recorder's pods need privileges"
        yield error("recorder", said, label, "forbidden", enforced=enforced)
    elif tried:
        yield ok(
            "recorder", f"its pods, with their privileges, would be admitted in {place}"
        )
    else:
        fix = f"kubectl create namespace {place} && {label}"
        yield warning(
            "recorder",
            f"its privileges can be tested once namespace {place} exists",
            fix,
        )


def _trials(plan: CampaignDocuments, facts: ClusterFacts) -> Iterator[FindingRow]:
    recorder = plan.site.pcp_namespace
    # Refused pods of the recorder and missing permissions have findings of their own.
    tried = [
        trial
        for trial in facts.trials
        if not (trial.pod and trial.namespace == recorder)
    ]
    wrong = [
        trial
        for trial in tried
        if not trial.answer.ok and not (facts.denied and _unauthorised(trial))
    ]
    untestable = "nothing, unless the first run is refused: this admission webhook cannot be tested"
    for said, told in _grouped((trial.answer.message, trial.what) for trial in wrong):
        if "does not support dry run" in said:
            yield warning("dry run", said, untestable, "untried", **told)
        else:
            fix = (
                refusal_fix(said, plan.site.namespace)
                or "what the API server says there"
            )
            yield error("dry run", said, fix, "refused", **told)
    warned = [
        (text, trial.what)
        for trial in tried
        if trial.answer.ok
        for text in trial.answer.warnings
    ]
    for said, told in _grouped(warned):
        yield warning(
            "dry run", said, "nothing, as long as it is a warning", "warned", **told
        )
    if facts.above_constraints:
        said = "OpenShift accepts any pod of this account: the dry run does not show whether controllers may make these"
        yield warning(
            "dry run",
            said,
            "run the doctor with the workflow's account (docs/cluster.md)",
            "administrator",
        )
    accepted = sum(trial.answer.ok for trial in tried)
    if accepted and not wrong:
        pods = sum(trial.answer.ok and trial.pod for trial in tried)
        said = f"the API server accepts {accepted - pods} documents and {pods} pods made of them"
        yield ok("dry run", said, documents=accepted - pods, pods=pods)


def _unauthorised(trial: Trial) -> bool:
    # For a new object the server gives no reason after the colon. An account may only grant rights that it has itself.
    said = trial.answer.message.strip()
    told = (
        " cannot " in said
        or said.endswith("is forbidden:")
        or "not currently held" in said
    )
    return trial.answer.denied and told


def _grouped(told: Iterable[tuple[str, str]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Group (message, document) whose messages differ in quoted names only; yield a group's text and its facts."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for message, document in told:
        groups.setdefault(re.sub(r'"[^"]*"', '""', message), []).append(
            (message, document)
        )
    for (message, document), *more in groups.values():
        others = f" (and {len(more)} more)" if more else ""
        yield (
            f"{document}{others}: {message}",
            {"document": document, "message": message, "documents": len(more) + 1},
        )


def _clocks(facts: ClusterFacts) -> Iterator[FindingRow]:
    nodes = {
        trial.node: trial.node_ahead
        for trial in facts.images
        if trial.node_ahead is not None
    }
    wrong = {
        name: bounds for name, bounds in nodes.items() if bounds.beyond(CLOCK_LIMIT_S)
    }
    for name, bounds in wrong.items():
        said = f"node {name} is {bounds.low:+.0f} to {bounds.high:+.0f} s ahead of the API server"
        yield warning(
            "clocks",
            said,
            _CLOCKS,
            "node_ahead",
            node=name,
            low_s=bounds.low,
            high_s=bounds.high,
        )
    own = facts.ahead
    if own is None:
        return
    if own.low > own.high:
        yield warning(
            "clocks",
            "the API servers behind this address disagree on the time",
            _CLOCKS,
            "servers_disagree",
        )
    elif own.beyond(CLOCK_LIMIT_S):
        said = (
            f"this host is {own.low:+.1f} to {own.high:+.1f} s ahead of the API server"
        )
        yield warning("clocks", said, _CLOCKS, "host_ahead")
    elif not wrong:
        seen = f"; so do {', '.join(sorted(nodes))}, to the second" if nodes else ""
        said = f"this host and the API server agree, to {own.low:+.2f} to {own.high:+.2f} s{seen}"
        yield ok("clocks", said, low_s=own.low, high_s=own.high)
