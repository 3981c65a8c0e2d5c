"""The section of a campaign about the cluster it runs on: facts of the site, none of which defines a measurement."""

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, StrictBool, StringConstraints, model_validator

from kveval.config.problems import Mistake
from kveval.config.types import CountInt, PositiveInt, PositiveNumber, Strict, Text

Label = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
"""Name of a namespace, account, ... (RFC 1123 label)."""
ObjectName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?$")]
SecretKey = Annotated[str, StringConstraints(pattern=r"^[-._a-zA-Z0-9]+$")]
Quantity = Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]*(Ki|Mi|Gi|Ti|k|M|G|T)?$")]
"""Bytes as Kubernetes writes them: 20Gi."""
AccessMode = Literal["ReadWriteOnce", "ReadWriteMany"]
ROUTES = ("router", "gateway", "service")
"""Addresses that are no URL."""
Component = Literal["model-server", "epp", "redis", "valkey", "load", "download", "recorder"]
"""What a pod is for: the value of its label kveval.dev/component."""


def _with_port(text: str) -> str:
    places = set(re.findall(r"\{(\w*)\}", text))
    if not re.match(r"^https?://[^\s/]+", text) or places - {"port", "service", "namespace"}:
        raise ValueError(f"{text!r} is no URL; valid is for instance http://127.0.0.1:{{port}}")
    return text.rstrip("/")


SourceUrl = Annotated[str, StringConstraints(pattern=r"^https?://\S+$")]
Url = Annotated[str, AfterValidator(_with_port)]
"""An http(s) URL in which {port}, {service} and {namespace} may stand."""


class KeyOfSecret(Strict):
    """Where a token is: a Secret of the namespace and a key in it."""

    name: ObjectName
    key: SecretKey = "token"


class Gateway(Strict):
    """The Gateway through which requests come: one that exists, or one to be made."""

    name: ObjectName
    namespace: Label | None = Field(None, description="the campaign's namespace when left out")
    class_name: ObjectName | None = Field(
        None,
        alias="class",
        description="its GatewayClass, if it is to be made: istio, openshift-default, gke-l7-rilb, ...",
    )
    controller: Text | None = Field(
        None, description="controllerName of its class: whose Gateway it is; read from the cluster when left out"
    )
    create: StrictBool = Field(False, description="make it, and remove it with the campaign's other objects")
    url: Url | None = Field(
        None, description="where clients in the cluster reach it; read from its status when left out"
    )

    @property
    def provider(self) -> Literal["istio", "gke", "none"]:
        """Whose Gateway it is, as far as it needs documents of its own: by its class's controller, else its name."""
        known: dict[str, Literal["istio", "gke"]] = {
            "istio.io/": "istio",
            "openshift.io/gateway-controller": "istio",
            "networking.gke.io/": "gke",
            **({} if self.controller else {"istio": "istio", "openshift": "istio", "gke-": "gke"}),
        }
        name = self.controller or self.class_name or ""
        return next((provider for begin, provider in known.items() if name.startswith(begin)), "none")

    @model_validator(mode="after")
    def _creatable(self) -> Self:
        if self.create and self.class_name is None:
            raise Mistake("create needs class, the GatewayClass of the Gateway to be made", "gateway_class_missing")
        return self


class ModelCache(Strict):
    """Volume that keeps downloaded weights between cells: a claim that exists, or one to be made."""

    claim: ObjectName | None = Field(None, description="an existing PersistentVolumeClaim; it is never deleted")
    size: Quantity | None = Field(None, description="size of the claim to be made")
    access: AccessMode = Field(
        "ReadWriteMany",
        description="ReadWriteOnce: the servers of the campaign share one node, and the load's tokenizer comes from the"
        " hub",
    )

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.claim is None) == (self.size is None):
            raise Mistake("takes claim, which exists, or size, of one to be made; not both", "claim_or_size")
        return self


class FileVolume(Strict):
    """The place that arms with a tier of files write to: a volume of each pod's own, or one of all replicas."""

    size: Quantity = "200Gi"
    storage_class: ObjectName | None = Field(
        None, description="of the disk under test; the node's own disk (emptyDir) when left out"
    )
    access: AccessMode = Field(
        "ReadWriteOnce", description="ReadWriteMany: one volume a run, in which every replica finds what others wrote"
    )

    @model_validator(mode="after")
    def _shareable(self) -> Self:
        if self.access == "ReadWriteMany" and self.storage_class is None:
            said = "access ReadWriteMany needs storage_class: a node's own disk is not shared"
            raise Mistake(said, "shared_class_missing")
        return self


class Toleration(Strict):
    """A taint that the pods tolerate."""

    key: Text | None = None
    operator: Literal["Exists", "Equal"] = "Exists"
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None


class LoadPods(Strict):
    """The load generator's pods: one sends while the next one gets ready."""

    cpus: PositiveInt = Field(
        3,
        description="cores that each asks for, of nodes without load of others: one for every worker process, and one",
    )
    memory: Quantity = Field("2Gi", description="that each asks for")
    memory_limit: Quantity = Field("32Gi", description="above which it is killed: every request is kept until the end")
    node_selector: dict[Text, str] = Field({}, description="of nodes for the load")
    tolerations: tuple[Toleration, ...] = Field((), description="none by itself: GPU nodes keep these pods off")

    @property
    def as_host_cpus(self) -> int:
        """CPUs of a host whose generator has as many worker processes as this has cores, but one."""
        return max(1, 4 * (self.cpus - 1))


class RecorderConfig(Strict):
    """How the system is recorded on the nodes."""

    image: Text = "ghcr.io/performancecopilot/pcp:7.2.0"
    sources: dict[Literal["dcgm", "gateway"], SourceUrl] = Field(
        {}, description="Prometheus endpoints of the site: NVIDIA's DCGM exporter, the gateway; {host} is the node"
    )
    interval_s: PositiveNumber = 1.0


class Cluster(Strict):
    """The site of a campaign with engine kubernetes."""

    context: Text | None = Field(None, description="context of the kubeconfig; its current one when left out")
    kubeconfig: Text | None = Field(None, description="file; KUBECONFIG or ~/.kube/config when left out")
    namespace: Label = Field("kveval", description="of everything but the recorder; it must exist")
    pcp_namespace: Label = Field("kveval-pcp", description="of the recorder alone, because its pods need privileges")
    service_account: Label | None = Field(None, description="the pods' account; the namespace's default when left out")
    image_pull_secrets: tuple[ObjectName, ...] = ()
    token_secret: KeyOfSecret | None = Field(None, description="the model hub's token, for models that need one")
    storage_class: ObjectName | None = Field(None, description="of claims that are made; the cluster's default if none")
    model_cache: ModelCache | None = Field(
        None, description="keeps weights between cells; without it every server downloads them"
    )
    file_volume: FileVolume = FileVolume.model_validate({})
    gateway: Gateway | None = None
    address: Literal["router", "gateway", "service"] | Url = Field(
        "router",
        description="what the load goes to: llm-d's router, an endpoint picker with a proxy of its own where the"
        " release has that, else the gateway; the gateway; the server's Service; or a URL with {port} that leads to"
        " the server where Services are not routable",
    )
    router_requests: dict[Literal["cpu", "memory"], Text] | None = Field(
        None,
        description="what each container of the router asks for, where nodes have less than llm-d's chart wants:"
        " 8 CPUs and 8Gi for the picker, 4 and 8Gi for proxy and tokenizer",
    )
    shared_network: StrictBool = Field(
        False, description="pods have no addresses of their own (test clusters): every server gets a port of its own"
    )
    node_selector: dict[Text, str] = Field({}, description="of the pods that need GPUs, and of the recorder")
    tolerations: tuple[Toleration, ...] = Field((), description="of the pods that need GPUs, and of the recorder")
    gpu_resource: Text = "nvidia.com/gpu"
    user_id: CountInt | None = Field(
        1000, description="the pods' user, not root; null where the cluster assigns one (OpenShift)"
    )
    annotations: dict[Text, str] = Field({}, description="of every pod")
    component_annotations: dict[Component, dict[Text, str]] = Field({}, description="of the pods of one component")
    recorder: RecorderConfig = RecorderConfig.model_validate({})
    load: LoadPods = LoadPods.model_validate({})
    prompts_ahead: StrictBool = Field(
        True,
        description="the load generator of the next level makes its prompts while a level runs; false where the nodes"
        " of the load have no cores to spare",
    )
    slots: PositiveInt = Field(1, description="cells measured at once, where there are GPUs for them")
    share_nodes: StrictBool = Field(
        False, description="measure beside other campaigns on a node, not after them; either way the run notes them"
    )
    schedule_timeout_s: PositiveNumber = Field(
        1200.0, description="longest wait for a node: an autoscaler's GPU node takes 5 to 15 minutes"
    )
    rollout_timeout_s: PositiveNumber = Field(1800.0, description="longest start of a server, its download included")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.address == "gateway" and self.gateway is None:
            raise Mistake(
                "address: gateway needs gateway with its name; address: router goes without one", "gateway_missing"
            )
        if self.namespace == self.pcp_namespace:
            said = "pcp_namespace must be another than namespace: the recorder's pods need privileges there"
            raise Mistake(said, "one_namespace")
        return self

    def annotations_of(self, component: str) -> dict[str, str]:
        """Return the annotations of a component's pods: those of all pods, and its own."""
        own: dict[str, dict[str, str]] = dict(self.component_annotations)  # type: ignore[arg-type]
        return {**self.annotations, **own.get(component, {})}
