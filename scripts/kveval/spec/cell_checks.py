"""Finds cells that are impossible, or not what their names say; each finding tells what would be right."""

from collections.abc import Iterator, Mapping, Set

from kveval.config.campaign import Campaign, ServerConfig
from kveval.config.catalogue import Catalogue, Companion, Model, Scenario
from kveval.config.problems import ConfigProblem, unknown_name
from kveval.config.workload import Workload
from kveval.load.trace_file import TraceError
from kveval.spec.arms import REPLACEABLE
from kveval.spec.builds import BESIDE, ArmBuild
from kveval.spec.servers.registry import SERVERS
from kveval.spec.specification import SidecarSpec
from kveval.store.run_file import Cell


def unknown_names(cell: Cell, campaign: Campaign, catalogue: Catalogue) -> Iterator[ConfigProblem]:
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


def tier_problems(cell: Cell, scenario: Scenario) -> Iterator[ConfigProblem]:
    """A size without a tier, or a tier without a size."""
    if cell.cpu_blocks < 0:
        yield ConfigProblem("", "cpu_blocks", f"{cell.cpu_blocks} blocks", "0 or more", "negative")
    elif scenario.cpu_tier and cell.cpu_blocks == 0:
        said = f"{cell.scenario} has a CPU tier, and 0 blocks give it no size"
        yield ConfigProblem("", "cpu_blocks", said, "more than 0", "tier_without_size")
    elif not scenario.cpu_tier and cell.cpu_blocks > 0:
        yield ConfigProblem(
            "",
            "cpu_blocks",
            f"{cell.scenario} has no CPU tier that {cell.cpu_blocks} blocks could size",
            "0, in a matrix entry separate from scenarios that have a tier",
            "size_without_tier",
        )


def capacity_problems(cell: Cell, scenario: Scenario, server: ServerConfig) -> Iterator[ConfigProblem]:
    """A cell whose memory pressure does nothing would be a copy of another under a new name."""
    if not scenario.gpu_memory_utilization:
        return
    if server.one_rank:
        yield ConfigProblem(
            "",
            "scenarios",
            f"{cell.scenario} changes gpu_memory_utilization, but here server.device_blocks sets the capacity",
            "a campaign with fewer device_blocks",
            "fixed_capacity",
        )
    elif cell.model not in scenario.gpu_memory_utilization:
        known = ", ".join(sorted(scenario.gpu_memory_utilization))
        said = f"{cell.scenario} gives no gpu_memory_utilization for {cell.model}"
        yield ConfigProblem("", "scenarios", said, known, "no_utilization")


def stand_in_problems(cell: Cell, scenario: Scenario) -> Iterator[ConfigProblem]:
    """A cell in which no other model is served would be a copy of another under a new name."""
    if scenario.serves and cell.model not in scenario.serves:
        known = ", ".join(sorted(scenario.serves))
        yield ConfigProblem("", "scenarios", f"{cell.scenario} serves nothing in place of {cell.model}", known)


def parallel_problems(cell: Cell, scenario: Scenario, model: Model, server: ServerConfig) -> Iterator[ConfigProblem]:
    """A number of ranks that the model cannot be divided among."""
    ranks = scenario.tensor_parallel_size
    if ranks is None:
        return
    if server.one_rank:
        said = f"{cell.scenario} sets tensor_parallel_size, but a miniature and a CPU have one rank"
        yield ConfigProblem("", "scenarios", said, "a build for GPUs, weights full or random", "ranks_of_miniature")
    elif not model.divides_among(ranks):
        said = f"{cell.scenario}: {ranks} ranks cannot share the heads of {cell.model}"
        yield ConfigProblem("", "scenarios", said, "2", "ranks_do_not_divide")


def weights_problems(cell: Cell, model: Model, server: ServerConfig) -> Iterator[ConfigProblem]:
    """Weights that are not where the server would look for them, or that its device cannot compute with."""
    if server.weights == "full" and model.path is not None and server.release is not None:
        said = f"the path of {cell.model} is a folder of this host"
        yield ConfigProblem("", "models", said, "leave it out; cluster.model_cache keeps weights", "path_of_this_host")
    if server.weights == "random" and model.quantization is not None and server.on_cpu:
        said = f"{cell.model} has {model.quantization} weights, which no server on a CPU makes at random"
        yield ConfigProblem("", "models", said, "the model without quantization, or a GPU", "quantized_on_cpu")


def elsewhere_problems(cell: Cell, scenario: Scenario, server: ServerConfig) -> Iterator[ConfigProblem]:
    """Keys of a scenario that only a cluster supports: ignored, the cell would be a copy under another name."""
    if server.release is None:
        for key in sorted({"image", "replicas", "routing"} & scenario.model_fields_set):
            said = f"{cell.scenario} sets {key}, for engine kubernetes alone"
            yield ConfigProblem("", "scenarios", said, "leave it out", "cluster_alone")


def build_problems(
    cell: Cell, scenario: Scenario, server: ServerConfig, build: ArmBuild | None
) -> Iterator[ConfigProblem]:
    """A build where images are run, or of a program that the arm has not."""
    if scenario.server is not None and server.release is not None:
        said = f"{cell.scenario} names a build of this host, and a cluster runs images"
        yield ConfigProblem("", "scenarios", said, "image: NAME@sha256:DIGEST in place of server", "build_on_cluster")
    unused = build is not None and BESIDE not in scenario.kind.parts
    if build is not None and unused and {*build.versions, *build.packages} == {BESIDE}:
        said = f"{cell.scenario} names a build of {BESIDE}, which arm {scenario.arm} does not use"
        yield ConfigProblem("", "scenarios", said, "leave server out", "build_not_used")


def with_settings(
    cell: Cell, sidecars: tuple[SidecarSpec, ...], settings: Mapping[str, Companion]
) -> tuple[tuple[SidecarSpec, ...], list[ConfigProblem]]:
    """Return the programs beside the server with a scenario's own settings, and the settings that are not allowed.

    Arguments in REPLACEABLE, such as the eviction policy, are replaced.
    """
    there = {sidecar.name for sidecar in sidecars}
    problems = [
        ConfigProblem("", "scenarios", f"{cell.scenario} runs no {name} of its own", "leave companions out", "no_such")
        for name in settings
        if name not in there
    ]
    found = []
    for sidecar in sidecars:
        own = settings.get(sidecar.name, Companion())
        given = {argument.partition("=")[0].replace("_", "-") for argument in own.args if argument.startswith("--")}
        argv = list(sidecar.argv)
        for flag in sorted(given & REPLACEABLE & set(argv)):
            place = argv.index(flag)
            del argv[place : place + 2]
        owner = f"{cell.scenario}, companions.{sidecar.name}"
        problems += overrides(owner, "scenarios", own.args, own.env, (tuple(argv), sidecar.env), set())
        found.append(SidecarSpec(sidecar.name, (*argv, *own.args), {**sidecar.env, **own.env}))
    return tuple(found), problems


def workload_problems(cell: Cell, max_model_len: int, workload: Workload, name: str) -> Iterator[ConfigProblem]:
    """A load that would not be the same for all arms, or is longer than the server takes."""
    if workload.profile == "sweep":
        yield ConfigProblem(
            "",
            "workload",
            f"{name} sweeps rates derived from each server's own throughput, so that arms would get different loads",
            "profile concurrent; sweeps are for results that were measured elsewhere",
            "sweep",
        )
    try:
        longest = workload.conversation_tokens
    except TraceError as error:
        yield ConfigProblem("", "workload", f"{name}: {error}", "a trace as docs/traces.md describes it", error.code)
        return
    if longest > max_model_len:
        yield ConfigProblem(
            "",
            "workload",
            f"a conversation of {name} grows to {longest} tokens,"
            f" {cell.model} is served with max_model_len {max_model_len}",
            "a shorter prefix, fewer turns, or a larger server.max_model_len",
            "too_long",
        )


def overrides(
    owner: str,
    key: str,
    args: tuple[str, ...],
    env: Mapping[str, str],
    computed: tuple[tuple[str, ...], Mapping[str, str]],
    arm_flags: Set[str],
) -> Iterator[ConfigProblem]:
    """Report what is computed and given again: the second value would silently override the specification.

    `computed`: arguments and environment of the cell; `arm_flags`: flags that only arms may set.
    """
    taken = {argument for argument in computed[0] if argument.startswith("--")} | arm_flags
    given = {argument.partition("=")[0].replace("_", "-") for argument in args if argument.startswith("--")}
    for name in (*sorted(given & taken), *sorted(env.keys() & computed[1].keys())):
        yield ConfigProblem("", key, f"{owner} sets {name}, which is computed", "leave it out", "computed")
