"""The values that templates of manifests/ are filled from: one run of a cell on one site."""

import functools
import json
import math
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kveval.config.catalogue import Geometry
from kveval.config.site import Cluster, LoadPods
from kveval.engines.kubernetes.api import names
from kveval.engines.servers.protocol import ServerProgram
from kveval.engines.servers.registry import program_of
from kveval.spec.random_model import write_served
from kveval.spec.specification import DeploymentSpec, SidecarSpec, Specification

MODEL_FOLDER = "/model"
"""Where pods have the miniature's files."""
CACHE_FOLDER = "/models"
"""Where pods have the weights that were downloaded."""
FILES_FOLDER = "/kveval/files"
PLUGIN_FOLDER = "/kveval/plugins"
LOAD_FOLDER = "/kveval/load"
"""Where a load generator's pod writes its report."""
LOAD_FILES = "/kveval/load-files"
"""Where it has what it reads beside its arguments, packed."""
LOOPBACK = "127.0.0.1"
_MIB = 2**20
_STORE_OVERHEAD = 1.25
"""A store's memory beyond what it holds: its own structures, buffers of connections."""
_LMCACHE_BASE_BYTES = 2**31


@dataclass(frozen=True)
class RenderContext:
    """One run of a cell: its names, its labels, and every value that a template asks for."""

    specification: Specification
    site: Cluster
    run: int
    campaign: str
    ports: Mapping[str, int]
    measurement: str

    @property
    def cell(self) -> str:
        """The cell's path."""
        return self.specification.cell.path

    # Names, labels, addresses.

    def name(self, component: str) -> str:
        """Return the name of the cell's object for a component."""
        return names.object_name(self.cell, self.run, component, self.campaign)

    def labels(self, component: str) -> dict[str, str]:
        """Return the labels of the cell's objects; storage is the campaign's."""
        if component == "storage":
            return names.labels(self.campaign, "", None, "", component)
        return names.labels(self.campaign, self.cell, self.run, self.measurement, component)

    def pod_labels(self, component: str) -> dict[str, str]:
        """Return the labels by which the cell's pods of a component are found."""
        wanted = ("campaign", "cell", "run", "component")
        return {
            key: value for key, value in self.labels(component).items() if key.removeprefix("kveval.dev/") in wanted
        }

    def metadata(self, component: str, name: str | None = None, namespace: str | None = None) -> dict[str, Any]:
        """Return an object's metadata, with the cell's path in full."""
        found = {
            "name": name or self.name(component),
            "namespace": namespace or self.site.namespace,
            "labels": self.labels(component),
        }
        return found if component == "storage" else {**found, "annotations": {names.CELL_ANNOTATION: self.cell}}

    def pod_metadata(
        self, component: str, labels: Mapping[str, str] | None = None, *, name: bool = False
    ) -> dict[str, Any]:
        """Return a pod's metadata, with the site's annotations; `name`: of a pod that nothing else makes."""
        annotations = {
            names.CELL_ANNOTATION: self.cell,
            **self.site.annotations_of(component),
        }
        found: dict[str, Any] = {
            "labels": {**(labels or {}), **self.labels(component)},
            "annotations": annotations,
        }
        return {"name": self.name(component), "namespace": self.site.namespace, **found} if name else found

    def address(self, component: str) -> str:
        """Return the host under which pods reach a component's Service."""
        return LOOPBACK if self.site.shared_network else f"{self.name(component)}.{self.site.namespace}.svc"

    # What the specification leaves open.

    @property
    def places(self) -> dict[str, str]:
        """The value of every placeholder."""
        hosts = {f"{store}_host": self.address(store) for store in ("redis", "valkey", "epp")}
        folders = {"model_dir": MODEL_FOLDER, "fs_dir": FILES_FOLDER, "lmcache_host": LOOPBACK}
        return {**hosts, **folders, **{place: str(port) for place, port in self.ports.items()}}

    def fill(self, text: str) -> str:
        """Fill hosts, ports and folders; braces of JSON stay."""
        places = self.places
        return re.sub(r"\{(\w+)\}", lambda match: places.get(match[1], match[0]), text)

    def filled(self, value: Any) -> Any:
        """Fill every text of a structure; one that is a port and nothing else becomes a number."""
        if isinstance(value, Mapping):
            return {key: self.filled(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.filled(item) for item in value]
        if isinstance(value, str):
            text = self.fill(value)
            return int(text) if re.fullmatch(r"\{\w+_port\}", value) and text.isdigit() else text
        return value

    # The server.

    @property
    def deployment(self) -> DeploymentSpec:
        """The specification's part about the deployment."""
        return self.specification.on_cluster

    @property
    def miniature(self) -> bool:
        """Whether the model is a miniature, which nothing is downloaded for."""
        return self.specification.miniature

    @property
    def on_cpu(self) -> bool:
        """Whether the server's device is the CPU."""
        return self.specification.on_cpu

    @property
    def program(self) -> ServerProgram:
        """The program that serves."""
        return program_of(self.specification.versions)

    @property
    def server_command(self) -> list[str]:
        """The command of the server's container."""
        return self.program.container_command(self.specification.argv)[0]

    @property
    def server_args(self) -> list[str]:
        """The arguments of that command."""
        return [self.fill(argument) for argument in self.program.container_command(self.specification.argv)[1]]

    @property
    def server_env(self) -> dict[str, str]:
        """The server's environment, with what its image leaves open for a user without a home."""
        env = {**self.home_env, **self.model_env}
        if self.plugin_files:
            env["PYTHONPATH"] = PLUGIN_FOLDER
        if self.deployment.lmcache_form == "process":
            # LMCache's counters are in other processes than the one that is asked for them.
            env["PROMETHEUS_MULTIPROC_DIR"] = "/tmp"
        return {**env, **{name: self.fill(value) for name, value in self.specification.env.items()}}

    @property
    def home_env(self) -> dict[str, str]:
        """A home and a name for a user that the image does not know."""
        return {"HOME": "/home/kveval", "USER": "kveval"}

    @property
    def model_env(self) -> dict[str, str]:
        """Where the weights are looked for, and whether the hub is asked."""
        if self.miniature:
            return {"HF_HUB_OFFLINE": "1"}
        return {"HF_HOME": CACHE_FOLDER, **({"HF_HUB_OFFLINE": "1"} if self.site.model_cache else {})}

    @property
    def load_env(self) -> dict[str, str]:
        """The same of the load generator: without a volume that it may share it asks the hub for the tokenizer."""
        return self.model_env if self.miniature or self.cache_is_shared else {"HF_HOME": CACHE_FOLDER}

    @property
    def download_resources(self) -> dict[str, Any]:
        """Requests and limits of the pod that downloads; with the server's GPUs where the volume ties them together."""
        gpus = {} if self.cache_is_shared else self.gpus
        return {"requests": {"cpu": "1", "memory": "2Gi", **gpus}, "limits": {"memory": "16Gi", **gpus}}

    @property
    def gpus(self) -> dict[str, str]:
        """The server's GPUs, as requests and limits have them."""
        return {self.site.gpu_resource: str(self.deployment.gpus)} if self.deployment.gpus else {}

    @property
    def download_env(self) -> dict[str, str]:
        """The environment of the pod that asks the hub."""
        return {**self.home_env, "HF_HOME": CACHE_FOLDER}

    @property
    def publishes_events(self) -> bool:
        """Whether the server tells the endpoint picker what it holds."""
        return self.program.publishes_events(self.specification.argv)

    @property
    def connects_events(self) -> bool:
        """Whether it calls the endpoint picker for that, instead of being called."""
        return any("{epp_host}" in argument for argument in self.specification.argv)

    @property
    def start_seconds(self) -> int:
        """How long pods may take: to find nodes, and then to answer."""
        return math.ceil(self.site.schedule_timeout_s + self.site.rollout_timeout_s)

    @property
    def rollout_seconds(self) -> int:
        """How long a server may take to answer."""
        return math.ceil(self.site.rollout_timeout_s)

    @property
    def server_resources(self) -> dict[str, Any]:
        """Requests and limits of the server's container; quantities as text, which older API servers insist on."""
        memory = size_text(self.deployment.memory_bytes)
        return {
            "requests": {"cpu": str(self.deployment.cpus), "memory": memory, **self.gpus},
            "limits": {"memory": memory, **self.gpus},
        }

    @property
    def lmcache_resources(self) -> dict[str, Any]:
        """Requests and limits of LMCache as a server, which holds the tier."""
        memory = size_text(_LMCACHE_BASE_BYTES + self.specification.budget.lmcache_bytes)
        return {"requests": {"cpu": "1", "memory": memory}, "limits": {"memory": memory}}

    @property
    def shm_size(self) -> str:
        """Size of /dev/shm."""
        return size_text(self.deployment.shm_bytes)

    # Servers beside it.

    @property
    def sidecars(self) -> dict[str, SidecarSpec]:
        """The arm's sidecars, by name."""
        return {sidecar.name: sidecar for sidecar in self.specification.sidecars}

    def sidecar_argv(self, name: str) -> list[str]:
        """Return a sidecar's command."""
        return [self.fill(argument) for argument in self.sidecars[name].argv]

    def sidecar_env(self, name: str) -> dict[str, str]:
        """Return a sidecar's environment."""
        return {**self.home_env, **self.sidecars[name].env}

    def store_resources(self, name: str) -> dict[str, Any]:
        """Return requests and limits of a store: what it may hold, and what it needs for that."""
        argv = self.sidecar_argv(name)
        held = int(argv[argv.index("--maxmemory") + 1])
        memory = size_text(int(held * _STORE_OVERHEAD) + 2**28)
        return {"requests": {"cpu": "1", "memory": memory}, "limits": {"memory": memory}}

    # Routing.

    @property
    def picker_config(self) -> str:
        """The endpoint picker's configuration, as the file it reads: JSON, which is YAML."""
        return json.dumps(self.filled(self.deployment.picker), indent=1)

    @property
    def picker_env(self) -> dict[str, str]:
        """Return the endpoint picker's environment: the seed of hashes is the server's."""
        return {**self.home_env, "PYTHONHASHSEED": self.specification.env["PYTHONHASHSEED"]}

    @property
    def request_seconds(self) -> int:
        """Return how long the gateway waits for an answer: longer than the load generator does."""
        return math.ceil(2 * self.specification.workload.request_timeout_s)

    @property
    def tokenizer_argv(self) -> list[str]:
        """Return the command of the tokenizer beside the endpoint picker."""
        return [self.fill(argument) for argument in self.deployment.tokenizer or ()]

    @property
    def provider(self) -> str:
        """Return whose Gateway it is, as far as that changes manifests: istio, gke, or none, as without a Gateway."""
        gateway = self.site.gateway if self.deployment.route == "gateway" else None
        return "none" if gateway is None else gateway.provider

    @property
    def gateway_name(self) -> str:
        """Return the Gateway's name: of one that exists, or of the cell's own."""
        gateway = self.site.gateway
        if gateway is None or gateway.create:
            return self.name("gateway")
        return gateway.name

    @property
    def gateway_namespace(self) -> str:
        """Return the namespace of the Gateway."""
        gateway = self.site.gateway
        own = gateway is None or gateway.create or gateway.namespace is None
        return self.site.namespace if own or gateway is None else str(gateway.namespace)

    # Volumes and files.

    @property
    def model_claim(self) -> str | None:
        """Name of the claim that keeps weights, None where every pod downloads them."""
        cache = self.site.model_cache
        if cache is None or self.miniature:
            return None
        return cache.claim or names.object_name("", None, "models", self.campaign)

    @property
    def cache_is_shared(self) -> bool:
        """Whether pods on several nodes may have the cache of weights at once."""
        return self.model_claim is not None and self.site.model_cache.access == "ReadWriteMany"  # type: ignore[union-attr]

    @property
    def cache_labels(self) -> dict[str, str]:
        """The label of pods that have a volume which is on one node at a time; none without one."""
        if self.model_claim is None or self.cache_is_shared:
            return {}
        return {f"{names.PREFIX}/volume": self.model_claim[-63:].strip("-.")}

    @property
    def model_path(self) -> str:
        """Where the model is mounted."""
        return MODEL_FOLDER if self.miniature else CACHE_FOLDER

    @property
    def miniature_files(self) -> dict[str, str]:
        """The miniature's files by name."""
        return served_files(self.specification.model.geometry)

    @property
    def plugin_files(self) -> dict[str, str]:
        """The code that runs inside a server whose device is the CPU, by file name; nothing elsewhere."""
        folder = self.program.plugins if self.on_cpu else None
        return {} if folder is None else {path.name: path.read_text() for path in sorted(folder.glob("*.py"))}

    # Plain values of the site.

    @property
    def pull_secrets(self) -> list[dict[str, str]]:
        """Secrets for pulling images, as pods name them."""
        return [{"name": name} for name in self.site.image_pull_secrets]

    @staticmethod
    def tolerations_of(chosen: Cluster | LoadPods) -> list[dict[str, Any]]:
        """Taints that pods tolerate, as they name them."""
        return [toleration.model_dump(exclude_none=True) for toleration in chosen.tolerations]


@functools.lru_cache(maxsize=8)
def served_files(geometry: Geometry) -> dict[str, str]:
    """Return the files of a miniature of this geometry, by name; the same bytes every time."""
    with tempfile.TemporaryDirectory() as folder:
        write_served(geometry, Path(folder))
        return {path.name: path.read_text(encoding="utf-8") for path in sorted(Path(folder).iterdir())}


def size_text(size_bytes: int) -> str:
    """Return bytes as a quantity, up to the next MiB."""
    return f"{math.ceil(size_bytes / _MIB)}Mi"
