"""The section of a campaign about the cluster it runs on: facts of the site, which do not define a measurement."""

import ipaddress
import re
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    StrictBool,
    StringConstraints,
    model_validator,
)

from kveval.host.values import (
    CountInt,
    Mistake,
    PositiveInt,
    PositiveNumber,
    Strict,
    Text,
)

Label = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")
]
"""Name of a namespace, account, ... (RFC 1123 label)."""
ObjectName = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?$")
]
SecretKey = Annotated[str, StringConstraints(pattern=r"^[-._a-zA-Z0-9]+$")]
Quantity = Annotated[
    str, StringConstraints(pattern=r"^[1-9][0-9]*(Ki|Mi|Gi|Ti|k|M|G|T)?$")
]
"""Bytes as Kubernetes writes them: 20Gi."""
_LABEL_WORD = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
LabelKey = Annotated[
    str,
    StringConstraints(
        pattern=rf"^([a-z0-9]([-.a-z0-9]{{0,251}}[a-z0-9])?/)?{_LABEL_WORD}$"
    ),
]
LabelValue = Annotated[str, StringConstraints(pattern=rf"^({_LABEL_WORD})?$")]
AccessMode = Literal["ReadWriteOnce", "ReadWriteMany"]
ROUTES = ("router", "gateway", "service")
"""Values of `address` that are not a URL."""
_OWN_LABELS = (
    "kveval.dev/",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/name",
)
Component = Literal[
    "model-server", "epp", "redis", "valkey", "load", "download", "recorder"
]
"""The purpose of a pod: the value of its label kveval.dev/component."""


def _with_port(text: str) -> str:
    places = set(re.findall(r"\{(\w*)\}", text))
    if not re.match(r"^https?://[^\s/]+", text) or places - {
        "port",
        "service",
        "namespace",
    }:
        raise ValueError(
            f"{text!r} is not a URL; valid is for instance http://127.0.0.1:{{port}}"
        )
    return text.rstrip("/")


def _network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text))
    except ValueError as error:
        raise ValueError(
            f"{error}; valid is for instance 10.129.0.0/23 or 10.0.0.7"
        ) from error


Network = Annotated[str, AfterValidator(_network)]
"""Addresses as network/prefix length; a single address as itself."""
SourceUrl = Annotated[str, StringConstraints(pattern=r"^https?://\S+$")]
Url = Annotated[str, AfterValidator(_with_port)]
"""An http(s) URL that may contain {port}, {service} and {namespace}."""


class KeyOfSecret(Strict):
    """The place of a token: a Secret in the namespace, and a key in it."""

    name: ObjectName = Field(description="name of the Secret")
    key: SecretKey = Field("token", description="key in it")


class Gateway(Strict):
    """The Gateway through which requests come: an existing one, or one to be created."""

    name: ObjectName = Field(description="name of the Gateway")
    namespace: Label | None = Field(
        None, description="its namespace; that of the campaign when left out"
    )
    class_name: ObjectName | None = Field(None, alias="class")
    """its GatewayClass, if it is to be created: istio, openshift-default, gke-l7-rilb, ..."""
    controller: Text | None = None
    """controllerName of its class; read from the cluster when left out"""
    create: StrictBool = Field(
        False, description="create it, and remove it with the campaign's other objects"
    )
    url: Url | None = None
    """its address for clients in the cluster; read from its status when left out"""

    @property
    def provider(self) -> Literal["istio", "gke", "none"]:
        """The provider, if it needs manifests of its own: by the controller of the class, else by the class's name."""
        known: dict[str, Literal["istio", "gke"]] = {
            "istio.io/": "istio",
            "openshift.io/gateway-controller": "istio",
            "networking.gke.io/": "gke",
            **(
                {}
                if self.controller
                else {"istio": "istio", "openshift": "istio", "gke-": "gke"}
            ),
        }
        name = self.controller or self.class_name or ""
        return next(
            (provider for begin, provider in known.items() if name.startswith(begin)),
            "none",
        )

    @model_validator(mode="after")
    def _creatable(self) -> Self:
        if self.create and self.class_name is None:
            raise Mistake(
                "create needs class, the GatewayClass of the new Gateway",
                "gateway_class_missing",
            )
        return self


class ModelCache(Strict):
    """Volume that keeps downloaded weights between cells: an existing claim, or one to be created."""

    claim: ObjectName | None = Field(
        None, description="an existing PersistentVolumeClaim; it is never deleted"
    )
    size: Quantity | None = Field(None, description="size of a claim to be created")
    access: AccessMode = "ReadWriteMany"
    """ReadWriteOnce: the campaign's servers stay on one node at a time, and the load gets its tokenizer from the hub;
    if the hub cannot be reached, use ReadWriteMany"""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.claim is None) == (self.size is None):
            raise Mistake(
                "needs either claim, an existing one, or size, of one to be created",
                "claim_or_size",
            )
        return self


class FileVolume(Strict):
    """The volume that arms with a tier of files write to: one for each pod, or one for all replicas."""

    size: Quantity = Field("200Gi", description="size of each volume")
    storage_class: ObjectName | None = None
    """storage class of the disk under test; the node's own disk (emptyDir) when left out"""
    access: AccessMode = "ReadWriteOnce"
    """ReadWriteOnce: a volume for each pod; ReadWriteMany: one for all replicas of a run"""

    @model_validator(mode="after")
    def _shareable(self) -> Self:
        if self.access == "ReadWriteMany" and self.storage_class is None:
            message = "access ReadWriteMany needs storage_class: a node's own disk is not shared"
            raise Mistake(message, "shared_class_missing")
        return self


class Toleration(Strict):
    """A taint that the pods tolerate."""

    key: Text | None = Field(
        None, description="key of the taint; every key when left out"
    )
    operator: Literal["Exists", "Equal"] = Field(
        "Exists", description="whether value is compared"
    )
    value: str | None = Field(None, description="value of the taint")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """effect of the taint; every effect when left out"""


class NetworkPeer(Strict):
    """Who beside the run may connect to its servers: addresses, or all pods of a namespace."""

    cidr: Network | None = Field(None, description="addresses: 10.129.0.0/23")
    namespace: Label | None = Field(None, description="a namespace, by its name")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.cidr is None) == (self.namespace is None):
            raise Mistake("needs either cidr or namespace", "cidr_or_namespace")
        return self


class LoadPods(Strict):
    """The load generator's pods: one sends requests while the next one starts."""

    cpus: PositiveInt = Field(
        3,
        description="cores requested by each pod: one for each worker process, and one more",
    )
    memory: Quantity = Field("2Gi", description="memory requested by each pod")
    memory_limit: Quantity = "32Gi"
    """memory limit of each pod; every request is kept in memory until the level ends"""
    node_selector: dict[Text, str] = Field(
        {}, description="labels of nodes for the load"
    )
    tolerations: tuple[Toleration, ...] = ()
    """taints that these pods tolerate; without any, nodes with a taint such as GPU nodes are avoided"""

    @property
    def as_host_cpus(self) -> int:
        """CPUs of a host on which GuideLLM starts one worker process fewer than these pods have cores."""
        return max(1, 4 * (self.cpus - 1))


class RecorderConfig(Strict):
    """How the system is recorded on the nodes."""

    image: Text = Field(
        "ghcr.io/performancecopilot/pcp:7.2.0",
        description="image of Performance Co-Pilot",
    )
    sources: dict[Literal["dcgm", "gateway"], SourceUrl] = Field({})
    """addresses of Prometheus exporters of the site, by name: dcgm, gateway; {host} is the node"""
    interval_s: PositiveNumber = Field(1.0, description="seconds between samples")
    installed: StrictBool = False
    """it is there already, by an administrator, and the account may make no pods beside it"""


class Cluster(Strict):
    """The site of a campaign with engine kubernetes."""

    context: Text | None = Field(
        None, description="context of the kubeconfig; the current one when left out"
    )
    kubeconfig: Text | None = Field(
        None, description="kubeconfig file; KUBECONFIG or ~/.kube/config when left out"
    )
    namespace: Label = Field(
        "kveval", description="namespace of everything but the recorder; it must exist"
    )
    pcp_namespace: Label = Field(
        "kveval-pcp",
        description="namespace of the recorder, whose pods need privileges",
    )
    service_account: Label | None = None
    """service account of the pods; the namespace's default when left out"""
    image_pull_secrets: tuple[ObjectName, ...] = Field(
        (), description="names of Secrets for private registries"
    )
    token_secret: KeyOfSecret | None = None
    """the Secret with the model hub's token; it reaches the pods by reference only"""
    storage_class: ObjectName | None = None
    """storage class of created claims; the cluster's default when left out"""
    model_cache: ModelCache | None = None
    """volume that keeps weights between cells; without it every server downloads them"""
    file_volume: FileVolume = Field(
        FileVolume.model_validate({}), description="the disk under arms with files"
    )
    gateway: Gateway | None = Field(
        None, description="the Gateway for address: gateway, and for llm-d 0.4.0"
    )
    address: Literal["router", "gateway", "service"] | Url = "router"
    """what the load is sent to: llm-d's router (an endpoint picker with a proxy of its own, or behind the gateway if
    the release has no such proxy), the gateway, the server's Service, or a URL with {port} if Services cannot be
    reached"""
    router_requests: dict[Literal["cpu", "memory"], Text] | None = None
    """requests of each container of the router, if nodes have less than llm-d's chart asks for: 8 CPUs and 8Gi for the
    endpoint picker, 4 and 8Gi each for proxy and tokenizer"""
    shared_network: StrictBool = False
    """for test clusters whose pods share one address: every server gets its own port"""
    node_selector: dict[Text, str] = Field({})
    """labels of nodes for servers, downloads and the recorder; if the servers have no GPUs, also for stores and
    routers"""
    tolerations: tuple[Toleration, ...] = Field(
        (), description="taints that these pods tolerate"
    )
    gpu_resource: Text = Field(
        "nvidia.com/gpu", description="resource by which pods request GPUs"
    )
    user_id: CountInt | None = 1000
    """user id of the pods, not root; null if the cluster assigns one (OpenShift)"""
    labels: dict[LabelKey, LabelValue] = Field({})
    """labels of every object and of every pod, such as the queue of Kueue or a cost centre"""
    annotations: dict[Text, str] = Field({}, description="annotations of every pod")
    component_annotations: dict[Component, dict[Text, str]] = Field({})
    """annotations of the pods of one component"""
    priority_class: ObjectName | None = None
    """PriorityClass of every pod; the cluster's default when left out"""
    pause_image: Text = "registry.k8s.io/pause:3.10"
    """image that a policy on images sees in the Jobs by which a run ends; they make no pod, and it is never pulled"""
    network_peers: tuple[NetworkPeer, ...] | None = ()
    """who beside the run and the cluster's own API servers may connect to the servers, whose endpoints can empty and
    stop them; null: every pod of the cluster. Stores are for the run alone"""
    recorder: RecorderConfig = Field(
        RecorderConfig.model_validate({}), description="how the system is recorded"
    )
    load: LoadPods = Field(
        LoadPods.model_validate({}), description="the pods of the load generator"
    )
    prompts_ahead: StrictBool = True
    """make the next level's prompts while a level runs; false if the load's nodes have no cores to spare"""
    slots: PositiveInt = Field(1, description="number of cells measured at once")
    share_nodes: StrictBool = False
    """measure at the same time as other campaigns on a node, instead of after them"""
    schedule_timeout_s: PositiveNumber = 1200.0
    """longest wait for a node; one from an autoscaler takes 5 to 15 minutes"""
    rollout_timeout_s: PositiveNumber = Field(
        1800.0, description="longest start of a server, including its download"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.address == "gateway" and self.gateway is None:
            message = "address: gateway needs gateway with its name; address: router works without one"
            raise Mistake(message, "gateway_missing")
        if self.namespace == self.pcp_namespace:
            message = "pcp_namespace must differ from namespace, because the recorder's pods need privileges in it"
            raise Mistake(message, "one_namespace")
        if taken := [name for name in self.labels if name.startswith(_OWN_LABELS)]:
            message = f"labels: {', '.join(taken)} is set by the workflow, which finds its objects by it"
            raise Mistake(message, "label_taken")
        return self

    def annotations_of(self, component: str) -> dict[str, str]:
        """Return the annotations of a component's pods: those of all pods, and its own."""
        own: dict[str, dict[str, str]] = dict(self.component_annotations)  # type: ignore[arg-type]
        return {**self.annotations, **own.get(component, {})}
