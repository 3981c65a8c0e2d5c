"""The differences between two specifications, key by key and in words."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

# Reasons name at most so many differences.
_SHOWN = 3
# These follow from others that are named.
_DERIVED = ("budget", "model.kv_bytes_per_token", "deployment.memory_bytes", "deployment.shm_bytes")


def described(found: list[tuple[str, Any, Any]]) -> str:
    """Return the first differences in words, without those that follow from others."""
    telling = [entry for entry in found if not entry[0].startswith(_DERIVED)] or found
    shown = [f"{key} {_short(before)} -> {_short(after)}" for key, before, after in telling[:_SHOWN]]
    more = len(telling) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def differences(before: Any, after: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the keys, dotted, in which two specifications differ, with both values; None where there is none.

    Arguments are compared by flag, and JSON in them by its keys.
    """
    one, other = _opened(before, key), _opened(after, key)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for name in [*one, *(name for name in other if name not in one)]:
            yield from differences(one.get(name), other.get(name), f"{key}.{name}" if key else str(name))
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
    if isinstance(value, list) and value and all(isinstance(item, Mapping) and "name" in item for item in value):
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
