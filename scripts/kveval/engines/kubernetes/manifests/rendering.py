"""Everything a cell needs on the cluster, as plain documents: a pure function of its specification and of the site."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from kveval.campaign.site import ROUTES, Cluster
from kveval.campaign.specification import Specification
from kveval.engines.kubernetes.api.kinds import Document
from kveval.engines.kubernetes.manifests.context import (
    CACHE_FOLDER,
    HOME_ENV,
    LOAD_FILES,
    LOAD_FOLDER,
    MODEL_FOLDER,
    RenderContext,
)
from kveval.engines.kubernetes.manifests.network import network
from kveval.engines.kubernetes.manifests.router import PROXY_PORT, router
from kveval.load import guidellm as load
from kveval.stacks.registry import SIDECARS

PORTS: Mapping[str, int] = {
    "port": 8000,
    "events_port": 5557,
    "tokenizer_port": 8082,
    **{
        place: port.number
        for sidecar in SIDECARS.values()
        for place, port in sidecar.ports.items()
    },
}
"""Ports by placeholder, for pods that have their own addresses; for pods on one shared network, others are passed.

The router's ports are those of its chart."""


def context_of(
    specification: Specification,
    site: Cluster,
    run: int,
    campaign: str,
    ports: Mapping[str, int] = PORTS,
) -> RenderContext:
    """Return the values from which the templates of one run of a cell are filled."""
    return RenderContext(
        specification, site, run, campaign, ports, specification.measurement_id
    )


def storage(context: RenderContext) -> tuple[Document, ...]:
    """Return the volume claims that are kept between cells. Raises ManifestError for a bad template."""
    cache = context.site.model_cache if context.model_claim else None
    return context.documents("storage") if cache and cache.size else ()


def serving(context: RenderContext) -> tuple[Document, ...]:
    """Return the documents of one run's servers, their routing and who may reach them. Raises ManifestError."""
    documents = [
        *network(context),
        *(
            document
            for sidecar in context.sidecar_programs(in_server_pod=False)
            for document in context.documents("sidecar", sidecar=sidecar)
        ),
    ]
    if context.deployment.route != "service":
        documents += router(context)
    documents += context.documents("model-server")
    if context.deployment.route == "gateway":
        documents += context.documents("gateway")
    return tuple(documents)


def render(context: RenderContext) -> tuple[Document, ...]:
    """Return the documents of one run of a cell, in the order in which they are applied. Raises ManifestError."""
    return (*storage(context), *serving(context))


def target_url(context: RenderContext) -> str | None:
    """Return the URL that the load is sent to, as pods see it; None if only the Gateway's status has it."""
    site = context.site
    if site.address not in ROUTES:
        return fill_url(site.address, context)
    if context.deployment.route == "standalone":
        return f"http://{context.address('epp')}:{PROXY_PORT}"
    if context.deployment.route == "gateway":
        return (
            None
            if site.gateway is None or site.gateway.url is None
            else fill_url(site.gateway.url, context)
        )
    return f"http://{context.address('model-server')}:{context.ports['port']}"


def fill_url(url: str, context: RenderContext, port: int | None = None) -> str:
    """Replace {port} (by default the server's), {service} and {namespace} in a URL that the campaign declares."""
    values = {
        "port": port or context.ports["port"],
        "service": context.name("model-server"),
    }
    for name, value in {**values, "namespace": context.site.namespace}.items():
        url = url.replace(f"{{{name}}}", str(value))
    return url


def load_job(
    context: RenderContext,
    level: int,
    argv: Sequence[str],
    env: Mapping[str, str],
    files: Mapping[str, str] = MappingProxyType({}),
    deadline_s: float = 7200.0,
) -> tuple[Document, ...]:
    """Return the documents that run the load generator for the level of this index; the Job is the last.

    `argv`: the container's command, which can write to LOAD_FOLDER, and has the model's files at /model (a miniature)
    or in the model cache; `files`: base64 by name, mounted at LOAD_FILES; `deadline_s`: seconds after which the Job
    is ended, including its wait for its turn.
    """
    # Without a volume that it may share, the generator loads the tokenizer from the Hugging Face hub.
    shared = context.specification.miniature or context.cache_is_shared
    return context.documents(
        "load-job",
        level=level,
        argv=list(argv),
        files=dict(files),
        deadline_seconds=math.ceil(deadline_s),
        env={
            **HOME_ENV,
            **(context.model_env if shared else {"HF_HOME": CACHE_FOLDER}),
            **env,
        },
        load_folder=LOAD_FOLDER,
        files_folder=LOAD_FILES,
    )


def load_target(context: RenderContext, url: str) -> load.LoadTarget:
    """Return where the load is sent, with the URL and the tokenizer's path as the load generator's pod sees them."""
    specification = context.specification
    tokenizer = (
        Path(MODEL_FOLDER) if specification.miniature else specification.model.hf_id
    )
    return load.LoadTarget(url, specification.model.served_name, tokenizer)


def load_command(context: RenderContext, level: load.Level, url: str) -> list[str]:
    """Return GuideLLM's command line for a level, with the paths in its pod; the load is sent to `url`."""
    report, workload = (
        Path(LOAD_FOLDER, level.report_name),
        context.specification.workload,
    )
    return load.command("guidellm", workload, level, load_target(context, url), report)


def download_job(context: RenderContext) -> Document:
    """Return the Job that downloads the model's weights into the model cache."""
    return context.documents("download-job")[0]
