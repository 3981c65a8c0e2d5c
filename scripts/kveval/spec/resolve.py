"""From a cell to everything that defines its measurement: server arguments, environment, budget, workload."""

import math
from typing import Any

import msgspec
from msgspec import UNSET

from kveval.config.campaign import Campaign, Cell, ServerConfig
from kveval.config.catalogue import Catalogue, Model, Scenario, name_for
from kveval.config.problems import ConfigProblem
from kveval.config.types import BLOCK_TOKENS
from kveval.spec import arms, sizing
from kveval.spec.cell_checks import (
    capacity_problems,
    elsewhere_problems,
    overrides,
    parallel_problems,
    stand_in_problems,
    tier_problems,
    unknown_names,
    workload_problems,
)
from kveval.spec.deployment import deployment, deployment_problems, images
from kveval.spec.miniature import miniature_geometry
from kveval.spec.specification import CacheSizes, ServedModel, Specification


def served_model(name: str, model: Model, scenario: Scenario, server: ServerConfig) -> ServedModel:
    """Return `model` as this server has it for this scenario; `name` is the cell's, which another may stand in for."""
    miniature = server.weights == "miniature"
    utilization = scenario.gpu_memory_utilization.get(name, model.gpu_memory_utilization)
    name = scenario.serves.get(name, name)
    geometry = miniature_geometry(model) if miniature else model.geometry
    dtype = "bfloat16" if miniature else model.dtype
    ranks = 1 if miniature else scenario.tensor_parallel_size or model.tensor_parallel_size
    return ServedModel(
        name=name,
        hf_id=model.hf_id,
        served_name=f"{name}-miniature" if miniature else model.hf_id,
        dtype=dtype,
        kv_cache_dtype=model.kv_cache_dtype,
        quantization=None if miniature else model.quantization,
        tensor_parallel_size=ranks,
        max_model_len=min(model.max_model_len, server.max_model_len or server.device_tokens or model.max_model_len),
        gpu_memory_utilization=None if miniature or server.fixed_capacity else utilization,
        geometry=geometry,
        kv_bytes_per_token=sizing.kv_bytes_per_token(geometry, model.kv_cache_dtype, ranks, dtype),
    )


def common_arguments(model: ServedModel, server: ServerConfig, engine: str) -> tuple[str, ...]:
    """Return the server arguments that every arm shares."""
    miniature = server.weights == "miniature"
    argv = ["--model", "{model_dir}" if miniature else model.hf_id, "--served-model-name", model.served_name]
    if miniature:
        argv += ["--load-format", "dummy"]
    if miniature or server.on_cpu:
        argv += ["--enforce-eager"]
    argv += ["--dtype", model.dtype, "--block-size", str(server.block_size)]
    if model.kv_cache_dtype != "auto":
        argv += ["--kv-cache-dtype", model.kv_cache_dtype]
    if server.device_blocks is not None:
        blocks = sizing.server_blocks(server.device_blocks, server.block_size)
        argv += ["--num-gpu-blocks-override", str(blocks)]
    if model.gpu_memory_utilization is not None:
        argv += ["--gpu-memory-utilization", repr(model.gpu_memory_utilization)]
    if not miniature:
        argv += ["--tensor-parallel-size", str(model.tensor_parallel_size)]
    argv += ["--max-model-len", str(model.max_model_len)]
    if server.max_num_seqs is not None:
        argv += ["--max-num-seqs", str(server.max_num_seqs)]
    host = "127.0.0.1" if engine == "local" else "0.0.0.0"
    return (*argv, "--host", host, "--port", "{port}", "--no-enable-log-requests")


def common_environment(model: ServedModel, server: ServerConfig) -> dict[str, str]:
    """Return the server environment that every arm shares."""
    env = {
        "PYTHONHASHSEED": arms.HASH_SEED,
        # The endpoint that empties the caches between levels is a development one.
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    if server.weights == "miniature":
        env["HF_HUB_OFFLINE"] = "1"
    if server.on_cpu:
        # With a KV connector vLLM would keep one more core from its worker than without: an arm and its baseline would
        # then run on different numbers of cores.
        env["VLLM_CPU_NUM_OF_RESERVED_CPU"] = "1"
    if server.on_cpu and server.device_tokens is not None:
        # Whole GiB only; the override of the number of blocks then takes what it needs of it.
        env["VLLM_CPU_KVCACHE_SPACE"] = str(math.ceil(sizing.gib(server.device_tokens * model.kv_bytes_per_token)))
    return env


def exercised_counters(scenario: Scenario, platform: arms.Platform) -> tuple[dict[str, Any], ...]:
    """Return the counters that must move, by their names in this vLLM.

    Those that came later are left out, and those of an LMCache server where there is none.
    """
    inside = scenario.arm in ("lmcache", "hybrid") and arms.lmcache_form(platform) == "process"
    named = (
        (name_for(counter.name, platform.vllm), counter)
        for counter in scenario.exercised
        if not (inside and counter.of == "lmcache server")
    )
    return tuple(
        {"counter": name, "at_least": counter.at_least, "unit": counter.unit}
        for name, counter in named
        if name is not None
    )


def required_counters(cell: Cell, campaign: Campaign, catalogue: Catalogue) -> tuple[dict[str, Any], ...]:
    """Return the counters that prove a cell's arm active; the cell has to be one without problems."""
    scenario = catalogue.scenarios[cell.scenario]
    return exercised_counters(scenario, _platform(_served(cell, campaign, catalogue), campaign, catalogue))


def resolve_cell(
    cell: Cell, campaign: Campaign, catalogue: Catalogue, protocol: int
) -> tuple[Specification | None, list[ConfigProblem]]:
    """Resolve a cell, or say all that is wrong with it; a problem's key is the part of the matrix it is about."""
    unknown = list(unknown_names(cell, campaign, catalogue))
    if unknown:
        return None, unknown
    scenario = catalogue.scenarios[cell.scenario]
    model = catalogue.models[scenario.serves.get(cell.model, cell.model)]
    server, workload = campaign.server, catalogue.workloads[campaign.workload]
    release = None if server.release is None else catalogue.releases[server.release]
    served = _served(cell, campaign, catalogue)
    problems = [
        *tier_problems(cell, scenario),
        *capacity_problems(cell, scenario, server),
        *elsewhere_problems(cell, scenario, server),
        *stand_in_problems(cell, scenario),
        *parallel_problems(cell, scenario, model, server),
        *workload_problems(cell, served.max_model_len, workload, campaign.workload),
    ]
    if problems:
        return None, problems
    budget = sizing.budget(
        served.geometry,
        cell.cpu_blocks,
        block_size=server.block_size,
        kv_cache_dtype=served.kv_cache_dtype,
        tensor_parallel_size=served.tensor_parallel_size,
        dtype=served.dtype,
    )
    platform = _platform(served, campaign, catalogue)
    if release is not None:
        problems = list(deployment_problems(cell.scenario, scenario, campaign, release, platform))
    if problems:
        return None, problems
    try:
        if scenario.exercised and not exercised_counters(scenario, platform):
            raise arms.ArmError(f"vLLM {server.vllm} has none of the counters that would prove it active")
        arm = arms.arm_arguments(scenario, platform, budget)
        sizes = _sizes(scenario, server, platform, budget)
    except arms.ArmError as error:
        return None, [ConfigProblem("", "scenarios", f"{cell.scenario}: {error}")]
    argv = (*common_arguments(served, server, campaign.engine), *arm.argv)
    env = {**common_environment(served, server), **arm.env}
    problems = [
        *overrides(cell.model, "models", model.extra_args, {}, (argv, env)),
        *overrides("server", "server", server.args, server.env, (argv, env)),
        *overrides(cell.scenario, "scenarios", scenario.args, scenario.env, (argv, env)),
    ]
    if problems:
        return None, problems
    versions = {"vllm": server.vllm, "guidellm": server.guidellm}
    if scenario.arm in ("lmcache", "hybrid") and server.lmcache is not None:
        versions["lmcache"] = server.lmcache
    return (
        Specification(
            protocol=protocol,
            cell=cell,
            engine=campaign.engine,
            weights=server.weights,
            model=served,
            versions=versions,
            build=server.build,
            block_size=server.block_size,
            argv=(*argv, *model.extra_args, *server.args, *scenario.args),
            env={**env, **server.env, **scenario.env},
            sidecars=arm.sidecars,
            budget=sizes,
            fs_dir=server.fs_dir if scenario.arm == "files" else UNSET,
            workload=workload.specification,
            reset_caches=campaign.reset_caches,
            images={} if release is None else images(scenario, campaign, release, arm.sidecars),
            deployment=None if release is None else deployment(scenario, campaign, release, platform, served, sizes),
        ),
        [],
    )


def _served(cell: Cell, campaign: Campaign, catalogue: Catalogue) -> ServedModel:
    scenario = catalogue.scenarios[cell.scenario]
    model = catalogue.models[scenario.serves.get(cell.model, cell.model)]
    return served_model(cell.model, model, scenario, campaign.server)


def _platform(served: ServedModel, campaign: Campaign, catalogue: Catalogue) -> arms.Platform:
    server = campaign.server
    release = None if server.release is None else catalogue.releases[server.release]
    # Two of the longest conversations: enough to pass through, too little to be a tier.
    staging_blocks = sizing.server_blocks(2 * sizing.blocks_for_tokens(served.max_model_len), server.block_size)
    return arms.Platform(
        vllm=server.vllm,
        lmcache=server.lmcache,
        on_cpu=server.on_cpu,
        engine=campaign.engine,
        block_size=server.block_size,
        served_name=served.served_name,
        staging_bytes=staging_blocks * server.block_size * served.kv_bytes_per_token,
        lmcache_form=None if release is None else release.lmcache_form,
        events=None if release is None else release.events,
    )


def _sizes(scenario: Scenario, server: ServerConfig, platform: arms.Platform, budget: sizing.Budget) -> CacheSizes:
    """Return the budget with its parts, where two tiers share it, the staging buffer and the device's own cache."""
    split = {}
    if scenario.arm == "hybrid":
        native, lmcache = arms.hybrid_budgets(scenario, budget)
        split = {"native_bytes": native.tier_bytes, "lmcache_bytes": lmcache.tier_bytes}
    return CacheSizes(
        **msgspec.structs.asdict(budget),
        staging_bytes=platform.staging_bytes if scenario.arm == "files" and not scenario.cpu_tier else 0,
        device_blocks=server.device_blocks,
        device_tokens=None if server.device_blocks is None else server.device_blocks * BLOCK_TOKENS,
        split=split,
    )
