"""The memory of a GPU that vLLM leaves to its cache, estimated before a server has reported it.

That is what is left of the GPU's memory times gpu_memory_utilization after the weights and the peak of a
profiling run (vllm/v1/worker/gpu_worker.py, `determine_available_memory`). The peak is that of the sampler, which has
several copies of the logits of `max_num_seqs` requests, or that of one layer over `max_num_batched_tokens` tokens. The
constants were fitted to the start-up logs in benchmarks/device_truths.yaml; the range is as wide as these logs need.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from packaging.version import Version

from kveval.campaign.catalogue import Gpu
from kveval.campaign.device_estimate import DeviceEstimate
from kveval.campaign.geometry import Geometry
from kveval.campaign.sizing import GIB, gib, kv_bytes_per_token, weight_bytes
from kveval.campaign.specification import Specification
from kveval.campaign.types import BLOCK_TOKENS

# CUDA's context, libraries and the buffers of NCCL, GiB per rank.
_CONTEXT_GIB = 0.3
# Bytes per request and entry of the vocabulary: PyTorch's sorting sampler, and the kernel that replaced it in 0.19.
_SORTING_BYTES, _SAMPLING_BYTES = 34.0, 14.0
_SAMPLING_SINCE = Version("0.19")
# From 0.21 on, the memory of CUDA graphs is estimated and left out of the cache.
_GRAPHS_GIB, _GRAPHS_SINCE = 0.8, Version("0.21")
# From 0.26 on a server of which nothing is compiled has a sampler without copies of the logits, and its graphs are not
# left out of the cache (`profile_cudagraph_memory` in vllm/v1/worker/gpu/model_runner.py).
_SECOND_RUNNER_SINCE = Version("0.26")
# vLLM's own defaults (vllm/engine/arg_utils.py): max_num_seqs and max_num_batched_tokens of a server.
_LARGE_GIB, _LARGE, _SMALL = 70, (1024, 8192), (256, 2048)
_SMALL_BATCHES = "a100"
"""GPUs with this in their names are small ones, whatever their memory."""
# The overhead is at least and at most so many times what is computed.
_LEAST, _MOST = 0.65, 1.55
# Arguments that set the size of the cache, or take memory that is not computed here.
_UNFORESEEN = (
    "--num-gpu-blocks-override",
    "--kv-cache-memory",
    "--kv-cache-memory-bytes",
    "--speculative-config",
    "--cpu-offload-gb",
    "--pipeline-parallel-size",
)


class ServerMemory(NamedTuple):
    """The settings of a server that decide how much of a GPU's memory is left to its cache.

    Attributes:
        utilization: share of the memory that the server may use (gpu_memory_utilization).
        max_num_seqs: None for vLLM's default, as with max_num_batched_tokens.
        compiled: whether torch.compile makes the model's kernels, as it does by default.
    """

    geometry: Geometry
    version: str
    utilization: float
    ranks: int = 1
    dtype: str = "bfloat16"
    quantization: str | None = None
    kv_cache_dtype: str = "auto"
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    enforce_eager: bool = False
    compiled: bool = True


def default_batch_tokens(gpus: Sequence[Mapping[str, Any]]) -> int:
    """Return the max_num_batched_tokens that a server takes by itself on these GPUs; on CPUs those of a small one.

    `gpus`: each with its `name` and `memory_bytes`, as run.json has them.
    """
    memory_gib = min((gpu.get("memory_bytes") or 0 for gpu in gpus), default=0) / GIB
    small = any(_SMALL_BATCHES in str(gpu.get("name", "")).lower() for gpu in gpus)
    return _batch_defaults(memory_gib, small)[1]


def _batch_defaults(memory_gib: float, small_batches: bool) -> tuple[int, int]:
    """Return max_num_seqs and max_num_batched_tokens."""
    large = memory_gib >= _LARGE_GIB and not small_batches
    return _LARGE if large else _SMALL


def estimate_device(server: ServerMemory, gpu: Gpu, name: str = "") -> DeviceEstimate:
    """Estimate the tokens that a server's device holds; 0 where the weights leave nothing. `name`: of the GPU."""
    usable = gpu.memory_gib * server.utilization
    weights = gib(weight_bytes(server.geometry, server.quantization, server.dtype))
    overhead = _overhead_gib(server, gpu)
    least, most = _LEAST * overhead, _MOST * overhead
    token = gib(
        kv_bytes_per_token(
            server.geometry, server.kv_cache_dtype, server.ranks, server.dtype
        )
    )

    def tokens(overhead_gib: float) -> int:
        rank = usable - weights / server.ranks - overhead_gib
        blocks = int(rank * server.ranks / token) // BLOCK_TOKENS
        return max(0, blocks * BLOCK_TOKENS)

    parts = f"{server.ranks} x " if server.ranks > 1 else ""
    source = (
        f"estimated: {parts}{gpu.memory_gib:g} GiB{f' of {name}' if name else ''} x {server.utilization:g}, less"
        f" {weights:.1f} GiB of weights and {parts}{least:.1f} to {most:.1f} GiB for activations and graphs"
    )
    return DeviceEstimate(tokens(overhead), tokens(most), tokens(least), source)


def _overhead_gib(server: ServerMemory, gpu: Gpu) -> float:
    """Return what a rank's profiling run takes beside the weights, GiB."""
    version, shape = Version(server.version), server.geometry
    seqs, batched = _batch_defaults(gpu.memory_gib, gpu.small_batches)
    seqs = server.max_num_seqs or seqs
    batched = server.max_num_batched_tokens or batched
    per_logit = _SAMPLING_BYTES if version >= _SAMPLING_SINCE else _SORTING_BYTES
    sampler = seqs * shape.vocab_size * per_logit
    # Both inputs and the output of the feed-forward network, and four of the values between layers, at 16 bits.
    layer = (
        2
        * batched
        * (3 * shape.intermediate_size / server.ranks + 4 * shape.hidden_size)
    )
    if version >= _SECOND_RUNNER_SINCE and not server.compiled:
        return _CONTEXT_GIB + layer / GIB
    graphs = version >= _GRAPHS_SINCE and not server.enforce_eager
    peak = max(sampler, layer) / GIB
    return _CONTEXT_GIB + peak + (_GRAPHS_GIB if graphs else 0.0)


def estimate_for(
    specification: Specification, gpu: Gpu, name: str = ""
) -> DeviceEstimate | None:
    """Estimate what the device of a cell's server holds.

    None where the size is given, where the device is no GPU or the server not vLLM, for models with several kinds of
    layers, and where arguments change what is left to the cache in a way that is not computed here.
    """
    model, flags = specification.model, given_flags(specification.argv)
    version = specification.versions.get("vllm")
    given = specification.budget.device_tokens is not None
    if given or specification.on_cpu or version is None:
        return None
    shape = model.geometry
    if shape.grouped:
        return None
    if model.gpu_memory_utilization is None or flags.keys() & {*_UNFORESEEN}:
        return None
    server = ServerMemory(
        geometry=shape,
        version=version,
        utilization=model.gpu_memory_utilization,
        ranks=model.tensor_parallel_size,
        dtype=model.dtype,
        quantization=model.quantization,
        kv_cache_dtype=model.kv_cache_dtype,
        max_num_seqs=_number(flags, "--max-num-seqs"),
        max_num_batched_tokens=_number(flags, "--max-num-batched-tokens"),
        enforce_eager="--enforce-eager" in flags,
        compiled=_is_compiled(flags),
    )
    return estimate_device(server, gpu, name)


def given_flags(argv: Sequence[str]) -> dict[str, str]:
    """Return the arguments by flag, `--flag value` and `--flag=value`; the last of equal flags, as the server reads."""
    flags: dict[str, str] = {}
    flag = ""
    for argument in argv:
        if argument.startswith("--"):
            name, _, value = argument.partition("=")
            flag = name.replace("_", "-")
            flags[flag] = value
        elif flag:
            flags[flag] = argument
    return flags


def _is_compiled(flags: Mapping[str, str]) -> bool:
    """Whether the server compiles its model: by default, unless an argument says that it does not."""
    if "--enforce-eager" in flags:
        return False
    try:
        given = json.loads(flags.get("--compilation-config", "{}"))
    except ValueError:
        return True
    mode = given.get("mode") if isinstance(given, dict) else given
    return mode not in (0, "NONE")


def _number(flags: Mapping[str, str], flag: str) -> int | None:
    value = flags.get(flag, "")
    return int(value) if value.isdecimal() else None
