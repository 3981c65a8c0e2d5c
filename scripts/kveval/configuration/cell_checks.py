"""Finds cells that are impossible, or not what their names say; each finding tells what would be right.

A problem's key is the part of the matrix, or the section of the campaign, that it is about; its file is open.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import partial

from kveval.campaign.builds import BESIDE, ArmBuild
from kveval.campaign.campaign_file import Campaign, ExistingServer, ServerConfig
from kveval.campaign.catalogue import Catalogue, Companion, Model, Scenario
from kveval.campaign.cell import Cell
from kveval.campaign.problems import ConfigProblem, unknown_name
from kveval.campaign.random_model import RANDOM_ARCHITECTURES
from kveval.campaign.specification import SidecarSpec
from kveval.load import levels as workloads
from kveval.load.log_file import TraceError
from kveval.load.workload import Workload
from kveval.stacks.registry import SERVERS, SIDECARS

wrong = partial(ConfigProblem, "")
"""A problem: its key, what is wrong, what would be right, its code."""
# Arguments that give a model more positions than its checkpoint names.
_MORE_POSITIONS = ("--hf-overrides", "--rope-scaling")


def unknown_names(
    cell: Cell, campaign: Campaign, catalogue: Catalogue
) -> Iterator[ConfigProblem]:
    """Names that no catalogue has."""
    for key, name, known in (
        ("models", cell.model, list(catalogue.models)),
        ("scenarios", cell.scenario, list(catalogue.scenarios)),
        ("workload", campaign.workload, list(catalogue.workloads)),
        ("server.program", campaign.server.program, list(SERVERS)),
        ("server.release", campaign.server.release, [None, *catalogue.releases]),
    ):
        if name not in known:
            yield unknown_name("", key, str(name), filter(None, known))


def size_problems(
    cell: Cell, scenario: Scenario, server: ServerConfig
) -> Iterator[ConfigProblem]:
    """A size without a tier or a tier without a size; memory pressure that does nothing: a copy under a new name."""
    name, blocks, utilization = (
        cell.scenario,
        cell.cpu_blocks,
        scenario.gpu_memory_utilization,
    )
    if blocks < 0:
        yield wrong("cpu_blocks", f"{blocks} blocks", "0 or more", "negative")
    elif scenario.cpu_tier and blocks == 0:
        message = f"{name} has a CPU tier, and 0 blocks give it no size"
        yield wrong("cpu_blocks", message, "more than 0", "tier_without_size")
    elif not scenario.cpu_tier and blocks > 0:
        message = f"{name} has no CPU tier that {blocks} blocks could size"
        right = "0, in a matrix entry separate from scenarios that have a tier"
        yield wrong("cpu_blocks", message, right, "size_without_tier")
    if utilization and server.one_rank:
        message = f"{name} changes gpu_memory_utilization, but here server.device_blocks sets the capacity"
        yield wrong(
            "scenarios",
            message,
            "a campaign with fewer device_blocks",
            "fixed_capacity",
        )
    elif utilization and cell.model not in utilization:
        message = f"{name} gives no gpu_memory_utilization for {cell.model}"
        yield wrong(
            "scenarios", message, ", ".join(sorted(utilization)), "no_utilization"
        )


def server_problems(
    cell: Cell,
    scenario: Scenario,
    model: Model,
    server: ServerConfig,
    build: ArmBuild | None,
) -> Iterator[ConfigProblem]:
    """Ranks, weights or a build that this server cannot have, and keys that would be ignored here."""
    name, on_cluster = cell.scenario, server.release is not None
    if scenario.serves and cell.model not in scenario.serves:
        message = f"{name} serves nothing in place of {cell.model}"
        yield wrong(
            "scenarios", message, ", ".join(sorted(scenario.serves)), "nothing_served"
        )
    yield from _length_problems(cell, model, server)
    yield from _rank_problems(cell, scenario, model, server)
    yield from _weights_problems(cell, model, server)
    if server.weights == "full" and model.path is not None and on_cluster:
        message = f"the path of {cell.model} is a folder of this host"
        yield wrong(
            "models",
            message,
            "leave it out; cluster.model_cache keeps weights",
            "path_of_this_host",
        )
    if server.weights == "random" and model.quantization is not None and server.on_cpu:
        message = f"{cell.model} has {model.quantization} weights, which no server on a CPU makes at random"
        yield wrong(
            "models",
            message,
            "the model without quantization, or a GPU",
            "quantized_on_cpu",
        )
    for key in (
        ()
        if on_cluster
        else sorted({"image", "replicas", "routing"} & scenario.model_fields_set)
    ):
        yield wrong(
            "scenarios",
            f"{name} sets {key}, for engine kubernetes alone",
            "leave it out",
            "cluster_alone",
        )
    if scenario.server is not None and on_cluster:
        message = f"{name} names a build of this host, and a cluster runs images"
        yield wrong(
            "scenarios",
            message,
            "image: NAME@sha256:DIGEST in place of server",
            "build_on_cluster",
        )
    unused = build is not None and BESIDE not in scenario.kind.parts
    if build is not None and unused and {*build.versions, *build.packages} == {BESIDE}:
        message = (
            f"{name} names a build of {BESIDE}, which arm {scenario.arm} does not use"
        )
        yield wrong("scenarios", message, "leave server out", "build_not_used")


def _weights_problems(
    cell: Cell, model: Model, server: ServerConfig
) -> Iterator[ConfigProblem]:
    """Random weights for a model of which no random ones are known."""
    architecture = model.geometry.architecture
    if server.weights != "full" and architecture not in RANDOM_ARCHITECTURES:
        message = (
            f"{cell.model} is a {architecture}, for which there are no random weights"
        )
        yield wrong("models", message, "server.weights: full", "no_random_weights")
    elif server.weights == "random" and model.geometry.parameters is not None:
        message = f"{cell.model} has experts, which its geometry does not describe"
        right = "server.weights: full or miniature"
        yield wrong("models", message, right, "random_experts")


def _length_problems(
    cell: Cell, model: Model, server: ServerConfig
) -> Iterator[ConfigProblem]:
    """A length that the model has no positions for, unless arguments give it more."""
    length, positions = server.max_model_len, model.geometry.max_position_embeddings
    extended = any(arg.startswith(_MORE_POSITIONS) for arg in server.args)
    if length is not None and length > positions and not extended:
        message = f"max_model_len {length} is more than the {positions} positions of {cell.model}"
        right = "fewer, or --hf-overrides among server.args"
        yield wrong("server", message, right, "too_few_positions")


def _rank_problems(
    cell: Cell, scenario: Scenario, model: Model, server: ServerConfig
) -> Iterator[ConfigProblem]:
    """Ranks that a miniature or a CPU does not have, or that cannot share the model's heads."""
    if scenario.tensor_parallel_size is not None:
        key, owner, ranks = "scenarios", cell.scenario, scenario.tensor_parallel_size
    elif server.tensor_parallel_size is not None:
        key, owner, ranks = (
            "server.tensor_parallel_size",
            "server",
            server.tensor_parallel_size,
        )
    else:
        return
    if server.one_rank:
        message = f"{owner} sets tensor_parallel_size, but a miniature and a CPU have one rank"
        yield wrong(
            key,
            message,
            "a build for GPUs, weights full or random",
            "ranks_of_miniature",
        )
    elif not model.divides_among(ranks):
        message = f"{owner}: {ranks} ranks cannot share the heads of {cell.model}"
        yield wrong(key, message, "2", "ranks_do_not_divide")


def with_settings(
    name: str, scenario: Scenario, sidecars: tuple[SidecarSpec, ...]
) -> tuple[tuple[SidecarSpec, ...], list[ConfigProblem]]:
    """Return the programs beside the server with a scenario's own settings, and the settings that are not allowed.

    Arguments that their program has as replaceable, such as the eviction policy, are replaced.
    """
    settings = {str(beside): own for beside, own in scenario.companions.items()}
    beside_server = {sidecar.name for sidecar in sidecars}
    problems = [
        wrong(
            "scenarios",
            f"{name} runs no {beside} of its own",
            "leave companions out",
            "no_such",
        )
        for beside in sorted(settings.keys() & SIDECARS.keys() - beside_server)
    ]
    found = []
    for sidecar in sidecars:
        own = settings.get(sidecar.name, Companion())
        argv = list(sidecar.argv)
        replaceable = SIDECARS[sidecar.name].replaceable
        for flag in sorted(flags(own.args) & replaceable & set(argv)):
            place = argv.index(flag)
            del argv[place : place + 2]
        owner = f"{name}, companions.{sidecar.name}"
        refused = SIDECARS[sidecar.name].refused
        problems += [
            wrong("scenarios", f"{owner}: {flag} is not given", right, "not_emptied")
            for flag, right in refused.items()
            if flag in flags(own.args)
        ]
        problems += overrides(
            owner, "scenarios", own.args, own.env, flags(argv) | sidecar.env.keys()
        )
        found.append(
            SidecarSpec(sidecar.name, (*argv, *own.args), {**sidecar.env, **own.env})
        )
    return tuple(found), problems


def workload_problems(
    cell: Cell, max_model_len: int, workload: Workload, name: str
) -> Iterator[ConfigProblem]:
    """A load that would not be the same for all arms, or is longer than the server takes."""
    if workload.profile == "sweep":
        message = f"{name} sweeps rates derived from each server's own throughput, so that arms would get different loads"
        yield wrong(
            "workload",
            message,
            "profile concurrent; sweeps are for results measured elsewhere",
            "sweep",
        )
    try:
        longest = workload.definition.conversation_tokens
    except TraceError as error:
        yield wrong(
            "workload",
            f"{name}: {error}",
            "a trace as docs/traces.md describes it",
            error.code,
        )
        return
    if longest > max_model_len:
        message = f"a conversation of {name} grows to {longest} tokens, {cell.model} is served with max_model_len"
        right = "a shorter prefix, fewer turns, or a larger server.max_model_len"
        yield wrong("workload", f"{message} {max_model_len}", right, "too_long")


def overrides(
    owner: str,
    key: str,
    args: tuple[str, ...],
    env: Mapping[str, str],
    computed: Set[str],
) -> Iterator[ConfigProblem]:
    """Report what is computed and given again: the second value would silently override the specification.

    `computed`: flags and environment variables that only the cell itself sets.
    """
    for name in sorted((flags(args) | env.keys()) & computed):
        yield wrong(
            key, f"{owner} sets {name}, which is computed", "leave it out", "computed"
        )


def flags(args: Iterable[str]) -> set[str]:
    """Return the flags among arguments, as they are written with hyphens and without values."""
    return {
        argument.partition("=")[0].replace("_", "-")
        for argument in args
        if argument.startswith("--")
    }


def existing_problems(
    cell: Cell,
    scenario: Scenario,
    sidecars: Sequence[SidecarSpec],
    existing: ExistingServer,
    server: ServerConfig,
) -> Iterator[ConfigProblem]:
    """Yield problems of an arm with more than the server that answers already: an address leads to nothing else."""
    name = cell.scenario
    if not existing.load_from_tier:
        yield from _loading_problems(name, scenario, server)
    yield from _beside_problems(name, [sidecar.name for sidecar in sidecars], existing)
    if scenario.keeps_files:
        message = f"{name} has a tier of files, which an address alone does not lead to"
        yield wrong(
            "scenarios", message, "another arm, or engine local", "existing_files"
        )
    if scenario.server is not None:
        message = f"{name} names a build in server, and engine existing starts none"
        right = "leave server out, and have the build serve at its address, or by its switch"
        yield wrong("scenarios", message, right, "existing_build")


def _beside_problems(
    name: str, beside: Sequence[str], existing: ExistingServer
) -> Iterator[ConfigProblem]:
    """Yield problems of an arm whose server has programs beside it; LMCache's server alone can be named."""
    stores = [program for program in beside if program != "lmcache"]
    if stores:
        message = f"{name} has {', '.join(stores)} beside its server, which may hold what is others'"
        right = "an arm without, as the store would have to be emptied before each level, or engine local or kubernetes"
        yield wrong("scenarios", message, right, "existing_sidecars")
    elif beside and existing.lmcache is None:
        message = (
            f"{name} has LMCache's server beside its own, whose address is not known"
        )
        right = f"{name}: {{lmcache: http://HOST:PORT}}, where it shows its metrics"
        yield wrong("existing", message, right, "no_lmcache_address")
    elif existing.lmcache is not None and not beside:
        message = f"{name}.lmcache: {name} has no LMCache server beside its own"
        yield wrong("existing", message, "leave it out", "no_lmcache")
    elif existing.lmcache is not None and len(existing.metrics) > 1:
        message = f"{name} has {len(existing.metrics)} replicas, and one LMCache server"
        right = "one address in metrics: each replica has an LMCache of its own"
        yield wrong("existing", message, right, "one_lmcache")


def _loading_problems(
    name: str, scenario: Scenario, server: ServerConfig
) -> Iterator[ConfigProblem]:
    """Yield why the requests of an arm cannot switch loading off."""
    program = SERVERS[server.program]
    if scenario.kind.parts:
        message = (
            f"{name}.load_from_tier: {name} has a tier, and would never load from it"
        )
        right = "an arm without a tier, such as no-offload, at the address of the arm with the tier"
        yield wrong("existing", message, right, "loading_off_with_tier")
    version = server.declared_version
    if program.without_loading(version) is None:
        message = f"{name}.load_from_tier: requests cannot switch loading off in {program.title} {version}"
        right = "a newer release, a switch, or two addresses"
        yield wrong("existing", message, right, "loading_not_switched")


def limit_problems(
    arm: str, existing: ExistingServer, workload: Workload, name: str
) -> Iterator[ConfigProblem]:
    """Yield each kind of level of a workload that is more than a server that answers already may get."""
    streams, per_minute = existing.most_streams, existing.most_requests_per_minute
    levels = workload.given_levels
    in_flight = max(workloads.streams_at(workload, level) or 0 for level in levels)
    if streams is not None and in_flight > streams:
        message = f"{arm}.most_streams is {streams}, and {name} has {in_flight} in flight at its highest level"
        yield wrong(
            "existing", message, "a workload with lower levels", "above_most_streams"
        )
    rate = max(workloads.rate_req_s_at(workload, level) or 0 for level in levels)
    if per_minute is not None and 60 * rate > per_minute:
        message = f"{arm}.most_requests_per_minute is {per_minute:g}, and {name} sends up to {60 * rate:g}"
        yield wrong(
            "existing", message, "a workload with lower rates", "above_most_requests"
        )
