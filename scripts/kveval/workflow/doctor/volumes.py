"""Whether a cluster can make the volumes that a campaign asks for."""

from collections.abc import Iterator, Mapping
from typing import Any

from kveval.campaign.sizing import GIB
from kveval.engines.kubernetes.api.kinds import annotations_of
from kveval.engines.kubernetes.api.probe import Answer
from kveval.engines.kubernetes.manifests.requirements import Claim, claims, quantity
from kveval.host.findings import FindingRow, error, ok, warning
from kveval.workflow.doctor.documents import CampaignDocuments

_DEFAULT = (
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
)
# Provisioners of block devices and of folders on one node: a ReadWriteMany claim stays Pending for ever.
ONE_NODE_ONLY = (
    "ebs.csi.aws.com",
    "kubernetes.io/aws-ebs",
    "pd.csi.storage.gke.io",
    "kubernetes.io/gce-pd",
    "disk.csi.azure.com",
    "kubernetes.io/azure-disk",
    "cinder.csi.openstack.org",
    "rancher.io/local-path",
    "k8s.io/minikube-hostpath",
    "topolvm.io",
    "topolvm.cybozu.com",
    "openebs.io/local",
    "vpc.block.csi.ibm.io",
    # On OpenShift with the operator's namespace before it.
    "rbd.csi.ceph.com",
)
Classes = Mapping[str, Mapping[str, Any]]
"""Storage classes by name."""
_SHOW = "`kubectl get storageclass` shows what there is"


def volumes(
    plan: CampaignDocuments, classes: Answer, there: Mapping[str, Answer]
) -> list[FindingRow]:
    """Return the findings on claims, their classes and the model cache; `there`: existing claims by name."""
    by_name = (
        {entry["metadata"]["name"]: entry for entry in classes.body.get("items", [])}
        if classes.ok
        else {}
    )
    return [
        *_existing(plan, by_name, there),
        *_asked(plan, classes, by_name, there),
        *_one_node(plan),
    ]


def _existing(
    plan: CampaignDocuments, classes: Classes, there: Mapping[str, Answer]
) -> Iterator[FindingRow]:
    cache = plan.site.model_cache
    full = any(not cell.specification.miniature for cell in plan.cells)
    if cache is None:
        if full:
            said = "no cluster.model_cache: every server downloads its weights before every run"
            fix = "cluster.model_cache: {size: 200Gi}, or {claim: NAME} of an existing one"
            yield warning("model cache", said, fix)
        return
    if cache.claim is None:
        return
    answer = there[cache.claim]
    name = f"claim {plan.site.namespace}/{cache.claim}"
    if answer.status == 404:
        fix = f"cluster.model_cache: {{size: 200Gi}}; or kubectl -n {plan.site.namespace} get pvc"
        yield error("model cache", f"there is no {name}", fix)
    elif not answer.ok:
        yield warning(
            "model cache",
            f"{name} cannot be read: {answer.message}",
            "the permission above",
        )
    else:
        yield _state("model cache", name, answer.body, classes)


def _state(
    check: str, name: str, claim: Mapping[str, Any], classes: Classes
) -> FindingRow:
    phase = claim.get("status", {}).get("phase", "unknown")
    modes = claim.get("spec", {}).get("accessModes", [])
    size = quantity(claim.get("status", {}).get("capacity", {}).get("storage")) / GIB
    said = f"{name} is {phase}, {size:.0f} GiB, {', '.join(modes)}"
    if phase == "Lost":
        return error(check, said, "a new claim: its volume is gone", "lost")
    # A claim that names no class gets the default one, as soon as there is one; "" is none at all.
    named = claim.get("spec", {}).get("storageClassName")
    of = classes.get(
        named if named is not None else next(iter(_defaults(classes)), ""), {}
    )
    if phase == "Pending" and of.get("volumeBindingMode") != "WaitForFirstConsumer":
        space, _, one = name.removeprefix("claim ").partition("/")
        fix = f"kubectl -n {space} describe pvc {one}   (class, access mode, quota: servers stay Pending without it)"
        return error(
            check, f"{said}: nothing has made its volume", fix, "unbound", claim=name
        )
    return ok(check, said, "there", claim=name, phase=phase, size_gib=size, modes=modes)


def _asked(
    plan: CampaignDocuments,
    classes: Answer,
    by_name: Classes,
    there: Mapping[str, Answer],
) -> Iterator[FindingRow]:
    asked = claims(plan.documents)
    yield from (
        _made(claim, there[claim.name].body, by_name)
        for claim in asked
        if there[claim.name].ok
    )
    new = [claim for claim in asked if not there[claim.name].ok]
    if new and not classes.ok:
        fix = (
            "the permission above; or cluster.storage_class, if the claims stay Pending"
        )
        yield warning(
            "storage", f"classes cannot be read: {classes.message}", fix, "hidden"
        )
    else:
        yield from sorted(
            {_of_class(claim, by_name) for claim in new},
            key=lambda finding: finding.level,
        )


def _made(claim: Claim, made: Mapping[str, Any], classes: Classes) -> FindingRow:
    """Judge a claim that an earlier run has made."""
    name, modes = (
        f"claim {claim.namespace}/{claim.name}",
        tuple(made.get("spec", {}).get("accessModes", claim.modes)),
    )
    if modes != claim.modes:
        said = f"{name} is {', '.join(modes)}, and {', '.join(claim.modes)} is asked for, which cannot be changed"
        fix = "cluster.model_cache.access as it was; or kveval teardown, which removes the claim with its weights"
        return error("storage", said, fix, "other_mode", there=modes, asked=claim.modes)
    return _state("storage", name, made, classes)


def _one_node(plan: CampaignDocuments) -> Iterator[FindingRow]:
    """Warn if several servers share a volume that is on one node, because all of them then run there."""
    cache, replicas = (
        plan.site.model_cache,
        max(cell.specification.on_cluster.replicas for cell in plan.cells),
    )
    if (
        cache is not None
        and cache.access == "ReadWriteOnce"
        and plan.site.slots * replicas > 1
    ):
        fix = "cluster.model_cache.access: ReadWriteMany, with a class that can be shared; or one server at a time"
        said = f"the cache of weights is on one node at a time: all of {plan.site.slots} x {replicas} servers go there"
        yield warning(
            "storage", said, fix, "one_node", slots=plan.site.slots, replicas=replicas
        )


def _defaults(classes: Classes) -> list[str]:
    annotations = {name: annotations_of(entry) for name, entry in classes.items()}
    return [name for name, noted in annotations.items() if _is_default(noted)]


def _is_default(annotations: Mapping[str, str]) -> bool:
    return any(annotations.get(key) == "true" for key in _DEFAULT)


def _of_class(claim: Claim, classes: Classes) -> FindingRow:
    wanted = claim.storage_class
    if wanted is None:
        defaults = _defaults(classes)
        if not defaults:
            fix = f"cluster.storage_class: NAME; {_SHOW}"
            return error(
                "storage",
                "the cluster has no default storage class",
                fix,
                "no_default_class",
            )
        wanted = defaults[0]
    elif wanted not in classes:
        said = f"there is no storage class {wanted}"
        return error(
            "storage", said, f"cluster.storage_class; {_SHOW}", "no_such_class"
        )
    provisioner = classes[wanted].get("provisioner", "")
    said = f"class {wanted} ({provisioner}) for {', '.join(claim.modes)}"
    if "ReadWriteMany" in claim.modes and provisioner.endswith(ONE_NODE_ONLY):
        fix = "a class that can be shared (NFS, CephFS, Filestore, EFS) as cluster.storage_class; or"
        fix += " cluster.model_cache.access: ReadWriteOnce"
        return error(
            "storage",
            f"{said}: its volumes are for one node at a time",
            fix,
            "one_node_only",
        )
    return ok(
        "storage",
        said,
        "to_be_made",
        storage_class=wanted,
        provisioner=provisioner,
        modes=claim.modes,
    )
