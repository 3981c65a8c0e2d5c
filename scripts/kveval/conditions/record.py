"""One flat record of what ran: arguments, environment, versions, model, machine, load as declared.

Its kinds are neutral, `kind/name` -> value, and it says what is an arm's own. `verdict.comparability` compares it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from kveval.campaign.arm_kinds import ARM_KINDS
from kveval.stacks.registry import IMPORTED_SERVER, find_server
from kveval.stacks.settings import canonical, connectors
from kveval.store.conditions import (
    NO_ARGUMENTS,
    NO_CONNECTOR_OF_ARM,
    RESIZES_DEVICE,
)
from kveval.store.run_file import IMPORTED, Run

# Key of a specification -> kind of its values. Those of arms follow from the cell's size and scenario.
_PLACES = {
    "protocol": "measurement",
    "engine": "measurement",
    "reset_caches": "measurement",
    "load_from_tier": "measurement",
    "weights": "weights",
    "block_size": "setting",
    "companions": "arm",
    "deployment": "deployment",
    "workload": "load",
    "model": "model",
    "software": "versions",
}
# These are of another kind than their place; what a cluster needs for an arm is the arm's own.
_KINDS = {
    "model/dtype": "weights",
    "model/quantization": "weights",
    "model/kv_cache_dtype": "kv_dtype",
    "model/kv_bytes_per_token": "kv_dtype",
    "model/gpu_memory_utilization": "device_cache",
    "model/tensor_parallel_size": "ranks",
    "model/served_name": "unrelated",
    "model/name": "served",
    "model/max_model_len": "setting",
    "deployment/replicas": "ranks",
    "deployment/gpus": "ranks",
    **{
        f"deployment/{name}": "arm"
        for name in (
            *("route", "router", "picker", "picker_args", "picker_protocol"),
            *("objectives", "tokenizer", "lmcache_form", "file_medium"),
            *("memory_bytes", "shm_bytes", "server_labels"),
        )
    },
}
# What serves another model than its cell is called after has that as its own.
_OF_MODEL = ("model", "weights", "kv_dtype")


def record_of(run: Run) -> dict[str, str]:
    """Return the record of a run: `kind/name` -> value."""
    specification = run.specification
    ran = run.server.get("argv") or ()
    # The command stands before the first argument.
    begin = next((place for place, word in enumerate(ran) if word[:1] == "-"), len(ran))
    # What ran counts where it says something else than what was asked for.
    argv = [*(specification.get("argv") or ()), *ran[begin:]]
    env = {**(specification.get("env") or {}), **(run.server.get("env") or {})}
    record = {
        **_specified({**specification, "argv": argv, "env": env}),
        **_versions(run),
        **_machine(run),
    }
    record["ranks/replicas"] = str(run.cluster.get("replicas") or run.replicas)
    # Of a server that ran already: whether its caches were emptied before each level.
    if (emptied := run.attached.get("empties_caches")) is not None:
        record["measurement/empties_caches"] = canonical(emptied)
    if named := run.declared.get("arm"):
        record |= _unexpected(str(named), argv, specification)
    return record


def planned_record(specification: Mapping[str, Any]) -> dict[str, str]:
    """Return the record of a run that is not measured yet, as far as its specification, as JSON, has them."""
    return _specified(specification)


def _specified(specification: Mapping[str, Any]) -> dict[str, str]:
    """The conditions that a specification has, as JSON."""
    argv, env = specification.get("argv") or (), specification.get("env") or {}
    server = find_server(specification.get("versions", {})) or IMPORTED_SERVER
    record = dict(_of_keys(specification))
    given = server.settings.of(argv, env, server.arm_flags)
    if not argv:
        # Defaults are those of a server whose arguments are known.
        recorded = {key: given[key] for key in given if "/-" not in key}
        return {**record, **recorded, NO_ARGUMENTS: "true"}
    if server.settings.resizing & server.settings.arguments(argv).keys():
        record[RESIZES_DEVICE] = "true"
    record |= given
    record |= _unexpected(
        str(specification.get("cell", {}).get("scenario")), argv, specification
    )
    model = specification.get("model", {}).get("name")
    if model is None or model == specification.get("cell", {}).get("model"):
        return record
    own = {_own_if_of_model(name): value for name, value in record.items()}
    return {**own, RESIZES_DEVICE: "true"}


def _of_keys(specification: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The values of a specification that are neither arguments nor variables."""
    for key, kind in _PLACES.items():
        for name, value in _leaves(specification.get(key)):
            place = f"{kind}/{name or key}"
            kind_of_place = _KINDS.get(place.partition(".")[0], kind)
            yield f"{kind_of_place}/{name or key}", canonical(value)


def _leaves(value: Any) -> Iterator[tuple[str, Any]]:
    """Name and value of everything in a value as JSON; names of nested ones are joined by dots."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            for name, leaf in _leaves(part):
                yield f"{key}.{name}" if name else str(key), leaf
    elif isinstance(value, list | tuple):
        if value:
            yield "", msgspec.json.encode(value).decode()
    elif value not in (None, ""):
        yield "", value


def _own_if_of_model(name: str) -> str:
    kind, _, rest = name.partition("/")
    return f"arm/{rest}" if kind in _OF_MODEL else name


def _versions(run: Run) -> dict[str, str]:
    """The versions of programs; those beside the server are an arm's own, and the server's is that of its build."""
    server = find_server(run.versions)
    beside = {companion.name for companion in run.companions}
    record = {}
    for program, version in run.software.items():
        if server is not None and program == server.name:
            continue
        kind = "versions"
        if program in beside or program == "lmcache":
            kind = "arm"
        elif program in ("kveval", "pcp"):
            kind = "unrelated"
        record[f"{kind}/{program}"] = str(version)
    return record


def _machine(run: Run) -> dict[str, str]:
    """The machine beyond what makes it equal to others: its GPUs, kernel, drivers, nodes."""
    record: dict[str, str] = {}
    hardware = run.hardware
    gpus = hardware.get("gpus")
    if gpus is not None and run.engine != IMPORTED:
        record["ranks/gpus"] = str(len(gpus))
    if kernel := hardware.get("kernel"):
        record["machine/kernel"] = str(kernel)
    drivers = sorted({str(gpu["driver"]) for gpu in gpus or () if gpu.get("driver")})
    if drivers:
        record["machine/driver"] = ", ".join(drivers)
    facts = {"kubernetes": "kubernetes", "nodes": "nodes", "uid": "cluster"}
    for fact, name in facts.items():
        for part, value in _leaves(run.cluster.get(fact)):
            record[f"machine/{'.'.join(filter(None, (name, part)))}"] = str(value)
    if left_out := run.reduced_environment:
        for part, value in _leaves(left_out):
            record[f"machine/environment {part}".strip()] = str(value)
    return record


def _unexpected(
    arm: str, argv: Sequence[str], specification: Mapping[str, Any]
) -> dict[str, str]:
    """The connectors in a server's arguments that are none of those of the kind that its arm is called after."""
    server = find_server(specification.get("versions", {})) or IMPORTED_SERVER
    ran = connectors(argv)
    for kind, expected in server.settings.connectors.items():
        if not _is_called(arm, kind):
            continue
        others = [name for name in ran if name not in expected]
        if others:
            return {NO_CONNECTOR_OF_ARM: ", ".join(others)}
    return {}


def _is_called(arm: str, kind: str) -> bool:
    """Whether an arm has the name, or one that begins with the name, of an arm of this kind."""
    return any(
        arm == name or arm.startswith(f"{name}-") for name in ARM_KINDS[kind].arms
    )
