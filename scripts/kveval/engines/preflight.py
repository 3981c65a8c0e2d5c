"""Checks before a run starts anything expensive: disk, memory, shared memory, checkpoint, secrets in clear text."""

import json
import shutil
import tempfile
from pathlib import Path

import psutil

from kveval.campaign.random_model import model_config
from kveval.campaign.sizing import GIB
from kveval.campaign.specification import ServedModel, Specification
from kveval.engines.watchdog import DISK_RESERVE_BYTES, require_free
from kveval.host.errors import Failure
from kveval.host.redaction import Redactor
from kveval.host.registry import SHARED_MEMORY
from kveval.load.guidellm import worker_processes
from kveval.load.workload import Workload
from kveval.stacks.registry import held_bytes, server_of

MEMORY_SHARE = 0.7
"""Share of a host's memory above which KV caches leave too little for the servers themselves and the page cache."""
_MIB = 2**20
# Most tokens per second that a worker process of GuideLLM streams; measured with 0.8.1, as are the sizes below.
_TOKENS_PER_WORKER_S = 7_000
_REPORT_BYTES = 200_000
_REQUEST_BYTES = 3_300
_PACKED_SHARE = 0.2
_RECORDING_BYTES_S = 25_000
_RECORDING_BYTES_CPU_S = 1_000
_LOGS_BYTES = 8 * _MIB
_TEMPORARY_BYTES = 64 * _MIB
_GEOMETRY_KEYS = (
    *(
        "architectures",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
    ),
    *("num_key_value_heads", "head_dim", "vocab_size"),
)


class PreflightError(Failure):
    """The host has no room for the measurement, or the specification must not be measured as it is."""


def disk_bytes(workload: Workload, cpus: int) -> int:
    """Return an upper estimate of the bytes that one run needs in the store while it is measured, with the reserve."""
    seconds = workload.seconds
    requests = (
        worker_processes(cpus) * _TOKENS_PER_WORKER_S / workload.output_tokens * seconds
    )
    report = _REPORT_BYTES + _REQUEST_BYTES * requests
    levels = workload.level_count
    recording = (
        levels * (seconds + 30) * (_RECORDING_BYTES_S + _RECORDING_BYTES_CPU_S * cpus)
    )
    # One report at a time is unpacked, all are kept packed; the recording exists unpacked and packed for a moment.
    total = (
        report
        + levels * report * _PACKED_SHARE
        + recording * (1 + _PACKED_SHARE)
        + _LOGS_BYTES
    )
    return int(total) + DISK_RESERVE_BYTES


def shared_memory_bytes(specification: Specification) -> int:
    """Return the bytes of /dev/shm that the server allocates: its queues, and the tier if it is kept there."""
    return server_of(specification.versions).shared_memory_bytes(specification)


def memory_bytes(specification: Specification) -> int:
    """Return the bytes of host memory that the KV caches take: the tier as allocated, and a CPU device's own cache."""
    budget, per_token = specification.budget, specification.model.kv_bytes_per_token
    return held_bytes(specification) + (
        (budget.device_tokens or 0) * per_token if specification.on_cpu else 0
    )


def require_room(specification: Specification, store: Path, cpus: int) -> None:
    """Raise PreflightError or DiskFullError if the host lacks memory or disk for this measurement, kept in `store`."""
    store.mkdir(parents=True, exist_ok=True)
    require_free(
        store, disk_bytes(specification.workload, cpus), "a run of this workload"
    )
    require_free(
        Path(tempfile.gettempdir()),
        _TEMPORARY_BYTES,
        "the server's and the generator's temporary files",
    )
    needed = memory_bytes(specification)
    total = psutil.virtual_memory().total
    if needed > total:
        raise PreflightError(
            f"the KV caches take {needed / GIB:.1f} GiB of memory, this host has {total / GIB:.1f}:"
            " declare fewer cpu_blocks or device_blocks",
            code="no_room_in_memory",
            needed_bytes=needed,
            total_bytes=total,
        )
    shared = shared_memory_bytes(specification)
    if shared and SHARED_MEMORY.is_dir():
        free = shutil.disk_usage(SHARED_MEMORY).free
        if free < shared:
            raise PreflightError(
                f"{SHARED_MEMORY} is too small: {free / _MIB:.0f} MiB free, this arm's server allocates"
                f" {shared / _MIB:.0f} MiB there; enlarge it (mount -o remount,size=..., docker --shm-size) or remove"
                " old files there",
                code="no_room_in_shared_memory",
                needed_bytes=shared,
                free_bytes=free,
            )


def require_checkpoint(model: ServedModel) -> None:
    """Raise PreflightError if a local checkpoint's config.json is unreadable or differs from the catalogue's model."""
    if model.folder is None:
        return
    path = Path(model.folder) / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        config = dict(config)
    except (OSError, ValueError, TypeError) as error:
        message = f"models: path of {model.name}: {path} is not a model's configuration ({error})"
        raise PreflightError(message, code="no_checkpoint", path=path) from None
    geometry = model_config(model.geometry)
    other = [
        f"{key} {config[key]}, not {geometry[key]}"
        for key in _GEOMETRY_KEYS
        if key in config and config[key] != geometry[key]
    ]
    if other:
        message = f"models: path of {model.name}: {path} has another geometry than the catalogue: {'; '.join(other)}"
        raise PreflightError(message, code="other_geometry", path=path)


def require_no_secret(specification: Specification, redactor: Redactor) -> None:
    """Raise PreflightError if the specification, which is stored and published, contains the value of a secret."""
    names = redactor.found_in(json.dumps(specification.to_json(), ensure_ascii=False))
    if names:
        raise PreflightError(
            f"the configuration contains the value of {', '.join(names)} in clear text: remove it from args and env;"
            " the server gets it through its environment",
            code="secret_in_clear",
            names=names,
        )
