"""Resolves a cell into everything that defines its measurement: server arguments, environment, budget, workload."""

from typing import Any

import msgspec
from msgspec import UNSET

from kveval.campaign import sizing
from kveval.campaign.builds import ArmBuild, with_build
from kveval.campaign.campaign_file import Campaign, ServerConfig
from kveval.campaign.catalogue import (
    Catalogue,
    Model,
    ModelSettings,
    Scenario,
)
from kveval.campaign.cell import Cell
from kveval.campaign.problems import ConfigError, ConfigProblem
from kveval.campaign.random_model import miniature_geometry
from kveval.campaign.release import Release
from kveval.campaign.sizing import CacheSizes
from kveval.campaign.specification import ServedModel, Specification
from kveval.campaign.verbatim import size_numbers
from kveval.configuration.cell_checks import (
    existing_problems,
    flags,
    limit_problems,
    overrides,
    server_problems,
    size_problems,
    unknown_names,
    with_settings,
    workload_problems,
    wrong,
)
from kveval.configuration.deployment import deployed, deployment_problems
from kveval.host.hashing import content_hash
from kveval.stacks import arms
from kveval.stacks.registry import SERVERS


def served_model(
    name: str, model: Model, scenario: Scenario, server: ServerConfig
) -> ServedModel:
    """Return `model` as this server serves it in this scenario; `name` is the cell's, which another may replace."""
    miniature = server.weights == "miniature"
    utilization = scenario.gpu_memory_utilization.get(
        name, model.gpu_memory_utilization
    )
    name = scenario.serves.get(name, name)
    settings = {key: getattr(model, key) for key in ModelSettings.model_fields}
    if miniature:
        settings |= {"geometry": miniature_geometry(model), "dtype": "bfloat16"}
        settings["quantization"] = None
    ranks = (
        scenario.tensor_parallel_size
        or server.tensor_parallel_size
        or model.tensor_parallel_size
    )
    settings["tensor_parallel_size"] = 1 if server.one_rank else ranks
    # The catalogue's is for campaigns that give none, and what the device holds is room for one of full length.
    usual = min(model.max_model_len, server.device_tokens or model.max_model_len)
    settings["max_model_len"] = server.max_model_len or usual
    full = server.weights == "full"
    return ServedModel(
        **settings,
        name=name,
        served_name=model.hf_id if full else f"{name}-{server.weights}",
        gpu_memory_utilization=None if server.one_rank else utilization,
        kv_bytes_per_token=sizing.kv_bytes_per_token(
            settings["geometry"],
            model.kv_cache_dtype,
            settings["tensor_parallel_size"],
            settings["dtype"],
        ),
        folder=model.path if full else None,
    )


def resolve_cell(
    cell: Cell,
    campaign: Campaign,
    catalogue: Catalogue,
    protocol: int,
    build: ArmBuild | None = None,
) -> tuple[Specification, tuple[dict[str, Any], ...]]:
    """Return what defines a cell's measurement, and the counters that its arm requires, which do not define it.

    `build`: what its scenario runs in place of what is installed. Raises ConfigError with all that is wrong with the
    cell; a problem's key is the part of the matrix it is about.
    """
    server = with_build(campaign.server, build)
    campaign = campaign.model_copy(update={"server": server})
    _refuse(*unknown_names(cell, campaign, catalogue))
    scenario = catalogue.scenarios[cell.scenario]
    model = catalogue.models[scenario.serves.get(cell.model, cell.model)]
    workload, program = catalogue.workloads[campaign.workload], SERVERS[server.program]
    release = None if server.release is None else catalogue.releases[server.release]
    served = served_model(cell.model, model, scenario, server)
    existing = campaign.existing.get(cell.scenario)
    if existing is not None and existing.served_model is not None:
        served = served.model_copy(update={"served_name": existing.served_model})
    _refuse(
        *size_problems(cell, scenario, server),
        *server_problems(cell, scenario, model, server, build),
        *workload_problems(cell, served.max_model_len, workload, campaign.workload),
    )
    sizes = _sizes(cell, scenario, server, served)
    scenario = scenario.with_sizes(size_numbers(sizes, served.tensor_parallel_size))
    platform = _platform(served, campaign, release)
    if release is not None:
        _refuse(
            *deployment_problems(
                cell.scenario, scenario, campaign, release, program, platform
            )
        )
    counters = program.required_counters(scenario, platform)
    try:
        if scenario.exercised and not counters:
            message = f"{program.title} {server.declared_version}"
            raise arms.ArmError(
                f"{message} has none of the counters that would prove it active",
                code="no_proof",
            )
        arm = program.arm_arguments(scenario, platform, sizes)
    except arms.ArmError as error:
        raise ConfigError(
            [wrong("scenarios", f"{cell.scenario}: {error}", code=error.code)]
        ) from None
    sizes = msgspec.structs.replace(sizes, split=arm.split)
    sidecars, problems = with_settings(cell.scenario, scenario, arm.sidecars)
    if existing is not None:
        _refuse(
            *existing_problems(cell, scenario, sidecars, existing, server),
            *limit_problems(cell.scenario, existing, workload, campaign.workload),
        )
    argv = (*program.common_arguments(served, server, campaign.engine), *arm.argv)
    env = {**program.common_environment(served, server), **arm.env}
    computed = flags(argv) | env.keys() | program.arm_flags
    for owner, key, args, own in (
        (cell.model, "models", model.extra_args, {}),
        ("server", "server", server.args, server.env),
        (cell.scenario, "scenarios", scenario.args, scenario.env),
    ):
        problems += overrides(owner, key, args, own, computed)
    _refuse(*problems)
    argv = (*argv, *model.extra_args, *server.args, *scenario.args)
    refusals = program.refusals(
        served,
        argv,
        server.declared_version,
        server.block_size,
        on_cpu=server.on_cpu,
    )
    _refuse(
        *(
            wrong("scenarios", f"{cell.scenario}: {what}", right, code)
            for what, right, code in refusals
        )
    )
    versions = {program.name: server.declared_version, "guidellm": server.guidellm}
    if "lmcache" in scenario.kind.parts and server.lmcache is not None:
        versions["lmcache"] = server.lmcache
    images, deployment = (
        ({}, None)
        if release is None
        else deployed(
            scenario,
            campaign,
            release,
            program,
            platform,
            served,
            sizes,
            argv,
            sidecars,
        )
    )
    specification = Specification(
        protocol=protocol,
        cell=cell,
        engine=campaign.engine,
        weights=server.weights,
        model=served,
        versions=versions,
        build=server.build,
        source=build.source or UNSET if build is not None else UNSET,
        block_size=server.block_size,
        argv=argv,
        env={**env, **server.env, **scenario.env},
        sidecars=sidecars,
        budget=sizes,
        fs_dir=server.fs_dir if scenario.keeps_files else UNSET,
        address=UNSET if existing is None else content_hash(existing.url, 12),
        load_from_tier=existing is None or existing.load_from_tier,
        workload=workload.definition,
        reset_caches=campaign.reset_caches,
        images=images,
        deployment=deployment,
    )
    return specification, counters


def _refuse(*problems: ConfigProblem) -> None:
    if problems:
        raise ConfigError(problems)


def _platform(
    served: ServedModel, campaign: Campaign, release: Release | None
) -> arms.Platform:
    server = campaign.server
    return arms.Platform(
        server_version=server.declared_version,
        lmcache=server.lmcache,
        on_cpu=server.on_cpu,
        engine=campaign.engine,
        block_size=server.block_size,
        served_name=served.served_name,
        lmcache_form=None if release is None else release.lmcache_form,
        events=None if release is None else release.events,
    )


def _sizes(
    cell: Cell, scenario: Scenario, server: ServerConfig, served: ServedModel
) -> CacheSizes:
    """Return the budget, the staging buffer and the device's own cache."""
    staged = scenario.keeps_files and not scenario.cpu_tier
    staging_bytes = sizing.staging_bytes(
        served.kv_bytes_per_token, served.max_model_len, server.block_size
    )
    return CacheSizes.from_blocks(
        served.kv_bytes_per_token,
        cell.cpu_blocks,
        server.block_size,
        served.tensor_parallel_size,
        staging_bytes=staging_bytes if staged else 0,
        device_blocks=server.device_blocks,
        device_tokens=server.device_tokens,
    )
