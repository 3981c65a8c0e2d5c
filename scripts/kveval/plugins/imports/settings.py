"""The server of an existing result, by benchmark-config.txt: its arguments, its environment, and its CPU tier.

The file is written before a run, so it says what was asked of the server, not that it ran.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kveval.campaign import sizing
from kveval.campaign.catalogue import Model
from kveval.campaign.types import BLOCK_TOKENS
from kveval.host.findings import Remark
from kveval.host.hashing import content_hash
from kveval.plugins.imports.remarks import remark

CONFIG_NAME = "benchmark-config.txt"
# LMCache's own default, GiB per rank.
_LMCACHE_DEFAULT_GIB = 5.0
# As the suites of llm-d and of OpenShift AI name them, in lower case.
_ARGS_KEYS = ("vllm extra args", "vllm additional args")
_SECRET = re.compile(
    r"TOKEN|SECRET|PASSWORD|PASSWD|API_KEY|ACCESS_KEY|CREDENTIAL", re.IGNORECASE
)
_KV_DTYPES = ("auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2")
_LMCACHE = ("LMCacheConnectorV1", "LMCacheMPConnector", "LMCacheConnector")


@dataclass(frozen=True)
class Tier:
    """A CPU tier as the arguments size it: 16-token blocks of the model, and the setting that says so.

    `before_others`: further tiers stand behind it, such as files.
    """

    cpu_blocks: int
    size_bytes: int
    said_by: str
    before_others: bool = False


@dataclass(frozen=True)
class ServedSettings:
    """The content of benchmark-config.txt; `values` are its lines, secrets left out.

    `args` is None if no line gives the server's arguments, or if they cannot be read; empty if a line gives none.
    `unreadable`: the lines that cannot be read, as remarks.
    """

    values: Mapping[str, str] = field(default_factory=dict)
    args: tuple[str, ...] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    unreadable: tuple[Remark, ...] = ()

    def number(self, key: str) -> int | None:
        """Return a whole number, None where the file has none under this key."""
        text = self.values.get(key, "")
        return int(text) if re.fullmatch(r"\d+", text) else None

    def argument(self, name: str) -> str | None:
        """Return the value of a server argument `--name VALUE` or `--name=VALUE`, the last one if it is repeated."""
        value = None
        args = self.args or ()
        for position, argument in enumerate(args):
            if argument == name and position + 1 < len(args):
                value = args[position + 1]
            elif argument.startswith(f"{name}="):
                value = argument.partition("=")[2]
        return value

    @property
    def defining(self) -> dict[str, Any]:
        """Everything that makes two servers alike or different: not the load, and not names, dates and paths."""
        kept = ("GPU Memory Utilization", "Model", "Replicas", "EPP Backend")
        return {
            **{key: self.values[key] for key in kept if key in self.values},
            "args": list(self.args or ()),
            "env": {
                name: value
                for name, value in sorted(self.env.items())
                if name != "HOME"
            },
        }


def configuration(
    settings: ServedSettings, hardware: str | None, software: str | None
) -> str | None:
    """Return a hash of everything that makes two servers alike, the load left out; None where no arguments are known."""
    if settings.args is None:
        return None
    defining = {**settings.defining, "hardware": hardware, "software": software}
    return content_hash(defining, spaced=True)


def parse_settings(text: str) -> ServedSettings:
    """Read the file's `key: value` lines. Nothing is an error: what cannot be read is in `unreadable`."""
    values: dict[str, str] = {}
    unreadable: list[Remark] = []
    for number, line in enumerate(text.splitlines(), start=1):
        key, colon, value = line.partition(":")
        if colon and key.strip():
            values[key.strip()] = value.strip()
        elif line.strip():
            unreadable.append(
                remark(
                    "no_setting",
                    "{file}, line {line}: no `key: value`",
                    file=CONFIG_NAME,
                    line=number,
                )
            )
    keys = [key for key in values if key.lower() in _ARGS_KEYS]
    words = [_words(values, key, unreadable) for key in keys]
    args = (
        None
        if not words or None in words
        else tuple(word for line in words for word in line or ())
    )
    pairs = (
        word.partition("=")
        for word in _words(values, "vLLM Env Vars", unreadable) or ()
    )
    env = {
        name: "(left out)" if _SECRET.search(name) else value
        for name, equals, value in pairs
        if equals
    }
    if "vLLM Env Vars" in values:
        values["vLLM Env Vars"] = shlex.join(
            f"{name}={value}" for name, value in env.items()
        )
    return ServedSettings(values, args, env, tuple(unreadable))


def _words(
    values: Mapping[str, str], key: str, unreadable: list[Remark]
) -> list[str] | None:
    try:
        return shlex.split(values.get(key, ""))
    except ValueError as error:
        unreadable.append(
            remark(
                "no_words",
                "{file}: {key} cannot be split into words ({error})",
                file=CONFIG_NAME,
                key=key,
                error=str(error),
            )
        )
        return None


def connectors(settings: ServedSettings) -> tuple[str, ...]:
    """Return the names of the KV connectors that the server was given, those inside a MultiConnector too."""
    names = [str(config["kv_connector"]) for config in _connector_configs(settings)]
    if settings.argument("--kv-offloading-size") is not None and not names:
        names = ["OffloadingConnector"]
    return tuple(names)


def effective_tier(settings: ServedSettings, model: Model, ranks: int) -> Tier | None:
    """Return the CPU tier that the arguments size, None without one.

    Native offload counts server blocks (`num_cpu_blocks`) or bytes over all ranks (`cpu_bytes_to_use`,
    `--kv-offloading-size` in GiB); LMCache has LMCACHE_MAX_LOCAL_CPU_SIZE, GiB for each of `ranks`.
    """
    argument = settings.argument("--kv-cache-dtype")
    kv_dtype = argument if argument in _KV_DTYPES else model.kv_cache_dtype
    per_block = BLOCK_TOKENS * sizing.kv_bytes_per_token(
        model.geometry, kv_dtype, ranks, model.dtype
    )
    for config in _connector_configs(settings):
        if config["kv_connector"] == "OffloadingConnector":
            extra = _extra(config)
            tier = _native(settings, extra, per_block)
            if tier is not None:
                return replace(tier, before_others=bool(extra.get("secondary_tiers")))
        if config["kv_connector"] in _LMCACHE:
            return _lmcache(settings, per_block, ranks)
    size = settings.argument("--kv-offloading-size")
    if size is not None and _number(size) is not None:
        return _tier(
            float(size) * sizing.GIB, per_block, f"--kv-offloading-size {size} GiB"
        )
    return None


def _native(
    settings: ServedSettings, extra: Mapping[str, Any], per_block: int
) -> Tier | None:
    blocks, in_bytes = (
        _number(extra.get("num_cpu_blocks")),
        _number(extra.get("cpu_bytes_to_use")),
    )
    if blocks is not None:
        step = int(_number(settings.argument("--block-size")) or BLOCK_TOKENS)
        count = sizing.blocks_of_server(int(blocks), step)
        return Tier(
            count, count * per_block, f"num_cpu_blocks {int(blocks)} of {step} tokens"
        )
    if in_bytes is not None:
        return _tier(in_bytes, per_block, f"cpu_bytes_to_use {int(in_bytes)}")
    return None


def _lmcache(settings: ServedSettings, per_block: int, ranks: int) -> Tier:
    if settings.env.get("LMCACHE_LOCAL_CPU", "True").lower() in ("false", "0"):
        return Tier(0, 0, "LMCACHE_LOCAL_CPU is off")
    declared_gib = _number(settings.env.get("LMCACHE_MAX_LOCAL_CPU_SIZE"))
    size = _LMCACHE_DEFAULT_GIB if declared_gib is None else declared_gib
    source = f"LMCACHE_MAX_LOCAL_CPU_SIZE {size:g} GiB x {ranks} ranks"
    return _tier(
        size * ranks * sizing.GIB,
        per_block,
        source if declared_gib is not None else f"{source} (LMCache's default)",
    )


def ignored_sizes(settings: ServedSettings) -> Iterator[Remark]:
    """Yield a remark on each setting that has no effect on the size although it looks as if it had."""
    for config in _connector_configs(settings):
        blocks = _extra(config).get("num_cpu_blocks")
        if config["kv_connector"] in _LMCACHE and "num_cpu_blocks" in _extra(config):
            yield remark(
                "blocks_ignored",
                "LMCache ignores num_cpu_blocks ({num_cpu_blocks})",
                num_cpu_blocks=blocks,
            )
    if "LMCACHE_CONFIG_FILE" in settings.env and set(connectors(settings)[:1]) & set(
        _LMCACHE
    ):
        yield remark(
            "no_config_file",
            "LMCACHE_CONFIG_FILE may say otherwise; it is not among the results",
        )


def ranks(settings: ServedSettings, model: Model, gpus: int | None = None) -> int:
    """Return the tensor-parallel size: the argument's, else the file's, else `gpus`, else the model's.

    `gpus`: those of a server by the name of the hardware; they count if the model can be shared among so many.
    """
    named = settings.argument("--tensor-parallel-size") or settings.argument("-tp")
    size = _number(named or settings.values.get("Tensor Parallel Size"))
    if size:
        return int(size)
    return gpus if gpus and model.divides_among(gpus) else model.tensor_parallel_size


def _connector_configs(settings: ServedSettings) -> list[Mapping[str, Any]]:
    """Return --kv-transfer-config, or those of the connectors inside a MultiConnector; empty where none is named."""
    try:
        config = json.loads(settings.argument("--kv-transfer-config") or "{}")
    except ValueError:
        return []
    inner = _extra(config).get("connectors") if isinstance(config, Mapping) else None
    configs = inner if isinstance(inner, list) else [config]
    return [
        config
        for config in configs
        if isinstance(config, Mapping) and config.get("kv_connector")
    ]


def _extra(config: Mapping[str, Any]) -> Mapping[str, Any]:
    extra = config.get("kv_connector_extra_config")
    return extra if isinstance(extra, Mapping) else {}


def _tier(size_bytes: float, per_block: int, said_by: str) -> Tier:
    return Tier(int(size_bytes // per_block), int(size_bytes), said_by)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if number >= 0 else None
