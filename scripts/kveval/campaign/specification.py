"""Everything that defines a cell's measurement, apart from the run's number: the structure whose JSON is hashed.

A field that most cells do not need has a default, which the JSON leaves out: another key would be another id.
Placeholders stand for what differs between hosts: ports and paths.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Self

import msgspec
from msgspec import UNSET, UnsetType
from pydantic import Field

from kveval.campaign.catalogue import ModelSettings
from kveval.campaign.cell import Cell
from kveval.campaign.sizing import CacheSizes
from kveval.campaign.types import on_cpu
from kveval.host.errors import Failure
from kveval.host.hashing import content_hash
from kveval.load.workload import Workload, WorkloadError, workload_of

# Reasons name at most so many differences.
_SHOWN = 3
# These follow from others that are named.
_DERIVED = (
    "budget",
    "model.kv_bytes_per_token",
    "deployment.memory_bytes",
    "deployment.shm_bytes",
)


class SpecificationError(Failure):
    """This is not the JSON of a specification as this version writes it."""


class ServedModel(ModelSettings):
    """A model as the server has it: the miniature's own shape for a miniature.

    Attributes:
        name: in the catalogue.
        served_name: what requests call it.
        gpu_memory_utilization: None where the GPU's memory does not set the size of the cache.
        kv_bytes_per_token: bytes of cache, over all ranks.
        folder: where this host has the checkpoint; None where a hub has it, or where nothing is loaded. It is not
            hashed: a checkpoint is identified by its model.
    """

    name: str
    served_name: str
    gpu_memory_utilization: float | None
    kv_bytes_per_token: int
    folder: str | None = Field(None, exclude=True)


class SidecarSpec(msgspec.Struct, frozen=True):
    """A server that an arm needs beside its own: a program with its arguments, or an image's command on a cluster."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = {}


class DeploymentSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Deployment on a cluster; see docs/cluster.md. `gpus`, `memory_bytes`, `shm_bytes`, `cpus`: of each server."""

    release: str
    route: str
    replicas: int
    gpus: int
    memory_bytes: int
    shm_bytes: int
    cpus: int
    server_labels: Mapping[str, str]
    lmcache_form: str | None
    picker: Mapping[str, Any] | None
    picker_args: tuple[str, ...]
    picker_protocol: str | None
    """Unused; it stays because it is hashed into the ids of existing measurements."""
    objectives: tuple[str, ...]
    tokenizer: tuple[str, ...] | None
    file_medium: str | None
    router: str | UnsetType = UNSET
    """Chart of llm-d's router, a file of manifests/llm-d; not set where the load goes to the servers themselves."""


class Specification(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The values that define a measurement. The counters that an arm requires judge it and are not among them."""

    protocol: int
    cell: Cell
    engine: str
    weights: str
    model: ServedModel
    versions: Mapping[str, str]
    build: str
    source: str | UnsetType = UNSET
    """The content of the build that the arm names, see kveval.campaign.builds; not set if versions identify it."""
    block_size: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    sidecars: tuple[SidecarSpec, ...] = msgspec.field(name="companions")
    budget: CacheSizes
    fs_dir: str | UnsetType | None = UNSET
    """Folder of the arm's file tier on this host, None for the run's own; not set without such a tier."""
    address: str | UnsetType = UNSET
    """Hash of the address where the load of engine existing goes; not set where servers are started."""
    load_from_tier: bool = True
    """Whether requests let the server load from its tier; False only with engine existing."""
    workload: Workload
    reset_caches: str
    images: Mapping[str, str] = {}
    """Image by its role, on a cluster."""
    deployment: DeploymentSpec | None = None

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Decode what `to_json` returned. Raises SpecificationError for what would not be hashed to the same id."""
        try:
            specification = msgspec.convert(content, cls, dec_hook=_decoded)
        except msgspec.ValidationError as error:
            raise SpecificationError(
                f"not a specification ({error})", code="form"
            ) from error
        if specification.measurement_id != content_hash(content):
            message = "not a specification of this version: it has keys that this version does not have"
            raise SpecificationError(message, code="other_version")
        return specification

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values, which the caller may change; their hash is the measurement's id."""
        content: dict[str, Any] = msgspec.json.decode(
            msgspec.json.encode(self, enc_hook=_encoded)
        )
        return content

    @property
    def measurement_id(self) -> str:
        """The id of the measurement that it defines: 16 hex digits of the SHA-256 of its canonical JSON."""
        return content_hash(self.to_json())

    @property
    def miniature(self) -> bool:
        """Whether the model is a miniature, instead of having the named model's geometry."""
        return self.weights == "miniature"

    @property
    def random_weights(self) -> bool:
        """Whether the weights are random, so that nothing is downloaded and answers are meaningless."""
        return self.weights != "full"

    @property
    def on_cpu(self) -> bool:
        """Whether the server's device is the CPU."""
        return on_cpu(self.build)

    @property
    def file_tier(self) -> bool:
        """Whether the arm's last tier is files."""
        return self.fs_dir is not UNSET

    @property
    def on_cluster(self) -> DeploymentSpec:
        """The deployment of a specification of engine kubernetes, which has one."""
        assert self.deployment is not None
        return self.deployment

    def with_workload(self, **changes: Any) -> Self:
        """Return what is measured with a workload that differs in these fields."""
        return msgspec.structs.replace(self, workload=self.workload.replace(**changes))


def _encoded(value: Any) -> Any:
    """Return as JSON has it a value that msgspec does not encode itself."""
    return value.to_json() if isinstance(value, Workload) else value.model_dump()


def _decoded(kind: type, value: Any) -> Any:
    """Return from JSON a value that msgspec does not decode itself. Raises ValueError."""
    if kind is ServedModel:
        return ServedModel.model_validate(value)
    try:
        return workload_of(value)
    except WorkloadError as error:
        raise ValueError(str(error)) from error


def described(found: list[tuple[str, Any, Any]]) -> str:
    """Return the first differences in words, without those that follow from others."""
    telling = [entry for entry in found if not entry[0].startswith(_DERIVED)] or found
    shown = [
        f"{key} {_short(before)} -> {_short(after)}"
        for key, before, after in telling[:_SHOWN]
    ]
    more = len(telling) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def differences(
    before: Any, after: Any, key: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Yield the keys, dotted, in which two specifications differ, with both values; None where there is none.

    Arguments are compared by flag, and JSON in them by its keys.
    """
    one, other = _opened(before, key), _opened(after, key)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for name in [*one, *(name for name in other if name not in one)]:
            yield from differences(
                one.get(name), other.get(name), f"{key}.{name}" if key else str(name)
            )
    elif one != other:
        yield key, before, after


def _opened(value: Any, key: str) -> Any:
    """Return a value as a mapping if it is arguments, JSON or a list of named entries."""
    if key == "argv" and isinstance(value, list):
        return _by_flag(value)
    if isinstance(value, str) and value.startswith("{"):
        try:
            return json.loads(value)
        except ValueError:
            return value
    if (
        isinstance(value, list)
        and value
        and all(isinstance(item, Mapping) and "name" in item for item in value)
    ):
        return {item["name"]: item for item in value}
    return value


def _by_flag(argv: list[str]) -> dict[str, str]:
    flags: dict[str, str] = {}
    flag = ""
    for argument in argv:
        if argument.startswith("--"):
            flag = argument
            flags.setdefault(flag, "")
        else:
            flags[flag] = f"{flags.get(flag, '')} {argument}".strip()
    return flags


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text if len(text) <= 40 else f"{text[:37]}..."
