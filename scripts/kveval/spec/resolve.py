"""From a cell to everything that defines its measurement: server arguments, environment, budget, workload."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from kveval.config.campaign import Campaign, Cell, ServerConfig
from kveval.config.catalogue import Catalogue, Geometry, Model, Scenario, name_for
from kveval.config.problems import ConfigProblem
from kveval.config.types import BLOCK_TOKENS
from kveval.config.workload import Workload
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
from kveval.spec.deployment import deployment, deployment_problems
from kveval.spec.miniature import miniature_geometry


@dataclass(frozen=True)
class ServedModel:
    """A model as the server has it: the miniature's own shape for a miniature."""

    name: str
    hf_id: str
    served_name: str
    geometry: Geometry
    dtype: str
    kv_cache_dtype: str
    quantization: str | None
    tensor_parallel_size: int
    max_model_len: int
    gpu_memory_utilization: float | None

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV cache per token, over all ranks."""
        return sizing.kv_bytes_per_token(self.geometry, self.kv_cache_dtype, self.tensor_parallel_size, self.dtype)

    def budget(self, cpu_blocks: int, block_size: int) -> sizing.Budget:
        """Size a CPU tier of `cpu_blocks` for this model on a server with blocks of `block_size` tokens."""
        return sizing.budget(
            self.geometry,
            cpu_blocks,
            block_size=block_size,
            kv_cache_dtype=self.kv_cache_dtype,
            tensor_parallel_size=self.tensor_parallel_size,
            dtype=self.dtype,
        )


@dataclass(frozen=True)
class ResolvedCell:
    """Everything that defines a cell's measurement, apart from the run's number.

    Placeholders stand for what differs between hosts: ports and paths.
    """

    cell: Cell
    protocol: int
    engine: str
    weights: str
    model: ServedModel
    versions: Mapping[str, str]
    build: str
    block_size: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    sidecars: tuple[arms.SidecarSpec, ...]
    budget: sizing.Budget
    device_blocks: int | None
    file_tier: Mapping[str, Any]
    workload: Mapping[str, Any]
    reset_caches: str
    exercised: tuple[Mapping[str, Any], ...]
    split: Mapping[str, int] = field(default_factory=dict)
    """Bytes of the budget's parts, where several tiers in host memory share it."""
    deployment: Mapping[str, Any] = field(default_factory=dict)
    """What engine kubernetes adds."""

    def specification(self) -> dict[str, Any]:
        """Return it as plain JSON values; its hash is the measurement's id.

        The counters that prove the arm active are not in it: they judge a measurement, they do not define it.
        """
        device_tokens = None if self.device_blocks is None else self.device_blocks * BLOCK_TOKENS
        model = {name: value for name, value in vars(self.model).items() if name != "geometry"}
        return {
            "protocol": self.protocol,
            "cell": asdict(self.cell),
            "engine": self.engine,
            "weights": self.weights,
            "model": {
                **model,
                "geometry": self.model.geometry.model_dump(),
                "kv_bytes_per_token": self.model.kv_bytes_per_token,
            },
            "versions": dict(self.versions),
            "build": self.build,
            "block_size": self.block_size,
            "argv": list(self.argv),
            "env": dict(self.env),
            "companions": [
                {"name": sidecar.name, "argv": list(sidecar.argv), "env": dict(sidecar.env)}
                for sidecar in self.sidecars
            ],
            "budget": {
                **asdict(self.budget),
                **{name: value for name, value in self.file_tier.items() if name == "staging_bytes"},
                "device_blocks": self.device_blocks,
                "device_tokens": device_tokens,
                **({"split": dict(self.split)} if self.split else {}),
            },
            **{name: value for name, value in self.file_tier.items() if name == "fs_dir"},
            "workload": dict(self.workload),
            "reset_caches": self.reset_caches,
            **self.deployment,
        }


def served_model(name: str, model: Model, scenario: Scenario, server: ServerConfig) -> ServedModel:
    """Return `model` as this server has it for this scenario; `name` is the cell's, which another may stand in for."""
    utilization = scenario.gpu_memory_utilization.get(name, model.gpu_memory_utilization)
    name = scenario.serves.get(name, name)
    longest = min(model.max_model_len, server.max_model_len or server.device_tokens or model.max_model_len)
    if server.weights == "miniature":
        return ServedModel(
            name=name,
            hf_id=model.hf_id,
            served_name=f"{name}-miniature",
            geometry=miniature_geometry(model),
            dtype="bfloat16",
            kv_cache_dtype=model.kv_cache_dtype,
            quantization=None,
            tensor_parallel_size=1,
            max_model_len=longest,
            gpu_memory_utilization=None,
        )
    return ServedModel(
        name=name,
        hf_id=model.hf_id,
        served_name=model.hf_id,
        geometry=model.geometry,
        dtype=model.dtype,
        kv_cache_dtype=model.kv_cache_dtype,
        quantization=model.quantization,
        tensor_parallel_size=scenario.tensor_parallel_size or model.tensor_parallel_size,
        max_model_len=longest,
        gpu_memory_utilization=None if server.fixed_capacity else utilization,
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


def workload_specification(workload: Workload) -> dict[str, Any]:
    """Return what of a workload defines the load; its title does not."""
    fields: dict[str, Any] = workload.model_dump(mode="json", exclude={"title"}, exclude_none=True)
    return fields


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


def resolve_cell(
    cell: Cell, campaign: Campaign, catalogue: Catalogue, protocol: int
) -> tuple[ResolvedCell | None, list[ConfigProblem]]:
    """Resolve a cell, or say all that is wrong with it; a problem's key is the part of the matrix it is about."""
    unknown = list(unknown_names(cell, campaign, catalogue))
    if unknown:
        return None, unknown
    scenario = catalogue.scenarios[cell.scenario]
    model = catalogue.models[scenario.serves.get(cell.model, cell.model)]
    server, workload = campaign.server, catalogue.workloads[campaign.workload]
    release = None if server.release is None else catalogue.releases[server.release]
    served = served_model(cell.model, model, scenario, server)
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
    budget = served.budget(cell.cpu_blocks, server.block_size)
    # Two of the longest conversations: enough to pass through, too little to be a tier.
    staging = served.budget(2 * sizing.blocks_for_tokens(served.max_model_len), server.block_size)
    platform = arms.Platform(
        vllm=server.vllm,
        lmcache=server.lmcache,
        on_cpu=server.on_cpu,
        engine=campaign.engine,
        block_size=server.block_size,
        served_name=served.served_name,
        staging_bytes=staging.tier_bytes,
        lmcache_form=None if release is None else release.lmcache_form,
        events=None if release is None else release.events,
    )
    if release is not None:
        problems = list(deployment_problems(cell.scenario, scenario, campaign, release, platform))
    if problems:
        return None, problems
    exercised = exercised_counters(scenario, platform)
    try:
        if scenario.exercised and not exercised:
            raise arms.ArmError(f"vLLM {server.vllm} has none of the counters that would prove it active")
        arm = arms.arm_arguments(scenario, platform, budget)
        split = _split(scenario, budget)
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
        ResolvedCell(
            cell=cell,
            protocol=protocol,
            engine=campaign.engine,
            weights=server.weights,
            model=served,
            versions=versions,
            build=server.build,
            block_size=server.block_size,
            argv=(*argv, *model.extra_args, *server.args, *scenario.args),
            env={**env, **server.env, **scenario.env},
            sidecars=arm.sidecars,
            budget=budget,
            device_blocks=server.device_blocks,
            file_tier=_file_tier(scenario, server, staging.tier_bytes),
            workload=workload_specification(workload),
            reset_caches=campaign.reset_caches,
            exercised=exercised,
            split=split,
            deployment={}
            if release is None
            else deployment(
                scenario,
                campaign,
                release,
                platform,
                budget,
                tensor_parallel_size=served.tensor_parallel_size,
                device_bytes=(server.device_tokens or 0) * served.kv_bytes_per_token,
                tier_bytes=budget.tier_bytes or (staging.tier_bytes if scenario.arm == "files" else 0),
                sidecars=arm.sidecars,
            ),
        ),
        [],
    )


def _split(scenario: Scenario, budget: sizing.Budget) -> dict[str, int]:
    """Return what each of two tiers gets of one budget, nothing where one has all of it."""
    if scenario.arm != "hybrid":
        return {}
    native, lmcache = arms.hybrid_budgets(scenario, budget)
    return {"native_bytes": native.tier_bytes, "lmcache_bytes": lmcache.tier_bytes}


def _file_tier(scenario: Scenario, server: ServerConfig, staging_bytes: int) -> dict[str, Any]:
    """Return what only an arm with a tier of files has; nothing for others, whose specifications it leaves alone."""
    if scenario.arm != "files":
        return {}
    return {"fs_dir": server.fs_dir, **({} if scenario.cpu_tier else {"staging_bytes": staging_bytes})}
