"""Everything a cell needs on the cluster, as plain documents: a pure function of its specification and of the site."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kveval.config.site import Cluster
from kveval.engines.kubernetes.manifests.context import Scene
from kveval.engines.kubernetes.manifests.templates import Document, documents
from kveval.spec.config import measurement_id

PORTS: Mapping[str, int] = {
    "port": 8000,
    "redis_port": 6379,
    "valkey_port": 6379,
    "lmcache_port": 5555,
    "lmcache_http_port": 8081,
    "events_port": 5557,
    "epp_port": 9002,
    "epp_health_port": 9003,
    "epp_metrics_port": 9090,
    "tokenizer_port": 8082,
}
"""Ports by placeholder. Pods of their own address use these; where all share one network, others are handed in."""


@dataclass(frozen=True)
class Rendered:
    """The documents of one run of a cell.

    `storage`: claims that are kept between cells; `gateway`: the Gateway, where the campaign has it made; `serving`:
    the servers and what routes to them.
    """

    storage: tuple[Document, ...]
    serving: tuple[Document, ...]
    gateway: tuple[Document, ...] = ()

    @property
    def documents(self) -> tuple[Document, ...]:
        """All of them, in the order in which they are applied."""
        return (*self.storage, *self.gateway, *self.serving)


def scene_of(
    specification: Mapping[str, Any], site: Cluster, run: int, campaign: str, ports: Mapping[str, int] = PORTS
) -> Scene:
    """Return what the templates of one run of a cell are filled from."""
    return Scene(specification, site, run, campaign, ports, measurement_id(specification))


def render(
    specification: Mapping[str, Any], site: Cluster, run: int, campaign: str, ports: Mapping[str, int] = PORTS
) -> Rendered:
    """Return the documents of one run of a cell. `ports`: every port of PORTS, as this run has them.

    Raises ManifestError for a template that cannot be filled.
    """
    scene = scene_of(specification, site, run, campaign, ports)
    stores = [name for name in ("redis", "valkey") if scene.companion(name)]
    routed = scene.deployment["route"] == "gateway"
    serving = [document for store in stores for document in _filled("store", scene, store=store)]
    if routed:
        serving += _filled("epp", scene)
    serving += _filled("model-server", scene)
    if routed:
        serving += _filled("routing", scene)
    made = routed and site.gateway is not None and site.gateway.create
    return Rendered(
        storage=_filled("storage", scene),
        serving=tuple(serving),
        gateway=_filled("gateway", scene) if made else (),
    )


def endpoints(
    specification: Mapping[str, Any], site: Cluster, run: int, campaign: str, ports: Mapping[str, int] = PORTS
) -> dict[str, Any]:
    """Return addresses as pods of the cluster see them.

    `target`: the URL that the load goes to, None where only the Gateway's status tells; `server`: the Service's URL;
    `gateway` and `gateway_namespace`: the Gateway's name, of the cell's own where one is made; and every port by its
    placeholder.
    """
    scene = scene_of(specification, site, run, campaign, ports)
    server = f"http://{scene.address('model-server')}:{ports['port']}"
    target: str | None = server
    if site.address not in ("gateway", "service"):
        target = place(site.address, scene)
    elif scene.deployment["route"] == "gateway":
        target = None if site.gateway is None or site.gateway.url is None else place(site.gateway.url, scene)
    gateway = {"gateway": scene.gateway_name, "gateway_namespace": scene.gateway_namespace}
    return {"target": target, "server": server, **gateway, **ports}


def place(url: str, scene: Scene) -> str:
    """Fill {port}, {service} and {namespace} of a URL that the campaign gives."""
    values = {
        "port": str(scene.ports["port"]),
        "service": scene.name("model-server"),
        "namespace": scene.site.namespace,
    }
    for name, value in values.items():
        url = url.replace(f"{{{name}}}", value)
    return url


def load_job(
    specification: Mapping[str, Any],
    site: Cluster,
    run: int,
    campaign: str,
    level: int,
    argv: Sequence[str],
    env: Mapping[str, str],
    deadline_s: float = 7200.0,
) -> Document:
    """Return the Job that runs the load generator for the level of this index.

    `argv`: the container's command, with the results volume at /results and the model's files at /model (a miniature)
    or in the cache; `deadline_s`: seconds after which the Job is ended, its wait for its turn included.
    """
    scene = scene_of(specification, site, run, campaign)
    values = {"level": level, "argv": list(argv), "deadline_seconds": math.ceil(deadline_s)}
    return _filled("load-job", scene, env={**scene.home_env, **scene.model_env, **env}, **values)[0]


def download_job(specification: Mapping[str, Any], site: Cluster, run: int, campaign: str) -> Document:
    """Return the Job that downloads the model's weights into the model cache."""
    return _filled("download-job", scene_of(specification, site, run, campaign))[0]


def collector_pod(specification: Mapping[str, Any], site: Cluster, run: int, campaign: str) -> Document:
    """Return the pod from which the files of the results volume are read."""
    return _filled("collector", scene_of(specification, site, run, campaign))[0]


def _filled(template: str, scene: Scene, **values: Any) -> tuple[Document, ...]:
    return documents(
        f"{template}.yaml.j2",
        scene=scene,
        site=scene.site,
        deployment=scene.deployment,
        images=scene.specification["images"],
        model=scene.specification["model"],
        **values,
    )
