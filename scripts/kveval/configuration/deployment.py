"""Parts of a deployment on a cluster that define the measurement: images, replicas, routing, memory; not the site."""

from collections.abc import Iterable, Iterator, Sequence

from msgspec import UNSET
from packaging.version import Version

from kveval.campaign.campaign_file import Campaign, ServerConfig
from kveval.campaign.catalogue import Scenario
from kveval.campaign.problems import ConfigError, ConfigProblem
from kveval.campaign.release import Release
from kveval.campaign.sizing import GIB, CacheSizes
from kveval.campaign.specification import (
    DeploymentSpec,
    ServedModel,
    SidecarSpec,
)
from kveval.configuration.cell_checks import wrong
from kveval.stacks import arms
from kveval.stacks.model_server import ModelServer
from kveval.stacks.picker import Index, picker_config

_GPU_SERVER_BYTES = 8 * GIB
_GPU_RANK_BYTES = 8 * GIB
_CPU_SERVER_BYTES = 6 * GIB
_SHM_BYTES = 2 * GIB


def deployed(
    scenario: Scenario,
    campaign: Campaign,
    release: Release,
    program: ModelServer,
    platform: arms.Platform,
    model: ServedModel,
    budget: CacheSizes,
    argv: Sequence[str],
    sidecars: Iterable[SidecarSpec],
) -> tuple[dict[str, str], DeploymentSpec]:
    """Return what engine kubernetes adds to the specification: the image of everything that runs, and the rest.

    `argv`: of the server. Raises ConfigError for what a cluster does not have.
    """
    server, route, parts = (
        campaign.server,
        route_of(campaign, release),
        scenario.kind.parts,
    )
    gpus = 0 if server.on_cpu else model.tensor_parallel_size
    if gpus > 1 and campaign.cluster and "/mig-" in campaign.cluster.gpu_resource:
        message = f"{gpus} ranks of {model.name} cannot share parts of a GPU (MIG): each process sees one"
        right = "tensor_parallel_size: 1, or whole GPUs (nvidia.com/gpu)"
        raise ConfigError([wrong("cluster.gpu_resource", message, right, "mig_ranks")])
    routed, index = route != "service", None
    if "index" in parts and scenario.store is not None:
        index = Index(scenario.store, platform.served_name, platform.block_size)
    # The endpoint picker needs prompts as the model's tokens, which a program beside it makes.
    tokenized = index is not None and routed and release.epp.prefix_state == "producer"
    needed = {
        "guidellm": True,
        "epp": routed,
        "proxy": route == "standalone",
        "tokenizer": tokenized,
        **{sidecar.name: True for sidecar in sidecars},
    }
    images = {
        name: _image(name, server, release) for name, used in needed.items() if used
    }
    held = program.held_bytes(
        argv, platform.server_version, model, budget, on_cpu=server.on_cpu
    )
    memory_bytes, shm_bytes, cpus = _resources(server, model, budget, held)
    model_name = (
        "{model_dir}" if server.weights == "miniature" else platform.served_name
    )
    deployment = DeploymentSpec(
        release=str(server.release),
        route=route,
        replicas=replicas(scenario, server),
        gpus=gpus,
        memory_bytes=memory_bytes,
        shm_bytes=shm_bytes,
        cpus=cpus,
        server_labels=release.server_labels,
        lmcache_form=program.lmcache_form(platform) if "lmcache" in parts else None,
        picker=picker_config(
            release, scenario.routing or server.routing, budget.tokens, index
        )
        if routed
        else None,
        picker_args=release.epp.args if routed else (),
        picker_protocol=None,
        objectives=release.epp.objectives if route == "gateway" else (),
        tokenizer=program.tokenizer(model_name, platform.served_name)
        if tokenized
        else None,
        file_medium=_file_medium(campaign) if "files" in parts else None,
        router=getattr(release.router, route) if routed else UNSET,
    )
    image = scenario.image or _image(
        "cpu_server" if server.on_cpu else "server", server, release
    )
    return {"server": image, **images}, deployment


def route_of(campaign: Campaign, release: Release) -> str:
    """Return what the load goes through.

    llm-d's router with a proxy of its own ("standalone"), or behind a "gateway"; or the server's "service" alone.
    """
    address = "service" if campaign.cluster is None else campaign.cluster.address
    if address == "router":
        return "gateway" if release.router.standalone is None else "standalone"
    return "gateway" if address == "gateway" else "service"


def replicas(scenario: Scenario, server: ServerConfig) -> int:
    """Return how many servers with equal caches there are."""
    return scenario.replicas or server.replicas


def deployment_problems(
    name: str,
    scenario: Scenario,
    campaign: Campaign,
    release: Release,
    program: ModelServer,
    platform: arms.Platform,
) -> Iterator[ConfigProblem]:
    """Report what a cluster cannot do, or would not do as declared."""
    server, parts = campaign.server, scenario.kind.parts
    own_image = scenario.image or server.images.get(
        "cpu_server" if server.on_cpu else "server"
    )
    declared = server.vllm or server.program
    if (
        not server.on_cpu
        and own_image is None
        and Version(server.vllm or "0") != Version(release.vllm)
    ):
        message = (
            f"{server.release} has vLLM {release.vllm}, but {declared} is declared"
        )
        right = (
            f"{release.vllm}, or server.images.server with an image that has {declared}"
        )
        yield wrong("server.vllm", message, right, "other_version")
    inside = "lmcache" in parts and program.lmcache_form(platform) == "process"
    if inside and own_image is None and release.lmcache not in (None, server.lmcache):
        message = f"{server.release} has LMCache {release.lmcache}, but {server.lmcache} is declared"
        right = f"{release.lmcache}, or server.images.server with an image that has {server.lmcache}"
        yield wrong("server.lmcache", message, right, "other_version")
    if server.fs_dir is not None:
        yield wrong(
            "server.fs_dir",
            "is a folder of this host",
            "cluster.file_volume",
            "of_this_host",
        )
    if (
        replicas(scenario, server) > 1
        and campaign.cluster is not None
        and campaign.cluster.shared_network
    ):
        yield wrong(
            "server.replicas",
            f"{name}: replicas on one network would need the same port",
            "1",
            "one_port",
        )
    yield from _route_problems(name, "index" in parts, campaign, release)
    if "index" in parts and scenario.routing is not None:
        message = f"{name}: an index replaces the scorers of prefixes, so routing: {scenario.routing} has no effect"
        yield wrong(
            "scenarios",
            message,
            "leave routing out, or an arm without an index",
            "routing_unused",
        )
    by_endpoint, tiered = (
        campaign.reset_caches == "endpoint",
        "files" in parts or scenario.cpu_tier,
    )
    if by_endpoint and inside:
        message = f"{name}: no endpoint of the server empties LMCache inside its process, so that levels would start warm"
        yield wrong("reset_caches", message, "restart", "lmcache_not_emptied")
    elif by_endpoint and tiered and not program.reset_reaches_tiers(platform):
        message = f"{name}: the endpoint of {program.title} {platform.server_version} empties the device's cache alone"
        yield wrong(
            "reset_caches",
            f"{message}, so that levels would start warm",
            "restart",
            "tier_not_emptied",
        )


def _route_problems(
    name: str, indexed: bool, campaign: Campaign, release: Release
) -> Iterator[ConfigProblem]:
    """Report what the route of the requests, or an index for routing, lacks."""
    site, route, of = (
        campaign.cluster,
        route_of(campaign, release),
        campaign.server.release,
    )
    if indexed and route == "service":
        message = f"{name} is an index for routing, and this load is not routed"
        yield wrong("cluster.address", message, "address: router", "not_routed")
    if (
        indexed
        and campaign.server.weights == "miniature"
        and release.epp.prefix_state == "scorer"
    ):
        message = f"{name}: the endpoint picker of {of} fetches the tokenizer from the hub, which has none for a miniature"
        yield wrong(
            "scenarios",
            message,
            "weights: full, or a newer release",
            "tokenizer_of_miniature",
        )
    if site is None or route == "service":
        return
    if site.shared_network:
        message = "llm-d's router has ports of its own, which pods on one network cannot each have"
        yield wrong(
            "cluster.address", message, "address: service, or a URL", "one_port"
        )
    if route == "gateway" and site.gateway is None:
        message = f"{of} routes through a Gateway, and none is named"
        yield wrong(
            "cluster",
            message,
            "gateway: {name: ...}; or a newer release",
            "gateway_missing",
        )
    elif (
        route == "gateway"
        and site.gateway is not None
        and site.slots > 1
        and not site.gateway.create
    ):
        message = "slots: cells at once need gateway.create, because each takes a whole Gateway's requests"
        yield wrong(
            "cluster",
            message,
            "gateway.create: true, or address: router",
            "gateway_shared",
        )


def _image(name: str, server: ServerConfig, release: Release) -> str:
    """Return the image of a program. Raises ConfigError if it is named nowhere."""
    image = server.images.get(name) or release.images.by_name.get(name)
    if image is None:
        message = f"{server.release} has no image of {name}"
        right = f"server.images.{name}, or an entry in releases.yaml"
        raise ConfigError([wrong("server.images", message, right, "no_image_known")])
    places = {
        "vllm": server.vllm,
        "guidellm": server.guidellm,
        "lmcache": server.lmcache or "",
    }
    for place, version in places.items():
        image = image.replace(f"{{{place}}}", version)
    return image


def _resources(
    server: ServerConfig, model: ServedModel, budget: CacheSizes, held: int
) -> tuple[int, int, int]:
    """Return the server's memory limit and its /dev/shm, bytes, and the cores it asks for.

    Newer servers keep the tier in /dev/shm, older ones beside it; it counts once in either case, as `held` in memory.
    """
    ranks = model.tensor_parallel_size
    if server.on_cpu:
        base, cpus = (
            _CPU_SERVER_BYTES + (budget.device_tokens or 0) * model.kv_bytes_per_token,
            1,
        )
    else:
        base, cpus = _GPU_SERVER_BYTES + ranks * _GPU_RANK_BYTES, 4 + 2 * ranks
    shm = _SHM_BYTES * ranks
    return base + shm + held, shm + budget.host_bytes, cpus


def _file_medium(campaign: Campaign) -> str:
    """Name the disk under test: the node's own, or a storage class, "shared" where replicas have one volume."""
    volume = None if campaign.cluster is None else campaign.cluster.file_volume
    if volume is None or volume.storage_class is None:
        return "node"
    return (
        f"{volume.storage_class}, shared"
        if volume.access == "ReadWriteMany"
        else volume.storage_class
    )
