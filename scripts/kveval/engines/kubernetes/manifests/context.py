"""The values that templates of manifests/ are filled from: one run of a cell on one site."""

import functools
import math
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kveval.campaign.geometry import Geometry
from kveval.campaign.random_model import write_served
from kveval.campaign.site import Cluster
from kveval.campaign.sizing import GIB, weight_bytes
from kveval.campaign.specification import DeploymentSpec, SidecarSpec, Specification
from kveval.engines.kubernetes.api import names
from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.kinds import Document, labels_of
from kveval.engines.kubernetes.manifests.requirements import quantity
from kveval.engines.kubernetes.manifests.templates import documents
from kveval.engines.kubernetes.wait.diagnosis import Patience
from kveval.stacks.model_server import ModelServer
from kveval.stacks.registry import SIDECARS, server_of
from kveval.stacks.sidecar import Sidecar

MODEL_FOLDER = "/model"
"""Folder in pods with the miniature's files."""
CACHE_FOLDER = "/models"
"""Folder in pods with the downloaded weights."""
FILES_FOLDER = "/kveval/files"
PLUGIN_FOLDER = "/kveval/plugins"
LOAD_FOLDER = "/kveval/load"
"""Folder in a load generator's pod for its report."""
LOAD_FILES = "/kveval/load-files"
"""Folder in a load generator's pod with its compressed input files."""
LOOPBACK = "127.0.0.1"
_SERVER_DISK_BYTES = 4 * GIB
HOME_ENV: Mapping[str, str] = MappingProxyType(
    {"HOME": "/home/kveval", "USER": "kveval"}
)
"""Home and name for a user id that an image does not know."""


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

    def documents(self, template: str, **values: Any) -> tuple[Document, ...]:
        """Fill a template of manifests/. Raises ManifestError."""
        specification = self.specification
        values |= {
            "deployment": self.deployment,
            "images": specification.images,
            "home": HOME_ENV,
        }
        return documents(
            f"{template}.yaml.j2",
            context=self,
            site=self.site,
            specification=specification,
            **values,
        )

    # Names, labels, addresses.

    def name(self, component: str) -> str:
        """Return the name of the cell's object for a component."""
        return names.object_name(self.cell, self.run, component, self.campaign)

    def labels(self, component: str) -> dict[str, str]:
        """Return the labels of the cell's objects; for storage, those of the campaign."""
        own = names.labels(
            self.campaign, self.cell, self.run, self.measurement, component
        )
        if component == "storage":
            own = names.labels(self.campaign, "", None, "", component)
        return {**self.site.labels, **own}

    @property
    def run_labels(self) -> dict[str, str]:
        """The labels that select all pods of the run."""
        keys = [f"{names.PREFIX}/{part}" for part in ("campaign", "cell", "run")]
        labels = self.labels("")
        return {key: labels[key] for key in keys}

    def pod_labels(self, component: str) -> dict[str, str]:
        """Return the labels that select the cell's pods of a component."""
        return {**self.run_labels, f"{names.PREFIX}/component": component}

    def metadata(self, component: str, name: str | None = None) -> dict[str, Any]:
        """Return an object's metadata, with the cell's path in full."""
        named = {"name": name or self.name(component), "namespace": self.site.namespace}
        metadata = {**named, "labels": self.labels(component)}
        return (
            metadata
            if component == "storage"
            else {**metadata, "annotations": {names.CELL_ANNOTATION: self.cell}}
        )

    def pod_metadata(
        self, component: str, labels: Mapping[str, str] = MappingProxyType({})
    ) -> dict[str, Any]:
        """Return a pod's metadata, with the site's annotations."""
        annotations = {
            names.CELL_ANNOTATION: self.cell,
            **self.site.annotations_of(component),
        }
        return {
            # Other programs find pods by `labels`: they are not the site's to change.
            "labels": {**labels, **self.labels(component), **labels},
            "annotations": annotations,
        }

    def address(self, component: str) -> str:
        """Return the host name at which pods reach a component's Service."""
        return (
            LOOPBACK
            if self.site.shared_network
            else f"{self.name(component)}.{self.site.namespace}.svc"
        )

    # Placeholders of the specification.

    def fill(self, text: str) -> str:
        """Replace the placeholders of hosts, ports and folders; other braces, as of JSON, stay."""
        places = {
            f"{name}_host": LOOPBACK if sidecar.in_server_pod else self.address(name)
            for name, sidecar in SIDECARS.items()
        }
        places |= {"model_dir": MODEL_FOLDER, "fs_dir": FILES_FOLDER}
        places |= {place: str(port) for place, port in self.ports.items()}
        return re.sub(r"\{(\w+)\}", lambda match: places.get(match[1], match[0]), text)

    def argv(self, argv: Sequence[str]) -> list[str]:
        """Replace the placeholders in a command line."""
        return [self.fill(argument) for argument in argv]

    def filled(self, value: Any) -> Any:
        """Replace the placeholders in every text of a structure; a text that is only a port becomes a number."""
        if isinstance(value, Mapping):
            return {key: self.filled(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.filled(item) for item in value]
        if isinstance(value, str):
            text = self.fill(value)
            return (
                int(text)
                if re.fullmatch(r"\{\w+_port\}", value) and text.isdigit()
                else text
            )
        return value

    # The server.

    @property
    def deployment(self) -> DeploymentSpec:
        """The specification's deployment on a cluster."""
        return self.specification.on_cluster

    @property
    def program(self) -> ModelServer:
        """The server program."""
        return server_of(self.specification.versions)

    @property
    def server_env(self) -> dict[str, str]:
        """The server's environment variables, with HOME and USER for a user id that its image does not know."""
        env = {**HOME_ENV, **self.model_env}
        if self.plugin_files:
            env["PYTHONPATH"] = PLUGIN_FOLDER
        if self.deployment.lmcache_form == "process":
            # LMCache's counters are in other processes than the one that answers /metrics.
            env["PROMETHEUS_MULTIPROC_DIR"] = "/tmp"
        return {
            **env,
            **{
                name: self.fill(value) for name, value in self.specification.env.items()
            },
        }

    @property
    def model_env(self) -> dict[str, str]:
        """Environment variables for where the weights are and whether the Hugging Face hub may be asked."""
        if self.specification.miniature:
            return {"HF_HUB_OFFLINE": "1"}
        return {
            "HF_HOME": CACHE_FOLDER,
            **({"HF_HUB_OFFLINE": "1"} if self.site.model_cache else {}),
        }

    @property
    def gpus(self) -> dict[str, str]:
        """The server's GPUs, as an entry of requests and limits."""
        return (
            {self.site.gpu_resource: str(self.deployment.gpus)}
            if self.deployment.gpus
            else {}
        )

    @property
    def disk_bytes(self) -> int:
        """Bytes that a server writes to its node's disk: logs and compiled code, weights and files that have no volume."""
        model, size = self.specification.model, _SERVER_DISK_BYTES
        if self.model_claim is None and not self.specification.miniature:
            size += weight_bytes(model.geometry, model.quantization, model.dtype)
        if self.deployment.file_medium == "node":
            size += int(quantity(self.site.file_volume.size))
        return size

    @property
    def start_seconds(self) -> int:
        """Seconds that pods may take to get nodes and then to answer."""
        return math.ceil(self.site.schedule_timeout_s + self.site.rollout_timeout_s)

    # Sidecars.

    @property
    def sidecars(self) -> dict[str, SidecarSpec]:
        """The arm's sidecars, by name."""
        return {sidecar.name: sidecar for sidecar in self.specification.sidecars}

    def sidecar_programs(self, *, in_server_pod: bool) -> list[type[Sidecar]]:
        """Return the programs of the arm's sidecars in the server's pod, or of those with pods of their own."""
        programs = [SIDECARS[name] for name in self.sidecars]
        return [
            program for program in programs if program.in_server_pod == in_server_pod
        ]

    # Routing.

    @property
    def provider(self) -> str:
        """The Gateway's provider, as far as it changes manifests: istio or gke; none for others, or no Gateway."""
        gateway = self.site.gateway if self.deployment.route == "gateway" else None
        return "none" if gateway is None else gateway.provider

    @property
    def gateway_name(self) -> str:
        """The name of the Gateway: an existing one, or the cell's own."""
        gateway = self.site.gateway
        return (
            self.name("gateway") if gateway is None or gateway.create else gateway.name
        )

    @property
    def gateway_namespace(self) -> str:
        """The namespace of the Gateway."""
        gateway = self.site.gateway
        return (
            gateway.namespace if gateway and not gateway.create else None
        ) or self.site.namespace

    # Volumes and files.

    @property
    def model_claim(self) -> str | None:
        """Name of the volume claim of the model cache, None if every pod downloads the weights."""
        cache = self.site.model_cache
        if cache is None or self.specification.miniature:
            return None
        return cache.claim or names.object_name("", None, "models", self.campaign)

    @property
    def cache_is_shared(self) -> bool:
        """Whether pods on several nodes may mount the model cache at once."""
        cache = self.site.model_cache
        if self.model_claim is None or cache is None:
            return False
        return cache.access == "ReadWriteMany"

    @property
    def cache_labels(self) -> dict[str, str]:
        """The label of pods that mount a model cache which only one node at a time may mount; otherwise empty."""
        if self.model_claim is None or self.cache_is_shared:
            return {}
        return {f"{names.PREFIX}/volume": self.model_claim[-63:].strip("-.")}

    @property
    def model_path(self) -> str:
        """The folder where the model is mounted."""
        return MODEL_FOLDER if self.specification.miniature else CACHE_FOLDER

    @property
    def miniature_files(self) -> dict[str, str]:
        """The miniature's files by name."""
        return served_files(self.specification.model.geometry)

    @property
    def plugin_files(self) -> dict[str, str]:
        """The plugins of a server whose device is the CPU, by path in their folder; empty for other devices."""
        folder = self.program.plugins if self.specification.on_cpu else None
        if folder is None:
            return {}
        paths = [*folder.glob("*.py"), *folder.glob("*.dist-info/*")]
        return {
            path.relative_to(folder).as_posix(): path.read_text()
            for path in sorted(paths)
        }

    @property
    def plugin_keys(self) -> dict[str, str]:
        """The key of each plugin file, by path, in a ConfigMap, whose keys have no folders."""
        return {path: path.replace("/", ".") for path in self.plugin_files}


@dataclass(frozen=True)
class RunContext(RenderContext):
    """A run on a cluster: the values that its documents are rendered from, and the client of the API server."""

    api: Api

    @property
    def namespace(self) -> str:
        """The namespace of everything except the recorder."""
        return self.site.namespace

    @property
    def patience(self) -> Patience:
        """How long its pods may wait for a node."""
        return Patience(unschedulable_s=self.site.schedule_timeout_s)

    def selector(self) -> str:
        """Return the label selector of this run's objects."""
        return names.selector(self.campaign, self.cell, self.run)


def component_of(pod: Mapping[str, Any]) -> str:
    """Return the component label of a pod or document, such as `model-server`; "" without one."""
    return str(labels_of(pod).get("kveval.dev/component", ""))


@functools.lru_cache(maxsize=8)
def served_files(geometry: Geometry) -> dict[str, str]:
    """Return the files of a miniature of this geometry, by name; the same bytes every time."""
    with tempfile.TemporaryDirectory() as folder:
        write_served(geometry, Path(folder))
        return {
            path.name: path.read_text(encoding="utf-8")
            for path in sorted(Path(folder).iterdir())
        }
