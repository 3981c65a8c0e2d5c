"""A connector that a scenario gives as vLLM's --kv-transfer-config takes it, with placeholders for the tier's size.

A text that is one placeholder alone becomes the number itself; within other text it is written out. `{fs_dir}` stays: it
is filled when the server starts, with an empty folder of the run.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator

from kveval.campaign.sizing import CacheSizes, gib
from kveval.host.values import Mistake

FILES_FOLDER = "fs_dir"
SIZES = (
    "cpu_bytes",
    "cpu_bytes_per_rank",
    "cpu_gib",
    "cpu_gib_per_rank",
    "cpu_blocks",
    "server_blocks",
)
"""Placeholders of the tier's size: over all ranks or one rank's share; blocks of 16 tokens, or of the server's."""
# The fields of KVTransferConfig in vllm/config/kv_transfer.py, of any release from 0.11 to 0.32.
_KEYS = {
    "kv_connector",
    "kv_connector_extra_config",
    "kv_connector_module_path",
    "kv_role",
    "kv_load_failure_policy",
    "kv_buffer_device",
    "kv_buffer_size",
    "kv_ip",
    "kv_parallel_size",
    "kv_port",
    "kv_rank",
    "enable_permute_local_kv",
    "engine_id",
}
_ROLES = ("kv_both", "kv_producer", "kv_consumer")
_EXTRA = "kv_connector_extra_config"
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_MODULE = "module_path"


def _transfer_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return a kv_transfer_config that vLLM would take as one. Raises Mistake."""
    if unknown := sorted(config.keys() - _KEYS):
        message = f"has {', '.join(unknown)}, no key of a kv_transfer_config; keys of a connector belong to"
        raise Mistake(f"{message} {_EXTRA}", "transfer_key")
    connector = config.get("kv_connector")
    if not isinstance(connector, str) or not connector:
        message = (
            "names no kv_connector: the class of the connector, as OffloadingConnector"
        )
        raise Mistake(message, "no_connector_named")
    if config.get("kv_role") not in _ROLES:
        message = f"kv_role is {config.get('kv_role')!r}; valid is one of {', '.join(_ROLES)}; offload needs kv_both"
        raise Mistake(message, "transfer_role")
    if not isinstance(config.get(_EXTRA, {}), dict):
        raise Mistake(f"{_EXTRA} is no mapping of keys to values", "transfer_extra")
    try:
        same = json.loads(json.dumps(config, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise Mistake(f"cannot be written as JSON: {error}", "no_json") from None
    if same != config:
        raise Mistake("has keys that are no text, which JSON does not have", "no_json")
    known = {*SIZES, FILES_FOLDER}
    if strange := sorted(placeholders(config) - known):
        message = f"has {{{strange[0]}}}, which nothing fills; placeholders are {', '.join(sorted(known))}"
        raise Mistake(message, "unknown_placeholder")
    return config


KVTransferConfig = Annotated[dict[str, Any], AfterValidator(_transfer_config)]
"""The value of vLLM's --kv-transfer-config, as a mapping, with placeholders."""


def placeholders(value: Any) -> set[str]:
    """Return the names of all placeholders in a value's texts."""
    return {name for text in _texts(value) for name in _PLACEHOLDER.findall(text)}


def size_numbers(sizes: CacheSizes, ranks: int) -> dict[str, int | float]:
    """Return the size of the tier, or of the buffer before files, by placeholder."""
    share = sizes.host_bytes // ranks
    return {
        "cpu_bytes": sizes.host_bytes,
        "cpu_bytes_per_rank": share,
        "cpu_gib": gib(sizes.host_bytes),
        "cpu_gib_per_rank": gib(share),
        "cpu_blocks": sizes.cpu_blocks,
        "server_blocks": sizes.tier_blocks,
    }


def with_sizes(value: Any, numbers: Mapping[str, int | float]) -> Any:
    """Return a value with the placeholders in its texts filled by `numbers`; others stay."""
    if isinstance(value, Mapping):
        return {key: with_sizes(item, numbers) for key, item in value.items()}
    if isinstance(value, list):
        return [with_sizes(item, numbers) for item in value]
    if not isinstance(value, str):
        return value
    alone = _PLACEHOLDER.fullmatch(value)
    if alone and alone[1] in numbers:
        return numbers[alone[1]]
    return text_with_sizes(value, numbers)


def text_with_sizes(text: str, numbers: Mapping[str, int | float]) -> str:
    """Return an argument, or an environment variable's value, with its placeholders filled by `numbers`."""
    return _PLACEHOLDER.sub(lambda match: str(numbers.get(match[1], match[0])), text)


def modules_of(config: Any) -> list[str]:
    """Return the names of the Python modules that a kv_transfer_config has loaded: values of keys on module_path."""
    names: dict[str, None] = {}
    if isinstance(config, Mapping):
        for key, value in config.items():
            if str(key).endswith(_MODULE) and isinstance(value, str):
                names[value] = None
            else:
                names |= dict.fromkeys(modules_of(value))
    elif isinstance(config, list):
        for item in config:
            names |= dict.fromkeys(modules_of(item))
    return [*names]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
