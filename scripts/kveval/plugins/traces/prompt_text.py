"""Text in the prompts of a log, as messages of several interfaces have it."""

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

MARK = "\0"
"""What stands before and after the hash of a part that is no text."""
_OTHER_TYPES = re.compile("(input_)?(image|audio|video|file|document)(_url)?")
_OTHER_NAMES = ("images", "inline_data", "inlineData")
_DATA_URL = re.compile(r"data:[^,]{0,200};base64,")
_DEEPEST = 50


def plain_text(value: Any) -> str:
    """Return what is text in a prompt or in messages; a part that is none stands between two MARK, as its hash."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(value)
    return "\n".join(_pieces(value, 0))


def _pieces(value: Any, depth: int) -> Iterator[str]:
    if depth > _DEEPEST or _is_other(value):
        packed = json.dumps(value, sort_keys=True).encode()
        yield f"{MARK}{hashlib.sha256(packed).hexdigest()}{MARK}"
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            if name in _OTHER_NAMES and inner:
                yield from _pieces({"type": "image", name: inner}, depth + 1)
            elif name != "type":
                yield from _pieces(inner, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            yield from _pieces(inner, depth + 1)
    elif value is not None:
        yield str(value).replace(MARK, "")


def _is_other(value: Any) -> bool:
    """Return whether a part of a message is no text."""
    if isinstance(value, str):
        return _DATA_URL.match(value) is not None
    kind = value.get("type") if isinstance(value, Mapping) else None
    return isinstance(kind, str) and _OTHER_TYPES.fullmatch(kind) is not None
