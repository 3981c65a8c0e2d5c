"""Whether this host can run a campaign with the local engine: checked before hours are spent; nothing is started."""

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

import psutil

from kveval.campaign.builds import ArmBuild, BuildError, asked_of, git
from kveval.campaign.sizing import GIB
from kveval.campaign.specification import Specification
from kveval.configuration.config import Config
from kveval.engines.local.builds import environment_of, is_made, missing_modules
from kveval.engines.local.sidecars import find_program
from kveval.engines.preflight import (
    MEMORY_SHARE,
    disk_bytes,
    memory_bytes,
    require_checkpoint,
    shared_memory_bytes,
)
from kveval.engines.watchdog import DISK_RESERVE_BYTES
from kveval.host import hardware
from kveval.host.errors import Failure
from kveval.host.findings import FindingRow, error, ok, pluralize, warning
from kveval.host.gpus.releases import judge_release, read_releases
from kveval.host.lock import LOCK, holder
from kveval.host.registry import SHARED_MEMORY, registry_path
from kveval.host.setup import ready
from kveval.host.shipped import shipped_folder
from kveval.pcp.direct.ranges import read_ranges
from kveval.pcp.installation import installed_pcp
from kveval.stacks.registry import SERVERS
from kveval.stacks.versions import same_release
from kveval.workflow.planning.gpus import gpus_of_server, told_gpus

GPU_RELEASES = shipped_folder("config") / "gpu_releases.yaml"
_BUSY_SHARE = 0.25
_SMALLER = "fewer cpu_blocks, or a smaller cpu_gib"
_COMPILED = ("csrc", "cmake", "CMakeLists.txt", "rust")
_VERSIONS = """
import importlib.metadata as m, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = m.version(name)
    except m.PackageNotFoundError:
        pass
print(json.dumps(found))
"""
T = TypeVar("T")


@dataclass(frozen=True)
class LocalFacts:
    """The state of this host, as probed; sizes in bytes.

    Attributes:
        gpus: names of the NVIDIA GPUs that answer.
        driver_cuda: the newest CUDA that their driver runs, None where it does not say.
        memory: of the host, in all.
        shared_memory_free: of /dev/shm; None where there is none.
        disk_free: where the results are kept.
        load: processes that ran or waited for a CPU, mean of the last minute.
        pcp: PCP's version, None where there is none; or why it cannot record.
        versions: of the distributions in the server's environment; or why there is none, or its Python does not answer.
        missing_programs: programs that an arm starts beside the server and that are not installed, with the reason.
        unwritable: folders of the configuration that this user cannot write to.
        unset_secrets: names of the campaign's secrets that are not in the environment.
        holder: the measurement that holds the host, None for none.
        leftovers: number of things that killed runs registered and that are not removed yet.
        checkpoints: what is wrong with folders of checkpoints on this host's disk.
        reduced: what was left out of the server's environment (kveval.host.setup.ready); None if it is complete.
    """

    gpus: Sequence[str]
    cpus: int
    memory: int
    shared_memory_free: int | None
    disk_free: int
    load: float
    pcp: str | Failure | None
    versions: Mapping[str, str] | Failure
    missing_programs: Mapping[str, str]
    unwritable: Sequence[str]
    unset_secrets: Sequence[str]
    holder: str | None
    leftovers: int
    checkpoints: Sequence[str] = ()
    driver_cuda: str | None = None
    reduced: Mapping[str, Any] | None = None


def local_facts(
    specifications: Sequence[Specification], config: Config, store: Path, server: Path
) -> LocalFacts:
    """Probe this host; `store`: the folder of the store, which may not exist; `server`: the server's environment."""
    programs = sorted(
        {
            sidecar.argv[0]
            for specification in specifications
            for sidecar in specification.sidecars
        }
    )
    missing = {program: _answer(find_program, program, server) for program in programs}
    models = {
        specification.model.served_name: specification.model
        for specification in specifications
    }
    checkpoints = [_answer(require_checkpoint, model) for model in models.values()]
    folders = {
        specification.fs_dir for specification in specifications if specification.fs_dir
    }
    gpus = hardware.gpus()
    return LocalFacts(
        gpus=[gpu["name"] for gpu in gpus],
        cpus=len(os.sched_getaffinity(0)),
        memory=psutil.virtual_memory().total,
        shared_memory_free=shutil.disk_usage(SHARED_MEMORY).free
        if SHARED_MEMORY.is_dir()
        else None,
        disk_free=shutil.disk_usage(
            next(folder for folder in (store, *store.parents) if folder.exists())
        ).free,
        load=psutil.getloadavg()[0],
        pcp=_answer(installed_pcp),
        versions=_answer(
            asked_of,
            server,
            _VERSIONS,
            *_server_names(config),
            "guidellm",
            "lmcache",
            "torch",
        ),
        missing_programs={
            program: str(found)
            for program, found in missing.items()
            if isinstance(found, Failure)
        },
        unwritable=sorted(
            folder for folder in folders if not os.access(folder, os.W_OK | os.X_OK)
        ),
        unset_secrets=[
            name for name in config.campaign.secrets if not os.environ.get(name)
        ],
        holder=holder(LOCK),
        leftovers=_noted(registry_path()),
        checkpoints=[str(found) for found in checkpoints if found is not None],
        driver_cuda=next((gpu["cuda"] for gpu in gpus if gpu.get("cuda")), None),
        reduced=ready.facts_of(server),
    )


def _answer(call: Callable[..., T], *arguments: object) -> T | Failure:
    try:
        return call(*arguments)
    except Failure as failure:
        return failure


def examine_local(
    config: Config, specifications: Sequence[Specification], facts: LocalFacts
) -> list[FindingRow]:
    """Return the findings that follow from these facts; `specifications`: those of the campaign's cells."""
    return [
        _device(config, specifications, facts),
        _memory(specifications, facts),
        _shared_memory(specifications, facts),
        disk_finding(config, specifications, facts),
        pcp_finding(facts),
        *_software(config, specifications, facts),
        *_surroundings(config, facts),
    ]


def _device(
    config: Config, specifications: Sequence[Specification], facts: LocalFacts
) -> FindingRow:
    server = config.campaign.server
    if server.on_cpu:
        return ok("device", f"the CPU, {facts.cpus} cores (build {server.build})")
    asked = max(
        specification.model.tensor_parallel_size for specification in specifications
    )
    names = ", ".join(sorted(set(facts.gpus)))
    takes = f"a server takes {told_gpus(specifications)} (tensor_parallel_size)"
    if len(facts.gpus) >= asked:
        return ok("device", f"{len(facts.gpus)} GPUs answer ({names}); {takes}")
    seen = (
        f"{len(facts.gpus)} GPUs answer ({names})"
        if facts.gpus
        else "no GPU answers nvidia-smi"
    )
    small = f"server.build: {server.program}-cpu with weights: miniature"
    fix = f"server.tensor_parallel_size; or {small}; or engine: kubernetes"
    said = (
        f"{seen}, build {server.build} with tensor_parallel_size {asked} takes {asked}"
    )
    said = (
        said
        if len({gpus_of_server(one) for one in specifications}) == 1
        else f"{said}; {takes}"
    )
    return error("device", said, fix, asked=asked)


def _memory(specifications: Sequence[Specification], facts: LocalFacts) -> FindingRow:
    largest = max(specifications, key=memory_bytes)
    cell, needed = largest.cell.path, memory_bytes(largest)
    tier = f", a tier of {largest.budget.size}," if largest.cell.cpu_blocks else ""
    share = needed / facts.memory
    said = (
        f"{cell}{tier} keeps {needed / GIB:.1f} GiB of KV cache in host memory,"
        f" {share:.0%} of this host's {facts.memory / GIB:.1f} GiB"
    )
    if share > 1:
        fix = f"matrix: {_SMALLER}; or a smaller server.device_blocks"
        return error(
            "host memory", said, fix, cell=cell, needed_bytes=needed, share=share
        )
    if share > MEMORY_SHARE:
        fix = f"matrix: {_SMALLER}; above {MEMORY_SHARE:.0%} the host may swap, and the measurement shows that"
        return warning(
            "host memory", said, fix, cell=cell, needed_bytes=needed, share=share
        )
    return ok("host memory", said, cell=cell, needed_bytes=needed, share=share)


def _shared_memory(
    specifications: Sequence[Specification], facts: LocalFacts
) -> FindingRow:
    cell, needed = max(
        ((one.cell.path, shared_memory_bytes(one)) for one in specifications),
        key=itemgetter(1),
    )
    if facts.shared_memory_free is None:
        return warning(
            "/dev/shm", "there is none", "mount -t tmpfs tmpfs /dev/shm", "none_there"
        )
    said = f"{cell} allocates {needed / GIB:.1f} GiB there, {facts.shared_memory_free / GIB:.1f} GiB are free"
    if needed > facts.shared_memory_free:
        fix = f"mount -o remount,size={needed // GIB + 2}G /dev/shm   (in a container: docker run --shm-size)"
        return error("/dev/shm", said, fix, free_bytes=facts.shared_memory_free)
    return ok("/dev/shm", said)


def disk_finding(
    config: Config, specifications: Sequence[Specification], facts: LocalFacts
) -> FindingRow:
    """Return whether the disk of the results has room for all runs."""
    # Every estimate includes the reserve, which is needed only once.
    runs = [
        disk_bytes(specification.workload, facts.cpus)
        for specification in specifications
        for _ in config.runs_of(specification.cell)
    ]
    said = f"a run takes at most {max(runs) / GIB:.1f} GiB, {facts.disk_free / GIB:.1f} GiB are free"
    if max(runs) > facts.disk_free:
        fix = "free some, or move the repository's folder results to a larger disk"
        return error("disk", said, fix, free_bytes=facts.disk_free)
    if sum(runs) - (len(runs) - 1) * DISK_RESERVE_BYTES > facts.disk_free:
        return warning(
            "disk",
            f"{said}; perhaps not enough for all {len(runs)} runs",
            "watch it: df -h results",
        )
    return ok("disk", said)


def pcp_finding(facts: LocalFacts) -> FindingRow:
    """Return whether PCP can record here."""
    if isinstance(facts.pcp, Failure):
        return error("PCP", str(facts.pcp), "bash scripts/setup.sh pcp")
    if not facts.pcp:
        said = "not installed: the server's exporters and the host's main counters are recorded without it"
        return warning("PCP", said, "bash scripts/setup.sh pcp", "none_there")
    return ok("PCP", f"version {facts.pcp}")


def _software(
    config: Config, specifications: Sequence[Specification], facts: LocalFacts
) -> Iterator[FindingRow]:
    server = config.campaign.server
    install = f"bash scripts/setup.sh {'server' if server.on_cpu else 'server-gpu'}"
    if isinstance(facts.versions, Failure):
        there = facts.versions.code != "no_environment_there"
        fix = f"move .server-venv away, then {install}" if there else install
        yield error(
            "server environment",
            str(facts.versions),
            fix,
            "no_answer" if there else "none_there",
        )
        return
    names = _server_names(config)
    served = next((facts.versions[one] for one in names if one in facts.versions), None)
    versions = {**facts.versions, server.program: served}
    if not server.on_cpu:
        releases = read_releases(GPU_RELEASES)
        told = judge_release(
            releases, server.program, served, versions.get("torch"), facts.driver_cuda
        )
        if told is not None:
            yield told
    declared = {server.program: server.declared_version, "guidellm": server.guidellm}
    if server.lmcache is not None:
        declared["lmcache"] = server.lmcache
    for name, version in declared.items():
        found = versions.get(name)
        said = f"{found or 'not installed'}; the campaign declares {version}"
        if found is not None and same_release(found, version):
            yield ok(name, said)
        else:
            fix = f'server.{name}: "{found}"' if found else install
            fix += f"   (or install {names[0] if name == server.program else name}=={version} into .server-venv)"
            yield error(name, said, fix, found=found, declared=version)
    for program, reason in facts.missing_programs.items():
        yield error(program, reason, "bash scripts/setup.sh redis server")
    if facts.reduced is not None:
        yield _reduced(specifications, facts.reduced)


def _reduced(
    specifications: Sequence[Specification], reduced: Mapping[str, Any]
) -> FindingRow:
    """Judge a server's environment without some packages: the server must be told not to look for them."""
    missing = pluralize(len(reduced["left_out"]), "package")
    said = f"without {missing}, with code for GPUs of compute capability {reduced['gpu_code']}"

    def is_set_in_all(name: str, value: str) -> bool:
        return all(one.env.get(name) == value for one in specifications)

    unset = {
        name: value
        for name, value in reduced["environment"].items()
        if not is_set_in_all(name, value)
    }
    if unset:
        fix = f"server.env: {json.dumps(unset)}"
        return error("server environment", f"{said}; needs {fix}", fix, "reduced")
    return ok("server environment", said)


def _server_names(config: Config) -> Sequence[str]:
    """Return the names of the distributions that may contain the server."""
    server = config.campaign.server
    return SERVERS[server.program].distributions(server.build)


def _surroundings(config: Config, facts: LocalFacts) -> Iterator[FindingRow]:
    for said in facts.checkpoints:
        yield error(
            "checkpoint",
            said,
            "models: path, the folder of the model's own checkpoint; or weights: random",
        )
    for folder in facts.unwritable:
        yield error(
            "server.fs_dir",
            f"{folder} is not a folder that this user can write to",
            f"mkdir -p {folder}",
        )
    if config.campaign.server.weights == "full" and facts.unset_secrets:
        names = ", ".join(facts.unset_secrets)
        yield warning(
            "secrets",
            f"{names}: not set; gated models will be refused",
            f"export {facts.unset_secrets[0]}=...",
        )
    if facts.holder is not None:
        said = f"a measurement is running: {facts.holder}"
        yield warning(
            "host", said, "nothing: the next measurement waits for it", "held"
        )
    elif facts.load > _BUSY_SHARE * facts.cpus:
        said = f"{facts.load:.1f} processes ran or waited for {facts.cpus} CPUs in the last minute"
        yield warning(
            "host",
            said,
            "end the other processes: they share the CPUs with what is measured",
            "busy",
        )
    else:
        yield ok("host", f"idle: load {facts.load:.1f} on {facts.cpus} CPUs")
    if facts.leftovers and facts.holder is None:
        said = f"a killed run left {facts.leftovers} things"
        yield warning("leftovers", said, "kveval teardown", count=facts.leftovers)


def _noted(registry: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        return len(json.loads(registry.read_text()))
    return 0


def build_findings(config: Config, installed: Path) -> Iterator[FindingRow]:
    """Yield the findings on the builds of a campaign's arms; `installed`: the server's environment."""
    found: dict[str, tuple[ArmBuild, str]] = {}
    for cell in config.cells:
        build = config.build(cell)
        if build is not None:
            found.setdefault(build.name, (build, cell.scenario))
    for build, scenario in found.values():
        check, made = (
            f"build of {scenario}",
            is_made(build, installed, config.campaign.server.build),
        )
        if made or build.kind == "checkout":
            state = "exists" if made else "is made in seconds when it is needed"
            yield ok(check, f"{build.title}: its environment {state}")
        else:
            yield ok(
                check,
                f"{build.title}: installed by pip when it is first needed",
                to_be_made=True,
            )
        if changed := _not_built(build, config.campaign.server.declared_version):
            said = f"{build.title} differs from the installed build in {', '.join(changed)}: this is not compiled"
            yield warning(
                check,
                said,
                "build a wheel, and name it by server.wheel",
                "not_built",
                changed=changed,
            )


def module_findings(config: Config, installed: Path) -> Iterator[FindingRow]:
    """Yield a finding for each arm whose connector is loaded from modules by name, unless its build is not made yet."""
    arms = {cell.scenario: cell for cell in reversed(config.cells)}
    for arm, cell in arms.items():
        specification, build = config.specification(cell), config.build(cell)
        program = SERVERS[config.campaign.server.program]
        names = program.modules(specification.argv)
        if not names or config.catalogue.scenarios[arm].kv_transfer_config is None:
            continue
        environment = installed
        if build is not None and is_made(build, installed, specification.build):
            environment = environment_of(
                build, installed, specification.build, lambda text: None
            )
        elif build is not None:
            continue
        yield _module_finding(arm, names, environment, program.plugins)


def prometheus_findings(config: Config) -> Iterator[FindingRow]:
    """Yield what the campaign's Prometheus has of the last minute, if it names one."""
    prometheus, check = config.campaign.prometheus, "prometheus"
    if prometheus is None:
        return
    if prometheus.key and not os.environ.get(prometheus.key):
        said = f"{prometheus.key}, its key, is not set"
        yield error(check, said, f"export {prometheus.key}=...", "no_key")
        return
    key, now_s = os.environ.get(prometheus.key or "", ""), time.time()
    minute = now_s - 60, now_s
    ranges = read_ranges(prometheus.url, prometheus.series, *minute, key)
    if ranges.series:
        yield ok(check, f"{ranges.series} series of the last minute")
    for problem in ranges.problems:
        fix = "prometheus.url, prometheus.series: runs are measured without what is missing"
        yield warning(check, problem, fix, "no_series")


def _module_finding(
    arm: str, names: Sequence[str], environment: Path, plugins: Path | None
) -> FindingRow:
    check = f"modules of {arm}"
    try:
        missing = missing_modules(environment, names, plugins)
    except BuildError as failure:
        return error(check, str(failure), "bash scripts/setup.sh server", failure.code)
    if not missing:
        return ok(check, f"the server finds {', '.join(names)}")
    reasons = ", ".join(f"{name} ({reason})" for name, reason in missing.items())
    return error(
        check,
        f"{environment} lacks {reasons}",
        f"scenarios.{arm}.server: {{packages: [NAME==VERSION]}}, or install the package there",
        "no_module",
        missing=[*missing],
    )


def _not_built(build: ArmBuild, version: str) -> list[str]:
    """Return the folders of compiled sources in which a checkout differs from a release; none without a tag of it."""
    if build.kind != "checkout" or build.commit is None or build.place is None:
        return []
    commits = [f"v{version}", *([build.commit] if build.pinned else [])]
    with contextlib.suppress(BuildError):
        names = git(
            build.place, "diff", "--name-only", "-z", *commits, "--", *_COMPILED
        ).decode(errors="replace")
        return sorted({name.split("/")[0] for name in names.split("\0") if name})
    return []
