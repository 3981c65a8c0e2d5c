"""vLLM's arguments and variables: the kind of each, the arm's own, and what a server without them has.

The kinds are those of `kveval.verdict.comparability`, whatever a server calls its arguments.
"""

from collections.abc import Mapping
from types import MappingProxyType

from kveval.stacks.settings import ServerSettings

_KINDS = {
    "batch": (
        "--max-num-seqs",
        "--max-num-batched-tokens",
        "--max-num-partial-prefills",
        "--long-prefill-token-threshold",
    ),
    "device_cache": (
        "--gpu-memory-utilization",
        "--num-gpu-blocks-override",
        "--kv-cache-memory",
        "--kv-cache-memory-bytes",
        "--cpu-offload-gb",
        "VLLM_CPU_KVCACHE_SPACE",
    ),
    "prefix_caching": ("--enable-prefix-caching",),
    "kv_dtype": ("--kv-cache-dtype", "--calculate-kv-scales"),
    "weights": (
        "--quantization",
        "--load-format",
        "--dtype",
        "--revision",
        "--hf-overrides",
        "--enable-lora",
        "--lora-modules",
    ),
    "model": ("--model", "--tokenizer"),
    "speculation": ("--speculative-config", "--spec-model", "--spec-tokens"),
    "ranks": (
        "--tensor-parallel-size",
        "--pipeline-parallel-size",
        "--data-parallel-size",
        "--decode-context-parallel-size",
        "--enable-expert-parallel",
    ),
    "unrelated": (
        "-m",
        "--host",
        "--port",
        "--api-key",
        "--root-path",
        "--served-model-name",
        "--download-dir",
        "--enable-log-requests",
        "--disable-log-requests",
        "--uvicorn-log-level",
        "--disable-uvicorn-access-log",
        "--trust-remote-code",
        *("HOME", "PATH", "PWD", "HOSTNAME", "USER", "LANG", "TZ", "TMPDIR"),
        *("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_TOKEN"),
        *("HUGGING_FACE_HUB_TOKEN", "TRANSFORMERS_OFFLINE", "TRANSFORMERS_CACHE"),
        *("VLLM_NO_USAGE_STATS", "DO_NOT_TRACK", "VLLM_SERVER_DEV_MODE"),
        *("POD_IP", "POD_NAME", "POD_PORT", "NAMESPACE", "NS_NAME"),
        # A folder of counters, which LMCache in the server's process needs.
        "PROMETHEUS_MULTIPROC_DIR",
        *("VLLM_API_KEY", "VLLM_CACHE_ROOT", "XDG_CACHE_HOME", "PYTHONUNBUFFERED"),
    ),
    "arm": (
        # An index hashes blocks as the server does.
        "--prefix-caching-hash-algo",
        # Connectors that know no layers of several kinds need it.
        "--disable-hybrid-kv-cache-manager",
        # Processes that share a cache hash with one seed.
        "PYTHONHASHSEED",
    ),
}
_DEFAULTS: Mapping[str, str] = {
    "--enable-prefix-caching": "true",
    "--enforce-eager": "false",
    "--kv-cache-dtype": "auto",
    "--load-format": "auto",
    "--dtype": "auto",
    "--gpu-memory-utilization": "0.9",
    "--tensor-parallel-size": "1",
    "--pipeline-parallel-size": "1",
    "--data-parallel-size": "1",
}

SETTINGS = ServerSettings(
    kinds=MappingProxyType(
        {name: kind for kind, names in _KINDS.items() for name in names}
    ),
    arm_variables=("LMCACHE_",),
    defaults=MappingProxyType(_DEFAULTS),
    # vllm/engine/arg_utils.py.
    short=MappingProxyType(
        {
            "-tp": "--tensor-parallel-size",
            "-pp": "--pipeline-parallel-size",
            "-dp": "--data-parallel-size",
            "-dcp": "--decode-context-parallel-size",
            "-q": "--quantization",
        }
    ),
    # Without layers of several kinds in one pool a device holds another number of tokens.
    resizing=frozenset({"--disable-hybrid-kv-cache-manager"}),
    connectors=MappingProxyType(
        {
            "none": frozenset(),
            "native": frozenset({"OffloadingConnector"}),
            "lmcache": frozenset(
                {"LMCacheConnector", "LMCacheConnectorV1", "LMCacheMPConnector"}
            ),
            "files": frozenset({"OffloadingConnector"}),
        }
    ),
)
"""What is known of vLLM's arguments and variables."""
