"""Whether this host can run a campaign with the local engine: checked before hours are spent; nothing is started."""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from kveval.engines.local.sidecars import find_program
from kveval.engines.preflight import (
    MEMORY_SHARE,
    PreflightError,
    disk_bytes,
    memory_bytes,
    require_checkpoint,
    shared_memory_bytes,
)
from kveval.engines.servers.declared import same_release
from kveval.engines.servers.registry import PROGRAMS
from kveval.engines.watchdog import DISK_RESERVE_BYTES
from kveval.host import hardware
from kveval.host.errors import Failure
from kveval.host.findings import Finding, error, ok, warning
from kveval.host.gpus.stacks import judge_stack, read_stacks
from kveval.host.lock import LOCK, holder
from kveval.host.registry import SHARED_MEMORY, registry_path
from kveval.pcp.installation import installed_pcp
from kveval.spec.builds import BuildError, asked_of
from kveval.spec.config import Config
from kveval.spec.sizing import GIB
from kveval.spec.specification import Specification

STACKS = Path(__file__).resolve().parents[4] / "config" / "gpu_stacks.yaml"
_BUSY_SHARE = 0.25
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
        pcp: PCP's version, "" where there is none; None where it cannot record, and why under `pcp_problem`.
        versions: of the distributions in the server's environment; None where there is no environment, or where its
            Python does not answer, and why under `versions_problem`.
        missing_programs: programs that an arm starts beside the server and that are not installed, with the reason.
        unwritable: folders of the configuration that this user cannot write to.
        unset_secrets: names of the campaign's secrets that are not in the environment.
        holder: the measurement that holds the host, None for none.
        leftovers: number of things that killed runs registered and that are not removed yet.
        checkpoints: what is wrong with folders of checkpoints on this host's disk.
    """

    gpus: Sequence[str]
    cpus: int
    memory: int
    shared_memory_free: int | None
    disk_free: int
    load: float
    pcp: str | None
    pcp_problem: str
    versions: Mapping[str, str] | None
    missing_programs: Mapping[str, str]
    unwritable: Sequence[str]
    unset_secrets: Sequence[str]
    holder: str | None
    leftovers: int
    checkpoints: Sequence[str] = ()
    driver_cuda: str | None = None
    versions_problem: str = ""


def local_facts(specifications: Sequence[Specification], config: Config, store: Path, server: Path) -> LocalFacts:
    """Probe this host; `store`: the folder of the store, which may not exist; `server`: the server's environment."""
    pcp, problem = None, ""
    try:
        pcp = installed_pcp() or ""
    except Failure as failure:
        problem = str(failure)
    versions, wrong = None, ""
    try:
        versions = _installed(server, [*_server_names(config), "guidellm", "lmcache", "torch"])
    except BuildError as failure:
        wrong = str(failure)
    folders = {specification.fs_dir for specification in specifications if specification.fs_dir}
    gpus = hardware.gpus()
    return LocalFacts(
        gpus=[gpu["name"] for gpu in gpus],
        cpus=len(os.sched_getaffinity(0)),
        memory=psutil.virtual_memory().total,
        shared_memory_free=shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else None,
        disk_free=shutil.disk_usage(next(folder for folder in (store, *store.parents) if folder.exists())).free,
        load=psutil.getloadavg()[0],
        pcp=pcp,
        pcp_problem=problem,
        versions=versions,
        missing_programs=_missing_programs(specifications, server),
        unwritable=sorted(folder for folder in folders if not os.access(folder, os.W_OK | os.X_OK)),
        unset_secrets=[name for name in config.campaign.secrets if not os.environ.get(name)],
        holder=holder(LOCK),
        leftovers=_noted(registry_path()),
        checkpoints=[*_wrong_checkpoints(specifications)],
        driver_cuda=next((gpu["cuda"] for gpu in gpus if gpu.get("cuda")), None),
        versions_problem=wrong,
    )


def _wrong_checkpoints(specifications: Sequence[Specification]) -> Iterator[str]:
    for model in {specification.model.served_name: specification.model for specification in specifications}.values():
        try:
            require_checkpoint(model)
        except PreflightError as error:
            yield str(error)


def examine_local(config: Config, specifications: Sequence[Specification], facts: LocalFacts) -> list[Finding]:
    """Return the findings that follow from these facts; `specifications`: those of the campaign's cells."""
    return [
        *_device(config, specifications, facts),
        *_memory(specifications, facts),
        _shared_memory(specifications, facts),
        _disk(config, specifications, facts),
        _pcp(facts),
        *_software(config, facts),
        *_surroundings(config, facts),
    ]


def _device(config: Config, specifications: Sequence[Specification], facts: LocalFacts) -> Iterator[Finding]:
    server = config.campaign.server
    if server.on_cpu:
        yield ok("device", f"the CPU, {facts.cpus} cores (build {server.build})")
        return
    asked = max(specification.model.tensor_parallel_size for specification in specifications)
    names = ", ".join(sorted(set(facts.gpus)))
    if len(facts.gpus) >= asked:
        yield ok("device", f"{len(facts.gpus)} GPUs answer ({names}); the largest cell takes {asked}")
    else:
        seen = f"{len(facts.gpus)} GPUs answer ({names})" if facts.gpus else "no GPU answers nvidia-smi"
        small = f"server.build: {server.program}-cpu with weights: miniature"
        fix = f"models: tensor_parallel_size; or {small}; or engine: kubernetes"
        said = f"{seen}, build {server.build} with tensor_parallel_size {asked} takes {asked}"
        yield error("device", said, fix, asked=asked)


def _memory(specifications: Sequence[Specification], facts: LocalFacts) -> Iterator[Finding]:
    needs = {specification.cell.path: memory_bytes(specification) for specification in specifications}
    largest = max(needs, key=lambda path: needs[path])
    share = needs[largest] / facts.memory
    said = (
        f"{largest} keeps {needs[largest] / GIB:.1f} GiB of KV cache in host memory,"
        f" {share:.0%} of this host's {facts.memory / GIB:.1f} GiB"
    )
    told: dict[str, Any] = {"cell": largest, "needed_bytes": needs[largest], "share": share}
    if share > 1:
        yield error("host memory", said, "matrix: fewer cpu_blocks; or a smaller server.device_blocks", **told)
    elif share > MEMORY_SHARE:
        fix = f"matrix: fewer cpu_blocks; above {MEMORY_SHARE:.0%} the host may swap, and the measurement shows that"
        yield warning("host memory", said, fix, **told)
    else:
        yield ok("host memory", said, **told)


def _shared_memory(specifications: Sequence[Specification], facts: LocalFacts) -> Finding:
    needs = {specification.cell.path: shared_memory_bytes(specification) for specification in specifications}
    largest = max(needs, key=lambda path: needs[path])
    if facts.shared_memory_free is None:
        return warning("/dev/shm", "there is none", "mount -t tmpfs tmpfs /dev/shm", "none_there")
    said = (
        f"{largest} allocates {needs[largest] / GIB:.1f} GiB there, {facts.shared_memory_free / GIB:.1f} GiB are free"
    )
    if needs[largest] > facts.shared_memory_free:
        fix = f"mount -o remount,size={needs[largest] // GIB + 2}G /dev/shm   (in a container: docker run --shm-size)"
        return error("/dev/shm", said, fix, free_bytes=facts.shared_memory_free)
    return ok("/dev/shm", said)


def _disk(config: Config, specifications: Sequence[Specification], facts: LocalFacts) -> Finding:
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
        return warning("disk", f"{said}; perhaps not enough for all {len(runs)} runs", "watch it: df -h results")
    return ok("disk", said)


def _pcp(facts: LocalFacts) -> Finding:
    if facts.pcp is None:
        return error("PCP", facts.pcp_problem, "bash scripts/setup.sh pcp")
    if not facts.pcp:
        said = "not installed: the server's exporters and the host's main counters are recorded without it"
        return warning("PCP", said, "bash scripts/setup.sh pcp", "none_there")
    return ok("PCP", f"version {facts.pcp}")


def _software(config: Config, facts: LocalFacts) -> Iterator[Finding]:
    server = config.campaign.server
    if facts.versions is None:
        fix = f"bash scripts/setup.sh {'server' if server.on_cpu else 'server-gpu'}"
        if facts.versions_problem:
            yield error(
                "server environment", facts.versions_problem, f"move .server-venv away, then {fix}", "no_answer"
            )
        else:
            yield error("server environment", "there is none", fix, "none_there")
        return
    if not server.on_cpu:
        found = next((facts.versions[one] for one in _server_names(config) if one in facts.versions), None)
        stacks = read_stacks(STACKS)
        told = judge_stack(stacks, server.program, found, facts.versions.get("torch"), facts.driver_cuda)
        if told is not None:
            yield told
    declared = {server.program: server.declared_version, "guidellm": server.guidellm}
    if server.lmcache is not None:
        declared["lmcache"] = server.lmcache
    for name, version in declared.items():
        names = _server_names(config) if name == server.program else [name]
        found = next((facts.versions[one] for one in names if one in facts.versions), None)
        said = f"{found or 'not installed'}; the campaign declares {version}"
        if found is not None and same_release(found, version):
            yield ok(name, said)
        else:
            part = "server" if server.on_cpu else "server-gpu"
            fix = f'server.{name}: "{found}"' if found else f"bash scripts/setup.sh {part}"
            fix += f"   (or install {names[0]}=={version} into .server-venv)"
            yield error(name, said, fix, found=found, declared=version)
    for program, reason in facts.missing_programs.items():
        yield error(program, reason, "bash scripts/setup.sh redis server")


def _server_names(config: Config) -> Sequence[str]:
    """Return the names of the distributions that may contain the server."""
    server = config.campaign.server
    return PROGRAMS[server.program].distributions(server.build)


def _surroundings(config: Config, facts: LocalFacts) -> Iterator[Finding]:
    for said in facts.checkpoints:
        yield error("checkpoint", said, "models: path, the folder of the model's own checkpoint; or weights: random")
    for folder in facts.unwritable:
        yield error("server.fs_dir", f"{folder} is not a folder that this user can write to", f"mkdir -p {folder}")
    if config.campaign.server.weights == "full" and facts.unset_secrets:
        names = ", ".join(facts.unset_secrets)
        yield warning(
            "secrets", f"{names}: not set; gated models will be refused", f"export {facts.unset_secrets[0]}=..."
        )
    if facts.holder is not None:
        said = f"a measurement is running: {facts.holder}"
        yield warning("host", said, "nothing: the next measurement waits for it", "held")
    elif facts.load > _BUSY_SHARE * facts.cpus:
        said = f"{facts.load:.1f} processes ran or waited for {facts.cpus} CPUs in the last minute"
        yield warning("host", said, "end the other processes: they share the CPUs with what is measured", "busy")
    else:
        yield ok("host", f"idle: load {facts.load:.1f} on {facts.cpus} CPUs")
    if facts.leftovers and facts.holder is None:
        said = f"a killed run left {facts.leftovers} things"
        yield warning("leftovers", said, "snakemake --cores 1 teardown", count=facts.leftovers)


def _installed(environment: Path, names: Sequence[str]) -> dict[str, str] | None:
    if not (environment / "bin" / "python").exists():
        return None
    found: dict[str, str] = asked_of(environment, _VERSIONS, *names)
    return found


def _missing_programs(specifications: Sequence[Specification], environment: Path) -> dict[str, str]:
    programs = {sidecar.argv[0] for specification in specifications for sidecar in specification.sidecars}
    return {program: reason for program in sorted(programs) if (reason := _failure(find_program, program, environment))}


def _failure(call: Callable[..., object], *arguments: object) -> str:
    try:
        call(*arguments)
    except Failure as failure:
        return str(failure)
    return ""


def _noted(registry: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        return len(json.loads(registry.read_text()))
    return 0
