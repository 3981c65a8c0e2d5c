"""Small plans, documents and answers of a cluster, for the tests of what is made of them."""

import functools

from msgspec.structs import replace
from tests.support.paths import CONFIG

from kveval.campaign.site import Cluster
from kveval.configuration.loading import load_config
from kveval.engines.kubernetes.api.kinds import Kind
from kveval.engines.kubernetes.api.probe import Answer, Bounds
from kveval.workflow.doctor.cluster_facts import ClusterFacts
from kveval.workflow.doctor.documents import CampaignDocuments, CellPlan

GIB = 2**30
GPU = "nvidia.com/gpu"
SITE = {"namespace": "kv", "pcp_namespace": "kv-pcp", "address": "service"}


def deployment(name="server", gpus=2, memory="64Gi", replicas=1, shm="8Gi", **pod):
    """A model server's Deployment as a campaign renders it, as far as anything here looks at it."""
    container = {
        "name": "server",
        "image": "vllm:1",
        "resources": {
            "limits": {GPU: str(gpus), "memory": memory},
            "requests": {"cpu": "500m"},
        },
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    spec = {
        "initContainers": [
            {
                "name": "wait",
                "image": "busybox",
                "resources": {"requests": {"cpu": "2"}},
            }
        ],
        "containers": [
            container,
            {
                "name": "side",
                "image": "side:1",
                "resources": {"limits": {"memory": "1Gi"}},
            },
        ],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": shm}}]
        if shm
        else [],
        **pod,
    }
    template = {
        "metadata": {"labels": {"kveval.dev/component": "model-server"}},
        "spec": spec,
    }
    metadata = {"name": name, "namespace": "kv"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {"replicas": replicas, "template": template},
    }


def claim(name="results", storage_class=None, modes=("ReadWriteOnce",), size="20Gi"):
    spec = {"accessModes": list(modes), "resources": {"requests": {"storage": size}}}
    spec |= {"storageClassName": storage_class} if storage_class else {}
    metadata = {"name": name, "namespace": "kv"}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata,
        "spec": spec,
    }


def daemon_set():
    pod = {
        "hostPID": True,
        "containers": [
            {"name": "pmcd", "image": "pcp:1", "securityContext": {"privileged": True}}
        ],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "recorder", "namespace": "kv-pcp"},
        "spec": {
            "template": {
                "metadata": {"labels": {"kveval.dev/component": "recorder"}},
                "spec": pod,
            }
        },
    }


def specification(tier_gib=10, ranks=2, weights="full", vllm="0.23.0", route="service"):
    """A specification that has what the checks look at: a native tier that vLLM pins itself."""
    made = _any_campaign().specification(_any_campaign().cells[0])
    return replace(
        made,
        deployment=replace(made.deployment, route=route),
        weights=weights,
        versions={"vllm": vllm},
        argv=("--kv-transfer-config", '{"kv_connector":"OffloadingConnector"}'),
        budget=replace(made.budget, tier_bytes=tier_gib * GIB),
        model=made.model.model_copy(
            update={"tensor_parallel_size": ranks, "kv_bytes_per_token": 114688}
        ),
    )


@functools.cache
def _any_campaign():
    return load_config(CONFIG / "campaigns" / "cluster-first.yaml", CONFIG)


def plan(*cells, site=None, documents=()):
    """A plan of cells, each given as (path, specification, documents)."""
    route = "gateway" if "gateway" in (site or {}) else "service"
    made = cells or (
        ("M/native-offload/10000", specification(route=route), (deployment(),)),
    )
    return CampaignDocuments(
        name="first",
        site=Cluster.model_validate(SITE | (site or {})),
        cells=tuple(
            CellPlan(path, spec, tuple(serving), tuple(documents))
            for path, spec, serving in made
        ),
        recording=(daemon_set(),),
        releases=(_any_campaign().catalogue.releases["llm-d-0.8.0"],),
    )


def node(name="n1", gpus=8, memory_gib=512, cpus=64, ready="True", **changes):
    """A Node as the API has it."""
    return {
        "metadata": {"name": name, "labels": changes.get("labels", {})},
        "spec": {
            "taints": changes.get("taints", []),
            "unschedulable": changes.get("cordoned", False),
        },
        "status": {
            "allocatable": {"memory": f"{memory_gib}Gi", "cpu": str(cpus)}
            | ({GPU: str(gpus)} if gpus else {}),
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }


def listed(*things):
    return Answer(200, {"items": list(things)})


def refused(status, message):
    return Answer(status, {"kind": "Status", "message": message})


def gateway(programmed="True", addresses=("10.0.0.1",), routes="All"):
    return Answer(
        200,
        {
            "metadata": {"namespace": "istio"},
            "spec": {
                "listeners": [{"allowedRoutes": {"namespaces": {"from": routes}}}]
            },
            "status": {
                "addresses": [{"value": address} for address in addresses],
                "conditions": [
                    {"type": "Programmed", "status": programmed, "message": "why"}
                ],
            },
        },
    )


DEPLOYMENT = Kind("apps/v1", "Deployment")
FACTS = ClusterFacts(
    server="https://10.0.0.9:6443",
    version="v1.34.1-gke.100",
    ahead=Bounds(-0.1, 0.2),
    user="ada",
    denied=(),
    may_make_namespaces=True,
    namespaces={
        name: Answer(200, {"metadata": {"labels": {}}}) for name in ("kv", "kv-pcp")
    },
    served={DEPLOYMENT: True},
    versions={},
    gateway=None,
    gateway_class=None,
    gateway_pods=None,
    nodes=listed(node()),
    pods=listed(
        {
            "metadata": {"name": "dcgm", "labels": {"app": "nvidia-dcgm-exporter"}},
            "spec": {"nodeName": "n1", "containers": []},
        }
    ),
    storage_classes=listed(
        {
            "metadata": {
                "name": "fast",
                "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
            },
            "provisioner": "ebs.csi.aws.com",
        }
    ),
    claims={},
    secret=None,
    trials=(),
    images=(),
)
"""A cluster where everything is as it should be."""
